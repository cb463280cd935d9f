//! Tests of the frames of an engine that wait for a gate.

use mafs_proto::{Class, Instant};

use super::pair::{ANSWERS, CHUNK, End, FAST, Pair, SETTINGS};
use crate::engine::{Demand, FrameKind, Ready};

const NOW: Instant = Instant(0);
const BODY: u64 = "request".len() as u64;

fn gated() -> Pair {
    Pair::new(SETTINGS.gated(u64::MAX), FAST, [ANSWERS; 2])
}

/// Returns the class and the content of the next frame; `None` if there is no frame with content.
fn next(end: &mut End) -> Option<(Class, u64)> {
    end.next_frame(NOW)?.kind.content()
}

fn demand(end: &mut End) -> Option<(Class, u64)> {
    assert_eq!(next(end), None);
    end.engine.demand().map(|Demand { class, bytes }| (class, bytes))
}

#[test]
fn content_waits_for_the_gate_the_most_urgent_first_and_control_does_not() {
    let mut pair = gated();
    let end = &mut pair.ends[0];
    end.call(Class::Store, 2 * CHUNK, None, NOW);
    assert_eq!(demand(end), Some((Class::Store, CHUNK)));
    end.call(Class::Fetch, 100, None, NOW);
    assert_eq!(demand(end), Some((Class::Fetch, 100 + BODY)));
    end.call(Class::Control, 100, None, NOW);
    assert_eq!(next(end), Some((Class::Control, 100 + BODY)));
    for expected in [(Class::Fetch, 100 + BODY), (Class::Store, CHUNK), (Class::Store, CHUNK)] {
        assert_eq!(demand(end), Some(expected));
        end.engine.admit();
        assert_eq!(next(end), Some(expected));
    }
}

#[test]
fn what_is_given_up_wants_nothing_of_the_gate() {
    let mut pair = gated();
    let end = &mut pair.ends[0];
    let call = end.call(Class::Store, CHUNK, None, NOW);
    assert!(demand(end).is_some());
    end.engine.cancel(call);
    assert_eq!(demand(end), None);
}

#[test]
fn that_a_payload_ends_early_is_said_at_once() {
    let mut pair = gated();
    let end = &mut pair.ends[0];
    let call = end.call_ready(Class::Store, Ready { bytes: 2 * CHUNK, finished: false }, None, NOW);
    assert!(demand(end).is_some());
    end.engine.admit();
    assert!(next(end).is_some());
    assert!(demand(end).is_some());
    end.engine.payload_aborted(call, "it cannot be had".to_owned());
    assert!(matches!(end.next_frame(NOW).map(|frame| frame.kind), Some(FrameKind::Abort { .. })));
}

#[test]
fn a_full_window_wants_nothing_of_the_gate() {
    let mut pair = gated();
    let end = &mut pair.ends[0];
    end.call(Class::Store, 100 * CHUNK, None, NOW);
    while demand(end).is_some() {
        end.engine.admit();
        assert!(next(end).is_some());
    }
    assert!(end.engine.unacknowledged_bytes() > 0);
    assert_eq!(end.engine.poll_timeout().map(|at| at > NOW), Some(true));
}
