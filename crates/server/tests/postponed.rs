//! Tests of records that are queued at their client and come again after a refusal that is transient: nothing that
//! depends on them is applied before them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::Payload;
use mafs_proto::{Base, CmlOp, CmlRecord, DataVersion, Fid, FsError, RenameMode};
use mafs_server::{MemoryStorage, Server, ServerConfig};
use support::{ALICE, BOB, Client, TestClock, acknowledge, create, header, name, noise, open, store, whole};

/// The records of an editor's save: a content for `temp`, then `temp` over `f`.
struct Save {
    old: Fid,
    temp: Fid,
    stored: CmlRecord,
    renamed: CmlRecord,
}

const SIZE: usize = 3_900_000;

async fn save(alice: &mut Client) -> Save {
    let root = alice.root();
    let old = alice.create(root, "f").await;
    alice.store(old, 1, Bytes::from_static(b"old")).await.unwrap();
    let temp = alice.create(root, "temp").await;
    let stored = alice.next_record(store(temp, Base::Version(DataVersion(1)), SIZE as u64));
    let mut renamed = alice.next_record(CmlOp::Rename {
        from_parent: root,
        from_name: name("temp"),
        to_parent: root,
        to_name: name("f"),
        fid: temp,
        replaced: Some(old),
        mode: RenameMode::Replace,
    });
    renamed.depends_on = vec![stored.id];
    Save { old, temp, stored, renamed }
}

fn small_disk() -> (MemoryStorage, Arc<Server>) {
    let storage = MemoryStorage::new(1);
    let config = ServerConfig::default().with_space_reserve_bytes(1_000_000);
    let server = Server::open(Arc::new(storage.clone()), TestClock::start(), config).unwrap();
    (storage, server)
}

#[tokio::test(start_paused = true)]
async fn a_rename_that_depends_on_a_postponed_content_leaves_the_old_file_until_it_comes_again() {
    let (storage, server) = small_disk();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let save = save(&mut alice).await;
    storage.memory_disk().set_capacity(4_000_000);
    let content = noise(1, SIZE);
    let (stored, renamed) = tokio::join!(
        alice.apply_queued(save.stored.clone(), whole(&content)),
        alice.apply_queued(save.renamed.clone(), Payload::None),
    );
    assert_eq!([stored.unwrap_err().error, renamed.unwrap_err().error], [FsError::NoSpace; 2]);
    assert_eq!(alice.lookup(root, "f").await.unwrap().unwrap().fid, save.old);
    let late = alice.apply_queued(save.renamed.clone(), Payload::None).await;
    assert_eq!(late.unwrap_err().error, FsError::NoSpace, "also when it comes alone");
    storage.memory_disk().set_capacity(1 << 30);
    alice.apply_queued(save.stored, whole(&content)).await.unwrap();
    alice.apply_queued(save.renamed, Payload::None).await.unwrap();
    assert_eq!(alice.lookup(root, "f").await.unwrap().unwrap().fid, save.temp);
    assert!(alice.read(save.temp).await == content);
}

#[tokio::test(start_paused = true)]
async fn a_removal_of_what_is_postponed_goes_ahead() {
    let (storage, server) = small_disk();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let Save { temp, stored, .. } = save(&mut alice).await;
    storage.memory_disk().set_capacity(4_000_000);
    let mut removed = alice.next_record(CmlOp::Remove { parent: root, name: name("temp"), fid: temp });
    removed.depends_on = vec![stored.id];
    let (stored, removed) =
        tokio::join!(alice.apply_queued(stored, whole(&noise(1, SIZE))), alice.apply_queued(removed, Payload::None),);
    assert_eq!(stored.unwrap_err().error, FsError::NoSpace);
    removed.unwrap();
    assert_eq!(alice.lookup(root, "temp").await.unwrap(), None);
}

