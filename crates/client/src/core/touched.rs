//! Touched things: objects, and names in directories. Two records that touch the same are in order; all others may
//! overtake each other on their way to the server.

use std::collections::{BTreeSet, HashMap};

use mafs_proto::{CmlOp, Fid, Name, StoreId};

/// Something that order matters for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Key {
    /// The object itself.
    Object(Fid),
    /// A name in a directory.
    Name(Fid, Name),
    /// Any name in a directory.
    Below(Fid),
}

/// Records that touch what another does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Conflicting {
    /// Records about an object that it is about.
    pub(crate) objects: BTreeSet<StoreId>,
    /// Records that it only has a name in common with, or a directory.
    pub(crate) names: BTreeSet<StoreId>,
}

/// Finds the records that touch what another does.
#[derive(Debug, Default)]
pub(crate) struct TouchIndex {
    by_key: HashMap<Key, BTreeSet<StoreId>>,
}

impl TouchIndex {
    pub(crate) fn insert(&mut self, id: StoreId, op: &CmlOp) {
        for key in left_by(op) {
            self.by_key.entry(key).or_default().insert(id);
        }
    }

    pub(crate) fn remove(&mut self, id: StoreId, op: &CmlOp) {
        for key in left_by(op) {
            if let Some(ids) = self.by_key.get_mut(&key) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
    }

    /// Finds the records that touch what `op` touches.
    pub(crate) fn conflicting(&self, op: &CmlOp) -> Conflicting {
        let (objects, names) = looked_for_by(op);
        let of = |keys: &[Key]| keys.iter().filter_map(|key| self.by_key.get(key)).flatten().copied().collect();
        let objects: BTreeSet<StoreId> = of(&objects);
        let mut names: BTreeSet<StoreId> = of(&names);
        names.retain(|id| !objects.contains(id));
        Conflicting { objects, names }
    }

    /// Returns the newest record about an object itself.
    pub(crate) fn newest(&self, fid: Fid) -> Option<StoreId> {
        self.by_key.get(&Key::Object(fid))?.last().copied()
    }

    /// Lists the records that change names in a directory, oldest first.
    pub(crate) fn below(&self, directory: Fid) -> impl Iterator<Item = StoreId> + '_ {
        self.by_key.get(&Key::Below(directory)).into_iter().flatten().copied()
    }

    /// Lists the records about an object itself, oldest first.
    pub(crate) fn about(&self, fid: Fid) -> impl DoubleEndedIterator<Item = StoreId> + '_ {
        self.by_key.get(&Key::Object(fid)).into_iter().flatten().copied()
    }
}

/// Whether `op` takes a name from the file that `earlier` stores: it need not wait until that content has arrived,
/// which may take long. If the name was the last one the store is refused, and nobody wants it.
pub(crate) fn discards(op: &CmlOp, earlier: &CmlOp) -> bool {
    let CmlOp::Store { fid: stored, .. } = earlier else { return false };
    op.unnamed_fid() == Some(*stored)
}

/// Whether `op` is about an object or a name that `earlier` is about, and has to wait for that.
pub(crate) fn waits_for(op: &CmlOp, earlier: &CmlOp) -> bool {
    let ((objects, names), (objects_before, names_before)) = (touched(op), touched(earlier));
    let object = objects.iter().flatten().any(|fid| objects_before.contains(&Some(*fid)));
    let name = names.iter().flatten().any(|name| names_before.contains(&Some(*name)));
    (object || name) && !discards(op, earlier)
}

/// A name in a directory.
type NameIn<'op> = (Fid, &'op Name);

/// Returns the objects an operation is about, and the names it gives or takes.
fn touched(op: &CmlOp) -> ([Option<Fid>; 2], [Option<NameIn<'_>>; 2]) {
    match op {
        CmlOp::Create { parent, name, fid, .. }
        | CmlOp::MakeDir { parent, name, fid, .. }
        | CmlOp::SymLink { parent, name, fid, .. }
        | CmlOp::Link { parent, name, fid }
        | CmlOp::Remove { parent, name, fid }
        | CmlOp::RemoveDir { parent, name, fid } => ([Some(*fid), None], [Some((*parent, name)), None]),
        CmlOp::Rename { from_parent, from_name, to_parent, to_name, fid, replaced, .. } => {
            ([Some(*fid), *replaced], [Some((*from_parent, from_name)), Some((*to_parent, to_name))])
        }
        CmlOp::SetAttr { fid, .. }
        | CmlOp::SetXattr { fid, .. }
        | CmlOp::RemoveXattr { fid, .. }
        | CmlOp::Store { fid, .. } => ([Some(*fid), None], [None, None]),
    }
}

/// Lists the directories of which an operation changes names.
pub(crate) fn directories_of(op: &CmlOp) -> impl Iterator<Item = Fid> {
    touched(op).1.into_iter().flatten().map(|(parent, _)| parent)
}

fn left_by(op: &CmlOp) -> Vec<Key> {
    let (objects, names) = touched(op);
    let objects = objects.into_iter().flatten().map(Key::Object);
    let names = names.into_iter().flatten();
    objects.chain(names.flat_map(|(parent, name)| [Key::Name(parent, name.clone()), Key::Below(parent)])).collect()
}

/// Returns the keys of the objects, then of the names and the directories: a directory must be there before names in it
/// are made, and empty before it is removed.
fn looked_for_by(op: &CmlOp) -> (Vec<Key>, Vec<Key>) {
    let (objects, names) = touched(op);
    let (objects, names) = (objects.into_iter().flatten(), names.into_iter().flatten());
    let below = objects.clone().map(Key::Below);
    let names = names.flat_map(|(parent, name)| [Key::Name(parent, name.clone()), Key::Object(parent)]);
    (objects.map(Key::Object).collect(), names.chain(below).collect())
}
