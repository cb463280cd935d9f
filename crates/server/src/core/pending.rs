//! Pending: records that clients have announced and not delivered yet (consistency.md, "SIRP").
//!
//! An announced record *counts* for everybody but its own client, as long as that client has a session: a client that
//! opens what it touches waits for it, and nobody is promised anything about that. Entries are in the order of their
//! announcement; a record that is announced again keeps its place, so that waits for it need not be moved. Entries of
//! one client are in the order of its log: a record that was on its way, and is refused for a while, may be announced
//! after the next.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use bytes::Bytes;
use mafs_proto::{
    Base, ChangeNumber, ClientId, CmlOp, CmlRecord, DataVersion, Fid, Incarnation, Name, RenameMode, SetAttr, Status,
    StoreId, SymlinkTarget, Timestamp, VnodeId, Wire, XattrValue,
};

use super::Refusal;
use super::promises::{Touched, changed_names};

/// Limit of announced records of one client; about 2 MB. A client announces a quarter of it at a time.
pub(crate) const PENDING_MAX: usize = 4096;

/// An entry's place: by the change that its announcement was, then by its place in its log.
type Place = (ChangeNumber, StoreId);

/// The announced records of a volume.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    records: BTreeMap<StoreId, Announced>,
    counts: BTreeMap<ClientId, usize>,
    /// The places of records by what they are about; by vnode, as promises are.
    objects: BTreeMap<VnodeId, BTreeSet<Place>>,
    names: BTreeMap<(VnodeId, Name), BTreeSet<Place>>,
    directories: BTreeMap<VnodeId, BTreeSet<Place>>,
}

/// An announced record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Announced {
    /// The record as [`slim`] leaves it.
    pub(crate) record: CmlRecord,
    /// The change that its first announcement was.
    pub(crate) since: ChangeNumber,
    /// The change that its last announcement was. After a start, that of the first.
    pub(crate) changed: ChangeNumber,
}

/// Kind of an announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entered {
    /// The first of its record, or an announcement that changes what was announced.
    Changed,
    /// One that repeats the last: its answer was lost.
    Repeated,
    /// One too many of its client.
    Full,
}

/// Subject of a question about announced records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum About {
    /// An object; for a directory that includes its names.
    Object(VnodeId),
    /// The meaning of a name in a directory.
    Name(VnodeId, Name),
    /// The meanings of all names of a directory.
    Names(VnodeId),
    /// The extended attributes of an object.
    Xattrs(VnodeId),
}

/// The client that asks, and the clients whose announcements count.
#[derive(Clone, Copy)]
pub(crate) struct Viewer<'v> {
    /// The client that asks. Its own records do not count: it sees them anyway.
    pub(crate) client: ClientId,
    /// Whether a client has a session.
    pub(crate) is_live: &'v dyn Fn(ClientId) -> bool,
}

/// Change that an announced record will make to the status of its object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Laid {
    Store { size: u64, mtime: Timestamp, ctime: Timestamp },
    SetAttr { set: SetAttr, ctime: Timestamp },
}

impl Viewer<'_> {
    fn counts(&self, client: ClientId) -> bool {
        client != self.client && (self.is_live)(client)
    }
}

impl Pending {
    /// Enters a record, announced as `change`, or replaces what was announced of it before.
    pub(crate) fn announce(&mut self, record: &CmlRecord, change: ChangeNumber) -> Entered {
        let record = slim(record);
        let since = match self.records.get(&record.id) {
            Some(known) if known.record == record => return Entered::Repeated,
            Some(known) => known.since,
            None if self.count(record.id.client) >= PENDING_MAX => return Entered::Full,
            None => change,
        };
        self.remove(&record.id);
        self.insert(Announced { record, since, changed: change });
        Entered::Changed
    }

    /// Enters a record that an earlier start has kept.
    pub(crate) fn insert(&mut self, announced: Announced) {
        let (op, place) = (&announced.record.op, (announced.since, announced.record.id));
        for vnode in objects_of(op) {
            self.objects.entry(vnode).or_default().insert(place);
        }
        for (directory, name) in changed_names(op) {
            self.names.entry((directory.vnode, name.clone())).or_default().insert(place);
            self.directories.entry(directory.vnode).or_default().insert(place);
        }
        *self.counts.entry(place.1.client).or_default() += 1;
        self.records.insert(place.1, announced);
    }

