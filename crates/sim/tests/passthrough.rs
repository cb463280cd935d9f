//! Passthrough: the kernel, which is the test here, reads and writes the containers of open files itself, and tells
//! nobody.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use mafs_client::vfs::{Attributes, OpenMode, Opened, SetTime, Vfs, Writeback};
use mafs_durable::{Disk, DiskFile};
use mafs_proto::{Mode, Timestamp, VnodeId};
use mafs_sim::{Crash, World};

use crate::support::{
    CALLER, MAKE, READ, WRITE, container_path, content, restart_client, simulate, until_all_is_sent, with_empty_cache,
    write_and_close,
};

async fn world() -> World {
    World::start_with(1, Duration::from_millis(50), true).await.expect("a world")
}

/// A new file, and its container.
async fn create(vfs: &Vfs, name: &'static str) -> (VnodeId, Opened, Arc<dyn DiskFile>) {
    let mode = Mode::from_bits(0o644);
    let made = vfs.create(VnodeId::ROOT, Bytes::from(name), mode, MAKE, CALLER).await;
    let (object, opened) = made.expect("a new file");
    assert!(opened.passthrough);
    (object.fid.vnode, opened, vfs.container(opened.file).expect("its container"))
}

async fn open(vfs: &Vfs, vnode: VnodeId, mode: OpenMode) -> (Opened, Arc<dyn DiskFile>) {
    let opened = vfs.open(vnode, mode, CALLER).await.expect("an open");
    (opened, vfs.container(opened.file).expect("its container"))
}

fn bytes_of(container: &dyn DiskFile) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(container.len().expect("a size")).expect("a small one")];
    let read = container.read_at(&mut bytes, 0).expect("a read");
    bytes.truncate(read);
    bytes
}

#[test]
fn what_the_kernel_wrote_is_on_the_server_when_the_file_is_closed() {
    simulate(async {
        let mut world = world().await;
        let vfs = world.client().clone();
        let (vnode, opened, container) = create(&vfs, "file").await;
        container.write_all_at(b"written", 0).expect("a write");
        vfs.flush(opened.file).await.expect("a close");
        assert_eq!(vfs.status().unsent_files, 0);
        container.write_all_at(b"again", 7).expect("a write through a mapping, after the close");
        vfs.release(opened.file);
        assert_eq!(vfs.status().unsent_files, 1, "nobody has looked at the container when the last mapping went");
        until_all_is_sent(&vfs).await;
        assert_eq!(vfs.get_attributes(vnode).await.expect("attributes").status.size, 12);
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "file").await, b"writtenagain");
    });
}

#[test]
fn invariant_1_what_is_written_after_a_store_survives_kill_9_of_the_daemon() {
    simulate(async {
        let mut world = world().await;
        let vfs = world.client().clone();
        let (_, opened, container) = create(&vfs, "file").await;
        container.write_all_at(b"first", 0).expect("a write");
        vfs.flush(opened.file).await.expect("a close of one of its descriptors");
        container.write_all_at(b"second", 0).expect("a write through another");
        world.crash_client(Crash::Kill);
        world.start_client().await.expect("the client starts");
        until_all_is_sent(world.client()).await;
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "file").await, b"second");
    });
}

#[test]
fn a_file_opened_for_writing_and_not_written_is_as_before() {
    simulate(async {
        let mut world = world().await;
        let vfs = world.client().clone();
        let vnode = write_and_close(&vfs, "file", vec![7; 100_000]).await;
        let before = vfs.get_attributes(vnode).await.expect("attributes");
        let calls = vfs.status().calls;
        let (opened, _) = open(&vfs, vnode, WRITE).await;
        vfs.flush(opened.file).await.expect("a close");
        vfs.release(opened.file);
        assert_eq!((vfs.status().calls, vfs.status().unsent_files), (calls, 0));
        assert_eq!(vfs.get_attributes(vnode).await.expect("attributes"), before);
        world.stop_client().await;
        world.start_client().await.expect("the client starts");
        let calls = world.client().status().calls;
        assert_eq!(content(world.client(), "file").await, vec![7; 100_000]);
        assert_eq!(world.client().status().calls, calls + 1, "the content was given up");
    });
}

