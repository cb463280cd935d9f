//! Tests that calls end once, with the peer's answer.

use std::time::Duration;

use bytes::Bytes;
use mafs_proto::Class;

use super::pair::{ANSWERS, Application, FAST, LinkModel, Outcome, Pair, SETTINGS};
use crate::CallError;
use crate::engine::{FrameKind, Ready, STATUS_BUSY};

const SILENT: Application = Application { answers: false, ..ANSWERS };

fn pair(right: Application) -> Pair {
    Pair::new(SETTINGS, FAST, [ANSWERS, right])
}

#[test]
fn small_store_and_its_reply_are_one_frame_each() {
    let mut pair = pair(Application { reply_bytes: 100, ..ANSWERS });
    let id = pair.ends[0].call(Class::Store, 1500, None, pair.now);
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.ends[0].outcomes[&id], [Outcome::Status(0)]);
    assert_eq!((pair.ends[0].sent.len(), pair.ends[1].sent.len()), (1, 1));
    assert_eq!(pair.ends[0].received[&id], (100, 1));
}

#[test]
fn both_ends_call_at_once() {
    let mut pair = Pair::new(SETTINGS, FAST, [Application { reply_bytes: 30_000, ..ANSWERS }; 2]);
    let ids = [0, 1].map(|end| pair.ends[end].call(Class::Store, 50_000, None, pair.now));
    pair.run(Duration::from_secs(1));
    for end in [0, 1] {
        assert_eq!(pair.ends[end].outcomes[&ids[end]], [Outcome::Status(0)]);
        assert_eq!(pair.ends[end].received[&ids[end]], (30_000, 1));
        assert_eq!(pair.ends[end].received[&ids[1 - end]], (50_000, 1));
        assert_eq!(pair.ends[end].engine.queued_bytes(), [0; 5]);
        assert_eq!(pair.ends[end].engine.calls.len(), 0);
    }
}

#[test]
fn reply_with_payload_inherits_the_class_and_a_small_one_is_control() {
    for (reply_bytes, class, expected) in [
        (1024, Class::Store, Class::Control),
        (1025, Class::Store, Class::Store),
        (5000, Class::Prefetch, Class::Prefetch),
        (1400, Class::Control, Class::Control),
        (1401, Class::Control, Class::Fetch),
    ] {
        let mut pair = pair(Application { reply_bytes, ..ANSWERS });
        pair.ends[0].call(class, 0, None, pair.now);
        pair.run(Duration::from_secs(1));
        let sent: Vec<Class> = pair.ends[1].sent.iter().map(|(_, _, class, _)| *class).collect();
        assert!(!sent.is_empty() && sent.iter().all(|class| *class == expected), "{reply_bytes} {class:?}: {sent:?}");
    }
}

#[test]
fn reprioritised_call_takes_its_reply_along() {
    let mut pair = pair(SILENT);
    let id = pair.ends[0].call(Class::Store, 0, None, pair.now);
    pair.run(Duration::from_millis(100));
    pair.ends[0].engine.reprioritise(id, Class::Prefetch);
    pair.ends[0].engine.reprioritise(id, Class::Fetch);
    pair.run(Duration::from_millis(100));
    pair.ends[1].engine.reply(id, 0, Bytes::new(), Ready { bytes: 5000, finished: true });
    pair.run(Duration::from_millis(100));
    assert!(pair.ends[1].sent.iter().all(|(_, _, class, _)| *class == Class::Fetch));
    assert_eq!(pair.ends[0].received[&id], (5000, 1));
}

#[test]
fn deadline_ends_the_call_at_both_ends() {
    let mut pair = pair(SILENT);
    let timeout = Duration::from_millis(300);
    let id = pair.ends[0].call(Class::Store, 50_000, Some(timeout), pair.now);
    pair.run(Duration::from_millis(299));
    assert_eq!(pair.ends[0].outcomes[&id], []);
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.ends[0].outcomes[&id], [Outcome::Error(CallError::DeadlineExceeded(timeout))]);
    assert_eq!((pair.ends[0].engine.calls.len(), pair.ends[1].engine.calls.len()), (0, 0));
}

