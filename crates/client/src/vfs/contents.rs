//! The contents in the cache: taking them up, making room for them, making them durable.

use std::sync::Arc;

use mafs_proto::{DataVersion, Fid, Timestamp, VnodeId};

use super::file::{Arrival, File, FileState};
use super::{Caller, Error, Inner};
use crate::cache::{CacheError, CachedContent, CachedObject, is_sealed};
use crate::core::log::{ContainerId, Writing};

impl Inner {
    /// Makes a file of what is in the cache: its container counts only if it is sealed as the version the index names.
    pub(super) fn load(&self, cached: &CachedObject) -> Result<Arc<File>, Error> {
        let (fid, status) = (cached.object.fid, cached.object.status);
        let here = cached.content.filter(|content| content.version == status.data_version);
        let container = match here {
            Some(content) => {
                self.cache.containers.get(fid.vnode, content.container)?.map(|file| (content.container, file))
            }
            None => None,
        };
        let (container, arrival) = match container {
            Some((id, file)) if is_sealed(file.as_ref(), status.data_version, status.size)? => {
                self.replacement().touch(fid.vnode, status.size);
                ((id, file), Arrival::Complete)
            }
            Some(_) | None => (self.cache.containers.create(fid.vnode)?, Arrival::Missing),
        };
        Ok(File::new(fid, container, loaded(cached, arrival)))
    }

    /// Makes room in the cache and on its disk for a file of this size, as far as clean, unused files allow.
    /// Returns whether something went.
    pub(super) fn make_room(&self, bytes: u64) -> bool {
        let disk_short = match self.cache.disk.space() {
            Ok(space) => bytes.saturating_add(self.settings.min_free_bytes).saturating_sub(space.bytes_free),
            Err(_) => 0,
        };
        let files = self.files();
        let mut replacement = self.replacement();
        let missing = replacement.excess_bytes(bytes).max(disk_short);
        let evicted = replacement.plan(missing, |vnode| files.contains(vnode));
        for vnode in &evicted {
            replacement.remove(*vnode);
            if let Err(error) = self.evict(*vnode) {
                tracing::warn!(%error, vnode = vnode.0, "a cached file cannot be evicted");
            }
        }
        !evicted.is_empty()
    }

    fn evict(&self, vnode: VnodeId) -> Result<(), Error> {
        if let Some(content) = self.cache.index.set_content(vnode, None)? {
            self.cache.containers.remove(vnode, content.container)?;
        }
        Ok(())
    }

    /// The container of a file holds `version` whole; an older one is of no use any more.
    pub(super) fn set_content(&self, file: &File, version: DataVersion) -> Result<(), Error> {
        let content = CachedContent { version, container: file.container_id };
        let before = self.cache.index.set_content(file.fid.vnode, Some(content))?;
        if let Some(before) = before.filter(|before| before.container != file.container_id) {
            self.cache.containers.remove(file.fid.vnode, before.container)?;
        }
        Ok(())
    }

    /// Makes the contents durable that came since the last time, but for those in use, which may be changing.
    pub(super) fn sync_contents(&self) -> Result<(), CacheError> {
        loop {
            let mut synced = 0;
            for fid in self.cache.index.unsynced_contents()? {
                synced += usize::from(self.sync_content(fid.vnode)?);
            }
            if synced == 0 {
                return Ok(());
            }
        }
    }

    fn sync_content(&self, vnode: VnodeId) -> Result<bool, CacheError> {
        let content = || Ok::<_, CacheError>(self.cache.index.object(vnode)?.and_then(|cached| cached.content));
        let before = content()?;
        let Some(here) = before else { return Ok(false) };
        if let Some(container) = self.cache.containers.get(vnode, here.container)? {
            container.sync_data()?;
        }
        let files = self.files();
        let unchanged = !files.contains(vnode) && content()? == before;
        if unchanged {
            self.cache.index.content_synced(vnode)?;
        }
        Ok(unchanged)
    }

    /// Puts a file with content that the server lacks into use, after a restart.
    pub(super) fn load_dirty(&self, fid: Fid, writing: Writing) -> Result<Option<Arc<File>>, CacheError> {
        let Writing { base, container: id, .. } = writing;
        let Some(container) = self.cache.containers.get(fid.vnode, id)? else { return Ok(None) };
        if is_sealed(container.as_ref(), base, container.len()?)? {
            // The log was ahead of the first changed byte, or of the server's last answer.
            return Ok(None);
        }
        let mtime = Timestamp::from(container.modified()?);
        let state = FileState {
            handles: 0,
            base,
            arrival: Arrival::Complete,
            fetch: 0,
            wanted: None,
            size: container.len()?,
            mtime,
            edits: 1,
            stored_edits: 0,
            writer: Caller::default(),
            writing_logged: true,
            storing: false,
            sending: None,
            unresolved: None,
            refused: None,
            unlinked: None,
        };
        Ok(Some(File::new(fid, (id, container), state)))
    }

    pub(super) fn remove_content(&self, vnode: VnodeId, container: Option<ContainerId>) {
        self.replacement().remove(vnode);
        if let Some(Err(error)) = container.map(|id| self.cache.containers.remove(vnode, id)) {
            tracing::warn!(vnode = vnode.0, %error, "a container cannot be removed");
        }
    }
}

/// The state of a file whose content is the version the index names.
pub(super) fn loaded(cached: &CachedObject, arrival: Arrival) -> FileState {
    let status = cached.object.status;
    FileState {
        handles: 0,
        base: status.data_version,
        arrival,
        fetch: 0,
        wanted: None,
        size: status.size,
        mtime: status.mtime,
        edits: 0,
        stored_edits: 0,
        writer: Caller::default(),
        writing_logged: false,
        storing: false,
        sending: None,
        unresolved: None,
        refused: None,
        unlinked: None,
    }
}
