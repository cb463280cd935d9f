//! Locks among clients: granted by the server, kept and lost with the lease, barriers when they are given up, and what
//! holds while the server is out of reach (consistency.md, "Locks").

use std::time::Duration;

use mafs_client::options::FSYNC_WAIT_DEFAULT;
use mafs_client::vfs::{Error, LockStop, Locking, Writeback};
use mafs_proto::{FsError, LockKind, LockOwner, LockRange, VnodeId};
use mafs_sim::{Crash, LEASE, LEASE_BIAS, Path, World};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::support::locking::{Process, is_locked, until_connected, until_out_of_reach};
use crate::support::{
    BLACK_HOLE, CALLER, clients, configured, content, create, name, names, simulate, write_and_close,
};

const NEAR: Duration = Duration::from_millis(10);
/// An operation that needs no server.
const INSTANT: Duration = Duration::from_millis(50);

async fn two(policy: Writeback, locking: Locking, passthrough: bool) -> World {
    let world = World::start_several(1, 2, NEAR, passthrough).await.expect("a world");
    configured(world, |machine| {
        machine.set_writeback(policy);
        machine.set_disconnected(true);
        machine.set_locking(locking);
    })
    .await
}

async fn count(process: Process, times: u64, passthrough: bool) {
    for _ in 0..times {
        process.lock().await.expect("a lock");
        let bytes = process.read().await;
        let count: u64 = String::from_utf8(bytes).expect("digits").trim().parse().expect("a number");
        process.write(format!("{:<20}", count + 1).into_bytes(), passthrough).await;
        process.unlock().await.expect("an unlock");
    }
    process.close().await.expect("a close");
}

#[test]
fn a_counter_under_a_lock_is_exact() {
    for (policy, passthrough) in
        [(Writeback::Sync, false), (Writeback::Sync, true), (Writeback::Sirp, false), (Writeback::Sirp, true)]
    {
        simulate(async {
            let world = two(policy, Locking::default(), passthrough).await;
            let [one, two] = clients(&world);
            write_and_close(&one, "counter", format!("{:<20}", 0).into_bytes()).await;
            one.sync().await.expect("a sync");
            let mut counting = Vec::new();
            for (number, vfs) in [(1, &one), (2, &one), (1, &two), (2, &two)] {
                let process = Process::open(vfs, "counter", number).await;
                counting.push(tokio::spawn(count(process, 50, passthrough)));
            }
            for process in counting {
                process.await.expect("it counts");
            }
            for vfs in [&one, &two] {
                let counted = String::from_utf8(content(vfs, "counter").await).expect("digits");
                assert_eq!(counted.trim(), "200", "{policy:?}, passthrough: {passthrough}");
                assert_eq!(vfs.status().locks, 0);
            }
        });
    }
}

/// The kernel names the owner of an flock by the place of the open file in its memory. A file that is opened at once
/// when another was closed may have that place, and lock it, before the release of the other is known here.
#[test]
fn a_lock_of_the_next_open_file_outlives_the_release_of_the_one_before() {
    for (policy, passthrough) in
        [(Writeback::Sync, false), (Writeback::Sync, true), (Writeback::Sirp, false), (Writeback::Sirp, true)]
    {
        for delay in 0..30 {
            simulate(async move {
                let world = two(policy, Locking::default(), passthrough).await;
                let [one, two] = clients(&world);
                write_and_close(&one, "f", b"f".to_vec()).await;
                one.sync().await.expect("a sync");
                let other = Process::open(&two, "f", 9).await;
                // Others want it: nothing is kept.
                other.lock().await.expect("a lock");
                other.unlock().await.expect("an unlock");
                let before = Process::open(&one, "f", 1).await;
                before.lock().await.expect("a lock");
                one.flush_and_unlock(before.file, 8).await.expect("a close");
                let next = Process::open(&one, "f", 1).await;
                let (released, closed) = (one.clone(), before.file);
                tokio::spawn(async move {
                    sleep(Duration::from_millis(delay)).await;
                    released.release(closed);
                });
                next.lock().await.expect("a lock");
                sleep(10 * NEAR).await;
                let tried = other.try_lock(LockKind::Exclusive).await;
                assert!(is_locked(&tried), "{policy:?}, released after {delay} ms: {tried:?}");
                next.unlock().await.expect("an unlock");
                other.lock().await.expect("a lock");
                other.unlock().await.expect("an unlock");
                assert_eq!((one.status().locks, two.status().locks), (0, 0));
            });
        }
    }
}

