//! Failures that were found, each by the interleaving that showed it.

use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::link::Profile;
use mafs_client::vfs::{Attributes, Writeback};
use mafs_proto::{Mode, RenameMode, VnodeId};
use mafs_sim::{Connecting, Crash, Path, Silence, Way, World};

use crate::support::{
    CALLER, MAKE, WRITE, clients, configured, content, create, look, open_as, open_by_name, overwrite, rename,
    simulate, with_empty_cache, world, write_and_close,
};

#[test]
fn regression_sync_does_not_drop_files_that_were_opened_again_meanwhile() {
    const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    simulate(async {
        let mut world = world(20).await;
        let vfs = world.client().clone();
        let (_, big) = create(&vfs, "big").await;
        vfs.write(big, 0, vec![1; 20_000_000].into()).await.expect("a write");
        let mut small = Vec::new();
        for name in NAMES {
            let (vnode, file) = create(&vfs, name).await;
            vfs.write(file, 0, Bytes::from_static(b"one")).await.expect("a write");
            small.push((vnode, file));
        }
        let syncing = tokio::spawn({
            let vfs = vfs.clone();
            async move { vfs.sync().await }
        });
        tokio::task::yield_now().await;
        let mut again = Vec::new();
        for (vnode, file) in small {
            vfs.flush(file).await.expect("a close");
            vfs.release(file);
            let opened = vfs.open(vnode, WRITE, CALLER).await.expect("an open");
            vfs.write(opened.file, 0, Bytes::from_static(b"two")).await.expect("a write");
            again.push((vnode, opened.file));
        }
        syncing.await.expect("the task").expect("the sync");
        for (vnode, file) in again {
            let second = vfs.open(vnode, WRITE, CALLER).await.expect("an open").file;
            assert_eq!(vfs.read(second, 0, 10).await.expect("a read"), "two");
            vfs.flush(file).await.expect("a close");
            vfs.release(file);
            vfs.release(second);
        }
        with_empty_cache(&mut world).await;
        for name in NAMES {
            assert_eq!(content(world.client(), name).await, b"two");
        }
    });
}

#[test]
fn regression_an_fsync_during_an_outage_does_not_block_the_names_of_its_file() {
    simulate(async {
        let mut world = world(5).await;
        let vfs = world.client().clone();
        let (_, file) = create(&vfs, "tmp").await;
        vfs.write(file, 0, Bytes::from_static(b"saved")).await.expect("a write");
        world.crash_server(Crash::Kill);
        vfs.fsync(file).await.expect("an fsync on the local disk");
        tokio::time::sleep(Duration::from_secs(60)).await;
        world.start_server().expect("the server starts");
        tokio::time::sleep(Duration::from_secs(10)).await;
        let (old, new) = (Bytes::from_static(b"tmp"), Bytes::from_static(b"final"));
        let renamed = vfs.rename(VnodeId::ROOT, old, VnodeId::ROOT, new, RenameMode::Replace, CALLER);
        let renamed = tokio::time::timeout(Duration::from_secs(1), renamed).await;
        renamed.expect("it waits for nothing").expect("the rename");
        vfs.release(file);
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "final").await, b"saved");
    });
}

#[test]
fn regression_two_closes_after_an_outage_resolve_the_unknown_store_once() {
    // Where in the resolution the server dies again is swept.
    for struck_after in (0..1500).step_by(100) {
        simulate(async {
            let mut world = world(100).await;
            let vfs = world.client().clone();
            let (_, file) = create(&vfs, "file").await;
            vfs.write(file, 0, Bytes::from_static(b"A")).await.expect("a write");
            world.crash_server(Crash::Kill);
            vfs.flush(file).await.expect_err("the server is down");
            vfs.write(file, 0, Bytes::from_static(b"BB")).await.expect("a write");
            world.start_server().expect("the server starts");
            tokio::time::sleep(Duration::from_secs(20)).await;
            let closes = [(); 2].map(|()| {
                let vfs = vfs.clone();
                tokio::spawn(async move { vfs.flush(file).await })
            });
            tokio::time::sleep(Duration::from_millis(struck_after)).await;
            world.crash_server(Crash::Kill);
            world.start_server().expect("the server starts");
            for close in closes {
                close.await.expect("the task").expect("the close");
            }
            assert_eq!(vfs.status().refused, []);
            vfs.release(file);
            with_empty_cache(&mut world).await;
            assert_eq!(content(world.client(), "file").await, b"BB", "struck after {struck_after} ms");
        });
    }
}

