//! Locks: those that programs of this machine hold, as far as is known here, and which of them the server has granted.
//!
//! The server decides while it can be asked. This table says what the client tells it after a break (`HeldLocks`),
//! decides while it cannot be asked, and says which open files have lost a lock that their programs rely on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mafs_proto::call::{AttachReply, HeldLock, HeldLocks, LockConflict};
use mafs_proto::{Fid, HeldRange, Holder, Instant, Lock, LockKind, LockOwner, LockRange, LockTable, ServerEpoch};

/// Most locks that are kept though no program holds them: each has to be told at every attach.
const KEPT_MAX: usize = 64;

/// Most files of which it is known that programs lock them; some 1 MB.
const ASKED_FOR_MAX: usize = 1 << 15;

/// Time for which no lock of a file is kept that others wanted: clients that take turns would be asked each time.
const SHARED_FOR: Duration = Duration::from_secs(60);

/// Grantor of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Granted {
    /// The server.
    There,
    /// This client.
    Here,
}

/// Holder of a lock.
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
    /// Whether other clients have wanted some since then.
    is_wanted: bool,
}

/// Locks that an owner has given up here, of which the server does not know yet. Until it is told, another program of
/// this machine can have them in turn, without the server.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Releasing {
    release: Release,
    ranges: Vec<HeldRange<Held>>,
    /// Whether nobody gets them in turn any more: the server is being told, or may have given them to others.
    is_closed: bool,
    /// Whether a program waits for the end of the release.
    is_awaited: bool,
    /// How often others have taken them since, or given them up.
    turn: u64,
    /// Turn in which the server had all that was written until then.
    settled: Option<u64>,
    /// Whether other clients want them.
    is_wanted: bool,
}

impl Releasing {
    /// Whether the server keeps other clients from the file until it is told.
    fn is_whole(&self) -> bool {
        !self.is_closed && self.ranges.iter().any(HeldRange::is_whole)
    }

    /// Whether the server keeps other clients from all that a lock may become until it is told.
    fn covers(&self, lock: &Lock) -> bool {
        self.release.fid == lock.fid && self.release.owner != lock.owner.id && self.is_whole()
    }

    /// Whether nobody decides about it but this client.
    fn is_this_clients(&self) -> bool {
        self.is_whole() && !self.is_wanted
    }

    /// Whether the server has all that was written under it.
    fn is_settled(&self) -> bool {
        self.settled == Some(self.turn)
    }

    /// Whether it is kept until another client wants it.
    fn is_kept(&self) -> bool {
        self.is_this_clients() && self.is_settled() && !self.is_awaited
    }
}

/// Next step after something was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Released {
    /// The server is to be told, under this number.
    There(u64),
    /// Another program had it before, of which the server is to be told: contents written since there had been so many
    /// changes are to be sent.
    InTurn(u64),
}

/// Locks that have been given up here and that the server may not know of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Release {
    pub(crate) fid: Fid,
    /// [`LockOwner::id`].
    pub(crate) owner: u64,
    /// How many changes there had been when the first lock of the file was taken.
    pub(crate) since: u64,
}

/// Numbers of locks, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LockCounts {
    /// All that programs hold.
    pub(crate) held: u64,
    /// Locks that the server does not know of.
    pub(crate) here: u64,
}

/// The locks of a mount.
#[derive(Default)]
pub(crate) struct Locks {
    files: BTreeMap<Fid, FileLocks>,
    /// Releases by number.
    releases: BTreeMap<u64, Releasing>,
    /// Files that other clients wanted to lock, and when they did last.
    shared: BTreeMap<Fid, Instant>,
    /// Open files of which a lock has been lost.
    lost: BTreeSet<u64>,
    /// Files of which programs have asked for locks. When there are as many as there may be, it may be any.
    asked_for: BTreeSet<Fid>,
    /// Open files with locks of which a descriptor has been closed since they were used for a lock last.
    closing: BTreeSet<u64>,
    /// Files to which programs may write that rely on a lock that they have lost.
    doubtful: BTreeSet<Fid>,
    epoch: Option<ServerEpoch>,
    grants: u64,
    /// Locks that the server was told of when the attach under way was asked for.
    told: Vec<HeldLock>,
    next: u64,
}

