//! Programs that have opened a file too late: the file was gone. The kernel then looks its name up once more, and
//! opens the object that the name means now.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time for the second try, which the kernel makes at once: a later request is something else.
const LATE_FOR: Duration = Duration::from_secs(1);

/// The most threads that are remembered, the latest ones.
const LATE_MAX: usize = 64;

/// Threads that have just opened a file too late, each with the time.
#[derive(Debug, Default)]
pub(super) struct LateOpens(Mutex<Vec<(u32, Instant)>>);

impl LateOpens {
    /// Notes that this thread has opened a file that is gone.
    pub(super) fn note(&self, thread: u32, now: Instant) {
        let mut late = self.late();
        late.retain(|(other, since)| *other != thread && now.duration_since(*since) < LATE_FOR);
        if late.len() == LATE_MAX {
            late.remove(0);
        }
        late.push((thread, now));
    }

    /// Whether this thread has just opened a file that is gone.
    pub(super) fn contains(&self, thread: u32, now: Instant) -> bool {
        let late = self.late();
        late.iter().any(|(other, since)| *other == thread && now.duration_since(*since) < LATE_FOR)
    }

    fn late(&self) -> MutexGuard<'_, Vec<(u32, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_late_is_known_for_a_while() {
        let (late, then) = (LateOpens::default(), Instant::now());
        late.note(1, then);
        assert!(late.contains(1, then) && !late.contains(2, then));
        assert!(!late.contains(1, then + LATE_FOR));
        (2..=u32::try_from(LATE_MAX).unwrap() + 1).for_each(|thread| late.note(thread, then));
        assert!(!late.contains(1, then) && late.contains(2, then));
        late.note(1, then + LATE_FOR);
        assert_eq!(late.late().len(), 1, "the others were late long ago");
    }
}
