//! Tests of locks: who has which, and who is next.

use std::collections::BTreeSet;

use mafs_proto::call::{HeldLock, HeldLocks, UnlockRequest};
use mafs_proto::{
    Base, ClientId, CmlOp, CmlRecord, DataVersion, Fid, FsError, Incarnation, Instant, Lock, LockKind, LockOwner,
    LockRange, ServerEpoch, StoreId, Timestamp, Uniquifier, VnodeId, VolumeId,
};
use proptest::prelude::*;

use crate::core::locks::{Asked, Before, Locks, PLACE_KEPT, Present, RECALL_WAIT, Wanted};

const EPOCH: ServerEpoch = ServerEpoch(7);
const FRESH: Before = Before { resumed: false, listed: false };

fn client(number: u8) -> ClientId {
    ClientId([number; 16])
}

fn fid(vnode: u64) -> Fid {
    Fid { volume: VolumeId(1), vnode: VnodeId(vnode), unique: Uniquifier(1) }
}

fn lock(vnode: u64, owner: u64, (first, last): (u64, u64), kind: LockKind) -> Lock {
    let owner = LockOwner { id: owner, process: u32::try_from(owner).unwrap(), file: owner };
    Lock { fid: fid(vnode), owner, range: LockRange::new(first, last).unwrap(), kind }
}

/// Makes a lock of all of file 1, by a process that has the number of its client.
fn whole(number: u8, kind: LockKind) -> Lock {
    lock(1, u64::from(number), (0, u64::MAX), kind)
}

/// The locks, the time, and the clients whose sessions have ended.
struct Bench {
    locks: Locks,
    now: Instant,
    gone: BTreeSet<ClientId>,
    number: u64,
}

impl Bench {
    fn new() -> Self {
        Self { locks: Locks::new(EPOCH), now: Instant(0), gone: BTreeSet::new(), number: 0 }
    }

    /// Asks for a lock while programs of all clients hold what they have locked.
    fn ask_for(&mut self, by: u8, wanted: Wanted) -> Result<Asked, FsError> {
        let asked = self.ask_keepers(by, wanted);
        for (keeper, fid) in self.locks.take_recalls() {
            self.locks.note_held(keeper, &[fid]);
        }
        if asked == Err(FsError::Pulling) { self.ask_keepers(by, wanted) } else { asked }
    }

    /// Asks for a lock of clients that have not said yet whether they only keep theirs.
    fn ask_keepers(&mut self, by: u8, wanted: Wanted) -> Result<Asked, FsError> {
        let gone = self.gone.clone();
        let is_live = move |client: ClientId| !gone.contains(&client);
        let present = Present { now: self.now, is_live: &is_live };
        self.locks.ask(client(by), &wanted, present)
    }

    fn ask_as(&mut self, by: u8, lock: Lock, wait: bool, number: u64) -> Result<Asked, FsError> {
        self.ask_for(by, Wanted { lock, wait, number, given_up: false })
    }

    fn ask(&mut self, by: u8, lock: Lock) -> Result<Asked, FsError> {
        self.number += 1;
        self.ask_as(by, lock, false, self.number)
    }

    /// Returns the request's number.
    fn wait(&mut self, by: u8, lock: Lock) -> u64 {
        self.number += 1;
        assert_eq!(self.ask_as(by, lock, true, self.number), Ok(Asked::Waits));
        self.number
    }

    fn unlock(&mut self, by: u8, lock: Lock) {
        assert!(self.unlock_except(by, lock, Vec::new()));
    }

    fn unlock_except(&mut self, by: u8, lock: Lock, except: Vec<u64>) -> bool {
        let request = UnlockRequest { fid: lock.fid, owner: lock.owner.id, range: lock.range, except };
        self.locks.unlock(client(by), &request)
    }

    fn fences(&self, from: u8, vnode: u64) -> bool {
        self.fences_one_that(false, from, vnode)
    }