impl Locks {
    /// Returns a number that no request has had.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Notes that a lock is held, in place of what its owner had; there had been so many changes. If it was granted
    /// here while the server does not know yet of what another owner has given up, that owner's changes go with it.
    pub(crate) fn grant(&mut self, lock: &Lock, granted: Granted, changes: u64) {
        let before = self.releases.values_mut().filter(|releasing| releasing.release.fid == lock.fid);
        let changes = before.fold(changes, |changes, releasing| {
            releasing.turn += 1;
            changes.min(releasing.release.since)
        });
        let file = self.files.entry(lock.fid).or_default();
        if file.table.is_empty() {
            (file.since, file.is_wanted) = (changes, false);
        }
        file.table.lock(Held { owner: lock.owner, granted }, lock.range, lock.kind);
        self.closing.remove(&lock.owner.file);
        if (granted, lock.kind) == (Granted::There, LockKind::Exclusive) {
            self.doubtful.remove(&lock.fid);
        }
    }

    /// Notes that the server has granted so many locks.
    pub(crate) fn note_grants(&mut self, grants: u64) {
        self.grants = self.grants.max(grants);
    }

    /// Whether one more may be held: no more than can be told when the client attaches.
    pub(crate) fn has_room(&self) -> bool {
        self.counts().held + 2 < HeldLocks::LOCKS_MAX as u64
    }

    /// Returns what another program of this machine holds that excludes a lock.
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

    /// Whether a lock can be had in turn, without the server, if the server says that no other client waits: another
    /// program of this machine has given up what covers it, and does not wait until the server knows. Only an exclusive
    /// one can: others could share a shared one with programs that have it from the server.
    pub(crate) fn may_take_over(&self, lock: &Lock) -> bool {
        let covers = |releasing: &Releasing| releasing.covers(lock) && !releasing.is_awaited;
        lock.kind == LockKind::Exclusive && self.releases.values().any(covers)
    }

    /// Whether an owner has some lock of a file in turn: then what it asks for next is not the server's to grant, which
    /// would wait for what that owner holds up.
    pub(crate) fn has_taken_over(&self, lock: &Lock) -> bool {
        let table = self.files.get(&lock.fid).map(|file| file.table.iter());
        let is_its =
            |held: &HeldRange<Held>| held.holder.granted == Granted::Here && held.holder.owner.is_kin(&lock.owner);
        table.into_iter().flatten().any(is_its) && self.releases.values().any(|releasing| releasing.covers(lock))
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

    /// Gives up what an owner has of a range. `None`: there is nothing to be done.
    pub(crate) fn release(&mut self, fid: Fid, owner: u64, range: LockRange) -> Option<Released> {
        let meant: Vec<_> = self.of(fid, owner).filter(|held| held.range.overlaps(range)).copied().collect();
        let holder = meant.first()?.holder;
        let file = self.files.get_mut(&fid)?;
        file.table.unlock(&holder, range);
        let FileLocks { since, is_wanted, .. } = *file;
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
            let before = self.releases.values_mut().filter(|of| of.release.fid == fid && !of.is_closed);
            let in_turn = before.map(|releasing| releasing.turn += 1).count() > 0;
            return in_turn.then_some(Released::InTurn(since));
        }
        let number = self.next_number();
        let release = Release { fid, owner, since };
        let releasing = Releasing {
            release,
            ranges: there,
            is_closed: false,
            is_awaited: false,
            turn: 0,
            settled: None,
            is_wanted,
        };
        self.releases.insert(number, releasing);
        Some(Released::There(number))
    }

