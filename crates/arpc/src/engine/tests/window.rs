//! Tests of the bytes that may be in flight or lie unread, and of when bytes are acknowledged.

use std::collections::VecDeque;
use std::time::Duration;

use mafs_proto::{Class, Instant};
use proptest::prelude::*;

use super::pair::{ANSWERS, Application, End, FAST, LinkModel, Pair, SETTINGS, WINDOW, cost};
use crate::engine::frame::{Acknowledgement, CONTENT_OVERHEAD_BYTES, CONTROL_BYTES_MAX, CallId};
use crate::engine::window::{Admission, EXEMPT_FRAMES_MAX, Receipts, Window};
use crate::engine::{Charge, FrameKind, Limits, Settings};

/// The most that may be in flight.
const IN_FLIGHT_MAX: u64 = WINDOW + EXEMPT_FRAMES_MAX as u64 * (CONTROL_BYTES_MAX + CONTENT_OVERHEAD_BYTES);

/// Makes a window that does not adapt.
fn window(bytes: u64) -> Window {
    Window::new(Limits { chunk_bytes: [bytes; 2], window_bytes: [bytes; 2], segment_bytes: bytes })
}

fn sent_without_acknowledgement(end: &mut End) -> u64 {
    let mut bytes = 0;
    while let Some(frame) = end.next_frame(Instant(0)) {
        bytes += cost(&frame);
    }
    bytes
}

proptest! {
    #[test]
    fn invariant_7_no_more_than_the_window_waits_below_the_engine(
        calls in proptest::collection::vec((0..5u32, 0..30_000u64), 1..8),
    ) {
        let mut pair = Pair::new(SETTINGS, FAST, [ANSWERS; 2]);
        for (class, bytes) in calls {
            pair.ends[0].call(Class::from_index(class).unwrap(), bytes, None, Instant(0));
            prop_assert!(sent_without_acknowledgement(&mut pair.ends[0]) <= IN_FLIGHT_MAX);
        }
        prop_assert!(pair.ends[0].engine.unacknowledged_bytes() <= IN_FLIGHT_MAX);
    }

    #[test]
    fn frames_larger_than_the_window_still_go_one_by_one(bytes in 1..100_000u64) {
        let mut window = window(10);
        prop_assert_eq!(window.admit(bytes, false, Instant(0)), Some(Admission::Charged));
        window.send(bytes, Admission::Charged, CallId(1), bytes, Instant(0));
        prop_assert_eq!(window.admit(1, false, Instant(0)).is_some(), bytes < 10);
    }
}

#[test]
fn four_small_control_frames_pass_a_full_window() {
    let mut window = window(1000);
    window.send(1000, Admission::Charged, CallId(1), 1000, Instant(0));
    for _ in 0..EXEMPT_FRAMES_MAX {
        assert_eq!(window.admit(100, false, Instant(0)), None);
        assert_eq!(window.admit(CONTROL_BYTES_MAX + CONTENT_OVERHEAD_BYTES + 1, true, Instant(0)), None);
        assert_eq!(window.admit(100, true, Instant(0)), Some(Admission::Exempt));
        window.send(100, Admission::Exempt, CallId(3), 0, Instant(0));
    }
    assert_eq!(window.admit(100, true, Instant(0)), None);
    let all = Acknowledgement { bytes: 1400, received_at: Instant(3), delay: Duration::ZERO, queue: Duration::ZERO };
    window.acknowledge(all, Instant(5), |_, _| ()).unwrap();
    assert_eq!(window.unacknowledged_bytes(), 0);
    assert_eq!(window.admit(1000, false, Instant(0)), Some(Admission::Charged));
}

#[test]
fn round_trip_time_leaves_out_what_the_peer_waited() {
    let link = LinkModel { delay: Duration::from_millis(20), bytes_per_s: 1_000_000_000 };
    let mut pair = Pair::new(SETTINGS, link, [ANSWERS, Application { answers: false, ..ANSWERS }]);
    pair.ends[0].call(Class::Control, 0, None, pair.now);
    pair.run(Duration::from_secs(1));
    let rtt = pair.ends[0].engine.rtt_min().unwrap();
    assert!((Duration::from_millis(40)..Duration::from_micros(40_100)).contains(&rtt), "{rtt:?}");
}

#[test]
fn what_the_peer_guesses_of_its_queue_makes_no_round_trip_shorter() {
    let mut window = Window::new(Settings::default().limits);
    let mut now = Instant(0);
    for frame in 1..100 {
        window.send(1000, Admission::Charged, CallId(1), 1000, now);
        now = now + Duration::from_millis(20);
        let (delay, queue) = (Duration::ZERO, Duration::from_millis(30));
        let ack = Acknowledgement { bytes: 1000 * frame, received_at: now, delay, queue };
        window.acknowledge(ack, now, |_, _| ()).unwrap();
    }
    assert_eq!(window.estimator().rtt_min(), Some(Duration::from_millis(20)));
}

