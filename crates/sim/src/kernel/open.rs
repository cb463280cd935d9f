//! Descriptors: open, dup, close. After `fuse_open`, `fuse_create_open`, `fuse_flush` and `fuse_release` of fs/fuse.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mafs_client::vfs::{Attributes as Set, Error, FileHandle, OpenMode, Opened};
use mafs_proto::{FsError, Kind, Mode, VnodeId};

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::backing::Backing;
use super::inode::{Attributes, Inode};
use super::{CALLER, Errno, FileId, Kernel, OpenFile, RELEASE_MAX_MS, until, yield_times};

/// A descriptor of some program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Descriptor(u64);

/// Owner of the locks that a close ends: all programs count as one, for none locks anything.
const OWNER: u64 = 1;

impl Kernel {
    /// open(2) of what is there.
    ///
    /// # Errors
    /// As the call.
    pub async fn open(&self, path: &str, mode: OpenMode) -> Result<Descriptor, Errno> {
        match self.try_open(path, mode, false).await {
            Err(Errno::STALE) => self.try_open(path, OpenMode { again: true, ..mode }, true).await,
            other => other,
        }
    }

    /// open(2) with O_CREAT, and with O_EXCL if it is to be exclusive.
    ///
    /// # Errors
    /// As the call.
    pub async fn create(&self, path: &str, permissions: u32, mode: OpenMode) -> Result<Descriptor, Errno> {
        match self.try_create(path, permissions, mode, false).await {
            Err(Errno::STALE) => self.try_create(path, permissions, OpenMode { again: true, ..mode }, true).await,
            other => other,
        }
    }

    /// dup(2), or a descriptor that a child inherits.
    ///
    /// # Errors
    /// As the call.
    pub fn duplicate(&self, descriptor: Descriptor) -> Result<Descriptor, Errno> {
        let mut state = self.state();
        let id = *state.descriptors.get(&descriptor).ok_or(Errno::BADF)?;
        if let Some(file) = state.files.get_mut(&id) {
            file.users += 1;
        }
        let copy = Descriptor(state.number());
        state.descriptors.insert(copy, id);
        Ok(copy)
    }

    /// close(2): flushes, and releases the file behind its last descriptor some time later.
    ///
    /// # Errors
    /// The error of the flush; the descriptor is gone all the same.
    pub async fn close(&self, descriptor: Descriptor) -> Result<(), Errno> {
        let id = self.state().descriptors.remove(&descriptor).ok_or(Errno::BADF)?;
        let flushed = self.flush(id).await;
        self.put(id);
        flushed
    }

    /// Flushes a file, unless the daemon has said that it need not hear of its close (`open_answer`).
    async fn flush(&self, id: FileId) -> Result<(), Errno> {
        let file = self.file(id)?;
        if file.handle.closes_unseen() {
            return Ok(());
        }
        self.write_stores(&file).await?;
        self.ask(self.vfs.flush_and_unlock(file.handle, OWNER)).await
    }

    /// Drops one user of an open file. After the last one the file's way is free at once, and the daemon hears of it
    /// later.
    pub(super) fn put(&self, id: FileId) {
        let mut state = self.state();
        let Some(file) = state.files.get_mut(&id) else { return };
        file.users -= 1;
        if file.users > 0 {
            return;
        }
        let Some(OpenFile { vnode, handle, backing, .. }) = state.files.remove(&id) else { return };
        if let Some(inode) = state.inodes.get_mut(&vnode) {
            inode.close(backing.is_some());
        }
        if let Some(backing) = backing {
            // Unmapping fails only on a disk that is gone.
            let _closed = backing.unmap(id.0);
        }
        state.releasing += 1;
        let delay = if state.random.coin() { 0 } else { state.random.below(RELEASE_MAX_MS) };
        drop(state);
        let kernel = self.clone();
        tokio::spawn(async move {
            kernel.pause().await;
            tokio::time::sleep(Duration::from_millis(delay)).await;
            kernel.release(handle);
            kernel.state().releasing -= 1;
        });
        self.forget_removed();
    }

    fn release(&self, handle: FileHandle) {
        if self.has_ended() {
            return;
        }
        // As the edge does.
        self.given.drop_handle(handle);
        self.vfs.release(handle);
    }

    async fn try_open(&self, path: &str, mode: OpenMode, fresh: bool) -> Result<Descriptor, Errno> {
        let vnode = self.walk(path, fresh).await?;
        self.open_inode(vnode, mode).await
    }

    async fn open_inode(&self, vnode: VnodeId, mode: OpenMode) -> Result<Descriptor, Errno> {
        match self.state().inode(vnode)?.attributes().kind {
            Kind::Directory if mode.write => return Err(Errno::ISDIR),
            Kind::File => {}
            _ => return Err(Errno::INVAL),
        }
        // While the inode is in use it is not forgotten. On Linux only pages that are on their way keep from cutting.
        let lock = Arc::clone(&self.state().inode(vnode)?.lock);
        let _inode = if mode.truncate { Some(lock.clone().lock_owned().await) } else { None };
        self.pause().await;
        let opened = self.hear(self.vfs.open(vnode, mode, CALLER)).await??;
        let backing = self.take_backing(vnode, opened, mode);
        self.pause().await;
        self.finish_open(vnode, opened, backing, mode, mode.truncate)
    }

