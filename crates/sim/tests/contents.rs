//! Contents on their way: fetched, stored, evicted, kept, in virtual time.

use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::link::Profile;
use mafs_client::vfs::{Attributes, Caller, Error, OpenMode, SetTime, Vfs};
use mafs_durable::Disk;
use mafs_proto::{Class, FsError, Mode, Timestamp, VnodeId};
use mafs_sim::{Crash, Path, World};

use crate::support::{
    CALLER, MAKE, READ, WRITE, content, create, open_as, open_by_name, restart_client, simulate, until_all_is_sent,
    with_empty_cache, world, write_and_close,
};

#[test]
fn a_file_is_readable_while_the_rest_of_it_arrives() {
    simulate(async {
        let mut world = world(50).await;
        let big: Vec<u8> = (0..12_000_000u32).map(|at| at.to_le_bytes()[1]).collect();
        write_and_close(world.client(), "big", big.clone()).await;
        with_empty_cache(&mut world).await;
        let file = open_by_name(world.client(), "big").await;
        let first = world.client().read(file, 0, 4096).await.expect("the first bytes");
        assert_eq!(first, big[..4096]);
        assert_eq!(world.client().status().fetching_files, 1, "the whole file was waited for");
        let last = world.client().read(file, 11_999_000, 4096).await.expect("the last bytes");
        assert_eq!(last, big[11_999_000..]);
        assert_eq!(world.client().status().fetching_files, 1, "a far reader waited for all that is before it");
        assert_eq!(world.client().read(file, 0, 12_000_000).await.expect("all of it"), big);
    });
}

#[test]
fn regression_a_reader_of_all_of_a_slow_file_lets_it_be_sent_once() {
    simulate(async {
        let link = Path::Link(Box::new(Profile::steady(64 << 10, Duration::from_millis(20))));
        let mut world = World::start_over(1, vec![link], false).await.expect("a world");
        write_and_close(world.client(), "slow", vec![7; 100_000]).await;
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "slow").await, vec![7; 100_000]);
        let fetches = &world.client().statistics()[Class::Fetch.index()];
        // One of the content and one of the directory: it had seemed to wait for what had just come, and was sent
        // again from there.
        assert!(fetches.calls <= 2, "{fetches:?}");
        assert!(fetches.received_bytes < 102_000, "{fetches:?}");
    });
}

#[test]
fn opens_of_cached_files_cost_no_call() {
    simulate(async {
        let world = world(50).await;
        let vfs = world.client();
        write_and_close(vfs, "file", b"cached".to_vec()).await;
        let calls = vfs.status().calls;
        for _ in 0..10 {
            assert_eq!(content(vfs, "file").await, b"cached");
        }
        assert_eq!(vfs.status().calls, calls);
    });
}

#[test]
fn a_restarted_client_asks_once_whether_what_it_had_cached_is_current() {
    simulate(async {
        let mut world = world(50).await;
        write_and_close(world.client(), "file", vec![7; 100_000]).await;
        world.stop_client().await;
        world.start_client().await.expect("the client starts");
        let calls = world.client().status().calls;
        assert_eq!(content(world.client(), "file").await, vec![7; 100_000]);
        assert_eq!(world.client().status().calls, calls + 1, "nothing had changed, so nothing needed to be fetched");
    });
}

#[test]
fn many_contents_are_made_durable_at_once_when_the_client_ends() {
    const FILES: usize = 100;
    let name = |number: usize| -> &'static str { format!("file-{number}").leak() };
    simulate(async {
        let mut world = world(50).await;
        for number in 0..FILES {
            write_and_close(world.client(), name(number), vec![7; 10_000]).await;
        }
        let syncs = world.client_disk().syncs();
        world.stop_client().await;
        let syncs = world.client_disk().syncs() - syncs;
        assert!(syncs < FILES as u64 / 4, "{syncs} syncs for {FILES} contents");
        world.crash_client(Crash::Power);
        world.start_client().await.expect("the client starts");
        let calls = world.client().status().calls;
        for number in 0..FILES {
            assert_eq!(content(world.client(), name(number)).await, vec![7; 10_000]);
        }
        // When the session began it was asked what has changed.
        assert_eq!(world.client().status().calls, calls, "contents were lost with the power");
    });
}

