//! Integrity: what has arrived is hashed before it counts as the version, and what lies in the cache since an earlier
//! run once before it is used again.
//!
//! The client that stores a content computes the hash, and the server compares it with what arrives, so what is checked is
//! the whole way: both wires, the server's disk, this disk. A seal (`cache::containers`) only shows that nobody has written to a container.

use std::sync::Arc;

use mafs_durable::hash_content;
use mafs_proto::Fid;

use super::{Error, Inner};
use crate::cache::{CachedContent, CachedObject, is_sealed};

/// Contents up to this size are checked before open(2) returns: at most some 100 ms. Larger ones are checked while they
/// are used: nobody should wait for 100 GB to be read who wants a page of them.
const WAIT_BYTES_MAX: u64 = 64 << 20;

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
        let Some(container) = self.cache.containers.get(fid.vnode, content.container)? else { return Ok(()) };
        let sealed = || is_sealed(container.as_ref(), content.version, size);
        // Whoever loads the file finds out about a seal that is broken.
        if !sealed()? {
            return Ok(());
        }
        let intact = hash_content(container.as_ref(), size)? == content.hash;
        if !sealed()? {
            return Ok(());
        }
        if intact {
            return Ok(self.cache.index.content_intact(fid.vnode, content, self.cache.containers.run())?);
        }
        tracing::error!(%fid, size, "a cached file is damaged (is the cache's disk failing?); it is fetched again");
        self.forget_content(fid, content)
    }

    fn forget_content(&self, fid: Fid, content: CachedContent) -> Result<(), Error> {
        let files = self.files();
        self.cache.index.set_content(fid.vnode, None)?;
        if !files.contains(fid.vnode) {
            self.replacement().remove(fid.vnode);
            self.cache.containers.remove(fid.vnode, content.container)?;
        }
        Ok(())
    }
}
