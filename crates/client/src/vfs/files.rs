//! Files: open, create, read, close; and which are in use.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::future::join;
use mafs_arpc::blocking;
use mafs_durable::DiskFile;
use mafs_proto::{CmlOp, ContentHash, DataVersion, Fid, FsError, Kind, Mode, Object, VnodeId};

use super::contents::loaded;
use super::file::{Arrival, File};
use super::kernel::Kept;
use super::names::parse;
use super::{Caller, Error, FileHandle, Inner, OpenMode, Opened, Program};
use crate::cache::CachedObject;
use crate::core::content::Rest;
use crate::core::log::ContainerId;

/// The most versions that an open tries to fetch of a file that other clients store at the same time. A program that
/// closes it every few milliseconds is ahead of the opener several times in a row.
const VERSIONS_MAX: u32 = 64;

/// The most times that a read begins anew because the content has become another.
const TURNS_MAX: u32 = 16;

/// The files in use, and the handles on them.
#[derive(Default)]
pub(super) struct Files {
    /// Files in a fixed order, so that runs of the simulator repeat when all are looked through.
    in_use: BTreeMap<VnodeId, Arc<File>>,
    handles: HashMap<FileHandle, Handle>,
}

#[derive(Clone)]
pub(super) struct Handle {
    pub(super) file: Arc<File>,
    pub(super) mode: OpenMode,
    /// Whether the kernel has the container.
    pub(super) passthrough: bool,
    /// Whether its program has closed it, as far as is known: the kernel releases it soon.
    closing: bool,
}

impl Handle {
    /// Makes a handle on a file that has just been opened, which goes by this daemon.
    fn new(file: Arc<File>, mode: OpenMode) -> Self {
        if mode.changes() {
            file.state().begin_changing();
        }
        Self { file, mode, passthrough: false, closing: false }
    }

    /// Returns whether the kernel can write to the container by itself.
    fn may_write(&self) -> bool {
        self.passthrough && self.mode.write
    }

    /// Notes that no change comes from this handle any more.
    fn end_changing(&self) {
        if self.mode.changes() {
            self.file.state().end_changing();
        }
    }

    fn may_write_to(&self, vnode: VnodeId) -> bool {
        self.may_write() && self.file.fid.vnode == vnode
    }
}

impl FileHandle {
    /// Makes the number-th handle, on a file that programs here lock or not. Its lowest bits say what is asked at
    /// every open and close.
    pub(crate) fn new(number: u64, mode: OpenMode, locked: bool) -> Self {
        let only_reads = !mode.write && !mode.truncate;
        Self(number << 2 | u64::from(only_reads && !locked) << 1 | u64::from(only_reads))
    }

    /// Returns whether nothing can have been changed through this handle.
    pub(super) fn only_reads(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns whether the kernel need not tell when a descriptor of this handle is closed. A close has something to
    /// do if its program has written, and it ends what its process has locked of the file, by whichever descriptor.
    #[must_use]
    pub fn closes_unseen(self) -> bool {
        self.0 & 2 != 0
    }
}

impl Files {
    pub(super) fn get(&self, vnode: VnodeId) -> Option<Arc<File>> {
        self.in_use.get(&vnode).cloned()
    }

    pub(super) fn contains(&self, vnode: VnodeId) -> bool {
        self.in_use.contains_key(&vnode)
    }

    pub(super) fn insert(&mut self, file: Arc<File>) {
        self.in_use.insert(file.fid.vnode, file);
    }

    pub(super) fn all(&self) -> Vec<Arc<File>> {
        self.in_use.values().cloned().collect()
    }

    /// Returns the files whose content the server does not have.
    pub(super) fn dirty(&self) -> Vec<Arc<File>> {
        self.in_use.values().filter(|file| file.state().is_dirty()).cloned().collect()
    }

