//! Outstanding records: the ids this client has given to mutations that the server has not answered yet.
//!
//! Ids are never used twice: an incarnation is granted by the server for one life of the client, and `seq` only rises
//! in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mafs_proto::{ClientId, CmlOp, CmlRecord, Fid, Incarnation, Removed, StoreId, Timestamp};

use super::touched::{Conflicting, TouchIndex, discards};

/// Fsynced files that are remembered. Between fsync and rename a program does little else.
const FSYNCED_MAX: usize = 1024;

/// Gives ids to mutations and knows which are unanswered.
#[derive(Debug)]
pub(crate) struct Outstanding {
    client: ClientId,
    incarnation: Incarnation,
    last_seq: u64,
    records: BTreeMap<StoreId, CmlRecord>,
    touched: TouchIndex,
    /// Records in the log that have been answered; a loss of power may take the answer from the log. Then they would be
    /// sent again, so the server must not forget them.
    ended: BTreeSet<StoreId>,
    /// Records that are sent again if they are refused for a reason that passes.
    queued: BTreeSet<StoreId>,
    /// Records on which every later one depends.
    barrier: BTreeSet<StoreId>,
    /// The last files that were fsynced: the names they are given are behind the barrier with what they hold.
    fsynced: VecDeque<Fid>,
}

impl Outstanding {
    /// Makes one without records; `incarnation` is the newest one known of, and no records are made in it before
    /// [`Self::begin_life`].
    pub(crate) fn new(client: ClientId, incarnation: Incarnation) -> Self {
        Self {
            client,
            incarnation,
            last_seq: 0,
            records: BTreeMap::new(),
            touched: TouchIndex::default(),
            ended: BTreeSet::new(),
            queued: BTreeSet::new(),
            barrier: BTreeSet::new(),
            fsynced: VecDeque::new(),
        }
    }

    /// Whether nothing waits for an answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Begins a life in an incarnation that the server has granted and that is durable here.
    pub(crate) fn begin_life(&mut self, incarnation: Incarnation) {
        self.incarnation = incarnation;
        self.last_seq = 0;
    }

    /// Makes the record of a mutation; it is outstanding until [`Self::end`].
    pub(crate) fn begin(&mut self, op: CmlOp, time: Timestamp, uid: u32, gid: u32) -> CmlRecord {
        self.make(op, None, time, (uid, gid)).0
    }

    /// Makes the record of a mutation that waits in a queue, with what it must wait for besides what it names.
    pub(crate) fn begin_queued(
        &mut self,
        (op, removes): (CmlOp, Option<Removed>),
        time: Timestamp,
        (uid, gid): (u32, u32),
    ) -> (CmlRecord, Vec<StoreId>) {
        let (record, unlisted) = self.make(op, removes, time, (uid, gid));
        self.queued.insert(record.id);
        (record, unlisted)
    }

    fn make(
        &mut self,
        op: CmlOp,
        removes: Option<Removed>,
        time: Timestamp,
        (uid, gid): (u32, u32),
    ) -> (CmlRecord, Vec<StoreId>) {
        self.last_seq += 1;
        let id = StoreId { client: self.client, incarnation: self.incarnation, seq: self.last_seq };
        let Dependencies { listed, unlisted } = self.dependencies(&op);
        let record = CmlRecord { id, depends_on: listed, time, uid, gid, removes, op };
        self.resume(record.clone());
        if self.names_fsynced(&record.op) {
            self.raise_barrier([id]);
        }
        (record, unlisted)
    }

    /// Notes that a record of an earlier life waits in a queue.
    pub(crate) fn note_queued(&mut self, id: StoreId) {
        self.queued.insert(id);
    }

    /// Notes that the server's first word about a record is its last: its maker waits for that, and the record does not
    /// come again.
    pub(crate) fn ask_once(&mut self, id: StoreId) {
        self.queued.remove(&id);
    }

    /// Whether a record comes again if it is refused for a reason that passes.
    pub(crate) fn is_queued(&self, id: StoreId) -> bool {
        self.queued.contains(&id)
    }

    /// Takes in a record of an earlier life, or what has become of one that was not sent yet.
    pub(crate) fn resume(&mut self, record: CmlRecord) {
        self.touched.insert(record.id, &record.op);
        self.records.insert(record.id, record);
    }

    /// Ends a record that has been answered for good.
    pub(crate) fn end(&mut self, id: StoreId) {
        let is_queued = self.queued.remove(&id);
        if let Some(record) = self.records.remove(&id) {
            self.touched.remove(id, &record.op);
            if is_queued || matches!(record.op, CmlOp::Store { .. }) {
                self.ended.insert(id);
            }
        }
        self.barrier.remove(&id);
    }

