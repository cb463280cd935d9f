//! Peers over the memory carrier with the link model below it, in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{TokioClock, call, echo, start};
use mafs_arpc::carrier::memory::{self, Cable, Direction};
use mafs_arpc::link::{Periods, Profile};
use mafs_arpc::{Incoming, Payload, Peer};
use mafs_proto::{Class, Clock};
use tokio::time::{Instant, sleep_until};

const RTT: Duration = Duration::from_millis(40);
const BYTES_PER_S: u64 = 150_000;

fn steady() -> Profile {
    Profile::steady(BYTES_PER_S, RTT)
}

/// Two peers over a link whose time begins now. The second answers every call with the call's own body and payload.
fn pair(profile: &Profile) -> (Peer, Incoming, Cable) {
    let now = TokioClock::start().now();
    let (left, right, cable) = memory::pair_over(profile.streams(now), now);
    let ((left, calls), (right, right_calls)) = (start(left), start(right));
    tokio::spawn(async move {
        echo(right_calls).await;
        drop(right);
    });
    (left, calls, cable)
}

async fn call_takes(peer: &Peer) -> Duration {
    let start = Instant::now();
    assert_eq!(peer.call(call(Class::Control, 1, Payload::None)).reply().await.unwrap().status, 0);
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_call_takes_a_round_trip_and_its_time_on_the_line() {
    let (peer, _calls, _cable) = pair(&steady());
    let took = call_takes(&peer).await;
    // Two small frames with headers: less than a millisecond each, and as much for the granularity of timers.
    assert!((RTT..RTT + Duration::from_millis(4)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_in_an_outage_ends_after_it() {
    let outage = Periods::Given(vec![(Duration::from_secs(1), Duration::from_secs(3))]);
    let (peer, _calls, _cable) = pair(&Profile { outages: Some(outage), ..steady() });
    let start = Instant::now();
    sleep_until(start + Duration::from_secs(2)).await;
    call_takes(&peer).await;
    let took = start.elapsed();
    assert!((Duration::from_secs(4)..Duration::from_secs(8)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cable_over_a_link_can_be_held_and_cut() {
    let (peer, _calls, cable) = pair(&steady());
    let start = Instant::now();
    cable.hold(Direction::ToConnector);
    let held = tokio::time::timeout(Duration::from_secs(5), call_takes(&peer)).await;
    assert!(held.is_err());
    cable.release(Direction::ToConnector);
    call_takes(&peer).await;
    cable.cut();
    peer.closed().await;
    assert!(start.elapsed() < Duration::from_secs(6));
}

/// Makes some calls over a lossy link, one after the other. Returns how long each took.
async fn run(seed: u64) -> Vec<Duration> {
    let mut lossy = steady();
    (lossy.up.loss_ppm, lossy.down.loss_ppm, lossy.seed) = (200_000, 200_000, seed);
    let (peer, _calls, _cable) = pair(&lossy);
    let mut times = Vec::new();
    for _ in 0..30 {
        times.push(call_takes(&peer).await);
    }
    times
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_times() {
    let found = run(1).await;
    assert_eq!(run(1).await, found);
    assert_ne!(run(2).await, found);
}