#[test]
fn a_change_that_the_disk_refuses_is_none() {
    simulate(async {
        let world = world().await;
        let vfs = world.client().clone();
        let vnode = write_and_close(&vfs, "file", vec![7; 100_000]).await;
        let before = vfs.get_attributes(vnode).await.expect("attributes");
        let (opened, container) = open(&vfs, vnode, WRITE).await;
        let grow = Attributes { size: Some(1 << 45), ..Attributes::default() };
        vfs.set_attributes(vnode, grow, Some(opened.file), CALLER).await.expect_err("more than ext4 has in a file");
        vfs.flush(opened.file).await.expect("a close");
        assert_eq!(vfs.get_attributes(vnode).await.expect("attributes"), before);
        container.write_all_at(b"written", 0).expect("a write");
        vfs.flush(opened.file).await.expect("a close");
        vfs.release(opened.file);
        let after = vfs.get_attributes(vnode).await.expect("attributes");
        assert_eq!(after.status.size, 100_000);
        assert_ne!(after.status.mtime, before.status.mtime, "{after:?}");
    });
}

#[test]
fn stat_shows_what_the_kernel_writes_at_once() {
    simulate(async {
        let world = world().await;
        let vfs = world.client();
        let vnode = write_and_close(vfs, "file", b"12345".to_vec()).await;
        let closed = vfs.get_attributes(vnode).await.expect("attributes");
        assert!(vfs.time_to_live(&closed) > Duration::ZERO);
        let (opened, container) = open(vfs, vnode, WRITE).await;
        let opened_as = vfs.get_attributes(vnode).await.expect("attributes");
        assert_eq!(vfs.time_to_live(&opened_as), Duration::ZERO);
        let before = opened_as.status;
        container.write_all_at(b"678", 5).expect("a write");
        let after = vfs.get_attributes(vnode).await.expect("attributes").status;
        assert_eq!((before.size, after.size), (5, 8));
        assert_ne!(before.mtime, after.mtime);
        assert_eq!(vfs.status().unsent_bytes, 8);
        vfs.release(opened.file);
        let released = vfs.get_attributes(vnode).await.expect("attributes");
        assert!(vfs.time_to_live(&released) > Duration::ZERO);
    });
}

#[test]
fn a_time_that_is_set_after_the_last_write_stays() {
    simulate(async {
        let mut world = world().await;
        let vfs = world.client().clone();
        let (vnode, opened, container) = create(&vfs, "file").await;
        container.write_all_at(b"copied", 0).expect("a write");
        let mtime = Timestamp::new(1_000_000_000, 5).expect("a time");
        let set = Attributes { mtime: Some(SetTime::To(mtime)), ..Attributes::default() };
        vfs.set_attributes(vnode, set, Some(opened.file), CALLER).await.expect("futimens");
        vfs.flush(opened.file).await.expect("a close");
        vfs.release(opened.file);
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "file").await, b"copied");
        assert_eq!(world.client().get_attributes(vnode).await.expect("attributes").status.mtime, mtime);
    });
}

#[test]
fn invariant_4_a_file_the_kernel_writes_while_it_is_sent_is_never_stored_as_a_mixture() {
    simulate(async {
        let mut world = world().await;
        let vfs = world.client().clone();
        let (_, opened, container) = create(&vfs, "file").await;
        container.write_all_at(&vec![1; 5_000_000], 0).expect("the first version");
        vfs.flush(opened.file).await.expect("a close");
        container.write_all_at(&vec![2; 5_000_000], 0).expect("the second version");
        let closing = tokio::spawn({
            let vfs = vfs.clone();
            async move { vfs.flush(opened.file).await }
        });
        tokio::time::sleep(Duration::from_millis(180)).await;
        assert!(!closing.is_finished(), "the store should still be under way");
        container.write_all_at(&vec![3; 5_000_000], 0).expect("the third version");
        closing.await.expect("the task").expect("the close");
        // Nothing says which part of the third version was closed, but it is there whole or not at all.
        world.crash_client(Crash::Power);
        world.empty_cache();
        world.start_client().await.expect("the client starts");
        let seen = content(world.client(), "file").await;
        assert!([2, 3].iter().any(|version| seen == vec![*version; 5_000_000]), "a mixture");
    });
}

