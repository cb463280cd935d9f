//! Validation: calls about the changes in a volume since a client heard from it last (consistency.md, "Revalidation").

use crate::{ChangeNumber, StatusVersion, VnodeId};

/// A moment of a volume's history: the number of a change, and a tag that tells it from the change with that number in
/// another history of the same volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The change. Never 0.
    pub change: ChangeNumber,
    /// The tag of this change and all before it.
    pub tag: u64,
}

/// An object that has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangedObject {
    /// The object.
    pub vnode: VnodeId,
    /// Its present version; `None`: the object is gone, or nothing is promised of it.
    pub version: Option<StatusVersion>,
}

/// A part of the changes since a mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// All objects that changed up to `through`, some perhaps more than once; at most [`Changed::OBJECTS_MAX`].
    pub objects: Vec<ChangedObject>,
    /// The last change that the list covers.
    pub through: Mark,
    /// Whether there are more changes behind it.
    pub more: bool,
}

impl Changed {
    /// The most objects in one answer: with their versions they are well below the 256 KB that it may have.
    pub const OBJECTS_MAX: usize = 8192;
}

/// Asks, in a new session, for the objects that have changed since a mark of an earlier one. From then on the session
/// hears of every change, of whatever object, until the client has said which objects it [holds](HoldRequest). This
/// call is not part of an attach, because a client that does not hear, but attaches again and again, must hold nobody
/// up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangedSinceRequest {
    /// The mark: changes behind it are wanted.
    pub mark: Mark,
}

/// Answers [`ChangedSinceRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangedSinceReply {
    /// The changes; `None`: they are not known any more, or never were.
    pub changed: Option<Changed>,
}

/// Names the objects that a client relies on, while it still hears of every change: the client hears of these from now
/// on, even when it no longer hears of every change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HoldRequest {
    /// The objects, at most [`HoldRequest::OBJECTS_MAX`].
    pub vnodes: Vec<VnodeId>,
    /// Whether these are the last, so that the client need not hear of every change any more.
    pub last: bool,
}

/// Answers [`HoldRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HoldReply;

impl HoldRequest {
    /// The most objects in one request: some 12 KB.
    pub const OBJECTS_MAX: usize = 4096;
}
