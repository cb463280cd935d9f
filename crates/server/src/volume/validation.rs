//! Validation: finds the changes since a client heard from the volume last.
//!
//! The client is promised to hear of every change before the changes are looked at, so none is missed. Nothing is
//! promised of what others have announced, and of directories in which they decide names: these count as changed.

use mafs_proto::VnodeId;
use mafs_proto::call::{Changed, ChangedObject, Mark};

use super::{Ticket, Volume};
use crate::core::{Refusal, changes};

/// Number of objects in one answer, but for a change more and for those of which nothing is promised.
const OBJECTS: usize = 4096;

impl Volume {
    /// Finds the changes since a mark. From here on the client hears of every change.
    ///
    /// # Errors
    /// `NotAttached` if the attach is not the client's last one, or its lease has ended.
    pub(crate) fn changed_since(&self, ticket: Ticket, from: Mark) -> Result<Option<Changed>, Refusal> {
        self.shared.sessions.hear_all(ticket)?;
        let found = self.found_since(ticket, from)?;
        if found.is_none() {
            self.shared.sessions.hold(ticket, &[], true)?;
        }
        Ok(found)
    }

    /// Notes which objects a client relies on.
    pub(crate) fn hold(&self, ticket: Ticket, vnodes: &[VnodeId], last: bool) -> Result<(), Refusal> {
        self.shared.sessions.hold(ticket, vnodes, last)
    }

    /// Returns the mark of the last change, if a client has heard of everything up to it.
    pub(crate) fn caught_up(&self, ticket: Ticket) -> Result<Option<Mark>, Refusal> {
        match self.shared.sessions.caught_up(ticket) {
            Some(change) => self.shared.read(|transaction| changes::mark(transaction, change)),
            None => Ok(None),
        }
    }

    fn found_since(&self, ticket: Ticket, from: Mark) -> Result<Option<Changed>, Refusal> {
        let index = self.shared.index.index();
        let found = self.shared.read(|transaction| changes::since(index, transaction, from, OBJECTS))?;
        let Some(changes::Found { mut objects, through, more }) = found else { return Ok(None) };
        if !more {
            // This comes behind the look at the changes: promises of what is applied in between are broken.
            let Some(unpromised) = self.shared.sessions.unpromised(ticket) else { return Ok(None) };
            objects.extend(unpromised.into_iter().map(|vnode| ChangedObject { vnode, version: None }));
        }
        Ok(Some(Changed { objects, through, more }))
    }
}
