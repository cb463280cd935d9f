//! Unanswered records: records that the server may have applied, though its answer has not come. The answer is on its
//! way behind other traffic, or lost with its connection.
//!
//! Changes by other clients on top of such a record come after it, so the record must not be laid over the state that
//! the server shows then. A question about an object names the records about it that have no answer, and the server
//! says which of them are in the state it shows.

use std::collections::BTreeSet;

use mafs_proto::call::GetStatusRequest;
use mafs_proto::{Fid, StoreId};

use super::{Error, Inner};
use crate::core::promises::Grant;

impl Inner {
    /// Returns the records about these objects, and about names in them, that the server may have applied without this
    /// client's knowing: the oldest, as they are sent first. Contents are not among them (`vfs/versions.rs`).
    pub(super) fn unanswered(&self, fids: &[Fid]) -> Vec<StoreId> {
        if !self.cache.index.has_pending() {
            return Vec::new();
        }
        let records: BTreeSet<StoreId> = self.remote.outstanding(|log| {
            let about = fids.iter().flat_map(|fid| log.about(*fid).into_iter().chain(log.below(*fid)));
            about.collect()
        });
        let queue = self.replay.queue();
        let may_be_applied = |id: &StoreId| {
            let queued = queue.get(*id).filter(|_| queue.is_frozen(*id));
            queued.is_some_and(|queued| self.cache.index.is_laid_over(queued))
        };
        records.into_iter().filter(may_be_applied).take(GetStatusRequest::RECORDS_MAX).collect()
    }

    /// Whether an answer may show an object with a record in it that its question did not name: laid over that state
    /// the record would count twice. The question may not have been expected to be about that object, or the record
    /// was sent after it. `said`: the records that the question has named.
    pub(super) fn is_unsaid(&self, fid: Fid, said: &[StoreId]) -> bool {
        self.unanswered(&[fid]).iter().any(|id| !said.contains(id))
    }

    /// Notes that the server has applied these records, and so the records it must have applied before them, about any
    /// object: the state that it shows from now on has them in it. `grant`: comes with the answer that says so.
    pub(super) fn note_applied(&self, records: &[StoreId], grant: Grant) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        let queue = self.replay.queue();
        let applied = queue.applied_with(records);
        for queued in &applied {
            tracing::debug!(id = %queued.record.id, "a record is applied, and its answer late");
        }
        Ok(self.cache.index.applied_unanswered(&applied, grant)?)
    }
}