/// The removal went ahead of the rename that gives the name, so the name's absence says nothing.
#[tokio::test(start_paused = true)]
async fn a_removal_of_a_postponed_name_is_postponed() {
    let (storage, server) = small_disk();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let Save { temp, stored, renamed, .. } = save(&mut alice).await;
    storage.memory_disk().set_capacity(4_000_000);
    let mut removed = alice.next_record(CmlOp::Remove { parent: root, name: name("f"), fid: temp });
    removed.depends_on = vec![renamed.id];
    let content = noise(1, SIZE);
    let (stored_early, renamed_early, removed_early) = tokio::join!(
        alice.apply_queued(stored.clone(), whole(&content)),
        alice.apply_queued(renamed.clone(), Payload::None),
        alice.apply_queued(removed.clone(), Payload::None),
    );
    let refusals = [stored_early, renamed_early, removed_early].map(|early| early.unwrap_err().error);
    assert_eq!(refusals, [FsError::NoSpace; 3]);
    storage.memory_disk().set_capacity(1 << 30);
    alice.apply_queued(stored, whole(&content)).await.unwrap();
    alice.apply_queued(renamed, Payload::None).await.unwrap();
    alice.apply_queued(removed, Payload::None).await.unwrap();
    assert_eq!(alice.lookup(root, "f").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn what_depends_on_a_record_that_never_comes_is_postponed_and_so_is_what_depends_on_that() {
    let server = open(&MemoryStorage::new(1));
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let Save { renamed, .. } = save(&mut alice).await;
    let fid = alice.next_fid();
    let mut next = alice.next_record(create(root, "g", fid));
    next.depends_on = vec![renamed.id];
    let (renamed, next) =
        tokio::join!(alice.apply_queued(renamed, Payload::None), alice.apply_queued(next, Payload::None));
    assert_eq!([renamed.unwrap_err().error, next.unwrap_err().error], [FsError::Busy; 2]);
    assert_eq!(alice.lookup(root, "g").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_queued_content_that_is_cut_short_is_waited_for() {
    let server = open(&MemoryStorage::new(1));
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let save = save(&mut alice).await;
    let content = noise(1, SIZE);
    let (mut writer, payload) = Payload::stream();
    writer.write([header(SIZE), content.slice(..50_000)].concat().into()).await.unwrap();
    writer.abort("the file has changed");
    let storing = async {
        let cut = alice.apply_queued(save.stored.clone(), payload).await;
        assert_eq!(cut.unwrap_err().error, FsError::Malformed);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(alice.lookup(root, "f").await.unwrap().unwrap().fid, save.old);
        alice.apply_queued(save.stored.clone(), whole(&content)).await
    };
    let (stored, renamed) = tokio::join!(storing, alice.apply_queued(save.renamed.clone(), Payload::None));
    assert!(stored.unwrap().change < renamed.unwrap().change);
    assert!(alice.read(save.temp).await == content);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_too_much_does_not_stop_another() {
    let server = open(&MemoryStorage::new(1));
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let Save { renamed, .. } = save(&mut alice).await;
    for seq in 100..356 {
        let (mut id, peer) = (renamed.id, alice.peer.clone());
        id.seq = seq;
        let record = CmlRecord { id, ..renamed.clone() };
        tokio::spawn(support::send(&peer, record));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let refused = alice.apply_queued(renamed, Payload::None).await;
    assert_eq!(refused.unwrap_err().error, FsError::Busy);
    tokio::spawn(async move {
        loop {
            acknowledge(alice.next_break().await.1);
        }
    });
    let mut bob = Client::attached(&server, BOB).await;
    let fid = bob.next_fid();
    let made = bob.next_record(create(root, "b", fid));
    let mut second = bob.next_record(CmlOp::Remove { parent: root, name: name("b"), fid });
    second.depends_on = vec![made.id];
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bob.apply_queued(made, Payload::None).await
    };
    let (made, second) = tokio::join!(late, bob.apply_queued(second, Payload::None));
    assert!(made.unwrap().change < second.unwrap().change);
}
