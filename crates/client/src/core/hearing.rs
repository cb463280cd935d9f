//! Hearing: how long it will take until the server has heard of a change, from how long that took before.

use std::collections::VecDeque;
use std::time::Duration;

/// Most announcements that are remembered. Some take longer because a machine is busy; that all of so many do says that
/// somebody who has to be told is far away.
const REMEMBERED: usize = 16;

/// Times that the last announcements have taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct HearingTime {
    took: VecDeque<Duration>,
}

impl HearingTime {
    /// Notes that the server has answered an announcement after so long.
    pub(crate) fn observe(&mut self, took: Duration) {
        self.took.truncate(REMEMBERED - 1);
        self.took.push_front(took);
    }

    /// Returns how long the next announcement will take over a link of this round trip, with nothing in its way;
    /// `None`: nobody knows.
    pub(crate) fn expected(&self, round_trip: Option<Duration>) -> Option<Duration> {
        self.took.iter().min().copied().max(round_trip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn before_the_first_announcement_the_round_trip_is_all_that_is_known() {
        let time = HearingTime::default();
        assert_eq!(time.expected(None), None);
        assert_eq!(time.expected(Some(3 * MS)), Some(3 * MS));
    }

    #[test]
    fn the_expectation_follows_what_announcements_take() {
        let mut time = HearingTime::default();
        time.observe(2 * MS);
        assert_eq!(time.expected(Some(MS)), Some(2 * MS));
        (0..REMEMBERED).for_each(|_| time.observe(50 * MS));
        assert_eq!(time.expected(Some(MS)), Some(50 * MS));
        assert_eq!(time.expected(Some(300 * MS)), Some(300 * MS), "a link that has become longer");
        time.observe(MS);
        assert_eq!(time.expected(None), Some(MS));
    }

    #[test]
    fn what_a_busy_machine_delays_is_not_far_away() {
        let mut time = HearingTime::default();
        for slow in [30, 40, 2, 90, 15, 11, 62_000, 25] {
            time.observe(slow * MS);
        }
        assert_eq!(time.expected(Some(MS)), Some(2 * MS));
    }
}
