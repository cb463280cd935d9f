//! Drain: how fast the queue empties, measured over the last half minute, so that people can be told when it will be
//! empty.

use std::collections::VecDeque;
use std::time::Duration;

use mafs_proto::Instant;

/// Time over which the rate is measured: older samples say little about the link.
const WINDOW: Duration = Duration::from_secs(30);
/// Samples closer together than this say no more than one.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Shortest time over which a rate is measured: over less it is chance.
const MEASURED_MIN: Duration = Duration::from_secs(1);

/// Bytes that have arrived at the server, over time.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    /// Bytes of contents that have arrived whole.
    done_bytes: u64,
    /// Moments, each with the bytes that had arrived in all by then.
    samples: VecDeque<(Instant, u64)>,
}

impl Drain {
    /// Whether a sample is worth taking.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.samples.back().is_none_or(|(last, _)| now.since(*last) >= SAMPLE_EVERY)
    }

    /// Notes that a content of this size has arrived whole.
    pub(crate) fn finish(&mut self, bytes: u64) {
        self.done_bytes = self.done_bytes.saturating_add(bytes);
    }

    /// Notes how many bytes have arrived of the contents that are on their way.
    pub(crate) fn note(&mut self, now: Instant, arriving_bytes: u64) {
        while self.samples.get(1).is_some_and(|(second, _)| now.since(*second) >= WINDOW) {
            self.samples.pop_front();
        }
        if self.is_due(now) {
            self.samples.push_back((now, self.done_bytes.saturating_add(arriving_bytes)));
        }
    }

    /// Forgets the samples when there is nothing to send: what comes is measured by itself.
    pub(crate) fn rest(&mut self) {
        self.samples.clear();
    }

    /// Returns the rate in bytes per second; `None` while nothing was measured, or nothing arrives.
    pub(crate) fn bytes_per_s(&self, now: Instant, arriving_bytes: u64) -> Option<u64> {
        let (since, before) = self.samples.front()?;
        let took = now.since(*since);
        let arrived = self.done_bytes.saturating_add(arriving_bytes).saturating_sub(*before);
        if took < MEASURED_MIN || arrived == 0 {
            return None;
        }
        u64::try_from(u128::from(arrived) * 1000 / took.as_millis()).ok().filter(|rate| *rate > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant(0) + Duration::from_secs(seconds)
    }

    #[test]
    fn the_rate_is_that_of_the_last_half_minute() {
        let mut drain = Drain::default();
        assert_eq!(drain.bytes_per_s(at(0), 0), None);
        drain.note(at(0), 0);
        assert_eq!(drain.bytes_per_s(at(0), 500), None, "no time has passed");
        assert_eq!(drain.bytes_per_s(at(10), 1000), Some(100), "of a single content on its way");
        for second in 1..=100 {
            drain.finish(if second <= 50 { 100 } else { 10 });
            drain.note(at(second), 0);
        }
        assert_eq!(drain.bytes_per_s(at(100), 0), Some(10));
        drain.rest();
        assert_eq!(drain.bytes_per_s(at(100), 0), None);
    }

    #[test]
    fn a_transfer_that_begins_anew_is_no_rate() {
        let mut drain = Drain::default();
        drain.note(at(0), 1000);
        assert_eq!(drain.bytes_per_s(at(5), 200), None);
    }
}
