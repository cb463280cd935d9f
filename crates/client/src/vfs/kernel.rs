//! Knowledge of the kernel: which inodes, and the pages of which version.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mafs_proto::call::BrokenObject;
use mafs_proto::{DataVersion, Instant, Name, Object, VnodeId, Xattrs};

use super::absent::AbsentNames;
use super::shown::{Noted, Part, ShownListings};
use crate::core::log::ContainerId;
use crate::core::promises::{BreakLog, Missed};

/// The caches of the kernel, which are told when something in them is out of date. The seam to the kernel.
///
/// Calls may block on locks of the kernel: they are made from a blocking thread that holds no lock of ours.
pub trait KernelCache: Send + Sync + 'static {
    /// Tells that attributes and pages of an inode are out of date.
    fn invalidate_inode(&self, vnode: VnodeId);
    /// Tells that a directory of which the kernel keeps the names is out of date: they go when nobody is reading
    /// them, so that none that are under way stay behind.
    fn invalidate_listing(&self, vnode: VnodeId) {
        self.invalidate_inode(vnode);
    }
    /// Tells that attributes of an inode are out of date, and its pages are not. This call never blocks.
    fn invalidate_attributes(&self, vnode: VnodeId);
    /// Tells that pages of an inode are out of date; what a mapping has stored in them, and is part of the file,
    /// comes back first.
    fn invalidate_range(&self, _vnode: VnodeId, _range: Range<u64>) {}
    /// Tells that a file is this long, although the kernel has not written it: a program that appends to it writes
    /// where the kernel believes that it ends. `last` is its last byte.
    fn lengthen(&self, _vnode: VnodeId, _size: u64, _last: u8) {}
    /// Tells that the meaning of a name is out of date.
    fn invalidate_entry(&self, parent: VnodeId, name: &Name);
    /// Tells that the meaning of a name must be asked for at its next use. Unlike an entry that is out of date this
    /// one stays where it is: getcwd(2) and /proc go on telling the paths of what is in use below it.
    fn expire_entry(&self, parent: VnodeId, name: &Name) {
        self.invalidate_entry(parent, name);
    }
    /// Returns whether calls may block. Those that do not are made from a task, so that runs of the simulator repeat.
    fn blocks(&self) -> bool {
        true
    }
}

/// Function that lists the names known in a directory, with what they mean.
pub(super) type NamesOf = Box<dyn Fn(VnodeId) -> Vec<(Name, VnodeId)> + Send>;

/// The kernel's inodes, and what it is told of them.
#[derive(Default)]
pub(crate) struct Kernel {
    inodes: Mutex<HashMap<VnodeId, KnownInode>>,
    absent: AbsentNames,
    listings: Mutex<ShownListings>,
    breaks: Mutex<BreakLog>,
    /// Number of breaks there have been.
    break_count: AtomicU64,
    /// Whether an operation has asked that the kernel forget everything, which has not begun.
    forgetting: AtomicBool,
    edge: OnceLock<Arc<dyn KernelCache>>,
}

#[derive(Default)]
struct KnownInode {
    lookups: u64,
    pages: Option<DataVersion>,
    /// Size of a file that the kernel was told last, and has not been told to forget.
    told_size: Option<u64>,
    /// Rest of the object, once it has no name any more. Boxed, because few are removed and the kernel may know very
    /// many.
    removed: Option<Box<Nameless>>,
}

/// An object without a name, of which the kernel may ask.
#[derive(Clone, Debug)]
pub(super) struct Nameless {
    /// The object as it was when it lost the last one, with what was changed of it since.
    pub(super) object: Object,
    /// The content of a file that nobody has open.
    pub(super) content: Left,
    /// Its extended attributes, if they were known then.
    pub(super) xattrs: Option<Xattrs>,
}

/// Rest of the content of a file without a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Left {
    /// Nothing, or the file is in use.
    #[default]
    Nothing,
    /// There was no content.
    Empty,
    /// The content is here.
    In(ContainerId),
}

/// Part of the version of an opened file that the kernel has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// Pages and the end.
    Pages,
    /// Where it ends.
    End,
    /// Nothing that is certain.
    Nothing,
}

impl Left {
    /// Returns the container that holds it.
    pub(super) fn container(self) -> Option<ContainerId> {
        match self {
            Self::Nothing | Self::Empty => None,
            Self::In(container) => Some(container),
        }
    }
}

impl Kernel {
    pub(super) fn set_edge(&self, edge: Arc<dyn KernelCache>) {
        if self.edge.set(edge).is_err() {
            tracing::debug!("the kernel's edge was set before");
        }
    }

