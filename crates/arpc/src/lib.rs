//! Adaptive RPC: symmetric calls in five classes over one ordered carrier.
//!
//! The crate knows nothing of files: a method is a number, a body is bytes, a payload is a stream of bytes.
//!
//! `engine` decides everything and is pure; `driver` is the one task of a connection that owns an engine and moves its
//! frames; programs hold [`Peer`], [`CallHandle`], [`IncomingCall`] and the payload ends; frames travel over a
//! [`carrier`]; [`link`] says, for emulated carriers, when they arrive.

mod backoff;
pub mod carrier;
mod clock;
mod driver;
mod engine;
mod error;
mod gate;
pub mod link;
mod loss;
mod payload;
mod peer;
mod pipe;
mod shared;
pub mod watch;
mod wire;

pub use backoff::Backoff;
pub use clock::{BootClock, blocking, run_to_end, spawn_blocking};
pub use engine::{InvalidRate, Rate, Reserve};
pub use error::{CallError, PayloadError};
pub use gate::SharedGate;
pub use loss::Loss;
pub use payload::{Payload, PayloadReader, PayloadWriter};
pub use peer::{
    Call, CallHandle, CallProgress, Config, Estimate, Incoming, IncomingCall, Peer, Priority, Reply, Scheduling,
    Timing, Traffic,
};
