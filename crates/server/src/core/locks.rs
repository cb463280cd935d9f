//! Locks: which bytes of which file are held, and which requests wait for them (consistency.md, "Locks").
//!
//! Locks are granted in the order in which they were asked for, as far as they exclude each other; a client that
//! holds something that another waits for is not held up by that one. They belong to the session of their client.
//! When its lease has ended they do not count. A session that cannot be continued begins without any but those that
//! the client still relies on and nobody else has been granted since.
//!
//! Nothing is in an index: after a start clients say what they hold, and until they have, nothing is granted.
//!
//! A client may keep a lock that none of its programs holds any more. When another asks for something that the kept
//! lock excludes, the client is *recalled*: it gives up what it keeps, and says of what is held that it is.
//!
//! A client whose exclusive lock has ended with its session is *fenced* from the file, if it wants that: a content
//! that it wrote under the lock may come at any time, and is not to be stored once another has had the lock.
//!
//! Must not know which connection waits: a client that wants a lock asks until it has it. A request that is not asked
//! again within [`PLACE_KEPT`] has lost its place.

mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mafs_proto::call::{HeldLock, HeldLocks, LockConflict, UnlockRequest};
use mafs_proto::{ClientId, CmlOp, CmlRecord, Fid, FsError, Instant, Lock, LockKind, LockOwner, ServerEpoch};

use file::{FileLocks, Locker, Waiter};

/// Time for which a place in the queue is kept for a client that does not ask: a few round trips.
pub(crate) const PLACE_KEPT: Duration = Duration::from_secs(5);

/// Time for which a request that does not wait for a lock waits for the answer of a client that may only keep it: as
/// long as it takes until a path is known to be dead (cli.md).
pub(crate) const RECALL_WAIT: Duration = Duration::from_secs(5);

/// Ranges that one client may hold: as many as it can name when it attaches.
const CLIENT_LOCKS_MAX: usize = HeldLocks::LOCKS_MAX;

/// Ranges that all clients of a volume may hold; some 5 MB.
const VOLUME_LOCKS_MAX: usize = 1 << 16;

/// Locks that one client may wait for: a part of the calls that it may have under way.
const CLIENT_WAITERS_MAX: usize = 256;

/// Locks that all clients of a volume may wait for.
const VOLUME_WAITERS_MAX: usize = 4096;

/// Requests that are remembered as cancelled.
const CANCELLED_MAX: usize = 1024;

/// Files of which the last grants are remembered.
const FILES_REMEMBERED: usize = 4096;

/// Exclusive locks that are remembered as lost.
const LOST_MAX: usize = 4096;

/// A request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) lock: Lock,
    /// Whether it is put in the queue.
    pub(crate) wait: bool,
    /// Number of the request at its client.
    pub(crate) number: u64,
    /// Whether its client gives up what it has of the range.
    pub(crate) given_up: bool,
}

/// Result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// The lock is held.
    Granted,
    /// The request is in the queue.
    Waits,
}

/// The clients that count, and the present time.
#[derive(Clone, Copy)]
pub(crate) struct Present<'a> {
    pub(crate) now: Instant,
    /// Whether a client has a session whose lease has not ended.
    pub(crate) is_live: &'a dyn Fn(ClientId) -> bool,
}

/// Statements of an attach about the session before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Before {
    /// Whether that session goes on.
    pub(crate) resumed: bool,
    /// Whether the client had a session when the server was started.
    pub(crate) listed: bool,
}

/// State of a client that has been asked to give up what it keeps of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Recall {
    /// Time when it was asked first.
    since: Instant,
    /// Time when it was asked last: the first time its own lock may have been on the way to it still.
    asked: Instant,
    /// Whether it has answered that a program of it holds a lock.
    is_held: bool,
}

/// The last grants of locks on a file.
#[derive(Clone, Copy, Default)]
struct Grants {
    shared: Option<(u64, ClientId)>,
    exclusive: Option<(u64, ClientId)>,
}

/// A lock that was lost.
#[derive(Clone, Copy)]
struct Lost {
    /// Number of locks that had been granted then.
    grants: u64,
    /// Whether another client has stored since: then a content written before has an older base.
    is_older: bool,
}