/// The kernel says nothing when it writes, so while a content is made ready to be sent it may not be clear what belongs
/// to it. Nothing that was sent under a lock is in the way of what the next holder makes of the file.
#[test]
fn what_the_kernel_writes_while_a_content_is_sent_goes_with_the_lock() {
    for policy in [Writeback::Sync, Writeback::Sirp] {
        for (before, after) in (0..20).flat_map(|before| (0..6).map(move |after| (before, after))) {
            simulate(write_while_sending(policy, before, after));
        }
    }
}

async fn write_while_sending(policy: Writeback, before: u32, after: u32) {
    let world = two(policy, Locking::default(), true).await;
    let [one, two] = clients(&world);
    write_and_close(&one, "file", vec![1; 10]).await;
    one.sync().await.expect("a sync");
    let [near, far] = [Process::open(&one, "file", 1).await, Process::open(&two, "file", 1).await];
    near.lock().await.expect("a lock");
    near.write(vec![2; 10], true).await;
    let closing = tokio::spawn({
        let (one, file) = (one.clone(), near.file);
        async move { one.flush(file).await }
    });
    pass(before).await;
    near.write(vec![3; 10], true).await;
    pass(after).await;
    near.unlock().await.expect("an unlock");
    closing.await.expect("it ends").expect("a close of another descriptor");
    for (process, content) in [(&far, 3), (&near, 4), (&far, 5)] {
        process.lock().await.expect("a lock");
        assert_eq!(process.read().await, [content; 10], "{policy:?}, {before} before, {after} after");
        process.write(vec![content + 1; 10], true).await;
        process.unlock().await.expect("an unlock");
    }
}

/// Lets the others go on so many times.
async fn pass(times: u32) {
    for _ in 0..times {
        yield_now().await;
    }
}

#[test]
fn what_was_done_under_a_lock_is_seen_by_the_next_holder() {
    for policy in [Writeback::Sync, Writeback::Async, Writeback::Sirp] {
        simulate(async {
            let world = two(policy, Locking::default(), false).await;
            let [one, two] = clients(&world);
            write_and_close(&one, "db", vec![1; 100]).await;
            write_and_close(&one, "journal", vec![1; 100]).await;
            one.sync().await.expect("a sync");
            // Before the lock, and so none of what the unlock waits for.
            write_and_close(&one, "large", vec![1; 1 << 20]).await;
            let holder = Process::open(&one, "db", 1).await;
            let next = Process::open(&two, "db", 2).await;
            assert!(names(&two, VnodeId::ROOT).await.expect("names").contains(&name("journal")));
            holder.lock().await.expect("a lock");
            let waiting = tokio::spawn({
                let next = next.clone();
                async move { next.lock().await }
            });
            sleep(NEAR * 10).await;
            assert!(!waiting.is_finished());
            write_and_close(&one, "other", vec![7; 5000]).await;
            holder.write(vec![2; 100], false).await;
            one.unlink(VnodeId::ROOT, name("journal"), CALLER).await.expect("an unlink");
            holder.unlock().await.expect("an unlock");
            waiting.await.expect("it ends").expect("a lock");
            let gone = two.lookup(VnodeId::ROOT, name("journal")).await;
            assert!(matches!(gone, Err(Error::Refused(FsError::NotFound))), "{policy:?}: {gone:?}");
            assert_eq!(next.read().await, [2; 100], "{policy:?}");
            assert_eq!(content(&two, "other").await, [7; 5000], "{policy:?}");
            next.close().await.expect("a close");
            let free = Process::open(&one, "db", 3).await;
            free.try_lock(LockKind::Exclusive).await.expect("closing has unlocked");
        });
    }
}

