//! Versions: the contents that a file held when it was closed or fsynced, as long as the server has not acknowledged
//! them.
//!
//! The newest version may lie *in place*, where the file is changed; all before it have moved out to containers of
//! their own. One that was fsynced while its file stays open *goes on*: what is written next belongs to it, until it is
//! closed. `C` is the frozen content of one version, `E` says why the server has not answered.
//!
//! Invariant: what is said of one version (that it is durable, that it has moved, that nobody has answered) is never
//! taken for something about another, which may have taken its place meanwhile.

use std::collections::VecDeque;

use mafs_proto::StoreId;

use super::edits::Edit;
use crate::core::log::ContainerId;

/// The bytes of a version.
pub(crate) trait Frozen {
    /// Whether the server may have all of them.
    fn may_have_arrived(&self) -> bool;
}

/// A version that is logged and not acknowledged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Version<C, E> {
    id: StoreId,
    edit: Edit,
    content: C,
    snapshot: Option<ContainerId>,
    durable: bool,
    gone: bool,
    goes_on: bool,
    unanswered: Option<E>,
}

impl<C, E> Version<C, E> {
    /// Makes a version of what the file holds now, after this edit.
    pub(crate) fn new(id: StoreId, edit: Edit, content: C) -> Self {
        Self { id, edit, content, snapshot: None, durable: false, gone: false, goes_on: false, unanswered: None }
    }

    /// Makes a version that an earlier life has left, in this container or in place. `gone`: its bytes are not there
    /// any more.
    pub(crate) fn taken_up(
        (id, edit, content): (StoreId, Edit, C),
        snapshot: Option<ContainerId>,
        durable: bool,
        gone: bool,
    ) -> Self {
        Self { snapshot, durable, gone, ..Self::new(id, edit, content) }
    }

    /// Returns the record that stores it.
    pub(crate) fn id(&self) -> StoreId {
        self.id
    }

    /// Returns the edit that made it.
    pub(crate) fn edit(&self) -> Edit {
        self.edit
    }

    /// Its bytes.
    pub(crate) fn content(&self) -> &C {
        &self.content
    }

    /// Returns where its bytes are, if they have moved out.
    pub(crate) fn snapshot(&self) -> Option<ContainerId> {
        self.snapshot
    }

    /// Whether its bytes survive a loss of power.
    pub(crate) fn is_durable(&self) -> bool {
        self.durable
    }

    /// Whether its bytes are not there any more: the server is asked whether it has them.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether what is written next may be part of it.
    pub(crate) fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// Returns why the last caller that waited for the server's word about it did so in vain.
    pub(crate) fn unanswered(&self) -> Option<&E> {
        self.unanswered.as_ref()
    }
}

/// The versions of one file, and the content that is on its way to the server.
#[derive(Clone, Debug)]
pub(crate) struct Versions<C, E> {
    /// Oldest first.
    waiting: VecDeque<Version<C, E>>,
    sending: Option<C>,
    awaited: u32,
    interrupted: bool,
}

impl<C, E> Default for Versions<C, E> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), sending: None, awaited: 0, interrupted: false }
    }
}

impl<C, E> Versions<C, E> {
    /// Notes what an earlier life has left, oldest first. Nobody knows what it has sent.
    pub(crate) fn take_up(&mut self, versions: impl IntoIterator<Item = Version<C, E>>) {
        self.waiting = versions.into_iter().collect();
        self.interrupted = true;
    }

    /// Notes that a version was logged.
    pub(crate) fn push(&mut self, version: Version<C, E>) {
        self.waiting.push_back(version);
    }

    /// Puts another content in the place of what a record was to store, as that was never sent. Returns what it was.
    pub(crate) fn rewrite(&mut self, version: Version<C, E>) -> Option<Version<C, E>> {
        self.get_mut(version.id).map(|before| std::mem::replace(before, version))
    }

    /// Takes a version away: the server has it, has refused it, or nobody wants it.
    pub(crate) fn take(&mut self, id: StoreId) -> Option<Version<C, E>> {
        let at = self.waiting.iter().position(|version| version.id == id)?;
        self.waiting.remove(at)
    }

    /// Notes that the file was closed: what is written next is no part of the newest version. Returns which that is.
    pub(crate) fn close(&mut self) -> Option<StoreId> {
        let newest = self.waiting.back_mut()?;
        newest.goes_on = false;
        Some(newest.id)
    }

    /// Notes that the file was fsynced and stays open: what is written next is part of the newest version, if that was
    /// `made` for this fsync. One that was closed before stays as it is.
    pub(crate) fn go_on(&mut self, made: bool) {
        if let Some(newest) = self.waiting.back_mut() {
            newest.goes_on |= made;
        }
    }

