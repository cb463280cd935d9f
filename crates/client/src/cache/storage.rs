//! Storage of a cache: a directory of its own, locked against a second client; or memory, for tests and the simulator.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mafs_durable::{DirDisk, Disk, Kv, KvError, KvOpen, OpenKv, sled_opener};

/// Reason why a directory cannot be a cache.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// Another client uses it.
    #[error("the cache {path} is in use by another mafs-client; unmount that one or choose another with -o cache=DIR")]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The directory cannot be made, read or written.
    #[error("cannot use the cache {path}: {source}; choose another with -o cache=DIR")]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

const MACHINE_ID: &str = "/etc/machine-id";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Place where a cache lives.
pub struct CacheStorage {
    disk: Arc<dyn Disk>,
    open_kv: OpenKv,
    boot: String,
    run: u64,
    place: String,
    tells_changes: bool,
    _lock: Option<File>,
}

impl CacheStorage {
    /// Uses a real directory, made if absent, readable by its owner only. The directory is locked while the storage
    /// lives.
    ///
    /// # Errors
    /// [`StorageError`] if the directory is in use or cannot be used.
    pub fn directory(path: &Path) -> Result<Self, StorageError> {
        let unusable = |source| StorageError::Unusable { path: path.to_owned(), source };
        let disk = DirDisk::new(path.to_owned()).map_err(unusable)?;
        restrict(path).map_err(unusable)?;
        let lock = File::create(path.join("lock")).map_err(unusable)?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StorageError::InUse { path: path.to_owned() }),
            Err(errno) => return Err(unusable(errno.into())),
        }
        let boot = std::fs::read_to_string(BOOT_ID).map_err(unusable)?;
        let open_kv = sled_opener(path.join("index"));
        let place = place_of(path).map_err(unusable)?;
        let mut run = [0; 8];
        getrandom::fill(&mut run).map_err(|error| unusable(io::Error::other(error)))?;
        let run = u64::from_le_bytes(run);
        let tells_changes = is_on_disk(&lock).map_err(unusable)? && tells_changes(&disk).map_err(unusable)?;
        Ok(Self { disk: Arc::new(disk), open_kv, boot, run, place, tells_changes, _lock: Some(lock) })
    }

    /// Uses any disk and index, which nobody copies; `boot` differs after a power loss, and `run` in every use.
    #[must_use]
    pub fn custom(disk: Arc<dyn Disk>, open_kv: OpenKv, boot: String, run: u64) -> Self {
        Self { disk, open_kv, boot, run, place: String::new(), tells_changes: true, _lock: None }
    }

    /// Names this use of the cache.
    pub(crate) fn run(&self) -> u64 {
        self.run
    }

    /// Names the machine's present run: what was written in an earlier one and not synced may be lost.
    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// Names the place of the cache: another machine, or another directory, is another place.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// Whether any change of a file here, by a store through a mapping too, moves its time of change to one that no
    /// look before has seen, and the kernel says whether the file is open for writing. Without that nobody knows what
    /// the kernel writes by itself.
    pub(crate) fn tells_changes(&self) -> bool {
        self.tells_changes
    }

    pub(crate) fn disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.disk)
    }

    pub(crate) fn open_kv(&self, which: KvOpen) -> Result<Arc<dyn Kv>, KvError> {
        (self.open_kv)(which)
    }
}

/// Names the machine and the directory's inode.
fn place_of(path: &Path) -> io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let machine = std::fs::read_to_string(MACHINE_ID).unwrap_or_default();
    Ok(format!("{} {}", machine.trim(), std::fs::metadata(path)?.ino()))
}

/// Whether the file system is not in memory: one in memory takes stores through mappings without being told
/// (`shmem_vm_ops` and `ramfs` have no `page_mkwrite`).
fn is_on_disk(file: &File) -> io::Result<bool> {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    let kind = rustix::fs::fstatfs(file)?.f_type;
    Ok(kind != TMPFS && kind != RAMFS)
}

/// Tries whether each of many writes, just behind a look, moves a file's time of change, and whether the kernel says
/// that somebody has it open for writing.
fn tells_changes(disk: &DirDisk) -> io::Result<bool> {
    const WRITES: usize = 64;
    const PROBE: &str = "probe";
    let file = disk.create(PROBE)?;
    let mut before = file.stat()?.changed;
    let mut moved = 0;
    for _ in 0..WRITES {
        file.write_all_at(b"x", 0)?;
        file.wait_for_writes()?;
        let after = file.stat()?.changed;
        moved += usize::from(after > before);
        before = after;
    }
    let another = OpenOptions::new().write(true).open(disk.path(PROBE))?;
    let is_open = file.is_written_elsewhere();
    drop(another);
    let is_closed = file.is_written_elsewhere().map(|open| !open);
    disk.remove(PROBE)?;
    Ok(moved == WRITES && is_open.unwrap_or(false) && is_closed.unwrap_or(false))
}

/// Closes a directory to other users: contents of other people's files are in there.
fn restrict(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}
