//! The operations of the file system, free of FUSE: every one may be called from any task, and takes and gives plain
//! values.
//!
//! A vnode number is an inode number. Operations that can be answered from the cache do not wait for anything but the
//! local disk; the others wait for the server, within the deadlines of `remote`. All futures are `'static`.

mod absent;
mod announce;
mod attributes;
mod changes;
mod conflict_report;
mod contents;
mod crowding;
mod delivery;
mod disconnected;
mod editing;
mod error;
mod exclusive;
mod extents;
mod fetching;
mod file;
mod files;
mod frozen;
mod fsync;
mod hoarding;
mod holding;
mod inflow;
mod integrity;
mod kept;
mod kernel;
mod lent;
mod listing;
mod locked;
mod locks;
mod nameless;
mod names;
mod naming;
mod origin;
mod parts;
mod passthrough;
mod paths;
mod pausing;
mod prediction;
mod progress;
mod promises;
mod queue;
mod queue_report;
mod refreshing;
mod reopening;
mod replay;
mod report;
mod rests;
mod room;
mod shown;
mod start;
mod state;
mod statuses;
mod storing;
mod syncing;
mod unanswered;
mod verdicts;
mod versions;
mod xattrs;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::watch;
use mafs_durable::DiskFile;
pub use mafs_durable::Fallocate;
use mafs_proto::{
    Clock, Kind, Mode, Name, Object, RenameMode, SymlinkTarget, Timestamp, VnodeId, XattrMode, XattrName, XattrValue,
};
use tokio::sync::Notify;

use crate::cache::{Cache, CacheStorage};
use crate::core::drain::Drain;
use crate::core::hearing::HearingTime;
use crate::core::log::ContainerId;
use crate::core::prediction::Prediction;
pub use crate::core::prediction::{PrefetchReport, Program};
use crate::core::replacement::Replacement;
pub use crate::core::rpc_statistics::{ClassStatistics, Durations, RpcStatistics};
use crate::core::upload::UploadRate;
use crate::limit::ClassLimit;
use crate::remote::Remote;
pub use changes::{Close, Writeback};
use conflict_report::ConflictCount;
pub use conflict_report::{ConflictEntry, ConflictReport, ConflictsReport, Side};
pub use delivery::Stale;
use editing::Place;
pub use error::Error;
pub use extents::SeekTarget;
use files::Files;
pub use fsync::Fsync;
use hoarding::Hoarding;
pub use hoarding::{Evicted, HoardEntry, HoardFailure, HoardReport, Recorded, Warmed};
pub use integrity::{DamagedContent, Verified};
use kernel::Kernel;
pub use kernel::KernelCache;
use listing::Listings;
use locks::LockState;
pub use locks::{LockStop, Locking, RangeLock};
use progress::SyncJobs;
pub use progress::SyncProgress;
pub use queue_report::{LogReport, QueuePage, QueueReport, QueuedChange, RecordState};
use refreshing::Refreshes;
use replay::Replay;
pub use report::StatusReport;
use rests::Rests;
use room::Room;
pub use room::SpaceReport;
pub use start::{Settings, StartError};
pub use state::{Cached, ObjectReport};

pub use crate::core::caller::Caller;

/// An open file, as the kernel names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileHandle(pub u64);

/// Number of a container of the cache. No other container, of whatever file, ever has this number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ContainerNumber(pub u64);

/// Mode in which a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenMode {
    /// Data will be read.
    pub read: bool,
    /// Data will be written.
    pub write: bool,
    /// The content is dropped (O_TRUNC).
    pub truncate: bool,
    /// Every write goes to the end (O_APPEND).
    pub append: bool,
    /// Data goes past the caches of the kernel (O_DIRECT).
    pub direct: bool,
    /// The content is executed (execve(2)) as long as the file is open.
    pub execute: bool,
    /// The file is to be made, and by nobody else (O_EXCL).
    pub exclusive: bool,
    /// The object that the name meant a moment ago was gone when it was opened.
    pub again: bool,
}

