//! Reopening: what is opened may have lost its name since it was looked up.
//!
//! The kernel then looks the name up once more, and opens what it means by then (ESTALE in fs/namei.c). Where another
//! client replaces a file all the time that one has lost its name as well when it is opened. So of a name that is
//! looked up for this reason the content is brought here before the answer, and what the kernel knows can be opened as
//! long as it is here.

use std::sync::Arc;

use bytes::Bytes;
use mafs_proto::{FsError, Kind, Object, VnodeId};

use super::{Caller, Error, Inner, OpenMode, Vfs};
use crate::cache::CachedObject;

/// How often a name is looked up whose object is gone before its content has begun to come.
const ATTEMPTS_MAX: u32 = 32;

impl Vfs {
    /// What a name means, for a kernel that remembers the answer; counts as one lookup if it means something. `None`:
    /// it means nothing, and when that may have changed the kernel is told.
    pub async fn lookup_remembered(&self, parent: VnodeId, name: Bytes) -> Result<Option<Object>, Error> {
        self.inner.lookup_remembered(parent, name).await
    }

    /// The same for a program that opens what the name means, and has found what it meant before gone.
    pub async fn lookup_again(&self, parent: VnodeId, name: Bytes) -> Result<Option<Object>, Error> {
        self.inner.lookup_again(parent, name).await
    }
}

impl Inner {
    /// The status of what is about to be opened, be it without a name. Who finds only now that it has lost its name is
    /// to look what that means by now, unless he has done so: he is to read what was written last, and what he writes
    /// is to be found by its name.
    pub(super) async fn status_to_open(&self, vnode: VnodeId, mode: OpenMode) -> Result<CachedObject, Error> {
        if let Some(object) = self.nameless(vnode)? {
            return Ok(CachedObject::shown(object));
        }
        match self.settled_status(vnode).await {
            Err(gone @ Error::Refused(FsError::Stale)) if mode.again => {
                self.nameless(vnode)?.map(CachedObject::shown).ok_or(gone)
            }
            other => other,
        }
    }

    /// As [`lookup_remembered`](Self::lookup_remembered), for a program that opens what the name means, and has found
    /// what it meant before gone.
    pub(super) async fn lookup_again(self: &Arc<Self>, parent: VnodeId, name: Bytes) -> Result<Option<Object>, Error> {
        for _ in 1..ATTEMPTS_MAX {
            let Some(object) = self.lookup_remembered(parent, name.clone()).await? else { return Ok(None) };
            if object.status.kind != Kind::File || !self.is_gone(object.fid.vnode).await {
                return Ok(Some(object));
            }
            self.forget(object.fid.vnode, 1);
        }
        self.lookup_remembered(parent, name).await
    }

    /// Whether a file has lost its name before its content has begun to come.
    async fn is_gone(self: &Arc<Self>, vnode: VnodeId) -> bool {
        let mode = OpenMode { read: true, again: true, ..OpenMode::default() };
        match self.open_file(vnode, mode, Caller::default()).await {
            Ok(handle) => {
                self.release_file(&handle.file);
                false
            }
            Err(Error::Refused(FsError::Stale) | Error::VersionGone) => true,
            // The open will say so.
            Err(_) => false,
        }
    }
}
