//! Hearing: how long it will take until the server has heard of a change, from how long that took before.

use std::time::Duration;

/// Weight of a new sample; five or six of them outweigh the past.
const WEIGHT: u32 = 5;
/// The most that one sample counts for: a client out of reach delays an announcement by a minute, and says nothing of
/// the next one.
const SAMPLE_MAX: Duration = Duration::from_secs(1);

/// How long announcements have taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HearingTime {
    mean: Option<Duration>,
}

impl HearingTime {
    /// The server has answered an announcement after so long.
    pub(crate) fn observe(&mut self, took: Duration) {
        let took = took.min(SAMPLE_MAX);
        self.mean = Some(self.mean.map_or(took, |mean| (mean * (WEIGHT - 1) + took) / WEIGHT));
    }

    /// How long the next announcement will take over a link of this round trip; `None`: nobody knows.
    pub(crate) fn expected(&self, round_trip: Option<Duration>) -> Option<Duration> {
        self.mean.max(round_trip)
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
        (0..20).for_each(|_| time.observe(50 * MS));
        assert!(time.expected(Some(MS)) > Some(45 * MS));
        assert_eq!(time.expected(Some(300 * MS)), Some(300 * MS), "a link that has become longer");
    }

    #[test]
    fn one_client_out_of_reach_is_forgotten_after_some_announcements() {
        let mut time = HearingTime::default();
        time.observe(MS);
        time.observe(Duration::from_secs(62));
        assert!(time.expected(None) > Some(100 * MS));
        (0..25).for_each(|_| time.observe(MS));
        assert!(time.expected(None) < Some(5 * MS));
    }
}
