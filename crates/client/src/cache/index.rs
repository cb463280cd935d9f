//! The index: what is known of objects, names and the volume.
//!
//! Keys: `o` + vnode: [`CachedObject`]; `d` + vnode + name: [`CachedEntry`]; `u` + vnode: last use; `y` + vnode: fid of
//! a content that is not durable yet; `i` + vnode: [`super::record::CachedPart`]; `x` + vnode:
//! [`super::record::CachedXattrs`]; `v`: [`KnownVolume`]. Numbers in keys are big endian, so that they sort.
//!
//! A status is *valid* while its trust is the index's and the lease holds: then the server has promised to tell of a
//! change before anybody relies on it. A break takes the trust from an object; the end of a session raises that of the
//! index. An answer that a break has overtaken is taken in without trust. While the server is out of reach all that is
//! known is valid; nothing is promised of it then, so the kernel is not to remember it.

mod names;
mod parts;
mod pending;
mod promises;
mod recent;
#[cfg(test)]
mod tests;
mod usage;
mod xattrs;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use mafs_durable::{Batch, Kv};
use mafs_proto::call::ApplyReply;
use mafs_proto::{Clock, Fid, Kind, Name, Object, Status, VnodeId, Wire};

use super::CacheError;
use super::record::{CachedContent, CachedEntry, CachedObject, KnownVolume, RunId};
use crate::core::promises::{Breaks, Grant, Lease, SessionNumber};
pub(crate) use names::NameEdit;
pub(crate) use pending::Known;
use pending::Pending;
pub(crate) use promises::AttachedVolume;
use recent::RecentObjects;

const SCAN_MAX: usize = 1024;
/// No trust: never that of an index, which starts at 1.
const NO_TRUST: u64 = 0;
/// Trust of an index that has missed something: no object has it.
const MISSED: u64 = u64::MAX;
/// Trust of an object that was shown without a promise: it must be asked for again, but is newer than one that is shown
/// with a smaller version by an answer that took longer.
const DOUBTED: u64 = u64::MAX - 1;

/// The index of one cache. Reads take no lock; changes that depend on what is there take turns.
///
/// Locks are taken in this order: `pending`, `volume`, and which names `pending` changes. So callers hand in values: a
/// closure, or an iterator that filters, would be run under `volume` and might look at what is pending.
pub(crate) struct Index {
    kv: Arc<dyn Kv>,
    recent: RecentObjects,
    volume: Mutex<Volume>,
    trust: AtomicU64,
    clock: Arc<dyn Clock>,
    lease: Lease,
    /// Whether the server is out of reach: then what is known counts, as nobody can be asked.
    apart: AtomicBool,
    /// Whether there is anything that is not durable.
    changed: AtomicBool,
    on_forgotten: OnceLock<OnForgotten>,
    pending: Pending,
}

/// Callback that is told of names that the index has forgotten: nobody will tell of them when a directory is broken.
type OnForgotten = Box<dyn Fn(VnodeId, Vec<(Name, CachedEntry)>) + Send + Sync>;

struct Volume {
    known: Option<KnownVolume>,
    breaks: Breaks,
    /// Directories in which this client decides names, each with the grant that says so.
    exclusive: HashMap<VnodeId, Grant>,
    /// The session in which the server tells of every change, because it does not know yet what this client holds.
    unnamed: Option<SessionNumber>,
    /// Objects that have changed since the session before and are to be asked for at once.
    stale: Vec<Fid>,
    /// Whether something could not be noted: nothing is valid until the trust has been raised.
    missed: bool,
}

impl Index {
    pub(crate) fn open(kv: Arc<dyn Kv>, clock: Arc<dyn Clock>) -> Result<Self, CacheError> {
        let known = kv.get(b"v")?.and_then(KnownVolume::decode);
        let trust = AtomicU64::new(known.map_or(NO_TRUST, |known| known.trust));
        let (breaks, exclusive) = (Breaks::default(), HashMap::new());
        let volume = Mutex::new(Volume { known, breaks, exclusive, unnamed: None, stale: Vec::new(), missed: false });
        Ok(Self {
            kv,
            recent: RecentObjects::new(),
            volume,
            trust,
            clock,
            lease: Lease::default(),
            apart: AtomicBool::new(false),
            changed: AtomicBool::new(true),
            on_forgotten: OnceLock::new(),
            pending: Pending::default(),
        })
    }

