//! Validation: what has changed in a volume since a client heard from it last (consistency.md, "Revalidation").

use crate::{ChangeNumber, StatusVersion, VnodeId};

/// A moment of a volume's history: the number of a change, and what tells it from the change with that number in
/// another history of the same volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The change. Never 0.
    pub change: ChangeNumber,
    /// Of this change and all before it.
    pub tag: u64,
}

/// An object that has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangedObject {
    /// Which one.
    pub vnode: VnodeId,
    /// What it is at now; `None`: it is gone, or nothing is promised of it.
    pub version: Option<StatusVersion>,
}

/// What has changed since a mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// All objects that changed up to `through`, some perhaps more than once; at most [`Changed::OBJECTS_MAX`].
    pub objects: Vec<ChangedObject>,
    /// How far that goes.
    pub through: Mark,
    /// Whether there have been more changes by then.
    pub more: bool,
}

impl Changed {
    /// Objects in one answer: with their versions they are well below the 256 KB that it may have.
    pub const OBJECTS_MAX: usize = 8192;
}

/// Asks a new session what has changed since a mark of an earlier one. From then on it hears of every change, of
/// whatever object, until it has said which it [holds](HoldRequest). It is not part of an attach, because a client that
/// does not hear, but attaches again and again, must hold nobody up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangedSinceRequest {
    /// From the change behind it on.
    pub mark: Mark,
}

/// Answers [`ChangedSinceRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangedSinceReply {
    /// `None`: that is not known any more, or was never.
    pub changed: Option<Changed>,
}

/// Names the objects that a client relies on, of those that it was promised to hear of because it hears of every
/// change: of these it hears from now on, whatever becomes of that promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HoldRequest {
    /// At most [`HoldRequest::OBJECTS_MAX`].
    pub vnodes: Vec<VnodeId>,
    /// These are the last, so the client need not hear of every change any more.
    pub last: bool,
}

/// Answers [`HoldRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HoldReply;

impl HoldRequest {
    /// Objects in one request: some 12 KB.
    pub const OBJECTS_MAX: usize = 4096;
}
