//! The contents in the cache: taking them up, making room for them, making them durable.

use std::sync::{Arc, MutexGuard, PoisonError};

use mafs_arpc::blocking;
use mafs_durable::DiskFile;
use mafs_proto::{ContentHash, DataVersion, Fid, Object, StoreId, Timestamp, VnodeId};

use super::file::{Arrival, Content, File};
use super::kernel;
use super::{Error, Inner};
use crate::cache::{CacheError, CachedContent, CachedObject, last_change, shows_seal, unseal};
use crate::core::content::edits::Edits;
use crate::core::content::fate::Fate;
use crate::core::content::stat::Stat;
use crate::core::log::{ContainerId, Writing};
use crate::core::replacement::Replacement;
use crate::hoard::Rank;

/// Size above which a file may have holes that matter.
const ASK_BYTES_MIN: u64 = 1 << 20;

/// Bytes by which a content of unknown room takes less than its size: the least that `st_blocks` shows.
const UNKNOWN_BYTES: u64 = 4096;

/// Number of contents from which on one sync of the whole disk costs less than one of each, which is a flush of the
/// disk: unmounting after 20,000 new files took more than 20 s.
pub(super) const SYNC_ALL_FROM: usize = 64;

/// A file whose content has left the cache.
struct Evicted {
    vnode: VnodeId,
    /// Container to be removed, if that is not left to the background.
    container: Option<ContainerId>,
}

impl Inner {
    /// Makes a file of what is in the cache: its container counts only if it is sealed as the version the index names.
    pub(super) fn load(&self, cached: &CachedObject) -> Result<Arc<File>, Error> {
        let (fid, status) = (cached.object.fid, cached.object.status);
        let here = cached.content.filter(|content| content.version == status.data_version);
        let container = match here {
            Some(content) => {
                let file = self.cache.containers.get(fid.vnode, content.container)?;
                let stat = file.as_ref().map(|file| file.stat()).transpose()?;
                stat.map(|stat| (content.container, stat))
            }
            None => None,
        };
        let (container, arrival) = match container {
            Some((id, stat)) if shows_seal(&stat, status.data_version, status.size) => {
                self.count_bytes(fid.vnode, stat.allocated);
                (id, Arrival::whole())
            }
            // The server cannot be asked for the content of what it has not heard of, which is empty.
            None if self.cache.index.is_made_here(fid.vnode) && status.size == 0 => {
                (self.cache.containers.create(fid.vnode)?.0, Arrival::whole())
            }
            Some(_) | None => match self.load_part(cached)? {
                Some((id, part)) => (id, Arrival::left_before(part)),
                None => (self.cache.containers.create(fid.vnode)?.0, Arrival::missing()),
            },
        };
        Ok(File::new(fid, self.cache.containers.lazy(fid.vnode, container), loaded(cached, arrival)))
    }

    /// Counts what the content of a file takes on this disk, which for a file with holes is less than its size.
    pub(super) fn count_content(&self, file: &File) -> Result<(), Error> {
        let bytes = file.container.allocated()?;
        self.count_bytes(file.fid.vnode, bytes);
        Ok(())
    }

    /// Notes that a file was used just now, and that its content takes this much.
    pub(super) fn count_bytes(&self, vnode: VnodeId, bytes: u64) {
        let rank = self.rank_of(vnode);
        self.replacement().touch(vnode, bytes, rank);
    }

    /// Returns the bytes that the content of an object takes here. The bytes of a content that is not here are
    /// unknown: a little less than its size is returned, because cp(1) and tar(1) ask where the holes are only of
    /// files that seem to have some, and would write a terabyte of zeros otherwise.
    pub(super) fn room_of(&self, object: &Object) -> u64 {
        let file = self.files().get(object.fid.vnode);
        let here = match file {
            Some(file) if file.state().is_complete() => file.container.allocated().ok(),
            Some(_) => None,
            None if self.is_here_in_part(object) => None,
            None => self.replacement().bytes_of(object.fid.vnode),
        };
        here.unwrap_or_else(|| match object.status.size {
            size @ 0..=ASK_BYTES_MIN => size,
            size => size - UNKNOWN_BYTES,
        })
    }

