//! Refused: records that left no reply and are decided all the same, as far as records that depend on them go.
//!
//! Refused for good means decided: a record that depends on the refused one need not wait for it. Postponed means the
//! opposite: the record comes again, and nothing that depends on it may be applied before it (consistency.md,
//! "Refusals"). To forget either does no harm: a record that depends on a forgotten one waits for it, and not for
//! ever. So one that was refused because the server was busy is not noted at all: it comes again at once. After a
//! loss of what was under way a whole chain of records would be refused otherwise, one link after the other, for as
//! long as the client takes to pause.

use std::collections::{BTreeMap, BTreeSet};

use mafs_proto::call::ApplyRequest;
use mafs_proto::{CmlOp, Fid, FsError, OnConflict, StoreId};

use super::Refusal;

/// Records of each kind that are remembered.
const REFUSED_MAX: usize = 4096;

/// The refused records of a volume.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    for_good: BTreeSet<StoreId>,
    postponed: BTreeMap<StoreId, Postponed>,
}

/// A record that comes again.
#[derive(Clone, Copy, Debug)]
struct Postponed {
    why: FsError,
    /// The object, if it had a name before, that the record gives another.
    named: Option<Fid>,
}

impl Refused {
    /// Notes that a record was refused. Returns whether for good.
    pub(crate) fn refuse(&mut self, request: &ApplyRequest, error: FsError) -> bool {
        let id = request.record.id;
        self.forget(&id);
        let asks = request.on_conflict == OnConflict::Ask && error.is_conflict();
        let is_postponed = request.comes_again && (error.is_transient() || asks);
        if is_postponed && error == FsError::Busy {
            return false;
        }
        if is_postponed {
            self.postponed.insert(id, Postponed { why: error, named: request.record.op.named_fid() });
            if self.postponed.len() > REFUSED_MAX {
                self.postponed.pop_first();
            }
        } else {
            self.for_good.insert(id);
            if self.for_good.len() > REFUSED_MAX {
                self.for_good.pop_first();
            }
        }
        !is_postponed
    }

    /// Notes that a record was applied, though it had been refused before.
    pub(crate) fn forget(&mut self, id: &StoreId) {
        self.for_good.remove(id);
        self.postponed.remove(id);
    }

    /// Tells whether what `request` asks for need not wait for the record `id`. A removal does not wait for one that
    /// there was no room for: the removal may make the room. But if that one gives the removed object another name
    /// the removal waits, or nothing would be left to be named.
    ///
    /// # Errors
    /// The reason why the record `id` was postponed.
    pub(crate) fn lets_pass(&self, request: &ApplyRequest, id: &StoreId) -> Result<bool, Refusal> {
        let op = &request.record.op;
        match self.postponed.get(id) {
            Some(Postponed { why: FsError::NoSpace | FsError::Quota, named })
                if is_removal(op) && *named != Some(op.fid()) =>
            {
                Ok(true)
            }
            Some(Postponed { why, .. }) => Err(because_of(id, *why)),
            None => Ok(self.for_good.contains(id)),
        }
    }

    /// Returns why a record is postponed that could not be done ahead of a postponed one: what it needs may be there
    /// after that.
    pub(crate) fn awaits_postponed(&self, request: &ApplyRequest) -> Option<Refusal> {
        request.record.depends_on.iter().find_map(|id| self.postponed_with(id))
    }

    fn postponed_with(&self, id: &StoreId) -> Option<Refusal> {
        self.postponed.get(id).map(|postponed| because_of(id, postponed.why))
    }
}

fn because_of(id: &StoreId, why: FsError) -> Refusal {
    Refusal::new(why, format!("it depends on the record {id}: {why}"))
}

fn is_removal(op: &CmlOp) -> bool {
    match op {
        CmlOp::Remove { .. } | CmlOp::RemoveDir { .. } => true,
        CmlOp::Create { .. }
        | CmlOp::MakeDir { .. }
        | CmlOp::SymLink { .. }
        | CmlOp::Link { .. }
        | CmlOp::Rename { .. }
        | CmlOp::SetAttr { .. }
        | CmlOp::SetXattr { .. }
        | CmlOp::RemoveXattr { .. }
        | CmlOp::Store { .. } => false,
    }
}
