//! Tests of whose chunk is next, and of how long a Control call waits.

use std::time::Duration;

use mafs_proto::{Class, Instant};
use proptest::prelude::*;

use super::pair::{ANSWERS, Application, CHUNK, LinkModel, Pair, SETTINGS, WINDOW};
use crate::Scheduling;
use crate::engine::frame::CONTROL_BYTES_MAX;
use crate::engine::{CallId, FrameKind, Limits, Reserve, Settings};

const BODY: u64 = 7;

/// A call in a model of the scheduler's promise: among the calls of the highest class, those that have sent nothing go
/// first; among equals, the one whose turn is longest ago.
#[derive(Debug)]
struct ModelCall {
    id: CallId,
    class: Class,
    left: u64,
    begun: bool,
    done: bool,
    turn: usize,
}

impl ModelCall {
    fn lane(&self) -> Class {
        let whole = !self.begun && BODY + self.left <= CONTROL_BYTES_MAX;
        if self.class == Class::Control && !whole { Class::Fetch } else { self.class }
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Call { class: Class, bytes: u64 },
    Send,
    Cancel { call: usize },
    Reprioritise { call: usize, class: Class },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let class = || (0..5u32).prop_map(|index| Class::from_index(index).unwrap());
    let op = prop_oneof![
        3 => (class(), 0..9000u64).prop_map(|(class, bytes)| Op::Call { class, bytes }),
        6 => Just(Op::Send),
        1 => (0..64usize).prop_map(|call| Op::Cancel { call }),
        1 => (0..64usize, class()).prop_map(|(call, class)| Op::Reprioritise { call, class }),
    ];
    proptest::collection::vec(op, 1..80)
}

/// Returns the next content frame: call, class, payload bytes, last.
fn next_content(pair: &mut Pair) -> Option<(CallId, Class, u64, bool)> {
    loop {
        match pair.ends[0].next_frame(Instant(0))?.kind {
            FrameKind::Call { id, class, data, last, .. } | FrameKind::Data { id, class, data, last } => {
                return Some((id, class, data.len() as u64, last));
            }
            _ => {}
        }
    }
}

fn check_send(pair: &mut Pair, calls: &mut [ModelCall], turn: usize) -> bool {
    let expected = calls.iter_mut().filter(|call| !call.done).min_by_key(|call| (call.lane(), call.begun, call.turn));
    let sent = next_content(pair);
    let Some(call) = expected else {
        assert_eq!(sent, None);
        return false;
    };
    let room = if call.begun { CHUNK } else { CHUNK - BODY };
    let bytes = call.left.min(room);
    assert_eq!(sent, Some((call.id, call.lane(), bytes, bytes == call.left)), "{calls:?}");
    let id = sent.map(|(id, ..)| id);
    for call in calls.iter_mut().filter(|call| Some(call.id) == id) {
        call.left -= bytes;
        call.done = call.left == 0;
        call.begun = true;
        call.turn = turn;
    }
    true
}

proptest! {
    #[test]
    fn strict_classes_new_calls_first_then_turns_and_nothing_lost_or_repeated(ops in ops()) {
        let limits = Limits { window_bytes: [u64::MAX / 2; 2], ..SETTINGS.limits };
        let credit_bytes = u64::MAX / 2;
        let settings = Settings { limits, credit_bytes, credit_bytes_max: credit_bytes, calls_max: 100, ..SETTINGS };
        let link = LinkModel { delay: Duration::ZERO, bytes_per_s: 1 };
        let mut pair = Pair::new(settings, link, [ANSWERS; 2]);
        let mut calls: Vec<ModelCall> = Vec::new();
        for (turn, op) in ops.into_iter().enumerate() {
            match op {
                Op::Call { class, bytes } => {
                    let id = pair.ends[0].call(class, bytes, None, Instant(0));
                    calls.push(ModelCall { id, class, left: bytes, begun: false, done: false, turn });
                }
                Op::Send => drop(check_send(&mut pair, &mut calls, turn)),
                Op::Cancel { call } => {
                    let count = calls.len();
                    if let Some(call) = calls.get_mut(call % count.max(1)) {
                        pair.ends[0].engine.cancel(call.id);
                        call.done = true;
                    }
                }
                Op::Reprioritise { call, class } => {
                    let count = calls.len();
                    if let Some(call) = calls.get_mut(call % count.max(1)) {
                        pair.ends[0].engine.reprioritise(call.id, class);
                        let before = call.lane();
                        call.class = class;
                        call.turn = if call.lane() == before { call.turn } else { turn };
                    }
                }
            }
            let unsent = calls.iter().filter(|call| !call.done);
            let queued: u64 = unsent.map(|call| call.left + if call.begun { 0 } else { BODY }).sum();
            prop_assert_eq!(pair.ends[0].engine.queued_bytes().iter().sum::<u64>(), queued);
        }
        let mut turn = 1000;
        while check_send(&mut pair, &mut calls, turn) {
            turn += 1;
        }
    }

    #[test]
    fn invariant_6_control_call_waits_for_the_window_and_one_chunk(
        bytes_per_s in 20_000..10_000_000u64,
        delay_ms in 0..200u64,
        after_ms in 1..500u64,
        stores in 1..6usize,
    ) {
        let link = LinkModel { delay: Duration::from_millis(delay_ms), bytes_per_s };
        let mut pair = Pair::new(SETTINGS, link, [ANSWERS; 2]);
        for index in 0..stores {
            let class = [Class::Store, Class::Fetch, Class::Prefetch][index % 3];
            pair.ends[0].call(class, 20_000_000, None, pair.now);
        }
        pair.run(Duration::from_millis(after_ms));
        prop_assert!(pair.ends[0].engine.queued_bytes().iter().sum::<u64>() > 0);

        let start = pair.now;
        let sent_before = pair.ends[0].sent.len();
        let id = pair.ends[0].call(Class::Control, 100, None, start);
        while pair.ends[0].outcomes[&id].is_empty() {
            let until = start + Duration::from_secs(60);
            prop_assert!(pair.step(until));
        }
        prop_assert_eq!(pair.ends[0].sent[sent_before].1, id);
        let ahead = WINDOW + CHUNK + 2000;
        let bound = 2 * link.delay + Duration::from_nanos(ahead * 1_000_000_000 / bytes_per_s);
        let waited = pair.now.since(start);
        prop_assert!(waited <= bound, "{:?} > {:?}", waited, bound);
    }
}

#[test]
fn download_does_not_starve_the_answers_of_stores() {
    let link = LinkModel { delay: Duration::from_millis(10), bytes_per_s: 100_000 };
    let large_replies = Application { reply_bytes: 10_000_000, ..ANSWERS };
    let mut pair = Pair::new(SETTINGS, link, [ANSWERS, large_replies]);
    pair.ends[0].call(Class::Fetch, 0, None, pair.now);
    pair.run(Duration::from_secs(1));
    pair.ends[1].application.reply_bytes = 0;
    let store = pair.ends[0].call(Class::Store, 100, None, pair.now);
    pair.run(Duration::from_millis(200));
    assert_eq!(pair.ends[0].outcomes[&store].len(), 1);
}

#[test]
fn a_reply_tells_how_long_its_call_was_queued_and_served() {
    let link = LinkModel { delay: Duration::from_millis(10), bytes_per_s: 100_000 };
    let mut pair = Pair::new(SETTINGS, link, [ANSWERS; 2]);
    pair.ends[0].call(Class::Fetch, 50_000, None, pair.now);
    let store = pair.ends[0].call(Class::Store, 10_000, None, pair.now);
    pair.run(Duration::from_secs(2));
    let timing = pair.ends[0].timings[&store];
    // The fetch has to pass but for the part that fits the window; then the first of the store takes its time and the
    // round trip.
    let ms = |range: std::ops::Range<u64>| Duration::from_millis(range.start)..Duration::from_millis(range.end);
    assert!(ms(400..600).contains(&timing.queued), "{timing:?}");
    assert!(ms(20..120).contains(&timing.served), "{timing:?}");
    let traffic = pair.ends[0].engine.traffic()[Class::Store.index()];
    assert_eq!((traffic.sent_bytes, traffic.received_bytes), (10_000 + BODY, 0));
    assert_eq!(pair.ends[1].engine.traffic()[Class::Store.index()].received_bytes, 10_000 + BODY);
}

#[test]
fn without_classes_all_calls_take_turns_and_wait_for_each_other() {
    let link = LinkModel { delay: Duration::from_millis(10), bytes_per_s: 100_000 };
    let wait = |settings| {
        let mut pair = Pair::new(settings, link, [ANSWERS; 2]);
        pair.ends[0].call(Class::Store, 100_000_000, None, pair.now);
        pair.run(Duration::from_secs(10));
        let (start, id) = (pair.now, pair.ends[0].call(Class::Control, 100, None, pair.now));
        while pair.ends[0].outcomes[&id].is_empty() {
            assert!(pair.step(start + Duration::from_secs(60)));
        }
        pair.now.since(start)
    };
    let of = |scheduling| Settings::of(scheduling, Reserve::default());
    let [classes, one, off] = [Scheduling::Classes, Scheduling::OneClass, Scheduling::Off].map(of).map(wait);
    // One class has the window and so waits about as short; without the window all that the credit allows is ahead: 1
    // MB.
    assert!(classes <= one && one < 2 * classes, "{classes:?}, {one:?}");
    assert!(off > Duration::from_secs(5), "{off:?}");
}
