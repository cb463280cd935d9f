//! Promises of the server: when a session begins, until when its lease holds, and what is broken.

use std::time::Duration;

use mafs_durable::Batch;
use mafs_proto::call::{ApplyReply, BrokenObject, ChangedObject, GetStatusRequest, Mark};
use mafs_proto::{ChangeNumber, Fid, HistoryId, Instant, ServerId, VnodeId};

use super::{Index, KnownVolume, NO_TRUST, SCAN_MAX, Volume, object_key, vnode_of};
use crate::cache::CacheError;
use crate::cache::record::CachedObject;
use crate::core::promises::{Grant, SessionNumber};

/// Most directories that are remembered as exclusive. Beyond, all are forgotten: the server is asked once more for
/// each.
const EXCLUSIVE_MAX: usize = 65_536;

/// State of the volume that an attach has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AttachedVolume {
    pub(crate) server: ServerId,
    pub(crate) history: HistoryId,
    pub(crate) mark: Option<Mark>,
}

impl Index {
    /// Returns the mark up to which this client has heard of everything that makes what is known invalid; `None`: it
    /// has missed something.
    pub(crate) fn mark(&self) -> Option<Mark> {
        let volume = self.lock();
        volume.known.and_then(|known| known.mark).filter(|_| !volume.missed)
    }

