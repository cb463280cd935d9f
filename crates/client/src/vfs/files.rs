//! Files: open, create, read, write, truncate, close.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::blocking;
use mafs_proto::{CmlOp, DataVersion, FILE_SIZE_MAX, Fid, FsError, Kind, Mode, Object, Status, Timestamp, VnodeId};

use super::file::{Arrival, File, FileState};
use super::{Caller, Error, FileHandle, Inner, OpenMode, Opened};
use crate::cache::{CacheError, CachedContent, CachedEntry, CachedObject, NameEdit, is_sealed};
use crate::core::log::{ContainerId, LogEntry, Writing};

/// An fsync waits this long for the server before it makes do with this disk.
const FSYNC_WAIT: Duration = Duration::from_millis(500);

/// A content being sent that is larger than this is copied away from the session threads.
const COPY_BYTES_MAX: u64 = 1 << 20;

/// The files in use, and the handles on them.
#[derive(Default)]
pub(super) struct Files {
    in_use: HashMap<VnodeId, Arc<File>>,
    handles: HashMap<FileHandle, Handle>,
}

#[derive(Clone)]
pub(super) struct Handle {
    pub(super) file: Arc<File>,
    mode: OpenMode,
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

    /// The files whose content the server does not have.
    pub(super) fn dirty(&self) -> Vec<Arc<File>> {
        self.in_use.values().filter(|file| file.state().is_dirty()).cloned().collect()
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
    ) -> Result<Opened, Error> {
        if mode.write || mode.truncate {
            self.check_writable()?;
        }
        let cached = self.status_of(vnode).await?;
        if cached.object.status.kind != Kind::File {
            return Err(Error::Refused(FsError::WrongKind));
        }
        let handle = self.take_handle(&cached, mode)?;
        if mode.write || mode.truncate {
            handle.file.state().writer = caller;
        }
        match self.prepare(&handle.file, &cached, mode).await {
            Ok(()) => {}
            Err(error) => {
                self.release_file(&handle.file);
                return Err(error);
            }
        }
        let version = handle.file.state().base;
        let keep_cache = self.kernel.open(vnode, version) && !mode.truncate;
        Ok(Opened { file: self.add_handle(handle), keep_cache })
    }

    /// Brings the content to where the opener expects it.
    async fn prepare(self: &Arc<Self>, file: &Arc<File>, cached: &CachedObject, mode: OpenMode) -> Result<(), Error> {
        if mode.truncate {
            return self.resize(file, 0).await;
        }
        let status = cached.object.status;
        if file.state().is_current(status.data_version) {
            return Ok(());
        }
        self.fetch(file, status.size).await
    }

    pub(super) async fn create(
        self: &Arc<Self>,
        (parent, name): (VnodeId, Bytes),
        permissions: Mode,
        mode: OpenMode,
        caller: Caller,
    ) -> Result<(Object, Opened), Error> {
        let object = self.make_node((parent, name), Kind::File, permissions, 0, caller).await?;
        let opened = blocking(|| {
            let container = self.cache.containers.create(object.fid.vnode)?;
            let cached = CachedObject { object: object.clone(), trust: 0, parent: None, entries: None, content: None };
            let file = File::new(object.fid, container, loaded(&cached, Arrival::Complete));
            {
                let mut state = file.state();
                (state.handles, state.writer) = (1, caller);
            }
            self.files().insert(Arc::clone(&file));
            self.kernel.open(object.fid.vnode, object.status.data_version);
            Ok::<_, Error>(Opened { file: self.add_handle(Handle { file, mode }), keep_cache: false })
        })?;
        Ok((object, opened))
    }

    pub(super) async fn make_node(
        &self,
        (parent, name): (VnodeId, Bytes),
        kind: Kind,
        mode: Mode,
        rdev: u64,
        caller: Caller,
    ) -> Result<Object, Error> {
        self.make_object(parent, name, kind, caller, |parent, name, fid| CmlOp::Create {
            parent,
            name,
            fid,
            kind,
            mode,
            rdev,
        })
        .await
    }