    /// Returns what is to be given up under a number, and in which turn.
    pub(crate) fn released(&self, number: u64) -> Option<(Release, u64)> {
        self.releases.get(&number).map(|releasing| (releasing.release, releasing.turn))
    }

    /// Notes that the server has all that was written by `turn`, when there had been so many changes.
    pub(crate) fn settle(&mut self, number: u64, turn: u64, changes: u64) {
        if let Some(releasing) = self.releases.get_mut(&number).filter(|releasing| releasing.turn == turn) {
            releasing.settled = Some(turn);
            releasing.release.since = changes;
        }
    }

    /// Whether the server has all that was written under what was given up of a file, is being told, or need not be.
    pub(crate) fn is_settled(&self, fid: Fid) -> bool {
        let mut of_file = self.releases.iter().filter(|(_, releasing)| releasing.release.fid == fid);
        of_file.all(|(number, of)| of.is_settled() || of.is_closed || self.is_taken_over(*number))
    }

    /// Whether the lock stays with this client, for the next program that asks, as long as no other client wants it and
    /// there are not too many.
    pub(crate) fn is_kept(&self, number: u64, now: Instant) -> bool {
        let kept = self.releases.iter().rev().filter(|(_, releasing)| releasing.is_kept()).take(KEPT_MAX);
        let mut kept = kept.filter(|(_, releasing)| !self.is_shared(releasing.release.fid, now));
        kept.any(|(kept, _)| *kept == number)
    }

    /// Closes a release, as the server has all that was written and is about to be told: from now on no program of this
    /// machine gets it in turn. Returns whether that may be: not if another program has had it in turn since `turn`, or
    /// has it now.
    pub(crate) fn begin_unlock(&mut self, number: u64, turn: u64) -> bool {
        let is_taken_over = self.is_taken_over(number);
        let Some(releasing) = self.releases.get_mut(&number) else { return true };
        if is_taken_over || releasing.turn != turn {
            return false;
        }
        releasing.is_closed = true;
        true
    }

    /// Returns the ranges that are to be given up at the server now: those that the owner has not taken again since,
    /// nor taken and given up again.
    pub(crate) fn to_unlock(&self, number: u64) -> Vec<LockRange> {
        let Some(Releasing { release, ranges, .. }) = self.releases.get(&number) else { return Vec::new() };
        let mut table = LockTable::default();
        for held in ranges {
            table.lock(held.holder, held.range, held.kind);
        }
        let is_same = |later: &&Releasing| (later.release.fid, later.release.owner) == (release.fid, release.owner);
        let later = self.releases.range(number + 1..).map(|(_, later)| later).filter(is_same);
        for taken in self.of(release.fid, release.owner).chain(later.flat_map(|later| &later.ranges)) {
            table.unlock(&taken.holder, taken.range);
        }
        table.iter().map(|held| held.range).collect()
    }

    /// Lists the open files through which was locked what is to be given up under a number.
    pub(crate) fn released_through(&self, number: u64) -> Vec<u64> {
        let ranges = self.releases.get(&number).map(|releasing| releasing.ranges.iter());
        ranges.into_iter().flatten().map(|held| held.holder.owner.file).collect()
    }

    /// Ends a release that the server knows of.
    pub(crate) fn end_release(&mut self, number: u64) {
        self.releases.remove(&number);
    }

    /// Notes that other clients want to lock these files: what programs have given up of them is kept no more.
    pub(crate) fn want(&mut self, fids: &[Fid], now: Instant) {
        self.shared.retain(|_, wanted| now < *wanted + SHARED_FOR);
        for fid in fids {
            self.shared.insert(*fid, now);
            self.want_here(*fid);
        }
    }

    /// Whether programs hold locks of a file.
    pub(crate) fn is_held(&self, fid: Fid) -> bool {
        self.files.contains_key(&fid)
    }