#[test]
fn a_lock_and_its_end_take_a_round_trip_each() {
    simulate(async {
        let world = two(Writeback::Sirp, Locking::default(), false).await;
        let [one] = clients(&world);
        let (_, file) = create(&one, "lock").await;
        let owner = LockOwner { id: 1, process: 1, file: file.0 };
        let process = Process { vfs: one.clone(), file, owner };
        one.sync().await.expect("a sync");
        for _ in 0..3 {
            let begun = Instant::now();
            process.lock().await.expect("a lock");
            let locked = begun.elapsed();
            process.unlock().await.expect("an unlock");
            println!("lock {locked:?}, unlock {:?}", begun.elapsed() - locked);
            assert!(begun.elapsed() < 2 * 2 * NEAR + NEAR, "{:?}", begun.elapsed());
        }
    });
}

#[test]
fn shared_locks_go_together_and_ranges_apart() {
    simulate(async {
        let world = two(Writeback::Sync, Locking::default(), false).await;
        let [one, two] = clients(&world);
        write_and_close(&one, "file", vec![1; 100]).await;
        let (a, b) = (Process::open(&one, "file", 1).await, Process::open(&two, "file", 1).await);
        a.try_lock(LockKind::Shared).await.expect("a lock");
        b.try_lock(LockKind::Shared).await.expect("a lock");
        assert!(is_locked(&b.try_lock(LockKind::Exclusive).await));
        a.unlock().await.expect("an unlock");
        b.try_lock(LockKind::Exclusive).await.expect("an upgrade");
        let head = LockRange::new(0, 9).expect("a range");
        b.vfs.unlock(b.file, b.owner.id, head).await.expect("an unlock of a part");
        let lock = |range| a.lock_range(range, LockKind::Exclusive, false);
        lock(head).await.expect("the part is free");
        assert!(is_locked(&lock(LockRange::new(5, 10).expect("a range")).await));
        let conflict = a.vfs.lock_conflict(a.file, a.wanted(LockRange::ALL, LockKind::Shared)).await.expect("a test");
        let conflict = conflict.expect("a conflict");
        assert_eq!((conflict.range.first(), conflict.kind, conflict.process), (10, LockKind::Exclusive, 0));
    });
}

#[test]
fn who_waits_for_each_other_hears_of_it() {
    simulate(async {
        let world = two(Writeback::Sync, Locking::default(), false).await;
        let [one, two] = clients(&world);
        write_and_close(&one, "a", vec![1]).await;
        write_and_close(&one, "b", vec![1]).await;
        let (first_a, first_b) = (Process::open(&one, "a", 1).await, Process::open(&one, "b", 1).await);
        let (second_a, second_b) = (Process::open(&two, "a", 1).await, Process::open(&two, "b", 1).await);
        first_a.lock().await.expect("a lock");
        second_b.lock().await.expect("a lock");
        let waiting = tokio::spawn(async move { first_b.lock().await });
        sleep(NEAR * 10).await;
        let refused = second_a.lock().await;
        assert!(matches!(refused, Err(Error::Refused(FsError::Deadlock))), "{refused:?}");
        second_b.unlock().await.expect("an unlock");
        waiting.await.expect("it ends").expect("a lock");
    });
}