#[test]
fn a_cached_content_that_the_disk_has_damaged_is_found_and_fetched_again() {
    simulate(async {
        let mut world = world(50).await;
        let content_before: Vec<u8> = (0..100_000u32).map(|at| at.to_le_bytes()[0]).collect();
        write_and_close(world.client(), "file", content_before.clone()).await;
        world.stop_client().await;
        world.damage_cached_contents().expect("damage");
        world.start_client().await.expect("the client starts");
        assert!(content(world.client(), "file").await == content_before);
        let calls = world.client().status().calls;
        assert!(content(world.client(), "file").await == content_before);
        assert_eq!(world.client().status().calls, calls, "it was fetched more than once");
    });
}

#[test]
fn a_content_that_the_servers_disk_has_damaged_never_passes_for_the_version() {
    simulate(async {
        let mut world = world(50).await;
        let stored: Vec<u8> = (0..8_000_000u32).map(|at| at.to_le_bytes()[1]).collect();
        write_and_close(world.client(), "large", stored.clone()).await;
        write_and_close(world.client(), "small", stored[..100_000].to_vec()).await;
        world.damage_stored_contents().expect("damage");
        with_empty_cache(&mut world).await;
        let vfs = world.client();
        let small = vfs.lookup(VnodeId::ROOT, Bytes::from("small")).await.expect("a name").fid.vnode;
        let opened = vfs.open(small, READ, CALLER).await;
        assert!(matches!(opened, Err(Error::Damaged(_))), "not a byte of it arrives");
        let large = open_by_name(vfs, "large").await;
        // A fetch that moves is not from the start, so the server cannot check it.
        let far = vfs.read(large, 7_999_000, 1000).await.expect("the end");
        assert_eq!(far, stored[7_999_000..]);
        while vfs.status().fetching_files > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(matches!(vfs.read(large, 0, 8_000_000).await, Err(Error::Damaged(_))), "what arrived is the version");
    });
}

#[test]
fn invariant_4_a_file_written_while_it_is_sent_is_never_stored_as_a_mixture() {
    simulate(async {
        let mut world = world(50).await;
        let vfs = world.client().clone();
        let (_, file) = create(&vfs, "file").await;
        vfs.write(file, 0, vec![1; 5_000_000].into()).await.expect("the first version");
        let closing = tokio::spawn({
            let vfs = vfs.clone();
            async move { vfs.flush(file).await }
        });
        tokio::time::sleep(Duration::from_millis(180)).await;
        assert!(!closing.is_finished(), "the store should still be under way");
        vfs.write(file, 0, vec![2; 5_000_000].into()).await.expect("the second version");
        closing.await.expect("the task").expect("the close");
        // The second version was neither closed nor fsynced, so it goes with the power; the first must be there, whole.
        world.crash_client(Crash::Power);
        world.start_client().await.expect("the client starts");
        assert!(content(world.client(), "file").await == vec![1; 5_000_000]);
    });
}

/// fsync in a world whose server may be down, then a power loss of the client; what is there afterwards.
fn content_after_fsync_and_power_loss(server_down: bool) -> Vec<u8> {
    let mut seen = Vec::new();
    simulate(async {
        let mut world = world(5).await;
        let vfs = world.client().clone();
        let (_, file) = create(&vfs, "file").await;
        vfs.write(file, 0, Bytes::from_static(b"not closed, but fsynced")).await.expect("a write");
        if server_down {
            world.crash_server(Crash::Kill);
        }
        let begun = tokio::time::Instant::now();
        vfs.fsync(file).await.expect("an fsync");
        assert!(begun.elapsed() < Duration::from_secs(1));
        world.crash_client(Crash::Power);
        if server_down {
            world.start_server().expect("the server starts");
        }
        world.start_client().await.expect("the client starts");
        assert_eq!(content(world.client(), "file").await, b"not closed, but fsynced");
        world.client().sync().await.expect("it goes to the server");
        with_empty_cache(&mut world).await;
        seen = content(world.client(), "file").await;
    });
    seen
}

