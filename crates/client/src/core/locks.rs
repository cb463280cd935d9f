//! Locks: what programs of this machine hold, as far as this client knows, and which of it the server has granted.
//!
//! The server decides while it can be asked. This table is what the client tells it after a break (`HeldLocks`), who
//! decides while it cannot, and which open files have lost a lock that their programs rely on.

use std::collections::{BTreeMap, BTreeSet};

use mafs_proto::call::{AttachReply, HeldLock, HeldLocks, LockConflict};
use mafs_proto::{Fid, HeldRange, Holder, Lock, LockOwner, LockRange, LockTable, ServerEpoch};

/// Who has granted a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Granted {
    /// The server.
    There,
    /// This client.
    Here,
}

/// Who holds a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    owner: LockOwner,
    granted: Granted,
}

impl Holder for Held {
    fn is_same(&self, other: &Self) -> bool {
        self.owner.id == other.owner.id
    }

    fn is_kin(&self, other: &Self) -> bool {
        self.owner.is_kin(&other.owner)
    }
}

/// The locks on one file.
#[derive(Default)]
struct FileLocks {
    table: LockTable<Held>,
    /// How many changes there had been when the first of them was taken.
    since: u64,
}

/// What has been given up here and the server may not know of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Release {
    pub(crate) fid: Fid,
    /// [`LockOwner::id`].
    pub(crate) owner: u64,
    /// How many changes there had been when the first lock of the file was taken.
    pub(crate) since: u64,
}

/// How many locks there are, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LockCounts {
    /// All that programs hold.
    pub(crate) held: u64,
    /// Those that the server does not know of.
    pub(crate) here: u64,
}

/// The locks of a mount.
#[derive(Default)]
pub(crate) struct Locks {
    files: BTreeMap<Fid, FileLocks>,
    /// By number: what is on its way to the server, and the ranges.
    releases: BTreeMap<u64, (Release, Vec<HeldRange<Held>>)>,
    /// Open files of which a lock has been lost.
    lost: BTreeSet<u64>,
    epoch: Option<ServerEpoch>,
    grants: u64,
    /// What the server has been told when the attach under way was asked for.
    told: Vec<HeldLock>,
    next: u64,
}

impl Locks {
    /// A number that no request has had.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A lock is held, in place of what its owner had; there had been so many changes. If it was granted here while the
    /// server does not know yet of what another has given up, what that one has done goes with it.
    pub(crate) fn grant(&mut self, lock: &Lock, granted: Granted, changes: u64) {
        let before = self.releases.values().filter(|(release, _)| release.fid == lock.fid);
        let changes = before.map(|(release, _)| release.since).fold(changes, u64::min);
        let file = self.files.entry(lock.fid).or_default();
        if file.table.is_empty() {
            file.since = changes;
        }
        file.table.lock(Held { owner: lock.owner, granted }, lock.range, lock.kind);
    }

    /// The server has granted so many locks.
    pub(crate) fn note_grants(&mut self, grants: u64) {
        self.grants = self.grants.max(grants);
    }

    /// Whether one more may be held: no more than can be told when the client attaches.
    pub(crate) fn has_room(&self) -> bool {
        self.counts().held + 2 < HeldLocks::LOCKS_MAX as u64
    }

    /// What another program of this machine holds that excludes a lock.
    pub(crate) fn conflict(&self, lock: &Lock) -> Option<LockConflict> {
        let holder = Held { owner: lock.owner, granted: Granted::Here };
        let conflict = self.files.get(&lock.fid)?.table.conflicts(&holder, lock.range, lock.kind).next()?;
        let HeldRange { range, kind, holder } = *conflict;
        Some(LockConflict { range, kind, process: holder.owner.process })
    }

    /// Whether an owner holds anything of a range.
    pub(crate) fn holds_any(&self, fid: Fid, owner: u64, range: LockRange) -> bool {
        self.of(fid, owner).any(|held| held.range.overlaps(range))
    }

    /// Whether a lock lets others into what its owner has had for itself.
    pub(crate) fn weakens(&self, lock: &Lock) -> Option<u64> {
        let mut own = self.of(lock.fid, lock.owner.id);
        let weakens = own.any(|held| held.kind > lock.kind && held.range.overlaps(lock.range));
        weakens.then(|| self.files.get(&lock.fid).map_or(0, |file| file.since))
    }

    /// An owner gives up what it has of a range. Returns the number under which the server is to be told, if it knows
    /// of any.
    pub(crate) fn release(&mut self, fid: Fid, owner: u64, range: LockRange) -> Option<u64> {
        let meant: Vec<_> = self.of(fid, owner).filter(|held| held.range.overlaps(range)).copied().collect();
        let holder = meant.first()?.holder;
        let file = self.files.get_mut(&fid)?;
        file.table.unlock(&holder, range);
        let since = file.since;
        if file.table.is_empty() {
            self.files.remove(&fid);
        }
        let there = meant.into_iter().filter(|held| held.holder.granted == Granted::There);
        let clip = |held: HeldRange<Held>| {
            let (first, last) = (held.range.first().max(range.first()), held.range.last().min(range.last()));
            LockRange::new(first, last).map(|range| HeldRange { range, ..held })
        };
        let there: Vec<_> = there.filter_map(clip).collect();
        if there.is_empty() {
            return None;
        }
        let number = self.next_number();
        self.releases.insert(number, (Release { fid, owner, since }, there));
        Some(number)
    }

    /// What is to be given up under a number.
    pub(crate) fn released(&self, number: u64) -> Option<Release> {
        self.releases.get(&number).map(|(release, _)| *release)
    }

