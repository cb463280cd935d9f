//! Integrity: what has arrived is hashed before it counts as the version, and what lies in the cache since an earlier
//! run once before it is used again.
//!
//! The client that stores a content computes the hash, and the server compares it with what arrives, so what is checked
//! is the whole way: both wires, the server's disk, this disk. A seal (`cache::containers`) only shows that nobody has
//! written to a container.

use std::sync::Arc;

use mafs_durable::hash_content;
use mafs_proto::{Fid, Name};
use serde::{Deserialize, Serialize};

use super::{Error, Inner, Vfs};
use crate::cache::{CachedContent, CachedObject, is_sealed};

/// Contents up to this size are checked before open(2) returns: at most some 100 ms. Larger ones are checked while
/// they are used: a program that wants a page of them should not wait for 100 GB to be read.
const WAIT_BYTES_MAX: u64 = 64 << 20;
/// Damaged contents that a report names; the rest is counted.
const NAMED_MAX: usize = 1_000;

/// Findings of `mafs-client verify` among the cached contents that the server has too.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Verified {
    /// Contents that were read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of them that are damaged.
    pub damaged_files: u64,
    /// The first 1,000 of those.
    pub damaged: Vec<DamagedContent>,
}

/// A content that is not what the server has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DamagedContent {
    /// Path of the file below the mount point, or its number.
    pub path: String,
    /// Whether it has left the cache, so that it is fetched again. Otherwise it is in use.
    pub dropped: bool,
}

/// Outcome of the look at one content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    Intact,
    Damaged,
    /// The content is not whole, or has been written since: nothing can be said.
    Nothing,
}

impl Vfs {
    /// Reads every whole cached content of the object at this path, and below it, and compares it with its hash. A
    /// damaged one is dropped unless it is in use. Contents that the server lacks are not looked at: nobody has
    /// another copy. `None`: there is no such object.
    ///
    /// # Errors
    /// If the cache cannot be read.
    pub async fn verify(&self, below: &[u8]) -> Result<Option<Verified>, Error> {
        let Some(vnode) = self.find(below).await else { return Ok(None) };
        let inner = Arc::clone(&self.inner);
        let looking = mafs_arpc::spawn_blocking(move || {
            let object = inner.cache.index.object(vnode)?;
            let above = object.and_then(|cached| inner.names_to(cached.object.fid)).unwrap_or_default();
            inner.verify_below(&above)
        });
        looking.await.map_err(|error| Error::Cache(error.to_string()))?.map(Some)
    }
}

impl Inner {
    /// Checks the content that the index names of a file which is not in use, unless it was checked in this run. A
    /// damaged one is dropped, so that it is fetched again.
    pub(super) async fn check_content(self: &Arc<Self>, cached: &CachedObject) -> Result<(), Error> {
        let (fid, size) = (cached.object.fid, cached.object.status.size);
        let unchecked = |content: &CachedContent| content.intact_in != self.cache.containers.run();
        let Some(content) = cached.content.filter(unchecked) else { return Ok(()) };
        if content.version != cached.object.status.data_version || self.files().contains(fid.vnode) {
            return Ok(());
        }
        let inner = Arc::clone(self);
        let check = mafs_arpc::spawn_blocking(move || inner.check_container(fid, content, size));
        if size > WAIT_BYTES_MAX {
            return Ok(());
        }
        check.await.map_err(|error| Error::Cache(error.to_string()))?
    }

    fn check_container(&self, fid: Fid, content: CachedContent, size: u64) -> Result<(), Error> {
        match self.look_at_container(fid, content, size)? {
            Look::Damaged => self.forget_content(fid, content),
            Look::Intact | Look::Nothing => Ok(()),
        }
    }

    fn look_at_container(&self, fid: Fid, content: CachedContent, size: u64) -> Result<Look, Error> {
        let Some(container) = self.cache.containers.get(fid.vnode, content.container)? else {
            return Ok(Look::Nothing);
        };
        // The load of the file finds out about a seal that is broken.
        let sealed = || is_sealed(container.as_ref(), content.version, size);
        if !sealed()? {
            return Ok(Look::Nothing);
        }
        let intact = hash_content(container.as_ref(), size)? == content.hash;
        match sealed()? {
            false => Ok(Look::Nothing),
            true if intact => {
                self.cache.index.content_intact(fid.vnode, content, self.cache.containers.run())?;
                Ok(Look::Intact)
            }
            true => {
                tracing::error!(%fid, size, "a cached file is damaged, perhaps by its disk; it is fetched again");
                Ok(Look::Damaged)
            }
        }
    }

    /// Drops a damaged content, so that it is fetched again.
    fn forget_content(&self, fid: Fid, content: CachedContent) -> Result<(), Error> {
        let files = self.files();
        self.cache.index.set_content(fid.vnode, None)?;
        if !files.contains(fid.vnode) {
            self.replacement().remove(fid.vnode);
            self.cache.containers.remove(fid.vnode, content.container)?;
        }
        Ok(())
    }

    fn verify_below(&self, above: &[Name]) -> Result<Verified, Error> {
        let mut found = Verified::default();
        for (fid, _) in self.cache.index.contents()? {
            let names = if above.is_empty() { None } else { self.names_to(fid) };
            if above.is_empty() || names.is_some_and(|names| names.starts_with(above)) {
                self.verify_one(fid, &mut found)?;
            }
        }
        Ok(found)
    }

    fn verify_one(&self, fid: Fid, found: &mut Verified) -> Result<(), Error> {
        let Some(cached) = self.cache.index.object(fid.vnode)? else { return Ok(()) };
        let (size, version) = (cached.object.status.size, cached.object.status.data_version);
        let Some(content) = cached.content.filter(|content| content.version == version) else { return Ok(()) };
        let look = self.look_at_container(fid, content, size)?;
        if look == Look::Nothing {
            return Ok(());
        }
        found.files += 1;
        found.bytes += size;
        if look == Look::Damaged {
            found.damaged_files += 1;
            let dropped = self.drop_if_damaged(fid, content)?;
            if found.damaged.len() < NAMED_MAX {
                let path = self.path_of(fid).unwrap_or_else(|| fid.to_string());
                found.damaged.push(DamagedContent { path, dropped });
            }
        }
        Ok(())
    }

    /// Drops a damaged content unless the file is in use: then it may be being changed, and there is no other copy of
    /// that. Returns whether it was dropped.
    fn drop_if_damaged(&self, fid: Fid, content: CachedContent) -> Result<bool, Error> {
        let unused = !self.files().contains(fid.vnode);
        if unused {
            self.forget_content(fid, content)?;
        }
        Ok(unused)
    }
}
