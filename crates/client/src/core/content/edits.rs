//! Edits: how far a file's content has been changed here, and how much of that is safe where.
//!
//! Each change of the content makes the next *edit*. An edit is *stored* when the server has it, *logged* when a
//! version that is to be sent holds it, *synced* when an fsync has made something of it durable here, and *kept* when
//! all of it is. A write of the kernel past this program is an edit as soon as a look has found it. One that may have
//! come behind the last look is none yet: so a caller that asks looks first, and a doubt counts as an edit.
//!
//! Invariant: an edit that is not stored is never said to be, whatever is changed between the moment at which a content
//! is frozen and the one at which its answer comes: the answer is about the edit that was frozen.

use crate::core::log::Stamp;

/// One state of the content, as far as changes here tell states apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Edit(u64);

impl Edit {
    /// The state before all changes that are known in this life of the client.
    pub(crate) const BEFORE: Self = Self(0);

    /// Returns the edit that a change makes of it.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The edits of one file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Edits {
    newest: Edit,
    stored: Edit,
    logged: Edit,
    synced: Edit,
    kept: Edit,
    unseen: Option<Stamp>,
}

impl Edits {
    /// Makes the edits of a file that an earlier life has left with changes. `kept`: a loss of power does not take
    /// them.
    pub(crate) fn taken_up(kept: bool) -> Self {
        let newest = Edit::BEFORE.next();
        let safe = if kept { newest } else { Edit::BEFORE };
        Self { newest, synced: safe, kept: safe, ..Self::default() }
    }

    /// Notes what an earlier life has logged of them, up to this version, and whether the file is `newer`.
    pub(crate) fn take_up_logged(&mut self, logged: Edit, newer: bool) {
        self.logged = logged;
        self.newest = if newer { logged.next() } else { logged };
    }

    /// Notes that nobody has looked at the content in this life: when its newest version was logged, it showed this.
    pub(crate) fn leave_unseen(&mut self, logged: Stamp) {
        self.unseen = Some(logged);
    }

    /// Takes in the first look at a content that was left unseen: it shows this, and `has_size` says whether it is as
    /// long as it was. Returns whether it has been changed since it was logged, which makes another edit of it.
    pub(crate) fn see(&mut self, shown: Stamp, has_size: bool) -> bool {
        let is_changed = self.unseen.take().is_some_and(|logged| logged != shown || !has_size);
        if is_changed {
            self.count();
        }
        is_changed
    }

    /// Counts a change of the content.
    pub(crate) fn count(&mut self) {
        self.newest = self.newest.next();
    }

    /// Notes that a version holds the newest edit. Returns which that is.
    pub(crate) fn log(&mut self) -> Edit {
        self.logged = self.newest;
        self.newest
    }

    /// Notes that no version holds what the server lacks: it has refused that, and may take it later.
    pub(crate) fn unlog(&mut self) {
        self.logged = self.stored;
    }

    /// Notes that the server has this edit.
    pub(crate) fn store(&mut self, edit: Edit) {
        self.stored = edit;
    }

    /// Notes that nobody is to get what was changed.
    pub(crate) fn give_up(&mut self) {
        self.stored = self.newest;
    }

    /// Notes that something of this edit is durable here because of an fsync.
    pub(crate) fn sync(&mut self, edit: Edit) {
        self.synced = self.synced.max(edit);
    }

    /// Notes that what was fsynced is in a container of its own: what is changed next is nothing that was.
    pub(crate) fn move_synced_out(&mut self) {
        self.synced = self.synced.min(self.stored);
    }

    /// Notes that a restart of the machine costs nothing of this edit.
    pub(crate) fn keep(&mut self, edit: Edit) {
        self.kept = self.kept.max(edit);
    }

    /// Returns the edit that the content is now.
    pub(crate) fn newest(&self) -> Edit {
        self.newest
    }

    /// Whether the server has what the content is now.
    pub(crate) fn are_stored(&self) -> bool {
        self.newest == self.stored
    }

    /// Whether the server lacks this edit.
    pub(crate) fn lacks(&self, edit: Edit) -> bool {
        self.stored < edit
    }

    /// Whether a version holds what the content is now.
    pub(crate) fn are_logged(&self) -> bool {
        self.newest == self.logged
    }

    /// Whether a restart of the machine costs nothing of what the content is now.
    pub(crate) fn are_kept(&self) -> bool {
        self.newest == self.kept
    }

    /// Whether something was fsynced that the server may lack.
    pub(crate) fn say_synced(&self) -> bool {
        self.synced > self.stored
    }

    /// Whether nothing was fsynced that comes behind this edit.
    pub(crate) fn hold_synced(&self, edit: Edit) -> bool {
        self.synced <= edit
    }

    /// Whether nobody has looked at the content in this life.
    pub(crate) fn are_unseen(&self) -> bool {
        self.unseen.is_some()
    }
}

#[cfg(test)]
mod tests;
