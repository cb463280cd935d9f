//! Tests of the content that limits let pass, and of frames that they do not touch.

use std::time::Duration;

use mafs_proto::{Class, Instant};
use proptest::prelude::*;

use super::pair::{ANSWERS, Application, FAST, LinkModel, Pair, SETTINGS};
use crate::engine::frame::CONTENT_OVERHEAD_BYTES;
use crate::engine::{Frame, Limits, Rate, Settings, Violation};
use crate::wire;

const LINK: LinkModel = LinkModel { delay: Duration::from_millis(10), bytes_per_s: 1_000_000 };
const LARGE: u64 = 4_000_000_000;

fn only(class: Class, bytes_per_s: u64) -> [Option<Rate>; 5] {
    let mut rates = [None; 5];
    rates[class.index()] = Some(Rate::bytes_per_s(bytes_per_s).unwrap());
    rates
}

/// Returns how much one end sends of a class in so long, per second.
fn rate(pair: &mut Pair, class: Class, time: Duration) -> f64 {
    let sent = |pair: &Pair| pair.ends[0].engine.traffic()[class.index()].sent_bytes;
    let before = sent(pair);
    pair.run(time);
    (sent(pair) - before) as f64 / time.as_secs_f64()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_limit_is_exact_within_two_percent_over_ten_seconds(
        limit in Rate::BYTES_PER_S_MIN..400_000u64,
        of_link in 2..20u64,
        delay_ms in 0..100u64,
        loaded in any::<bool>(),
    ) {
        let link = LinkModel { delay: Duration::from_millis(delay_ms), bytes_per_s: limit * of_link };
        let mut pair = Pair::new(Settings::default(), link, [ANSWERS; 2]);
        pair.ends[0].call(Class::Store, LARGE, None, pair.now);
        if loaded {
            pair.run(Duration::from_secs(3));
        }
        let now = pair.now;
        pair.ends[0].engine.set_limits(only(Class::Store, limit), now);
        let seen = rate(&mut pair, Class::Store, Duration::from_secs(10)) / limit as f64;
        // Less goes only while the link is not known yet, or is far and has its round trip measured again.
        let least = if loaded && delay_ms <= 50 { 0.98 } else { 0.9 };
        prop_assert!((least..=1.015).contains(&seen), "{} of the limit", seen);
    }
}

#[test]
fn a_limit_counts_at_once_and_goes_at_once() {
    let mut pair = Pair::new(Settings::default(), LINK, [ANSWERS; 2]);
    pair.ends[0].call(Class::Store, LARGE, None, pair.now);
    pair.run(Duration::from_secs(3));
    let second = Duration::from_secs(1);
    for limit in [1024, 200_000, 50_000] {
        let now = pair.now;
        pair.ends[0].engine.set_limits(only(Class::Store, limit), now);
        let seen = rate(&mut pair, Class::Store, second) / limit as f64;
        assert!((0.94..1.06).contains(&seen), "{seen} of {limit}");
    }
    let now = pair.now;
    pair.ends[0].engine.set_limits([None; 5], now);
    let seen = rate(&mut pair, Class::Store, second);
    assert!(seen > 900_000.0, "{seen}");
}

#[test]
fn a_limit_that_is_set_again_gives_nothing_more() {
    let mut pair = Pair::new(Settings::default(), LINK, [ANSWERS; 2]);
    pair.ends[0].call(Class::Store, LARGE, None, pair.now);
    for _ in 0..1000 {
        let now = pair.now;
        pair.ends[0].engine.set_limits(only(Class::Store, 50_000), now);
        pair.run(Duration::from_millis(10));
    }
    let sent = pair.ends[0].engine.traffic()[Class::Store.index()].sent_bytes as f64;
    assert!((490_000.0..510_000.0).contains(&sent), "{sent}");
}

#[test]
fn what_a_limit_leaves_is_for_less_urgent_classes() {
    let mut pair = Pair::new(Settings::default(), LINK, [ANSWERS; 2]);
    pair.ends[0].engine.set_limits(only(Class::Prefetch, 100_000), Instant(0));
    pair.ends[0].call(Class::Prefetch, LARGE, None, pair.now);
    pair.ends[0].call(Class::Store, LARGE, None, pair.now);
    pair.run(Duration::from_secs(3));
    let before = pair.ends[0].engine.traffic();
    pair.run(Duration::from_secs(10));
    let after = pair.ends[0].engine.traffic();
    let sent = |class: Class| after[class.index()].sent_bytes - before[class.index()].sent_bytes;
    assert!((980_000..1_020_000).contains(&sent(Class::Prefetch)), "{}", sent(Class::Prefetch));
    assert!(sent(Class::Store) > 8_000_000, "{}", sent(Class::Store));
}

#[test]
fn calls_without_a_limit_and_acknowledgements_never_wait_for_one() {
    let mut pair = Pair::new(Settings::default(), LINK, [ANSWERS; 2]);
    let all =
        [None, Rate::bytes_per_s(1024), Rate::bytes_per_s(1024), Rate::bytes_per_s(1024), Rate::bytes_per_s(1024)];
    for end in &mut pair.ends {
        end.engine.set_limits(all, Instant(0));
    }
    for class in Class::ALL {
        pair.ends[0].call(class, 20_000, None, pair.now);
        pair.ends[1].call(class, 20_000, None, pair.now);
    }
    pair.run(Duration::from_secs(1));
    for _ in 0..20 {
        let (start, id) = (pair.now, pair.ends[0].call(Class::Control, 100, None, pair.now));
        while pair.ends[0].outcomes[&id].is_empty() {
            assert!(pair.step(start + Duration::from_secs(1)));
        }
        let took = pair.now.since(start);
        assert!(took <= 2 * LINK.delay + Duration::from_millis(2), "{took:?}");
        pair.run(Duration::from_millis(93));
        // One frame of each class at most is on its way; their limits let the next ones pass after 50 ms.
        let on_the_way = pair.ends[1].engine.unacknowledged_bytes();
        assert!(on_the_way <= 4 * (51 + CONTENT_OVERHEAD_BYTES), "{on_the_way}");
    }
    assert_eq!(pair.ends[0].closed, None);
}

