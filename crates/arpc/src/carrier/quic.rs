//! Frames over QUIC, on UDP: for wireless links, and for clients that move.
//!
//! **One stream carries all frames**, in both directions. The engine relies on the order of frames of different
//! classes: an acknowledgement says how many bytes of all frames have come, the pieces of a payload have no offsets and
//! change their class with their call, and signals about a call (Cancel, Stop, Reprioritise) must not overtake the
//! call. A stream for each class would break all of this, and bring little: the bytes that the engine has handed over
//! and the network has not delivered are no more than its window, so streams would only help while a lost packet is
//! sent again.
//!
//! **The engine decides when something goes.** QUIC's own windows are set out of the way, as HTTP/2's are; the
//! congestion window (`quic/congestion.rs`) guards bottlenecks that the engine does not judge.
//!
//! **A short silence**: quinn's probes back off exponentially, and this cannot be changed. But each frame into a
//! silence is a packet of its own, and the first one that gets through is acknowledged at once and shows all earlier
//! losses. So the engine's nudges, which over TCP end when TCP's own timeout has come, go on here at equal intervals
//! for as long as the peer is waited for.
//!
//! **Security**: TLS 1.3. The server's certificate is its own; a client notes the fingerprint at its first connection
//! and takes no other afterwards ([`Pin`]). Clients show none yet.
//!
//! A client that moves keeps its connection: a packet from another address moves it there, once the address has
//! answered a challenge. Nothing keeps an idle connection awake; after a NAT has forgotten it, the client's next packet
//! opens the way back.

mod client;
mod congestion;
mod controller;
mod frames;
mod identity;
mod lossy;
mod server;
mod trust;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use quinn::{AckFrequencyConfig, Connection, MtuDiscoveryConfig, RecvStream, SendStream, TransportConfig, VarInt};

pub use self::client::{connect, connect_over};
use self::controller::Controllers;
pub use self::identity::{Fingerprint, InvalidFingerprint, KeyError, ServerKey};
pub use self::server::Listener;
pub use self::trust::Pin;
use super::{CONNECTION_WINDOW_BYTES, Carrier, LossMeter, STREAM_WINDOW_BYTES, Transport};
use crate::engine::{FRAMING_BYTES, Side};

/// The protocol's name in TLS, with its version.
const ALPN: &[u8] = b"mafs/1";

/// The round trip before one is known: a lost first packet is sent again after three times this. RFC 9002 has 333 ms,
/// so a burst of errors at the beginning would cost a second.
const RTT_FIRST: Duration = Duration::from_millis(100);
/// Acknowledgements of packets wait so long, so that they ride on the engine's, which wait 5 ms at most.
const ACK_DELAY: Duration = Duration::from_millis(8);
/// This many packets may go without an acknowledgement.
const ACK_EVERY: VarInt = VarInt::from_u32(10);
/// The largest packet's content that is tried: an Ethernet's, less the heads of IPv6 and UDP.
const PACKET_BYTES_MAX: u16 = 1452;
/// A path that has dropped large packets is tried again soon: a burst of errors looks like that.
const BLACK_HOLE_COOLDOWN: Duration = Duration::from_secs(1);
/// The head of a packet (RFC 9000, section 17.3.1: flags, 8 bytes of connection id, 2 of number), its seal, and the
/// head of the stream's part in it; and an acknowledgement that rides on it.
const PACKET_HEAD_BYTES: u64 = 1 + 8 + 2 + 16 + 8 + 16;
/// The bytes around a frame of a packet's size: its length and its check.
const FRAME_HEAD_BYTES: u64 = 2 + 6;

/// Configures quinn for both ends.
fn transport(controllers: &Arc<Controllers>, streams_from_peer: u32) -> TransportConfig {
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(PACKET_BYTES_MAX).black_hole_cooldown(BLACK_HOLE_COOLDOWN);
    let mut acks = AckFrequencyConfig::default();
    acks.max_ack_delay(Some(ACK_DELAY)).ack_eliciting_threshold(ACK_EVERY).reordering_threshold(VarInt::from_u32(1));
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(streams_from_peer.into())
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        // The engine knows when a peer is silent, and says so.
        .max_idle_timeout(None)
        .keep_alive_interval(None)
        .stream_receive_window(STREAM_WINDOW_BYTES.into())
        .receive_window(CONNECTION_WINDOW_BYTES.into())
        .send_window(CONNECTION_WINDOW_BYTES.into())
        .initial_rtt(RTT_FIRST)
        .mtu_discovery_config(Some(mtu))
        .ack_frequency_config(Some(acks))
        .congestion_controller_factory(Arc::<Controllers>::clone(controllers));
    transport
}

/// Returns how much of the stream of frames is in a packet of so many bytes, for an engine that counts
/// [`FRAMING_BYTES`] around each frame.
pub(super) fn segment_bytes(packet_bytes: u64) -> u64 {
    packet_bytes.saturating_sub(PACKET_HEAD_BYTES + FRAME_HEAD_BYTES) + FRAMING_BYTES
}

/// Makes the carrier of a connection whose stream has begun.
fn carrier(
    side: Side,
    connection: Connection,
    streams: (SendStream, RecvStream),
    packet_bytes: &Arc<AtomicU64>,
) -> Carrier {
    let (send, receive) = streams;
    Carrier {
        side,
        sink: frames::sink(send, connection.clone()),
        stream: frames::frames(receive, connection.clone()),
        transport: Transport::Datagrams { packet_bytes: Arc::clone(packet_bytes) },
        loss: LossMeter::Quic(connection),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
