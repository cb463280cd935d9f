//! The overlay: the effects that records which the server does not have yet have on what it has shown.
//!
//! Programs always see the server's version with this client's own changes on top (consistency.md, "What a user may
//! rely on"). Each record's effects go when the server's answer to it is taken in, in whatever order answers come, so
//! sums are kept as sums and of times and attributes the newest counts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use mafs_proto::{
    CmlOp, CmlRecord, DataVersion, Fid, FsError, Kind, Name, Object, RenameMode, SetAttr, Status, StatusVersion,
    StoreId, Timestamp, VnodeId, XattrMode, XattrName, XattrValue, Xattrs,
};

use super::queue::Queued;

/// Meaning of a name: an object of a kind, or nothing.
pub(crate) type Meaning = Option<(Fid, Kind)>;

/// The effects of unanswered records.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    names: HashMap<VnodeId, Names>,
    objects: HashMap<VnodeId, Changes>,
    /// Counts changes of names.
    name_edits: u64,
    /// Records of a life before, which the server may have applied: what it has shown since may have their effects.
    restored: BTreeSet<StoreId>,
}

/// Changes of the names of one directory.
#[derive(Debug, Default)]
struct Names {
    meanings: BTreeMap<Name, BTreeMap<StoreId, Meaning>>,
    /// The last change of names here.
    edit: u64,
}

/// Changes of one object.
#[derive(Clone, Debug, Default)]
struct Changes {
    /// The object as it was made, if the record that makes it is unanswered.
    made: Option<(StoreId, Object)>,
    /// Names that it wins and loses.
    links: BTreeMap<StoreId, i64>,
    /// Entries that a directory wins and loses, and directories among them.
    entries: i64,
    directories: i64,
    sets: BTreeMap<StoreId, SetAttr>,
    mtimes: BTreeMap<StoreId, Timestamp>,
    ctimes: BTreeMap<StoreId, Timestamp>,
    /// Extended attributes that it gets or loses.
    xattrs: BTreeMap<StoreId, (XattrName, Option<XattrValue>)>,
    /// Directory in which it is, and its name there.
    places: BTreeMap<StoreId, (VnodeId, Name)>,
}

impl Changes {
    fn is_nothing(&self) -> bool {
        self.made.is_none() && self.ctimes.is_empty()
    }
}

