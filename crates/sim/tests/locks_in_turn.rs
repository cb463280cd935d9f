//! Locks that a program of a machine gives up are had in turn by another program of it, before the server has all that
//! was written under them; by another client after.

use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::vfs::{Error, Locking, Vfs, Writeback};
use mafs_proto::LockKind;
use mafs_sim::{LEASE, Path, World};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::support::locking::{Process, is_locked, until_connected, until_out_of_reach};
use crate::support::{BLACK_HOLE, clients, configured, content, name, names, simulate, write_and_close};

const BYTES_PER_S: u64 = 64_000;
const RTT: Duration = Duration::from_millis(100);
/// Ten seconds of the link.
const LARGE_BYTES: usize = 640_000;
/// The most that a lock takes that waits for nobody.
const SOON: Duration = Duration::from_millis(500);

/// A client at the end of a slow link with two programs, and one beside the server with one, that have a file open.
struct Scene {
    world: World,
    slow: Vfs,
    near: Vfs,
    first: Process,
    next: Process,
    other: Process,
}

async fn scene() -> Scene {
    let link = Path::Link(Box::new(Profile::steady(BYTES_PER_S, RTT)));
    let world = World::start_over(1, vec![link, Path::Delay(Duration::from_millis(1))], false).await.expect("a world");
    let world = configured(world, |machine| {
        machine.set_writeback(Writeback::Sirp);
        machine.set_disconnected(true);
        machine.set_locking(Locking::Local);
    })
    .await;
    write_and_close(world.client(), "lock", Vec::new()).await;
    world.client().sync().await.expect("a sync");
    let [slow, near] = clients(&world);
    let (first, next) = (Process::open(&slow, "lock", 1).await, Process::open(&slow, "lock", 2).await);
    let other = Process::open(&near, "lock", 1).await;
    Scene { world, slow, near, first, next, other }
}

fn locking(process: &Process) -> JoinHandle<Result<(), Error>> {
    let process = process.clone();
    tokio::spawn(async move { process.lock().await })
}

/// Takes a lock for a program, writes what takes ten seconds of the link, and gives the lock up.
async fn write_under_lock(process: &Process, name: &'static str) {
    process.lock().await.expect("a lock");
    write_and_close(&process.vfs, name, vec![1; LARGE_BYTES]).await;
    let begun = Instant::now();
    process.unlock().await.expect("an unlock");
    assert!(begun.elapsed() <= SOON, "{:?}", begun.elapsed());
}

async fn locks_soon(process: &Process) {
    let begun = Instant::now();
    process.lock().await.expect("a lock");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn the_next_program_of_a_machine_waits_for_no_barrier_and_the_next_client_for_all() {
    simulate(async {
        let Scene { world: _world, slow, near, first, next, other } = scene().await;
        write_under_lock(&first, "large").await;
        locks_soon(&next).await;
        assert!(is_locked(&first.try_lock(LockKind::Exclusive).await), "it is another's");
        assert!(is_locked(&other.try_lock(LockKind::Shared).await));
        slow.sync().await.expect("a sync");
        assert!(is_locked(&other.try_lock(LockKind::Shared).await), "the next has it still");
        write_and_close(&slow, "small", vec![2; 1000]).await;
        let locking = locking(&other);
        sleep(SOON).await;
        assert!(!locking.is_finished());
        next.unlock().await.expect("an unlock");
        locking.await.expect("it ends").expect("a lock");
        assert!(names(&near, mafs_proto::VnodeId::ROOT).await.expect("names").contains(&name("small")));
        assert_eq!(content(&near, "small").await, vec![2; 1000]);
        assert_eq!(content(&near, "large").await.len(), LARGE_BYTES);
        assert_eq!(slow.status().locks, 0);
    });
}

#[test]
fn another_client_that_waits_is_not_passed() {
    simulate(async {
        let Scene { world: _world, near, first, next, other, .. } = scene().await;
        write_under_lock(&first, "large").await;
        let others = locking(&other);
        sleep(SOON).await;
        let nexts = locking(&next);
        assert!(!others.is_finished(), "it is a barrier");
        others.await.expect("it ends").expect("a lock");
        assert_eq!(content(&near, "large").await.len(), LARGE_BYTES);
        sleep(SOON).await;
        assert!(!nexts.is_finished(), "it is another client's");
        other.unlock().await.expect("an unlock");
        nexts.await.expect("it ends").expect("a lock");
    });
}

#[test]
fn programs_that_take_turns_pass_nobody_of_their_machine() {
    simulate(async {
        let Scene { world: _world, first, next, .. } = scene().await;
        write_under_lock(&first, "large").await;
        locks_soon(&next).await;
        let firsts = locking(&first);
        let mut turns = 0;
        while !firsts.is_finished() {
            next.unlock().await.expect("an unlock");
            timeout(40 * SOON, next.lock()).await.map_or(Ok(()), |locked| locked).expect("a lock");
            turns += 1;
        }
        assert!(turns < 4, "{turns}");
    });
}

#[test]
fn after_an_outage_the_next_program_waits_for_nothing_that_was_written_in_it() {
    simulate(async {
        let Scene { world, slow, near, first, next: during, other } = scene().await;
        first.lock().await.expect("a lock");
        world.machines()[0].fall_silent(BLACK_HOLE);
        until_out_of_reach(&slow).await;
        write_and_close(&slow, "large", vec![1; LARGE_BYTES]).await;
        first.close().await.expect("a close");
        locks_soon(&during).await;
        sleep(LEASE / 4).await;
        world.machines()[0].break_silence();
        until_connected(&slow).await;
        during.close().await.expect("a close");
        let after = Process::open(&slow, "lock", 3).await;
        locks_soon(&after).await;
        let others = locking(&other);
        sleep(SOON).await;
        assert!(!others.is_finished());
        after.close().await.expect("a close");
        others.await.expect("it ends").expect("a lock");
        assert_eq!(content(&near, "large").await.len(), LARGE_BYTES);
        assert_eq!(slow.status().locks, 0);
    });
}

#[test]
fn what_was_being_given_up_when_the_link_went_waits_for_nothing_that_was_written_since() {
    simulate(async {
        let Scene { world, slow, first, next, other, .. } = scene().await;
        first.lock().await.expect("a lock");
        world.machines()[0].fall_silent(BLACK_HOLE);
        first.unlock().await.expect("an unlock, which goes on");
        until_out_of_reach(&slow).await;
        write_and_close(&slow, "large", vec![1; LARGE_BYTES]).await;
        let others = locking(&other);
        world.machines()[0].break_silence();
        until_connected(&slow).await;
        let begun = Instant::now();
        others.await.expect("it ends").expect("a lock");
        other.unlock().await.expect("an unlock");
        next.lock().await.expect("a lock");
        assert!(begun.elapsed() < 4 * SOON, "{:?}", begun.elapsed());
    });
}

#[test]
fn what_another_client_has_got_meanwhile_is_lost_for_who_had_it_in_turn() {
    simulate(async {
        let Scene { world, slow, first, next, other, .. } = scene().await;
        write_under_lock(&first, "large").await;
        locks_soon(&next).await;
        world.machines()[0].fall_silent(BLACK_HOLE);
        other.lock().await.expect("the lease has ended");
        world.machines()[0].break_silence();
        until_out_of_reach(&slow).await;
        until_connected(&slow).await;
        assert!(matches!(next.close().await, Err(Error::LockLost)));
        other.unlock().await.expect("an unlock");
        Process::open(&slow, "lock", 3).await.lock().await.expect("it is free");
    });
}
