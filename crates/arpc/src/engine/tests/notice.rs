//! Tests that watchers of the link hear of changes that matter, and of no others.

use std::time::Duration;

use mafs_proto::{Class, Instant};

use super::pair::{ANSWERS, LinkModel, Pair};
use crate::engine::Settings;
use crate::engine::notice::Notice;

fn at(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}

fn ms(ms: u64) -> Option<Duration> {
    Some(Duration::from_millis(ms))
}

#[test]
fn what_is_new_and_what_has_doubled_or_halved_is_told_once() {
    let mut notice = Notice::default();
    assert!(!notice.is_due(None, None, at(0)), "nothing is known");
    assert!(notice.is_due(None, ms(20), at(1000)));
    assert!(notice.is_due(Some(100_000), ms(20), at(2000)));
    assert!(!notice.is_due(Some(199_000), ms(39), at(3000)));
    assert!(notice.is_due(Some(200_000), ms(20), at(4000)));
    assert!(!notice.is_due(Some(200_000), ms(20), at(5000)), "told already");
    assert!(notice.is_due(Some(100_000), ms(20), at(6000)));
    assert!(notice.is_due(Some(100_000), ms(40), at(7000)));
}

#[test]
fn a_change_right_after_another_is_told_a_second_after_that() {
    let mut notice = Notice::default();
    assert!(notice.is_due(Some(10_000), None, at(0)));
    assert_eq!(notice.due_at(), None);
    assert!(!notice.is_due(Some(100_000), None, at(300)));
    assert_eq!(notice.due_at(), Some(at(1000)));
    assert!(notice.is_due(Some(100_000), None, at(1000)));
    assert_eq!(notice.due_at(), None);
    assert!(!notice.is_due(Some(10_000), None, at(1300)));
    assert!(!notice.is_due(Some(100_000), None, at(1400)), "it is as it was told");
    assert_eq!(notice.due_at(), None);
}

#[test]
fn how_fast_a_fast_link_is_is_told_to_nobody() {
    let mut notice = Notice::default();
    assert!(notice.is_due(Some(500 << 20), None, at(0)));
    assert!(!notice.is_due(Some(100 << 20), None, at(2000)));
    assert!(notice.is_due(Some(20 << 20), None, at(4000)));
}

#[test]
fn an_idle_link_is_told_of_in_time() {
    let link = LinkModel { delay: Duration::from_millis(10), bytes_per_s: 1_000_000 };
    let mut pair = Pair::new(Settings::default(), link, [ANSWERS; 2]);
    pair.ends[0].call(Class::Store, 400_000, None, Instant(0));
    let (mut told, end) = (None, pair.now + Duration::from_secs(5));
    while pair.step(end) {
        if pair.ends[0].engine.take_notice(pair.now) {
            told = pair.ends[0].engine.rate();
        }
    }
    let rate = told.unwrap();
    assert!(rate.abs_diff(1_000_000) < 50_000, "{rate}");
}

#[test]
fn the_round_trips_of_a_lan_may_double() {
    let mut notice = Notice::default();
    let micros = |micros| Some(Duration::from_micros(micros));
    assert!(notice.is_due(None, micros(100), at(0)));
    assert!(!notice.is_due(None, micros(5000), at(1000)));
    assert!(notice.is_due(None, micros(10_100), at(2000)));
}

#[test]
fn a_restless_link_is_told_of_once_a_second() {
    let mut notice = Notice::default();
    let told = (0..10_000).filter(|time| notice.is_due(Some(if time % 2 == 0 { 1 } else { 9 } << 20), None, at(*time)));
    assert!((9..=10).contains(&told.count()));
}

#[test]
fn a_step_of_the_rate_is_told_within_three_seconds_and_a_steady_link_is_silent() {
    let link = |bytes_per_s| LinkModel { delay: Duration::from_millis(10), bytes_per_s };
    let mut pair = Pair::new(Settings::default(), link(1_000_000), [ANSWERS; 2]);
    pair.ends[0].call(Class::Store, 4_000_000_000, None, Instant(0));
    let told = |pair: &mut Pair, seconds: u64| {
        let end = pair.now + Duration::from_secs(seconds);
        let mut count = 0;
        while pair.step(end) {
            count += u32::from(pair.ends[0].engine.take_notice(pair.now));
        }
        count
    };
    assert!(told(&mut pair, 5) >= 1);
    assert_eq!(told(&mut pair, 30), 0);
    for bytes_per_s in [32_000, 1_000_000] {
        pair.link = link(bytes_per_s);
        assert!(told(&mut pair, 3) >= 1, "{bytes_per_s} B/s");
        told(&mut pair, 10);
        assert_eq!(told(&mut pair, 30), 0, "{bytes_per_s} B/s");
    }
}
