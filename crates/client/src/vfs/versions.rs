//! Versions: contents of files when they were closed, on their way to the server.
//!
//! A logged version is immutable until the server has it: before the file's next change its bytes are copied to a
//! container of their own, which the log names. While programs can still write past this daemon, a version is the
//! content that the file has when it is sent; their last release compares again.
//!
//! A content that is fsynced while its file stays open is a version too, so that all that is logged later comes behind
//! it. Such a version *goes on*: bytes written next belong to it, without a copy, until it is sent or a copy is needed
//! for the order. A copy is needed when something depends on the version or something else has been fsynced since. So
//! a database that fsyncs itself a hundred times a second is one record, copied at most once for each time that it is
//! sent. The version is not sent before something depends on it or a caller waits for it, or a program that keeps a
//! file open would upload it each time.

use std::sync::Arc;

use mafs_durable::DiskFile;
use mafs_proto::{Base, CmlOp, CmlRecord, DataVersion, Kind, StoreId};
use tokio::time::timeout;

use super::file::{Content, File, Version};
use super::frozen::FrozenContent;
use super::passthrough::sight;
use super::{Error, Inner};
use crate::cache::{CacheError, stamp};
use crate::core::content::edits::Edit;
use crate::core::log::{ContainerId, LogEntry};
use crate::core::queue::{Queue, Queued};

/// How often a container is copied while programs write to it.
const COPIES_MAX: u32 = 3;

/// Reason why a version is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Made {
    ByClose,
    ByFsync,
}

impl Inner {
    /// Waits until it is known whether the content that this client has closed comes after the version `shown` or
    /// before: the answer about it may be slower than another client's version made from it.
    pub(super) async fn until_placed(&self, file: &File, shown: DataVersion) -> Result<(), Error> {
        let unplaced = file.state().unplaced(shown);
        let Some(id) = unplaced else { return Ok(()) };
        // A record sent on a connection that has broken waits its turn.
        self.send_first(&[id]);
        let _waiting = self.remote.waiting();
        let placed = file.wait(|state| state.unplaced(shown).is_none().then_some(()));
        let late = |_| Error::TimedOut("the server has not answered to what was written before".to_owned());
        timeout(self.settings.deadline, placed).await.map_err(late)
    }

    /// Makes the file's present content the version to be sent, unless it is one already.
    pub(super) fn log_version(&self, file: &File) -> Result<(), Error> {
        self.log_version_as(file, Made::ByClose)
    }

    /// Logs a content that is about to be made durable while its file stays open: all that is logged later comes
    /// behind it.
    pub(super) fn log_fsynced(&self, file: &File) -> Result<(), Error> {
        self.log_version_as(file, Made::ByFsync)
    }

    fn log_version_as(&self, file: &File, made: Made) -> Result<(), Error> {
        let _edit = file.edit();
        self.look(file)?;
        let unlogged = file.state().is_unlogged();
        if unlogged && !self.rewrite_last(file)? && !self.catch_up_last(file)? && !self.is_next_to_come(file) {
            self.preserve_version(file)?;
            self.push_version(file, made)?;
        }
        if unlogged {
            // A content that the server lacks takes room too.
            self.count_content(file)?;
        }
        let closed = {
            let mut state = file.state();
            match made {
                Made::ByClose => state.versions_mut().close(),
                Made::ByFsync => {
                    state.versions_mut().go_on(unlogged);
                    None
                }
            }
        };
        if let Some(id) = closed {
            self.replay.queue().let_go(id);
            self.note_queue_changed();
        }
        Ok(())
    }

    /// Whether the next version of a file has to wait for the answer about the one before. Where that one may be
    /// refused though it is in conflict with nothing, no version is based on it.
    fn is_next_to_come(&self, file: &File) -> bool {
        self.settings.writeback.waits() && !file.state().versions().is_empty()
    }

    /// Makes the file's present content the newest of its versions, if nothing forbids that. Under `edit`.
    fn rewrite_last(&self, file: &File) -> Result<bool, Error> {
        let mut queue = self.replay.queue();
        let Some(record) = self.last_rewritable(&queue, file) else { return Ok(false) };
        self.rewrite_version(&mut queue, file, record).map(|()| true)
    }