    /// Makes an object of any kind with a fid of its own; counts as one lookup.
    pub(super) async fn make_object(
        &self,
        parent: VnodeId,
        name: Bytes,
        kind: Kind,
        caller: Caller,
        op: impl FnOnce(Fid, mafs_proto::Name, Fid) -> CmlOp,
    ) -> Result<Object, Error> {
        self.check_writable()?;
        let name = super::names::parse(name)?;
        let directory = self.directory(parent).await?.object;
        let parent = directory.fid;
        let fid = self.remote.take_fid().await?;
        let edit = NameEdit { parent, name: name.clone(), entry: Some(CachedEntry { fid, kind }) };
        let (op, caller) = inherit_group(op(parent, name, fid), caller, &directory.status);
        let reply = self.mutate(op, caller, &[edit]).await?;
        let object = reply.objects.into_iter().find(|object| object.fid == fid);
        let object = object.ok_or(Error::Refused(FsError::Malformed))?;
        self.kernel.count_lookup(fid.vnode);
        Ok(object)
    }

    pub(super) async fn read(&self, handle: FileHandle, offset: u64, size: u32) -> Result<Bytes, Error> {
        let file = self.handle(handle)?.file;
        let end = offset.saturating_add(u64::from(size));
        let file_size = file.arrived(offset..end).await?;
        let wanted = usize::try_from(end.min(file_size).saturating_sub(offset)).unwrap_or(0);
        let mut buffer = vec![0; wanted];
        let read = file.container.read_at(&mut buffer, offset)?;
        buffer.truncate(read);
        Ok(buffer.into())
    }

