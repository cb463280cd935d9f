//! The estimator: the rate and delay of one direction of the link, judged by the other end's acknowledgements.
//!
//! Rate and round-trip time are taken as BBR takes them (Cardwell et al., "BBR: Congestion-Based Congestion Control",
//! ACM Queue 14(5), 2016): the rate as a windowed maximum, the time as a windowed minimum. Only acknowledgements of the
//! peer see every queue below, the network's included (facts.md section 3). But bytes are timed by the receiver's
//! clock. Acknowledgements wait for each other behind a load on the way back: by the time of their arrival, the rate of
//! a loaded uplink came out at 1.19 of the real one, and its queue held up the download that caused it.
//!
//! Invariants: a rate is never taken from an interval shorter than the round-trip time; frames sent while there was no
//! more to send never lower the rate.

use std::time::Duration;

use mafs_proto::Instant;

use super::frame::Acknowledgement;

/// The rate forgets measurements older than one to two times this, or [`RATE_ROUNDS`] round trips, whichever is more.
const RATE_MEMORY: Duration = Duration::from_secs(1);
const RATE_ROUNDS: u32 = 10;
/// The smallest round-trip time is measured again after this, or [`RTT_ROUNDS`] round trips, so that measuring costs
/// little of the throughput.
const RTT_MEMORY: Duration = Duration::from_secs(10);
const RTT_ROUNDS: u32 = 75;
/// An acknowledgement that takes so many times longer than the estimate says shows that the link has become slower.
const LATE: u32 = 4;
/// An acknowledgement late by no more than this shows nothing: a busy host may have had other things to do.
const LATE_MIN: Duration = Duration::from_millis(20);
/// The link is full when the rate has not grown by a quarter in so many round trips.
const FULL_ROUNDS: u32 = 3;

/// The other end's word for its own queue counts up to this.
const QUEUE_MAX: Duration = Duration::from_secs(1);

/// A frame and some small ones: so much in flight is no queue.
const QUIET_BYTES: u64 = 3000;

/// The state at the moment a frame went out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    at: Instant,
    /// Bytes acknowledged until then, and when the last of them were.
    delivered: u64,
    delivered_at: Delivered,
    /// When the last frame that was acknowledged by then went out.
    sent_at: Instant,
    /// Bytes in flight with it.
    in_flight: u64,
    /// Whether next to nothing else was in flight.
    quiet: bool,
    /// Whether something else than the link kept more from being sent.
    starved: bool,
}

/// When bytes were delivered.
#[derive(Clone, Copy, Debug)]
enum Delivered {
    /// All had been delivered when the first of these went out, by this end's clock.
    Before(Instant),
    /// The time by the other end's clock: how late acknowledgements come, and in what bunches behind the other
    /// direction's load, does not count.
    There(Instant),
}

impl Default for Delivered {
    fn default() -> Self {
        Self::Before(Instant(0))
    }
}

/// The measurements of one direction.
#[derive(Debug, Default)]
pub(crate) struct Estimator {
    delivered: u64,
    delivered_at: Delivered,
    sent_at: Instant,
    /// Until so many bytes are acknowledged, measurements show how much there was to send, not the link.
    starved_until: Option<u64>,
    rate: RateMax,
    rtt: Option<RttMin>,
    /// The shortest round trip of this connection.
    least: Option<Duration>,
    /// The smoothed delay of acknowledgements, which wait because the other end has a queue of its own.
    ack_delay: Duration,
    growth: Growth,
    /// Whether the rate has ever stopped growing: before, it only shows how much was sent so far.
    was_full: bool,
    /// Frames that went out before this say nothing about the link as it is now.
    restarted_at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct RttMin {
    value: Duration,
    at: Instant,
}

/// A maximum that forgets: over the present epoch and the one before, in bytes per second.
#[derive(Debug, Default)]
struct RateMax {
    since: Instant,
    present: u64,
    before: u64,
}

/// The growth of the rate, to see when it stops.
#[derive(Debug, Default)]
struct Growth {
    /// The round ends when so many bytes are acknowledged.
    round_end: u64,
    rate: u64,
    rounds: u32,
}

impl Estimator {
    /// Notes that a frame goes out; `in_flight` bytes are on their way with it, and `others` without.
    pub(crate) fn depart(&mut self, in_flight: u64, others: u64, now: Instant) -> Departure {
        if others == 0 {
            (self.delivered_at, self.sent_at) = (Delivered::Before(now), now);
        }
        Departure {
            at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            sent_at: self.sent_at,
            in_flight,
            quiet: in_flight <= QUIET_BYTES,
            starved: self.starved_until.is_some() || self.rtt_is_old(now),
        }
    }

    /// Notes that there is room for more than there is to send; `sent` bytes have been sent until now.
    pub(crate) fn starved(&mut self, sent: u64) {
        self.starved_until = Some(sent);
    }