#[test]
fn regression_the_cache_keeps_to_its_limit_while_files_are_written() {
    simulate(async {
        let world = world(1).await;
        let vfs = world.client();
        for name in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"] {
            write_and_close(vfs, name, vec![7; 200_000]).await;
            let status = vfs.status();
            assert!(status.cache_bytes <= status.cache_limit_bytes + 200_000, "{status:?}");
        }
        let file = open_by_name(vfs, "a").await;
        assert_eq!(vfs.read(file, 0, 10).await.expect("an evicted file comes back"), [7; 10][..]);
    });
}

#[test]
fn regression_a_killed_client_lists_a_directory_whole_again() {
    for seed in 0..20 {
        simulate(async {
            let mut world = World::start(seed, Duration::from_millis(1)).await.expect("a world");
            let vfs = world.client().clone();
            let mode = Mode::from_bits(0o755);
            let directory =
                vfs.make_dir(VnodeId::ROOT, Bytes::from_static(b"d"), mode, CALLER).await.expect("a directory");
            let parent = directory.fid.vnode;
            for number in 0..210 {
                let name = Bytes::from(format!("f{number}"));
                let (_, opened) = vfs.create(parent, name, mode, MAKE, CALLER).await.expect("a file");
                vfs.write(opened.file, 0, Bytes::from_static(b"x")).await.expect("a write");
                vfs.flush(opened.file).await.expect("a close");
                vfs.release(opened.file);
            }
            world.crash_client(Crash::Kill);
            world.start_client().await.expect("the client starts");
            let root = world.client().read_dir(VnodeId::ROOT, 0, 1000).await.expect("the root");
            assert_eq!(root.entries.len(), 3, "the dots and a name");
            let vfs = world.client();
            vfs.lookup(VnodeId::ROOT, Bytes::from_static(b"d")).await.expect("the directory");
            let entries = vfs.read_dir_plus(parent, 0, 1000).await.expect("its names").entries;
            // glibc drops names whose inode number is 0, which is what the kernel gets of a name without an object.
            assert_eq!(entries.iter().filter(|entry| entry.object.is_some()).count(), 210, "seed {seed}");
        });
    }
}

/// 200 statuses with such targets are three times what one answer may hold.
#[test]
fn regression_long_symlinks_are_validated_after_a_remount() {
    simulate(async {
        let mut world = world(5).await;
        let target = Bytes::from(vec![b'x'; 4000]);
        for number in 0..200 {
            let name = Bytes::from(format!("link{number}"));
            let made = world.client().make_symlink(VnodeId::ROOT, name, target.clone(), CALLER).await;
            made.expect("a symlink");
        }
        world.stop_client().await;
        world.start_client().await.expect("the client starts");
        let vfs = world.client();
        let listing = vfs.read_dir_plus(VnodeId::ROOT, 0, 1000).await.expect("the root");
        assert_eq!(listing.entries.len(), 202, "the dots and the names");
    });
}

