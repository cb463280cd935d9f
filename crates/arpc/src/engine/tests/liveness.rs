//! Tests that silence is noticed, and that silence alone costs nothing.

use std::time::Duration;

use mafs_proto::{Class, Instant};

use super::pair::{ANSWERS, Application, FAST, LinkModel, Outcome, Pair, SETTINGS};
use crate::CallError;
use crate::engine::{Engine, FrameKind, Settings, Side};

const SILENT: Application = Application { answers: false, ..ANSWERS };

fn seconds(seconds: u64) -> Instant {
    Instant(seconds * 1_000_000_000)
}

#[test]
fn dead_peer_is_given_up_within_seconds_when_it_owes_an_answer() {
    let mut pair = Pair::new(SETTINGS, FAST, [SILENT; 2]);
    let id = pair.ends[0].call(Class::Fetch, 0, None, pair.now);
    let end = &mut pair.ends[0];
    let mut probes = 0;
    while end.closed.is_none() {
        while let Some(frame) = end.next_frame(pair.now) {
            probes += u32::from(matches!(frame.kind, FrameKind::Probe { .. }));
        }
        pair.now = end.engine.poll_timeout().unwrap();
        end.engine.handle_timeout(pair.now);
        if end.engine.poll_timeout().is_none() {
            break;
        }
    }
    // Probes at 1, 2 and 4 s: linear.
    assert_eq!((probes, pair.now), (3, seconds(6)));
    pair.run(Duration::ZERO);
    let why = "no answer for 6 s".to_owned();
    assert_eq!(pair.ends[0].outcomes[&id], [Outcome::Error(CallError::Disconnected(why))]);
}

#[test]
fn slow_answer_is_waited_for_while_probes_are_answered() {
    let mut pair = Pair::new(SETTINGS, FAST, [ANSWERS, SILENT]);
    let id = pair.ends[0].call(Class::Fetch, 0, None, pair.now);
    pair.run(Duration::from_secs(120));
    assert_eq!((&pair.ends[0].outcomes[&id][..], &pair.ends[0].closed), (&[][..], &None));
}

#[test]
fn idle_connection_in_datagrams_wakes_one_end_once_a_minute() {
    let ends = [Side::Connector, Side::Acceptor];
    let wakes = ends.map(|side| Engine::new(side, SETTINGS.in_datagrams(side), seconds(0)).poll_timeout());
    assert_eq!(wakes, [Some(seconds(60)), Some(seconds(75))]);
}

#[test]
fn idle_connection_wakes_every_20_s_and_notices_a_dead_peer_within_30() {
    let mut pair = Pair::new(SETTINGS, FAST, [ANSWERS; 2]);
    let end = &mut pair.ends[0];
    assert_eq!(end.engine.poll_timeout(), Some(seconds(20)));
    end.engine.handle_timeout(seconds(20));
    assert!(matches!(end.next_frame(seconds(20)).unwrap().kind, FrameKind::Probe { .. }));
    while end.closed.is_none() && pair.now < seconds(25) {
        pair.now = end.engine.poll_timeout().unwrap();
        end.engine.handle_timeout(pair.now);
    }
    assert_eq!(pair.now, seconds(25));
    while !matches!(end.next_frame(pair.now).unwrap().kind, FrameKind::Close { .. }) {}
    assert_eq!(end.engine.poll_timeout(), None);
}

#[test]
fn call_after_a_long_idle_time_gets_its_full_patience() {
    let mut pair = Pair::new(SETTINGS, FAST, [ANSWERS; 2]);
    pair.now = seconds(19);
    pair.ends[0].call(Class::Fetch, 0, None, pair.now);
    assert_eq!(pair.ends[0].engine.poll_timeout(), Some(seconds(20)));
}

#[test]
fn suspend_is_not_taken_for_a_dead_peer() {
    let mut pair = Pair::new(SETTINGS, FAST, [ANSWERS, SILENT]);
    pair.ends[0].call(Class::Fetch, 0, None, pair.now);
    pair.run(Duration::from_secs(1));
    pair.now = seconds(7200);
    pair.run(Duration::from_secs(30));
    assert_eq!(pair.ends[0].closed, None);

    // A suspend that begins between a probe and its answer does not count either.
    while !pair.ends[0].next_frame(pair.now).is_some_and(|frame| matches!(frame.kind, FrameKind::Probe { .. })) {
        pair.now = pair.ends[0].engine.poll_timeout().unwrap().max(pair.now);
        pair.ends[0].engine.handle_timeout(pair.now);
    }
    pair.now = pair.now + Duration::from_secs(3600);
    pair.run(Duration::from_secs(30));
    assert_eq!(pair.ends[0].closed, None);
}

