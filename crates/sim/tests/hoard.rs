//! The hoard: what it means is fetched before anybody opens it, is kept while the rest of the cache comes and goes, and
//! delays nobody (docs/semantics.md, "What is kept here").

use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::hoard::HoardSpec;
use mafs_client::vfs::{Cached, Error, HoardFailure, Vfs, Writeback};
use mafs_proto::{Class, FsError, Mode, VnodeId, XattrMode};
use mafs_sim::{Crash, Path, World};
use tokio::time::{Instant, sleep};

use crate::support::{
    BLACK_HOLE, CALLER, MAKE, READ, WRITE, clients, configured, content, look, make_dir, name, names, open_as,
    overwrite, simulate, write_and_close,
};

const NEAR: Duration = Duration::from_millis(10);
/// A walk that is not asked for has ended after a change by another client.
const SOON: Duration = Duration::from_secs(6);
const FILE_BYTES: usize = 50_000;

fn spec(text: &str) -> HoardSpec {
    text.parse().expect("a spec")
}

/// Two clients: the first makes things, the second hoards them.
async fn two() -> World {
    two_with(1 << 30).await
}

async fn two_with(cache_limit_bytes: u64) -> World {
    let world = World::start_several(1, 2, NEAR, false).await.expect("a world");
    configured(world, |machine| {
        machine.set_disconnected(true);
        machine.set_writeback(Writeback::Sync);
        machine.set_cache_limit_bytes(cache_limit_bytes);
    })
    .await
}

async fn put(vfs: &Vfs, dir: VnodeId, file: &str, bytes: usize) {
    let mode = Mode::from_bits(0o644);
    let (_, opened) = vfs.create(dir, name(file), mode, MAKE, CALLER).await.expect("a new file");
    vfs.write(opened.file, 0, vec![7; bytes].into()).await.expect("a write");
    vfs.flush(opened.file).await.expect("a close");
    vfs.release(opened.file);
}

/// `dir/a`, `dir/sub/b`, `other`.
async fn make_tree(vfs: &Vfs) -> (VnodeId, VnodeId) {
    let dir = make_dir(vfs, VnodeId::ROOT, "dir").await.expect("a directory");
    let sub = make_dir(vfs, dir, "sub").await.expect("a directory");
    put(vfs, dir, "a", FILE_BYTES).await;
    put(vfs, sub, "b", FILE_BYTES).await;
    put(vfs, VnodeId::ROOT, "other", FILE_BYTES).await;
    (dir, sub)
}

/// How much of a path is in the cache, as far as this client knows without asking.
async fn cached(vfs: &Vfs, path: &str) -> Option<Cached> {
    let vnode = vfs.find(path.as_bytes()).await?;
    Some(vfs.object_report(vnode)?.cached)
}

async fn walk(vfs: &Vfs) {
    vfs.walk_hoard().await.expect("a walk");
}

/// Whether a file is cached that nobody but the hoard has asked for: looking it up would ask.
fn has(vfs: &Vfs, vnode: VnodeId) -> bool {
    vfs.object_report(vnode).is_some_and(|report| report.cached == Cached::Whole)
}

async fn vnode_of(vfs: &Vfs, path: &str) -> VnodeId {
    vfs.find(path.as_bytes()).await.expect("a path")
}

#[test]
fn what_is_pinned_comes_with_everything_below_and_with_what_comes_later() {
    simulate(async {
        let world = two().await;
        let [one, two] = clients(&world);
        let (dir, sub) = make_tree(&one).await;
        two.hoard(b"dir", HoardSpec::PIN).expect("a pin");
        walk(&two).await;
        let opened = two.status().calls;
        for path in ["dir", "dir/a", "dir/sub", "dir/sub/b"] {
            assert_eq!(cached(&two, path).await, Some(Cached::Whole), "{path}");
        }
        assert_eq!(two.status().calls, opened, "all of that is known here");
        assert_eq!(cached(&two, "other").await, Some(Cached::No));
        let report = two.status().hoard;
        assert_eq!((report.entries, report.pins, report.objects, report.missing_objects), (1, 1, 4, 0));
        assert_eq!(report.bytes, 2 * FILE_BYTES as u64);
        put(&one, sub, "later", FILE_BYTES).await;
        let deeper = make_dir(&one, dir, "deeper").await.expect("a directory");
        put(&one, deeper, "c", FILE_BYTES).await;
        sleep(SOON).await;
        assert_eq!(two.status().hoard.objects, 7);
        let calls = two.status().calls;
        for path in ["dir/sub/later", "dir/deeper/c"] {
            assert!(has(&two, vnode_of(&two, path).await), "{path}");
        }
        assert!(two.status().calls <= calls + 1, "at most the lease was renewed");
    });
}

