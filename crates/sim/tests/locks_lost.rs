//! Content that was written under a lock that its client has lost (consistency.md, "Locks"): a client that has had the
//! lock since is not to find it under its own.

use std::time::Duration;

use mafs_client::vfs::{Error, Locking, Writeback};
use mafs_proto::VnodeId;
use mafs_sim::{Crash, LEASE, LEASE_BIAS, World};
use tokio::time::sleep;

use crate::support::locking::{Process, until_connected};
use crate::support::{
    BLACK_HOLE, clients, configured, content, content_beside_file, names, overwrite, simulate, write_and_close,
};

const NEAR: Duration = Duration::from_millis(10);

/// How what was written gets into the log of its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Logged {
    /// By a close while nothing is known of the outage.
    AtOnce,
    /// Before it, and the server has been told of it.
    Announced,
    /// By a close when the client is back.
    Later,
    /// By the start of the client, which was killed.
    ByStart,
}

const ALL: [Logged; 4] = [Logged::AtOnce, Logged::Announced, Logged::Later, Logged::ByStart];

async fn world_of(locking: Locking) -> World {
    let world = World::start_several(1, 2, NEAR, false).await.expect("a world");
    configured(world, |machine| {
        machine.set_writeback(Writeback::Sirp);
        machine.set_disconnected(true);
        machine.set_locking(locking);
    })
    .await
}

/// Lets the first client lose the lock under which it has written. The client is back, and has sent all, while the
/// second still has the lock or, if the second never `takes` it, when nobody has.
async fn lose(world: &mut World, logged: Logged, takes: bool) -> Process {
    let [one, two] = clients(world);
    write_and_close(&one, "file", vec![1; 10]).await;
    one.sync().await.expect("a sync");
    let (lost, next) = (Process::open(&one, "file", 1).await, Process::open(&two, "file", 1).await);
    lost.lock().await.expect("a lock");
    lost.write(vec![2; 10], false).await;
    if logged == Logged::Announced {
        one.set_paused(true);
        one.flush(lost.file).await.expect("it is logged");
        sleep(Duration::from_secs(2)).await;
    }
    world.machines()[0].fall_silent(BLACK_HOLE);
    if logged == Logged::AtOnce {
        one.flush(lost.file).await.expect("it is logged");
    }
    if takes {
        next.lock().await.expect("a lock");
        assert_eq!(next.read().await, [1; 10]);
    } else {
        sleep(LEASE + LEASE_BIAS + Duration::from_secs(10)).await;
    }
    if logged == Logged::ByStart {
        world.crash_machine(0, Crash::Kill);
        world.start_client().await.expect("the client");
    }
    world.machines()[0].break_silence();
    let one = world.client().clone();
    one.set_paused(false);
    until_connected(&one).await;
    if logged != Logged::ByStart {
        assert!(matches!(lost.close().await, Err(Error::LockLost)));
    }
    sleep(Duration::from_secs(30)).await;
    assert_eq!(one.status().unsent_files, 0, "{logged:?} {:?}", one.status());
    next
}

#[test]
fn what_was_written_under_a_lost_lock_is_kept_beside_what_the_next_holder_makes() {
    for (locking, logged) in [Locking::Strict, Locking::Fail].into_iter().flat_map(|kind| ALL.map(|how| (kind, how))) {
        simulate(async {
            let mut world = world_of(locking).await;
            let next = lose(&mut world, logged, true).await;
            let [one, two] = clients(&world);
            assert_eq!(content(&two, "file").await, [1; 10], "{locking:?}, {logged:?}");
            next.write(vec![3; 10], false).await;
            next.unlock().await.expect("it holds it");
            for vfs in [&one, &two] {
                assert_eq!(content(vfs, "file").await, [3; 10], "{locking:?}, {logged:?}");
                assert_eq!(content_beside_file(vfs).await, [2; 10], "{locking:?}, {logged:?}");
            }
            assert_eq!((one.status().refused, two.status().refused), (vec![], vec![]));
        });
    }
}

