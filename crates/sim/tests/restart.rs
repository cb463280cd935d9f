//! A start takes up what an earlier life has left in the log: at once, however much that is.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::link::Profile;
use mafs_client::vfs::{Fsync, Vfs, Writeback};
use mafs_durable::{AppendLog, Disk, LogConfig};
use mafs_proto::{CmlRecord, DataVersion, Mode, VnodeId, Wire};
use mafs_sim::{Crash, Path, World};

use crate::support::{
    CALLER, MAKE, WRITE, clients, configured, content, content_beside_file, look, open_as, overwrite, simulate,
    until_all_is_sent, write_and_close,
};

/// Each is created, stored and closed, and of four one is removed again. More of them take the memory disk long, which
/// looks at all its files when it is asked for room: `cache/cml.rs` reads a log of 100,000 records.
const FILES: u32 = if cfg!(debug_assertions) { 1500 } else { 10_000 };

/// The time required of 100,000 records in a release build.
const START_MAX: Duration = Duration::from_secs(if cfg!(debug_assertions) { 3 } else { 1 });

/// One client over a link on which next to nothing arrives, in the background.
async fn slow_world(passthrough: bool) -> World {
    let link = Profile::steady(20_000, Duration::from_millis(10));
    let mut world = World::start_over(1, vec![Path::Link(Box::new(link))], passthrough).await.expect("a world");
    for machine in world.machines_mut() {
        machine.stop().await;
        machine.set_writeback(Writeback::Async);
        machine.set_fsync(Fsync::Local);
        machine.set_cache_limit_bytes(1 << 30);
        machine.start().await.expect("a client");
    }
    world
}

async fn make(vfs: &Vfs, number: u32) {
    let (name, mode) = (Bytes::from(format!("f{number}")), Mode::from_bits(0o644));
    let made = vfs.create(VnodeId::ROOT, name, mode, MAKE, CALLER).await;
    let (_, opened) = made.expect("a file");
    vfs.write(opened.file, 0, number.to_le_bytes().to_vec().into()).await.expect("a write");
    vfs.flush(opened.file).await.expect("a close");
    vfs.release(opened.file);
}

/// The contents on the client's disk.
fn containers(world: &World) -> Vec<String> {
    let disk = world.client_disk();
    let names = |shard: &String| disk.list(&format!("containers/{shard}")).expect("a directory");
    disk.list("containers").expect("contents").iter().flat_map(names).collect()
}

#[test]
fn a_long_queue_is_taken_up_at_once() {
    simulate(async {
        let mut world = slow_world(false).await;
        let vfs = world.client().clone();
        for number in 0..FILES {
            make(&vfs, number).await;
            if number % 4 == 3 {
                let name = Bytes::from(format!("f{}", number - 1));
                vfs.unlink(VnodeId::ROOT, name, CALLER).await.expect("a removal");
            }
        }
        // The log and the contents become durable.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let before = vfs.status();
        drop(vfs);
        world.crash_client(Crash::Kill);
        let (names, syncs, opens) = (containers(&world), world.client_disk().syncs(), world.client_disk().opens());
        let begun = std::time::Instant::now();
        world.start_client().await.expect("the client starts");
        let (took, syncs) = (begun.elapsed(), world.client_disk().syncs() - syncs);
        let opens = world.client_disk().opens() - opens;
        let records = before.unsent_changes;
        println!("{records} changes, {} files: {took:?}, {syncs} syncs, {opens} opened", before.unsent_files);
        assert!(before.unsent_files > u64::from(FILES) / 2, "{before:?}");
        assert_eq!(containers(&world), names, "nothing is copied that nobody can change");
        assert!(syncs < 20, "{syncs} syncs");
        assert!(opens < 100, "the log and what is being sent, not what waits: {opens} opened");
        assert!(took < START_MAX, "{took:?}");
        assert_eq!(world.client().status().unsent_files, before.unsent_files);
    });
}

/// A file that the kernel may still write to is copied before it is sent, and the log says so.
#[test]
fn what_was_copied_to_be_sent_and_not_changed_since_is_sent_once() {
    for crash in [None, Some(Crash::Kill), Some(Crash::Power)] {
        simulate(async {
            let mut world = slow_world(true).await;
            let vfs = world.client().clone();
            let mode = Mode::from_bits(0o644);
            let made = vfs.create(VnodeId::ROOT, Bytes::from("file"), mode, MAKE, CALLER).await;
            let (object, opened) = made.expect("a file");
            let container = vfs.container(opened.file).expect("its container");
            container.write_all_at(&[7; 100_000], 0).expect("a write");
            vfs.flush(opened.file).await.expect("a close");
            tokio::time::sleep(Duration::from_secs(2)).await;
            vfs.release(opened.file);
            drop(vfs);
            match crash {
                None => world.stop_client().await,
                Some(crash) => world.crash_client(crash),
            }
            world.start_client().await.expect("the client starts");
            let vfs = world.client();
            vfs.sync().await.expect("a sync");
            let status = vfs.get_attributes(object.fid.vnode).await.expect("attributes").status;
            assert_eq!((status.size, status.data_version), (100_000, DataVersion(2)), "{crash:?}: sent again");
        });
    }
}