/// The locks of a volume.
pub(crate) struct Locks {
    epoch: ServerEpoch,
    files: BTreeMap<Fid, FileLocks>,
    /// Number of ranges that each client holds.
    held: BTreeMap<ClientId, usize>,
    /// File on which each request waits.
    waiting: BTreeMap<(ClientId, u64), Fid>,
    /// Requests that are not to be granted though they may be asked for once more: the call was on its way.
    cancelled: BTreeSet<(ClientId, u64)>,
    /// Recalls of clients that have something locked which others want.
    recalls: BTreeMap<(Fid, ClientId), Recall>,
    /// Recalls of which nobody has been told.
    untold: Vec<(ClientId, Fid)>,
    /// Number of locks that have been granted.
    grants: u64,
    last: BTreeMap<Fid, Grants>,
    /// Number of the last grant for which, as for all before it, nobody knows whose it was.
    forgotten: u64,
    /// Exclusive locks of files that clients have lost.
    lost: BTreeMap<(Fid, ClientId), Lost>,
}

impl Locks {
    /// Makes the locks of a volume in which nobody has locked anything in this life of the server.
    pub(crate) fn new(epoch: ServerEpoch) -> Self {
        Self {
            epoch,
            files: BTreeMap::new(),
            held: BTreeMap::new(),
            waiting: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            recalls: BTreeMap::new(),
            untold: Vec::new(),
            grants: 0,
            last: BTreeMap::new(),
            forgotten: 0,
            lost: BTreeMap::new(),
        }
    }

    /// Returns how many locks have been granted.
    pub(crate) fn grants(&self) -> u64 {
        self.grants
    }

    /// Tells whether a client holds a lock, or one that excludes more.
    pub(crate) fn holds(&self, client: ClientId, lock: &Lock) -> bool {
        self.files.get(&lock.fid).is_some_and(|file| file.holds(&Locker { client, owner: lock.owner }, lock))
    }

    /// Asks for a lock at the wish of a client, or asks again.
    ///
    /// # Errors
    /// `LockedByOwn` if only its client has it, which gives it up, `Locked` if others have it and the request does not
    /// wait, `Pulling` if they may only keep it, `Deadlock` if it would wait for itself, `TooManyLocks`.
    pub(crate) fn ask(&mut self, client: ClientId, wanted: &Wanted, present: Present<'_>) -> Result<Asked, FsError> {
        let Wanted { lock, wait, number, given_up } = *wanted;
        if self.cancelled.remove(&(client, number)) {
            return Err(FsError::Locked);
        }
        self.forget_gone(lock.fid, present);
        let locker = Locker { client, owner: lock.owner };
        let may_be_kept = self.recall(&locker, &lock, present.now);
        let file = self.files.entry(lock.fid).or_default();
        let blockers = file.blockers(&locker, &lock, file.place(client, number));
        let answer = if blockers.is_empty() {
            self.grant(locker, &lock).map(|()| Asked::Granted)
        } else if given_up && blockers.iter().all(|blocker| blocker.client == client) {
            Err(FsError::LockedByOwn)
        } else if wait {
            let waiter = Waiter { locker, lock, number, asked: present.now };
            match self.enqueue(waiter) {
                // Perhaps nobody holds the lock that it would wait for.
                Err(FsError::Deadlock) if may_be_kept => Err(FsError::Pulling),
                queued => queued.map(|()| Asked::Waits),
            }
        } else if may_be_kept {
            Err(FsError::Pulling)
        } else {
            Err(FsError::Locked)
        };
        if answer != Ok(Asked::Waits) {
            self.dequeue(client, number);
        }
        self.drop_if_empty(lock.fid);
        answer
    }

    /// Gives up what an owner has of a range. Returns whether it had any.
    pub(crate) fn unlock(&mut self, client: ClientId, request: &UnlockRequest) -> bool {
        let locker = Locker { client, owner: LockOwner { id: request.owner, process: 0, file: 0 } };
        let had = self.change(request.fid, |file| file.unlock(&locker, request.range, &request.except));
        self.drop_if_empty(request.fid);
        had
    }

