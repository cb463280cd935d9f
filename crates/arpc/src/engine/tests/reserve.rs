//! Tests of the share that the log gets of a link that more urgent classes fill.

use std::time::Duration;

use mafs_proto::{Class, Instant};
use proptest::prelude::*;

use super::pair::{ANSWERS, Application, LinkModel, Pair, SETTINGS};
use crate::engine::reserve::{LOG, LogShare, Order, PATIENCE};
use crate::engine::{Ready, Reserve, Settings};

const LINK: LinkModel = LinkModel { delay: Duration::from_millis(10), bytes_per_s: 100_000 };
const LARGE: u64 = 4_000_000_000;

fn pair(reserve: Reserve, link: LinkModel) -> Pair {
    Pair::new(Settings { reserve, ..Settings::default() }, link, [ANSWERS; 2])
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns how much one end has sent of the log since it had sent so many frames, and of everything.
fn sent(pair: &Pair, end: usize, frames: usize) -> [u64; 2] {
    let frames = &pair.ends[end].sent[frames..];
    let of =
        |wanted: fn(&Class) -> bool| frames.iter().filter(|(_, _, class, _)| wanted(class)).map(|sent| sent.3).sum();
    [of(|class| LOG.contains(class)), of(|_| true)]
}

/// Returns the log's share of the bytes that one end sends in so long, in percent.
fn share(pair: &mut Pair, end: usize, time: Duration) -> f64 {
    let before = pair.ends[end].sent.len();
    pair.run(time);
    let [log, all] = sent(pair, end, before);
    100.0 * log as f64 / all as f64
}

#[test]
fn the_log_waits_in_strict_order_for_a_minute_and_then_gets_five_percent() {
    let mut pair = pair(Reserve::default(), LINK);
    pair.ends[0].call(Class::Fetch, LARGE, None, pair.now);
    pair.ends[0].call(Class::Store, LARGE, None, pair.now);
    assert_eq!(share(&mut pair, 0, PATIENCE), 0.0);
    let share = share(&mut pair, 0, seconds(200));
    assert!((4.9..5.2).contains(&share), "{share} %");
}

#[test]
fn metadata_goes_before_stores_in_the_share_of_both() {
    let mut pair = pair(Reserve::default(), LINK);
    pair.ends[0].call(Class::Fetch, LARGE, None, pair.now);
    let store = pair.ends[0].call(Class::Store, LARGE, None, pair.now);
    let record = pair.ends[0].call(Class::Metadata, 50_000, None, pair.now);
    pair.run(PATIENCE);
    let share = share(&mut pair, 0, seconds(9));
    assert!((4.5..6.0).contains(&share), "{share} %");
    assert!(pair.ends[0].sent.iter().all(|(_, id, ..)| *id != store));
    pair.run(seconds(10));
    assert_eq!(pair.ends[0].outcomes[&record].len(), 1);
    assert!(pair.ends[0].sent.iter().any(|(_, id, ..)| *id == store));
}

#[test]
fn without_a_reserve_the_log_waits_for_ever() {
    let mut pair = pair(Reserve::NONE, LINK);
    pair.ends[0].call(Class::Fetch, LARGE, None, pair.now);
    pair.ends[0].call(Class::Store, LARGE, None, pair.now);
    assert_eq!(share(&mut pair, 0, seconds(600)), 0.0);
}

#[test]
fn the_share_ends_when_the_log_that_waited_is_sent() {
    let mut pair = pair(Reserve::default(), LINK);
    pair.ends[0].call(Class::Fetch, LARGE, None, pair.now);
    let first = pair.ends[0].call(Class::Store, 25_000, None, pair.now);
    pair.run(PATIENCE + seconds(8));
    assert_eq!(pair.ends[0].outcomes[&first].len(), 1);

    let second = pair.ends[0].call(Class::Store, 25_000, None, pair.now);
    assert_eq!(share(&mut pair, 0, PATIENCE), 0.0);
    pair.run(seconds(8));
    assert_eq!(pair.ends[0].outcomes[&second].len(), 1);
}

#[test]
fn a_log_that_strict_order_gives_its_share_waits_a_minute_again() {
    let mut pair = pair(Reserve::default(), LINK);
    pair.ends[0].call(Class::Fetch, 50 * LINK.bytes_per_s, None, pair.now);
    pair.ends[0].call(Class::Store, LARGE, None, pair.now);
    pair.run(seconds(58));
    pair.ends[0].call(Class::Fetch, LARGE, None, pair.now);
    pair.run(Duration::from_millis(100));
    assert_eq!(share(&mut pair, 0, PATIENCE - seconds(1)), 0.0);
    pair.run(seconds(1));
    let share = share(&mut pair, 0, seconds(100));
    assert!((4.5..5.5).contains(&share), "{share} %");
}

#[test]
fn a_frame_of_the_log_in_each_gap_does_not_cost_it_its_share() {
    let mut share = LogShare::new(Reserve::default());
    let mut of_log = 0;
    for second in 0..600 {
        let its_turn = share.is_its_turn(true, Instant(0) + seconds(second));
        let class = if its_turn || second % 59 == 0 { Class::Store } else { Class::Fetch };
        of_log += u32::from(class == Class::Store);
        share.sent(class, 1400, if its_turn { Order::Reserved } else { Order::Strict });
    }
    assert!((27..33).contains(&of_log), "{of_log} of 600");
}

#[test]
fn the_link_is_the_logs_when_nothing_else_wants_it() {
    let mut pair = pair(Reserve::default(), LINK);
    pair.ends[0].call(Class::Fetch, 70 * LINK.bytes_per_s, None, pair.now);
    pair.ends[0].call(Class::Store, LARGE, None, pair.now);
    pair.run(seconds(80));
    assert_eq!(share(&mut pair, 0, seconds(10)), 100.0);
}

#[test]
fn replies_of_the_log_get_their_share_of_the_other_direction() {
    let mut pair = pair(Reserve::default(), LINK);
    pair.ends[1].application = Application { reply_bytes: LARGE, ..ANSWERS };
    pair.ends[0].call(Class::Fetch, 0, None, pair.now);
    pair.ends[0].call(Class::Store, 0, None, pair.now);
    assert_eq!(share(&mut pair, 1, PATIENCE), 0.0);
    let share = share(&mut pair, 1, seconds(200));
    assert!((4.9..5.2).contains(&share), "{share} %");
}

#[test]
fn a_payload_that_comes_in_pieces_waits_as_one_message() {
    let mut pair = pair(Reserve::default(), LINK);
    pair.ends[0].call(Class::Fetch, LARGE, None, pair.now);
    let store = pair.ends[0].call_ready(Class::Store, Ready::default(), None, pair.now);
    pair.run(PATIENCE);
    let mut log = 0;
    while pair.now < Instant(0) + 2 * PATIENCE {
        assert_eq!(pair.ends[0].engine.queued_bytes()[Class::Store.index()], 0, "after {log} bytes");
        pair.ends[0].engine.payload_ready(store, 1000);
        log += 1000;
        pair.run(Duration::from_millis(250));
    }
}

#[test]
fn control_passes_a_log_that_waits_for_room_in_the_window() {
    let half = Reserve::percent(Reserve::PERCENT_MAX).unwrap();
    let mut pair = Pair::new(Settings { reserve: half, ..SETTINGS }, LINK, [ANSWERS; 2]);
    pair.ends[0].call(Class::Fetch, LARGE, None, pair.now);
    pair.ends[0].call(Class::Store, LARGE, None, pair.now);
    pair.run(PATIENCE + seconds(5));
    for _ in 0..50 {
        pair.run(Duration::from_millis(217));
        let id = pair.ends[0].call(Class::Control, 100, None, pair.now);
        pair.run(Duration::ZERO);
        assert!(pair.ends[0].sent.iter().any(|sent| sent.1 == id), "a Control call waits for the log");
    }
}

#[test]
fn control_calls_without_end_leave_the_log_its_share() {
    let mut pair = pair(Reserve::default(), LINK);
    pair.ends[0].call(Class::Store, LARGE, None, pair.now);
    let mut log = [0; 2];
    while pair.now < Instant(0) + PATIENCE + seconds(60) {
        while pair.ends[0].engine.queued_bytes()[Class::Control.index()] < 40_000 {
            pair.ends[0].call(Class::Control, 1000, None, pair.now);
        }
        let before = pair.ends[0].sent.len();
        let starved = pair.now > Instant(0) + PATIENCE;
        pair.run(Duration::from_millis(200));
        let sent = sent(&pair, 0, before);
        if starved {
            log = [log[0] + sent[0], log[1] + sent[1]];
        }
    }
    let share = 100.0 * log[0] as f64 / log[1] as f64;
    assert!((4.5..5.5).contains(&share), "{share} %");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn on_any_link_any_share_is_kept_and_control_waits_no_longer(
        bytes_per_s in 20_000..500_000u64,
        delay_ms in 0..200u64,
        percent in 1..=Reserve::PERCENT_MAX,
    ) {
        let link = LinkModel { delay: Duration::from_millis(delay_ms), bytes_per_s };
        let mut pair = pair(Reserve::percent(percent).unwrap(), link);
        pair.ends[0].call(Class::Fetch, LARGE, None, pair.now);
        pair.ends[0].call(Class::Store, LARGE, None, pair.now);
        prop_assert_eq!(share(&mut pair, 0, PATIENCE), 0.0);
        let share = share(&mut pair, 0, seconds(100));
        prop_assert!((share - f64::from(percent)).abs() < 0.5, "{} % of {} %", share, percent);

        let start = pair.now;
        let engine = &pair.ends[0].engine;
        // More is in flight than the window when it has just been made small to measure the round-trip time.
        let window = engine.window_bytes(start).max(engine.unacknowledged_bytes());
        let ahead = window + engine.chunk_bytes(start) + 2000;
        let id = pair.ends[0].call(Class::Control, 100, None, start);
        while pair.ends[0].outcomes[&id].is_empty() {
            prop_assert!(pair.step(start + seconds(60)));
        }
        let bound = 2 * link.delay + Duration::from_nanos(ahead * 1_000_000_000 / bytes_per_s);
        prop_assert!(pair.now.since(start) <= bound, "{:?} > {:?}", pair.now.since(start), bound);
    }
}

proptest! {
    #[test]
    fn a_starved_log_gets_its_share_of_frames_of_any_size(
        percent in 1..=Reserve::PERCENT_MAX,
        sizes in proptest::collection::vec(32..65_536u64, 200..400),
    ) {
        let mut share = LogShare::new(Reserve::percent(percent).unwrap());
        prop_assert!(!share.is_its_turn(true, Instant(0)));
        share.sent(Class::Fetch, 1, Order::Strict);
        let now = Instant(0) + PATIENCE;
        let (mut log, mut all) = (0, 0);
        for bytes in sizes {
            let its_turn = share.is_its_turn(true, now);
            let (class, order) = if its_turn { (Class::Store, Order::Reserved) } else { (Class::Fetch, Order::Strict) };
            share.sent(class, bytes, order);
            all += bytes;
            log += if its_turn { bytes } else { 0 };
            let fair = all * u64::from(percent) / 100;
            prop_assert!(log.abs_diff(fair) <= 65_536, "{log} of {all}");
        }
    }
}
