//! Verdicts: takes in the server's answers to the records that wait in the queue.
//!
//! Answers are taken in in the order of the changes that they tell of, so that the known state of a directory goes
//! from one of its versions to the next.

use std::io;
use std::sync::Arc;

use mafs_durable::DiskFile;
use mafs_proto::call::ApplyReply;
use mafs_proto::{CmlOp, CmlRecord, DataVersion, Fid, FsError, Outcome, StoreId};

use super::file::{File, Version};
use super::storing::may_pass;
use super::{Error, Inner};
use crate::core::arrivals::Arrivals;
use crate::core::log::LogEntry;
use crate::core::overlay::edits_of;
use crate::core::pauses::Verdict;
use crate::core::queue::{Queue, Queued};
use crate::remote::{Answer, RemoteError};

/// A record's answer.
pub(super) struct Answered {
    pub(super) record: CmlRecord,
    pub(super) result: Result<Answer<ApplyReply>, NotSent>,
    /// Whether the content was sent with it.
    pub(super) whole: bool,
}

/// Reason why a record is not at the server.
pub(super) enum NotSent {
    /// Its content cannot be sent as it is here.
    Here(Error),
    There(RemoteError),
}

/// Notes that an answer has come.
pub(super) fn arrive(arrivals: &mut Arrivals<Answered>, answered: Answered) {
    let about = (answered.record.id, answered.record.op.fid());
    match &answered.result {
        Ok(answer) => {
            let (change, directories) = (answer.reply.change.0, answer.reply.directories.clone());
            arrivals.arrived(about, Some(change), &directories, answered);
        }
        Err(NotSent::There(error)) if error.is_unanswered() => arrivals.lost(answered.record.id, answered),
        Err(_) => arrivals.arrived(about, None, &[], answered),
    }
}

impl Inner {
    /// Takes answers in, in the order of their changes.
    pub(super) fn take_in(&self, arrivals: &mut Arrivals<Answered>) -> Verdict {
        let mut outcome = Verdict::Done;
        let known = |directory| self.cache.index.names_version(directory);
        let pending = |id| self.replay.queue().contains(id);
        let held_up_by = |id| self.replay.queue().held_up_by(id);
        while let Some(Answered { record, result, whole }) = arrivals.take(known, pending, held_up_by) {
            let id = record.id;
            match result {
                Ok(answer) => {
                    if let CmlOp::Remove { .. } | CmlOp::RemoveDir { .. } | CmlOp::Rename { .. } = record.op {
                        // The removal makes room.
                        self.replay.try_again();
                    }
                    *self.replay.trouble() = None;
                    if let CmlOp::Store { size, .. } = record.op {
                        self.drain().finish(size);
                        self.room().stored(size);
                    }
                    if let Err(error) = self.take_in_applied(&record, &answer, whole) {
                        tracing::error!(%error, "an answer of the server cannot be noted");
                        outcome = Verdict::Passes;
                    }
                }
                Err(NotSent::Here(error)) => {
                    self.end_sending(&record);
                    self.replay.queue().postpone(id, true);
                    *self.replay.trouble() = Some(error);
                    outcome = Verdict::Passes;
                }
                Err(NotSent::There(error)) => outcome = outcome.max(self.take_in_error(&record, error, whole)),
            }
        }
        if self.replay.queue().len() == 0 {
            self.replay.places().clear();
            self.replay.homes().clear();
            self.conflicts.all_taken_in();
        }
        self.replay.note_progress();
        outcome
    }

