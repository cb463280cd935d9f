//! Tests of how announcements end, in whatever way, and of writers that go and come back: nobody waits for what will
//! not come.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use mafs_proto::call::{Broken, DetachRequest, InvalidateReply, InvalidateRequest};
use mafs_proto::{Base, DataVersion, Fid, FsError, StoreId};
use support::announcing::{
    CAROL, LEASE, NEW, SOON, WAIT, alice_and_bob, announce_all, deliver, deliver_pulled, new_content, ready, serve,
};
use support::{ALICE, BOB, Client, acknowledge, noise, open, store, whole};
use tokio::time::{Instant, timeout};

#[tokio::test(start_paused = true)]
async fn when_the_writer_is_gone_the_committed_version_is_shown_and_called_stale() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let record = new_content(&mut alice, file);
    announce_all(&alice, &[record]).await;
    alice.cut.cut();
    let mut waits = 0;
    let begun = Instant::now();
    let reply = loop {
        match bob.status(file, true).await {
            Ok(reply) => break reply,
            Err(refused) => assert_eq!((refused.error, refused.progress), (FsError::Pulling, 0)),
        }
        waits += 1;
        bob.renew().await.unwrap();
    };
    assert!(begun.elapsed() <= LEASE + SOON, "{:?}", begun.elapsed());
    assert_eq!(waits, 6);
    assert!(reply.stale && reply.pending.is_empty());
    assert_eq!(reply.objects[0].status.data_version, DataVersion(2));
    let looked = bob.status(file, false).await.unwrap();
    assert!(!looked.stale, "only who opens it is told");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_detaches_is_gone_at_once() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let record = new_content(&mut alice, file);
    announce_all(&alice, &[record]).await;
    let detach = async { alice.call(DetachRequest).await.unwrap() };
    let (opened, _) = tokio::join!(timeout(SOON, bob.status(file, true)), detach);
    assert!(opened.unwrap().unwrap().stale);
}

#[tokio::test(start_paused = true)]
async fn when_the_writer_is_back_what_was_promised_meanwhile_is_broken() {
    let (_storage, server) = serve();
    let (mut alice, mut bob, file) = alice_and_bob(&server).await;
    let record = new_content(&mut alice, file);
    announce_all(&alice, std::slice::from_ref(&record)).await;
    alice.call(DetachRequest).await.unwrap();
    let meanwhile = bob.status(file, false).await.unwrap();
    assert!(meanwhile.pending.is_empty(), "it is promised");
    let mut alice = ready(&server, ALICE).await;
    let (request, call) = timeout(SOON, bob.next_break()).await.unwrap();
    acknowledge(call);
    let Broken::Objects(objects) = request.broken else { panic!("not everything") };
    assert_eq!(objects.iter().map(|object| object.fid).collect::<Vec<_>>(), [file]);
    assert!(request.change > meanwhile.change);
    let (opened, ()) = tokio::join!(bob.status(file, true), deliver_pulled(&mut alice, &record));
    assert_eq!(opened.unwrap().objects[0].status.data_version, DataVersion(3));
}