#[test]
fn what_another_client_changes_is_fetched_again_without_anybody_opening_it() {
    for policy in [Writeback::Sync, Writeback::Async, Writeback::Sirp] {
        simulate(async move {
            let mut world = two().await;
            let machine = &mut world.machines_mut()[0];
            machine.stop().await;
            machine.set_writeback(policy);
            machine.start().await.expect("a client");
            let [one, two] = clients(&world);
            write_and_close(&one, "file", vec![1; 3000]).await;
            one.sync().await.expect("a sync");
            two.hoard(b"file", HoardSpec::PIN).expect("a pin");
            walk(&two).await;
            let vnode = vnode_of(&two, "file").await;
            for round in 2..5 {
                let before = two.object_report(vnode).expect("a report").version;
                overwrite(&one, "file", vec![round; 4000]).await;
                one.sync().await.expect("a sync");
                sleep(Duration::from_secs(40)).await;
                let report = two.object_report(vnode).expect("a report");
                assert!(report.version > before && report.cached == Cached::Whole, "{policy:?} {report:?}");
            }
            world.machines()[1].fall_silent(BLACK_HOLE);
            assert_eq!(content(&two, "file").await, vec![4; 4000]);
        });
    }
}

#[test]
fn the_hoard_survives_a_restart_and_a_loss_of_power() {
    for crash in [None, Some(Crash::Kill), Some(Crash::Power)] {
        simulate(async move {
            let mut world = two().await;
            let [one, two] = clients(&world);
            make_tree(&one).await;
            two.hoard(b"dir", HoardSpec::PIN).expect("a pin");
            two.hoard(b"other", spec("77")).expect("an entry");
            match crash {
                None => world.machines_mut()[1].stop().await,
                Some(crash) => world.crash_machine(1, crash),
            }
            drop(two);
            world.machines_mut()[1].start().await.expect("a client");
            sleep(SOON).await;
            let two = world.machines()[1].client().clone();
            let entries: Vec<_> = two.hoard_entries().into_iter().map(|entry| (entry.path, entry.spec)).collect();
            let expected = [("dir", "pinned"), ("other", "77")].map(|(path, spec)| (path.to_owned(), spec.to_owned()));
            assert_eq!(entries, expected);
            assert_eq!(two.status().hoard.missing_objects, 0);
            world.machines()[1].fall_silent(BLACK_HOLE);
            for path in ["dir/a", "dir/sub/b", "other"] {
                assert!(has(&two, vnode_of(&two, path).await), "{path}");
            }
        });
    }
}

#[test]
fn what_was_missed_while_the_server_was_out_of_reach_comes_afterwards() {
    simulate(async {
        let world = two().await;
        let [one, two] = clients(&world);
        let (dir, _) = make_tree(&one).await;
        two.hoard(b"dir", spec(":d+")).expect("an entry");
        walk(&two).await;
        world.machines()[1].isolate();
        sleep(Duration::from_secs(100)).await;
        put(&one, dir, "new", FILE_BYTES).await;
        assert!(matches!(two.walk_hoard().await, Err(HoardFailure::OutOfReach(_))));
        two.hoard(b"other", spec("10")).expect("an entry without a connection");
        world.machines()[1].restore_link();
        sleep(Duration::from_secs(20)).await;
        for path in ["dir/new", "other"] {
            assert!(has(&two, vnode_of(&two, path).await), "{path}");
        }
    });
}

