//! Writing back in the background, most of it with `writeback=async`: a close returns at once, and the server gets
//! everything in the end, in an order that shows nobody what was not so.

use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::link::Profile;
use mafs_client::vfs::{Attributes, Error, Fsync, Vfs, Writeback};
use mafs_proto::{FsError, Mode, VnodeId};
use mafs_sim::{Crash, Path, World};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::{
    CALLER, MAKE, READ, WRITE, content, create, open_as, overwrite, rename, simulate, with_empty_cache, write_and_close,
};

/// The most that a call takes that waits for nobody: virtual time passes only while somebody waits.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Room of the server beside the reserve for its journal, and the content that fits once.
const ROOM: u64 = (64 << 20) + 10_000_000;
const MOST: usize = 6_000_000;

/// One client over a link of 1 MB/s, 300 ms there and back, in the background.
async fn far_world() -> World {
    let link = Profile::steady(1_000_000, Duration::from_millis(150));
    background(World::start_over(1, vec![Path::Link(Box::new(link))], false).await.expect("a world")).await
}

/// A writer over a link of 100 KB/s, and a reader near the server, in the background.
async fn slow_writer_and_near_reader() -> World {
    let link = Profile::steady(100_000, Duration::from_millis(20));
    let paths = vec![Path::Link(Box::new(link)), Path::Delay(Duration::from_millis(5))];
    background(World::start_over(1, paths, false).await.expect("a world")).await
}

async fn near_world(clients: usize, passthrough: bool) -> World {
    let delay = Duration::from_millis(10);
    background(World::start_several(1, clients, delay, passthrough).await.expect("a world")).await
}

async fn background(world: World) -> World {
    with_writeback(world, Writeback::Async).await
}

async fn with_writeback(mut world: World, writeback: Writeback) -> World {
    for machine in world.machines_mut() {
        machine.stop().await;
        machine.set_writeback(writeback);
        machine.set_fsync(Fsync::Local);
        machine.start().await.expect("a client");
    }
    world
}

async fn is_there(vfs: &Vfs, name: &'static str) -> bool {
    match vfs.lookup(VnodeId::ROOT, Bytes::from(name)).await {
        Ok(_) => true,
        Err(Error::Refused(FsError::NotFound)) => false,
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn a_close_waits_for_nobody_and_what_was_closed_is_there_at_once() {
    simulate(async {
        let world = far_world().await;
        let vfs = world.client().clone();
        assert!(!is_there(&vfs, "a").await);
        let begun = Instant::now();
        write_and_close(&vfs, "a", vec![7; 500_000]).await;
        rename(&vfs, "a", "b").await.expect("a rename");
        overwrite(&vfs, "b", vec![8; 500_000]).await;
        assert_eq!(content(&vfs, "b").await, vec![8; 500_000]);
        assert!(!is_there(&vfs, "a").await);
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
        let status = vfs.status();
        assert_eq!((status.unsent_files, status.unsent_bytes, status.unsent_changes), (1, 500_000, 2));
        vfs.sync().await.expect("a sync");
        let status = vfs.status();
        assert_eq!((status.unsent_files, status.unsent_bytes, status.unsent_changes), (0, 0, 0));
        let mut world = world;
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "b").await, vec![8; 500_000]);
    });
}

/// Part 5, line 4.
#[test]
fn a_thousand_files_are_replayed_as_fast_as_the_link_takes_them() {
    const FILES: u32 = 1000;
    const BYTES: u32 = 4096;
    simulate(async {
        let world = far_world().await;
        let vfs = world.client().clone();
        assert!(!is_there(&vfs, "before").await);
        let content = [1; BYTES as usize].to_vec();
        let begun = Instant::now();
        for number in 0..FILES {
            let (name, mode) = (Bytes::from(format!("f{number}")), Mode::from_bits(0o644));
            let made = vfs.create(VnodeId::ROOT, name, mode, MAKE, CALLER).await;
            let (_, opened) = made.expect("a file");
            vfs.write(opened.file, 0, content.clone().into()).await.expect("a write");
            vfs.flush(opened.file).await.expect("a close");
            vfs.release(opened.file);
        }
        let closed = begun.elapsed();
        vfs.sync().await.expect("a sync");
        let sent = begun.elapsed();
        let limit = Duration::from_secs_f64(1.2 * f64::from(FILES * BYTES) / 1e6 + 5.0 * 0.3);
        println!("closed after {closed:?}, on the server after {sent:?} (limit {limit:?})");
        assert!(closed < Duration::from_millis(700), "a round trip or two for fids: {closed:?}");
        assert!(sent <= limit, "{sent:?} of {limit:?}");
    });
}

