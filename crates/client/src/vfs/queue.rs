//! The queue of an earlier run: waiting records of the log are taken up when a mount starts.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use mafs_durable::{DiskFile, hash_content};
use mafs_proto::{CmlOp, Fid, Kind, StoreId};

use super::file::{File, Version};
use super::frozen::FrozenContent;
use super::{Caller, Inner};
use crate::cache::{CacheError, stamp};
use crate::core::content::edits::Edit;
use crate::core::log::{ContainerId, LogEntry, LogState, LoggedStore, Writing};
use crate::core::queue::Queued;

impl Inner {
    /// Takes up all waiting records, in the order in which they were logged. The log does not say which were sent.
    pub(super) fn take_up_queue(&self, log: &LogState, lent: &BTreeSet<Fid>) -> Result<(), CacheError> {
        let stores = log.logged.values();
        let as_queued = |store: &LoggedStore| Queued { record: store.record.clone(), kind: Kind::File, replaced: None };
        let mut all: BTreeMap<StoreId, Queued> = log.queued.clone();
        all.extend(stores.clone().map(|store| (store.record.id, as_queued(store))));
        if !all.is_empty() {
            tracing::info!(changes = all.len(), "changes that the server does not have yet were found in the cache");
        }
        let named: BTreeSet<StoreId> = all.values().flat_map(|queued| queued.record.depends_on.clone()).collect();
        let mut queue = self.replay.queue();
        for (id, queued) in all {
            // Where closes wait for the server, a content comes again only if another record depends on it: for the
            // others the first answer counts.
            let is_content = matches!(queued.record.op, CmlOp::Store { .. });
            if !(is_content && self.settings.writeback.waits()) || named.contains(&id) {
                self.remote.outstanding(|outstanding| outstanding.note_queued(id));
            }
            self.cache.index.restore_pending(&queued);
            // This life has not asked the server yet: the directory may still be there on it.
            self.remember_place(&queued.record.op);
            let unnamed = queued.record.op.unnamed_fid();
            queue.restore(queued);
            if let Some(gone) = unnamed.filter(|fid| self.cache.index.is_removed(fid.vnode).unwrap_or_default()) {
                self.note_moot(&mut queue, gone, id);
            }
        }
        if self.settings.disconnected {
            queue.begin_catching_up();
        }
        drop(queue);
        // Fsynced data stays before all that is logged from now on.
        let is_fsynced = |store: &&LoggedStore| {
            let moved = store.durable && store.snapshot.is_some();
            moved || log.writing.get(&store.record.op.fid()).is_some_and(|file| file.synced)
        };
        let fsynced: Vec<StoreId> = stores.clone().filter(is_fsynced).map(|store| store.record.id).collect();
        self.remote.outstanding(|outstanding| outstanding.raise_barrier(fsynced));
        for (queued, reason) in log.refused.values() {
            self.replay.note_refused(queued.clone(), *reason);
        }
        let mut by_file: BTreeMap<Fid, Vec<&LoggedStore>> = BTreeMap::new();
        stores.for_each(|store| by_file.entry(store.record.op.fid()).or_default().push(store));
        for (fid, stores) in by_file {
            if let Some(writing) = log.writing.get(&fid) {
                match self.unseen(fid, *writing, &stores).filter(|_| !lent.contains(&fid)) {
                    Some(file) => {
                        self.add_versions(&file, &stores)?;
                        self.files().insert(file);
                    }
                    None => self.take_up_versions(fid, *writing, &stores)?,
                }
            }
        }
        Ok(())
    }

    /// Takes up a file with its waiting versions, oldest first. Data written after the newest of them was closed is
    /// sent as another version.
    fn take_up_versions(&self, fid: Fid, writing: Writing, stores: &[&LoggedStore]) -> Result<(), CacheError> {
        let Some(newest) = stores.last() else { return Ok(()) };
        let writing = self.with_content(fid, writing, newest)?;
        let mtime = match newest.record.op {
            CmlOp::Store { mtime, .. } => Some(mtime),
            _ => None,
        };
        let Some(file) = self.load_dirty(fid, writing, mtime)? else { return Ok(()) };
        self.add_versions(&file, stores)?;
        self.files().insert(file);
        Ok(())
    }