    /// Makes the file's present content its newest version even where other records wait for that by now: the content
    /// was written before they came. Under `edit`.
    fn catch_up_last(&self, file: &File) -> Result<bool, Error> {
        let newest = self.remote.outstanding(|log| log.newest(file.fid));
        if let Some(id) = newest {
            self.catch_up(file, id)?;
        }
        Ok(!file.state().is_unlogged())
    }

    /// Returns the record of a version that nothing else waits for and that was never sent: the next takes its place.
    fn last_rewritable(&self, queue: &Queue, file: &File) -> Option<CmlRecord> {
        let (id, goes_on) = {
            let state = file.state();
            (state.versions().newest()?.id(), state.versions().in_place().is_some_and(Version::goes_on))
        };
        let is_last = self.remote.outstanding(|log| {
            log.newest(file.fid) == Some(id) && if goes_on { log.may_go_on(id) } else { log.may_take_in(id) }
        });
        queue.rewritable(id).filter(|_| is_last).map(|queued| queued.record.clone())
    }

    /// Changes a waiting record to the file's present content. Under `edit`.
    pub(super) fn rewrite_version(&self, queue: &mut Queue, file: &File, before: CmlRecord) -> Result<(), Error> {
        let CmlOp::Store { base, .. } = before.op else { return Ok(()) };
        let in_place = file.state().versions().in_place().map(|version| (version.is_durable(), version.goes_on()));
        if let Some((true, false)) = in_place {
            // The kernel may have written past the durable bytes, and the log need not see that the content is
            // another.
            file.container.sync_data()?;
        }
        let (op, time) = self.store_op(file, base)?;
        let record = CmlRecord { op, time, ..before };
        self.log_store(file, &record)?;
        self.remote.outstanding(|log| log.resume(record.clone()));
        queue.rewrite(record.clone());
        let replaced = {
            let mut state = file.state();
            let now = self.version_now(file, &mut state, record.id);
            state.versions_mut().rewrite(now)
        };
        if let Some(snapshot) = replaced.and_then(|version| version.snapshot()) {
            self.drop_container(file.fid.vnode, snapshot);
        } else if let Some((durable, goes_on)) = in_place {
            self.keep_durable(file, record.id, (durable, goes_on))?;
        }
        self.note_queue_changed();
        Ok(())
    }

    /// Keeps a version that has grown in its place as durable as before, or as its fsynced part is.
    fn keep_durable(&self, file: &File, id: StoreId, (durable, goes_on): (bool, bool)) -> Result<(), Error> {
        if durable {
            self.cache.cml.append(LogEntry::Durable { id })?;
        }
        file.state().versions_mut().grow(id, (durable, goes_on));
        Ok(())
    }

    fn push_version(&self, file: &File, made: Made) -> Result<(), Error> {
        let mut queue = self.replay.queue();
        let (base, writer) = {
            let state = file.state();
            (state.base_of_next(), state.writer())
        };
        let (op, time) = self.store_op(file, base)?;
        self.note_place(&op);
        let (record, unlisted) = self.remote.queued_record((op, None), (writer.uid, writer.gid), time);
        if self.settings.writeback.waits() {
            self.remote.outstanding(|log| log.ask_once(record.id));
        }
        if let Err(error) = self.log_store(file, &record) {
            self.end_record(record.id);
            return Err(error);
        }
        {
            let mut state = file.state();
            let version = self.version_now(file, &mut state, record.id);
            state.versions_mut().push(version);
        }
        let id = record.id;
        queue.push(Queued { record, kind: Kind::File, replaced: None }, &unlisted);
        if made == Made::ByFsync {
            queue.hold_back(id);
        }
        self.note_queue_changed();
        Ok(())
    }

    /// Returns the store of the file's present content, with the time that stat(2) shows: it must not move when the
    /// content arrives.
    fn store_op(&self, file: &File, base: Base) -> Result<(CmlOp, mafs_proto::Timestamp), Error> {
        let known = self.cache.index.object(file.fid.vnode)?;
        let state = file.state();
        let changed = state.stat().last_change(known.as_ref().map(|known| &known.object.status));
        Ok((CmlOp::Store { fid: file.fid, base, size: state.stat().size(), mtime: state.stat().mtime() }, changed))
    }

