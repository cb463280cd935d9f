//! One handler per request of the kernel: convert, run, reply.
//!
//! fuser answers the rest with ENOSYS, and the kernel remembers that: poll, ioctl, access (it checks by itself).

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use mafs_proto::{FsError, Mode};

use super::capabilities::{ask_for_capabilities, set_limits};
use super::convert::{
    caller, fallocate_mode, file, name, node_kind, open_answer, open_mode, rename_mode, seek_target, set_time, vnode,
    xattr_list, xattr_mode,
};
use super::edge::{Edge, done, generation, space, xattr};
use super::errno::{INVALID, NEEDLESS, STALE, UNSUPPORTED, errno};
use super::locks::{self, AskedLock};
use crate::vfs::{Attributes, Error, OpenMode};

/// Entries fetched for one page of a listing. The kernel's buffer is 32 KB at most programs, an entry at least 32
/// bytes, with attributes 160.
const ENTRIES_MAX: usize = 1024;
const ENTRIES_PLUS_MAX: usize = 205;

/// The file system as fuser calls it.
pub(super) struct Handlers {
    edge: Arc<Edge>,
    /// Whether the kernel can only read directories that it has opened: before Linux 5.1.
    opens_directories: bool,
    /// Whether the kernel maps files whose reads go by the daemon: since Linux 6.6.
    maps_direct: bool,
}

impl Handlers {
    pub(super) fn new(edge: Edge) -> Self {
        Self { edge: Arc::new(edge), opens_directories: true, maps_direct: false }
    }
}

