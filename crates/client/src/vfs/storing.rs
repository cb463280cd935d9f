//! Storing: waits until the server has the content of a file, and takes in the answer.
//!
//! A content is logged as a version before it is sent ([`versions`](super::versions)), and leaves the log only when
//! the server has decided about it. If there is no answer, because the connection breaks or the daemon dies, the same
//! record is sent again, so a content is stored exactly once. A close with `writeback=sync`, an fsync and the release
//! of a lock wait for the answer to that record.

use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::blocking;
use mafs_proto::call::ApplyReply;
use mafs_proto::{CmlRecord, ContentHash, DataVersion, FsError, StoreId};

use super::file::{Content, File};
use super::{Error, Inner};
use crate::cache::{CacheError, seal};
use crate::core::content::edits::Edit;
use crate::core::content::fate::{Meaning, Refused};
use crate::core::log::LogEntry;
use crate::core::queue::Policy;
use crate::remote::{Answer, Link, RemoteError};

/// Pauses between attempts to send after a failure: the first and the longest.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// How long to wait for a server that does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Patience {
    /// To the deadline.
    Full,
    /// To the deadline once for each content. The next close gets the first one's result at once, until there is a
    /// connection again: every child process that has inherited the descriptor closes it.
    Once,
}

/// Mark that a caller waits for the server to have the content of a file: it is sent as urgently as a fetch.
pub(super) struct Awaited<'a>(&'a File);

impl<'a> Awaited<'a> {
    pub(super) fn begin(file: &'a File) -> Self {
        file.await_more();
        Self(file)
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.await_less();
    }
}

impl Inner {
    /// Stores the file's present content, before contents that closes send.
    pub(super) async fn store_now(self: &Arc<Self>, file: &Arc<File>) -> Result<(), Error> {
        let _awaited = Awaited::begin(file);
        self.store(file, Patience::Full).await
    }

    /// Logs the file's present content, and waits until the server has that, or something later.
    ///
    /// # Errors
    /// The server's answer if that is a refusal, or why there is none; the content is durable here by then.
    pub(super) async fn store(self: &Arc<Self>, file: &Arc<File>, patience: Patience) -> Result<(), Error> {
        let stored = self.store_in_turn(file, patience).await;
        if stored.is_err() {
            // The disk is not waited for on a session thread, which others need.
            tokio::task::yield_now().await;
            blocking(|| self.keep_unsent(file));
        }
        stored
    }

    /// Logs and awaits one version after the other: the next may be logged only when the one before has been answered.
    async fn store_in_turn(&self, file: &File, patience: Patience) -> Result<(), Error> {
        let wanted = file.state().edits().newest();
        loop {
            blocking(|| self.log_version(file))?;
            let newest = file.state().versions().newest().map(|newest| (newest.id(), newest.edit()));
            let Some((id, edit)) = newest else { return file.check_refused() };
            match self.until_said(file, id, patience).await {
                Err(error) => return Err(error),
                Ok(()) if edit >= wanted => file.check_refused()?,
                Ok(()) => {}
            }
            let state = file.state();
            if !state.is_dirty() || !state.edits().lacks(wanted) {
                return Ok(());
            }
        }
    }

    /// Waits for the server's answer about a version.
    async fn until_said(&self, file: &File, id: StoreId, patience: Patience) -> Result<(), Error> {
        if patience == Patience::Full || self.remote.is_up() {
            file.state().versions_mut().note_unanswered(id, None);
        } else if let Some(error) = unanswered(&file.state(), id) {
            return Err(error);
        }
        self.hurry(id);
        let unanswered = file.wait(|state| unanswered(state, id));
        let said = tokio::select! {
            biased;
            said = self.until_answered(id) => said,
            error = unanswered => Err(error),
        };
        if let Err(error) = &said
            && error.is_unanswered()
        {
            file.state().versions_mut().note_unanswered(id, Some(error.clone()));
        }
        said
    }

    /// Lets a record that a caller waits for go before others.
    fn hurry(&self, id: StoreId) {
        if self.settings.writeback.waits() {
            // In the class of a close: other callers wait for theirs.
            drop(self.replay.queue().raise(&[id]));
            self.note_queue_changed();
        } else if self.settings.writeback.policy() != Policy::Nothing {
            // In order the record would wait for all that was written before.
            self.send_first(&[id]);
        }
    }

