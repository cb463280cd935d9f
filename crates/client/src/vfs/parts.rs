//! Parts: the bytes that have arrived of a content when its fetch ends early.
//!
//! A part stays in its container, and the next fetch of the same version goes on from there, also in the next life of
//! the client: the index is told of arrived bytes once a second, and when the fetch ends. Only bytes that the index
//! names count, and the whole content is hashed when all has come.

use mafs_durable::DiskFile;
use mafs_proto::VnodeId;

use super::file::File;
use super::{Error, Inner};
use crate::cache::{CacheError, CachedObject, CachedPart};
use crate::core::content::arrival::{Fetch, Part};
use crate::core::log::ContainerId;

impl Inner {
    /// Tells the index which bytes a fetch has brought, so that they outlast this life of the client.
    pub(super) fn note_part(&self, file: &File, fetch: Fetch) {
        let _edit = file.edit();
        let part = file.state().arrival_mut().note(fetch);
        let Some(part) = part else { return };
        let part = part_of(file, part);
        let told = self.cache.index.set_part(file.fid.vnode, &part).and_then(|()| self.cache.index.sync());
        if let Err(error) = told {
            tracing::warn!(fid = %file.fid, %error, "what has come of a file may be fetched again");
        }
    }

    /// Ends a fetch because the mount ends. The bytes that have arrived survive a loss of power.
    pub(super) fn end_fetch(&self, file: &File) -> Result<(), CacheError> {
        let _edit = file.edit();
        let part = {
            let mut state = file.state();
            state.arrival_mut().end(Error::Unreachable("the mount is ending".to_owned()));
            state.worth_keeping()
        };
        file.notify();
        if let Some(part) = part {
            file.container.sync_data()?;
            self.cache.containers.sync_name(file.fid.vnode)?;
            self.cache.index.set_part(file.fid.vnode, &CachedPart { durable: true, ..part_of(file, part) })?;
        }
        Ok(())
    }

    /// Keeps the part that an ended fetch has left of a file no longer in use. Returns whether its container stays.
    pub(super) fn keep_part(&self, file: &File) -> bool {
        let (part, noted) = {
            let state = file.state();
            (state.worth_keeping().map(|part| part_of(file, part)), state.arrival().is_noted())
        };
        let told = match &part {
            Some(part) => self.update_part(file, part),
            None if noted => self.cache.index.take_part(file.fid.vnode).map(drop),
            None => Ok(()),
        };
        if let Err(error) = &told {
            tracing::warn!(fid = %file.fid, %error, "what has come of a file is lost");
        }
        part.is_some() && told.is_ok()
    }

    fn update_part(&self, file: &File, part: &CachedPart) -> Result<(), CacheError> {
        let noted = self.cache.index.part(file.fid)?;
        // An unchanged part is not written again: a durable one would be durable no more.
        let is_news = noted.is_none_or(|noted| CachedPart { durable: false, ..noted } != *part);
        if is_news { self.cache.index.set_part(file.fid.vnode, part) } else { Ok(()) }
    }

    /// Removes a part from the index, because its container is about to hold something else: the index must not name
    /// the old bytes, even after a power loss. Under `edit`.
    pub(super) fn forget_part(&self, file: &File) -> Result<(), CacheError> {
        let noted = file.state().arrival_mut().forget_part();
        if noted {
            self.cache.index.take_part(file.fid.vnode)?;
            self.cache.index.sync()?;
        }
        Ok(())
    }

    /// Returns the part that is here of a file's present version, and its container. A part of another version is
    /// removed.
    pub(super) fn load_part(&self, cached: &CachedObject) -> Result<Option<(ContainerId, Part)>, Error> {
        let (fid, status) = (cached.object.fid, cached.object.status);
        let Some(part) = self.cache.index.part(fid)? else { return Ok(None) };
        let container = self.cache.containers.get(fid.vnode, part.container)?;
        let is_usable =
            part.version == status.data_version && container.is_some_and(|file| has_len(&*file, status.size));
        if !is_usable {
            self.drop_part(fid.vnode)?;
            return Ok(None);
        }
        Ok(Some((part.container, Part { version: part.version, present: part.present })))
    }

    /// Removes the part of a file that is not in use.
    pub(super) fn drop_part(&self, vnode: VnodeId) -> Result<(), CacheError> {
        if let Some(part) = self.cache.index.take_part(vnode)? {
            self.cache.containers.remove(vnode, part.container)?;
        }
        Ok(())
    }

    /// Counts the bytes of the parts of earlier runs.
    pub(super) fn count_parts(&self) -> Result<(), CacheError> {
        for (vnode, part) in self.cache.index.parts()? {
            if let Some(container) = self.cache.containers.get(vnode, part.container)? {
                self.count_bytes(vnode, container.allocated()?);
            }
        }
        Ok(())
    }

    /// Makes parts durable to which no fetch adds now.
    pub(super) fn sync_parts(&self) -> Result<(), CacheError> {
        for (vnode, part) in self.cache.index.parts()? {
            let Some(container) = self.cache.containers.get(vnode, part.container)? else { continue };
            if part.durable || self.files().contains(vnode) {
                continue;
            }
            container.sync_data()?;
            self.cache.containers.sync_name(vnode)?;
            let files = self.files();
            if !files.contains(vnode) {
                self.cache.index.set_part(vnode, &CachedPart { durable: true, ..part })?;
            }
        }
        Ok(())
    }
}

fn part_of(file: &File, Part { version, present }: Part) -> CachedPart {
    CachedPart { unique: file.fid.unique, version, container: file.container_id, durable: false, present }
}

fn has_len(file: &dyn DiskFile, bytes: u64) -> bool {
    file.len().is_ok_and(|len| len == bytes)
}