#[test]
fn what_is_hoarded_has_its_attributes_and_targets_without_a_connection() {
    simulate(async {
        let world = two().await;
        let [one, two] = clients(&world);
        let (dir, _) = make_tree(&one).await;
        one.make_symlink(dir, name("link"), name("a"), CALLER).await.expect("a symlink");
        let file = look(&one, "other").await.fid.vnode;
        let attribute = || name("user.note");
        one.set_xattr(file, attribute(), name("value"), XattrMode::Either, CALLER).await.expect("an attribute");
        two.hoard(b"", spec(":d+")).expect("an entry");
        walk(&two).await;
        world.machines()[1].fall_silent(BLACK_HOLE);
        sleep(Duration::from_secs(100)).await;
        let other = look(&two, "other").await.fid.vnode;
        assert_eq!(two.get_xattr(other, attribute()).await.expect("an attribute").as_bytes(), b"value");
        let dir = look(&two, "dir").await.fid.vnode;
        let link = two.lookup(dir, name("link")).await.expect("a symlink");
        assert_eq!(two.read_link(link.fid.vnode).await.expect("a target").as_bytes(), b"a");
        let missing = two.lookup(dir, name("missing")).await;
        assert!(matches!(missing, Err(Error::Refused(FsError::NotFound))), "all names are known: {missing:?}");
    });
}

#[test]
fn a_path_may_come_later_and_now_means_now() {
    simulate(async {
        let world = two().await;
        let [one, two] = clients(&world);
        let (dir, sub) = make_tree(&one).await;
        two.hoard(b"dir", spec("10:c")).expect("an entry");
        two.hoard(b"dir/sub", spec("20:c+")).expect("an entry");
        two.hoard(b"dir/to-come/file", spec("30")).expect("an entry");
        walk(&two).await;
        let entries = two.hoard_entries();
        let shown: Vec<_> =
            entries.iter().map(|entry| (entry.path.as_str(), entry.spec.as_str(), entry.exists)).collect();
        let expected = [
            ("dir", "10", Some(true)),
            ("dir/a", "10", None),
            ("dir/sub", "20:c+", Some(true)),
            ("dir/to-come/file", "30", Some(false)),
        ];
        assert_eq!(shown, expected);
        put(&one, dir, "new", FILE_BYTES).await;
        put(&one, sub, "new", FILE_BYTES).await;
        let to_come = make_dir(&one, dir, "to-come").await.expect("a directory");
        put(&one, to_come, "file", FILE_BYTES).await;
        put(&one, to_come, "beside", FILE_BYTES).await;
        sleep(SOON).await;
        let here = [("dir/a", true), ("dir/new", false), ("dir/sub/new", true), ("dir/sub/b", true)];
        for (path, is_here) in here.into_iter().chain([("dir/to-come/file", true), ("dir/to-come/beside", false)]) {
            assert_eq!(has(&two, vnode_of(&two, path).await), is_here, "{path}");
        }
        assert!(two.unhoard(b"dir/to-come/file", |_| true).expect("a removal"));
        assert!(!two.unhoard(b"dir/to-come/file", |_| true).expect("nothing to remove"));
    });
}

#[test]
fn never_more_is_fetched_than_fits_and_the_more_wanted_replaces_the_less() {
    simulate(async {
        let world = two_with(500_000).await;
        let [one, two] = clients(&world);
        let dirs = ["low", "high"];
        for dir in dirs {
            let dir = make_dir(&one, VnodeId::ROOT, dir).await.expect("a directory");
            for number in 0..7 {
                put(&one, dir, &number.to_string(), 60_000).await;
            }
        }
        for number in 0..7 {
            assert_eq!(cached(&two, &format!("low/{number}")).await, Some(Cached::No));
        }
        two.hoard(b"low", spec("100:d+")).expect("an entry");
        walk(&two).await;
        let count = async |dir: &str| {
            let mut count = 0;
            for number in 0..7 {
                count += u32::from(cached(&two, &format!("{dir}/{number}")).await == Some(Cached::Whole));
            }
            count
        };
        assert_eq!((count("low").await, count("high").await), (7, 0));
        two.hoard(b"high", spec("900:d+")).expect("an entry");
        walk(&two).await;
        let report = two.status();
        assert_eq!((count("low").await, count("high").await), (0, 7), "{report:?}");
        assert!(report.cache_bytes <= 450_000, "a tenth stays free: {report:?}");
        assert_eq!((report.hoard.missing_objects, report.hoard.left_out_objects), (7, 7));
        let before = received_bytes(&two, Class::Prefetch);
        walk(&two).await;
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(count("high").await, 7);
        let again = received_bytes(&two, Class::Prefetch) - before;
        assert!(again < 60_000, "no content was fetched in place of another: {again} bytes");
    });
}