    /// Notes that a version has grown in its place: it is as durable as before, and goes on if it did.
    pub(crate) fn grow(&mut self, id: StoreId, (durable, goes_on): (bool, bool)) {
        if let Some(version) = self.get_mut(id) {
            (version.durable, version.goes_on) = (durable, goes_on);
        }
    }

    /// Notes that the bytes of a version have moved to this container.
    pub(crate) fn move_out(&mut self, id: StoreId, to: ContainerId) {
        if let Some(version) = self.get_mut(id) {
            version.snapshot = Some(to);
        }
    }

    /// Notes that a version survives a loss of power.
    pub(crate) fn keep(&mut self, id: StoreId) {
        if let Some(version) = self.get_mut(id) {
            version.durable = true;
        }
    }

    /// Notes that the file is durable as it was after this edit. Returns the version that is so by that: one that has
    /// been copied meanwhile is not.
    pub(crate) fn keep_in_place(&mut self, edit: Edit) -> Option<StoreId> {
        let newest = self.waiting.back_mut().filter(|newest| newest.edit == edit && newest.snapshot.is_none())?;
        newest.durable = true;
        Some(newest.id)
    }

    /// Notes that the file does not hold its newest version after all.
    pub(crate) fn lose_newest(&mut self) {
        if let Some(newest) = self.waiting.back_mut() {
            newest.gone = true;
        }
    }

    /// Notes why nobody has answered about a version; `None`: it is asked once more.
    pub(crate) fn note_unanswered(&mut self, id: StoreId, why: Option<E>) {
        if let Some(version) = self.get_mut(id) {
            version.unanswered = why;
        }
    }

    /// Notes what is being sent from now on. Returns whether part of a content that was sent before may be at the
    /// server.
    pub(crate) fn begin_sending(&mut self, content: C) -> bool {
        self.sending = Some(content);
        std::mem::replace(&mut self.interrupted, true)
    }

    /// Notes that nothing is being sent any more.
    pub(crate) fn end_sending(&mut self) {
        self.sending = None;
    }

    /// Notes that the server has decided about what was sent: no part of it is left there.
    pub(crate) fn note_answered(&mut self) {
        self.interrupted = false;
    }

    /// Counts one more caller that waits until the server has the content.
    pub(crate) fn await_more(&mut self) {
        self.awaited += 1;
    }

    /// Counts one such caller less.
    pub(crate) fn await_less(&mut self) {
        self.awaited -= 1;
    }

    /// Whether somebody waits until the server has the content.
    pub(crate) fn are_awaited(&self) -> bool {
        self.awaited > 0
    }

    /// Returns the content that is being sent.
    pub(crate) fn sending(&self) -> Option<&C> {
        self.sending.as_ref()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Lists the records of all versions, oldest first.
    pub(crate) fn ids(&self) -> Vec<StoreId> {
        self.waiting.iter().map(Version::id).collect()
    }

    /// Returns the version that a record stores.
    pub(crate) fn get(&self, id: StoreId) -> Option<&Version<C, E>> {
        self.waiting.iter().find(|version| version.id == id)
    }

    /// Returns the newest version.
    pub(crate) fn newest(&self) -> Option<&Version<C, E>> {
        self.waiting.back()
    }

    /// Returns the newest version, if its bytes are where the file is changed.
    pub(crate) fn in_place(&self) -> Option<&Version<C, E>> {
        self.newest().filter(|newest| newest.snapshot.is_none())
    }

    /// Returns the oldest version that a loss of power would take.
    pub(crate) fn first_undurable(&self) -> Option<&Version<C, E>> {
        self.waiting.iter().find(|version| !version.durable)
    }

    /// Whether one version is all there is, and holds the file as it was after this edit.
    pub(crate) fn is_only(&self, edit: Edit) -> bool {
        self.waiting.len() == 1 && self.newest().is_some_and(|newest| newest.edit == edit)
    }

    fn get_mut(&mut self, id: StoreId) -> Option<&mut Version<C, E>> {
        self.waiting.iter_mut().find(|version| version.id == id)
    }
}

impl<C: Frozen, E> Versions<C, E> {
    /// Returns the oldest version, if the server may have it although there was no answer.
    pub(crate) fn arrived(&self) -> Option<StoreId> {
        self.waiting.front().filter(|oldest| oldest.content.may_have_arrived()).map(Version::id)
    }
}

#[cfg(test)]
mod tests;