    /// Ranges that are to be given up at the server: those that the owner has not taken again since.
    pub(crate) fn to_unlock(&self, number: u64) -> Vec<LockRange> {
        let Some((Release { fid, owner, .. }, ranges)) = self.releases.get(&number) else { return Vec::new() };
        let mut table = LockTable::default();
        for held in ranges {
            table.lock(held.holder, held.range, held.kind);
        }
        let taken: Vec<_> = self.of(*fid, *owner).copied().collect();
        for held in taken {
            table.unlock(&held.holder, held.range);
        }
        table.iter().map(|held| held.range).collect()
    }

    /// The server knows.
    pub(crate) fn end_release(&mut self, number: u64) {
        self.releases.remove(&number);
    }

    /// Whether the server may not know yet of something that an owner has given up.
    pub(crate) fn is_releasing(&self, fid: Fid, owner: u64) -> bool {
        self.releases.values().any(|(release, _)| (release.fid, release.owner) == (fid, owner))
    }

    /// Who has locked something through an open file that is gone now. What was lost with it is of no interest any
    /// more.
    pub(crate) fn close(&mut self, open_file: u64) -> Vec<(Fid, u64)> {
        self.lost.remove(&open_file);
        let by_it = |held: &&HeldRange<Held>| held.holder.owner.file == open_file;
        let of_file = |(fid, file): (&Fid, &FileLocks)| {
            let owners: BTreeSet<u64> = file.table.iter().filter(by_it).map(|held| held.holder.owner.id).collect();
            owners.into_iter().map(|owner| (*fid, owner)).collect::<Vec<_>>()
        };
        self.files.iter().flat_map(of_file).collect()
    }

    /// Whether a lock that was taken through an open file has been lost.
    pub(crate) fn is_lost(&self, open_file: u64) -> bool {
        self.lost.contains(&open_file)
    }

    /// What the server has granted does not hold any more.
    pub(crate) fn lapse(&mut self) {
        self.lose_where(|_, held| held.holder.granted == Granted::There);
    }

    /// The client is about to attach: what it relies on.
    pub(crate) fn tell(&mut self) -> HeldLocks {
        let as_held = |fid: Fid, held: &HeldRange<Held>| HeldLock {
            lock: Lock { fid, owner: held.holder.owner, range: held.range, kind: held.kind },
            granted: held.holder.granted == Granted::There,
        };
        let released = self.releases.values();
        let released = released.flat_map(|(release, ranges)| ranges.iter().map(|held| as_held(release.fid, held)));
        let held = self.files.iter().flat_map(|(fid, file)| file.table.iter().map(|held| as_held(*fid, held)));
        // Those first that programs hold.
        let locks: Vec<HeldLock> = held.chain(released).take(HeldLocks::LOCKS_MAX).collect();
        self.told.clone_from(&locks);
        HeldLocks { epoch: self.epoch, grants: self.grants, locks }
    }

    /// The client has attached: what it was told of holds, but for what the reply names as lost.
    pub(crate) fn attached(&mut self, reply: &AttachReply) {
        let told = std::mem::take(&mut self.told);
        let lost: BTreeSet<usize> = reply.lost_locks.iter().filter_map(|place| usize::try_from(*place).ok()).collect();
        let (gone, kept): (Vec<_>, Vec<_>) = told.iter().enumerate().partition(|(place, _)| lost.contains(place));
        let covers = |told: &HeldLock, fid: Fid, held: &HeldRange<Held>| {
            (told.lock.fid, told.lock.owner.id) == (fid, held.holder.owner.id) && told.lock.range.overlaps(held.range)
        };
        self.lose_where(|fid, held| {
            let is_gone = gone.iter().any(|(_, told)| covers(told, fid, held));
            let is_kept = kept.iter().any(|(_, told)| covers(told, fid, held));
            // What came after the attach was asked for is known to an earlier session only.
            is_gone || (!reply.resumed && !is_kept)
        });
        for (_, HeldLock { lock, .. }) in kept {
            let Some(file) = self.files.get_mut(&lock.fid) else { continue };
            let holder = Held { owner: lock.owner, granted: Granted::There };
            if file.table.holds(&holder, lock.range, lock.kind) {
                file.table.lock(holder, lock.range, lock.kind);
            }
        }
        // A number of another life of the server says nothing.
        self.grants = reply.lock_grants;
        self.epoch = Some(reply.epoch);
    }

    /// How many there are.
    pub(crate) fn counts(&self) -> LockCounts {
        let all = self.files.values().flat_map(|file| file.table.iter());
        all.fold(LockCounts::default(), |counts, held| LockCounts {
            held: counts.held + 1,
            here: counts.here + u64::from(held.holder.granted == Granted::Here),
        })
    }

    fn of(&self, fid: Fid, owner: u64) -> impl Iterator<Item = &HeldRange<Held>> {
        let table = self.files.get(&fid).map(|file| file.table.iter());
        table.into_iter().flatten().filter(move |held| held.holder.owner.id == owner)
    }

    fn lose_where(&mut self, is_lost: impl Fn(Fid, &HeldRange<Held>) -> bool) {
        let lost = &mut self.lost;
        for (fid, file) in &mut self.files {
            file.table.retain(|held| {
                let is_lost = is_lost(*fid, held);
                if is_lost {
                    lost.insert(held.holder.owner.file);
                }
                !is_lost
            });
        }
        self.files.retain(|_, file| !file.table.is_empty());
    }
}

#[cfg(test)]
mod tests;
