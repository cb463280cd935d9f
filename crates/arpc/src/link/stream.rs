//! A reliable byte stream over a link: loss becomes delay, and long silence a reset.
//!
//! Models the transport underneath (a modern TCP: selective acknowledgements, no back-off of its rate on loss) without
//! its packets: each segment is sent until it gets through.
//! - **A loss that others survive** (by chance, or in a bad period no longer than a round trip, so that segments sent
//!   behind it arrive and tell of it) costs the time on the line again and one round trip more until the bytes arrive.
//!   Later bytes are sent meanwhile, but are delivered behind it.
//! - **A loss in silence** (a longer bad period, an outage, or a repetition that is lost too) is repeated after the
//!   retransmission timeout, round-trip time + 200 ms, twice that, and so on up to 120 s: Linux's TCP. The line is idle
//!   until then. So an outage lasts up to twice as long for the stream: it stalls.
//! - **A segment lost 16 times in a row** resets the stream: with Linux's `tcp_retries2` of 15, after about 15 minutes.
//!
//! Nothing is dropped by the queue: a sender waits until there is room ([`Stream::writable_at`]), and flow control
//! keeps the receive buffer from overflowing, so a [`super::Receiver`] plays no part. Left out: slow start, back-off
//! on loss, acknowledgements on the way back (2 % of the bytes), queueing in the round-trip time.

use std::time::Duration;

use mafs_proto::Instant;

use super::channel::{Channel, Sent};
use super::queue::Queue;
use super::rate::Line;
use super::{Direction, Origin, PACKET_BYTES, Uplink};
use crate::loss::Loss;

/// IP and TCP headers with time stamps (RFC 9293, RFC 7323).
const HEADER_BYTES: u64 = 52;
/// The most that one packet carries of a stream.
pub const SEGMENT_BYTES: u64 = PACKET_BYTES - HEADER_BYTES;
/// The least time that Linux adds to the round-trip time (`tcp_rto_min_us`), and its longest timeout.
const TIMEOUT_MARGIN: Duration = Duration::from_millis(200);
const TIMEOUT_MAX: Duration = Duration::from_secs(120);
/// Linux's `tcp_retries2`.
const REPETITIONS_MAX: u32 = 15;

/// The error of a broken stream: the transport has given up at `at`, and bytes sent since the loss do not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reset {
    /// When the sender learns of the break.
    pub at: Instant,
}

/// One direction as bytes on a reliable transport see it.
#[derive(Debug)]
pub struct Stream {
    origin: Origin,
    /// The uplink before the line, if there is one.
    uplink: Option<Uplink>,
    line: Line,
    channel: Channel,
    delay: Duration,
    rtt: Duration,
    /// Bytes that have been taken and not been sent.
    backlog: Queue,
    delivered_at: Instant,
    reset_at: Option<Instant>,
    loss: Loss,
}

impl Stream {
    pub(super) fn new(direction: &Direction, channel: Channel, rtt: Duration, start: Instant) -> Self {
        Self {
            origin: Origin(start),
            uplink: None,
            line: Line::new(&direction.rate),
            channel,
            delay: direction.delay,
            rtt,
            backlog: Queue::new(direction.queue_bytes),
            delivered_at: Instant(0),
            reset_at: None,
            loss: Loss::default(),
        }
    }

    /// Puts the stream behind an uplink, which others share.
    #[must_use]
    pub fn behind(self, uplink: Uplink) -> Self {
        Self { uplink: Some(uplink), ..self }
    }

    /// Gives the sender a buffer of its own before the queue: those of its socket and its HTTP/2.
    #[must_use]
    pub fn with_send_buffer(mut self, bytes: u64) -> Self {
        self.backlog.add_room(bytes);
        self
    }

    /// Takes `bytes` at `now` and says when the last of them is delivered. Takes any number; a sender keeps its
    /// backlog small by waiting for [`Self::writable_at`] before.
    ///
    /// # Errors
    /// The transport gives up before the delivery. All later calls fail too.
    pub fn send(&mut self, bytes: u64, now: Instant) -> Result<Instant, Reset> {
        let now = self.origin.local(now);
        let mut left = bytes;
        while left > 0 && self.reset_at.is_none() {
            let segment = left.min(SEGMENT_BYTES);
            self.send_segment(segment, now);
            left -= segment;
        }
        match self.reset_at {
            Some(at) => Err(Reset { at: self.origin.global(at) }),
            None => Ok(self.origin.global(self.delivered_at.max(now))),
        }
    }

    /// Returns when the backlog is no larger than the direction's queue and the send buffer, so that a sender should go
    /// on; `now` if this is so already.
    pub fn writable_at(&mut self, now: Instant) -> Instant {
        let local = self.origin.local(now);
        let shared = self.uplink.as_ref().map(|uplink| uplink.writable_at(now));
        self.origin.global(self.backlog.within_limit_at(local)).max(now).max(shared.unwrap_or(now))
    }

    /// Returns how much has been sent so far, and how much of it was lost. In a bad period only the first segment is
    /// lost: later ones wait for its end, where a real sender would lose more.
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.loss
    }

    fn send_segment(&mut self, bytes: u64, now: Instant) {
        let sent = bytes + HEADER_BYTES;
        let carry = |uplink: &Uplink| self.origin.local(uplink.carry(sent, self.origin.global(now)));
        let mut ready = self.uplink.as_ref().map_or(now, carry);
        let mut recovery = Duration::ZERO;
        let mut timeouts = 0;
        for sent_before in 0..=REPETITIONS_MAX {
            self.loss.sent_bytes += bytes;
            self.loss.lost_bytes += if sent_before == 0 { 0 } else { bytes };
            let Sent { left, fate } = self.channel.send(&mut self.line, sent, ready, |_| u64::MAX);
            let spoiled = match fate {
                Ok(crossed) => {
                    self.backlog.push(bytes, left);
                    self.delivered_at = self.delivered_at.max(crossed + self.delay + recovery);
                    return;
                }
                Err(spoiled) => spoiled,
            };
            if sent_before == 0 && spoiled.good_at.since(left) <= self.rtt {
                ready = spoiled.good_at;
                recovery = self.rtt;
            } else {
                ready = left + self.timeout(timeouts);
                timeouts += 1;
            }
        }
        self.reset_at = Some(ready);
    }

    /// Returns how long to wait, after so many timeouts before.
    fn timeout(&self, before: u32) -> Duration {
        self.rtt.saturating_add(TIMEOUT_MARGIN).saturating_mul(1 << before).min(TIMEOUT_MAX)
    }
}
