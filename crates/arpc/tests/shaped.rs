//! Connections over an emulated link, in virtual time.
#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod common;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use common::{TokioClock, pattern, patterned};
use mafs_arpc::carrier::shaped::{Shaped, Shaper};
use mafs_arpc::link::{Periods, Profile};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The rate of the link: 150 bytes each millisecond.
const BYTES_PER_S: u64 = 150_000;
const RTT: Duration = Duration::from_millis(40);
/// Timers have a granularity of a millisecond, and the smallest segment takes a third of one.
const GRAIN: Duration = Duration::from_millis(2);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn steady() -> Profile {
    Profile::steady(BYTES_PER_S, RTT)
}

/// Makes a link that is good for a second, bad for so long, and good ever after.
fn outage(bad: Duration) -> Profile {
    Profile { outages: Some(Periods::Given(vec![(secs(1), bad)])), ..steady() }
}

fn shaper(profile: Profile) -> Shaper {
    Shaper::new(profile, Arc::new(TokioClock::start()))
}

/// Makes a connection over the shaper, and its other end.
async fn connect(shaper: &Shaper) -> (Shaped, DuplexStream) {
    let (real, peer) = duplex(1 << 20);
    (shaper.begin().await.unwrap().over(real), peer)
}

#[track_caller]
fn assert_took(found: Duration, wanted: Duration) {
    assert!((wanted..wanted + GRAIN).contains(&found), "{found:?} instead of {wanted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_byte_takes_half_a_round_trip_and_a_connection_a_whole_one() {
    let shaper = shaper(steady());
    let start = Instant::now();
    let (mut near, mut far) = connect(&shaper).await;
    assert_took(start.elapsed(), RTT);
    for _ in 0..3 {
        let start = Instant::now();
        near.write_u8(1).await.unwrap();
        assert_eq!(far.read_u8().await.unwrap(), 1);
        assert_took(start.elapsed(), RTT / 2);
        let start = Instant::now();
        far.write_u8(2).await.unwrap();
        assert_eq!(near.read_u8().await.unwrap(), 2);
        assert_took(start.elapsed(), RTT / 2);
    }
}

/// Sends a megabyte and more, checks it, and returns how fast it came.
async fn bytes_per_s(mut to: impl AsyncWrite + Unpin, mut from: impl AsyncRead + Unpin) -> f64 {
    let bytes = 1_448_000;
    let start = Instant::now();
    let sending = async {
        to.write_all(&patterned(0, bytes)).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let mut received = Vec::new();
    tokio::join!(sending, async { from.read_to_end(&mut received).await.unwrap() });
    assert_eq!(received.len() as u64, bytes);
    assert!((0..).zip(&received).all(|(at, byte)| *byte == pattern(at)));
    bytes as f64 / (start.elapsed() - RTT / 2).as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn each_direction_has_the_rate_of_the_link_less_headers() {
    let (near, far) = connect(&shaper(steady())).await;
    let ((from_far, to_far), (from_near, to_near)) = (split(near), split(far));
    let (up, down) = tokio::join!(bytes_per_s(to_far, from_near), bytes_per_s(to_near, from_far));
    let wanted = BYTES_PER_S as f64 * 1448.0 / 1500.0;
    for found in [up, down] {
        assert!((found / wanted - 1.0).abs() < 0.01, "{found} instead of {wanted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_waits_while_the_queue_is_full() {
    let (mut near, _far) = connect(&shaper(steady())).await;
    let mut sent = 0;
    while let Ok(Ok(written)) = timeout(GRAIN, near.write(&[0; 1000])).await {
        sent += written;
    }
    // These are the queue of 64 KB, the bytes that have left it meanwhile, and a piece on both sides of the place where
    // it waits.
    assert!((65_536..65_536 + 14_000).contains(&sent), "{sent}");
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_in_an_outage_arrives_after_it() {
    let (mut near, mut far) = connect(&shaper(outage(secs(4)))).await;
    let start = Instant::now();
    sleep(secs(2)).await;
    near.write_u8(1).await.unwrap();
    assert_eq!(far.read_u8().await.unwrap(), 1);
    // The link is good again after 5 s, and a repetition finds this out: at most twice as late.
    let took = start.elapsed();
    assert!((ms(4950)..ms(9000)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_outlasts_the_connections_it_breaks() {
    let shaper = shaper(outage(secs(4)));
    let start = Instant::now();
    drop(connect(&shaper).await);
    sleep_until(start + secs(2)).await;
    assert!(timeout(secs(2), shaper.begin()).await.is_err(), "there is no way yet");
    drop(connect(&shaper).await);
    let took = start.elapsed();
    assert!((secs(5)..secs(9)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn over_a_link_that_is_down_nothing_begins() {
    let begun = timeout(secs(600), shaper(Profile::named("down", 1).unwrap()).begin()).await;
    assert!(begun.is_err(), "{begun:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_quarter_of_an_hour_of_silence_the_connection_is_reset() {
    let shaper = shaper(outage(Duration::MAX));
    let start = Instant::now();
    let (mut near, mut far) = connect(&shaper).await;
    sleep_until(start + secs(2)).await;
    near.write_u8(1).await.unwrap();
    let error = near.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(near.write_u8(2).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    let took = start.elapsed();
    assert!((secs(14 * 60)..secs(17 * 60)).contains(&took), "{took:?}");
    assert_eq!(far.read(&mut [0; 9]).await.unwrap(), 0, "nothing but the end");
}

#[tokio::test(start_paused = true)]
async fn an_end_travels_like_everything_else() {
    let (mut near, mut far) = connect(&shaper(steady())).await;
    let start = Instant::now();
    near.write_all(&[7; 15_000]).await.unwrap();
    drop(near);
    let mut received = Vec::new();
    far.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, [7; 15_000]);
    // 15,000 bytes and 12 headers, that of the end too.
    assert_took(start.elapsed(), ms(104) + RTT / 2);

    let (mut near, far) = connect(&shaper(steady())).await;
    let start = Instant::now();
    drop(far);
    assert_eq!(near.read(&mut [0; 9]).await.unwrap(), 0);
    assert_took(start.elapsed(), RTT / 2);
}

#[tokio::test(start_paused = true)]
async fn the_other_end_does_not_hear_of_an_end_in_an_outage() {
    let (near, mut far) = connect(&shaper(outage(secs(4)))).await;
    let start = Instant::now();
    sleep(secs(2)).await;
    drop(near);
    assert_eq!(far.read(&mut [0; 9]).await.unwrap(), 0);
    assert!(start.elapsed() > ms(4950), "{:?}", start.elapsed());
}

/// Returns when each of many bytes arrives on three connections one after the other.
async fn arrivals(seed: u64) -> Vec<Vec<Duration>> {
    let mut lossy = steady();
    (lossy.up.loss_ppm, lossy.seed) = (100_000, seed);
    let shaper = shaper(lossy);
    let mut arrivals = Vec::new();
    for _ in 0..3 {
        let (mut near, mut far) = connect(&shaper).await;
        let start = Instant::now();
        let mut times = Vec::new();
        for _ in 0..50 {
            near.write_u8(0).await.unwrap();
            far.read_u8().await.unwrap();
            times.push(start.elapsed());
        }
        arrivals.push(times);
    }
    arrivals
}

#[tokio::test(start_paused = true)]
async fn chance_follows_from_the_seed_and_differs_between_connections() {
    let found = arrivals(1).await;
    assert_eq!(arrivals(1).await, found);
    assert_ne!(arrivals(2).await, found);
    assert!(found[0] != found[1] && found[1] != found[2], "{found:?}");
}