impl Overlay {
    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.names.is_empty()
    }

    /// Returns a number for the state of a directory's names; `None`: they are as the server has shown them.
    pub(crate) fn name_edit(&self, parent: VnodeId) -> Option<u64> {
        self.names.get(&parent).map(|names| names.edit)
    }

    /// Adds the effects of a record, which is newer than all that are here.
    pub(crate) fn push(&mut self, queued: &Queued) {
        let Queued { record, kind, replaced } = queued;
        if let Some(object) = made_by(record) {
            let fid = object.fid;
            self.changes(fid).made = Some((record.id, object));
        }
        let named = names_of(record, *kind, *replaced);
        for (parent, name, meaning) in &named {
            self.name_edits += 1;
            let names = self.names.entry(parent.vnode).or_default();
            names.edit = self.name_edits;
            names.meanings.entry((*name).clone()).or_default().insert(record.id, *meaning);
        }
        for (fid, effect) in effects_of(record, *kind, *replaced) {
            let changes = self.changes(fid);
            changes.entries += effect.entries;
            changes.directories += effect.directories;
            changes.ctimes.insert(record.id, record.time);
            if effect.links != 0 {
                *changes.links.entry(record.id).or_default() += effect.links;
            }
            if effect.entries != 0 || effect.names_changed {
                changes.mtimes.insert(record.id, record.time);
            }
            changes.xattrs.extend(xattr_of(record).map(|xattr| (record.id, xattr)));
            let name = named.iter().find(|(.., meaning)| meaning.is_some_and(|(named, _)| named == fid));
            let place = effect.parent.zip(name.map(|(_, name, _)| (*name).clone()));
            changes.places.extend(place.map(|place| (record.id, place)));
            if let Some(set) = effect.set {
                changes.mtimes.extend(set.mtime.map(|mtime| (record.id, mtime)));
                changes.sets.insert(record.id, set);
            }
        }
    }

    /// Adds the effects of a record of a life before, as [`Self::push`] does.
    pub(crate) fn restore(&mut self, queued: &Queued) {
        self.push(queued);
        if self.has(queued) {
            self.restored.insert(queued.record.id);
        }
    }

    /// Whether the names that an object wins and loses may be counted in what the server has shown.
    pub(crate) fn may_count_twice(&self, vnode: VnodeId) -> bool {
        self.objects.get(&vnode).is_some_and(|changes| changes.links.keys().any(|id| self.restored.contains(id)))
    }

    /// Returns how many names objects win and lose by a record, if its effects are here. A loss of a life before is
    /// left out: it may be counted in what the server has shown.
    pub(crate) fn links_by(&self, queued: &Queued) -> Vec<(VnodeId, i64)> {
        let id = queued.record.id;
        let links = |fid: Fid| Some((fid.vnode, *self.objects.get(&fid.vnode)?.links.get(&id)?));
        let is_certain = |(_, won): &(VnodeId, i64)| *won > 0 || !self.restored.contains(&id);
        touched_by(queued).into_iter().filter_map(links).filter(is_certain).collect()
    }

    /// Whether the effects of a record are here. A record without any never is.
    pub(crate) fn has(&self, queued: &Queued) -> bool {
        let is_here =
            |fid: Fid| self.objects.get(&fid.vnode).is_some_and(|of| of.ctimes.contains_key(&queued.record.id));
        touched_by(queued).into_iter().any(is_here)
    }

    /// Takes the effects of a record away because the server shows them from now on. Older records that change other
    /// names of a directory do not set its times back there.
    pub(crate) fn applied(&mut self, queued: &Queued) {
        let Queued { record, kind, replaced } = queued;
        for (parent, ..) in names_of(record, *kind, *replaced) {
            let Some(changes) = self.objects.get_mut(&parent.vnode) else { continue };
            if let Some(ctime) = changes.ctimes.get(&record.id).copied() {
                changes.mtimes.range_mut(..record.id).for_each(|(_, mtime)| *mtime = ctime);
                changes.ctimes.range_mut(..record.id).for_each(|(_, time)| *time = ctime);
            }
        }
        self.remove(queued);
    }

    /// Takes the effects of a record away, if they are here.
    pub(crate) fn remove(&mut self, queued: &Queued) {
        if !self.has(queued) {
            return;
        }
        let Queued { record, kind, replaced } = queued;
        let id = record.id;
        self.restored.remove(&id);
        for (parent, name, _) in names_of(record, *kind, *replaced) {
            let Some(names) = self.names.get_mut(&parent.vnode) else { continue };
            self.name_edits += 1;
            names.edit = self.name_edits;
            if let Some(meanings) = names.meanings.get_mut(name) {
                meanings.remove(&id);
                if meanings.is_empty() {
                    names.meanings.remove(name);
                }
            }
            if names.meanings.is_empty() {
                self.names.remove(&parent.vnode);
            }
        }
        for (fid, effect) in effects_of(record, *kind, *replaced) {
            let Some(changes) = self.objects.get_mut(&fid.vnode) else { continue };
            changes.entries -= effect.entries;
            changes.directories -= effect.directories;
            changes.links.remove(&id);
            changes.sets.remove(&id);
            changes.xattrs.remove(&id);
            changes.mtimes.remove(&id);
            changes.ctimes.remove(&id);
            changes.places.remove(&id);
            if changes.made.as_ref().is_some_and(|(made_by, _)| *made_by == id) {
                changes.made = None;
            }
            if changes.is_nothing() {
                self.objects.remove(&fid.vnode);
            }
        }
    }

    /// Returns the meaning of a name, if an unanswered record says.
    pub(crate) fn name(&self, parent: VnodeId, name: &Name) -> Option<Meaning> {
        self.names.get(&parent)?.meanings.get(name)?.last_key_value().map(|(_, meaning)| *meaning)
    }

    /// Returns the names of a directory that unanswered records say something of, behind `after` and up to `last`, in
    /// order.
    pub(crate) fn names_between(
        &self,
        parent: VnodeId,
        after: Option<&Name>,
        last: Option<&Name>,
        count_max: usize,
    ) -> Vec<(Name, Meaning)> {
        let Some(names) = self.names.get(&parent) else { return Vec::new() };
        if after.zip(last).is_some_and(|(after, last)| after >= last) {
            return Vec::new();
        }
        let bounds = (after.map_or(Bound::Unbounded, Bound::Excluded), last.map_or(Bound::Unbounded, Bound::Included));
        let meaning = |meanings: &BTreeMap<StoreId, Meaning>| meanings.last_key_value().and_then(|(_, last)| *last);
        let names = names.meanings.range::<Name, _>(bounds).take(count_max);
        names.map(|(name, meanings)| (name.clone(), meaning(meanings))).collect()
    }

    /// Returns an object that exists here only, as far as anybody knows.
    pub(crate) fn made(&self, vnode: VnodeId) -> Option<&Object> {
        self.objects.get(&vnode)?.made.as_ref().map(|(_, object)| object)
    }

    /// Returns the object that a record makes, as it was made.
    pub(crate) fn made_as(&self, queued: &Queued) -> Option<&Object> {
        let fid = queued.record.op.made()?;
        self.made(fid.vnode)
    }

    /// Returns the record that makes an object, if it is unanswered.
    pub(crate) fn made_by(&self, vnode: VnodeId) -> Option<StoreId> {
        self.objects.get(&vnode)?.made.as_ref().map(|(id, _)| *id)
    }

    /// Whether unanswered records change an object.
    pub(crate) fn changes_object(&self, vnode: VnodeId) -> bool {
        self.objects.contains_key(&vnode)
    }

    /// Returns the directory in which an object is by now, and its name there, if unanswered records say.
    pub(crate) fn place(&self, vnode: VnodeId) -> Option<&(VnodeId, Name)> {
        self.objects.get(&vnode)?.places.last_key_value().map(|(_, place)| place)
    }

    /// Lays the changes over what the server has shown of an object, or over what was made here. The `nlink` of one
    /// that loses its last name is 0.
    pub(crate) fn lay_over(&self, object: &mut Object) {
        let Some(changes) = self.objects.get(&object.fid.vnode) else { return };
        let status = &mut object.status;
        let links: i64 = changes.links.values().sum();
        let is_directory = status.kind == Kind::Directory;
        status.nlink = match is_directory && links < 0 {
            true => 0,
            false => add(status.nlink.into(), links + changes.directories).try_into().unwrap_or(u32::MAX),
        };
        if is_directory {
            status.size = add(status.size, changes.entries);
        }
        changes.sets.values().for_each(|set| status.set(set));
        status.mtime = changes.mtimes.last_key_value().map_or(status.mtime, |(_, time)| *time);
        status.ctime = changes.ctimes.last_key_value().map_or(status.ctime, |(_, time)| *time);
    }

    /// Lays the changes over the extended attributes that the server has shown of an object. The server says which of
    /// several clients' changes leave no room.
    pub(crate) fn lay_over_xattrs(&self, vnode: VnodeId, xattrs: &mut Xattrs) {
        let changes = self.objects.get(&vnode).map(|changes| changes.xattrs.values());
        for change in changes.into_iter().flatten() {
            let _ = change_xattr(xattrs, change);
        }
    }

    fn changes(&mut self, fid: Fid) -> &mut Changes {
        self.objects.entry(fid.vnode).or_default()
    }
}

