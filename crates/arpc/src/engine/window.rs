//! The window: how much this end may have sent without an acknowledgement; and the acknowledgements it owes itself.
//!
//! The window makes priority real (facts.md section 3): bytes that were given to the transport cannot be overtaken any
//! more. Its size is the number of bytes that the link holds, by the [`Estimator`], and a little more, so that the link
//! never runs dry.
//!
//! Invariants: charged bytes in flight never exceed the size, but for a frame sent into an empty window; at most
//! [`EXEMPT_FRAMES_MAX`] small Control frames are in flight beyond that.

use std::collections::VecDeque;
use std::time::Duration;

use mafs_proto::Instant;

use super::Violation;
use super::estimator::{Departure, Estimator, bytes_in};
use super::frame::{Acknowledgement, CONTENT_OVERHEAD_BYTES, CONTROL_BYTES_MAX, CallId};

/// How many Control frames may be in flight beyond the window.
pub(crate) const EXEMPT_FRAMES_MAX: usize = 4;
/// Small content is acknowledged this much later, if no frame carries the acknowledgement before: a reply usually does.
pub(crate) const ACKNOWLEDGE_DELAY: Duration = Duration::from_millis(5);
/// Less content than this is small: half of a packet's, for some packets carry less than those of an Ethernet.
const SMALL_BYTES: u64 = 700;
/// A chunk takes so much of the link's time: a higher class waits for the rest of one. With twice this a link of 1 MB/s
/// and 20 ms was filled to 88 %, with this to 95 %: two chunks beyond the link's own bytes are the least that bridges
/// the time until an acknowledgement is acted on.
const CHUNK_TIME: Duration = Duration::from_millis(10);
/// Chunks that may be in flight before anything is known of the link: as for TCP (RFC 6928).
const FIRST_CHUNKS: u64 = 10;
/// Nobody notices a queue of this length, and a fast link does not empty it before a busy host hears of that.
const QUEUE_TIME: Duration = Duration::from_millis(1);

/// Frames go out at the rate of the link and a little more, lest a window that opens at once become a queue; they may
/// be early by this much: timers are not exact.
const PACE_AHEAD: Duration = Duration::from_millis(10);

/// The bounds of a window and a chunk; where least and most are the same they do not adapt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// The most body and payload in one frame, apart from one large body: least and most.
    pub(crate) chunk_bytes: [u64; 2],
    /// The most content in flight: least and most.
    pub(crate) window_bytes: [u64; 2],
    /// How much a packet carries; the least chunk fills one.
    pub(crate) segment_bytes: u64,
}

impl Limits {
    /// Whether chunks follow the link. Chunks of fixed sizes fill no packets.
    pub(super) fn adapts(&self) -> bool {
        let [least, most] = self.chunk_bytes;
        least < most
    }
}

/// Leave to send one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// The frame counts against the window.
    Charged,
    /// The frame is Control and goes beyond the window.
    Exempt,
}

