//! fsync goes where the user wants it to; and content that it waits for at the server goes before content
//! that nobody waits for so.

use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::vfs::{FileHandle, Fsync, Vfs, Writeback};
use mafs_proto::VnodeId;
use mafs_sim::{Crash, Path, World};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::{WRITE, configured, content, create, open_as, simulate, until_all_is_sent, write_and_close};

const BYTES_PER_S: u64 = 64_000;
const RTT: Duration = Duration::from_millis(20);
/// Nothing has to go.
const CACHE_BYTES: u64 = 1 << 30;
/// Ten seconds of the link.
const LARGE_BYTES: usize = 640_000;

/// Two machines: one beside the server, and one at the end of a link.
async fn world(fsync: Fsync) -> World {
    let link = Path::Link(Box::new(Profile::steady(BYTES_PER_S, RTT)));
    let mut world = World::start_over(1, vec![Path::Delay(Duration::ZERO), link], false).await.expect("a world");
    let machine = &mut world.machines_mut()[1];
    machine.stop().await;
    machine.set_cache_limit_bytes(CACHE_BYTES);
    machine.set_fsync(fsync);
    machine.start().await.expect("a client");
    world
}

fn far(world: &World) -> &Vfs {
    world.machines()[1].client()
}

/// A new file of so many seconds of the link, not closed.
async fn written(vfs: &Vfs, name: &'static str, seconds: usize) -> FileHandle {
    let (_, file) = create(vfs, name).await;
    vfs.write(file, 0, vec![7; seconds * LARGE_BYTES / 10].into()).await.expect("a write");
    file
}

/// A close that goes on beside the test.
fn closing(vfs: &Vfs, name: &'static str, bytes: usize) -> JoinHandle<VnodeId> {
    let vfs = vfs.clone();
    tokio::spawn(async move { write_and_close(&vfs, name, vec![7; bytes]).await })
}

async fn time_of_fsync(vfs: &Vfs, file: FileHandle) -> Duration {
    let began = Instant::now();
    vfs.fsync(file).await.expect("an fsync");
    began.elapsed()
}

#[test]
fn fsync_at_the_server_goes_before_what_a_close_sends() {
    simulate(async {
        let world = world(Fsync::Server).await;
        let close = closing(far(&world), "large", LARGE_BYTES);
        let file = written(far(&world), "small", 1).await;
        sleep(Duration::from_secs(1)).await;
        let took = time_of_fsync(far(&world), file).await;
        assert!(took < Duration::from_millis(1200), "1 s of the link: {took:?}");
        assert_eq!(content(world.client(), "small").await.len(), LARGE_BYTES / 10);
        close.await.expect("a close");
    });
}

#[test]
fn an_fsync_hurries_what_is_on_its_way() {
    simulate(async {
        let world = world(Fsync::Server).await;
        let (large, small) =
            (closing(far(&world), "large", LARGE_BYTES), closing(far(&world), "small", LARGE_BYTES / 5));
        sleep(Duration::from_secs(1)).await;
        let file = open_as(far(&world), "small", WRITE).await;
        let took = time_of_fsync(far(&world), file).await;
        // Half of the link until then, and all of it from now on, in place of half.
        let range = Duration::from_millis(1200)..Duration::from_millis(1900);
        assert!(range.contains(&took), "{took:?}");
        small.await.expect("a close");
        large.await.expect("a close");
    });
}

#[test]
fn fsync_on_this_machine_waits_for_no_link() {
    simulate(async {
        let world = world(Fsync::Local).await;
        let file = written(far(&world), "small", 1).await;
        assert!(time_of_fsync(far(&world), file).await < Duration::from_millis(1));
        sleep(Duration::from_secs(5)).await;
        assert_eq!(content(world.client(), "small").await, b"", "it is sent when it is closed");
    });
}

#[test]
fn an_automatic_fsync_that_takes_too_long_is_one_of_this_machine() {
    simulate(async {
        let world = world(Fsync::Auto).await;
        // The link is not known yet, and thought to be faster.
        let file = written(far(&world), "first", 3).await;
        let took = time_of_fsync(far(&world), file).await;
        assert!((Duration::from_millis(500)..Duration::from_millis(510)).contains(&took), "{took:?}");
        // The store that goes on is as urgent as other closes.
        let began = Instant::now();
        closing(far(&world), "second", LARGE_BYTES / 10).await.expect("a close");
        assert!(began.elapsed() < Duration::from_millis(2600), "2 s with half of the link: {:?}", began.elapsed());
    });
}