    /// Counts that the kernel is told of this object by a name.
    pub(super) fn count_lookup(&self, object: &Object) {
        let mut inodes = self.lock();
        let inode = inodes.entry(object.fid.vnode).or_default();
        inode.lookups += 1;
        inode.told_size = Some(object.status.size);
    }

    /// Notes what the kernel is told of an object that it knows.
    pub(super) fn note_told(&self, object: &Object) {
        if let Some(inode) = self.lock().get_mut(&object.fid.vnode) {
            inode.told_size = Some(object.status.size);
        }
    }

    /// Counts the lookups that the kernel has dropped. Returns where the content of a file without a name is that the
    /// kernel does not know any more.
    pub(super) fn forget(&self, vnode: VnodeId, count: u64) -> Option<ContainerId> {
        let mut inodes = self.lock();
        let inode = inodes.get_mut(&vnode)?;
        inode.lookups = inode.lookups.saturating_sub(count);
        if inode.lookups > 0 {
            return None;
        }
        inodes.remove(&vnode)?.removed?.content.container()
    }

    /// Notes that an object has lost its last name. A program may hold it still, as its working directory or by a
    /// descriptor, and ask what it is until the kernel forgets it, or open it. Keeps the content that is left when
    /// the removal is heard of again, from the server, by a caller that knows of none. Returns whether the kernel
    /// knows the object.
    pub(super) fn note_removed(&self, removed: Nameless) -> bool {
        match self.lock().get_mut(&removed.object.fid.vnode) {
            Some(inode) => {
                let is_left = |nameless: &Nameless| nameless.content != Left::Nothing;
                if is_left(&removed) || !inode.removed.as_deref().is_some_and(is_left) {
                    inode.removed = Some(Box::new(removed));
                }
                true
            }
            None => false,
        }
    }

    /// Notes that an object has a name after all: the server has not done what was to take the last one.
    pub(super) fn note_kept(&self, vnode: VnodeId) {
        if let Some(inode) = self.lock().get_mut(&vnode) {
            inode.removed = None;
        }
    }

    /// Returns an object without a name, as it was when it lost the last one, with what was changed of it since.
    pub(super) fn removed(&self, vnode: VnodeId) -> Option<Object> {
        self.change_removed(vnode, |removed| removed.object.clone())
    }

    /// Changes what is known of an object without a name, if it is one.
    pub(super) fn change_removed<T>(&self, vnode: VnodeId, change: impl FnOnce(&mut Nameless) -> T) -> Option<T> {
        self.lock().get_mut(&vnode)?.removed.as_deref_mut().map(change)
    }

    /// Notes that a file is opened in this version, which has this size. Returns what the kernel has of it.
    pub(super) fn open(&self, vnode: VnodeId, version: DataVersion, size: u64) -> Kept {
        let mut inodes = self.lock();
        let inode = inodes.entry(vnode).or_default();
        match inode.pages.replace(version) == Some(version) {
            true => Kept::Pages,
            false if inode.told_size == Some(size) => Kept::End,
            false => Kept::Nothing,
        }
    }

    /// Notes that the content of a file changes without the pages that the kernel has of it.
    pub(super) fn forget_pages(&self, vnode: VnodeId) {
        if let Some(inode) = self.lock().get_mut(&vnode) {
            inode.pages = None;
        }
    }

    /// Makes the kernel ask where a file ends before it reads to the end that it knows.
    pub(super) fn forget_end(&self, vnode: VnodeId) {
        if let Some(edge) = self.edge.get() {
            edge.invalidate_attributes(vnode);
            self.forget_told(vnode);
        }
    }

    /// Notes that the kernel has been told to ask again: what it was told before it may not have taken in.
    fn forget_told(&self, vnode: VnodeId) {
        if let Some(inode) = self.lock().get_mut(&vnode) {
            inode.told_size = None;
        }
    }

    /// Notes that what the kernel wrote has become a version.
    pub(super) fn stored(&self, vnode: VnodeId, base: DataVersion, version: DataVersion) {
        if let Some(inode) = self.lock().get_mut(&vnode)
            && inode.pages == Some(base)
        {
            inode.pages = Some(version);
        }
    }

    /// Notes that the kernel is about to be told that a name means nothing.
    pub(super) fn note_absent(self: &Arc<Self>, parent: VnodeId, name: Name) {
        let forgotten = self.absent.note(parent, name);
        if !forgotten.is_empty() {
            drop(self.tell(move |_, edge| expire_entries(edge, &forgotten)));
        }
    }