fn add(count: u64, change: i64) -> u64 {
    count.saturating_add_signed(change)
}

/// Returns the names that a record changes, and their meanings behind it.
pub(crate) fn edits_of(queued: &Queued) -> Vec<(Fid, Name, Meaning)> {
    let names = names_of(&queued.record, queued.kind, queued.replaced);
    names.into_iter().map(|(parent, name, meaning)| (parent, name.clone(), meaning)).collect()
}

/// Returns the objects that a record touches.
pub(crate) fn touched_by(queued: &Queued) -> Vec<Fid> {
    let effects = effects_of(&queued.record, queued.kind, queued.replaced);
    effects.into_iter().map(|(fid, _)| fid).collect()
}

/// Effect of a record on one object.
#[derive(Clone, Copy, Default)]
struct Effect {
    links: i64,
    entries: i64,
    directories: i64,
    /// Whether a name comes for one that goes.
    names_changed: bool,
    set: Option<SetAttr>,
    parent: Option<VnodeId>,
}

/// Returns the names that a record changes, and their meanings behind it.
fn names_of(record: &CmlRecord, kind: Kind, replaced: Option<Kind>) -> Vec<(Fid, &Name, Meaning)> {
    match &record.op {
        CmlOp::Create { parent, name, fid, .. }
        | CmlOp::MakeDir { parent, name, fid, .. }
        | CmlOp::SymLink { parent, name, fid, .. }
        | CmlOp::Link { parent, name, fid } => vec![(*parent, name, Some((*fid, kind)))],
        CmlOp::Remove { parent, name, .. } | CmlOp::RemoveDir { parent, name, .. } => vec![(*parent, name, None)],
        CmlOp::Rename { from_parent, from_name, to_parent, to_name, fid, replaced: target, mode } => {
            let left = match mode {
                RenameMode::Exchange => target.zip(replaced),
                RenameMode::Replace | RenameMode::NoReplace => None,
            };
            vec![(*from_parent, from_name, left), (*to_parent, to_name, Some((*fid, kind)))]
        }
        CmlOp::SetAttr { .. } | CmlOp::SetXattr { .. } | CmlOp::RemoveXattr { .. } | CmlOp::Store { .. } => Vec::new(),
    }
}

