//! Outstanding records: the ids this client has given to mutations that the server has not answered yet.
//!
//! Ids are never used twice: an incarnation is granted by the server for one life of the client, and `seq` only rises
//! in it.

use std::collections::BTreeMap;

use mafs_proto::{ClientId, CmlOp, CmlRecord, Fid, Incarnation, Name, RenameMode, StoreId, Timestamp};

/// Gives ids to mutations and knows which are unanswered.
#[derive(Debug)]
pub(crate) struct Outstanding {
    client: ClientId,
    incarnation: Incarnation,
    last_seq: u64,
    records: BTreeMap<StoreId, CmlRecord>,
}

impl Outstanding {
    /// No records; `incarnation` is the newest one known of, and no records are made in it before [`Self::begin_life`].
    pub(crate) fn new(client: ClientId, incarnation: Incarnation) -> Self {
        Self { client, incarnation, last_seq: 0, records: BTreeMap::new() }
    }

    /// The server has granted a new incarnation and it is durable here.
    pub(crate) fn begin_life(&mut self, incarnation: Incarnation) {
        self.incarnation = incarnation;
        self.last_seq = 0;
    }

    /// Makes the record of a mutation; it is outstanding until [`Self::end`].
    pub(crate) fn begin(&mut self, op: CmlOp, time: Timestamp, uid: u32, gid: u32) -> CmlRecord {
        self.last_seq += 1;
        let id = StoreId { client: self.client, incarnation: self.incarnation, seq: self.last_seq };
        let depends_on = self.dependencies(&op);
        let record = CmlRecord { id, depends_on, time, uid, gid, op };
        self.records.insert(id, record.clone());
        record
    }

    /// Takes in a record of an earlier life.
    pub(crate) fn resume(&mut self, record: CmlRecord) {
        self.records.insert(record.id, record);
    }

    /// The record has been answered for good.
    pub(crate) fn end(&mut self, id: StoreId) {
        self.records.remove(&id);
    }

    /// All replies to records before this id have arrived.
    pub(crate) fn confirmed_below(&self) -> StoreId {
        match self.records.keys().next() {
            Some(first) => *first,
            None => StoreId { client: self.client, incarnation: self.incarnation, seq: self.last_seq + 1 },
        }
    }

    /// The outstanding records that touch what `op` touches, newest last, at most as many as a record may name.
    fn dependencies(&self, op: &CmlOp) -> Vec<StoreId> {
        let touches = touched(op);
        let earlier = self.records.values().filter(|record| !discards(op, &record.op));
        let ids = earlier.filter(|record| overlap(&touched(&record.op), &touches));
        ids.map(|record| record.id).take(CmlRecord::DEPENDS_ON_MAX).collect()
    }
}

/// What order matters for: objects, and names in directories.
struct Touched<'a> {
    objects: [Option<Fid>; 2],
    names: [Option<(Fid, &'a Name)>; 2],
}

fn touched(op: &CmlOp) -> Touched<'_> {
    match op {
        CmlOp::Create { parent, name, fid, .. }
        | CmlOp::MakeDir { parent, name, fid, .. }
        | CmlOp::SymLink { parent, name, fid, .. }
        | CmlOp::Link { parent, name, fid }
        | CmlOp::Remove { parent, name, fid }
        | CmlOp::RemoveDir { parent, name, fid } => {
            Touched { objects: [Some(*fid), None], names: [Some((*parent, name)), None] }
        }
        CmlOp::Rename { from_parent, from_name, to_parent, to_name, fid, replaced, .. } => Touched {
            objects: [Some(*fid), *replaced],
            names: [Some((*from_parent, from_name)), Some((*to_parent, to_name))],
        },
        CmlOp::SetAttr { fid, .. }
        | CmlOp::SetXattr { fid, .. }
        | CmlOp::RemoveXattr { fid, .. }
        | CmlOp::Store { fid, .. } => Touched { objects: [Some(*fid), None], names: [None, None] },
    }
}

/// Whether `op` takes a name from the file that `earlier` stores: it need not wait until that content has arrived,
/// which may take long. If the name was the last one the store is refused, and nobody wants it.
fn discards(op: &CmlOp, earlier: &CmlOp) -> bool {
    let CmlOp::Store { fid: stored, .. } = earlier else { return false };
    match op {
        CmlOp::Remove { fid, .. } => fid == stored,
        CmlOp::Rename { replaced, mode: RenameMode::Replace, .. } => *replaced == Some(*stored),
        _ => false,
    }
}

fn overlap(one: &Touched<'_>, other: &Touched<'_>) -> bool {
    let object = one.objects.iter().flatten().any(|fid| other.objects.contains(&Some(*fid)));
    let name = one.names.iter().flatten().any(|name| other.names.contains(&Some(*name)));
    // A directory must be there before names in it are made, and empty before it is removed.
    let parent_of = |names: &[Option<(Fid, &Name)>; 2], objects: &[Option<Fid>; 2]| {
        names.iter().flatten().any(|(parent, _)| objects.contains(&Some(*parent)))
    };
    object || name || parent_of(&one.names, &other.objects) || parent_of(&other.names, &one.objects)
}

#[cfg(test)]
mod tests {
    use mafs_proto::{Base, DataVersion, Mode, VnodeId, VolumeId};

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
        let ids: Vec<_> = (0..3).map(|vnode| log.begin(store(vnode + 5), now, 0, 0).id).collect();
        log.end(ids[1]);
        assert_eq!(log.confirmed_below(), ids[0]);
        log.end(ids[0]);
        assert_eq!(log.confirmed_below(), ids[2]);
        log.end(ids[2]);
        assert!(log.confirmed_below() > ids[2]);
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
}
