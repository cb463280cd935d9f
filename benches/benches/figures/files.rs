//! A tree of files that workloads read and write: of a simulated client, or of a real mount.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mafs_client::vfs::{Error, FileHandle, Vfs};
use mafs_proto::{Class, Mode, VnodeId};
use mafs_sim::workload::{CALLER, READ, WRITE};
use tokio::task::spawn_blocking;

use crate::real::sent;
use crate::workload::Sent;

/// Time that a program's open, read and close of a file took over real mounts beyond the time in virtual time: a
/// search of 200 files on an idle link of 512 KB/s took 0.81 to 0.84 s in place of 0.73.
const HOST_TIME: Duration = Duration::from_micros(500);

/// Directories with files. Clones are the same.
#[derive(Clone)]
pub(crate) enum Files {
    Simulated(Vfs),
    Mounted(PathBuf),
}

impl Files {
    pub(crate) async fn make_dir(&self, dir: &str) -> io::Result<()> {
        match self {
            Self::Simulated(vfs) => {
                let mode = Mode::from_bits(0o755);
                vfs.make_dir(VnodeId::ROOT, name(dir), mode, CALLER).await.map(drop).map_err(failed)
            }
            Self::Mounted(root) => {
                let path = root.join(dir);
                blocking(move || fs::create_dir(path)).await
            }
        }
    }

    /// Looks a file's name up.
    pub(crate) async fn look(&self, dir: &str, file: &str) -> io::Result<()> {
        match self {
            Self::Simulated(vfs) => {
                let dir = vfs.lookup(VnodeId::ROOT, name(dir)).await.map_err(failed)?.fid.vnode;
                vfs.lookup(dir, name(file)).await.map(drop).map_err(failed)
            }
            Self::Mounted(root) => {
                let path = root.join(dir).join(file);
                blocking(move || fs::metadata(path).map(drop)).await
            }
        }
    }

    /// Opens a file, reads it to its end and closes it. Returns its size.
    pub(crate) async fn read(&self, dir: &str, file: &str) -> io::Result<usize> {
        match self {
            Self::Simulated(vfs) => {
                let dir = vfs.lookup(VnodeId::ROOT, name(dir)).await.map_err(failed)?.fid.vnode;
                let vnode = vfs.lookup(dir, name(file)).await.map_err(failed)?.fid.vnode;
                let handle = vfs.open(vnode, READ, CALLER).await.map_err(failed)?.file;
                let content = vfs.read(handle, 0, u32::MAX / 2).await.map_err(failed);
                vfs.release(handle);
                Ok(content?.len())
            }
            Self::Mounted(root) => {
                let path = root.join(dir).join(file);
                Ok(blocking(move || fs::read(path)).await?.len())
            }
        }
    }

    /// Takes a processor for so long, where there is one: timers have steps of a millisecond.
    pub(crate) async fn compute(&self, time: Duration) -> io::Result<()> {
        match self {
            Self::Simulated(_) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            Self::Mounted(_) => blocking(move || spin(time)).await,
        }
    }

    /// Takes the time that so many files cost a real program and the kernel between them, where virtual time has none.
    pub(crate) async fn take_host_time(&self, files: u32) {
        if matches!(self, Self::Simulated(_)) {
            tokio::time::sleep(HOST_TIME * files).await;
        }
    }

    pub(crate) async fn sent(&self) -> io::Result<Sent> {
        match self {
            Self::Simulated(vfs) => {
                let classes = vfs.statistics();
                let calls = classes.iter().map(|class| class.calls).sum();
                let bytes = classes.iter().map(|class| class.sent_bytes + class.received_bytes).sum();
                let stored_bytes = classes[Class::Store.index()].sent_bytes;
                Ok(Sent { calls, bytes, stored_bytes, log_bytes: vfs.status().log.bytes })
            }
            Self::Mounted(root) => {
                let root = root.clone();
                blocking(move || sent(&root)).await
            }
        }
    }

    /// Makes a file, writes and closes it.
    pub(crate) async fn write(&self, dir: &str, file: &str, content: Vec<u8>) -> io::Result<()> {
        match self {
            Self::Simulated(vfs) => {
                let dir = vfs.lookup(VnodeId::ROOT, name(dir)).await.map_err(failed)?.fid.vnode;
                let mode = Mode::from_bits(0o644);
                let (_, opened) = vfs.create(dir, name(file), mode, WRITE, CALLER).await.map_err(failed)?;
                let written = write_and_close(vfs, opened.file, content).await;
                vfs.release(opened.file);
                written.map_err(failed)
            }
            Self::Mounted(root) => {
                let path = root.join(dir).join(file);
                blocking(move || fs::write(path, content)).await
            }
        }
    }
}

impl Files {
    /// Removes the files that a run has left in a real mount. Their contents that have not been sent are not sent any
    /// more.
    pub(crate) async fn remove_left(&self, dir: &str, files: Vec<String>) -> io::Result<()> {
        match self {
            Self::Simulated(_) => Ok(()),
            Self::Mounted(root) => {
                let dir = root.join(dir);
                blocking(move || files.iter().try_for_each(|file| fs::remove_file(dir.join(file)))).await
            }
        }
    }
}

async fn write_and_close(vfs: &Vfs, file: FileHandle, content: Vec<u8>) -> Result<(), Error> {
    vfs.write(file, 0, content.into()).await?;
    vfs.flush(file).await
}

fn spin(time: Duration) -> io::Result<()> {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}

fn name(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

fn failed(error: Error) -> io::Error {
    io::Error::other(error.to_string())
}
