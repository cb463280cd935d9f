//! Names: the objects that they mean, and every mutation of a directory.

use std::sync::Arc;

use bytes::Bytes;
use mafs_arpc::blocking;
use mafs_proto::call::{ApplyReply, LookupRequest};
use mafs_proto::{
    CmlOp, Fid, FsError, InvalidName, Kind, Mode, Name, Object, Purpose, RenameMode, Status, SymlinkTarget, VnodeId,
};

use super::changes::Change;
use super::file::File;
use super::{Caller, Error, Inner};
use crate::cache::{CachedEntry, CachedObject, Known, NameEdit};
use crate::core::promises::Grant;
use crate::remote::{Answer, RemoteError};

/// Directories up to this many entries are fetched whole at the second miss; larger ones are asked name by name.
pub(super) const WHOLE_LISTING_ENTRIES_MAX: u64 = 4096;

/// How often the removal or move of a name is tried while other clients change the name at the same time.
const ATTEMPTS_MAX: u32 = 8;

/// Parses the name of an entry.
pub(super) fn parse(name: Bytes) -> Result<Name, Error> {
    Name::new(name).map_err(|error| match error {
        InvalidName::TooLong { .. } => Error::NameTooLong,
        InvalidName::Empty | InvalidName::Dots | InvalidName::Byte(_) => Error::Invalid(error.to_string()),
    })
}

impl Inner {
    pub(super) async fn lookup(self: &Arc<Self>, parent: VnodeId, name: Bytes) -> Result<Object, Error> {
        let child = self.child(parent, &parse(name)?).await?;
        let object = self.present(child.object);
        self.kernel.count_lookup(&object);
        Ok(object)
    }

