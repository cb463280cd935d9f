//! Troubles of the cache's disk: a loss of part of the modify log must cost nobody's content.

use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{OpenMode, Vfs};
use mafs_proto::{Mode, RenameMode, VnodeId};
use mafs_sim::{Crash, World};

use crate::support::{CALLER, WRITE, content, create, open_as, simulate, world, write_and_close};

const EMPTIED: OpenMode = OpenMode { truncate: true, ..WRITE };

/// Long enough for a client to send what it can.
const A_WHILE: Duration = Duration::from_secs(30);

/// Makes the server forget the replies to the records that have been answered.
async fn confirm_replies(vfs: &Vfs) {
    for number in 0..200 {
        let (name, mode) = (Bytes::from(format!("dir{number}")), Mode::from_bits(0o755));
        vfs.make_dir(VnodeId::ROOT, name, mode, CALLER).await.expect("a directory");
    }
}

/// The server stores a file that has been emptied or changed, and the log of the client, whose disk is full when it
/// hears of that, does not say so.
async fn store_that_the_log_forgets(world: &World, emptied: bool) {
    let vfs = world.client().clone();
    write_and_close(&vfs, "file", b"old".to_vec()).await;
    let file = open_as(&vfs, "file", if emptied { EMPTIED } else { WRITE }).await;
    if !emptied {
        vfs.write(file, 0, Bytes::from_static(b"changed")).await.expect("a write");
    }
    let closing = tokio::spawn({
        let vfs = vfs.clone();
        async move { vfs.flush(file).await }
    });
    tokio::time::sleep(Duration::from_millis(150)).await;
    world.client_disk().set_full(true);
    closing.await.expect("the task").expect_err("the disk is full");
    world.client_disk().set_full(false);
    vfs.release(file);
    confirm_replies(&vfs).await;
}

#[test]
fn a_version_of_another_client_stays_behind_one_that_the_log_could_not_be_told_of() {
    for emptied in [true, false] {
        simulate(async {
            let mut world = world(100).await;
            store_that_the_log_forgets(&world, emptied).await;
            let other = world.add_client().await.expect("another client");
            let file = open_as(&other, "file", EMPTIED).await;
            other.write(file, 0, Bytes::from_static(b"theirs")).await.expect("a write");
            other.flush(file).await.expect("a close");
            other.release(file);
            world.crash_client(Crash::Kill);
            world.start_client().await.expect("the client starts");
            tokio::time::sleep(A_WHILE).await;
            assert_eq!(content(&other, "file").await, b"theirs", "an update that nobody has seen is gone");
            assert_eq!(world.client().status().refused, [], "what arrived before theirs is no conflict");
        });
    }
}

#[test]
fn what_the_log_has_forgotten_is_stored_on_top_of_itself() {
    for emptied in [true, false] {
        simulate(async {
            let mut world = world(100).await;
            store_that_the_log_forgets(&world, emptied).await;
            world.crash_client(Crash::Kill);
            world.start_client().await.expect("the client starts");
            let file = open_as(world.client(), "file", EMPTIED).await;
            world.client().write(file, 0, Bytes::from_static(b"new")).await.expect("a write");
            world.client().flush(file).await.unwrap_or_else(|error| panic!("emptied: {emptied}: {error}"));
            let other = world.add_client().await.expect("another client");
            assert_eq!(content(&other, "file").await, b"new");
        });
    }
}

#[test]
fn what_was_changed_during_a_store_that_the_log_has_forgotten_is_stored_on_top_of_it() {
    simulate(async {
        let mut world = world(100).await;
        let vfs = world.client().clone();
        write_and_close(&vfs, "file", b"old".to_vec()).await;
        let file = open_as(&vfs, "file", WRITE).await;
        vfs.write(file, 0, Bytes::from_static(b"one")).await.expect("a write");
        let closing = |vfs: Vfs| tokio::spawn(async move { vfs.flush(file).await });
        let first = closing(vfs.clone());
        tokio::time::sleep(Duration::from_millis(50)).await;
        vfs.write(file, 0, Bytes::from_static(b"two")).await.expect("a write meanwhile");
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.client_disk().set_full(true);
        first.await.expect("the task").expect_err("the disk is full");
        world.client_disk().set_full(false);
        let second = closing(vfs.clone());
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!second.is_finished(), "nothing is on its way");
        world.crash_client(Crash::Kill);
        second.abort();
        world.start_client().await.expect("the client starts");
        world.client().sync().await.expect("what was changed is refused");
        let other = world.add_client().await.expect("another client");
        assert_eq!(content(&other, "file").await, b"two");
    });
}

#[test]
fn a_store_that_was_logged_in_vain_holds_up_none_after_a_restart() {
    simulate(async {
        let mut world = world(100).await;
        let vfs = world.client().clone();
        let (_, file) = create(&vfs, "file").await;
        vfs.write(file, 0, Bytes::from_static(b"fsynced")).await.expect("a write");
        world.crash_server(Crash::Kill);
        // The client has noticed.
        tokio::time::sleep(A_WHILE).await;
        vfs.fsync(file).await.expect("an fsync here");
        world.start_server().expect("the server starts");
        tokio::time::sleep(A_WHILE).await;
        let disk = world.client_disk().clone();
        disk.fail_syncs_from(disk.syncs());
        vfs.flush(file).await.expect_err("the disk fails");
        disk.fail_syncs_from(u64::MAX);
        let closing = tokio::spawn(async move { vfs.flush(file).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.crash_client(Crash::Kill);
        closing.abort();
        world.start_client().await.expect("the client starts");
        let sent = tokio::time::timeout(Duration::from_secs(2), world.client().sync()).await;
        sent.expect("it waits for a record that was never sent").expect("a sync");
    });
}

#[test]
fn a_refused_removal_that_the_log_does_not_take_back_hides_nobody_elses() {
    simulate(async {
        let mut world = world(100).await;
        let vfs = world.client().clone();
        let (_, file) = create(&vfs, "letter").await;
        let mode = Mode::from_bits(0o755);
        vfs.make_dir(VnodeId::ROOT, Bytes::from_static(b"drawer"), mode, CALLER).await.expect("a directory");
        vfs.write(file, 0, Bytes::from_static(b"unsent")).await.expect("a write");
        let renaming = tokio::spawn({
            let vfs = vfs.clone();
            let (from, to) = (Bytes::from_static(b"drawer"), Bytes::from_static(b"letter"));
            async move { vfs.rename(VnodeId::ROOT, from, VnodeId::ROOT, to, RenameMode::Replace, CALLER).await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.client_disk().set_full(true);
        renaming.await.expect("the task").expect_err("a directory does not replace a file");
        world.client_disk().set_full(false);
        let other = world.add_client().await.expect("another client");
        other.unlink(VnodeId::ROOT, Bytes::from_static(b"letter"), CALLER).await.expect("a removal");
        vfs.flush(file).await.expect_err("it is gone");
        assert_eq!(vfs.status().refused.len(), 1);
    });
}
