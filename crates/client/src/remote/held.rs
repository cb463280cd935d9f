//! Held: which attach's promises are trusted, and until when.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use mafs_proto::{Generation, Instant};

use super::{Held, Shared};

impl Shared {
    pub(super) fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the attach whose promises are trusted. Notes if they have just ended.
    pub(super) fn trusted_session(&self, now: Instant) -> Option<Generation> {
        let mut held = self.held();
        if held.as_ref().is_some_and(|held| held.until <= now) {
            *held = None;
            self.listener.lapsed();
        }
        held.as_ref().map(|held| held.generation)
    }

    /// Extends the session of an attach by a lease.
    pub(super) fn renew(&self, generation: Generation, sent: Instant, lease: Duration) {
        if let Some(held) = self.held().as_mut().filter(|held| held.generation == generation) {
            held.until = sent + lease;
            self.listener.renewed(sent, lease);
        }
    }

    /// Whether the promises made to an attach are trusted. Notes if they have just ended.
    pub(super) fn holds(&self, generation: Generation) -> bool {
        self.trusted_session(self.clock.now()) == Some(generation)
    }

    /// Ends the session of an attach, so that it is not continued.
    pub(super) fn end_session(&self, generation: Generation) {
        let mut held = self.held();
        if held.as_ref().is_some_and(|held| held.generation == generation) {
            *held = None;
        }
    }
}
