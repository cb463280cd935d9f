//! Lists of the queue, for people and for callers that wait: no look costs more than what it shows.

use std::ops::Bound;

use mafs_proto::{CmlOp, Kind, StoreId, Timestamp};

use super::{Place, Queue};

/// A record as it is listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listed {
    pub(crate) id: StoreId,
    /// Time when it was made, on the clock of people.
    pub(crate) time: Timestamp,
    pub(crate) op: CmlOp,
    pub(crate) kind: Kind,
    /// Whether it is sent, and not answered yet.
    pub(crate) under_way: bool,
    /// Whether the server knows of it.
    pub(crate) announced: bool,
}

/// All records together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) records: usize,
    /// Records with content.
    pub(crate) stores: usize,
    /// Bytes of these.
    pub(crate) bytes: u64,
    /// Records that are sent, and not answered yet.
    pub(crate) under_way: usize,
    /// Records that the server may have heard of and that are not being sent yet.
    pub(crate) announced: usize,
    /// Time when the oldest was made.
    pub(crate) oldest: Option<Timestamp>,
}

impl Queue {
    /// Lists the records behind `after`, oldest first, at most `count_max`.
    pub(crate) fn list(&self, after: Option<StoreId>, count_max: usize) -> Vec<Listed> {
        let behind = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let listed = self.entries.range(behind).take(count_max).map(|(id, entry)| {
            let (record, kind) = (&entry.queued.record, entry.queued.kind);
            let under_way = entry.place == Place::UnderWay;
            let announced = self.is_announced(*id) == Some(true);
            Listed { id: *id, time: record.time, op: record.op.clone(), kind, under_way, announced }
        });
        listed.collect()
    }

    /// Returns the oldest and the newest record.
    #[cfg(test)]
    pub(crate) fn ends(&self) -> Option<(StoreId, StoreId)> {
        Some((*self.entries.keys().next()?, *self.entries.keys().next_back()?))
    }

    /// Sums up all records.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            records: self.entries.len(),
            stores: self.stores,
            bytes: self.store_bytes,
            under_way: self.under_way.ids().len(),
            announced: self.heard_and_waiting(),
            oldest: self.entries.values().next().map(|entry| entry.queued.record.time),
        }
    }

    /// Counts how often records have come, or have changed in their places.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Lists the records that have come, or have changed, since there had been so many changes.
    pub(crate) fn changed_since(&self, changes: u64) -> Vec<StoreId> {
        self.entries.iter().filter(|(_, entry)| entry.changed > changes).map(|(id, _)| *id).collect()
    }

    /// Lists the stores that are sent and not answered yet: fewer than 100.
    pub(crate) fn stores_under_way(&self) -> Vec<(StoreId, CmlOp)> {
        let entries = self.under_way.ids().filter_map(|id| Some((id, self.entries.get(&id)?)));
        let stores = entries.filter(|(_, entry)| entry.store_bytes().is_some());
        stores.map(|(id, entry)| (id, entry.queued.record.op.clone())).collect()
    }

    /// Lists every record for which `wanted`, newest first, with the bytes of its content.
    pub(crate) fn newest_first(&self, wanted: impl Fn(&CmlOp) -> bool) -> Vec<(StoreId, Option<u64>)> {
        let wanted = self.entries.iter().rev().filter(|(_, entry)| wanted(&entry.queued.record.op));
        wanted.map(|(id, entry)| (*id, entry.store_bytes())).collect()
    }

    /// Takes the records out that are not here any more; all are in the order of [`Self::newest_first`].
    pub(crate) fn retain_queued(&self, left: &mut Vec<(StoreId, Option<u64>)>) {
        let mut queued = self.entries.keys().rev().peekable();
        left.retain(|(id, _)| {
            while queued.next_if(|at| *at > id).is_some() {}
            queued.peek() == Some(&id)
        });
    }
}

#[cfg(test)]
mod tests {
    use mafs_proto::{Base, ClientId, CmlRecord, DataVersion, Fid, Incarnation, VnodeId, VolumeId};

