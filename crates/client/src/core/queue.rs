//! The queue: records of the modify log that the server does not have yet, and which of them is sent next.
//!
//! Serial replay from the head, as in the paper, costs a round trip for each record. So records are sent while those
//! they depend on are under way: the server applies them in order. Only what it could not hold back waits here: a
//! record behind one that it has refused before, or behind more than a record can name.

mod announce;
mod catching_up;
mod list;
mod pause;
mod removals;
mod under_way;
mod up_to;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mafs_proto::{CmlOp, CmlRecord, Kind, StoreId};

pub(crate) use self::announce::{Announcement, Heard, Policy};
use self::announce::{Announcing, Telling};
pub(crate) use self::list::{Listed, Totals};
use self::removals::Removing;
use self::under_way::UnderWay;
pub(crate) use self::up_to::HeldUp;
use super::touched::discards;

/// Bytes of stores under way where waiting records are announced: at least, at most, and where nothing is known of the
/// link. No more is begun than the link holds twice: a store that has been sent in part cannot make way for what
/// somebody asks for.
const FOLLOWING_BYTES: [u64; 3] = [64 << 10, 8 << 20, 256 << 10];

/// Returns how many bytes of stores may be under way over a link of this rate, in bytes per second, and this round
/// trip.
pub(crate) fn store_bytes_for(link: Option<(u64, Duration)>) -> u64 {
    let [min, max, unknown] = FOLLOWING_BYTES;
    let holds = |(rate, rtt): (u64, Duration)| u128::from(rate) * rtt.as_micros() / 1_000_000;
    let twice = |bytes: u128| u64::try_from(2 * bytes).unwrap_or(max).clamp(min, max);
    link.map(holds).map_or(unknown, twice)
}

/// A record in the queue, with the kinds that the names it gives have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Queued {
    /// The record.
    pub(crate) record: CmlRecord,
    /// Kind of the object that it is about.
    pub(crate) kind: Kind,
    /// Kind of what a rename meets at its target.
    pub(crate) replaced: Option<Kind>,
}

/// Place of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Waiting,
    /// Sent, and not answered yet.
    UnderWay,
}

struct Entry {
    queued: Queued,
    place: Place,
    /// Whether it has been sent, so that the server may have it: then it is never changed again.
    frozen: bool,
    /// Whether the server has refused it before, so that what depends on it waits until it is answered.
    alone: bool,
    /// Whether the server has refused it since it was changed last.
    refused: bool,
    /// Whether the refusal was for want of room.
    no_room: bool,
    /// Whether the server was busy when it was sent before.
    busy: bool,
    /// Whether somebody waits for it.
    raised: bool,
    /// Whether somebody has asked for it to go before others, be the queue paused.
    asked: bool,
    /// Whether it is held back until somebody needs it, because it may change for a long time yet.
    held_back: bool,
    /// Whether it is in conflict with what others have done, and is sent with its origin.
    kept: bool,
    /// Whether its object goes by a later record of this client's, which the server may do first.
    moot: bool,
    /// State of its announcement.
    telling: Telling,
    /// Records that it depends on besides those it names.
    unlisted: Vec<StoreId>,
    /// How many of those it depends on keep it from being sent.
    blocked_by: usize,
    /// Records that depend on it, and whether they name it.
    dependents: Vec<(StoreId, bool)>,
    /// How many changes of the queue there had been with its own last one.
    changed: u64,
}

impl Entry {
    /// Whether it keeps a dependent from being sent.
    fn blocks(&self, is_named: bool) -> bool {
        !(self.place == Place::UnderWay && is_named && !self.alone)
    }

    /// Lists the records that it depends on, be they answered or not.
    fn before(&self) -> impl Iterator<Item = StoreId> {
        self.queued.record.depends_on.iter().chain(&self.unlisted).copied()
    }

    /// Whether it waits because the server has refused it, which may be for long.
    fn waits_refused(&self) -> bool {
        self.alone && self.place == Place::Waiting
    }

    fn store_bytes(&self) -> Option<u64> {
        match self.queued.record.op {
            CmlOp::Store { size, .. } => Some(size),
            _ => None,
        }
    }
}

/// A record to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Polled {
    pub(crate) record: CmlRecord,
    /// Whether it may have been sent before.
    pub(crate) repeated: bool,
}

