//! Names in directories, as far as they are known.

use std::collections::BTreeSet;

use mafs_durable::Batch;
use mafs_proto::call::{LookupReply, ReadDirPage};
use mafs_proto::{DataVersion, Fid, Kind, Name, Object, VnodeId};

use super::{Index, NO_TRUST, SCAN_MAX, object_key, vnode_key};
use crate::cache::CacheError;
use crate::cache::record::{CachedEntries, CachedEntry, CachedObject};
use crate::core::promises::{Grant, SessionNumber};

/// Change that a mutation makes to a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NameEdit {
    /// The directory.
    pub(crate) parent: Fid,
    /// The name.
    pub(crate) name: Name,
    /// New meaning of the name; `None`: it means nothing.
    pub(crate) entry: Option<CachedEntry>,
}

impl Index {
    /// Returns the meaning of a name, as far as the server has shown it.
    pub(super) fn shown_entry(&self, parent: VnodeId, name: &Name) -> Result<Option<CachedEntry>, CacheError> {
        Ok(self.kv.get(&entry_key(parent, name.as_bytes()))?.and_then(CachedEntry::decode))
    }

    /// Returns the version of a directory's names that is known, if any is.
    pub(crate) fn names_version(&self, directory: Fid) -> Option<DataVersion> {
        let shown = self.shown(directory.vnode).ok()??;
        shown.entries.filter(|_| shown.object.fid == directory).map(|entries| entries.version)
    }

    /// Returns the entries of a directory behind `after` that the server has shown, in order, at most `count_max`.
    pub(super) fn shown_entries(
        &self,
        count_max: usize,
        parent: VnodeId,
        after: Option<&Name>,
    ) -> Result<Vec<(Name, CachedEntry)>, CacheError> {
        let prefix = entry_key(parent, b"");
        let after = after.map(|name| entry_key(parent, name.as_bytes()));
        let pairs = self.kv.scan(&prefix, after.as_deref(), count_max)?;
        let parsed = pairs.into_iter().filter_map(|(key, value)| {
            Some((Name::new(key.get(prefix.len()..)?.to_vec()).ok()?, CachedEntry::decode(value)?))
        });
        Ok(parsed.collect())
    }

    /// Notes the meaning of a name that the server has told, and `with_object` what it has told of that object.
    pub(crate) fn install_lookup(
        &self,
        parent: Fid,
        name: &Name,
        reply: &LookupReply,
        session: SessionNumber,
        with_object: bool,
    ) -> Result<(), CacheError> {
        let grant = Grant { session, change: reply.change };
        let volume = self.settled()?;
        let mut batch = Batch::default();
        if let Some(object) = reply.object.as_ref().filter(|_| with_object) {
            let grant = if reply.pending.is_some() { grant.without_promise() } else { grant };
            let place = (!reply.name_pending).then_some((parent.vnode, name));
            self.install_one(&volume, object, place, grant, &mut batch)?;
        }
        if reply.name_pending {
            // The name still means something else.
            return self.apply(&batch);
        }
        if let Some(mut directory) = self.shown(parent.vnode)?.filter(|directory| directory.object.fid == parent) {
            let known = directory.object.status.data_version;
            if reply.parent_version != known {
                // Another client has changed it, and the break is on its way; or the answer is late, and the name is
                // not one of those which the kernel is told of when the directory is broken.
                directory.trust = NO_TRUST;
                batch.put(object_key(parent.vnode), directory.encode());
            } else if let Some(object) = &reply.object {
                if directory.entries.is_none() {
                    self.forget_names(parent.vnode)?;
                    directory.entries = Some(CachedEntries { version: reply.parent_version, complete: false });
                }
                batch.put(entry_key(parent.vnode, name.as_bytes()), CachedEntry::of(object).encode());
                batch.put(object_key(parent.vnode), directory.encode());
            }
        }
        self.apply(&batch)
    }

