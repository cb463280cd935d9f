//! Tests of loss by chance.

use mafs_proto::Instant;

use super::{START, direction, ms, profile};
use crate::link::{Direction, Dropped, Profile, Rate};

const PACKETS: u32 = 200_000;

fn lossy(loss_ppm: u32, seed: u64) -> Profile {
    let direction = Direction { loss_ppm, ..direction(Rate::constant(1_000_000_000), ms(5)) };
    Profile { seed, ..profile(&direction) }
}

/// Returns which of many packets arrive, in each direction.
fn fates(profile: &Profile) -> [Vec<bool>; 2] {
    profile.links(START).map(|mut link| {
        let offer = |number: u32| {
            let fate = link.offer(100, Instant(START.0 + u64::from(number) * 1_000_000));
            assert!(fate.is_ok() || fate == Err(Dropped::Lost));
            fate.is_ok()
        };
        (0..PACKETS).map(offer).collect()
    })
}

/// Asserts that so many of `tries` agree with their probability.
fn assert_binomial(found: usize, tries: u32, probability: f64) {
    let mean = f64::from(tries) * probability;
    let deviation = (mean * (1.0 - probability)).sqrt();
    assert!((found as f64 - mean).abs() <= 5.0 * deviation, "{found} of {tries}, {mean} +- {deviation} expected");
}

#[test]
fn loss_is_as_frequent_as_asked_for_and_independent() {
    for (loss_ppm, seed) in [(100, 1), (10_000, 2), (10_000, 3), (300_000, 4)] {
        let probability = f64::from(loss_ppm) / 1e6;
        for fates in fates(&lossy(loss_ppm, seed)) {
            assert_binomial(fates.iter().filter(|arrived| !**arrived).count(), PACKETS, probability);
            let pairs = fates.windows(2).filter(|pair| !pair[0] && !pair[1]).count();
            assert_binomial(pairs, PACKETS - 1, probability * probability);
        }
    }
}

#[test]
fn directions_lose_independently() {
    let [up, down] = fates(&lossy(100_000, 5));
    let both = up.iter().zip(&down).filter(|(up, down)| !**up && !**down).count();
    assert_binomial(both, PACKETS, 0.01);
}

#[test]
fn none_or_all_are_lost_at_the_ends_of_the_scale() {
    assert!(fates(&lossy(0, 1)).iter().flatten().all(|arrived| *arrived));
    assert!(fates(&lossy(1_000_000, 1)).iter().flatten().all(|arrived| !*arrived));
}

#[test]
fn lost_packets_take_their_time_on_the_link() {
    let mut direction = direction(Rate::constant(1000), ms(5));
    direction.loss_ppm = 1_000_000;
    let [mut link, _] = profile(&direction).links(START);
    assert_eq!(link.offer(1000, START), Err(Dropped::Lost));
    assert_eq!(link.queued_bytes(START + ms(999)), 1000);
    assert_eq!(link.queued_bytes(START + ms(1000)), 0);
}

#[test]
fn seeds_decide() {
    let [first, again, other] = [7, 7, 8].map(|seed| fates(&lossy(10_000, seed)));
    assert_eq!(first, again);
    assert_ne!(first, other);
}