impl OpenMode {
    /// Returns whether an open in this mode changes the content: the content is written, or dropped.
    pub(crate) fn changes(self) -> bool {
        self.write || self.truncate
    }

    /// Returns whether it matters, to a program that makes a file by this open, if another client has made one of
    /// that name: there must be none, or its content counts. A program that truncates takes any.
    pub(crate) fn makes_alone(self) -> bool {
        self.exclusive || !self.truncate
    }
}

/// Result of an open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Handle for read, write, flush, fsync, release.
    pub file: FileHandle,
    /// Whether pages the kernel has of this file are still current.
    pub keep_cache: bool,
    /// Whether the kernel may go by another end than that of this content: reads must come to the daemon, whose
    /// answers end where the content does.
    pub direct: bool,
    /// Whether the kernel is to read and write the [`Vfs::container`] of this handle itself.
    pub passthrough: bool,
}

/// A part of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirPage<E> {
    /// Its entries; none at the end of the listing.
    pub entries: Vec<E>,
    /// Time for which the kernel may take their names for what they are here.
    pub keep: Duration,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The present.
    Now,
    /// This time.
    To(Timestamp),
}

/// Attributes to set; `None` leaves one as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// Permissions.
    pub mode: Option<Mode>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a file.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// One entry of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// Pass it to `read_dir` to go on behind this entry.
    pub next_offset: u64,
    /// The bytes of the name, `.` and `..` included.
    pub name: Bytes,
    /// The object's inode number.
    pub vnode: VnodeId,
    /// Its type.
    pub kind: Kind,
}

/// One entry of a listing with attributes; `object` is `None` for `.` and `..` only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntryPlus {
    /// The entry.
    pub entry: DirEntry,
    /// The object, counted as one lookup of the kernel if it is handed to it.
    pub object: Option<Object>,
}

/// The file system of one mounted volume. Clones are the same.
#[derive(Clone)]
pub struct Vfs {
    inner: Arc<Inner>,
}

/// State that the operations share. Locks, in this order: `files`, a file's `edit`, its `state`, `replacement`; none
/// is held across an await.
struct Inner {
    settings: Settings,
    clock: Arc<dyn Clock>,
    cache: Arc<Cache>,
    remote: Remote,
    kernel: Arc<Kernel>,
    locks: Arc<LockState>,
    files: Mutex<Files>,
    replacement: Mutex<Replacement>,
    listings: Mutex<Listings>,
    /// Notifies of every listing that has come, or has not.
    listing_fetched: watch::Sender<()>,
    /// Whether the kernel may be given containers.
    passthrough: AtomicBool,
    /// Whether a task looks at the sizes of files that the kernel writes.
    watching_sizes: AtomicBool,
    /// Places for fetches that nobody waits for.
    rests: Rests,
    /// Open files that may have to be made current.
    refreshes: Arc<Refreshes>,
    /// Prediction of the files that programs will open next.
    prediction: Mutex<Prediction>,
    /// The hoard: files and directories that are to be here.
    hoarding: Arc<Hoarding>,
    /// Queue of the records that wait to be sent.
    replay: Replay,
    /// Opens that got a version which is not the newest that was announced.
    stale_reads: AtomicU64,
    conflicts: ConflictCount,
    /// A file was closed that the server does not have.
    left_dirty: Notify,
    /// The modify log has grown.
    log_changed: Notify,
    /// Containers to be removed when the log is durable that does not name them any more.
    unnamed: Mutex<Vec<(VnodeId, ContainerId)>>,
    room: Mutex<Room>,
    upload_rate: Mutex<UploadRate>,
    hearing_time: Mutex<HearingTime>,
    /// Speed at which the queue empties.
    drain: Mutex<Drain>,
    /// Jobs that commands wait for.
    sync_jobs: SyncJobs,
    /// Keeps the cache's directory locked.
    #[allow(dead_code, reason = "held for its lock")]
    storage: CacheStorage,
}

