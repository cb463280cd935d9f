//! Tests of promises over connections: several clients share a volume, and none is left with what another has
//! changed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use mafs_proto::call::{Broken, DetachRequest};
use mafs_proto::{CmlOp, Fid, FsError, SetAttr};
use mafs_server::{MemoryStorage, Server};
use support::{ALICE, BOB, Client, acknowledge, create, name, open};
use tokio::time::{Instant, timeout};

/// Length of a lease and the bias, as the server counts them.
const LEASE: Duration = Duration::from_secs(62);

/// A time far longer than a round trip, far shorter than a lease.
const SOON: Duration = Duration::from_secs(1);

fn serve() -> (MemoryStorage, Arc<Server>) {
    let storage = MemoryStorage::new(1);
    let server = open(&storage);
    (storage, server)
}

fn touch(fid: Fid) -> CmlOp {
    CmlOp::SetAttr { fid, set: SetAttr { uid: Some(7), ..SetAttr::default() } }
}

/// Attaches two clients, and makes a file that the second has been shown.
async fn alice_and_bob(server: &Arc<Server>) -> (Client, Client, Fid) {
    let mut alice = Client::attached(server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    let bob = Client::attached(server, BOB).await;
    bob.renew().await.unwrap();
    bob.lookup(root, "f").await.unwrap().unwrap();
    (alice, bob, file)
}

#[tokio::test(start_paused = true)]
async fn a_change_is_acknowledged_once_the_others_have_been_told() {
    let (_storage, server) = serve();
    let (mut alice, mut bob, file) = alice_and_bob(&server).await;
    let change = alice.apply(touch(file));
    tokio::pin!(change);
    let (request, call) = tokio::select! {
        _ = &mut change => panic!("acknowledged before Bob knows"),
        told = bob.next_break() => told,
    };
    let Broken::Objects(objects) = request.broken else { panic!("not everything") };
    assert_eq!(objects.iter().map(|object| object.fid).collect::<Vec<_>>(), [file]);
    assert!(timeout(SOON, &mut change).await.is_err(), "acknowledged before Bob has");
    acknowledge(call);
    let reply = timeout(SOON, change).await.unwrap().unwrap();
    assert_eq!(reply.change, request.change);
}

#[tokio::test(start_paused = true)]
async fn a_break_of_a_directory_names_the_name() {
    let (_storage, server) = serve();
    let (mut alice, mut bob, _) = alice_and_bob(&server).await;
    let (root, fid) = (alice.root(), alice.next_fid());
    let making = async { alice.apply(create(root, "new", fid)).await.unwrap() };
    let telling = async {
        let (request, call) = bob.next_break().await;
        acknowledge(call);
        request
    };
    let (_, request) = tokio::join!(making, telling);
    let Broken::Objects(objects) = request.broken else { panic!("not everything") };
    assert_eq!((objects[0].fid, objects[0].names.clone()), (root, vec![name("new")]));
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_holder_delays_a_change_by_its_lease_and_only_once() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let renewed = Instant::now();
    bob.cut.cut();
    // Alice must keep her own lease meanwhile, or she would be asked to attach again.
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(alice.renew().await.unwrap());
    alice.apply(touch(file)).await.unwrap();
    let waited = renewed.elapsed();
    assert!(waited <= LEASE + SOON && waited >= LEASE - SOON, "{waited:?}");
    let again = Instant::now();
    alice.apply(touch(file)).await.unwrap();
    assert!(again.elapsed() < SOON);
    let refused = bob.renew().await.unwrap_err();
    assert_ne!(refused.error, FsError::Busy);
}

#[tokio::test(start_paused = true)]
async fn who_renews_but_acknowledges_nothing_delays_a_change_no_longer_than_the_bound() {
    let (_storage, server) = serve();
    let (mut alice, mut bob, file) = alice_and_bob(&server).await;
    let begun = Instant::now();
    let change = tokio::spawn(async move { alice.apply(touch(file)).await });
    let (_, _unanswered) = bob.next_break().await;
    let mut renewals = Vec::new();
    while let Ok(renewed) = bob.renew().await {
        renewals.push(renewed);
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(renewals[..4], [true, true, true, false]);
    // The lease was renewed for the last time 10 s after the break, for 62 s.
    assert!(begun.elapsed() <= Duration::from_secs(10 + 62 + 5), "{:?}", begun.elapsed());
    change.abort();
    let mut carol = Client::attached(&server, mafs_proto::ClientId([3; 16])).await;
    timeout(SOON, carol.apply(touch(file))).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_session_goes_on_over_another_connection_with_the_breaks_it_missed() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    bob.cut.cut();
    let change = alice.apply(touch(file));
    tokio::pin!(change);
    assert!(timeout(SOON, &mut change).await.is_err());
    let mut bob = Client::resumed(&server, &bob).await;
    assert!(bob.attached.as_ref().unwrap().resumed);
    let (_, call) = bob.next_break().await;
    acknowledge(call);
    timeout(SOON, change).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_new_session_counts_as_holding_the_old_promises_until_it_has_renewed() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    bob.cut.cut();
    let bob = Client::attached(&server, BOB).await;
    assert!(!bob.attached.as_ref().unwrap().resumed);
    let change = alice.apply(touch(file));
    tokio::pin!(change);
    assert!(timeout(SOON, &mut change).await.is_err());
    assert!(bob.renew().await.unwrap());
    timeout(SOON, change).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_a_change_waits_for_all_who_may_hold_promises() {
    let (storage, server) = serve();
    let (alice, bob, file) = alice_and_bob(&server).await;
    drop((alice, server));
    let server = open(&storage.kill(2));
    let mut alice = Client::attached(&server, ALICE).await;
    assert!(alice.renew().await.unwrap());
    let change = alice.apply(touch(file));
    tokio::pin!(change);
    assert!(timeout(SOON, &mut change).await.is_err(), "Bob may be reading what he was promised");
    let bob = Client::resumed(&server, &bob).await;
    assert!(!bob.attached.as_ref().unwrap().resumed, "promises of another epoch");
    assert!(bob.renew().await.unwrap());
    timeout(SOON, change).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_nobody_waits_for_who_has_detached_or_was_long_gone() {
    let (storage, server) = serve();
    let (alice, bob, file) = alice_and_bob(&server).await;
    bob.call(DetachRequest).await.unwrap();
    let carol = Client::attached(&server, mafs_proto::ClientId([3; 16])).await;
    carol.cut.cut();
    // This is longer than her lease and the next look for such.
    for _ in 0..4 {
        tokio::time::sleep(LEASE / 3).await;
        alice.renew().await.unwrap();
    }
    drop((alice, server));
    let server = open(&storage.kill(2));
    let mut alice = Client::attached(&server, ALICE).await;
    assert!(alice.renew().await.unwrap());
    timeout(SOON, alice.apply(touch(file))).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_record_that_comes_again_is_answered_no_earlier() {
    let (_storage, server) = serve();
    let (mut alice, mut bob, file) = alice_and_bob(&server).await;
    let record = alice.next_record(touch(file));
    let first = alice.apply_with(record.clone(), mafs_arpc::Payload::None);
    assert!(timeout(SOON, first).await.is_err(), "Bob has not acknowledged");
    let again = alice.apply_with(record, mafs_arpc::Payload::None);
    tokio::pin!(again);
    assert!(timeout(SOON, &mut again).await.is_err(), "nor has he now");
    let (_, call) = bob.next_break().await;
    acknowledge(call);
    timeout(SOON, again).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_has_ended_ends_the_attach() {
    let (_storage, server) = serve();
    let (alice, _bob, _) = alice_and_bob(&server).await;
    tokio::time::sleep(LEASE).await;
    assert_eq!(alice.lookup(alice.root(), "f").await.unwrap_err().error, FsError::NotAttached);
    assert_eq!(alice.renew().await.unwrap_err().error, FsError::NotAttached);
}
