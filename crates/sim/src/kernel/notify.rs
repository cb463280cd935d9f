//! Notifications of the daemon to the kernel: `fuse_reverse_inval_inode` and `fuse_reverse_inval_entry`.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use mafs_client::vfs::KernelCache;
use mafs_proto::{Name, VnodeId};

use super::{State, lock};

/// A notification about a name.
pub(super) struct Notified {
    parent: VnodeId,
    name: Bytes,
    expired: bool,
}

/// Where the daemon sends notifications.
pub(super) struct Edge {
    shared: Arc<Mutex<State>>,
}

impl Edge {
    pub(super) fn new(shared: Arc<Mutex<State>>) -> Self {
        Self { shared }
    }

    fn notify(&self, parent: VnodeId, name: &Name, expired: bool) {
        lock(&self.shared).notify(Notified { parent, name: Bytes::copy_from_slice(name.as_bytes()), expired });
    }
}

impl KernelCache for Edge {
    fn invalidate_inode(&self, vnode: VnodeId) {
        lock(&self.shared).invalidate(vnode, true);
    }

    fn invalidate_attributes(&self, vnode: VnodeId) {
        lock(&self.shared).invalidate(vnode, false);
    }

    fn invalidate_range(&self, vnode: VnodeId, range: Range<u64>) {
        lock(&self.shared).change(vnode, |inode, next| inode.invalidate_range(range, next));
    }

    fn lengthen(&self, vnode: VnodeId, size: u64, _last: u8) {
        // A page is stored, which makes the file longer, and dropped again.
        lock(&self.shared).change(vnode, |inode, next| {
            inode.note_written(size, next);
            inode.invalidate_range(size.saturating_sub(1)..size, next);
        });
    }

    fn invalidate_entry(&self, parent: VnodeId, name: &Name) {
        self.notify(parent, name, false);
    }

    fn expire_entry(&self, parent: VnodeId, name: &Name) {
        self.notify(parent, name, true);
    }

    fn blocks(&self) -> bool {
        false
    }
}

impl State {
    /// Notes that what is known of an inode is out of date, with its pages or without.
    pub(super) fn invalidate(&mut self, vnode: VnodeId, pages: bool) {
        self.change(vnode, |inode, next| inode.invalidate(pages, next));
    }

    /// Applies a notification. On Linux this waits for the lock of the directory, so that no answer puts back what it
    /// has taken. Here it is done twice.
    fn notify(&mut self, notified: Notified) {
        self.apply(&notified);
        if self.naming.contains_key(&notified.parent) {
            self.late.push(notified);
        }
    }

    fn apply(&mut self, Notified { parent, name, expired }: &Notified) {
        let place = (*parent, name.clone());
        if !expired {
            self.entries.remove(&place);
        } else if let Some(entry) = self.entries.get_mut(&place) {
            entry.until = None;
        }
        if let Some(directory) = self.inodes.get_mut(parent) {
            directory.forget_attributes();
        }
    }

    /// Notes that a request about names of a directory begins.
    pub(super) fn begin_naming(&mut self, parent: VnodeId) {
        *self.naming.entry(parent).or_default() += 1;
    }

    /// Notes that the answer of such a request has been taken in.
    pub(super) fn end_naming(&mut self, parent: VnodeId) {
        let left = self.naming.get_mut(&parent).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left > 0 {
            return;
        }
        self.naming.remove(&parent);
        let (ready, late) =
            std::mem::take(&mut self.late).into_iter().partition(|late: &Notified| late.parent == parent);
        self.late = late;
        ready.iter().for_each(|notified: &Notified| self.apply(notified));
    }
}
