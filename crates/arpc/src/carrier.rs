//! Carriers: ordered, reliable ways to move frames between two peers.
//!
//! A carrier holds only a few frames by itself: all others wait in the engine, where they can still be overtaken.

mod accepting;
mod address;
#[doc(hidden)]
pub mod bare;
mod check;
pub mod grpc;
mod harm;
pub mod memory;
mod meter;
pub mod quic;
pub mod shaped;
mod side_by_side;
mod strangers;
mod tcp_info;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::Stream;
use tokio::sync::mpsc;

pub use self::address::{Address, ConnectError};
pub(crate) use self::check::CheckedCodec;
pub use self::meter::Ends;
pub(crate) use self::meter::LossMeter;
use crate::engine::{CONTENT_BYTES_MAX, Settings, Side};
use crate::wire;

/// How many frames wait between the driver and the transport.
const SINK_FRAMES: usize = 2;

/// The most bytes of an encoded frame: its content and room for its fields.
const FRAME_BYTES_MAX: usize = CONTENT_BYTES_MAX + 8 * 1024;

/// Windows of the transport, far above the bytes that the engine lets be in flight (facts.md section 2: small ones cap
/// the rate of long paths).
const STREAM_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 32 * 1024 * 1024;

/// A packet's share of a TCP stream in an Ethernet, with time stamps, where the real one is not known.
const SEGMENT_BYTES: u64 = crate::link::SEGMENT_BYTES;

/// Frames from the peer; an error says how the connection ended.
type FrameStream = Pin<Box<dyn Stream<Item = Result<wire::Frame, Broken>> + Send>>;

/// The reason why no more frames come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    /// The connection has failed, in words.
    Lost(String),
    /// A frame was damaged on its way.
    Damaged,
}

/// One end of a connection that moves frames in order. Dropping it ends the connection.
pub struct Carrier {
    pub(crate) side: Side,
    pub(crate) sink: mpsc::Sender<wire::Frame>,
    pub(crate) stream: FrameStream,
    pub(crate) loss: LossMeter,
    pub(crate) transport: Transport,
}

/// The transport below.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    /// TCP, or a transport that counts as TCP, one packet of which carries so much of the stream of frames.
    Stream { segment_bytes: u64 },
    /// QUIC, which finds out on the way how large a packet may be.
    Datagrams { packet_bytes: Arc<AtomicU64> },
}

impl Transport {
    /// Returns how much of the stream of frames one packet carries now, where this changes while the connection is
    /// there.
    pub(crate) fn measured_segment_bytes(&self) -> Option<u64> {
        match self {
            Self::Stream { .. } => None,
            Self::Datagrams { packet_bytes } => Some(quic::segment_bytes(packet_bytes.load(Ordering::Relaxed))),
        }
    }

    /// Adapts an engine's numbers to this transport.
    pub(crate) fn suit(&self, settings: Settings, side: Side) -> Settings {
        match self {
            Self::Stream { segment_bytes } => settings.in_packets(*segment_bytes),
            // The driver says how large packets are.
            Self::Datagrams { .. } => settings.in_datagrams(side),
        }
    }
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Carrier").field("side", &self.side).finish_non_exhaustive()
    }
}
