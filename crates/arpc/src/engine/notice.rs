//! The choice of changes that watchers of the link hear of: the network-aware interface's bandwidth notification
//! (papers/003, section 3.3).

use std::time::Duration;

use mafs_proto::Instant;

/// A change by this factor, up or down, is one that a program may want to act on.
const FACTOR: u128 = 2;
/// A change of the round-trip time by less than this does not count: on a LAN every load doubles it.
const RTT_MIN: Duration = Duration::from_millis(10);
/// Rates above this count as this, in bytes per second: such a link sends the largest chunk in a millisecond, and its
/// rate changes only with how busy the hosts are.
const RATE_MAX: u128 = 64 << 20;
/// The least time between two notices of a link that changes all the time.
const EVERY: Duration = Duration::from_secs(1);

/// The state of the link that watchers have been told of last.
#[derive(Debug, Default)]
pub(crate) struct Notice {
    told_at: Option<Instant>,
    rate: Option<u64>,
    rtt: Option<Duration>,
    /// When a change is to be told that came too soon after the last notice.
    due_at: Option<Instant>,
}

impl Notice {
    /// Returns whether the link, as it is known now (`rate` in bytes per second), has changed since the last notice. If
    /// so, this counts as a notice.
    pub(crate) fn is_due(&mut self, rate: Option<u64>, rtt: Option<Duration>, now: Instant) -> bool {
        let nanos = |time: Duration| time.as_nanos();
        let rate_of = |rate: u64| u128::from(rate).min(RATE_MAX);
        let rate_changed = changed(self.rate.map(rate_of), rate.map(rate_of), 1);
        let rtt_changed = changed(self.rtt.map(nanos), rtt.map(nanos), RTT_MIN.as_nanos());
        let free_at = self.told_at.map_or(now, |at| at + EVERY);
        let news = rate_changed || rtt_changed;
        self.due_at = (news && free_at > now).then_some(free_at);
        let due = news && self.due_at.is_none();
        if due {
            (self.told_at, self.rate, self.rtt) = (Some(now), rate, rtt);
        }
        due
    }

    /// Returns when to ask again although nothing else has happened.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.due_at
    }
}

fn changed(before: Option<u128>, now: Option<u128>, least: u128) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => before.max(now) >= FACTOR * before.min(now) && before.abs_diff(now) >= least,
        (None, Some(_)) => true,
        (_, None) => false,
    }
}
