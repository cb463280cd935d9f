//! Tests of hostile peers: their frames make errors, no panics, and memory stays bounded.

use bytes::Bytes;
use mafs_proto::{BODY_BYTES_MAX, Class, Instant};
use proptest::prelude::*;
use prost::Message;

use super::pair::SETTINGS;
use crate::engine::frame::CONTROL_BYTES_MAX;
use crate::engine::{CallId, Engine, Event, Frame, FrameKind, NewCall, Ready, Side, Violation};
use crate::wire::{self, frame::Kind};

fn data() -> impl Strategy<Value = Bytes> {
    prop_oneof![0..40usize, 0..3000usize].prop_map(|len| Bytes::from(vec![0; len]))
}

fn kind() -> impl Strategy<Value = Kind> {
    let id = || 0..8u64;
    let class = || 0..6u32;
    prop_oneof![
        (id(), class(), data(), data(), any::<bool>()).prop_map(|(id, class, body, data, last)| Kind::Call(
            wire::Call { id, class, method: 1, body, data, last }
        )),
        (id(), class(), data(), any::<bool>()).prop_map(|(id, class, data, last)| Kind::Data(wire::Data {
            id,
            class,
            data,
            last
        })),
        (id(), class(), prop_oneof![Just(0), any::<u32>()], data(), data(), any::<bool>()).prop_map(
            |(id, class, status, body, data, last)| Kind::Reply(wire::Reply { id, class, status, body, data, last })
        ),
        id().prop_map(|id| Kind::Abort(wire::Abort { id, why: String::new() })),
        id().prop_map(|id| Kind::Stop(wire::Stop { id })),
        id().prop_map(|id| Kind::Cancel(wire::Cancel { id })),
        (id(), class()).prop_map(|(id, class)| Kind::Reprioritise(wire::Reprioritise { id, class })),
        (class(), any::<u64>()).prop_map(|(class, limit)| Kind::Credit(wire::Credit { class, limit })),
        (class(), prop_oneof![0..2000u64, any::<u64>()])
            .prop_map(|(class, bytes_per_s)| Kind::Limit(wire::Limit { class, bytes_per_s })),
        any::<u64>().prop_map(|token| Kind::Probe(wire::Probe { token })),
        any::<u64>().prop_map(|token| Kind::ProbeReply(wire::ProbeReply { token })),
        Just(Kind::Acknowledge(wire::Acknowledge {})),
    ]
}

fn frame() -> impl Strategy<Value = wire::Frame> {
    let acknowledged = prop_oneof![8 => Just(0u64), 4 => 0..4000u64, 1 => any::<u64>()];
    (acknowledged, any::<[u32; 2]>(), any::<u64>(), proptest::option::weighted(0.99, kind())).prop_map(
        |(acknowledged, [acknowledge_delay_us, acknowledge_queue_us], received_at_us, kind)| wire::Frame {
            acknowledged,
            acknowledge_delay_us,
            acknowledge_queue_us,
            received_at_us,
            kind,
        },
    )
}

fn event_bytes(event: &Event) -> u64 {
    match event {
        Event::Call { body, data, .. } | Event::Reply { body, data, .. } => (body.len() + data.len()) as u64,
        Event::Data { data, .. } => data.len() as u64,
        _ => 0,
    }
}

fn engine_with_calls() -> Engine {
    let mut engine = Engine::new(Side::Acceptor, SETTINGS, Instant(0));
    for (id, class) in [(2, Class::Control), (4, Class::Fetch), (6, Class::Store)] {
        let payload = Ready { bytes: 3000, finished: id == 4 };
        let call = NewCall { id: CallId(id), class, method: 1, body: Bytes::new(), timeout: None, payload };
        engine.call(call, Instant(0));
    }
    engine
}

