//! The link model: decides when bytes sent over an emulated link arrive, or that they do not.
//!
//! Owns the parameters of a link ([`Profile`], [`Direction`]) and the state of its two directions, each seen in one of
//! two ways: a [`Link`] is the network itself, where packets arrive or are dropped; a [`Stream`] is a reliable
//! transport on it, where loss is delay and, in the end, a reset. A [`Cell`] is one direction that several stations
//! share at a base station. Knows no frames, sockets, tasks or clocks: `now` is an argument, and randomness follows
//! from a seed.
//!
//! But for a cell, the fate of an offered packet is decided at once, because all that changes a link (rates, bursts,
//! outages) is a function of time and seed. So the caller keeps the packets on their way in a queue, in the order
//! offered, and sleeps until the first arrival; nothing has to be polled or told that time passes.
//!
//! Invariants:
//! - packets arrive in the order offered;
//! - accepted packets that have not left never hold more than the queue's bytes, nor more than the receive buffer's at
//!   the other end;
//! - the same parameters, seed, start and offers give the same fates.
//!
//! Sizes are whole numbers of bytes on the air, headers included; [`PACKET_BYTES`] is the largest packet of the
//! networks described here.

mod air;
pub mod arq;
mod cell;
mod cellular;
mod channel;
mod hop;
mod periods;
mod profile;
mod queue;
mod rate;
mod stream;
#[cfg(test)]
mod tests;
mod trace;
mod uplink;

use std::time::Duration;

use mafs_proto::Instant;

pub use self::cell::{Arrival, Cell};
pub use self::cellular::Cellular;
use self::channel::Channel;
pub use self::periods::Periods;
pub use self::profile::{Profile, ProfileName, Retransmission, UnknownProfile};
use self::queue::Queue;
use self::rate::Line;
pub use self::rate::Rate;
pub use self::stream::{Reset, SEGMENT_BYTES, Stream};
pub use self::trace::{Trace, TraceError};
pub use self::uplink::Uplink;

/// The bytes of the largest packet, and of one opportunity of a trace.
pub const PACKET_BYTES: u64 = 1500;

/// One direction of a link.
#[derive(Clone, Debug)]
pub struct Direction {
    /// How fast bytes leave the queue.
    pub rate: Rate,
    /// How long a packet travels after it has left.
    pub delay: Duration,
    /// Bytes that the drop-tail queue before the link holds at most, with the packet that is being sent.
    pub queue_bytes: u64,
    /// Packets lost independently of each other, in a million.
    pub loss_ppm: u32,
    /// The host at the far end, if it may be too slow for the link.
    pub receiver: Option<Receiver>,
}

/// A host that takes packets out of its network adapter's buffer, and loses what does not fit there: the mobile hosts
/// of the wireless papers (000 section 4), the three adapters of the tuning paper (004).
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    /// Bytes that the buffer holds at most.
    pub buffer_bytes: u64,
    /// How fast the host empties it.
    pub bytes_per_s: u64,
}

/// The reason why a packet does not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dropped {
    /// The queue before the link had no room. The packet was never sent.
    QueueFull,
    /// The packet was sent, and lost on the way: by chance, in a burst of errors, or because the link was down.
    Lost,
    /// The packet came when the receive buffer had no room.
    ReceiverFull,
}

/// One direction as packets see it.
#[derive(Debug)]
pub struct Link {
    origin: Origin,
    latest: Instant,
    queue: Queue,
    line: Line,
    channel: Channel,
    delay: Duration,
    receiver: Option<(Queue, Line)>,
}

impl Link {
    fn new(direction: &Direction, channel: Channel, start: Instant) -> Self {
        let receiver =
            |receiver: Receiver| (Queue::new(receiver.buffer_bytes), Line::new(&Rate::constant(receiver.bytes_per_s)));
        Self {
            origin: Origin(start),
            latest: Instant(0),
            queue: Queue::new(direction.queue_bytes),
            line: Line::new(&direction.rate),
            channel,
            delay: direction.delay,
            receiver: direction.receiver.map(receiver),
        }
    }

    /// Offers a packet of `bytes` (0 counts as 1) at `now`, and says when the receiving host has it. A time before the
    /// last offer's counts as the last offer's.
    ///
    /// # Errors
    /// The reason why it does not arrive. A lost packet has taken its time on the link all the same.
    pub fn offer(&mut self, bytes: u64, now: Instant) -> Result<Instant, Dropped> {
        let bytes = bytes.max(1);
        let now = self.advance(now);
        if !self.queue.has_room(bytes, now) {
            return Err(Dropped::QueueFull);
        }
        let Self { receiver, delay, .. } = self;
        let room_bytes =
            |crossed| receiver.as_mut().map_or(u64::MAX, |(buffer, _)| buffer.room_bytes(crossed + *delay));
        let sent = self.channel.send(&mut self.line, bytes, now, room_bytes);
        self.queue.push(bytes, sent.left);
        let arrival = sent.fate.map_err(|_| Dropped::Lost)? + self.delay;
        let Some((buffer, host)) = &mut self.receiver else { return Ok(self.origin.global(arrival)) };
        if !buffer.has_room(bytes, arrival) {
            return Err(Dropped::ReceiverFull);
        }
        let taken = host.carry(bytes, arrival).to;
        buffer.push(bytes, taken);
        Ok(self.origin.global(taken))
    }

    /// Returns how many bytes wait in the queue at `now`, with the packet that is being sent.
    pub fn queued_bytes(&mut self, now: Instant) -> u64 {
        let now = self.advance(now);
        self.queue.held_bytes(now)
    }

    fn advance(&mut self, now: Instant) -> Instant {
        self.latest = self.latest.max(self.origin.local(now));
        self.latest
    }
}

/// When a link's own time began: rates, traces and bad periods count from there.
#[derive(Clone, Copy, Debug)]
struct Origin(Instant);

impl Origin {
    fn local(self, time: Instant) -> Instant {
        Instant(time.0.saturating_sub(self.0.0))
    }

    fn global(self, time: Instant) -> Instant {
        Instant(time.0.saturating_add(self.0.0))
    }
}
