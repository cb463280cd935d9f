//! Tests of two ends over emulated links, in virtual time: the rates that links carry, and how long urgent calls wait
//! beside an upload that never ends (arpc.md, "Control bound").

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "clippy sees helpers of tests outside of #[test]")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{TokioClock, call, echo};
use mafs_arpc::carrier::memory::{Cable, pair_over};
use mafs_arpc::link::{Periods, Profile};
use mafs_arpc::{CallError, Config, Incoming, Payload, Peer, Rate};
use mafs_proto::{Class, Clock};
use tokio::time::Instant;

struct Pair {
    near: Peer,
    _far: Peer,
    _near_calls: Incoming,
    cable: Cable,
}

fn pair(profile: &Profile) -> Pair {
    let clock = Arc::new(TokioClock::start());
    let (left, right, cable) = pair_over(profile.streams(clock.now()), clock.now());
    let (near, near_calls) = Peer::start(left, Config::default(), clock.clone());
    let (far, far_calls) = Peer::start(right, Config::default(), clock);
    tokio::spawn(swallow(far_calls));
    Pair { near, _far: far, _near_calls: near_calls, cable }
}

/// Reads every payload and answers when it has ended.
async fn swallow(mut incoming: Incoming) {
    while let Some(mut call) = incoming.next().await {
        tokio::spawn(async move {
            while let Ok(Some(_)) = call.payload.read().await {}
            call.reply(0, Bytes::new(), Payload::None);
        });
    }
}

/// Sends for as long as the connection lasts.
fn upload_for_ever(peer: &Peer) {
    let (mut writer, payload) = Payload::stream();
    let store = peer.call(mafs_arpc::Call { timeout: None, ..call(Class::Store, 7, payload) });
    tokio::spawn(async move {
        let piece = Bytes::from_static(&[1; 256 * 1024]);
        while writer.write(piece.clone()).await.is_ok() {}
        drop(store);
    });
}

/// Makes small Control calls. Returns how long they took, sorted, and the bound that the window of the time allowed
/// them.
async fn pings(peer: &Peer, count: u32) -> (Vec<Duration>, Duration) {
    let (mut took, mut bound) = (Vec::new(), Duration::ZERO);
    for _ in 0..count {
        tokio::time::sleep(Duration::from_millis(207)).await;
        let estimate = peer.estimate();
        let (rate, rtt) = (estimate.rate.unwrap(), estimate.rtt_min.unwrap());
        let queue = estimate.window_bytes as f64 - rate as f64 * rtt.as_secs_f64();
        let wait = (queue.max(0.0) + estimate.chunk_bytes as f64) / rate as f64;
        bound = bound.max(rtt + Duration::from_secs_f64(wait) + Duration::from_millis(10));
        let start = Instant::now();
        peer.call(call(Class::Control, 7, Payload::None)).reply().await.unwrap();
        took.push(start.elapsed());
    }
    took.sort_unstable();
    (took, bound)
}

async fn loaded(profile: &Profile) -> (Pair, Vec<Duration>, Duration) {
    let pair = pair(profile);
    upload_for_ever(&pair.near);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let (took, bound) = pings(&pair.near, 100).await;
    (pair, took, bound)
}

#[tokio::test(start_paused = true)]
async fn invariant_6_on_links_without_loss_a_control_call_keeps_the_bound() {
    for name in ["wifi-good", "3g", "geo"] {
        let (_pair, took, bound) = loaded(&Profile::named(name, 1).unwrap()).await;
        assert!(took[98] <= bound, "{name}: p99 {:?}, bound {bound:?}", took[98]);
    }
}