    /// Returns the lock that keeps a client from having another.
    ///
    /// # Errors
    /// `Pulling` if that lock may only be kept.
    pub(crate) fn test(
        &mut self,
        client: ClientId,
        lock: &Lock,
        present: Present<'_>,
    ) -> Result<Option<LockConflict>, FsError> {
        self.forget_gone(lock.fid, present);
        let locker = Locker { client, owner: lock.owner };
        if self.recall(&locker, lock, present.now) {
            return Err(FsError::Pulling);
        }
        let conflict = self.files.get(&lock.fid).and_then(|file| file.conflict(&locker, lock));
        Ok(conflict.map(|conflict| {
            let process = if conflict.holder.client == client { conflict.holder.owner.process } else { 0 };
            LockConflict { range: conflict.range, kind: conflict.kind, process }
        }))
    }

    /// Has other clients asked that may keep a lock which excludes this one. Returns whether one of them has not
    /// answered.
    fn recall(&mut self, locker: &Locker, lock: &Lock, now: Instant) -> bool {
        let Some(file) = self.files.get(&lock.fid) else { return false };
        let mut may_be_kept = false;
        for other in file.keepers_against(locker, lock) {
            let is_known = self.recalls.contains_key(&(lock.fid, other));
            let recall =
                self.recalls.entry((lock.fid, other)).or_insert(Recall { since: now, asked: now, is_held: false });
            if !is_known || (!recall.is_held && now >= recall.asked + RECALL_WAIT) {
                recall.asked = now;
                self.untold.push((other, lock.fid));
            }
            may_be_kept |= !recall.is_held && now < recall.since + RECALL_WAIT;
        }
        may_be_kept
    }

    /// Returns the clients that are to be asked to give up what they keep of a file, since this was called last.
    pub(crate) fn take_recalls(&mut self) -> Vec<(ClientId, Fid)> {
        std::mem::take(&mut self.untold)
    }

    /// Notes that a client has answered that its programs hold locks of these files.
    pub(crate) fn note_held(&mut self, client: ClientId, fids: &[Fid]) {
        for fid in fids {
            if let Some(recall) = self.recalls.get_mut(&(*fid, client)) {
                recall.is_held = true;
            }
        }
    }

    /// Cancels a request that nobody waits for any more: it is not granted from now on.
    pub(crate) fn cancel(&mut self, client: ClientId, number: u64) {
        self.cancelled.insert((client, number));
        if self.cancelled.len() > CANCELLED_MAX {
            self.cancelled.pop_first();
        }
        if let Some(fid) = self.dequeue(client, number) {
            self.drop_if_empty(fid);
        }
    }

    /// Forgets a client whose session has ended.
    pub(crate) fn end(&mut self, client: ClientId) {
        let fids: Vec<Fid> = self.files.iter().filter(|(_, file)| file.knows(client)).map(|(fid, _)| *fid).collect();
        for fid in fids {
            self.lose_where(fid, |writer| writer == client);
            self.change(fid, |file| file.end(client));
            self.drop_if_empty(fid);
        }
        self.waiting.retain(|(waiting, _), _| *waiting != client);
        self.cancelled.retain(|(cancelled, _)| *cancelled != client);
    }

    /// Notes what a client relies on when it attaches: first what its programs hold, then what they have given up and
    /// it has not said yet. Returns which of these do not hold, by their places.
    pub(crate) fn attach(
        &mut self,
        client: ClientId,
        before: Before,
        held: &HeldLocks,
        present: Present<'_>,
    ) -> Vec<u32> {
        if !before.resumed {
            self.end(client);
        }
        // Grants of others up to here decide, not what this client regains.
        let may_hold: Vec<bool> =
            held.locks.iter().map(|lock| self.may_still_hold(client, before, held, lock)).collect();
        let (mut lost, mut kept) = (Vec::new(), Vec::new());
        for (place, (HeldLock { lock, .. }, may_hold)) in (0..).zip(held.locks.iter().zip(may_hold)) {
            self.forget_gone(lock.fid, present);
            let locker = Locker { client, owner: lock.owner };
            if may_hold {
                self.change(lock.fid, |file| file.give_way(&locker, lock, &kept));
            }
            let is_free = self.files.get(&lock.fid).is_none_or(|file| file.conflict(&locker, lock).is_none());
            if !may_hold || !is_free || self.grant(locker, lock).is_err() {
                self.change(lock.fid, |file| file.unlock(&locker, lock.range, &[]));
                if lock.kind == LockKind::Exclusive {
                    // The count is of this life of the server; of the one before it is not known.
                    let grants = if held.epoch == Some(self.epoch) { held.grants } else { 0 };
                    self.lose(lock.fid, client, grants);
                }
                lost.push(place);
            } else {
                kept.push(locker);
            }
            self.drop_if_empty(lock.fid);
        }
        if !held.fenced {
            self.lost.retain(|(_, lost_by), _| *lost_by != client);
        }
        lost
    }