#[test]
fn what_waits_survives_a_restart_and_is_sent_by_the_next_life() {
    for crash in [Crash::Kill, Crash::Power] {
        simulate(async {
            let mut world = far_world().await;
            let vfs = world.client().clone();
            assert!(!is_there(&vfs, "d").await);
            write_and_close(&vfs, "draft", vec![3; 200_000]).await;
            rename(&vfs, "draft", "d").await.expect("a rename");
            overwrite(&vfs, "d", vec![4; 200_000]).await;
            tokio::time::sleep(Duration::from_millis(1100)).await;
            world.crash_client(crash);
            world.start_client().await.expect("the client starts");
            let vfs = world.client().clone();
            assert_eq!(content(&vfs, "d").await, vec![4; 200_000], "{crash:?}");
            assert!(!is_there(&vfs, "draft").await);
            vfs.sync().await.expect("a sync");
            with_empty_cache(&mut world).await;
            assert_eq!(content(world.client(), "d").await, vec![4; 200_000], "{crash:?}");
        });
    }
}

/// consistency.md: "A logged version is immutable until acknowledged".
#[test]
fn invariant_4_a_file_that_is_edited_while_it_is_sent_goes_as_one_version_and_then_the_other() {
    for writeback in [Writeback::Async, Writeback::Sirp, Writeback::SirpC] {
        for passthrough in [false, true] {
            simulate(edit_while_it_is_sent(writeback, passthrough));
        }
    }
}

