//! Statistics of the calls of each class, as nfsiostat has for NFS.

use std::collections::BTreeMap;
use std::time::Duration;

use mafs_arpc::{Timing, Traffic};
use serde::{Deserialize, Serialize};

/// Calls of all classes, by [`Class::index`](mafs_proto::Class::index).
pub type RpcStatistics = [ClassStatistics; 5];

/// Calls of one class since the mount.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClassStatistics {
    /// Calls that were answered.
    pub calls: u64,
    /// Calls that were made again, because the connection broke or too many were under way.
    pub retries: u64,
    /// Bytes of bodies and payloads sent. A large call of class Control travels as Fetch.
    pub sent_bytes: u64,
    /// Bytes of bodies and payloads received.
    pub received_bytes: u64,
    /// How long requests waited until the first of them went.
    pub queued: Durations,
    /// How long it took from then to the reply.
    pub served: Durations,
}

impl ClassStatistics {
    /// Counts a call that was answered.
    pub(crate) fn answered(&mut self, timing: Timing) {
        self.calls += 1;
        self.queued.record(timing.queued);
        self.served.record(timing.served);
    }

    /// Adds what went over a connection.
    pub(crate) fn add_traffic(&mut self, traffic: Traffic) {
        self.sent_bytes += traffic.sent_bytes;
        self.received_bytes += traffic.received_bytes;
    }

    /// Returns what has come since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(before.calls),
            retries: self.retries.saturating_sub(before.retries),
            sent_bytes: self.sent_bytes.saturating_sub(before.sent_bytes),
            received_bytes: self.received_bytes.saturating_sub(before.received_bytes),
            queued: self.queued.since(&before.queued),
            served: self.served.since(&before.served),
        }
    }
}

/// Counts of how long something took, in microseconds rounded down to four binary digits: within 12 %.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Durations(BTreeMap<u64, u64>);

impl Durations {
    fn record(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let dropped = micros.checked_ilog2().unwrap_or(0).saturating_sub(3);
        *self.0.entry(micros >> dropped << dropped).or_default() += 1;
    }

    /// Returns the duration that this share of them, in percent, did not exceed; `None` if there are none.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Option<Duration> {
        let rank = (self.0.values().sum::<u64>() * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.0.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        found.map(|(micros, _)| Duration::from_micros(*micros))
    }

    fn since(&self, before: &Self) -> Self {
        let more = |(micros, count): (&u64, &u64)| {
            let more = count.saturating_sub(before.0.get(micros).copied().unwrap_or(0));
            (more > 0).then_some((*micros, more))
        };
        Self(self.0.iter().filter_map(more).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(ms: impl IntoIterator<Item = u64>) -> ClassStatistics {
        let mut statistics = ClassStatistics::default();
        for ms in ms {
            statistics.answered(Timing { queued: Duration::from_millis(ms), served: Duration::ZERO });
        }
        statistics
    }

    #[test]
    fn percentiles_are_right_within_12_percent() {
        let statistics = answered(1..=1000);
        for percent in [1, 50, 90, 99, 100] {
            let found = statistics.queued.percentile(percent).unwrap().as_millis();
            let exact = u128::from(percent) * 10;
            assert!(found <= exact && found * 100 >= exact * 87, "{percent}: {found}");
        }
        assert_eq!(statistics.served.percentile(99), Some(Duration::ZERO));
        assert_eq!(Durations::default().percentile(50), None);
        assert!(statistics.queued.0.len() < 100);
    }

    #[test]
    fn an_interval_shows_what_came_in_it() {
        let before = answered([5, 5, 700]);
        let after = answered([5, 5, 700, 5, 90]);
        let between = after.since(&before);
        assert_eq!((between.calls, between.queued.0.values().sum::<u64>()), (2, 2));
        assert!(between.queued.percentile(100).unwrap() < Duration::from_millis(91));
    }

    #[test]
    fn the_longest_time_is_counted() {
        let mut durations = Durations::default();
        durations.record(Duration::MAX);
        assert!(durations.percentile(50).unwrap() > Duration::from_secs(3600));
    }
}