#[test]
fn invariant_1_what_fsync_acknowledged_survives_a_power_loss() {
    assert_eq!(content_after_fsync_and_power_loss(false), b"not closed, but fsynced");
    assert_eq!(content_after_fsync_and_power_loss(true), b"not closed, but fsynced");
}

#[test]
fn invariant_5_the_cache_keeps_to_its_limit_and_everything_stays_readable() {
    const NAMES: [&str; 20] = [
        "f00", "f01", "f02", "f03", "f04", "f05", "f06", "f07", "f08", "f09", "f10", "f11", "f12", "f13", "f14", "f15",
        "f16", "f17", "f18", "f19",
    ];
    const BYTES: usize = 150_000;
    simulate(async {
        let mut world = world(1).await;
        for name in NAMES {
            write_and_close(world.client(), name, name.as_bytes().repeat(BYTES / 3)).await;
        }
        with_empty_cache(&mut world).await;
        let vfs = world.client();
        let kept_open = open_by_name(vfs, NAMES[0]).await;
        for name in NAMES {
            assert_eq!(content(vfs, name).await, name.as_bytes().repeat(BYTES / 3));
            let status = vfs.status();
            assert!(status.cache_bytes <= status.cache_limit_bytes + BYTES as u64, "{status:?}");
        }
        let calls = vfs.status().calls;
        assert_eq!(vfs.read(kept_open, 0, 3).await.expect("an open file"), "f00");
        assert_eq!(vfs.status().calls, calls, "an open file was evicted");
    });
}

#[test]
fn a_close_that_cannot_reach_the_server_fails_in_time_and_is_sent_later() {
    simulate(async {
        let mut world = world(5).await;
        let vfs = world.client().clone();
        let (_, file) = create(&vfs, "file").await;
        vfs.write(file, 0, Bytes::from_static(b"late")).await.expect("a write");
        world.crash_server(Crash::Kill);
        let begun = tokio::time::Instant::now();
        let closed = vfs.flush(file).await;
        assert!(matches!(closed, Err(Error::TimedOut(_) | Error::Unreachable(_))), "{closed:?}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        vfs.release(file);
        assert_eq!(vfs.status().unsent_files, 1);
        assert_eq!(content(&vfs, "file").await, b"late", "what is not sent yet stays readable");
        world.start_server().expect("the server starts");
        until_all_is_sent(&vfs).await;
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "file").await, b"late");
    });
}

#[test]
fn invariant_1_what_could_not_be_sent_survives_a_restart_of_the_machine() {
    for unmounts in [true, false] {
        simulate(async move {
            let mut world = world(5).await;
            let vfs = world.client().clone();
            write_and_close(&vfs, "file", b"before".to_vec()).await;
            let file = open_as(&vfs, "file", WRITE).await;
            vfs.write(file, 0, Bytes::from_static(b"late")).await.expect("a write");
            world.crash_server(Crash::Kill);
            if unmounts {
                vfs.release(file);
                drop(vfs);
                world.stop_client().await;
            } else {
                vfs.flush(file).await.expect_err("nobody answers");
            }
            world.crash_client(Crash::Power);
            world.start_server().expect("the server starts");
            world.start_client().await.expect("the client starts");
            until_all_is_sent(world.client()).await;
            with_empty_cache(&mut world).await;
            assert_eq!(content(world.client(), "file").await, b"latere");
        });
    }
}

