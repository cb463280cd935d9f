//! Tests of one server's sessions behind a gate: a waiting session is woken when its turn comes, whatever the others
//! do.

#![allow(clippy::unwrap_used, reason = "clippy sees helpers of tests outside of #[test]")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{TokioClock, call, start};
use mafs_arpc::carrier::memory::{self, Cable, Direction};
use mafs_arpc::{Config, Incoming, Payload, PayloadReader, Peer, Rate, SharedGate};
use mafs_proto::Class;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};

const BYTES_PER_S: u64 = 1_000_000;
const DELAY: Duration = Duration::from_millis(1);

/// One server with its gate.
struct Server {
    gate: SharedGate,
    clock: Arc<TokioClock>,
}

/// A client of the server. Its way carries anything.
struct Client {
    peer: Peer,
    cable: Cable,
    _calls: Incoming,
}

impl Server {
    fn new() -> Self {
        let gate = SharedGate::new(Rate::bytes_per_s(BYTES_PER_S).unwrap());
        Self { gate, clock: Arc::new(TokioClock::start()) }
    }

    fn clients<const N: usize>(&self) -> [Client; N] {
        std::array::from_fn(|_| self.client())
    }

    fn client(&self) -> Client {
        let (left, right, cable) = memory::pair_with_fault(DELAY);
        let (peer, calls) = start(left);
        let (server, incoming) =
            Peer::start_behind(Some(&self.gate), right, Config::default(), Arc::clone(&self.clock) as Arc<_>);
        tokio::spawn(async move {
            answer(incoming).await;
            drop(server);
        });
        Client { peer, cable, _calls: calls }
    }
}

/// Answers each call with as many kilobytes as its method says.
async fn answer(mut incoming: Incoming) {
    while let Some(call) = incoming.next().await {
        let kilobytes = usize::try_from(call.method).unwrap();
        let payload = if kilobytes == 0 { Payload::None } else { Payload::Bytes(vec![7; kilobytes * 1000].into()) };
        call.reply(0, Bytes::new(), payload);
    }
}

impl Client {
    async fn ask(&self, class: Class, kilobytes: u32) -> PayloadReader {
        self.peer.call(call(class, kilobytes, Payload::None)).reply().await.unwrap().payload
    }

    /// Fetches so much. Returns how long this takes.
    fn fetch(&self, class: Class, kilobytes: u32) -> JoinHandle<Duration> {
        let peer = self.peer.clone();
        tokio::spawn(async move {
            let began = Instant::now();
            let mut payload = peer.call(call(class, kilobytes, Payload::None)).reply().await.unwrap().payload;
            while payload.read().await.unwrap().is_some() {}
            began.elapsed()
        })
    }
}

/// Returns how long the uplink takes for so much: with headers, and the 3 % that are left free.
fn time_of(kilobytes: u64) -> Duration {
    Duration::from_millis(kilobytes * 1_000_000 / BYTES_PER_S)
}

fn check(took: Duration, kilobytes: u64) {
    let time = time_of(kilobytes);
    // Chunks are large while one is alone, and small while many share.
    assert!((time * 103 / 100..time * 112 / 100 + 20 * DELAY).contains(&took), "{took:?} for {kilobytes} KB");
}

#[tokio::test(start_paused = true)]
async fn sessions_get_equal_shares_of_all_that_the_uplink_carries() {
    let server = Server::new();
    check(server.client().fetch(Class::Fetch, 1000).await.unwrap(), 1000);
    let clients: [Client; 5] = server.clients();
    let fetches: JoinSet<_> = clients.iter().map(|client| client.fetch(Class::Fetch, 1000)).collect();
    let took: Vec<_> = fetches.join_all().await.into_iter().map(Result::unwrap).collect();
    took.iter().for_each(|took| check(*took, 5000));
    // Each has chunks of 10 ms, though their own ways would carry any.
    let spread = *took.iter().max().unwrap() - *took.iter().min().unwrap();
    assert!(spread <= Duration::from_millis(5 * 11), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_more_urgent_class_of_another_session_goes_first() {
    let server = Server::new();
    let [one, other] = server.clients();
    let (store, fetch) = (one.fetch(Class::Store, 1000), other.fetch(Class::Fetch, 500));
    check(fetch.await.unwrap(), 500);
    check(store.await.unwrap(), 1500);
}

#[tokio::test(start_paused = true)]
async fn control_waits_for_nobody() {
    let server = Server::new();
    let clients: [Client; 3] = server.clients();
    let greedy: Vec<_> = clients.iter().map(|client| client.fetch(Class::Fetch, 2000)).collect();
    sleep(Duration::from_secs(1)).await;
    for client in [&clients[0], &server.client()] {
        let began = Instant::now();
        client.ask(Class::Control, 0).await;
        assert!(began.elapsed() <= 2 * DELAY + Duration::from_millis(2), "{:?}", began.elapsed());
    }
    assert!(greedy.iter().all(|fetch| !fetch.is_finished()));
}

#[tokio::test(start_paused = true)]
async fn what_does_not_wait_takes_its_time_from_the_rest() {
    let server = Server::new();
    let [one, other] = server.clients();
    let alone = one.fetch(Class::Fetch, 1000).await.unwrap();
    let fetch = one.fetch(Class::Fetch, 1000);
    while !fetch.is_finished() {
        other.ask(Class::Control, 0).await;
    }
    let beside = fetch.await.unwrap();
    assert!(beside > alone * 103 / 100, "{beside:?} beside many small calls, {alone:?} alone");
}

#[tokio::test(start_paused = true)]
async fn who_cannot_send_or_is_gone_holds_nobody_back() {
    let server = Server::new();
    let [active, idle, held, cut] = server.clients();
    // The idle client takes nothing, so that its credit ends.
    let untaken = idle.ask(Class::Fetch, 4000).await;
    sleep(Duration::from_secs(3)).await;
    check(active.fetch(Class::Fetch, 1000).await.unwrap(), 1000);
    // Nothing is acknowledged any more, so that the window is full.
    let (_held, mut gone) = (held.fetch(Class::Fetch, 4000), cut.ask(Class::Fetch, 4000).await);
    let fetch = active.fetch(Class::Fetch, 1000);
    sleep(DELAY * 50).await;
    held.cable.hold(Direction::ToAcceptor);
    cut.cable.cut();
    check(fetch.await.unwrap(), 1000 + 50);
    drop(untaken);
    while let Ok(piece) = gone.read().await {
        assert!(piece.is_some(), "it was cut");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_cut_at_any_moment_frees_its_place() {
    let server = Server::new();
    let [active] = server.clients();
    for micros in (0..40_000).step_by(700) {
        let gone = server.client();
        let (fetch, lost) = (active.fetch(Class::Fetch, 50), gone.ask(Class::Fetch, 50));
        tokio::select! {
            _ = lost => {}
            () = sleep(Duration::from_micros(micros)) => {}
        }
        gone.cable.cut();
        let took = tokio::time::timeout(Duration::from_secs(1), fetch).await.unwrap().unwrap();
        assert!(took <= time_of(100) * 112 / 100 + 20 * DELAY, "{took:?}");
    }
}
