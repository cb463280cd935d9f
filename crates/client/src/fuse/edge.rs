//! The common part of all handlers: the file system, the kernel's caches, and the way from results to replies.

use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fuser::{
    BackingId, Errno, FileAttr, FileType, Generation, INodeNo, ReplyAttr, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyStatfs, ReplyXattr, Request,
};
use mafs_proto::{FsError, Name, Object, VnodeId};

use super::answer::{Answerer, Killed};
use super::awake::Awake;
use super::backings::Backings;
use super::caller::{is_interrupted, is_killed};
use super::convert::{BLOCK_BYTES, NO_TIME, attributes, bare_attributes, file_type};
use super::errno::{TOO_SMALL, errno};
use super::kernel_cache::Invalidator;
use super::late::LateOpens;
use super::programs::Programs;
use super::recording::recording_of;
use crate::vfs::{DirEntry, DirEntryPlus, DirPage, Error, FileHandle, KernelCache, OpenMode, Opened, SpaceReport, Vfs};

/// One mount, as its handlers see it.
pub(super) struct Edge {
    pub(super) vfs: Vfs,
    pub(super) kernel: Arc<Invalidator>,
    pub(super) answerer: Answerer,
    pub(super) backings: Backings<BackingId>,
    pub(super) programs: Programs,
    pub(super) late: LateOpens,
    /// Present where waking a processor is dear.
    pub(super) awake: Option<Arc<Awake>>,
}

impl Edge {
    /// Notes that a program opens an object, if its opens are being recorded.
    pub(super) fn note_opened(&self, request: &Request, vnode: VnodeId) {
        if let Some(ticket) = self.recording(request) {
            self.vfs.note_opened(ticket, vnode);
        }
    }

    /// Returns the recording that a program belongs to.
    pub(super) fn recording(&self, request: &Request) -> Option<u64> {
        if self.vfs.is_recording() { recording_of(request.pid()) } else { None }
    }