    fn fences_one_that(&self, relies_on_the_lock: bool, from: u8, vnode: u64) -> bool {
        let id = StoreId { client: client(from), incarnation: Incarnation(1), seq: 1 };
        let (base, time) = (Base::Version(DataVersion(1)), Timestamp::default());
        let op = CmlOp::Store { fid: fid(vnode), base, size: 1, mtime: time };
        let record = CmlRecord { id, depends_on: Vec::new(), time, uid: 0, gid: 0, removes: None, op };
        self.locks.is_fenced(&record, relies_on_the_lock)
    }

    fn attach(&mut self, by: u8, before: Before, held: &HeldLocks) -> Vec<u32> {
        let present = Present { now: self.now, is_live: &|_| true };
        self.locks.attach(client(by), before, held, present)
    }
}

fn held(epoch: ServerEpoch, grants: u64, lock: Lock, granted: bool) -> HeldLocks {
    HeldLocks { epoch: Some(epoch), grants, locks: vec![HeldLock { lock, granted }], fenced: false }
}

#[test]
fn an_exclusive_lock_is_one_clients_and_shared_ones_are_everybodys() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask(1, whole(1, LockKind::Shared)), Ok(Asked::Granted));
    assert_eq!(bench.ask(2, whole(2, LockKind::Shared)), Ok(Asked::Granted));
    assert_eq!(bench.ask(2, whole(2, LockKind::Exclusive)), Err(FsError::Locked));
    bench.unlock(1, whole(1, LockKind::Shared));
    assert_eq!(bench.ask(2, whole(2, LockKind::Exclusive)), Ok(Asked::Granted));
    assert_eq!(bench.ask(2, whole(2, LockKind::Exclusive)), Ok(Asked::Granted), "asked once more it is the same");
    assert_eq!(
        bench.ask(1, whole(2, LockKind::Shared)),
        Err(FsError::Locked),
        "numbers of owners are each client's own"
    );
}

#[test]
fn what_an_open_file_before_gives_up_ends_no_lock_of_the_next() {
    let mut bench = Bench::new();
    let through = |file| {
        let lock = whole(7, LockKind::Exclusive);
        Lock { owner: LockOwner { file, ..lock.owner }, ..lock }
    };
    assert_eq!(bench.ask(1, through(1)), Ok(Asked::Granted));
    assert_eq!(bench.ask(1, through(2)), Ok(Asked::Granted), "the kernel calls both by one name");
    assert!(!bench.unlock_except(1, through(1), vec![2]));
    assert_eq!(bench.ask(2, through(1)), Err(FsError::Locked));
    assert!(bench.unlock_except(1, through(2), vec![3]));
    assert_eq!(bench.ask(2, through(1)), Ok(Asked::Granted));
}

#[test]
fn who_waits_gets_the_lock_in_turn() {
    let mut bench = Bench::new();
    bench.ask(1, whole(1, LockKind::Exclusive)).unwrap();
    let first = bench.wait(2, whole(2, LockKind::Exclusive));
    let second = bench.wait(3, whole(3, LockKind::Exclusive));
    bench.unlock(1, whole(1, LockKind::Exclusive));
    assert_eq!(bench.ask_as(3, whole(3, LockKind::Exclusive), true, second), Ok(Asked::Waits));
    assert_eq!(bench.ask(4, whole(4, LockKind::Shared)), Err(FsError::Locked), "who comes later does not pass");
    assert_eq!(bench.ask_as(2, whole(2, LockKind::Exclusive), true, first), Ok(Asked::Granted));
    bench.unlock(2, whole(2, LockKind::Exclusive));
    assert_eq!(bench.ask_as(3, whole(3, LockKind::Exclusive), true, second), Ok(Asked::Granted));
}

