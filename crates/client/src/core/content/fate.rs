//! Fate: whether a file has a name still, and whether the server has refused its content.
//!
//! A program that removes a file here makes this client ask the server first. The answer may be lost, and then having
//! asked tells the own removal from somebody else's. A file without a name exists on this machine only, for those who
//! have it open: nobody is to get what is changed of it, but for versions on which a record waits that has given it a
//! name before.

use mafs_proto::{FsError, Object, StoreId, Xattrs};

use super::stat::Stat;

/// Refusal of a content by the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    pub(crate) reason: FsError,
    /// Path of the file then, below the mount point.
    pub(crate) path: String,
}

/// The rest on this machine of a file without a name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unlinked {
    /// The object as it was when its last name went; `None`: in an earlier life, so that nobody has it open.
    object: Option<Object>,
    /// Its extended attributes, if they were known then.
    xattrs: Option<Xattrs>,
    /// The versions that are sent all the same: a record that waits has given the file a name before.
    named: Vec<StoreId>,
}

impl Unlinked {
    /// Makes the rest of an object, with these extended attributes.
    pub(crate) fn new(object: Object, xattrs: Option<Xattrs>, named: Vec<StoreId>) -> Self {
        Self { object: Some(object), xattrs, named }
    }

    /// Returns the object as it was when its last name went, as far as it was not changed since.
    pub(crate) fn object(&self) -> Option<&Object> {
        self.object.as_ref()
    }

    /// Returns the object, to be changed.
    pub(crate) fn object_mut(&mut self) -> Option<&mut Object> {
        self.object.as_mut()
    }

    /// Its extended attributes, if they are known.
    pub(crate) fn xattrs(&self) -> Option<&Xattrs> {
        self.xattrs.as_ref()
    }

    /// Its extended attributes, to be changed.
    pub(crate) fn xattrs_mut(&mut self) -> Option<&mut Xattrs> {
        self.xattrs.as_mut()
    }

    /// Gives the kernel what it keeps, with the content as it is here.
    pub(crate) fn left_with(&self, stat: &Stat) -> Option<(Object, Option<Xattrs>)> {
        let mut object = self.object.clone()?;
        stat.lay_over(&mut object.status);
        Some((object, self.xattrs.clone()))
    }
}

/// The meaning of a content's refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meaning {
    /// This client has removed the file, and nothing of it is news.
    Removed,
    /// Nobody wants the content any more.
    Moot,
    /// The user is to know.
    Shown,
}

/// The fate of one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fate {
    /// The rest of it on this machine, once its last name is gone.
    left: Option<Unlinked>,
    /// Whether this client has asked the server to remove the last name.
    asked: bool,
    /// Whether another client had made its name first.
    overtaken: bool,
    refused: Option<Refused>,
}

impl Fate {
    /// Makes the fate of a file that has a name.
    pub(crate) fn named() -> Self {
        Self::default()
    }

    /// Makes the fate of a file without a name.
    pub(crate) fn unlinked(unlinked: Unlinked) -> Self {
        Self { left: Some(unlinked), ..Self::named() }
    }

    /// Makes the fate of a file that an earlier life has left: whether it had asked for the removal, and whether that
    /// was done.
    pub(crate) fn taken_up(asked: bool, is_gone: bool) -> Self {
        Self { left: is_gone.then(Unlinked::default), asked, ..Self::named() }
    }

    /// Notes that the server is about to be asked to remove the last name. Returns whether it was not before.
    pub(crate) fn ask_removal(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// Notes that the server has refused that: the next removal is somebody else's.
    pub(crate) fn keep_name(&mut self) {
        self.asked = false;
    }

    /// Notes that another client had made the name first: the file is not what others find by it.
    pub(crate) fn overtake(&mut self) {
        self.overtaken = true;
    }

    /// Whether another client had made the name first.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.overtaken
    }

    /// Notes that the last name is gone.
    pub(crate) fn lose_name(&mut self, unlinked: Unlinked) {
        self.left = Some(unlinked);
    }

    /// Names the versions of a file without a name that are sent all the same.
    pub(crate) fn send_named(&mut self, named: Vec<StoreId>) {
        if let Some(unlinked) = &mut self.left {
            unlinked.named = named;
        }
    }

    /// Notes that the server does not take the content.
    pub(crate) fn refuse(&mut self, refused: Refused) {
        self.refused = Some(refused);
    }

    /// Notes that the content is another one than was refused, or that the server has it.
    pub(crate) fn end_refusal(&mut self) {
        self.refused = None;
    }

    /// Whether the last name is gone.
    pub(crate) fn is_unlinked(&self) -> bool {
        self.left.is_some()
    }

    /// Whether the last name is gone, or this client has asked for that.
    pub(crate) fn is_going(&self) -> bool {
        self.asked || self.is_unlinked()
    }

    /// Returns the rest of a file without a name.
    pub(crate) fn left(&self) -> Option<&Unlinked> {
        self.left.as_ref()
    }

    /// Returns the rest of a file without a name, to be changed.
    pub(crate) fn left_mut(&mut self) -> Option<&mut Unlinked> {
        self.left.as_mut()
    }

    /// Whether the server is to get one of these versions though the file has no name.
    pub(crate) fn is_sent_unlinked(&self, versions: &[StoreId]) -> bool {
        self.left().is_some_and(|unlinked| versions.iter().any(|id| unlinked.named.contains(id)))
    }

    /// Returns why the server did not take the content, and where the file was then.
    pub(crate) fn refused(&self) -> Option<&Refused> {
        self.refused.as_ref()
    }

    /// Returns why the server did not take the content.
    pub(crate) fn refusal(&self) -> Option<FsError> {
        self.refused.as_ref().map(|refused| refused.reason)
    }

    /// Says what it means that the server refuses the content.
    pub(crate) fn meaning_of(&self, reason: FsError) -> Meaning {
        match (self.is_unlinked(), self.asked) {
            (_, true) if reason == FsError::Stale => Meaning::Removed,
            (true, _) => Meaning::Moot,
            (false, _) => Meaning::Shown,
        }
    }
}

#[cfg(test)]
mod tests;