    /// Runs an operation for the caller of `request`. `reply` gets the result; if the caller is killed before,
    /// `give_back` gets what the operation yields in the end.
    pub(super) fn run<T, F>(
        self: &Arc<Self>,
        request: &Request,
        operation: impl FnOnce(Vfs) -> F,
        reply: impl FnOnce(&Self, Result<T, Error>) + Send + 'static,
        give_back: impl FnOnce(&Self, T) + Send + 'static,
    ) where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        if let Some(awake) = &self.awake {
            awake.note_request();
        }
        let (answering, forgotten) = (Arc::clone(self), Arc::clone(self));
        self.answerer.run(
            request.pid(),
            operation(self.vfs.clone()),
            move |result| reply(&answering, result),
            move |value| give_back(&forgotten, value),
        );
    }

    /// Runs an operation that, if it `waits`, waits for other programs: any signal that its caller handles ends the
    /// wait. `stop` tells the operation so, and then it comes to its end by itself.
    pub(super) fn run_until_interrupted<F>(
        self: &Arc<Self>,
        request: &Request,
        waits: bool,
        operation: impl FnOnce(Vfs) -> F,
        reply: impl FnOnce(&Self, Result<(), Error>) + Send + 'static,
        stop: impl FnOnce() + Send + 'static,
    ) where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let answering = Arc::clone(self);
        let operation = operation(self.vfs.clone());
        let interrupted: Killed = Arc::new(if waits { is_interrupted } else { is_killed });
        self.answerer.run_until(
            request.pid(),
            interrupted,
            operation,
            move |result| reply(&answering, result),
            stop,
            |()| {},
        );
    }

    /// Runs an operation whose answer the kernel keeps: if something that it may show has changed since it began, the
    /// kernel is told behind the answer.
    pub(super) fn show<T, F>(
        self: &Arc<Self>,
        request: &Request,
        operation: impl FnOnce(Vfs) -> F,
        reply: impl FnOnce(&Self, Result<T, Error>) + Send + 'static,
        give_back: impl FnOnce(&Self, T) + Send + 'static,
    ) where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let breaks = self.vfs.breaks();
        let reply = move |edge: &Self, result| {
            reply(edge, result);
            let _in_runtime = edge.answerer.runtime().enter();
            edge.vfs.tell_again(breaks);
        };
        self.run(request, operation, reply, give_back);
    }

    /// Whether a thread has just opened an object that was gone, so that the kernel tries once more for it.
    pub(super) fn is_late(&self, request: &Request) -> bool {
        self.late.contains(request.pid(), Instant::now())
    }

    /// Notes that a thread's next opens are second tries: the name that was gone has been looked up for it.
    pub(super) fn note_late(&self, thread: u32) {
        self.late.note(thread, Instant::now());
    }

    /// Returns the errno of an open that has failed, and notes the thread if the object was gone.
    pub(super) fn not_opened(&self, thread: u32, error: &Error) -> Errno {
        if matches!(error, Error::Refused(FsError::Stale)) {
            self.note_late(thread);
        }
        errno(error)
    }

    /// Forgets an object that was looked up, and of which the caller was not told.
    pub(super) fn forget(&self, object: &Object) {
        self.vfs.forget(object.fid.vnode, 1);
    }

    /// Forgets an object that was made, and of which the caller was not told.
    pub(super) fn forget_made(&self, parent: VnodeId, name: Bytes, object: &Object) {
        self.forget(object);
        self.forget_name(parent, name);
    }

    /// Makes the kernel forget a name that has changed its meaning without an answer to the caller.
    pub(super) fn forget_name(&self, parent: VnodeId, name: Bytes) {
        if let Ok(name) = Name::new(name) {
            self.vfs.forget_name(parent, name);
        }
    }

    /// Makes the kernel forget an object that has changed without an answer to the caller.
    pub(super) fn forget_attributes(&self, vnode: VnodeId) {
        let _in_runtime = self.answerer.runtime().enter();
        Arc::clone(&self.kernel).invalidate_inode_later(vnode);
    }

    /// Releases an open file whose last descriptor is gone, or of which the caller was not told. Enters the runtime,
    /// since session threads are outside of it.
    pub(super) fn release(&self, file: FileHandle) {
        let _in_runtime = self.answerer.runtime().enter();
        // This comes first: once the handle is gone the file's content may move to another container.
        self.backings.drop_handle(file);
        self.vfs.release(file);
    }

    /// Returns how long the kernel may keep what it is told of an object in a directory.
    pub(super) fn entry_time_to_live(&self, parent: VnodeId, name: &Bytes, object: &Object) -> Duration {
        self.vfs.entry_time_to_live(parent, name, object)
    }

    /// Drops the kernel's attributes of a file before it is mapped for stores: the kernel tells nobody of these, so it
    /// must not remember attributes from before.
    pub(super) fn expect_stores(&self, vnode: VnodeId, mode: OpenMode) {
        if mode.read && mode.write {
            self.kernel.invalidate_attributes(vnode);
        }
    }

    /// Hands the container behind an open file to the kernel, if it is to have it and takes it. `register` asks it to.
    pub(super) fn hand_over(
        &self,
        opened: Opened,
        register: impl FnOnce(BorrowedFd<'_>) -> io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        if !opened.passthrough {
            return None;
        }
        let (number, container) = self.vfs.numbered_container(opened.file).ok()?;
        let backing = self.backings.add_handle(number, opened.file, || match container.descriptor() {
            Some(descriptor) => register(descriptor),
            None => Err(io::ErrorKind::Unsupported.into()),
        });
        match backing {
            Ok(backing) => return Some(backing),
            Err(Some(error)) => self.vfs.end_passthrough(&format!("the kernel does not take a file: {error}")),
            Err(None) => {}
        }
        let _in_runtime = self.answerer.runtime().enter();
        if let Err(error) = self.vfs.leave_passthrough(opened.file) {
            tracing::error!(%error, "an opened file cannot be looked at");
        }
        None
    }

    /// Answers with an object that a name in `parent` means.
    pub(super) fn entry(&self, reply: ReplyEntry, parent: VnodeId, name: &Bytes, result: Result<Object, Error>) {
        match result {
            Ok(object) => {
                let keep = self.entry_time_to_live(parent, name, &object);
                reply.entry(&keep, &self.file_attr(&object), generation(&object));
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Answers that a name in `parent` means nothing, in the way that the kernel remembers: inode 0.
    pub(super) fn absent(&self, reply: ReplyEntry, parent: VnodeId) {
        let nothing = bare_attributes(INodeNo(0), FileType::RegularFile);
        reply.entry(&self.vfs.absence_time_to_live(parent), &nothing, Generation(0));
    }

    /// Returns an object's attributes as the kernel takes them.
    pub(super) fn file_attr(&self, object: &Object) -> FileAttr {
        attributes(object, self.vfs.room_of(object))
    }

    /// Answers with attributes.
    pub(super) fn attributes(&self, reply: ReplyAttr, result: Result<Object, Error>) {
        match result {
            Ok(object) => reply.attr(&self.vfs.time_to_live(&object), &self.file_attr(&object)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Answers with as many entries as the kernel has room for.
    pub(super) fn listing(&self, mut reply: ReplyDirectory, result: Result<DirPage<DirEntry>, Error>) {
        match result {
            Ok(DirPage { entries, .. }) => {
                for entry in entries {
                    let inode = INodeNo(entry.vnode.0);
                    if reply.add(inode, entry.next_offset, file_type(entry.kind), os_str(&entry.name)) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Answers with entries and their attributes. Each lookup is counted before the kernel gets it, so that no forget
    /// comes first.
    pub(super) fn listing_plus(&self, mut reply: ReplyDirectoryPlus, result: Result<DirPage<DirEntryPlus>, Error>) {
        match result {
            Ok(DirPage { entries, keep: keep_names }) => {
                for DirEntryPlus { entry, object } in entries {
                    let (attributes, generation, keep) = match &object {
                        Some(object) => {
                            let keep = keep_names.min(self.vfs.time_to_live(object));
                            (self.file_attr(object), generation(object), keep)
                        }
                        // These are `.` and `..`, of which the kernel takes the number only.
                        None => {
                            (bare_attributes(INodeNo(entry.vnode.0), file_type(entry.kind)), Generation(0), NO_TIME)
                        }
                    };
                    let name = os_str(&entry.name);
                    if reply.add(attributes.ino, entry.next_offset, name, &keep, &attributes, generation) {
                        break;
                    }
                    if let Some(object) = object {
                        self.vfs.count_lookup(&object);
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(errno(&error)),
        }
    }
}

/// Answers with the bytes of extended attributes if there is room for them, with their number if the caller gives no
/// room.
pub(super) fn xattr(reply: ReplyXattr, room: u32, result: Result<Vec<u8>, Error>) {
    match result {
        Ok(bytes) => match u32::try_from(bytes.len()) {
            Ok(size) if room == 0 => reply.size(size),
            Ok(size) if size <= room => reply.data(&bytes),
            Ok(_) | Err(_) => reply.error(TOO_SMALL),
        },
        Err(error) => reply.error(errno(&error)),
    }
}

/// Answers with how full the file system is.
pub(super) fn space(reply: ReplyStatfs, result: Result<SpaceReport, Error>) {
    let names = u32::try_from(Name::BYTES_MAX).unwrap_or(u32::MAX);
    match result {
        Ok(space) => {
            let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
            let (total, unused, free) =
                (blocks(space.bytes_total), blocks(space.bytes_unused), blocks(space.bytes_free));
            let (files, files_free) = (space.files_total, space.files_free);
            reply.statfs(total, unused, free, files, files_free, BLOCK_BYTES, names, BLOCK_BYTES);
        }
        Err(error) => reply.error(errno(&error)),
    }
}

/// Answers with success or an errno.
pub(super) fn done(reply: ReplyEmpty, result: Result<(), Error>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn generation(object: &Object) -> Generation {
    Generation(u64::from(object.fid.unique.0))
}

fn os_str(name: &Bytes) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(name)
}
