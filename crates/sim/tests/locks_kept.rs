//! A lock that a program has given up stays with its client: the next program of that machine has it without a round
//! trip, another client as soon as it asks.

use std::time::Duration;

use mafs_client::vfs::{Error, Locking, Vfs, Writeback};
use mafs_proto::{FsError, LockKind, LockRange};
use mafs_sim::{Crash, LEASE, LEASE_BIAS, World};
use tokio::time::{Instant, sleep, timeout};

use crate::support::locking::{Process, is_locked, until_connected, until_out_of_reach};
use crate::support::{BLACK_HOLE, clients, configured, content, simulate, write_and_close};

const DELAY: Duration = Duration::from_millis(50);
const RTT: Duration = Duration::from_millis(100);
/// The most that an operation takes that needs no server.
const AT_ONCE: Duration = Duration::from_millis(5);
/// How long a lock is kept.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// Two clients with the same file open in two programs of the first and one of the second. The first client keeps the
/// lock of the file.
struct Scene {
    world: World,
    near: Vfs,
    far: Vfs,
    first: Process,
    next: Process,
    other: Process,
}

async fn scene(locking: Locking) -> Scene {
    let world = World::start_several(1, 2, DELAY, false).await.expect("a world");
    let world = configured(world, |machine| {
        machine.set_writeback(Writeback::Sirp);
        machine.set_disconnected(true);
        machine.set_locking(locking);
    })
    .await;
    write_and_close(world.client(), "lock", vec![1; 10]).await;
    world.client().sync().await.expect("a sync");
    let [near, far] = clients(&world);
    let (first, next) = (Process::open(&near, "lock", 1).await, Process::open(&near, "lock", 2).await);
    let other = Process::open(&far, "lock", 1).await;
    first.lock().await.expect("a lock");
    first.write(vec![2; 10], false).await;
    first.unlock().await.expect("an unlock");
    near.sync().await.expect("a sync");
    sleep(RTT).await;
    Scene { world, near, far, first, next, other }
}

async fn takes(what: impl Future<Output = Result<(), Error>>) -> Duration {
    let begun = Instant::now();
    what.await.expect("a lock");
    begun.elapsed()
}

#[test]
fn the_programs_of_a_machine_have_it_without_a_round_trip_also_when_the_link_has_just_gone() {
    for locking in [Locking::Local, Locking::Strict] {
        simulate(async {
            let Scene { world, near, first, next, .. } = scene(locking).await;
            assert_eq!(near.status().locks, 0);
            for silent in [false, true] {
                if silent {
                    world.machines()[0].fall_silent(BLACK_HOLE);
                }
                for process in [&next, &first, &first, &next] {
                    let took = takes(process.lock()).await;
                    assert!(took < AT_ONCE, "{locking:?}, silent: {silent}: {took:?}");
                    assert!(is_locked(
                        &if process.owner == next.owner { &first } else { &next }.try_lock(LockKind::Exclusive).await
                    ));
                    process.unlock().await.expect("an unlock");
                }
            }
        });
    }
}

#[test]
fn another_client_has_it_when_it_asks() {
    for wait in [true, false] {
        simulate(async {
            let Scene { other, next, .. } = scene(Locking::Local).await;
            let conflict = other.vfs.lock_conflict(other.file, other.wanted(LockRange::ALL, LockKind::Exclusive)).await;
            assert_eq!(conflict.expect("an answer"), None, "nobody holds it");
            let took = takes(other.lock_range(LockRange::ALL, LockKind::Exclusive, wait)).await;
            assert!(took < 3 * RTT, "wait: {wait}: {took:?}");
            assert_eq!(other.read().await, [2; 10]);
            assert!(is_locked(&next.try_lock(LockKind::Exclusive).await));
        });
    }
}

#[test]
fn who_finds_it_held_is_told_so() {
    simulate(async {
        let Scene { next, other, .. } = scene(Locking::Local).await;
        next.lock().await.expect("a lock");
        let begun = Instant::now();
        assert!(is_locked(&other.try_lock(LockKind::Shared).await));
        assert!(begun.elapsed() < 3 * RTT, "{:?}", begun.elapsed());
        let conflict = other.vfs.lock_conflict(other.file, other.wanted(LockRange::ALL, LockKind::Shared)).await;
        assert_eq!(conflict.expect("an answer").map(|conflict| conflict.kind), Some(LockKind::Exclusive));
    });
}