    async fn try_create(&self, path: &str, permissions: u32, mode: OpenMode, fresh: bool) -> Result<Descriptor, Errno> {
        let place = self.place(path, fresh).await?;
        let names = self.names_of(place.0)?.write_owned().await;
        if let Some(vnode) = self.lookup_locked(&place, fresh || mode.exclusive).await? {
            drop(names);
            return if mode.exclusive { Err(Errno::EXIST) } else { self.open_inode(vnode, mode).await };
        }
        self.pause().await;
        self.state().begin_naming(place.0);
        let breaks = self.vfs.breaks();
        let request = self.vfs.create(place.0, place.1.clone(), Mode::from_bits(permissions), mode, CALLER);
        let made = self.hear(request).await;
        let (object, opened) = match made {
            Ok(Ok(made)) => made,
            Err(errno) => return Err(errno),
            Ok(Err(error)) => {
                self.state().end_naming(place.0);
                let exists = matches!(error, Error::Refused(FsError::Exists));
                return Err(if exists && !mode.exclusive { Errno::STALE } else { error.into() });
            }
        };
        let vnode = object.fid.vnode;
        let backing = self.take_backing(vnode, opened, mode);
        self.pause().await;
        {
            let mut state = self.state();
            self.keep(&mut state, &place, &object, None);
            state.end_naming(place.0);
        }
        self.vfs.tell_again(breaks);
        self.finish_open(vnode, opened, backing, mode, false)
    }

    /// Does what the edge does before it answers an open: it has the kernel take the container, the same for all
    /// handles of an inode, and forget the attributes of files that mappings may store to.
    fn take_backing(&self, vnode: VnodeId, opened: Opened, mode: OpenMode) -> Option<Backing> {
        if !opened.passthrough {
            return None;
        }
        let (number, container) = self.vfs.numbered_container(opened.file).ok()?;
        let missing = || io::Error::other("the daemon has no such container");
        let register = || self.backings.take(&container).ok_or_else(missing);
        let number = self.given.add_handle(number, opened.file, register).ok()?;
        let backing = Backing::clone(&number);
        let mut state = self.state();
        let (ms, yields) = (state.random.below(2 * RELEASE_MAX_MS), state.random.below(30));
        let is_late = state.random.once_in(3);
        if mode.read && mode.write {
            state.invalidate(vnode, false);
        }
        drop(state);
        // The thread that answers has the number until it gets a processor again.
        tokio::spawn(async move {
            yield_times(yields).await;
            if is_late {
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
            drop(number);
        });
        Some(backing)
    }

    /// `cut`: the daemon has emptied the file.
    fn finish_open(
        &self,
        vnode: VnodeId,
        opened: Opened,
        backing: Option<Backing>,
        mode: OpenMode,
        cut: bool,
    ) -> Result<Descriptor, Errno> {
        let mut state = self.state();
        let way = state.inode(vnode).and_then(|inode| inode.open(backing.as_ref()));
        if let Err(errno) = way {
            drop(state);
            self.release(opened.file);
            return Err(errno);
        }
        if cut {
            state.change(vnode, Inode::note_cut);
        } else if !opened.keep_cache {
            state.inode(vnode)?.drop_pages();
        }
        let (id, descriptor) = (FileId(state.number()), Descriptor(state.number()));
        if let Some(backing) = backing.as_ref().filter(|_| mode.write) {
            // The kernel has the container open for writing, as a mapping has.
            backing.map(id.0)?;
        }
        state.files.insert(id, OpenFile { vnode, handle: opened.file, mode, backing, direct: opened.direct, users: 1 });
        state.descriptors.insert(descriptor, id);
        Ok(descriptor)
    }

    /// Returns which file a descriptor has: fstat(2) tells that without asking.
    ///
    /// # Errors
    /// As the call.
    pub fn vnode_of(&self, descriptor: Descriptor) -> Result<VnodeId, Errno> {
        Ok(self.file_of(descriptor)?.1.vnode)
    }

    /// Returns the open file behind a descriptor.
    pub(super) fn file_of(&self, descriptor: Descriptor) -> Result<(FileId, OpenFile), Errno> {
        let id = *self.state().descriptors.get(&descriptor).ok_or(Errno::BADF)?;
        Ok((id, self.file(id)?))
    }

    pub(super) fn file(&self, id: FileId) -> Result<OpenFile, Errno> {
        self.state().files.get(&id).cloned().ok_or(Errno::BADF)
    }

    /// Asks for attributes, unless what is known still holds.
    pub(super) async fn get_attributes(&self, vnode: VnodeId) -> Result<Attributes, Errno> {
        let asked = {
            let mut state = self.state();
            let now = Instant::now();
            let inode = state.inode(vnode)?;
            if inode.is_valid(now) {
                return Ok(inode.attributes().clone());
            }
            state.version
        };
        let request = self.vfs.get_attributes(vnode);
        self.ask_and_keep(request, |state, object| {
            state.tell(&object, self.vfs.time_to_live(&object), Some(asked));
            // stat(2) shows what was answered, also if the kernel knows better.
            Attributes::of(&object)
        })
        .await
    }

    /// Sets attributes, and takes what they are then.
    pub(super) async fn set_attributes(
        &self,
        vnode: VnodeId,
        set: Set,
        handle: Option<FileHandle>,
    ) -> Result<(), Errno> {
        let _inode = self.lock_inode(vnode).await?;
        self.state().inode(vnode)?.resizing = set.size.is_some();
        let request = self.vfs.set_attributes(vnode, set, handle, CALLER);
        let done = self.ask_and_keep(request, |state, object| {
            let (told, until) = (Attributes::of(&object), until(self.vfs.time_to_live(&object)));
            state.change(vnode, |inode, next| inode.take(told, until, next));
        });
        let done = done.await;
        self.state().inode(vnode)?.resizing = false;
        done
    }

    pub(super) async fn lock_inode(&self, vnode: VnodeId) -> Result<OwnedMutexGuard<()>, Errno> {
        let lock = Arc::clone(&self.state().inode(vnode)?.lock);
        Ok(lock.lock_owned().await)
    }
}
