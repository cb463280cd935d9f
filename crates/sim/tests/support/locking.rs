//! Processes that lock files.

use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Error, FileHandle, LockStop, Opened, RangeLock, Vfs};
use mafs_proto::{FsError, LockKind, LockOwner, LockRange, VnodeId};
use tokio::time::sleep;

use super::{CALLER, WRITE};

/// A process that has a file open.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) vfs: Vfs,
    pub(crate) file: FileHandle,
    pub(crate) owner: LockOwner,
}

impl Process {
    pub(crate) async fn open(vfs: &Vfs, path: &'static str, number: u32) -> Self {
        Self::try_open(vfs, path, number).await.expect("an open").0
    }

    /// Opens a file that may be out of reach. Also returns whether the kernel is given the container.
    pub(crate) async fn try_open(vfs: &Vfs, path: &'static str, number: u32) -> Result<(Self, bool), Error> {
        let object = vfs.lookup(VnodeId::ROOT, Bytes::from(path)).await?;
        let Opened { file, passthrough, .. } = vfs.open(object.fid.vnode, WRITE, CALLER).await?;
        let owner = LockOwner { id: number.into(), process: number, file: file.0 };
        Ok((Self { vfs: vfs.clone(), file, owner }, passthrough))
    }

    pub(crate) fn wanted(&self, range: LockRange, kind: LockKind) -> RangeLock {
        RangeLock { owner: self.owner, range, kind }
    }

    pub(crate) async fn lock(&self) -> Result<(), Error> {
        self.lock_until(LockStop::default()).await
    }

    pub(crate) async fn lock_until(&self, stop: LockStop) -> Result<(), Error> {
        self.vfs.lock(self.file, self.wanted(LockRange::ALL, LockKind::Exclusive), true, stop).await
    }

    pub(crate) async fn lock_range(&self, range: LockRange, kind: LockKind, wait: bool) -> Result<(), Error> {
        self.vfs.lock(self.file, self.wanted(range, kind), wait, LockStop::default()).await
    }

    pub(crate) async fn try_lock(&self, kind: LockKind) -> Result<(), Error> {
        self.lock_range(LockRange::ALL, kind, false).await
    }

    pub(crate) async fn unlock(&self) -> Result<(), Error> {
        self.vfs.unlock(self.file, self.owner.id, LockRange::ALL).await
    }

    pub(crate) async fn read(&self) -> Vec<u8> {
        match self.vfs.container(self.file) {
            Ok(container) => {
                let mut bytes = vec![0; usize::try_from(container.len().expect("a length")).expect("few bytes")];
                container.read_at(&mut bytes, 0).expect("a read");
                bytes
            }
            Err(_) => self.vfs.read(self.file, 0, 1 << 20).await.expect("a read").to_vec(),
        }
    }

    pub(crate) async fn write(&self, bytes: Vec<u8>, passthrough: bool) {
        if passthrough {
            let container = self.vfs.container(self.file).expect("a container");
            container.write_all_at(&bytes, 0).expect("a write");
        } else {
            self.vfs.write(self.file, 0, bytes.into()).await.expect("a write");
        }
    }

    pub(crate) async fn close(self) -> Result<(), Error> {
        let closed = self.vfs.flush_and_unlock(self.file, self.owner.id).await;
        self.vfs.release(self.file);
        closed
    }
}

pub(crate) fn is_locked(result: &Result<(), Error>) -> bool {
    matches!(result, Err(Error::Refused(FsError::Locked)))
}

/// Waits until a client knows that it cannot ask the server.
pub(crate) async fn until_out_of_reach(vfs: &Vfs) {
    let asked = tokio::spawn({
        let vfs = vfs.clone();
        async move { vfs.lookup(VnodeId::ROOT, Bytes::from("nothing of that name")).await }
    });
    while !vfs.status().disconnected {
        sleep(Duration::from_millis(10)).await;
    }
    asked.abort();
}

pub(crate) async fn until_connected(vfs: &Vfs) {
    while !vfs.status().connected {
        sleep(Duration::from_millis(10)).await;
    }
}
