//! Limits of what each class may send and get, over whichever connection.

use std::sync::{MutexGuard, PoisonError};

use mafs_arpc::Rate;

use super::{Link, Remote, Shared};
use crate::limit::ClassLimit;

/// The limits, by [`mafs_proto::Class::index`].
pub(crate) type Limits = [Option<Rate>; 5];

impl Remote {
    /// Limits a class from now on, over this connection and those that follow.
    pub(crate) fn limit(&self, limit: ClassLimit) {
        let mut limits = self.shared.limits();
        limits[limit.class().index()] = limit.rate();
        self.shared.tell_connection(&limits);
    }

    /// Returns the limits that are set.
    pub(crate) fn limits(&self) -> Limits {
        *self.shared.limits()
    }
}

impl Shared {
    /// Tells a new connection the limits.
    pub(super) fn apply_limits(&self) {
        self.tell_connection(&self.limits());
    }

    /// Tells the connection the limits. The lock is held, so that no older limits are told after newer ones.
    fn tell_connection(&self, limits: &MutexGuard<'_, Limits>) {
        if let Link::Up(connection) = &*self.link.borrow() {
            connection.peer.set_limits(**limits);
        }
    }

    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
