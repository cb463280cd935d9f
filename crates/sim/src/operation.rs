//! Operations of a user of the file system: whole ones on paths, as programs combine system calls.

mod programs;

use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Attributes, Caller, DirEntry, Error, OpenMode, Opened, Vfs};
use mafs_proto::{FsError, Kind, Mode, Object, Random, RenameMode, VnodeId, XattrMode};

use crate::model::{Model, Seen, SeenObject, Snapshot, Xattrs, split};
pub(crate) use programs::Programs;

/// One operation. Paths begin with `/`; `""` is the root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Makes a file, or replaces its content, and closes it.
    Write {
        /// Where.
        path: String,
        /// The content that it holds then.
        content: Vec<u8>,
    },
    /// Adds to a file, in two writes, and closes it.
    Append {
        /// Where.
        path: String,
        /// The bytes that are added.
        content: Vec<u8>,
    },
    /// Overwrites a part of a file, and again while the first of it is being sent, as two programs would, and closes
    /// it.
    Overwrite {
        /// Where.
        path: String,
        /// From which byte on.
        at: usize,
        /// The bytes; those of the second time come after those of the first.
        contents: [Vec<u8>; 2],
        /// When the second one comes, after the first was closed.
        pause: Duration,
    },
    /// truncate(2).
    Resize {
        /// Where.
        path: String,
        /// The new size.
        size: usize,
    },
    /// Reads a whole file.
    Read {
        /// Where.
        path: String,
    },
    /// chmod(2).
    SetMode {
        /// Where.
        path: String,
        /// Permission bits.
        mode: u32,
    },
    /// setxattr(2).
    SetXattr {
        /// Where.
        path: String,
        /// The attribute.
        name: String,
        /// The value that it holds then.
        value: Vec<u8>,
    },
    /// removexattr(2).
    RemoveXattr {
        /// Where.
        path: String,
        /// The attribute.
        name: String,
    },
    /// mkdir(2).
    MakeDir {
        /// Where.
        path: String,
    },
    /// symlink(2).
    Symlink {
        /// Where.
        path: String,
        /// The path that it points at.
        target: String,
    },
    /// link(2).
    Link {
        /// The object.
        from: String,
        /// Its new name.
        to: String,
    },
    /// unlink(2).
    Unlink {
        /// Where.
        path: String,
    },
    /// rmdir(2).
    RemoveDir {
        /// Where.
        path: String,
    },
    /// rename(2).
    Rename {
        /// The old path.
        from: String,
        /// The new one.
        to: String,
    },
}

/// The answer of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The operation was done; a read gives its content.
    Done(Option<Vec<u8>>),
    /// The file system does not allow it.
    Refused(FsError),
    /// The system failed: no operation of a healthy world may.
    Failed(String),
}

impl Outcome {
    /// Whether two answers mean the same to a program. Which of several applicable errors is given is left open.
    #[must_use]
    pub fn agrees(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Refused(_), Self::Refused(_)) => true,
            (one, other) => one == other,
        }
    }
}

pub(crate) const CALLER: Caller = Caller { uid: 1000, gid: 1000 };
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e.txt", "f"];
const XATTRS: [&str; 3] = ["user.a", "user.b", "user.c"];
/// Some contents travel inside the journal record (up to 16 KB), some in files of their own.
const SIZES: [u64; 4] = [1, 100, 5_000, 40_000];