    /// Makes the kernel ask again what names mean, and which ones there are beside them.
    pub(super) fn forget_names(self: &Arc<Self>, names: Vec<(VnodeId, Name)>) {
        if !names.is_empty() {
            drop(self.tell(move |kernel, edge| {
                invalidate_entries(edge, &names);
                names.iter().for_each(|(parent, _)| kernel.invalidate_object(edge, *parent));
            }));
        }
    }

    /// Makes the kernel ask again what objects are, and what is in them.
    pub(super) fn forget_inodes(self: &Arc<Self>, vnodes: Vec<VnodeId>) {
        drop(self.tell(move |kernel, edge| {
            let known = vnodes.into_iter().filter(|vnode| kernel.knows(*vnode));
            known.for_each(|vnode| kernel.invalidate_object(edge, vnode));
        }));
    }

    /// Makes the kernel ask again for a range of a file, and for no more of it. Ends when it has forgotten it.
    pub(super) fn forget_range(self: &Arc<Self>, vnode: VnodeId, range: Range<u64>) -> BoxFuture<'static, ()> {
        self.tell(move |_, edge| edge.invalidate_range(vnode, range))
    }

    /// Makes the kernel ask again for an open file that holds another content now; `end`: how long it is and its last
    /// byte. Ends when it knows.
    pub(super) fn forget_content(self: &Arc<Self>, vnode: VnodeId, end: Option<(u64, u8)>) -> BoxFuture<'static, ()> {
        self.forget_pages(vnode);
        self.tell(move |kernel, edge| {
            if kernel.knows(vnode) {
                // First: what a mapping has stored beyond the end must not become part of what is there now.
                edge.invalidate_inode(vnode);
                kernel.forget_told(vnode);
                end.into_iter().for_each(|(size, last)| edge.lengthen(vnode, size, last));
            }
        })
    }

    /// Notes that the kernel is about to be shown a part of a listing, which it may keep until then.
    pub(super) fn note_listing(&self, vnode: VnodeId, part: Part, until: Instant) -> Noted {
        match self.edge.get() {
            Some(_) => self.shown_listings().note(vnode, part, until),
            None => Noted::Watched,
        }
    }

    /// Makes the kernel read directories from their start when they are read next. Goes on by itself if nobody waits.
    pub(super) fn forget_listings(self: &Arc<Self>, vnodes: Vec<VnodeId>) -> BoxFuture<'static, ()> {
        self.tell(move |_, edge| vnodes.iter().for_each(|vnode| edge.invalidate_listing(*vnode)))
    }

    /// Makes the kernel forget the part of a listing that it has read of a directory which it has changed. The kernel
    /// will read the directory anew, and would put what it reads behind that part: others who read on would take both
    /// for one listing (fs/fuse/readdir.c, fuse_add_dirent_to_cache).
    pub(super) fn names_changed(self: &Arc<Self>, vnode: VnodeId) -> BoxFuture<'static, ()> {
        let is_part = self.shown_listings().is_part(vnode);
        if is_part { self.forget_listings(vec![vnode]) } else { std::future::ready(()).boxed() }
    }

    /// Takes the listings that the kernel must forget now. Says besides when the next ones are due.
    pub(super) fn listings_due(&self, now: Instant) -> (Vec<VnodeId>, Option<Instant>) {
        let mut listings = self.shown_listings();
        (listings.take_due(now), listings.next_due())
    }

    /// Makes the kernel ask again at their next use for names of a directory that are not known here any more.
    pub(super) fn expire_names(self: &Arc<Self>, parent: VnodeId, names: Vec<(Name, VnodeId)>) {
        if self.knows(parent) {
            drop(self.tell(move |kernel, edge| kernel.expire(edge, parent, names)));
        }
    }

    /// Returns how many breaks there have been: for [`Self::missed`].
    pub(super) fn breaks(&self) -> u64 {
        self.break_count.load(Ordering::Acquire)
    }

    /// Tells of objects that have changed. Ends when the kernel knows; goes on by itself if nobody waits.
    pub(super) fn forget_objects(
        self: &Arc<Self>,
        objects: Vec<BrokenObject>,
        names: NamesOf,
    ) -> BoxFuture<'static, ()> {
        self.note_breaks(|log| log.note(&objects));
        self.forget_objects_again(objects, names)
    }

    /// Tells of objects whose change operations under way have missed.
    pub(super) fn forget_objects_again(
        self: &Arc<Self>,
        objects: Vec<BrokenObject>,
        names: NamesOf,
    ) -> BoxFuture<'static, ()> {
        self.tell(move |kernel, edge| objects.iter().for_each(|object| kernel.invalidate(edge, object, &names)))
    }

    /// Tells that anything may have changed. Ends when the kernel knows; goes on by itself if nobody waits.
    pub(super) fn forget_everything(self: &Arc<Self>, names: NamesOf) -> BoxFuture<'static, ()> {
        self.note_breaks(BreakLog::note_all);
        self.tell(move |kernel, edge| kernel.invalidate_all(edge, &names))
    }

    /// Tells again that anything may have changed, after an operation has missed too much. Many do at once; one call
    /// is enough that begins after all of them.
    pub(super) fn forget_everything_again(self: &Arc<Self>, names: NamesOf) {
        if self.edge.get().is_some() && !self.forgetting.swap(true, Ordering::AcqRel) {
            drop(self.tell(move |kernel, edge| {
                kernel.forgetting.store(false, Ordering::Release);
                kernel.invalidate_all(edge, &names);
            }));
        }
    }

    /// Returns what has been broken since there were `breaks`; `None`: nothing.
    pub(super) fn missed(&self, breaks: u64) -> Option<Missed> {
        if self.breaks() == breaks {
            return None;
        }
        Some(self.breaks.lock().unwrap_or_else(PoisonError::into_inner).since(breaks))
    }

    fn note_breaks(&self, note: impl FnOnce(&mut BreakLog)) {
        let mut breaks = self.breaks.lock().unwrap_or_else(PoisonError::into_inner);
        note(&mut breaks);
        self.break_count.store(breaks.count(), Ordering::Release);
    }

    /// Tells the kernel from a blocking thread, if there is a kernel.
    fn tell(self: &Arc<Self>, what: impl FnOnce(&Self, &dyn KernelCache) + Send + 'static) -> BoxFuture<'static, ()> {
        let Some(edge) = self.edge.get().cloned() else { return std::future::ready(()).boxed() };
        let kernel = Arc::clone(self);
        let told = if edge.blocks() {
            tokio::task::spawn_blocking(move || what(&kernel, edge.as_ref()))
        } else {
            tokio::spawn(async move { what(&kernel, edge.as_ref()) })
        };
        // The task fails only if the daemon is ending.
        told.map(drop).boxed()
    }

    /// Tells of a broken object: of the names that have changed, and of what the promise has covered besides. The other
    /// names of a directory mean what they did, but of their next change nobody will tell. Blocks.
    fn invalidate(&self, edge: &dyn KernelCache, object: &BrokenObject, names: &NamesOf) {
        let vnode = object.fid.vnode;
        if !self.knows(vnode) {
            return;
        }
        object.names.iter().for_each(|name| edge.invalidate_entry(vnode, name));
        self.absent.take_of(vnode).iter().for_each(|name| edge.expire_entry(vnode, name));
        self.expire(edge, vnode, names(vnode));
        self.invalidate_object(edge, vnode);
    }

    fn invalidate_object(&self, edge: &dyn KernelCache, vnode: VnodeId) {
        if self.shown_listings().is_kept(vnode) {
            edge.invalidate_listing(vnode);
        } else {
            edge.invalidate_inode(vnode);
            self.forget_told(vnode);
        }
    }

    /// Tells that everything may be out of date. Blocks.
    fn invalidate_all(&self, edge: &dyn KernelCache, names: &NamesOf) {
        expire_entries(edge, &self.absent.take());
        let known: Vec<_> = self.lock().keys().copied().collect();
        for vnode in known.into_iter().chain([VnodeId::ROOT]) {
            self.expire(edge, vnode, names(vnode));
            self.invalidate_object(edge, vnode);
        }
    }

    fn expire(&self, edge: &dyn KernelCache, parent: VnodeId, names: Vec<(Name, VnodeId)>) {
        let in_kernel: Vec<_> = {
            let inodes = self.lock();
            names.into_iter().filter(|(_, vnode)| inodes.contains_key(vnode)).collect()
        };
        in_kernel.iter().for_each(|(name, _)| edge.expire_entry(parent, name));
    }

    /// Returns whether the kernel may know an inode. The kernel knows the root without a lookup.
    fn knows(&self, vnode: VnodeId) -> bool {
        vnode == VnodeId::ROOT || self.lock().contains_key(&vnode)
    }

    fn shown_listings(&self) -> MutexGuard<'_, ShownListings> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VnodeId, KnownInode>> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn invalidate_entries(edge: &dyn KernelCache, names: &[(VnodeId, Name)]) {
    for (parent, name) in names {
        edge.invalidate_entry(*parent, name);
    }
}

/// Expires names that meant nothing. Some mean something by now, perhaps the directory that a program is in:
/// invalidated, it would have no path any more (getcwd fails with ENOENT).
fn expire_entries(edge: &dyn KernelCache, names: &[(VnodeId, Name)]) {
    for (parent, name) in names {
        edge.expire_entry(*parent, name);
    }
}

#[cfg(test)]
mod tests;