    /// Tells whether nobody else can have been granted what excludes a lock since its client knew last that it holds.
    fn may_still_hold(&self, client: ClientId, before: Before, held: &HeldLocks, lock: &HeldLock) -> bool {
        match held.epoch {
            Some(epoch) if epoch == self.epoch => {
                let Lock { fid, kind, .. } = lock.lock;
                (lock.granted && before.resumed) || !self.was_granted(client, fid, kind, held.grants)
            }
            // Only this is known of the life before: sessions that had not ended have kept others from their locks.
            Some(epoch) if epoch.0 + 1 == self.epoch.0 => lock.granted && before.listed,
            Some(_) | None => false,
        }
    }

    /// Tells whether another client than this has been granted a lock of a file, after so many, that excludes one of
    /// `kind`.
    fn was_granted(&self, client: ClientId, fid: Fid, kind: LockKind, after: u64) -> bool {
        let last = self.last.get(&fid).copied().unwrap_or_default();
        let by_another =
            |grant: Option<(u64, ClientId)>| grant.is_some_and(|(number, granted)| number > after && granted != client);
        let shared = kind == LockKind::Exclusive && by_another(last.shared);
        after < self.forgotten || shared || by_another(last.exclusive)
    }

    fn grant(&mut self, locker: Locker, lock: &Lock) -> Result<(), FsError> {
        let total: usize = self.held.values().sum();
        let own = self.held.get(&locker.client).copied().unwrap_or(0);
        // A lock in the middle of another range makes two more of that.
        if own + 2 > CLIENT_LOCKS_MAX || total + 2 > VOLUME_LOCKS_MAX {
            return Err(FsError::TooManyLocks);
        }
        self.files.entry(lock.fid).or_default();
        self.change(lock.fid, |file| file.lock(locker, lock));
        self.grants += 1;
        if self.last.len() >= FILES_REMEMBERED && !self.last.contains_key(&lock.fid) {
            self.last.clear();
            self.forgotten = self.grants - 1;
        }
        let last = self.last.entry(lock.fid).or_default();
        let grant = Some((self.grants, locker.client));
        match lock.kind {
            LockKind::Shared => last.shared = grant,
            LockKind::Exclusive => {
                last.exclusive = grant;
                self.lost.remove(&(lock.fid, locker.client));
            }
        }
        Ok(())
    }

    /// Puts a request in the queue, or notes that it is asked for again.
    fn enqueue(&mut self, waiter: Waiter) -> Result<(), FsError> {
        let Waiter { locker: Locker { client, .. }, lock: Lock { fid, .. }, number, .. } = waiter;
        let file = self.files.entry(fid).or_default();
        if file.ask_again(&waiter) {
            return Ok(());
        }
        let own = self.waiting.range((client, 0)..=(client, u64::MAX)).count();
        if own >= CLIENT_WAITERS_MAX || self.waiting.len() >= VOLUME_WAITERS_MAX {
            return Err(FsError::TooManyLocks);
        }
        let blockers = file.blockers(&waiter.locker, &waiter.lock, usize::MAX);
        if self.leads_to(&blockers, &waiter.locker) {
            return Err(FsError::Deadlock);
        }
        self.files.entry(fid).or_default().push(waiter);
        self.waiting.insert((client, number), fid);
        Ok(())
    }

