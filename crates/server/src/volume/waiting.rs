//! Waiting: records that arrived before those they depend on.
//!
//! Calls of different classes overtake each other, so a Store may be here before the record that makes its file. It
//! waits until what it depends on has been decided, applied or refused, and not for ever.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use mafs_proto::call::ApplyRequest;
use mafs_proto::{Instant, StoreId};

use super::Ticket;
use super::committer::Answer;
use crate::core::{NewContent, Refusal};

/// Records that may wait; with contents of up to 16 KB in memory.
const PARKED_MAX: usize = 256;

/// How long a record waits. What it depends on was made before it, so it is on its way, or lost with its connection.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Refused records that are remembered, so that those which depend on them are decided too.
const REFUSED_MAX: usize = 4096;

/// A record to be applied, and who waits for it.
pub(super) struct Apply {
    pub(super) ticket: Ticket,
    pub(super) request: Box<ApplyRequest>,
    /// What a Store brought, or why it was not taken.
    pub(super) content: Result<Option<NewContent>, Refusal>,
    pub(super) answer: Answer<Bytes>,
}

/// The waiting records of one volume, in the order of their arrival.
#[derive(Default)]
pub(super) struct Waiting {
    parked: VecDeque<(Apply, Instant)>,
    refused: BTreeSet<StoreId>,
}

impl Waiting {
    /// Lets a record wait; gives it back if too many do.
    pub(super) fn park(&mut self, apply: Apply, now: Instant) -> Result<(), Apply> {
        if self.parked.len() >= PARKED_MAX {
            return Err(apply);
        }
        self.parked.push_back((apply, now + WAIT_MAX));
        Ok(())
    }

    /// Takes out all that wait, to try them again; those that still wait are put back with [`Self::put_back`].
    pub(super) fn take(&mut self) -> VecDeque<(Apply, Instant)> {
        std::mem::take(&mut self.parked)
    }

    /// Lets a record wait on, until the time it was taken out with.
    pub(super) fn put_back(&mut self, apply: Apply, until: Instant) {
        self.parked.push_back((apply, until));
    }

    /// How long nothing happens by itself; `None`: for ever.
    pub(super) fn timeout(&self, now: Instant) -> Option<Duration> {
        self.parked.iter().map(|(_, until)| until.since(now)).min()
    }

    /// Remembers that a record was refused.
    pub(super) fn refuse(&mut self, id: StoreId) {
        self.refused.insert(id);
        if self.refused.len() > REFUSED_MAX {
            self.refused.pop_first();
        }
    }

    pub(super) fn is_refused(&self, id: &StoreId) -> bool {
        self.refused.contains(id)
    }
}
