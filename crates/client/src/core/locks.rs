//! Locks: what programs of this machine hold, as far as this client knows, and which of it the server has granted.
//!
//! The server decides while it can be asked. This table is what the client tells it after a break (`HeldLocks`), who
//! decides while it cannot, and which open files have lost a lock that their programs rely on.

use std::collections::{BTreeMap, BTreeSet};

use mafs_proto::call::{AttachReply, HeldLock, HeldLocks, LockConflict};
use mafs_proto::{Fid, HeldRange, Holder, Lock, LockKind, LockOwner, LockRange, LockTable, ServerEpoch};

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

/// What an owner has given up here, of which the server does not know yet. Until it is told, another program of this
/// machine can have it in turn, without the server.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Releasing {
    release: Release,
    ranges: Vec<HeldRange<Held>>,
    /// The server is being told.
    is_sent: bool,
    /// The owner waits for the end of it.
    is_awaited: bool,
    /// How often others had it since.
    turn: u64,
}

impl Releasing {
    /// Whether the server keeps other clients from all that a lock may become while this is not sent.
    fn covers(&self, lock: &Lock) -> bool {
        let is_whole = |held: &HeldRange<Held>| held.range == LockRange::ALL && held.kind == LockKind::Exclusive;
        let is_of_another = (self.release.fid, false) == (lock.fid, self.release.owner == lock.owner.id);
        is_of_another && !self.is_sent && self.ranges.iter().any(is_whole)
    }
}

