//! Races against a server on loopback whose UDP can be blocked.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant as Moment;

use futures_util::{Stream, StreamExt};
use mafs_arpc::BootClock;
use mafs_arpc::carrier::grpc;
use mafs_arpc::carrier::quic::{self, Fingerprint, ServerKey};
use tempfile::TempDir;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;

/// Far more than anything here takes but the silence of a QUIC attempt.
const LIMIT: Duration = Duration::from_secs(10);

/// The program at the server's UDP port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Udp {
    /// A relay to QUIC, which can be blocked.
    Relay,
    Nothing,
}

/// A server, and a client's cache.
struct Place {
    address: SocketAddr,
    fingerprint: Fingerprint,
    blocked: Arc<AtomicBool>,
    datagrams: Arc<AtomicUsize>,
    over_tcp: Arc<AtomicUsize>,
    cache: TempDir,
    tasks: JoinSet<()>,
}

impl Place {
    async fn new(udp: Udp) -> Self {
        let (tcp, relay) = loop {
            let tcp = grpc::Listener::bind_tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
            if let Ok(relay) = UdpSocket::bind(tcp.local_address().unwrap()).await {
                break (tcp, relay);
            }
        };
        let address = tcp.local_address().unwrap();
        let key = ServerKey::generate().unwrap();
        let quic = quic::Listener::bind("127.0.0.1:0".parse().unwrap(), &key).unwrap();
        let (blocked, datagrams, over_tcp) = <(Arc<AtomicBool>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let mut tasks = JoinSet::new();
        if udp == Udp::Relay {
            tasks.spawn(carry(Arc::new(relay), quic.local_address(), Arc::clone(&blocked), Arc::clone(&datagrams)));
        }
        tasks.spawn(keep(tcp, Arc::clone(&over_tcp)));
        tasks.spawn(keep(quic, Arc::default()));
        let cache = tempfile::tempdir().unwrap();
        Self { address, fingerprint: key.fingerprint(), blocked, datagrams, over_tcp, cache, tasks }
    }

    fn block(&self, blocked: bool) {
        self.blocked.store(blocked, Ordering::SeqCst);
    }

    fn auto(&self) -> Auto {
        let known = KnownServer::in_cache(self.cache.path().to_path_buf());
        Auto { races_here: true, ..Auto::new(self.address.to_string(), None, known, Arc::new(BootClock)) }
    }

    fn note(&self, text: &str) {
        std::fs::write(self.cache.path().join("server-key"), text).unwrap();
    }
}

/// Takes connections and keeps them.
async fn keep(mut listener: impl Stream<Item = Carrier> + Unpin, count: Arc<AtomicUsize>) {
    let mut kept = Vec::new();
    while let Some(carrier) = listener.next().await {
        count.fetch_add(1, Ordering::SeqCst);
        kept.push(carrier);
    }
}

/// Carries datagrams between clients and QUIC, unless they are blocked.
async fn carry(front: Arc<UdpSocket>, to: SocketAddr, blocked: Arc<AtomicBool>, datagrams: Arc<AtomicUsize>) {
    let (mut backs, mut tasks, mut datagram) = (HashMap::new(), JoinSet::new(), [0; 2048]);
    while let Ok((length, client)) = front.recv_from(&mut datagram).await {
        datagrams.fetch_add(1, Ordering::SeqCst);
        if blocked.load(Ordering::SeqCst) {
            continue;
        }
        if let std::collections::hash_map::Entry::Vacant(entry) = backs.entry(client) {
            let back = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
            let (front, blocked) = (Arc::clone(&front), Arc::clone(&blocked));
            let answering = Arc::clone(entry.insert(back));
            tasks.spawn(async move {
                let mut datagram = [0; 2048];
                while let Ok(length) = answering.recv(&mut datagram).await {
                    if !blocked.load(Ordering::SeqCst) {
                        let _ = front.send_to(&datagram[..length], client).await;
                    }
                }
            });
        }
        let _ = backs[&client].send_to(&datagram[..length], to).await;
    }
}

async fn connect(auto: &Auto) -> (Result<Carrier, ConnectError>, Duration) {
    let start = Moment::now();
    (timeout(LIMIT, auto.connect()).await.unwrap(), start.elapsed())
}

#[tokio::test]
async fn quic_is_kept_where_both_work_and_tcp_is_not_begun() {
    let place = Place::new(Udp::Relay).await;
    let auto = place.auto();
    assert_eq!(auto.report().proto, Proto::Auto);
    let _carrier = connect(&auto).await.0.unwrap();
    assert_eq!(auto.report().proto, Proto::Quic);
    assert_eq!(place.over_tcp.load(Ordering::SeqCst), 0);
    let noted = std::fs::read_to_string(place.cache.path().join("server-key")).unwrap();
    assert_eq!(noted.trim(), place.fingerprint.to_string());
}

#[tokio::test]
async fn blocked_udp_costs_some_time_once_be_it_swallowed_or_refused() {
    for udp in [Udp::Relay, Udp::Nothing] {
        let place = Place::new(udp).await;
        place.block(true);
        let auto = place.auto();
        let (carrier, took) = connect(&auto).await;
        assert!(carrier.is_ok() && took < Duration::from_secs(2), "{carrier:?} {took:?}");
        let report = auto.report();
        assert_eq!((report.proto, report.blocked.is_some()), (Proto::Tcp, true));
        assert_eq!(report.why, format!("nothing answers at {} over UDP", place.address));
        let (carrier, again) = connect(&auto).await;
        assert!(carrier.is_ok() && again < took / 2, "{carrier:?} {again:?}, and {took:?} at first");
    }
}

#[tokio::test]
async fn udp_that_is_let_through_is_used_and_blocked_again_it_is_left() {
    let place = Place::new(Udp::Relay).await;
    place.block(true);
    let auto = place.auto();
    let _tcp = connect(&auto).await.0.unwrap();
    place.block(false);
    // The attempt that was too slow goes on.
    let why = timeout(LIMIT, auto.until_better()).await.unwrap();
    assert!(why.contains("UDP gets through"), "{why}");
    let (quic, took) = connect(&auto).await;
    assert!(quic.is_ok() && took < Duration::from_millis(100), "it is there already: {took:?}");
    assert_eq!(auto.report().proto, Proto::Quic);
    assert!(timeout(Duration::from_millis(100), auto.until_better()).await.is_err(), "nothing is better");

    place.block(true);
    let _tcp = connect(&auto).await.0.unwrap();
    assert_eq!(auto.report().proto, Proto::Tcp);
    // Another connection tries both at once.
    place.block(false);
    for _ in 0..2 {
        let carrier = connect(&auto).await.0;
        assert!(carrier.is_ok(), "{carrier:?}");
        // Where TCP was quicker by a hair the attempt over QUIC goes on, and the next connection waits for it.
        let _ = timeout(Duration::from_secs(1), auto.until_better()).await;
    }
    assert_eq!(auto.report().proto, Proto::Quic);
}

#[tokio::test]
async fn server_that_shows_another_key_is_not_reached_over_tcp_instead() {
    let place = Place::new(Udp::Relay).await;
    place.note(&ServerKey::generate().unwrap().fingerprint().to_string());
    let auto = place.auto();
    let refused = connect(&auto).await.0.unwrap_err();
    assert!(matches!(refused, ConnectError::OtherKey { .. }), "{refused}");
    place.note("damaged");
    let refused = connect(&auto).await.0.unwrap_err();
    assert!(refused.to_string().contains("is damaged"), "{refused}");
    assert_eq!(place.over_tcp.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn another_key_that_shows_late_ends_the_connection_over_tcp() {
    let place = Place::new(Udp::Relay).await;
    place.note(&ServerKey::generate().unwrap().fingerprint().to_string());
    place.block(true);
    let auto = place.auto();
    let _tcp = connect(&auto).await.0.unwrap();
    place.block(false);
    let why = timeout(LIMIT, auto.until_better()).await.unwrap();
    assert!(why.contains("is not the server that it was"), "{why}");
    for _ in 0..3 {
        let refused = connect(&auto).await.0.unwrap_err();
        assert!(matches!(refused, ConnectError::OtherKey { .. }), "{refused}");
    }
}

#[tokio::test]
async fn either_carrier_alone_is_enough_and_without_both_the_error_comes_soon() {
    let mut place = Place::new(Udp::Relay).await;
    let auto = place.auto();
    place.tasks.shutdown().await;
    let (refused, took) = connect(&auto).await;
    let refused = refused.unwrap_err();
    assert!(refused.to_string().contains("is mafs-server running there?"), "{refused}");
    assert!(took < Duration::from_secs(2), "{took:?}");

    let key = ServerKey::generate().unwrap();
    let quic = quic::Listener::bind(place.address, &key).unwrap();
    place.tasks.spawn(keep(quic, Arc::default()));
    let _carrier = connect(&auto).await.0.unwrap();
    assert_eq!(auto.report().proto, Proto::Quic);
}

#[tokio::test]
async fn on_this_machine_nothing_is_sent_over_udp() {
    let place = Place::new(Udp::Relay).await;
    let auto = Auto { races_here: false, ..place.auto() };
    let _carrier = connect(&auto).await.0.unwrap();
    assert_eq!((auto.report().proto, auto.report().why.as_str()), (Proto::Tcp, "the server is on this machine"));
    assert_eq!(place.datagrams.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn host_without_an_address_is_named() {
    let known = KnownServer::in_cache(std::env::temp_dir());
    let auto = Auto::new("no-such-host.invalid:6237".to_owned(), None, known, Arc::new(BootClock));
    let unknown = auto.connect().await.unwrap_err();
    assert!(matches!(unknown, ConnectError::UnknownHost { .. }), "{unknown}");
}
