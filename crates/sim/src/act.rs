//! The acts of a client of a fleet, and the reports of them to the [`Versions`].

mod calls;

use std::cell::{RefCell, RefMut};
use std::time::Duration;

use mafs_client::vfs::{Error, QueuePage, RecordState, Vfs};
use mafs_proto::{FsError, Kind, VnodeId};

use crate::history::Register;
use crate::kernel::Attributes;
use crate::operation::Programs;
use crate::versions::{Place, RecordId, Versions};
use calls::Calls;
pub(crate) use calls::Told;

/// The names of each directory.
pub(crate) const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// The directory below the root.
pub(crate) const BELOW: &str = "below";

/// One act of a client. Paths are a name, or one in [`BELOW`].
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Writes a file, which is made if it is not there. If there is a second content, writes that too after a pause,
    /// before the file is closed for good. With passthrough that is a write between FLUSH and RELEASE.
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
    /// The model has no word for the outcome.
    NotNow,
    /// The error that a program would be told.
    Failed(Told),
    /// A violation: something that may not be.
    Violation(String),
}

impl From<Told> for Undone {
    fn from(told: Told) -> Self {
        Self::Failed(told)
    }
}

impl From<String> for Undone {
    fn from(violation: String) -> Self {
        Self::Violation(violation)
    }
}

/// A client that acts.
#[derive(Clone, Copy)]
pub(crate) struct Actor<'a> {
    pub(crate) client: usize,
    /// Whether its closes wait for the announcement.
    pub(crate) announces: bool,
    pub(crate) versions: &'a RefCell<Versions>,
}

impl Actor<'_> {
    /// Has some program of the client act.
    pub(crate) async fn perform(self, act: &Act, programs: &Programs) -> Result<(), Undone> {
        match programs {
            Programs::Bare(vfs) => Program { actor: self, calls: vfs }.perform(act).await,
            Programs::Above(kernel) => Program { actor: self, calls: kernel }.perform(act).await,
        }
    }
}

/// Looks up which object a path means.
pub(crate) async fn find(programs: &Programs, path: &str) -> Result<Option<Attributes>, Told> {
    match programs {
        Programs::Bare(vfs) => Calls::find(vfs, path).await,
        Programs::Above(kernel) => Calls::find(kernel, path).await,
    }
}

/// Returns the extended attribute of a path that has just meant this object.
pub(crate) async fn xattr(programs: &Programs, path: &str, vnode: VnodeId) -> Result<u64, Told> {
    let (_, token) = match programs {
        Programs::Bare(vfs) => Calls::xattr(vfs, path, vnode).await?,
        Programs::Above(kernel) => Calls::xattr(kernel, path, vnode).await?,
    };
    Ok(token)
}

/// A program on a client.
struct Program<'a, C> {
    actor: Actor<'a>,
    calls: &'a C,
}

const XATTR: &str = "user.token";

/// The value of a content that ends where no whole one does: a write has failed half-way, for want of room.
const PART: u64 = u64::MAX;

/// The mode that every file is made with.
const FIRST_MODE: u32 = 0o644;

