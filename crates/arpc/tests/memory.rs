//! Peers over the memory carrier, in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::{call, echo, patterned, read_patterned, start};
use futures_util::FutureExt;
use mafs_arpc::carrier::memory::{self, Cable, Direction};
use mafs_arpc::{CallError, Incoming, Payload, PayloadError, Peer};
use mafs_proto::{BODY_BYTES_MAX, Class};
use tokio::time::Instant;

const DELAY: Duration = Duration::from_millis(10);

fn pair() -> (Peer, Incoming, Peer, Incoming, Cable) {
    let (left, right, cut) = memory::pair_with_fault(DELAY);
    let ((left, left_calls), (right, right_calls)) = (start(left), start(right));
    (left, left_calls, right, right_calls, cut)
}

#[tokio::test(start_paused = true)]
async fn call_takes_one_round_trip_and_measures_it() {
    let (left, _left_calls, _right, right_calls, _cut) = pair();
    tokio::spawn(echo(right_calls));
    let start = Instant::now();
    let reply = left.call(call(Class::Control, 7, Payload::None)).reply().await.unwrap();
    assert_eq!((reply.status, &reply.body[..]), (0, &b"request"[..]));
    assert_eq!(read_patterned(reply.payload).await, Ok(0));
    assert!(start.elapsed() < 2 * DELAY + Duration::from_millis(5), "{:?}", start.elapsed());
    assert!(left.estimate().rtt_min.unwrap() >= 2 * DELAY);
}

#[tokio::test(start_paused = true)]
async fn either_end_calls() {
    let (left, left_calls, right, right_calls, _cut) = pair();
    tokio::spawn(echo(right_calls));
    tokio::spawn(echo(left_calls));
    for peer in [&left, &right] {
        let payload = Payload::Bytes(patterned(0, 4096));
        let reply = peer.call(call(Class::Store, 7, payload)).reply().await.unwrap();
        assert_eq!(read_patterned(reply.payload).await, Ok(4096));
    }
}

