//! Attributes: what stat(2) shows, and how it is changed.

use std::sync::Arc;

use mafs_proto::{CmlOp, FsError, Kind, Object, SetAttr, VnodeId};

use super::changes::Change;
use super::file::File;
use super::{Attributes, Caller, Error, FileHandle, Inner, OpenMode, SetTime};

impl Inner {
    pub(super) async fn get_attributes(self: &Arc<Self>, vnode: VnodeId) -> Result<Object, Error> {
        let without_name = || self.without_name(vnode);
        if let Some(object) = without_name() {
            return Ok(object);
        }
        match self.status_of(vnode).await {
            Ok(cached) => {
                self.until_refreshed(&cached.object).await;
                Ok(self.present(cached.object))
            }
            // The object has been removed, here or elsewhere; a program that has it open may still ask for its
            // attributes.
            Err(error @ Error::Refused(FsError::Stale)) => {
                // The operation that removes it here holds the queue until that is known.
                drop(self.replay.queue());
                without_name().ok_or(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns an object as it is known here, for an operation that has just changed it: a change that waits for the
    /// server is done, and must not be reported as failed because the server cannot be asked for the rest.
    fn known_attributes(&self, vnode: VnodeId) -> Result<Object, Error> {
        match self.without_name(vnode) {
            Some(object) => Ok(object),
            None => {
                let known = self.cache.index.object(vnode)?.ok_or(Error::Refused(FsError::Stale))?;
                Ok(self.present(known.object))
            }
        }
    }

    /// Returns an object that has been removed here and is still open or known to the kernel.
    fn without_name(&self, vnode: VnodeId) -> Option<Object> {
        self.unlinked(vnode).or_else(|| self.kernel.removed(vnode).map(|object| self.present(object)))
    }

    /// Returns an object as programs on this machine see it: the server's, with what this client has changed since.
    pub(super) fn present(&self, mut object: Object) -> Object {
        let in_use = self.files().get(object.fid.vnode);
        let changed = in_use.as_ref().and_then(|file| {
            let state = file.state();
            let newer = state.is_newer_than(object.status.data_version);
            newer.then(|| (state.basis().version(), state.stat().clone()))
        });
        match changed {
            Some((base, stat)) => {
                let changed = stat.last_change(Some(&object.status));
                stat.lay_over(&mut object.status);
                (object.status.data_version, object.status.ctime) = (base, changed);
            }
            None => object = self.as_stored(object),
        }
        if let Some(file) = in_use {
            self.show_as_read(&file, &mut object);
            self.present_written(&file, &mut object);
        }
        object
    }

    /// Returns the object as the index knows it now, if that is newer. A store may have been answered since the
    /// caller looked at the index, which knows of it before the file counts as unchanged: the kernel kept the size
    /// from before the store for as long as the lease.
    fn as_stored(&self, object: Object) -> Object {
        if object.status.kind != Kind::File {
            return object;
        }
        let now = self.cache.index.object(object.fid.vnode).ok().flatten().map(|cached| cached.object);
        let newer = |now: &Object| now.fid == object.fid && now.status.data_version > object.status.data_version;
        now.filter(newer).unwrap_or(object)
    }

    /// Returns the object of an open file without a name.
    pub(super) fn unlinked(&self, vnode: VnodeId) -> Option<Object> {
        let file = self.files().get(vnode)?;
        let state = file.state();
        let mut object = state.fate().left()?.object().cloned()?;
        state.stat().lay_over(&mut object.status);
        drop(state);
        self.present_written(&file, &mut object);
        Some(object)
    }

    pub(super) async fn set_attributes(
        self: &Arc<Self>,
        vnode: VnodeId,
        set: Attributes,
        handle: Option<FileHandle>,
        caller: Caller,
    ) -> Result<Object, Error> {
        self.check_writable()?;
        let done = self.change_attributes(vnode, set, handle, caller).await;
        // Part of the change may have been made all the same, or be made later, and the kernel keeps to what was
        // before.
        done.inspect_err(|_| self.kernel.forget_inodes(vec![vnode]))?;
        match self.known_attributes(vnode) {
            // Another client has removed it meanwhile, or the index has no room for it.
            Err(Error::Refused(FsError::Stale)) => self.get_attributes(vnode).await,
            known => known,
        }
    }

    async fn change_attributes(
        self: &Arc<Self>,
        vnode: VnodeId,
        set: Attributes,
        handle: Option<FileHandle>,
        caller: Caller,
    ) -> Result<(), Error> {
        if let Some(size) = set.size {
            self.set_size(vnode, size, handle, caller).await?;
            self.drop_set_id(vnode, caller).await?;
        }
        if set == Attributes::default() {
            // This is how the kernel says that it is about to write to a container: another's bits must go first.
            self.drop_set_id(vnode, caller).await?;
        }
        let rest = self.resolve_times(set);
        match rest.is_empty() {
            true => Ok(()),
            false => self.set_status(vnode, rest, caller).await,
        }
    }

    async fn set_status(&self, vnode: VnodeId, set: SetAttr, caller: Caller) -> Result<(), Error> {
        let in_use = self.files().get(vnode);
        if let Some(file) = in_use {
            if set.mtime.is_some() {
                // Bytes that the kernel has written have a time that would be taken for that of the content.
                let _edit = file.edit();
                self.look(&file)?;
            }
            if self.set_unlinked(&file, &set) || self.set_dirty_mtime(&file, &set) {
                return Ok(());
            }
        }
        let of_nameless = self.kernel.change_removed(vnode, |removed| removed.object.status.set(&set));
        if of_nameless.is_some() {
            return Ok(());
        }
        let known = self.cache.index.object(vnode)?.ok_or(Error::Refused(FsError::Stale))?.object;
        let change = Change::new(CmlOp::SetAttr { fid: known.fid, set }, known.status.kind);
        self.change(change, caller, &[]).await.map(drop)
    }

    /// Cuts or grows a file. Without a handle nobody will close it, so its content goes to the server at once.
    async fn set_size(
        self: &Arc<Self>,
        vnode: VnodeId,
        size: u64,
        handle: Option<FileHandle>,
        caller: Caller,
    ) -> Result<(), Error> {
        if let Some(handle) = handle {
            let file = self.handle(handle)?.file;
            return self.resize(&file, size).await;
        }
        let truncate = size == 0;
        let mode = OpenMode { write: true, truncate, ..OpenMode::default() };
        let opened = self.open_file(vnode, mode, caller).await.map_err(|error| match error {
            Error::Refused(FsError::WrongKind) => Error::Invalid("only files have a size to set".to_owned()),
            other => other,
        })?;
        let handle = self.add_handle(opened.clone());
        let changed = async {
            if !truncate {
                self.resize(&opened.file, size).await?;
            }
            self.flush(handle).await
        };
        let changed = changed.await;
        self.release(handle);
        changed
    }

    /// Drops the set-id bits of a file that another than root changes: they were not meant for the changed content.
    /// The kernel leaves it to the file system to drop them (FUSE_HANDLE_KILLPRIV_V2); fuser passes on that it asks
    /// for it with writes only.
    pub(super) async fn drop_set_id(&self, vnode: VnodeId, caller: Caller) -> Result<(), Error> {
        if caller.uid == 0 {
            return Ok(());
        }
        // The known status has to do: no write waits for the server to say more.
        let known = match self.unlinked(vnode) {
            Some(object) => Some(object),
            None => self.cache.index.object(vnode)?.map(|cached| cached.object),
        };
        let Some(Object { status, .. }) = known else { return Ok(()) };
        let mode = status.mode.without_set_id();
        if status.kind != Kind::File || mode == status.mode {
            return Ok(());
        }
        self.set_status(vnode, SetAttr { mode: Some(mode), ..SetAttr::default() }, caller).await
    }

    fn resolve_times(&self, set: Attributes) -> SetAttr {
        let time = |time: SetTime| match time {
            SetTime::Now => self.clock.wall(),
            SetTime::To(time) => time,
        };
        SetAttr { mode: set.mode, uid: set.uid, gid: set.gid, atime: set.atime.map(time), mtime: set.mtime.map(time) }
    }

    /// Sets the mtime of a file whose content is still to be sent: the time goes with the content, or the store would
    /// overwrite it. Returns whether that was all there was to set.
    fn set_dirty_mtime(&self, file: &File, set: &SetAttr) -> bool {
        let Some(mtime) = set.mtime else { return false };
        let _edit = file.edit();
        let mut state = file.state();
        if !state.is_dirty() {
            return false;
        }
        if !state.is_unlogged() && !state.versions().is_empty() {
            // The content is on its way; the time follows it.
            state.stat_mut().set_mtime(mtime);
            return false;
        }
        state.edit(self.clock.wall());
        state.stat_mut().set_mtime(mtime);
        *set == SetAttr { mtime: Some(mtime), ..SetAttr::default() }
    }

    /// Sets attributes of a file without a name, which exists on this machine only. Returns whether it was such a
    /// file.
    fn set_unlinked(&self, file: &File, set: &SetAttr) -> bool {
        file.state().set_nameless(set, self.clock.wall())
    }

    /// Returns an error if no changes may be made through this mount.
    pub(super) fn check_writable(&self) -> Result<(), Error> {
        if self.settings.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }
}

/// Returns the target of a symlink; an error for an object of another kind.
pub(super) fn symlink_target(object: Object) -> Result<mafs_proto::SymlinkTarget, Error> {
    match object.status.kind {
        Kind::Symlink => object.target.ok_or(Error::Refused(FsError::Malformed)),
        Kind::File | Kind::Directory | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
            Err(Error::Invalid("not a symlink".to_owned()))
        }
    }
}