    /// Looks a name up for a kernel that remembers the answer. Its absence is noted before the answer: a later change
    /// that makes the name exist finds the note, and a change in the meantime is told again behind the answer.
    pub(super) async fn lookup_remembered(
        self: &Arc<Self>,
        parent: VnodeId,
        name: Bytes,
    ) -> Result<Option<Object>, Error> {
        match self.lookup(parent, name.clone()).await {
            Ok(object) => Ok(Some(object)),
            Err(Error::Refused(FsError::NotFound)) => {
                self.kernel.note_absent(parent, parse(name)?);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the object that a name means, with a valid status.
    pub(super) async fn child(self: &Arc<Self>, parent: VnodeId, name: &Name) -> Result<CachedObject, Error> {
        self.with_or_without_server(|| self.child_now(parent, name)).await.map_err(Error::of_names)
    }

    async fn child_now(self: &Arc<Self>, parent: VnodeId, name: &Name) -> Result<CachedObject, Error> {
        let directory = self.directory(parent).await?;
        let fid = directory.object.fid;
        if let Some(pending) = self.cache.index.pending_entry(parent, name) {
            let entry = pending.ok_or(Error::Refused(FsError::NotFound))?;
            return self.status_of_named(entry.fid, Some(name)).await;
        }
        if directory.entries.is_none() {
            return self.ask_name(fid, name, Purpose::Ask).await;
        }
        if let Some(entry) = self.cache.index.entry(parent, name)? {
            return self.named(fid, name, entry).await;
        }
        let complete = |cached: &CachedObject| cached.entries.is_some_and(|entries| entries.complete);
        if !complete(&directory) {
            if directory.object.status.size > WHOLE_LISTING_ENTRIES_MAX {
                return self.ask_name(fid, name, Purpose::Ask).await;
            }
            match self.fetch_listing(parent, Purpose::Fetch).await {
                Ok(_) => {}
                // The directory changes all the time.
                Err(Error::TimedOut(_)) if self.remote.is_up() => return self.ask_name(fid, name, Purpose::Ask).await,
                Err(error) => return Err(error),
            }
            if let Some(entry) = self.cache.index.entry(parent, name)? {
                return self.named(fid, name, entry).await;
            }
        }
        // The names may have been dropped since; then a name that is missing here may still exist.
        match self.cache.index.known_entry(parent, name)? {
            Known::Means(None) => Err(Error::Refused(FsError::NotFound)),
            Known::Means(Some(_)) | Known::Unknown => self.ask_name(fid, name, Purpose::Ask).await,
        }
    }

    /// Returns the object that a name means as far as the index knows. If the object is gone, asks the server.
    async fn named(&self, parent: Fid, name: &Name, entry: CachedEntry) -> Result<CachedObject, Error> {
        match self.status_of_named(entry.fid, Some(name)).await {
            Err(Error::Refused(FsError::Stale)) => self.ask_name(parent, name, Purpose::Ask).await,
            other => other,
        }
    }

    /// Asks the server which object a name means.
    pub(super) async fn ask_name(&self, parent: Fid, name: &Name, purpose: Purpose) -> Result<CachedObject, Error> {
        let request = LookupRequest { parent, name: name.clone(), unanswered: self.unanswered(&[parent]) };
        let Answer { reply, session, .. } = self.delivered(&request, purpose).await?;
        self.note_applied(&reply.applied, Grant { session, change: reply.change })?;
        let is_unsaid = reply.object.as_ref().is_some_and(|object| self.is_unsaid(object.fid, &request.unanswered));
        self.cache.index.install_lookup(parent, name, &reply, session, !is_unsaid)?;
        let object = reply.object.ok_or(Error::Refused(FsError::NotFound))?;
        if is_unsaid && reply.pending.is_none() {
            match self.status_of_fid(object.fid).await {
                Err(Error::Refused(FsError::Stale)) => {}
                other => return other,
            }
        }
        let object = reply.pending.unwrap_or(object);
        let own = self.cache.index.with_own_changes(object.clone())?;
        // The object has this name: own changes that seem to take its last one were counted wrongly.
        let shown = own.unwrap_or_else(|| CachedObject::shown(object));
        Ok(CachedObject { parent: shown.parent.or(Some(parent.vnode)), ..shown })
    }

    /// Returns a directory to find a name in, with a valid status. A directory that has been removed has no names.
    pub(super) async fn directory(&self, vnode: VnodeId) -> Result<CachedObject, Error> {
        let directory = self.status_of(vnode).await.map_err(Error::of_names)?;
        match directory.object.status.kind {
            Kind::Directory => Ok(directory),
            Kind::File | Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                Err(Error::Refused(FsError::NotDirectory))
            }
        }
    }

    /// Returns the fid of an inode that the kernel knows.
    pub(super) fn fid_of(&self, vnode: VnodeId) -> Result<Fid, Error> {
        let cached = self.cache.index.object(vnode)?.ok_or(Error::Refused(FsError::Stale))?;
        Ok(cached.object.fid)
    }

    /// Has the server apply a mutation, and takes its effect into the index.
    pub(super) async fn mutate(&self, op: CmlOp, caller: Caller, edits: &[NameEdit]) -> Result<ApplyReply, Error> {
        self.cache.index.check_writable()?;
        let record = self.remote.record(op, caller.uid, caller.gid, self.clock.wall());
        let answer = self.remote.apply(&record).await;
        let done = self.take_in_mutation(answer, &record.op, edits);
        // Not before the index has the effect: until then nothing may say that all is known there.
        self.remote.outstanding(|log| log.end(record.id));
        done
    }

    fn take_in_mutation(
        &self,
        answer: Result<Answer<ApplyReply>, RemoteError>,
        op: &CmlOp,
        edits: &[NameEdit],
    ) -> Result<ApplyReply, Error> {
        let objects = objects_of(op);
        let touched = || edits.iter().map(|edit| edit.parent).chain(objects.iter().copied());
        let forget = || self.kernel_asks_again(&objects, edits);
        match answer {
            Ok(Answer { reply, session, .. }) => {
                for object in reply.objects.iter().filter(|object| object.status.nlink == 0) {
                    self.object_gone(object);
                }
                self.cache.index.applied(&reply, session, edits).inspect_err(|_| forget())?;
                edits.iter().for_each(|edit| drop(self.kernel.names_changed(edit.parent.vnode)));
                Ok(reply)
            }
            Err(RemoteError::Refused { error, message }) => {
                if is_overtaken(error) {
                    // The state known here allowed the mutation, so that state may be out of date.
                    self.distrust(touched());
                }
                Err(RemoteError::Refused { error, message }.into())
            }
            Err(error) => {
                // The mutation may have been applied or not: the objects that it touches must be asked for again, by
                // the kernel too.
                self.distrust(touched());
                forget();
                Err(error.into())
            }
        }
    }

    /// Has the kernel ask again for all that a change touches, when the change may have been made or not.
    pub(super) fn kernel_asks_again(&self, objects: &[Fid], edits: &[NameEdit]) {
        self.kernel.forget_names(edits.iter().map(|edit| (edit.parent.vnode, edit.name.clone())).collect());
        self.kernel.forget_inodes(objects.iter().map(|fid| fid.vnode).collect());
    }

    /// Marks objects as perhaps out of date. If the mark cannot be written nothing in the index is valid.
    pub(super) fn distrust(&self, fids: impl Iterator<Item = Fid>) {
        if let Err(error) = self.cache.index.distrust(fids) {
            tracing::warn!(%error, "everything must be asked for again, because the index cannot be written");
        }
    }

    pub(super) async fn make_node(
        &self,
        (parent, name): (VnodeId, Bytes),
        kind: Kind,
        mode: Mode,
        rdev: u64,
        caller: Caller,
    ) -> Result<Object, Error> {
        let op = |parent, name, fid| CmlOp::Create { parent, name, fid, kind, mode, rdev };
        self.make_object(parent, name, kind, caller, op).await
    }

    /// Makes an object of any kind with a fid of its own; counts as one lookup.
    pub(super) async fn make_object(
        &self,
        parent: VnodeId,
        name: Bytes,
        kind: Kind,
        caller: Caller,
        op: impl FnOnce(Fid, Name, Fid) -> CmlOp,
    ) -> Result<Object, Error> {
        self.check_writable()?;
        let name = parse(name)?;
        let fid = self.remote.take_fid().await?;
        self.make_object_as(fid, (parent, name), (kind, true), caller, op).await
    }

    /// Makes an object with a fid that no object has yet; counts as one lookup. If `exclusive`, only one client makes
    /// it.
    pub(super) async fn make_object_as(
        &self,
        fid: Fid,
        (parent, name): (VnodeId, Name),
        (kind, exclusive): (Kind, bool),
        caller: Caller,
        op: impl FnOnce(Fid, Name, Fid) -> CmlOp,
    ) -> Result<Object, Error> {
        let directory = self.directory(parent).await.map_err(Error::of_names)?.object;
        let parent = directory.fid;
        let edit = NameEdit { parent, name: name.clone(), entry: Some(CachedEntry { fid, kind }) };
        let (op, caller) = inherit_group(op(parent, name, fid), caller, &directory.status);
        let change = Change::new(op, kind).exclusive(exclusive);
        let object = self.change(change, caller, &[edit]).await.map_err(Error::of_names)?;
        let object = object.ok_or(Error::Refused(FsError::Malformed))?;
        self.kernel.count_lookup(&object);
        Ok(object)
    }

    pub(super) async fn make_dir(
        &self,
        (parent, name): (VnodeId, Bytes),
        mode: Mode,
        caller: Caller,
    ) -> Result<Object, Error> {
        let op = |parent, name, fid| CmlOp::MakeDir { parent, name, fid, mode };
        self.make_object(parent, name, Kind::Directory, caller, op).await
    }

    pub(super) async fn make_symlink(
        &self,
        (parent, name): (VnodeId, Bytes),
        target: Bytes,
        caller: Caller,
    ) -> Result<Object, Error> {
        let target = SymlinkTarget::new(target).map_err(|error| match error {
            InvalidName::TooLong { .. } => Error::NameTooLong,
            InvalidName::Empty => Error::Refused(FsError::NotFound),
            InvalidName::Dots | InvalidName::Byte(_) => Error::Invalid(error.to_string()),
        })?;
        let op = |parent, name, fid| CmlOp::SymLink { parent, name, fid, target };
        self.make_object(parent, name, Kind::Symlink, caller, op).await
    }

    pub(super) async fn link(
        self: &Arc<Self>,
        vnode: VnodeId,
        (parent, name): (VnodeId, Bytes),
        caller: Caller,
    ) -> Result<Object, Error> {
        self.check_writable()?;
        let object = self.status_of(vnode).await?.object;
        let (parent, name) = (self.fid_of(parent)?, parse(name)?);
        let edit = NameEdit { parent, name: name.clone(), entry: Some(CachedEntry::of(&object)) };
        let op = CmlOp::Link { parent, name, fid: object.fid };
        let change = Change::new(op, object.status.kind).exclusive(true);
        self.change(change, caller, &[edit]).await.map_err(Error::of_names)?;
        let linked = self.status_of(vnode).await?.object;
        let linked = self.present(linked);
        self.kernel.count_lookup(&linked);
        Ok(linked)
    }

    /// Removes a name: that of a directory, or of anything else.
    pub(super) async fn remove(
        self: &Arc<Self>,
        (parent, name): (VnodeId, Bytes),
        directory: bool,
        caller: Caller,
    ) -> Result<(), Error> {
        self.check_writable()?;
        let name = parse(name)?;
        for _ in 1..ATTEMPTS_MAX {
            match self.remove_known(parent, &name, directory, caller).await {
                Err(Attempt::Overtaken(_)) => {}
                other => return other.map_err(Attempt::into_error),
            }
        }
        self.remove_known(parent, &name, directory, caller).await.map_err(Attempt::into_error)
    }

    /// Removes a name that means the object known here.
    async fn remove_known(
        self: &Arc<Self>,
        parent: VnodeId,
        name: &Name,
        directory: bool,
        caller: Caller,
    ) -> Result<(), Attempt> {
        let child = self.child(parent, name).await?.object;
        match (directory, child.status.kind == Kind::Directory) {
            (true, false) => return Err(Error::Refused(FsError::NotDirectory).into()),
            (false, true) => return Err(Error::Refused(FsError::IsDirectory).into()),
            (true, true) | (false, false) => {}
        }
        let parent = self.fid_of(parent)?;
        let removing = self.prepare_removal(&child).await?;
        let edit = NameEdit { parent, name: name.clone(), entry: None };
        let name = name.clone();
        let op = match directory {
            true => CmlOp::RemoveDir { parent, name, fid: child.fid },
            false => CmlOp::Remove { parent, name, fid: child.fid },
        };
        self.change_removing(removing.as_deref(), Change::new(op, child.status.kind), caller, &[edit]).await
    }

    /// Makes a change that removes a name. `removing`: the file whose last name it is, if there is one.
    async fn change_removing(
        &self,
        removing: Option<&File>,
        change: Change,
        caller: Caller,
        edits: &[NameEdit],
    ) -> Result<(), Attempt> {
        let mutated = self.change(change, caller, edits).await.map(drop);
        if let (Some(file), Err(Error::Refused(reason))) = (removing, &mutated)
            && !matches!(reason, FsError::ShuttingDown | FsError::NotAttached)
        {
            blocking(|| self.note_kept(file));
        }
        mutated.map_err(Attempt::of_mutation)
    }

    /// Prepares for the removal of a file's last name, with which its content and attributes go: a program that has
    /// the file open needs all of them first. If they do not come the program gets an error, and the name goes all the
    /// same. Returns the file if it was not about to be removed before.
    async fn prepare_removal(&self, object: &Object) -> Result<Option<Arc<File>>, Error> {
        let in_use = self.files().get(object.fid.vnode);
        let Some(file) = in_use.filter(|_| object.status.nlink == 1) else { return Ok(None) };
        self.cache.index.check_writable()?;
        if let Err(error) = file.complete_if_open().await {
            tracing::debug!(fid = %object.fid, %error, "an open file loses its name before it has arrived");
        }
        if file.state().handles() > 0
            && let Err(error) = self.xattrs_of(object, Purpose::Fetch).await
        {
            tracing::debug!(fid = %object.fid, %error, "an open file loses its name and its attributes");
        }
        if !self.settings.writeback.waits() {
            return Ok(None);
        }
        let begun = self.note_removing(&file)?;
        Ok(begun.then_some(file))
    }

    pub(super) async fn rename(
        self: &Arc<Self>,
        (from_parent, from_name): (VnodeId, Bytes),
        (to_parent, to_name): (VnodeId, Bytes),
        mode: RenameMode,
        caller: Caller,
    ) -> Result<(), Error> {
        self.check_writable()?;
        let (from, to) = ((from_parent, parse(from_name)?), (to_parent, parse(to_name)?));
        for _ in 1..ATTEMPTS_MAX {
            match self.rename_known(from.clone(), to.clone(), mode, caller).await {
                Err(Attempt::Overtaken(_)) => {}
                other => return other.map_err(Attempt::into_error),
            }
        }
        self.rename_known(from, to, mode, caller).await.map_err(Attempt::into_error)
    }

    /// Moves a name, if both names mean the objects known here.
    async fn rename_known(
        self: &Arc<Self>,
        (from_parent, from_name): (VnodeId, Name),
        (to_parent, to_name): (VnodeId, Name),
        mode: RenameMode,
        caller: Caller,
    ) -> Result<(), Attempt> {
        let moved = self.child(from_parent, &from_name).await?.object;
        let target = match self.child(to_parent, &to_name).await {
            Ok(target) => Some(target.object),
            Err(Error::Refused(FsError::NotFound)) => None,
            Err(error) => return Err(error.into()),
        };
        let target = match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Error::Refused(FsError::Exists).into()),
            (RenameMode::Exchange, None) => return Err(Error::Refused(FsError::NotFound).into()),
            // Two names of one object: nothing happens (rename(2)).
            (RenameMode::Replace, Some(target)) if target.fid == moved.fid => return Ok(()),
            (_, target) => target,
        };
        let (from_parent, to_parent) = (self.fid_of(from_parent)?, self.fid_of(to_parent)?);
        let removing = match (mode, &target) {
            (RenameMode::Replace, Some(target)) => self.prepare_removal(target).await?,
            _ => None,
        };
        let left = match mode {
            RenameMode::Exchange => target.as_ref().map(CachedEntry::of),
            RenameMode::Replace | RenameMode::NoReplace => None,
        };
        let edits = [
            NameEdit { parent: from_parent, name: from_name.clone(), entry: left },
            NameEdit { parent: to_parent, name: to_name.clone(), entry: Some(CachedEntry::of(&moved)) },
        ];
        let (replaced, kind) = (target.as_ref().map(|target| target.fid), target.map(|target| target.status.kind));
        let op = CmlOp::Rename { from_parent, from_name, to_parent, to_name, fid: moved.fid, replaced, mode };
        let change = Change::new(op, moved.status.kind).replacing(kind).exclusive(mode == RenameMode::NoReplace);
        self.change_removing(removing.as_deref(), change, caller, &edits).await?;
        if from_parent != to_parent && moved.status.kind == Kind::Directory {
            // The listing of the moved directory has a number for `..`.
            drop(self.kernel.forget_listings(vec![moved.fid.vnode]));
        }
        Ok(())
    }
}