#[test]
fn invariant_5_eviction_under_pressure_never_touches_pinned_dirty_or_open_files() {
    simulate(async {
        let world = two_with(400_000).await;
        let [one, two] = clients(&world);
        let pinned = make_dir(&one, VnodeId::ROOT, "pinned").await.expect("a directory");
        for number in 0..3 {
            put(&one, pinned, &number.to_string(), 40_000).await;
        }
        write_and_close(&one, "open", vec![3; 40_000]).await;
        write_and_close(&one, "dirty", vec![4; 40_000]).await;
        let large = make_dir(&one, VnodeId::ROOT, "large").await.expect("a directory");
        for number in 0..30 {
            put(&one, large, &number.to_string(), 60_000).await;
        }
        two.hoard(b"pinned", HoardSpec::PIN).expect("a pin");
        walk(&two).await;
        let open = open_as(&two, "open", READ).await;
        two.read(open, 0, u32::MAX / 2).await.expect("a read");
        let dirty = open_as(&two, "dirty", WRITE).await;
        two.write(dirty, 0, vec![9; 40_000].into()).await.expect("a write");
        // As new, not opened again since, and many times the cache in between.
        for number in 0..30 {
            let vnode = vnode_of(&two, &format!("large/{number}")).await;
            let file = two.open(vnode, READ, CALLER).await.expect("an open").file;
            assert_eq!(two.read(file, 0, 100_000).await.expect("a read").len(), 60_000);
            two.release(file);
            let status = two.status();
            assert!(status.cache_bytes <= status.cache_limit_bytes + 60_000, "{status:?}");
            for number in 0..3 {
                assert!(has(&two, vnode_of(&two, &format!("pinned/{number}")).await), "{number}");
            }
        }
        // A file that is made or moved below it is pinned from then on.
        let from = look(&two, "large").await.fid.vnode;
        let to = look(&two, "pinned").await.fid.vnode;
        let moved = vnode_of(&two, "large/29").await;
        let mode = mafs_proto::RenameMode::Replace;
        two.rename(from, name("29"), to, name("moved"), mode, CALLER).await.expect("a rename");
        assert_eq!(two.evict(b"").await.expect("an eviction").expect("a path").pinned_files, 4);
        assert!(has(&two, moved));
        // And one that another client moves away is so no more.
        one.rename(to, name("0"), from, name("gone"), mode, CALLER).await.expect("a rename");
        walk(&two).await;
        let gone = vnode_of(&two, "large/gone").await;
        assert!(has(&two, gone), "it may stay");
        assert_eq!(two.evict(b"large").await.expect("an eviction").expect("a path").pinned_files, 0);
        assert!(!has(&two, gone));
        assert!(two.rename(from, name("gone"), to, name("0"), mode, CALLER).await.is_ok());
        walk(&two).await;
        let calls = two.status().calls;
        assert_eq!(two.read(open, 0, 3).await.expect("an open file"), vec![3; 3]);
        assert_eq!(two.read(dirty, 0, 3).await.expect("a dirty file"), vec![9; 3]);
        assert_eq!(two.status().calls, calls, "they were here");
        two.flush(dirty).await.expect("a close");
        two.release(dirty);
        two.release(open);
        assert!(two.unhoard(b"pinned", |spec| spec.rank.is_pinned()).expect("an unpin"));
        let evicted = two.evict(b"pinned").await.expect("an eviction").expect("a path");
        assert_eq!((evicted.files, evicted.pinned_files, evicted.busy_files), (4, 0, 0));
        assert!(!has(&two, moved));
    });
}

fn received_bytes(vfs: &Vfs, class: Class) -> u64 {
    vfs.statistics()[class.index()].received_bytes
}

const BYTES_PER_S: u64 = 64_000;

/// A client beside the server, and one at the end of a thin link.
async fn over_a_link() -> World {
    let link = Path::Link(Box::new(Profile::steady(BYTES_PER_S, Duration::from_millis(20))));
    let world = World::start_over(1, vec![Path::Delay(Duration::ZERO), link], false).await.expect("a world");
    configured(world, |machine| machine.set_disconnected(true)).await
}

