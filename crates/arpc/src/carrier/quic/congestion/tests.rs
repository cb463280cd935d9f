//! Flows with endless data over one bottleneck, in virtual time.

mod bottleneck;

use std::time::Duration;

use mafs_proto::Instant;

use self::bottleneck::{MTU, Sender, run};
use super::{Acked, Congestion};
use crate::link::{Periods, Profile, Rate};

const MS: Duration = Duration::from_millis(1);
const KB: u64 = 1000;

fn path(bytes_per_s: u64, rtt: Duration, queue_bytes: u64) -> Profile {
    let mut profile = Profile::steady(bytes_per_s, rtt);
    profile.up.queue_bytes = queue_bytes;
    profile
}

/// Returns rates and round trips from a slow radio to a fast wire, each with the bytes that the path holds.
fn paths() -> impl Iterator<Item = (u64, Duration, u64)> {
    let all = [64 * KB, 125 * KB, 1000 * KB, 2500 * KB].into_iter();
    all.flat_map(|rate| [4, 20, 100].map(|ms| (rate, ms * MS, rate * u64::from(ms) / 1000)))
}

#[test]
fn alone_the_link_is_full_and_the_queue_is_short() {
    for (rate, rtt, holds) in paths() {
        let profile = path(rate, rtt, (4 * holds).max(100 * KB));
        let [flow] = run(&profile, [Sender::ours()], 5..20);
        assert!(flow.share > 0.95, "{rate} {rtt:?}: {flow:?}");
        let packets = Duration::from_secs_f64(16.0 * MTU as f64 / rate as f64);
        assert!(flow.queue < packets.max(rtt * 3 / 4).max(30 * MS), "{rate} {rtt:?}: {flow:?}");
    }
}

#[test]
fn bursts_of_errors_cost_what_the_bursts_take() {
    for (rate, rtt, holds) in paths() {
        let mut profile = path(rate, rtt, (2 * holds).max(64 * KB));
        profile.bursts = Some(Periods::Random { good: 1000 * MS, bad: 80 * MS });
        let [flow] = run(&profile, [Sender::ours()], 2..60);
        // Each burst costs itself, some 60 ms until a probe gets through, and a round trip.
        let possible = 1.0 - (0.08 + 0.03 + rtt.as_secs_f64()) / 1.08;
        assert!(flow.share > 0.92 * possible, "{rate} {rtt:?}: {flow:?} of {possible}");
    }
}

#[test]
fn losses_one_by_one_leave_what_the_path_holds() {
    for (rate, rtt, holds) in paths() {
        let mut profile = path(rate, rtt, (2 * holds).max(64 * KB));
        profile.up.loss_ppm = 50_000;
        let [flow] = run(&profile, [Sender::ours()], 5..30);
        // CUBIC's window would be some 7 packets, 0.04 of the longest path.
        let least = if holds > 100 * KB { 0.75 } else { 0.90 };
        assert!(flow.share > least, "{rate} {rtt:?}: {flow:?}");
    }
}

/// Returns a window on a path of 20 ms, a packet every 10 ms, after a second.
fn established() -> (Congestion, Instant) {
    let (mut congestion, mut now) = (Congestion::new(MTU, Instant(0)), Instant(0));
    for _ in 0..100 {
        congestion.sent(MTU);
        now = now + 10 * MS;
        congestion.acked(Acked { bytes: MTU, sent_at: now, rtt: 20 * MS, rtt_min: 20 * MS }, now);
    }
    (congestion, now)
}

#[test]
fn losses_that_end_a_silence_change_nothing_and_one_among_deliveries_does() {
    for (silence, shrinks) in [(10 * MS, true), (150 * MS, false)] {
        let (mut congestion, before) = established();
        let (window, now) = (congestion.window(), before + silence);
        congestion.acked(Acked { bytes: MTU, sent_at: before, rtt: 20 * MS, rtt_min: 20 * MS }, now);
        congestion.lost(MTU, before, now);
        assert_eq!(congestion.window() < window, shrinks, "{silence:?}: {} of {window}", congestion.window());
    }
}

#[test]
fn what_the_network_says_of_its_queue_counts_and_what_was_sent_before_is_the_same_event() {
    let (mut congestion, now) = (Congestion::new(MTU, Instant(0)), Instant(1_000_000));
    let first = congestion.window();
    congestion.lost(0, Instant(0), now);
    let shrunk = congestion.window();
    assert_eq!(shrunk, first * 7 / 10);
    congestion.lost(0, Instant(0), now + MS);
    assert_eq!(congestion.window(), shrunk);
    congestion.lost(0, now, now + MS);
    assert_eq!(congestion.window(), shrunk * 7 / 10);
}

#[test]
fn beside_cubic_each_gets_a_third_at_least() {
    let mut unfair = Vec::new();
    // On a longer path it takes them minutes to become even.
    for (rate, rtt, holds) in paths().filter(|(.., holds)| *holds <= 100 * KB) {
        for queue_bytes in [holds.max(32 * KB), (2 * holds).max(64 * KB)] {
            let profile = path(rate, rtt, queue_bytes);
            for order in [[Sender::ours(), Sender::cubic()], [Sender::cubic(), Sender::ours()]] {
                let flows = run(&profile, order, 20..120);
                let ratio = flows[0].share / flows[1].share;
                if !(0.5..2.0).contains(&ratio) {
                    unfair.push(format!("{rate} {rtt:?} {queue_bytes}: {ratio} {flows:?}"));
                }
            }
        }
    }
    assert!(unfair.is_empty(), "{unfair:#?}");
}

#[test]
fn two_share_a_link_and_none_starves() {
    for (rate, rtt, holds) in paths() {
        let profile = path(rate, rtt, (2 * holds).max(64 * KB));
        let flows = run(&profile, [Sender::ours(), Sender::ours()], 20..120);
        let ratio = flows[0].share / flows[1].share;
        assert!((0.25..4.0).contains(&ratio), "{rate} {rtt:?}: {ratio} {flows:?}");
        assert!(flows[0].share + flows[1].share > 0.95, "{rate} {rtt:?}: {flows:?}");
    }
}

#[test]
fn a_link_that_becomes_faster_is_filled_in_seconds() {
    for rtt in [20, 100] {
        let mut profile = path(100 * KB, rtt * MS, 400 * KB);
        profile.up.rate = Rate::Steps { first: 100 * KB, then: vec![(Duration::from_secs(10), 1000 * KB)] };
        let [flow] = run(&profile, [Sender::ours()], 13..20);
        let share = flow.delivered as f64 / (7.0 * 1_000_000.0);
        assert!(share > 0.9, "{rtt} ms: {flow:?}");
    }
}