    /// Returns the records that have ended, as far as the log may forget that.
    pub(crate) fn ended(&self) -> BTreeSet<StoreId> {
        self.ended.clone()
    }

    /// Notes that the log will not forget that these have ended.
    pub(crate) fn note_ended_durable(&mut self, ids: &BTreeSet<StoreId>) {
        self.ended.retain(|id| !ids.contains(id));
    }

    /// Raises the barrier to these records, which are durable here: no later record may reach the server before them.
    pub(crate) fn raise_barrier(&mut self, ids: impl IntoIterator<Item = StoreId>) {
        for id in ids {
            if let Some(record) = self.records.get(&id) {
                // A record that depends on this one depends on these as well.
                self.barrier.retain(|before| !record.depends_on.contains(before));
                self.barrier.insert(id);
            }
        }
    }

    /// Notes that a file has been fsynced. Programs give it its name afterwards, and then take away what it replaces:
    /// no later record may reach the server before that name either.
    pub(crate) fn note_fsynced(&mut self, fid: Fid) {
        self.fsynced.retain(|other| *other != fid);
        self.fsynced.push_back(fid);
        if self.fsynced.len() > FSYNCED_MAX {
            self.fsynced.pop_front();
        }
    }

    fn names_fsynced(&self, op: &CmlOp) -> bool {
        op.named_fid().is_some_and(|fid| self.fsynced.contains(&fid))
    }

    /// Whether a record that was not sent may take in a later change: if nothing that it does not depend on has been
    /// made durable since, and it has not been itself.
    pub(crate) fn may_take_in(&self, id: StoreId) -> bool {
        self.barrier.iter().all(|before| self.is_behind(id, *before))
    }

    /// Whether a record may take in a later change as in [`Self::may_take_in`], though it may itself have been made
    /// durable: the part of it that was stays so.
    pub(crate) fn may_go_on(&self, id: StoreId) -> bool {
        self.barrier.iter().all(|before| *before == id || self.is_behind(id, *before))
    }

    fn is_behind(&self, id: StoreId, before: StoreId) -> bool {
        self.records.get(&id).is_some_and(|record| record.depends_on.contains(&before))
    }

    /// Returns the newest record about an object.
    pub(crate) fn newest(&self, fid: Fid) -> Option<StoreId> {
        self.touched.newest(fid)
    }

    /// Lists the records about an object, oldest first.
    pub(crate) fn about(&self, fid: Fid) -> Vec<StoreId> {
        self.touched.about(fid).collect()
    }

    /// Lists the records that change names in a directory, oldest first.
    pub(crate) fn below(&self, directory: Fid) -> Vec<StoreId> {
        self.touched.below(directory).collect()
    }

    /// Whether replies to records of earlier lives are not confirmed.
    pub(crate) fn has_earlier_lives(&self) -> bool {
        self.confirmed_below().incarnation < self.incarnation
    }

    /// Returns the id such that all replies to records before it have arrived, for good.
    pub(crate) fn confirmed_below(&self) -> StoreId {
        match self.records.keys().next().into_iter().chain(self.ended.first()).min() {
            Some(first) => *first,
            None => StoreId { client: self.client, incarnation: self.incarnation, seq: self.last_seq + 1 },
        }
    }

    /// Finds the outstanding records that touch what `op` touches, as far as it depends on them, and those behind which
    /// everything is.
    fn dependencies(&self, op: &CmlOp) -> Dependencies {
        let discarded = |id: &StoreId| self.records.get(id).is_some_and(|earlier| discards(op, &earlier.op));
        let Conflicting { mut objects, mut names } = self.touched.conflicting(op);
        if is_store(op) {
            self.keep_last_store(&mut objects);
        }
        objects.retain(|id| !discarded(id));
        names.retain(|id| !discarded(id));
        objects.extend(&self.barrier);
        let mut unlisted: Vec<StoreId> = self.with_last(objects, &names).into_iter().collect();
        let listed = unlisted.split_off(unlisted.len().saturating_sub(CmlRecord::DEPENDS_ON_MAX));
        Dependencies { listed, unlisted }
    }

    /// Keeps only the last of the contents of a file, which is behind the others: some programs add to a file for
    /// hours.
    fn keep_last_store(&self, ids: &mut BTreeSet<StoreId>) {
        let is_content = |id: &StoreId| self.records.get(id).is_some_and(|record| is_store(&record.op));
        let last = ids.iter().rev().find(|id| is_content(id)).copied();
        ids.retain(|id| !is_content(id) || Some(*id) == last);
    }