async fn edit_while_it_is_sent(writeback: Writeback, passthrough: bool) {
    let link = Profile::steady(200_000, Duration::from_millis(20));
    let paths = vec![Path::Link(Box::new(link)), Path::Delay(Duration::from_millis(5))];
    let world = World::start_over(1, paths, passthrough).await.expect("a world");
    let world = with_writeback(world, writeback).await;
    let (writer, reader) = (world.machines()[0].client().clone(), world.machines()[1].client().clone());
    let versions = [vec![0; 10], vec![1; 300_000], [vec![2; 200_000], vec![1; 100_000]].concat()];
    write_and_close(&writer, "f", versions[0].clone()).await;
    writer.sync().await.expect("a sync");
    let polling = poll(reader.clone(), versions.clone());
    overwrite(&writer, "f", versions[1].clone()).await;
    let file = open_as(&writer, "f", WRITE).await;
    for step in 0..40u64 {
        let at = step * 5000;
        let container = writer.container(file).expect("a container");
        match passthrough {
            true => container.write_all_at(&[2; 5000], at).expect("a write of the kernel"),
            false => writer.write(file, at, vec![2; 5000].into()).await.expect("a write"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    writer.flush(file).await.expect("a close");
    writer.release(file);
    writer.sync().await.expect("a sync");
    let mut seen = polling.await.expect("a reader");
    seen.dedup();
    // With announcements the version before may be gone when the reader first looks.
    assert!(seen == [0, 1, 2] || seen == [1, 2], "{writeback:?}: {seen:?}");
}

/// Opens and reads `f` again and again, until it is the last of these versions. Returns which it was each time.
fn poll(reader: Vfs, versions: [Vec<u8>; 3]) -> JoinHandle<Vec<usize>> {
    tokio::spawn(async move {
        let mut seen = Vec::new();
        while seen.last() != Some(&2) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let bytes = content(&reader, "f").await;
            seen.push(versions.iter().position(|version| *version == bytes).expect("a version, and no mixture"));
        }
        seen
    })
}

/// A client that makes a name that must be new asks the server; so of several clients one wins.
#[test]
fn what_must_have_one_winner_is_asked_of_the_server() {
    simulate(async {
        let world = near_world(3, false).await;
        let clients: Vec<Vfs> = world.machines().iter().map(|machine| machine.client().clone()).collect();
        for client in &clients {
            assert!(!is_there(client, "lock").await);
        }
        let exclusive = |vfs: Vfs| async move {
            let mode = mafs_client::vfs::OpenMode { exclusive: true, ..WRITE };
            let (name, permissions) = (Bytes::from("lock"), Mode::from_bits(0o600));
            vfs.create(VnodeId::ROOT, name, permissions, mode, CALLER).await.map(drop)
        };
        let tries: Vec<_> = clients.iter().map(|client| tokio::spawn(exclusive(client.clone()))).collect();
        let mut won = 0;
        for attempt in tries {
            match attempt.await.expect("a task") {
                Ok(()) => won += 1,
                Err(Error::Refused(FsError::Exists)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(won, 1);
    });
}

/// consistency.md: "fsync orders: no other client ever shows an update made after fsync() returned without what was
/// fsynced".
#[test]
fn nothing_overtakes_what_was_fsynced_before_it() {
    simulate(async {
        let world = slow_writer_and_near_reader().await;
        let (writer, reader) = (world.machines()[0].client().clone(), world.machines()[1].client().clone());
        assert!(!is_there(&writer, "database").await);
        write_and_close(&writer, "journal", vec![1; 300_000]).await;
        let file = open_as(&writer, "journal", WRITE).await;
        writer.fsync(file).await.expect("an fsync");
        writer.release(file);
        create(&writer, "database").await;
        let mut journal = 0;
        for _ in 0..100 {
            if is_there(&reader, "database").await {
                journal = content(&reader, "journal").await.len();
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(journal, 300_000, "the database is there without its journal");
    });
}

/// Git does so when it packs: content that was fsynced while it was open, and the name it gets, are there before what
/// comes after is.
#[test]
fn nothing_overtakes_what_was_fsynced_before_its_close_nor_its_name() {
    simulate(async {
        let world = slow_writer_and_near_reader().await;
        let (writer, reader) = (world.machines()[0].client().clone(), world.machines()[1].client().clone());
        write_and_close(&writer, "object", vec![1; 1000]).await;
        writer.sync().await.expect("a sync");
        let (_, file) = create(&writer, "draft").await;
        writer.write(file, 0, vec![1; 300_000].into()).await.expect("a write");
        writer.fsync(file).await.expect("an fsync");
        writer.flush(file).await.expect("a close");
        writer.release(file);
        rename(&writer, "draft", "pack").await.expect("a rename");
        writer.unlink(VnodeId::ROOT, Bytes::from("object"), CALLER).await.expect("an unlink");
        let mut waited = 0;
        while is_there(&reader, "object").await {
            waited += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(waited > 10, "the object has gone before its pack can have come");
        assert_eq!(content(&reader, "pack").await.len(), 300_000);
    });
}

/// Programs replace a file by renaming another over it, and few of them fsync that.
#[test]
fn a_file_that_is_replaced_by_a_rename_is_never_empty() {
    simulate(async {
        let world = slow_writer_and_near_reader().await;
        let (writer, reader) = (world.machines()[0].client().clone(), world.machines()[1].client().clone());
        write_and_close(&writer, "f", vec![0; 10]).await;
        writer.sync().await.expect("a sync");
        let polling = poll(reader, [vec![0; 10], vec![1; 1000], vec![2; 300_000]]);
        write_and_close(&writer, "draft", vec![2; 300_000]).await;
        rename(&writer, "draft", "f").await.expect("a rename");
        let seen = polling.await.expect("a reader");
        assert!(seen.len() > 10, "the rename has come before the content can have: {seen:?}");
    });
}

/// Content that the server has no room for stays in the log, and what depends on it waits: an empty file never takes
/// the place of the old one.
#[test]
fn a_full_server_delays_and_loses_nothing() {
    simulate(async {
        let mut world = near_world(2, false).await;
        let (writer, reader) = (world.machines()[0].client().clone(), world.machines()[1].client().clone());
        write_and_close(&writer, "f", vec![1; 1000]).await;
        writer.sync().await.expect("a sync");
        world.limit_server_disk(1000).expect("a full disk");
        // There was room when the server was asked.
        write_and_close(&writer, "draft", vec![2; 50_000]).await;
        rename(&writer, "draft", "f").await.expect("a rename");
        let refused = writer.sync().await;
        assert!(matches!(refused, Err(Error::Refused(FsError::NoSpace))), "{refused:?}");
        assert_eq!(content(&reader, "f").await, vec![1; 1000]);
        assert_eq!(content(&writer, "f").await, vec![2; 50_000]);
        world.limit_server_disk(1 << 30).expect("room");
        tokio::time::sleep(Duration::from_secs(120)).await;
        writer.sync().await.expect("a sync");
        assert_eq!(content(&reader, "f").await, vec![2; 50_000]);
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "f").await, vec![2; 50_000]);
    });
}

/// consistency.md, "Refusals": writers are told once what is not sent exceeds the room.
#[test]
fn who_writes_more_than_the_server_has_room_for_is_told_by_close() {
    simulate(async {
        let world = far_world().await;
        let vfs = world.client().clone();
        world.limit_server_disk(ROOM).expect("a disk");
        write_and_close(&vfs, "known", Vec::new()).await;
        vfs.space().await.expect("the server's room");
        let begun = Instant::now();
        write_and_close(&vfs, "kept", vec![1; MOST]).await;
        assert!(begun.elapsed() < AT_ONCE, "there is room for it: {:?}", begun.elapsed());

        let (_, file) = create(&vfs, "refused").await;
        vfs.write(file, 0, vec![2; MOST].into()).await.expect("a write");
        let refused = vfs.flush(file).await;
        assert!(matches!(refused, Err(Error::Refused(FsError::NoSpace))), "{refused:?}");
        vfs.release(file);
        assert_eq!(content(&vfs, "refused").await, vec![2; MOST], "it stays here");
        let begun = Instant::now();
        write_and_close(&vfs, "small", vec![3; 10_000]).await;
        assert!(begun.elapsed() < AT_ONCE, "there is room for it: {:?}", begun.elapsed());

        world.limit_server_disk(ROOM).expect("room");
        tokio::time::sleep(Duration::from_secs(60)).await;
        vfs.sync().await.expect("there is room now");
        let mut world = world;
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "refused").await, vec![2; MOST]);
        assert_eq!(content(world.client(), "small").await, vec![3; 10_000]);
    });
}

/// One file that does not fit holds nothing else up, and is tried again when something is removed.
#[test]
fn what_the_server_has_no_room_for_delays_nothing_else_and_follows_a_removal() {
    simulate(async {
        let world = far_world().await;
        let vfs = world.client().clone();
        write_and_close(&vfs, "old", vec![1; 1000]).await;
        vfs.sync().await.expect("a sync");
        world.limit_server_disk(ROOM - MOST as u64).expect("a disk");
        let (_, file) = create(&vfs, "refused").await;
        vfs.write(file, 0, vec![2; MOST].into()).await.expect("a write");
        vfs.sync().await.expect_err("there is no room");
        vfs.release(file);
        // By now it is tried once in a minute.
        tokio::time::sleep(Duration::from_secs(300)).await;
        write_and_close(&vfs, "small", vec![3; 10_000]).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(vfs.status().log.records, 1, "{:?}", vfs.status());
        world.limit_server_disk(ROOM).expect("room");
        vfs.unlink(VnodeId::ROOT, Bytes::from("old"), CALLER).await.expect("a removal");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(vfs.status().unsent_files, 0, "{:?}", vfs.status());
    });
}

/// A content whose close was refused for want of room holds nothing up either; it is made durable here at once.
#[test]
fn what_a_close_was_told_does_not_fit_holds_nothing_up() {
    simulate(async {
        let world = near_world(1, false).await;
        let vfs = world.client().clone();
        world.limit_server_disk(ROOM - MOST as u64).expect("a disk");
        vfs.space().await.expect("the server's room");
        let (_, file) = create(&vfs, "refused").await;
        vfs.write(file, 0, vec![1; MOST].into()).await.expect("a write");
        vfs.flush(file).await.expect_err("there is no room");
        vfs.release(file);
        write_and_close(&vfs, "small", vec![2; 10_000]).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(vfs.status().log.records, 1, "{:?}", vfs.status());
    });
}

/// The user removes the file that the full server has no room for.
#[test]
fn what_did_not_fit_holds_nothing_up_once_it_is_removed() {
    simulate(async {
        let world = far_world().await;
        let vfs = world.client().clone();
        world.limit_server_disk(ROOM - MOST as u64).expect("a disk");
        vfs.space().await.expect("the server's room");
        let (_, file) = create(&vfs, "big").await;
        vfs.write(file, 0, vec![1; MOST].into()).await.expect("a write");
        vfs.flush(file).await.expect_err("there is no room");
        vfs.release(file);
        vfs.unlink(VnodeId::ROOT, Bytes::from("big"), CALLER).await.expect("a removal");
        write_and_close(&vfs, "small", vec![2; 10_000]).await;
        vfs.sync().await.expect("a sync");
        let status = vfs.status();
        assert_eq!((status.log.records, status.unsent_files, status.refused.len()), (0, 0, 0), "{status:?}");
        let mut world = world;
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "small").await, vec![2; 10_000]);
        assert!(!is_there(world.client(), "big").await);
    });
}

/// The state known here says that there is no room, but the server is asked, and has some since.
#[test]
fn a_close_that_may_not_fit_is_done_when_the_server_has_it() {
    simulate(async {
        let world = far_world().await;
        let vfs = world.client().clone();
        world.limit_server_disk(ROOM - MOST as u64).expect("a disk");
        vfs.space().await.expect("the server's room");
        world.limit_server_disk(ROOM).expect("more room");
        write_and_close(&vfs, "new", vec![2; MOST]).await;
        assert_eq!(vfs.status().unsent_files, 0, "the close has waited for it");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let begun = Instant::now();
        write_and_close(&vfs, "small", vec![3; 10_000]).await;
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    });
}

/// The file's bytes leave the disk behind the log, but at once if they are needed.
#[test]
fn what_was_removed_is_not_in_the_way_on_a_small_disk() {
    simulate(async {
        let world = far_world().await;
        let vfs = world.client().clone();
        world.limit_client_disk(3_000_000).expect("a disk");
        for _ in 0..5 {
            write_and_close(&vfs, "temporary", vec![1; 2_000_000]).await;
            vfs.unlink(VnodeId::ROOT, Bytes::from("temporary"), CALLER).await.expect("a removal");
        }
    });
}

/// consistency.md, "Optimiser".
#[test]
fn what_is_removed_before_it_was_sent_is_never_sent() {
    simulate(async {
        let world = near_world(1, false).await;
        let vfs = world.client().clone();
        assert!(!is_there(&vfs, "temporary").await);
        world.machines()[0].isolate();
        tokio::time::sleep(Duration::from_secs(1)).await;
        for _ in 0..10 {
            write_and_close(&vfs, "temporary", vec![1; 100_000]).await;
            vfs.unlink(VnodeId::ROOT, Bytes::from("temporary"), CALLER).await.expect("an unlink");
        }
        let status = vfs.status();
        assert_eq!((status.unsent_files, status.unsent_changes), (0, 0), "{status:?}");
        let vnode = write_and_close(&vfs, "kept", vec![2; 1000]).await;
        for mode in [0o600, 0o640, 0o644] {
            overwrite(&vfs, "kept", vec![3; 2000]).await;
            let set = Attributes { mode: Some(Mode::from_bits(mode)), ..Attributes::default() };
            vfs.set_attributes(vnode, set, None, CALLER).await.expect("a chmod");
            vfs.set_attributes(vnode, set, None, CALLER).await.expect("a chmod");
        }
        assert!(vfs.status().unsent_changes <= 4, "{:?}", vfs.status());
        world.machines()[0].restore_link();
        vfs.sync().await.expect("a sync");
        let mut world = world;
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "kept").await, vec![3; 2000]);
    });
}