impl<C: Calls> Program<'_, C> {
    async fn perform(&self, act: &Act) -> Result<(), Undone> {
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

    async fn write(&self, path: &str, token: u64, again: Option<(u64, Duration)>, fsync: bool) -> Result<(), Undone> {
        let object = self.look(path).await?;
        self.must_be_free(path, object.as_ref())?;
        let mut cut = None;
        let (vnode, file) = match object {
            Some(object) if object.kind == Kind::File => {
                cut = C::CUTS
                    .then(|| self.begin(&Register::Content(object.vnode), Some(0), &about(&[path], object.vnode)));
                (object.vnode, self.calls.open(path, object.vnode).await?)
            }
            Some(_) => return Err(Undone::NotNow),
            None => self.create(path).await?,
        };
        let mut stored = self.fill(path, vnode, &file, token, fsync).await;
        if let (Ok(()), Some(cut)) = (&stored, cut) {
            self.versions().supersede(&cut);
        }
        if let (Ok(()), Some((second, pause))) = (&stored, again) {
            tokio::time::sleep(pause).await;
            self.versions().note_written_over(token, second);
            stored = self.fill(path, vnode, &file, second, false).await;
        }
        let closed = self.calls.close(file).await;
        stored?;
        Ok(closed?)
    }

    async fn create(&self, path: &str) -> Result<(VnodeId, C::File), Undone> {
        let register = name_register(path);
        let update = self.begin(&register, None, std::slice::from_ref(&register));
        let (vnode, file) = self.calls.create(self.calls.name(path).await?).await?;
        self.answer(&update, vnode.0);
        Ok((vnode, file))
    }

    /// Writes a content and closes the file, as a program does that has another descriptor of it.
    async fn fill(&self, path: &str, vnode: VnodeId, file: &C::File, token: u64, fsync: bool) -> Result<(), Undone> {
        let update = self.begin(&Register::Content(vnode), Some(token), &about(&[path], vnode));
        // The file has been cut, unless it has a content of this act's.
        let written = self.calls.write(file, &content(token)).await;
        // A daemon that is gone has taken all of it or nothing.
        if written.as_ref().is_err_and(|told| !told.is_gone()) {
            self.versions().fail(&update);
        }
        written?;
        if fsync {
            self.calls.fsync(file).await?;
        }
        self.calls.close_one(file).await?;
        self.answer(&update, token);
        if fsync {
            self.versions().fsync(&update);
        }
        if self.actor.announces {
            self.versions().announce(&update);
        }
        Ok(())
    }

    async fn replace(&self, path: &str, token: u64, fsync: bool) -> Result<(), Undone> {
        let target = self.look(path).await?;
        self.must_be_free(path, target.as_ref())?;
        self.must_be_applied(target.as_ref())?;
        if target.as_ref().is_some_and(|object| object.kind == Kind::Directory) {
            return Err(Undone::NotNow);
        }
        let draft = format!("draft-{token}");
        let (vnode, file) = self.create(&draft).await?;
        let stored = self.fill(&draft, vnode, &file, token, fsync).await;
        let closed = self.calls.close(file).await;
        stored?;
        closed?;
        self.move_to(vnode, &draft, path, target).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), Undone> {
        let (moved, target) = (self.look(from).await?, self.look(to).await?);
        self.must_be_free(from, moved.as_ref())?;
        self.must_be_free(to, target.as_ref())?;
        self.must_be_applied(target.as_ref())?;
        let is_file = |object: &Attributes| object.kind != Kind::Directory;
        let Some(moved) = moved.filter(is_file).filter(|_| target.as_ref().is_none_or(is_file)) else {
            return Err(Undone::NotNow);
        };
        if target.as_ref().is_some_and(|target| target.vnode == moved.vnode) {
            return Err(Undone::NotNow);
        }
        self.move_to(moved.vnode, from, to, target).await
    }

    async fn move_to(&self, vnode: VnodeId, from: &str, to: &str, replaced: Option<Attributes>) -> Result<(), Undone> {
        let (old, new) = (name_register(from), name_register(to));
        let about = about(&[from, to], vnode);
        let updates =
            [(&old, 0), (&new, vnode.0)].map(|(register, value)| (self.begin(register, Some(value), &about), value));
        self.note_removal(replaced.as_ref());
        let (from, to) = (self.calls.name(from).await?, self.calls.name(to).await?);
        self.calls.rename(from, to).await?;
        for (update, value) in updates {
            self.answer(&update, value);
        }
        Ok(())
    }

    async fn read(&self, path: &str) -> Result<(), Undone> {
        let Some(object) = self.look(path).await?.filter(|object| object.kind == Kind::File) else {
            return Ok(());
        };
        match self.calls.read(path, object.vnode).await {
            Ok(Some((vnode, bytes))) => {
                self.see_means(path, object.vnode, vnode)?;
                self.see_content(vnode, &bytes)
            }
            Ok(None) => Ok(()),
            Err(told) => self.excuse(path, object.vnode, told),
        }
    }

    /// Reports the object that a path means now. Just before, the path meant another object, or the same one.
    fn see_means(&self, path: &str, before: VnodeId, vnode: VnodeId) -> Result<(), Undone> {
        match vnode == before {
            true => Ok(()),
            false => Ok(self.versions().see(self.actor.client, &name_register(path), vnode.0)?),
        }
    }

    fn see_content(&self, vnode: VnodeId, bytes: &[u8]) -> Result<(), Undone> {
        let whole = token_of_size(bytes.len() as u64);
        let of = writers(bytes);
        let token = match whole {
            Some(token) if self.is_content(bytes, token) => token,
            None if of.len() == 1 => PART,
            _ => {
                let count = bytes.len();
                return Err(format!("invariant 4: {vnode:?} has {count} bytes that nobody wrote so: {of:?}").into());
            }
        };
        let seen = self.versions().see(self.actor.client, &Register::Content(vnode), token);
        Ok(seen.map_err(|error| format!("{error}; it has {} bytes of {of:?}", bytes.len()))?)
    }

    /// Whether bytes are a content, or that content while its program writes the next one over it: what was closed by
    /// one of two descriptors is sent as it is then.
    fn is_content(&self, bytes: &[u8], token: u64) -> bool {
        let written = content(token);
        let over = self.versions().written_over(token).map_or(written.clone(), content);
        bytes.len() == written.len()
            && bytes.iter().enumerate().all(|(at, byte)| *byte == written[at] || over.get(at) == Some(byte))
    }

    async fn stat(&self, path: &str) -> Result<(), Undone> {
        let Some(object) = self.look(path).await?.filter(|object| object.kind == Kind::File) else {
            return Ok(());
        };
        let vnode = match self.calls.stat(path, object.vnode).await {
            Ok(shown) => {
                self.see_means(path, object.vnode, shown.vnode)?;
                if shown.kind != Kind::File {
                    return Ok(());
                }
                self.see_status(&shown)?;
                shown.vnode
            }
            Err(told) => return self.excuse(path, object.vnode, told),
        };
        match self.calls.xattr(path, vnode).await {
            Ok((now, token)) => {
                self.see_means(path, vnode, now)?;
                Ok(self.versions().see(self.actor.client, &Register::Xattr(now), token)?)
            }
            Err(told) => self.excuse(path, vnode, told),
        }
    }

    /// Reports the values that stat shows. A size tells which content it is of.
    fn see_status(&self, object: &Attributes) -> Result<(), Undone> {
        let vnode = object.vnode;
        let [content, mode] = values_of(object);
        let seen = self.versions().see(self.actor.client, &Register::Content(vnode), content);
        seen.map_err(|error| format!("{error}; it is {object:?}"))?;
        Ok(self.versions().see(self.actor.client, &Register::Mode(vnode), mode)?)
    }

    /// Excuses an error if the object may be gone since the look at its name.
    fn excuse(&self, path: &str, vnode: VnodeId, told: Told) -> Result<(), Undone> {
        let may_be_gone = self.versions().last(&name_register(path)) != Some(vnode.0);
        // The last of them: it is something else by now.
        let is_gone =
            |error: &Error| matches!(error, Error::Refused(FsError::Stale | FsError::NotFound | FsError::WrongKind));
        if may_be_gone && told.may_be(is_gone) { Ok(()) } else { Err(told.into()) }
    }

    async fn list(&self, below: bool) -> Result<(), Undone> {
        let entries = self.calls.entries(below).await?;
        for name in NAMES {
            let entry = entries.iter().find(|(entry, _)| entry == name);
            let path = if below { format!("{BELOW}/{name}") } else { name.to_owned() };
            let vnode = entry.map_or(0, |(_, vnode)| vnode.0);
            self.versions().see(self.actor.client, &Register::Name(path), vnode)?;
        }
        Ok(())
    }

    async fn remove(&self, path: &str) -> Result<(), Undone> {
        let object = self.look(path).await?;
        self.must_be_free(path, object.as_ref())?;
        self.must_be_applied(object.as_ref())?;
        let Some(object) = object else { return Err(Undone::NotNow) };
        let (register, vnode) = (name_register(path), object.vnode);
        // A removal does not wait for the content, even if the file has other names.
        let mut about = about(&[path], vnode);
        about.retain(|register| *register != Register::Content(vnode));
        let update = self.begin(&register, Some(0), &about);
        let name = self.calls.name(path).await?;
        self.note_removal(Some(&object));
        self.calls.remove(name, object.kind).await?;
        self.answer(&update, 0);
        Ok(())
    }

    async fn set_mode(&self, path: &str, mode: u32) -> Result<(), Undone> {
        let object = self.look(path).await?;
        self.must_be_free(path, object.as_ref())?;
        let Some(object) = object.filter(|object| object.kind == Kind::File) else {
            return Err(Undone::NotNow);
        };
        let (vnode, value) = (object.vnode, mode_value(mode));
        if !self.versions().is_own_or_applied(self.actor.client, &Register::Mode(vnode)) {
            // The change that arrives last decides the attributes, whichever client has announced first.
            return Err(Undone::NotNow);
        }
        let about = about(&[path], vnode);
        let update = self.begin(&Register::Mode(vnode), Some(value), &about);
        self.calls.set_mode(path, vnode, mode).await?;
        self.answer(&update, value);
        Ok(())
    }

    async fn set_xattr(&self, path: &str, token: u64) -> Result<(), Undone> {
        let object = self.look(path).await?;
        self.must_be_free(path, object.as_ref())?;
        let Some(object) = object.filter(|object| object.kind == Kind::File) else {
            return Err(Undone::NotNow);
        };
        let vnode = object.vnode;
        let update = self.begin(&Register::Xattr(vnode), Some(token), &[]);
        self.calls.set_xattr(path, vnode, token).await?;
        self.answer(&update, token);
        Ok(())
    }

    async fn link(&self, from: &str, to: &str, token: u64) -> Result<(), Undone> {
        let (object, target) = (self.look(from).await?, self.look(to).await?);
        self.must_be_free(from, object.as_ref())?;
        self.must_be_free(to, target.as_ref())?;
        let is_file = |object: &Attributes| object.kind == Kind::File;
        let Some(object) = object.filter(is_file).filter(|_| target.is_none()) else {
            return Err(Undone::NotNow);
        };
        let vnode = object.vnode;
        let about = about(&[from, to], vnode);
        let updates = [(name_register(to), vnode.0), (Register::Links(vnode), token)];
        let updates = updates.map(|(register, value)| (self.begin(&register, Some(value), &about), value));
        self.calls.link(from, vnode, self.calls.name(to).await?).await?;
        for (update, value) in updates {
            self.answer(&update, value);
        }
        Ok(())
    }

    async fn make(&self, path: &str, kind: Kind) -> Result<(), Undone> {
        let object = self.look(path).await?;
        self.must_be_free(path, object.as_ref())?;
        if object.is_some() {
            return Err(Undone::NotNow);
        }
        let register = name_register(path);
        let update = self.begin(&register, None, std::slice::from_ref(&register));
        let made = self.calls.make(self.calls.name(path).await?, kind).await?;
        self.answer(&update, made.0);
        Ok(())
    }

    /// Looks a name up and reports its meaning, also that it means nothing.
    async fn look(&self, path: &str) -> Result<Option<Attributes>, Undone> {
        let found = self.calls.find(path).await?;
        let vnode = found.as_ref().map_or(0, |object| object.vnode.0);
        self.versions().see(self.actor.client, &name_register(path), vnode)?;
        Ok(found)
    }

    /// Refuses an act if something that it touches has a version that this client need not know of yet.
    fn must_be_free(&self, path: &str, object: Option<&Attributes>) -> Result<(), Undone> {
        let vnode = object.map(|object| object.vnode);
        let of_object = vnode.into_iter().flat_map(Register::of);
        let mut all = std::iter::once(name_register(path)).chain(of_object);
        let is_free = all.all(|register| self.versions().may_change(self.actor.client, &register));
        if is_free { Ok(()) } else { Err(Undone::NotNow) }
    }

    /// Refuses an act while another client has something on its way to the object: an announced change is refused, and
    /// listed at that client, if the object is gone before the change was sent.
    fn must_be_applied(&self, object: Option<&Attributes>) -> Result<(), Undone> {
        let vnode = object.map(|object| object.vnode);
        let mut all = vnode.into_iter().flat_map(Register::of);
        let is_applied = all.all(|register| self.versions().is_own_or_applied(self.actor.client, &register));
        if is_applied { Ok(()) } else { Err(Undone::NotNow) }
    }

    fn note_removal(&self, object: Option<&Attributes>) {
        if let Some(object) = object.filter(|object| object.kind == Kind::Directory || object.links == 1) {
            self.versions().remove(self.actor.client, object.vnode);
        }
    }

    fn answer(&self, update: &Place, value: u64) {
        let newest = log_of(self.calls.vfs()).into_iter().map(|(id, _)| id).max();
        self.versions().answer(update, value, newest);
    }

    fn begin(&self, register: &Register, value: Option<u64>, about: &[Register]) -> Place {
        self.versions().begin(self.actor.client, register, value, about)
    }

    fn versions(&self) -> RefMut<'_, Versions> {
        self.actor.versions.borrow_mut()
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

/// Returns everything that matters of some names and their object.
fn about(paths: &[&str], vnode: VnodeId) -> Vec<Register> {
    paths.iter().map(|path| name_register(path)).chain(Register::of(vnode)).collect()
}

/// Returns the values of a file's content and mode.
pub(crate) fn values_of(object: &Attributes) -> [u64; 2] {
    [token_of_size(object.size).unwrap_or(PART), mode_value(u32::from(object.mode))]
}

pub(crate) fn name_register(path: &str) -> Register {
    Register::Name(path.to_owned())
}

/// Returns 0 for the mode that a file is made with, which nobody may have been told of.
fn mode_value(mode: u32) -> u64 {
    u64::from(mode ^ FIRST_MODE)
}

/// Some contents travel inside the journal record (up to 16 KB), some in files of their own, some in several chunks.
const ADDED_BYTES: [u64; 8] = [0, 40_000, 0, 150_000, 0, 40_000, 0, 0];

/// Returns the bytes that the update with this token writes: no other has its size, nor its bytes. Token 0 is the
/// content of a new file.
pub(crate) fn content(token: u64) -> Vec<u8> {
    (0..size_of(token)).map(|at| (token * 31 + at / 97).to_le_bytes()[0]).collect()
}

/// Returns the parts of a mixture: where each begins, and its token modulo 256.
fn writers(bytes: &[u8]) -> Vec<(usize, u8)> {
    // 31 times this is 1.
    const INVERSE: u8 = 223;
    let of = |(at, byte): (usize, &u8)| (at, byte.wrapping_sub((at / 97).to_le_bytes()[0]).wrapping_mul(INVERSE));
    let mut parts: Vec<(usize, u8)> = bytes.iter().enumerate().map(of).collect();
    parts.dedup_by_key(|(_, token)| *token);
    parts
}

pub(crate) fn size_of(token: u64) -> u64 {
    token * 5 + ADDED_BYTES[usize::try_from(token % 8).unwrap_or(0)]
}

/// Returns the token of the content with this size. `None`: no content has it.
fn token_of_size(size: u64) -> Option<u64> {
    let parts = ADDED_BYTES[..4].iter().map(|added| size.checked_sub(*added).map(|part| part / 5));
    parts.flatten().find(|token| size_of(*token) == size)
}