#[test]
fn what_was_written_under_a_lost_lock_that_nobody_has_had_since_is_stored() {
    for logged in ALL {
        simulate(async {
            let mut world = world_of(Locking::Strict).await;
            let next = lose(&mut world, logged, false).await;
            let [one, two] = clients(&world);
            next.lock().await.expect("a lock");
            assert_eq!(next.read().await, [2; 10], "{logged:?}");
            for vfs in [&one, &two] {
                assert_eq!(names(vfs, VnodeId::ROOT).await.expect("names").len(), 1);
            }
        });
    }
}

/// While it was out of reach the client has granted the lock itself: others' locks do not undo what it has let its
/// programs write, only what others write does.
#[test]
fn what_was_written_under_a_lock_that_was_granted_here_is_compared_by_its_base() {
    for logged in [Logged::AtOnce, Logged::Later] {
        simulate(async {
            let mut world = world_of(Locking::Local).await;
            let next = lose(&mut world, logged, true).await;
            let [one, two] = clients(&world);
            for vfs in [&one, &two] {
                assert_eq!(content(vfs, "file").await, [2; 10], "{logged:?}");
            }
            next.unlock().await.expect("it holds it");
        });
    }
}

/// The stored content of another decides from then on: a program that writes to that, with a lock or without, is in
/// nobody's way.
#[test]
fn who_has_lost_a_lock_stores_again_when_the_file_is_another() {
    for changes in [false, true] {
        simulate(async {
            let mut world = world_of(Locking::Strict).await;
            let next = lose(&mut world, Logged::Later, true).await;
            let [one, two] = clients(&world);
            next.write(vec![3; 10], false).await;
            one.fsync(Process::open(&one, "file", 2).await.file).await.expect("nothing is lost of that");
            if changes {
                next.unlock().await.expect("it holds it");
                overwrite(&one, "file", vec![4; 10]).await;
            } else {
                next.close().await.expect("it holds it");
                let again = Process::open(&one, "file", 3).await;
                again.lock().await.expect("a lock");
                assert_eq!(again.read().await, [3; 10]);
                again.write(vec![4; 10], false).await;
                again.close().await.expect("it holds it");
            }
            one.sync().await.expect("a sync");
            assert_eq!(content(&two, "file").await, [4; 10]);
            assert_eq!(names(&two, VnodeId::ROOT).await.expect("names").len(), 2, "only that of before is kept beside");
        });
    }
}

/// The server takes a lock that is asked for, and one that is given up, by its owner: the order of the two counts.
#[test]
fn who_asks_again_after_an_outage_has_what_it_was_granted() {
    // The server is told of a lock that was given up a second after the last try, so the time is to meet that.
    for ms in (0..1000).step_by(10) {
        simulate(async {
            let world = world_of(Locking::Strict).await;
            let [one, two] = clients(&world);
            write_and_close(&one, "file", vec![1; 10]).await;
            one.sync().await.expect("a sync");
            let (before, rival) = (Process::open(&one, "file", 1).await, Process::open(&two, "file", 1).await);
            before.lock().await.expect("a lock");
            let lock = |process: &Process| {
                let process = process.clone();
                tokio::spawn(async move { process.lock().await })
            };
            let mut waiting = lock(&rival);
            // The lock is not kept then; and nothing has to be sent first.
            sleep(Duration::from_secs(1)).await;
            world.machines()[0].fall_silent(BLACK_HOLE);
            assert!(before.unlock().await.is_err(), "nobody can be told");
            let again = Process::open(&one, "file", 1).await;
            let mut locking = lock(&again);
            sleep(Duration::from_millis(5000 + ms)).await;
            world.machines()[0].break_silence();
            let is_first = tokio::select! {
                locked = &mut locking => locked.expect("it ends").is_ok(),
                locked = &mut waiting => locked.expect("it ends").is_err(),
            };
            sleep(Duration::from_secs(5)).await;
            assert!(
                !if is_first { waiting.is_finished() } else { locking.is_finished() },
                "after {ms} ms both have it"
            );
            let (first, second) = if is_first { (again, waiting) } else { (rival, locking) };
            first.unlock().await.expect("it holds it");
            second.await.expect("it ends").expect("it is free");
        });
    }
}
