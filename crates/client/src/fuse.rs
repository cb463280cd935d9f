//! The kernel's edge: turns requests of the kernel into operations of `vfs`, and their results into answers.
//!
//! Handlers decide nothing. A session thread never waits for the network: it polls an operation once and leaves the
//! rest to a task (`answer`). The only table of errnos is `errno`. Must not know how the cache or the server work.

mod answer;
mod awake;
pub mod backings;
mod caller;
mod capabilities;
mod convert;
mod edge;
mod errno;
mod handlers;
mod kernel_cache;
mod late;
mod locks;
mod programs;
mod recording;
mod session;

pub use session::{Access, FuseError, Session, SessionOptions, check_available};