#[test]
fn who_is_interrupted_is_let_go_and_holds_nobody_up() {
    simulate(async {
        let world = two(Writeback::Sync, Locking::default(), false).await;
        let [one, two] = clients(&world);
        write_and_close(&one, "file", vec![1]).await;
        let (holder, waiter) = (Process::open(&one, "file", 1).await, Process::open(&two, "file", 1).await);
        holder.lock().await.expect("a lock");
        let stop = LockStop::default();
        let waiting = tokio::spawn({
            let (waiter, stop) = (waiter.clone(), stop.clone());
            async move { waiter.lock_until(stop).await }
        });
        sleep(Duration::from_secs(25)).await;
        assert!(!waiting.is_finished(), "it waits for as long as it takes");
        let begun = Instant::now();
        stop.stop();
        assert!(matches!(waiting.await.expect("it ends"), Err(Error::Interrupted)));
        assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
        holder.unlock().await.expect("an unlock");
        holder.try_lock(LockKind::Exclusive).await.expect("nobody waits any more");
        holder.unlock().await.expect("an unlock");
        waiter.lock().await.expect("the next try waits anew");
    });
}

#[test]
fn a_lock_goes_on_when_the_lease_of_its_holder_has_ended() {
    simulate(async {
        let world = two(Writeback::Sync, Locking::Strict, false).await;
        let [one, two] = clients(&world);
        write_and_close(&one, "file", vec![1; 10]).await;
        let (lost, next) = (Process::open(&one, "file", 1).await, Process::open(&two, "file", 1).await);
        lost.lock().await.expect("a lock");
        world.machines()[0].fall_silent(BLACK_HOLE);
        let begun = Instant::now();
        next.lock().await.expect("a lock");
        println!("the lock went on after {:?}", begun.elapsed());
        assert!(begun.elapsed() < LEASE + LEASE_BIAS + Duration::from_secs(2), "{:?}", begun.elapsed());
        for result in [one.fsync(lost.file).await, lost.try_lock(LockKind::Shared).await, lost.unlock().await] {
            assert!(matches!(result, Err(Error::LockLost)), "{result:?}");
        }
        world.machines()[0].break_silence();
        sleep(Duration::from_secs(10)).await;
        assert!(one.status().connected);
        assert!(matches!(lost.close().await, Err(Error::LockLost)));
        let again = Process::open(&one, "file", 1).await;
        assert!(is_locked(&again.try_lock(LockKind::Shared).await), "a new descriptor has lost nothing");
    });
}

#[test]
fn an_unlock_tells_of_what_was_not_sent_to_those_whose_lost_locks_are_errors() {
    for locking in [Locking::Local, Locking::Strict, Locking::Fail] {
        simulate(async {
            let world = two(Writeback::Sirp, locking, false).await;
            let [one] = clients(&world);
            write_and_close(&one, "file", vec![1; 10]).await;
            let holder = Process::open(&one, "file", 1).await;
            holder.lock().await.expect("a lock");
            holder.write(vec![2; 10], false).await;
            world.machines()[0].fall_silent(BLACK_HOLE);
            let begun = Instant::now();
            let unlocked = holder.unlock().await;
            println!("{locking:?}: {unlocked:?} after {:?}", begun.elapsed());
            match locking {
                Locking::Local => assert!(unlocked.is_ok() && begun.elapsed() <= FSYNC_WAIT_DEFAULT, "{unlocked:?}"),
                _ => assert!(unlocked.is_err()),
            }
        });
    }
}

#[test]
fn without_the_server_strict_waits_and_fail_does_not() {
    for (locking, least) in [(Locking::Strict, Duration::from_secs(20)), (Locking::Fail, Duration::ZERO)] {
        simulate(async {
            let world = two(Writeback::Sirp, locking, false).await;
            let [one] = clients(&world);
            write_and_close(&one, "file", vec![1; 10]).await;
            one.sync().await.expect("a sync");
            let process = Process::open(&one, "file", 1).await;
            world.machines()[0].fall_silent(BLACK_HOLE);
            until_out_of_reach(&one).await;
            let begun = Instant::now();
            let refused = process.lock().await;
            assert!(matches!(refused, Err(Error::NoLocks)), "{refused:?}");
            assert!(begun.elapsed() >= least && begun.elapsed() < least + Duration::from_secs(3));
            world.machines()[0].break_silence();
            process.lock().await.map_or_else(|_| assert_eq!(locking, Locking::Fail), |()| {});
        });
    }
}

