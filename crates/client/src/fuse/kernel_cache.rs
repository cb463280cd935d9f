//! Tells the kernel what of its caches is out of date.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};

use fuser::{INodeNo, Notifier};
use mafs_proto::{Name, VnodeId};

use crate::vfs::KernelCache;

/// The caches of the kernel behind one mount. Says nothing before [`Self::connect`]: a kernel that has not asked yet
/// caches nothing.
#[derive(Default)]
pub(super) struct Invalidator {
    notifier: OnceLock<Notifier>,
}

impl Invalidator {
    /// The mount is there; later calls change nothing.
    pub(super) fn connect(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    /// Makes the kernel ask again for the attributes of an inode that is in use. Does not block.
    pub(super) fn invalidate_attributes(&self, vnode: VnodeId) {
        if let Some(notifier) = self.notifier.get() {
            // A negative offset: no pages.
            report(notifier.inval_inode(INodeNo(vnode.0), -1, 0));
        }
    }

    /// Makes the kernel ask again what an object is, from a task: the kernel may block, so a blocking thread does it.
    pub(super) fn invalidate_inode_later(self: Arc<Self>, vnode: VnodeId) {
        tokio::task::spawn_blocking(move || self.invalidate_inode(vnode));
    }

    /// The same for what a name means.
    pub(super) fn invalidate_entry_later(self: Arc<Self>, parent: VnodeId, name: Name) {
        tokio::task::spawn_blocking(move || self.invalidate_entry(parent, &name));
    }
}

impl KernelCache for Invalidator {
    fn invalidate_inode(&self, vnode: VnodeId) {
        if let Some(notifier) = self.notifier.get() {
            // Offset 0 and length 0: all pages besides the attributes.
            report(notifier.inval_inode(INodeNo(vnode.0), 0, 0));
        }
    }

    fn invalidate_entry(&self, parent: VnodeId, name: &Name) {
        if let Some(notifier) = self.notifier.get() {
            report(notifier.inval_entry(INodeNo(parent.0), OsStr::from_bytes(name.as_bytes())));
        }
    }
}

/// fuser keeps silent about what the kernel does not have; anything else means that the mount is ending.
fn report(outcome: std::io::Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "the kernel took no invalidation");
    }
}
