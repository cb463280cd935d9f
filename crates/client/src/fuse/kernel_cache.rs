//! Tells the kernel which parts of its caches are out of date.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};

use fuser::{INodeNo, Notifier};
use mafs_proto::{Name, VnodeId};

use crate::vfs::KernelCache;

/// The caches of the kernel behind one mount. Says nothing before [`Self::connect`]: a kernel that has not asked yet
/// caches nothing.
#[derive(Default)]
pub(super) struct Invalidator {
    channel: OnceLock<Channel>,
}

struct Channel {
    notifier: Notifier,
    /// The device itself, for what fuser does not know.
    device: OwnedFd,
}

impl Invalidator {
    /// Connects to the kernel once the mount is there; later calls change nothing.
    pub(super) fn connect(&self, notifier: Notifier, device: OwnedFd) {
        let _ = self.channel.set(Channel { notifier, device });
    }

    fn expire(&self, parent: VnodeId, name: &[u8]) {
        if let Some(Channel { device, .. }) = self.channel.get() {
            match rustix::io::write(device, &expire_message(parent, name)) {
                // The kernel does not have this entry.
                Err(rustix::io::Errno::NOENT) => {}
                written => report(written.map(drop).map_err(io::Error::from)),
            }
        }
    }

    /// Makes the kernel ask again for an object, from a blocking thread: the kernel may block.
    pub(super) fn invalidate_inode_later(self: Arc<Self>, vnode: VnodeId) {
        tokio::task::spawn_blocking(move || self.invalidate_inode(vnode));
    }
}

impl KernelCache for Invalidator {
    fn invalidate_inode(&self, vnode: VnodeId) {
        if let Some(Channel { notifier, .. }) = self.channel.get() {
            // Offset 0 and length 0: all pages besides the attributes.
            report(notifier.inval_inode(INodeNo(vnode.0), 0, 0));
        }
    }

    fn invalidate_attributes(&self, vnode: VnodeId) {
        if let Some(Channel { notifier, .. }) = self.channel.get() {
            // A negative offset: no pages.
            report(notifier.inval_inode(INodeNo(vnode.0), -1, 0));
        }
    }

    fn invalidate_listing(&self, vnode: VnodeId) {
        // No entry is called `.`, but to look for one the kernel locks the directory. So it waits until programs that
        // read the directory have put their entries where the next line finds them.
        self.expire(vnode, b".");
        self.invalidate_inode(vnode);
    }

    fn lengthen(&self, vnode: VnodeId, size: u64, last: u8) {
        let Some(Channel { notifier, .. }) = self.channel.get() else { return };
        let Some(place) = size.checked_sub(1) else { return };
        let Ok(offset) = i64::try_from(place) else { return };
        // A page that is stored is the one thing that moves the end of a file in the kernel (fs/fuse/dev.c,
        // fuse_notify_store). The page need not stay: the byte may be another by now.
        report(notifier.store(INodeNo(vnode.0), place, &[last]));
        report(notifier.inval_inode(INodeNo(vnode.0), offset, 1));
    }

    fn invalidate_range(&self, vnode: VnodeId, range: Range<u64>) {
        if let (Some(Channel { notifier, .. }), Ok(start), Ok(end)) =
            (self.channel.get(), i64::try_from(range.start), i64::try_from(range.end))
        {
            report(notifier.inval_inode(INodeNo(vnode.0), start, end - start));
        }
    }

    fn invalidate_entry(&self, parent: VnodeId, name: &Name) {
        if let Some(Channel { notifier, .. }) = self.channel.get() {
            report(notifier.inval_entry(INodeNo(parent.0), OsStr::from_bytes(name.as_bytes())));
        }
    }

    fn expire_entry(&self, parent: VnodeId, name: &Name) {
        self.expire(parent, name.as_bytes());
    }
}

/// Builds a notification that an entry has expired, as in include/uapi/linux/fuse.h. Kernels before 6.2 do not know
/// the flag and take it for one that the entry is out of date.
fn expire_message(parent: VnodeId, name: &[u8]) -> Vec<u8> {
    const NOTIFY_INVAL_ENTRY: u32 = 3;
    const EXPIRE_ONLY: u32 = 1;
    const HEADER_BYTES: usize = 16 + 16 + 1;
    // A name has at most 255 bytes.
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_ne_bytes();
    let mut message = Vec::with_capacity(HEADER_BYTES + name.len());
    message.extend(length(HEADER_BYTES + name.len()));
    message.extend(NOTIFY_INVAL_ENTRY.to_ne_bytes());
    message.extend(0u64.to_ne_bytes());
    message.extend(parent.0.to_ne_bytes());
    message.extend(length(name.len()));
    message.extend(EXPIRE_ONLY.to_ne_bytes());
    message.extend(name);
    message.push(0);
    message
}

/// Logs a failed notification: the mount is ending. fuser keeps silent about things that the kernel does not have.
fn report(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "the kernel took no invalidation");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expired_entry_is_told_in_the_words_of_the_kernel() {
        let message = expire_message(VnodeId(0x42), b"abc");
        let words = |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<u8>>();
        let parent = 0x42u64.to_ne_bytes();
        let expected = [words(&[36, 3, 0, 0]), parent.to_vec(), words(&[3, 1]), b"abc\0".to_vec()].concat();
        assert_eq!(message, expected);
    }
}