#[test]
fn an_acknowledgement_that_is_read_after_a_suspend_makes_no_peer_immortal() {
    let mut pair = Pair::new(SETTINGS, FAST, [ANSWERS; 2]);
    pair.ends[0].call(Class::Store, 1_000_000, None, pair.now);
    pair.run(Duration::from_millis(2));
    pair.now = seconds(3600);
    pair.run(Duration::from_millis(2));
    let rtt = pair.ends[0].engine.rtt().unwrap();
    assert!(rtt <= Duration::from_secs(7), "{rtt:?}");
}

#[test]
fn idle_engines_exchange_nothing_but_probes() {
    let mut pair = Pair::new(SETTINGS, FAST, [ANSWERS; 2]);
    pair.run(Duration::from_secs(3600));
    assert!(pair.carried <= 4 * 180, "{}", pair.carried);
    assert_eq!((&pair.ends[0].closed, &pair.ends[1].closed), (&None, &None));
}

/// Returns how long it takes until a peer that has just fallen silent is given up, if this end's network changes then.
fn given_up_after_a_change(settings: Settings, rtt_ms: u64, prepare: impl FnOnce(&mut Engine, Instant)) -> u128 {
    let link = LinkModel { delay: Duration::from_millis(rtt_ms) / 2, bytes_per_s: 1_000_000_000 };
    let mut pair = Pair::new(settings, link, [ANSWERS; 2]);
    for _ in 0..40 {
        pair.ends[0].call(Class::Control, 0, None, pair.now);
        pair.run(Duration::from_secs(4));
    }
    let (end, start) = (&mut pair.ends[0], pair.now);
    prepare(&mut end.engine, start);
    end.engine.look(start);
    assert!(matches!(end.next_frame(start).unwrap().kind, FrameKind::Probe { .. }), "at once");
    while end.closed.is_none() {
        while end.next_frame(pair.now).is_some() {}
        let Some(next) = end.engine.poll_timeout() else { break };
        pair.now = next;
        end.engine.handle_timeout(pair.now);
    }
    pair.now.since(start).as_millis()
}

#[test]
fn who_is_silent_after_a_change_of_the_network_is_given_up_soon() {
    let nothing = |_: &mut Engine, _| ();
    assert_eq!(given_up_after_a_change(SETTINGS, 20, nothing), 1000);
    assert_eq!(given_up_after_a_change(SETTINGS, 600, nothing), 2400);
    assert_eq!(given_up_after_a_change(SETTINGS.in_datagrams(Side::Connector), 20, nothing), 5000);
    // A probe that was under way already does not prolong this time, nor does a change prolong the wait for the probe.
    let probed = |engine: &mut Engine, now: Instant| engine.handle_timeout(now + Duration::from_secs(20));
    assert_eq!(given_up_after_a_change(SETTINGS, 20, probed), 1000);
}

#[test]
fn whoever_answers_after_a_change_of_the_network_is_kept() {
    for rtt_ms in [20, 2000] {
        let link = LinkModel { delay: Duration::from_millis(rtt_ms) / 2, bytes_per_s: 1_000_000_000 };
        let mut pair = Pair::new(SETTINGS, link, [ANSWERS; 2]);
        // This holds also before it is known how long an answer takes.
        for _ in 0..10 {
            pair.ends[0].engine.look(pair.now);
            pair.run(Duration::from_millis(900));
            pair.ends[0].call(Class::Control, 0, None, pair.now);
        }
        pair.run(Duration::from_secs(30));
        assert_eq!(pair.ends[0].closed, None);
    }
}

#[test]
fn patience_follows_the_round_trip_time() {
    for (rtt_ms, probed_after_ms, dead_after_ms) in [(20, 500, 5000), (600, 1200, 5000), (2000, 4000, 8000)] {
        let link = LinkModel { delay: Duration::from_millis(rtt_ms) / 2, bytes_per_s: 1_000_000_000 };
        let mut pair = Pair::new(SETTINGS, link, [ANSWERS; 2]);
        for _ in 0..40 {
            pair.ends[0].call(Class::Control, 0, None, pair.now);
            pair.run(Duration::from_secs(4));
        }
        pair.ends[1].application.answers = false;
        pair.ends[0].call(Class::Control, 0, None, pair.now);
        let (end, start) = (&mut pair.ends[0], pair.now);
        let mut probed = None;
        while end.closed.is_none() && end.engine.poll_timeout().is_some() {
            while let Some(frame) = end.next_frame(pair.now) {
                if matches!(frame.kind, FrameKind::Probe { .. }) {
                    probed.get_or_insert(pair.now);
                }
            }
            let Some(next) = end.engine.poll_timeout() else { break };
            pair.now = next;
            end.engine.handle_timeout(pair.now);
        }
        let ms = |at: Instant| at.since(start).as_millis();
        let (probed, dead) = (ms(probed.unwrap()), ms(pair.now));
        assert!(probed.abs_diff(probed_after_ms) <= 50, "{rtt_ms}: {probed}");
        assert!(dead.abs_diff(probed_after_ms + dead_after_ms) <= 50, "{rtt_ms}: {dead}");
    }
}