#[test]
fn what_its_client_gives_up_is_for_another_program_of_it_unless_others_wait() {
    let mut bench = Bench::new();
    bench.ask(1, whole(1, LockKind::Exclusive)).unwrap();
    let wanted = |number| Wanted { lock: whole(11, LockKind::Exclusive), wait: true, number, given_up: true };
    assert_eq!(bench.ask_for(1, wanted(100)), Err(FsError::LockedByOwn));
    let other = bench.wait(2, whole(2, LockKind::Exclusive));
    assert_eq!(bench.ask_for(1, wanted(101)), Ok(Asked::Waits));
    bench.unlock(1, whole(1, LockKind::Exclusive));
    assert_eq!(bench.ask_as(2, whole(2, LockKind::Exclusive), true, other), Ok(Asked::Granted));
    assert_eq!(bench.ask_for(1, wanted(101)), Ok(Asked::Waits), "what another client has it has not given up");
}

#[test]
fn who_is_waited_for_is_not_held_up_by_who_waits() {
    let mut bench = Bench::new();
    bench.ask(1, whole(1, LockKind::Shared)).unwrap();
    bench.wait(2, whole(2, LockKind::Exclusive));
    assert_eq!(bench.ask(1, whole(1, LockKind::Exclusive)), Ok(Asked::Granted));
}

#[test]
fn a_place_is_kept_for_a_while_and_lost_when_nobody_waits() {
    let mut bench = Bench::new();
    bench.ask(1, whole(1, LockKind::Exclusive)).unwrap();
    bench.wait(2, whole(2, LockKind::Exclusive));
    bench.unlock(1, whole(1, LockKind::Exclusive));
    assert_eq!(bench.ask(3, whole(3, LockKind::Exclusive)), Err(FsError::Locked));
    bench.now = bench.now + PLACE_KEPT;
    assert_eq!(bench.ask(3, whole(3, LockKind::Exclusive)), Ok(Asked::Granted));
    let cancelled = bench.wait(2, whole(2, LockKind::Exclusive));
    bench.unlock(3, whole(3, LockKind::Exclusive));
    bench.locks.cancel(client(2), cancelled);
    let late = bench.ask_as(2, whole(2, LockKind::Exclusive), true, cancelled);
    assert_eq!(late, Err(FsError::Locked), "nobody waits for it");
    assert_eq!(bench.ask(1, whole(1, LockKind::Exclusive)), Ok(Asked::Granted));
}

#[test]
fn waiting_for_each_other_is_refused_also_by_way_of_a_third() {
    let mut bench = Bench::new();
    let of = |file: u64, by: u8| lock(file, u64::from(by), (0, 9), LockKind::Exclusive);
    for number in 1..=3 {
        bench.ask(number, of(number.into(), number)).unwrap();
    }
    bench.wait(1, of(2, 1));
    bench.wait(2, of(3, 2));
    assert_eq!(bench.ask_as(3, of(1, 3), true, 100), Err(FsError::Deadlock));
    bench.unlock(3, of(3, 3));
    assert_eq!(bench.ask_as(3, of(1, 3), true, 101), Ok(Asked::Waits), "nobody waits for it now");
}

#[test]
fn who_may_only_keep_a_lock_is_asked_once_before_anybody_is_refused() {
    let mut bench = Bench::new();
    let mine = whole(1, LockKind::Exclusive);
    let wanted = |wait| Wanted { lock: whole(2, LockKind::Shared), wait, number: 100, given_up: false };
    for _ in 0..2 {
        bench.ask(1, mine).unwrap();
        assert_eq!(bench.ask_keepers(2, wanted(false)), Err(FsError::Pulling));
        assert_eq!(bench.locks.take_recalls(), [(client(1), fid(1))]);
        assert_eq!(bench.ask_keepers(2, wanted(true)), Ok(Asked::Waits));
        let present = Present { now: bench.now, is_live: &|_| true };
        assert_eq!(bench.locks.test(client(2), &wanted(false).lock, present), Err(FsError::Pulling));
        bench.locks.note_held(client(1), &[fid(1)]);
        assert_eq!(bench.ask_keepers(2, wanted(false)), Err(FsError::Locked));
        assert_eq!(bench.locks.take_recalls(), []);
        bench.unlock(1, mine);
    }
    assert_eq!(bench.ask_keepers(2, wanted(false)), Ok(Asked::Granted));
}

