//! Containers: one file on the local disk for the content of each cached file.
//!
//! A container that holds a whole, unchanged version is *sealed*: its modification time is set to the number of that
//! version, in nanoseconds since 1970. Any later write sets it to the present, so neither a killed daemon nor a lost
//! index can make changed bytes look like the version they were made from.
//!
//! A container that the kernel may write to behind the daemon's back never has its times set: whether it was written is
//! told by its time of change, which nobody can set (`core/content/watch.rs`).
//!
//! A seal says nothing after a power loss, when the time may be durable and the bytes not. So what is fetched goes into
//! a container with a new name, the index knows which contents are durable, and the log is durable before a durable
//! content is changed in place.

use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lru::LruCache;
use mafs_durable::{Disk, DiskFile, FileStat, copy_sparse};
use mafs_proto::{DataVersion, VnodeId};
use rustix::process::{Resource, getrlimit};

use super::RunId;
use super::container::Container;
use crate::core::log::{ContainerId, Stamp};

const SNAPSHOT_DIR: &str = "snapshots";

/// The most containers that stay open for the next user, and which part of the descriptors that this process may have.
/// To open and to close one is 3.1 us, a sixth of what this daemon does when a program opens a cached file.
const OPEN_MAX: u64 = 2048;
const OPEN_PART: u64 = 4;

/// The containers of one cache.
pub(crate) struct Containers {
    disk: Arc<dyn Disk>,
    opened: Arc<Opened>,
    snapshots: AtomicU64,
    /// Containers of this run are `first_id` and up.
    first_id: u64,
    next_id: AtomicU64,
}

/// Containers that stay open for the next user.
pub(super) struct Opened {
    disk: Arc<dyn Disk>,
    /// Containers used last.
    latest: Mutex<LruCache<(VnodeId, ContainerId), Arc<dyn DiskFile>>>,
}

impl Opened {
    /// Returns a container, and opens it if it is not open.
    pub(super) fn get(&self, vnode: VnodeId, id: ContainerId) -> io::Result<Arc<dyn DiskFile>> {
        let mut latest = self.latest();
        if let Some(file) = latest.get(&(vnode, id)) {
            return Ok(Arc::clone(file));
        }
        // Still locked, so that a removal meanwhile finds it.
        let file = self.disk.open(&path(vnode, id))?;
        latest.put((vnode, id), Arc::clone(&file));
        Ok(file)
    }

    fn put(&self, vnode: VnodeId, id: ContainerId, file: Arc<dyn DiskFile>) {
        self.latest().put((vnode, id), file);
    }

    fn latest(&self) -> MutexGuard<'_, LruCache<(VnodeId, ContainerId), Arc<dyn DiskFile>>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file beside the containers, which goes when this is dropped.
pub(crate) struct ContainerCopy {
    disk: Arc<dyn Disk>,
    path: String,
    pub(crate) file: Arc<dyn DiskFile>,
}

impl Drop for ContainerCopy {
    fn drop(&mut self) {
        if let Err(error) = self.disk.remove(&self.path) {
            tracing::debug!(%error, path = self.path, "a snapshot stays until the next start");
        }
    }
}

impl Containers {
    /// Opens the containers of a disk; `run` is a number that no run had before. Snapshots of an earlier life are of no
    /// use.
    pub(crate) fn open(disk: Arc<dyn Disk>, run: u64) -> io::Result<Self> {
        disk.remove_dir_all(SNAPSHOT_DIR)?;
        disk.create_dir_all(&[SNAPSHOT_DIR])?;
        create_directories(&*disk)?;
        // Half the range is left, so that counting up never wraps.
        let first_id = run / 2;
        let opened = Arc::new(Opened { disk: Arc::clone(&disk), latest: Mutex::new(LruCache::new(open_max())) });
        Ok(Self { disk, opened, snapshots: AtomicU64::new(0), first_id, next_id: AtomicU64::new(first_id) })
    }

    /// Returns the number of this run of the client.
    pub(crate) fn run(&self) -> RunId {
        RunId(self.first_id)
    }