    /// Notes that a program of this machine waits at the server for a lock of a file: what is locked of it is not kept.
    pub(crate) fn want_here(&mut self, fid: Fid) {
        self.releases.values_mut().filter(|of| of.release.fid == fid).for_each(|of| of.is_wanted = true);
        self.files.get_mut(&fid).into_iter().for_each(|file| file.is_wanted = true);
    }

    /// Whether other clients have wanted to lock a file a while ago.
    fn is_shared(&self, fid: Fid, now: Instant) -> bool {
        self.shared.get(&fid).is_some_and(|wanted| now < *wanted + SHARED_FOR)
    }

    /// Whether this client decides about a lock, as far as it knows: the server keeps others from the file, none of
    /// which wants it.
    pub(crate) fn decides(&self, lock: &Lock, now: Instant) -> bool {
        let mut of_file = self.releases.values().filter(|releasing| releasing.release.fid == lock.fid);
        !self.is_shared(lock.fid, now) && of_file.any(Releasing::is_this_clients)
    }

    /// Gives an owner back all of a file that it has given up, if the server was not told and nobody wants it. Returns
    /// whether it has it.
    pub(crate) fn take_back(&mut self, lock: &Lock, changes: u64, now: Instant) -> bool {
        let is_it = |releasing: &Releasing| {
            let is_own = (releasing.release.fid, releasing.release.owner) == (lock.fid, lock.owner.id);
            is_own && releasing.is_this_clients() && !releasing.is_awaited
        };
        let own = self.releases.iter().find(|(_, releasing)| is_it(releasing)).map(|(number, _)| *number);
        let is_all = (lock.range, lock.kind) == (LockRange::ALL, LockKind::Exclusive);
        let may = is_all && !self.is_shared(lock.fid, now) && self.conflict(lock).is_none();
        let Some(number) = own.filter(|_| may) else { return false };
        self.grant(lock, Granted::There, changes);
        self.releases.remove(&number);
        true
    }

    /// Whether the server may not know yet of something that has to be given up before a lock can be asked for: what
    /// its owner has given up, what is kept that it cannot have in turn, and, for a caller that does not `wait`, all
    /// that it cannot have in turn. Then the lock waits for that, and nobody else gets it before. Also returns whether
    /// the side that gives it up has not heard of that yet.
    pub(crate) fn await_release(&mut self, lock: &Lock, wait: bool) -> (bool, bool) {
        let is_shared = lock.kind == LockKind::Shared;
        let must_be_told = !wait && !self.may_take_over(lock) && !self.has_taken_over(lock);
        let excludes = |held: &HeldRange<Held>| held.kind.excludes(lock.kind) && held.range.overlaps(lock.range);
        let own = self.releases.values_mut().filter(|releasing| {
            let is_own = releasing.release.owner == lock.owner.id;
            let is_in_the_way = must_be_told && releasing.ranges.iter().any(excludes);
            releasing.release.fid == lock.fid && (is_own || is_in_the_way || is_shared && releasing.is_settled())
        });
        own.fold((false, false), |(_, is_news), releasing| {
            (true, is_news | !std::mem::replace(&mut releasing.is_awaited, true))
        })
    }

    /// Notes that a program has asked for a lock of a file.
    pub(crate) fn note_asked(&mut self, fid: Fid) {
        if self.asked_for.len() < ASKED_FOR_MAX {
            self.asked_for.insert(fid);
        }
    }

    /// Whether programs lock a file, as far as is known: a close of one of its descriptors has to be noticed.
    pub(crate) fn may_be_locked(&self, fid: Fid) -> bool {
        self.asked_for.contains(&fid) || self.asked_for.len() == ASKED_FOR_MAX
    }

    /// Notes that a descriptor of an open file is closed, perhaps the last. Returns whether there is anything that it
    /// may end or have to tell of: a lock that is held, or one that is lost.
    pub(crate) fn begin_close(&mut self, open_file: u64) -> bool {
        let has_locks = !self.files.is_empty();
        if has_locks
            && self.files.values().any(|file| file.table.iter().any(|held| held.holder.owner.file == open_file))
        {
            self.closing.insert(open_file);
        }
        has_locks || !self.lost.is_empty()
    }