    /// Sets the callback that is told of names that the index forgets of directories which it still knows.
    pub(crate) fn set_on_forgotten(&self, told: OnForgotten) {
        if self.on_forgotten.set(told).is_err() {
            tracing::debug!("who is told of forgotten names was set before");
        }
    }

    /// Returns the volume this index belongs to, once it has been attached.
    pub(crate) fn known_volume(&self) -> Option<KnownVolume> {
        self.lock().known
    }

    /// Removes everything.
    pub(crate) fn clear(&self) -> Result<(), CacheError> {
        let mut volume = self.lock();
        self.remove_all(b"")?;
        (volume.known, volume.missed) = (None, false);
        self.trust.store(NO_TRUST, Ordering::Release);
        Ok(())
    }

    /// Returns what the server has shown of an object.
    fn shown(&self, vnode: VnodeId) -> Result<Option<CachedObject>, CacheError> {
        self.recent.get(vnode, || Ok(self.kv.get(&object_key(vnode))?.and_then(CachedObject::decode)))
    }

    /// Returns what the server has shown of an object, if its status is valid.
    fn valid_shown(&self, vnode: VnodeId) -> Result<Option<CachedObject>, CacheError> {
        if self.is_apart() {
            return self.shown(vnode);
        }
        self.promised_shown(vnode)
    }

    /// Returns what the server has shown of an object, if it has promised to tell of a change.
    fn promised_shown(&self, vnode: VnodeId) -> Result<Option<CachedObject>, CacheError> {
        if !self.lease.holds(self.clock.now()) {
            return Ok(None);
        }
        let trust = self.trust();
        Ok(self.shown(vnode)?.filter(|cached| cached.trust == trust))
    }

    /// Notes whether the server is out of reach.
    pub(crate) fn set_apart(&self, apart: bool) {
        self.apart.store(apart, Ordering::Release);
    }

    /// Whether the server is out of reach.
    pub(crate) fn is_apart(&self) -> bool {
        self.apart.load(Ordering::Acquire)
    }

    /// Takes in objects that the server has shown.
    pub(crate) fn install(&self, objects: &[Object], grant: Grant) -> Result<(), CacheError> {
        self.install_all(objects.iter(), &[], grant)
    }

    /// Takes in objects that the server has shown, without a promise for the `doubtful` ones.
    pub(crate) fn install_some(
        &self,
        objects: &[&Object],
        doubtful: &[Object],
        grant: Grant,
    ) -> Result<(), CacheError> {
        self.install_all(objects.iter().copied(), doubtful, grant)
    }