#[test]
fn a_start_that_fails_after_a_loss_of_power_leaves_it_known() {
    const PIECE: usize = 4096;
    const PIECES: usize = 16;
    let (stored, torn) = (vec![1; PIECE * PIECES], vec![2; PIECE]);
    for lives in 0..8 {
        let (stored, torn) = (stored.clone(), Bytes::from(torn.clone()));
        simulate(async move {
            let mut world = world(5).await;
            restart_client(&mut world, lives).await;
            let vfs = world.client().clone();
            write_and_close(&vfs, "file", stored.clone()).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            let file = open_as(&vfs, "file", WRITE).await;
            for piece in 0..PIECES {
                vfs.write(file, (piece * PIECE) as u64, torn.clone()).await.expect("a write");
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
            world.crash_server(Crash::Kill);
            world.crash_client(Crash::Power);
            world.start_client().await.expect_err("there is no server");
            world.start_server().expect("the server starts");
            world.start_client().await.expect("the client starts");
            until_all_is_sent(world.client()).await;
            with_empty_cache(&mut world).await;
            assert!(content(world.client(), "file").await == stored, "what is half written replaced it");
        });
    }
}

#[test]
fn an_unlinked_open_file_stays_readable_and_writable() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        let (vnode, file) = create(vfs, "file").await;
        vfs.write(file, 0, Bytes::from_static(b"still here")).await.expect("a write");
        vfs.unlink(VnodeId::ROOT, Bytes::from_static(b"file"), CALLER).await.expect("an unlink");
        vfs.write(file, 6, Bytes::from_static(b"open")).await.expect("a write");
        assert_eq!(vfs.read(file, 0, 100).await.expect("a read"), "still open");
        let status = vfs.get_attributes(vnode).await.expect("attributes").status;
        assert_eq!((status.nlink, status.size), (0, 10));
        vfs.flush(file).await.expect("a close");
        vfs.release(file);
        vfs.forget(vnode, 1);
        assert!(vfs.get_attributes(vnode).await.is_err());
        assert_eq!(vfs.status().unsent_files, 0);
    });
}

#[test]
fn an_unlinked_open_file_can_be_opened_again() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        let (vnode, file) = create(vfs, "file").await;
        vfs.write(file, 0, Bytes::from_static(b"still here")).await.expect("a write");
        vfs.unlink(VnodeId::ROOT, Bytes::from_static(b"file"), CALLER).await.expect("an unlink");
        let again = vfs.open(vnode, WRITE, CALLER).await.expect("an open").file;
        vfs.release(file);
        assert_eq!(vfs.read(again, 0, 100).await.expect("a read"), "still here");
    });
}

#[test]
fn what_is_removed_can_be_asked_about_until_the_kernel_forgets_it() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        let (name, mode) = (Bytes::from_static(b"dir"), Mode::from_bits(0o755));
        let vnode = vfs.make_dir(VnodeId::ROOT, name.clone(), mode, CALLER).await.expect("a directory").fid.vnode;
        vfs.remove_dir(VnodeId::ROOT, name, CALLER).await.expect("a removal");
        assert_eq!(vfs.get_attributes(vnode).await.expect("attributes").status.nlink, 0);
        vfs.read_dir(vnode, 0, 10).await.expect("a listing");
        vfs.forget(vnode, 1);
        assert!(vfs.get_attributes(vnode).await.is_err());
    });
}

#[test]
fn the_change_time_is_when_a_file_was_changed_last_and_stays_when_its_content_arrives() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        let (vnode, file) = create(vfs, "file").await;
        let created = vfs.get_attributes(vnode).await.expect("attributes").status.ctime;
        tokio::time::sleep(Duration::from_secs(1)).await;
        vfs.write(file, 0, Bytes::from_static(b"content")).await.expect("a write");
        let written = vfs.get_attributes(vnode).await.expect("attributes").status;
        assert!(written.ctime > created && written.ctime == written.mtime);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let future = Timestamp::new(4_000_000_000, 0).expect("a time");
        let set = Attributes { mtime: Some(SetTime::To(future)), ..Attributes::default() };
        let set = vfs.set_attributes(vnode, set, Some(file), CALLER).await.expect("a new mtime").status;
        assert_eq!(set.mtime, future);
        assert!(set.ctime > written.ctime && set.ctime < future, "{:?}", set.ctime);
        tokio::time::sleep(Duration::from_secs(1)).await;
        vfs.flush(file).await.expect("a close");
        vfs.release(file);
        let closed = vfs.get_attributes(vnode).await.expect("attributes").status;
        assert_eq!((closed.mtime, closed.ctime), (future, set.ctime));
    });
}