    /// Forgets a record. Returns whether it was there.
    pub(crate) fn remove(&mut self, id: &StoreId) -> bool {
        let Some(Announced { record, since, .. }) = self.records.remove(id) else { return false };
        let place = (since, *id);
        for vnode in objects_of(&record.op) {
            take_out(&mut self.objects, &vnode, &place);
        }
        for (directory, name) in changed_names(&record.op) {
            take_out(&mut self.names, &(directory.vnode, name.clone()), &place);
            take_out(&mut self.directories, &directory.vnode, &place);
        }
        if let Some(count) = self.counts.get_mut(&id.client) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&id.client);
            }
        }
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(crate) fn get(&self, id: &StoreId) -> Option<&Announced> {
        self.records.get(id)
    }

    /// Tells whether a record was announced before another, or only it was. Records before an announced record of a
    /// name in its client's log count as announced with it: or another that waits for that one would wait for itself.
    pub(crate) fn is_before(&self, id: &StoreId, other: &CmlRecord) -> bool {
        let place = |id: &StoreId| self.get(id).map(|announced| (announced.since, announced.record.id));
        let names = changed_names(&other.op).into_iter();
        let of_names = names.flat_map(|(parent, name)| self.places(&About::Name(parent.vnode, name.clone())));
        let behind = of_names.filter(|(_, id)| id.client == other.id.client && *id >= other.id);
        let second = behind.chain(place(&other.id)).min();
        place(id).is_some_and(|first| second.is_none_or(|second| first < second))
    }

    /// Returns all records of a client, in the order of its log.
    pub(crate) fn of_client(&self, client: ClientId) -> impl Iterator<Item = &Announced> {
        self.records.range(ids_of(client)).map(|(_, announced)| announced)
    }

    /// Returns the objects that the records of other clients touch.
    pub(crate) fn touched_by_others(&self, client: ClientId) -> impl Iterator<Item = VnodeId> {
        let others = self.records.values().filter(move |announced| announced.record.id.client != client);
        others.flat_map(|announced| touched(&announced.record.op)).map(|touched| touched.fid.vnode)
    }

    /// Returns the records of the client of `below` that come before that record in its log.
    pub(crate) fn below(&self, below: StoreId) -> Vec<StoreId> {
        let ids = self.of_client(below.client).map(|announced| announced.record.id);
        ids.take_while(|id| *id < below).collect()
    }

    /// Lists the records that count and touch what `viewer` asks about, in the order of their announcement, and those
    /// of one client in that of its log.
    pub(crate) fn touching(&self, about: &About, viewer: Viewer<'_>) -> Vec<StoreId> {
        let touching = self.places(about).into_iter().map(|(_, id)| id).filter(|id| viewer.counts(id.client));
        in_log_order(touching.collect())
    }

    /// Returns the object that a name will mean by the last of the records that count and touch it; `None` if there
    /// is none, or that does not say.
    pub(crate) fn meaning(&self, directory: VnodeId, name: &Name, viewer: Viewer<'_>) -> Option<Fid> {
        let about = About::Name(directory, name.clone());
        let last = self.touching(&about, viewer).pop()?;
        match &self.get(&last)?.record.op {
            CmlOp::Link { fid, .. } => Some(*fid),
            CmlOp::Rename { to_parent, to_name, fid, mode: RenameMode::Replace | RenameMode::NoReplace, .. } => {
                (to_parent.vnode == directory && to_name == name).then_some(*fid)
            }
            _ => None,
        }
    }

    /// Tells whether a record of another client touches an object and does not count, because its client is gone. A
    /// content made from another version than `present` is not missed: it has been overtaken.
    pub(crate) fn leaves_out(&self, vnode: VnodeId, present: DataVersion, viewer: Viewer<'_>) -> bool {
        let is_missed = |id: &StoreId| match self.get(id).map(|announced| &announced.record.op) {
            Some(CmlOp::Store { base: Base::Version(base), .. }) => *base == present,
            Some(_) => true,
            None => false,
        };
        let others = self.places(&About::Object(vnode)).into_iter().filter(|(_, id)| id.client != viewer.client);
        others.into_iter().any(|(_, id)| !viewer.counts(id.client) && is_missed(&id))
    }

    /// Returns the changes that the records that count will make to the status of an object; `None` if none touches
    /// it. The status of a directory whose names are touched stays as it is.
    pub(crate) fn laid_over(&self, vnode: VnodeId, viewer: Viewer<'_>) -> Option<Vec<Laid>> {
        let touching = self.touching(&About::Object(vnode), viewer);
        let laid = |id: &StoreId| {
            let record = &self.records.get(id)?.record;
            if record.op.fid().vnode == vnode { Laid::of(record) } else { None }
        };
        (!touching.is_empty()).then(|| touching.iter().filter_map(laid).collect())
    }

    /// Tells whether a Store of `viewer`'s on this base is in conflict with what others have announced: another
    /// content, or that all names of the file go, which would take this content along. Records in `ended` do not
    /// count any more. The number of the file's names is asked only if some go.
    pub(crate) fn is_in_conflict(
        &self,
        fid: Fid,
        base: Base,
        ended: &BTreeSet<StoreId>,
        viewer: Viewer<'_>,
        names_of: impl Fn(Fid) -> u32,
    ) -> bool {
        if let Base::Record(_) = base {
            return false;
        }
        let touching = self.touching(&About::Object(fid.vnode), viewer);
        let counting = touching.iter().filter(|id| !ended.contains(id)).filter_map(|id| self.get(id));
        let mut lost_names = 0;
        for announced in counting {
            match &announced.record.op {
                CmlOp::Store { fid: of, .. } if *of == fid => return true,
                CmlOp::Link { fid: of, .. } if *of == fid => lost_names -= 1,
                op if takes_a_name_of(fid, op) => lost_names += 1,
                _ => {}
            }
        }
        lost_names > 0 && i64::from(names_of(fid)) <= lost_names
    }

    /// Tells whether a client has announced that it makes an object.
    pub(crate) fn makes(&self, client: ClientId, fid: Fid) -> bool {
        let about = self.places(&About::Object(fid.vnode)).into_iter().filter(|(_, id)| id.client == client);
        about.filter_map(|(_, id)| self.get(&id)).any(|announced| announced.record.op.made() == Some(fid))
    }

    fn count(&self, client: ClientId) -> usize {
        self.counts.get(&client).copied().unwrap_or_default()
    }

    /// Returns the places of all records that touch it, in the order of announcement.
    fn places(&self, about: &About) -> BTreeSet<Place> {
        let (found, names) = match about {
            About::Object(vnode) => (self.objects.get(vnode), self.directories.get(vnode)),
            About::Name(directory, name) => (self.names.get(&(*directory, name.clone())), None),
            About::Names(directory) => (self.directories.get(directory), None),
            About::Xattrs(vnode) => {
                let is_xattr = |id: &StoreId| self.get(id).is_some_and(|announced| is_of_xattr(&announced.record.op));
                let places = self.objects.get(vnode).into_iter().flatten();
                return places.filter(|(_, id)| is_xattr(id)).copied().collect();
            }
        };
        [found, names].into_iter().flatten().flatten().copied().collect()
    }
}

