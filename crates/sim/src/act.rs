//! What a client of a fleet does, and what of it the [`Versions`] are told.

use std::cell::RefCell;
use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Attributes, Error, Opened, QueuePage, RecordState, Vfs};
use mafs_proto::{FsError, Kind, Mode, Object, RenameMode, VnodeId, XattrMode};

use crate::history::Register;
use crate::operation::{CALLER, get, names_in, put};
use crate::versions::{Place, RecordId, Versions};
use crate::workload::{READ, REPLACE};

/// The names of each directory.
pub(crate) const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// The directory below the root.
pub(crate) const BELOW: &str = "below";

/// One act of a client. Paths are a name, or one in [`BELOW`].
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Writes a file, which is made if it is not there; another time before it is closed for good, after a pause, if
    /// there is a second content. With passthrough that is a write between FLUSH and RELEASE.
    Write { path: String, token: u64, again: Option<(u64, Duration)>, fsync: bool },
    /// Writes another file and renames it over this one, as editors do.
    Replace { path: String, token: u64, fsync: bool },
    /// Reads a whole file.
    Read { path: String },
    /// stat(2).
    Stat { path: String },
    /// Lists a directory.
    List { below: bool },
    /// unlink(2) or rmdir(2).
    Remove { path: String },
    /// rename(2).
    Rename { from: String, to: String },
    /// chmod(2).
    SetMode { path: String, mode: u32 },
    /// mkdir(2) or symlink(2): made here, or by the server if others may make the same.
    Make { path: String, kind: Kind },
    /// link(2).
    Link { from: String, to: String, token: u64 },
    /// setxattr(2): done at the server.
    SetXattr { path: String, token: u64 },
}

/// Why an act was not done.
#[derive(Debug)]
pub(crate) enum Undone {
    /// The model has no word for what would come of it.
    NotNow,
    /// What a program would be told.
    Failed(Error),
    /// What may not be.
    Violation(String),
}

impl From<Error> for Undone {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<String> for Undone {
    fn from(violation: String) -> Self {
        Self::Violation(violation)
    }
}

/// A client that acts.
pub(crate) struct Actor<'a> {
    pub(crate) client: usize,
    pub(crate) vfs: &'a Vfs,
    /// Whether its closes wait for the announcement.
    pub(crate) announces: bool,
    pub(crate) versions: &'a RefCell<Versions>,
}

const XATTR: &str = "user.token";

/// What every file is made with.
const FIRST_MODE: u32 = 0o644;

