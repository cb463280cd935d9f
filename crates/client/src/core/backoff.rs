//! Back-off between attempts to reach the server: first linear, then exponential, up to a maximum; tried for ever.
//!
//! The hybrid of papers/000 and 001: most outages of a wireless link are over within a few short waits, and waiting
//! twice as long after each of them is what makes a plain exponential timer sleep through the good periods.

use std::time::Duration;

const STEP: Duration = Duration::from_millis(100);
const LINEAR_STEPS: u32 = 3;
const DELAY_MAX: Duration = Duration::from_secs(3);

/// The delays of one series of attempts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// How long to wait before the next attempt.
    pub(crate) fn next_delay(&mut self) -> Duration {
        self.attempts = self.attempts.saturating_add(1);
        if self.attempts <= LINEAR_STEPS {
            return STEP * self.attempts;
        }
        let doublings = (self.attempts - LINEAR_STEPS).min(16);
        (STEP * LINEAR_STEPS * 2u32.pow(doublings)).min(DELAY_MAX)
    }

    /// An attempt succeeded.
    pub(crate) fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_linearly_then_double_up_to_the_maximum() {
        let mut backoff = Backoff::default();
        let delays: Vec<_> = (0..8).map(|_| backoff.next_delay().as_millis()).collect();
        assert_eq!(delays, [100, 200, 300, 600, 1200, 2400, 3000, 3000]);
        backoff.reset();
        assert_eq!(backoff.next_delay().as_millis(), 100);
    }
}
