//! Tests of a server whose disk is full: what it refuses, what it still does, and how it goes on.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::Payload;
use mafs_durable::Disk;
use mafs_proto::call::{DetachRequest, StatFsRequest};
use mafs_proto::{Base, Clock, CmlOp, DataVersion, FsError};
use mafs_server::{MemoryStorage, Server, ServerConfig};
use support::{ALICE, BOB, Client, TestClock, create, name, noise, store, whole};

const CONTENT: &str = "volumes/home/content";

/// Lets the server notice what has happened to connections.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_refuses_growth_and_works_again_when_there_is_room() {
    let storage = MemoryStorage::new(1);
    let config = ServerConfig::default().with_space_reserve_bytes(1_000_000);
    storage.memory_disk().set_capacity(4_000_000);
    let server = Server::open(Arc::new(storage.clone()), TestClock::start(), config).unwrap();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let (full, small) = (alice.create(root, "full").await, alice.create(root, "small").await);
    let refused = alice.store(full, 1, noise(1, 3_900_000)).await.unwrap_err();
    assert_eq!(refused.error, FsError::NoSpace, "the reserve is kept");
    alice.store(full, 1, noise(1, 2_000_000)).await.unwrap();
    assert_eq!(alice.store(small, 1, noise(1, 1_500_000)).await.unwrap_err().error, FsError::NoSpace);
    storage.memory_disk().set_capacity(2_900_000);
    assert_eq!(alice.store(small, 1, noise(1, 10)).await.unwrap_err().error, FsError::NoSpace);
    let fid = alice.next_fid();
    assert_eq!(alice.apply(create(root, "new", fid)).await.unwrap_err().error, FsError::NoSpace);
    assert_eq!(alice.call(StatFsRequest).await.unwrap().bytes_free, 0);
    alice.apply(CmlOp::Remove { parent: root, name: name("full"), fid: full }).await.unwrap();
    settle().await;
    write_back(&storage);
    alice.store(small, 1, noise(1, 1_500_000)).await.unwrap();
    assert!(alice.read(small).await == noise(1, 1_500_000));
}

/// Removals are urgent and contents are not, so the removal of a file may be here before the content that it waits for,
/// or just after; that content never reaches the journal.
#[tokio::test(start_paused = true)]
async fn a_removal_does_not_wait_for_a_content_that_was_refused_for_want_of_room() {
    let storage = MemoryStorage::new(1);
    let config = ServerConfig::default().with_space_reserve_bytes(1_000_000);
    let server = Server::open(Arc::new(storage.clone()), TestClock::start(), config).unwrap();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    for is_early in [true, false] {
        let file = alice.create(root, "f").await;
        storage.memory_disk().set_capacity(4_000_000);
        let stored = alice.next_record(store(file, Base::Version(DataVersion(1)), 3_900_000));
        let mut removed = alice.next_record(CmlOp::Remove { parent: root, name: name("f"), fid: file });
        removed.depends_on = vec![stored.id];
        let storing = async {
            if is_early {
                settle().await;
            }
            alice.apply_with(stored, whole(&noise(1, 3_900_000))).await
        };
        let removing = async {
            if !is_early {
                settle().await;
            }
            alice.apply_with(removed, Payload::None).await
        };
        let clock = TestClock::start();
        let (stored, removed) = tokio::join!(storing, removing);
        assert_eq!(stored.unwrap_err().error, FsError::NoSpace);
        removed.unwrap();
        assert!(clock.now().0 < 2_000_000_000, "it waited for {} ns", clock.now().0);
        assert_eq!(alice.lookup(root, "f").await.unwrap(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_while_the_disk_is_full_harms_nobody() {
    let storage = MemoryStorage::new(1);
    let config = ServerConfig::default().with_space_reserve_bytes(1_000_000);
    let server = Server::open(Arc::new(storage.clone()), TestClock::start(), config).unwrap();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let bob = Client::attached(&server, BOB).await;
    // Somebody else has taken all of it.
    storage.memory_disk().set_capacity(1);
    bob.call(DetachRequest).await.unwrap();
    settle().await;
    storage.memory_disk().set_capacity(1 << 30);
    alice.create(root, "after").await;
}

/// Does what a real file system does in the background: only then the room of removed files is free.
fn write_back(storage: &MemoryStorage) {
    let disk = storage.memory_disk();
    for shard in disk.list(CONTENT).unwrap() {
        disk.sync_dir(&format!("{CONTENT}/{shard}")).unwrap();
    }
}
