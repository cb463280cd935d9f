//! When a call is sent again.
//!
//! As in BSD's NFS, which the papers' clients ran, a mount has one count of timeouts in a row, not each call its own:
//! every call that times out raises it, any reply ends it. A burst that hits several calls at once therefore makes
//! the next wait much longer.

use std::time::Duration;

/// The first timeout of a call.
const FIRST: Duration = Duration::from_millis(700);
/// How much each of the first timeouts in a row adds, and how many those are (papers 000 section 4.2, 001 section 5.2).
const LINEAR_STEP: Duration = Duration::from_millis(100);
const LINEAR_STEPS: u32 = 3;
/// No wait is longer, and nothing counts beyond so many timeouts.
const LONGEST: Duration = Duration::from_secs(60);
const TIMEOUTS_MAX: u32 = 8;

/// How the wait grows with each timeout in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backoff {
    /// Twice as long each time.
    Exponential,
    /// A little longer the first three times, then twice as long each time.
    HybridLinear,
}

/// The timer of a mount.
#[derive(Debug)]
pub(super) struct Timer {
    backoff: Backoff,
    /// Timeouts since the last reply.
    timeouts: u32,
}

impl Timer {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self { backoff, timeouts: 0 }
    }

    /// How long a call waits for its reply before it is sent again.
    pub(super) fn wait(&self) -> Duration {
        let (longest_linear, doublings) = match self.backoff {
            Backoff::Exponential => (FIRST, self.timeouts),
            Backoff::HybridLinear => {
                let linear = self.timeouts.min(LINEAR_STEPS);
                (FIRST + LINEAR_STEP * linear, self.timeouts - linear)
            }
        };
        (longest_linear * 2_u32.pow(doublings)).min(LONGEST)
    }

    pub(super) fn timed_out(&mut self) {
        self.timeouts = (self.timeouts + 1).min(TIMEOUTS_MAX);
    }

    pub(super) fn answered(&mut self) {
        self.timeouts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(backoff: Backoff) -> Vec<u128> {
        let mut timer = Timer::new(backoff);
        let mut next = || {
            let wait = timer.wait();
            timer.timed_out();
            wait.as_millis()
        };
        (0..8).map(|_| next()).collect()
    }

    #[test]
    fn exponential_waits_double_up_to_the_longest() {
        assert_eq!(waits(Backoff::Exponential), [700, 1400, 2800, 5600, 11_200, 22_400, 44_800, 60_000]);
    }

    #[test]
    fn hybrid_waits_grow_three_times_by_a_step_and_then_double() {
        assert_eq!(waits(Backoff::HybridLinear), [700, 800, 900, 1000, 2000, 4000, 8000, 16_000]);
    }

    #[test]
    fn any_reply_begins_anew() {
        let mut timer = Timer::new(Backoff::Exponential);
        timer.timed_out();
        timer.timed_out();
        timer.answered();
        assert_eq!(timer.wait(), FIRST);
    }
}
