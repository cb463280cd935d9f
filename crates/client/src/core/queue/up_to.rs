//! Up to a record: the record and all that it depends on.

use std::collections::BTreeSet;

use mafs_proto::{CmlOp, StoreId};

use super::{Entry, Queue, Queued};

/// Finding whether records are held up, for a caller that asks at every change of the queue. The records may be all
/// that was done in an outage, so a look that has found none is repeated only when one more may be held up.
pub(crate) struct HeldUp {
    ids: Vec<StoreId>,
    /// The last finding, and how many changes there had been then.
    found: Option<(u64, bool)>,
}

impl HeldUp {
    pub(crate) fn new(ids: Vec<StoreId>) -> Self {
        Self { ids, found: None }
    }

    /// Whether one of the records was refused and comes again, or waits for one that was.
    pub(crate) fn is_so(&mut self, queue: &Queue) -> bool {
        let changes = queue.held_up_changes;
        let is_so = self.found != Some((changes, false)) && queue.is_held_up(&self.ids);
        self.found = Some((changes, is_so));
        is_so
    }
}

impl Queue {
    /// Sums up the bytes that these records bring, with all that they depend on.
    pub(crate) fn bytes_up_to(&self, ids: &[StoreId]) -> u64 {
        self.up_to(ids).filter_map(Entry::store_bytes).fold(0, u64::saturating_add)
    }

    /// Returns these records, which the server has applied, with all that it must have applied before them. The server
    /// may have done a removal ahead of what it has no room for (`server/src/core/refused.rs`).
    pub(crate) fn applied_with(&self, ids: &[StoreId]) -> Vec<Queued> {
        let is_removal =
            |entry: &Entry| matches!(entry.queued.record.op, CmlOp::Remove { .. } | CmlOp::RemoveDir { .. });
        self.reach(ids, |entry| !is_removal(entry)).map(|entry| entry.queued.clone()).collect()
    }

    /// Whether one of these records was refused and comes again, or waits for one that was.
    pub(crate) fn is_held_up(&self, ids: &[StoreId]) -> bool {
        self.refused > 0 && self.up_to(ids).any(|entry| entry.refused)
    }

    /// Whether the server had no room for a record or for what that waits for, as far as is known.
    pub(super) fn waits_for_room(&self, id: StoreId) -> bool {
        self.refused > 0 && self.up_to(&[id]).any(|entry| entry.refused && entry.no_room)
    }

    /// Marks these records and all that they depend on, until `mark` says that one was so before, and puts them among
    /// those that may be sent now where they belong. Returns those that were not.
    pub(super) fn mark_up_to(&mut self, ids: &[StoreId], mark: impl Fn(&mut Entry) -> bool) -> Vec<StoreId> {
        let (mut open, mut new) = (ids.to_vec(), Vec::new());
        while let Some(id) = open.pop() {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            if mark(entry) {
                open.extend(entry.before());
                new.push(id);
                self.unready(id);
                self.note_ready(id);
            }
        }
        new
    }

    /// Lists these records and all that they depend on, as far as they are here.
    fn up_to(&self, ids: &[StoreId]) -> impl Iterator<Item = &Entry> {
        self.reach(ids, |_| true)
    }

    /// Lists these records and all that they depend on, without what is reached only by way of those that `is_followed`
    /// refuses.
    fn reach(&self, ids: &[StoreId], is_followed: impl Fn(&Entry) -> bool) -> impl Iterator<Item = &Entry> {
        let (mut open, mut seen) = (ids.to_vec(), BTreeSet::new());
        std::iter::from_fn(move || {
            while let Some(id) = open.pop() {
                if let Some(entry) = self.entries.get(&id)
                    && seen.insert(id)
                {
                    open.extend(entry.before().filter(|_| is_followed(entry)));
                    return Some(entry);
                }
            }
            None
        })
    }
}
