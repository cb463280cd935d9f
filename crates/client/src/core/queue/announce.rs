//! Announcements: what the server is told of records that wait, and what it asks for (consistency.md, "SIRP").
//!
//! A record that cannot be sent now is announced, so that nobody is shown what was before it. Such a record may still
//! change or go away until it is sent: then it is announced again, or retracted. A content that is sent is announced by
//! its own header.

use std::collections::BTreeSet;

use mafs_proto::call::InvalidateRequest;
use mafs_proto::{CmlOp, CmlRecord, StoreId};

use super::{Entry, Place, Queue};

/// Most records that the server may know of by announcements. The server's bound for one client is four times this.
const ANNOUNCED_MAX: usize = 1024;
/// Most announcements that may be unanswered, so that one whose answer waits for an unreachable client does not hold up
/// the next.
const CALLS_MAX: usize = 16;
/// Most retractions that wait. The server forgets what is dropped here when this client confirms later records.
const RETRACTED_MAX: usize = 4096;
/// Records that one look for something to announce passes over.
const LOOK_MAX: usize = 4096;

/// Choice of what is announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Policy {
    /// Nothing.
    #[default]
    Nothing,
    /// Records that cannot be sent now.
    Waiting,
    /// Contents that are sent, too: the paper's compulsory invalidation.
    All,
}

/// Knowledge that the server has of a record that it does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Told {
    #[default]
    Nothing,
    /// An announcement of it may have arrived, perhaps of what it was before it changed.
    Perhaps,
    /// The server knows the record as it is, and nobody relies any more on what was before.
    Present,
    /// The server did not want to hear of the record as it is.
    Refused,
    /// The server did not want to hear of it, for others have done something that the record is in conflict with: it
    /// will not be done as it is.
    Contested,
}

impl Told {
    fn is_heard(self) -> bool {
        matches!(self, Self::Perhaps | Self::Present)
    }

    /// Whether others that are shown names need not wait for the record.
    fn is_settled(self) -> bool {
        matches!(self, Self::Present | Self::Contested)
    }
}

/// State of the announcement of one record.
#[derive(Clone, Copy, Default)]
pub(super) struct Telling {
    told: Told,
    /// Whether the server is told by the header of the content, which comes when the link lets it.
    by_header: bool,
    /// Whether a call that announces it is under way.
    under_way: bool,
    /// Whether it has changed since that call was made.
    changed: bool,
    /// Whether something that it depends on has ended since: if the server did not know what the record is about, it
    /// does now.
    unblocked: bool,
    /// Whether somebody waits until it is announced, be it under way itself.
    demanded: bool,
    /// Whether it makes a name that was decided here alone, as far as is known.
    decided: bool,
    /// Whether it is to be announced whatever it depends on, and whatever the policy is: the server asks for its names.
    recalled: bool,
}

/// One call that announces and retracts records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Announcement {
    /// Records to announce, in the order of the log.
    pub(crate) records: Vec<CmlRecord>,
    /// Records that were announced before and will never come.
    pub(crate) retracted: Vec<StoreId>,
}

/// Outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heard<'a> {
    /// The call was answered: the server did not take these.
    But(&'a [StoreId]),
    /// Whether the call arrived is not known.
    Perhaps,
}

/// Finding of [`Queue::raise`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Raised {
    /// Records that are not in the queue.
    pub(crate) missing: Vec<StoreId>,
    /// Records under way, with what they depend on.
    pub(crate) under_way: Vec<CmlRecord>,
}

/// Finding of [`Queue::recall`]: records that the server has not heard of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Untold {
    pub(crate) count: usize,
    /// Records among them of which it does not take note.
    pub(crate) refused: Vec<StoreId>,
}