    /// Whether all that excludes a lock may be gone in a moment: it was taken through open files of which a descriptor
    /// has been closed since, and the last close of one is told a while after it has returned.
    pub(crate) fn may_be_closed(&self, lock: &Lock) -> bool {
        self.files_against(lock).iter().all(|open_file| self.closing.contains(open_file))
    }

    /// Whether all locks of a file may be gone in a moment, as in [`Self::may_be_closed`].
    pub(crate) fn is_closing(&self, fid: Fid) -> bool {
        let is_closing = |held: &HeldRange<Held>| self.closing.contains(&held.holder.owner.file);
        self.files.get(&fid).is_some_and(|file| file.table.iter().all(is_closing))
    }

    /// Notes that other descriptors are left of the open files that locked a file: they have not gone in that moment.
    pub(crate) fn stay_open(&mut self, fid: Fid) {
        for held in self.files.get(&fid).into_iter().flat_map(|file| file.table.iter()) {
            self.closing.remove(&held.holder.owner.file);
        }
    }

    /// Gives up all that was locked through an open file that is gone, in one step with finding it. The kernel names
    /// the owner of an flock by the place of the open file in its memory, which the next one may have at once. Locks
    /// that were lost with it are of no interest any more.
    pub(crate) fn close(&mut self, open_file: u64) -> Vec<(Fid, Released)> {
        self.lost.remove(&open_file);
        self.closing.remove(&open_file);
        let by_it = |held: &&HeldRange<Held>| held.holder.owner.file == open_file;
        let of_file = |(fid, file): (&Fid, &FileLocks)| {
            let owners: BTreeSet<u64> = file.table.iter().filter(by_it).map(|held| held.holder.owner.id).collect();
            owners.into_iter().map(|owner| (*fid, owner)).collect::<Vec<_>>()
        };
        let held: Vec<(Fid, u64)> = self.files.iter().flat_map(of_file).collect();
        let released = held.into_iter().map(|(fid, owner)| Some((fid, self.release(fid, owner, LockRange::ALL)?)));
        released.flatten().collect()
    }

    /// Whether a lock that was taken through an open file has been lost.
    pub(crate) fn is_lost(&self, open_file: u64) -> bool {
        self.lost.contains(&open_file)
    }

    /// Whether what a file holds may have been written by a program that relies on a lock that was lost.
    pub(crate) fn is_doubtful(&self, fid: Fid) -> bool {
        self.doubtful.contains(&fid)
    }

    /// Ends the doubt about a file that nobody has open any more and that the server has all of.
    pub(crate) fn end_doubt(&mut self, fid: Fid) {
        self.doubtful.remove(&fid);
    }

    /// Ends what the server has granted, and what programs of this machine had of it in turn.
    pub(crate) fn lapse(&mut self) {
        let in_turn: BTreeSet<Fid> = self.releases.values().map(|releasing| releasing.release.fid).collect();
        self.releases.values_mut().for_each(|releasing| releasing.is_closed = true);
        self.lose_where(|fid, held| held.holder.granted == Granted::There || in_turn.contains(&fid));
    }

    /// Returns what the client relies on, as it is about to attach.
    pub(crate) fn tell(&mut self) -> HeldLocks {
        let covered = self.covered();
        // The server also keeps others from a lock that is had in turn of what it has granted.
        let as_held = |fid: Fid, held: &HeldRange<Held>| HeldLock {
            lock: Lock { fid, owner: held.holder.owner, range: held.range, kind: held.kind },
            granted: held.holder.granted == Granted::There || covered.contains(&fid),
        };
        let released = self.releases.values();
        let released = released.flat_map(|of| of.ranges.iter().map(|held| as_held(of.release.fid, held)));
        let held = self.files.iter().flat_map(|(fid, file)| file.table.iter().map(|held| as_held(*fid, held)));
        // Locks that programs hold come first.
        let locks: Vec<HeldLock> = held.chain(released).take(HeldLocks::LOCKS_MAX).collect();
        self.told.clone_from(&locks);
        HeldLocks { epoch: self.epoch, grants: self.grants, locks, fenced: false }
    }