    /// Takes the container back from a handle, if the kernel was to have it.
    pub(super) fn leave_passthrough(&mut self, handle: FileHandle) -> Option<(Arc<File>, OpenMode)> {
        let handle = self.handles.get_mut(&handle)?;
        std::mem::take(&mut handle.passthrough).then(|| (Arc::clone(&handle.file), handle.mode))
    }

    fn is_executed(&self, vnode: VnodeId) -> bool {
        self.handles.values().any(|handle| handle.mode.execute && handle.file.fid.vnode == vnode)
    }

    /// Returns whether programs have a file open that they write or execute.
    pub(super) fn is_written_or_executed(&self, vnode: VnodeId) -> bool {
        let mut handles = self.handles.values().filter(|handle| handle.file.fid.vnode == vnode);
        handles.any(|handle| handle.mode.write || handle.mode.execute)
    }

    /// Returns whether programs may have stored into a mapping of the file that the kernel has not sent here: a
    /// handle that reads and writes by way of this daemon is released behind its last mapping.
    pub(super) fn may_be_mapped_unseen(&self, vnode: VnodeId) -> bool {
        let maps = |handle: &Handle| handle.mode.read && handle.mode.write && !handle.passthrough;
        self.handles.values().any(|handle| handle.file.fid.vnode == vnode && maps(handle))
    }

    /// Returns the files that the kernel can write to by itself.
    pub(super) fn written_by_kernel(&self) -> Vec<Arc<File>> {
        let written = self.handles.values().filter(|handle| handle.may_write());
        let files: BTreeMap<VnodeId, &Arc<File>> =
            written.map(|handle| (handle.file.fid.vnode, &handle.file)).collect();
        files.into_values().cloned().collect()
    }

    /// Notes that the program of a handle closes it, or another that has inherited it. Returns its file.
    pub(super) fn begin_close(&mut self, handle: FileHandle) -> Result<Arc<File>, Error> {
        let handle = self.handles.get_mut(&handle).ok_or(Error::BadHandle)?;
        handle.closing = true;
        Ok(Arc::clone(&handle.file))
    }

    /// Returns whether all handles through which the kernel can write to a file are closed.
    pub(super) fn are_closing(&self, vnode: VnodeId) -> bool {
        self.handles.values().all(|handle| handle.closing || !handle.may_write_to(vnode))
    }

    /// Notes that these handles have not gone: somebody has them still.
    pub(super) fn stay_open(&mut self, vnode: VnodeId) {
        let stay = self.handles.values_mut().filter(|handle| handle.may_write_to(vnode));
        stay.for_each(|handle| handle.closing = false);
    }

    pub(super) fn handles(&self) -> usize {
        self.handles.len()
    }
}

impl Inner {
    pub(super) fn handle(&self, handle: FileHandle) -> Result<Handle, Error> {
        self.files().handles.get(&handle).cloned().ok_or(Error::BadHandle)
    }

    pub(super) async fn open(
        self: &Arc<Self>,
        vnode: VnodeId,
        mode: OpenMode,
        caller: Caller,
        program: impl FnOnce() -> Program + Send,
    ) -> Result<Opened, Error> {
        // The kernel itself knows of an open to write. An open to read and to cut is refused by the kernel only when
        // the content is gone, and not even then if the executed program has died of that.
        if mode.truncate && !mode.write && self.files().is_executed(vnode) {
            return Err(Error::Executing);
        }
        if !mode.truncate {
            self.note_open(vnode, program);
        }
        let handle = self.open_for_kernel(vnode, mode, caller).await;
        if mode.truncate && handle.is_err() {
            // The file may have been cut all the same, and the kernel keeps to the size before.
            self.kernel.forget_inodes(vec![vnode]);
        }
        let handle = handle?;
        let (version, size) = {
            let state = handle.file.state();
            (state.basis().version(), state.stat().size())
        };
        let passthrough = handle.passthrough;
        let kept = (!passthrough).then(|| self.kernel.open(vnode, version, size));
        let keep_cache = kept == Some(Kept::Pages) && !mode.truncate;
        let direct = kept == Some(Kept::Nothing) && !mode.changes();
        if keep_cache {
            handle.file.state().stat_mut().keep_pages();
        }
        if kept == Some(Kept::Nothing) {
            // The kernel may not have heard yet that this content has replaced another.
            self.kernel.forget_end(vnode);
        }
        Ok(Opened { file: self.add_handle(handle), keep_cache, direct, passthrough })
    }

