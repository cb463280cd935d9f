//! The ways of programs to the file system of a machine: by the calls of its client, or by way of a kernel.

use std::time::Duration;

use mafs_client::vfs::{Error, OpenMode, Vfs};
use mafs_proto::{FsError, Kind};

use super::{Operation, Outcome, find, snapshot, xattrs};
use crate::kernel::{Descriptor, Errno, Kernel};
use crate::model::{Seen, SeenObject, Snapshot};

/// More than any file has.
const EVERYTHING: usize = 4 << 20;

/// Programs of one machine.
#[derive(Clone)]
pub(crate) enum Programs {
    /// Nothing stands between them and the client.
    Bare(Vfs),
    /// They call a kernel.
    Above(Kernel),
}

impl Programs {
    /// Does an operation.
    pub(crate) async fn perform(&self, operation: &Operation) -> Outcome {
        match self {
            Self::Bare(vfs) => operation.perform(vfs).await,
            Self::Above(kernel) => perform_above(operation, kernel).await,
        }
    }

    /// Reads the whole tree.
    pub(crate) async fn snapshot(&self) -> Result<Snapshot, String> {
        match self {
            Self::Bare(vfs) => snapshot(vfs).await.map_err(|error| error.to_string()),
            Self::Above(kernel) => snapshot_above(kernel).await,
        }
    }
}

async fn perform_above(operation: &Operation, kernel: &Kernel) -> Outcome {
    // The kernel keeps no extended attributes.
    if matches!(operation, Operation::SetXattr { .. } | Operation::RemoveXattr { .. }) {
        return operation.perform(kernel.vfs()).await;
    }
    match try_above(operation, kernel).await {
        Ok(content) => Outcome::Done(content),
        Err(Errno::NOENT) => Outcome::Refused(FsError::NotFound),
        Err(Errno::ACCES) => Outcome::Refused(FsError::Denied),
        Err(Errno::EXIST) => Outcome::Refused(FsError::Exists),
        Err(Errno::NOTDIR | Errno::ISDIR | Errno::INVAL) => Outcome::Refused(FsError::WrongKind),
        Err(Errno::NOTEMPTY) => Outcome::Refused(FsError::NotEmpty),
        Err(errno) => Outcome::Failed(format!("{errno:?}")),
    }
}

async fn try_above(operation: &Operation, kernel: &Kernel) -> Result<Option<Vec<u8>>, Errno> {
    match operation {
        Operation::Write { path, content } => write(kernel, path, content).await?,
        Operation::Append { path, content } => append(kernel, path, content).await?,
        Operation::Overwrite { path, at, contents, pause } => {
            overwrite(kernel, path, *at as u64, contents, *pause).await?;
        }
        Operation::Resize { path, size } => {
            must_be_file(kernel, path).await?;
            kernel.resize(path, *size as u64).await?;
        }
        Operation::Read { path } => return read(kernel, path).await.map(Some),
        Operation::SetMode { path, mode } => {
            must_be_file(kernel, path).await?;
            kernel.set_mode(path, *mode).await?;
        }
        Operation::MakeDir { path } => drop(kernel.make_dir(path, 0o755).await?),
        Operation::Symlink { path, target } => drop(kernel.make_symlink(path, target).await?),
        Operation::Link { from, to } => kernel.link(from, to).await?,
        Operation::Unlink { path } => kernel.remove(path, false).await?,
        Operation::RemoveDir { path } => kernel.remove(path, true).await?,
        Operation::Rename { from, to } => kernel.rename(from, to).await?,
        Operation::SetXattr { .. } | Operation::RemoveXattr { .. } => return Err(Errno::INVAL),
    }
    Ok(None)
}

async fn must_be_file(kernel: &Kernel, path: &str) -> Result<(), Errno> {
    if kernel.stat(path).await?.kind == Kind::File { Ok(()) } else { Err(Errno::INVAL) }
}

async fn write(kernel: &Kernel, path: &str, content: &[u8]) -> Result<(), Errno> {
    let mode = OpenMode { write: true, truncate: true, ..OpenMode::default() };
    let fd = kernel.create(path, 0o644, mode).await?;
    let written = kernel.write(fd, 0, content).await;
    kernel.close(fd).await.and(written.map(drop))
}

async fn append(kernel: &Kernel, path: &str, content: &[u8]) -> Result<(), Errno> {
    let fd = kernel.open(path, OpenMode { write: true, append: true, ..OpenMode::default() }).await?;
    let written = append_twice(kernel, fd, content).await;
    kernel.close(fd).await.and(written)
}

async fn append_twice(kernel: &Kernel, fd: Descriptor, content: &[u8]) -> Result<(), Errno> {
    let (first, second) = content.split_at(content.len() / 2);
    kernel.write(fd, 0, first).await?;
    kernel.write(fd, 0, second).await.map(drop)
}

/// The first program closes its descriptor while another goes on with a copy of that.
async fn overwrite(
    kernel: &Kernel,
    path: &str,
    at: u64,
    contents: &[Vec<u8>; 2],
    pause: Duration,
) -> Result<(), Errno> {
    let fd = kernel.open(path, OpenMode { read: true, write: true, ..OpenMode::default() }).await?;
    let first = kernel.write(fd, at, &contents[0]).await;
    let copy = kernel.duplicate(fd)?;
    let second = async {
        tokio::time::sleep(pause).await;
        kernel.write(copy, at + contents[0].len() as u64, &contents[1]).await
    };
    let (first_closed, second) = tokio::join!(kernel.close(fd), second);
    let closed = kernel.close(copy).await;
    first.and(first_closed).and(second).and(closed)
}

async fn read(kernel: &Kernel, path: &str) -> Result<Vec<u8>, Errno> {
    let fd = kernel.open(path, OpenMode { read: true, ..OpenMode::default() }).await?;
    let content = kernel.read(fd, 0, EVERYTHING).await;
    kernel.close(fd).await.and(content)
}

async fn snapshot_above(kernel: &Kernel) -> Result<Snapshot, String> {
    let mut seen = Snapshot::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        let failed = |errno: Errno| format!("{directory}/: {errno:?}");
        for name in kernel.list(&directory).await.map_err(failed)? {
            let path = format!("{directory}/{name}");
            let object = object_above(kernel, &path).await.map_err(|errno| format!("{path}: {errno:?}"))?;
            if object == SeenObject::Directory {
                directories.push(path.clone());
            }
            let of_path = async { xattrs(kernel.vfs(), find(kernel.vfs(), &path).await?.fid.vnode).await };
            let xattrs = of_path.await.map_err(|error: Error| format!("{path}: {error}"))?;
            seen.insert(path, Seen { object, xattrs });
        }
    }
    Ok(seen)
}

async fn object_above(kernel: &Kernel, path: &str) -> Result<SeenObject, Errno> {
    let attributes = kernel.stat(path).await?;
    Ok(match attributes.kind {
        Kind::Directory => SeenObject::Directory,
        Kind::Symlink => SeenObject::Symlink(kernel.read_link(path).await?),
        Kind::File | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
            SeenObject::File(read(kernel, path).await?, u32::from(attributes.mode), attributes.links)
        }
    })
}
