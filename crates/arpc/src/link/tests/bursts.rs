//! Bad periods: bursts of errors, and outages.

use std::sync::Arc;
use std::time::Duration;

use mafs_proto::Instant;

use super::{START, direction, ms, profile, secs};
use crate::link::periods::Pairs;
use crate::link::{Dropped, Link, Periods, Profile, Rate, Retransmission, Trace};

fn fast(bursts: Periods) -> Profile {
    Profile { bursts: Some(bursts), ..profile(&direction(Rate::constant(1_000_000_000), ms(1))) }
}

/// Returns the share of packets lost when one is sent every millisecond.
fn share_lost(link: &mut Link, bytes: u64, time: Duration) -> f64 {
    let packets = u64::try_from(time.as_millis()).unwrap();
    let lost = (0..packets).filter(|at| link.offer(bytes, START + ms(*at)) == Err(Dropped::Lost)).count();
    lost as f64 / packets as f64
}

#[test]
fn periods_have_the_papers_distribution() {
    const PAIRS: usize = 20_000;
    for (seed, bad_ms) in [(1, 40), (2, 80), (3, 160)] {
        let (good_max, bad_max) = (2000, 2 * bad_ms);
        let pairs: Vec<(Duration, Duration)> =
            Pairs::new(&Periods::Random { good: secs(1), bad: ms(bad_ms) }, seed).take(PAIRS).collect();
        for (max_ms, periods) in [
            (good_max, pairs.iter().map(|pair| pair.0).collect::<Vec<_>>()),
            (bad_max, pairs.iter().map(|p| p.1).collect()),
        ] {
            assert!(periods.iter().all(|period| period.as_millis() % 20 == 0));
            assert_eq!(periods.iter().max(), Some(&ms(max_ms)));
            assert_eq!(periods.iter().min(), Some(&Duration::ZERO));
            // A uniform distribution over so many steps has this deviation.
            let steps = (max_ms / 20 + 1) as f64;
            let deviation_ms = 20.0 * ((steps * steps - 1.0) / 12.0).sqrt();
            let mean_ms = periods.iter().map(Duration::as_secs_f64).sum::<f64>() * 1000.0 / PAIRS as f64;
            let bound = 5.0 * deviation_ms / (PAIRS as f64).sqrt();
            assert!((mean_ms - max_ms as f64 / 2.0).abs() <= bound, "{mean_ms} ms of 0..={max_ms}");
        }
    }
}

#[test]
fn channel_is_bad_for_the_share_of_time_that_its_periods_say() {
    for (seed, bad_ms) in [(1, 40), (2, 80), (3, 160)] {
        let profile = Profile { seed, ..fast(Periods::Random { good: secs(1), bad: ms(bad_ms) }) };
        let [mut link, _] = profile.links(START);
        let (good, bad) = (1.0, bad_ms as f64 / 1000.0);
        let time = secs(2000);
        // The share's deviation, of uniform periods, over this many cycles.
        let (good_variance, bad_variance) = (good * good / 3.0, bad * bad / 3.0);
        let cycles = time.as_secs_f64() / (good + bad);
        let variance = (good * good * bad_variance + bad * bad * good_variance) / (good + bad).powi(4) / cycles;
        let found = share_lost(&mut link, 1, time);
        let wanted = bad / (good + bad);
        assert!((found - wanted).abs() <= 5.0 * variance.sqrt(), "{found} instead of {wanted}");
    }
}

#[test]
fn what_overlaps_a_bad_period_is_lost() {
    let bursts = Periods::Given(vec![(ms(100), ms(50)), (ms(0), ms(50)), (ms(100), ms(0)), (ms(100), ms(20))]);
    let rate = Rate::constant(100_000);
    let profile = Profile { bursts: Some(bursts), ..profile(&direction(rate, ms(500))) };
    for (sent_ms, arrives) in [
        (0, true),
        (89, true),
        // A packet is on the air for 10 ms.
        (91, false),
        (120, false),
        (145, false),
        (199, false),
        (200, true),
        (280, true),
        (295, true),
        (300, true),
        (391, false),
        (420, true),
        (1_000_000, true),
    ] {
        for mut link in profile.links(START) {
            assert_eq!(link.offer(1000, START + ms(sent_ms)).is_ok(), arrives, "sent at {sent_ms} ms");
        }
    }
}