#[test]
fn invariant_4_a_time_that_is_set_while_a_file_is_sent_hides_no_write_of_the_kernel() {
    simulate(async {
        let mut world = world().await;
        let vfs = world.client().clone();
        let (vnode, opened, container) = create(&vfs, "file").await;
        container.write_all_at(&vec![1; 5_000_000], 0).expect("the first version");
        let closing = tokio::spawn({
            let vfs = vfs.clone();
            async move { vfs.flush(opened.file).await }
        });
        tokio::time::sleep(Duration::from_millis(180)).await;
        assert!(!closing.is_finished(), "the store should still be under way");
        container.write_all_at(&vec![2; 5_000_000], 0).expect("the second version");
        let mtime = Timestamp::new(1_000_000_000, 5).expect("a time");
        let set = Attributes { mtime: Some(SetTime::To(mtime)), ..Attributes::default() };
        vfs.set_attributes(vnode, set, Some(opened.file), CALLER).await.expect("futimens");
        closing.await.expect("the task").expect("the close");
        world.crash_client(Crash::Power);
        world.empty_cache();
        world.start_client().await.expect("the client starts");
        let seen = content(world.client(), "file").await;
        assert!([1, 2].iter().any(|version| seen == vec![*version; 5_000_000]), "a mixture");
    });
}