/// Makes the client find out.
#[test]
fn without_the_server_locks_are_granted_here_at_once_and_confirmed_later() {
    simulate(async {
        let world = two(Writeback::Sirp, Locking::Local, false).await;
        let [one, two] = clients(&world);
        write_and_close(&one, "file", vec![1; 10]).await;
        write_and_close(&one, "held", vec![1; 10]).await;
        one.sync().await.expect("a sync");
        let held = Process::open(&one, "held", 1).await;
        held.lock().await.expect("a lock");
        let (process, rival) = (Process::open(&one, "file", 1).await, Process::open(&one, "file", 2).await);
        world.machines()[0].fall_silent(BLACK_HOLE);
        until_out_of_reach(&one).await;
        let begun = Instant::now();
        for _ in 0..100 {
            process.lock().await.expect("a lock");
            assert!(is_locked(&rival.try_lock(LockKind::Shared).await));
            process.unlock().await.expect("an unlock");
        }
        process.lock().await.expect("a lock");
        process.write(vec![2; 10], false).await;
        process.try_lock(LockKind::Shared).await.expect("a weaker lock");
        process.lock().await.expect("a lock");
        assert!(begun.elapsed() < INSTANT, "{:?}", begun.elapsed());
        let status = one.status();
        assert_eq!((status.locks, status.locks_here), (2, 1));
        sleep(Duration::from_secs(600)).await;
        world.machines()[0].break_silence();
        until_connected(&one).await;
        assert_eq!((one.status().locks, one.status().locks_here), (2, 0));
        for path in ["file", "held"] {
            let other = Process::open(&two, path, 1).await;
            assert!(is_locked(&other.try_lock(LockKind::Shared).await), "{path}: the server knows of it");
        }
        process.close().await.expect("nothing was lost");
        held.close().await.expect("nothing was lost");
        Process::open(&two, "file", 1).await.lock().await.expect("it is free");
    });
}

#[test]
fn a_lock_that_another_client_had_meanwhile_is_lost() {
    simulate(async {
        let world = two(Writeback::Sirp, Locking::Local, false).await;
        let [one, two] = clients(&world);
        for path in ["file", "held"] {
            write_and_close(&one, path, vec![1; 10]).await;
        }
        one.sync().await.expect("a sync");
        let (process, held) = (Process::open(&one, "file", 1).await, Process::open(&one, "held", 1).await);
        held.lock().await.expect("a lock");
        world.machines()[0].fall_silent(BLACK_HOLE);
        until_out_of_reach(&one).await;
        process.lock().await.expect("a lock");
        for path in ["file", "held"] {
            let other = Process::open(&two, path, 1).await;
            other.lock().await.expect("a lock");
            other.close().await.expect("a close");
        }
        assert!(one.fsync(process.file).await.is_ok(), "it is not known yet");
        world.machines()[0].break_silence();
        until_connected(&one).await;
        for lost in [process, held] {
            assert!(matches!(one.fsync(lost.file).await, Err(Error::LockLost)));
            assert!(matches!(lost.close().await, Err(Error::LockLost)));
        }
        assert_eq!(one.status().locks, 0);
    });
}