/// The last act of the client's program.
#[derive(Clone, Copy, Debug)]
enum Kept {
    Nothing,
    Closed,
    Fsynced,
}

#[test]
fn what_a_killed_client_had_not_sent_is_kept_beside_what_others_have_made_meanwhile() {
    let all = [
        (Crash::Kill, Kept::Nothing),
        (Crash::Kill, Kept::Closed),
        (Crash::Kill, Kept::Fsynced),
        (Crash::Power, Kept::Closed),
        (Crash::Power, Kept::Fsynced),
    ];
    for (crash, kept) in all {
        simulate(async {
            let world = World::start_several(1, 2, Duration::from_millis(10), false).await.expect("a world");
            let mut world = configured(world, |machine| machine.set_writeback(Writeback::Sirp)).await;
            let [one, two] = clients(&world);
            write_and_close(&one, "file", vec![1; 10]).await;
            one.sync().await.expect("a sync");
            world.machines()[0].isolate();
            let file = open_as(&one, "file", WRITE).await;
            one.write(file, 0, vec![2; 10].into()).await.expect("a write");
            match kept {
                Kept::Nothing => {}
                Kept::Closed => one.flush(file).await.expect("a close"),
                Kept::Fsynced => one.fsync(file).await.expect("an fsync"),
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
            world.crash_machine(0, crash);
            overwrite(&two, "file", vec![3; 10]).await;
            two.sync().await.expect("a sync");
            world.machines()[0].restore_link();
            world.start_client().await.expect("a client");
            tokio::time::sleep(Duration::from_secs(30)).await;
            let one = world.client();
            assert_eq!((one.status().refused, one.status().unsent_files), (vec![], 0), "{crash:?}, {kept:?}");
            for vfs in [one, &two] {
                assert_eq!(content(vfs, "file").await, [3; 10]);
                assert_eq!(content_beside_file(vfs).await, [2; 10], "{crash:?}, {kept:?}");
            }
        });
    }
}

/// Has the log say of the last content what earlier versions said of one with `writeback=sync`: that it is about to be
/// sent, not that it is kept for that.
fn log_as_earlier_versions(world: &World) {
    const SEGMENT_BYTES: u64 = 4 << 20;
    const SENT: u8 = 3;
    const ABANDONED: u8 = 5;
    const LOGGED: u8 = 17;
    let disk: Arc<dyn Disk> = Arc::new(world.client_disk().clone());
    let config = LogConfig { segment_bytes: SEGMENT_BYTES };
    let (mut log, recovery) = AppendLog::open(disk, "cml", config).expect("a log");
    let entries = log.read(recovery.first).map(|entry| entry.expect("an entry").1);
    let last = entries.filter(|entry| entry[0] == LOGGED).last().expect("a content");
    let record = CmlRecord::decode(last[9..].to_vec().into()).expect("a record");
    for entry in [[&[ABANDONED], &record.id.encode()[..]].concat(), [&[SENT], &last[1..]].concat()] {
        log.append(&entry).expect("an entry");
    }
    log.sync().expect("a log");
}

#[test]
fn what_an_earlier_version_was_sending_arrives_once() {
    // Before it has arrived, when the answer is on its way, and when the file has changed since. The bytes of the file
    // are stored behind it, for they may be newer.
    for (killed_at_ms, changed, versions) in [(20, false, 1), (80, false, 2), (80, true, 2)] {
        simulate(async move {
            let mut world = World::start(1, Duration::from_millis(50)).await.expect("a world");
            let vfs = world.client().clone();
            write_and_close(&vfs, "file", b"before".to_vec()).await;
            let before = look(&vfs, "file").await.status.data_version;
            let file = open_as(&vfs, "file", WRITE).await;
            vfs.write(file, 0, Bytes::from_static(b"middle")).await.expect("a write");
            let closing = tokio::spawn({
                let vfs = vfs.clone();
                async move { vfs.flush(file).await }
            });
            tokio::time::sleep(Duration::from_millis(killed_at_ms)).await;
            if changed {
                vfs.write(file, 0, Bytes::from_static(b"behind")).await.expect("a write");
            }
            assert!(!closing.is_finished());
            drop(vfs);
            if killed_at_ms == 20 {
                world.crash_server(Crash::Kill);
                world.start_server().expect("a server");
            }
            world.crash_client(Crash::Kill);
            log_as_earlier_versions(&world);
            world.start_client().await.expect("the client starts");
            until_all_is_sent(world.client()).await;
            let other = world.add_client().await.expect("another client");
            let expected: &[u8] = if changed { b"behind" } else { b"middle" };
            assert_eq!(content(&other, "file").await, expected);
            let version = look(&other, "file").await.status.data_version;
            assert_eq!(version.0, before.0 + versions, "killed after {killed_at_ms} ms");
        });
    }
}