#[test]
fn who_does_not_answer_is_asked_again_and_nobody_is_kept_for_long() {
    let mut bench = Bench::new();
    bench.ask(1, whole(1, LockKind::Exclusive)).unwrap();
    let wanted = Wanted { lock: whole(2, LockKind::Shared), wait: false, number: 100, given_up: false };
    assert_eq!(bench.ask_keepers(2, wanted), Err(FsError::Pulling));
    bench.now = bench.now + RECALL_WAIT;
    assert_eq!(bench.ask_keepers(2, wanted), Err(FsError::Locked));
    assert_eq!(bench.locks.take_recalls().len(), 2);
}

#[test]
fn who_may_only_keep_a_lock_is_in_no_circle() {
    let mut bench = Bench::new();
    let (kept, held) = (
        |owner| lock(1, owner, (0, u64::MAX), LockKind::Exclusive),
        |owner| Lock { fid: fid(2), ..whole(owner, LockKind::Exclusive) },
    );
    bench.ask(1, kept(1)).unwrap();
    bench.ask(2, held(2)).unwrap();
    bench.wait(1, held(1));
    let wanted = Wanted { lock: kept(2), wait: true, number: 100, given_up: false };
    assert_eq!(bench.ask_keepers(2, wanted), Err(FsError::Pulling));
    bench.locks.note_held(client(1), &[fid(1)]);
    assert_eq!(bench.ask_keepers(2, wanted), Err(FsError::Deadlock));
}

#[test]
fn nobody_keeps_a_part_or_what_is_shared() {
    for kept in [lock(1, 1, (0, 9), LockKind::Exclusive), whole(1, LockKind::Shared)] {
        let mut bench = Bench::new();
        bench.ask(1, kept).unwrap();
        let wanted = Wanted { lock: whole(2, LockKind::Exclusive), wait: false, number: 100, given_up: false };
        assert_eq!(bench.ask_keepers(2, wanted), Err(FsError::Locked));
        assert_eq!(bench.locks.take_recalls(), []);
    }
}

#[test]
fn what_is_in_the_way_is_shown_with_the_process_of_ones_own() {
    let mut bench = Bench::new();
    bench.ask(1, lock(1, 5, (10, 19), LockKind::Shared)).unwrap();
    let present = Present { now: Instant(0), is_live: &|_| true };
    let wanted = lock(1, 6, (0, 100), LockKind::Exclusive);
    let conflict = bench.locks.test(client(1), &wanted, present).unwrap().unwrap();
    assert_eq!((conflict.range.first(), conflict.kind, conflict.process), (10, LockKind::Shared, 5));
    assert_eq!(bench.locks.test(client(2), &wanted, present).unwrap().unwrap().process, 0);
    let shared = Lock { kind: LockKind::Shared, ..wanted };
    assert_eq!(bench.locks.test(client(2), &shared, present), Ok(None));
}

#[test]
fn locks_end_with_the_lease_of_their_client() {
    let mut bench = Bench::new();
    bench.ask(1, whole(1, LockKind::Exclusive)).unwrap();
    let waiting = bench.wait(2, whole(2, LockKind::Exclusive));
    bench.gone.insert(client(1));
    assert_eq!(bench.ask_as(2, whole(2, LockKind::Exclusive), true, waiting), Ok(Asked::Granted));
}

#[test]
fn who_comes_back_keeps_what_nobody_was_granted_meanwhile() {
    let mut bench = Bench::new();
    let (mine, theirs) = (whole(1, LockKind::Exclusive), whole(2, LockKind::Shared));
    bench.ask(1, mine).unwrap();
    let seen = bench.locks.grants();
    let relied_on = held(EPOCH, seen, mine, true);
    assert_eq!(bench.attach(1, Before { resumed: true, listed: false }, &relied_on), [0; 0]);
    assert_eq!(bench.attach(1, FRESH, &relied_on), [0; 0]);
    assert_eq!(bench.ask(2, theirs), Err(FsError::Locked));
    bench.locks.end(client(1));
    bench.ask(2, theirs).unwrap();
    bench.unlock(2, theirs);
    assert_eq!(bench.attach(1, FRESH, &relied_on), [0], "somebody has had it since");
    assert_eq!(bench.ask(2, whole(2, LockKind::Exclusive)), Ok(Asked::Granted));
}