impl Actor<'_> {
    pub(crate) async fn perform(&mut self, act: &Act) -> Result<(), Undone> {
        match act {
            Act::Write { path, token, again, fsync } => self.write(path, *token, *again, *fsync).await,
            Act::Replace { path, token, fsync } => self.replace(path, *token, *fsync).await,
            Act::Read { path } => self.read(path).await,
            Act::Stat { path } => self.stat(path).await,
            Act::List { below } => self.list(*below).await,
            Act::Remove { path } => self.remove(path).await,
            Act::Rename { from, to } => self.rename(from, to).await,
            Act::SetMode { path, mode } => self.set_mode(path, *mode).await,
            Act::Make { path, kind } => self.make(path, *kind).await,
            Act::Link { from, to, token } => self.link(from, to, *token).await,
            Act::SetXattr { path, token } => self.set_xattr(path, *token).await,
        }
    }

    async fn write(
        &mut self,
        path: &str,
        token: u64,
        again: Option<(u64, Duration)>,
        fsync: bool,
    ) -> Result<(), Undone> {
        let object = self.look(path).await?;
        self.must_be_free(path, object.as_ref())?;
        let (vnode, opened) = match object {
            Some(object) if object.status.kind == Kind::File => {
                (object.fid.vnode, self.vfs.open(object.fid.vnode, REPLACE, CALLER).await?)
            }
            Some(_) => return Err(Undone::NotNow),
            None => self.create(path).await?,
        };
        let mut stored = self.fill(path, vnode, opened, token, fsync).await;
        if let (Ok(()), Some((token, pause))) = (&stored, again) {
            tokio::time::sleep(pause).await;
            stored = self.fill(path, vnode, opened, token, false).await;
        }
        self.vfs.release(opened.file);
        stored
    }

    async fn create(&mut self, path: &str) -> Result<(VnodeId, Opened), Undone> {
        let register = name_register(path);
        let update = self.versions.borrow_mut().begin(self.client, &register, None, std::slice::from_ref(&register));
        let (parent, name) = self.place(path).await?;
        let (object, opened) = self.vfs.create(parent, name, Mode::from_bits(FIRST_MODE), REPLACE, CALLER).await?;
        self.answer(&update, object.fid.vnode.0);
        Ok((object.fid.vnode, opened))
    }

    /// Writes a content and closes the file, as a program does that has another descriptor of it.
    async fn fill(
        &mut self,
        path: &str,
        vnode: VnodeId,
        opened: Opened,
        token: u64,
        fsync: bool,
    ) -> Result<(), Undone> {
        let about = about(&[path], vnode);
        let update = self.versions.borrow_mut().begin(self.client, &Register::Content(vnode), Some(token), &about);
        // The file has been cut, unless it has a content of this act's.
        put(self.vfs, opened, 0, &content(token)).await.inspect_err(|_| self.versions.borrow_mut().fail(&update))?;
        if fsync {
            self.vfs.fsync(opened.file).await?;
        }
        self.vfs.flush(opened.file).await?;
        self.answer(&update, token);
        if fsync {
            self.versions.borrow_mut().fsync(&update);
        }
        if self.announces {
            self.versions.borrow_mut().announce(&update);
        }
        Ok(())
    }

    async fn replace(&mut self, path: &str, token: u64, fsync: bool) -> Result<(), Undone> {
        let target = self.look(path).await?;
        self.must_be_free(path, target.as_ref())?;
        self.must_be_applied(target.as_ref())?;
        if target.as_ref().is_some_and(|object| object.status.kind == Kind::Directory) {
            return Err(Undone::NotNow);
        }
        let draft = format!("draft-{token}");
        let (vnode, opened) = self.create(&draft).await?;
        let stored = self.fill(&draft, vnode, opened, token, fsync).await;
        self.vfs.release(opened.file);
        stored?;
        self.move_to(vnode, &draft, path, target).await
    }

    async fn rename(&mut self, from: &str, to: &str) -> Result<(), Undone> {
        let (moved, target) = (self.look(from).await?, self.look(to).await?);
        self.must_be_free(from, moved.as_ref())?;
        self.must_be_free(to, target.as_ref())?;
        self.must_be_applied(target.as_ref())?;
        let is_file = |object: &Object| object.status.kind != Kind::Directory;
        let Some(moved) = moved.filter(is_file).filter(|_| target.as_ref().is_none_or(is_file)) else {
            return Err(Undone::NotNow);
        };
        if target.as_ref().is_some_and(|target| target.fid == moved.fid) {
            return Err(Undone::NotNow);
        }
        self.move_to(moved.fid.vnode, from, to, target).await
    }

    async fn move_to(&mut self, vnode: VnodeId, from: &str, to: &str, replaced: Option<Object>) -> Result<(), Undone> {
        let (old, new) = (name_register(from), name_register(to));
        let about = about(&[from, to], vnode);
        let updates = [(&old, 0), (&new, vnode.0)].map(|(register, value)| {
            (self.versions.borrow_mut().begin(self.client, register, Some(value), &about), value)
        });
        self.note_removal(replaced.as_ref());
        let ((from, from_name), (to, to_name)) = (self.place(from).await?, self.place(to).await?);
        self.vfs.rename(from, from_name, to, to_name, RenameMode::Replace, CALLER).await?;
        for (update, value) in updates {
            self.answer(&update, value);
        }
        Ok(())
    }

    async fn read(&mut self, path: &str) -> Result<(), Undone> {
        let Some(object) = self.look(path).await?.filter(|object| object.status.kind == Kind::File) else {
            return Ok(());
        };
        let vnode = object.fid.vnode;
        let opened = match self.vfs.open(vnode, READ, CALLER).await {
            Ok(opened) => opened,
            Err(error) => return self.excuse(path, vnode, error),
        };
        let bytes = get(self.vfs, opened).await;
        self.vfs.release(opened.file);
        match bytes {
            Ok(bytes) => self.see_content(vnode, &bytes),
            // Another connection has taken the place of the one over which it came.
            Err(Error::VersionGone) => Ok(()),
            Err(error) => self.excuse(path, vnode, error),
        }
    }

    fn see_content(&mut self, vnode: VnodeId, bytes: &[u8]) -> Result<(), Undone> {
        let token = token_of_size(bytes.len() as u64).filter(|token| bytes == content(*token));
        let Some(token) = token else {
            let bytes = bytes.len();
            return Err(format!("invariant 4: {vnode:?} has {bytes} bytes that nobody wrote").into());
        };
        Ok(self.versions.borrow_mut().see(self.client, &Register::Content(vnode), token)?)
    }

    async fn stat(&mut self, path: &str) -> Result<(), Undone> {
        let Some(object) = self.look(path).await?.filter(|object| object.status.kind == Kind::File) else {
            return Ok(());
        };
        let vnode = object.fid.vnode;
        match self.vfs.get_attributes(vnode).await {
            Ok(object) => self.see_status(&object)?,
            Err(error) => return self.excuse(path, vnode, error),
        }
        match xattr_of(self.vfs, vnode).await {
            Ok(token) => Ok(self.versions.borrow_mut().see(self.client, &Register::Xattr(vnode), token)?),
            Err(error) => self.excuse(path, vnode, error),
        }
    }

    /// What stat shows: a size tells which content it is of.
    fn see_status(&mut self, object: &Object) -> Result<(), Undone> {
        let vnode = object.fid.vnode;
        let values = values_of(object);
        let [content, mode] = values.ok_or_else(|| format!("invariant 4: nobody wrote the size of {object:?}"))?;
        self.versions.borrow_mut().see(self.client, &Register::Content(vnode), content)?;
        Ok(self.versions.borrow_mut().see(self.client, &Register::Mode(vnode), mode)?)
    }

    /// An object may be gone between the look at its name and the next call.
    fn excuse(&self, path: &str, vnode: VnodeId, error: Error) -> Result<(), Undone> {
        let may_be_gone = self.versions.borrow().last(&name_register(path)) != Some(vnode.0);
        match error {
            Error::Refused(FsError::Stale | FsError::NotFound) if may_be_gone => Ok(()),
            error => Err(error.into()),
        }
    }

    async fn list(&mut self, below: bool) -> Result<(), Undone> {
        let directory = self.directory(below).await?;
        let entries = names_in(self.vfs, directory).await?;
        for name in NAMES {
            let entry = entries.iter().find(|entry| entry.name == name.as_bytes());
            let path = if below { format!("{BELOW}/{name}") } else { name.to_owned() };
            self.versions.borrow_mut().see(
                self.client,
                &Register::Name(path),
                entry.map_or(0, |entry| entry.vnode.0),
            )?;
        }
        Ok(())
    }

    async fn remove(&mut self, path: &str) -> Result<(), Undone> {
        let object = self.look(path).await?;
        self.must_be_free(path, object.as_ref())?;
        self.must_be_applied(object.as_ref())?;
        let Some(object) = object else { return Err(Undone::NotNow) };
        let (register, vnode) = (name_register(path), object.fid.vnode);
        // It does not wait for the content, be it that the file has other names.
        let mut about = about(&[path], vnode);
        about.retain(|register| *register != Register::Content(vnode));
        let update = self.versions.borrow_mut().begin(self.client, &register, Some(0), &about);
        let (parent, name) = self.place(path).await?;
        self.note_removal(Some(&object));
        match object.status.kind {
            Kind::Directory => self.vfs.remove_dir(parent, name, CALLER).await?,
            _ => self.vfs.unlink(parent, name, CALLER).await?,
        }
        self.answer(&update, 0);
        Ok(())
    }

    async fn set_mode(&mut self, path: &str, mode: u32) -> Result<(), Undone> {
        let object = self.look(path).await?;
        self.must_be_free(path, object.as_ref())?;
        let Some(object) = object.filter(|object| object.status.kind == Kind::File) else {
            return Err(Undone::NotNow);
        };
        let (vnode, value) = (object.fid.vnode, mode_value(mode));
        if !self.versions.borrow().is_own_or_applied(self.client, &Register::Mode(vnode)) {
            // Attributes are those of the change that arrives last, whoever has announced his first.
            return Err(Undone::NotNow);
        }
        let about = about(&[path], vnode);
        let update = self.versions.borrow_mut().begin(self.client, &Register::Mode(vnode), Some(value), &about);
        let set = Attributes { mode: Some(Mode::from_bits(mode)), ..Attributes::default() };
        self.vfs.set_attributes(vnode, set, None, CALLER).await?;
        self.answer(&update, value);
        Ok(())
    }

    async fn set_xattr(&mut self, path: &str, token: u64) -> Result<(), Undone> {
        let object = self.look(path).await?;
        self.must_be_free(path, object.as_ref())?;
        let Some(object) = object.filter(|object| object.status.kind == Kind::File) else {
            return Err(Undone::NotNow);
        };
        let vnode = object.fid.vnode;
        let update = self.versions.borrow_mut().begin(self.client, &Register::Xattr(vnode), Some(token), &[]);
        let value = Bytes::copy_from_slice(&token.to_le_bytes());
        self.vfs.set_xattr(vnode, XATTR.into(), value, XattrMode::Either, CALLER).await?;
        self.answer(&update, token);
        Ok(())
    }

    async fn link(&mut self, from: &str, to: &str, token: u64) -> Result<(), Undone> {
        let (object, target) = (self.look(from).await?, self.look(to).await?);
        self.must_be_free(from, object.as_ref())?;
        self.must_be_free(to, target.as_ref())?;
        let is_file = |object: &Object| object.status.kind == Kind::File;
        let Some(object) = object.filter(is_file).filter(|_| target.is_none()) else {
            return Err(Undone::NotNow);
        };
        let vnode = object.fid.vnode;
        let about = about(&[from, to], vnode);
        let updates = [(name_register(to), vnode.0), (Register::Links(vnode), token)];
        let updates = updates.map(|(register, value)| {
            (self.versions.borrow_mut().begin(self.client, &register, Some(value), &about), value)
        });
        let (parent, name) = self.place(to).await?;
        self.vfs.link(vnode, parent, name, CALLER).await?;
        for (update, value) in updates {
            self.answer(&update, value);
        }
        Ok(())
    }

    async fn make(&mut self, path: &str, kind: Kind) -> Result<(), Undone> {
        let object = self.look(path).await?;
        self.must_be_free(path, object.as_ref())?;
        if object.is_some() {
            return Err(Undone::NotNow);
        }
        let register = name_register(path);
        let update = self.versions.borrow_mut().begin(self.client, &register, None, std::slice::from_ref(&register));
        let (parent, name) = self.place(path).await?;
        let made = match kind {
            Kind::Directory => self.vfs.make_dir(parent, name, Mode::from_bits(0o755), CALLER).await?,
            _ => self.vfs.make_symlink(parent, name, Bytes::from_static(b"x"), CALLER).await?,
        };
        self.answer(&update, made.fid.vnode.0);
        Ok(())
    }

    /// What a name means; that it means nothing is seen as well.
    pub(crate) async fn look(&mut self, path: &str) -> Result<Option<Object>, Undone> {
        let found = self.find(path).await?;
        let vnode = found.as_ref().map_or(0, |object| object.fid.vnode.0);
        self.versions.borrow_mut().see(self.client, &name_register(path), vnode)?;
        Ok(found)
    }

    pub(crate) async fn find(&self, path: &str) -> Result<Option<Object>, Error> {
        let (parent, name) = self.place(path).await?;
        match self.vfs.lookup(parent, name).await {
            Ok(object) => Ok(Some(object)),
            Err(Error::Refused(FsError::NotFound)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Nothing that is touched may have a version that this client need not know of yet.
    fn must_be_free(&self, path: &str, object: Option<&Object>) -> Result<(), Undone> {
        let vnode = object.map(|object| object.fid.vnode);
        let of_object = vnode.into_iter().flat_map(Register::of);
        let mut all = std::iter::once(name_register(path)).chain(of_object);
        let is_free = all.all(|register| self.versions.borrow().may_change(self.client, &register));
        if is_free { Ok(()) } else { Err(Undone::NotNow) }
    }

    /// What another client has announced for an object is refused, and listed there, if the object is gone before it
    /// was sent.
    fn must_be_applied(&self, object: Option<&Object>) -> Result<(), Undone> {
        let vnode = object.map(|object| object.fid.vnode);
        let mut all = vnode.into_iter().flat_map(Register::of);
        let is_applied = all.all(|register| self.versions.borrow().is_own_or_applied(self.client, &register));
        if is_applied { Ok(()) } else { Err(Undone::NotNow) }
    }

    fn note_removal(&self, object: Option<&Object>) {
        if let Some(object) = object.filter(|object| object.status.kind == Kind::Directory || object.status.nlink == 1)
        {
            self.versions.borrow_mut().remove(self.client, object.fid.vnode);
        }
    }

    fn answer(&mut self, update: &Place, value: u64) {
        let newest = log_of(self.vfs).into_iter().map(|(id, _)| id).max();
        self.versions.borrow_mut().answer(update, value, newest);
    }

    async fn place(&self, path: &str) -> Result<(VnodeId, Bytes), Error> {
        let (is_below, name) = path.split_once('/').map_or((false, path), |(_, name)| (true, name));
        Ok((self.directory(is_below).await?, Bytes::copy_from_slice(name.as_bytes())))
    }

    /// [`BELOW`], or the root.
    async fn directory(&self, is_below: bool) -> Result<VnodeId, Error> {
        match is_below {
            true => Ok(self.vfs.lookup(VnodeId::ROOT, BELOW.into()).await?.fid.vnode),
            false => Ok(VnodeId::ROOT),
        }
    }
}

/// The records that the server has not answered, and whether each is announced; what has no record yet comes first.
pub(crate) fn log_of(vfs: &Vfs) -> Vec<(RecordId, bool)> {
    let (mut records, mut after) = (Vec::new(), None);
    loop {
        let report = vfs.queue(&QueuePage { after, count_max: 1000 });
        let told = report.changes.into_iter().map(|change| {
            let id = change.id.and_then(|id| {
                let (incarnation, number) = id.split_once('-')?;
                Some((incarnation.parse().ok()?, number.parse().ok()?))
            });
            (id.unwrap_or_default(), change.state == RecordState::Announced)
        });
        records.extend(told);
        after = report.next;
        if after.is_none() {
            return records;
        }
    }
}

/// Everything that matters of some names and their object.
fn about(paths: &[&str], vnode: VnodeId) -> Vec<Register> {
    paths.iter().map(|path| name_register(path)).chain(Register::of(vnode)).collect()
}

/// The extended attribute of a file; 0: it has none.
pub(crate) async fn xattr_of(vfs: &Vfs, vnode: VnodeId) -> Result<u64, Error> {
    match vfs.get_xattr(vnode, XATTR.into()).await {
        Ok(value) => Ok(value.as_bytes().try_into().map_or(u64::MAX, u64::from_le_bytes)),
        Err(Error::Refused(FsError::NoXattr)) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Content and mode of a file, unless nobody wrote so much.
pub(crate) fn values_of(object: &Object) -> Option<[u64; 2]> {
    let mode = mode_value(u32::from(object.status.mode.bits()));
    token_of_size(object.status.size).map(|token| [token, mode])
}

pub(crate) fn name_register(path: &str) -> Register {
    Register::Name(path.to_owned())
}

/// 0 for the mode that a file is made with, which nobody may have been told of.
fn mode_value(mode: u32) -> u64 {
    u64::from(mode ^ FIRST_MODE)
}

/// Some contents travel inside the journal record (up to 16 KB), some in files of their own, some in several chunks.
const ADDED_BYTES: [u64; 8] = [0, 40_000, 0, 150_000, 0, 40_000, 0, 0];

/// What the update with this token writes: no other has its size, nor its bytes. 0 is what a new file has.
pub(crate) fn content(token: u64) -> Vec<u8> {
    (0..size_of(token)).map(|at| (token * 31 + at / 97).to_le_bytes()[0]).collect()
}

pub(crate) fn size_of(token: u64) -> u64 {
    token * 5 + ADDED_BYTES[usize::try_from(token % 8).unwrap_or(0)]
}

/// `None`: no content has this size.
fn token_of_size(size: u64) -> Option<u64> {
    let parts = ADDED_BYTES[..4].iter().map(|added| size.checked_sub(*added).map(|part| part / 5));
    parts.flatten().find(|token| size_of(*token) == size)
}
