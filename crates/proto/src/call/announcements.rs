//! Announcements: calls by which a client tells of records that it has not sent yet, and by which it is asked for them
//! (consistency.md, "SIRP").

use crate::{CmlRecord, Fid, StoreId};

/// Announces records that wait in their client's log ("Invalidate" in section 5.3 of the MAFS paper): from the answer
/// on no client is shown the state before them, though their contents come later. A record that is announced again has
/// changed since.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InvalidateRequest {
    /// The records in the order of the log, at most [`InvalidateRequest::RECORDS_MAX`].
    pub records: Vec<CmlRecord>,
    /// Records that were announced before, and will never come; as many at most.
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

/// Answers [`InvalidateRequest`] when no client relies any more on the state before.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InvalidateReply {
    /// Records that are not announced: in conflict with others, or too many. Nobody waits for them.
    pub refused: Vec<StoreId>,
    /// The refused records that give a name to an object that is not there and was not announced before: whatever
    /// becomes of them, their effect is not that which they say.
    pub contested: Vec<StoreId>,
}

/// Asks for announced records for which another client waits; made by the server. The client sends them now, with all
/// that they depend on, in class Fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PullRequest {
    /// The records, at most [`InvalidateRequest::RECORDS_MAX`].
    pub ids: Vec<StoreId>,
}

/// Answers [`PullRequest`], at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PullReply {
    /// The records that are not in the client's log.
    pub missing: Vec<StoreId>,
}
