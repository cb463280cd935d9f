//! QUIC over links that lose packets, and from addresses that change.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{any_port, call, patterned, read_patterned, start};
use futures_util::future::join_all;
use mafs_arpc::carrier::quic::{Listener, ServerKey, connect, connect_over};
use mafs_arpc::carrier::shaped::Shaper;
use mafs_arpc::link::{Periods, Profile};
use mafs_arpc::{BootClock, Payload};
use mafs_proto::Class;
use tokio::net::UdpSocket;
use tokio::sync::watch;

/// Takes the payload of every call, then answers.
fn take(mut listener: Listener) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(carrier) = listener.accept().await {
            let (peer, mut incoming) = start(carrier);
            tokio::spawn(async move {
                while let Some(mut call) = incoming.next().await {
                    tokio::spawn(async move {
                        assert!(read_patterned(std::mem::take(&mut call.payload)).await.is_ok());
                        call.reply(0, Bytes::new(), Payload::None);
                    });
                }
                drop(peer);
            });
        }
    })
}

#[tokio::test]
async fn frames_fill_the_packets_that_the_path_takes() {
    let listener = Listener::bind(any_port(), &ServerKey::generate().unwrap()).unwrap();
    let address = listener.local_address().to_string();
    let _server = take(listener);
    let shaper = Shaper::new(Profile::burst_errors(Duration::ZERO, 1), Arc::new(BootClock));
    let (peer, _incoming) = start(connect_over(&shaper, &address, None).await.unwrap().0);
    peer.call(call(Class::Store, 8, Payload::Bytes(patterned(0, 50_000)))).reply().await.unwrap();
    let before = peer.loss().unwrap().sent_bytes;
    peer.call(call(Class::Store, 8, Payload::Bytes(patterned(0, 200_000)))).reply().await.unwrap();
    let (chunk, sent) = (peer.estimate().chunk_bytes, peer.loss().unwrap().sent_bytes - before);
    assert!((1360..1400).contains(&chunk), "{chunk} bytes of a packet of 1452");
    assert!(sent < 200_000 * 107 / 100, "{sent}");
}

/// Returns how long so many bytes take over a link, on a connection that is not new.
async fn upload(address: String, profile: Profile, bytes: u64) -> Duration {
    let shaper = Shaper::new(profile, Arc::new(BootClock));
    let (peer, _incoming) = start(connect_over(&shaper, &address, None).await.unwrap().0);
    peer.call(call(Class::Control, 7, Payload::None)).reply().await.unwrap();
    let begin = std::time::Instant::now();
    peer.call(call(Class::Store, 8, Payload::Bytes(patterned(0, bytes)))).reply().await.unwrap();
    begin.elapsed()
}

/// Uploads over several links at once.
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

/// A router that translates addresses, and can forget them.
struct Router {
    address: SocketAddr,
    outside: watch::Sender<Arc<UdpSocket>>,
}

impl Router {
    async fn new(server: SocketAddr) -> Self {
        let inside = Arc::new(UdpSocket::bind(any_port()).await.unwrap());
        let (address, outside) = (inside.local_addr().unwrap(), watch::Sender::new(outside(server).await));
        let (client, seen) = watch::channel(address);
        let (mut changing, sending) = (outside.subscribe(), Arc::clone(&inside));
        let towards_server = outside.subscribe();
        tokio::spawn(async move {
            let mut buffer = [0; 2000];
            while let Ok((bytes, from)) = inside.recv_from(&mut buffer).await {
                client.send_replace(from);
                let outside = Arc::clone(&towards_server.borrow());
                let _ = outside.send(&buffer[..bytes]).await;
            }
        });
        tokio::spawn(async move {
            let mut buffer = [0; 2000];
            loop {
                let outside = Arc::clone(&changing.borrow_and_update());
                tokio::select! {
                    changed = changing.changed() => if changed.is_err() { return },
                    received = outside.recv(&mut buffer) => if let Ok(bytes) = received {
                        let client = *seen.borrow();
                        let _ = sending.send_to(&buffer[..bytes], client).await;
                    },
                }
            }
        });
        Self { address, outside }
    }

    /// Moves the client: from now on it comes from another address, and nothing that is sent to the old one reaches it.
    async fn move_client(&self, server: SocketAddr) {
        self.outside.send_replace(outside(server).await);
    }
}

async fn outside(server: SocketAddr) -> Arc<UdpSocket> {
    let socket = UdpSocket::bind(any_port()).await.unwrap();
    socket.connect(server).await.unwrap();
    Arc::new(socket)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_moves_goes_on_at_once() {
    let listener = Listener::bind(any_port(), &ServerKey::generate().unwrap()).unwrap();
    let server = listener.local_address();
    let _server = take(listener);
    let router = Router::new(server).await;
    let (peer, _incoming) = start(connect(&router.address.to_string(), None).await.unwrap().0);
    let (mut writer, payload) = Payload::stream();
    let storing = peer.call(call(Class::Store, 8, payload));
    for part in 0..20 {
        writer.write(patterned(part * 100_000, 100_000)).await.expect("a reader");
        if part % 4 == 3 {
            router.move_client(server).await;
            let begin = std::time::Instant::now();
            peer.call(call(Class::Control, 7, Payload::None)).reply().await.unwrap();
            assert!(begin.elapsed() < Duration::from_millis(300), "{:?}", begin.elapsed());
        }
    }
    writer.finish();
    storing.reply().await.unwrap();
}