    fn take_in_error(&self, record: &CmlRecord, error: RemoteError, whole: bool) -> Verdict {
        let is_last_word = whole && !self.comes_again(record) && !self.waits_for_another(record);
        match error {
            RemoteError::Refused { error, message } if is_last_word => self.take_in_refusal(record, error, &message),
            RemoteError::Refused { error: FsError::Busy, .. } => {
                self.end_sending(record);
                self.replay.queue().postpone_busy(record.id);
                *self.replay.trouble() = Some(FsError::Busy.into());
                return Verdict::Busy;
            }
            RemoteError::Refused { error, .. } if error.is_transient() || self.waits_for_another(record) => {
                self.end_sending(record);
                if error.is_for_want_of_room() {
                    self.replay.queue().postpone_for_room(record.id);
                } else {
                    self.replay.queue().postpone(record.id, true);
                }
                if error.is_transient() {
                    *self.replay.trouble() = Some(error.into());
                    return if error.is_for_want_of_room() { Verdict::Full } else { Verdict::Passes };
                }
            }
            RemoteError::Refused { error, .. } if self.may_be_kept(record, error) => {
                // A file that this client has removed since may look so, for its answers overtake each other. Its
                // record comes again, too: until the record is refused for good the server refuses all that depends on
                // it.
                tracing::debug!(id = %record.id, %error, "a change may be in conflict with what others have done");
                self.end_sending(record);
                self.replay.queue().postpone(record.id, true);
            }
            RemoteError::Refused { error: FsError::Malformed, .. } if !whole => self.send_anew(record),
            RemoteError::Refused { error, message } => self.take_in_refusal(record, error, &message),
            RemoteError::Pulling { .. }
            | RemoteError::Unreachable(_)
            | RemoteError::TimedOut(_)
            | RemoteError::OutOfReach(_)
            | RemoteError::ByHand => {
                tracing::debug!(id = %record.id, %error, "a change was not answered");
                self.replay.queue().postpone(record.id, false);
                self.note_unanswered(record, error.into());
                self.end_sending(record);
            }
        }
        Verdict::Done
    }

    /// Whether a record is sent again if it is refused for a reason that passes. Where changes wait for the server's
    /// answer the first one counts.
    pub(super) fn comes_again(&self, record: &CmlRecord) -> bool {
        self.remote.outstanding(|log| log.is_queued(record.id))
    }

    /// Ends the wait for a content whose first answer counts: no program waits for a second attempt.
    fn note_unanswered(&self, record: &CmlRecord, error: Error) {
        let file = self.file_of(record).filter(|_| !self.comes_again(record));
        if let Some(file) = file {
            file.state().versions_mut().note_unanswered(record.id, Some(error));
        }
    }

    /// Whether a record comes again, with its origin, after it has turned out to be in conflict. A program that waits
    /// for the outcome is told instead.
    fn may_be_kept(&self, record: &CmlRecord, error: FsError) -> bool {
        let is_told = !self.comes_again(record) || self.replay.is_awaited(record.id);
        error.is_conflict() && !is_told && self.replay.queue().keep(record.id)
    }

    /// Whether a record depends on one that was refused and comes again: then its own refusal says nothing.
    fn waits_for_another(&self, record: &CmlRecord) -> bool {
        let queue = self.replay.queue();
        record.depends_on.iter().any(|before| queue.contains(*before))
    }

    fn take_in_applied(&self, record: &CmlRecord, answer: &Answer<ApplyReply>, whole: bool) -> Result<(), Error> {
        let id = record.id;
        let Some(queued) = self.replay.queue().get(id).cloned() else { return Ok(()) };
        if let CmlOp::Store { .. } = record.op {
            return self.take_in_stored(record, answer, whole);
        }
        let trashed = matches!(answer.reply.outcome, Outcome::Trashed(_)).then(|| record.op.fid());
        let gone = answer.reply.objects.iter().filter(|object| object.status.nlink == 0).map(|object| object.fid);
        for gone in gone.chain(trashed) {
            let moot = self.note_moot(&mut self.replay.queue(), gone, id);
            // A later life must not send moot records: it would not know that they are moot.
            self.log_all(moot.into_iter().map(|id| LogEntry::Ended { id }));
        }
        let noted = match &answer.reply.outcome {
            Outcome::AsSaid => self.cache.index.applied_pending(&answer.reply, answer.session, &queued),
            Outcome::WasSo => self.take_in_otherwise(&queued, answer, &[]),
            Outcome::Elsewhere(placed) => self.take_in_otherwise(&queued, answer, placed),
            Outcome::Trashed(placed) => self.take_in_trashed(&queued, answer, placed),
            Outcome::SetAside(place) => self.take_in_set_aside(&queued, answer, place),
        };
        self.replay.queue().remove(id);
        // Otherwise the server could forget a reply that the next start asks for again.
        if let Err(error) = self.cache.cml.append(LogEntry::Ended { id }) {
            tracing::error!(%error, "the modify log cannot be written");
        } else {
            self.end_record(id);
        }
        self.replay.tell(id, Ok(()));
        self.log_changed.notify_one();
        Ok(noted?)
    }

