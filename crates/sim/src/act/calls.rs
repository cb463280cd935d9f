//! Single calls of programs, made to a client or by way of a kernel: acts consist of them.

use std::fmt;

use bytes::Bytes;
use mafs_client::vfs::{Attributes as Set, Error, Opened, Vfs};
use mafs_proto::{FsError, Kind, Mode, RenameMode, VnodeId, XattrMode};

use super::{BELOW, FIRST_MODE, XATTR};
use crate::kernel::{Attributes, Descriptor, Errno, Kernel};
use crate::operation::{CALLER, get, names_in, put};
use crate::workload::{READ, REPLACE};

/// The answer to a call of a program that has failed.
#[derive(Debug)]
pub(crate) enum Told {
    /// An error in the words of the client.
    Client(Error),
    /// An error in the words of Linux, which has one word for several of the client's.
    Kernel(Errno),
}

impl Told {
    /// Whether the client may have said such a thing.
    pub(crate) fn may_be(&self, such: impl Fn(&Error) -> bool) -> bool {
        match self {
            Self::Client(error) => such(error),
            Self::Kernel(errno) => errno.causes().iter().any(such),
        }
    }

    /// Whether the daemon had been killed.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Kernel(Errno::NOTCONN))
    }
}

impl From<Error> for Told {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

impl From<Errno> for Told {
    fn from(errno: Errno) -> Self {
        Self::Kernel(errno)
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(error) => write!(f, "{error}"),
            Self::Kernel(errno) => write!(f, "{errno:?}"),
        }
    }
}

/// The calls of programs, which a client takes or a kernel. Paths are as those of an [`super::Act`].
pub(crate) trait Calls {
    /// A place in a directory.
    type Name;
    /// An open file, to write.
    type File;
    /// Whether a file can be found as O_TRUNC has left it, because what programs do goes into its container at once.
    const CUTS: bool;

    /// Returns the client behind the calls.
    fn vfs(&self) -> &Vfs;

    /// Finds the directory of a path, if that has to be told.
    async fn name(&self, path: &str) -> Result<Self::Name, Told>;

    /// Looks up the object that a path means, as a first look shows it.
    async fn find(&self, path: &str) -> Result<Option<Attributes>, Told>;

    /// stat(2) of a path that has just meant this object.
    async fn stat(&self, path: &str, vnode: VnodeId) -> Result<Attributes, Told>;

    /// Lists the names of a directory and what they mean.
    async fn entries(&self, below: bool) -> Result<Vec<(String, VnodeId)>, Told>;

    /// Opens and reads the whole file of a path that has just meant this one. Returns which file it was, and its
    /// bytes. `None`: its version is gone, and nobody has opened the next one.
    async fn read(&self, path: &str, vnode: VnodeId) -> Result<Option<(VnodeId, Vec<u8>)>, Told>;

    /// Opens a file to write it anew.
    async fn open(&self, path: &str, vnode: VnodeId) -> Result<Self::File, Told>;

    /// Makes a file, and opens it likewise.
    async fn create(&self, name: Self::Name) -> Result<(VnodeId, Self::File), Told>;

    /// Writes from the beginning on.
    async fn write(&self, file: &Self::File, bytes: &[u8]) -> Result<(), Told>;

    /// fsync(2).
    async fn fsync(&self, file: &Self::File) -> Result<(), Told>;

    /// Closes a descriptor of a file that has another one.
    async fn close_one(&self, file: &Self::File) -> Result<(), Told>;

    /// Closes the last descriptor of a file.
    async fn close(&self, file: Self::File) -> Result<(), Told>;

    /// chmod(2).
    async fn set_mode(&self, path: &str, vnode: VnodeId, mode: u32) -> Result<(), Told>;

    /// Returns the extended attribute that programs set, of a path that has just meant this object, and which object
    /// it means now; 0: that has none.
    async fn xattr(&self, path: &str, vnode: VnodeId) -> Result<(VnodeId, u64), Told>;

    /// setxattr(2).
    async fn set_xattr(&self, path: &str, vnode: VnodeId, token: u64) -> Result<(), Told>;

    /// rename(2).
    async fn rename(&self, from: Self::Name, to: Self::Name) -> Result<(), Told>;

    /// unlink(2), or rmdir(2).
    async fn remove(&self, name: Self::Name, kind: Kind) -> Result<(), Told>;

    /// link(2) of what a path means.
    async fn link(&self, from: &str, vnode: VnodeId, to: Self::Name) -> Result<(), Told>;

    /// mkdir(2), or symlink(2).
    async fn make(&self, name: Self::Name, kind: Kind) -> Result<VnodeId, Told>;
}