    /// Takes up a file without a look at its container, until the file is opened or its turn to be sent comes. Before
    /// any change after its newest version was logged, that version was moved out of the way, or the file was lent or
    /// fsynced. Looks at all containers would be most of the cost of a start.
    fn unseen(&self, fid: Fid, writing: Writing, stores: &[&LoggedStore]) -> Option<Arc<File>> {
        let newest = stores.last().filter(|newest| newest.snapshot.is_none())?;
        let CmlOp::Store { size, mtime, .. } = newest.record.op else { return None };
        if self.cache.power_lost || writing.lent || writing.synced || !newest.immutable {
            return None;
        }
        let file = self.taken_up(fid, Writing { synced: newest.durable, ..writing }, (size, mtime));
        file.state().edits_mut().leave_unseen(newest.stamp);
        Some(file)
    }

    /// Looks at the container of a file that was taken up unseen. If it does not hold the newest version after all,
    /// that version is gone, and the container holds something newer.
    pub(super) fn look_at_unseen(&self, file: &File) -> io::Result<()> {
        if !file.state().edits().are_unseen() {
            return Ok(());
        }
        let _edit = file.edit();
        let (bytes, stamp) = (file.container.len()?, stamp(file.container.as_ref())?);
        let mut state = file.state();
        if state.see(stamp, bytes) {
            tracing::warn!(fid = %file.fid, "a file was changed behind its last version; it is sent as it is");
            state.versions_mut().lose_newest();
        }
        Ok(())
    }

    /// Puts the newest version in place of the container's bytes, if they are lost with the power and that version is
    /// not.
    fn with_content(&self, fid: Fid, writing: Writing, newest: &LoggedStore) -> Result<Writing, CacheError> {
        let lost = self.cache.power_lost && !writing.synced;
        let Some(snapshot) = newest.snapshot.filter(|_| lost) else {
            let holds_durable = newest.durable && newest.snapshot.is_none();
            return Ok(Writing { synced: writing.synced || holds_durable, ..writing });
        };
        let Some(content) = self.cache.containers.get(fid.vnode, snapshot)? else { return Ok(writing) };
        let (container, copy) = self.cache.containers.duplicate(fid.vnode, content.as_ref())?;
        copy.sync_data()?;
        self.cache.containers.sync_name(fid.vnode)?;
        self.cache.cml.append(LogEntry::Moved { fid, container })?;
        self.cache.cml.sync()?;
        Ok(Writing { container, synced: true, ..writing })
    }

    /// Whether a file was changed after its newest version was moved out of its way. A version is also moved out
    /// before a file that the kernel may write is sent. If nothing was written then, to send the file again would be a
    /// conflict with a client that has built on it. Times cannot tell: they are the same within a tick.
    fn is_newer(&self, file: &File, snapshot: ContainerId) -> Result<bool, CacheError> {
        let Some(version) = self.cache.containers.get(file.fid.vnode, snapshot)? else { return Ok(true) };
        let bytes = file.container.len()?;
        if version.len()? != bytes {
            return Ok(true);
        }
        Ok(hash_content(file.container.as_ref(), bytes)? != hash_content(version.as_ref(), bytes)?)
    }

    fn add_versions(&self, file: &File, stores: &[&LoggedStore]) -> Result<(), CacheError> {
        let mut versions = Vec::new();
        let mut edit = Edit::BEFORE;
        for store in stores {
            edit = edit.next();
            let CmlOp::Store { size, .. } = store.record.op else { continue };
            let content = FrozenContent::new(Arc::clone(&file.container), size);
            let gone = match store.snapshot {
                Some(snapshot) => match self.cache.containers.get(file.fid.vnode, snapshot)? {
                    Some(_) => {
                        content.move_to(self.cache.containers.lazy(file.fid.vnode, snapshot));
                        false
                    }
                    None => true,
                },
                None => !store.immutable || file.state().stat().size() != size,
            };
            // The life before may have sent any part of it.
            content.note_sent();
            let frozen = (store.record.id, edit, content);
            versions.push(Version::taken_up(frozen, store.snapshot, store.durable, gone));
        }
        let newer = match versions.last().and_then(Version::snapshot) {
            Some(snapshot) => self.is_newer(file, snapshot)?,
            None => stores.last().is_some_and(|newest| !newest.immutable),
        };
        let mut state = file.state();
        if let Some(oldest) = stores.first() {
            state.note_writer(Caller { uid: oldest.record.uid, gid: oldest.record.gid });
        }
        state.edits_mut().take_up_logged(versions.last().map_or(Edit::BEFORE, Version::edit), newer);
        state.versions_mut().take_up(versions);
        drop(state);
        let named = self.named_versions(file);
        file.state().fate_mut().send_named(named);
        Ok(())
    }
}