    /// Adds to these those of the others that none of all is behind: git gives the same names at every commit. The
    /// server may do a removal ahead of what it is behind (`server/src/core/refused.rs`).
    fn with_last(&self, mut these: BTreeSet<StoreId>, others: &BTreeSet<StoreId>) -> BTreeSet<StoreId> {
        let all: BTreeSet<StoreId> = these.union(others).copied().collect();
        let mut covered: BTreeSet<StoreId> = BTreeSet::new();
        for id in all.iter().rev() {
            if !covered.contains(id) {
                these.insert(*id);
            }
            let record = self.records.get(id).filter(|record| !is_removal(&record.op));
            let before = record.into_iter().flat_map(|record| &record.depends_on);
            covered.extend(before.copied().filter(|before| all.contains(before)));
        }
        these
    }
}

fn is_store(op: &CmlOp) -> bool {
    matches!(op, CmlOp::Store { .. })
}

fn is_removal(op: &CmlOp) -> bool {
    matches!(op, CmlOp::Remove { .. } | CmlOp::RemoveDir { .. })
}

/// Dependencies of a record, oldest first.
struct Dependencies {
    /// The newest: as many as a record may name.
    listed: Vec<StoreId>,
    /// The others, which must have been answered before the record is sent.
    unlisted: Vec<StoreId>,
}

#[cfg(test)]
mod tests {
    use mafs_proto::{Base, DataVersion, Mode, Name, RenameMode, VnodeId, VolumeId};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn fid(vnode: u64) -> Fid {
        Fid { vnode: VnodeId(vnode), ..Fid::root(VolumeId(1)) }
    }

    fn make_dir(parent: u64, name: &'static str, vnode: u64) -> CmlOp {
        let name = Name::new(name.as_bytes()).unwrap();
        CmlOp::MakeDir { parent: fid(parent), name, fid: fid(vnode), mode: Mode::from_bits(0o755) }
    }

    fn store(vnode: u64) -> CmlOp {
        CmlOp::Store { fid: fid(vnode), base: Base::Version(DataVersion(1)), size: 0, mtime: Timestamp::default() }
    }

    fn log() -> Outstanding {
        let mut log = Outstanding::new(ClientId([7; 16]), Incarnation(1));
        log.begin_life(Incarnation(2));
        log
    }

    #[test]
    fn a_record_depends_on_those_that_touch_the_same_object_name_or_directory() {
        let mut log = log();
        let now = Timestamp::default();
        let dir = log.begin(make_dir(1, "a", 10), now, 0, 0).id;
        let below = log.begin(make_dir(10, "b", 11), now, 0, 0);
        assert_eq!(below.depends_on, [dir]);
        assert_eq!(log.begin(make_dir(1, "a", 12), now, 0, 0).depends_on, [dir]);
        assert_eq!(log.begin(make_dir(1, "c", 13), now, 0, 0).depends_on, []);
        let first = log.begin(store(20), now, 0, 0).id;
        assert_eq!(log.begin(store(20), now, 0, 0).depends_on, [first]);
    }

    #[test]
    fn a_removal_does_not_wait_for_the_content_of_what_it_removes() {
        let mut log = log();
        let now = Timestamp::default();
        let first = log.begin(store(20), now, 0, 0).id;
        let second = log.begin(store(21), now, 0, 0).id;
        let name = |name: &'static str| Name::new(name.as_bytes()).unwrap();
        let remove = CmlOp::Remove { parent: fid(1), name: name("a"), fid: fid(20) };
        assert_eq!(log.begin(remove, now, 0, 0).depends_on, []);
        let rename = |mode| CmlOp::Rename {
            from_parent: fid(1),
            from_name: name("b"),
            to_parent: fid(1),
            to_name: name("c"),
            fid: fid(21),
            replaced: Some(fid(20)),
            mode,
        };
        let replacing = log.begin(rename(RenameMode::Replace), now, 0, 0);
        assert!(replacing.depends_on.contains(&second), "a name is never given to content that is not there");
        assert!(!replacing.depends_on.contains(&first));
        assert!(log.begin(rename(RenameMode::Exchange), now, 0, 0).depends_on.contains(&first));
    }

