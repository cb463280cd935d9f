//! What is in the queue, for people and for those who wait: no look costs more than what it shows.

use std::ops::Bound;

use mafs_proto::{CmlOp, Kind, StoreId, Timestamp};

use super::{Place, Queue};

/// A record as it is listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listed {
    pub(crate) id: StoreId,
    /// When it was made, on the clock of people.
    pub(crate) time: Timestamp,
    pub(crate) op: CmlOp,
    pub(crate) kind: Kind,
    /// Sent, and not answered yet.
    pub(crate) under_way: bool,
}

/// All records together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) records: usize,
    /// Those with content.
    pub(crate) stores: usize,
    /// Bytes of these.
    pub(crate) bytes: u64,
    /// Records that are sent, and not answered yet.
    pub(crate) under_way: usize,
    /// When the oldest was made.
    pub(crate) oldest: Option<Timestamp>,
}

impl Queue {
    /// The records behind `after`, oldest first, at most `count_max`.
    pub(crate) fn list(&self, after: Option<StoreId>, count_max: usize) -> Vec<Listed> {
        let behind = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let listed = self.entries.range(behind).take(count_max).map(|(id, entry)| {
            let (record, kind) = (&entry.queued.record, entry.queued.kind);
            let under_way = entry.place == Place::UnderWay;
            Listed { id: *id, time: record.time, op: record.op.clone(), kind, under_way }
        });
        listed.collect()
    }

    /// All together.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            records: self.entries.len(),
            stores: self.stores,
            bytes: self.store_bytes,
            under_way: self.under_way.len(),
            oldest: self.entries.values().next().map(|entry| entry.queued.record.time),
        }
    }

    /// Whether a record is sent, and not answered yet.
    pub(crate) fn is_under_way(&self, id: StoreId) -> bool {
        self.under_way.contains(&id)
    }

    /// The stores that are sent and not answered yet: fewer than 100.
    pub(crate) fn stores_under_way(&self) -> Vec<(StoreId, CmlOp)> {
        let entries = self.under_way.iter().filter_map(|id| Some((*id, self.entries.get(id)?)));
        let stores = entries.filter(|(_, entry)| entry.store_bytes().is_some());
        stores.map(|(id, entry)| (id, entry.queued.record.op.clone())).collect()
    }

    /// Every record for which `wanted`, newest first, with the bytes of its content.
    pub(crate) fn newest_first(&self, wanted: impl Fn(&CmlOp) -> bool) -> Vec<(StoreId, Option<u64>)> {
        let wanted = self.entries.iter().rev().filter(|(_, entry)| wanted(&entry.queued.record.op));
        wanted.map(|(id, entry)| (*id, entry.store_bytes())).collect()
    }

    /// Takes those out that are not here any more; all are in the order of [`Self::newest_first`].
    pub(crate) fn retain_queued(&self, left: &mut Vec<(StoreId, Option<u64>)>) {
        let mut queued = self.entries.keys().rev().peekable();
        left.retain(|(id, _)| {
            while queued.next_if(|at| *at > id).is_some() {}
            queued.peek() == Some(&id)
        });
    }
}