    /// Takes in the reply to an attach: what the server was told of holds, but for what the reply names as lost.
    /// Returns how many of those that programs hold do not.
    pub(crate) fn attached(&mut self, reply: &AttachReply) -> usize {
        let told = std::mem::take(&mut self.told);
        let lost: BTreeSet<usize> = reply.lost_locks.iter().filter_map(|place| usize::try_from(*place).ok()).collect();
        let (gone, kept): (Vec<_>, Vec<_>) = told.iter().enumerate().partition(|(place, _)| lost.contains(place));
        for releasing in self.releases.values_mut() {
            let fid = releasing.release.fid;
            let is_about = |told: &HeldLock| releasing.ranges.iter().any(|held| is_about(told, fid, held));
            let is_kept = kept.iter().any(|(_, told)| is_about(told));
            releasing.is_closed |= gone.iter().any(|(_, told)| is_about(told)) || (!reply.resumed && !is_kept);
        }
        let covered = self.covered();
        let count = self.lose_where(|fid, held| {
            let is_gone = gone.iter().any(|(_, told)| is_about(told, fid, held));
            let is_kept = kept.iter().any(|(_, told)| is_about(told, fid, held));
            let is_in_turn = held.holder.granted == Granted::Here && covered.contains(&fid);
            // A lock that came after the attach was asked for is known to an earlier session only.
            is_gone || (!reply.resumed && !is_kept && !is_in_turn)
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
        count
    }

    /// Returns the files from which the server keeps other clients for what has been given up here.
    fn covered(&self) -> BTreeSet<Fid> {
        let whole = self.releases.values().filter(|releasing| releasing.is_whole());
        whole.map(|releasing| releasing.release.fid).collect()
    }

    /// Returns the owners whose locks exclude one.
    pub(crate) fn holders_against(&self, lock: &Lock) -> Vec<u64> {
        self.owners_against(lock).into_iter().map(|owner| owner.id).collect()
    }

    /// Returns the open files through which these were taken.
    fn files_against(&self, lock: &Lock) -> Vec<u64> {
        self.owners_against(lock).into_iter().map(|owner| owner.file).collect()
    }

    fn owners_against(&self, lock: &Lock) -> Vec<LockOwner> {
        let holder = Held { owner: lock.owner, granted: Granted::Here };
        let table = self.files.get(&lock.fid).map(|file| &file.table);
        let conflicts = table.into_iter().flat_map(|table| table.conflicts(&holder, lock.range, lock.kind));
        conflicts.map(|held| held.holder.owner).collect()
    }

    /// Counts the locks that programs hold.
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

    /// Drops the lost locks. Returns how many there are.
    fn lose_where(&mut self, is_lost: impl Fn(Fid, &HeldRange<Held>) -> bool) -> usize {
        let (lost, doubtful, mut count) = (&mut self.lost, &mut self.doubtful, 0);
        for (fid, file) in &mut self.files {
            file.table.retain(|held| {
                let is_lost = is_lost(*fid, held);
                if is_lost {
                    lost.insert(held.holder.owner.file);
                    doubtful.insert(*fid);
                    count += 1;
                }
                !is_lost
            });
        }
        self.files.retain(|_, file| !file.table.is_empty());
        count
    }
}

/// Whether what the server was told says something of a range that is held.
fn is_about(told: &HeldLock, fid: Fid, held: &HeldRange<Held>) -> bool {
    (told.lock.fid, told.lock.owner.id) == (fid, held.holder.owner.id) && told.lock.range.overlaps(held.range)
}

#[cfg(test)]
mod tests;
