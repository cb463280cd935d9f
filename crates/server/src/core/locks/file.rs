//! The locks of one file, and the requests that wait for some.

use std::collections::BTreeSet;

use mafs_proto::{ClientId, HeldRange, Holder, Instant, Lock, LockKind, LockOwner, LockRange, LockTable};

use super::{PLACE_KEPT, Present};

/// The owner of a lock, or of a request for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Locker {
    pub(super) client: ClientId,
    pub(super) owner: LockOwner,
}

impl Locker {
    /// Returns the id that tells lockers apart.
    pub(super) fn id(&self) -> (ClientId, u64) {
        (self.client, self.owner.id)
    }
}

impl Holder for Locker {
    fn is_same(&self, other: &Self) -> bool {
        self.id() == other.id()
    }

    fn is_kin(&self, other: &Self) -> bool {
        self.client == other.client && self.owner.is_kin(&other.owner)
    }
}

/// A request in the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Waiter {
    pub(super) locker: Locker,
    pub(super) lock: Lock,
    pub(super) number: u64,
    /// Time when it was asked for last.
    pub(super) asked: Instant,
}

#[derive(Default)]
pub(super) struct FileLocks {
    table: LockTable<Locker>,
    /// The requests, in the order in which they came.
    waiters: Vec<Waiter>,
}

impl FileLocks {
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty() && self.waiters.is_empty()
    }

    /// Tells whether a client holds something, or waits.
    pub(super) fn knows(&self, client: ClientId) -> bool {
        self.lockers().any(|locker| locker.client == client)
            || self.waiters.iter().any(|waiter| waiter.locker.client == client)
    }

    /// Returns the holder of each range.
    pub(super) fn lockers(&self) -> impl Iterator<Item = Locker> {
        self.table.iter().map(|held| held.holder)
    }

    /// Returns the clients that hold something exclusively.
    pub(super) fn writers(&self) -> BTreeSet<ClientId> {
        let held = self.table.iter().filter(|held| held.kind == LockKind::Exclusive);
        held.map(|held| held.holder.client).collect()
    }

    pub(super) fn waiters(&self) -> &[Waiter] {
        &self.waiters
    }

    /// Returns the place of a request in the queue; for one that is not there, behind all others.
    pub(super) fn place(&self, client: ClientId, number: u64) -> usize {
        let place = self.waiters.iter().position(|waiter| (waiter.locker.client, waiter.number) == (client, number));
        place.unwrap_or(self.waiters.len())
    }

    pub(super) fn holds(&self, locker: &Locker, lock: &Lock) -> bool {
        self.table.holds(locker, lock.range, lock.kind)
    }

    /// Returns the first lock that keeps somebody from another.
    pub(super) fn conflict(&self, locker: &Locker, lock: &Lock) -> Option<&HeldRange<Locker>> {
        self.table.conflicts(locker, lock.range, lock.kind).next()
    }

    /// Returns the other clients that may keep, as nobody's, a lock that excludes this one.
    pub(super) fn keepers_against(&self, locker: &Locker, lock: &Lock) -> impl Iterator<Item = ClientId> {
        let conflicts = self.table.conflicts(locker, lock.range, lock.kind);
        let keepers = conflicts.filter(|held| held.is_whole()).map(|held| held.holder.client);
        keepers.filter(|keeper| *keeper != locker.client)
    }

    /// Lists the lockers for which a request at a place in the queue waits: the holders of what it excludes, and the
    /// requests before it that do not wait for itself.
    pub(super) fn blockers(&self, locker: &Locker, lock: &Lock, place: usize) -> Vec<Locker> {
        let holders = self.table.conflicts(locker, lock.range, lock.kind).map(|held| held.holder);
        let earlier = self.waiters.iter().take(place).filter(|earlier| {
            let excludes = earlier.lock.kind.excludes(lock.kind) && earlier.lock.range.overlaps(lock.range);
            excludes && !earlier.locker.is_kin(locker) && !self.waits_for(earlier, locker)
        });
        holders.chain(earlier.map(|earlier| earlier.locker)).collect()
    }

    fn waits_for(&self, waiter: &Waiter, locker: &Locker) -> bool {
        let mut conflicts = self.table.conflicts(&waiter.locker, waiter.lock.range, waiter.lock.kind);
        conflicts.any(|held| held.holder.is_same(locker))
    }

    pub(super) fn lock(&mut self, locker: Locker, lock: &Lock) {
        self.table.lock(locker, lock.range, lock.kind);
    }

    /// Takes a range from a locker, but for the ranges that it has locked through some open files.
    pub(super) fn unlock(&mut self, locker: &Locker, range: LockRange, except: &[u64]) -> bool {
        self.table.unlock_where(locker, range, |held| !except.contains(&held.owner.file))
    }

    /// Takes a lock's range from others of its client. A client says itself which of its programs holds what: one has
    /// given up what another has taken since. Lockers that are `kept` have not.
    pub(super) fn give_way(&mut self, locker: &Locker, lock: &Lock, kept: &[Locker]) {
        let own = |held: &&HeldRange<Locker>| {
            held.holder.client == locker.client && !kept.iter().any(|kept| kept.is_same(&held.holder))
        };
        let given_up: Vec<Locker> =
            self.table.conflicts(locker, lock.range, lock.kind).filter(own).map(|held| held.holder).collect();
        given_up.iter().for_each(|holder| _ = self.table.unlock(holder, lock.range));
    }

    pub(super) fn push(&mut self, waiter: Waiter) {
        self.waiters.push(waiter);
    }

    /// Notes that a request in the queue is asked for again. Returns whether it is there.
    pub(super) fn ask_again(&mut self, waiter: &Waiter) -> bool {
        let place = self.place(waiter.locker.client, waiter.number);
        let Some(present) = self.waiters.get_mut(place) else { return false };
        *present = *waiter;
        true
    }

    pub(super) fn remove(&mut self, client: ClientId, number: u64) {
        self.waiters.retain(|waiter| (waiter.locker.client, waiter.number) != (client, number));
    }

    /// Forgets a client whose session has ended.
    pub(super) fn end(&mut self, client: ClientId) {
        self.table.retain(|held| held.holder.client != client);
        self.waiters.retain(|waiter| waiter.locker.client != client);
    }

    /// Forgets locks and requests that do not count any more. Returns the requests.
    pub(super) fn forget_gone(&mut self, present: Present<'_>) -> Vec<Waiter> {
        self.table.retain(|held| (present.is_live)(held.holder.client));
        let counts =
            |waiter: &Waiter| waiter.asked + PLACE_KEPT > present.now && (present.is_live)(waiter.locker.client);
        let (counting, gone) = self.waiters.iter().copied().partition(counts);
        self.waiters = counting;
        gone
    }
}