#[test]
fn call_that_never_began_is_cancelled_without_a_frame() {
    let mut pair = pair(SILENT);
    let id = pair.ends[0].call(Class::Store, 50_000, None, pair.now);
    pair.ends[0].engine.cancel(id);
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.ends[0].outcomes[&id], [Outcome::Error(CallError::Cancelled)]);
    assert_eq!((pair.carried, pair.ends[0].engine.calls.len()), (0, 0));
}

#[test]
fn cancel_that_crosses_the_reply_does_no_harm() {
    let link = LinkModel { delay: Duration::from_millis(10), bytes_per_s: 100_000 };
    let mut pair = Pair::new(SETTINGS, link, [ANSWERS, Application { reply_bytes: 30_000, ..ANSWERS }]);
    let id = pair.ends[0].call(Class::Fetch, 0, None, pair.now);
    pair.run(Duration::from_millis(15));
    assert!(!pair.ends[1].sent.is_empty(), "the reply is on its way");
    pair.ends[0].engine.cancel(id);
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.ends[0].outcomes[&id], [Outcome::Error(CallError::Cancelled)]);
    assert_eq!((&pair.ends[0].closed, &pair.ends[1].closed), (&None, &None));
    assert_eq!((pair.ends[0].engine.calls.len(), pair.ends[1].engine.calls.len()), (0, 0));
}

#[test]
fn unwanted_payload_stops_without_ending_the_call() {
    let mut pair = pair(SILENT);
    let id = pair.ends[0].call(Class::Store, 1_000_000, None, pair.now);
    pair.run(Duration::from_millis(3));
    pair.ends[1].engine.unwanted(id);
    pair.run(Duration::from_secs(1));
    assert!(pair.ends[0].sent.len() < 50, "{}", pair.ends[0].sent.len());
    assert_eq!(pair.ends[0].outcomes[&id], []);
    pair.ends[1].engine.reply(id, 5, Bytes::new(), Ready { bytes: 0, finished: true });
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.ends[0].outcomes[&id], [Outcome::Status(5)]);
    assert_eq!((pair.ends[0].engine.calls.len(), pair.ends[1].engine.calls.len()), (0, 0));
}

#[test]
fn aborted_payload_is_never_taken_for_whole() {
    let mut pair = pair(SILENT);
    let id = pair.ends[0].call_ready(Class::Store, Ready { bytes: 3000, finished: false }, None, pair.now);
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.ends[1].received[&id], (3000, 0));
    pair.ends[0].engine.payload_ready(id, 500);
    pair.ends[0].engine.payload_aborted(id, "disk failed".into());
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.ends[1].received[&id], (3000, 1));
    assert_eq!(pair.ends[0].outcomes[&id], []);
}

#[test]
fn calls_beyond_the_limit_are_refused_at_either_end() {
    let mut pair = pair(SILENT);
    let ids: Vec<_> = (0..=SETTINGS.calls_max).map(|_| pair.ends[0].call(Class::Fetch, 0, None, pair.now)).collect();
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.ends[0].outcomes[&ids[SETTINGS.calls_max]], [Outcome::Error(CallError::Busy)]);
    assert_eq!(pair.ends[0].outcomes[&ids[0]], []);

    // A peer that allows itself more is told by the other end.
    pair.ends[0].engine.settings.calls_max += 1;
    let id = pair.ends[0].call(Class::Fetch, 50_000, None, pair.now);
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.ends[0].outcomes[&id], [Outcome::Error(CallError::Busy)]);
    assert_eq!(pair.ends[0].engine.calls.len(), SETTINGS.calls_max);
    assert_eq!(pair.ends[1].engine.calls.len(), SETTINGS.calls_max);
}

#[test]
fn refusal_is_a_reply_with_its_own_status() {
    let mut pair = pair(SILENT);
    pair.ends[1].engine.settings.calls_max = 1;
    for _ in 0..2 {
        pair.ends[0].call(Class::Fetch, 0, None, pair.now);
    }
    for _ in 0..2 {
        let frame = pair.ends[0].next_frame(pair.now);
        pair.ends[1].engine.handle_frame(frame.ok_or(crate::engine::Violation::UnknownKind), pair.now);
    }
    let reply = pair.ends[1].next_frame(pair.now).map(|frame| frame.kind);
    assert!(matches!(reply, Some(FrameKind::Reply { status: STATUS_BUSY, last: true, .. })), "{reply:?}");
}
