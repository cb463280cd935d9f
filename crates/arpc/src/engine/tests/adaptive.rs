//! Window and chunk follow the link: every bound of arpc.md ("Control bound", "Tests that must exist") under a load
//! that never ends, at every bandwidth.

use std::time::Duration;

use mafs_proto::{Class, Instant};

use super::pair::{ANSWERS, Application, LinkModel, Pair};
use crate::engine::Settings;

const LARGE: u64 = 4_000_000_000;
const PING_EVERY: Duration = Duration::from_millis(207);

fn link(kb_per_s: u64, rtt_ms: u64) -> LinkModel {
    LinkModel { delay: Duration::from_millis(rtt_ms) / 2, bytes_per_s: kb_per_s * 1000 }
}

/// Two ends, with a store that never ends under way.
fn loaded(link: LinkModel) -> Pair {
    let mut pair = Pair::new(Settings::default(), link, [ANSWERS; 2]);
    pair.ends[0].call(Class::Store, LARGE, None, Instant(0));
    pair
}

/// Two ends, with a store that has just ended after about so long.
fn loaded_for(link: LinkModel, seconds: u64) -> Pair {
    let mut pair = Pair::new(Settings::default(), link, [ANSWERS; 2]);
    pair.ends[0].call(Class::Store, link.bytes_per_s * seconds, None, Instant(0));
    pair.run(Duration::from_secs(seconds + 1));
    assert_eq!(pair.ends[0].engine.unacknowledged_bytes(), 0);
    pair
}

/// Makes a small Control call every [`PING_EVERY`] for so long. Returns how long they took, sorted, and the largest
/// bound of the time.
fn pings(pair: &mut Pair, time: Duration) -> (Vec<Duration>, Duration) {
    let end = pair.now + time;
    let (mut took, mut bound) = (Vec::new(), Duration::ZERO);
    while pair.now < end {
        let (start, id) = (pair.now, pair.ends[0].call(Class::Control, 100, None, pair.now));
        while pair.ends[0].outcomes[&id].is_empty() {
            bound = bound.max(control_bound(pair));
            assert!(pair.step(start + Duration::from_secs(60)), "a call takes a minute");
        }
        took.push(pair.now.since(start));
        let next = pair.now.max(start + PING_EVERY);
        while pair.step(next) {
            bound = bound.max(control_bound(pair));
        }
    }
    took.sort_unstable();
    (took, bound)
}

/// Returns a percentile by nearest rank.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent).div_ceil(100) - 1]
}

fn sent(pair: &Pair) -> u64 {
    pair.ends[1].received.values().map(|(bytes, _)| *bytes).sum()
}

/// Returns how many bytes per second arrive from now on, over so many seconds.
fn goodput(pair: &mut Pair, seconds: u64) -> u64 {
    let before = sent(pair);
    pair.run(Duration::from_secs(seconds));
    (sent(pair) - before) / seconds
}

/// Bytes of a call and its answer themselves, with the acknowledgements that pass meanwhile.
const OWN_BYTES: u64 = 400;

/// Returns how long a Control call may take: the round trip, and the bytes that the window holds beyond the link's own.
fn control_bound(pair: &Pair) -> Duration {
    let LinkModel { delay, bytes_per_s } = pair.link;
    let engine = &pair.ends[0].engine;
    let link_bytes = bytes_per_s * u64::try_from(2 * delay.as_nanos()).unwrap() / 1_000_000_000;
    let queue = engine.window_bytes(pair.now).saturating_sub(link_bytes) + engine.chunk_bytes(pair.now) + OWN_BYTES;
    2 * delay + Duration::from_nanos(queue * 1_000_000_000 / bytes_per_s) + Duration::from_millis(10)
}

