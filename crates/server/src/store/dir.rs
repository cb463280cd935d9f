//! A data directory on the real disk, locked by the process that uses it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mafs_durable::{DirDisk, Disk, OpenKv, sled_opener};
use mafs_proto::VolumeName;
use rustix::fs::FlockOperation;

use super::identity::SERVER_FILE;
use super::volumes::{VOLUMES_DIR, volume_dir};
use super::{Identity, Storage};
use crate::ServerError;

const LOCK_FILE: &str = "lock";

/// Names that may lie in a directory that is to become a data directory: also those that an interrupted `init`
/// leaves.
const HARMLESS: [&str; 4] = [LOCK_FILE, VOLUMES_DIR, "server.json.tmp", "lost+found"];

/// A data directory, for one process at a time: the lock goes with this value.
#[derive(Debug)]
pub struct DirStorage {
    disk: Arc<DirDisk>,
    path: PathBuf,
    _lock: File,
}

impl DirStorage {
    /// Opens a data directory, or a directory that can become one: missing (it is made, for its owner only), or empty.
    ///
    /// # Errors
    /// `InUse` if another process has it, `NotDataDirectory` if it holds something else, `NotDirectory` if it is
    /// none, or errors of the disk.
    pub fn open(path: &Path) -> Result<Self, ServerError> {
        let failed = |source| ServerError::io(format!("open the data directory {}", path.display()), source);
        if path.exists() && !path.is_dir() {
            return Err(ServerError::NotDirectory { path: path.to_owned() });
        }
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        refuse_foreign(path)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path.join(LOCK_FILE));
        let lock = lock.map_err(failed)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(ServerError::InUse { path: path.to_owned() }),
            Err(error) => return Err(failed(error.into())),
        }
        let disk = DirDisk::new(path.to_owned()).map_err(failed)?;
        Ok(Self { disk: Arc::new(disk), path: path.to_owned(), _lock: lock })
    }

    /// Tells whether the directory has been made a data directory.
    ///
    /// # Errors
    /// If its identity cannot be read.
    pub fn is_initialised(&self) -> Result<bool, ServerError> {
        Ok(Identity::load(&*self.disk)?.is_some())
    }

    /// Returns the path of the data directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Storage for DirStorage {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::<DirDisk>::clone(&self.disk)
    }

    fn index(&self, volume: &VolumeName) -> OpenKv {
        sled_opener(self.disk.path(&format!("{}/index", volume_dir(volume))))
    }

    fn random(&self) -> io::Result<[u8; 16]> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(bytes)
    }

    fn owner(&self) -> (u32, u32) {
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    }
}

/// Returns where a server of this user keeps its data: `/var/lib/mafs` for root, `$XDG_DATA_HOME/mafs/server` for
/// others. `None` without a home directory.
#[must_use]
pub fn default_data_dir() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/mafs"));
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
    Some(data?.join("mafs/server"))
}

fn refuse_foreign(path: &Path) -> Result<(), ServerError> {
    let failed = |source| ServerError::io(format!("list {}", path.display()), source);
    if path.join(SERVER_FILE).try_exists().map_err(failed)? {
        return Ok(());
    }
    for entry in path.read_dir().map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if !HARMLESS.iter().any(|harmless| name == *harmless) {
            return Err(ServerError::NotDataDirectory { path: path.to_owned(), found: name });
        }
    }
    Ok(())
}