/// Bytes that the kernel may be writing are copied before they are sent, which takes room.
#[test]
fn an_automatic_fsync_is_one_of_this_machine_where_the_disk_is_too_full_to_send() {
    simulate(async {
        let mut world = World::start_with(1, RTT, true).await.expect("a world");
        let machine = &mut world.machines_mut()[0];
        machine.stop().await;
        machine.set_writeback(Writeback::Async);
        machine.start().await.expect("a client");
        let (vfs, written) = (world.client().clone(), vec![7; 100_000]);
        let (_, file) = create(&vfs, "file").await;
        vfs.container(file).expect("its container").write_all_at(&written, 0).expect("a write");
        world.limit_client_disk(10_000).expect("a disk");
        vfs.fsync(file).await.expect("an fsync");
        world.crash_client(Crash::Power);
        world.limit_client_disk(1 << 30).expect("a disk");
        world.start_client().await.expect("a client");
        assert_eq!(content(world.client(), "file").await, written);
    });
}

/// Writes as the kernel does.
async fn fill(vfs: &Vfs, file: FileHandle, bytes: &[u8], passthrough: bool) {
    match passthrough {
        true => vfs.container(file).expect("its container").write_all_at(bytes, 0).expect("a write"),
        false => vfs.write(file, 0, bytes.to_vec().into()).await.map(drop).expect("a write"),
    }
}

/// An fsynced content waits for the link, and the file is emptied and written again, as an editor without a temporary
/// file does: of that nothing was fsynced.
#[test]
fn regression_40976_what_was_fsynced_is_not_replaced_by_a_torn_content() {
    simulate(async {
        for (seed, passthrough, other_is_fsynced) in
            (1..7).flat_map(|seed| [(seed, false, false), (seed, false, true), (seed, true, false), (seed, true, true)])
        {
            let mut world = World::start_with(seed, RTT, passthrough).await.expect("a world");
            let machine = &mut world.machines_mut()[0];
            machine.stop().await;
            machine.set_writeback(Writeback::Async);
            machine.set_fsync(Fsync::Local);
            machine.start().await.expect("a client");
            let vfs = world.client().clone();
            let (_, file) = create(&vfs, "file").await;
            world.machines()[0].cut_link();
            let first = vec![1; LARGE_BYTES];
            fill(&vfs, file, &first, passthrough).await;
            vfs.fsync(file).await.expect("an fsync");
            vfs.flush(file).await.expect("a close");
            vfs.release(file);
            let again = open_as(&vfs, "file", WRITE).await;
            fill(&vfs, again, &[2; LARGE_BYTES], passthrough).await;
            vfs.flush(again).await.expect("a close");
            vfs.release(again);
            if other_is_fsynced {
                // So is the log, in which the second content is.
                let (_, other) = create(&vfs, "other").await;
                vfs.fsync(other).await.expect("an fsync");
                vfs.release(other);
            }
            world.crash_client(Crash::Power);
            world.start_client().await.expect("a client");
            let found = content(world.client(), "file").await;
            assert!(
                found == first || found == vec![2; LARGE_BYTES],
                "seed {seed}, {passthrough}, {other_is_fsynced}: torn, of {} bytes, {:?}",
                found.len(),
                [0u8, 1, 2].map(|b| found.iter().filter(|x| **x == b).count())
            );
        }
    });
}

/// The background has made a content durable while it was sent, the server has it, and the file is written again at
/// once: the log that a loss of power leaves tells of the content as one that waits.
#[test]
fn regression_600261_what_the_server_has_is_not_replaced_by_a_torn_content() {
    simulate(async {
        for (seed, passthrough) in (1..7).flat_map(|seed| [(seed, false), (seed, true)]) {
            let link = Path::Link(Box::new(Profile::steady(BYTES_PER_S, RTT)));
            let world = World::start_over(seed, vec![link], passthrough).await.expect("a world");
            let mut world = configured(world, |machine| machine.set_writeback(Writeback::Async)).await;
            let vfs = world.client().clone();
            let first = vec![1; LARGE_BYTES / 2];
            write_and_close(&vfs, "file", first.clone()).await;
            until_all_is_sent(&vfs).await;
            let again = open_as(&vfs, "file", WRITE).await;
            fill(&vfs, again, &[2; LARGE_BYTES], passthrough).await;
            vfs.flush(again).await.expect("a close");
            vfs.release(again);
            world.crash_client(Crash::Power);
            world.start_client().await.expect("a client");
            let found = content(world.client(), "file").await;
            let is_whole = found == first || found == vec![2; LARGE_BYTES];
            let of_each = [0u8, 1, 2].map(|byte| found.iter().filter(|found| **found == byte).count());
            assert!(is_whole, "seed {seed}, passthrough {passthrough}: torn, of {} bytes, {of_each:?}", found.len());
        }
    });
}
