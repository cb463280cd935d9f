//! Damage: what was found not to be what was sent, on its way or at an end of it. Everything is sent again then; who
//! has such a machine or network should hear of it.

use std::sync::atomic::{AtomicU64, Ordering};

use mafs_arpc::Peer;
use mafs_proto::CmlRecord;

use super::{Remote, Shared};

/// Counts since the mount.
#[derive(Default)]
pub(crate) struct Damage {
    contents: AtomicU64,
    connections: AtomicU64,
}

impl Damage {
    /// How often a content was damaged on its way to the server.
    pub(crate) fn contents(&self) -> u64 {
        self.contents.load(Ordering::Relaxed)
    }

    /// How many connections were ended because of a damaged frame.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// What came of a content at the server was not what was sent.
    pub(super) fn note_damaged(&self, record: &CmlRecord) {
        self.damage.contents.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(fid = %record.op.fid(), "what the server got of a content was not what was sent");
    }

    /// A connection has ended; if because of a damaged frame, that is counted.
    pub(super) fn note_end(&self, peer: &Peer) {
        self.damage.connections.fetch_add(u64::from(peer.ended_by_damage()), Ordering::Relaxed);
    }
}

impl Remote {
    /// What was damaged since the mount.
    pub(crate) fn damage(&self) -> &Damage {
        &self.shared.damage
    }
}