    fn log_store(&self, file: &File, record: &CmlRecord) -> Result<(), Error> {
        let stamp = stamp(file.container.as_ref())?;
        let synced = file.state().edits().say_synced();
        self.cache.cml.append(LogEntry::Logged { record: record.clone(), stamp, immutable: true })?;
        if synced {
            // The fsynced data in it survives a loss of power only with the record.
            self.cache.cml.append(LogEntry::Synced { fid: file.fid })?;
        }
        self.log_changed.notify_one();
        Ok(())
    }

    fn version_now(&self, file: &File, state: &mut Content, id: StoreId) -> Version {
        let content = FrozenContent::new(Arc::clone(&file.container), state.stat().size());
        Version::new(id, state.edits_mut().log(), content)
    }

    /// Moves the newest version out of the container, whose bytes are about to change, unless it may go on. Under
    /// `edit`.
    pub(super) fn preserve_version(&self, file: &File) -> Result<(), Error> {
        let in_place = file.state().versions().in_place().map(|version| (version.id(), version.goes_on()));
        let Some((id, goes_on)) = in_place else { return Ok(()) };
        if goes_on && self.last_rewritable(&self.replay.queue(), file).is_some() {
            return Ok(());
        }
        self.catch_up(file, id)?;
        self.move_out(file)
    }

    /// Makes a version in the container one of the container's present bytes: those written as it went on, or those
    /// the kernel has written past the copy that any other change makes first. Not a version that was sent. Under
    /// `edit`.
    pub(super) fn catch_up(&self, file: &File, id: StoreId) -> Result<(), Error> {
        let is_behind = {
            let state = file.state();
            let in_place = state.versions().in_place().filter(|version| version.id() == id);
            in_place.is_some_and(|version| version.edit() != state.edits().newest())
        };
        if !is_behind {
            return Ok(());
        }
        self.look(file)?;
        let mut queue = self.replay.queue();
        let record = queue.get(id).filter(|_| !queue.is_frozen(id)).map(|queued| queued.record.clone());
        record.map_or(Ok(()), |record| self.rewrite_version(&mut queue, file, record))
    }