#[test]
fn regression_a_removal_whose_answer_was_lost_leaves_no_refused_update() {
    // Where the client dies around the removal is swept.
    for struck_after in (0..400).step_by(50) {
        simulate(async {
            let mut world = world(100).await;
            let vfs = world.client().clone();
            let (_, file) = create(&vfs, "ghost").await;
            vfs.write(file, 0, Bytes::from_static(b"unsent")).await.expect("a write");
            let removing = tokio::spawn(async move { vfs.unlink(VnodeId::ROOT, Bytes::from("ghost"), CALLER).await });
            tokio::time::sleep(Duration::from_millis(struck_after)).await;
            world.crash_client(Crash::Kill);
            removing.abort();
            world.start_client().await.expect("the client starts");
            tokio::time::sleep(Duration::from_secs(10)).await;
            let status = world.client().status();
            assert_eq!((status.refused, status.unsent_files), (vec![], 0), "struck after {struck_after} ms");
            world.client().sync().await.expect("nothing is left to send");
        });
    }
}

#[test]
fn regression_a_file_is_removed_at_once_while_its_content_is_on_its_way() {
    simulate(async {
        let mut world = world(100).await;
        let vfs = world.client().clone();
        let (vnode, file) = create(&vfs, "big").await;
        vfs.write(file, 0, vec![1; 50_000_000].into()).await.expect("a write");
        let closing = tokio::spawn({
            let vfs = vfs.clone();
            async move { vfs.flush(file).await }
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let removed = vfs.unlink(VnodeId::ROOT, Bytes::from("big"), CALLER);
        let removed = tokio::time::timeout(Duration::from_secs(1), removed).await;
        removed.expect("it waits for no content").expect("the removal");
        closing.await.expect("the task").expect("the close of a file without a name");
        vfs.release(file);
        vfs.forget(vnode, 1);
        let status = vfs.status();
        assert_eq!((status.refused, status.unsent_files, status.cache_files), (vec![], 0, 0));
        world.stop_client().await;
        world.start_client().await.expect("the client starts");
        assert_eq!(world.client().status().cache_files, 0);
    });
}

/// A client has changed a file, and is restarted; another removes the file meanwhile. Returns what is shown as refused.
async fn changed_here_and_removed_elsewhere(asks_in_vain_before: bool) -> Vec<(String, String)> {
    let mut world = world(5).await;
    let vfs = world.client().clone();
    let mode = Mode::from_bits(0o755);
    let docs = vfs.make_dir(VnodeId::ROOT, Bytes::from("docs"), mode, CALLER).await.expect("a directory").fid.vnode;
    let (_, opened) = vfs.create(docs, Bytes::from("letter"), mode, MAKE, CALLER).await.expect("a file");
    vfs.flush(opened.file).await.expect("a close");
    vfs.write(opened.file, 0, Bytes::from_static(b"unsent")).await.expect("a write");
    if asks_in_vain_before {
        vfs.make_dir(docs, Bytes::from("drawer"), mode, CALLER).await.expect("a directory");
        let (from, to) = (Bytes::from("drawer"), Bytes::from("letter"));
        let replaced = vfs.rename(docs, from, docs, to, RenameMode::Replace, CALLER).await;
        replaced.expect_err("a directory does not replace a file");
    }
    world.crash_server(Crash::Kill);
    assert_eq!(vfs.status().unsent, ["docs/letter"]);
    drop(vfs);
    world.stop_client().await;
    world.start_server().expect("the server starts");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let other = world.add_client().await.expect("another client");
    let docs = other.lookup(VnodeId::ROOT, Bytes::from("docs")).await.expect("the directory").fid.vnode;
    other.unlink(docs, Bytes::from("letter"), CALLER).await.expect("a removal");
    other.shut_down().await;
    world.start_client().await.expect("the client starts");
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.client().status().refused
}

#[test]
fn an_update_of_a_file_that_somebody_else_removed_is_shown_by_its_path() {
    for asks_in_vain_before in [false, true] {
        simulate(async move {
            let refused = changed_here_and_removed_elsewhere(asks_in_vain_before).await;
            let gone = "the object does not exist any more".to_owned();
            assert_eq!(refused, [("docs/letter".to_owned(), gone)], "asked in vain before: {asks_in_vain_before}");
        });
    }
}

/// A change that the life before had logged just before it was killed was durable only once something else was logged.
#[test]
fn regression_what_was_logged_before_a_kill_is_durable_a_second_after_the_next_start() {
    for seed in 0..20 {
        simulate(async move {
            let world = World::start(seed, Duration::from_millis(20)).await.expect("a world");
            let mut world = configured(world, |machine| machine.set_writeback(Writeback::Async)).await;
            let vfs = world.client().clone();
            write_and_close(&vfs, "before", Vec::new()).await;
            vfs.sync().await.expect("a sync");
            world.machines()[0].isolate();
            write_and_close(&vfs, "f", vec![1; 1000]).await;
            world.crash_client(Crash::Kill);
            world.machines()[0].restore_link();
            world.start_client().await.expect("the client starts");
            world.machines()[0].isolate();
            tokio::time::sleep(Duration::from_secs(20)).await;
            world.crash_client(Crash::Power);
            world.machines()[0].restore_link();
            world.start_client().await.expect("the client starts");
            assert_eq!(content(world.client(), "f").await, vec![1; 1000], "seed {seed}");
        });
    }
}

/// One client at the end of 64 KB/s, and others.
async fn behind_a_slow_link(writeback: Writeback, others: Vec<Path>) -> World {
    let link = Profile::steady(64_000, Duration::from_millis(20));
    let paths = [Path::Link(Box::new(link))].into_iter().chain(others).collect();
    let world = World::start_over(1, paths, false).await.expect("a world");
    configured(world, |machine| machine.set_writeback(writeback)).await
}

#[test]
fn regression_what_a_loss_of_power_took_from_a_log_is_shown_to_nobody_once_its_client_is_back() {
    simulate(async {
        let others = vec![Path::Delay(Duration::from_millis(5))];
        let mut world = behind_a_slow_link(Writeback::Sirp, others).await;
        let (writer, reader) = (world.machines()[0].client().clone(), world.machines()[1].client().clone());
        write_and_close(&writer, "f", vec![1; 1000]).await;
        writer.sync().await.expect("a sync");
        assert_eq!(look(&reader, "f").await.status.size, 1000);
        overwrite(&writer, "f", vec![2; 60_000]).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(look(&reader, "f").await.status.size, 60_000, "it is announced");
        world.crash_machine(0, Crash::Power);
        world.machines_mut()[0].start().await.expect("a client");
        assert_eq!(world.machines()[0].client().status().log.records, 0, "the log was not durable yet");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(look(&reader, "f").await.status.size, 1000);
    });
}

#[test]
fn regression_what_was_removed_while_it_was_sent_is_nothing_to_later_lives() {
    simulate(async {
        let mut world = behind_a_slow_link(Writeback::Sirp, Vec::new()).await;
        for name in ["removed", "replaced", "over"] {
            write_and_close(world.client(), name, vec![1; 1000]).await;
        }
        world.client().sync().await.expect("a sync");
        let vfs = world.client().clone();
        for name in ["removed", "replaced"] {
            overwrite(&vfs, name, vec![2; 100_000]).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        vfs.unlink(VnodeId::ROOT, Bytes::from("removed"), CALLER).await.expect("a removal");
        rename(&vfs, "over", "replaced").await.expect("a rename");
        for life in 0..3 {
            world.crash_client(Crash::Kill);
            world.start_client().await.expect("a client");
            world.client().sync().await.expect("a sync");
            let status = world.client().status();
            let left = (status.log.records, status.unsent_files, status.refused.len());
            assert_eq!(left, (0, 0, 0), "life {life}: {status:?}");
        }
        assert_eq!(content(world.client(), "replaced").await, vec![1; 1000]);
    });
}

#[test]
fn regression_invariant_1_what_was_fsynced_outlives_a_rename_over_it_that_does_not() {
    simulate(async {
        let mut world = behind_a_slow_link(Writeback::Async, Vec::new()).await;
        write_and_close(world.client(), "before", Vec::new()).await;
        write_and_close(world.client(), "f", vec![1; 1000]).await;
        for (round, draft) in (1..).zip(["a", "b", "c", "d", "e", "g", "h", "i", "j", "k"]) {
            let (fsynced, over) = (vec![round; 100_000], vec![100 + round; 1000]);
            world.client().sync().await.expect("a sync");
            let vfs = world.client().clone();
            // Takes the link for a while.
            overwrite(&vfs, "before", vec![9; 300_000]).await;
            let file = open_as(&vfs, "f", WRITE).await;
            vfs.write(file, 0, fsynced.clone().into()).await.expect("a write");
            vfs.fsync(file).await.expect("an fsync");
            vfs.flush(file).await.expect("a close");
            vfs.release(file);
            write_and_close(&vfs, draft, over.clone()).await;
            rename(&vfs, draft, "f").await.expect("a rename");
            world.crash_client(Crash::Power);
            world.start_client().await.expect("a client");
            let found = content(world.client(), "f").await;
            assert!(found == fsynced || found == over, "round {round}: {}", found[0]);
            world.client().sync().await.expect("a sync");
        }
    });
}

#[test]
fn regression_a_content_that_waits_no_more_for_one_that_was_removed_is_the_same_after_a_crash() {
    simulate(async {
        let mut world = behind_a_slow_link(Writeback::Async, Vec::new()).await;
        for name in ["before", "removed", "kept"] {
            write_and_close(world.client(), name, Vec::new()).await;
        }
        world.client().sync().await.expect("a sync");
        let vfs = world.client().clone();
        // The first takes the link for a while, and the last is behind what is fsynced before it.
        for (name, bytes, fsync) in [("before", 300_000, false), ("removed", 200_000, true), ("kept", 1000, false)] {
            let file = open_as(&vfs, name, WRITE).await;
            vfs.write(file, 0, vec![7; bytes].into()).await.expect("a write");
            if fsync {
                vfs.fsync(file).await.expect("an fsync");
            }
            vfs.flush(file).await.expect("a close");
            vfs.release(file);
        }
        world.machines()[0].fall_silent(Silence { way: Way::ToClient, connecting: Connecting::Works });
        vfs.unlink(VnodeId::ROOT, Bytes::from("removed"), CALLER).await.expect("a removal");
        tokio::time::sleep(Duration::from_secs(4)).await;
        world.crash_client(Crash::Kill);
        world.machines()[0].break_silence();
        world.start_client().await.expect("a client");
        world.client().sync().await.expect("a sync");
        assert!(world.client().status().refused.is_empty(), "{:?}", world.client().status());
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "kept").await, vec![7; 1000]);
    });
}

/// A removal makes room, so it does not wait for what there is no room for; a change before it does. Nor does a later
/// life take it for refused.
#[test]
fn regression_a_change_that_comes_after_its_object_was_removed_is_no_refusal() {
    for restarts in [0, 1] {
        simulate(async {
            let mut world = configured(world(50).await, |machine| machine.set_writeback(Writeback::Async)).await;
            let vfs = world.client().clone();
            let vnode = write_and_close(&vfs, "removed", b"content".to_vec()).await;
            write_and_close(&vfs, "large", Vec::new()).await;
            vfs.sync().await.expect("a sync");
            world.limit_server_disk(40 << 20).expect("a disk");
            let large = open_as(&vfs, "large", WRITE).await;
            vfs.write(large, 0, vec![1; 100_000].into()).await.expect("a write");
            vfs.fsync(large).await.expect("an fsync");
            vfs.flush(large).await.expect("a close");
            vfs.release(large);
            let set = Attributes { mode: Some(Mode::from_bits(0o600)), ..Attributes::default() };
            vfs.set_attributes(vnode, set, None, CALLER).await.expect("attributes");
            tokio::task::yield_now().await;
            vfs.unlink(VnodeId::ROOT, Bytes::from("removed"), CALLER).await.expect("a removal");
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(vfs.status().log.records >= 2, "{:?}", vfs.status().log);
            drop(vfs);
            for _ in 0..restarts {
                world.crash_client(Crash::Kill);
                world.start_client().await.expect("a client");
            }
            world.limit_server_disk(1 << 30).expect("room");
            world.client().sync().await.expect("a sync");
            assert_eq!(world.client().status().refused, []);
        });
    }
}

/// The writer has never been told how much room there is, so it cannot know that there is more.
#[test]
fn regression_who_waits_for_what_had_no_room_gets_it_as_soon_as_there_is_some() {
    simulate(async {
        let world = World::start_several(1, 2, Duration::from_millis(10), false).await.expect("a world");
        let world = configured(world, |machine| machine.set_writeback(Writeback::Sirp)).await;
        let [writer, reader] = clients(&world);
        write_and_close(&writer, "file", b"before".to_vec()).await;
        writer.sync().await.expect("a sync");
        world.limit_server_disk(40 << 20).expect("a disk");
        overwrite(&writer, "file", b"behind".to_vec()).await;
        // Until it is tried once a minute.
        tokio::time::sleep(Duration::from_secs(130)).await;
        world.limit_server_disk(1 << 30).expect("room");
        let begun = tokio::time::Instant::now();
        assert_eq!(content(&reader, "file").await, b"behind");
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    });
}

/// From so many answered changes on the server forgets those that it has been told are known.
const FORGET_FROM: u32 = 64;

/// The server has been told of an answer, and forgets it; a loss of power takes it from the log.
#[test]
fn regression_10500_what_was_answered_just_before_a_loss_of_power_is_no_other_record_afterwards() {
    simulate(async {
        let mut world = behind_a_slow_link(Writeback::Async, Vec::new()).await;
        let mut came_again = 0;
        for round in 0..5 {
            let vfs = world.client().clone();
            let make = |number| {
                let name = Bytes::from(format!("{round}-{number}"));
                vfs.make_dir(VnodeId::ROOT, name, Mode::from_bits(0o755), CALLER)
            };
            for number in 0..FORGET_FROM {
                make(number).await.expect("a directory");
            }
            // They are in the log for good before they are sent, and are answered.
            vfs.sync().await.expect("a sync");
            make(FORGET_FROM).await.expect("a directory");
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(vfs.status().log.records, 0, "it is answered as well");
            world.crash_client(Crash::Power);
            world.start_client().await.expect("a client");
            came_again += world.client().status().log.records;
            world.client().sync().await.expect("a sync");
            let status = world.client().status();
            assert!(status.refused.is_empty(), "round {round}: {status:?}");
        }
        assert!(came_again > 0, "the log knew of every answer");
    });
}

/// A removal is sent at once, and the content that it makes unwanted waits: what is in the log of that when the power
/// goes must not come again, to a server that does not have the file any more.
#[test]
fn regression_51633_what_was_removed_is_not_sent_again_after_a_loss_of_power() {
    simulate(async {
        let mut world = behind_a_slow_link(Writeback::Async, Vec::new()).await;
        for round in 0..5 {
            for name in ["before", "removed"] {
                write_and_close(world.client(), name, Vec::new()).await;
            }
            world.client().sync().await.expect("a sync");
            let vfs = world.client().clone();
            // Takes the link for a while, and until the other is durable.
            overwrite(&vfs, "before", vec![9; 300_000]).await;
            overwrite(&vfs, "removed", vec![9; 200_000]).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            vfs.unlink(VnodeId::ROOT, Bytes::from("removed"), CALLER).await.expect("a removal");
            // The removal is at the server, and answered.
            tokio::time::sleep(Duration::from_millis(500)).await;
            vfs.unlink(VnodeId::ROOT, Bytes::from("before"), CALLER).await.expect("a removal");
            world.crash_client(Crash::Power);
            world.start_client().await.expect("a client");
            world.client().sync().await.expect("a sync");
            let status = world.client().status();
            assert!(status.refused.is_empty(), "round {round}: {status:?}");
            world.client().unlink(VnodeId::ROOT, Bytes::from("before"), CALLER).await.ok();
        }
    });
}