#[test]
fn times_of_an_unlinked_open_file_move_as_of_any_other() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        let (vnode, file) = create(vfs, "file").await;
        vfs.unlink(VnodeId::ROOT, Bytes::from_static(b"file"), CALLER).await.expect("an unlink");
        let status = async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            vfs.get_attributes(vnode).await.expect("attributes").status
        };
        let unlinked = status().await;
        vfs.write(file, 0, Bytes::from_static(b"content")).await.expect("a write");
        let written = status().await;
        assert!(written.mtime > unlinked.mtime && written.ctime > unlinked.ctime);
        let mode = Attributes { mode: Some(Mode::from_bits(0o600)), ..Attributes::default() };
        vfs.set_attributes(vnode, mode, Some(file), CALLER).await.expect("a new mode");
        let changed = status().await;
        assert_eq!((changed.mode, changed.mtime), (Mode::from_bits(0o600), written.mtime));
        assert!(changed.ctime > written.ctime);
    });
}

#[test]
fn an_open_that_truncates_drops_set_id_bits_unless_root_opens() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        let vnode = write_and_close(vfs, "file", b"a program".to_vec()).await;
        let after = async |mode: u32, uid: u32| {
            let set = Attributes { mode: Some(Mode::from_bits(mode)), ..Attributes::default() };
            vfs.set_attributes(vnode, set, None, CALLER).await.expect("a new mode");
            let (truncate, caller) = (OpenMode { truncate: true, ..WRITE }, Caller { uid, gid: uid });
            let file = vfs.open(vnode, truncate, caller).await.expect("an open").file;
            vfs.flush(file).await.expect("a close");
            vfs.release(file);
            vfs.get_attributes(vnode).await.expect("attributes").status.mode
        };
        assert_eq!(after(0o6777, 1000).await, Mode::from_bits(0o777));
        assert_eq!(after(0o6767, 1000).await, Mode::from_bits(0o2767));
        assert_eq!(after(0o6777, 0).await, Mode::from_bits(0o6777));
    });
}

#[test]
fn a_second_client_shares_the_volume() {
    simulate(async {
        let mut world = world(5).await;
        let other = world.add_client().await.expect("a second client");
        write_and_close(world.client(), "mine", b"of the first".to_vec()).await;
        assert_eq!(content(&other, "mine").await, b"of the first");
        write_and_close(&other, "theirs", b"of the second".to_vec()).await;
        assert_eq!(content(world.client(), "theirs").await, b"of the second");
    });
}

#[test]
fn invariant_3_a_client_that_was_away_validates_before_it_serves_from_its_cache() {
    simulate(async {
        let mut world = world(5).await;
        write_and_close(world.client(), "file", b"mine".to_vec()).await;
        write_and_close(world.client(), "untouched", b"as it was".to_vec()).await;
        world.stop_client().await;
        let other = world.add_client().await.expect("the volume is free");
        write_over(&other, "file", b"another client's").await;
        other.shut_down().await;
        world.start_client().await.expect("the client starts");
        assert_eq!(content(world.client(), "file").await, b"another client's");
        let calls = world.client().status().calls;
        assert_eq!(content(world.client(), "untouched").await, b"as it was");
        assert_eq!(
            world.client().status().calls,
            calls,
            "its neighbour's validation covered it, and its content is current"
        );
    });
}