    /// Moves the newest version out of the container. Under `edit`.
    pub(super) fn move_out(&self, file: &File) -> Result<(), Error> {
        let (id, content, durable, synced, holds_synced) = {
            let state = file.state();
            let Some(newest) = state.versions().in_place() else { return Ok(()) };
            // `holds_synced`: the version is durable, and nothing was fsynced that comes after it.
            let (durable, synced) = (newest.is_durable(), state.edits().say_synced());
            let holds_synced = durable && state.edits().hold_synced(newest.edit());
            (newest.id(), Arc::clone(newest.content()), durable, synced, holds_synced)
        };
        let (container, copy) = self.copy_undisturbed(file)?;
        let size = content.size;
        let logged = (|| {
            if copy.len()? < size {
                // The kernel has cut the file meanwhile: this is tried again with its new content.
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
            if durable {
                copy.sync_data()?;
                self.cache.containers.sync_name(file.fid.vnode)?;
            }
            self.cache.cml.append(LogEntry::Snapshot { id, container })?;
            if synced && !holds_synced {
                self.cache.cml.append(LogEntry::Synced { fid: file.fid })?;
            }
            // Otherwise bytes written next would be taken for the version after a loss of power.
            if durable || synced { self.cache.cml.sync() } else { Ok(()) }
        })();
        if let Err(error) = logged {
            self.remove_container(file.fid.vnode, container);
            return Err(error.into());
        }
        content.move_to(self.cache.containers.lazy(file.fid.vnode, container));
        let mut state = file.state();
        state.versions_mut().move_out(id, container);
        if holds_synced {
            state.edits_mut().move_synced_out();
        }
        Ok(())
    }

    /// Copies a container, once more if the kernel has written to it meanwhile: a copy is to hold the file's content
    /// of one moment. If programs go on writing, the last copy is taken as it is. Under `edit`.
    fn copy_undisturbed(&self, file: &File) -> Result<(ContainerId, Arc<dyn DiskFile>), Error> {
        let (vnode, source) = (file.fid.vnode, file.container.file()?);
        let may_write = file.state().users().may_write();
        for _ in 1..COPIES_MAX {
            source.wait_for_writes()?;
            let before = sight(file)?;
            let (container, copy) = self.cache.containers.duplicate(vnode, source.as_ref())?;
            if !may_write || sight(file)? == before {
                return Ok((container, copy));
            }
            self.remove_container(vnode, container);
        }
        Ok(self.cache.containers.duplicate(vnode, source.as_ref())?)
    }

    /// Preserves the versions of other files that the kernel can write to without a word, after an fsync. Otherwise it
    /// could write to a version that has gone on until now, or to one of a closed file that another program has open.
    fn preserve_others(&self, fsynced: &File) -> Result<(), Error> {
        let written = self.files().written_by_kernel();
        for file in written.iter().filter(|file| file.fid != fsynced.fid) {
            let _edit = file.edit();
            self.look(file)?;
            self.preserve_version(file)?;
        }
        Ok(())
    }

    /// Forgets a version that is not wanted any more.
    pub(super) fn forget_version(&self, file: &File, id: StoreId) {
        let forgotten = file.state().versions_mut().take(id);
        self.remove_snapshot(file, forgotten);
        file.notify();
    }

    /// Removes the bytes of a version that are not wanted any more, or at the server.
    pub(super) fn remove_snapshot(&self, file: &File, version: Option<Version>) {
        if let Some(snapshot) = version.and_then(|version| version.snapshot()) {
            self.drop_container(file.fid.vnode, snapshot);
        }
    }

    /// Returns the versions for which records wait that give the file a name.
    pub(super) fn named_versions(&self, file: &File) -> Vec<StoreId> {
        let mut ids = file.state().versions().ids();
        let queue = self.replay.queue();
        ids.retain(|id| queue.is_named(*id));
        ids
    }

    /// Drops unsent versions of a file whose last name is gone. Versions stay if a sent record waits for one, or one
    /// that has given the file a name before.
    pub(super) fn drop_versions(&self, file: &File) {
        let ids = file.state().versions().ids();
        for id in ids.into_iter().rev() {
            // If the version is not in the queue, its record has gone with the one that made the file.
            let is_queued = self.replay.queue().contains(id);
            if !is_queued || self.detach(id, LogEntry::Abandoned { id }) {
                self.forget_version(file, id);
            }
        }
        self.note_queue_changed();
        self.replay.note_progress();
    }

    /// Makes versions durable that are not yet, before the log that tells of them.
    pub(super) fn sync_versions(&self) -> Result<(), CacheError> {
        let files = self.files().all();
        files.iter().try_for_each(|file| self.sync_versions_of(file))
    }

    fn sync_versions_of(&self, file: &File) -> Result<(), CacheError> {
        let unsynced = || {
            let state = file.state();
            let version = state.versions().first_undurable()?;
            Some((version.id(), version.snapshot().is_some(), Arc::clone(version.content())))
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
            file.state().versions_mut().keep(id);
        }
        Ok(())
    }

    /// Notes that an fsync has made the newest version durable, and makes older ones durable: a loss of power must not
    /// take one that it depends on.
    pub(super) fn note_version_durable(&self, file: &File, edit: Edit) -> Result<(), Error> {
        let newest = file.state().versions_mut().keep_in_place(edit);
        if let Some(id) = newest {
            self.cache.cml.append(LogEntry::Durable { id })?;
        }
        Ok(self.sync_versions_of(file)?)
    }

    /// Makes sure that no record logged from now on overtakes the known records of a file.
    pub(super) fn raise_barrier(&self, file: &File) -> Result<(), Error> {
        self.remote.outstanding(|log| {
            let newest = log.newest(file.fid).filter(|id| log.is_queued(*id));
            log.raise_barrier(newest);
        });
        self.preserve_others(file)
    }
}
