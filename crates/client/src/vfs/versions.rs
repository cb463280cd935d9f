//! Versions: what files held when they were closed, on its way to the server.
//!
//! A logged version is immutable until the server has it: before the file's next change its bytes are copied to a
//! container of their own, which the log names. While programs can still write past this daemon, a version is what the
//! file holds when it is sent; their last release compares again.

use std::collections::VecDeque;
use std::sync::Arc;

use mafs_arpc::blocking;
use mafs_proto::{Base, CmlOp, CmlRecord, Kind, StoreId};

use super::file::{File, FileState};
use super::frozen::FrozenContent;
use super::storing::Patience;
use super::{Error, Inner};
use crate::cache::{CacheError, stamp};
use crate::core::log::{ContainerId, LogEntry};
use crate::core::queue::{Queue, Queued};

/// A version that is logged and not acknowledged.
pub(super) struct Version {
    pub(super) id: StoreId,
    /// The edit that made it.
    pub(super) edits: u64,
    pub(super) content: Arc<FrozenContent>,
    /// Where its bytes are, if no longer where the file is changed.
    pub(super) snapshot: Option<ContainerId>,
    /// Whether they survive a loss of power.
    pub(super) durable: bool,
    /// They are not there any more: the server is asked whether it has them.
    pub(super) gone: bool,
}

/// The versions of one file, oldest first.
pub(super) type Versions = VecDeque<Version>;

impl FileState {
    /// Whether there are changes that are in no version yet.
    pub(super) fn is_unlogged(&self) -> bool {
        self.is_dirty() && self.logged_edits != self.edits
    }

    pub(super) fn version(&mut self, id: StoreId) -> Option<&mut Version> {
        self.versions.iter_mut().find(|version| version.id == id)
    }
}

impl Inner {
    /// Logs what a file holds, so that its close may return.
    pub(super) async fn close_version(self: &Arc<Self>, file: &Arc<File>) -> Result<(), Error> {
        let stored_otherwise = {
            let state = file.state();
            state.storing || state.unresolved.is_some()
        };
        if stored_otherwise {
            return self.store(file, Patience::Once).await;
        }
        blocking(|| self.log_version(file))
    }

    /// Makes what a file holds the version to be sent, unless it is one already.
    pub(super) fn log_version(&self, file: &File) -> Result<(), Error> {
        let _edit = file.edit();
        self.end_edit(file)?;
        if !file.state().is_unlogged() {
            return Ok(());
        }
        let mut queue = self.replay.queue();
        match self.last_rewritable(&queue, file) {
            Some(record) => self.rewrite_version(&mut queue, file, record),
            None => self.push_version(&mut queue, file),
        }
    }

    /// The record of a version that nobody else waits for and that was never sent: the next takes its place.
    fn last_rewritable(&self, queue: &Queue, file: &File) -> Option<CmlRecord> {
        let id = file.state().versions.back()?.id;
        let is_last = self.remote.outstanding(|log| log.newest(file.fid) == Some(id) && log.may_take_in(id));
        queue.rewritable(id).filter(|_| is_last).map(|queued| queued.record.clone())
    }

    /// Makes a record that waits the one of what the file holds now. Under `edit`.
    pub(super) fn rewrite_version(&self, queue: &mut Queue, file: &File, before: CmlRecord) -> Result<(), Error> {
        let CmlOp::Store { base, .. } = before.op else { return Ok(()) };
        let (op, time) = self.store_op(file, base)?;
        let record = CmlRecord { op, time, ..before };
        self.log_store(file, &record)?;
        self.remote.outstanding(|log| log.resume(record.clone()));
        queue.rewrite(record.clone());
        let replaced = {
            let mut state = file.state();
            state.logged_edits = state.edits;
            let now = self.version_now(file, &state, record.id);
            state.version(record.id).and_then(|version| std::mem::replace(version, now).snapshot)
        };
        if let Some(snapshot) = replaced {
            self.remove_container(file.fid.vnode, snapshot);
        }
        self.note_queue_changed();
        Ok(())
    }

    fn push_version(&self, queue: &mut Queue, file: &File) -> Result<(), Error> {
        let (base, writer) = {
            let state = file.state();
            let base = state.versions.back().map_or_else(|| state.store_base(), |version| Base::Record(version.id));
            (base, state.writer)
        };
        let (op, time) = self.store_op(file, base)?;
        let (record, unlisted) = self.remote.queued_record(op, writer.uid, writer.gid, time);
        if let Err(error) = self.log_store(file, &record) {
            self.remote.end(record.id);
            return Err(error);
        }
        {
            let mut state = file.state();
            state.logged_edits = state.edits;
            let version = self.version_now(file, &state, record.id);
            state.versions.push_back(version);
        }
        queue.push(Queued { record, kind: Kind::File, replaced: None }, &unlisted);
        self.note_queue_changed();
        Ok(())
    }

    /// What stores what the file holds, with the time that stat(2) shows: it must not move when the content arrives.
    fn store_op(&self, file: &File, base: Base) -> Result<(CmlOp, mafs_proto::Timestamp), Error> {
        let known = self.cache.index.object(file.fid.vnode)?;
        let state = file.state();
        let changed = known.map_or(state.ctime, |known| known.object.status.ctime.max(state.ctime));
        Ok((CmlOp::Store { fid: file.fid, base, size: state.size, mtime: state.mtime }, changed))
    }

