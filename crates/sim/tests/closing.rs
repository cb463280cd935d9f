//! Closing: the kernel tells at once of a close(2), as FLUSH, and some time after it has returned that the handle is
//! gone, as RELEASE. Meanwhile another client may have stored what comes next.

use std::time::Duration;

use mafs_client::vfs::{Close, FileHandle, OpenMode, Vfs, Writeback};
use mafs_sim::{Machine, World};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::{READ, WRITE, clients, configured, content, create, look, open_as, simulate};
use crate::support::{until_all_is_sent, write_and_close};

const DELAY: Duration = Duration::from_millis(1);

/// How long a release may be on its way; and how long an open takes that waits for none, twenty round trips.
const LATE: Duration = Duration::from_millis(300);
const SOON: Duration = Duration::from_millis(40);

const POLICIES: [Writeback; 2] = [Writeback::Sync, Writeback::Sirp];

/// Two clients whose kernels have the containers of what is open.
async fn two(writeback: Writeback) -> World {
    let world = World::start_several(1, 2, DELAY, true).await.expect("a world");
    let configure = |machine: &mut Machine| {
        machine.set_writeback(writeback);
        machine.set_close(Close::Announced);
    };
    configured(world, configure).await
}

/// Writes a content as the kernel does, and closes the file as far as its program sees.
async fn write_and_flush(vfs: &Vfs, file: FileHandle, bytes: &[u8]) {
    let container = vfs.container(file).expect("its container");
    container.set_len(0).expect("a cut");
    container.write_all_at(bytes, 0).expect("a write");
    vfs.flush(file).await.expect("a close");
}

/// A file that one client has made and closed, whose release is on its way, and that the other has written since.
async fn written_since(here: &Vfs, there: &Vfs, with: OpenMode) -> FileHandle {
    let (_, closed) = create(here, "file").await;
    write_and_flush(here, closed, b"old").await;
    let theirs = open_as(there, "file", with).await;
    write_and_flush(there, theirs, b"new and longer").await;
    there.release(theirs);
    closed
}

fn release_late(vfs: &Vfs, closed: FileHandle) -> JoinHandle<()> {
    let vfs = vfs.clone();
    tokio::spawn(async move {
        tokio::time::sleep(LATE).await;
        vfs.release(closed);
    })
}

#[test]
fn what_was_closed_here_is_in_nobodys_way_before_it_is_released() {
    for writeback in POLICIES {
        simulate(async {
            let world = two(writeback).await;
            let [here, there] = clients(&world);
            let closed = written_since(&here, &there, WRITE).await;
            assert_eq!(look(&here, "file").await.status.size, 14, "{writeback:?}: stat shows what was there before");
            let releasing = release_late(&here, closed);
            assert_eq!(content(&here, "file").await, b"new and longer", "{writeback:?}");
            releasing.await.expect("a release");
        });
    }
}

#[test]
fn what_is_written_anew_here_replaces_what_others_wrote_before_the_release() {
    for writeback in POLICIES {
        simulate(async {
            let world = two(writeback).await;
            let [here, there] = clients(&world);
            let closed = written_since(&here, &there, WRITE).await;
            let releasing = release_late(&here, closed);
            let file = open_as(&here, "file", OpenMode { truncate: true, ..WRITE }).await;
            write_and_flush(&here, file, b"newest").await;
            here.release(file);
            releasing.await.expect("a release");
            assert_eq!(content(&there, "file").await, b"newest", "{writeback:?}");
            assert_eq!(here.status().unsent_files, 0, "{writeback:?}: it was refused");
        });
    }
}

/// A shell does so with `exec 3>>file`, whose children close what they have inherited.
#[test]
fn what_stays_open_after_a_close_is_waited_for_once() {
    simulate(async {
        let world = two(Writeback::Sync).await;
        let [here, there] = clients(&world);
        let open = written_since(&here, &there, WRITE).await;
        assert_eq!(content(&here, "file").await, b"old", "a program that writes here goes on with what it has");
        let begun = Instant::now();
        assert_eq!(content(&here, "file").await, b"old");
        assert_eq!(look(&here, "file").await.status.size, 3, "stat shows what open gives");
        assert!(begun.elapsed() < SOON, "an open waited {:?} for a handle that is in use", begun.elapsed());
        here.release(open);
        assert_eq!(content(&here, "file").await, b"new and longer");
    });
}

/// The release of a handle comes when the next program has cut the file and not written it yet: others were shown that
/// it is empty. Found by `fleet::` above kernels, seed 10041 with kills.
#[test]
fn regression_10041_a_late_release_sends_nothing_that_is_being_written() {
    for before in [READ, WRITE] {
        simulate(async move {
            let world = World::start_several(1, 2, DELAY, false).await.expect("a world");
            let world = configured(world, |machine| machine.set_writeback(Writeback::Async)).await;
            let [here, there] = clients(&world);
            write_and_close(&here, "file", b"old".to_vec()).await;
            until_all_is_sent(&here).await;
            let late = open_as(&here, "file", before).await;
            here.flush(late).await.expect("a close");
            let file = open_as(&here, "file", OpenMode { truncate: true, ..WRITE }).await;
            here.release(late);
            sleep(Duration::from_secs(3)).await;
            assert_eq!(content(&there, "file").await, b"old", "{before:?}");
            here.write(file, 0, "new".into()).await.expect("a write");
            here.release(file);
            until_all_is_sent(&here).await;
            assert_eq!(content(&there, "file").await, b"new", "{before:?}");
        });
    }
}

/// The kernel releases a handle when close(2) has returned, and that waits for the server's word.
#[test]
fn a_close_that_waits_for_the_server_does_not_wait_for_its_own_release() {
    simulate(async {
        let world = two(Writeback::Sync).await;
        let [here, _] = clients(&world);
        let (_, file) = create(&here, "file").await;
        let begun = Instant::now();
        write_and_flush(&here, file, b"new").await;
        assert!(begun.elapsed() < 10 * DELAY, "it took {:?}", begun.elapsed());
        here.release(file);
    });
}