#[test]
fn locks_outlive_the_server() {
    for crash in [Crash::Kill, Crash::Power] {
        simulate(async {
            let mut world = two(Writeback::Sync, Locking::Strict, false).await;
            let [one, two] = clients(&world);
            write_and_close(&one, "file", vec![1; 10]).await;
            let (holder, other) = (Process::open(&one, "file", 1).await, Process::open(&two, "file", 1).await);
            holder.lock().await.expect("a lock");
            world.crash_server(crash);
            world.start_server().expect("the server");
            let waiting = tokio::spawn({
                let other = other.clone();
                async move { other.lock().await }
            });
            sleep(Duration::from_secs(90)).await;
            assert!(!waiting.is_finished(), "the holder has it still");
            one.fsync(holder.file).await.expect("nothing was lost");
            holder.write(vec![2; 10], false).await;
            holder.unlock().await.expect("an unlock");
            waiting.await.expect("it ends").expect("a lock");
            assert_eq!(other.read().await, [2; 10]);
        });
    }
}

#[test]
fn nobody_is_granted_a_lock_before_those_who_had_some_are_back() {
    simulate(async {
        let mut world = two(Writeback::Sync, Locking::Local, false).await;
        let [one, two] = clients(&world);
        write_and_close(&one, "file", vec![1; 10]).await;
        let (holder, other) = (Process::open(&one, "file", 1).await, Process::open(&two, "file", 1).await);
        holder.lock().await.expect("a lock");
        world.crash_server(Crash::Kill);
        world.machines()[0].isolate();
        world.start_server().expect("the server");
        let trying = tokio::spawn({
            let other = other.clone();
            async move { other.try_lock(LockKind::Exclusive).await }
        });
        sleep(Duration::from_secs(20)).await;
        assert!(!trying.is_finished(), "it is not known who has it");
        world.machines()[0].restore_link();
        let tried = timeout(Duration::from_secs(20), trying).await.expect("it is known soon").expect("it ends");
        assert!(is_locked(&tried), "{tried:?}");
        one.fsync(holder.file).await.expect("nothing was lost");
    });
}

#[test]
fn a_lock_whose_answer_was_lost_is_held_once() {
    simulate(async {
        let world = two(Writeback::Sync, Locking::Local, false).await;
        let [one, two] = clients(&world);
        write_and_close(&one, "file", vec![1; 10]).await;
        let (process, other) = (Process::open(&one, "file", 1).await, Process::open(&two, "file", 1).await);
        for cut_after in [5, 12, 18] {
            let locking = tokio::spawn({
                let process = process.clone();
                async move { process.lock().await }
            });
            sleep(Duration::from_millis(cut_after)).await;
            world.machines()[0].cut_link();
            locking.await.expect("it ends").expect("a lock");
            assert!(is_locked(&other.try_lock(LockKind::Shared).await));
            process.unlock().await.expect("an unlock");
            other.try_lock(LockKind::Exclusive).await.expect("it is free");
            other.unlock().await.expect("an unlock");
        }
    });
}

#[test]
fn an_unlock_without_the_server_is_done_when_it_is_back_and_has_what_was_written() {
    simulate(async {
        let world = two(Writeback::Sirp, Locking::Local, false).await;
        let [one, two] = clients(&world);
        write_and_close(&one, "file", vec![1; 10]).await;
        one.sync().await.expect("a sync");
        let (process, other) = (Process::open(&one, "file", 1).await, Process::open(&two, "file", 1).await);
        process.lock().await.expect("a lock");
        world.machines()[0].fall_silent(BLACK_HOLE);
        until_out_of_reach(&one).await;
        process.write(vec![2; 10], false).await;
        let begun = Instant::now();
        process.unlock().await.expect("an unlock");
        assert!(begun.elapsed() < INSTANT);
        assert_eq!(one.status().locks, 0);
        world.machines()[0].break_silence();
        other.lock().await.expect("a lock");
        assert_eq!(other.read().await, [2; 10], "what was written under the lock came first");
    });
}