/// Returns the token that an extended attribute holds.
fn token_of(value: &[u8]) -> u64 {
    value.try_into().map_or(u64::MAX, u64::from_le_bytes)
}

/// Returns the directory [`BELOW`], or the root.
async fn directory(vfs: &Vfs, is_below: bool) -> Result<VnodeId, Error> {
    match is_below {
        true => Ok(vfs.lookup(VnodeId::ROOT, BELOW.into()).await?.fid.vnode),
        false => Ok(VnodeId::ROOT),
    }
}

impl Calls for Vfs {
    type Name = (VnodeId, Bytes);
    type File = Opened;
    const CUTS: bool = false;

    fn vfs(&self) -> &Vfs {
        self
    }

    async fn name(&self, path: &str) -> Result<Self::Name, Told> {
        let (is_below, name) = path.split_once('/').map_or((false, path), |(_, name)| (true, name));
        Ok((directory(self, is_below).await?, Bytes::copy_from_slice(name.as_bytes())))
    }

    async fn find(&self, path: &str) -> Result<Option<Attributes>, Told> {
        let (parent, name) = Calls::name(self, path).await?;
        match self.lookup(parent, name).await {
            Ok(object) => Ok(Some(Attributes::of(&object))),
            Err(Error::Refused(FsError::NotFound)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn stat(&self, _path: &str, vnode: VnodeId) -> Result<Attributes, Told> {
        Ok(Attributes::of(&self.get_attributes(vnode).await?))
    }

    async fn entries(&self, below: bool) -> Result<Vec<(String, VnodeId)>, Told> {
        let entries = names_in(self, directory(self, below).await?).await?.into_iter();
        Ok(entries.map(|entry| (String::from_utf8_lossy(&entry.name).into_owned(), entry.vnode)).collect())
    }

    async fn read(&self, _path: &str, vnode: VnodeId) -> Result<Option<(VnodeId, Vec<u8>)>, Told> {
        let opened = self.open(vnode, READ, CALLER).await?;
        let bytes = get(self, opened).await;
        self.release(opened.file);
        match bytes {
            Ok(bytes) => Ok(Some((vnode, bytes))),
            // Another connection has taken the place of the one over which it came.
            Err(Error::VersionGone) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn open(&self, _path: &str, vnode: VnodeId) -> Result<Opened, Told> {
        Ok(self.open(vnode, REPLACE, CALLER).await?)
    }

    async fn create(&self, (parent, name): Self::Name) -> Result<(VnodeId, Opened), Told> {
        let (object, opened) = self.create(parent, name, Mode::from_bits(FIRST_MODE), REPLACE, CALLER).await?;
        Ok((object.fid.vnode, opened))
    }

    async fn write(&self, file: &Opened, bytes: &[u8]) -> Result<(), Told> {
        Ok(put(self, *file, 0, bytes).await?)
    }

    async fn fsync(&self, file: &Opened) -> Result<(), Told> {
        Ok(self.fsync(file.file).await?)
    }

    async fn close_one(&self, file: &Opened) -> Result<(), Told> {
        Ok(self.flush(file.file).await?)
    }

    async fn close(&self, file: Opened) -> Result<(), Told> {
        self.release(file.file);
        Ok(())
    }

    async fn set_mode(&self, _path: &str, vnode: VnodeId, mode: u32) -> Result<(), Told> {
        let set = Set { mode: Some(Mode::from_bits(mode)), ..Set::default() };
        self.set_attributes(vnode, set, None, CALLER).await?;
        Ok(())
    }

    async fn xattr(&self, _path: &str, vnode: VnodeId) -> Result<(VnodeId, u64), Told> {
        match self.get_xattr(vnode, XATTR.into()).await {
            Ok(value) => Ok((vnode, token_of(value.as_bytes()))),
            Err(Error::Refused(FsError::NoXattr)) => Ok((vnode, 0)),
            Err(error) => Err(error.into()),
        }
    }

    async fn set_xattr(&self, _path: &str, vnode: VnodeId, token: u64) -> Result<(), Told> {
        let value = Bytes::copy_from_slice(&token.to_le_bytes());
        Ok(self.set_xattr(vnode, XATTR.into(), value, XattrMode::Either, CALLER).await?)
    }

    async fn rename(&self, (from, from_name): Self::Name, (to, to_name): Self::Name) -> Result<(), Told> {
        Ok(self.rename(from, from_name, to, to_name, RenameMode::Replace, CALLER).await?)
    }

    async fn remove(&self, (parent, name): Self::Name, kind: Kind) -> Result<(), Told> {
        match kind {
            Kind::Directory => self.remove_dir(parent, name, CALLER).await?,
            _ => self.unlink(parent, name, CALLER).await?,
        }
        Ok(())
    }

    async fn link(&self, _from: &str, vnode: VnodeId, (parent, name): Self::Name) -> Result<(), Told> {
        self.link(vnode, parent, name, CALLER).await?;
        Ok(())
    }

    async fn make(&self, (parent, name): Self::Name, kind: Kind) -> Result<VnodeId, Told> {
        let made = match kind {
            Kind::Directory => self.make_dir(parent, name, Mode::from_bits(0o755), CALLER).await?,
            _ => self.make_symlink(parent, name, Bytes::from_static(b"x"), CALLER).await?,
        };
        Ok(made.fid.vnode)
    }
}

impl Calls for Kernel {
    type Name = String;
    type File = Descriptor;
    const CUTS: bool = true;

    fn vfs(&self) -> &Vfs {
        self.vfs()
    }

    async fn name(&self, path: &str) -> Result<String, Told> {
        Ok(format!("/{path}"))
    }

    async fn find(&self, path: &str) -> Result<Option<Attributes>, Told> {
        match self.stat(&format!("/{path}")).await {
            Ok(attributes) => Ok(Some(attributes)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    async fn stat(&self, path: &str, _vnode: VnodeId) -> Result<Attributes, Told> {
        Ok(self.stat(&format!("/{path}")).await?)
    }

    async fn entries(&self, below: bool) -> Result<Vec<(String, VnodeId)>, Told> {
        let path = if below { format!("/{BELOW}") } else { String::new() };
        Ok(self.entries(&path).await?)
    }

    async fn read(&self, path: &str, _vnode: VnodeId) -> Result<Option<(VnodeId, Vec<u8>)>, Told> {
        let path = format!("/{path}");
        let read = read_once(self, &path).await;
        // Reading on is EIO when the version is gone, and the next open gets the newer one.
        let read = if matches!(read, Err(Errno::IO)) { read_once(self, &path).await } else { read };
        Ok(read.map(Some)?)
    }

    async fn open(&self, path: &str, _vnode: VnodeId) -> Result<Descriptor, Told> {
        Ok(self.open(&format!("/{path}"), REPLACE).await?)
    }

    async fn create(&self, path: String) -> Result<(VnodeId, Descriptor), Told> {
        let fd = self.create(&path, FIRST_MODE, REPLACE).await?;
        Ok((self.vnode_of(fd)?, fd))
    }

    async fn write(&self, file: &Descriptor, bytes: &[u8]) -> Result<(), Told> {
        Ok(self.write(*file, 0, bytes).await.map(drop)?)
    }

    async fn fsync(&self, file: &Descriptor) -> Result<(), Told> {
        Ok(self.sync(*file).await?)
    }

    async fn close_one(&self, file: &Descriptor) -> Result<(), Told> {
        let copy = self.duplicate(*file)?;
        Ok(self.close(copy).await?)
    }

    async fn close(&self, file: Descriptor) -> Result<(), Told> {
        Ok(self.close(file).await?)
    }

    async fn set_mode(&self, path: &str, _vnode: VnodeId, mode: u32) -> Result<(), Told> {
        Ok(self.set_mode(&format!("/{path}"), mode).await?)
    }

    async fn xattr(&self, path: &str, _vnode: VnodeId) -> Result<(VnodeId, u64), Told> {
        let (vnode, value) = self.xattr(&format!("/{path}"), XATTR).await?;
        Ok((vnode, value.map_or(0, |value| token_of(&value))))
    }

    async fn set_xattr(&self, path: &str, _vnode: VnodeId, token: u64) -> Result<(), Told> {
        Ok(self.set_xattr(&format!("/{path}"), XATTR, &token.to_le_bytes()).await?)
    }

    async fn rename(&self, from: String, to: String) -> Result<(), Told> {
        Ok(self.rename(&from, &to).await?)
    }

    async fn remove(&self, path: String, kind: Kind) -> Result<(), Told> {
        Ok(self.remove(&path, kind == Kind::Directory).await?)
    }

    async fn link(&self, from: &str, _vnode: VnodeId, to: String) -> Result<(), Told> {
        Ok(self.link(&format!("/{from}"), &to).await?)
    }

    async fn make(&self, path: String, kind: Kind) -> Result<VnodeId, Told> {
        match kind {
            Kind::Directory => Ok(self.make_dir(&path, 0o755).await?),
            _ => Ok(self.make_symlink(&path, "x").await?),
        }
    }
}

async fn read_once(kernel: &Kernel, path: &str) -> Result<(VnodeId, Vec<u8>), Errno> {
    let fd = kernel.open(path, READ).await?;
    let (vnode, bytes) = (kernel.vnode_of(fd)?, kernel.read_all(fd).await);
    kernel.close(fd).await.and(bytes).map(|bytes| (vnode, bytes))
}