impl Operation {
    /// A random operation on a tree, mostly one that succeeds.
    pub fn random(random: &mut Random, model: &Model) -> Self {
        let (directories, all) = model.paths();
        let some = |random: &mut Random, paths: &[String]| match paths.len() as u64 {
            0 => "/a".to_owned(),
            count => paths[usize::try_from(random.below(count)).unwrap_or(0)].clone(),
        };
        let fresh = |random: &mut Random| {
            let name = NAMES[usize::try_from(random.below(NAMES.len() as u64)).unwrap_or(0)];
            format!("{}/{name}", some(random, &directories))
        };
        let content = |random: &mut Random| {
            let limit = SIZES[usize::try_from(random.below(SIZES.len() as u64)).unwrap_or(0)];
            let count = usize::try_from(random.below(limit)).unwrap_or(0);
            random.bytes(count)
        };
        let xattr = |random: &mut Random| {
            let name = XATTRS[usize::try_from(random.below(XATTRS.len() as u64)).unwrap_or(0)];
            (some(random, &all), name.to_owned())
        };
        match random.below(25) {
            0..=4 => Self::Write { path: fresh(random), content: content(random) },
            5 => Self::Append { path: some(random, &all), content: content(random) },
            6 => Self::Resize { path: some(random, &all), size: usize::try_from(random.below(9_000)).unwrap_or(0) },
            7..=9 => Self::Read { path: some(random, &all) },
            10 => {
                Self::SetMode { path: some(random, &all), mode: 0o600 + u32::try_from(random.below(64)).unwrap_or(0) }
            }
            11 | 12 => Self::MakeDir { path: fresh(random) },
            13 => Self::Symlink { path: fresh(random), target: fresh(random) },
            14 => Self::Link { from: some(random, &all), to: fresh(random) },
            15 | 16 => Self::Unlink { path: some(random, &all) },
            17 => Self::RemoveDir { path: some(random, &all) },
            18 | 19 => {
                let ((path, name), value) = (xattr(random), random.bytes(5));
                Self::SetXattr { path, name, value }
            }
            20 => {
                let (path, name) = xattr(random);
                Self::RemoveXattr { path, name }
            }
            21 | 22 => {
                // Sometimes more than what is on its way at a time, so that the second write meets the first half-sent.
                let long = if random.once_in(4) { 700_000 } else { 0 };
                let contents = [random.bytes(long), content(random)];
                let pause = Duration::from_millis(random.below(40));
                Self::Overwrite {
                    path: some(random, &all),
                    at: usize::try_from(random.below(9_000)).unwrap_or(0),
                    contents,
                    pause,
                }
            }
            _ => Self::Rename { from: some(random, &all), to: fresh(random) },
        }
    }

    /// Whether the operation is about a path, or one above it.
    pub(crate) fn touches(&self, path: &str) -> bool {
        let above =
            |of: &String| path == of || path.strip_prefix(of.as_str()).is_some_and(|rest| rest.starts_with('/'));
        match self {
            Self::Link { from, to } | Self::Rename { from, to } => above(from) || above(to),
            Self::Write { path, .. }
            | Self::Append { path, .. }
            | Self::Overwrite { path, .. }
            | Self::Resize { path, .. }
            | Self::Read { path }
            | Self::SetMode { path, .. }
            | Self::SetXattr { path, .. }
            | Self::RemoveXattr { path, .. }
            | Self::MakeDir { path }
            | Self::Symlink { path, .. }
            | Self::Unlink { path }
            | Self::RemoveDir { path } => above(path),
        }
    }

    /// Does the operation, as programs would.
    pub async fn perform(&self, vfs: &Vfs) -> Outcome {
        match self.try_perform(vfs).await {
            Ok(content) => Outcome::Done(content),
            Err(Error::Refused(error)) => Outcome::Refused(error),
            Err(Error::Invalid(_)) => Outcome::Refused(FsError::WrongKind),
            Err(error) => Outcome::Failed(error.to_string()),
        }
    }

