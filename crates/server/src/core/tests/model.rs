//! The reference model: what POSIX says of a tree of directories, as plainly as it can be written.

use std::collections::BTreeMap;

use mafs_proto::{Fid, FsError, Kind, Name, RenameMode};

use super::ROOT;

/// A tree of objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Model {
    pub(super) objects: BTreeMap<Fid, Thing>,
}

/// An object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Thing {
    Directory(BTreeMap<Name, Fid>),
    File(Vec<u8>),
}

impl Model {
    pub(super) fn new() -> Self {
        Self { objects: BTreeMap::from([(ROOT, Thing::Directory(BTreeMap::new()))]) }
    }

    pub(super) fn kind(&self, fid: Fid) -> Kind {
        match &self.objects[&fid] {
            Thing::Directory(_) => Kind::Directory,
            Thing::File(_) => Kind::File,
        }
    }

    /// Counts the names, which is not kept.
    pub(super) fn nlink(&self, fid: Fid) -> u32 {
        let directories = self.objects.values().filter_map(|thing| match thing {
            Thing::Directory(entries) => Some(entries),
            Thing::File(_) => None,
        });
        let names = directories.flat_map(BTreeMap::values).filter(|named| **named == fid).count();
        let count = match &self.objects[&fid] {
            Thing::File(_) => names,
            Thing::Directory(entries) => {
                2 + entries.values().filter(|child| self.kind(**child) == Kind::Directory).count()
            }
        };
        u32::try_from(count).unwrap()
    }

    pub(super) fn entries(&self, directory: Fid) -> Result<&BTreeMap<Name, Fid>, FsError> {
        match self.objects.get(&directory) {
            None => Err(FsError::Stale),
            Some(Thing::File(_)) => Err(FsError::NotDirectory),
            Some(Thing::Directory(entries)) => Ok(entries),
        }
    }

    pub(super) fn make(&mut self, parent: Fid, name: &Name, fid: Fid, thing: Thing) -> Result<(), FsError> {
        self.free(parent, name)?;
        self.objects.insert(fid, thing);
        self.set(parent, name, fid);
        Ok(())
    }

    pub(super) fn link(&mut self, parent: Fid, name: &Name, fid: Fid) -> Result<(), FsError> {
        self.free(parent, name)?;
        match self.objects.get(&fid) {
            None => Err(FsError::Stale),
            Some(Thing::Directory(_)) => Err(FsError::IsDirectory),
            Some(Thing::File(_)) => {
                self.set(parent, name, fid);
                Ok(())
            }
        }
    }

    pub(super) fn remove(&mut self, parent: Fid, name: &Name, fid: Fid, kind: Kind) -> Result<(), FsError> {
        self.named(parent, name, fid)?;
        match (kind, &self.objects[&fid]) {
            (Kind::Directory, Thing::File(_)) => return Err(FsError::NotDirectory),
            (Kind::File, Thing::Directory(_)) => return Err(FsError::IsDirectory),
            (_, Thing::Directory(entries)) if !entries.is_empty() => return Err(FsError::NotEmpty),
            (_, Thing::Directory(_) | Thing::File(_)) => {}
        }
        self.clear(parent, name);
        self.collect(fid);
        Ok(())
    }

    pub(super) fn rename(
        &mut self,
        from: (Fid, &Name),
        to: (Fid, &Name),
        fid: Fid,
        replaced: Option<Fid>,
        mode: RenameMode,
    ) -> Result<(), FsError> {
        self.named(from.0, from.1, fid)?;
        let target = self.entries(to.0)?.get(to.1).copied();
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
            (_, Some(_)) if replaced.is_none() => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            (_, target) if target != replaced => return Err(FsError::NameChanged),
            (_, Some(target)) if target == fid => return Ok(()),
            _ => {}
        }
        if self.is_below(to.0, fid) {
            return Err(FsError::BelowItself);
        }
        if mode == RenameMode::Exchange {
            let target = target.unwrap();
            if self.is_below(from.0, target) {
                return Err(FsError::BelowItself);
            }
            self.set(from.0, from.1, target);
            self.set(to.0, to.1, fid);
            return Ok(());
        }
        match (self.kind(fid), target.map(|target| &self.objects[&target])) {
            (Kind::Directory, Some(Thing::File(_))) => return Err(FsError::NotDirectory),
            (Kind::Directory, Some(Thing::Directory(entries))) if !entries.is_empty() => {
                return Err(FsError::NotEmpty);
            }
            (Kind::File, Some(Thing::Directory(_))) => return Err(FsError::IsDirectory),
            _ => {}
        }
        self.clear(from.0, from.1);
        self.set(to.0, to.1, fid);
        if let Some(target) = target {
            self.collect(target);
        }
        Ok(())
    }

    pub(super) fn store(&mut self, fid: Fid, bytes: &[u8], stale: bool) -> Result<(), FsError> {
        match self.objects.get_mut(&fid) {
            Some(Thing::File(_)) if stale => Err(FsError::BaseChanged),
            Some(Thing::File(content)) => {
                *content = bytes.to_vec();
                Ok(())
            }
            Some(Thing::Directory(_)) | None => Err(FsError::WrongKind),
        }
    }

    fn free(&self, parent: Fid, name: &Name) -> Result<(), FsError> {
        if self.entries(parent)?.contains_key(name) { Err(FsError::Exists) } else { Ok(()) }
    }

    fn named(&self, parent: Fid, name: &Name, fid: Fid) -> Result<(), FsError> {
        match self.entries(parent)?.get(name) {
            None => Err(FsError::NotFound),
            Some(found) if *found != fid => Err(FsError::NameChanged),
            Some(_) => Ok(()),
        }
    }

    fn set(&mut self, parent: Fid, name: &Name, fid: Fid) {
        let Some(Thing::Directory(entries)) = self.objects.get_mut(&parent) else { panic!("{parent}") };
        entries.insert(name.clone(), fid);
    }

    fn clear(&mut self, parent: Fid, name: &Name) {
        let Some(Thing::Directory(entries)) = self.objects.get_mut(&parent) else { panic!("{parent}") };
        entries.remove(name);
    }

    /// Forgets an object without names.
    fn collect(&mut self, fid: Fid) {
        let named = self.objects.values().any(|thing| match thing {
            Thing::Directory(entries) => entries.values().any(|named| *named == fid),
            Thing::File(_) => false,
        });
        if !named {
            self.objects.remove(&fid);
        }
    }

    /// Tells whether `fid` is `above` or reachable from it.
    fn is_below(&self, fid: Fid, above: Fid) -> bool {
        fid == above
            || match &self.objects[&above] {
                Thing::File(_) => false,
                Thing::Directory(entries) => entries.values().any(|child| self.is_below(fid, *child)),
            }
    }
}