proptest! {
    #[test]
    fn arbitrary_frames_never_panic_and_hold_bounded_memory(
        frames in proptest::collection::vec((frame(), any::<bool>(), any::<bool>()), 1..200),
    ) {
        let mut engine = engine_with_calls();
        let mut unread = 0;
        let mut ended = std::collections::BTreeMap::<CallId, u32>::new();
        for (frame, sends, answers) in frames {
            engine.handle_frame(Frame::parse(frame), Instant(0));
            while let Some(event) = engine.poll_event() {
                unread += event_bytes(&event);
                match event {
                    Event::Call { id, .. } if answers => {
                        engine.reply(id, 0, Bytes::new(), Ready { bytes: 10, finished: true });
                    }
                    Event::Reply { id, .. } | Event::Ended { id, .. } => *ended.entry(id).or_default() += 1,
                    _ => {}
                }
            }
            while sends && engine.poll_frame(Instant(0)).is_some() {}
            prop_assert!(engine.calls.len() <= 3 * SETTINGS.calls_max);
            prop_assert!(engine.signals.len() <= 3 * 3 * SETTINGS.calls_max + 3);
        }
        // The application has taken nothing: credit, small Control frames and the bodies of the three replies bound the
        // bytes that came.
        let control = 200 * CONTROL_BYTES_MAX;
        prop_assert!(unread <= 4 * SETTINGS.credit_bytes + control + 3 * 3000, "{}", unread);
        engine.disconnected("over");
        while let Some(event) = engine.poll_event() {
            if let Event::Ended { id, .. } = event {
                *ended.entry(id).or_default() += 1;
            }
        }
        prop_assert_eq!(ended.into_iter().collect::<Vec<_>>(), [(CallId(2), 1), (CallId(4), 1), (CallId(6), 1)]);
    }

    #[test]
    fn arbitrary_bytes_never_panic_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(frame) = wire::Frame::decode(&bytes[..]) {
            let _ = Frame::parse(frame);
        }
    }

    #[test]
    fn parsed_frames_round_trip(frame in frame()) {
        if let Ok(parsed) = Frame::parse(frame) {
            let bytes = parsed.clone().into_wire().encode_to_vec();
            let decoded = wire::Frame::decode(&bytes[..]).unwrap();
            prop_assert_eq!(Frame::parse(decoded), Ok(parsed));
        }
    }
}

fn call(id: u64, class: Class, data: usize, last: bool) -> Result<Frame, Violation> {
    let kind = FrameKind::Call {
        id: CallId(id),
        class,
        method: 1,
        body: Bytes::new(),
        data: Bytes::from(vec![0; data]),
        last,
    };
    Frame::parse(Frame { acknowledgement: None, kind }.into_wire())
}

/// Feeds frames and returns the reason that the peer is told, if the connection ended.
fn told(frames: impl IntoIterator<Item = Result<Frame, Violation>>) -> Option<String> {
    let mut engine = Engine::new(Side::Acceptor, SETTINGS, Instant(0));
    for frame in frames {
        engine.handle_frame(frame, Instant(0));
    }
    std::iter::from_fn(|| engine.poll_frame(Instant(0))).find_map(|outgoing| match outgoing.frame.kind {
        FrameKind::Close { why } => Some(why),
        _ => None,
    })
}

#[test]
fn violations_end_the_connection_with_a_clear_message() {
    let reused = told([call(1, Class::Fetch, 0, true), call(1, Class::Fetch, 0, true)]);
    assert_eq!(reused.as_deref(), Some("protocol violation: a new call cannot have the id 1"));
    assert!(told([call(2, Class::Fetch, 0, true)]).is_some(), "an id of this side");
    assert!(told([call(0, Class::Fetch, 0, true)]).is_some(), "no id");

    let overrun = (0..20).map(|index| call(2 * index + 1, Class::Fetch, 4000, true));
    assert_eq!(told(overrun).as_deref(), Some("protocol violation: more bytes of class Fetch than the credit allows"));

    let too_large = told([call(1, Class::Fetch, 600_000, true)]);
    assert_eq!(too_large.as_deref(), Some("protocol violation: a frame with 600000 bytes of content is too large"));
    assert!(told([call(1, Class::Control, 2000, true)]).is_some(), "large Control");
    assert!(told([call(1, Class::Control, 10, false)]).is_some(), "Control in parts");
    assert_eq!(told([call(1, Class::Fetch, 10, false)]), None);

    let flood = (0..100).map(|index| call(2 * index + 1, Class::Fetch, 0, true));
    assert_eq!(told(flood).as_deref(), Some("protocol violation: too many calls under way"));
}

#[test]
fn bodies_above_the_limit_are_refused() {
    let body = Bytes::from(vec![0; BODY_BYTES_MAX + 1]);
    let kind = FrameKind::Reply { id: CallId(2), class: Class::Fetch, status: 0, body, data: Bytes::new(), last: true };
    let parsed = Frame::parse(Frame { acknowledgement: None, kind }.into_wire());
    assert_eq!(parsed, Err(Violation::TooLarge(BODY_BYTES_MAX + 1)));
}

#[test]
fn explanations_are_cut_to_length() {
    let why = "ä".repeat(2000);
    let Ok(frame) = Frame::parse(wire::Frame { kind: Some(Kind::Close(wire::Close { why })), ..Default::default() })
    else {
        panic!("a long explanation is no violation");
    };
    assert!(matches!(frame.kind, FrameKind::Close { why } if why.len() == 1000));
}