    /// Notes that bytes have been acknowledged, the last frame of which went out as `departure` says. Returns how long
    /// the round trip took, queues included.
    pub(crate) fn arrive(&mut self, departure: Departure, ack: Acknowledgement, now: Instant) -> Duration {
        let delivered = ack.bytes;
        (self.delivered, self.delivered_at, self.sent_at) =
            (delivered, Delivered::There(ack.received_at), departure.at);
        self.starved_until = self.starved_until.filter(|until| delivered <= *until);
        let queue = ack.queue.min(QUEUE_MAX);
        self.ack_delay = (7 * self.ack_delay + queue) / 8;
        let seen = now.since(departure.at).saturating_sub(ack.delay);
        let least = *self.least.insert(self.least.map_or(seen, |least| least.min(seen)));
        // The queue is the other end's guess: if nothing bounded it, one that is too long would shrink the time, and so
        // the window, and with it the time that the other end sees, and so on: down to nothing.
        let rtt = seen.saturating_sub(queue).max(least);
        let interval = match departure.delivered_at {
            Delivered::Before(time) => now.since(time),
            Delivered::There(time) => ack.received_at.since(time).max(departure.at.since(departure.sent_at)),
        };
        let rate = rate_of(delivered - departure.delivered, interval);
        self.observe_rtt(rtt, departure.quiet, now);
        let late =
            self.expected(departure.in_flight).is_some_and(|expected| rtt > (LATE * expected).max(expected + LATE_MIN));
        // One small frame that something held up says nothing about the link's rate.
        if late && !departure.starved && departure.at >= self.restarted_at {
            self.restart(rate, now);
            return seen;
        }
        if self.rtt.is_some_and(|min| interval >= min.value) && !(departure.starved && rate < self.rate.max()) {
            let memory = RATE_MEMORY.max(self.rtt_min().unwrap_or_default() * RATE_ROUNDS);
            self.rate.observe(rate, memory, now);
        }
        if !departure.starved {
            self.growth.observe(departure.delivered, delivered, self.rate.max());
            self.was_full |= self.is_full();
        }
        seen
    }

    /// Returns the rate in bytes per second; `None` before the first measurement.
    pub(crate) fn rate(&self) -> Option<u64> {
        Some(self.rate.max()).filter(|rate| *rate > 0)
    }

    /// Returns the smallest round-trip time of late.
    pub(crate) fn rtt_min(&self) -> Option<Duration> {
        self.rtt.map(|min| min.value)
    }

    /// Whether there has been enough to send to measure the link.
    pub(crate) fn is_measured(&self) -> bool {
        self.growth.round_end > 0
    }

    /// Whether the rate has stopped growing, so that more in flight would only queue.
    pub(crate) fn is_full(&self) -> bool {
        self.growth.rounds >= FULL_ROUNDS
    }

    /// Whether there has ever been enough to send to see all of the rate.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full
    }

    /// Whether the smallest round-trip time is to be measured again: without a queue of this end's own.
    pub(crate) fn rtt_is_old(&self, now: Instant) -> bool {
        self.rtt.is_some_and(|min| now.since(min.at) > RTT_MEMORY.max(min.value * RTT_ROUNDS))
    }

    /// Returns how many bytes are in flight without a queue while the link is full.
    pub(crate) fn link_bytes(&self) -> Option<u64> {
        Some(bytes_in(self.rate()?, self.rtt_min()? + self.ack_delay))
    }

    /// Starts anew, since the link has changed: the rate begins anew, and the round-trip time is measured again, for it
    /// may be the cause.
    fn restart(&mut self, rate: u64, now: Instant) {
        self.rate.restart(rate, now);
        self.growth = Growth { round_end: self.delivered, rate, rounds: 0 };
        if let Some(min) = &mut self.rtt {
            min.at = Instant(0);
        }
        self.restarted_at = now;
    }

    fn observe_rtt(&mut self, rtt: Duration, quiet: bool, now: Instant) {
        // With so little in flight the time was not spent in a queue of this end's own.
        if self.rtt.is_none_or(|min| rtt <= min.value) || (quiet && self.rtt_is_old(now)) {
            self.rtt = Some(RttMin { value: rtt, at: now });
        }
    }

    /// Returns how long a frame should take with so much in flight.
    fn expected(&self, in_flight: u64) -> Option<Duration> {
        Some(self.rtt_min()? + self.line_time(in_flight)?)
    }

    /// Returns when a frame should be acknowledged.
    pub(crate) fn expected_at(&self, departure: &Departure) -> Option<Instant> {
        Some(departure.at + self.expected(departure.in_flight)? + self.ack_delay)
    }

    /// Returns how long the queue is when so much is in flight: bytes that are not on the link, and do not wait for an
    /// acknowledgement that comes late.
    pub(crate) fn queue_time(&self, in_flight: u64) -> Option<Duration> {
        Some(self.line_time(in_flight)?.saturating_sub(self.rtt_min()? + self.ack_delay))
    }

    /// Returns how long the link takes to send so many bytes.
    pub(crate) fn line_time(&self, bytes: u64) -> Option<Duration> {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate()?);
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

impl RateMax {
    fn observe(&mut self, rate: u64, memory: Duration, now: Instant) {
        if now.since(self.since) >= memory {
            (self.before, self.present, self.since) = (self.present, 0, now);
        }
        self.present = self.present.max(rate);
    }

    fn restart(&mut self, rate: u64, now: Instant) {
        (self.before, self.present, self.since) = (0, rate, now);
    }

    fn max(&self) -> u64 {
        self.present.max(self.before)
    }
}

impl Growth {
    fn observe(&mut self, departed: u64, delivered: u64, rate: u64) {
        if departed < self.round_end {
            return;
        }
        self.round_end = delivered;
        if rate >= self.rate + self.rate / 4 || rate < self.rate / 2 {
            (self.rate, self.rounds) = (rate, 0);
        } else {
            self.rounds += 1;
        }
    }
}

fn rate_of(bytes: u64, interval: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / interval.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Returns how many bytes a rate carries in a time.
pub(crate) fn bytes_in(rate: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(rate) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
}