#[test]
fn invariant_6_a_control_call_behind_a_store_takes_little_more_than_a_round_trip_at_every_bandwidth() {
    for kb_per_s in [8, 32, 64, 128, 256, 512, 1024] {
        for rtt_ms in [4, 20, 100, 600] {
            let mut pair = loaded(link(kb_per_s, rtt_ms));
            // Bytes sent before anything is known of the link have to drain.
            pair.run(Duration::from_secs(10) + 20 * Duration::from_millis(rtt_ms));
            let (before, began) = (sent(&pair), pair.now);
            // This is long enough that measuring the round-trip time again weighs as much as in the long run.
            let (took, bound) = pings(&mut pair, Duration::from_secs(30) + 100 * Duration::from_millis(rtt_ms));
            let goodput =
                (sent(&pair) - before) * 1_000_000_000 / u64::try_from(pair.now.since(began).as_nanos()).unwrap();
            let (p50, p99) = (percentile(&took, 50), percentile(&took, 99));
            let what =
                format!("{kb_per_s} KB/s, {rtt_ms} ms: p50 {p50:?}, p99 {p99:?}, bound {bound:?}, {goodput} B/s");
            assert!(p99 <= bound, "{what}");
            assert!(goodput * 100 >= kb_per_s * 1000 * 95, "{what}");
        }
    }
}

#[test]
fn the_rate_is_known_within_a_tenth_after_ten_round_trips() {
    for (kb_per_s, rtt_ms) in [(32, 20), (64, 600), (512, 20), (1024, 100), (10_000, 4), (10_000, 20)] {
        let mut pair = loaded(link(kb_per_s, rtt_ms));
        pair.run(Duration::from_millis(10 * rtt_ms).max(Duration::from_secs(1)));
        let rate = pair.ends[0].engine.window.estimator().rate().unwrap();
        let wanted = kb_per_s * 1000;
        assert!(rate.abs_diff(wanted) * 10 <= wanted, "{rate} of {wanted} at {rtt_ms} ms");
    }
}

#[test]
fn a_step_of_the_rate_is_followed_within_three_seconds() {
    let mut pair = loaded(link(1000, 20));
    pings(&mut pair, Duration::from_secs(10));
    pair.link = link(32, 20);
    pings(&mut pair, Duration::from_secs(3));
    let (took, bound) = pings(&mut pair, Duration::from_secs(10));
    let p99 = percentile(&took, 99);
    assert!(p99 <= bound, "slower: {p99:?}, bound {bound:?}");
    pair.link = link(1000, 20);
    pair.run(Duration::from_secs(3));
    let before = sent(&pair);
    let (took, bound) = pings(&mut pair, Duration::from_secs(2));
    let goodput = (sent(&pair) - before) / 2;
    assert!(goodput >= 900_000, "faster: {goodput} B/s");
    assert!(percentile(&took, 99) <= bound, "faster: {took:?}");
}

#[test]
fn a_step_of_the_round_trip_time_is_followed() {
    let mut pair = loaded(link(500, 20));
    pair.run(Duration::from_secs(10));
    for rtt_ms in [600, 20] {
        pair.link = link(500, rtt_ms);
        // The smallest time is remembered for less than this, and measuring it takes some round trips.
        pair.run(Duration::from_secs(45));
        let goodput = goodput(&mut pair, 20);
        assert!(goodput >= 450_000, "{rtt_ms} ms: {goodput} B/s");
        let (took, bound) = pings(&mut pair, Duration::from_secs(20));
        let p99 = percentile(&took, 99);
        assert!(p99 <= bound, "{rtt_ms} ms: {p99:?}, bound {bound:?}");
    }
}

#[test]
fn what_there_was_to_send_is_not_taken_for_what_the_link_carries() {
    let mut pair = loaded_for(link(1000, 20), 5);
    let known = pair.ends[0].engine.rate().unwrap();
    pings(&mut pair, Duration::from_secs(60));
    assert_eq!(pair.ends[0].engine.rate(), Some(known));
}

