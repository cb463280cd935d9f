//! Contents: reading, writing, cutting, the end, fsync. After fs/fuse/file.c and passthrough.c.

use bytes::Bytes;
use mafs_client::vfs::{Attributes as Set, SetTime};
use mafs_durable::DiskFile;
use mafs_proto::{Mode, Timestamp, XattrMode};

use super::backing::{Backing, Change};
use super::inode::PAGE_BYTES;
use super::open::Descriptor;
use super::{Errno, Kernel, OpenFile, VnodeId};

/// The largest write that the kernel sends.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// The most that a program reads at a time.
const READ_BYTES_MAX: usize = 1 << 20;

/// Pages that are read ahead, now and then.
const AHEAD_PAGES: u64 = 32;

/// How often a read begins anew because the file has changed.
const READS_MAX: u32 = 1000;

impl Kernel {
    /// pread(2).
    ///
    /// # Errors
    /// As the call.
    pub async fn read(&self, descriptor: Descriptor, at: u64, count: usize) -> Result<Vec<u8>, Errno> {
        let (_, file) = self.file_of(descriptor)?;
        match &file.backing {
            _ if !file.mode.read => Err(Errno::BADF),
            Some(backing) => read_backing(backing, at, count),
            None if file.direct => self.read_direct(&file, at, count).await,
            None => self.read_pages(&file, at, count).await,
        }
    }

    /// pwrite(2), or write(2) with O_APPEND, of which the place does not count. Returns where it has ended.
    ///
    /// # Errors
    /// As the call.
    pub async fn write(&self, descriptor: Descriptor, at: u64, bytes: &[u8]) -> Result<u64, Errno> {
        let (_, file) = self.file_of(descriptor)?;
        if !file.mode.write {
            return Err(Errno::BADF);
        }
        if bytes.is_empty() {
            return Ok(at);
        }
        let _inode = self.lock_inode(file.vnode).await?;
        match &file.backing {
            Some(backing) => {
                let at = (!file.mode.append).then_some(at);
                let end = self.change(backing, Change::Write { at, bytes: bytes.to_vec() }).await?;
                self.state().change(file.vnode, |inode, next| inode.note_written(end, next));
                Ok(end)
            }
            None => self.write_pages(&file, at, bytes).await,
        }
    }