impl Vfs {
    /// Returns how long the kernel may use these attributes of an object without asking again.
    #[must_use]
    pub fn time_to_live(&self, object: &Object) -> Duration {
        self.inner.time_to_live(object)
    }

    /// Returns how long the kernel may take a name in a directory to mean nothing.
    #[must_use]
    pub fn absence_time_to_live(&self, parent: VnodeId) -> Duration {
        self.inner.absence_time_to_live(parent)
    }

    /// Returns how long the kernel may take a name in a directory for this object.
    #[must_use]
    pub fn entry_time_to_live(&self, parent: VnodeId, name: &Bytes, object: &Object) -> Duration {
        self.inner.entry_time_to_live(parent, name, object)
    }

    /// Returns how many breaks of promises the kernel has been told of: for [`Self::tell_again`].
    #[must_use]
    pub fn breaks(&self) -> u64 {
        self.inner.kernel.breaks()
    }

    /// Tells the kernel again what it has been told since an operation began, when there had been `breaks`. The
    /// kernel has got the answer of that operation, which may be older. Must be called in a tokio runtime.
    pub fn tell_again(&self, breaks: u64) {
        self.inner.tell_again(breaks);
    }

    /// Tells where to send invalidations, once the kernel is there.
    pub fn set_kernel_cache(&self, kernel: Arc<dyn KernelCache>) {
        self.inner.kernel.set_edge(kernel);
    }

    /// Looks up a name; counts as one lookup of the kernel.
    pub async fn lookup(&self, parent: VnodeId, name: Bytes) -> Result<Object, Error> {
        self.inner.lookup(parent, name).await
    }

    /// Makes the kernel forget a name that has changed its meaning: nobody was told, so the kernel may still hold the
    /// meaning before. Must be called in a tokio runtime.
    pub fn forget_name(&self, parent: VnodeId, name: Name) {
        self.inner.kernel.forget_names(vec![(parent, name)]);
    }

    /// Returns the attributes of an object.
    pub async fn get_attributes(&self, vnode: VnodeId) -> Result<Object, Error> {
        self.inner.get_attributes(vnode).await.inspect(|object| self.inner.kernel.note_told(object))
    }

    /// Returns how many bytes the content of an object takes, for `st_blocks`: holes take none, as far as the content
    /// is here. A large content that is not here is said to take a little less than its size.
    #[must_use]
    pub fn room_of(&self, object: &Object) -> u64 {
        self.inner.room_of(object)
    }

    /// Sets attributes; `file` is the open file it was done through, if any.
    pub async fn set_attributes(
        &self,
        vnode: VnodeId,
        set: Attributes,
        file: Option<FileHandle>,
        caller: Caller,
    ) -> Result<Object, Error> {
        let set = self.inner.set_attributes(vnode, set, file, caller).await;
        set.inspect(|object| self.inner.kernel.note_told(object))
    }

    /// Takes set-user-id and set-group-id off a file that another than root is about to change.
    pub async fn drop_set_id(&self, vnode: VnodeId, caller: Caller) -> Result<(), Error> {
        self.inner.drop_set_id(vnode, caller).await
    }

    /// Returns the target of a symlink.
    pub async fn read_link(&self, vnode: VnodeId) -> Result<SymlinkTarget, Error> {
        attributes::symlink_target(self.inner.get_attributes(vnode).await?)
    }

    /// Returns the value of an extended attribute.
    pub async fn get_xattr(&self, vnode: VnodeId, name: Bytes) -> Result<XattrValue, Error> {
        self.inner.get_xattr(vnode, name).await
    }

    /// Lists the names of the extended attributes that the caller may see.
    pub async fn list_xattrs(&self, vnode: VnodeId, caller: Caller) -> Result<Vec<XattrName>, Error> {
        self.inner.list_xattrs(vnode, caller).await
    }

