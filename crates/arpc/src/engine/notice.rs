//! When those who watch the link hear that it has changed: the network-aware interface's bandwidth notification
//! (papers/003, section 3.3).

use std::time::Duration;

use mafs_proto::Instant;

/// So many times more, or less, is a change that somebody may want to act on.
const FACTOR: u128 = 2;
/// But not if the round-trip time has changed by less than this: on a LAN every load doubles it.
const RTT_MIN: Duration = Duration::from_millis(10);
/// A link that changes all the time is told of so often.
const EVERY: Duration = Duration::from_secs(1);

/// What has been told last.
#[derive(Debug, Default)]
pub(crate) struct Notice {
    told_at: Option<Instant>,
    rate: Option<u64>,
    rtt: Option<Duration>,
}

impl Notice {
    /// Whether the link, as it is known now (`rate` in bytes per second), is no longer what was told last. Then it is
    /// told.
    pub(crate) fn is_due(&mut self, rate: Option<u64>, rtt: Option<Duration>, now: Instant) -> bool {
        let nanos = |time: Duration| time.as_nanos();
        let rate_changed = changed(self.rate.map(u128::from), rate.map(u128::from), 1);
        let rtt_changed = changed(self.rtt.map(nanos), rtt.map(nanos), RTT_MIN.as_nanos());
        let early = self.told_at.is_some_and(|at| now.since(at) < EVERY);
        if early || !(rate_changed || rtt_changed) {
            return false;
        }
        *self = Self { told_at: Some(now), rate, rtt };
        true
    }
}

fn changed(before: Option<u128>, now: Option<u128>, least: u128) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => before.max(now) >= FACTOR * before.min(now) && before.abs_diff(now) >= least,
        (None, Some(_)) => true,
        (_, None) => false,
    }
}