    async fn try_perform(&self, vfs: &Vfs) -> Result<Option<Vec<u8>>, Error> {
        match self {
            Self::Write { path, content } => write(vfs, path, content).await?,
            Self::Append { path, content } => append(vfs, path, content).await?,
            Self::Overwrite { path, at, contents, pause } => overwrite(vfs, path, *at as u64, contents, *pause).await?,
            Self::Resize { path, size } => {
                let file = file(vfs, path).await?;
                let set = Attributes { size: Some(*size as u64), ..Attributes::default() };
                vfs.set_attributes(file, set, None, CALLER).await?;
            }
            Self::Read { path } => return read(vfs, path).await.map(Some),
            Self::SetMode { path, mode } => {
                let file = file(vfs, path).await?;
                let set = Attributes { mode: Some(Mode::from_bits(*mode)), ..Attributes::default() };
                vfs.set_attributes(file, set, None, CALLER).await?;
            }
            Self::SetXattr { path, name, value } => {
                let (vnode, name) = (find(vfs, path).await?.fid.vnode, Bytes::from(name.clone()));
                vfs.set_xattr(vnode, name, Bytes::from(value.clone()), XattrMode::Either, CALLER).await?;
            }
            Self::RemoveXattr { path, name } => {
                let vnode = find(vfs, path).await?.fid.vnode;
                vfs.remove_xattr(vnode, Bytes::from(name.clone()), CALLER).await?;
            }
            Self::MakeDir { path } => {
                let (parent, name) = place(vfs, path).await?;
                vfs.make_dir(parent, name, Mode::from_bits(0o755), CALLER).await?;
            }
            Self::Symlink { path, target } => {
                let (parent, name) = place(vfs, path).await?;
                vfs.make_symlink(parent, name, Bytes::from(target.clone()), CALLER).await?;
            }
            Self::Link { from, to } => {
                let from = find(vfs, from).await?.fid.vnode;
                let (parent, name) = place(vfs, to).await?;
                vfs.link(from, parent, name, CALLER).await?;
            }
            Self::Unlink { path } => {
                let (parent, name) = place(vfs, path).await?;
                vfs.unlink(parent, name, CALLER).await?;
            }
            Self::RemoveDir { path } => {
                let (parent, name) = place(vfs, path).await?;
                vfs.remove_dir(parent, name, CALLER).await?;
            }
            Self::Rename { from, to } => {
                let (from_parent, from_name) = place(vfs, from).await?;
                let (to_parent, to_name) = place(vfs, to).await?;
                vfs.rename(from_parent, from_name, to_parent, to_name, RenameMode::Replace, CALLER).await?;
            }
        }
        Ok(None)
    }
}

/// Reads the whole tree through the file system.
///
/// # Errors
/// If anything in it cannot be read.
pub(crate) async fn snapshot(vfs: &Vfs) -> Result<Snapshot, Error> {
    let mut seen = Snapshot::new();
    let mut directories = vec![(String::new(), VnodeId::ROOT)];
    while let Some((path, vnode)) = directories.pop() {
        for entry in names_in(vfs, vnode).await? {
            let child = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            let object = vfs.lookup(vnode, entry.name).await?;
            let xattrs = xattrs(vfs, object.fid.vnode).await?;
            let object = match object.status.kind {
                Kind::Directory => {
                    directories.push((child.clone(), object.fid.vnode));
                    SeenObject::Directory
                }
                Kind::Symlink => {
                    let target = vfs.read_link(object.fid.vnode).await?;
                    SeenObject::Symlink(String::from_utf8_lossy(target.as_bytes()).into_owned())
                }
                Kind::File | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                    let content = read(vfs, &child).await?;
                    SeenObject::File(content, u32::from(object.status.mode.bits()), object.status.nlink)
                }
            };
            seen.insert(child, Seen { object, xattrs });
        }
    }
    Ok(seen)
}

/// Lists the entries of a directory, without `.` and `..`.
pub(crate) async fn names_in(vfs: &Vfs, vnode: VnodeId) -> Result<Vec<DirEntry>, Error> {
    let dots = 2;
    Ok(vfs.read_dir(vnode, 0, usize::MAX).await?.entries.split_off(dots))
}

async fn xattrs(vfs: &Vfs, vnode: VnodeId) -> Result<Xattrs, Error> {
    let mut xattrs = Xattrs::new();
    for name in vfs.list_xattrs(vnode, CALLER).await? {
        let value = vfs.get_xattr(vnode, Bytes::copy_from_slice(name.as_bytes())).await?;
        xattrs.insert(name.to_string(), value.as_bytes().to_vec());
    }
    Ok(xattrs)
}

async fn find(vfs: &Vfs, path: &str) -> Result<Object, Error> {
    let mut at = vfs.get_attributes(VnodeId::ROOT).await?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = vfs.lookup(at.fid.vnode, Bytes::copy_from_slice(name.as_bytes())).await?;
        vfs.forget(at.fid.vnode, 1);
    }
    Ok(at)
}