#[tokio::test(start_paused = true)]
async fn on_lossy_and_varying_links_half_of_the_control_calls_keep_it() {
    for name in ["wifi-cafe", "wifi-roam", "edge-lossy", "leo", "lte"] {
        let (_pair, took, bound) = loaded(&Profile::named(name, 1).unwrap()).await;
        assert!(took[50] <= bound, "{name}: p50 {:?}, bound {bound:?}", took[50]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_upload_gets_what_the_link_carries() {
    for (bytes_per_s, rtt_ms) in [(32_000, 20), (64_000, 20), (1_000_000, 20), (1_000_000, 600)] {
        let pair = pair(&Profile::steady(bytes_per_s, Duration::from_millis(rtt_ms)));
        upload_for_ever(&pair.near);
        tokio::time::sleep(Duration::from_secs(30)).await;
        let before = pair.near.estimate().traffic[Class::Store.index()].sent_bytes;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let goodput = (pair.near.estimate().traffic[Class::Store.index()].sent_bytes - before) / 60;
        // TCP's headers take 3.5 % of the rate.
        assert!(goodput * 100 >= bytes_per_s * 92, "{bytes_per_s} B/s, {rtt_ms} ms: {goodput}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_watches_a_link_hears_what_it_carries() {
    let pair = pair(&Profile::steady(1_000_000, Duration::from_millis(20)));
    let mut changes = pair.near.watch();
    pair.near.call(call(Class::Control, 7, Payload::None)).reply().await.unwrap();
    changes.changed().await.unwrap();
    let known = pair.near.estimate();
    assert!(known.rtt_min.unwrap() >= Duration::from_millis(20));
    assert_eq!(known.rate, None, "one small call does not show it");
    upload_for_ever(&pair.near);
    changes.changed().await.unwrap();
    let rate = pair.near.estimate().rate.unwrap();
    assert!((900_000..=1_000_000).contains(&rate), "{rate}");
    tokio::time::sleep(Duration::from_secs(10)).await;
    let more = tokio::time::timeout(Duration::from_secs(60), changes.changed()).await;
    assert!(more.is_err(), "it stays as it is");
}

#[tokio::test(start_paused = true)]
async fn a_limited_upload_gets_its_limit_and_the_link_again_without() {
    let pair = pair(&Profile::steady(1_000_000, Duration::from_millis(20)));
    upload_for_ever(&pair.near);
    let sent = || pair.near.estimate().traffic[Class::Store.index()].sent_bytes;
    tokio::time::sleep(Duration::from_secs(10)).await;
    for limit in [Some(100_000), Some(2048), None] {
        let mut limits = [None; 5];
        limits[Class::Store.index()] = limit.and_then(Rate::bytes_per_s);
        pair.near.set_limits(limits);
        let before = sent();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let rate = (sent() - before) / 10;
        let wanted = limit.map_or(900_000..1_000_000, |limit| limit * 98 / 100..limit * 102 / 100);
        assert!(wanted.contains(&rate), "{limit:?}: {rate}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_noticed_and_ends_the_connection() {
    let outage = Profile { outages: Some(Periods::always_bad()), ..Profile::steady(1_000_000, Duration::ZERO) };
    let pair = pair(&outage);
    let start = Instant::now();
    let error = pair.near.call(call(Class::Control, 7, Payload::None)).reply().await.unwrap_err();
    assert!(matches!(error, CallError::Disconnected(_)), "{error}");
    assert!(start.elapsed() < Duration::from_secs(7), "{:?}", start.elapsed());
    pair.cable.cut();
}

#[tokio::test(start_paused = true)]
async fn every_call_ends_once_over_links_that_lose_stall_and_break() {
    for seed in 0..10 {
        let profile = Profile::named("flaky", seed).unwrap();
        let clock = Arc::new(TokioClock::start());
        let (left, right, cable) = pair_over(profile.streams(clock.now()), clock.now());
        let (near, _near_calls) = Peer::start(left, Config::default(), clock.clone());
        let (_far, far_calls) = Peer::start(right, Config::default(), clock);
        tokio::spawn(echo(far_calls));
        let calls = (0..200).map(|number| {
            let class = Class::ALL[number % 5];
            let near = near.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(317) * u32::try_from(number).unwrap()).await;
                let payload = Payload::Bytes(Bytes::from(vec![7; number * 100]));
                near.call(call(class, 7, payload)).reply().await.is_ok()
            })
        });
        let calls: Vec<_> = calls.collect();
        tokio::time::sleep(Duration::from_secs(3 * seed + 10)).await;
        cable.cut();
        for call in calls {
            tokio::time::timeout(Duration::from_secs(120), call).await.expect("it ends").unwrap();
        }
    }
}
