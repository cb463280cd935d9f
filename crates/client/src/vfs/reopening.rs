//! Reopening: a file to be opened may have lost its name since it was looked up.
//!
//! The kernel then looks the name up once more, and opens the object that it means by then (ESTALE in fs/namei.c).
//! Where another client replaces a file all the time that object has lost its name as well when it is opened. So if a
//! name is looked up for this reason, its content is brought here before the answer: an object that the kernel knows
//! can be opened as long as its content is here.

use std::sync::Arc;

use bytes::Bytes;
use mafs_proto::{FsError, Kind, Object, VnodeId};

use super::{Caller, Error, Inner, OpenMode, Vfs};
use crate::cache::CachedObject;

/// How often a name is looked up whose object is gone before its content has begun to come.
const ATTEMPTS_MAX: u32 = 32;

impl Vfs {
    /// Looks a name up, for a kernel that remembers the answer; counts as one lookup if the name means something.
    /// `None`: the name means nothing, and the kernel is told when that may have changed.
    pub async fn lookup_remembered(&self, parent: VnodeId, name: Bytes) -> Result<Option<Object>, Error> {
        self.inner.lookup_remembered(parent, name).await
    }

    /// Looks a name up again for a program that opens it, because the object that it meant before is gone.
    pub async fn lookup_again(&self, parent: VnodeId, name: Bytes) -> Result<Option<Object>, Error> {
        self.inner.lookup_again(parent, name).await
    }
}

impl Inner {
    /// Returns the status of an object that is about to be opened, even one without a name. If it turns out only now
    /// that the object has lost its name, the program is to look the name up again, unless it has done so: it is to
    /// read the newest data, and its writes are to be found by the name.
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

    /// Does the same as [`lookup_remembered`](Self::lookup_remembered), for a program that opens the name because the
    /// object that it meant before is gone.
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
            // The open will return this error.
            Err(_) => false,
        }
    }
}