#[tokio::test(start_paused = true)]
async fn deadline_ends_the_call_and_wakes_the_one_who_serves_it() {
    let (left, _left_calls, _right, mut right_calls, _cut) = pair();
    let timeout = Duration::from_millis(500);
    let start = Instant::now();
    let handle = left.call(mafs_arpc::Call { timeout: Some(timeout), ..call(Class::Fetch, 7, Payload::None) });
    let served = right_calls.next().await.unwrap();
    let (outcome, ()) = tokio::join!(handle.reply(), served.cancelled());
    assert_eq!(outcome.unwrap_err(), CallError::DeadlineExceeded(timeout));
    assert!(
        start.elapsed() >= timeout && start.elapsed() < timeout + Duration::from_millis(20),
        "{:?}",
        start.elapsed()
    );
    // This reply is too late, and harmless.
    served.reply(0, Bytes::new(), Payload::Bytes(patterned(0, 100_000)));
    tokio::spawn(echo(right_calls));
    assert!(left.call(call(Class::Fetch, 7, Payload::None)).reply().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn dropped_handle_cancels_the_call_and_its_payload() {
    let (left, _left_calls, _right, mut right_calls, _cut) = pair();
    let (mut writer, payload) = Payload::stream();
    let handle = left.call(call(Class::Store, 7, payload));
    writer.write(patterned(0, 1000)).await.unwrap();
    let mut served = right_calls.next().await.unwrap();
    assert_eq!(served.payload.read().await, Ok(Some(patterned(0, 1000))));
    drop(handle);
    served.cancelled().await;
    assert!(matches!(served.payload.read().await, Err(PayloadError::CallEnded(_))));
    let refused = async { while writer.write(patterned(0, 1000)).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(1), refused).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn dropped_reply_future_cancels_the_call() {
    let (left, _left_calls, _right, mut right_calls, _cut) = pair();
    let waiting = left.call(call(Class::Fetch, 7, Payload::None)).reply();
    assert!(tokio::time::timeout(Duration::from_millis(100), waiting).await.is_err());
    right_calls.next().await.unwrap().cancelled().await;
}

#[tokio::test(start_paused = true)]
async fn large_payloads_stream_both_ways_at_once_in_bounded_memory() {
    const PIECE: u64 = 251 * 1024;
    const PIECES: u64 = 100 * 1024 * 1024 / PIECE;
    /// Two pieces in the writer's pipe, two chunks in the driver, the most credit, in flight or at the reader, and as
    /// much for the way back, with pieces that are larger than chunks.
    const OUTSTANDING_MAX: u64 = 2 * (2 * PIECE + 2 * PIECE + 8 * 1024 * 1024);

    let (left, _left_calls, _right, right_calls, _cut) = pair();
    tokio::spawn(echo(right_calls));
    let written = Arc::new(AtomicU64::new(0));
    let (mut writer, payload) = Payload::stream();
    let reply = left.call(call(Class::Store, 7, payload)).reply();
    let writing = tokio::spawn({
        let written = written.clone();
        async move {
            let piece = patterned(0, PIECE);
            for _ in 0..PIECES {
                writer.write(piece.clone()).await.unwrap();
                written.fetch_add(PIECE, Ordering::Relaxed);
            }
            writer.finish();
        }
    });
    let mut reader = reply.await.unwrap().payload;
    let (mut read, mut outstanding_max) = (0, 0);
    while let Some(bytes) = reader.read().await.unwrap() {
        assert_eq!(bytes[0], common::pattern(read));
        read += bytes.len() as u64;
        outstanding_max = outstanding_max.max(written.load(Ordering::Relaxed) - read.min(PIECES * PIECE));
    }
    writing.await.unwrap();
    assert_eq!(read, PIECES * PIECE);
    assert!(outstanding_max <= OUTSTANDING_MAX, "{outstanding_max}");
}

#[tokio::test(start_paused = true)]
async fn unread_payload_holds_the_sender_and_nobody_else() {
    let (left, _left_calls, _right, mut right_calls, _cut) = pair();
    let (mut writer, payload) = Payload::stream();
    let stuck = left.call(call(Class::Store, 7, payload));
    let piece = patterned(0, 100_000);
    let mut written = 0;
    while let Ok(outcome) = tokio::time::timeout(Duration::from_secs(1), writer.write(piece.clone())).await {
        outcome.unwrap();
        written += piece.len() as u64;
        assert!(written < 10_000_000, "nothing holds the sender");
    }
    let held = right_calls.next().await.unwrap();
    tokio::spawn(echo(right_calls));
    let reply = left.call(call(Class::Fetch, 7, Payload::Bytes(patterned(0, 500_000)))).reply().await.unwrap();
    assert_eq!(read_patterned(reply.payload).await, Ok(500_000));
    drop((held, stuck));
}

#[tokio::test(start_paused = true)]
async fn aborted_payload_reaches_the_reader_as_an_error() {
    let (left, _left_calls, _right, mut right_calls, _cut) = pair();
    for dropped in [false, true] {
        let (mut writer, payload) = Payload::stream();
        let handle = left.call(call(Class::Store, 7, payload));
        writer.write(patterned(0, 1000)).await.unwrap();
        let served = right_calls.next().await.unwrap();
        if dropped {
            drop(writer);
        } else {
            writer.abort("the disk failed");
        }
        let mut payload = served.payload;
        let outcome = loop {
            match payload.read().await {
                Ok(Some(_)) => {}
                other => break other,
            }
        };
        assert!(matches!(outcome, Err(PayloadError::Aborted(_))), "{outcome:?}");
        drop(handle);
    }
}

#[tokio::test(start_paused = true)]
async fn receiver_that_wants_no_more_stops_the_sender_and_may_still_answer() {
    let (left, _left_calls, _right, mut right_calls, _cut) = pair();
    let (mut writer, payload) = Payload::stream();
    let reply = left.call(call(Class::Store, 7, payload)).reply();
    let sending = tokio::spawn(async move { while writer.write(patterned(0, 50_000)).await.is_ok() {} });
    let mut served = right_calls.next().await.unwrap();
    drop(std::mem::take(&mut served.payload));
    tokio::time::timeout(Duration::from_secs(5), sending).await.unwrap().unwrap();
    served.reply(28, Bytes::from_static(b"no space"), Payload::None);
    let reply = reply.await.unwrap();
    assert_eq!((reply.status, &reply.body[..]), (28, &b"no space"[..]));
}

#[tokio::test(start_paused = true)]
async fn unanswered_calls_are_answered_for() {
    let (left, _left_calls, _right, mut right_calls, _cut) = pair();
    let reply = left.call(call(Class::Fetch, 7, Payload::None)).reply();
    drop(right_calls.next().await.unwrap());
    assert_eq!(reply.await.unwrap().status, u32::MAX);

    drop(right_calls);
    assert_eq!(left.call(call(Class::Fetch, 7, Payload::None)).reply().await.unwrap().status, u32::MAX);
}

#[tokio::test(start_paused = true)]
async fn progress_counts_what_the_peer_has() {
    let (left, _left_calls, _right, mut right_calls, _cut) = pair();
    let handle = left.call(call(Class::Store, 7, Payload::Bytes(patterned(0, 300_000))));
    assert_eq!(handle.progress().acknowledged_bytes(), 0);
    let served = right_calls.next().await.unwrap();
    assert_eq!(read_patterned(served.payload).await, Ok(300_000));
    tokio::time::sleep(2 * DELAY).await;
    assert_eq!(handle.progress().acknowledged_bytes(), 300_000);
}

#[tokio::test(start_paused = true)]
async fn cut_connection_ends_everything_at_both_ends() {
    let (left, mut left_calls, right, mut right_calls, cut) = pair();
    let waiting = left.call(call(Class::Fetch, 7, Payload::None));
    let (mut writer, payload) = Payload::stream();
    let streaming = left.call(call(Class::Store, 7, payload));
    writer.write(patterned(0, 1000)).await.unwrap();
    let served = right_calls.next().await.unwrap();
    let mut half = right_calls.next().await.unwrap();
    cut.cut();
    served.cancelled().await;
    assert!(matches!(waiting.reply().await, Err(CallError::Disconnected(_))));
    assert!(matches!(streaming.reply().await, Err(CallError::Disconnected(_))));
    while let Ok(bytes) = half.payload.read().await {
        assert!(bytes.is_some(), "a cut payload is not whole");
    }
    assert!(right_calls.next().await.is_none());
    assert!(left_calls.next().await.is_none());
    assert_eq!(
        (left.closed().await, right.closed().await),
        ("the connection was lost".into(), "the connection was lost".into())
    );
    let late = left.call(call(Class::Fetch, 7, Payload::None)).reply().await;
    assert_eq!(late.unwrap_err(), CallError::Disconnected("the connection was lost".into()));
}

#[tokio::test(start_paused = true)]
async fn close_tells_the_peer_why() {
    let (left, _left_calls, right, _right_calls, _cut) = pair();
    let waiting = right.call(call(Class::Fetch, 7, Payload::None));
    left.close("going to bed");
    assert_eq!(left.closed().await, "going to bed");
    assert!(!left.ended_in_silence() && !right.ended_in_silence());
    assert_eq!(right.closed().await, "closed by the peer: going to bed");
    let expected = CallError::Disconnected("closed by the peer: going to bed".into());
    assert_eq!(waiting.reply().await.unwrap_err(), expected);
}

#[tokio::test(start_paused = true)]
async fn replies_given_before_a_close_arrive() {
    let (left, _left_calls, right, mut right_calls, _cut) = pair();
    let replies: Vec<_> = (0..20).map(|_| left.call(call(Class::Control, 7, Payload::None)).reply()).collect();
    let mut served = Vec::new();
    for _ in 0..20 {
        served.push(right_calls.next().await.unwrap());
    }
    for call in served {
        call.reply(20, Bytes::from_static(b"another version"), Payload::None);
    }
    drop(right);
    for reply in replies {
        assert_eq!(reply.await.unwrap().status, 20);
    }
}

#[tokio::test(start_paused = true)]
async fn last_clone_dropped_closes_the_connection() {
    let (left, _left_calls, right, _right_calls, _cut) = pair();
    let clone = left.clone();
    drop(left);
    assert!(tokio::time::timeout(Duration::from_secs(60), right.closed()).await.is_err());
    drop(clone);
    assert!(right.closed().await.starts_with("closed by the peer"));
}

#[tokio::test(start_paused = true)]
async fn idle_connection_lasts_and_a_silent_peer_does_not() {
    let (left, right) = memory::pair(DELAY);
    let ((left, _left_calls), (_right, _right_calls)) = (start(left), start(right));
    assert!(tokio::time::timeout(Duration::from_secs(3600), left.closed()).await.is_err());

    let (silent, other) = memory::pair(DELAY);
    let (left, _calls) = start(silent);
    let began = Instant::now();
    assert_eq!(left.closed().await, "no answer for 25 s");
    assert!(left.ended_in_silence());
    assert!(began.elapsed() < Duration::from_secs(30));
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn too_much_is_refused_at_once() {
    let (left, _left_calls, _right, _right_calls, _cut) = pair();
    let body = Bytes::from(vec![0; BODY_BYTES_MAX + 1]);
    let large = left.call(mafs_arpc::Call { body, ..call(Class::Fetch, 7, Payload::None) });
    assert_eq!(large.reply().await.unwrap_err(), CallError::TooLarge(BODY_BYTES_MAX + 1));

    let handles: Vec<_> = (0..1024).map(|_| left.call(call(Class::Control, 7, Payload::None))).collect();
    let one_more = left.call(call(Class::Control, 7, Payload::None));
    assert_eq!(one_more.reply().await.unwrap_err(), CallError::Busy);
    drop(handles);
}

#[tokio::test(start_paused = true)]
async fn largest_bodies_arrive() {
    let (left, _left_calls, _right, right_calls, _cut) = pair();
    tokio::spawn(echo(right_calls));
    let body = patterned(0, BODY_BYTES_MAX as u64);
    let payload = Payload::Bytes(patterned(0, 1_000_000));
    let large = mafs_arpc::Call { body: body.clone(), ..call(Class::Control, 7, payload) };
    let reply = left.call(large).reply().await.unwrap();
    assert_eq!(reply.body, body);
    assert_eq!(read_patterned(reply.payload).await, Ok(1_000_000));
}

#[tokio::test(start_paused = true)]
async fn pieces_of_any_size_arrive_whole() {
    let (left, _left_calls, _right, right_calls, _cut) = pair();
    tokio::spawn(echo(right_calls));
    let (mut writer, payload) = Payload::stream();
    let reply = left.call(call(Class::Store, 7, payload)).reply();
    let sizes = [1, 0, 5000, 300_000, 131_072, 131_073, 7, 800_000, 1];
    let total: u64 = sizes.iter().sum();
    tokio::spawn(async move {
        let mut offset = 0;
        for size in sizes {
            writer.write(patterned(offset, size)).await.unwrap();
            offset += size;
        }
        writer.finish();
    });
    assert_eq!(read_patterned(reply.await.unwrap().payload).await, Ok(total));
}

#[tokio::test(start_paused = true)]
async fn stopped_runtime_leaves_nobody_waiting() {
    let (left, right) = memory::pair(DELAY);
    let (right, _right_calls) = start(right);
    let runtime = std::thread::spawn(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
    let runtime = runtime.join().unwrap();
    let (left, _left_calls) = {
        let _inside = runtime.enter();
        start(left)
    };
    let waiting = left.call(call(Class::Fetch, 7, Payload::None));
    runtime.shutdown_background();
    assert!(matches!(waiting.reply().await, Err(CallError::Disconnected(_))));
    assert!(!left.closed().await.is_empty());
    drop(right);
}

#[tokio::test(start_paused = true)]
async fn what_is_held_arrives_after_the_release_and_nobody_is_told() {
    for direction in Direction::ALL {
        let (left, _left_calls, right, right_calls, cable) = pair();
        tokio::spawn(echo(right_calls));
        cable.hold(direction);
        let begun = Instant::now();
        let asking = tokio::spawn(left.call(call(Class::Control, 7, Payload::None)).reply());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!asking.is_finished(), "nothing arrives {direction:?}");
        cable.release(direction);
        asking.await.unwrap().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(1) + 2 * DELAY, "{:?}", begun.elapsed());
        for peer in [&left, &right] {
            assert!(peer.closed().now_or_never().is_none(), "the connection is still there");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_cut_off_is_heard_out() {
    let (left, _left_calls, right, mut right_calls, cable) = pair();
    cable.hold(Direction::ToAcceptor);
    let asking = left.call(call(Class::Control, 7, Payload::None));
    tokio::time::sleep(DELAY).await;
    cable.cut_end(Direction::ToConnector);
    asking.reply().await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(right.closed().now_or_never().is_none(), "the other end has not heard of it");
    cable.release(Direction::ToAcceptor);
    assert!(right_calls.next().await.is_some(), "what was sent before arrives");
    right.closed().await;
}

#[tokio::test(start_paused = true)]
async fn a_byte_that_changes_on_its_way_ends_the_connection_and_both_ends_know_why() {
    for direction in Direction::ALL {
        for at in [0, 5, 300, 5_000] {
            let (left, right, cable) = memory::pair_with_fault(DELAY);
            let ((peer, _incoming), (echoing, incoming)) = (start(left), start(right));
            tokio::spawn(echo(incoming));
            cable.flip(direction, at);
            let reply = peer.call(call(Class::Store, 7, Payload::Bytes(patterned(0, 20_000)))).reply().await;
            if let Ok(reply) = reply {
                assert!(read_patterned(reply.payload).await.is_err(), "byte {at}, {direction:?}");
            }
            for end in [&peer, &echoing] {
                let why = end.closed().await;
                assert!(end.ended_by_damage(), "byte {at}, {direction:?}: {why}");
            }
        }
    }
}
