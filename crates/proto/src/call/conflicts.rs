//! The call about what is kept of records in conflict.

use crate::{Conflict, PlacedName};

/// Asks what has been kept of records in conflict, and not been resolved yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConflictsRequest {
    /// The last one of the page before.
    pub after: Option<PlacedName>,
}

/// Answers [`ConflictsRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConflictsReply {
    /// In the order of their places, at most [`ConflictsReply::CONFLICTS_MAX`].
    pub conflicts: Vec<Conflict>,
    /// Whether there are no more.
    pub end: bool,
}

impl ConflictsReply {
    /// The most conflicts of one page.
    pub const CONFLICTS_MAX: usize = 64;
}