/// The records that wait for the server.
#[derive(Default)]
pub(crate) struct Queue {
    entries: BTreeMap<StoreId, Entry>,
    /// Counts records that have come, or have changed in their places.
    changes: u64,
    /// Waiting ones that nothing keeps from being sent: without content, with, those that somebody waits for, and those
    /// that somebody has asked for.
    ready: [BTreeSet<StoreId>; 4],
    /// Whether contents that nobody has asked for are not sent.
    paused: bool,
    stores: usize,
    /// Bytes of all stores.
    store_bytes: u64,
    /// How many records were refused and come again, and the bytes of the stores among them.
    refused: usize,
    refused_bytes: u64,
    /// Counts what may let one more be held up: refusals, and changes of what a record depends on.
    held_up_changes: u64,
    /// The last of the records that were made while the server was out of reach.
    made_apart: Option<StoreId>,
    under_way: UnderWay,
    announcing: Announcing,
    removing: Removing,
}

impl Queue {
    /// Takes in a record, which depends on what it names and on `unlisted`.
    pub(crate) fn push(&mut self, queued: Queued, unlisted: &[StoreId]) {
        let id = queued.record.id;
        let named = queued.record.depends_on.iter().map(|before| (*before, true));
        let mut blocked_by = 0;
        for (before, is_named) in named.chain(unlisted.iter().map(|before| (*before, false))) {
            if let Some(entry) = self.entries.get_mut(&before) {
                // The server takes one content of a file at a time.
                let is_named = is_named && !are_of_one_file(&entry.queued.record.op, &queued.record.op);
                entry.dependents.push((id, is_named));
                blocked_by += usize::from(entry.blocks(is_named));
            }
            self.let_go(before);
        }
        self.changes += 1;
        let entry = Entry {
            queued,
            place: Place::Waiting,
            frozen: false,
            alone: false,
            refused: false,
            no_room: false,
            busy: false,
            raised: false,
            asked: false,
            held_back: false,
            kept: false,
            moot: false,
            telling: Telling::default(),
            unlisted: unlisted.to_vec(),
            blocked_by,
            dependents: Vec::new(),
            changed: self.changes,
        };
        self.stores += usize::from(entry.store_bytes().is_some());
        self.store_bytes = self.store_bytes.saturating_add(entry.store_bytes().unwrap_or(0));
        self.removing.pushed(&entry.queued.record);
        self.entries.insert(id, entry);
        self.note_ready(id);
        self.note_candidate(id);
    }

    /// Sets how many bytes of stores may be under way from now on.
    pub(crate) fn set_store_bytes_max(&mut self, bytes: u64) {
        self.under_way.store_bytes_max = bytes;
    }

    /// Takes in a record of an earlier life: nobody knows whether it was sent.
    pub(crate) fn restore(&mut self, queued: Queued) {
        let id = queued.record.id;
        self.push(queued, &[]);
        if let Some(entry) = self.entries.get_mut(&id) {
            (entry.frozen, entry.alone) = (true, true);
        }
        self.note_decided(id);
    }

    /// Takes the next record to be sent, which is under way from now on. A store may be rewritten until it is frozen.
    pub(crate) fn poll_next(&mut self) -> Option<Polled> {
        self.poll_next_of(|_| true)
    }

    /// Takes the next record to be sent, leaving out those that were refused before.
    pub(crate) fn poll_next_untried(&mut self) -> Option<Polled> {
        self.poll_next_of(|entry| !entry.refused)
    }

    fn poll_next_of(&mut self, wanted: impl Fn(&Entry) -> bool) -> Option<Polled> {
        let id = self.next(wanted)?;
        let repeated = self.is_frozen(id);
        self.change(id, |entry| {
            entry.place = Place::UnderWay;
            entry.frozen |= entry.store_bytes().is_none();
        });
        self.unready(id);
        if let Some(entry) = self.entries.get(&id) {
            self.under_way.begin(id, entry);
        }
        self.note_header(id);
        Some(Polled { record: self.entries.get(&id)?.queued.record.clone(), repeated })
    }

    fn next(&self, wanted: impl Fn(&Entry) -> bool) -> Option<StoreId> {
        let wanted = |id: &&StoreId| self.entries.get(*id).is_some_and(&wanted);
        let has_room = |id: &&StoreId| self.entries.get(*id).is_some_and(|entry| self.under_way.has_room_for(entry));
        let [small, stores, raised, asked] = self.ready.each_ref().map(|ready| ready.iter().find(wanted));
        if let Some(first) = raised.filter(has_room).or(asked.filter(has_room)) {
            return Some(*first);
        }
        let stores = stores.filter(|_| !self.paused && raised.is_none() && asked.is_none());
        small.filter(has_room).into_iter().chain(stores.filter(has_room)).min().copied()
    }