    fn is_here_in_part(&self, object: &Object) -> bool {
        object.status.size > ASK_BYTES_MIN && self.cache.index.part(object.fid).is_ok_and(|part| part.is_some())
    }

    /// Counts the contents of earlier runs. The disk is asked only about large ones: the size of others is near
    /// enough.
    pub(super) fn count_contents(&self) -> Result<(), CacheError> {
        for (fid, size) in self.cache.index.contents()? {
            let content = match size {
                0..=ASK_BYTES_MIN => None,
                _ => self.cache.index.object(fid.vnode)?.and_then(|cached| cached.content),
            };
            let container = match content {
                Some(content) => self.cache.containers.get(fid.vnode, content.container)?,
                None => None,
            };
            let bytes = container.map_or(Ok(size), |container| container.allocated())?;
            self.count_bytes(fid.vnode, bytes);
        }
        self.count_parts()
    }

    /// Makes room in the cache and on its disk for a file of this size, as far as clean, unused files allow. Returns
    /// whether something was evicted.
    pub(super) fn make_room(&self, bytes: u64) -> bool {
        let disk_short = self.disk_short_bytes(bytes);
        let evicted = {
            let files = self.files();
            let mut replacement = self.replacement();
            let missing = replacement.excess_bytes(bytes).max(disk_short);
            let planned = replacement.plan(missing, |vnode| files.contains(vnode) || self.rank_of(vnode).is_pinned());
            self.evict_all(&mut replacement, &planned)
        };
        self.remove_evicted(&evicted);
        !evicted.is_empty()
    }

    /// Makes room as [`Self::make_room`] does, for a file that nobody asks for now: nothing that is worth as much
    /// makes way for it. Returns whether there is room.
    pub(super) fn make_room_in_hoard(&self, rank: Rank, bytes: u64) -> bool {
        let disk_short = self.disk_short_bytes(bytes);
        let evicted = {
            let files = self.files();
            let mut replacement = self.replacement();
            let stays = |vnode| files.contains(vnode) || self.rank_of(vnode).is_pinned();
            let Some(planned) = replacement.make_way(rank, bytes, disk_short, stays) else { return false };
            self.evict_all(&mut replacement, &planned)
        };
        self.remove_evicted(&evicted);
        true
    }

    /// Returns how many bytes of the cache's disk are missing to write `bytes` more.
    pub(super) fn disk_short_bytes(&self, bytes: u64) -> u64 {
        match self.cache.disk.space() {
            Ok(space) => bytes.saturating_add(self.settings.min_free_bytes).saturating_sub(space.bytes_free),
            Err(_) => 0,
        }
    }

