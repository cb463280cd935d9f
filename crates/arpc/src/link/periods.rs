//! The two-state channel: good and bad periods in turn.
//!
//! The error model of the wireless papers (000 section 3.2): both kinds of period are uniformly distributed, in steps
//! of 20 ms, and a packet that is on the air in a bad one is lost. The model is one of time, not of packets: both
//! directions see the same periods, and large packets are hit more often.

use std::time::Duration;

use mafs_proto::{Instant, Random};

/// The granularity of the papers' kernel timeouts.
const STEP: Duration = Duration::from_millis(20);

/// The times when a channel is bad. A channel begins with a good period.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Periods {
    /// Periods for ever, each uniform over 0, 20 ms, ... to twice its mean (at least 20 ms).
    Random {
        /// Mean of the good periods.
        good: Duration,
        /// Mean of the bad ones.
        bad: Duration,
    },
    /// These pairs of a good and a bad period, and good ever after.
    Given(Vec<(Duration, Duration)>),
}

impl Periods {
    /// Makes a channel that is always bad: the link is down.
    #[must_use]
    pub fn always_bad() -> Self {
        Self::Given(vec![(Duration::ZERO, Duration::MAX)])
    }
}

/// The bad periods one after the other. Asked in order of time; walks through all of them, since both directions must
/// see the same: a day of the papers' periods takes a millisecond or so.
#[derive(Debug)]
pub(super) struct BadPeriods {
    pairs: Pairs,
    /// The bad period at hand: the first that ends after the last time asked for.
    from: Instant,
    to: Instant,
}

impl BadPeriods {
    pub(super) fn new(periods: &Periods, seed: u64) -> Self {
        Self { pairs: Pairs::new(periods, seed), from: Instant(0), to: Instant(0) }
    }

    /// Returns the end of a bad period that lies at least in part between two times; of the first if there are several.
    pub(super) fn end_of_one_between(&mut self, from: Instant, to: Instant) -> Option<Instant> {
        // A period of length 0 is none.
        while self.to <= from || self.to == self.from {
            match self.pairs.next() {
                Some((good, bad)) => {
                    self.from = self.to + good;
                    self.to = self.from + bad;
                }
                None => (self.from, self.to) = (Instant(u64::MAX), Instant(u64::MAX)),
            }
            if self.from == Instant(u64::MAX) {
                return None;
            }
        }
        (self.from <= to).then_some(self.to)
    }
}

/// Good and bad periods, in pairs.
#[derive(Debug)]
pub(super) enum Pairs {
    Random { good_steps_max: u64, bad_steps_max: u64, random: Random },
    Given(std::vec::IntoIter<(Duration, Duration)>),
}

impl Pairs {
    pub(super) fn new(periods: &Periods, seed: u64) -> Self {
        match periods {
            Periods::Random { good, bad } => Self::Random {
                good_steps_max: steps_max(*good),
                bad_steps_max: steps_max(*bad),
                random: Random::new(seed),
            },
            Periods::Given(pairs) => Self::Given(pairs.clone().into_iter()),
        }
    }
}

impl Iterator for Pairs {
    type Item = (Duration, Duration);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Random { good_steps_max, bad_steps_max, random } => {
                let mut draw = |max: u64| STEP.saturating_mul(u32::try_from(random.below(max + 1)).unwrap_or(u32::MAX));
                let good = draw(*good_steps_max);
                Some((good, draw(*bad_steps_max)))
            }
            Self::Given(pairs) => pairs.next(),
        }
    }
}

/// Returns the longest period of a mean, in steps; at least one, so that time passes.
fn steps_max(mean: Duration) -> u64 {
    u64::try_from(mean.saturating_mul(2).as_nanos() / STEP.as_nanos())
        .map_or(u64::from(u32::MAX), |steps| steps.clamp(1, u64::from(u32::MAX)))
}
