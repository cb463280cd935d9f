//! What the server has promised: when a session begins, until when its lease holds, and what is broken.

use std::time::Duration;

use mafs_proto::call::{ApplyReply, BrokenObject};
use mafs_proto::{ChangeNumber, Fid, HistoryId, Instant, ServerId, VnodeId};

use super::{Index, KnownVolume, NO_TRUST, Volume};
use crate::cache::CacheError;
use crate::core::promises::{Grant, SessionNumber};

/// Directories that are remembered as exclusive. Beyond, all are forgotten: the server is asked once more for each.
const EXCLUSIVE_MAX: usize = 65_536;

/// Where an attach found the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AttachedVolume {
    pub(crate) server: ServerId,
    pub(crate) history: HistoryId,
    pub(crate) change: ChangeNumber,
}

impl Index {
    /// The volume has been attached; `resumed`: the promises of the last session still hold. Otherwise nothing known is
    /// valid any more. Returns the session that answers belong to from now on.
    pub(crate) fn attached(&self, volume: AttachedVolume, resumed: bool) -> Result<SessionNumber, CacheError> {
        let AttachedVolume { server, history, change } = volume;
        let mut volume = self.lock();
        let same = volume.known.is_some_and(|known| (known.server, known.history) == (server, history));
        if resumed && same && !volume.missed && volume.breaks.session() != SessionNumber::NONE {
            return Ok(volume.breaks.session());
        }
        let trust = volume.known.map_or(NO_TRUST, |known| known.trust) + 1;
        self.set_known(&mut volume, KnownVolume { server, history, change, trust })?;
        volume.missed = false;
        volume.exclusive.clear();
        Ok(volume.breaks.begin())
    }

    /// The present session.
    pub(crate) fn session(&self) -> SessionNumber {
        self.lock().breaks.session()
    }

    /// A request that was sent at `sent` has been answered with a lease.
    pub(crate) fn renew_lease(&self, sent: Instant, lease: Duration) {
        self.lease.renew(sent, lease);
    }

    /// How long what is valid stays so without another renewal.
    pub(crate) fn lease_remaining(&self) -> Duration {
        self.lease.remaining(self.clock.now())
    }

    /// How long an object is valid without another renewal; not at all if it is not valid now.
    pub(crate) fn valid_for(&self, vnode: VnodeId) -> Duration {
        let valid = self.promised_object(vnode).is_ok_and(|cached| cached.is_some());
        if valid { self.lease_remaining() } else { Duration::ZERO }
    }

    /// Whether the server has promised in this session that nobody else makes names in a directory.
    pub(crate) fn is_exclusive(&self, directory: VnodeId) -> bool {
        let volume = self.lock();
        let promised = |grant: &Grant| volume.breaks.promises(*grant, directory);
        self.lease.holds(self.clock.now()) && volume.exclusive.get(&directory).is_some_and(promised)
    }

    /// A directory that nobody else can know of is about to be sent for the first time: once the server has it it is
    /// this client's alone.
    pub(crate) fn making_directory(&self, directory: VnodeId) {
        let mut volume = self.lock();
        let grant = Grant { session: volume.breaks.session(), change: volume.breaks.newest() };
        volume.insert_exclusive(directory, grant);
    }

    /// The server breaks its promises on objects, because of changes up to `change`.
    pub(crate) fn break_objects(&self, change: ChangeNumber, objects: &[BrokenObject]) {
        self.changed_up_to(change, objects.iter().map(|object| object.fid));
    }

    /// Objects are out of date, because of changes up to `change`: what older answers say of them brings no promise.
    pub(super) fn changed_up_to(&self, change: ChangeNumber, fids: impl Iterator<Item = Fid> + Clone) {
        let mut volume = self.lock();
        fids.clone().for_each(|fid| volume.breaks.note(fid.vnode, change));
        if let Err(error) = self.distrust_all(fids) {
            tracing::warn!(%error, "a change at the server cannot be noted: everything is asked for again");
            self.miss(&mut volume);
        }
    }

    /// The server breaks all its promises.
    pub(crate) fn break_all(&self, change: ChangeNumber) {
        let mut volume = self.lock();
        volume.breaks.note_all(change);
        if let Err(error) = self.raise_trust(&mut volume) {
            tracing::warn!(%error, "changes by other clients cannot be noted");
            self.miss(&mut volume);
        }
    }

    /// Nothing known is valid any more.
    pub(super) fn raise_trust(&self, volume: &mut Volume) -> Result<(), CacheError> {
        match volume.known {
            Some(known) => self.set_known(volume, KnownVolume { trust: known.trust + 1, ..known }),
            None => Ok(()),
        }
    }
}

impl Volume {
    /// An answer says where this client decides names, and ends what was known only because the answer had not come.
    pub(super) fn note_exclusive(&mut self, reply: &ApplyReply, grant: Grant) {
        if !reply.directories.is_empty() {
            for object in &reply.objects {
                self.exclusive.remove(&object.fid.vnode);
            }
        }
        for directory in &reply.exclusive {
            self.insert_exclusive(directory.vnode, grant);
        }
    }

    fn insert_exclusive(&mut self, directory: VnodeId, grant: Grant) {
        if self.exclusive.len() >= EXCLUSIVE_MAX {
            self.exclusive.clear();
        }
        self.exclusive.insert(directory, grant);
    }
}