    async fn open_for_kernel(
        self: &Arc<Self>,
        vnode: VnodeId,
        mode: OpenMode,
        caller: Caller,
    ) -> Result<Handle, Error> {
        let handle = self.open_file(vnode, mode, caller).await?;
        self.hand_over_opened(handle).await
    }

    /// Gives the kernel the container of a file that has just been opened, if it is to have it.
    async fn hand_over_opened(self: &Arc<Self>, mut handle: Handle) -> Result<Handle, Error> {
        match self.hand_over(&handle.file, handle.mode).await {
            Ok(passthrough) => {
                handle.passthrough = passthrough;
                Ok(handle)
            }
            Err(error) => {
                self.give_up(&handle);
                Err(error)
            }
        }
    }

    /// Opens a file for this daemon's own use, or as the first part of an open by the kernel.
    pub(super) async fn open_file(
        self: &Arc<Self>,
        vnode: VnodeId,
        mode: OpenMode,
        caller: Caller,
    ) -> Result<Handle, Error> {
        if mode.changes() {
            self.check_writable()?;
        }
        let cached = self.status_to_open(vnode, mode).await?;
        if cached.object.status.kind != Kind::File {
            return Err(Error::Refused(FsError::WrongKind));
        }
        let in_use = self.files().get(vnode);
        if let Some(file) = in_use {
            self.look_for_mappings(&file)?;
            self.until_placed(&file, cached.object.status.data_version).await?;
            self.until_released(&file, cached.object.status.data_version).await;
        }
        if !mode.truncate {
            self.check_content(&cached).await?;
        }
        let handle = self.take_handle(&cached, mode)?;
        if mode.changes() {
            handle.file.state().note_writer(caller);
        }
        let prepared = match self.prepare(&handle.file, &cached, mode).await {
            Ok(()) if mode.truncate => self.drop_set_id(vnode, caller).await,
            other => other,
        };
        match prepared {
            Ok(()) => Ok(handle),
            Err(error) => {
                self.give_up(&handle);
                Err(error)
            }
        }
    }

    /// Brings the content to where the opener expects it.
    async fn prepare(self: &Arc<Self>, file: &Arc<File>, cached: &CachedObject, mode: OpenMode) -> Result<(), Error> {
        if mode.truncate {
            return self.cut_opened(file, cached.object.status.data_version).await;
        }
        let mut version = cached.object.status.data_version;
        for _ in 1..VERSIONS_MAX {
            if file.state().is_ready(version) {
                return Ok(());
            }
            match self.fetch(file).await {
                // Another client has stored the next one since its status was asked for.
                Err(Error::VersionGone) => version = self.ask_version(file.fid).await?,
                other => return other,
            }
        }
        self.fetch(file).await
    }

    /// Returns the present version of a file, as the server says now.
    async fn ask_version(&self, fid: Fid) -> Result<DataVersion, Error> {
        self.cache.index.distrust(std::iter::once(fid))?;
        Ok(self.status_of_fid(fid).await?.object.status.data_version)
    }

