//! Tests of generated traces.

use std::time::Duration;

use mafs_proto::Random;

use super::secs;
use crate::link::{Cellular, Trace};

const SPROUT: Cellular = Cellular { packets_per_s: 0..=1000, volatility: 200 };

/// Counts the packets in each second of a trace.
fn per_second(trace: &Trace) -> Vec<u32> {
    let mut packets = vec![0; trace.length_ms() as usize / 1000 + 1];
    for at in trace.at_ms() {
        packets[*at as usize / 1000] += 1;
    }
    packets.pop();
    packets
}

#[test]
fn rate_covers_its_range_and_no_more() {
    for seed in 0..4 {
        let packets = per_second(&SPROUT.trace(secs(2000), seed));
        assert!(packets.iter().all(|packets| *packets < 1000 + 5 * 32), "{:?}", packets.iter().max());
        let share = |range: std::ops::Range<u32>| {
            packets.iter().filter(|packets| range.contains(packets)).count() as f64 / packets.len() as f64
        };
        // Each range has a fifth of the time, with some 80 independent values: the rate crosses its range in 25 s.
        for from in [0, 200, 400, 600, 800] {
            let share = share(from..from + 200);
            assert!((0.05..0.40).contains(&share), "{share} from {from}, seed {seed}");
        }
    }
}

#[test]
fn rate_that_cannot_be_zero_has_no_outages() {
    let trace = Cellular { packets_per_s: 500..=1500, volatility: 100 }.trace(secs(600), 1);
    let packets = per_second(&trace);
    assert!(packets.iter().all(|packets| (500 - 5 * 23..1500 + 5 * 39).contains(packets)), "{packets:?}");
    let mean = trace.bytes_per_s() / 1500;
    assert!((800..1200).contains(&mean), "{mean}");
}

#[test]
fn rate_stays_at_zero_for_a_second_on_average_and_nowhere_else() {
    let mut random = Random::new(1);
    let (mut rate, mut outages, mut ticks_out, mut ticks_at_most) = (500_000, 0_u32, 0_u32, 0);
    for _ in 0..5_000_000 {
        let next = SPROUT.wander(rate, 0, 1_000_000, &mut random);
        outages += u32::from(rate > 0 && next == 0);
        ticks_out += u32::from(next == 0);
        ticks_at_most += u32::from(next == 1_000_000);
        rate = next;
    }
    assert!(outages > 1000, "{outages}");
    // Outages have a geometric distribution, of mean and deviation 50 ticks.
    let mean = f64::from(ticks_out) / f64::from(outages);
    assert!((mean - 50.0).abs() <= 5.0 * 50.0 / f64::from(outages).sqrt(), "{mean} ticks");
    // The rate does not stay at the other limit.
    assert!(ticks_at_most < 100, "{ticks_at_most}");
    let share = f64::from(ticks_out) / 5e6;
    assert!((0.04..0.06).contains(&share), "{share}");
}

#[test]
fn rate_wanders_as_far_in_a_second_as_its_volatility_says() {
    const SAMPLES: u32 = 10_000;
    let mut random = Random::new(1);
    let start = 4_000_000;
    let squares: f64 = (0..SAMPLES)
        .map(|_| (0..50).fold(start, |rate, _| SPROUT.wander(rate, 0, 8_000_000, &mut random)))
        .map(|rate| ((rate - start) as f64 / 1000.0).powi(2))
        .sum();
    let deviation = (squares / f64::from(SAMPLES)).sqrt();
    // A deviation is known to one part in the square root of twice the samples.
    assert!((deviation / 200.0 - 1.0).abs() <= 5.0 / f64::from(2 * SAMPLES).sqrt(), "{deviation}");
}

#[test]
fn seeds_decide() {
    let [first, again, other] = [1, 1, 2].map(|seed| SPROUT.trace(secs(10), seed));
    assert_eq!(first, again);
    assert_ne!(first, other);
}

#[test]
fn trace_is_as_long_as_asked_for_or_as_traces_can_be() {
    assert_eq!(SPROUT.trace(secs(10), 1).length_ms(), 10_000);
    assert_eq!(SPROUT.trace(Duration::ZERO, 1).length_ms(), 1);
    let most = Cellular { packets_per_s: 4000..=4000, volatility: 0 }.trace(Duration::MAX, 1);
    assert_eq!(most.at_ms().len(), (1 << 21) - 3);
}