impl Announced {
    /// Encodes the record as the index keeps it: docs/formats.md, "Keys of the index".
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.since.0.to_be_bytes()[..], &self.record.encode()].concat()
    }

    /// Reads what [`Self::encode`] wrote.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let damaged = || Refusal::damaged("an announced record");
        let (since, record) = bytes.split_first_chunk::<8>().ok_or_else(damaged)?;
        let since = ChangeNumber(u64::from_be_bytes(*since));
        let record = CmlRecord::decode(Bytes::copy_from_slice(record)).map_err(|_| damaged())?;
        Ok(Self { record, since, changed: since })
    }
}

impl Laid {
    fn of(record: &CmlRecord) -> Option<Self> {
        let ctime = record.time;
        match record.op {
            CmlOp::Store { size, mtime, .. } => Some(Self::Store { size, mtime, ctime }),
            CmlOp::SetAttr { set, .. } => Some(Self::SetAttr { set, ctime }),
            CmlOp::Create { .. }
            | CmlOp::MakeDir { .. }
            | CmlOp::SymLink { .. }
            | CmlOp::Link { .. }
            | CmlOp::Remove { .. }
            | CmlOp::RemoveDir { .. }
            | CmlOp::Rename { .. }
            | CmlOp::SetXattr { .. }
            | CmlOp::RemoveXattr { .. } => None,
        }
    }