    pub(super) async fn create(
        self: &Arc<Self>,
        (parent, name): (VnodeId, Bytes),
        permissions: Mode,
        mode: OpenMode,
        caller: Caller,
    ) -> Result<(Object, Opened), Error> {
        let (object, container) = self.make_file((parent, name), (permissions, mode.makes_alone()), caller).await?;
        let handle = match self.insert_new(&object, container, caller)? {
            Some(file) => self.hand_over_opened(Handle::new(file, mode)).await?,
            // The answer took so long that its caller was let go, and somebody has opened the file by its name.
            None => self.open_for_kernel(object.fid.vnode, OpenMode { truncate: false, ..mode }, caller).await?,
        };
        let (passthrough, version) = (handle.passthrough, handle.file.state().basis().version());
        if !passthrough {
            self.kernel.open(object.fid.vnode, version, object.status.size);
        }
        Ok((object, Opened { file: self.add_handle(handle), keep_cache: false, direct: false, passthrough }))
    }

    /// Makes a file. Its container is made while the server is asked.
    async fn make_file(
        &self,
        (parent, name): (VnodeId, Bytes),
        (mode, alone): (Mode, bool),
        caller: Caller,
    ) -> Result<(Object, ContainerId), Error> {
        self.check_writable()?;
        let name = parse(name)?;
        let fid = self.remote.take_fid().await?;
        let op = |parent, name, fid| CmlOp::Create { parent, name, fid, kind: Kind::File, mode, rdev: 0 };
        let making = self.make_object_as(fid, (parent, name), (Kind::File, alone), caller, op);
        let container = async { blocking(|| self.cache.containers.create(fid.vnode)) };
        match join(making, container).await {
            (Ok(object), container) => Ok((object, container?.0)),
            (Err(error), container) => {
                if let Ok((id, _)) = container {
                    blocking(|| self.remove_container(fid.vnode, id));
                }
                Err(error)
            }
        }
    }

    /// Takes a new file into use, opened once, unless it is in use by now.
    fn insert_new(&self, object: &Object, id: ContainerId, caller: Caller) -> Result<Option<Arc<File>>, Error> {
        let vnode = object.fid.vnode;
        let mut files = self.files();
        if files.contains(vnode) {
            drop(files);
            blocking(|| self.remove_container(vnode, id));
            return Ok(None);
        }
        let container = self.cache.containers.lazy(vnode, id);
        let file = File::new(object.fid, container, loaded(&CachedObject::shown(object.clone()), Arrival::whole()));
        {
            let mut state = file.state();
            state.note_writer(caller);
            state.basis_mut().note_hash(ContentHash::of(&[]));
        }
        file.add_handle()?;
        files.insert(Arc::clone(&file));
        Ok(Some(file))
    }

    /// Reads from one version: a read that has met the turn to another is repeated.
    pub(super) async fn read(&self, handle: FileHandle, offset: u64, size: u32) -> Result<Bytes, Error> {
        let file = self.handle(handle)?.file;
        let end = offset.saturating_add(u64::from(size));
        for _ in 0..TURNS_MAX {
            let turns = file.refresh.turns();
            let file_size = file.arrived(offset..end).await?;
            if turns.is_some() {
                let bytes = read_from(&file, offset..end.min(file_size))?;
                if file.refresh.turns() == turns {
                    file.state().stat_mut().read(offset..end);
                    return Ok(bytes);
                }
            }
            // Waits until the turn is over.
            blocking(|| drop(file.edit()));
        }
        Err(Error::TimedOut("a file has changed all the time".to_owned()))
    }

    pub(super) fn release(self: &Arc<Self>, handle: FileHandle) {
        let released = self.files().handles.remove(&handle);
        if let Some(handle) = released {
            let file = &handle.file;
            if handle.may_write()
                && let Err(error) = self.end_passthrough_writing(file, handle.mode)
            {
                tracing::error!(fid = %file.fid, %error, "a file that was written cannot be looked at");
            }
            handle.end_changing();
            self.log_last_version(file);
            self.release_file(file);
        }
    }