#[test]
fn a_file_that_the_kernel_never_stops_writing_is_stored_all_the_same() {
    simulate(async {
        let mut world = world().await;
        let vfs = world.client().clone();
        let (_, opened, container) = create(&vfs, "file").await;
        container.write_all_at(&vec![0; 3_000_000], 0).expect("a write");
        let writing = tokio::spawn({
            let container = Arc::clone(&container);
            async move {
                for round in 1..=2000u32 {
                    container.write_all_at(&round.to_le_bytes(), 1_000_000).expect("a write");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
        tokio::time::timeout(Duration::from_secs(9), vfs.flush(opened.file)).await.expect("in time").expect("a close");
        writing.await.expect("the writer");
        vfs.release(opened.file);
        until_all_is_sent(&vfs).await;
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "file").await[1_000_000..1_000_004], 2000u32.to_le_bytes());
    });
}

#[test]
fn invariant_1_a_program_that_outlives_the_daemon_changes_nothing_that_is_taken_up() {
    simulate(async {
        let mut world = world().await;
        let vfs = world.client().clone();
        let written = write_and_close(&vfs, "written", b"old".to_vec()).await;
        let untouched = write_and_close(&vfs, "untouched", b"as it was".to_vec()).await;
        for vnode in [written, untouched] {
            open(&vfs, vnode, WRITE).await;
        }
        let kept = |world: &World, vnode| world.client_disk().open(&container_path(world, vnode)).expect("a container");
        kept(&world, written).write_all_at(b"new", 0).expect("a write that nobody was told of");
        world.crash_client(Crash::Kill);
        let survivors = [written, untouched].map(|vnode| (container_path(&world, vnode), kept(&world, vnode)));
        world.start_client().await.expect("the client starts");
        for (_, survivor) in &survivors {
            survivor.write_all_at(b"late", 0).expect("a write after the end");
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        for (path, _) in survivors {
            assert!(world.client_disk().open(&path).is_err(), "its bytes stay, and nobody will remove them");
        }
        let vfs = world.client();
        until_all_is_sent(vfs).await;
        assert_eq!(content(vfs, "written").await, b"new");
        assert_eq!(content(vfs, "untouched").await, b"as it was");
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "written").await, b"new");
        assert_eq!(content(world.client(), "untouched").await, b"as it was");
    });
}

/// As above, of files that are logged when they are closed. Nobody can write to what was closed for good: it stays
/// where it is.
#[test]
fn invariant_1_a_program_that_outlives_the_daemon_changes_nothing_that_was_closed() {
    simulate(async {
        let mut world = World::start_with(1, Duration::from_millis(50), true).await.expect("a world");
        world.stop_client().await;
        world.machines_mut()[0].set_writeback(Writeback::Async);
        world.start_client().await.expect("the client starts");
        let vfs = world.client().clone();
        let (kept_open, opened, container) = create(&vfs, "open").await;
        container.write_all_at(b"first", 0).expect("a write");
        vfs.flush(opened.file).await.expect("a close of one of its descriptors");
        let (mode, write_only) = (Mode::from_bits(0o644), OpenMode { write: true, ..OpenMode::default() });
        let made = vfs.create(VnodeId::ROOT, Bytes::from("closed"), mode, write_only, CALLER).await;
        let (object, opened) = made.expect("a new file");
        let (closed, container) = (object.fid.vnode, vfs.container(opened.file).expect("its container"));
        container.write_all_at(b"closed", 0).expect("a write");
        vfs.flush(opened.file).await.expect("a close");
        vfs.release(opened.file);
        let (again, opened, container) = create(&vfs, "again").await;
        container.write_all_at(b"again", 0).expect("a write");
        vfs.flush(opened.file).await.expect("a close");
        vfs.release(opened.file);
        open(&vfs, again, WRITE).await;
        let (mapped, opened, container) = create(&vfs, "mapped").await;
        container.write_all_at(b"mapped", 0).expect("a write");
        vfs.flush(opened.file).await.expect("a close");
        let file = world.client_disk().open_file(&container_path(&world, mapped)).expect("a container");
        file.map(1).expect("a mapping");
        // The mapping outlives this.
        vfs.release(opened.file);
        drop(vfs);
        world.crash_client(Crash::Kill);
        let vnodes = [kept_open, closed, again, mapped];
        let paths = vnodes.map(|vnode| container_path(&world, vnode));
        let survivors =
            [&paths[0], &paths[2], &paths[3]].map(|path| world.client_disk().open(path).expect("a container"));
        world.start_client().await.expect("the client starts");
        let stays = paths.map(|path| world.client_disk().open(&path).is_ok());
        assert_eq!(stays, [false, true, false, false], "only what nobody can write to stays");
        for survivor in survivors {
            survivor.write_all_at(b"late", 0).expect("a write after the end");
        }
        let vfs = world.client().clone();
        vfs.sync().await.expect("a sync");
        for _ in 0..2 {
            for (name, expected) in [("open", "first"), ("closed", "closed"), ("again", "again"), ("mapped", "mapped")]
            {
                assert_eq!(content(world.client(), name).await, expected.as_bytes(), "{name}");
            }
            with_empty_cache(&mut world).await;
        }
    });
}

/// A copy is not lent: the next start does not copy it again.
#[test]
fn what_was_copied_once_stays_where_it_is() {
    simulate(async {
        let mut world = world().await;
        let vfs = world.client().clone();
        let (vnode, _, container) = create(&vfs, "file").await;
        container.write_all_at(b"written", 0).expect("a write");
        world.machines()[0].isolate();
        world.crash_client(Crash::Kill);
        let before = container_path(&world, vnode);
        world.machines()[0].restore_link();
        world.start_client().await.expect("the client starts");
        let copy = container_path(&world, vnode);
        assert_ne!(before, copy);
        world.crash_client(Crash::Kill);
        world.start_client().await.expect("the client starts");
        assert_eq!(container_path(&world, vnode), copy);
        until_all_is_sent(world.client()).await;
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "file").await, b"written");
    });
}

#[test]
fn what_was_fsynced_survives_a_power_loss() {
    simulate(async {
        let mut world = world().await;
        let vfs = world.client().clone();
        let vnode = write_and_close(&vfs, "file", b"old content".to_vec()).await;
        // Durable here, so that the log must say first that it changes.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let (opened, container) = open(&vfs, vnode, WRITE).await;
        container.write_all_at(b"new", 0).expect("a write");
        world.crash_server(Crash::Kill);
        vfs.fsync(opened.file).await.expect("an fsync");
        let base = vfs.get_attributes(vnode).await.expect("attributes").status.data_version;
        world.crash_client(Crash::Power);
        // fdatasync makes bytes durable, not times: a disk may well show the seal of the version before.
        let container = world.client_disk().open(&container_path(&world, vnode)).expect("the container");
        container.set_modified(UNIX_EPOCH + Duration::from_nanos(base.0)).expect("a time");
        world.start_server().expect("the server starts");
        world.start_client().await.expect("the client starts");
        assert_eq!(content(world.client(), "file").await, b"new content");
    });
}

const PIECE: usize = 4096;
const PIECES: usize = 16;

