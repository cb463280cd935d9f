//! Tests of locks that are held here, told, confirmed and lost.

use std::time::Duration;

use mafs_proto::call::AttachReply;
use mafs_proto::{
    ChangeNumber, DataVersion, FidRange, Generation, HistoryId, Incarnation, Kind, LockKind, Mode, Object, ServerId,
    Status, StatusVersion, Timestamp, Uniquifier, VnodeId, VolumeId,
};

use super::*;

const NOW: Instant = Instant(0);

fn fid(vnode: u64) -> Fid {
    Fid { volume: VolumeId(1), vnode: VnodeId(vnode), unique: Uniquifier(1) }
}

fn range(first: u64, last: u64) -> LockRange {
    LockRange::new(first, last).unwrap()
}

/// Makes a lock by an owner that has one open file, of its own number.
fn lock(vnode: u64, owner: u64, range: LockRange) -> Lock {
    Lock { fid: fid(vnode), owner: LockOwner { id: owner, process: 1, file: owner }, range, kind: LockKind::Exclusive }
}

fn root() -> Object {
    let time = Timestamp::new(0, 0).unwrap();
    let status = Status {
        kind: Kind::Directory,
        mode: Mode::from_bits(0o755),
        nlink: 2,
        uid: 0,
        gid: 0,
        size: 0,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        data_version: DataVersion(1),
        status_version: StatusVersion(1),
        xattrs: None,
    };
    Object { fid: Fid::root(VolumeId(1)), status, target: None }
}

fn attach_reply(epoch: u64, resumed: bool, lost_locks: Vec<u32>) -> AttachReply {
    AttachReply {
        protocol: 1,
        server: ServerId([0; 16]),
        epoch: ServerEpoch(epoch),
        history: HistoryId(1),
        incarnation: Incarnation(1),
        spare_lives: 0,
        generation: Generation(1),
        change: ChangeNumber(1),
        root: root(),
        fids: FidRange::new(fid(10), 5).unwrap(),
        lease: Duration::from_secs(60),
        resumed,
        root_pending: false,
        lock_grants: 7,
        lost_locks,
        mark: None,
    }
}