    /// Tells whether one of these waits, by way of others or not, for something of `locker`'s.
    fn leads_to(&self, from: &[Locker], locker: &Locker) -> bool {
        let mut waiters: BTreeMap<(ClientId, u64), Vec<(&FileLocks, usize)>> = BTreeMap::new();
        for file in self.files.values() {
            for (place, waiter) in file.waiters().iter().enumerate() {
                waiters.entry(waiter.locker.id()).or_default().push((file, place));
            }
        }
        let mut open: Vec<Locker> = from.to_vec();
        let mut seen = BTreeSet::new();
        while let Some(next) = open.pop() {
            if next.id() == locker.id() {
                return true;
            }
            if !seen.insert(next.id()) {
                continue;
            }
            for (file, place) in waiters.get(&next.id()).into_iter().flatten() {
                let Waiter { locker, lock, .. } = &file.waiters()[*place];
                open.extend(file.blockers(locker, lock, *place));
            }
        }
        false
    }

    fn dequeue(&mut self, client: ClientId, number: u64) -> Option<Fid> {
        let fid = self.waiting.remove(&(client, number))?;
        if let Some(file) = self.files.get_mut(&fid) {
            file.remove(client, number);
        }
        Some(fid)
    }

    /// Tells whether a record stores into a file of which its client has lost an exclusive lock, and another has been
    /// granted one since; and its base does not tell, or what is written relies on that lock still (`lock_lost`).
    pub(crate) fn is_fenced(&self, record: &CmlRecord, lock_lost: bool) -> bool {
        let CmlOp::Store { fid, .. } = record.op else { return false };
        let client = record.id.client;
        let lost = self.lost.get(&(fid, client)).filter(|lost| lock_lost || !lost.is_older);
        lost.is_some_and(|lost| self.was_granted(client, fid, LockKind::Exclusive, lost.grants))
    }

    /// Notes that a client has stored a content.
    pub(crate) fn stored(&mut self, client: ClientId, fid: Fid) {
        let of_file = self.lost.range_mut((fid, ClientId([0; 16]))..=(fid, ClientId([u8::MAX; 16])));
        of_file.filter(|((_, lost_by), _)| *lost_by != client).for_each(|(_, lost)| lost.is_older = true);
    }

    fn lose_where(&mut self, fid: Fid, is_lost_by: impl Fn(ClientId) -> bool) {
        let writers = self.files.get(&fid).map(FileLocks::writers).unwrap_or_default();
        writers.into_iter().filter(|writer| is_lost_by(*writer)).for_each(|writer| self.lose(fid, writer, self.grants));
    }

    fn lose(&mut self, fid: Fid, client: ClientId, grants: u64) {
        self.lost.entry((fid, client)).or_insert(Lost { grants, is_older: false });
        if self.lost.len() > LOST_MAX {
            self.lost.pop_first();
        }
    }

    /// Forgets locks and places of clients that are gone, and the places that were not asked for.
    fn forget_gone(&mut self, fid: Fid, present: Present<'_>) {
        self.lose_where(fid, |writer| !(present.is_live)(writer));
        let gone = self.change(fid, |file| file.forget_gone(present));
        for waiter in gone {
            self.waiting.remove(&(waiter.locker.client, waiter.number));
        }
        self.drop_if_empty(fid);
    }

    /// Changes the locks of a file, and counts what its clients hold.
    fn change<T: Default>(&mut self, fid: Fid, change: impl FnOnce(&mut FileLocks) -> T) -> T {
        let Some(file) = self.files.get_mut(&fid) else { return T::default() };
        for locker in file.lockers() {
            *self.held.entry(locker.client).or_default() -= 1;
        }
        let changed = change(file);
        for locker in file.lockers() {
            *self.held.entry(locker.client).or_default() += 1;
        }
        if !self.recalls.is_empty() {
            let holds = |client| file.lockers().any(|locker| locker.client == client);
            self.recalls.retain(|(of, client), _| *of != fid || holds(*client));
        }
        self.held.retain(|_, count| *count > 0);
        changed
    }

    fn drop_if_empty(&mut self, fid: Fid) {
        if self.files.get(&fid).is_some_and(FileLocks::is_empty) {
            self.files.remove(&fid);
        }
    }
}
