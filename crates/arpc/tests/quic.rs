//! Peers over QUIC, on UDP loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{any_port, call, echoes, serve, start};
use mafs_arpc::carrier::ConnectError;
use mafs_arpc::carrier::quic::{Fingerprint, Listener, Pin, ServerKey, connect};
use mafs_arpc::{CallError, Payload, Peer};
use mafs_proto::Class;
use tokio::net::UdpSocket;

fn server() -> (String, Fingerprint, tokio::task::JoinHandle<()>) {
    let key = ServerKey::generate().unwrap();
    let listener = Listener::bind(any_port(), &key).unwrap();
    (listener.local_address().to_string(), key.fingerprint(), serve(listener))
}

async fn echo_works(address: &str) -> Peer {
    let (peer, _incoming) = start(connect(address, None).await.unwrap().0);
    echoes(&peer).await;
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

#[tokio::test]
async fn idle_connection_sends_nothing() {
    let (address, _, _server) = server();
    let peer = echo_works(&address).await;
    // Acknowledgements are still owed, and probes of the path.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = peer.loss().unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(peer.loss().unwrap(), before, "within a minute it has nothing to say");
}