#[test]
fn both_directions_are_bad_at_the_same_time() {
    let profile = fast(Periods::Random { good: secs(1), bad: ms(80) });
    let [up, down] = profile
        .links(START)
        .map(|mut link| (0..100_000).map(|at| link.offer(1, START + ms(at)).is_ok()).collect::<Vec<bool>>());
    assert!(up.contains(&false));
    assert_eq!(up, down);
}

#[test]
fn large_packets_are_hit_more_often() {
    let profile = Profile::burst_errors(ms(40), 3);
    let [mut small, _] = profile.links(START);
    let [mut large, _] = profile.links(START);
    // 12 ms on the air at 1 Mbit/s.
    let offer = |link: &mut Link, bytes: u64| {
        (0..20_000).filter(|number| link.offer(bytes, START + ms(13 * number)) == Err(Dropped::Lost)).count()
    };
    let (small, large) = (offer(&mut small, 15), offer(&mut large, 1500));
    // A bad period hits the packets on the air when it begins, besides those that begin within.
    assert!(small > 0 && large as f64 > 1.15 * small as f64, "{small} and {large}");
}

#[test]
fn outage_loses_what_is_sent_meanwhile_and_nothing_else() {
    let mut profile = fast(Periods::Given(Vec::new()));
    profile.outages = Some(Periods::Given(vec![(secs(10), secs(20))]));
    let [mut link, _] = profile.links(START);
    for at in 0..60 {
        let fate = link.offer(100, START + secs(at) + ms(500));
        assert_eq!(fate.is_ok(), !(10..30).contains(&at), "sent at {at}.5 s");
    }
}

#[test]
fn link_that_is_down_carries_nothing() {
    for mut link in fast(Periods::always_bad()).links(START) {
        assert!((0..100).all(|at| link.offer(100, START + secs(at)) == Err(Dropped::Lost)));
        assert_eq!(link.offer(100, Instant(u64::MAX)), Err(Dropped::Lost));
    }
}

#[test]
fn gap_in_a_trace_holds_what_waits() {
    let trace = Trace::new((1..=100).chain(3001..=3100).collect()).unwrap();
    let [mut link, _] = profile(&direction(Rate::Trace(Arc::new(trace)), ms(10))).links(START);
    let arrivals: Vec<_> = (0..20).map(|number| link.offer(1500, START + ms(200 + 10 * number)).unwrap()).collect();
    assert_eq!(arrivals, (0..20).map(|number| START + ms(3001 + number + 10)).collect::<Vec<_>>());
}

#[test]
fn a_link_that_holds_loses_nothing_and_keeps_the_order() {
    let held = Profile { retransmission: Some(Retransmission::Hold), ..Profile::burst_errors(ms(80), 5) };
    let [mut link, _] = held.links(START);
    let arrivals: Vec<Instant> =
        (0..5000).map(|number| link.offer(1000, START + ms(20 * number)).expect("nothing is lost")).collect();
    assert!(arrivals.is_sorted());
    let [mut lossy, _] = Profile::burst_errors(ms(80), 5).links(START);
    let lost = (0..5000).filter(|number| lossy.offer(1000, START + ms(20 * number)).is_err()).count();
    assert!(lost > 100, "{lost}");
}

#[test]
fn a_link_that_holds_gives_up_what_never_crosses() {
    let mut profile = Profile { retransmission: Some(Retransmission::Hold), ..Profile::burst_errors(ms(0), 1) };
    profile.up.loss_ppm = 1_000_000;
    let [mut link, _] = profile.links(START);
    assert_eq!(link.offer(1000, START), Err(Dropped::Lost));
}