    fn take_in_stored(&self, record: &CmlRecord, answer: &Answer<ApplyReply>, whole: bool) -> Result<(), Error> {
        let Some(file) = self.file_of(record) else {
            self.replay.queue().remove(record.id);
            self.cache.index.stored(&answer.reply, answer.session, record.op.fid())?;
            self.log_all([LogEntry::Abandoned { id: record.id }]);
            self.end_record(record.id);
            return Ok(());
        };
        let edit = {
            let mut state = file.state();
            state.versions_mut().end_sending();
            state.versions().get(record.id).map(Version::edit).filter(|_| whole)
        };
        if let Outcome::Elsewhere(placed) = &answer.reply.outcome {
            self.replay.queue().remove(record.id);
            return self.take_in_kept(&file, record, answer, (edit, placed));
        }
        let stored = self.stored(&file, record, answer, edit);
        match &stored {
            Ok(()) => drop(self.replay.queue().remove(record.id)),
            Err(Error::Refused(_)) => {
                self.replay.queue().remove(record.id);
                let _edit = file.edit();
                self.forget_version(&file, record.id);
            }
            // The record is sent again, for the same answer.
            Err(error) => {
                self.replay.queue().postpone(record.id, true);
                *self.replay.trouble() = Some(error.clone());
            }
        }
        stored?;
        if !whole {
            self.log_version(&file)?;
        }
        file.notify();
        self.drop_if_unused(&file);
        Ok(())
    }

    /// Sends a store again with the file's present content: the content had gone, so the store was not applied.
    fn send_anew(&self, record: &CmlRecord) {
        let file = self.file_of(record);
        let missing = |file: &Arc<File>| file.container.stat().is_err_and(|why| why.kind() == io::ErrorKind::NotFound);
        let is_lost = file.as_ref().is_some_and(missing);
        let rewritten = file.map(|file| {
            let _edit = file.edit();
            let mut queue = self.replay.queue();
            queue.thaw(record.id);
            self.rewrite_version(&mut queue, &file, record.clone())
        });
        match rewritten {
            Some(Ok(())) => self.replay.queue().postpone(record.id, true),
            Some(Err(error)) if !is_lost => {
                tracing::error!(%error, "a content cannot be logged anew");
                self.replay.queue().postpone(record.id, true);
            }
            Some(Err(_)) | None => {
                // The server has not refused the record either, and dependents would wait for it.
                self.free_dependents(record.id);
                self.take_in_refusal(record, FsError::Malformed, "its content is not there any more");
            }
        }
    }

    fn end_sending(&self, record: &CmlRecord) {
        if let Some(file) = self.file_of(record) {
            file.state().versions_mut().end_sending();
            file.notify();
        }
    }

    /// Takes in that the server will never apply a record.
    fn take_in_refusal(&self, record: &CmlRecord, reason: FsError, message: &str) {
        let id = record.id;
        if let CmlOp::Store { .. } = record.op {
            return self.take_in_refused_content(record, reason);
        }
        // Another client has removed the same attribute.
        let was_so = reason == FsError::NoXattr && matches!(record.op, CmlOp::RemoveXattr { .. });
        let is_moot = was_so || reason == FsError::Stale && self.is_moot(record);
        if let Some(queued) = self.replay.queue().remove(id) {
            self.cache.index.drop_pending(&queued);
            self.forget_refused(&queued);
            self.note_not_unnamed(&record.op);
            let awaited = self.replay.tell(id, Err(reason));
            tracing::warn!(?reason, message, awaited, is_moot, op = ?record.op, "the server refused a change");
            if awaited || is_moot {
                self.log_all([LogEntry::Ended { id }]);
            } else {
                self.log_all([LogEntry::Refused { id, reason }]);
                self.replay.note_refused(queued, reason);
            }
        }
        self.end_record(id);
    }

