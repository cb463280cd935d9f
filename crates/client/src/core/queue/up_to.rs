//! Up to a record: it, and all that it depends on.

use std::collections::BTreeSet;

use mafs_proto::StoreId;

use super::{Entry, Queue, Queued};

impl Queue {
    /// What these records bring, with all that they depend on.
    pub(crate) fn bytes_up_to(&self, ids: &[StoreId]) -> u64 {
        self.up_to(ids).filter_map(Entry::store_bytes).fold(0, u64::saturating_add)
    }

    /// These records, with all that they depend on.
    pub(crate) fn all_up_to(&self, ids: &[StoreId]) -> Vec<Queued> {
        self.up_to(ids).map(|entry| entry.queued.clone()).collect()
    }

    /// Whether one of these records was refused and comes again, or waits for one that was.
    pub(crate) fn is_held_up(&self, ids: &[StoreId]) -> bool {
        self.refused > 0 && self.up_to(ids).any(|entry| entry.refused)
    }

    /// These records and all that they depend on, as far as they are here.
    fn up_to(&self, ids: &[StoreId]) -> impl Iterator<Item = &Entry> {
        let (mut open, mut seen) = (ids.to_vec(), BTreeSet::new());
        std::iter::from_fn(move || {
            while let Some(id) = open.pop() {
                if let Some(entry) = self.entries.get(&id)
                    && seen.insert(id)
                {
                    open.extend(entry.before());
                    return Some(entry);
                }
            }
            None
        })
    }
}