/// The announcements of all records.
#[derive(Default)]
pub(super) struct Announcing {
    policy: Policy,
    /// Records of which the server should perhaps be told.
    candidates: BTreeSet<StoreId>,
    /// Records that come first, because the server asks for their names.
    recalled: BTreeSet<StoreId>,
    /// How many records the server may have heard of.
    heard: usize,
    retracted: BTreeSet<StoreId>,
    /// Records to be retracted once the calls are answered that announce them.
    withdrawn: BTreeSet<StoreId>,
    calls: usize,
    answered: u64,
}

impl Queue {
    /// Sets what is announced from now on.
    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.announcing.policy = policy;
    }

    /// Whether the header of a content that is sent is its announcement.
    pub(crate) fn announces(&self) -> bool {
        self.announcing.policy != Policy::Nothing
    }

    /// Returns how many announcements of records have been answered.
    pub(crate) fn announced(&self) -> u64 {
        self.announcing.answered
    }

    /// Counts the records here of which the server may have heard, without those that are being sent.
    pub(crate) fn heard_and_waiting(&self) -> usize {
        let sent = self.under_way.ids().filter_map(|id| self.entries.get(&id));
        self.announcing.heard - sent.filter(|entry| entry.telling.told.is_heard()).count()
    }

    /// Takes the next call, with at most `records_max` records and as many retractions; `None` if there is nothing to
    /// say now. Worth asking again after a push, a rewrite, a withdrawal, an answer of any kind and a postponement.
    #[must_use]
    pub(crate) fn poll_announce(&mut self, records_max: usize) -> Option<Announcement> {
        if self.announcing.calls >= CALLS_MAX {
            return None;
        }
        self.demand_headers();
        let recalled = self.announcing.recalled.iter().take(records_max);
        let looked_at = recalled.chain(self.announcing.candidates.iter().take(LOOK_MAX)).copied();
        let looked_at: Vec<StoreId> = looked_at.collect();
        let mut call = BTreeSet::new();
        for id in looked_at {
            if call.len() == records_max.min(InvalidateRequest::RECORDS_MAX) {
                break;
            }
            if self.is_due(id, &call)
                && let Some(entry) = self.entries.get_mut(&id)
            {
                let Telling { by_header, under_way, changed, unblocked, .. } = &mut entry.telling;
                (*by_header, *under_way, *changed, *unblocked) = (false, true, false, false);
                self.announcing.candidates.remove(&id);
                self.announcing.recalled.remove(&id);
                self.set_told(id, Told::Perhaps);
                call.insert(id);
            }
        }
        let told = call.iter().filter_map(|id| self.entries.get(id));
        let records: Vec<CmlRecord> = told.map(|entry| entry.queued.record.clone()).collect();
        let mut retracted = Vec::new();
        while retracted.len() < InvalidateRequest::RECORDS_MAX
            && let Some(id) = self.announcing.retracted.pop_first()
        {
            retracted.push(id);
        }
        if records.is_empty() && retracted.is_empty() {
            return None;
        }
        self.announcing.calls += 1;
        Some(Announcement { records, retracted })
    }

    /// Has the content of a file announced with a name of it that is about to be announced, be the content under way:
    /// the announcement is quicker than the header, and others would be shown an empty file.
    fn demand_headers(&mut self) {
        let is_due = |id: &StoreId| {
            let is_small = self.entries.get(id).is_some_and(|entry| entry.store_bytes().is_none());
            is_small && self.announcing.candidates.contains(id)
        };
        let by_header = self.under_way.ids().filter_map(|id| Some((id, self.entries.get(&id)?)));
        let by_header = by_header.filter(|(_, entry)| entry.telling.by_header && !entry.telling.demanded);
        let named = by_header.filter(|(_, entry)| entry.dependents.iter().any(|(dependent, _)| is_due(dependent)));
        let contents: Vec<StoreId> = named.map(|(id, _)| id).collect();
        for id in contents {
            self.demand_announcement(id);
        }
    }

    /// Ends a call that has been answered, or is lost.
    pub(crate) fn end_announcement(&mut self, announcement: &Announcement, heard: Heard<'_>) {
        self.announcing.calls = self.announcing.calls.saturating_sub(1);
        for CmlRecord { id, .. } in &announcement.records {
            let Some(entry) = self.entries.get_mut(id) else {
                if self.announcing.withdrawn.remove(id) {
                    self.announcing.retracted.insert(*id);
                }
                continue;
            };
            let Telling { changed, unblocked, .. } = entry.telling;
            (entry.telling.under_way, entry.telling.changed) = (false, false);
            let told = match heard {
                Heard::But(refused) if refused.contains(id) => {
                    if changed || unblocked {
                        Told::Nothing
                    } else {
                        Told::Refused
                    }
                }
                Heard::But(_) if !changed => Told::Present,
                Heard::But(_) | Heard::Perhaps => Told::Perhaps,
            };
            self.announcing.answered += u64::from(told == Told::Present);
            self.set_told(*id, told);
            self.note_candidate(*id);
        }
        if heard == Heard::Perhaps {
            self.announcing.retracted.extend(&announcement.retracted);
        }
    }

    /// Takes in that the server has said why it did not take these. Where it has not heard of what makes an object that
    /// is given a name, that is why; else the record is contested.
    pub(crate) fn note_contested(&mut self, ids: &[StoreId]) {
        for id in ids {
            if self.entries.get(id).is_none_or(|entry| entry.telling.told != Told::Refused) {
                continue;
            }
            let named = self.records_named_by(*id);
            let mut named = named.iter().filter_map(|before| self.entries.get(before));
            let maker = named.find(|before| before.queued.record.op.made().is_some());
            if maker.is_none_or(|maker| maker.telling.told.is_settled()) {
                self.set_told(*id, Told::Contested);
            }
        }
    }

    /// Whether the server is known to have heard of a record as it is; `None` if the record is not in the queue.
    pub(crate) fn is_announced(&self, id: StoreId) -> Option<bool> {
        Some(self.entries.get(&id)?.telling.told == Told::Present)
    }

    /// Whether a record is under way, with its content if it has one.
    pub(crate) fn is_under_way(&self, id: StoreId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.place == Place::UnderWay)
    }

    /// Demands that a record is announced, as somebody waits for that: its own header does not tell when that is.
    pub(crate) fn demand_announcement(&mut self, id: StoreId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.telling.demanded = true;
            self.note_candidate(id);
        }
    }

    /// Notes that a record makes a name that was decided here alone.
    pub(crate) fn note_decided(&mut self, id: StoreId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.telling.decided = true;
        }
    }

    /// Recalls the names that these records change, as the server asks for them: where nothing is announced otherwise,
    /// those that were decided here alone. The object that a name is given to is told with it, or others would be shown
    /// an empty file there. Returns the records of which the server does not know yet.
    pub(crate) fn recall(&mut self, ids: &[StoreId]) -> Untold {
        let all = self.announces();
        let decided = |id: &&StoreId| self.entries.get(id).is_some_and(|entry| all || entry.telling.decided);
        let names: Vec<StoreId> = ids.iter().filter(decided).copied().collect();
        let objects = names.iter().flat_map(|id| self.records_named_by(*id));
        let recalled: BTreeSet<StoreId> = objects.chain(names.iter().copied()).collect();
        let mut untold = Untold::default();
        for id in recalled {
            if self.is_kept_quiet(id) {
                continue;
            }
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            if !std::mem::replace(&mut entry.telling.recalled, true) {
                // The record may have been refused because the server did not know what is told with it now.
                entry.telling.unblocked = entry.telling.under_way;
                if entry.telling.told == Told::Refused {
                    self.set_told(id, Told::Nothing);
                }
            }
            let Some(Telling { told, .. }) = self.entries.get(&id).map(|entry| entry.telling) else { continue };
            untold.count += usize::from(!told.is_settled());
            if told == Told::Refused {
                untold.refused.push(id);
            }
            self.note_candidate(id);
        }
        untold
    }

    /// Finds the records before one that are about what it gives a name to, down to the one that makes that.
    fn records_named_by(&self, id: StoreId) -> BTreeSet<StoreId> {
        let entry = self.entries.get(&id);
        let Some(named) = entry.and_then(|entry| entry.queued.record.op.named_fid()) else { return BTreeSet::new() };
        let (mut found, mut left) = (BTreeSet::new(), vec![id]);
        while let Some(entry) = left.pop().and_then(|id| self.entries.get(&id)) {
            let is_of_it = |before: &StoreId| {
                self.entries.get(before).is_some_and(|before| before.queued.record.op.fid() == named)
            };
            left.extend(entry.before().filter(is_of_it).filter(|before| found.insert(*before)));
        }
        found
    }

    /// Forgets what the server knew: its history is another.
    pub(crate) fn forget_announcements(&mut self) {
        self.announcing.retracted.clear();
        let ids: Vec<StoreId> = self.entries.keys().copied().collect();
        for id in ids {
            if self.entries.get(&id).is_some_and(|entry| !entry.telling.under_way) {
                self.set_told(id, Told::Nothing);
                self.note_candidate(id);
            }
        }
    }

    /// Raises records that somebody waits for: they are sent next, with all that they depend on, whatever else is under
    /// way.
    pub(crate) fn raise(&mut self, ids: &[StoreId]) -> Raised {
        let missing = ids.iter().filter(|id| !self.entries.contains_key(id)).copied().collect();
        let new = self.mark_up_to(ids, |entry| !std::mem::replace(&mut entry.raised, true));
        let under_way = new.iter().filter_map(|id| self.entries.get(id).filter(|entry| entry.place == Place::UnderWay));
        let under_way: Vec<CmlRecord> = under_way.map(|entry| entry.queued.record.clone()).collect();
        under_way.iter().for_each(|_| self.under_way.note_raised());
        Raised { missing, under_way }
    }

    /// Whether somebody waits for a record.
    pub(crate) fn is_raised(&self, id: StoreId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.raised)
    }

    /// Retracts a record that will never come, if the server may have heard of it.
    pub(super) fn retract(&mut self, id: StoreId) {
        let Some(entry) = self.entries.get(&id).filter(|entry| entry.telling.told.is_heard()) else { return };
        let announcing = &mut self.announcing;
        let under_way = entry.telling.under_way;
        let later = if under_way { &mut announcing.withdrawn } else { &mut announcing.retracted };
        if later.len() < RETRACTED_MAX {
            later.insert(id);
        }
    }

    /// Notes that a record has changed in its place.
    pub(super) fn note_changed(&mut self, id: StoreId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.telling.changed = entry.telling.under_way;
        let told = if entry.telling.told.is_heard() { Told::Perhaps } else { Told::Nothing };
        self.set_told(id, told);
        self.note_candidate(id);
    }

    /// Notes that a content is about to be sent, with a header that announces it.
    pub(super) fn note_header(&mut self, id: StoreId) {
        let unheard = |entry: &&Entry| entry.store_bytes().is_some() && !entry.telling.told.is_heard();
        if self.announcing.policy == Policy::Waiting && self.entries.get(&id).filter(unheard).is_some() {
            self.set_told(id, Told::Perhaps);
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.telling.by_header = true;
            }
        }
    }

    /// Notes whether a record may have to be announced.
    pub(super) fn note_candidate(&mut self, id: StoreId) {
        let Some(entry) = self.entries.get(&id) else { return };
        let Telling { told, under_way, demanded, recalled, .. } = entry.telling;
        let unknown = matches!(told, Told::Nothing | Told::Perhaps);
        // A record that has no content and waits for nothing is sent as soon as it could be announced, unless refused.
        let waits =
            demanded || entry.waits_refused() || entry.store_bytes().is_some() || entry.before().next().is_some();
        if recalled && unknown && !under_way {
            self.announcing.recalled.insert(id);
        } else {
            self.announcing.recalled.remove(&id);
        }
        if self.announcing.policy != Policy::Nothing && unknown && !under_way && waits {
            self.announcing.candidates.insert(id);
        } else {
            self.announcing.candidates.remove(&id);
        }
    }

    /// Forgets the announcement of a record that leaves the queue. Those behind it that the server did not want to hear
    /// of yet, or is just about to say so of, are told of once more.
    pub(super) fn forget_telling(&mut self, id: StoreId, entry: &Entry) {
        self.announcing.candidates.remove(&id);
        self.announcing.recalled.remove(&id);
        self.announcing.heard -= usize::from(entry.telling.told.is_heard());
        for (dependent, _) in &entry.dependents {
            let Some(entry) = self.entries.get_mut(dependent) else { continue };
            entry.telling.unblocked = entry.telling.under_way;
            if matches!(entry.telling.told, Told::Refused | Told::Contested) {
                self.set_told(*dependent, Told::Nothing);
                self.note_candidate(*dependent);
            }
        }
    }

    fn set_told(&mut self, id: StoreId, told: Told) {
        if let Some(entry) = self.entries.get_mut(&id) {
            let before = std::mem::replace(&mut entry.telling.told, told);
            self.announcing.heard -= usize::from(before.is_heard());
            self.announcing.heard += usize::from(told.is_heard());
        }
    }

    /// Whether nobody is told of a rename because the server had no room for the content of what it names: others would
    /// wait for that, and are shown the name as the server has it. A name that others might take is told of, and so is
    /// what they have heard of before.
    fn is_kept_quiet(&self, id: StoreId) -> bool {
        let is_new = |entry: &Entry| {
            let is_rename = matches!(entry.queued.record.op, CmlOp::Rename { .. });
            is_rename && !entry.telling.told.is_heard() && !entry.telling.decided
        };
        self.entries.get(&id).is_some_and(is_new) && self.waits_for_room(id)
    }

    /// Whether a record gives a name to something of which another call tells that is not answered yet. The server may
    /// refuse to hear of that, and the name would show what was there before.
    fn names_what_is_asked_about(&self, id: StoreId, call: &BTreeSet<StoreId>) -> bool {
        let is_asked = |before: &StoreId| {
            !call.contains(before) && self.entries.get(before).is_some_and(|before| before.telling.under_way)
        };
        self.records_named_by(id).iter().any(is_asked)
    }

    /// Whether the server is to be told of a candidate in the call that holds these before it.
    fn is_due(&self, id: StoreId, call: &BTreeSet<StoreId>) -> bool {
        let Some(entry) = self.entries.get(&id).filter(|_| !self.is_kept_quiet(id)) else { return false };
        let told = entry.telling.told;
        if entry.telling.recalled {
            return !entry.telling.under_way && !self.names_what_is_asked_about(id, call);
        }
        if !told.is_heard() && self.announcing.heard >= ANNOUNCED_MAX {
            return false;
        }
        let (content, waiting) = (entry.store_bytes().is_some(), entry.place == Place::Waiting);
        let mut behind_content = false;
        for before in entry.before().filter_map(|before| self.entries.get(&before)) {
            let (heard, under_way) = (before.telling.told.is_heard(), before.place == Place::UnderWay);
            if !heard && !under_way || !content && before.telling.by_header {
                return false;
            }
            behind_content |= heard || before.store_bytes().is_some();
        }
        let policy = self.announcing.policy;
        let waits = waiting || policy == Policy::All;
        // The answer to a record under way that has no content and waits for none comes as soon.
        let demanded = entry.telling.demanded && (content || waiting);
        let is_wanted = demanded || entry.waits_refused() || behind_content && !content || waits && content;
        is_wanted && !self.names_what_is_asked_about(id, call)
    }
}

#[cfg(test)]
mod tests;