    /// Takes in a page of a listing; `first` drops what was known of the directory's names. For objects that are
    /// `unsaid` only the names are noted.
    pub(crate) fn install_page(
        &self,
        page: &ReadDirPage,
        session: SessionNumber,
        first: bool,
        unsaid: &BTreeSet<Fid>,
    ) -> Result<(), CacheError> {
        let grant = Grant { session, change: page.change };
        let volume = self.settled()?;
        let vnode = page.directory.fid.vnode;
        if first {
            self.forget_names(vnode)?;
        }
        let mut batch = Batch::default();
        let pending: BTreeSet<Fid> = page.pending.iter().copied().collect();
        for entry in &page.entries {
            let grant = if pending.contains(&entry.object.fid) { grant.without_promise() } else { grant };
            if !unsaid.contains(&entry.object.fid) {
                self.install_one(&volume, &entry.object, Some((vnode, &entry.name)), grant, &mut batch)?;
            }
            batch.put(entry_key(vnode, entry.name.as_bytes()), CachedEntry::of(&entry.object).encode());
        }
        let grant = if pending.contains(&page.directory.fid) { grant.without_promise() } else { grant };
        let mut cached = self.merged(&volume, &page.directory, None, grant)?;
        let version = page.directory.status.data_version;
        let current = cached.object.status.data_version == version;
        cached.entries = current.then_some(CachedEntries { version, complete: page.end });
        batch.put(object_key(vnode), cached.encode());
        self.apply(&batch)
    }

    /// Carries the names known of a directory over a change of this client; after a change of another client they are
    /// worth nothing.
    pub(super) fn adopt<'a>(
        &self,
        directory: Fid,
        before: DataVersion,
        after: DataVersion,
        edits: impl Iterator<Item = &'a NameEdit>,
        batch: &mut Batch,
    ) -> Result<(), CacheError> {
        let Some(mut cached) = self.shown(directory.vnode)?.filter(|cached| cached.object.fid == directory) else {
            return Ok(());
        };
        if cached.entries.is_none() && cached.object.status.data_version == before {
            // Nothing was known of its names; what this client does to them is.
            self.forget_names(directory.vnode)?;
            cached.entries = Some(CachedEntries { version: before, complete: false });
        }
        if cached.entries.is_some_and(|entries| entries.version >= after) {
            // The answer is late: the names have its change already, and what came on top of it.
            return Ok(());
        }
        // The kernel knows these names, so they are kept in any case, and must be forgotten in the open.
        for edit in edits {
            let key = entry_key(directory.vnode, edit.name.as_bytes());
            match edit.entry {
                Some(entry) => batch.put(key, entry.encode()),
                None => batch.remove(key),
            }
        }
        match &mut cached.entries {
            Some(entries) if entries.version == before => {
                entries.version = after;
                // Until the new status is installed this must not look like the old version.
                let shown = &mut cached.object.status.data_version;
                *shown = after.max(*shown);
            }
            Some(_) => cached.entries = None,
            None => return Ok(()),
        }
        batch.put(object_key(directory.vnode), cached.encode());
        Ok(())
    }

    /// Returns the entries of a directory that is empty: they are complete.
    pub(super) fn no_entries(&self, object: &Object) -> Result<Option<CachedEntries>, CacheError> {
        if object.status.kind != Kind::Directory || object.status.size != 0 {
            return Ok(None);
        }
        self.forget_names(object.fid.vnode)?;
        Ok(Some(CachedEntries { version: object.status.data_version, complete: true }))
    }

    /// Removes the names of a directory; before that, none counts as known any more, as a crash may come between. Names
    /// stay behind when the entries of a directory are dropped. They must go when the next entries are begun, or they
    /// would come back to life.
    pub(super) fn forget_names(&self, vnode: VnodeId) -> Result<(), CacheError> {
        if let Some(directory) = self.shown(vnode)?.filter(|directory| directory.entries.is_some()) {
            let mut batch = Batch::default();
            batch.put(object_key(vnode), CachedObject { entries: None, ..directory }.encode());
            self.apply(&batch)?;
        }
        loop {
            let page = self.shown_entries(SCAN_MAX, vnode, None)?;
            if page.is_empty() {
                // Only keys that make no sense as entries are left.
                return self.remove_all(&entry_key(vnode, b""));
            }
            let mut batch = Batch::default();
            page.iter().for_each(|(name, _)| batch.remove(entry_key(vnode, name.as_bytes())));
            self.apply(&batch)?;
            if let Some(told) = self.on_forgotten.get() {
                told(vnode, page);
            }
        }
    }
}

pub(super) fn entry_key(parent: VnodeId, name: &[u8]) -> Vec<u8> {
    let mut key = vnode_key(b'd', parent);
    key.extend(name);
    key
}