    /// Takes the contents of these files out of the cache, and returns what they leave on the disk.
    fn evict_all(&self, replacement: &mut Replacement, planned: &[VnodeId]) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        for vnode in planned {
            replacement.remove(*vnode);
            match self.evict(*vnode) {
                Ok(container) => evicted.push(Evicted { vnode: *vnode, container }),
                Err(error) => tracing::warn!(%error, vnode = vnode.0, "a cached file cannot be evicted"),
            }
        }
        self.note_evicted(planned);
        evicted
    }

    /// Removes what evicted files have left: nobody finds it any more, and the disk takes its time for a large one.
    fn remove_evicted(&self, evicted: &[Evicted]) {
        for Evicted { vnode, container } in evicted {
            container.iter().for_each(|id| self.remove_container(*vnode, *id));
        }
    }

    /// Drops the content of a file if nobody uses it and it is not pinned. Returns what it took. `None`: it stays.
    pub(super) fn evict_unused(&self, vnode: VnodeId) -> Option<u64> {
        let (bytes, evicted) = {
            let files = self.files();
            let mut replacement = self.replacement();
            let bytes = replacement.bytes_of(vnode).filter(|_| !files.contains(vnode))?;
            if self.rank_of(vnode).is_pinned() {
                return None;
            }
            (bytes, self.evict_all(&mut replacement, &[vnode]))
        };
        self.remove_evicted(&evicted);
        Some(bytes)
    }

    /// Makes room as [`Self::make_room`] does, for bytes that the disk had no room for: containers that nothing names
    /// any more may go at once.
    pub(super) fn find_room(&self, bytes: u64) -> bool {
        self.make_room(bytes)
            || blocking(|| self.sync_log()).unwrap_or_else(|error| {
                tracing::error!(%error, "the modify log cannot be made durable");
                false
            })
    }

    /// Takes a content out of the index. Returns the container that held it, if that may be removed now.
    fn evict(&self, vnode: VnodeId) -> Result<Option<ContainerId>, Error> {
        self.drop_part(vnode)?;
        let of_nameless = self.kernel.change_removed(vnode, |removed| std::mem::take(&mut removed.content));
        if let Some(id) = of_nameless.and_then(kernel::Left::container) {
            // The log may not say yet that it has no name.
            self.drop_container(vnode, id);
            return Ok(None);
        }
        Ok(self.cache.index.set_content(vnode, None)?.map(|content| content.container))
    }

    /// Notes that the container of a file holds `version` whole, which has this hash. An older container is of no use
    /// any more: it is removed.
    pub(super) fn set_content(&self, file: &File, version: DataVersion, hash: ContentHash) -> Result<(), Error> {
        let intact_in = self.cache.containers.run();
        let content = CachedContent { version, container: file.container_id, hash, intact_in };
        let before = self.cache.index.set_content(file.fid.vnode, Some(content))?;
        if let Some(before) = before.filter(|before| before.container != file.container_id) {
            self.cache.containers.remove(file.fid.vnode, before.container)?;
        }
        Ok(())
    }

    /// Makes the contents durable that came since the last time, but for those in use, which may be changing.
    pub(super) fn sync_contents(&self) -> Result<(), CacheError> {
        self.sync_parts()?;
        loop {
            let unsynced = self.cache.index.unsynced_contents()?;
            let mut before = Vec::with_capacity(unsynced.len());
            for fid in unsynced {
                before.extend(self.content_of(fid.vnode)?.map(|content| (fid.vnode, content)));
            }
            if before.len() < SYNC_ALL_FROM {
                before.iter().try_for_each(|(vnode, content)| self.sync_container(*vnode, content))?;
            } else {
                self.cache.disk.sync_all()?;
            }
            let mut synced = 0;
            for (vnode, content) in before {
                let files = self.files();
                if !files.contains(vnode) && self.content_of(vnode)? == Some(content) {
                    self.cache.index.content_synced(vnode)?;
                    synced += 1;
                }
            }
            if synced == 0 {
                return Ok(());
            }
        }
    }

    fn content_of(&self, vnode: VnodeId) -> Result<Option<CachedContent>, CacheError> {
        Ok(self.cache.index.object(vnode)?.and_then(|cached| cached.content))
    }

    fn sync_container(&self, vnode: VnodeId, content: &CachedContent) -> Result<(), CacheError> {
        if let Some(container) = self.cache.containers.get(vnode, content.container)? {
            container.sync_data()?;
            // The container may be new, and its bytes are of no use without its name.
            self.cache.containers.sync_name(vnode)?;
        }
        Ok(())
    }

    /// Puts a file with content that the server lacks into use, after a restart. `None` if the container is as the log
    /// says it was, or is gone.
    pub(super) fn load_dirty(
        &self,
        fid: Fid,
        writing: Writing,
        stored_mtime: Option<Timestamp>,
    ) -> Result<Option<Arc<File>>, CacheError> {
        let Writing { base, container: id, lent, synced, .. } = writing;
        if lent {
            // The container was unchanged when `move_out_lent` looked, and a program that has it may write now.
            return Ok(None);
        }
        let Some(container) = self.cache.containers.get(fid.vnode, id)? else { return Ok(None) };
        let stat = container.stat()?;
        // After a power loss a seal proves nothing, and what was fsynced is there.
        let seal_counts = !(self.cache.power_lost && synced);
        if seal_counts && shows_seal(&stat, base, stat.bytes) {
            // The log was ahead of the first changed byte, or of the server's last answer.
            return Ok(None);
        }
        let changed = last_change(stat.modified, base).map(Timestamp::from);
        if changed.is_none() {
            // A seal may have outlived what was fsynced: a later start must not believe it.
            unseal(container.as_ref())?;
        }
        let mtime = changed.max(stored_mtime).unwrap_or_else(|| self.clock.wall());
        Ok(Some(self.taken_up(fid, writing, (stat.bytes, mtime))))
    }

    /// Makes a file with content of this size and time that the server lacks.
    pub(super) fn taken_up(&self, fid: Fid, writing: Writing, (size, mtime): (u64, Timestamp)) -> Arc<File> {
        let Writing { base, container, synced, removing, unlinked, .. } = writing;
        let fate = Fate::taken_up(removing, unlinked.is_some());
        let content = Content::taken_up(base, Edits::taken_up(synced), fate, Stat::taken_up(size, mtime));
        File::new(fid, self.cache.containers.lazy(fid.vnode, container), content)
    }

    pub(super) fn remove_content(&self, vnode: VnodeId, container: Option<ContainerId>) {
        self.replacement().remove(vnode);
        if let Some(id) = container {
            self.drop_container(vnode, id);
        }
    }

    /// Removes a container that nothing names any more: in the background, once a loss of power does not take that from
    /// the log.
    pub(super) fn drop_container(&self, vnode: VnodeId, id: ContainerId) {
        self.unnamed().push((vnode, id));
        self.log_changed.notify_one();
    }

    /// Returns whether containers that nothing names any more are in the way of what the kernel writes by itself.
    pub(super) fn is_cramped(&self) -> bool {
        let is_short = || self.cache.disk.space().is_ok_and(|space| space.bytes_free < self.settings.min_free_bytes);
        !self.unnamed().is_empty() && is_short()
    }

    /// Notes that a record has been answered, or will never be sent again. The log need not say so yet.
    pub(super) fn end_record(&self, id: StoreId) {
        self.remote.outstanding(|log| log.end(id));
        self.log_changed.notify_one();
    }

    /// Makes the log durable with the contents that it names, and removes those that it does not name any more.
    /// Returns whether there were any. From now on the server may hear which records have ended.
    pub(super) fn sync_log(&self) -> Result<bool, CacheError> {
        let mut ended = self.remote.outstanding(|log| log.ended());
        // Records whose end the log could not be told are still listed in it.
        ended.retain(|id| !self.cache.cml.lists(*id));
        let unnamed = std::mem::take(&mut *self.unnamed());
        let synced = self.sync_versions().and_then(|()| self.cache.cml.sync());
        if synced.is_err() {
            self.unnamed().extend(unnamed);
            return synced.map(|()| false);
        }
        self.remote.outstanding(|log| log.note_ended_durable(&ended));
        if !ended.is_empty() {
            // This may be the end of earlier lives.
            self.replay.changed.notify_one();
        }
        unnamed.iter().for_each(|(vnode, id)| self.remove_container(*vnode, *id));
        Ok(!unnamed.is_empty())
    }

    /// Removes a container that nothing has named.
    pub(super) fn remove_container(&self, vnode: VnodeId, id: ContainerId) {
        if let Err(error) = self.cache.containers.remove(vnode, id) {
            tracing::warn!(vnode = vnode.0, %error, "a container cannot be removed");
        }
    }

    /// Locks the list of containers that nothing names any more, as far as the log is not lost.
    fn unnamed(&self) -> MutexGuard<'_, Vec<(VnodeId, ContainerId)>> {
        self.unnamed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the state of a file whose content is the version the index names.
pub(super) fn loaded(cached: &CachedObject, arrival: Arrival) -> Content {
    let status = cached.object.status;
    let known = cached.content.filter(|content| content.version == status.data_version);
    Content::shown(&status, known.map(|content| content.hash), arrival)
}
