//! Kept: results of this client's changes that were in conflict with what others have done. The server has them under
//! other names, and here is shown what it has.

use std::sync::Arc;

use mafs_proto::call::{ApplyReply, ConflictsRequest};
use mafs_proto::{CmlOp, CmlRecord, Conflict, PlacedName, Purpose};

use super::file::File;
use super::{Error, Inner, Vfs};
use crate::cache::CacheError;
use crate::core::content::edits::Edit;
use crate::core::log::LogEntry;
use crate::core::queue::Queued;
use crate::remote::Answer;

/// The most conflicts that are listed.
const CONFLICTS_MAX: usize = 10_000;

impl Vfs {
    /// Lists what the server keeps of changes that were in conflict, of all clients, until somebody renames or
    /// removes it.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn conflicts(&self) -> Result<Vec<Conflict>, Error> {
        let mut conflicts: Vec<Conflict> = Vec::new();
        loop {
            let after = conflicts.last().map(|last| last.place.clone());
            let reply = self.inner.remote.call(&ConflictsRequest { after }, Purpose::Ask).await?.reply;
            // A page that is empty and not the last would be asked for again for ever.
            let is_last = reply.end || reply.conflicts.is_empty();
            conflicts.extend(reply.conflicts);
            if is_last || conflicts.len() >= CONFLICTS_MAX {
                return Ok(conflicts);
            }
        }
    }
}

impl Inner {
    /// Takes in that the server has done something else than what a change says, or nothing, because all was so
    /// already.
    pub(super) fn take_in_otherwise(
        &self,
        queued: &Queued,
        answer: &Answer<ApplyReply>,
        placed: &[PlacedName],
    ) -> Result<(), CacheError> {
        self.remember_home_of_made(&queued.record.op);
        if let Some(made) = queued.record.op.made()
            && let Some(file) = self.files().get(made.vnode)
        {
            file.state().fate_mut().overtake();
        }
        let noted = self.cache.index.applied_otherwise(&answer.reply, answer.session, queued);
        self.forget_refused(queued);
        if let CmlOp::Rename { .. } = queued.record.op
            && !placed.is_empty()
        {
            // The object to be replaced has its name still.
            self.note_not_unnamed(&queued.record.op);
        }
        self.show_placed(placed, &queued.record);
        noted
    }

    /// Takes in that the server has moved to the trash what this client has removed.
    pub(super) fn take_in_trashed(
        &self,
        queued: &Queued,
        answer: &Answer<ApplyReply>,
        placed: &[PlacedName],
    ) -> Result<(), CacheError> {
        let noted = self.cache.index.applied_otherwise(&answer.reply, answer.session, queued);
        self.forget_refused(queued);
        self.note_not_unnamed(&queued.record.op);
        self.show_names(placed);
        if self.conflicts.trashed() {
            tracing::warn!(
                "more than half of what others have made was removed here while the server was out of reach: it has \
                 moved that to .mafs-trash, and `mafs-client conflicts` says where"
            );
        }
        noted
    }

    /// Takes in the new name of what others had stored in a file that this client has replaced or removed.
    pub(super) fn take_in_set_aside(
        &self,
        queued: &Queued,
        answer: &Answer<ApplyReply>,
        place: &PlacedName,
    ) -> Result<(), CacheError> {
        let noted = self.cache.index.applied_otherwise(&answer.reply, answer.session, queued);
        self.forget_refused(queued);
        self.note_not_unnamed(&queued.record.op);
        self.show_names(std::slice::from_ref(place));
        self.conflicts.kept();
        let directory = self.path_of(place.directory).unwrap_or_else(|| place.directory.to_string());
        tracing::warn!(
            %directory, name = %place.name,
            "another client had stored in a file that has been replaced or removed here: that is kept under this name"
        );
        noted
    }

    /// Takes in that a content has gone into another file than the one that was written, which is shown as the server
    /// has it, from the next open on. A program that has it open goes on with what was written, and its writes go
    /// where that went.
    pub(super) fn take_in_kept(
        &self,
        file: &Arc<File>,
        record: &CmlRecord,
        answer: &Answer<ApplyReply>,
        (edit, placed): (Option<Edit>, &[PlacedName]),
    ) -> Result<(), Error> {
        let id = record.id;
        let noted = self.cache.index.applied_elsewhere(&answer.reply, answer.session);
        {
            let _edit = file.edit();
            self.look(file)?;
            self.forget_version(file, id);
            let is_clean = {
                let mut state = file.state();
                if let Some(sent) = edit {
                    state.edits_mut().store(sent);
                }
                state.versions_mut().note_answered();
                state.fate_mut().end_refusal();
                state.go_elsewhere(id);
                let is_clean = !state.is_dirty() && !state.users().may_write();
                if is_clean {
                    state.log_writing(false);
                }
                is_clean
            };
            self.end_record(id);
            self.log_all([LogEntry::Abandoned { id }]);
            if is_clean {
                self.log_all([LogEntry::Dropped { fid: file.fid }]);
            }
        }
        self.distrust(std::iter::once(file.fid));
        self.kernel.forget_inodes(vec![file.fid.vnode]);
        self.show_placed(placed, record);
        file.notify();
        self.drop_if_unused(file);
        Ok(noted?)
    }

    fn show_names(&self, placed: &[PlacedName]) {
        let names = placed.iter().map(|place| (place.directory.vnode, place.name.clone())).collect();
        self.distrust(placed.iter().map(|place| place.directory));
        self.kernel.forget_names(names);
    }

    fn show_placed(&self, placed: &[PlacedName], record: &CmlRecord) {
        self.show_names(placed);
        // A change that goes into a directory that others have made too keeps its own name, and that is no conflict.
        let own = self.place_of(&record.op).map(|(_, name)| name);
        if let Some(PlacedName { directory, name }) = placed.last().filter(|place| Some(&place.name) != own.as_ref()) {
            self.conflicts.kept();
            let directory = self.path_of(*directory).unwrap_or_else(|| directory.to_string());
            tracing::warn!(%directory, %name, "a change was in conflict, and is kept under this name");
        }
    }
}