#[test]
fn a_request_that_was_granted_here_instead_holds_nobody_up_at_the_server() {
    simulate(async {
        let world = two(Writeback::Sirp, Locking::Local, false).await;
        let [here, _] = clients(&world);
        write_and_close(&here, "f", b"0".to_vec()).await;
        here.sync().await.expect("a sync");
        let [first, second] = [Process::open(&here, "f", 1).await, Process::open(&here, "f", 2).await];
        let third = Process::open(&here, "f", 3).await;
        first.lock().await.expect("a lock");
        let waiting = tokio::spawn({
            let second = second.clone();
            async move { second.lock().await }
        });
        sleep(Duration::from_secs(1)).await;
        world.machines()[0].fall_silent(BLACK_HOLE);
        until_out_of_reach(&here).await;
        first.unlock().await.expect("it is done later");
        waiting.await.expect("no panic").expect("nobody has it");
        second.unlock().await.expect("it was taken here");
        world.machines()[0].break_silence();
        sleep(Duration::from_secs(20)).await;
        timeout(Duration::from_secs(30), third.lock()).await.expect("nobody has it").expect("a lock");
    });
}

/// Builds lock so, one after the other: the server still had the lock of one when the next had taken it here.
#[test]
fn regression_a_lock_that_was_taken_here_behind_one_of_this_machine_is_held_and_given_up() {
    simulate(async {
        for reconnected_between in [false, true] {
            let world = two(Writeback::Sirp, Locking::Local, false).await;
            let [here, _] = clients(&world);
            write_and_close(&here, "f", b"0".to_vec()).await;
            here.sync().await.expect("a sync");
            let [first, second, third] = [
                Process::open(&here, "f", 1).await,
                Process::open(&here, "f", 2).await,
                Process::open(&here, "f", 3).await,
            ];
            first.lock().await.expect("a lock");
            world.machines()[0].fall_silent(BLACK_HOLE);
            until_out_of_reach(&here).await;
            first.write(b"1".to_vec(), false).await;
            first.unlock().await.expect("it is done later");
            timeout(INSTANT, second.lock()).await.expect("at once").expect("nobody has it");
            if !reconnected_between {
                second.unlock().await.expect("it was taken here");
            }
            world.machines()[0].break_silence();
            sleep(Duration::from_secs(20)).await;
            if reconnected_between {
                assert!(is_locked(&third.try_lock(LockKind::Exclusive).await), "the second has it");
                second.unlock().await.expect("it holds it");
            }
            timeout(Duration::from_secs(30), third.lock()).await.expect("nobody has it").expect("a lock");
        }
    });
}

#[test]
fn what_was_arriving_under_a_lock_when_the_client_died_is_nobodys_change() {
    for (crash, after) in
        [Crash::Kill, Crash::Power].into_iter().flat_map(|crash| [(crash, 21), (crash, 23), (crash, 40)])
    {
        simulate(async {
            let paths = vec![Path::Delay(NEAR); 2];
            let world = World::start_over(1, paths, true).await.expect("a world");
            let mut world = configured(world, |_| {}).await;
            let [one, two] = clients(&world);
            write_and_close(&one, "file", vec![1; 1 << 20]).await;
            let holder = Process::open(&one, "file", 1).await;
            // Made durable, so that a loss of power keeps what it takes for a change.
            holder.write(vec![2; 1 << 20], true).await;
            one.fsync(holder.file).await.expect("an fsync");
            one.flush(holder.file).await.expect("a flush");
            crate::support::overwrite(&two, "file", vec![3; 1 << 20]).await;
            let locking = tokio::spawn(async move { holder.lock().await });
            sleep(Duration::from_millis(after)).await;
            world.crash_machine(0, crash);
            locking.abort();
            world.start_client().await.expect("the client");
            world.client().sync().await.expect("a sync");
            assert!(content(&two, "file").await == vec![3; 1 << 20], "{crash:?} after {after} ms");
            assert!(content(world.client(), "file").await == vec![3; 1 << 20], "{crash:?} after {after} ms");
            assert_eq!(world.client().status().refused, []);
        });
    }
}