#[test]
fn invariant_3_a_client_whose_connection_broke_is_told_of_changes_before_they_are_acknowledged() {
    simulate(async {
        let mut world = world(5).await;
        let vfs = &world.client().clone();
        write_and_close(vfs, "file", b"mine".to_vec()).await;
        let other = world.add_client().await.expect("another client");
        other.lookup(VnodeId::ROOT, Bytes::from("file")).await.expect("a name");
        // The other is quicker than the 100 ms that this client waits before it connects again.
        world.machines()[0].cut_link();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!vfs.status().connected);
        write_over(&other, "file", b"another client's").await;
        assert!(vfs.status().connected);
        assert_eq!(content(vfs, "file").await, b"another client's");
    });
}

async fn write_over(vfs: &Vfs, name: &'static str, content: &'static [u8]) {
    let object = vfs.lookup(VnodeId::ROOT, Bytes::from(name)).await.expect("a name");
    let mode = OpenMode { truncate: true, ..WRITE };
    let opened = vfs.open(object.fid.vnode, mode, CALLER).await.expect("an open");
    vfs.write(opened.file, 0, Bytes::from_static(content)).await.expect("a write");
    vfs.flush(opened.file).await.expect("a close");
    vfs.release(opened.file);
}

#[test]
fn a_write_of_which_nothing_came_leaves_the_file_as_it_was() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        let vnode = write_and_close(vfs, "file", b"kept".to_vec()).await;
        let file = vfs.open(vnode, WRITE, CALLER).await.expect("an open").file;
        world.limit_client_disk(10_000).expect("a disk");
        let failed = vfs.write(file, 0, vec![1; 50_000].into()).await;
        assert!(matches!(failed, Err(Error::CacheFull)), "{failed:?}");
        assert_eq!(vfs.status().unsent_files, 0, "an unchanged file is sent");
        let calls = vfs.status().calls;
        vfs.flush(file).await.expect("a close");
        assert_eq!(vfs.status().calls, calls);
        vfs.write(file, 4, Bytes::from_static(b" and more")).await.expect("a write that has room");
        vfs.flush(file).await.expect("a close");
        vfs.release(file);
        assert_eq!(content(vfs, "file").await, b"kept and more");
    });
}

#[test]
fn every_close_of_a_content_after_the_first_fails_at_once_while_the_server_is_away() {
    simulate(async {
        let mut world = world(5).await;
        let vfs = world.client().clone();
        let (_, file) = create(&vfs, "file").await;
        vfs.write(file, 0, Bytes::from_static(b"one")).await.expect("a write");
        world.crash_server(Crash::Kill);
        let start = tokio::time::Instant::now();
        let closes = [(); 3].map(|()| {
            let vfs = vfs.clone();
            tokio::spawn(async move { vfs.flush(file).await })
        });
        for close in closes {
            close.await.expect("the task").expect_err("the server is away");
        }
        assert!(start.elapsed() < Duration::from_secs(25), "waited {:?}", start.elapsed());
        let start = tokio::time::Instant::now();
        vfs.flush(file).await.expect_err("the server is away");
        assert!(start.elapsed() < Duration::from_millis(10), "waited {:?}", start.elapsed());
        assert!((20..30).contains(&vfs.status().since_s), "away since {} s", vfs.status().since_s);

        world.start_server().expect("the server starts");
        vfs.sync().await.expect("a sync that waits for the connection");
        vfs.flush(file).await.expect("a close");
        vfs.release(file);
        with_empty_cache(&mut world).await;
        assert_eq!(content(world.client(), "file").await, b"one");
    });
}

#[test]
fn a_file_that_is_not_made_leaves_no_container() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        write_and_close(vfs, "file", b"content".to_vec()).await;
        let containers = || {
            let disk = world.client_disk();
            let directories = disk.list("containers").expect("a directory");
            let count = |name: &String| disk.list(&format!("containers/{name}")).expect("a directory").len();
            directories.iter().map(count).sum::<usize>()
        };
        assert_eq!(containers(), 1);
        let name = Bytes::from_static(b"file");
        let refused = vfs.create(VnodeId::ROOT, name, Mode::from_bits(0o644), MAKE, CALLER).await;
        assert!(matches!(refused, Err(Error::Refused(FsError::Exists))), "{refused:?}");
        assert_eq!(containers(), 1);
    });
}