    fn install_all<'a>(
        &self,
        objects: impl Iterator<Item = &'a Object>,
        doubtful: &[Object],
        grant: Grant,
    ) -> Result<(), CacheError> {
        let volume = self.settled()?;
        let mut batch = Batch::default();
        for object in objects {
            let is_doubtful = doubtful.iter().any(|coming| coming.fid == object.fid);
            let grant = if is_doubtful { grant.without_promise() } else { grant };
            self.install_one(&volume, object, None, grant, &mut batch)?;
        }
        self.apply(&batch)
    }

    /// Whether there is room to note what a mutation will do, asked before the server is.
    pub(crate) fn check_writable(&self) -> Result<(), CacheError> {
        Ok(self.kv.check_writable()?)
    }

    /// Notes that the server has applied a mutation of this client: `edits` are what it did to names.
    pub(crate) fn applied(
        &self,
        reply: &ApplyReply,
        session: SessionNumber,
        edits: &[NameEdit],
    ) -> Result<(), CacheError> {
        self.applied_with_links(reply, session, edits, None)
    }

    /// Notes an applied mutation like [`Self::applied`]. With `links`, which are its changes to the numbers of names,
    /// these numbers go on from what is known: those in the answer may count other changes that are still laid over
    /// what is known.
    fn applied_with_links(
        &self,
        reply: &ApplyReply,
        session: SessionNumber,
        edits: &[NameEdit],
        links: Option<&[(VnodeId, i64)]>,
    ) -> Result<(), CacheError> {
        let grant = Grant { session, change: reply.change };
        let noted = self.settled().and_then(|mut volume| {
            volume.note_exclusive(reply, grant);
            self.note(&volume, reply, grant, edits, links)
        });
        if noted.is_err() {
            self.miss(&mut self.lock());
        }
        noted
    }

    /// Notes that the server has applied a mutation of which it is not known what it did to names.
    pub(crate) fn applied_elsewhere(&self, reply: &ApplyReply, session: SessionNumber) -> Result<(), CacheError> {
        self.distrust(reply.directories.iter().map(|change| change.fid))?;
        let reply = ApplyReply { directories: Vec::new(), ..reply.clone() };
        self.applied(&reply, session, &[])
    }

    fn note(
        &self,
        volume: &Volume,
        reply: &ApplyReply,
        grant: Grant,
        edits: &[NameEdit],
        links: Option<&[(VnodeId, i64)]>,
    ) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        for change in &reply.directories {
            let own_edits = edits.iter().filter(|edit| edit.parent == change.fid);
            self.adopt(change.fid, change.before, change.after, own_edits, &mut batch)?;
        }
        self.apply(&batch)?;
        let mut batch = Batch::default();
        for object in &reply.objects {
            let parent = edits.iter().find(|edit| edit.entry.is_some_and(|entry| entry.fid == object.fid));
            let known = self.shown(object.fid.vnode)?.filter(|known| known.object.fid == object.fid);
            let broken = known.as_ref().is_some_and(|known| known.trust != self.trust());
            // The answer lacks what another client has announced of the object meanwhile.
            let grant = if broken { grant.without_promise() } else { grant };
            let place = parent.map(|edit| (edit.parent.vnode, &edit.name));
            if object.status.nlink == 0 {
                self.remove_one(object.fid.vnode, &mut batch)?;
                continue;
            }
            let counted = known.zip(links).and_then(|(known, links)| counted(&known.object, links));
            let mut merged = self.merged(volume, object, place, grant)?;
            merged.object.status.nlink = counted.unwrap_or(merged.object.status.nlink);
            batch.put(object_key(object.fid.vnode), merged.encode());
        }
        self.apply(&batch)
    }

    /// Sets where the content of a file is whole, not durable yet; `None`: nowhere. Forgets the part that was here.
    /// Returns where the content was whole before.
    pub(crate) fn set_content(
        &self,
        vnode: VnodeId,
        content: Option<CachedContent>,
    ) -> Result<Option<CachedContent>, CacheError> {
        let _turn = self.lock();
        let Some(mut cached) = self.shown(vnode)? else { return Ok(None) };
        let before = std::mem::replace(&mut cached.content, content);
        let mut batch = Batch::default();
        match content {
            Some(_) => batch.put(vnode_key(b'y', vnode), cached.object.fid.encode()),
            None => batch.remove(vnode_key(b'y', vnode)),
        }
        batch.remove(parts::part_key(vnode));
        batch.put(object_key(vnode), cached.encode());
        self.apply(&batch)?;
        Ok(before)
    }

    /// Returns where the content of an object is, whole and as the server has shown it last, and its status then; what
    /// this client has changed of the object since does not count.
    pub(crate) fn known_content(&self, fid: Fid) -> Result<Option<(CachedContent, Status)>, CacheError> {
        let known = self.shown(fid.vnode)?.filter(|known| known.object.fid == fid);
        Ok(known.and_then(|known| {
            let status = known.object.status;
            known.content.filter(|content| content.version == status.data_version).map(|content| (content, status))
        }))
    }

    /// Notes that a content has been found to be intact in this run, unless another has come since.
    pub(crate) fn content_intact(&self, vnode: VnodeId, content: CachedContent, run: RunId) -> Result<(), CacheError> {
        let _turn = self.lock();
        let Some(mut cached) = self.shown(vnode)?.filter(|now| now.content == Some(content)) else { return Ok(()) };
        cached.content = Some(CachedContent { intact_in: run, ..content });
        let mut batch = Batch::default();
        batch.put(object_key(vnode), cached.encode());
        self.apply(&batch)
    }

    /// Takes the trust from objects: what is known of them may be out of date and must be validated.
    pub(crate) fn distrust(&self, fids: impl Iterator<Item = Fid>) -> Result<(), CacheError> {
        let mut volume = self.lock();
        self.distrust_all(fids).inspect_err(|_| self.miss(&mut volume))
    }

    fn distrust_all(&self, fids: impl Iterator<Item = Fid>) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        for fid in fids {
            if let Some(mut cached) = self.shown(fid.vnode)? {
                cached.trust = NO_TRUST;
                batch.put(object_key(fid.vnode), cached.encode());
            }
        }
        self.apply(&batch)
    }

    /// Removes an object that does not exist any more.
    pub(crate) fn remove(&self, vnode: VnodeId) -> Result<(), CacheError> {
        let _turn = self.lock();
        let mut batch = Batch::default();
        self.remove_one(vnode, &mut batch)?;
        self.apply(&batch)
    }

    /// Forgets contents that were not durable when the power was lost: their containers may hold anything under a good
    /// seal.
    pub(crate) fn forget_unsynced_contents(&self) -> Result<(), CacheError> {
        loop {
            let unsynced = self.unsynced_contents()?;
            if unsynced.is_empty() {
                return Ok(());
            }
            for fid in &unsynced {
                self.set_content(fid.vnode, None)?;
                self.content_synced(fid.vnode)?;
            }
        }
    }

    /// Whether the content of a file is in the cache and durable there.
    pub(crate) fn is_content_durable(&self, vnode: VnodeId) -> Result<bool, CacheError> {
        let here = self.shown(vnode)?.is_some_and(|cached| cached.content.is_some());
        Ok(here && self.kv.get(&vnode_key(b'y', vnode))?.is_none())
    }

    /// Returns some of the files whose contents are not durable yet; empty: there are none.
    pub(crate) fn unsynced_contents(&self) -> Result<Vec<Fid>, CacheError> {
        let page = self.kv.scan(b"y", None, SCAN_MAX)?;
        page.into_iter()
            .map(|(_, value)| {
                Fid::decode(value.into())
                    .map_err(|why| CacheError::Damaged(format!("the index names an unsynced content: {why}")))
            })
            .collect()
    }

    /// Notes that the content of a file is durable.
    pub(crate) fn content_synced(&self, vnode: VnodeId) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        batch.remove(vnode_key(b'y', vnode));
        self.apply(&batch)
    }

    /// Makes everything durable.
    pub(crate) fn sync(&self) -> Result<(), CacheError> {
        if self.changed.swap(false, Ordering::AcqRel) {
            self.kv.sync().inspect_err(|_| self.changed.store(true, Ordering::Release))?;
        }
        Ok(())
    }

    /// Returns the trust of objects whose statuses are valid while the lease holds. Goes up when changes may have been
    /// missed.
    fn trust(&self) -> u64 {
        self.trust.load(Ordering::Acquire)
    }

    /// Takes the trust from all objects, as something that has happened could not be noted.
    fn miss(&self, volume: &mut Volume) {
        volume.missed = true;
        self.trust.store(MISSED, Ordering::Release);
    }

    /// Locks the volume, and makes good what was missed.
    fn settled(&self) -> Result<MutexGuard<'_, Volume>, CacheError> {
        let mut volume = self.lock();
        if volume.missed {
            self.raise_trust(&mut volume)?;
            volume.missed = false;
        }
        Ok(volume)
    }

    fn apply(&self, batch: &Batch) -> Result<(), CacheError> {
        let applied = self.kv.apply(batch);
        self.changed.store(true, Ordering::Release);
        self.recent.changed(batch);
        Ok(applied?)
    }

    fn lock(&self) -> MutexGuard<'_, Volume> {
        self.volume.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_known(&self, volume: &mut Volume, known: KnownVolume) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        batch.put(*b"v", known.encode());
        self.apply(&batch)?;
        volume.known = Some(known);
        self.trust.store(known.trust, Ordering::Release);
        Ok(())
    }

    /// Merges what is known of an object with what the server shows now; an older answer than the known one is ignored.
    fn merged(
        &self,
        volume: &Volume,
        object: &Object,
        place: Option<(VnodeId, &Name)>,
        grant: Grant,
    ) -> Result<CachedObject, CacheError> {
        let trusted = volume.known.map_or(NO_TRUST, |known| known.trust);
        let promised = volume.breaks.promises(grant, object.fid.vnode);
        let trust = if promised { trusted } else { DOUBTED };
        let old = self.shown(object.fid.vnode)?.filter(|old| old.object.fid == object.fid);
        let Some(old) = old else {
            let entries = self.no_entries(object)?;
            let (parent, name) = placed(place, None);
            return Ok(CachedObject { object: object.clone(), trust, parent, name, entries, content: None });
        };
        let (parent, name) = placed(place, Some(&old));
        let was_trusted = old.trust == trusted;
        let (known, shown) = (old.object.status.status_version, object.status.status_version);
        let (object, trust) = if was_trusted && known >= shown {
            (old.object, old.trust)
        } else if old.trust == DOUBTED && known > shown {
            // Or the numbers have begun anew: then the next answer is believed.
            (old.object, NO_TRUST)
        } else if old.trust == NO_TRUST && known > shown {
            // The server has shown more before, or the numbers have begun anew: the next answer will tell.
            (object.clone(), NO_TRUST)
        } else {
            (object.clone(), trust)
        };
        // While promises hold no other client has changed its names: they lack only changes of this client, which are
        // laid over them as long as their answers are on the way.
        let lack_own = trust == trusted && was_trusted && self.pending.changes_names(object.fid.vnode);
        let version = object.status.data_version;
        let entries = old.entries.filter(|of| of.version == version || (lack_own && of.version < version));
        let entries = match entries {
            Some(entries) => Some(entries),
            None => self.no_entries(&object)?,
        };
        Ok(CachedObject { object, trust, parent, name, entries, content: old.content })
    }

    fn install_one(
        &self,
        volume: &Volume,
        object: &Object,
        place: Option<(VnodeId, &Name)>,
        grant: Grant,
        batch: &mut Batch,
    ) -> Result<(), CacheError> {
        if object.status.nlink == 0 {
            return self.remove_one(object.fid.vnode, batch);
        }
        let mut merged = self.merged(volume, object, place, grant)?;
        let known = self.shown(object.fid.vnode)?.filter(|known| known.object.fid == object.fid);
        let is_older = |known: &CachedObject| known.object.status.status_version > object.status.status_version;
        if let Some(known) = known
            && (is_older(&known) || volume.breaks.overtakes(grant, object.fid.vnode))
        {
            // The answer may lack a name that this client has given, which is counted in what is known.
            merged.object.status.nlink = counted(&known.object, &[]).unwrap_or(merged.object.status.nlink);
        }
        batch.put(object_key(object.fid.vnode), merged.encode());
        Ok(())
    }

    fn remove_one(&self, vnode: VnodeId, batch: &mut Batch) -> Result<(), CacheError> {
        if self.shown(vnode)?.is_some_and(|cached| cached.object.status.kind == Kind::Directory) {
            self.forget_names(vnode)?;
        }
        batch.remove(object_key(vnode));
        batch.remove(vnode_key(b'u', vnode));
        batch.remove(vnode_key(b'y', vnode));
        batch.remove(parts::part_key(vnode));
        batch.remove(xattrs::xattrs_key(vnode));
        Ok(())
    }

    /// Removes all keys with a prefix.
    fn remove_all(&self, prefix: &[u8]) -> Result<(), CacheError> {
        loop {
            let page = self.kv.scan(prefix, None, SCAN_MAX)?;
            if page.is_empty() {
                return Ok(());
            }
            let mut batch = Batch::default();
            page.into_iter().for_each(|(key, _)| batch.remove(key));
            self.apply(&batch)?;
        }
    }
}

