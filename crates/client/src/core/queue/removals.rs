//! Removals that were made while nobody could be asked: how many there are, for the server to judge whether somebody
//! has removed everything by mistake.

use mafs_proto::{CmlOp, CmlRecord, StoreId};

use super::Queue;

/// Such removals that the server does not have. They count together until it has all.
#[derive(Clone, Copy, Default)]
pub(super) struct Removing {
    waiting: u64,
    all: u64,
    up_to: Option<StoreId>,
}

impl Removing {
    pub(super) fn pushed(&mut self, record: &CmlRecord) {
        if is_removal_alone(record) {
            self.waiting += 1;
            self.all += 1;
            self.up_to = self.up_to.max(Some(record.id));
        }
    }

    pub(super) fn removed(&mut self, record: &CmlRecord) {
        if is_removal_alone(record) {
            self.waiting = self.waiting.saturating_sub(1);
            if self.waiting == 0 {
                *self = Self::default();
            }
        }
    }
}

impl Queue {
    /// Returns how many removals there are, or were when there were most, made while nobody could be asked, and the
    /// last of them; if `record` is one.
    pub(crate) fn removals_with(&self, record: &CmlRecord) -> Option<(u64, StoreId)> {
        let up_to = self.removing.up_to.filter(|_| is_removal_alone(record))?;
        Some((self.removing.all, up_to.max(record.id)))
    }
}

/// Whether a record removes something, and was made while nobody could be asked.
fn is_removal_alone(record: &CmlRecord) -> bool {
    record.removes.is_some_and(|removed| removed.alone)
        && matches!(record.op, CmlOp::Remove { .. } | CmlOp::RemoveDir { .. })
}

#[cfg(test)]
mod tests {
    use mafs_proto::{ClientId, DataVersion, Fid, Incarnation, Kind, Name, Removed, Timestamp, VolumeId};

    use super::super::Queued;
    use super::*;

    fn removal(seq: u64, alone: bool) -> Queued {
        let id = StoreId { client: ClientId([1; 16]), incarnation: Incarnation(1), seq };
        let root = Fid::root(VolumeId(1));
        let op = CmlOp::Remove { parent: root, name: Name::new(format!("f{seq}")).unwrap(), fid: root };
        let time = Timestamp::default();
        let removes = Some(Removed { version: DataVersion(1), alone });
        let record = CmlRecord { id, depends_on: Vec::new(), time, uid: 0, gid: 0, removes, op };
        Queued { record, kind: Kind::File, replaced: None }
    }

    #[test]
    fn removals_count_together_until_the_server_has_all_of_them() {
        let mut queue = Queue::default();
        let alone: Vec<_> = (1..=4).map(|seq| removal(seq, true)).collect();
        let id = |number: usize| alone[number].record.id;
        let connected = removal(5, false);
        queue.push(connected.clone(), &[]);
        assert_eq!(queue.removals_with(&connected.record), None);
        queue.push(alone[0].clone(), &[]);
        queue.push(alone[1].clone(), &[]);
        assert_eq!(queue.removals_with(&alone[0].record), Some((2, id(1))));
        queue.remove(id(0));
        queue.push(alone[2].clone(), &[]);
        assert_eq!(queue.removals_with(&alone[1].record), Some((3, id(2))));
        queue.remove(id(1));
        queue.remove(id(2));
        queue.push(alone[3].clone(), &[]);
        assert_eq!(queue.removals_with(&alone[3].record), Some((1, id(3))));
        assert_eq!(queue.removals_with(&connected.record), None);
    }
}