async fn file(vfs: &Vfs, path: &str) -> Result<VnodeId, Error> {
    let object = find(vfs, path).await?;
    match object.status.kind {
        Kind::File => Ok(object.fid.vnode),
        Kind::Directory | Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
            Err(Error::Refused(FsError::WrongKind))
        }
    }
}

async fn place(vfs: &Vfs, path: &str) -> Result<(VnodeId, Bytes), Error> {
    let (directory, name) = split(path);
    let directory = find(vfs, directory).await?;
    Ok((directory.fid.vnode, Bytes::copy_from_slice(name.as_bytes())))
}

async fn write(vfs: &Vfs, path: &str, content: &[u8]) -> Result<(), Error> {
    let mode = OpenMode { write: true, truncate: true, ..OpenMode::default() };
    let opened = match find(vfs, path).await {
        Ok(object) => vfs.open(object.fid.vnode, mode, CALLER).await?,
        Err(Error::Refused(FsError::NotFound)) => {
            let (parent, name) = place(vfs, path).await?;
            vfs.create(parent, name, Mode::from_bits(0o644), mode, CALLER).await?.1
        }
        Err(error) => return Err(error),
    };
    put(vfs, opened, 0, content).await?;
    let closed = vfs.flush(opened.file).await;
    vfs.release(opened.file);
    closed
}

async fn append(vfs: &Vfs, path: &str, content: &[u8]) -> Result<(), Error> {
    let vnode = file(vfs, path).await?;
    let mode = OpenMode { write: true, append: true, ..OpenMode::default() };
    let opened = vfs.open(vnode, mode, CALLER).await?;
    let end = vfs.get_attributes(vnode).await?.status.size;
    let (first, second) = content.split_at(content.len() / 2);
    put(vfs, opened, end, first).await?;
    let end = vfs.get_attributes(vnode).await?.status.size;
    put(vfs, opened, end, second).await?;
    let closed = vfs.flush(opened.file).await;
    vfs.release(opened.file);
    closed
}

async fn read(vfs: &Vfs, path: &str) -> Result<Vec<u8>, Error> {
    let vnode = file(vfs, path).await?;
    let opened = vfs.open(vnode, OpenMode { read: true, ..OpenMode::default() }, CALLER).await?;
    let content = get(vfs, opened).await;
    vfs.flush(opened.file).await?;
    vfs.release(opened.file);
    content
}

async fn overwrite(vfs: &Vfs, path: &str, at: u64, contents: &[Vec<u8>; 2], pause: Duration) -> Result<(), Error> {
    let vnode = file(vfs, path).await?;
    let mode = OpenMode { read: true, write: true, ..OpenMode::default() };
    let opened = vfs.open(vnode, mode, CALLER).await?;
    put(vfs, opened, at, &contents[0]).await?;
    let second = async {
        tokio::time::sleep(pause).await;
        put(vfs, opened, at + contents[0].len() as u64, &contents[1]).await
    };
    let (first_closed, written) = tokio::join!(vfs.flush(opened.file), second);
    let closed = vfs.flush(opened.file).await;
    vfs.release(opened.file);
    first_closed.and(written).and(closed)
}

/// Writes, as the kernel does.
pub(crate) async fn put(vfs: &Vfs, opened: Opened, at: u64, bytes: &[u8]) -> Result<(), Error> {
    // A write of nothing does not get as far as a file system.
    if bytes.is_empty() {
        return Ok(());
    }
    match opened.passthrough {
        true => Ok(vfs.container(opened.file)?.write_all_at(bytes, at)?),
        false => vfs.write(opened.file, at, Bytes::copy_from_slice(bytes)).await,
    }
}

/// Reads everything, as the kernel does.
pub(crate) async fn get(vfs: &Vfs, opened: Opened) -> Result<Vec<u8>, Error> {
    if !opened.passthrough {
        return Ok(vfs.read(opened.file, 0, 1 << 20).await?.to_vec());
    }
    let container = vfs.container(opened.file)?;
    let mut bytes = vec![0; usize::try_from(container.len()?).unwrap_or(0)];
    let read = container.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