    /// Sets an extended attribute.
    pub async fn set_xattr(
        &self,
        vnode: VnodeId,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
        caller: Caller,
    ) -> Result<(), Error> {
        self.inner.set_xattr(vnode, name, value, mode, caller).await
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, vnode: VnodeId, name: Bytes, caller: Caller) -> Result<(), Error> {
        self.inner.remove_xattr(vnode, name, caller).await
    }

    /// Makes a file, pipe, socket or device; counts as one lookup.
    pub async fn make_node(
        &self,
        parent: VnodeId,
        name: Bytes,
        kind: Kind,
        mode: Mode,
        rdev: u64,
        caller: Caller,
    ) -> Result<Object, Error> {
        self.inner.make_node((parent, name), kind, mode, rdev, caller).await
    }

    /// Makes a directory; counts as one lookup.
    pub async fn make_dir(&self, parent: VnodeId, name: Bytes, mode: Mode, caller: Caller) -> Result<Object, Error> {
        let made = self.inner.make_dir((parent, name), mode, caller).await?;
        self.inner.note_directory_made(made.fid.vnode);
        Ok(made)
    }

    /// Makes a symlink; counts as one lookup.
    pub async fn make_symlink(
        &self,
        parent: VnodeId,
        name: Bytes,
        target: Bytes,
        caller: Caller,
    ) -> Result<Object, Error> {
        self.inner.make_symlink((parent, name), target, caller).await
    }

    /// Gives an object another name; counts as one lookup.
    pub async fn link(&self, vnode: VnodeId, parent: VnodeId, name: Bytes, caller: Caller) -> Result<Object, Error> {
        self.inner.link(vnode, (parent, name), caller).await
    }

    /// Removes a name of anything but a directory.
    pub async fn unlink(&self, parent: VnodeId, name: Bytes, caller: Caller) -> Result<(), Error> {
        self.inner.remove((parent, name), false, caller).await
    }

    /// Removes an empty directory.
    pub async fn remove_dir(&self, parent: VnodeId, name: Bytes, caller: Caller) -> Result<(), Error> {
        self.inner.remove((parent, name), true, caller).await
    }

    /// Moves a name.
    pub async fn rename(
        &self,
        from_parent: VnodeId,
        from_name: Bytes,
        to_parent: VnodeId,
        to_name: Bytes,
        mode: RenameMode,
        caller: Caller,
    ) -> Result<(), Error> {
        self.inner.rename((from_parent, from_name), (to_parent, to_name), mode, caller).await
    }

    /// Opens a file for a program that has no name.
    pub async fn open(&self, vnode: VnodeId, mode: OpenMode, caller: Caller) -> Result<Opened, Error> {
        self.open_by(vnode, mode, caller, Program::default).await
    }

    /// Makes a file and opens it; counts as one lookup. If the name exists: `Exists` (the kernel looked before).
    pub async fn create(
        &self,
        parent: VnodeId,
        name: Bytes,
        permissions: Mode,
        mode: OpenMode,
        caller: Caller,
    ) -> Result<(Object, Opened), Error> {
        self.inner.create((parent, name), permissions, mode, caller).await
    }

    /// Returns the file on the local disk that holds the content behind a handle opened with [`Opened::passthrough`].
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn container(&self, file: FileHandle) -> Result<Arc<dyn DiskFile>, Error> {
        self.inner.container(file)
    }