    /// Reads a whole file, as programs do: until there is nothing more.
    ///
    /// # Errors
    /// As read(2).
    pub async fn read_all(&self, descriptor: Descriptor) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        loop {
            let more = self.read(descriptor, bytes.len() as u64, READ_BYTES_MAX).await?;
            if more.is_empty() {
                return Ok(bytes);
            }
            bytes.extend(more);
        }
    }

    /// getxattr(2), which the kernel has answered each time. Returns which object the path means besides; `None`: it
    /// has no such attribute.
    ///
    /// # Errors
    /// As the call.
    pub async fn xattr(&self, path: &str, name: &str) -> Result<(VnodeId, Option<Vec<u8>>), Errno> {
        let vnode = self.walk(path, false).await?;
        match self.ask(self.vfs.get_xattr(vnode, Bytes::copy_from_slice(name.as_bytes()))).await {
            Ok(value) => Ok((vnode, Some(value.as_bytes().to_vec()))),
            Err(Errno::NODATA) => Ok((vnode, None)),
            Err(errno) => Err(errno),
        }
    }

    /// setxattr(2).
    ///
    /// # Errors
    /// As the call.
    pub async fn set_xattr(&self, path: &str, name: &str, value: &[u8]) -> Result<(), Errno> {
        let vnode = self.walk(path, false).await?;
        let _inode = self.lock_inode(vnode).await?;
        let [name, value] = [name.as_bytes(), value].map(Bytes::copy_from_slice);
        let set = self.vfs.set_xattr(vnode, name, value, XattrMode::Either, super::CALLER);
        // As `fuse_setxattr`: the time of change has moved.
        self.ask(set).await.inspect(|()| self.state().change(vnode, |inode, _| inode.forget_attributes()))
    }

    /// fstat(2).
    ///
    /// # Errors
    /// As the call.
    pub async fn stat_open(&self, descriptor: Descriptor) -> Result<super::Attributes, Errno> {
        let (_, file) = self.file_of(descriptor)?;
        self.get_attributes(file.vnode).await
    }

    /// lseek(2) to the end.
    ///
    /// # Errors
    /// As the call.
    pub async fn seek_end(&self, descriptor: Descriptor) -> Result<u64, Errno> {
        let (_, file) = self.file_of(descriptor)?;
        let _inode = self.lock_inode(file.vnode).await?;
        self.get_attributes(file.vnode).await?;
        Ok(self.state().inode(file.vnode)?.size())
    }

    /// ftruncate(2).
    ///
    /// # Errors
    /// As the call.
    pub async fn resize_open(&self, descriptor: Descriptor, size: u64) -> Result<(), Errno> {
        let (_, file) = self.file_of(descriptor)?;
        if !file.mode.write {
            return Err(Errno::INVAL);
        }
        self.set_attributes(file.vnode, Set { size: Some(size), ..Set::default() }, Some(file.handle)).await
    }

    /// truncate(2).
    ///
    /// # Errors
    /// As the call.
    pub async fn resize(&self, path: &str, size: u64) -> Result<(), Errno> {
        self.set(path, Set { size: Some(size), ..Set::default() }).await
    }

    /// chmod(2).
    ///
    /// # Errors
    /// As the call.
    pub async fn set_mode(&self, path: &str, mode: u32) -> Result<(), Errno> {
        self.set(path, Set { mode: Some(Mode::from_bits(mode)), ..Set::default() }).await
    }

    /// utimensat(2) of the modification time.
    ///
    /// # Errors
    /// As the call.
    pub async fn set_modified(&self, path: &str, time: Timestamp) -> Result<(), Errno> {
        self.set(path, Set { mtime: Some(SetTime::To(time)), ..Set::default() }).await
    }

    async fn set(&self, path: &str, set: Set) -> Result<(), Errno> {
        let vnode = self.walk(path, false).await?;
        let kind = self.state().inode(vnode)?.attributes().kind;
        match kind {
            mafs_proto::Kind::Directory if set.size.is_some() => Err(Errno::ISDIR),
            _ => self.set_attributes(vnode, set, None).await,
        }
    }

    /// fsync(2).
    ///
    /// # Errors
    /// As the call.
    pub async fn sync(&self, descriptor: Descriptor) -> Result<(), Errno> {
        let (_, file) = self.file_of(descriptor)?;
        let _inode = self.lock_inode(file.vnode).await?;
        self.write_stores_locked(&file).await?;
        self.ask(self.vfs.fsync(file.handle)).await
    }

    /// Changes a container, at some moment between now and the end of this.
    pub(super) async fn change(&self, backing: &Backing, change: Change) -> Result<u64, Errno> {
        let id = self.backings.begin(backing, change);
        self.linger().await;
        Ok(self.backings.end(id)?)
    }

    /// Reads as `fuse_direct_io` does: whatever the daemon answers is what the program gets.
    async fn read_direct(&self, file: &OpenFile, at: u64, count: usize) -> Result<Vec<u8>, Errno> {
        let bytes = u32::try_from(count).unwrap_or(u32::MAX);
        Ok(self.ask(self.vfs.read(file.handle, at, bytes)).await?.to_vec())
    }

    async fn read_pages(&self, file: &OpenFile, at: u64, count: usize) -> Result<Vec<u8>, Errno> {
        let end = at.saturating_add(count as u64);
        if end > self.state().inode(file.vnode)?.size() {
            self.get_attributes(file.vnode).await?;
        }
        let mut bytes = Vec::new();
        for _ in 0..READS_MAX {
            let from = at + bytes.len() as u64;
            let part = {
                let mut state = self.state();
                let inode = state.inode(file.vnode)?;
                let end = end.min(inode.size());
                if from >= end {
                    return Ok(bytes);
                }
                let missing = inode.missing(from..end);
                let here = missing.as_ref().map_or(end, |pages| (pages.start * PAGE_BYTES).max(from));
                bytes.extend_from_slice(&inode.copy(from..here));
                missing
            };
            let Some(pages) = part else { continue };
            let last = pages.end;
            let read = self.fetch_pages(file, pages).await?;
            // Bytes that were read are used once, whatever the kernel has been told meanwhile.
            let wanted = end.min(self.state().inode(file.vnode)?.size()).min(last * PAGE_BYTES);
            let from = at + bytes.len() as u64;
            let skip = usize::try_from(from % PAGE_BYTES).unwrap_or(0);
            let take = usize::try_from(wanted.saturating_sub(from)).unwrap_or(0).min(read.len().saturating_sub(skip));
            bytes.extend_from_slice(&read[skip.min(read.len())..skip.min(read.len()) + take]);
        }
        Err(Errno::IO)
    }

    /// Reads pages, and some behind them now and then. Returns their bytes, filled up with zeros.
    async fn fetch_pages(&self, file: &OpenFile, pages: std::ops::Range<u64>) -> Result<Vec<u8>, Errno> {
        let (asked, drops, pages) = {
            let mut state = self.state();
            let ahead = if state.random.once_in(3) { AHEAD_PAGES } else { 0 };
            let asked = state.version;
            let inode = state.inode(file.vnode)?;
            let end = (pages.end + ahead).min(inode.size().div_ceil(PAGE_BYTES)).max(pages.end);
            (asked, inode.drops(), pages.start..end)
        };
        let bytes = u32::try_from((pages.end - pages.start) * PAGE_BYTES).unwrap_or(u32::MAX);
        let read = self.ask(self.vfs.read(file.handle, pages.start * PAGE_BYTES, bytes)).await?;
        let mut state = self.state();
        let next = state.next_version();
        let inode = state.inode(file.vnode)?;
        inode.fill(pages.clone(), &read, asked, next);
        let mut whole = read.to_vec();
        whole.resize(bytes as usize, 0);
        if inode.drops() != drops {
            inode.drop_range(pages);
        }
        Ok(whole)
    }

    async fn write_pages(&self, file: &OpenFile, at: u64, bytes: &[u8]) -> Result<u64, Errno> {
        // The kernel believes that it knows where the end is.
        let mut at = if file.mode.append { self.state().inode(file.vnode)?.size() } else { at };
        for part in bytes.chunks(WRITE_BYTES_MAX) {
            let place = self.send(file, at, Bytes::copy_from_slice(part)).await?;
            let end = at + part.len() as u64;
            let mut state = self.state();
            state.change(file.vnode, |inode, next| {
                inode.write_pages(at, part);
                inode.note_written(end, next);
            });
            if place != at {
                // The kernel has these bytes where the file ended before: the edge says so behind its answer.
                state.invalidate(file.vnode, true);
            }
            at = end;
        }
        Ok(at)
    }

    /// Sends what a program writes. Returns where the daemon has put it.
    async fn send(&self, file: &OpenFile, at: u64, bytes: Bytes) -> Result<u64, Errno> {
        match file.mode.append {
            true => self.ask(self.vfs.append(file.handle, bytes)).await,
            false => self.ask(self.vfs.write(file.handle, at, bytes)).await.map(|()| at),
        }
    }

    /// Sends what was stored through mappings of pages that the kernel keeps. Nobody cuts the file meanwhile.
    pub(super) async fn write_stores(&self, file: &OpenFile) -> Result<(), Errno> {
        if file.backing.is_some() {
            return Ok(());
        }
        let _inode = self.lock_inode(file.vnode).await?;
        self.write_stores_locked(file).await
    }

    async fn write_stores_locked(&self, file: &OpenFile) -> Result<(), Errno> {
        let Some(handle) = self.mapped_handle(file.vnode) else { return Ok(()) };
        let dirty = self.state().inode(file.vnode)?.take_dirty();
        let mut written = Ok(());
        for (at, bytes) in dirty {
            written = written.and(self.ask(self.vfs.write_back(handle, at, Bytes::from(bytes))).await);
            self.state().inode(file.vnode)?.forget_attributes();
        }
        self.state().inode(file.vnode)?.end_writing();
        written
    }

    /// Brings the pages of a range: a fault of a mapping waits for them.
    pub(super) async fn bring_pages(&self, file: &OpenFile, at: u64, count: u64) -> Result<(), Errno> {
        for _ in 0..READS_MAX {
            let missing = self.state().inode(file.vnode)?.missing(at..at + count);
            match missing {
                None => return Ok(()),
                Some(pages) => drop(self.fetch_pages(file, pages).await?),
            }
        }
        Err(Errno::IO)
    }

    pub(super) fn size_of(&self, vnode: VnodeId) -> Result<u64, Errno> {
        Ok(self.state().inode(vnode)?.size())
    }
}

pub(super) fn read_backing(backing: &Backing, at: u64, count: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; count];
    let read = backing.read_at(&mut bytes, at)?;
    bytes.truncate(read);
    Ok(bytes)
}
