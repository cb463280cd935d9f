//! Announcements: what a client says of records that it has not sent yet, and how it is asked for them
//! (consistency.md, "SIRP").

use crate::{CmlRecord, Fid, StoreId};

/// Announces records that wait in their client's log ("Invalidate" in section 5.3 of the MAFS paper): from the answer
/// on nobody is shown what was before them, though their contents come later. A record that is announced again has
/// changed since.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InvalidateRequest {
    /// In the order of the log, at most [`InvalidateRequest::RECORDS_MAX`].
    pub records: Vec<CmlRecord>,
    /// Announced before, and never to come; as many at most.
    pub retracted: Vec<StoreId>,
    /// As in [`ApplyRequest`](super::ApplyRequest).
    pub confirmed_below: Option<StoreId>,
    /// [Recalled](super::BreakRequest::recalled) directories in which the server has heard of every name that this
    /// client has decided.
    pub settled: Vec<Fid>,
}

impl InvalidateRequest {
    /// The most records of one call.
    pub const RECORDS_MAX: usize = 64;
}

/// Answers [`InvalidateRequest`] when nobody relies any more on what was before.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InvalidateReply {
    /// Records that are not announced: in conflict with others, or too many. Nobody waits for them.
    pub refused: Vec<StoreId>,
    /// Those among them that give a name to what is not there and was not announced before: whatever becomes of them,
    /// it is not what they say.
    pub contested: Vec<StoreId>,
}

/// Made by the server: somebody waits for announced records. The client sends them now, with all that they depend on,
/// in class Fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PullRequest {
    /// At most [`InvalidateRequest::RECORDS_MAX`].
    pub ids: Vec<StoreId>,
}

/// Answers [`PullRequest`], at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PullReply {
    /// Those that are not in the client's log.
    pub missing: Vec<StoreId>,
}