    /// Changes a status as the record will; versions stay.
    pub(crate) fn lay_over(self, status: &mut Status) {
        match self {
            Self::Store { size, mtime, ctime } => {
                (status.size, status.mtime, status.ctime) = (size, mtime, ctime);
            }
            Self::SetAttr { set, ctime } => {
                status.set(&set);
                status.ctime = ctime;
            }
        }
    }
}

/// Sorts ids: each client keeps its places, and has its records there in the order of its log.
fn in_log_order(ids: Vec<StoreId>) -> Vec<StoreId> {
    let mut left: BTreeMap<ClientId, BTreeSet<StoreId>> = BTreeMap::new();
    ids.iter().for_each(|id| _ = left.entry(id.client).or_default().insert(*id));
    ids.iter().filter_map(|id| left.get_mut(&id.client)?.pop_first()).collect()
}

/// Returns all ids that a client's records may have.
pub(crate) fn ids_of(client: ClientId) -> RangeInclusive<StoreId> {
    let first = StoreId { client, incarnation: Incarnation(0), seq: 0 };
    let last = StoreId { client, incarnation: Incarnation(u64::MAX), seq: u64::MAX };
    first..=last
}

/// Lists what an announced record will touch, for the breaks of promises.
pub(crate) fn touched(op: &CmlOp) -> Vec<Touched> {
    let mut touched: BTreeMap<Fid, Vec<Name>> = BTreeMap::new();
    touched.entry(op.fid()).or_default();
    if let Some(fid) = replaced(op) {
        touched.entry(fid).or_default();
    }
    for (directory, name) in changed_names(op) {
        touched.entry(directory).or_default().push(name.clone());
    }
    touched.into_iter().map(|(fid, names)| Touched { fid, names, gone: false }).collect()
}

/// Returns a record without what nobody asks of an announced one, so that it takes 1 KB at most.
pub(crate) fn slim(record: &CmlRecord) -> CmlRecord {
    let mut slim = CmlRecord { depends_on: Vec::new(), ..record.clone() };
    match &mut slim.op {
        CmlOp::SetXattr { value, .. } => *value = XattrValue::default(),
        CmlOp::SymLink { target, .. } => {
            if let Ok(short) = SymlinkTarget::new(&b"."[..]) {
                *target = short;
            }
        }
        CmlOp::Create { .. }
        | CmlOp::MakeDir { .. }
        | CmlOp::Link { .. }
        | CmlOp::Remove { .. }
        | CmlOp::RemoveDir { .. }
        | CmlOp::Rename { .. }
        | CmlOp::SetAttr { .. }
        | CmlOp::RemoveXattr { .. }
        | CmlOp::Store { .. } => {}
    }
    slim
}

fn is_of_xattr(op: &CmlOp) -> bool {
    matches!(op, CmlOp::SetXattr { .. } | CmlOp::RemoveXattr { .. })
}

fn objects_of(op: &CmlOp) -> impl Iterator<Item = VnodeId> {
    [Some(op.fid()), replaced(op)].into_iter().flatten().map(|fid| fid.vnode)
}

/// Tells whether an operation takes a name from a file for good.
fn takes_a_name_of(file: Fid, op: &CmlOp) -> bool {
    match op {
        CmlOp::Remove { fid, .. } => *fid == file,
        CmlOp::Rename { replaced, mode, .. } => *mode == RenameMode::Replace && *replaced == Some(file),
        CmlOp::Create { .. }
        | CmlOp::Store { .. }
        | CmlOp::MakeDir { .. }
        | CmlOp::SymLink { .. }
        | CmlOp::Link { .. }
        | CmlOp::RemoveDir { .. }
        | CmlOp::SetAttr { .. }
        | CmlOp::SetXattr { .. }
        | CmlOp::RemoveXattr { .. } => false,
    }
}

/// Returns the object that loses the name which the operation gives to another object.
fn replaced(op: &CmlOp) -> Option<Fid> {
    if let CmlOp::Rename { replaced, .. } = op { *replaced } else { None }
}

fn take_out<K: Ord>(index: &mut BTreeMap<K, BTreeSet<Place>>, key: &K, place: &Place) {
    if let Some(places) = index.get_mut(key) {
        places.remove(place);
        if places.is_empty() {
            index.remove(key);
        }
    }
}
