//! What is held here, told, confirmed and lost.

use std::time::Duration;

use mafs_proto::call::AttachReply;
use mafs_proto::{
    ChangeNumber, DataVersion, FidRange, Generation, HistoryId, Incarnation, Kind, LockKind, Mode, Object, ServerId,
    Status, StatusVersion, Timestamp, Uniquifier, VnodeId, VolumeId,
};

use super::*;

fn fid(vnode: u64) -> Fid {
    Fid { volume: VolumeId(1), vnode: VnodeId(vnode), unique: Uniquifier(1) }
}

fn range(first: u64, last: u64) -> LockRange {
    LockRange::new(first, last).unwrap()
}

/// By an owner that has one open file, of its own number.
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

#[test]
fn what_is_given_up_is_told_until_the_server_knows() {
    let mut locks = Locks::default();
    locks.grant(&lock(1, 1, LockRange::ALL), Granted::There, 5);
    let number = locks.release(fid(1), 1, range(10, 19)).unwrap();
    assert_eq!(locks.released(number), Some(Release { fid: fid(1), owner: 1, since: 5 }));
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
    let number = locks.release(fid(1), 1, LockRange::ALL).unwrap();
    assert!(locks.is_releasing(fid(1), 1) && !locks.is_releasing(fid(1), 2));
    locks.grant(&lock(1, 1, range(0, 4)), Granted::Here, 0);
    assert_eq!(locks.to_unlock(number), [range(5, 9)]);
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
    assert_eq!(locks.close(2), [(fid(2), 2)]);
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
    locks.lapse();
    assert!(locks.is_lost(1) && !locks.is_lost(2));
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
