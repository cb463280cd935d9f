//! Traces like those of cellular links, for want of recorded ones.
//!
//! The model behind the forecasts of Sprout (Winstein, Sivaraman, Balakrishnan, NSDI 2013, section 3.1), turned into a
//! generator: packets cross the link as a Poisson process, whose rate wanders in a Brownian motion; at rate 0 it may
//! stay a while, which is an outage. Integers only, so that a seed means the same everywhere: steps of the rate are
//! uniform with the variance wanted, and each quarter of a millisecond carries one packet or none.

use std::ops::RangeInclusive;
use std::time::Duration;

use mafs_proto::Random;

use super::trace::{OPPORTUNITIES_MAX, Trace};

/// How often the rate changes: Sprout's tick.
const TICK_MS: u32 = 20;
/// Half the width of a uniform step whose standard deviation is that of a Brownian motion after one tick, in
/// thousandths: sqrt(3 x 0.02 s).
const STEP_MILLI: i64 = 245;
/// An outage ends in one tick out of so many, after a second on average: Sprout's escape rate of 1/s.
const OUTAGE_TICKS: u64 = 50;
/// One arrival at rate 0 out of so many is an outage (chosen). With all of them, as in Sprout, which has to expect the
/// worst, a third of the time would be outages; so it is 5 %.
const ARRIVALS_PER_OUTAGE: u64 = 10;
/// Chances of a packet in each millisecond: one for each 16 bits of a random number.
const SLOTS: usize = 4;

/// The way in which the rate of a cellular link wanders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cellular {
    /// The range of the rate, in packets of 1500 bytes per second: evenly spread in the long run, at most 4000. If it
    /// may be 0 there are outages, a second long on average.
    pub packets_per_s: RangeInclusive<u32>,
    /// Standard deviation of the rate's change in one second, in packets per second. Sprout has 200, for a car.
    pub volatility: u32,
}

impl Cellular {
    /// Makes a trace of `length`: whole milliseconds, at least one, and as many as make a trace. Its last opportunity
    /// marks the end.
    #[must_use]
    pub fn trace(&self, length: Duration, seed: u64) -> Trace {
        let length_ms = u32::try_from(length.as_millis()).unwrap_or(u32::MAX).max(1);
        let mut random = Random::new(seed);
        let low = i64::from(*self.packets_per_s.start()) * 1000;
        let high = low.max(i64::from(*self.packets_per_s.end()) * 1000);
        let mut rate = low + below(&mut random, high - low + 1);
        let mut at_ms = Vec::new();
        let mut ms = 0;
        while ms < length_ms && at_ms.len() + SLOTS < OPPORTUNITIES_MAX {
            if ms % TICK_MS == 0 {
                rate = self.wander(rate, low, high, &mut random);
            }
            at_ms.extend(std::iter::repeat_n(ms, packets_in_a_ms(rate, random.number())));
            ms += 1;
        }
        at_ms.push(ms);
        Trace::generated(at_ms)
    }

    /// Returns the next tick's rate, all in thousandths of a packet per second: thrown back at the limits, or caught at
    /// 0.
    pub(super) fn wander(&self, rate: i64, low: i64, high: i64, random: &mut Random) -> i64 {
        if rate == 0 && !random.once_in(OUTAGE_TICKS) {
            return 0;
        }
        let reach = i64::from(self.volatility) * STEP_MILLI;
        let moved = rate - reach + below(random, 2 * reach + 1);
        match moved {
            ..=0 if low == 0 && rate > 0 && random.once_in(ARRIVALS_PER_OUTAGE) => 0,
            _ if moved < low => 2 * low - moved,
            _ if moved > high => 2 * high - moved,
            _ => moved,
        }
        .clamp(low, high)
    }
}

fn packets_in_a_ms(rate: i64, number: u64) -> usize {
    let likelihood = (rate.cast_unsigned() << 16) / (SLOTS as u64 * 1_000_000);
    (0..SLOTS).filter(|slot| (number >> (16 * slot)) & 0xffff < likelihood).count()
}

fn below(random: &mut Random, end: i64) -> i64 {
    random.below(end.cast_unsigned()).cast_signed()
}
