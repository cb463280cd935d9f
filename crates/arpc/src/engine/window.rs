//! The window: how much this end may have sent without an acknowledgement; and what it owes in acknowledgements itself.
//!
//! The window is what makes priority real (facts.md section 3): bytes that were given to the transport cannot be
//! overtaken any more. Its size is fixed in this version; the round-trip time is measured already.
//!
//! Invariants: charged bytes in flight never exceed the size, but for a frame sent into an empty window; at most
//! [`EXEMPT_FRAMES_MAX`] small Control frames are in flight beyond that.

use std::collections::VecDeque;
use std::time::Duration;

use mafs_proto::Instant;

use super::Violation;
use super::frame::{Acknowledgement, CONTENT_OVERHEAD_BYTES, CONTROL_BYTES_MAX, CallId};

/// How many Control frames may be in flight beyond the window.
pub(crate) const EXEMPT_FRAMES_MAX: usize = 4;
/// Small content is acknowledged this much later, if no frame carries the acknowledgement before: a reply usually does.
const ACKNOWLEDGE_DELAY: Duration = Duration::from_millis(5);
/// The round-trip minimum forgets what is older than one to two of these.
const RTT_EPOCH: Duration = Duration::from_secs(10);

/// Leave to send one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// The frame counts against the window.
    Charged,
    /// The frame is Control and goes beyond it.
    Exempt,
}

#[derive(Debug)]
struct Sent {
    end: u64,
    cost: u64,
    admission: Admission,
    at: Instant,
    id: CallId,
    payload_bytes: u64,
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct Window {
    size_bytes: u64,
    sent: u64,
    acknowledged: u64,
    charged: u64,
    exempt: usize,
    /// In the order sent. Bounded: each costs at least [`CONTENT_OVERHEAD_BYTES`].
    in_flight: VecDeque<Sent>,
    rtt: RttMin,
}

impl Window {
    pub(crate) fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            sent: 0,
            acknowledged: 0,
            charged: 0,
            exempt: 0,
            in_flight: VecDeque::new(),
            rtt: RttMin::default(),
        }
    }

    /// Whether a frame of this cost may go now. Worth asking again after an acknowledgement.
    pub(crate) fn admit(&self, cost: u64, control: bool) -> Option<Admission> {
        if self.charged == 0 || self.charged + cost <= self.size_bytes {
            return Some(Admission::Charged);
        }
        let small = cost <= CONTROL_BYTES_MAX + CONTENT_OVERHEAD_BYTES;
        (control && small && self.exempt < EXEMPT_FRAMES_MAX).then_some(Admission::Exempt)
    }

    /// Notes that a frame of call `id` went out.
    pub(crate) fn send(&mut self, cost: u64, admission: Admission, id: CallId, payload_bytes: u64, now: Instant) {
        self.sent += cost;
        match admission {
            Admission::Charged => self.charged += cost,
            Admission::Exempt => self.exempt += 1,
        }
        self.in_flight.push_back(Sent { end: self.sent, cost, admission, at: now, id, payload_bytes });
    }

    /// Applies an acknowledgement; tells `acknowledged` of each payload part that arrived.
    pub(crate) fn acknowledge(
        &mut self,
        ack: Acknowledgement,
        now: Instant,
        mut acknowledged: impl FnMut(CallId, u64),
    ) -> Result<(), Violation> {
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
            newest = Some(sent.at);
            if sent.payload_bytes > 0 {
                acknowledged(sent.id, sent.payload_bytes);
            }
        }
        self.acknowledged = self.acknowledged.max(ack.bytes);
        if let Some(at) = newest {
            self.rtt.observe(now.since(at).saturating_sub(ack.delay), now);
        }
        Ok(())
    }

    /// Bytes sent and not acknowledged.
    pub(crate) fn unacknowledged_bytes(&self) -> u64 {
        self.sent - self.acknowledged
    }

    /// The smallest round-trip time of the last 10 to 20 s.
    pub(crate) fn rtt_min(&self) -> Option<Duration> {
        self.rtt.min()
    }
}

/// A minimum that forgets: over the present epoch and the one before.
#[derive(Debug, Default)]
struct RttMin {
    since: Instant,
    present: Option<Duration>,
    before: Option<Duration>,
}

impl RttMin {
    fn observe(&mut self, rtt: Duration, now: Instant) {
        if now.since(self.since) >= RTT_EPOCH {
            self.before = self.present.take();
            self.since = now;
        }
        self.present = Some(self.present.map_or(rtt, |min| min.min(rtt)));
    }

    fn min(&self) -> Option<Duration> {
        self.present.into_iter().chain(self.before).min()
    }
}

/// The receiving half: what this end has to acknowledge.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    received: u64,
    reported: u64,
    newest: Instant,
    due: Option<Instant>,
}

impl Receipts {
    /// Counts a frame. Large ones are acknowledged at once, together with what else has come by the time a frame can go
    /// out.
    pub(crate) fn receive(&mut self, cost: u64, now: Instant) {
        self.received += cost;
        self.newest = now;
        let delayed = self.due.unwrap_or(now + ACKNOWLEDGE_DELAY);
        let small = self.received - self.reported <= CONTROL_BYTES_MAX + CONTENT_OVERHEAD_BYTES;
        self.due = Some(if small { delayed } else { now });
    }

    /// When an acknowledgement has to go although no other frame carries it.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The acknowledgement for the frame that goes out now.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Acknowledgement> {
        self.due.take()?;
        self.reported = self.received;
        Some(Acknowledgement { bytes: self.received, delay: now.since(self.newest) })
    }
}