/// Reason why an attempt to change names failed.
enum Attempt {
    /// The names meant something else by then: another client was quicker.
    Overtaken(Error),
    Failed(Error),
}

impl Attempt {
    fn of_mutation(error: Error) -> Self {
        match error {
            Error::Refused(reason) if is_overtaken(reason) => Self::Overtaken(error),
            other => Self::Failed(other),
        }
    }

    fn into_error(self) -> Error {
        match self {
            Self::Overtaken(error) | Self::Failed(error) => error.of_names(),
        }
    }
}

impl From<Error> for Attempt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Returns the objects that a mutation changes, besides the directories of its names.
pub(super) fn objects_of(op: &CmlOp) -> Vec<Fid> {
    let replaced = match op {
        CmlOp::Rename { replaced, .. } => *replaced,
        _ => None,
    };
    std::iter::once(op.fid()).chain(replaced).collect()
}

/// Whether an error of the server may mean that the names no longer mean the objects known here.
fn is_overtaken(error: FsError) -> bool {
    matches!(
        error,
        FsError::NotFound
            | FsError::Exists
            | FsError::NotDirectory
            | FsError::IsDirectory
            | FsError::Stale
            | FsError::NameChanged
            | FsError::BelowItself
    )
}

/// Applies the set-gid bit of a directory: new objects get its group, and new directories are set-gid too (inode(7)).
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