#[test]
fn a_walk_delays_a_demanded_fetch_by_no_more_than_a_chunk() {
    simulate(async {
        let world = over_a_link().await;
        let [one, two] = clients(&world);
        let large = make_dir(&one, VnodeId::ROOT, "large").await.expect("a directory");
        for number in 0..20 {
            put(&one, large, &number.to_string(), 300_000).await;
        }
        for file in ["alone", "beside"] {
            write_and_close(&one, file, vec![5; 64_000]).await;
        }
        names(&two, VnodeId::ROOT).await.expect("names");
        let time_of_reading = async |file: &'static str| {
            let begun = Instant::now();
            assert_eq!(content(&two, file).await.len(), 64_000);
            begun.elapsed()
        };
        let alone = time_of_reading("alone").await;
        two.hoard(b"large", spec(":d+")).expect("an entry");
        sleep(Duration::from_secs(3)).await;
        assert!(two.status().hoard.walking);
        let beside = time_of_reading("beside").await;
        // A chunk for each of its two round trips may be on its way.
        assert!(beside < alone + Duration::from_millis(100), "beside the walk {beside:?}, alone {alone:?}");
        let fetched = received_bytes(&two, Class::Fetch);
        walk(&two).await;
        assert!(received_bytes(&two, Class::Fetch) < fetched + 10_000, "contents and names come as speculation");
        assert!(received_bytes(&two, Class::Prefetch) > 5_000_000);
        assert_eq!(two.status().hoard.missing_objects, 0);
    });
}

#[test]
fn who_lists_a_directory_that_is_being_walked_does_not_wait_for_the_walk() {
    simulate(async {
        let world = over_a_link().await;
        let [one, two] = clients(&world);
        let dirs = ["alone", "beside"];
        for dir in dirs {
            let dir = make_dir(&one, VnodeId::ROOT, dir).await.expect("a directory");
            for number in 0..1500 {
                put(&one, dir, &format!("a-long-name-of-a-file-{number}"), 0).await;
            }
        }
        write_and_close(&one, "large", vec![1; 3_000_000]).await;
        names(&two, VnodeId::ROOT).await.expect("names");
        let dirs = [look(&two, "alone").await.fid.vnode, look(&two, "beside").await.fid.vnode];
        let time_of_listing = async |dir: VnodeId| {
            let begun = Instant::now();
            assert_eq!(names(&two, dir).await.expect("names").len(), 1500);
            begun.elapsed()
        };
        let alone = time_of_listing(dirs[0]).await;
        // Somebody's download starves the walk, which has begun to list the directory.
        let vfs = two.clone();
        let reading = tokio::spawn(async move { content(&vfs, "large").await });
        sleep(Duration::from_secs(1)).await;
        two.hoard(b"beside", spec(":c+")).expect("an entry");
        sleep(Duration::from_millis(200)).await;
        let beside = time_of_listing(dirs[1]).await;
        assert!(beside < 3 * alone, "beside a download {beside:?}, alone {alone:?}");
        assert_eq!(reading.await.expect("a task").len(), 3_000_000);
        walk(&two).await;
        assert_eq!(two.status().hoard.missing_objects, 0);
    });
}

#[test]
fn warming_up_fetches_once_and_the_check_says_what_is_missing() {
    simulate(async {
        let world = two().await;
        let [one, two] = clients(&world);
        let (dir, _) = make_tree(&one).await;
        let before = two.look_at_cached(b"dir").await.expect("a look");
        assert!(before.is_none_or(|before| before.missing_objects > 0));
        let warmed = two.warm_up(b"/dir/", 1).await.expect("warming up").expect("a path");
        assert_eq!((warmed.objects, warmed.missing_objects, warmed.bytes), (4, 0, 2 * FILE_BYTES as u64));
        assert!(two.warm_up(b"nothing", 1).await.expect("warming up").is_none());
        assert!(two.hoard_entries().is_empty());
        put(&one, dir, "later", FILE_BYTES).await;
        overwrite(&one, "other", vec![1; 100]).await;
        names(&two, dir).await.expect("names");
        let calls = two.status().calls;
        let checked = two.look_at_cached(b"dir").await.expect("a look").expect("a path");
        assert_eq!((checked.missing_objects, checked.missing), (1, vec!["dir/later".to_owned()]));
        assert_eq!(two.status().calls, calls, "nobody is asked");
        world.machines()[1].isolate();
        sleep(Duration::from_secs(30)).await;
        assert!(matches!(two.warm_up(b"dir", 1).await, Err(HoardFailure::OutOfReach(_))));
        assert_eq!(two.look_at_cached(b"dir/sub").await.expect("a look").expect("a path").missing_objects, 0);
        assert!(two.warming(1).is_none());
    });
}
