//! Tests of rate and delay.

use std::time::Duration;

use proptest::prelude::*;

use super::{START, direction, flood, link, ms, secs};
use crate::link::{Profile, Rate};

/// Returns the bytes per second of packets that arrive one behind the other.
fn rate_of(arrivals: &[Duration], packet_bytes: u64) -> f64 {
    let (first, last) = (arrivals[0], arrivals[arrivals.len() - 1]);
    (arrivals.len() as u64 - 1) as f64 * packet_bytes as f64 / (last - first).as_secs_f64()
}

fn assert_within_a_percent(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() <= 0.01, "{found} instead of {wanted}");
}

proptest! {
    #[test]
    fn rate_is_kept_within_a_percent(bytes_per_s in 1000..2_000_000_000_u64, packet_bytes in 40..=1500_u64) {
        let mut link = link(&direction(Rate::constant(bytes_per_s), ms(10)));
        let packet_time = Duration::from_secs_f64(packet_bytes as f64 / bytes_per_s as f64);
        let arrivals = flood(&mut link, packet_bytes, packet_time * 10, packet_time * 500);
        prop_assert!(arrivals.len() > 400);
        assert_within_a_percent(rate_of(&arrivals, packet_bytes), bytes_per_s as f64);
    }

    #[test]
    fn delay_is_kept_on_an_idle_link(
        bytes_per_s in 1000..2_000_000_000_u64,
        delay_us in 0..2_000_000_u64,
        gaps_ms in proptest::collection::vec(2000..9000_u64, 1..20),
    ) {
        let delay = Duration::from_micros(delay_us);
        let mut link = link(&direction(Rate::constant(bytes_per_s), delay));
        let mut now = START;
        for gap in gaps_ms {
            now = now + ms(gap);
            let took = link.offer(1500, now).unwrap().since(now);
            let wanted = delay + Duration::from_nanos((1500 * 1_000_000_000_u64).div_ceil(bytes_per_s));
            prop_assert_eq!(took, wanted);
        }
    }
}

#[test]
fn rate_steps_also_hold_for_what_is_queued_already() {
    let (fast, slow) = (1_000_000, 32_768);
    let rate = Rate::Steps { first: fast, then: vec![(secs(10), slow), (secs(30), fast)] };
    let arrivals = flood(&mut link(&direction(rate, ms(10))), 1000, ms(1), secs(40));
    let between = |from: u64, to: u64| {
        let (from, to) = (secs(from) + ms(10), secs(to) + ms(10));
        arrivals.iter().filter(|at| (from..to).contains(*at)).count() as f64 * 1000.0
    };
    assert_within_a_percent(between(0, 10), 10.0 * fast as f64);
    assert_within_a_percent(between(10, 30), 20.0 * slow as f64);
    assert_within_a_percent(between(30, 40), 10.0 * fast as f64);
}

#[test]
fn rates_of_zero_count_as_one() {
    let rate = Rate::Steps { first: 0, then: vec![(secs(2), 0)] };
    assert_eq!(link(&direction(rate, ms(0))).offer(3, START), Ok(START + secs(3)));
}

#[test]
fn steady_profile_is_its_rate_and_round_trip() {
    for kbytes_per_s in [32, 64, 128, 256, 512, 1024] {
        for mut link in Profile::steady(kbytes_per_s * 1024, ms(20)).links(START) {
            let transmission = Duration::from_secs_f64(64.0 / (kbytes_per_s as f64 * 1024.0));
            let took = link.offer(64, START).unwrap().since(START);
            assert!(took.abs_diff(ms(10) + transmission) < ms(1), "{took:?}");
            let arrivals = flood(&mut link, 1500, ms(1), secs(60));
            assert_within_a_percent(rate_of(&arrivals, 1500), kbytes_per_s as f64 * 1024.0);
        }
    }
}
