//! The call about the objects that are kept of records in conflict.

use crate::{Conflict, PlacedName};

/// Asks for the conflicts that are not resolved yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConflictsRequest {
    /// The place of the last conflict of the page before.
    pub after: Option<PlacedName>,
}

/// Answers [`ConflictsRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConflictsReply {
    /// The conflicts in the order of their places, at most [`ConflictsReply::CONFLICTS_MAX`].
    pub conflicts: Vec<Conflict>,
    /// Whether there are no more.
    pub end: bool,
}

impl ConflictsReply {
    /// The most conflicts of one page.
    pub const CONFLICTS_MAX: usize = 64;
}
