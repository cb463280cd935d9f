//! Refresh: when a newer version of an open file is brought to those who read it, and what of it is asked for first.

use std::ops::Range;
use std::time::Duration;

/// Between two versions of a file at least so much time passes, and at least as much as the last one took: then a file
/// that changes all the time takes half of what there is of link and disk at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The pause after the first attempt that failed; each after that waits twice as long.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Attempts in a row that may fail. The next change, look or connection begins anew.
const FAILURES_MAX: u32 = 6;

/// State of the task that brings newer versions of a file: whether it is there, and has to look once more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Watch {
    #[default]
    Nobody,
    Looking,
    LooksAgain,
}

impl Watch {
    /// Notes that there is reason to look. Returns whether somebody has to begin.
    pub(crate) fn ask(&mut self) -> bool {
        let begins = *self == Self::Nobody;
        *self = if begins { Self::Looking } else { Self::LooksAgain };
        begins
    }

    /// Notes that the task is about to look: the look sees what was asked before.
    pub(crate) fn look(&mut self) {
        *self = Self::Looking;
    }

    /// Notes that the task has found nothing. Returns whether that is all.
    pub(crate) fn end(&mut self) -> bool {
        let ends = *self != Self::LooksAgain;
        *self = if ends { Self::Nobody } else { Self::Looking };
        ends
    }

    /// Whether somebody looks.
    pub(crate) fn is_looking(self) -> bool {
        self != Self::Nobody
    }
}

/// Returns the bytes of a version that are fetched first: of one that has grown those behind the old end, which are all
/// if it was only appended to. `None`: nothing of it tells whether it was.
pub(crate) fn tail(before: u64, now: u64) -> Option<Range<u64>> {
    (now > before).then_some(before..now)
}

/// Returns the bytes that are fetched if the `tail` has come and is not all that has changed.
pub(crate) fn rest(tail: Option<&Range<u64>>, now: u64) -> Range<u64> {
    0..tail.map_or(now, |tail| tail.start)
}

/// Returns how long the next version waits after one that took so long.
pub(crate) fn pause_after(took: Duration) -> Duration {
    took.clamp(PAUSE_MIN, PAUSE_MAX)
}

/// Returns how long the next attempt waits after so many that failed; `None`: there is none.
pub(crate) fn pause_after_failures(failures: u32) -> Option<Duration> {
    (failures <= FAILURES_MAX).then(|| RETRY_PAUSE * (1 << failures.saturating_sub(1).min(FAILURES_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_looks_and_misses_nothing_that_was_asked_while_it_did() {
        let mut watch = Watch::default();
        assert!(watch.ask() && watch.is_looking());
        assert!(!watch.ask(), "somebody looks already");
        assert!(!watch.end(), "that was asked after the last look");
        assert!(watch.end() && !watch.is_looking());
        assert!(watch.ask() && !watch.ask());
        watch.look();
        assert!(watch.end(), "the last look came after all that was asked");
    }

    #[test]
    fn of_a_file_that_has_grown_the_end_comes_first() {
        assert_eq!((tail(6, 10), rest(tail(6, 10).as_ref(), 10)), (Some(6..10), 0..6));
        assert_eq!((tail(0, 10), rest(tail(0, 10).as_ref(), 10)), (Some(0..10), 0..0));
        for (before, now) in [(10, 10), (10, 6), (0, 0)] {
            assert_eq!((tail(before, now), rest(None, now)), (None, 0..now));
        }
    }

    #[test]
    fn what_takes_long_is_done_less_often_and_what_fails_is_given_up() {
        assert_eq!(pause_after(Duration::ZERO), PAUSE_MIN);
        assert_eq!(pause_after(Duration::from_secs(1)), Duration::from_secs(1));
        assert_eq!(pause_after(Duration::MAX), PAUSE_MAX);
        let pauses: Vec<_> = (1..).map_while(pause_after_failures).collect();
        assert_eq!(pauses.len(), FAILURES_MAX as usize);
        assert!(pauses.is_sorted() && pauses[0] == RETRY_PAUSE && pauses.iter().sum::<Duration>() < PAUSE_MAX * 2);
    }
}