/// A new file that has no mapping which writes.
async fn create_to_write_only(vfs: &Vfs, name: &'static str) -> (Opened, Arc<dyn DiskFile>) {
    let (vnode, opened, _) = create(vfs, name).await;
    vfs.flush(opened.file).await.expect("a close");
    vfs.release(opened.file);
    open(vfs, vnode, OpenMode { write: true, ..OpenMode::default() }).await
}

/// Fills a container with as many writes as a loss of power can leave out, or leave by themselves.
fn fill(container: &dyn DiskFile, byte: u8) -> Vec<u8> {
    for piece in 0..PIECES {
        container.write_all_at(&[byte; PIECE], (piece * PIECE) as u64).expect("a write");
    }
    vec![byte; PIECE * PIECES]
}

async fn content_after_power_loss(mut world: World) -> Vec<u8> {
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.crash_client(Crash::Power);
    world.start_client().await.expect("the client starts");
    until_all_is_sent(world.client()).await;
    with_empty_cache(&mut world).await;
    content(world.client(), "file").await
}

#[test]
fn invariant_1_a_loss_of_power_does_not_replace_what_the_server_has_acknowledged() {
    for lives in 0..8 {
        simulate(async move {
            let mut world = world().await;
            restart_client(&mut world, lives).await;
            let vfs = world.client().clone();
            let (opened, container) = create_to_write_only(&vfs, "file").await;
            fill(container.as_ref(), 1);
            world.crash_server(Crash::Kill);
            vfs.flush(opened.file).await.expect_err("nobody answers, so it is made durable here");
            world.start_server().expect("the server starts");
            tokio::time::sleep(Duration::from_secs(60)).await;
            let stored = fill(container.as_ref(), 2);
            vfs.flush(opened.file).await.expect("a close of a descriptor that has a twin");
            drop((vfs, container));
            assert!(content_after_power_loss(world).await == stored, "after {lives} lives");
        });
    }
}

#[test]
fn invariant_1_what_the_kernel_writes_after_an_fsync_is_kept_by_a_close_that_fails() {
    for lives in 0..8 {
        simulate(async move {
            let mut world = world().await;
            restart_client(&mut world, lives).await;
            let vfs = world.client().clone();
            let (opened, container) = create_to_write_only(&vfs, "file").await;
            fill(container.as_ref(), 1);
            world.crash_server(Crash::Kill);
            // The client has noticed.
            tokio::time::sleep(Duration::from_secs(60)).await;
            vfs.fsync(opened.file).await.expect("an fsync here");
            let written = fill(container.as_ref(), 2);
            vfs.flush(opened.file).await.expect_err("nobody answers");
            world.start_server().expect("the server starts");
            drop((vfs, container));
            assert!(content_after_power_loss(world).await == written, "after {lives} lives");
        });
    }
}

