//! Storing: sends the content of changed files to the server, exactly once each.
//!
//! A store is logged before it is sent and leaves the log only when the server has it on stable storage. If its outcome
//! is unknown (the connection broke, the daemon died), it is resolved before anything else is sent of that file: the
//! same record is repeated with the same content, or, if the content has moved on, with none: the server then answers
//! with what it did if it had applied the record, and refuses the incomplete content if not.

use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::blocking;
use mafs_durable::DiskFile;
use mafs_proto::call::ApplyReply;
use mafs_proto::{CmlOp, CmlRecord, ContentHash, DataVersion, Fid, FsError, OnConflict, StoreId};

use super::file::{File, FileState, Unresolved};
use super::frozen::FrozenContent;
use super::{Error, Inner};
use crate::cache::{CacheError, seal, stamp};
use crate::core::content::edits::Edit;
use crate::core::content::fate::{Meaning, Refused};
use crate::core::log::LogEntry;
use crate::remote::{Answer, Link, RemoteError, Terms};

/// Attempts to send a content that the kernel goes on changing: the first from the container, the next from copies, the
/// last from a copy as it is.
const ATTEMPTS_MAX: u32 = 4;
/// Pauses between attempts to send what could not be sent: the first and the longest.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// How long to wait for a server that does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Patience {
    /// To the deadline.
    Full,
    /// To the deadline once for each content: who closes it next, as every child process does that has inherited the
    /// descriptor, is told at once what the first was, until there is a connection again.
    Once,
}

/// The turn to store a file.
struct Turn<'a> {
    file: &'a File,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.file.state();
            state.storing = false;
            state.sending = None;
        }
        self.file.notify();
    }
}

/// One content on its way.
struct Sending {
    content: Arc<FrozenContent>,
    record: CmlRecord,
    edit: Edit,
    /// Part of it may be at the server.
    interrupted: bool,
}

impl Inner {
    /// Sends the content of a file until the server has what it is at some moment after the call.
    pub(super) async fn store(self: &Arc<Self>, file: &Arc<File>, patience: Patience) -> Result<(), Error> {
        let stored = self.store_or_keep(file, patience).await;
        // Whoever closed the file may be gone by now, so this is where it is dropped, or left to be tried again.
        self.drop_if_unused(file);
        if stored.as_ref().is_err_and(Error::may_pass) {
            self.left_dirty.notify_one();
        }
        stored
    }

    /// Sends it, or makes it durable here.
    async fn store_or_keep(self: &Arc<Self>, file: &Arc<File>, patience: Patience) -> Result<(), Error> {
        let stored = self.store_in_turn(file, patience).await;
        if stored.is_err() {
            // The disk is not waited for on a session thread, which others need.
            tokio::task::yield_now().await;
            blocking(|| self.keep_unsent(file));
        }
        stored
    }

    async fn store_in_turn(self: &Arc<Self>, file: &Arc<File>, patience: Patience) -> Result<(), Error> {
        let wanted = file.state().edits().newest();
        loop {
            let take_turn = |state: &mut FileState| {
                if state.storing {
                    return None;
                }
                if let Some((edit, error)) = &state.unanswered
                    && patience == Patience::Once
                    && *edit == state.edits().newest()
                    && !self.remote.is_up()
                {
                    return Some(Err(error.clone()));
                }
                state.storing = state.is_dirty() && state.edits().lacks(wanted);
                Some(Ok(state.storing))
            };
            if !file.wait(take_turn).await? {
                return Ok(());
            }
            let _turn = Turn { file };
            match self.store_one_version(file).await {
                // It was removed meanwhile: there is nothing to store any more.
                Err(Error::Refused(FsError::Stale)) if !file.state().is_dirty() => return Ok(()),
                other => other?,
            }
        }
    }