#[test]
fn the_timeout_says_when_a_limit_lets_the_next_frame_pass() {
    let limits = Limits { window_bytes: [u64::MAX / 2; 2], ..SETTINGS.limits };
    let mut pair = Pair::new(Settings { limits, ..SETTINGS }, FAST, [ANSWERS; 2]);
    let end = &mut pair.ends[0];
    let start = Instant(1_000_000_000);
    end.engine.set_limits(only(Class::Store, 10_000), start);
    assert!(end.next_frame(start).is_some(), "the other end is told");
    end.call(Class::Store, 10_000, None, start);
    for frame in 0..10 {
        // 50 ms hold 500 bytes.
        let now = start + frame * Duration::from_millis(50);
        let early = Instant(now.0 - 1);
        assert!(frame == 0 || end.next_frame(early).is_none(), "frame {frame} is early");
        assert!(frame == 0 || end.engine.poll_timeout() == Some(now), "frame {frame}");
        end.engine.handle_timeout(now);
        assert!(end.next_frame(now).is_some(), "frame {frame} is late");
        assert!(end.next_frame(now).is_none());
    }
    // A class that has nothing to send does not wait for its limit.
    let id = end.sent[0].1;
    end.engine.cancel(id);
    let now = start + Duration::from_millis(451);
    while end.next_frame(now).is_some() {}
    assert!(end.engine.poll_timeout().unwrap() > now + Duration::from_millis(100));
}

#[test]
fn what_is_late_is_made_up_for_but_an_hour_is_not() {
    let mut pair = Pair::new(Settings::default(), FAST, [ANSWERS; 2]);
    pair.ends[0].engine.set_limits(only(Class::Store, 100_000), Instant(0));
    pair.run(Duration::from_secs(3600));
    pair.ends[0].call(Class::Store, LARGE, None, pair.now);
    let seen = rate(&mut pair, Class::Store, Duration::from_secs(10)) / 100_000.0;
    assert!((0.99..=1.02).contains(&seen), "{seen} of the limit");
}

/// Returns how much one end gets of a class in so long, per second.
fn arrived(pair: &mut Pair, class: Class, time: Duration) -> f64 {
    let received = |pair: &Pair| pair.ends[0].engine.traffic()[class.index()].received_bytes;
    let before = received(pair);
    pair.run(time);
    (received(pair) - before) as f64 / time.as_secs_f64()
}

#[test]
fn a_limit_counts_for_what_the_other_end_sends_also_while_it_sends() {
    let replies = Application { reply_bytes: LARGE, ..ANSWERS };
    let mut pair = Pair::new(Settings::default(), LINK, [ANSWERS, replies]);
    pair.ends[0].call(Class::Fetch, 10, None, pair.now);
    pair.run(Duration::from_secs(3));
    for limit in [1024, 200_000, 50_000] {
        let now = pair.now;
        pair.ends[0].engine.set_limits(only(Class::Fetch, limit), now);
        // Bytes that were on their way arrive yet.
        pair.run(Duration::from_millis(200));
        let seen = arrived(&mut pair, Class::Fetch, Duration::from_secs(10)) / limit as f64;
        assert!((0.98..1.015).contains(&seen), "{seen} of {limit}");
    }
    let now = pair.now;
    pair.ends[0].engine.set_limits([None; 5], now);
    pair.run(Duration::from_millis(200));
    let seen = arrived(&mut pair, Class::Fetch, Duration::from_secs(1));
    assert!(seen > 900_000.0, "{seen}");
}

#[test]
fn the_smaller_of_the_limits_of_both_ends_holds() {
    let mut pair = Pair::new(Settings::default(), LINK, [ANSWERS; 2]);
    pair.ends[0].call(Class::Store, LARGE, None, pair.now);
    for ([own, others], expected) in [([50_000, 100_000], 50_000.0), ([100_000, 40_000], 40_000.0)] {
        let now = pair.now;
        pair.ends[0].engine.set_limits(only(Class::Store, own), now);
        pair.ends[1].engine.set_limits(only(Class::Store, others), now);
        pair.run(Duration::from_secs(1));
        let seen = rate(&mut pair, Class::Store, Duration::from_secs(10)) / expected;
        assert!((0.98..1.015).contains(&seen), "{seen}");
    }
}

#[test]
fn a_limit_of_control_is_none_and_its_frame_is_a_violation() {
    let mut pair = Pair::new(Settings::default(), LINK, [ANSWERS; 2]);
    let now = pair.now;
    pair.ends[0].engine.set_limits(only(Class::Control, 1024), now);
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.ends[1].closed, None);
    let frame = |class, bytes_per_s| wire::Frame {
        kind: Some(wire::frame::Kind::Limit(wire::Limit { class, bytes_per_s })),
        ..wire::Frame::default()
    };
    assert_eq!(Frame::parse(frame(0, 0)), Err(Violation::LimitedControl));
    assert_eq!(Frame::parse(frame(5, 0)), Err(Violation::UnknownClass(5)));
    assert_eq!(Frame::parse(frame(1, 1023)), Err(Violation::SmallLimit(1023)));
    assert!(Frame::parse(frame(1, 1024)).is_ok() && Frame::parse(frame(1, 0)).is_ok());
}