    /// Notes that the volume has been attached; `resumed`: the promises of the last session still hold. Otherwise an
    /// object that was valid then is so if it is not among the `changed`; `None`: nothing is. Returns the session that
    /// answers belong to from now on.
    pub(crate) fn attached(
        &self,
        volume: AttachedVolume,
        resumed: bool,
        changed: Option<&[ChangedObject]>,
    ) -> Result<SessionNumber, CacheError> {
        let AttachedVolume { server, history, mark } = volume;
        let mut volume = self.lock();
        let same = volume.known.is_some_and(|known| (known.server, known.history) == (server, history));
        if resumed && same && !volume.missed && volume.breaks.session() != SessionNumber::NONE {
            return Ok(volume.breaks.session());
        }
        let trust = volume.known.map_or(NO_TRUST, |known| known.trust);
        let changed = changed.filter(|_| same && !volume.missed);
        let distrusted = changed.map(|changed| self.drop_lacking_names().and_then(|()| self.distrust_changed(changed)));
        let kept = match distrusted {
            Some(Ok(stale)) => {
                volume.stale = stale;
                true
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "everything is asked for again, because the index cannot be written");
                false
            }
            None => false,
        };
        // The server was asked what has changed, or may have been: then it tells of every change.
        let asked = volume.known.is_some_and(|known| known.mark.is_some());
        let trust = if kept { trust } else { trust + 1 };
        self.set_known(&mut volume, KnownVolume { server, history, mark, trust })?;
        volume.missed = false;
        volume.exclusive.clear();
        let session = volume.breaks.begin();
        volume.unnamed = asked.then_some(session);
        Ok(session)
    }

    /// Returns the session in which the server tells of every change, because it was not told what is held here.
    pub(crate) fn unnamed(&self) -> Option<SessionNumber> {
        let volume = self.lock();
        volume.unnamed.filter(|session| *session == volume.breaks.session())
    }

    /// Takes the objects that have changed meanwhile, if they are few; none when it is asked again.
    pub(crate) fn take_stale(&self) -> Vec<Fid> {
        std::mem::take(&mut self.lock().stale)
    }

    /// Notes that the server has been told what is held here.
    pub(crate) fn named(&self, session: SessionNumber) {
        let mut volume = self.lock();
        volume.unnamed = volume.unnamed.filter(|unnamed| *unnamed != session);
    }

    /// Looks at some more known objects behind `after`. Returns those that the server has promised to tell of, and
    /// behind which object to go on.
    pub(crate) fn promised_behind(
        &self,
        after: Option<VnodeId>,
    ) -> Result<(Vec<VnodeId>, Option<VnodeId>), CacheError> {
        let trust = self.trust();
        let page = self.kv.scan(b"o", after.map(object_key).as_deref(), SCAN_MAX)?;
        let next = page.last().and_then(|(key, _)| vnode_of(b"o", key)).filter(|_| page.len() == SCAN_MAX);
        let promised = page.into_iter().filter_map(|(key, value)| {
            let is_promised = CachedObject::decode(value).is_some_and(|cached| cached.trust == trust);
            vnode_of(b"o", &key).filter(|_| is_promised)
        });
        Ok((promised.collect(), next))
    }

    /// Notes that in a session this client has heard of everything up to `mark`.
    pub(crate) fn caught_up(&self, session: SessionNumber, mark: Mark) {
        let mut volume = self.lock();
        if volume.missed || volume.breaks.session() != session {
            return;
        }
        if let Some(known) = volume.known.filter(|known| known.mark != Some(mark))
            && let Err(error) = self.set_known(&mut volume, KnownVolume { mark: Some(mark), ..known })
        {
            tracing::debug!(%error, "it cannot be noted how far all is known");
        }
    }

    /// Forgets names that lack what a status shows already. As long as promises held, this was a change of this
    /// client's own; a break that was on its way when the session ended does not come any more.
    fn drop_lacking_names(&self) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        for vnode in self.pending.naming_directories() {
            let lacks = |known: &CachedObject| {
                known.entries.is_some_and(|entries| entries.version != known.object.status.data_version)
            };
            if let Some(known) = self.shown(vnode)?.filter(lacks) {
                batch.put(object_key(vnode), CachedObject { entries: None, ..known }.encode());
            }
        }
        self.apply(&batch)
    }

    /// Takes the trust from objects that the server has at another version than is known here. Returns those that there
    /// are still and that may be asked for at once.
    fn distrust_changed(&self, changed: &[ChangedObject]) -> Result<Vec<Fid>, CacheError> {
        let (mut batch, mut stale) = (Batch::default(), Vec::new());
        for ChangedObject { vnode, version } in changed {
            if let Some(mut cached) = self.shown(*vnode)?
                && Some(cached.object.status.status_version) != *version
            {
                cached.trust = NO_TRUST;
                batch.put(object_key(*vnode), cached.encode());
                stale.extend(version.map(|_| cached.object.fid));
            }
        }
        self.apply(&batch)?;
        if stale.len() > GetStatusRequest::FIDS_MAX {
            stale.clear();
        }
        Ok(stale)
    }

    /// Returns the present session.
    pub(crate) fn session(&self) -> SessionNumber {
        self.lock().breaks.session()
    }

    /// Renews the lease: a request that was sent at `sent` has been answered with one.
    pub(crate) fn renew_lease(&self, sent: Instant, lease: Duration) {
        self.lease.renew(sent, lease);
    }

    /// Returns how long what is valid stays so without another renewal.
    pub(crate) fn lease_remaining(&self) -> Duration {
        self.lease.remaining(self.clock.now())
    }

    /// Returns how long an object is valid without another renewal; not at all if it is not valid now.
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

    /// Notes that a directory is about to be sent for the first time, so that nobody else can know of it: once the
    /// server has it, it is this client's alone.
    pub(crate) fn making_directory(&self, directory: VnodeId) {
        let mut volume = self.lock();
        let grant = Grant { session: volume.breaks.session(), change: volume.breaks.newest() };
        volume.insert_exclusive(directory, grant);
    }

    /// Takes in that the server breaks its promises on objects, because of changes up to `change`.
    pub(crate) fn break_objects(&self, change: ChangeNumber, objects: &[BrokenObject]) {
        self.changed_up_to(change, objects.iter().map(|object| object.fid));
    }

    /// Notes that objects are out of date, because of changes up to `change`: what older answers say of them brings no
    /// promise.
    pub(super) fn changed_up_to(&self, change: ChangeNumber, fids: impl Iterator<Item = Fid> + Clone) {
        let mut volume = self.lock();
        fids.clone().for_each(|fid| volume.breaks.note(fid.vnode, change));
        if let Err(error) = self.distrust_all(fids) {
            tracing::warn!(%error, "a change at the server cannot be noted: everything is asked for again");
            self.miss(&mut volume);
        }
    }

    /// Takes in that the server breaks all its promises.
    pub(crate) fn break_all(&self, change: ChangeNumber) {
        let mut volume = self.lock();
        volume.breaks.note_all(change);
        if let Err(error) = self.raise_trust(&mut volume) {
            tracing::warn!(%error, "changes by other clients cannot be noted");
            self.miss(&mut volume);
        }
    }

    /// Raises the trust: nothing known is valid any more.
    pub(super) fn raise_trust(&self, volume: &mut Volume) -> Result<(), CacheError> {
        match volume.known {
            Some(known) => self.set_known(volume, KnownVolume { trust: known.trust + 1, ..known }),
            None => Ok(()),
        }
    }
}

impl Volume {
    /// Notes where this client decides names, as an answer says. Ends what was known only because the answer had not
    /// come.
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