#[test]
fn a_lock_that_the_client_has_granted_itself_holds_unless_somebody_else_was_granted_one() {
    let mut bench = Bench::new();
    let (mine, theirs) = (whole(1, LockKind::Shared), whole(2, LockKind::Shared));
    bench.ask(2, theirs).unwrap();
    assert_eq!(bench.attach(1, FRESH, &held(EPOCH, 0, mine, false)), [0; 0], "shared ones do not exclude each other");
    let exclusive = Lock { kind: LockKind::Exclusive, ..mine };
    assert_eq!(bench.attach(1, FRESH, &held(EPOCH, 0, exclusive, false)), [0]);
}

#[test]
fn after_a_start_those_listed_regain_what_they_were_granted_in_the_life_before() {
    let lock = whole(1, LockKind::Exclusive);
    let before = ServerEpoch(EPOCH.0 - 1);
    let listed = Before { resumed: false, listed: true };
    let lost = |before: Before, held: &HeldLocks| Bench::new().attach(1, before, held);
    assert_eq!(lost(listed, &held(before, 9, lock, true)), [0; 0]);
    assert_eq!(lost(FRESH, &held(before, 9, lock, true)), [0], "its lease had ended before");
    assert_eq!(lost(listed, &held(before, 9, lock, false)), [0], "others may have been granted it in that life");
    assert_eq!(lost(listed, &held(ServerEpoch(EPOCH.0 - 2), 9, lock, true)), [0]);
}

#[test]
fn who_has_lost_a_lock_that_another_has_had_since_is_fenced_from_its_file() {
    let lock = |number| whole(number, LockKind::Exclusive);
    let none = |fenced| HeldLocks { epoch: Some(EPOCH), grants: 0, locks: Vec::new(), fenced };
    let lose = |kind: LockKind| {
        let mut bench = Bench::new();
        bench.ask(1, whole(1, kind)).unwrap();
        bench.gone.insert(client(1));
        bench
    };
    let mut bench = lose(LockKind::Exclusive);
    bench.attach(1, FRESH, &none(true));
    assert!(!bench.fences(1, 1), "nobody has had it since");
    assert_eq!(bench.ask(2, lock(2)), Ok(Asked::Granted));
    assert!(bench.fences(1, 1) && !bench.fences(2, 1));
    assert!(!bench.fences(1, 2), "another file");
    bench.unlock(2, lock(2));
    assert!(bench.fences(1, 1), "what it wrote is older than what the other one has seen");
    bench.locks.stored(client(1), fid(1));
    assert!(bench.fences(1, 1));
    bench.locks.stored(client(2), fid(1));
    assert!(!bench.fences(1, 1), "the base of what it wrote tells");
    assert!(bench.fences_one_that(true, 1, 1), "what its programs make of that relies on the lock that they have lost");

    for (fences, kind, held) in [
        (true, LockKind::Exclusive, none(true)),
        (false, LockKind::Exclusive, none(false)),
        (false, LockKind::Shared, none(true)),
    ] {
        let mut bench = lose(kind);
        assert_eq!(bench.ask(2, lock(2)), Ok(Asked::Granted));
        bench.gone.clear();
        bench.attach(1, FRESH, &held);
        assert_eq!(bench.fences(1, 1), fences, "{kind:?}, {held:?}");
        bench.unlock(2, lock(2));
        assert_eq!(bench.ask(1, lock(1)), Ok(Asked::Granted));
        assert!(!bench.fences(1, 1), "it has it again");
    }

    let mut bench = lose(LockKind::Exclusive);
    bench.gone.clear();
    let relied_on = HeldLocks { fenced: true, ..held(EPOCH, 1, lock(1), true) };
    assert_eq!(bench.attach(1, FRESH, &relied_on), [0; 0]);
    assert_eq!(bench.ask(2, lock(2)), Err(FsError::Locked));
    bench.locks.end(client(1));
    assert_eq!(bench.ask(2, lock(2)), Ok(Asked::Granted));
    assert_eq!(bench.attach(1, FRESH, &relied_on), [0], "it has relied on it while another had it");
    assert!(bench.fences(1, 1));
}