    /// Returns a container of a file; `None` if it is not there.
    pub(crate) fn get(&self, vnode: VnodeId, id: ContainerId) -> io::Result<Option<Arc<dyn DiskFile>>> {
        match self.opened.get(vnode, id) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a container for a file in use, which is opened when it is needed.
    pub(crate) fn lazy(&self, vnode: VnodeId, id: ContainerId) -> Arc<Container> {
        Container::new(Arc::clone(&self.opened), vnode, id)
    }

    /// Creates a new, empty container.
    pub(crate) fn create(&self, vnode: VnodeId) -> io::Result<(ContainerId, Arc<dyn DiskFile>)> {
        let id = ContainerId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let created = self.disk.create(&path(vnode, id))?;
        self.opened.put(vnode, id, Arc::clone(&created));
        Ok((id, created))
    }

    /// Makes the names of an object's containers durable.
    pub(crate) fn sync_name(&self, vnode: VnodeId) -> io::Result<()> {
        self.disk.sync_dir(&directory(vnode))
    }

    /// Removes a container; no error if it is not there.
    pub(crate) fn remove(&self, vnode: VnodeId, id: ContainerId) -> io::Result<()> {
        let removed = self.disk.remove(&path(vnode, id));
        let closed = self.opened.latest().pop(&(vnode, id));
        drop(closed);
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes the containers of earlier runs that nothing names.
    pub(crate) fn sweep(&self, is_named: impl Fn(VnodeId, ContainerId) -> bool) -> io::Result<()> {
        for directory in directories() {
            let names = self.disk.list(&directory)?;
            for (vnode, id) in names.iter().filter_map(|name| parse(name)) {
                let this_run = (self.first_id..self.next_id.load(Ordering::Relaxed)).contains(&id.0);
                if !this_run && !is_named(vnode, id) {
                    self.remove(vnode, id)?;
                }
            }
        }
        Ok(())
    }

    /// Removes all containers. Their directories stay, for those that are made meanwhile.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.opened.latest().clear();
        for directory in directories() {
            for name in self.disk.list(&directory)? {
                match self.disk.remove(&format!("{directory}/{name}")) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Creates a file of this size that reads as zeros, for what is to be seen beside a container.
    pub(crate) fn beside(&self, size: u64) -> io::Result<ContainerCopy> {
        let path = format!("{SNAPSHOT_DIR}/{}", self.snapshots.fetch_add(1, Ordering::Relaxed));
        let file = self.disk.create(&path)?;
        let beside = ContainerCopy { disk: Arc::clone(&self.disk), path, file };
        beside.file.set_len(size)?;
        Ok(beside)
    }

    /// Copies a container into a new one, with the time of its last change.
    pub(crate) fn duplicate(
        &self,
        vnode: VnodeId,
        container: &dyn DiskFile,
    ) -> io::Result<(ContainerId, Arc<dyn DiskFile>)> {
        let modified = container.modified()?;
        let (id, file) = self.create(vnode)?;
        let copied = copy_sparse(container, file.as_ref(), container.len()?).and_then(|()| file.set_modified(modified));
        match copied {
            Ok(()) => Ok((id, file)),
            Err(error) => {
                self.remove(vnode, id)?;
                Err(error)
            }
        }
    }
}

fn open_max() -> NonZeroUsize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let count = (descriptors / OPEN_PART).min(OPEN_MAX);
    usize::try_from(count).ok().and_then(NonZeroUsize::new).unwrap_or(NonZeroUsize::MIN)
}

/// Marks the content as the whole, unchanged `version`.
pub(crate) fn seal(container: &dyn DiskFile, version: DataVersion) -> io::Result<()> {
    container.set_modified(seal_time(version))
}

/// Whether the content is the whole, unchanged `version` of `size` bytes.
pub(crate) fn is_sealed(container: &dyn DiskFile, version: DataVersion, size: u64) -> io::Result<bool> {
    Ok(shows_seal(&container.stat()?, version, size))
}

/// Whether a look at a container shows the whole, unchanged `version` of `size` bytes.
pub(crate) fn shows_seal(stat: &FileStat, version: DataVersion, size: u64) -> bool {
    stat.bytes == size && stat.modified == seal_time(version)
}

/// Marks the content as that of no version.
pub(crate) fn unseal(container: &dyn DiskFile) -> io::Result<()> {
    container.set_modified(unsealed_time())
}

/// Returns when the content last changed, unless the time is one that was set as a mark.
pub(crate) fn last_change(modified: SystemTime, version: DataVersion) -> Option<SystemTime> {
    (modified != unsealed_time() && modified != seal_time(version)).then_some(modified)
}

/// Returns when the content last changed.
pub(crate) fn stamp(container: &dyn DiskFile) -> io::Result<Stamp> {
    let since = container.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Stamp(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)))
}

fn seal_time(version: DataVersion) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(version.0)
}

/// Returns a time in 1961: no clock shows it, and every file system of Linux can keep it.
fn unsealed_time() -> SystemTime {
    UNIX_EPOCH - Duration::from_secs(1 << 28)
}

/// Makes all directories of containers at once, so that no program that makes a file waits until one is durable.
fn create_directories(disk: &dyn Disk) -> io::Result<()> {
    let directories: Vec<String> = directories().collect();
    disk.create_dir_all(&directories.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Names the directories of containers, one for each value of the lowest byte of an object's number.
fn directories() -> impl Iterator<Item = String> {
    (0..=u8::MAX).map(|low_byte| directory(VnodeId(u64::from(low_byte))))
}

fn directory(vnode: VnodeId) -> String {
    format!("containers/{:02x}", vnode.0 & 0xff)
}

fn path(vnode: VnodeId, id: ContainerId) -> String {
    format!("{}/{:x}.{:x}", directory(vnode), vnode.0, id.0)
}

/// Reads the file name of a container.
fn parse(name: &str) -> Option<(VnodeId, ContainerId)> {
    let (vnode, id) = name.split_once('.')?;
    Some((VnodeId(u64::from_str_radix(vnode, 16).ok()?), ContainerId(u64::from_str_radix(id, 16).ok()?)))
}

#[cfg(test)]
mod tests {
    use mafs_durable::MemoryDisk;

    use super::*;

    #[test]
    fn who_makes_a_container_waits_for_no_sync() {
        let disk = MemoryDisk::new();
        let containers = Containers::open(Arc::new(disk.clone()) as Arc<dyn Disk>, 2).unwrap();
        containers.clear().unwrap();
        let syncs = disk.syncs();
        for vnode in 0..=256 {
            containers.create(VnodeId(vnode)).unwrap();
        }
        assert_eq!(disk.syncs(), syncs);
    }
}