/// A store is on its way, slowly; what is written and fsynced meanwhile survives a loss of power `after` the fsync.
async fn fsync_beside_a_store(after: Duration) {
    let mut world = World::start_with(1, Duration::from_millis(600), true).await.expect("a world");
    let vfs = world.client().clone();
    let (opened, container) = create_to_write_only(&vfs, "file").await;
    fill(container.as_ref(), 1);
    let closing = tokio::spawn({
        let vfs = vfs.clone();
        async move { vfs.flush(opened.file).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let fsynced = fill(container.as_ref(), 2);
    vfs.fsync(opened.file).await.expect("an fsync");
    tokio::time::sleep(after).await;
    drop((vfs, container));
    world.crash_client(Crash::Power);
    closing.abort();
    world.start_client().await.expect("the client starts");
    until_all_is_sent(world.client()).await;
    with_empty_cache(&mut world).await;
    assert!(content(world.client(), "file").await == fsynced, "power lost {after:?} later");
}

#[test]
fn invariant_1_an_fsync_beside_a_store_survives_a_loss_of_power() {
    for after in (0..4000).step_by(100) {
        simulate(fsync_beside_a_store(Duration::from_millis(after)));
    }
}

#[test]
fn an_inode_has_one_way_for_its_data_while_it_is_open() {
    simulate(async {
        let mut world = world().await;
        write_and_close(world.client(), "file", vec![1; 3_000_000]).await;
        with_empty_cache(&mut world).await;
        let vfs = world.client();
        let vnode = vfs.lookup(VnodeId::ROOT, Bytes::from("file")).await.expect("a name").fid.vnode;
        let open = async |mode| vfs.open(vnode, mode, CALLER).await.expect("an open");
        let cold = open(READ).await;
        assert!(!cold.passthrough, "it has not arrived yet");
        assert_eq!(vfs.read(cold.file, 0, 4_000_000).await.expect("a read"), vec![1; 3_000_000]);
        while vfs.status().fetching_files > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let joined = open(WRITE).await;
        assert!(!joined.passthrough);
        vfs.release(cold.file);
        vfs.release(joined.file);
        let warm = open(READ).await;
        assert!(warm.passthrough);
        let direct = open(OpenMode { direct: true, ..READ }).await;
        assert!(direct.passthrough);
        vfs.release(warm.file);
        vfs.release(direct.file);
        assert!(!open(OpenMode { direct: true, ..READ }).await.passthrough);
    });
}

#[test]
fn a_kernel_that_takes_no_container_gets_its_data_from_the_daemon() {
    simulate(async {
        let mut world = world().await;
        let vfs = world.client().clone();
        let (vnode, opened, _) = create(&vfs, "file").await;
        vfs.end_passthrough("not permitted");
        vfs.leave_passthrough(opened.file).expect("no container");
        vfs.write(opened.file, 0, Bytes::from_static(b"by the daemon")).await.expect("a write");
        assert!(!vfs.open(vnode, READ, CALLER).await.expect("an open").passthrough);
        vfs.flush(opened.file).await.expect("a close");
        vfs.release(opened.file);
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "file").await, b"by the daemon");
    });
}

#[test]
fn a_newer_version_comes_into_the_container_that_readers_have() {
    simulate(async {
        let mut world = world().await;
        let vfs = &world.client().clone();
        let newer: Vec<u8> = (0..700_000).map(|at| if (100_000..300_000).contains(&at) { 0 } else { 2 }).collect();
        let vnode = write_and_close(vfs, "file", vec![1; 800_000]).await;
        let (early, container) = open(vfs, vnode, READ).await;
        world.cut_link();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let other = world.add_client().await.expect("the volume is free");
        let set = OpenMode { truncate: true, ..WRITE };
        let theirs = other.open(vnode, set, CALLER).await;
        let theirs = match theirs {
            Ok(theirs) => theirs,
            Err(_) => {
                other.lookup(VnodeId::ROOT, Bytes::from("file")).await.expect("a name");
                other.open(vnode, set, CALLER).await.expect("an open")
            }
        };
        other.container(theirs.file).expect("a container").write_all_at(&newer, 0).expect("a write");
        other.flush(theirs.file).await.expect("a close");
        other.release(theirs.file);
        other.shut_down().await;
        let reading = tokio::spawn({
            let container = Arc::clone(&container);
            async move {
                // Bytes of either version, and no end before them.
                while bytes_of(container.as_ref()).get(699_999).is_some_and(|byte| [1, 2].contains(byte)) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(bytes_of(container.as_ref()), newer, "it does not come by itself");
        let (late, _) = open(vfs, vnode, READ).await;
        assert!(late.passthrough);
        assert!(!reading.is_finished(), "a reader saw neither the one version nor the other");
        reading.abort();
        vfs.release(early.file);
        vfs.release(late.file);
    });
}

#[test]
fn files_that_grow_past_the_limits_send_new_writers_to_the_daemon() {
    simulate(async {
        let world = world().await;
        let vfs = world.client();
        let limit = vfs.status().cache_limit_bytes;
        write_and_close(vfs, "old", vec![1; 10_000]).await;
        let (_, opened, container) = create(vfs, "large").await;
        container.write_all_at(&vec![2; usize::try_from(limit).expect("small") + 1], 0).expect("a write");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let status = vfs.status();
        assert_eq!((status.cache_files, status.cache_bytes), (1, limit + 1), "clean files make room");
        let mode = Mode::from_bits(0o644);
        let made = vfs.create(VnodeId::ROOT, Bytes::from("new"), mode, MAKE, CALLER).await;
        assert!(!made.expect("a new file").1.passthrough);
        vfs.release(opened.file);
    });
}