#[test]
fn a_client_has_a_bounded_number_of_locks() {
    let mut bench = Bench::new();
    let byte = |at: u64| lock(1, 1, (2 * at, 2 * at), LockKind::Shared);
    let granted = (0..).take_while(|at| bench.ask(1, byte(*at)) == Ok(Asked::Granted)).count();
    assert_eq!(granted, HeldLocks::LOCKS_MAX - 1);
    assert_eq!(bench.ask(1, byte(5000)), Err(FsError::TooManyLocks));
    assert_eq!(bench.ask(2, byte(5000)), Ok(Asked::Granted), "others have theirs");
    bench.locks.end(client(1));
    assert_eq!(bench.ask(1, byte(5000)), Ok(Asked::Granted));
}

#[test]
fn a_client_waits_for_a_bounded_number_of_locks() {
    let mut bench = Bench::new();
    bench.ask(1, whole(1, LockKind::Exclusive)).unwrap();
    let waits = |bench: &mut Bench, number| bench.ask_as(2, whole(2, LockKind::Shared), true, number);
    let waiting = (0..).take_while(|number| waits(&mut bench, *number) == Ok(Asked::Waits)).count();
    assert_eq!(waiting, 256);
    assert_eq!(waits(&mut bench, 1000), Err(FsError::TooManyLocks));
}

const BYTES: usize = 8;
const CLIENTS: u8 = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    Lock(LockKind),
    Unlock,
    End,
}

/// Kind of lock of each byte, by client.
type Model = [[Option<LockKind>; BYTES]; CLIENTS as usize];

proptest! {
    /// Checks that every grant is one that an array of bytes allows, and that what it allows is granted unless
    /// somebody waits.
    #[test]
    fn proptest_nobody_has_what_excludes_anothers(
        steps in proptest::collection::vec(
            (0..CLIENTS, 0..BYTES, 0..BYTES, any::<bool>(), prop_oneof![
                3 => Just(Step::Lock(LockKind::Shared)), 3 => Just(Step::Lock(LockKind::Exclusive)),
                3 => Just(Step::Unlock), 1 => Just(Step::End),
            ]),
            1..80,
        )
    ) {
        let mut bench = Bench::new();
        let mut model = Model::default();
        for (by, one, other, wait, step) in steps {
            let bytes = one.min(other)..=one.max(other);
            let (first, last) = (*bytes.start() as u64, *bytes.end() as u64);
            match step {
                Step::Lock(kind) => {
                    let others = (0..CLIENTS).filter(|other| *other != by);
                    let mut held = others.flat_map(|other| &model[usize::from(other)][bytes.clone()]).flatten();
                    let free = held.all(|held| !held.excludes(kind));
                    bench.number += 1;
                    let number = bench.number;
                    let answer = bench.ask_as(by, lock(1, by.into(), (first, last), kind), wait, number);
                    if answer == Ok(Asked::Granted) {
                        prop_assert!(free);
                        model[usize::from(by)][bytes].fill(Some(kind));
                    } else if answer == Ok(Asked::Waits) {
                        prop_assert!(wait);
                        bench.locks.cancel(client(by), number);
                    }
                    prop_assert_eq!(answer == Ok(Asked::Granted), free, "nobody else is in the queue");
                }
                Step::Unlock => {
                    let given_up = lock(1, by.into(), (first, last), LockKind::Shared);
                    let had = bench.unlock_except(by, given_up, Vec::new());
                    prop_assert_eq!(had, model[usize::from(by)][bytes.clone()].iter().any(Option::is_some));
                    model[usize::from(by)][bytes].fill(None);
                }
                Step::End => {
                    bench.locks.end(client(by));
                    model[usize::from(by)].fill(None);
                }
            }
        }
    }
}
