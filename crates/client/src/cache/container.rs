//! A container of a file in use, which is open only as long as it must be.
//!
//! Any number of files may wait for the server, and a process may have few descriptors. So a container is open while it
//! is *held*, by the programs that have the file open and by what is being sent; all others are opened when they are
//! used, and a bounded number of those stays open (`containers.rs`). A container's name stays while its file is in use,
//! and what the server lacks is in use until the server has it.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use mafs_durable::{DiskFile, Fallocate, FileStat};
use mafs_proto::VnodeId;

use super::containers::Opened;
use crate::core::log::ContainerId;

/// A container of a file in use.
pub(crate) struct Container {
    pub(crate) id: ContainerId,
    vnode: VnodeId,
    opened: Arc<Opened>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    holders: usize,
    file: Option<Arc<dyn DiskFile>>,
}

/// Keeps a container open until it is dropped.
pub(crate) struct Hold(Arc<Container>);

impl Hold {
    /// Opens a container, if nobody holds it.
    pub(crate) fn on(container: &Arc<Container>) -> io::Result<Self> {
        container.hold()?;
        Ok(Self(Arc::clone(container)))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl Container {
    /// Makes a container that nobody holds.
    pub(super) fn new(opened: Arc<Opened>, vnode: VnodeId, id: ContainerId) -> Arc<Self> {
        Arc::new(Self { id, vnode, opened, held: Mutex::default() })
    }

    /// Returns the open file; opens it for this call if nobody holds it.
    pub(crate) fn file(&self) -> io::Result<Arc<dyn DiskFile>> {
        match &self.held().file {
            Some(file) => Ok(Arc::clone(file)),
            None => self.opened.get(self.vnode, self.id),
        }
    }

    /// Keeps the file open until as many [`Self::let_go`].
    pub(crate) fn hold(&self) -> io::Result<()> {
        let mut held = self.held();
        if held.file.is_none() {
            held.file = Some(self.opened.get(self.vnode, self.id)?);
        }
        held.holders += 1;
        Ok(())
    }

    /// Ends a [`Self::hold`].
    pub(crate) fn let_go(&self) {
        let mut held = self.held();
        held.holders = held.holders.saturating_sub(1);
        if held.holders == 0 {
            held.file = None;
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskFile for Container {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file()?.read_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file()?.write_all_at(bytes, offset)
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.file()?.stat()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file()?.set_len(bytes)
    }

    fn fallocate(&self, how: Fallocate, offset: u64, bytes: u64) -> io::Result<()> {
        self.file()?.fallocate(how, offset, bytes)
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.file()?.seek_data(offset)
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.file()?.seek_hole(offset)
    }

    /// Returns none, as none would outlive the call: [`Self::file`] has one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn writable(&self) -> Option<io::Result<Arc<File>>> {
        self.file().and_then(|file| file.writable().transpose()).transpose()
    }

    fn wait_for_writes(&self) -> io::Result<()> {
        self.file()?.wait_for_writes()
    }

    fn is_written_elsewhere(&self) -> io::Result<bool> {
        self.file()?.is_written_elsewhere()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.file()?.set_modified(time)
    }
}

#[cfg(test)]
mod tests {
    use mafs_durable::{Disk, MemoryDisk};

    use super::*;
    use crate::cache::Containers;

    #[test]
    fn a_container_is_open_while_somebody_holds_it_and_otherwise_among_the_last_used() {
        let containers = Containers::open(Arc::new(MemoryDisk::new()) as Arc<dyn Disk>, 2).unwrap();
        let (id, created) = containers.create(VnodeId(1)).unwrap();
        let file = Arc::downgrade(&created);
        drop(created);
        let container = containers.lazy(VnodeId(1), id);
        let holds = [Hold::on(&container).unwrap(), Hold::on(&container).unwrap()];
        container.write_all_at(b"bytes", 0).unwrap();
        // As many others as may stay open, and more.
        for vnode in 2..5000 {
            containers.create(VnodeId(vnode)).unwrap();
        }
        assert!(file.upgrade().is_some());
        let [first, second] = holds;
        drop(first);
        assert!(file.upgrade().is_some());
        drop(second);
        assert!(file.upgrade().is_none());
        let mut bytes = [0; 5];
        assert_eq!((container.read_at(&mut bytes, 0).unwrap(), &bytes), (5, b"bytes"));
        let hold = Hold::on(&container).unwrap();
        containers.remove(VnodeId(1), id).unwrap();
        assert_eq!(container.len().unwrap(), 5, "who holds it needs no name");
        drop(hold);
        assert_eq!(container.len().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
