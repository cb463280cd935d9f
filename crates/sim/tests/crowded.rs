//! Writers that fill the cache, or its disk, with what the server does not have yet: they wait while that is sent.

use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::vfs::{Error, Fsync, Vfs, Writeback};
use mafs_sim::{Path, World};
use tokio::time::Instant;

use crate::support::{content, create, simulate, write_and_close};

/// The client's link, bytes per second.
const RATE: u64 = 100_000;
const BYTES: usize = 800_000;
/// Nine tenths of what one file takes on that link.
const HELD: Duration = Duration::from_millis(7_200);
const AT_ONCE: Duration = Duration::from_millis(1);

async fn slow_world(cache_bytes: u64) -> World {
    let link = Profile::steady(RATE, Duration::from_millis(20));
    let mut world = World::start_over(1, vec![Path::Link(Box::new(link))], false).await.expect("a world");
    for machine in world.machines_mut() {
        machine.stop().await;
        machine.set_writeback(Writeback::Sirp);
        machine.set_fsync(Fsync::Local);
        machine.set_cache_limit_bytes(cache_bytes);
        machine.start().await.expect("a client");
    }
    world
}

/// How long a file takes that is written and closed.
async fn save(vfs: &Vfs, name: &'static str) -> Duration {
    let begun = Instant::now();
    write_and_close(vfs, name, vec![1; BYTES]).await;
    begun.elapsed()
}

#[test]
fn who_fills_the_cache_waits_for_what_is_sent() {
    simulate(async {
        let world = slow_world(1 << 20).await;
        let vfs = world.client();
        assert!(save(vfs, "first").await < AT_ONCE, "there is room");
        let second = save(vfs, "second").await;
        assert!(second > HELD, "the first is not sent: {second:?}");
        assert_eq!(content(vfs, "first").await, vec![1; BYTES]);
    });
}

#[test]
fn who_fills_the_disk_waits_for_what_is_sent() {
    simulate(async {
        let world = slow_world(64 << 20).await;
        world.limit_client_disk(1 << 20).expect("a disk");
        let vfs = world.client();
        assert!(save(vfs, "first").await < AT_ONCE, "there is room");
        let second = save(vfs, "second").await;
        assert!(second > HELD, "the first is not sent: {second:?}");
        assert_eq!(content(vfs, "second").await, vec![1; BYTES]);
    });
}

/// Content that cannot be sent has no other place than the cache, and the disk is never filled.
#[test]
fn nobody_waits_who_has_no_connection() {
    simulate(async {
        let world = slow_world(1 << 20).await;
        let vfs = world.client().clone();
        save(&vfs, "first").await;
        vfs.set_paused(true);
        assert!(save(&vfs, "second").await < AT_ONCE, "the queue is paused");
        world.limit_client_disk(100_000).expect("a disk");
        let (_, file) = create(&vfs, "third").await;
        let begun = Instant::now();
        let refused = vfs.write(file, 0, vec![1; BYTES].into()).await;
        assert!(matches!(refused, Err(Error::CacheFull)), "{refused:?}");
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    });
}

#[test]
fn a_file_may_be_larger_than_the_cache() {
    simulate(async {
        let world = slow_world(BYTES as u64 / 2).await;
        assert!(save(world.client(), "large").await < AT_ONCE, "nothing that is sent would help");
    });
}