/// Returns the effects of a record on the objects it touches.
fn effects_of(record: &CmlRecord, kind: Kind, replaced: Option<Kind>) -> Vec<(Fid, Effect)> {
    let directories = i64::from(kind == Kind::Directory);
    let none = Effect::default();
    match &record.op {
        CmlOp::Create { parent, fid, .. } | CmlOp::MakeDir { parent, fid, .. } | CmlOp::SymLink { parent, fid, .. } => {
            let of_made = Effect { parent: Some(parent.vnode), ..none };
            vec![(*fid, of_made), (*parent, Effect { entries: 1, directories, ..none })]
        }
        CmlOp::Link { parent, fid, .. } => {
            vec![(*fid, Effect { links: 1, ..none }), (*parent, Effect { entries: 1, ..none })]
        }
        CmlOp::Remove { parent, fid, .. } | CmlOp::RemoveDir { parent, fid, .. } => {
            let of_parent = Effect { entries: -1, directories: -directories, ..none };
            vec![(*fid, Effect { links: -1, ..none }), (*parent, of_parent)]
        }
        CmlOp::Rename { from_parent, to_parent, fid, replaced: target, mode, .. } => {
            let target = target.zip(replaced);
            let of_target = target.map_or(0, |(_, kind)| i64::from(kind == Kind::Directory));
            let moved = |parent: Fid| Effect { parent: Some(parent.vnode), ..none };
            let named = Effect { names_changed: true, ..none };
            let mut effects = vec![(*fid, moved(*to_parent))];
            match (mode, target) {
                (RenameMode::Exchange, Some((target, _))) => {
                    effects.push((target, moved(*from_parent)));
                    let swapped = directories - of_target;
                    effects.push((*from_parent, Effect { directories: -swapped, ..named }));
                    effects.push((*to_parent, Effect { directories: swapped, ..named }));
                }
                (_, target) => {
                    effects.extend(target.map(|(target, _)| (target, Effect { links: -1, ..none })));
                    let replaced = i64::from(target.is_some());
                    effects.push((*from_parent, Effect { entries: -1, directories: -directories, ..named }));
                    let won = Effect { entries: 1 - replaced, directories: directories - of_target, ..named };
                    effects.push((*to_parent, won));
                }
            }
            effects
        }
        CmlOp::SetAttr { fid, set } => vec![(*fid, Effect { set: Some(*set), ..none })],
        CmlOp::SetXattr { fid, .. } | CmlOp::RemoveXattr { fid, .. } => vec![(*fid, none)],
        // The content of a file is known where it is held.
        CmlOp::Store { .. } => Vec::new(),
    }
}

/// Returns the extended attribute that a record sets or removes.
pub(crate) fn xattr_of(record: &CmlRecord) -> Option<(XattrName, Option<XattrValue>)> {
    match &record.op {
        CmlOp::SetXattr { name, value, .. } => Some((name.clone(), Some(value.clone()))),
        CmlOp::RemoveXattr { name, .. } => Some((name.clone(), None)),
        _ => None,
    }
}

/// Sets or removes an extended attribute, as [`xattr_of`] has it.
pub(crate) fn change_xattr(
    xattrs: &mut Xattrs,
    (name, value): &(XattrName, Option<XattrValue>),
) -> Result<(), FsError> {
    match value {
        Some(value) => xattrs.set(name.clone(), value.clone(), XattrMode::Either),
        None => xattrs.remove(name),
    }
}

/// Makes the object that a record makes, as the server will (server/src/core/directory.rs, `new_node`).
fn made_by(record: &CmlRecord) -> Option<Object> {
    let (fid, kind, mode, rdev, target) = match &record.op {
        CmlOp::Create { fid, kind, mode, rdev, .. } => (*fid, *kind, *mode, *rdev, None),
        CmlOp::MakeDir { fid, mode, .. } => (*fid, Kind::Directory, *mode, 0, None),
        CmlOp::SymLink { fid, target, .. } => {
            (*fid, Kind::Symlink, mafs_proto::Mode::from_bits(0o777), 0, Some(target.clone()))
        }
        _ => return None,
    };
    let time = record.time;
    let status = Status {
        kind,
        mode,
        nlink: if kind == Kind::Directory { 2 } else { 1 },
        uid: record.uid,
        gid: record.gid,
        size: target.as_ref().map_or(0, |target| target.as_bytes().len() as u64),
        rdev,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        data_version: DataVersion(1),
        status_version: StatusVersion(1),
        xattrs: None,
    };
    Some(Object { fid, status, target })
}