    /// Has a record wait again that was not answered for good. If it was `refused`, what depends on it waits for it
    /// from now on.
    pub(crate) fn postpone(&mut self, id: StoreId, refused: bool) {
        let Some(entry) = self.entries.get(&id).filter(|entry| entry.place == Place::UnderWay) else { return };
        self.under_way.end(id, entry);
        self.change(id, |entry| {
            entry.place = Place::Waiting;
            entry.alone |= refused;
        });
        if refused {
            self.note_refused(id);
        }
        self.note_ready(id);
        self.note_candidate(id);
    }

    /// Postpones a record for which the server had no room. A rename may still be taken back: nothing of it has been
    /// done.
    pub(crate) fn postpone_for_room(&mut self, id: StoreId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.no_room = true;
            entry.frozen &= !matches!(entry.queued.record.op, CmlOp::Rename { .. });
        }
        self.postpone(id, true);
    }

    /// Postpones a record because the server was busy, or has waited in vain for what the record depends on: neither
    /// says anything about the record. The server lets what depends on it wait, so that need not be done here. The
    /// second time it counts as refused for those that wait.
    pub(crate) fn postpone_busy(&mut self, id: StoreId) {
        if self.entries.get_mut(&id).is_some_and(|entry| std::mem::replace(&mut entry.busy, true)) {
            self.note_refused(id);
        }
        self.postpone(id, false);
    }

    /// Withdraws a record that is not wanted any more and will never be sent.
    pub(crate) fn withdraw(&mut self, id: StoreId) -> Option<Queued> {
        self.retract(id);
        self.remove(id)
    }

    /// Notes that the objects of these records go. Returns those without a content that are here.
    pub(crate) fn note_moot(&mut self, ids: &[StoreId]) -> Vec<StoreId> {
        let mut moot = Vec::new();
        for id in ids {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.moot = true;
                moot.extend(entry.store_bytes().is_none().then_some(*id));
            }
        }
        moot
    }

    /// Has a record sent with its origin from now on, to be kept beside what it is in conflict with. Returns whether it
    /// was not before.
    pub(crate) fn keep(&mut self, id: StoreId) -> bool {
        self.entries.get_mut(&id).is_some_and(|entry| !std::mem::replace(&mut entry.kept, true))
    }

    /// Whether a record is sent with its origin.
    pub(crate) fn is_kept(&self, id: StoreId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.kept)
    }

    /// Whether nobody wants to know what becomes of a record.
    pub(crate) fn is_moot(&self, id: StoreId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.moot)
    }

    /// Removes a record that has been answered for good.
    pub(crate) fn remove(&mut self, id: StoreId) -> Option<Queued> {
        let entry = self.entries.get(&id)?;
        if entry.place == Place::UnderWay {
            self.under_way.end(id, entry);
        }
        self.unready(id);
        self.forget_refusal(id);
        let entry = self.entries.remove(&id)?;
        self.stores -= usize::from(entry.store_bytes().is_some());
        self.store_bytes = self.store_bytes.saturating_sub(entry.store_bytes().unwrap_or(0));
        for (dependent, is_named) in &entry.dependents {
            if entry.blocks(*is_named) {
                self.unblock(*dependent);
            }
        }
        self.forget_telling(id, &entry);
        self.removing.removed(&entry.queued.record);
        Some(entry.queued)
    }

    /// Changes a record that was never sent, in its place.
    pub(crate) fn rewrite(&mut self, record: CmlRecord) {
        let id = record.id;
        self.forget_refusal(id);
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| !entry.frozen) else { return };
        self.changes += 1;
        self.held_up_changes += 1;
        entry.changed = self.changes;
        let under_way = entry.place == Place::UnderWay;
        let before = std::mem::replace(&mut entry.queued.record, record).op;
        if let (CmlOp::Store { size: before, .. }, Some(now)) = (before, entry.store_bytes()) {
            self.store_bytes = self.store_bytes.saturating_sub(before).saturating_add(now);
            if under_way {
                self.under_way.resize(before, now);
            }
        }
        self.note_changed(id);
    }

    /// Freezes a record that is about to be sent: it stays as it is. Returns it, unless it is not wanted any more.
    pub(crate) fn freeze(&mut self, id: StoreId) -> Option<CmlRecord> {
        let entry = self.entries.get_mut(&id)?;
        entry.frozen = true;
        Some(entry.queued.record.clone())
    }

    /// Thaws a record that the server does not have: it may be another when it is sent next.
    pub(crate) fn thaw(&mut self, id: StoreId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.frozen = false;
        }
    }

    pub(crate) fn get(&self, id: StoreId) -> Option<&Queued> {
        Some(&self.entries.get(&id)?.queued)
    }

    /// Whether a record was never sent, and is not about to be.
    pub(crate) fn is_unsent(&self, id: StoreId) -> bool {
        self.entries.get(&id).is_some_and(|entry| !entry.frozen && entry.place == Place::Waiting)
    }

    /// Whether a record may have been sent.
    pub(crate) fn is_frozen(&self, id: StoreId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.frozen)
    }

    /// Returns a record, if it was never sent and no other waits for it.
    pub(crate) fn rewritable(&self, id: StoreId) -> Option<&Queued> {
        let is_last = |entry: &&Entry| !entry.dependents.iter().any(|(id, _)| self.entries.contains_key(id));
        let entry = self.entries.get(&id).filter(|entry| !entry.frozen).filter(is_last)?;
        Some(&entry.queued)
    }

    /// Takes out a record that was not sent, and out of those that name it; returns these. `None` if it may have been
    /// sent, or one of them, if one is the next content of its file, or if one gives a name to its file: others, and
    /// those that come after a crash of this client, would find an empty file there, in place of what the name meant
    /// before.
    pub(crate) fn detach(&mut self, id: StoreId) -> Option<Vec<Queued>> {
        let dependents: Vec<StoreId> = self.entries.get(&id)?.dependents.iter().map(|(id, _)| *id).collect();
        let unsent = |id: &StoreId| !self.contains(*id) || self.is_unsent(*id);
        let op = &self.get(id)?.record.op;
        // The next content is behind those before this one by way of it, and the log could not say so.
        let next = dependents.iter().filter_map(|id| self.get(*id)).find(|next| are_of_one_file(op, &next.record.op));
        if next.is_some() || !self.is_unsent(id) || !dependents.iter().all(unsent) || self.is_named(id) {
            return None;
        }
        let changed = self.free_dependents(id);
        self.withdraw(id);
        Some(changed)
    }

    /// Takes a record that will never be applied out of those that name it and were not sent; returns these. Those
    /// without content name from now on what they were behind by way of it; those with content name all that they
    /// touch.
    pub(crate) fn free_dependents(&mut self, id: StoreId) -> Vec<Queued> {
        let Some(entry) = self.entries.get(&id) else { return Vec::new() };
        let (dependents, before) = (entry.dependents.clone(), entry.before().collect::<Vec<_>>());
        let mut changed = Vec::new();
        for (dependent, _) in dependents {
            if !self.is_unsent(dependent) {
                continue;
            }
            if let Some(entry) = self.entries.get_mut(&dependent) {
                entry.queued.record.depends_on.retain(|before| *before != id);
            }
            before.iter().for_each(|before| self.put_behind(dependent, *before));
            changed.extend(self.get(dependent).cloned());
            self.note_changed(dependent);
        }
        changed
    }

    /// Makes a record without content that was not sent depend on another, if it has to wait for that.
    fn put_behind(&mut self, id: StoreId, before: StoreId) {
        let Some(earlier) = self.get(before).map(|queued| queued.record.op.clone()) else { return };
        let is_new = |entry: &&mut Entry| entry.store_bytes().is_none() && entry.before().all(|known| known != before);
        let waits = |entry: &&mut Entry| !discards(&entry.queued.record.op, &earlier);
        let Some(entry) = self.entries.get_mut(&id).filter(is_new).filter(waits) else { return };
        let named = &mut entry.queued.record.depends_on;
        let is_named = named.len() < CmlRecord::DEPENDS_ON_MAX;
        if is_named {
            named.push(before);
            named.sort_unstable();
        } else {
            entry.unlisted.push(before);
        }
        if let Some(earlier) = self.entries.get_mut(&before) {
            earlier.dependents.push((id, is_named));
            if earlier.blocks(is_named) {
                self.block(id);
            }
        }
    }

    /// Whether a record that waits for this one gives a name to its file.
    pub(crate) fn is_named(&self, id: StoreId) -> bool {
        self.entries.get(&id).is_some_and(|entry| {
            let fid = entry.queued.record.op.fid();
            let waiting = entry.dependents.iter().filter_map(|(dependent, _)| self.get(*dependent));
            waiting.into_iter().any(|queued| queued.record.op.named_fid() == Some(fid))
        })
    }

    /// Whether none but these depend on a record.
    pub(crate) fn is_wanted_by_none_but(&self, id: StoreId, these: &BTreeSet<StoreId>) -> bool {
        let wants = |(id, _): &(StoreId, bool)| self.entries.contains_key(id) && !these.contains(id);
        self.entries.get(&id).is_none_or(|entry| !entry.dependents.iter().any(wants))
    }

    /// Returns the records that keep a waiting one from being sent.
    pub(crate) fn held_up_by(&self, id: StoreId) -> Vec<StoreId> {
        let Some(entry) = self.entries.get(&id).filter(|entry| entry.place == Place::Waiting) else {
            return Vec::new();
        };
        let blocks = |before: &Entry| {
            before.dependents.iter().any(|(dependent, is_named)| *dependent == id && before.blocks(*is_named))
        };
        entry.before().filter(|before| self.entries.get(before).is_some_and(blocks)).collect()
    }

    pub(crate) fn contains(&self, id: StoreId) -> bool {
        self.entries.contains_key(&id)
    }

    /// Returns the oldest record.
    pub(crate) fn first(&self) -> Option<StoreId> {
        self.entries.keys().next().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns how many bytes of stores have not had the server's word yet.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.store_bytes.saturating_sub(self.refused_bytes)
    }

    /// Whether everything was tried that could be, and what is left was refused or waits for that.
    pub(crate) fn is_stuck(&self) -> bool {
        let mut ready = self.ready.iter().flatten().filter_map(|id| self.entries.get(id));
        self.under_way.ids().len() == 0 && ready.all(|entry| entry.refused)
    }

    fn note_refused(&mut self, id: StoreId) {
        if let Some(entry) = self.entries.get_mut(&id).filter(|entry| !entry.refused) {
            entry.refused = true;
            self.held_up_changes += 1;
            self.refused += 1;
            self.refused_bytes = self.refused_bytes.saturating_add(entry.store_bytes().unwrap_or(0));
        }
    }

    fn forget_refusal(&mut self, id: StoreId) {
        if let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.refused) {
            entry.refused = false;
            self.refused -= 1;
            self.refused_bytes = self.refused_bytes.saturating_sub(entry.store_bytes().unwrap_or(0));
        }
    }

    /// Changes where a record is, and which others it keeps from being sent.
    fn change(&mut self, id: StoreId, change: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let [named, unnamed] = [true, false].map(|is_named| entry.blocks(is_named));
        change(entry);
        let now = [true, false].map(|is_named| entry.blocks(is_named));
        let dependents = std::mem::take(&mut entry.dependents);
        for (dependent, is_named) in &dependents {
            let (before, now) = if *is_named { (named, now[0]) } else { (unnamed, now[1]) };
            match (before, now) {
                (true, false) => self.unblock(*dependent),
                (false, true) => self.block(*dependent),
                (true, true) | (false, false) => {}
            }
        }
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.dependents = dependents;
        }
    }

    fn block(&mut self, id: StoreId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.blocked_by += 1;
            self.unready(id);
        }
    }

    fn unblock(&mut self, id: StoreId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.blocked_by = entry.blocked_by.saturating_sub(1);
            self.note_ready(id);
        }
    }

    fn unready(&mut self, id: StoreId) {
        for ready in &mut self.ready {
            ready.remove(&id);
        }
    }

    fn note_ready(&mut self, id: StoreId) {
        if let Some(entry) = self.entries.get(&id)
            && entry.place == Place::Waiting
            && entry.blocked_by == 0
            && (entry.raised || entry.asked || !entry.held_back)
        {
            let place = match entry {
                Entry { raised: true, .. } => 2,
                Entry { asked: true, .. } => 3,
                _ => usize::from(entry.store_bytes().is_some()),
            };
            self.ready[place].insert(id);
        }
    }
}

/// Whether both store the same file.
fn are_of_one_file(one: &CmlOp, other: &CmlOp) -> bool {
    let both = matches!((one, other), (CmlOp::Store { .. }, CmlOp::Store { .. }));
    both && one.fid() == other.fid()
}

#[cfg(test)]
mod tests;