    /// Takes in a refused content. The file first: a caller that waits for the record to go finds the reason there.
    fn take_in_refused_content(&self, record: &CmlRecord, reason: FsError) {
        let id = record.id;
        self.log_all([LogEntry::Abandoned { id }]);
        self.end_record(id);
        if let Some(file) = self.file_of(record) {
            file.state().versions_mut().end_sending();
            self.refuse_version(&file, id, reason);
            file.notify();
        }
        self.replay.queue().remove(id);
    }

    /// Notes that the changes before a removal of an object's last name are moot. The server may have removed it
    /// before them, for removals go ahead when it is full. Returns those changes.
    pub(super) fn note_moot(&self, queue: &mut Queue, gone: Fid, by: StoreId) -> Vec<StoreId> {
        let mut before = self.remote.outstanding(|log| log.about(gone));
        before.retain(|id| *id < by);
        queue.note_moot(&before)
    }

    /// Whether a change is about an object that this client has removed since.
    pub(super) fn is_moot(&self, record: &CmlRecord) -> bool {
        let file = self.file_of(record);
        let is_going = file.is_some_and(|file| file.state().fate().is_going());
        is_going
            || self.replay.queue().is_moot(record.id)
            || self.cache.index.is_removed(record.op.fid().vnode).unwrap_or_default()
    }

    /// Distrusts the objects and names of a refused change, as it should have been possible: they are asked for again,
    /// by the kernel too.
    pub(super) fn forget_refused(&self, queued: &Queued) {
        let names: Vec<_> = edits_of(queued).into_iter().map(|(parent, name, _)| (parent, name)).collect();
        let fid = queued.record.op.fid();
        let touched = names.iter().map(|(parent, _)| *parent).chain([fid]);
        if let Err(error) = self.cache.index.distrust(touched) {
            tracing::warn!(%error, "everything must be asked for again, because the index cannot be written");
        }
        self.kernel.forget_names(names.into_iter().map(|(parent, name)| (parent.vnode, name)).collect());
        self.kernel.forget_inodes(vec![fid.vnode]);
    }

    /// Notes that an object that was to lose its last name by a change still has one.
    pub(super) fn note_not_unnamed(&self, op: &CmlOp) {
        let Some(fid) = op.unnamed_fid() else { return };
        self.kernel.note_kept(fid.vnode);
        let file = self.files().get(fid.vnode);
        file.into_iter().for_each(|file| self.note_kept(&file));
    }

    fn refuse_version(&self, file: &Arc<File>, id: StoreId, reason: FsError) {
        {
            let _edit = file.edit();
            self.forget_version(file, id);
        }
        if may_pass(reason) || reason == FsError::StoreIdReused {
            file.state().edits_mut().unlog();
        }
        if reason == FsError::StoreIdReused {
            // An earlier version of this program has told the server that it knows the answer, and its log has
            // forgotten it.
            let known = self.cache.index.object(file.fid.vnode).ok().flatten();
            let shown = known.map_or(DataVersion::NONE, |known| known.object.status.data_version);
            file.state().basis_mut().forgot(id, shown);
        } else if reason == FsError::Stale && self.replay.queue().is_moot(id) {
            // A removal by this client has gone ahead of the record, and has taken the last name.
            self.removed_before(file);
        } else {
            self.take_in_refused(file, reason, &RemoteError::refused(reason, ""));
        }
        self.drop_if_unused(file);
    }
}