#[tokio::test(start_paused = true)]
async fn invariant_1_announcements_survive_a_crash_of_the_server() {
    let (storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let record = new_content(&mut alice, file);
    announce_all(&alice, std::slice::from_ref(&record)).await;
    drop((alice, bob, server));
    let storage = storage.crash(2);
    let server = open(&storage);
    let bob = ready(&server, BOB).await;
    let looked = bob.status(file, false).await.unwrap();
    assert_eq!(looked.pending[0].status.size, NEW.len() as u64, "though its client is not back yet");
    assert!(timeout(SOON, bob.status(file, true)).await.is_err());
    let mut alice = ready(&server, ALICE).await;
    let (opened, ()) = tokio::join!(bob.status(file, true), deliver_pulled(&mut alice, &record));
    assert_eq!(opened.unwrap().objects[0].status.data_version, DataVersion(3));
    drop((alice, bob, server));
    let server = open(&storage.crash(3));
    let bob = ready(&server, BOB).await;
    assert!(bob.status(file, false).await.unwrap().pending.is_empty(), "what was applied is not announced any more");
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_a_writer_that_does_not_come_back_is_waited_for_as_long_as_its_lease_may_last() {
    let (storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let record = new_content(&mut alice, file);
    announce_all(&alice, &[record]).await;
    drop((alice, bob, server));
    let server = open(&storage.kill(2));
    let bob = ready(&server, BOB).await;
    tokio::time::sleep(LEASE - WAIT).await;
    bob.renew().await.unwrap();
    let refused = timeout(WAIT + SOON, bob.status(file, true)).await.unwrap();
    let reply = match refused {
        Ok(reply) => reply,
        Err(_) => timeout(SOON, bob.status(file, true)).await.unwrap().unwrap(),
    };
    assert!(reply.stale);
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_comes_over_another_connection_is_asked_again() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let record = new_content(&mut alice, file);
    announce_all(&alice, std::slice::from_ref(&record)).await;
    let opening = bob.status(file, true);
    tokio::pin!(opening);
    let pulled = tokio::select! {
        _ = &mut opening => panic!("it is not there yet"),
        pulled = alice.next_pull(&[]) => pulled,
    };
    assert_eq!(pulled, [record.id]);
    alice.cut.cut();
    let mut alice = Client::resumed(&server, &alice).await;
    let (opened, ()) = tokio::join!(opening, deliver_pulled(&mut alice, &record));
    assert_eq!(opened.unwrap().objects[0].status.data_version, DataVersion(3));
}

#[tokio::test(start_paused = true)]
async fn a_retraction_lets_the_waiting_go_on() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let record = new_content(&mut alice, file);
    announce_all(&alice, std::slice::from_ref(&record)).await;
    let retract = InvalidateRequest {
        records: Vec::new(),
        retracted: vec![record.id],
        confirmed_below: None,
        settled: Vec::new(),
    };
    let (opened, retracted) = tokio::join!(timeout(SOON, bob.status(file, true)), alice.invalidate(retract));
    assert_eq!(retracted.unwrap(), InvalidateReply::default());
    let reply = opened.unwrap().unwrap();
    assert_eq!((reply.pending.len(), reply.stale), (0, false));
    assert_eq!(reply.objects[0].status.data_version, DataVersion(2));
}

#[tokio::test(start_paused = true)]
async fn what_a_client_says_is_missing_is_not_waited_for_nor_after_a_restart() {
    let (storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let record = new_content(&mut alice, file);
    announce_all(&alice, std::slice::from_ref(&record)).await;
    let foreign = StoreId { client: BOB, ..record.id };
    let missing = [record.id, foreign];
    let (opened, asked) = tokio::join!(timeout(SOON, bob.status(file, true)), alice.next_pull(&missing));
    assert_eq!(asked, [record.id]);
    let reply = opened.unwrap().unwrap();
    assert_eq!((reply.pending.len(), reply.stale), (0, false));
    drop((alice, bob, server));
    let server = open(&storage.kill(2));
    let bob = ready(&server, BOB).await;
    assert!(bob.status(file, false).await.unwrap().pending.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_refused_for_good_ends_the_wait() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let first = new_content(&mut alice, file);
    let second = alice.next_record(store(file, Base::Record(first.id), NEW.len() as u64));
    announce_all(&alice, std::slice::from_ref(&second)).await;
    let opening = bob.status(file, true);
    tokio::pin!(opening);
    assert!(timeout(SOON, &mut opening).await.is_err());
    let refused = deliver(&alice, second).await.unwrap_err();
    assert_eq!(refused.error, FsError::BaseChanged);
    let reply = timeout(SOON, opening).await.unwrap().unwrap();
    assert_eq!(reply.objects[0].status.data_version, DataVersion(2));
}

#[tokio::test(start_paused = true)]
async fn a_postponed_record_is_waited_for_until_it_comes_again() {
    let (storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let size = 3_900_000;
    let record = alice.next_record(store(file, Base::Version(DataVersion(2)), size as u64));
    announce_all(&alice, std::slice::from_ref(&record)).await;
    storage.memory_disk().set_capacity(2_000_000);
    let content = noise(1, size);
    let refused = alice.apply_queued(record.clone(), whole(&content)).await.unwrap_err();
    assert_eq!(refused.error, FsError::NoSpace);
    assert_eq!(bob.status(file, true).await.unwrap_err().error, FsError::Pulling);
    storage.memory_disk().set_capacity(1 << 30);
    alice.apply_queued(record, whole(&content)).await.unwrap();
    assert_eq!(bob.status(file, true).await.unwrap().objects[0].status.data_version, DataVersion(3));
}

#[tokio::test(start_paused = true)]
async fn what_a_client_has_confirmed_is_not_waited_for() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let (first, second) = (new_content(&mut alice, file), new_content(&mut alice, file));
    announce_all(&alice, std::slice::from_ref(&first)).await;
    let confirmed_below = Some(second.id);
    let request =
        InvalidateRequest { records: Vec::new(), retracted: Vec::new(), confirmed_below, settled: Vec::new() };
    alice.invalidate(request).await.unwrap();
    assert!(bob.status(file, true).await.unwrap().pending.is_empty());
    announce_all(&alice, &[first]).await;
    assert!(bob.status(file, true).await.unwrap().pending.is_empty(), "it comes too late");
}

#[tokio::test(start_paused = true)]
async fn two_writers_come_in_the_order_of_their_announcements() {
    let (_storage, server) = serve();
    let (mut alice, mut bob, file) = alice_and_bob(&server).await;
    let carol = ready(&server, CAROL).await;
    let first = new_content(&mut alice, file);
    announce_all(&alice, std::slice::from_ref(&first)).await;
    let (opened, ()) = tokio::join!(bob.status(file, true), deliver_pulled(&mut alice, &first));
    let version = opened.unwrap().objects[0].status.data_version;
    let second = bob.next_record(store(file, Base::Version(version), 4));
    let announcing = async {
        let (_, call) = alice.next_break().await;
        acknowledge(call);
    };
    tokio::join!(announce_all(&bob, std::slice::from_ref(&second)), announcing);
    let delivering = async {
        assert_eq!(bob.next_pull(&[]).await, [second.id]);
        bob.apply_queued(second.clone(), whole(b"4444")).await.unwrap();
    };
    let (opened, ()) = tokio::join!(carol.status(file, true), delivering);
    assert_eq!(opened.unwrap().objects[0].status.data_version, DataVersion(4));
    assert_eq!(&carol.read(file).await[..], b"4444");
}

#[tokio::test(start_paused = true)]
async fn invariant_9_an_update_in_conflict_with_an_announced_one_is_refused_and_not_waited_for() {
    let (_storage, server) = serve();
    let (mut alice, mut bob, file) = alice_and_bob(&server).await;
    let first = new_content(&mut alice, file);
    announce_all(&alice, std::slice::from_ref(&first)).await;
    let second = new_content(&mut bob, file);
    let reply = bob.announce(std::slice::from_ref(&second)).await.unwrap();
    assert_eq!(reply.refused, [second.id]);
    assert!(alice.status(file, true).await.unwrap().pending.is_empty());
    let refused = deliver(&bob, second).await.unwrap_err();
    assert_eq!(refused.error, FsError::BaseChanged, "nor does it pass the announced one");
    deliver(&alice, first).await.unwrap();
    let late = bob.next_record(store(file, Base::Version(DataVersion(2)), 1));
    assert_eq!(bob.announce(std::slice::from_ref(&late)).await.unwrap().refused, [late.id], "an old version");
    let gone = Fid { vnode: mafs_proto::VnodeId(1 << 40), ..file };
    let lost = bob.next_record(store(gone, Base::Version(DataVersion(2)), 1));
    assert_eq!(bob.announce(std::slice::from_ref(&lost)).await.unwrap().refused, [lost.id], "no such file");
}

#[tokio::test(start_paused = true)]
async fn what_nobody_waits_for_any_more_is_not_pulled() {
    let (_storage, server) = serve();
    let (mut alice, bob, file) = alice_and_bob(&server).await;
    let record = new_content(&mut alice, file);
    announce_all(&alice, std::slice::from_ref(&record)).await;
    alice.cut.cut();
    assert!(timeout(SOON, bob.status(file, true)).await.is_err(), "given up");
    tokio::time::sleep(SOON).await;
    let mut alice = Client::resumed(&server, &alice).await;
    assert!(timeout(SOON, alice.next_pull(&[])).await.is_err());
    assert!(timeout(SOON, bob.status(file, true)).await.is_err());
    assert_eq!(alice.next_pull(&[]).await, [record.id]);
}

#[tokio::test(start_paused = true)]
async fn invariant_9_of_two_writers_who_did_not_know_of_each_other_the_first_to_deliver_wins() {
    let (_storage, server) = serve();
    let (mut alice, mut bob, file) = alice_and_bob(&server).await;
    let carol = ready(&server, CAROL).await;
    let (first, second) = (new_content(&mut alice, file), new_content(&mut bob, file));
    announce_all(&alice, std::slice::from_ref(&first)).await;
    alice.call(DetachRequest).await.unwrap();
    announce_all(&bob, std::slice::from_ref(&second)).await;
    let alice = ready(&server, ALICE).await;
    for (client, record) in [(&alice, &first), (&bob, &second)] {
        announce_all(client, std::slice::from_ref(record)).await;
    }
    deliver(&bob, second).await.unwrap();
    assert_eq!(deliver(&alice, first).await.unwrap_err().error, FsError::BaseChanged);
    let reply = carol.status(file, true).await.unwrap();
    assert_eq!((reply.objects[0].status.data_version, reply.pending.len()), (DataVersion(3), 0));
}