    #[test]
    fn replies_are_confirmed_up_to_the_oldest_outstanding_record() {
        let mut log = log();
        let now = Timestamp::default();
        let ids: Vec<_> = (0..3).map(|vnode| log.begin(make_dir(1, "a", vnode + 5), now, 0, 0).id).collect();
        log.end(ids[1]);
        assert_eq!(log.confirmed_below(), ids[0]);
        log.end(ids[0]);
        assert_eq!(log.confirmed_below(), ids[2]);
        log.end(ids[2]);
        assert!(log.confirmed_below() > ids[2]);
    }

    #[test]
    fn replies_to_what_is_in_the_log_are_confirmed_once_the_log_will_not_forget_them() {
        let mut log = log();
        let now = Timestamp::default();
        let make = |log: &mut Outstanding| log.begin_queued((make_dir(1, "a", 10), None), now, (0, 0)).0.id;
        let [first, second, third] = [make(&mut log), make(&mut log), make(&mut log)];
        log.end(second);
        log.end(first);
        let ended = log.ended();
        log.end(third);
        assert_eq!(log.confirmed_below(), first);
        log.note_ended_durable(&ended);
        assert_eq!(log.confirmed_below(), third);
        log.note_ended_durable(&log.ended());
        assert!(log.confirmed_below() > third);
    }

    #[test]
    fn earlier_lives_last_until_the_answer_to_their_last_record_is_durable() {
        let mut log = log();
        let first = log.begin(store(5), Timestamp::default(), 0, 0).id;
        assert!(!log.has_earlier_lives());
        log.begin_life(Incarnation(3));
        assert!(log.has_earlier_lives());
        log.begin(store(6), Timestamp::default(), 0, 0);
        log.end(first);
        assert!(log.has_earlier_lives(), "the log may forget that");
        log.note_ended_durable(&log.ended());
        assert!(!log.has_earlier_lives());
    }

    #[test]
    fn invariant_2_ids_are_never_used_twice_over_lives() {
        let mut log = log();
        let now = Timestamp::default();
        let before = log.begin(store(5), now, 0, 0).id;
        log.begin_life(Incarnation(3));
        let after = log.begin(store(5), now, 0, 0).id;
        assert!(after > before);
    }
    #[test]
    fn nothing_overtakes_what_was_made_durable_before_it() {
        let mut log = log();
        let now = Timestamp::default();
        let ids: Vec<_> = (0..4).map(|vnode| log.begin(store(vnode + 5), now, 0, 0).id).collect();
        log.raise_barrier([ids[1]]);
        assert!(!log.may_take_in(ids[0]) && !log.may_take_in(ids[1]) && !log.may_take_in(ids[2]));
        let behind = log.begin(store(20), now, 0, 0);
        assert_eq!(behind.depends_on, [ids[1]]);
        assert!(log.may_take_in(behind.id));
        log.raise_barrier([behind.id]);
        assert!(!log.may_take_in(behind.id), "it is durable itself");
        assert!(log.may_go_on(behind.id) && !log.may_go_on(ids[2]));
        assert_eq!(log.begin(store(21), now, 0, 0).depends_on, [behind.id], "which is behind the other");
        log.end(behind.id);
        assert_eq!(log.begin(store(22), now, 0, 0).depends_on, []);
    }

    /// git packs objects, renames the pack and removes the objects.
    #[test]
    fn nothing_overtakes_the_name_of_what_was_fsynced() {
        let mut log = log();
        let now = Timestamp::default();
        let rename = |vnode| CmlOp::Rename {
            from_parent: fid(1),
            from_name: Name::new("draft").unwrap(),
            to_parent: fid(2),
            to_name: Name::new("pack").unwrap(),
            fid: fid(vnode),
            replaced: None,
            mode: RenameMode::Replace,
        };
        let stored = log.begin(store(5), now, 0, 0).id;
        log.raise_barrier([stored]);
        log.note_fsynced(fid(5));
        let renamed = log.begin(rename(5), now, 0, 0);
        assert_eq!(renamed.depends_on, [stored]);
        log.begin(rename(6), now, 0, 0);
        assert_eq!(log.begin(store(20), now, 0, 0).depends_on, [renamed.id]);
        for other in 0..FSYNCED_MAX as u64 {
            log.note_fsynced(fid(100 + other));
        }
        assert_eq!(log.fsynced.len(), FSYNCED_MAX);
    }