impl Filesystem for Handlers {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let capabilities = ask_for_capabilities(&self.edge.vfs, config);
        self.opens_directories = !capabilities.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        self.maps_direct = capabilities.contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        set_limits(config)
    }

    fn lookup(&self, request: &Request, parent: INodeNo, entry: &OsStr, reply: ReplyEntry) {
        let (parent, entry) = (vnode(parent), name(entry));
        let (again, thread, asked) = (self.edge.is_late(request), request.pid(), entry.clone());
        self.edge.show(
            request,
            |vfs| async move {
                if again { vfs.lookup_again(parent, entry).await } else { vfs.lookup_remembered(parent, entry).await }
            },
            move |edge, result| {
                if again {
                    edge.note_late(thread);
                }
                match result.transpose() {
                    Some(found) => edge.entry(reply, parent, &asked, found),
                    None => edge.absent(reply, parent),
                }
            },
            |edge, found| found.iter().for_each(|object| edge.forget(object)),
        );
    }

    fn forget(&self, _request: &Request, inode: INodeNo, count: u64) {
        self.edge.vfs.forget(vnode(inode), count);
    }

    fn getattr(&self, request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let vnode = vnode(inode);
        self.edge.show(
            request,
            |vfs| async move { vfs.get_attributes(vnode).await },
            |edge, result| edge.attributes(reply, result),
            |_, _| {},
        );
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (vnode, caller, handle) = (vnode(inode), caller(request), handle.map(file));
        let (atime, mtime) = (atime.map(set_time), mtime.map(set_time));
        let set = Attributes { mode: mode.map(Mode::from_bits), uid, gid, size, atime, mtime };
        self.edge.show(
            request,
            |vfs| async move { vfs.set_attributes(vnode, set, handle, caller).await },
            |edge, result| edge.attributes(reply, result),
            move |edge, _| edge.forget_attributes(vnode),
        );
    }

    fn readlink(&self, request: &Request, inode: INodeNo, reply: ReplyData) {
        let vnode = vnode(inode);
        self.edge.run(
            request,
            |vfs| async move { vfs.read_link(vnode).await },
            |_, result| match result {
                Ok(target) => reply.data(target.as_bytes()),
                Err(error) => reply.error(errno(&error)),
            },
            |_, _| {},
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        entry: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = node_kind(mode) else { return reply.error(INVALID) };
        let (parent, entry, caller, rdev) = (vnode(parent), name(entry), caller(request), u64::from(rdev));
        let (made, shown) = (entry.clone(), entry.clone());
        self.edge.show(
            request,
            |vfs| async move { vfs.make_node(parent, entry, kind, Mode::from_bits(mode), rdev, caller).await },
            move |edge, result| edge.entry(reply, parent, &shown, result),
            move |edge, object| edge.forget_made(parent, made, &object),
        );
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, entry: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let (parent, entry, caller) = (vnode(parent), name(entry), caller(request));
        let (made, shown) = (entry.clone(), entry.clone());
        self.edge.show(
            request,
            |vfs| async move { vfs.make_dir(parent, entry, Mode::from_bits(mode), caller).await },
            move |edge, result| edge.entry(reply, parent, &shown, result),
            move |edge, object| edge.forget_made(parent, made, &object),
        );
    }

    fn symlink(&self, request: &Request, parent: INodeNo, entry: &OsStr, target: &Path, reply: ReplyEntry) {
        let (parent, entry, target, caller) = (vnode(parent), name(entry), name(target.as_os_str()), caller(request));
        let (made, shown) = (entry.clone(), entry.clone());
        self.edge.show(
            request,
            |vfs| async move { vfs.make_symlink(parent, entry, target, caller).await },
            move |edge, result| edge.entry(reply, parent, &shown, result),
            move |edge, object| edge.forget_made(parent, made, &object),
        );
    }

    fn link(&self, request: &Request, inode: INodeNo, parent: INodeNo, entry: &OsStr, reply: ReplyEntry) {
        let (vnode, parent, entry, caller) = (vnode(inode), vnode(parent), name(entry), caller(request));
        let (made, shown) = (entry.clone(), entry.clone());
        self.edge.show(
            request,
            |vfs| async move { vfs.link(vnode, parent, entry, caller).await },
            move |edge, result| edge.entry(reply, parent, &shown, result),
            move |edge, object| edge.forget_made(parent, made, &object),
        );
    }

    fn unlink(&self, request: &Request, parent: INodeNo, entry: &OsStr, reply: ReplyEmpty) {
        let (parent, entry, caller) = (vnode(parent), name(entry), caller(request));
        let removed = entry.clone();
        self.edge.run(
            request,
            |vfs| async move { vfs.unlink(parent, entry, caller).await },
            |_, result| done(reply, result),
            move |edge, ()| edge.forget_name(parent, removed),
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, entry: &OsStr, reply: ReplyEmpty) {
        let (parent, entry, caller) = (vnode(parent), name(entry), caller(request));
        let removed = entry.clone();
        self.edge.run(
            request,
            |vfs| async move { vfs.remove_dir(parent, entry, caller).await },
            |_, result| done(reply, result),
            move |edge, ()| edge.forget_name(parent, removed),
        );
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        entry: &OsStr,
        new_parent: INodeNo,
        new_entry: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = rename_mode(flags) else { return reply.error(INVALID) };
        let (from, from_name, to, to_name) = (vnode(parent), name(entry), vnode(new_parent), name(new_entry));
        let (caller, lost, gained) = (caller(request), from_name.clone(), to_name.clone());
        self.edge.run(
            request,
            |vfs| async move { vfs.rename(from, from_name, to, to_name, mode, caller).await },
            |_, result| done(reply, result),
            move |edge, ()| {
                edge.forget_name(from, lost);
                edge.forget_name(to, gained);
            },
        );
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (vnode, caller) = (vnode(inode), caller(request));
        let mode = OpenMode { again: self.edge.is_late(request), ..open_mode(flags) };
        self.edge.note_opened(request, vnode);
        let (edge, pid, maps_direct) = (Arc::clone(&self.edge), request.pid(), self.maps_direct);
        self.edge.run(
            request,
            |vfs| async move { vfs.open_by(vnode, mode, caller, || edge.programs.of(pid)).await },
            move |edge, result| match result {
                Ok(opened) => {
                    let (handle, flags) = open_answer(opened, maps_direct);
                    match edge.hand_over(opened, |container| reply.open_backing(container)) {
                        Some(backing) => {
                            edge.expect_stores(vnode, mode);
                            reply.opened_passthrough(handle, flags, &backing);
                        }
                        None => reply.opened(handle, flags),
                    }
                }
                Err(error) => reply.error(edge.not_opened(pid, &error)),
            },
            |edge, opened| edge.release(opened.file),
        );
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        entry: &OsStr,
        permissions: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (parent, entry, caller) = (vnode(parent), name(entry), caller(request));
        let (permissions, mode, made) = (Mode::from_bits(permissions), open_mode(OpenFlags(flags)), entry.clone());
        let (shown, recording, maps_direct) = (entry.clone(), self.edge.recording(request), self.maps_direct);
        self.edge.show(
            request,
            |vfs| async move { vfs.create(parent, entry, permissions, mode, caller).await },
            move |edge, result| match result {
                Ok((object, opened)) => {
                    if let Some(ticket) = recording {
                        edge.vfs.note_opened(ticket, object.fid.vnode);
                    }
                    let (handle, flags) = open_answer(opened, maps_direct);
                    let (kept, made) = (edge.file_attr(&object), generation(&object));
                    let keep = edge.entry_time_to_live(parent, &shown, &object);
                    match edge.hand_over(opened, |container| reply.open_backing(container)) {
                        Some(backing) => reply.created_passthrough(&keep, &kept, made, handle, flags, &backing),
                        None => reply.created(&keep, &kept, made, handle, flags),
                    }
                }
                Err(Error::Refused(FsError::Exists)) if !mode.exclusive => reply.error(STALE),
                Err(error) => reply.error(errno(&error)),
            },
            move |edge, (object, opened)| {
                edge.release(opened.file);
                edge.forget_made(parent, made, &object);
            },
        );
    }

    fn read(
        &self,
        request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file = file(handle);
        self.edge.run(
            request,
            |vfs| async move { vfs.read(file, offset, size).await },
            |_, result| match result {
                Ok(data) => reply.data(&data),
                Err(error) => reply.error(errno(&error)),
            },
            |_, _| {},
        );
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (vnode, file, data) = (vnode(inode), file(handle), Bytes::copy_from_slice(data));
        // The kernel never sends more than a megabyte.
        let written = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let (caller, drops_set_id) = (caller(request), write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID));
        let is_mapped = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        self.edge.run(
            request,
            move |vfs| async move {
                if drops_set_id {
                    vfs.drop_set_id(vnode, caller).await?;
                }
                match is_mapped {
                    true => vfs.write_back(file, offset, data).await.map(|()| offset),
                    // fcntl(2) may have changed this flag since the open.
                    false if open_mode(flags).append => vfs.append(file, data).await,
                    false => vfs.write(file, offset, data).await.map(|()| offset),
                }
            },
            move |edge, result| match result {
                Ok(place) => {
                    reply.written(written);
                    if place != offset {
                        // The kernel has these bytes where the file ended before.
                        edge.forget_attributes(vnode);
                    }
                }
                Err(error) => reply.error(errno(&error)),
            },
            move |edge, _| edge.forget_attributes(vnode),
        );
    }

    fn fallocate(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(how) = fallocate_mode(mode) else { return reply.error(UNSUPPORTED) };
        let (vnode, file, caller) = (vnode(inode), file(handle), caller(request));
        self.edge.run(
            request,
            move |vfs| async move {
                vfs.drop_set_id(vnode, caller).await?;
                vfs.allocate(file, how, offset, length).await
            },
            |_, result| done(reply, result),
            move |edge, ()| edge.forget_attributes(vnode),
        );
    }

    fn lseek(
        &self,
        request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let (Some(target), Ok(offset)) = (seek_target(whence), u64::try_from(offset)) else {
            return reply.error(INVALID);
        };
        let file = file(handle);
        self.edge.run(
            request,
            move |vfs| async move { vfs.seek(file, target, offset).await },
            |_, result| match result {
                Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
                Err(error) => reply.error(errno(&error)),
            },
            |_, _| {},
        );
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _from: INodeNo,
        from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        to_handle: FileHandle,
        to_offset: u64,
        length: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if !flags.is_empty() {
            return reply.error(INVALID);
        }
        let (vnode, from, to) = (vnode(to), (file(from_handle), from_offset), (file(to_handle), to_offset));
        let caller = caller(request);
        self.edge.run(
            request,
            move |vfs| async move {
                vfs.drop_set_id(vnode, caller).await?;
                vfs.copy_range(from, to, length).await
            },
            |_, result| match result {
                Ok(copied) => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
                Err(error) => reply.error(errno(&error)),
            },
            move |edge, _| edge.forget_attributes(vnode),
        );
    }

    fn flush(&self, request: &Request, _inode: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        let (file, owner) = (file(handle), owner.0);
        self.edge.run(
            request,
            move |vfs| async move { vfs.flush_and_unlock(file, owner).await },
            |_, result| done(reply, result),
            |_, ()| {},
        );
    }

    fn getlk(
        &self,
        request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        process: u32,
        reply: ReplyLock,
    ) {
        locks::test(&self.edge, request, AskedLock { handle, owner, process, start, end, kind }, reply);
    }

    fn setlk(
        &self,
        request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        process: u32,
        wait: bool,
        reply: ReplyEmpty,
    ) {
        locks::set(&self.edge, request, AskedLock { handle, owner, process, start, end, kind }, wait, reply);
    }

    fn fsync(&self, request: &Request, _inode: INodeNo, handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let file = file(handle);
        self.edge.run(request, |vfs| async move { vfs.fsync(file).await }, |_, result| done(reply, result), |_, ()| {});
    }

    fn release(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.edge.release(file(handle));
        reply.ok();
    }

    /// Tells the kernel that directories are read without being opened, and that it may keep their entries. Once it
    /// has heard so, it opens and closes them by itself.
    fn opendir(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.opens_directories {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE);
        } else {
            reply.error(NEEDLESS);
        }
    }

    fn readdir(&self, request: &Request, inode: INodeNo, _handle: FileHandle, offset: u64, reply: ReplyDirectory) {
        let vnode = vnode(inode);
        self.edge.note_opened(request, vnode);
        self.edge.show(
            request,
            |vfs| async move { vfs.read_dir(vnode, offset, ENTRIES_MAX).await },
            |edge, result| edge.listing(reply, result),
            |_, _| {},
        );
    }

    fn readdirplus(
        &self,
        request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let vnode = vnode(inode);
        self.edge.note_opened(request, vnode);
        self.edge.show(
            request,
            |vfs| async move { vfs.read_dir_plus(vnode, offset, ENTRIES_PLUS_MAX).await },
            |edge, result| edge.listing_plus(reply, result),
            |_, _| {},
        );
    }

    fn fsyncdir(&self, request: &Request, _inode: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.edge.run(request, |vfs| async move { vfs.fsync_dir().await }, |_, result| done(reply, result), |_, ()| {});
    }

    fn setxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        attribute: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = xattr_mode(flags) else { return reply.error(INVALID) };
        let (vnode, caller) = (vnode(inode), caller(request));
        let (attribute, value) = (name(attribute), Bytes::copy_from_slice(value));
        self.edge.run(
            request,
            |vfs| async move { vfs.set_xattr(vnode, attribute, value, mode, caller).await },
            |_, result| done(reply, result),
            move |edge, ()| edge.forget_attributes(vnode),
        );
    }

    fn getxattr(&self, request: &Request, inode: INodeNo, attribute: &OsStr, room: u32, reply: ReplyXattr) {
        let (vnode, attribute) = (vnode(inode), name(attribute));
        self.edge.run(
            request,
            |vfs| async move { vfs.get_xattr(vnode, attribute).await },
            move |_, result| xattr(reply, room, result.map(|value| value.as_bytes().to_vec())),
            |_, _| {},
        );
    }

    fn listxattr(&self, request: &Request, inode: INodeNo, room: u32, reply: ReplyXattr) {
        let (vnode, caller) = (vnode(inode), caller(request));
        self.edge.run(
            request,
            |vfs| async move { vfs.list_xattrs(vnode, caller).await },
            move |_, result| xattr(reply, room, result.map(|names| xattr_list(&names))),
            |_, _| {},
        );
    }

    fn removexattr(&self, request: &Request, inode: INodeNo, attribute: &OsStr, reply: ReplyEmpty) {
        let (vnode, attribute, caller) = (vnode(inode), name(attribute), caller(request));
        self.edge.run(
            request,
            |vfs| async move { vfs.remove_xattr(vnode, attribute, caller).await },
            |_, result| done(reply, result),
            move |edge, ()| edge.forget_attributes(vnode),
        );
    }

    fn statfs(&self, request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        self.edge.run(request, |vfs| async move { vfs.space().await }, |_, result| space(reply, result), |_, _| {});
    }
}