    /// Takes in that the server has the content of this edit. `None`: of an edit before all known ones.
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
        self.cache.index.stored(reply, *session, file.fid)?;
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
    /// is logged meanwhile is based either on this record or on the version it has become: on anything else, the
    /// server would take it for a conflict. The log first: if it cannot be written the answer is asked for again.
    fn note_stored(
        &self,
        file: &File,
        id: StoreId,
        (version, hash): (DataVersion, ContentHash),
        edit: Option<Edit>,
    ) -> Result<DataVersion, Error> {
        let _edit = file.edit();
        self.look(file)?;
        let (clean, was_synced, synced, unlinked) = {
            let mut state = file.state();
            if state.users().may_write() && !state.users().watch.is_settled() {
                // A write that was seen may have gone on behind the bytes that were sent.
                state.count_edit();
            }
            // A container that may still be written is watched, so it is not sealed.
            let clean = edit == Some(state.edits().newest()) && !state.users().may_write();
            let was_synced = state.edits().say_synced();
            let holds_synced = edit.is_some_and(|sent| state.edits().hold_synced(sent));
            (clean, was_synced, !clean && was_synced && !holds_synced, state.fate().is_unlinked())
        };
        self.cache.cml.append(LogEntry::Done { id, fid: file.fid, version, clean, synced })?;
        let base = {
            let mut state = file.state();
            if let Some(sent) = edit {
                state.edits_mut().store(sent);
            }
            let base = state.basis_mut().become_version(version, hash);
            state.log_writing(!clean && !unlinked);
            state.versions_mut().note_answered();
            state.fate_mut().end_refusal();
            base
        };
        if was_synced && !synced {
            // Otherwise a loss of power would replace the content that the server has acknowledged by data fsynced
            // before.
            self.cache.cml.sync()?;
        }
        if clean && !unlinked {
            seal(file.container.as_ref(), version)?;
            self.set_content(file, version, hash)?;
            self.count_content(file)?;
        }
        // Last: until the index names its container the file must stay in use.
        let version_of_it = file.state().versions_mut().take(id);
        self.remove_snapshot(file, version_of_it);
        self.end_record(id);
        Ok(base)
    }

    /// Takes in that the server refuses a content. The refusal is shown until the content changes or goes, if any
    /// program still wants it.
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

    /// Notes that the server is about to be asked to remove the last name of a file. If the answer is lost, this note
    /// tells the removal from another client's. Returns whether it was not about to before.
    pub(super) fn note_removing(&self, file: &File) -> Result<bool, Error> {
        let _edit = file.edit();
        self.log_if_writing(file, LogEntry::Removing { fid: file.fid })?;
        Ok(file.state().fate_mut().ask_removal())
    }

    /// Notes that the server has refused the removal: the next removal of the file is another client's, even if the
    /// log cannot be written.
    pub(super) fn note_kept(&self, file: &File) {
        let _edit = file.edit();
        file.state().fate_mut().keep_name();
        if let Err(error) = self.log_if_writing(file, LogEntry::Kept { fid: file.fid }) {
            tracing::error!(fid = %file.fid, %error, "the modify log does not say that a file was not removed");
        }
    }

    fn log_if_writing(&self, file: &File, entry: LogEntry) -> Result<(), CacheError> {
        let logged = file.state().is_writing_logged();
        if logged {
            self.cache.cml.append(entry)?;
            self.log_changed.notify_one();
        }
        Ok(())
    }

    /// Drops the changes of a file that the server does not know any more, because this client has asked to remove it.
    pub(super) fn removed_before(&self, file: &File) {
        let _edit = file.edit();
        {
            let mut state = file.state();
            state.edits_mut().give_up();
            state.log_writing(false);
        }
        let dropped = self.cache.cml.append(LogEntry::Dropped { fid: file.fid });
        if let Err(error) = dropped.and_then(|()| self.cache.index.remove(file.fid.vnode)) {
            tracing::error!(%error, "the cache cannot be written");
        }
    }

    /// Sends dirty files that are no longer open, in the background, for ever: after every connect, and now and then.
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

    /// Tries each dirty file once that no program has open and that is in no version: a crash came before its close,
    /// or the server has refused it. Returns whether some failed in a way that may pass.
    async fn store_abandoned(self: &Arc<Self>) -> bool {
        let mut failed = false;
        let dirty = if self.is_paused() { Vec::new() } else { self.files().dirty() };
        for file in dirty.iter().filter(|file| is_left(file)) {
            let stored = self.sync_file(file).await;
            let stored_or_gone = stored.is_ok() || !file.state().is_dirty();
            failed |= !stored_or_gone && stored.is_err_and(|error| error.may_pass());
            if stored_or_gone {
                self.drop_if_unused(file);
            }
        }
        failed
    }
}

/// Returns why a version has no answer.
fn unanswered(state: &Content, id: StoreId) -> Option<Error> {
    state.versions().get(id)?.unanswered().cloned()
}

/// Whether a file is in no version, no close of it will come, and it is worth trying to store it.
fn is_left(file: &File) -> bool {
    let state = file.state();
    let may_pass = state.fate().refusal().is_none_or(may_pass);
    may_pass && state.handles() == 0 && state.versions().is_empty() && state.is_unlogged()
}

/// Whether a new attempt may help although no one acts on the error.
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