    /// Git does this at every commit, for hours without a connection.
    #[test]
    fn a_name_that_is_given_again_and_again_makes_no_record_longer() {
        let mut log = log();
        let now = Timestamp::default();
        let name = |name: &'static str| Name::new(name).unwrap();
        for vnode in 100..1000 {
            let made = make_dir(1, "lock", vnode);
            let renamed = CmlOp::Rename {
                from_parent: fid(1),
                from_name: name("lock"),
                to_parent: fid(1),
                to_name: name("index"),
                fid: fid(vnode),
                replaced: (vnode > 100).then_some(fid(vnode - 1)),
                mode: RenameMode::Replace,
            };
            for op in [made, store(vnode), renamed, store(5)] {
                let record = log.begin(op, now, 0, 0);
                assert!(record.depends_on.len() <= 5, "{record:?}");
            }
        }
    }

    fn any_op((kind, object, names): (u8, u64, [u8; 2])) -> CmlOp {
        let [from, to] = names.map(|name| Name::new(vec![b'a' + name]).unwrap());
        let (parent, to_parent) = (fid(1 + object % 2), fid(1 + object / 2 % 2));
        match kind {
            0 => CmlOp::MakeDir { parent, name: from, fid: fid(object), mode: Mode::from_bits(0o755) },
            1 => CmlOp::Remove { parent, name: from, fid: fid(object) },
            2 => CmlOp::RemoveDir { parent, name: from, fid: fid(object) },
            3 => CmlOp::SetAttr { fid: fid(object), set: mafs_proto::SetAttr::default() },
            4 => store(object),
            _ => CmlOp::Rename {
                from_parent: parent,
                from_name: from,
                to_parent,
                to_name: to,
                fid: fid(object),
                replaced: (kind == 5).then_some(fid(object + 1)),
                mode: RenameMode::Replace,
            },
        }
    }

    /// Finds all that are before a record by way of what is before others.
    fn closure(before: &BTreeMap<StoreId, BTreeSet<StoreId>>, id: StoreId) -> BTreeSet<StoreId> {
        let (mut all, mut open) = (BTreeSet::new(), vec![id]);
        while let Some(next) = open.pop() {
            let new = before.get(&next).into_iter().flatten().filter(|before| all.insert(**before));
            open.extend(new.copied().collect::<Vec<_>>());
        }
        all
    }

    proptest! {
        /// A record is behind the same others as if it named all that it touches.
        #[test]
        fn proptest_a_record_is_behind_all_that_it_touches(
            ops in vec((0u8..7, 1u64..6, [0u8..3, 0u8..3]), 1..60),
            barriers in vec(any::<bool>(), 60),
        ) {
            let mut log = log();
            let (mut named, mut touched) = (BTreeMap::new(), BTreeMap::new());
            for (op, barrier) in ops.into_iter().map(any_op).zip(barriers) {
                let Conflicting { objects, names } = log.touched.conflicting(&op);
                let mut all: BTreeSet<StoreId> = objects.union(&names).copied().collect();
                all.retain(|id| !discards(&op, &log.records[id].op));
                all.extend(&log.barrier);
                let mut objects: BTreeSet<StoreId> = objects.intersection(&all).copied().collect();
                let is_content = |id: &StoreId| is_store(&log.records[id].op);
                let last = objects.iter().rev().find(|id| is_content(id)).copied();
                objects.retain(|id| !is_store(&op) || !is_content(id) || Some(*id) == last);
                let record = log.begin(op, Timestamp::default(), 0, 0);
                let depends_on: BTreeSet<StoreId> = record.depends_on.into_iter().collect();
                prop_assert!(depends_on.is_superset(&objects), "a content and the name it gets are told of together");
                named.insert(record.id, depends_on);
                touched.insert(record.id, all);
                prop_assert_eq!(closure(&named, record.id), closure(&touched, record.id));
                if barrier {
                    log.raise_barrier([record.id]);
                }
            }
        }
    }

    #[test]
    fn what_a_record_cannot_name_is_waited_for() {
        let mut log = log();
        let now = Timestamp::default();
        let count = CmlRecord::DEPENDS_ON_MAX as u64 + 7;
        let names = (0..count).map(|at| Name::new(format!("{at}")).unwrap());
        let dirs = names.zip(100..).map(|(name, vnode)| CmlOp::MakeDir {
            parent: fid(1),
            name,
            fid: fid(vnode),
            mode: Mode::from_bits(0o755),
        });
        let ids: Vec<_> = dirs.map(|op| log.begin(op, now, 0, 0).id).collect();
        let set = CmlOp::SetAttr { fid: fid(1), set: mafs_proto::SetAttr::default() };
        let (record, unlisted) = log.begin_queued((set, None), now, (0, 0));
        assert_eq!(record.depends_on, ids[7..]);
        assert_eq!(unlisted, ids[..7]);
    }
}