    /// Logs what has been written since the last close too, unless a program is there that may be in the middle of it:
    /// the release of an earlier handle, even of a reader, comes when a later one has cut the file.
    pub(super) fn log_last_version(&self, file: &File) {
        let unlogged = {
            let state = file.state();
            state.is_unlogged() && state.fate().refusal().is_none() && !state.has_changers()
        };
        if unlogged && let Err(error) = blocking(|| self.log_version(file)) {
            tracing::error!(fid = %file.fid, %error, "a file that was written is not in the log; it is sent at once");
        }
    }

    /// Ends an open that has failed half-way.
    fn give_up(&self, handle: &Handle) {
        handle.end_changing();
        self.release_file(&handle.file);
    }

    pub(super) fn release_file(&self, file: &Arc<File>) {
        file.remove_handle();
        self.leave(file);
    }

    /// Keeps a file in use, if it is, until [`Self::let_go`], whoever closes it meanwhile or drops it with an answer.
    pub(super) fn hold(&self, vnode: VnodeId) -> Option<Arc<File>> {
        let files = self.files();
        let file = files.get(vnode)?;
        file.state().open();
        Some(file)
    }

    /// Ends a use of a file without a handle.
    pub(super) fn let_go(&self, file: &Arc<File>) {
        file.state().close();
        self.leave(file);
    }

    fn leave(&self, file: &Arc<File>) {
        file.state().forget_path();
        self.drop_if_unused(file);
    }

    /// Forgets a file that nobody has open and that is clean and not on its way; a dirty one is left to the background.
    pub(super) fn drop_if_unused(&self, file: &Arc<File>) {
        let mut files = self.files();
        if !files.in_use.get(&file.fid.vnode).is_some_and(|now| Arc::ptr_eq(now, file)) {
            // The file has been dropped before, and perhaps opened again since.
            return;
        }
        let rest = file.state().rest();
        let is_over = match rest {
            Rest::InUse => return,
            Rest::Unsent => return self.left_dirty.notify_one(),
            Rest::Useless => {
                self.end_use(&mut files, file);
                !self.leave_to_kernel(file) && !self.keep_part(file)
            }
            Rest::Kept => {
                self.end_use(&mut files, file);
                // Nothing names the container of a new file that nobody has written.
                !self.is_named_by_index(file.fid.vnode, file.container_id)
            }
        };
        if is_over {
            self.remove_content(file.fid.vnode, Some(file.container_id));
        }
    }

    fn end_use(&self, files: &mut Files, file: &File) {
        files.in_use.remove(&file.fid.vnode);
        self.locks.locks().end_doubt(file.fid);
    }

    /// Returns the file, loaded if it is not in use yet, with one more handle counted.
    pub(super) fn take_handle(&self, cached: &CachedObject, mode: OpenMode) -> Result<Handle, Error> {
        let handle = blocking(|| {
            let mut files = self.files();
            let file = match files.get(cached.object.fid.vnode) {
                Some(file) => file,
                None => {
                    // A store may have made a newer version since the caller looked.
                    let now = self.cache.index.object(cached.object.fid.vnode)?;
                    self.load(now.as_ref().unwrap_or(cached))?
                }
            };
            file.add_handle()?;
            files.insert(Arc::clone(&file));
            Ok::<_, Error>(Handle::new(file, mode))
        })?;
        if let Err(error) = blocking(|| self.look_at_unseen(&handle.file)) {
            self.give_up(&handle);
            return Err(error.into());
        }
        Ok(handle)
    }

    pub(super) fn add_handle(&self, handle: Handle) -> FileHandle {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let locked = self.locks.locks().may_be_locked(handle.file.fid);
        let number = FileHandle::new(NEXT.fetch_add(1, Ordering::Relaxed), handle.mode, locked);
        self.files().handles.insert(number, handle);
        number
    }
}

/// Reads what a container has of a range.
fn read_from(file: &File, range: Range<u64>) -> std::io::Result<Bytes> {
    let mut buffer = vec![0; usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0)];
    let read = file.container.read_at(&mut buffer, range.start)?;
    buffer.truncate(read);
    Ok(buffer.into())
}