    /// Returns the container as [`Self::container`] does, with its number, which no other container has ever had.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn numbered_container(&self, file: FileHandle) -> Result<(ContainerNumber, Arc<dyn DiskFile>), Error> {
        self.inner.numbered_container(file)
    }

    /// Offers no containers from now on: the kernel takes none.
    pub fn end_passthrough(&self, why: &str) {
        self.inner.end_passthrough(why);
    }

    /// Ends passthrough for a handle whose container the kernel has not taken: the kernel reads and writes by
    /// [`Self::read`] and [`Self::write`].
    ///
    /// # Errors
    /// If the local disk fails.
    pub fn leave_passthrough(&self, file: FileHandle) -> Result<(), Error> {
        self.inner.leave_passthrough(file)
    }

    /// Reads up to `size` bytes; fewer only at the end of the file.
    pub async fn read(&self, file: FileHandle, offset: u64, size: u32) -> Result<Bytes, Error> {
        self.inner.read(file, offset, size).await
    }

    /// Writes all of `data`.
    pub async fn write(&self, file: FileHandle, offset: u64, data: Bytes) -> Result<(), Error> {
        self.inner.write(file, Place::At(offset), data).await.map(drop)
    }

    /// Reserves, zeroes or gives back a range, as fallocate(2).
    pub async fn allocate(&self, file: FileHandle, how: Fallocate, offset: u64, bytes: u64) -> Result<(), Error> {
        self.inner.allocate(file, how, offset, bytes).await
    }

    /// Returns where the next data or hole at or behind `offset` is.
    pub async fn seek(&self, file: FileHandle, target: SeekTarget, offset: u64) -> Result<u64, Error> {
        self.inner.seek(file, target, offset).await
    }

    /// Copies up to `bytes` bytes between two places in open files, and returns how many: 0 at the end of the source,
    /// and fewer than asked if that takes long.
    pub async fn copy_range(&self, from: (FileHandle, u64), to: (FileHandle, u64), bytes: u64) -> Result<u64, Error> {
        self.inner.copy_range(from, to, bytes).await
    }

    /// Handles the close of a descriptor: the file's data goes to the server, or into the log, before this returns.
    pub async fn flush(&self, file: FileHandle) -> Result<(), Error> {
        self.inner.flush(file).await.and_then(|()| self.inner.check_locks(file))
    }

    /// Makes what was written durable: on the server if that will be quick, else on this machine's disk.
    pub async fn fsync(&self, file: FileHandle) -> Result<(), Error> {
        self.inner.fsync(file).await
    }

    /// Makes changes of names durable: those made at the server are so when they return, and those that wait are in
    /// the log.
    pub async fn fsync_dir(&self) -> Result<(), Error> {
        self.inner.fsync_dir().await
    }

    /// Releases an open file whose last descriptor is gone.
    pub fn release(&self, file: FileHandle) {
        self.inner.release(file);
        self.inner.unlock_released(file);
    }

    /// Returns entries of a directory behind the place `offset` (0: from the first on), at most `count_max`. An entry
    /// behind a place stays behind it, whatever names come and go; a name that is replaced may move to the end.
    pub async fn read_dir(&self, vnode: VnodeId, offset: u64, count_max: usize) -> Result<DirPage<DirEntry>, Error> {
        self.inner.read_dir(vnode, offset, count_max).await
    }

    /// Returns entries as [`Self::read_dir`] does, with attributes; every object the caller hands to the kernel must
    /// be counted with `count_lookup`.
    pub async fn read_dir_plus(
        &self,
        vnode: VnodeId,
        offset: u64,
        count_max: usize,
    ) -> Result<DirPage<DirEntryPlus>, Error> {
        self.inner.read_dir_plus(vnode, offset, count_max).await
    }

    /// Counts a lookup of an object that the kernel got in a listing.
    pub fn count_lookup(&self, object: &Object) {
        self.inner.kernel.count_lookup(object);
    }

    /// Returns how full the file system is.
    pub async fn space(&self) -> Result<SpaceReport, Error> {
        self.inner.space().await
    }

    /// Waits until the server has everything that was written before the call.
    pub async fn sync(&self) -> Result<(), Error> {
        self.inner.sync().await
    }

    /// Reports what is going on.
    #[must_use]
    pub fn status(&self) -> StatusReport {
        self.inner.status()
    }

    /// Limits what is sent of a class, from now on.
    pub fn limit(&self, limit: ClassLimit) {
        self.inner.remote.limit(limit);
    }

    /// Returns statistics of the calls since the mount.
    #[must_use]
    pub fn statistics(&self) -> RpcStatistics {
        self.inner.remote.statistics()
    }
}
