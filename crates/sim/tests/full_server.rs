//! A server without room, and programs that save by a temporary file, with what waits announced: others are shown what
//! the server has, and what is removed again is not sent.

use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Error, Fsync, Vfs, Writeback};
use mafs_proto::{FsError, VnodeId};
use mafs_sim::{Crash, World};
use tokio::time::Instant;

use crate::support::{CALLER, content, rename, simulate, with_empty_cache, write_and_close};

/// Room of the server, beside the reserve for its journal: less than [`BIG`].
const ROOM: u64 = (64 << 20) + 4_000_000;
const BIG: usize = 6_000_000;

/// The most that a question takes that waits for nothing but the server and, once, for the other client.
const SOON: Duration = Duration::from_secs(1);

/// A writer and a reader near the server, where there is one file.
async fn world_with_a_file() -> World {
    let mut world = World::start_several(1, 2, Duration::from_millis(10), false).await.expect("a world");
    for machine in world.machines_mut() {
        machine.stop().await;
        machine.set_writeback(Writeback::Sirp);
        machine.set_fsync(Fsync::Local);
        machine.start().await.expect("a client");
    }
    let writer = world.machines()[0].client().clone();
    write_and_close(&writer, "doc", vec![1; 1000]).await;
    writer.sync().await.expect("a sync");
    world
}

fn both(world: &World) -> [Vfs; 2] {
    [0, 1].map(|at| world.machines()[at].client().clone())
}

async fn names(vfs: &Vfs) -> Vec<Bytes> {
    let mut names = crate::support::names(vfs, VnodeId::ROOT).await.expect("names");
    names.sort_unstable();
    names
}

/// Saves a file as editors do.
async fn save(vfs: &Vfs, bytes: usize) {
    write_and_close(vfs, "doc.new", vec![2; bytes]).await;
    rename(vfs, "doc.new", "doc").await.expect("a rename");
}

async fn remove(vfs: &Vfs, name: &'static str) {
    vfs.unlink(VnodeId::ROOT, Bytes::from(name), CALLER).await.expect("a removal");
}

#[test]
fn others_are_shown_what_a_full_server_has() {
    simulate(async {
        let mut world = world_with_a_file().await;
        let [writer, reader] = both(&world);
        world.limit_server_disk(ROOM).expect("a disk");
        save(&writer, BIG).await;
        let refused = writer.sync().await;
        assert!(matches!(refused, Err(Error::Refused(FsError::NoSpace))), "{refused:?}");
        for _ in 0..3 {
            let begun = Instant::now();
            assert_eq!(names(&reader).await, ["doc", "doc.new"]);
            assert_eq!(content(&reader, "doc").await, vec![1; 1000]);
            assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        }
        world.limit_server_disk(1 << 30).expect("room");
        tokio::time::sleep(Duration::from_secs(120)).await;
        writer.sync().await.expect("a sync");
        assert_eq!(names(&reader).await, ["doc"]);
        assert_eq!(content(&reader, "doc").await, vec![2; BIG]);
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "doc").await, vec![2; BIG]);
    });
}

#[test]
fn what_did_not_fit_is_renamed_and_removed_and_holds_nothing_up() {
    simulate(async {
        let mut world = world_with_a_file().await;
        let [writer, reader] = both(&world);
        world.limit_server_disk(ROOM).expect("a disk");
        save(&writer, BIG).await;
        writer.sync().await.expect_err("there is no room");
        remove(&writer, "doc").await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        for vfs in [&writer, &reader] {
            assert!(names(vfs).await.is_empty(), "{:?}", names(vfs).await);
        }
        let status = writer.status();
        assert_eq!((status.log.records, status.unsent_files, status.refused.len()), (0, 0, 0), "{status:?}");
        with_empty_cache(&mut world).await;
        assert!(names(world.client()).await.is_empty());
    });
}

/// There is room here, and a queue that is sent when all of it has been done.
#[test]
fn what_is_renamed_and_removed_before_it_is_sent_is_not_sent() {
    for replaces in [false, true] {
        simulate(async move {
            let mut world = world_with_a_file().await;
            let [writer, reader] = both(&world);
            if !replaces {
                remove(&writer, "doc").await;
                writer.sync().await.expect("a sync");
            }
            writer.set_paused(true);
            save(&writer, 5_000_000).await;
            remove(&writer, "doc").await;
            for vfs in [&writer, &reader] {
                assert!(names(vfs).await.is_empty(), "{:?}", names(vfs).await);
            }
            assert_eq!(writer.status().unsent_files, 0, "{:?}", writer.status());
            // Names that are free again.
            write_and_close(&writer, "doc.new", vec![3; 10]).await;
            write_and_close(&writer, "doc", vec![4; 10]).await;
            writer.set_paused(false);
            writer.sync().await.expect("a sync");
            assert_eq!(names(&reader).await, ["doc", "doc.new"]);
            assert_eq!(content(&reader, "doc").await, vec![4; 10]);
            with_empty_cache(&mut world).await;
            assert_eq!(names(world.client()).await, ["doc", "doc.new"]);
            assert_eq!(content(world.client(), "doc.new").await, vec![3; 10]);
        });
    }
}

/// A removed name stays so when the client is killed with all of that in its log.
#[test]
fn what_was_renamed_and_removed_does_not_come_back_after_a_kill() {
    simulate(async {
        let mut world = world_with_a_file().await;
        let [writer, reader] = both(&world);
        writer.set_paused(true);
        save(&writer, 100_000).await;
        remove(&writer, "doc").await;
        drop(writer);
        world.crash_client(Crash::Kill);
        world.machines_mut()[0].start().await.expect("a client");
        let writer = world.machines()[0].client().clone();
        writer.sync().await.expect("a sync");
        for vfs in [&writer, &reader] {
            assert!(names(vfs).await.is_empty(), "{:?}", names(vfs).await);
        }
    });
}
