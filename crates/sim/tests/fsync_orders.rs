//! consistency.md: "fsync orders: no other client, and no crash of the writer, ever shows an update made after fsync()
//! returned without what was fsynced." Here the file that is fsynced stays open.

use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::link::Profile;
use mafs_client::vfs::{Error, FileHandle, Vfs, Writeback};
use mafs_durable::Disk;
use mafs_proto::{FsError, VnodeId};
use mafs_sim::{Crash, Path, World};
use tokio::time::sleep;

use crate::support::{WRITE, clients, configured, content, open_as, simulate, write_and_close};

const LARGE: usize = 300_000;
const POLICIES: [Writeback; 2] = [Writeback::Async, Writeback::Sirp];

/// A writer at the end of a slow link, and a reader near the server.
async fn world(writeback: Writeback, passthrough: bool) -> World {
    let link = Profile::steady(100_000, Duration::from_millis(20));
    let paths = vec![Path::Link(Box::new(link)), Path::Delay(Duration::from_millis(5))];
    let world = World::start_over(1, paths, passthrough).await.expect("a world");
    configured(world, |machine| machine.set_writeback(writeback)).await
}

async fn is_there(vfs: &Vfs, name: &'static str) -> bool {
    match vfs.lookup(VnodeId::ROOT, Bytes::from(name)).await {
        Ok(_) => true,
        Err(Error::Refused(FsError::NotFound)) => false,
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Files that the server has, and that are open now.
async fn opened<const N: usize>(vfs: &Vfs, names: [&'static str; N]) -> [FileHandle; N] {
    for name in names {
        write_and_close(vfs, name, vec![0; 10]).await;
    }
    vfs.sync().await.expect("a sync");
    let mut files = Vec::new();
    for name in names {
        files.push(open_as(vfs, name, WRITE).await);
    }
    files.try_into().unwrap_or_else(|_| unreachable!("one for each name"))
}

/// A write of a program: past the client, if the kernel has the container.
async fn write(vfs: &Vfs, file: FileHandle, passthrough: bool, bytes: Vec<u8>) {
    match passthrough {
        true => vfs.container(file).expect("a container").write_all_at(&bytes, 0).expect("a write of the kernel"),
        false => vfs.write(file, 0, bytes.into()).await.expect("a write"),
    }
}

async fn fsync(vfs: &Vfs, file: FileHandle) {
    vfs.fsync(file).await.expect("an fsync");
}

/// Returns what the reader sees of two files every 50 ms: of each the byte at its beginning and how long it is.
async fn watched(reader: &Vfs, names: [&'static str; 2]) -> Vec<[(Option<u8>, usize); 2]> {
    let mut seen = Vec::new();
    for _ in 0..400 {
        let mut now = [(None, 0); 2];
        // The file that came later is looked at first.
        for (at, name) in names.into_iter().enumerate() {
            if is_there(reader, name).await {
                let bytes = content(reader, name).await;
                now[at] = (bytes.first().copied(), bytes.len());
            }
        }
        seen.push(now);
        sleep(Duration::from_millis(50)).await;
    }
    seen
}

#[test]
fn fsync_orders_what_stays_open_before_a_file_that_is_closed_later() {
    for (writeback, passthrough) in POLICIES.into_iter().flat_map(|policy| [(policy, false), (policy, true)]) {
        simulate(async move {
            let world = world(writeback, passthrough).await;
            let [writer, reader] = clients(&world);
            let [journal] = opened(&writer, ["journal"]).await;
            write(&writer, journal, passthrough, vec![1; LARGE]).await;
            fsync(&writer, journal).await;
            write_and_close(&writer, "later", vec![2; 10]).await;
            let seen = watched(&reader, ["later", "journal"]).await;
            let wrong = seen.iter().find(|[later, journal]| later.0.is_some() && *journal != (Some(1), LARGE));
            assert_eq!(wrong, None, "{writeback:?}, passthrough {passthrough}");
            assert_eq!(seen.last().map(|[later, _]| later.0), Some(Some(2)), "it arrives");
            writer.release(journal);
        });
    }
}

/// A database and its journal: what is written into the one after the other was fsynced is not shown before it, though
/// it is written into a file that has been fsynced before and has not been sent since.
#[test]
fn fsync_orders_a_journal_before_what_is_written_next_into_an_open_database() {
    for (writeback, passthrough) in POLICIES.into_iter().flat_map(|policy| [(policy, false), (policy, true)]) {
        simulate(async move {
            let world = world(writeback, passthrough).await;
            let [writer, reader] = clients(&world);
            let [journal, database] = opened(&writer, ["journal", "database"]).await;
            // The first file takes the link so long that nothing behind it is sent before all has been written.
            write_and_close(&writer, "first", vec![9; LARGE]).await;
            write(&writer, database, passthrough, vec![1; 1000]).await;
            fsync(&writer, database).await;
            write(&writer, journal, passthrough, vec![1; LARGE]).await;
            fsync(&writer, journal).await;
            write(&writer, database, passthrough, vec![2; 1000]).await;
            sleep(Duration::from_millis(10)).await;
            let seen = watched(&reader, ["database", "journal"]).await;
            let wrong = seen.iter().find(|[database, journal]| database.0 == Some(2) && journal.0 != Some(1));
            assert_eq!(wrong, None, "{writeback:?}, passthrough {passthrough}");
            assert_eq!(seen.last().map(|[database, _]| database.0), Some(Some(1)), "the journal comes behind it");
            fsync(&writer, database).await;
            writer.sync().await.expect("a sync");
            assert_eq!(content(&reader, "database").await, vec![2; 1000]);
            writer.release(journal);
            writer.release(database);
        });
    }
}

/// The order holds over a crash of the writer too, before anything has been sent.
#[test]
fn fsync_orders_over_a_crash_of_the_writer() {
    let crashes = [Crash::Kill, Crash::Power];
    for (crash, passthrough) in crashes.into_iter().flat_map(|crash| [(crash, false), (crash, true)]) {
        for policy in POLICIES {
            simulate(async move {
                let mut world = world(policy, passthrough).await;
                let [writer, reader] = clients(&world);
                let [journal, database] = opened(&writer, ["journal", "database"]).await;
                world.machines()[0].isolate();
                write(&writer, journal, passthrough, vec![1; LARGE]).await;
                fsync(&writer, journal).await;
                write(&writer, database, passthrough, vec![2; 1000]).await;
                fsync(&writer, database).await;
                // Not fsynced: what is left of it is the disk's affair.
                write(&writer, database, passthrough, vec![3; 500]).await;
                drop(writer);
                world.crash_client(crash);
                world.machines()[0].restore_link();
                world.start_client().await.expect("the client starts");
                let writer = world.machines()[0].client().clone();
                write_and_close(&writer, "later", vec![4; 10]).await;
                let seen = watched(&reader, ["later", "database"]).await;
                let wrong = seen.iter().find(|[later, database]| later.0.is_some() && database.1 != 1000);
                assert_eq!(wrong, None, "{policy:?}, {crash:?}, passthrough {passthrough}");
                writer.sync().await.expect("a sync");
                assert_eq!(content(&reader, "journal").await, vec![1; LARGE], "{policy:?}, {crash:?}");
                assert_eq!(content(&reader, "database").await[500..], vec![2; 500], "{policy:?}, {crash:?}");
                assert!(is_there(&reader, "later").await);
            });
        }
    }
}

/// The file that was fsynced first goes first, of those that a crash leaves to be sent.
#[test]
fn fsync_orders_what_a_crash_has_left_of_two_open_files() {
    for (crash, passthrough) in
        [Crash::Kill, Crash::Power].into_iter().flat_map(|crash| [(crash, false), (crash, true)])
    {
        simulate(async move {
            let mut world = world(Writeback::Async, passthrough).await;
            let [writer, reader] = clients(&world);
            // The other way round than they are written.
            let [database, journal] = opened(&writer, ["database", "journal"]).await;
            world.machines()[0].isolate();
            write(&writer, journal, passthrough, vec![1; LARGE]).await;
            fsync(&writer, journal).await;
            write(&writer, database, passthrough, vec![2; 1000]).await;
            fsync(&writer, database).await;
            drop(writer);
            world.crash_client(crash);
            world.machines()[0].restore_link();
            world.start_client().await.expect("the client starts");
            let seen = watched(&reader, ["database", "journal"]).await;
            let wrong = seen.iter().find(|[database, journal]| database.0 == Some(2) && journal.0 != Some(1));
            assert_eq!(wrong, None, "{crash:?}, passthrough {passthrough}");
            assert_eq!(seen.last().map(|seen| seen.map(|(byte, _)| byte)), Some([Some(2), Some(1)]));
        });
    }
}

/// A file that is fsynced again and again while nothing else is logged is one record and one content, however often.
#[test]
fn fsyncs_of_one_open_file_cost_no_copies() {
    for passthrough in [false, true] {
        simulate(async move {
            let world = world(Writeback::Async, passthrough).await;
            let [writer, reader] = clients(&world);
            let [database] = opened(&writer, ["database"]).await;
            world.machines()[0].isolate();
            let vnode = crate::support::look(&writer, "database").await.fid.vnode;
            let directory = format!("containers/{:02x}", vnode.0 & 0xff);
            for round in 0..100 {
                write(&writer, database, passthrough, vec![round; LARGE]).await;
                let containers = world.client_disk().list(&directory).expect("containers");
                let own = containers.iter().filter(|name| name.starts_with(&format!("{:x}.", vnode.0)));
                assert_eq!(own.count(), 1, "round {round}, passthrough {passthrough}: {containers:?}");
                fsync(&writer, database).await;
            }
            assert_eq!(writer.queue(&mafs_client::vfs::QueuePage { after: None, count_max: 10 }).log.records, 1);
            world.machines()[0].restore_link();
            writer.sync().await.expect("a sync");
            assert_eq!(content(&reader, "database").await, vec![99; LARGE]);
            writer.release(database);
        });
    }
}