    pub(super) async fn write(&self, handle: FileHandle, offset: u64, data: Bytes) -> Result<(), Error> {
        let Handle { file, mode } = self.handle(handle)?;
        // The kernel writes pages of a shared mapping back through any handle it likes.
        if !mode.write && !mode.read {
            return Err(Error::BadHandle);
        }
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_SIZE_MAX);
        let Some(end) = end else { return Err(Error::Refused(FsError::TooLarge)) };
        loop {
            file.complete().await?;
            let large_copy = file.state().sending.as_ref().is_some_and(|content| content.size > COPY_BYTES_MAX);
            if large_copy {
                // What is being sent is copied first: not on a session thread, which others need.
                tokio::task::yield_now().await;
            }
            match blocking(|| self.write_now(&file, offset..end, &data)) {
                Ok(true) => return Ok(()),
                // Another version began to come in; this write goes on top of it.
                Ok(false) => {}
                Err(Error::CacheFull) if self.make_room(data.len() as u64) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes, unless the content is not all here any more.
    fn write_now(&self, file: &File, range: Range<u64>, data: &Bytes) -> Result<bool, Error> {
        let _edit = file.edit();
        if !file.state().is_complete() {
            return Ok(false);
        }
        self.begin_edit(file)?;
        // Counted before: a write that fails half-way has changed bytes too.
        self.note_edit(&mut file.state());
        file.container.write_all_at(data, range.start)?;
        let mut state = file.state();
        state.size = state.size.max(range.end);
        Ok(true)
    }

    /// Cuts or grows a file.
    pub(super) async fn resize(&self, file: &File, size: u64) -> Result<(), Error> {
        if size > FILE_SIZE_MAX {
            return Err(Error::Refused(FsError::TooLarge));
        }
        loop {
            if size > 0 {
                file.complete().await?;
            }
            if blocking(|| self.resize_to(file, size))? {
                return Ok(());
            }
        }
    }

    /// Cuts or grows, unless the content to keep is not all here any more.
    fn resize_to(&self, file: &File, size: u64) -> Result<bool, Error> {
        let _edit = file.edit();
        if size > 0 && !file.state().is_complete() {
            return Ok(false);
        }
        self.begin_edit(file)?;
        self.note_edit(&mut file.state());
        file.container.set_len(size)?;
        let mut state = file.state();
        state.fetch += 1;
        state.arrival = Arrival::Complete;
        state.size = size;
        drop(state);
        file.notify();
        Ok(true)
    }

    /// Before bytes change: what is being sent moves out of the way, and the log says that the file is dirty. Under
    /// `edit`.
    fn begin_edit(&self, file: &File) -> Result<(), Error> {
        let (sending, logged, base, unlinked) = {
            let state = file.state();
            (state.sending.clone(), state.writing_logged, state.base, state.unlinked.is_some())
        };
        if let Some(content) = sending {
            content.preserve(&self.cache.containers)?;
        }
        if !logged && !unlinked {
            self.cache.cml.append(LogEntry::Writing { fid: file.fid, base, container: file.container_id })?;
            if self.cache.index.is_content_durable(file.fid.vnode)? {
                // After a power loss only the log tells that these bytes are no longer the version the index says.
                self.cache.cml.sync()?;
            }
            file.state().writing_logged = true;
            self.log_changed.notify_one();
        }
        Ok(())
    }

    pub(super) fn note_edit(&self, state: &mut FileState) {
        state.edits += 1;
        state.mtime = self.clock.wall();
        // A new content is a new attempt.
        state.refused = None;
    }

    /// Sends the file's content, if the server lacks it, before a close returns.
    pub(super) async fn flush(self: &Arc<Self>, handle: FileHandle) -> Result<(), Error> {
        let file = self.handle(handle)?.file;
        if file.state().is_dirty() { self.store(&file).await } else { Ok(()) }
    }

    /// Makes what was written durable: on the server if that will be quick (`fsync=auto`), else on this disk.
    pub(super) async fn fsync(self: &Arc<Self>, handle: FileHandle) -> Result<(), Error> {
        let file = self.handle(handle)?.file;
        if !file.state().is_dirty() {
            return Ok(());
        }
        let expected = self.upload_rate().expected(file.state().size);
        if self.remote.is_up() && expected < FSYNC_WAIT {
            let storing = tokio::spawn({
                let (inner, file) = (Arc::clone(self), Arc::clone(&file));
                async move { inner.store(&file).await }
            });
            match tokio::time::timeout(FSYNC_WAIT, storing).await {
                Ok(Ok(Ok(()))) => return Ok(()),
                Ok(Ok(Err(error @ Error::Refused(_)))) => return Err(error),
                // Too slow, or the connection broke: the store goes on by itself.
                Ok(Ok(Err(_)) | Err(_)) | Err(_) => {}
            }
        }
        blocking(|| self.fsync_here(&file))
    }

    fn fsync_here(&self, file: &File) -> Result<(), Error> {
        file.container.sync_data()?;
        file.make_name_durable(|| self.cache.containers.sync_name(file.fid.vnode))?;
        if file.state().is_dirty() {
            self.cache.cml.append(LogEntry::Synced { fid: file.fid })?;
        }
        Ok(self.cache.cml.sync()?)
    }

    pub(super) fn release(&self, handle: FileHandle) {
        let released = self.files().handles.remove(&handle);
        if let Some(Handle { file, .. }) = released {
            self.release_file(&file);
        }
    }

    fn release_file(&self, file: &Arc<File>) {
        file.state().handles -= 1;
        self.drop_if_unused(file);
    }

    /// Forgets a file that nobody has open and that is clean and not on its way; a dirty one is left to the background.
    pub(super) fn drop_if_unused(&self, file: &Arc<File>) {
        let mut files = self.files();
        if !files.in_use.get(&file.fid.vnode).is_some_and(|now| Arc::ptr_eq(now, file)) {
            // It has been dropped before, and perhaps opened again since.
            return;
        }
        let (unused, dirty, useless) = {
            let state = file.state();
            let busy = state.storing || matches!(state.arrival, Arrival::Partial { .. });
            let empty = matches!(state.arrival, Arrival::Missing | Arrival::Failed(_));
            (state.handles == 0 && !busy, state.is_dirty(), empty || state.unlinked.is_some())
        };
        if unused && dirty {
            self.left_dirty.notify_one();
        } else if unused {
            files.in_use.remove(&file.fid.vnode);
            if useless {
                self.remove_content(file.fid.vnode, Some(file.container_id));
            }
        }
    }

    /// The last name of an object is gone: nothing of it will be sent. It stays readable for those who have it open.
    pub(super) fn object_gone(&self, object: &Object) {
        let file = self.files().get(object.fid.vnode);
        match file {
            Some(file) => {
                self.mark_unlinked(&file, object);
                self.drop_if_unused(&file);
            }
            None => {
                let content =
                    self.cache.index.object(object.fid.vnode).ok().flatten().and_then(|cached| cached.content);
                self.remove_content(object.fid.vnode, content.map(|content| content.container));
            }
        }
    }

    fn mark_unlinked(&self, file: &File, object: &Object) {
        let _edit = file.edit();
        let (logged, unresolved) = {
            let mut state = file.state();
            let mut object = object.clone();
            object.status.size = state.size;
            state.unlinked = Some(object);
            let unresolved = if state.storing { None } else { state.unresolved.take() };
            (std::mem::take(&mut state.writing_logged), unresolved)
        };
        if let Some(unresolved) = unresolved {
            self.remote.end(unresolved.record.id);
        }
        if logged && let Err(error) = self.cache.cml.append(LogEntry::Dropped { fid: file.fid }) {
            tracing::error!(%error, "the modify log cannot be written");
        }
    }

    fn remove_content(&self, vnode: VnodeId, container: Option<ContainerId>) {
        self.replacement().remove(vnode);
        if let Some(Err(error)) = container.map(|id| self.cache.containers.remove(vnode, id)) {
            tracing::warn!(vnode = vnode.0, %error, "a container cannot be removed");
        }
    }

    /// The file, loaded if it is not in use yet, with one more handle counted.
    fn take_handle(&self, cached: &CachedObject, mode: OpenMode) -> Result<Handle, Error> {
        blocking(|| {
            let mut files = self.files();
            let file = match files.get(cached.object.fid.vnode) {
                Some(file) => file,
                None => {
                    // A store may have made a newer version since the caller looked.
                    let now = self.cache.index.object(cached.object.fid.vnode)?;
                    let file = self.load(now.as_ref().unwrap_or(cached))?;
                    files.insert(Arc::clone(&file));
                    file
                }
            };
            file.state().handles += 1;
            Ok(Handle { file, mode })
        })
    }

    fn add_handle(&self, handle: Handle) -> FileHandle {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = FileHandle(NEXT.fetch_add(1, Ordering::Relaxed));
        self.files().handles.insert(number, handle);
        number
    }

    /// Makes a file of what is in the cache: its container counts only if it is sealed as the version the index names.
    fn load(&self, cached: &CachedObject) -> Result<Arc<File>, Error> {
        let (fid, status) = (cached.object.fid, cached.object.status);
        let here = cached.content.filter(|content| content.version == status.data_version);
        let container = match here {
            Some(content) => {
                self.cache.containers.get(fid.vnode, content.container)?.map(|file| (content.container, file))
            }
            None => None,
        };
        let (container, arrival) = match container {
            Some((id, file)) if is_sealed(file.as_ref(), status.data_version, status.size)? => {
                self.replacement().touch(fid.vnode, status.size);
                ((id, file), Arrival::Complete)
            }
            Some(_) | None => (self.cache.containers.create(fid.vnode)?, Arrival::Missing),
        };
        Ok(File::new(fid, container, loaded(cached, arrival)))
    }

    /// Makes room in the cache and on its disk for a file of this size, as far as clean, unused files allow.
    /// Returns whether something went.
    pub(super) fn make_room(&self, bytes: u64) -> bool {
        let disk_short = match self.cache.disk.space() {
            Ok(space) => bytes.saturating_add(self.settings.min_free_bytes).saturating_sub(space.bytes_free),
            Err(_) => 0,
        };
        let files = self.files();
        let mut replacement = self.replacement();
        let missing = replacement.excess_bytes(bytes).max(disk_short);
        let evicted = replacement.plan(missing, |vnode| files.contains(vnode));
        for vnode in &evicted {
            replacement.remove(*vnode);
            if let Err(error) = self.evict(*vnode) {
                tracing::warn!(%error, vnode = vnode.0, "a cached file cannot be evicted");
            }
        }
        !evicted.is_empty()
    }

    fn evict(&self, vnode: VnodeId) -> Result<(), Error> {
        if let Some(content) = self.cache.index.set_content(vnode, None)? {
            self.cache.containers.remove(vnode, content.container)?;
        }
        Ok(())
    }

    /// The container of a file holds `version` whole; an older one is of no use any more.
    pub(super) fn set_content(&self, file: &File, version: DataVersion) -> Result<(), Error> {
        let content = CachedContent { version, container: file.container_id };
        let before = self.cache.index.set_content(file.fid.vnode, Some(content))?;
        if let Some(before) = before.filter(|before| before.container != file.container_id) {
            self.cache.containers.remove(file.fid.vnode, before.container)?;
        }
        Ok(())
    }

    /// Makes the contents durable that came since the last time, but for those in use, which may be changing.
    pub(super) fn sync_contents(&self) -> Result<(), CacheError> {
        loop {
            let mut synced = 0;
            for fid in self.cache.index.unsynced_contents()? {
                synced += usize::from(self.sync_content(fid.vnode)?);
            }
            if synced == 0 {
                return Ok(());
            }
        }
    }

    fn sync_content(&self, vnode: VnodeId) -> Result<bool, CacheError> {
        let content = || Ok::<_, CacheError>(self.cache.index.object(vnode)?.and_then(|cached| cached.content));
        let before = content()?;
        let Some(here) = before else { return Ok(false) };
        if let Some(container) = self.cache.containers.get(vnode, here.container)? {
            container.sync_data()?;
        }
        let files = self.files();
        let unchanged = !files.contains(vnode) && content()? == before;
        if unchanged {
            self.cache.index.content_synced(vnode)?;
        }
        Ok(unchanged)
    }

    /// Puts a file with content that the server lacks into use, after a restart.
    pub(super) fn load_dirty(&self, fid: Fid, writing: Writing) -> Result<Option<Arc<File>>, CacheError> {
        let Writing { base, container: id, .. } = writing;
        let Some(container) = self.cache.containers.get(fid.vnode, id)? else { return Ok(None) };
        if is_sealed(container.as_ref(), base, container.len()?)? {
            // The log was ahead of the first changed byte, or of the server's last answer.
            return Ok(None);
        }
        let state = FileState {
            handles: 0,
            base,
            arrival: Arrival::Complete,
            fetch: 0,
            wanted: None,
            size: container.len()?,
            mtime: Timestamp::from(container.modified()?),
            edits: 1,
            stored_edits: 0,
            writer: Caller::default(),
            writing_logged: true,
            storing: false,
            sending: None,
            unresolved: None,
            refused: None,
            unlinked: None,
        };
        Ok(Some(File::new(fid, (id, container), state)))
    }
}

/// In a set-gid directory new objects get the directory's group, and new directories are set-gid too (inode(7)).
fn inherit_group(mut op: CmlOp, mut caller: Caller, directory: &Status) -> (CmlOp, Caller) {
    const SET_GID: u32 = 0o2000;
    if u32::from(directory.mode.bits()) & SET_GID != 0 {
        caller.gid = directory.gid;
        if let CmlOp::MakeDir { mode, .. } = &mut op {
            *mode = Mode::from_bits(u32::from(mode.bits()) | SET_GID);
        }
    }
    (op, caller)
}

/// The state of a file whose content is the version the index names.
fn loaded(cached: &CachedObject, arrival: Arrival) -> FileState {
    let status = cached.object.status;
    FileState {
        handles: 0,
        base: status.data_version,
        arrival,
        fetch: 0,
        wanted: None,
        size: status.size,
        mtime: status.mtime,
        edits: 0,
        stored_edits: 0,
        writer: Caller::default(),
        writing_logged: false,
        storing: false,
        sending: None,
        unresolved: None,
        refused: None,
        unlinked: None,
    }
}
