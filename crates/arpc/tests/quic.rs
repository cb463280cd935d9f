//! Peers over QUIC, on UDP loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{call, echo, patterned, read_patterned, start};
use futures_util::future::join_all;
use mafs_arpc::carrier::ConnectError;
use mafs_arpc::carrier::quic::{Fingerprint, Listener, Pin, ServerKey, connect, connect_over};
use mafs_arpc::carrier::shaped::Shaper;
use mafs_arpc::link::{Periods, Profile};
use mafs_arpc::{BootClock, CallError, Payload, Peer};
use mafs_proto::Class;
use tokio::net::UdpSocket;

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Serves echoes on every connection.
fn serve(mut listener: Listener) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(carrier) = listener.accept().await {
            let (peer, incoming) = start(carrier);
            tokio::spawn(async move {
                echo(incoming).await;
                drop(peer);
            });
        }
    })
}

fn server() -> (String, Fingerprint, tokio::task::JoinHandle<()>) {
    let key = ServerKey::generate().unwrap();
    let listener = Listener::bind(any_port(), &key).unwrap();
    (listener.local_address().to_string(), key.fingerprint(), serve(listener))
}

async fn echo_works(address: &str) -> Peer {
    let (peer, _incoming) = start(connect(address, None).await.unwrap().0);
    for bytes in [0, 4096, 5_000_000] {
        let reply = peer.call(call(Class::Store, 7, Payload::Bytes(patterned(0, bytes)))).reply().await.unwrap();
        assert_eq!((reply.status, &reply.body[..]), (0, &b"request"[..]));
        assert_eq!(read_patterned(reply.payload).await, Ok(bytes));
    }
    peer
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(5), future).await.expect("soon")
}

#[tokio::test]
async fn calls_travel_over_udp_and_loss_is_known() {
    let (address, _, _server) = server();
    let peer = echo_works(&address).await;
    let rtt = peer.estimate().rtt_min.unwrap();
    assert!(rtt < Duration::from_secs(1), "{rtt:?}");
    let loss = peer.loss().unwrap();
    assert!(loss.sent_bytes > 5_000_000, "{loss:?}");
    peer.close("done");
    peer.closed().await;
    assert_eq!(peer.loss(), None);
}

#[tokio::test]
async fn server_that_shows_another_key_is_refused_with_what_to_do() {
    let (address, fingerprint, _server) = server();
    let (_, noted) = connect(&address, None).await.unwrap();
    assert_eq!(noted, fingerprint);
    let pin = |fingerprint| Pin { fingerprint, noted_in: "/cache/server-key".to_owned() };
    assert_eq!(connect(&address, Some(&pin(noted))).await.unwrap().1, noted);

    let before = ServerKey::generate().unwrap().fingerprint();
    let refused = connect(&address, Some(&pin(before))).await.unwrap_err();
    assert!(matches!(refused, ConnectError::OtherKey { .. }), "{refused}");
    for part in [address, before.to_string(), fingerprint.to_string(), "remove /cache/server-key".to_owned()] {
        assert!(refused.to_string().contains(&part), "{refused}");
    }
}

#[tokio::test]
async fn missing_hosts_and_silence_are_told_apart() {
    let unknown = connect("no-such-host.invalid:6237", None).await.unwrap_err();
    assert!(matches!(unknown, ConnectError::UnknownHost { .. }), "{unknown}");
    let silent = UdpSocket::bind(any_port()).await.unwrap();
    let silence = connect(&silent.local_addr().unwrap().to_string(), None).await.unwrap_err();
    assert!(matches!(silence, ConnectError::NoAnswer { .. }), "{silence}");
    assert!(silence.to_string().contains("proto=tcp"), "{silence}");
}

#[tokio::test]
async fn dropped_listener_closes_everything() {
    let mut listener = Listener::bind(any_port(), &ServerKey::generate().unwrap()).unwrap();
    let address = listener.local_address().to_string();
    let (connected, accepted) = tokio::join!(connect(&address, None), listener.accept());
    let ((peer, _incoming), (served, _calls)) = (start(connected.unwrap().0), start(accepted.unwrap()));
    let waiting = peer.call(call(Class::Fetch, 7, Payload::None));
    drop(listener);
    soon(async { (peer.closed().await, served.closed().await) }).await;
    assert!(matches!(waiting.reply().await, Err(CallError::Disconnected(_))));
}

#[tokio::test]
async fn close_reaches_the_peer_with_its_reason() {
    let mut listener = Listener::bind(any_port(), &ServerKey::generate().unwrap()).unwrap();
    let address = listener.local_address().to_string();
    for server_closes in [true, false] {
        let (connected, accepted) = tokio::join!(connect(&address, None), listener.accept());
        let ((client, _client_calls), (server, _calls)) = (start(connected.unwrap().0), start(accepted.unwrap()));
        let (closer, other) = if server_closes { (&server, &client) } else { (&client, &server) };
        closer.close("shutting down");
        assert_eq!(soon(other.closed()).await, "closed by the peer: shutting down");
    }
}

/// Takes the payload of every call and answers then.
fn take(mut listener: Listener) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(carrier) = listener.accept().await {
            let (peer, mut incoming) = start(carrier);
            tokio::spawn(async move {
                while let Some(mut call) = incoming.next().await {
                    assert!(read_patterned(std::mem::take(&mut call.payload)).await.is_ok());
                    call.reply(0, Bytes::new(), Payload::None);
                }
                drop(peer);
            });
        }
    })
}

/// How long so many bytes take over a link, on a connection that is not new.
async fn upload(address: String, profile: Profile, bytes: u64) -> Duration {
    let shaper = Shaper::new(profile, Arc::new(BootClock));
    let (peer, _incoming) = start(connect_over(&shaper, &address, None).await.unwrap().0);
    peer.call(call(Class::Control, 7, Payload::None)).reply().await.unwrap();
    let begin = std::time::Instant::now();
    peer.call(call(Class::Store, 8, Payload::Bytes(patterned(0, bytes)))).reply().await.unwrap();
    begin.elapsed()
}

/// The same over several links at once.
async fn uploads(profiles: impl Iterator<Item = Profile>, bytes: u64) -> Vec<Duration> {
    let listener = Listener::bind(any_port(), &ServerKey::generate().unwrap()).unwrap();
    let address = listener.local_address().to_string();
    let _server = take(listener);
    let uploads = join_all(profiles.map(|profile| tokio::spawn(upload(address.clone(), profile, bytes)))).await;
    uploads.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bursts_of_errors_cost_little_more_than_they_take() {
    let profiles = (1..5).map(|seed| Profile::burst_errors(Duration::from_millis(80), seed));
    let times = uploads(profiles, 1 << 20).await;
    let least = f64::from(1 << 20) / 125_000.0;
    let shares: Vec<f64> = times.iter().map(|time| least / time.as_secs_f64()).collect();
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    // 0.89 is possible; 0.87 is usual.
    assert!(mean > 0.82, "{mean}: {shares:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_long_burst_the_next_probe_is_through() {
    let bursts = [0, 500, 600, 700, 800, 900, 1000].map(Duration::from_millis);
    let profile = |bad| {
        let bursts = Some(Periods::Given(vec![(Duration::from_secs(1), bad)]));
        Profile { bursts, ..Profile::burst_errors(Duration::ZERO, 1) }
    };
    let times = uploads(bursts.iter().copied().map(profile), 200_000).await;
    for (bad, time) in bursts.iter().zip(&times) {
        let late = time.saturating_sub(times[0] + *bad);
        assert!(late < Duration::from_millis(130), "{late:?} after a burst of {bad:?}: {times:?}");
    }
}