#[test]
fn both_directions_loaded_cost_each_other_little() {
    for kb_per_s in [32, 64, 128, 256, 512, 1024] {
        let downloads = Application { reply_bytes: LARGE, ..ANSWERS };
        let mut pair = Pair::new(Settings::default(), link(kb_per_s, 20), [ANSWERS, downloads]);
        pair.ends[0].call(Class::Fetch, 0, None, Instant(0));
        pair.run(Duration::from_secs(1));
        pair.ends[1].application.reply_bytes = 0;
        pair.ends[0].call(Class::Store, LARGE, None, pair.now);
        pair.run(Duration::from_secs(10));
        let received =
            |pair: &Pair| [0, 1].map(|end: usize| pair.ends[end].received.values().map(|(b, _)| *b).sum::<u64>());
        let (before, began) = (received(&pair), pair.now);
        let (took, bound) = pings(&mut pair, Duration::from_secs(60));
        for (before, after) in before.into_iter().zip(received(&pair)) {
            let goodput = (after - before) * 1_000_000_000 / u64::try_from(pair.now.since(began).as_nanos()).unwrap();
            // The share was 64 % while late acknowledgements were not allowed for.
            assert!(goodput * 100 >= kb_per_s * 1000 * 75, "{kb_per_s} KB/s: {goodput} B/s");
        }
        let p99 = percentile(&took, 99);
        let round_trip = Duration::from_millis(20);
        // The queue of each direction.
        let bound = round_trip + 2 * (bound - round_trip);
        assert!(p99 <= bound, "{kb_per_s} KB/s: {p99:?}, bound {bound:?}");
    }
}

#[test]
fn beside_a_greedy_flow_this_one_keeps_its_share_and_gives_the_queue_back() {
    let mut pair = loaded(link(500, 20));
    pair.run(Duration::from_secs(10));
    pair.set_foreign(64_000);
    // The round-trip time without a queue is believed for less than this.
    pair.run(Duration::from_secs(20));
    let goodput = goodput(&mut pair, 30);
    assert!(goodput >= 125_000, "beside it: {goodput} B/s");
    pair.set_foreign(0);
    pair.run(Duration::from_secs(15));
    let (took, bound) = pings(&mut pair, Duration::from_secs(20));
    let p99 = percentile(&took, 99);
    assert!(p99 <= bound, "after it: {p99:?}, bound {bound:?}");
}

#[test]
fn lost_acknowledgements_stall_nothing() {
    let mut pair = loaded(link(500, 20));
    pair.loses_acknowledgements = true;
    pair.run(Duration::from_secs(10));
    let before = sent(&pair);
    pings(&mut pair, Duration::from_secs(10));
    let goodput = (sent(&pair) - before) / 10;
    // The window is two chunks here; with every second acknowledgement lost, one of three is silence.
    assert!(goodput >= 300_000, "{goodput} B/s");
}

#[test]
fn a_satellite_link_is_filled_although_it_holds_more_than_the_first_credit() {
    let mut pair = loaded(link(5000, 600));
    pair.run(Duration::from_secs(60));
    let goodput = goodput(&mut pair, 60);
    assert!(goodput >= 4_700_000, "{goodput} B/s");
}

#[test]
fn an_outage_while_little_is_sent_does_not_slow_what_follows() {
    for (kb_per_s, rtt_ms, outage_ms, pings_before) in
        [(1000, 50, 4000, 0), (1000, 50, 4000, 5), (1000, 50, 2000, 20), (250, 150, 2000, 0), (4000, 20, 300, 0)]
    {
        let mut pair = loaded_for(link(kb_per_s, rtt_ms), 5);
        pings(&mut pair, Duration::from_secs(5));
        pair.link = link(kb_per_s, rtt_ms + outage_ms);
        pair.ends[0].call(Class::Control, 100, None, pair.now);
        pair.run(Duration::from_millis(1));
        pair.link = link(kb_per_s, rtt_ms);
        pair.run(Duration::from_millis(outage_ms + rtt_ms));
        for _ in 0..pings_before {
            pair.ends[0].call(Class::Control, 100, None, pair.now);
        }
        pair.ends[0].call(Class::Store, LARGE, None, pair.now);
        let goodput = goodput(&mut pair, 10);
        assert!(goodput * 100 >= kb_per_s * 1000 * 80, "{outage_ms} ms of {kb_per_s} KB/s: {goodput} B/s");
    }
}