/// What is to be done after something was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Released {
    /// The server is to be told, under this number.
    There(u64),
    /// It was another program's before, of which the server is to be told: what was written since there had been so
    /// many changes is to be sent.
    InTurn(u64),
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
    /// By number.
    releases: BTreeMap<u64, Releasing>,
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
        let before = self.releases.values_mut().filter(|releasing| releasing.release.fid == lock.fid);
        let changes = before.fold(changes, |changes, releasing| {
            releasing.turn += 1;
            changes.min(releasing.release.since)
        });
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

    /// Whether a lock can be had in turn, without the server, if that says that no other client waits: another program
    /// of this machine has given up what covers it, and does not wait until the server knows. Only for itself: others
    /// could share it with programs that have it from the server.
    pub(crate) fn may_take_over(&self, lock: &Lock) -> bool {
        let covers = |releasing: &Releasing| releasing.covers(lock) && !releasing.is_awaited;
        lock.kind == LockKind::Exclusive && self.releases.values().any(covers)
    }

    /// Whether an owner has some lock of a file in turn: then what it asks for next is not the server's to grant, which
    /// would wait for what that owner holds up.
    pub(crate) fn has_taken_over(&self, lock: &Lock) -> bool {
        let is_here = |held: &HeldRange<Held>| held.holder.granted == Granted::Here;
        self.of(lock.fid, lock.owner.id).any(is_here) && self.releases.values().any(|releasing| releasing.covers(lock))
    }

    /// Whether another program of this machine has in turn what was given up under a number.
    pub(crate) fn is_taken_over(&self, number: u64) -> bool {
        let Some(Releasing { release, ranges, .. }) = self.releases.get(&number) else { return false };
        let is_of = |held: &HeldRange<Held>| {
            let is_others = held.holder.granted == Granted::Here && held.holder.owner.id != release.owner;
            is_others && ranges.iter().any(|range| range.range.overlaps(held.range))
        };
        self.files.get(&release.fid).is_some_and(|file| file.table.iter().any(is_of))
    }

    /// An owner gives up what it has of a range. `None`: there is nothing to be done.
    pub(crate) fn release(&mut self, fid: Fid, owner: u64, range: LockRange) -> Option<Released> {
        let meant: Vec<_> = self.of(fid, owner).filter(|held| held.range.overlaps(range)).copied().collect();
        let holder = meant.first()?.holder;
        let file = self.files.get_mut(&fid)?;
        file.table.unlock(&holder, range);
        let since = file.since;
        if file.table.is_empty() {
            self.files.remove(&fid);
        }
        let is_told = |held: &HeldRange<Held>| self.told.iter().any(|told| is_about(told, fid, held));
        let there = meant.into_iter().filter(|held| held.holder.granted == Granted::There || is_told(held));
        let clip = |held: HeldRange<Held>| {
            let (first, last) = (held.range.first().max(range.first()), held.range.last().min(range.last()));
            LockRange::new(first, last).map(|range| HeldRange { range, ..held })
        };
        let there: Vec<_> = there.filter_map(clip).collect();
        if there.is_empty() {
            let is_before = |releasing: &Releasing| releasing.release.fid == fid && !releasing.is_sent;
            return self.releases.values().any(is_before).then_some(Released::InTurn(since));
        }
        let number = self.next_number();
        let release = Release { fid, owner, since };
        let releasing = Releasing { release, ranges: there, is_sent: false, is_awaited: false, turn: 0 };
        self.releases.insert(number, releasing);
        Some(Released::There(number))
    }

    /// What is to be given up under a number, and how often others had it since.
    pub(crate) fn released(&self, number: u64) -> Option<(Release, u64)> {
        self.releases.get(&number).map(|releasing| (releasing.release, releasing.turn))
    }

    /// The server is about to be told, all that was written being there: from now on no program of this machine gets it
    /// in turn. Returns whether that may be: not if another program has had it in turn since `turn`, or has it now.
    pub(crate) fn begin_unlock(&mut self, number: u64, turn: u64) -> bool {
        let is_taken_over = self.is_taken_over(number);
        let Some(releasing) = self.releases.get_mut(&number) else { return true };
        releasing.is_sent = !is_taken_over && releasing.turn == turn;
        releasing.is_sent
    }

    /// Ranges that are to be given up at the server now: those that the owner has not taken again since.
    pub(crate) fn to_unlock(&self, number: u64) -> Vec<LockRange> {
        let Some(Releasing { release, ranges, .. }) = self.releases.get(&number) else { return Vec::new() };
        let mut table = LockTable::default();
        for held in ranges {
            table.lock(held.holder, held.range, held.kind);
        }
        for taken in self.of(release.fid, release.owner) {
            table.unlock(&taken.holder, taken.range);
        }
        table.iter().map(|held| held.range).collect()
    }

    /// The server knows.
    pub(crate) fn end_release(&mut self, number: u64) {
        self.releases.remove(&number);
    }

    /// Whether the server may not know yet of something that an owner has given up. Then it waits for that, and nobody
    /// else gets it before.
    pub(crate) fn await_release(&mut self, fid: Fid, owner: u64) -> bool {
        let own = self.releases.values_mut().filter(|of| (of.release.fid, of.release.owner) == (fid, owner));
        own.map(|releasing| releasing.is_awaited = true).count() > 0
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

    /// What the server has granted does not hold any more, nor what programs of this machine had of it in turn.
    pub(crate) fn lapse(&mut self) {
        let in_turn: BTreeSet<Fid> = self.releases.values().map(|releasing| releasing.release.fid).collect();
        self.lose_where(|fid, held| held.holder.granted == Granted::There || in_turn.contains(&fid));
    }

    /// The client is about to attach: what it relies on.
    pub(crate) fn tell(&mut self) -> HeldLocks {
        let as_held = |fid: Fid, held: &HeldRange<Held>| HeldLock {
            lock: Lock { fid, owner: held.holder.owner, range: held.range, kind: held.kind },
            granted: held.holder.granted == Granted::There,
        };
        let released = self.releases.values();
        let released = released.flat_map(|of| of.ranges.iter().map(|held| as_held(of.release.fid, held)));
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
        self.lose_where(|fid, held| {
            let is_gone = gone.iter().any(|(_, told)| is_about(told, fid, held));
            let is_kept = kept.iter().any(|(_, told)| is_about(told, fid, held));
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

/// Whether what the server was told says something of a range that is held.
fn is_about(told: &HeldLock, fid: Fid, held: &HeldRange<Held>) -> bool {
    (told.lock.fid, told.lock.owner.id) == (fid, held.holder.owner.id) && told.lock.range.overlaps(held.range)
}

#[cfg(test)]
mod tests;
