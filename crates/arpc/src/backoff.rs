//! Back-off between attempts: first linear, then exponential, up to a maximum; for ever.
//!
//! The hybrid of papers/000 and 001: most outages of a wireless link are over within a few short waits, and waiting
//! twice as long after each of them is what makes a plain exponential timer sleep through the good periods.

use std::time::Duration;

/// How many delays grow linearly (papers/000, section 4; the `retrans` of nfs(5)).
const LINEAR_STEPS: u32 = 3;

/// The delays of one series of attempts.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    step: Duration,
    max: Duration,
    attempts: u32,
}

impl Backoff {
    /// Delays of one, two and three `step`s, then twice the last one each, never more than `max`.
    #[must_use]
    pub const fn new(step: Duration, max: Duration) -> Self {
        Self { step, max, attempts: 0 }
    }

    /// Returns how long to wait before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        self.attempts = self.attempts.saturating_add(1);
        let doublings = self.attempts.saturating_sub(LINEAR_STEPS).min(16);
        let steps = self.attempts.min(LINEAR_STEPS) * 2u32.pow(doublings);
        self.step.saturating_mul(steps).min(self.max)
    }

    /// Starts the delays anew, since an attempt succeeded.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_linearly_then_double_up_to_the_maximum() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(3));
        let delays: Vec<_> = (0..8).map(|_| backoff.next_delay().as_millis()).collect();
        assert_eq!(delays, [100, 200, 300, 600, 1200, 2400, 3000, 3000]);
        backoff.reset();
        assert_eq!(backoff.next_delay().as_millis(), 100);
    }
}