/// Otherwise others find an empty file by that name until the removal comes, and after a crash for good.
#[test]
fn a_content_that_took_a_name_is_sent_though_what_has_the_name_is_removed_before() {
    for restarts in [false, true] {
        simulate(async {
            let link = Path::Link(Box::new(Profile::steady(8_000, Duration::from_millis(20))));
            let paths = vec![link, Path::Delay(Duration::from_millis(1))];
            let mut world = background(World::start_over(1, paths, false).await.expect("a world")).await;
            let vfs = world.client().clone();
            write_and_close(&vfs, "note", vec![1; 100]).await;
            vfs.sync().await.expect("a sync");
            world.machines()[0].isolate();
            write_and_close(&vfs, "tmp", vec![2; 2000]).await;
            rename(&vfs, "tmp", "note").await.expect("a rename");
            vfs.unlink(VnodeId::ROOT, Bytes::from("note"), CALLER).await.expect("a removal");
            world.machines()[0].restore_link();
            if restarts {
                world.crash_client(Crash::Kill);
                world.start_client().await.expect("the client starts");
            }
            let reader = world.machines()[1].client();
            while let Ok(object) = reader.lookup(VnodeId::ROOT, Bytes::from("note")).await {
                // The file may be gone by now.
                if let Ok(opened) = reader.open(object.fid.vnode, READ, CALLER).await {
                    let seen = reader.read(opened.file, 0, u32::MAX / 2).await.expect("a read");
                    reader.release(opened.file);
                    let is_whole = seen[..] == [1; 100] || seen[..] == [2; 2000];
                    assert!(is_whole, "{} bytes, restarted: {restarts}", seen.len());
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            world.client().sync().await.expect("a sync");
            assert_eq!(world.client().status().refused, []);
        });
    }
}

/// The server's word counts: a name that another client took first is that client's, the object that this one made is
/// kept beside it, and what cannot be done at all is listed until somebody acts.
#[test]
fn a_name_that_another_client_took_first_is_kept_beside_it() {
    simulate(async {
        let mut world = near_world(2, false).await;
        let (late, quick) = (world.machines()[0].client().clone(), world.machines()[1].client().clone());
        let mode = Mode::from_bits(0o755);
        late.make_dir(VnodeId::ROOT, Bytes::from("d"), mode, CALLER).await.expect("a directory");
        late.sync().await.expect("a sync");
        assert!(!is_there(&late, "f").await);
        world.machines()[0].isolate();
        write_and_close(&late, "f", vec![1; 1000]).await;
        late.remove_dir(VnodeId::ROOT, Bytes::from("d"), CALLER).await.expect("a removal");
        tokio::time::sleep(Duration::from_secs(1)).await;
        write_and_close(&quick, "f", vec![2; 2000]).await;
        let made = quick.lookup(VnodeId::ROOT, Bytes::from("d")).await.expect("a directory");
        let (_, opened) = quick.create(made.fid.vnode, Bytes::from("x"), mode, MAKE, CALLER).await.expect("a file");
        quick.release(opened.file);
        quick.sync().await.expect("a sync");
        world.machines()[0].restore_link();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(content(&late, "f").await, vec![2; 2000]);
        let conflicts = late.conflicts().await.expect("the conflicts");
        let [kept] = &conflicts[..] else { panic!("{conflicts:?}") };
        assert_eq!(kept.mine_now.as_ref().map(|mine| mine.status.size), Some(1000));
        let refused = late.status().refused;
        assert!(refused.iter().any(|(what, _)| what.ends_with("remove /d") || what == "remove d"), "{refused:?}");
        write_and_close(&late, "g", vec![3; 10]).await;
        late.sync().await.ok();
        assert_eq!(content(&quick, "g").await, vec![3; 10]);
        world.crash_client(Crash::Kill);
        world.start_client().await.expect("the client starts");
        let again = world.client().clone();
        assert_eq!(again.conflicts().await.expect("the conflicts"), conflicts);
        assert_eq!(again.status().refused.len(), 1, "it is listed until somebody acts");
        assert_eq!(again.dismiss_refused(b"d"), 1);
        assert!(again.status().refused.is_empty());
    });
}

#[test]
fn what_is_made_here_is_listed_read_and_removed_without_the_server() {
    simulate(async {
        let world = near_world(1, false).await;
        let vfs = world.client().clone();
        assert!(!is_there(&vfs, "d").await);
        let mode = Mode::from_bits(0o755);
        let made = vfs.make_dir(VnodeId::ROOT, Bytes::from("d"), mode, CALLER).await;
        let directory = made.expect("a directory").fid.vnode;
        vfs.sync().await.expect("a sync");
        world.machines()[0].isolate();
        let begun = Instant::now();
        for name in ["x", "y", "z"] {
            let made = vfs.create(directory, Bytes::from(name), mode, MAKE, CALLER).await;
            vfs.release(made.expect("a file").1.file);
        }
        vfs.unlink(directory, Bytes::from("y"), CALLER).await.expect("an unlink");
        let page = vfs.read_dir_plus(directory, 0, 100).await.expect("a listing");
        let names: Vec<_> = page.entries.iter().map(|entry| entry.entry.name.clone()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        let status = vfs.get_attributes(directory).await.expect("a status").status;
        assert_eq!(status.size, 2);
        let empty = vfs.lookup(directory, Bytes::from("x")).await.expect("a name");
        let file = vfs.open(empty.fid.vnode, READ, CALLER).await.expect("an open").file;
        assert_eq!(vfs.read(file, 0, 10).await.expect("a read"), Bytes::new());
        vfs.release(file);
        let refused = vfs.remove_dir(VnodeId::ROOT, Bytes::from("d"), CALLER).await;
        assert!(matches!(refused, Err(Error::Refused(FsError::NotEmpty))), "{refused:?}");
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
        world.machines()[0].restore_link();
        vfs.sync().await.expect("a sync");
    });
}