/// Returns under which number the server is to be told.
fn give_up(locks: &mut Locks, Lock { fid, owner, range, .. }: Lock) -> u64 {
    match locks.release(fid, owner.id, range) {
        Some(Released::There(number)) => number,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_given_up_is_told_until_the_server_knows() {
    let mut locks = Locks::default();
    locks.grant(&lock(1, 1, LockRange::ALL), Granted::There, 5);
    let number = give_up(&mut locks, lock(1, 1, range(10, 19)));
    assert_eq!(locks.released(number), Some((Release { fid: fid(1), owner: 1, since: 5 }, 0)));
    assert!(locks.begin_unlock(number, 0));
    assert_eq!(locks.to_unlock(number), [range(10, 19)]);
    assert!(!locks.holds_any(fid(1), 1, range(10, 19)));
    assert_eq!(locks.counts().held, 2);
    let told: Vec<_> = locks.tell().locks.iter().map(|held| (held.lock.range, held.granted)).collect();
    assert_eq!(told, [(range(0, 9), true), (range(20, u64::MAX), true), (range(10, 19), true)]);
    locks.end_release(number);
    assert_eq!(locks.tell().locks.len(), 2);
    assert_eq!(locks.release(fid(1), 1, range(10, 19)), None, "there is nothing");
}

#[test]
fn what_is_taken_again_meanwhile_is_not_given_up() {
    let mut locks = Locks::default();
    locks.grant(&lock(1, 1, range(0, 9)), Granted::There, 0);
    let number = give_up(&mut locks, lock(1, 1, LockRange::ALL));
    assert_eq!(locks.await_release(&lock(1, 1, range(0, 4)), true), (true, true));
    assert_eq!(locks.await_release(&lock(1, 2, range(0, 4)), true), (false, false));
    locks.grant(&lock(1, 1, range(0, 4)), Granted::Here, 0);
    assert!(locks.begin_unlock(number, 1));
    assert_eq!(locks.to_unlock(number), [range(5, 9)]);
    locks.grant(&lock(1, 1, range(5, 6)), Granted::Here, 0);
    assert_eq!(locks.to_unlock(number), [range(7, 9)], "when it is told again");
}

#[test]
fn another_program_of_the_machine_has_in_turn_what_was_given_up() {
    let mut locks = Locks::default();
    let (first, next) = (lock(1, 1, LockRange::ALL), lock(1, 2, LockRange::ALL));
    locks.grant(&first, Granted::There, 5);
    assert!(!locks.may_take_over(&next), "it is held");
    let number = give_up(&mut locks, first);
    assert!(locks.may_take_over(&next) && !locks.may_take_over(&first) && !locks.is_taken_over(number));
    assert!(!locks.may_take_over(&lock(2, 2, LockRange::ALL)), "another file");
    assert!(!locks.may_take_over(&Lock { kind: LockKind::Shared, ..next }));
    locks.grant(&next, Granted::Here, 9);
    assert!(locks.is_taken_over(number) && locks.has_taken_over(&next));
    assert!(!locks.begin_unlock(number, 1), "it is held");
    assert_eq!(locks.release(fid(1), 2, LockRange::ALL), Some(Released::InTurn(5)), "with what the first has written");
    for turn in [0, 1] {
        assert!(!locks.begin_unlock(number, turn), "what was written since it was taken need not have been sent");
    }
    assert!(locks.begin_unlock(number, 2));
    assert_eq!(locks.to_unlock(number), [LockRange::ALL]);
    assert!(!locks.may_take_over(&next), "the server may have given it to another client");
}

#[test]
fn who_waits_until_the_server_knows_is_passed_by_nobody() {
    let mut locks = Locks::default();
    locks.grant(&lock(1, 1, LockRange::ALL), Granted::There, 0);
    give_up(&mut locks, lock(1, 1, LockRange::ALL));
    assert_eq!(locks.await_release(&lock(1, 1, LockRange::ALL), true), (true, true));
    assert_eq!(locks.await_release(&lock(1, 1, LockRange::ALL), true), (true, false), "that is known");
    assert!(!locks.may_take_over(&lock(1, 2, LockRange::ALL)));
}

/// Makes locks of which owner 1 has given up all of file 1, under the number that is returned; what was written is at
/// the server.
fn kept() -> (Locks, u64) {
    let mut locks = Locks::default();
    locks.grant(&lock(1, 1, LockRange::ALL), Granted::There, 5);
    let number = give_up(&mut locks, lock(1, 1, LockRange::ALL));
    assert!(!locks.is_kept(number, NOW), "the server does not have what was written");
    locks.settle(number, 0, 9);
    assert!(locks.is_kept(number, NOW));
    (locks, number)
}

#[test]
fn what_was_given_up_is_kept_for_the_next_program() {
    let (mut locks, number) = kept();
    let next = lock(1, 2, LockRange::ALL);
    assert!(locks.decides(&next, NOW) && !locks.decides(&lock(2, 2, LockRange::ALL), NOW));
    locks.grant(&next, Granted::Here, 20);
    assert!(!locks.is_kept(number, NOW), "it is another's");
    assert_eq!(locks.release(fid(1), 2, LockRange::ALL), Some(Released::InTurn(9)), "what was written before is there");
    for turn in [0, 1] {
        locks.settle(number, turn, 30);
        assert!(!locks.is_kept(number, NOW), "what the next has written need not be there");
        assert!(!locks.is_settled(fid(1)) && locks.is_settled(fid(2)));
    }
    locks.settle(number, 2, 30);
    assert!(locks.is_kept(number, NOW) && locks.is_settled(fid(1)));
}

#[test]
fn who_has_given_up_what_is_kept_has_it_again() {
    let (mut locks, number) = kept();
    let own = lock(1, 1, LockRange::ALL);
    assert!(!locks.take_back(&lock(1, 1, range(0, 9)), 20, NOW), "the rest would stay at the server");
    assert!(!locks.take_back(&Lock { kind: LockKind::Shared, ..own }, 20, NOW));
    assert!(!locks.take_back(&lock(1, 2, LockRange::ALL), 20, NOW), "it is another's");
    assert!(locks.take_back(&own, 20, NOW));
    assert_eq!((locks.released(number), locks.counts()), (None, LockCounts { held: 1, here: 0 }));
    let number = give_up(&mut locks, own);
    assert_eq!(locks.released(number).unwrap().0.since, 9);
}

#[test]
fn what_others_want_is_not_kept_nor_what_they_wanted_a_while_ago() {
    let (mut locks, number) = kept();
    let own = lock(1, 1, LockRange::ALL);
    locks.want(&[fid(1), fid(2)], NOW);
    assert!(!locks.is_held(fid(1)) && !locks.is_held(fid(2)));
    assert!(!locks.is_kept(number, NOW) && !locks.decides(&lock(1, 2, LockRange::ALL), NOW));
    assert!(!locks.take_back(&own, 20, NOW));
    assert!(locks.begin_unlock(number, 0));
    locks.end_release(number);
    for (at, is_kept) in [(NOW, false), (NOW + SHARED_FOR, true)] {
        locks.grant(&own, Granted::There, 5);
        let number = give_up(&mut locks, own);
        locks.settle(number, 0, 9);
        assert_eq!(locks.is_kept(number, at), is_kept);
        locks.end_release(number);
    }
    locks.grant(&own, Granted::There, 5);
    locks.want(&[fid(1)], NOW);
    assert!(locks.is_held(fid(1)), "a program holds it");
    let number = give_up(&mut locks, own);
    locks.settle(number, 0, 9);
    assert!(!locks.is_kept(number, NOW + SHARED_FOR), "they wait, however long it was held");
}

#[test]
fn what_is_kept_is_given_up_for_what_it_cannot_become() {
    let (mut locks, number) = kept();
    let shared = Lock { kind: LockKind::Shared, ..lock(1, 2, LockRange::ALL) };
    assert_eq!(locks.await_release(&shared, true), (true, true));
    assert!(!locks.is_kept(number, NOW));
    let (mut locks, _) = kept();
    locks.grant(&lock(1, 2, LockRange::ALL), Granted::Here, 20);
    assert_eq!(locks.await_release(&shared, true), (false, false), "it would wait for itself");
    let kin = Lock { owner: LockOwner { id: 3, ..shared.owner }, ..shared };
    assert!(locks.has_taken_over(&shared) && locks.has_taken_over(&kin), "the same program, by the other call");
}

/// The link has gone meanwhile.
#[test]
fn what_was_given_up_later_is_not_given_up_with_what_was_before() {
    let mut locks = Locks::default();
    let own = lock(1, 1, LockRange::ALL);
    locks.grant(&own, Granted::There, 5);
    let first = give_up(&mut locks, own);
    locks.grant(&own, Granted::There, 7);
    let second = give_up(&mut locks, own);
    assert!(locks.begin_unlock(first, 1));
    assert_eq!(locks.to_unlock(first), []);
    assert!(locks.begin_unlock(second, 0));
    assert_eq!(locks.to_unlock(second), [LockRange::ALL]);
}

#[test]
fn what_is_had_in_turn_is_had_from_the_server_over_an_attach() {
    let next = lock(1, 2, LockRange::ALL);
    let (mut locks, _) = kept();
    locks.grant(&next, Granted::Here, 20);
    let told = locks.tell().locks;
    assert_eq!(told.iter().map(|held| (held.lock.owner.id, held.granted)).collect::<Vec<_>>(), [(2, true), (1, true)]);
    assert_eq!(locks.attached(&attach_reply(4, false, vec![1])), 0, "no program has it any more");
    assert!(!locks.is_lost(2) && locks.counts() == LockCounts { held: 1, here: 0 });
    let (mut locks, _) = kept();
    locks.tell();
    locks.grant(&next, Granted::Here, 20);
    locks.attached(&attach_reply(4, false, vec![]));
    assert!(!locks.is_lost(2) && locks.holds_any(fid(1), 2, LockRange::ALL), "it was taken meanwhile");
}

#[test]
fn what_others_may_have_got_meanwhile_is_not_kept() {
    let (mut locks, number) = kept();
    locks.lapse();
    assert!(!locks.is_kept(number, NOW) && !locks.may_take_over(&lock(1, 2, LockRange::ALL)));
    for (resumed, lost, is_kept) in
        [(true, vec![], true), (false, vec![], true), (true, vec![0], false), (false, vec![0], false)]
    {
        let (mut locks, number) = kept();
        locks.tell();
        locks.attached(&attach_reply(4, resumed, lost));
        assert_eq!(locks.is_kept(number, NOW), is_kept);
    }
}

#[test]
fn few_are_kept() {
    let mut locks = Locks::default();
    let numbers: Vec<u64> = (0..=KEPT_MAX as u64)
        .map(|vnode| {
            locks.grant(&lock(vnode, 1, LockRange::ALL), Granted::There, 5);
            let number = give_up(&mut locks, lock(vnode, 1, LockRange::ALL));
            locks.settle(number, 0, 9);
            number
        })
        .collect();
    let kept: Vec<bool> = numbers.iter().map(|number| locks.is_kept(*number, NOW)).collect();
    assert_eq!(kept, [vec![false], vec![true; KEPT_MAX]].concat());
}

#[test]
fn a_part_of_a_file_and_what_is_shared_go_by_way_of_the_server() {
    for part in [lock(1, 1, range(0, 9)), Lock { kind: LockKind::Shared, ..lock(1, 1, LockRange::ALL) }] {
        let mut locks = Locks::default();
        locks.grant(&part, Granted::There, 0);
        give_up(&mut locks, part);
        assert!(!locks.may_take_over(&Lock { owner: lock(1, 2, part.range).owner, ..part }));
    }
}

#[test]
fn what_the_server_is_being_told_of_is_given_up_there() {
    let mut locks = Locks::default();
    locks.grant(&lock(1, 1, LockRange::ALL), Granted::Here, 0);
    locks.tell();
    let number = give_up(&mut locks, lock(1, 1, LockRange::ALL));
    locks.attached(&attach_reply(4, true, Vec::new()));
    assert!(locks.begin_unlock(number, 0));
    assert_eq!(locks.to_unlock(number), [LockRange::ALL]);
}

#[test]
fn what_this_client_has_granted_is_given_up_without_a_word() {
    let mut locks = Locks::default();
    locks.grant(&lock(1, 1, LockRange::ALL), Granted::Here, 0);
    assert_eq!(locks.counts(), LockCounts { held: 1, here: 1 });
    assert_eq!(locks.release(fid(1), 1, LockRange::ALL), None);
    assert_eq!(locks.counts(), LockCounts::default());
}

#[test]
fn what_the_server_does_not_confirm_is_lost_for_its_open_file() {
    let mut locks = Locks::default();
    locks.grant(&lock(1, 1, LockRange::ALL), Granted::There, 0);
    locks.grant(&lock(2, 2, LockRange::ALL), Granted::Here, 0);
    assert_eq!(locks.tell().locks.len(), 2);
    locks.grant(&lock(3, 3, LockRange::ALL), Granted::There, 0);
    locks.attached(&attach_reply(4, false, vec![0]));
    assert!(locks.is_lost(1) && !locks.is_lost(2));
    assert!(locks.is_lost(3), "the session that knew of it has ended");
    assert_eq!(locks.counts(), LockCounts { held: 1, here: 0 });
    let told = locks.tell();
    assert_eq!((told.epoch, told.grants), (Some(ServerEpoch(4)), 7));
    assert!(locks.close(1).is_empty());
    assert!(!locks.is_lost(1), "the next open file of that number has lost nothing");
    let closed = locks.close(2);
    assert!(matches!(closed[..], [(of, Released::There(_))] if of == fid(2)), "{closed:?}");
    assert!(!locks.holds_any(fid(2), 2, LockRange::ALL), "at once: the kernel gives its number to the next open file");
}

#[test]
fn a_session_that_goes_on_knows_what_came_after_the_question() {
    let mut locks = Locks::default();
    locks.tell();
    locks.grant(&lock(1, 1, LockRange::ALL), Granted::There, 0);
    locks.attached(&attach_reply(4, true, Vec::new()));
    assert_eq!((locks.counts().held, locks.is_lost(1)), (1, false));
}

#[test]
fn with_the_lease_goes_what_the_server_has_granted() {
    let mut locks = Locks::default();
    locks.grant(&lock(1, 1, LockRange::ALL), Granted::There, 0);
    locks.grant(&lock(2, 2, LockRange::ALL), Granted::Here, 0);
    locks.grant(&lock(3, 3, LockRange::ALL), Granted::There, 0);
    give_up(&mut locks, lock(3, 3, LockRange::ALL));
    locks.grant(&lock(3, 4, LockRange::ALL), Granted::Here, 0);
    locks.lapse();
    assert!(locks.is_lost(1) && !locks.is_lost(2) && locks.is_lost(4));
    assert_eq!(locks.counts(), LockCounts { held: 1, here: 1 });
}

#[test]
fn a_shared_lock_in_place_of_an_exclusive_one_lets_others_in() {
    let mut locks = Locks::default();
    locks.grant(&lock(1, 1, range(0, 9)), Granted::There, 3);
    let shared = |range| Lock { kind: LockKind::Shared, ..lock(1, 1, range) };
    assert_eq!(locks.weakens(&shared(range(5, 20))), Some(3));
    assert_eq!(locks.weakens(&shared(range(10, 20))), None);
    assert_eq!(locks.weakens(&lock(1, 1, range(0, 9))), None);
}

#[test]
fn who_has_closed_a_descriptor_may_be_gone_until_it_shows_that_it_is_not() {
    let (mut locks, [held, wanted]) = (Locks::default(), [1, 2].map(|owner| lock(1, owner, LockRange::ALL)));
    assert!(!locks.begin_close(1), "nobody has locked anything");
    locks.grant(&held, Granted::There, 0);
    assert!(!locks.may_be_closed(&wanted));
    assert!(locks.begin_close(7), "another descriptor of its process may be the one");
    assert!(!locks.may_be_closed(&wanted), "it is another open file");
    assert!(locks.begin_close(1));
    assert!(locks.may_be_closed(&wanted));
    assert!(locks.is_closing(fid(1)) && !locks.is_closing(fid(2)));
    locks.stay_open(fid(1));
    assert!(!locks.may_be_closed(&wanted), "somebody has inherited it");
    locks.begin_close(1);
    locks.grant(&held, Granted::There, 0);
    assert!(!locks.may_be_closed(&wanted), "it was used after that");
    locks.begin_close(1);
    assert_eq!(locks.close(1).len(), 1);
    assert!(locks.closing.is_empty());
}

#[test]
fn what_is_given_up_is_told_before_who_does_not_wait_asks_for_what_it_cannot_have_in_turn() {
    let mut locks = Locks::default();
    locks.grant(&Lock { kind: LockKind::Shared, ..lock(1, 1, LockRange::ALL) }, Granted::There, 0);
    give_up(&mut locks, lock(1, 1, LockRange::ALL));
    let wanted = lock(1, 2, LockRange::ALL);
    assert_eq!(locks.await_release(&wanted, true), (false, false), "it has its place at the server");
    assert_eq!(locks.await_release(&Lock { kind: LockKind::Shared, ..wanted }, false), (false, false));
    assert_eq!(locks.await_release(&wanted, false), (true, true));
    let mut locks = Locks::default();
    locks.grant(&lock(1, 1, LockRange::ALL), Granted::There, 0);
    give_up(&mut locks, lock(1, 1, LockRange::ALL));
    assert_eq!(locks.await_release(&wanted, false), (false, false), "it has that in turn");
}

#[test]
fn what_programs_ask_to_lock_is_known() {
    let mut locks = Locks::default();
    assert!(!locks.may_be_locked(fid(1)));
    locks.note_asked(fid(1));
    assert!(locks.may_be_locked(fid(1)) && !locks.may_be_locked(fid(2)));
    (0..ASKED_FOR_MAX as u64).for_each(|vnode| locks.note_asked(fid(vnode)));
    assert!(locks.may_be_locked(fid(u64::MAX)), "it may be any");
    assert_eq!(locks.asked_for.len(), ASKED_FOR_MAX);
}
