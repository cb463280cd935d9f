//! Damage: data that differ from those that were sent, on their way or at an end of it. Everything is sent again then;
//! the users of such a machine or network should hear of it.

use std::sync::atomic::{AtomicU64, Ordering};

use mafs_arpc::Peer;
use mafs_proto::CmlRecord;

use super::{Remote, Shared};

/// Counts of damage since the mount.
#[derive(Default)]
pub(crate) struct Damage {
    contents: AtomicU64,
    connections: AtomicU64,
}

impl Damage {
    /// Returns how often a content was damaged on its way to the server.
    pub(crate) fn contents(&self) -> u64 {
        self.contents.load(Ordering::Relaxed)
    }

    /// Returns how many connections were ended because of a damaged frame.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Notes that a content was damaged on its way to the server.
    pub(super) fn note_damaged(&self, record: &CmlRecord) {
        self.damage.contents.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(fid = %record.op.fid(), "what the server got of a content was not what was sent");
    }

    /// Counts a connection that has ended, if it has ended because of a damaged frame.
    pub(super) fn note_end(&self, peer: &Peer) {
        self.damage.connections.fetch_add(u64::from(peer.ended_by_damage()), Ordering::Relaxed);
    }
}

impl Remote {
    /// Returns the counts of damage since the mount.
    pub(crate) fn damage(&self) -> &Damage {
        &self.shared.damage
    }
}