/// Returns how many names a known object has when it has won and lost these; `None`: only the server can tell.
fn counted(known: &Object, links: &[(VnodeId, i64)]) -> Option<u32> {
    let won: i64 = links.iter().filter(|(vnode, _)| *vnode == known.fid.vnode).map(|(_, links)| links).sum();
    let nlink = u32::try_from(i64::from(known.status.nlink) + won).ok();
    nlink.filter(|nlink| *nlink > 0 && known.status.kind != Kind::Directory)
}

/// Returns where an object is by now, and under which name, as is said now or was known before.
fn placed(now: Option<(VnodeId, &Name)>, before: Option<&CachedObject>) -> (Option<VnodeId>, Option<Name>) {
    match now {
        Some((parent, name)) => (Some(parent), Some(name.detached())),
        None => before.map_or((None, None), |before| (before.parent, before.name.clone())),
    }
}

fn vnode_key(kind: u8, vnode: VnodeId) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend(vnode.0.to_be_bytes());
    key
}

fn object_key(vnode: VnodeId) -> Vec<u8> {
    vnode_key(b'o', vnode)
}

/// Returns the object whose key of this kind this is.
fn vnode_of(kind: &[u8], key: &[u8]) -> Option<VnodeId> {
    let number = key.strip_prefix(kind)?.try_into().ok()?;
    Some(VnodeId(u64::from_be_bytes(number)))
}