    fn log_store(&self, file: &File, record: &CmlRecord) -> Result<(), Error> {
        let stamp = stamp(file.container.as_ref())?;
        let synced = file.state().says_synced();
        self.cache.cml.append(LogEntry::Logged { record: record.clone(), stamp, queued: true })?;
        if synced {
            // What was fsynced of it survives a loss of power only with the record.
            self.cache.cml.append(LogEntry::Synced { fid: file.fid })?;
            self.cache.cml.sync()?;
        }
        self.log_changed.notify_one();
        Ok(())
    }

    fn version_now(&self, file: &File, state: &FileState, id: StoreId) -> Version {
        let content = FrozenContent::new(Arc::clone(&file.container), state.size, None);
        Version { id, edits: state.edits, content, snapshot: None, durable: false, gone: false }
    }

    /// Moves the newest version out of the container, whose bytes are about to change. Under `edit`.
    pub(super) fn preserve_version(&self, file: &File) -> Result<(), Error> {
        let newest = {
            let state = file.state();
            let newest = state.versions.back().filter(|version| version.snapshot.is_none());
            newest.map(|version| (version.id, Arc::clone(&version.content), version.durable))
        };
        let Some((id, content, durable)) = newest.filter(|(_, content, _)| content.is_in_container()) else {
            return Ok(());
        };
        let (container, copy) = self.cache.containers.duplicate(file.fid.vnode, file.container.as_ref())?;
        let logged = (|| {
            if durable {
                copy.sync_data()?;
                self.cache.containers.sync_name(file.fid.vnode)?;
            }
            self.cache.cml.append(LogEntry::Snapshot { id, container })?;
            if durable { self.cache.cml.sync() } else { Ok(()) }
        })();
        if let Err(error) = logged {
            self.remove_container(file.fid.vnode, container);
            return Err(error.into());
        }
        content.move_to(copy);
        if let Some(version) = file.state().version(id) {
            version.snapshot = Some(container);
        }
        Ok(())
    }

    /// A version is not wanted any more, or at the server. Returns the edit that made it.
    pub(super) fn forget_version(&self, file: &File, id: StoreId) -> Option<u64> {
        let forgotten = {
            let mut state = file.state();
            let at = state.versions.iter().position(|version| version.id == id)?;
            state.versions.remove(at)?
        };
        if let Some(snapshot) = forgotten.snapshot {
            self.remove_container(file.fid.vnode, snapshot);
        }
        Some(forgotten.edits)
    }

    /// The last name of a file is gone: nobody wants the versions that were not sent, unless a record that was waits
    /// for one.
    pub(super) fn drop_versions(&self, file: &File) {
        let ids: Vec<StoreId> = file.state().versions.iter().map(|version| version.id).collect();
        for id in ids.into_iter().rev() {
            let detached = self.replay.queue().detach(id);
            if let Some(changed) = detached {
                for queued in &changed {
                    self.remote.outstanding(|log| log.resume(queued.record.clone()));
                }
                let stores = |queued: &Queued| matches!(queued.record.op, CmlOp::Store { .. });
                // A later store of the same file has gone before this one.
                let changed = changed.into_iter().filter(|queued| !stores(queued)).map(LogEntry::Queued);
                self.log_all(changed.chain([LogEntry::Abandoned { id }]));
                self.remote.end(id);
                self.forget_version(file, id);
            }
        }
        self.note_queue_changed();
        self.replay.note_progress();
    }

    /// Makes the versions durable that are not yet, before the log that tells of them.
    pub(super) fn sync_versions(&self) -> Result<(), CacheError> {
        let files = self.files().all();
        files.iter().try_for_each(|file| self.sync_versions_of(file))
    }

    fn sync_versions_of(&self, file: &File) -> Result<(), CacheError> {
        let unsynced = || {
            let state = file.state();
            let version = state.versions.iter().find(|version| !version.durable)?;
            Some((version.id, version.snapshot.is_some(), Arc::clone(&version.content)))
        };
        while let Some((id, moved, content)) = unsynced() {
            let _edit = file.edit();
            if moved {
                content.sync()?;
            } else {
                file.container.sync_data()?;
            }
            self.cache.containers.sync_name(file.fid.vnode)?;
            self.cache.cml.append(LogEntry::Durable { id })?;
            if let Some(version) = file.state().version(id) {
                version.durable = true;
            }
        }
        Ok(())
    }

    /// The newest version is what an fsync has made durable.
    pub(super) fn note_version_durable(&self, file: &File, edits: u64) -> Result<(), Error> {
        let newest = {
            let mut state = file.state();
            let newest = state.versions.back_mut().filter(|version| version.edits == edits);
            newest.map(|version| {
                version.durable = true;
                version.id
            })
        };
        if let Some(id) = newest {
            self.cache.cml.append(LogEntry::Durable { id })?;
        }
        self.remote.outstanding(|log| {
            let newest = log.newest(file.fid).filter(|id| log.is_queued(*id));
            log.raise_barrier(newest);
        });
        Ok(())
    }
}