#[test]
fn where_others_have_asked_it_goes_back_at_once() {
    simulate(async {
        let Scene { next, other, .. } = scene(Locking::Local).await;
        for round in 0..5 {
            let took = takes(other.lock()).await;
            other.unlock().await.expect("an unlock");
            sleep(RTT * 2).await;
            assert!(round == 0 || took < RTT + AT_ONCE, "{took:?}");
            next.lock().await.expect("a lock");
            next.unlock().await.expect("an unlock");
            sleep(RTT * 2).await;
        }
    });
}

/// The other client waits for what the next program does in turn, however long that program has the lock.
#[test]
fn who_waits_has_it_when_the_next_program_gives_it_up() {
    simulate(async {
        let Scene { near, next, other, .. } = scene(Locking::Local).await;
        next.lock().await.expect("a lock");
        let others = tokio::spawn({
            let other = other.clone();
            async move { other.lock().await }
        });
        sleep(2 * KEPT_FOR).await;
        assert!(!others.is_finished());
        next.write(vec![3; 10], false).await;
        next.unlock().await.expect("an unlock");
        let begun = Instant::now();
        others.await.expect("it ends").expect("a lock");
        assert!(begun.elapsed() < 5 * RTT, "{:?}", begun.elapsed());
        assert_eq!(other.read().await, [3; 10]);
        assert_eq!(near.status().locks, 0);
    });
}

/// Nobody waits until it would be given up anyway.
#[test]
fn it_becomes_what_a_program_asks_for() {
    simulate(async {
        let Scene { near, first, next, other, .. } = scene(Locking::Local).await;
        let head = LockRange::new(0, 9).expect("a range");
        for wait in [true, false] {
            for process in [&next, &first, &other] {
                let took = takes(process.lock_range(LockRange::ALL, LockKind::Shared, wait)).await;
                assert!(took < 5 * RTT, "wait: {wait}: {took:?}");
            }
            for process in [&next, &first, &other] {
                process.unlock().await.expect("an unlock");
            }
            sleep(KEPT_FOR).await;
            for (range, kind) in [(LockRange::ALL, LockKind::Shared), (head, LockKind::Exclusive)] {
                first.lock().await.expect("a lock");
                first.unlock().await.expect("an unlock");
                sleep(RTT).await;
                let took = takes(first.lock_range(range, kind, wait)).await;
                assert!(took < 5 * RTT, "wait: {wait}: {took:?}");
                assert!(is_locked(&next.lock_range(range, LockKind::Exclusive, false).await));
                first.unlock().await.expect("an unlock");
            }
            let took = takes(next.lock_range(head, LockKind::Exclusive, wait)).await;
            assert!(took < 5 * RTT, "wait: {wait}: {took:?}");
            near.unlock(next.file, next.owner.id, head).await.expect("an unlock");
            first.lock().await.expect("a lock");
            first.unlock().await.expect("an unlock");
            sleep(KEPT_FOR).await;
        }
    });
}

#[test]
fn who_has_it_in_turn_may_let_others_in() {
    simulate(async {
        let Scene { next, other, .. } = scene(Locking::Local).await;
        for wait in [true, false] {
            next.lock().await.expect("a lock");
            let downgraded = next.lock_range(LockRange::ALL, LockKind::Shared, wait);
            timeout(RTT, downgraded).await.expect("it waits for nobody").expect("a lock");
            next.unlock().await.expect("an unlock");
        }
        other.lock().await.expect("a lock");
    });
}

#[test]
fn many_programs_of_a_machine_have_it_one_after_the_other() {
    simulate(async {
        let Scene { near, first, next, other, .. } = scene(Locking::Local).await;
        other.lock().await.expect("a lock");
        let third = Process::open(&near, "lock", 3).await;
        let waiting = [&first, &next, &third].map(|process| {
            let process = process.clone();
            tokio::spawn(async move {
                process.lock().await.expect("a lock");
                process.unlock().await.expect("an unlock");
            })
        });
        sleep(RTT).await;
        other.unlock().await.expect("an unlock");
        let begun = Instant::now();
        for process in waiting {
            process.await.expect("it ends");
        }
        assert!(begun.elapsed() < 10 * RTT, "{:?}", begun.elapsed());
    });
}