    use super::super::{Heard, Policy, Queued};
    use super::*;

    fn store(seq: u64, vnode: u64, size: u64) -> CmlRecord {
        let fid = Fid { vnode: VnodeId(vnode), ..Fid::root(VolumeId(1)) };
        let op = CmlOp::Store { fid, base: Base::Version(DataVersion(1)), size, mtime: Timestamp::default() };
        let id = StoreId { client: ClientId([1; 16]), incarnation: Incarnation(2), seq };
        let time = Timestamp::new(i64::try_from(seq).unwrap(), 0).unwrap();
        CmlRecord { id, depends_on: Vec::new(), time, uid: 0, gid: 0, removes: None, op }
    }

    fn queue(records: u64) -> Queue {
        let mut queue = Queue::default();
        for seq in 1..=records {
            queue.push(Queued { record: store(seq, seq, 10), kind: Kind::File, replaced: None }, &[]);
        }
        queue
    }

    #[test]
    fn the_sums_are_those_of_the_records_whatever_becomes_of_them() {
        let mut queue = queue(5);
        queue.rewrite(store(2, 2, 100));
        queue.remove(store(1, 1, 10).id);
        let sent = queue.poll_next().unwrap().record.id;
        assert_eq!(sent.seq, 2);
        let (records, under_way, oldest) = (4, 1, Timestamp::new(2, 0));
        assert_eq!(queue.totals(), Totals { records, stores: 4, bytes: 130, under_way, announced: 0, oldest });
        assert_eq!(queue.stores_under_way().iter().map(|(id, _)| id.seq).collect::<Vec<_>>(), [2]);
        queue.postpone(sent, false);
        assert_eq!((queue.totals().under_way, queue.stores_under_way().len()), (0, 0));
        while let Some(record) = queue.poll_next() {
            queue.remove(record.record.id);
        }
        assert_eq!(queue.totals(), Totals::default());
    }

    #[test]
    fn what_is_being_sent_is_not_counted_as_announced() {
        let mut queue = Queue::default();
        queue.set_policy(Policy::Waiting);
        for seq in 1..=2 {
            queue.push(Queued { record: store(seq, seq, 10), kind: Kind::File, replaced: None }, &[]);
        }
        let announcement = queue.poll_announce(10).unwrap();
        queue.end_announcement(&announcement, Heard::But(&[]));
        let counts = |queue: &Queue| (queue.totals().announced, queue.totals().under_way);
        assert_eq!(counts(&queue), (2, 0));
        let sent = queue.poll_next().unwrap().record.id;
        assert_eq!(counts(&queue), (1, 1));
        queue.postpone(sent, false);
        assert_eq!(counts(&queue), (2, 0));
        queue.remove(sent);
        assert_eq!(counts(&queue), (1, 0));
    }

    #[test]
    fn pages_follow_each_other() {
        let queue = queue(5);
        let seqs = |after, count| queue.list(after, count).iter().map(|listed| listed.id.seq).collect::<Vec<_>>();
        assert_eq!(seqs(None, 2), [1_u64, 2]);
        assert_eq!(seqs(Some(store(2, 2, 10).id), 9), [3, 4, 5]);
        assert!(seqs(Some(store(5, 5, 10).id), 9).is_empty());
    }

    #[test]
    fn what_has_gone_is_left_no_more() {
        let mut queue = queue(6);
        let mut left = queue.newest_first(|op| op.fid().vnode.0 != 3);
        queue.push(Queued { record: store(7, 7, 10), kind: Kind::File, replaced: None }, &[]);
        for seq in [1, 4, 6] {
            queue.remove(store(seq, seq, 10).id);
        }
        queue.retain_queued(&mut left);
        assert_eq!(left.iter().map(|(id, bytes)| (id.seq, *bytes)).collect::<Vec<_>>(), [(5, Some(10)), (2, Some(10))]);
    }
}
