//! The uplink of a server: one line and one queue before it, which all its clients share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mafs_proto::Instant;

use super::queue::Queue;
use super::rate::Line;
use super::{Origin, Rate};

/// The line before the way to each client of a server: first come, first served. Clones are the same uplink.
///
/// An uplink carries each byte once: the link that loses bytes behind it repeats them. Nothing is dropped by its queue:
/// senders wait until there is room.
#[derive(Clone, Debug)]
pub struct Uplink {
    origin: Origin,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    line: Line,
    backlog: Queue,
}

impl Uplink {
    /// Makes an uplink of this rate, with a queue of so many bytes. Its time begins at `start`.
    #[must_use]
    pub fn new(rate: &Rate, queue_bytes: u64, start: Instant) -> Self {
        let shared = Shared { line: Line::new(rate), backlog: Queue::new(queue_bytes) };
        Self { origin: Origin(start), shared: Arc::new(Mutex::new(shared)) }
    }

    /// Returns how many bytes wait at `now`, with those that are being sent. Ask in order of time, as with the other
    /// methods.
    #[must_use]
    pub fn queued_bytes(&self, now: Instant) -> u64 {
        let now = self.origin.local(now);
        self.shared().backlog.held_bytes(now)
    }

    /// Returns when `bytes`, offered at `now`, have left the uplink.
    pub(super) fn carry(&self, bytes: u64, now: Instant) -> Instant {
        let now = self.origin.local(now);
        let Shared { line, backlog } = &mut *self.shared();
        let left = line.carry(bytes, now).to;
        backlog.push(bytes, left);
        self.origin.global(left)
    }

    /// Returns when a sender should go on.
    pub(super) fn writable_at(&self, now: Instant) -> Instant {
        let local = self.origin.local(now);
        self.origin.global(self.shared().backlog.within_limit_at(local))
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