    async fn store_one_version(&self, file: &Arc<File>) -> Result<(), Error> {
        for attempt in 1..=ATTEMPTS_MAX {
            self.settle(file).await?;
            self.resolve(file).await?;
            let Some(sending) = blocking(|| self.begin_store(file, attempt))? else { continue };
            if self.finish_store(file, sending).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Freezes the content and logs the store. `None` if there is nothing to send, or something to resolve first.
    fn begin_store(&self, file: &Arc<File>, attempt: u32) -> Result<Option<Sending>, Error> {
        let _edit = file.edit();
        self.settle_now(file)?;
        let known = self.cache.index.object(file.fid.vnode)?;
        let (size, mtime, edit, base, writer, again, changed) = {
            let state = file.state();
            if !state.is_dirty() {
                return Ok(None);
            }
            // The time that stat(2) has shown since: it must not move when the content arrives.
            let changed = state.stat().last_change(known.as_ref().map(|known| &known.object.status));
            let edit = state.edits().newest();
            let (size, mtime) = (state.stat().size(), state.stat().mtime());
            (size, mtime, edit, state.basis().of_store(), state.writer, state.unresolved.clone(), changed)
        };
        let content = self.freeze(file, size, attempt)?;
        let record = match again {
            Some(unresolved) if unresolved.edit == edit => unresolved.record,
            Some(_) => return Ok(None),
            None => {
                let op = CmlOp::Store { fid: file.fid, base, size, mtime };
                let stamp = stamp(file.container.as_ref())?;
                let record = self.remote.record(op, writer.uid, writer.gid, changed);
                let logged = self.cache.cml.append(LogEntry::Logged { record: record.clone(), stamp, queued: false });
                // What was fsynced is taken up after a loss of power: then it must be known that it may have been sent.
                let synced = file.state().edits().say_synced();
                let known = logged.and_then(|()| if synced { self.log_synced(file.fid) } else { Ok(()) });
                if let Err(error) = known {
                    self.end_record(record.id);
                    return Err(error.into());
                }
                record
            }
        };
        let mut state = file.state();
        state.set_sending(Arc::clone(&content));
        state.unresolved = Some(Unresolved { record: record.clone(), edit });
        let interrupted = std::mem::replace(&mut state.interrupted, true);
        drop(state);
        self.log_changed.notify_one();
        Ok(Some(Sending { content, record, edit, interrupted }))
    }

    /// Said again behind each store: that of an earlier one may have been fsynced before, and be on the server.
    fn log_synced(&self, fid: Fid) -> Result<(), CacheError> {
        self.cache.cml.append(LogEntry::Synced { fid })?;
        self.cache.cml.sync()
    }

    /// The content as it is, wherever it is read from. Under `edit`.
    fn freeze(&self, file: &File, size: u64, attempt: u32) -> Result<Arc<FrozenContent>, Error> {
        let watched = {
            let state = file.state();
            state.users().watch.seen().filter(|_| state.users().may_write())
        };
        let content = FrozenContent::new(Arc::clone(&file.container), size, watched);
        if attempt > 1 {
            content.preserve(&self.cache.containers)?;
        }
        if attempt == ATTEMPTS_MAX {
            content.accept();
        }
        Ok(content)
    }

    /// Returns whether the content went out as one version.
    async fn finish_store(&self, file: &File, sending: Sending) -> Result<bool, Error> {
        let Sending { content, record, edit, interrupted } = sending;
        let begun = self.clock.now();
        let terms = Terms { interrupted, on_conflict: OnConflict::Refuse, lock_lost: self.is_doubtful(file.fid) };
        match self.remote.store(&record, &content, terms).await {
            Ok(answer) => {
                // Holes were not sent.
                let sent = blocking(|| file.container.allocated())?.min(content.size);
                self.upload_rate().observe(sent, self.clock.now().since(begun));
                blocking(|| self.stored(file, &record, &answer, Some(edit))).map(|()| true)
            }
            Err(RemoteError::Refused { error: FsError::Malformed, .. }) if content.is_torn() => {
                self.abandon(file, record.id);
                Ok(false)
            }
            Err(error) => Err(self.not_stored(file, record.id, error)),
        }
    }

    /// Finds out what became of a store whose content is not there any more.
    async fn resolve(&self, file: &File) -> Result<(), Error> {
        let unresolved = {
            let state = file.state();
            state.unresolved.clone().filter(|unresolved| unresolved.edit != state.edits().newest())
        };
        let Some(Unresolved { record, .. }) = unresolved else { return Ok(()) };
        match self.remote.resolve(&record).await {
            Ok(answer) => blocking(|| self.stored(file, &record, &answer, None)),
            Err(RemoteError::Refused { error: FsError::Malformed, .. }) => {
                self.abandon(file, record.id);
                Ok(())
            }
            Err(RemoteError::Refused { error: FsError::StoreIdReused, .. }) => {
                self.base_on_record(file, record.id).await
            }
            Err(error) => Err(self.not_stored(file, record.id, error)),
        }
    }

    /// This client has told the server that it knows what became of a store, and a log that could not be written has
    /// forgotten it. Whoever has made the present version: only that record's may be replaced.
    async fn base_on_record(&self, file: &File, id: StoreId) -> Result<(), Error> {
        self.cache.index.distrust(std::iter::once(file.fid))?;
        let status = self.status_of(file.fid.vnode).await?.object.status;
        file.state().basis_mut().forgot(id, status.data_version);
        self.abandon(file, id);
        Ok(())
    }

    /// The server has the content of this edit; `None`: of an edit before all that are known.
    pub(super) fn stored(
        &self,
        file: &File,
        record: &CmlRecord,
        answer: &Answer<ApplyReply>,
        edit: Option<Edit>,
    ) -> Result<(), Error> {
        let Answer { reply, session, .. } = answer;
        let Some(object) = reply.objects.iter().find(|object| object.fid == file.fid) else {
            return Err(Error::Refused(FsError::Malformed));
        };
        let version = object.status.data_version;
        // The index first: an open that sees the new state must find the new version there.
        self.cache.index.applied(reply, *session, &[])?;
        let hash = reply.hash.ok_or(Error::Refused(FsError::Malformed))?;
        let base = self.note_stored(file, record.id, (version, hash), edit)?;
        if file.state().fate().is_unlinked() {
            // The reply was older than the removal, which is already known here.
            self.cache.index.remove(file.fid.vnode)?;
            return Ok(());
        }
        self.kernel.stored(file.fid.vnode, base, version);
        self.make_room(0);
        self.log_changed.notify_one();
        Ok(())
    }

    /// Turns file, log and container over to the new version, under `edit`. Returns the version before. A version that
    /// is logged meanwhile is based either on this one's record or on what has become of it: on nothing else, or the
    /// server would take it for a conflict.
    fn note_stored(
        &self,
        file: &File,
        id: StoreId,
        (version, hash): (DataVersion, ContentHash),
        edit: Option<Edit>,
    ) -> Result<DataVersion, Error> {
        let _edit = file.edit();
        self.look(file)?;
        let (base, clean, (was_synced, synced), unlinked, version_of_it) = {
            let mut state = file.state();
            // In one step with what it becomes: an open looks whether there are versions whose answers are to come.
            let version_of_it = state.take_version(id);
            if state.users().may_write() && !state.users().watch.is_settled() {
                // A write that was seen may have gone on behind what was sent.
                state.count_edit();
            }
            let known = edit == Some(state.edits().newest());
            // Whoever may write to it is watched, so it is not sealed.
            let clean = known && !state.users().may_write();
            let was_synced = state.edits().say_synced();
            if let Some(sent) = edit.or(state.unresolved.as_ref().map(|unresolved| unresolved.edit)) {
                state.edits_mut().store(sent);
            }
            let synced = !clean && state.edits().say_synced();
            let base = state.basis_mut().become_version(version, hash);
            state.writing_logged = !clean && !state.fate().is_unlinked();
            (state.unresolved, state.interrupted) = (None, false);
            state.fate_mut().end_refusal();
            (base, clean, (was_synced, synced), state.fate().is_unlinked(), version_of_it)
        };
        self.remove_snapshot(file, version_of_it);
        self.end_record(id);
        self.cache.cml.append(LogEntry::Done { id, fid: file.fid, version, clean, synced })?;
        if was_synced && !synced {
            // Or a loss of power puts what was fsynced before in the place of what the server has acknowledged.
            self.cache.cml.sync()?;
        }
        if clean && !unlinked {
            seal(file.container.as_ref(), version)?;
            self.set_content(file, version, hash)?;
            self.count_content(file)?;
        }
        Ok(base)
    }

    /// Decides what a failed store means: a refusal ends its record, anything else leaves it to be resolved.
    fn not_stored(&self, file: &File, id: StoreId, error: RemoteError) -> Error {
        if let RemoteError::Refused { error: reason, .. } = &error {
            self.abandon(file, id);
            self.take_in_refused(file, *reason, &error);
        }
        let error = Error::from(error);
        if error.is_unanswered() {
            let mut state = file.state();
            state.unanswered = Some((state.edits().newest(), error.clone()));
        }
        error
    }

    /// The server refuses a content. That is shown until the content changes or goes, if anybody wants it still.
    pub(super) fn take_in_refused(&self, file: &File, reason: FsError, error: &RemoteError) {
        let meaning = file.state().fate().meaning_of(reason);
        match meaning {
            Meaning::Removed => self.removed_before(file),
            Meaning::Moot => tracing::debug!(fid = %file.fid, %error, "a file was removed while it was sent"),
            Meaning::Shown => self.note_refused(file, reason, error),
        }
    }

    fn note_refused(&self, file: &File, reason: FsError, error: &RemoteError) {
        let path = self.path_of(file.fid).unwrap_or_else(|| file.fid.to_string());
        tracing::warn!(path, %error, "the server refused a file's content; it stays in the cache");
        file.state().fate_mut().refuse(Refused { reason, path });
    }

    /// The server is about to be asked to remove the last name of a file. If the answer is lost, it is this that tells
    /// the removal from somebody else's. Returns whether it was not about to before.
    pub(super) fn note_removing(&self, file: &File) -> Result<bool, Error> {
        let _edit = file.edit();
        self.log_if_writing(file, LogEntry::Removing { fid: file.fid })?;
        Ok(file.state().fate_mut().ask_removal())
    }

    /// The server has refused that: the next removal of the file is somebody else's, whatever the log takes.
    pub(super) fn note_kept(&self, file: &File) {
        let _edit = file.edit();
        file.state().fate_mut().keep_name();
        if let Err(error) = self.log_if_writing(file, LogEntry::Kept { fid: file.fid }) {
            tracing::error!(fid = %file.fid, %error, "the modify log does not say that a file was not removed");
        }
    }

    fn log_if_writing(&self, file: &File, entry: LogEntry) -> Result<(), CacheError> {
        let logged = file.state().writing_logged;
        if logged {
            self.cache.cml.append(entry)?;
            self.log_changed.notify_one();
        }
        Ok(())
    }

    /// The server does not know a file any more that this client has asked it to remove: nothing of it is news.
    pub(super) fn removed_before(&self, file: &File) {
        let _edit = file.edit();
        {
            let mut state = file.state();
            state.edits_mut().give_up();
            state.writing_logged = false;
        }
        let dropped = self.cache.cml.append(LogEntry::Dropped { fid: file.fid });
        if let Err(error) = dropped.and_then(|()| self.cache.index.remove(file.fid.vnode)) {
            tracing::error!(%error, "the cache cannot be written");
        }
    }

    /// The server does not have the record and will not get it again.
    fn abandon(&self, file: &File, id: StoreId) {
        file.state().unresolved = None;
        self.end_record(id);
        if let Err(error) = self.cache.cml.append(LogEntry::Abandoned { id }) {
            tracing::error!(%error, "the modify log cannot be written");
        }
    }

    /// Sends what is dirty and no longer open, in the background, for ever: after every connect, and now and then.
    pub(super) async fn keep_storing(self: Arc<Self>) {
        let mut link = self.remote.watch_link();
        let mut pause = RETRY_PAUSES[0];
        loop {
            match link.wait_for(|link| !matches!(link, Link::Down(_))).await.map(|link| matches!(*link, Link::Up(..))) {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
            let failed = self.store_abandoned().await;
            if failed {
                let _ = tokio::time::timeout(pause, link.changed()).await;
                pause = (pause * 2).min(RETRY_PAUSES[1]);
            } else {
                pause = RETRY_PAUSES[0];
                tokio::select! {
                    biased;
                    changed = link.changed() => if changed.is_err() { return },
                    () = self.left_dirty.notified() => {}
                }
            }
        }
    }

    /// Tries each dirty file once that nobody has open, or whose last store nobody knows the outcome of: what is done
    /// to its names waits for that. Returns whether some failed in a way that may pass.
    async fn store_abandoned(self: &Arc<Self>) -> bool {
        let mut failed = false;
        let paused = self.is_paused();
        let dirty = self.files().dirty();
        for file in dirty {
            let (left, unresolved) = {
                let state = file.state();
                let passing = state.fate().refusal().is_none_or(may_pass);
                let queued = !state.versions.is_empty() || !state.is_unlogged();
                let unresolved = state.unresolved.is_some();
                ((unresolved || (!paused && state.handles() == 0 && !queued)) && passing, unresolved)
            };
            if left {
                let stored = match unresolved || !self.settings.writeback.is_logged() {
                    true => self.store_or_keep(&file, Patience::Full).await,
                    // A crash came before its close.
                    false => blocking(|| self.log_version(&file)),
                };
                let stored_or_gone = stored.is_ok() || !file.state().is_dirty();
                failed |= !stored_or_gone && stored.is_err_and(|error| error.may_pass());
                if stored_or_gone {
                    self.drop_if_unused(&file);
                }
            }
        }
        failed
    }
}

/// Whether trying again may help although nobody does anything about it.
pub(super) fn may_pass(error: FsError) -> bool {
    matches!(
        error,
        FsError::NoSpace
            | FsError::Quota
            | FsError::Io
            | FsError::Busy
            | FsError::ReadOnly
            | FsError::ShuttingDown
            | FsError::Damaged
            | FsError::NotAttached
    )
}