#[test]
fn what_goes_first_is_no_more_because_small_frames_have_shown_some_rate() {
    let limits = Settings::default().limits;
    let mut window = Window::new(limits);
    let first = window.size_bytes(Instant(0));
    assert_eq!(first, 10 * limits.chunk_bytes[0]);
    let (mut now, mut sent) = (Instant(0), 0);
    for _ in 0..3 {
        window.starved();
        for cost in [1400, 1400, 600] {
            window.send(cost, Admission::Charged, CallId(1), cost, now);
            sent += cost;
        }
        now = now + Duration::from_millis(9);
        let ack = Acknowledgement { bytes: sent, received_at: now, delay: Duration::ZERO, queue: Duration::ZERO };
        window.acknowledge(ack, now, |_, _| ()).unwrap();
    }
    assert!(!window.estimator().is_measured() && window.chunk_bytes(now) > 2 * limits.chunk_bytes[0]);
    assert_eq!(window.size_bytes(now), first);
}

/// A link of 64 KB/s that is always full, and a way back on which acknowledgements wait for up to four chunks' time
/// behind other traffic.
#[test]
fn the_rate_is_what_arrives_however_late_that_is_acknowledged() {
    const CHUNK_BYTES: u64 = 1432;
    let (chunk_time, delay) = (Duration::from_millis(22), Duration::from_millis(10));
    let mut window = Window::new(Settings::default().limits);
    let (mut now, mut sent, mut free_at, mut arrivals) = (Instant(0), 0, Instant(0), VecDeque::new());
    for round in 0..500u32 {
        while window.unacknowledged_bytes() < 8 * CHUNK_BYTES {
            window.send(CHUNK_BYTES, Admission::Charged, CallId(1), CHUNK_BYTES, now);
            sent += CHUNK_BYTES;
            free_at = free_at.max(now) + chunk_time;
            arrivals.push_back((free_at + delay, sent));
        }
        now = now + chunk_time;
        let late = delay + chunk_time * (round * round * 7 % 5);
        let acknowledged = arrivals.iter().take_while(|(at, _)| *at + late <= now).count();
        if let Some((received_at, bytes)) = arrivals.drain(..acknowledged).next_back() {
            let ack = Acknowledgement { bytes, received_at, delay: Duration::ZERO, queue: Duration::ZERO };
            window.acknowledge(ack, now, |_, _| ()).unwrap();
        }
    }
    let (rate, wanted) = (window.estimator().rate().unwrap(), CHUNK_BYTES * 1000 / 22);
    assert!(rate.abs_diff(wanted) * 50 <= wanted, "{rate} of {wanted}");
}

#[test]
fn chunks_are_acknowledged_at_once_and_together_and_small_frames_later() {
    let mut receipts = Receipts::default();
    receipts.receive(50, Instant(0));
    assert_eq!(receipts.due(), Some(Instant(5_000_000)));
    receipts.receive(2000, Instant(1000));
    receipts.receive(2000, Instant(2000));
    assert_eq!(receipts.due(), Some(Instant(2000)));
    let ack = receipts.take(Duration::ZERO, Instant(5000)).unwrap();
    assert_eq!((ack.bytes, ack.received_at, ack.delay), (4050, Instant(2000), Duration::from_micros(3)));
    assert_eq!(receipts.take(Duration::ZERO, Instant(6000)), None);

    let [least_chunk_bytes, _] = Settings::default().limits.chunk_bytes;
    receipts.receive(least_chunk_bytes + CONTENT_OVERHEAD_BYTES, Instant(7000));
    assert_eq!(receipts.due(), Some(Instant(7000)), "a whole chunk");
}

#[test]
fn unread_payload_stops_at_its_credit_and_leaves_other_classes_theirs() {
    let mut pair = Pair::new(SETTINGS, FAST, [ANSWERS, Application { reads: false, answers: false, ..ANSWERS }]);
    let stuck = pair.ends[0].call(Class::Store, 1_000_000, None, pair.now);
    pair.run(Duration::from_secs(1));
    let arrived = pair.ends[1].received[&stuck].0;
    assert!(arrived <= SETTINGS.credit_bytes && arrived > SETTINGS.credit_bytes / 2, "{arrived}");

    let pulled = pair.ends[0].call(Class::Fetch, 5000, None, pair.now);
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.ends[1].received[&pulled], (5000, 1));

    // The store, raised to another class, goes on with the credit of that class.
    pair.ends[0].engine.reprioritise(stuck, Class::Prefetch);
    pair.run(Duration::from_secs(1));
    assert!(pair.ends[1].received[&stuck].0 > arrived);
}

#[test]
fn credit_returns_when_the_application_takes_the_bytes() {
    let mut pair = Pair::new(SETTINGS, FAST, [ANSWERS, Application { reads: false, answers: false, ..ANSWERS }]);
    let id = pair.ends[0].call(Class::Store, 60_000, None, pair.now);
    for _ in 0..100 {
        pair.run(Duration::from_millis(100));
        pair.ends[1].engine.consumed(Charge { class: Class::Store, bytes: 2000 });
    }
    assert_eq!(pair.ends[1].received[&id], (60_000, 1));
}

#[test]
fn acknowledgements_ride_on_other_frames_when_they_can() {
    let mut pair = Pair::new(SETTINGS, FAST, [ANSWERS; 2]);
    pair.ends[0].call(Class::Control, 0, None, pair.now);
    pair.run(Duration::from_millis(4));
    // Call and reply; the reply has the acknowledgement of the call on it.
    assert_eq!(pair.carried, 2);
    assert_eq!(pair.ends[0].engine.unacknowledged_bytes(), 0);
    let idle = pair.ends[0].next_frame(pair.now);
    assert!(idle.is_none_or(|frame| frame.kind != FrameKind::Acknowledge), "small frames are acknowledged later");
}
