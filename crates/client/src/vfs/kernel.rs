//! What the kernel knows: which inodes, and the pages of which version.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use mafs_proto::{DataVersion, Name, Object, VnodeId};

use super::absent::AbsentNames;

/// What the kernel caches, so that it can be told when that is out of date. The seam to the kernel.
///
/// Calls may block on locks of the kernel: they are made from a blocking thread that holds no lock of ours.
pub trait KernelCache: Send + Sync + 'static {
    /// Attributes and pages of an inode are out of date.
    fn invalidate_inode(&self, vnode: VnodeId);
    /// What a name means is out of date.
    fn invalidate_entry(&self, parent: VnodeId, name: &Name);
}

/// The kernel's inodes.
#[derive(Default)]
pub(crate) struct Kernel {
    inodes: Mutex<HashMap<VnodeId, KnownInode>>,
    absent: AbsentNames,
    edge: OnceLock<Arc<dyn KernelCache>>,
}

#[derive(Default)]
struct KnownInode {
    lookups: u64,
    pages: Option<DataVersion>,
    /// What it was, once nobody else knows it any more. Boxed, because few are removed and the kernel may know very
    /// many.
    removed: Option<Box<Object>>,
}

impl Kernel {
    pub(super) fn set_edge(&self, edge: Arc<dyn KernelCache>) {
        if self.edge.set(edge).is_err() {
            tracing::debug!("the kernel's edge was set before");
        }
    }

    /// Whether there is a kernel to tell.
    pub(super) fn has_edge(&self) -> bool {
        self.edge.get().is_some()
    }

    /// The kernel has been told of this object.
    pub(super) fn count_lookup(&self, vnode: VnodeId) {
        self.lock().entry(vnode).or_default().lookups += 1;
    }

    pub(super) fn forget(&self, vnode: VnodeId, count: u64) {
        let mut inodes = self.lock();
        if let Some(inode) = inodes.get_mut(&vnode) {
            inode.lookups = inode.lookups.saturating_sub(count);
            if inode.lookups == 0 {
                inodes.remove(&vnode);
            }
        }
    }

    /// An object has lost its last name. A program may hold it still, as its working directory or by a descriptor, and
    /// ask what it is until the kernel forgets it.
    pub(super) fn note_removed(&self, object: &Object) {
        if let Some(inode) = self.lock().get_mut(&object.fid.vnode) {
            inode.removed = Some(Box::new(object.clone()));
        }
    }

    /// An object without a name, as it was when it lost the last one.
    pub(super) fn removed(&self, vnode: VnodeId) -> Option<Object> {
        self.lock().get(&vnode)?.removed.as_deref().cloned()
    }

    /// A file is opened in this version. Returns whether the pages the kernel has are of it.
    pub(super) fn open(&self, vnode: VnodeId, version: DataVersion) -> bool {
        let mut inodes = self.lock();
        let inode = inodes.entry(vnode).or_default();
        inode.pages.replace(version) == Some(version)
    }

    /// The content of a file changes without the pages that the kernel has of it.
    pub(super) fn forget_pages(&self, vnode: VnodeId) {
        if let Some(inode) = self.lock().get_mut(&vnode) {
            inode.pages = None;
        }
    }

    /// What the kernel wrote has become a version.
    pub(super) fn stored(&self, vnode: VnodeId, base: DataVersion, version: DataVersion) {
        if let Some(inode) = self.lock().get_mut(&vnode)
            && inode.pages == Some(base)
        {
            inode.pages = Some(version);
        }
    }

    /// The kernel is about to be told that a name means nothing.
    pub(super) fn note_absent(&self, parent: VnodeId, name: Name) {
        self.forget_names(self.absent.note(parent, name));
    }

    /// Makes the kernel ask again what names mean.
    pub(super) fn forget_names(&self, names: HashSet<(VnodeId, Name)>) {
        if names.is_empty() {
            return;
        }
        if let Some(edge) = self.edge.get().cloned() {
            tokio::task::spawn_blocking(move || invalidate_entries(edge.as_ref(), &names));
        }
    }

    /// Tells the kernel that everything it has may be out of date; `names_of` lists the names known in a directory.
    /// Blocks.
    pub(super) fn invalidate_all(&self, names_of: impl Fn(VnodeId) -> Vec<Name>) {
        let Some(edge) = self.edge.get() else { return };
        invalidate_entries(edge.as_ref(), &self.absent.take());
        let vnodes: Vec<_> = self.lock().keys().copied().collect();
        for vnode in vnodes {
            for name in names_of(vnode) {
                edge.invalidate_entry(vnode, &name);
            }
            edge.invalidate_inode(vnode);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VnodeId, KnownInode>> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn invalidate_entries(edge: &dyn KernelCache, names: &HashSet<(VnodeId, Name)>) {
    for (parent, name) in names {
        edge.invalidate_entry(*parent, name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_kept_while_they_are_of_the_version_opened() {
        let kernel = Kernel::default();
        let (file, [one, two]) = (VnodeId(5), [DataVersion(1), DataVersion(2)]);
        kernel.count_lookup(file);
        assert!(!kernel.open(file, one));
        assert!(kernel.open(file, one));
        kernel.stored(file, one, two);
        assert!(kernel.open(file, two));
        assert!(!kernel.open(file, one));
        kernel.forget(file, 1);
        assert!(!kernel.open(file, one));
    }
}