#[derive(Debug)]
struct Sent {
    end: u64,
    cost: u64,
    admission: Admission,
    departure: Departure,
    id: CallId,
    payload_bytes: u64,
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct Window {
    limits: Limits,
    estimator: Estimator,
    sent: u64,
    acknowledged: u64,
    charged: u64,
    exempt: usize,
    /// Frames in flight, in the order sent. Bounded: each costs at least [`CONTENT_OVERHEAD_BYTES`].
    in_flight: VecDeque<Sent>,
    /// When all sent bytes will have left, at the pace.
    left_at: Instant,
    /// When the next frame may go that was too early for the pace.
    paced_until: Option<Instant>,
}

impl Window {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            estimator: Estimator::default(),
            sent: 0,
            acknowledged: 0,
            charged: 0,
            exempt: 0,
            in_flight: VecDeque::new(),
            left_at: Instant(0),
            paced_until: None,
        }
    }

    /// Sets new limits: from now on packets carry so much, and frames are to fill them.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Returns the most body and payload in the next frame: it fills packets, for a part of one costs a head of its
    /// own.
    pub(crate) fn chunk_bytes(&self, now: Instant) -> u64 {
        let ([least, most], segment) = (self.limits.chunk_bytes, self.limits.segment_bytes);
        // A small frame measures the round trip, not its own way onto the link.
        let rate = self.estimator.rate().filter(|_| !self.estimator.rtt_is_old(now));
        let more = rate.map_or(0, |rate| bytes_in(rate, CHUNK_TIME).saturating_sub(least) / segment);
        (least + more * segment).min(most)
    }

    /// Shortens a chunk that fills packets by the extra bytes of its head.
    pub(crate) fn less(&self, chunk_bytes: u64, head_bytes: u64) -> u64 {
        let less = if self.limits.adapts() { head_bytes } else { 0 };
        chunk_bytes.saturating_sub(less).max(1)
    }

    /// Returns the most bytes that may be in flight (arpc.md, "The window is what makes priority real").
    pub(crate) fn size_bytes(&self, now: Instant) -> u64 {
        let [least, most] = self.limits.window_bytes;
        if self.estimator.rtt_is_old(now) && least < most {
            // One frame at a time measures it.
            return 0;
        }
        let chunk = self.chunk_bytes(now);
        let known = self.estimator.rate().zip(self.estimator.link_bytes());
        let wanted = known.map_or(0, |(rate, link)| {
            let more = if self.estimator.is_full() { link / 2 } else { link + link / 2 };
            // More is two frames at least: one on its way onto the link, and one that makes a small window grow.
            (link + more.max(2 * (chunk + CONTENT_OVERHEAD_BYTES))).max(bytes_in(rate, QUEUE_TIME))
        });
        // The first chunks have the least size: small frames that measure the round trip may have shown some rate, and
        // larger chunks.
        let first = if self.estimator.is_measured() { 0 } else { FIRST_CHUNKS * self.limits.chunk_bytes[0] };
        wanted.max(first).clamp(least, most)
    }

    /// Whether a frame of this cost may go now. Worth asking again after an acknowledgement, and at
    /// [`Self::paced_until`].
    pub(crate) fn admit(&mut self, cost: u64, control: bool, now: Instant) -> Option<Admission> {
        self.paced_until = None;
        let room = self.charged == 0 || self.charged + cost <= self.size_bytes(now);
        let early = self.left_at.since(now + PACE_AHEAD);
        if room && (self.charged == 0 || early.is_zero()) {
            return Some(Admission::Charged);
        }
        if control && let Some(exempt) = self.exempt(cost) {
            return Some(exempt);
        }
        self.paced_until = room.then(|| now + early);
        None
    }

    /// Whether a Control frame of this cost may go beyond the window.
    pub(crate) fn exempt(&self, cost: u64) -> Option<Admission> {
        let small = cost <= CONTROL_BYTES_MAX + CONTENT_OVERHEAD_BYTES;
        (small && self.exempt < EXEMPT_FRAMES_MAX).then_some(Admission::Exempt)
    }

    /// Returns when a frame may go that was early.
    pub(crate) fn paced_until(&self) -> Option<Instant> {
        self.paced_until
    }

    /// Returns how long so many bytes take at the pace; no time while the link is not known.
    fn pace(&self, cost: u64) -> Duration {
        let [least, most] = self.limits.window_bytes;
        let time = self.estimator.line_time(cost).filter(|_| self.estimator.is_measured() && least < most);
        let (part, of) = if self.estimator.is_full() { (4, 5) } else { (2, 5) };
        time.unwrap_or_default() / of * part
    }

    /// Notes that a frame of call `id` went out.
    pub(crate) fn send(&mut self, cost: u64, admission: Admission, id: CallId, payload_bytes: u64, now: Instant) {
        self.sent += cost;
        let in_flight = self.unacknowledged_bytes();
        let departure = self.estimator.depart(in_flight, in_flight - cost, now);
        // Bytes that have arrived have left, whatever the estimate was: one made in an outage would pace later frames
        // for long.
        let from = if self.charged == 0 { now } else { self.left_at.max(now) };
        self.left_at = from + self.pace(cost);
        match admission {
            Admission::Charged => self.charged += cost,
            Admission::Exempt => self.exempt += 1,
        }
        self.in_flight.push_back(Sent { end: self.sent, cost, admission, departure, id, payload_bytes });
    }

    /// Applies an acknowledgement; tells `acknowledged` of each payload part that arrived. Returns how long the round
    /// trip of the newest frame took.
    pub(crate) fn acknowledge(
        &mut self,
        ack: Acknowledgement,
        now: Instant,
        mut acknowledged: impl FnMut(CallId, u64),
    ) -> Result<Option<Duration>, Violation> {
        if ack.bytes > self.sent {
            return Err(Violation::AcknowledgedUnsent);
        }
        let mut newest = None;
        while self.in_flight.front().is_some_and(|sent| sent.end <= ack.bytes) {
            let Some(sent) = self.in_flight.pop_front() else { break };
            match sent.admission {
                Admission::Charged => self.charged -= sent.cost,
                Admission::Exempt => self.exempt -= 1,
            }
            newest = Some(sent.departure);
            if sent.payload_bytes > 0 {
                acknowledged(sent.id, sent.payload_bytes);
            }
        }
        self.acknowledged = self.acknowledged.max(ack.bytes);
        Ok(newest.map(|departure| self.estimator.arrive(departure, ack, now)))
    }

    /// Returns how long a frame that is sent now waits for earlier ones, as far as this end knows the link.
    pub(crate) fn queue_time(&self) -> Duration {
        if self.estimator.is_full() {
            self.estimator.queue_time(self.charged).unwrap_or_default()
        } else {
            Duration::ZERO
        }
    }

    /// Returns when the oldest frame in flight should be acknowledged, and how long a packet takes, if the link is
    /// known.
    pub(crate) fn expected_at(&self) -> Option<(Instant, Duration)> {
        let oldest = &self.in_flight.front()?.departure;
        Some((self.estimator.expected_at(oldest)?, self.estimator.line_time(self.limits.segment_bytes)?))
    }

    /// Returns how many bytes are sent and not acknowledged.
    pub(crate) fn unacknowledged_bytes(&self) -> u64 {
        self.sent - self.acknowledged
    }

    /// Notes that there is room for more than there is to send.
    pub(crate) fn starved(&mut self) {
        self.estimator.starved(self.sent);
    }

    /// Returns the estimator of this direction.
    pub(crate) fn estimator(&self) -> &Estimator {
        &self.estimator
    }
}

/// The receiving half: the bytes that this end has to acknowledge.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    received: u64,
    reported: u64,
    newest: Instant,
    due: Option<Instant>,
}

impl Receipts {
    /// Counts a frame. Large ones are acknowledged at once, together with all others that have come by the time a frame
    /// can go out.
    pub(crate) fn receive(&mut self, cost: u64, now: Instant) {
        self.received += cost;
        self.newest = now;
        let delayed = self.due.unwrap_or(now + ACKNOWLEDGE_DELAY);
        // Whole chunks of a slow link are not small: with three of them in flight 5 ms are an eighth of a round trip.
        let small = self.received - self.reported < SMALL_BYTES;
        self.due = Some(if small { delayed } else { now });
    }

    /// Returns when an acknowledgement has to go although no other frame carries it.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes the acknowledgement for the frame that goes out now, behind a queue of this end's own of so long.
    pub(crate) fn take(&mut self, queue: Duration, now: Instant) -> Option<Acknowledgement> {
        self.due.take()?;
        self.reported = self.received;
        let (bytes, received_at) = (self.received, self.newest);
        Some(Acknowledgement { bytes, received_at, delay: now.since(received_at), queue })
    }
}