#[test]
fn programs_that_wait_for_each_other_hear_of_it() {
    simulate(async {
        let Scene { near, first, next, .. } = scene(Locking::Local).await;
        let part = |process: &Process, first: u64| {
            let range = LockRange::new(first, first + 9).expect("a range");
            let process = process.clone();
            async move { process.lock_range(range, LockKind::Exclusive, true).await }
        };
        // Given up by a third, so that both are had in turn.
        let third = Process::open(&near, "lock", 3).await;
        third.lock().await.expect("a lock");
        third.unlock().await.expect("an unlock");
        part(&first, 0).await.expect("a part");
        part(&next, 10).await.expect("a part");
        let waiting = tokio::spawn(part(&first, 10));
        sleep(RTT).await;
        let circle = part(&next, 0).await;
        assert!(matches!(circle, Err(Error::Refused(FsError::Deadlock))), "{circle:?}");
        next.unlock().await.expect("an unlock");
        waiting.await.expect("it ends").expect("a lock");
    });
}

#[test]
fn nobody_waits_long_for_who_has_gone() {
    simulate(async {
        let Scene { world, other, .. } = scene(Locking::Local).await;
        world.machines()[0].fall_silent(BLACK_HOLE);
        let took = takes(other.lock()).await;
        assert!(took < LEASE + LEASE_BIAS + Duration::from_secs(2), "{took:?}");
    });
    simulate(async {
        let Scene { mut world, other, .. } = scene(Locking::Local).await;
        sleep(KEPT_FOR).await;
        world.crash_machine(0, Crash::Power);
        let took = takes(other.lock()).await;
        assert!(took < 2 * RTT + AT_ONCE, "with what was written, without asking anybody: {took:?}");
    });
}

#[test]
fn who_does_not_wait_is_refused_when_no_answer_comes() {
    simulate(async {
        let Scene { world, other, .. } = scene(Locking::Local).await;
        world.machines()[0].fall_silent(BLACK_HOLE);
        let begun = Instant::now();
        assert!(is_locked(&other.try_lock(LockKind::Exclusive).await));
        assert!(begun.elapsed() < Duration::from_secs(7), "{:?}", begun.elapsed());
    });
}

#[test]
fn what_another_client_has_got_meanwhile_is_not_kept() {
    simulate(async {
        let Scene { world, near, far, next, other, .. } = scene(Locking::Local).await;
        world.machines()[0].fall_silent(BLACK_HOLE);
        until_out_of_reach(&near).await;
        other.lock().await.expect("the lease has ended");
        world.machines()[0].break_silence();
        until_connected(&near).await;
        assert!(is_locked(&next.try_lock(LockKind::Exclusive).await));
        other.write(vec![4; 10], false).await;
        other.unlock().await.expect("an unlock");
        far.sync().await.expect("a sync");
        next.lock().await.expect("a lock");
        assert_eq!(next.read().await, [4; 10]);
    });
}

/// The lease has ended, and this client does not know yet that the link is gone.
#[test]
fn a_lock_whose_lease_has_ended_is_not_kept() {
    simulate(async {
        let Scene { world, next, .. } = scene(Locking::Strict).await;
        world.machines()[0].fall_silent(BLACK_HOLE);
        sleep(LEASE).await;
        let locked = next.try_lock(LockKind::Exclusive).await;
        assert!(matches!(locked, Err(Error::NoLocks | Error::Refused(FsError::Locked))), "{locked:?}");
    });
}

#[test]
fn what_is_kept_outlives_the_server_and_ends_with_the_mount() {
    simulate(async {
        let Scene { mut world, near, next, other, .. } = scene(Locking::Local).await;
        world.crash_server(Crash::Kill);
        world.start_server().expect("a server");
        near.sync().await.expect("a sync");
        sleep(KEPT_FOR / 2).await;
        assert!(takes(next.lock()).await < AT_ONCE);
        assert!(is_locked(&other.try_lock(LockKind::Exclusive).await));
        world.crash_server(Crash::Kill);
        world.start_server().expect("a server");
        near.sync().await.expect("a sync");
        sleep(KEPT_FOR / 2).await;
        assert!(is_locked(&other.try_lock(LockKind::Exclusive).await), "it was had in turn");
        next.unlock().await.expect("it is not lost");
        drop((near, next));
        world.stop_client().await;
        assert!(takes(other.lock()).await < 2 * RTT + AT_ONCE);
        assert_eq!(content(&other.vfs, "lock").await, [2; 10]);
    });
}
