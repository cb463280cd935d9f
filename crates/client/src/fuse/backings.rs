//! The containers that the kernel has, by the numbers it gave them.
//!
//! All handles of an inode must name the same number, and a number must live as long as its handles. Whether the kernel
//! takes containers at all only a try tells (it needs Linux 6.9 and CAP_SYS_ADMIN): after the first refusal none is
//! offered.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fuser::BackingId;
use mafs_proto::VnodeId;

use crate::vfs::FileHandle;

/// The containers the kernel has.
#[derive(Debug, Default)]
pub(super) struct Backings {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_vnode: HashMap<VnodeId, Weak<BackingId>>,
    by_handle: HashMap<FileHandle, (VnodeId, Arc<BackingId>)>,
    refused: bool,
}

impl Backings {
    /// The number for a new handle of an inode: that of its other handles, or the one that `register` gets.
    ///
    /// # Errors
    /// If the kernel takes no containers; why, the first time.
    pub(super) fn add_handle(
        &self,
        vnode: VnodeId,
        handle: FileHandle,
        register: impl FnOnce() -> io::Result<BackingId>,
    ) -> Result<Arc<BackingId>, Option<io::Error>> {
        let mut inner = self.lock();
        let backing = match inner.by_vnode.get(&vnode).and_then(Weak::upgrade) {
            Some(backing) => backing,
            None if inner.refused => return Err(None),
            None => match register() {
                Ok(backing) => Arc::new(backing),
                Err(error) => {
                    inner.refused = true;
                    return Err(Some(error));
                }
            },
        };
        inner.by_vnode.insert(vnode, Arc::downgrade(&backing));
        inner.by_handle.insert(handle, (vnode, Arc::clone(&backing)));
        Ok(backing)
    }

    /// A handle is gone; nothing happens if it was none of these.
    pub(super) fn drop_handle(&self, handle: FileHandle) {
        let mut inner = self.lock();
        if let Some((vnode, backing)) = inner.by_handle.remove(&handle)
            && Arc::into_inner(backing).is_some()
        {
            inner.by_vnode.remove(&vnode);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
