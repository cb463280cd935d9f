//! Directories that every user can reach and on which something is mounted: another directory, or an ext4 of its own.
//! Unmounted when dropped.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use tempfile::TempDir;

use crate::process;

/// The size of an ext4 of its own. Blocks that were never written take no room.
const EXT4_BYTES: u64 = 4 << 30;

const MOUNT_LIMIT: Duration = Duration::from_secs(60);

/// A mount at a path that other users can walk, unlike that of a world.
#[derive(Debug)]
pub struct Mounted {
    directory: TempDir,
}

impl Mounted {
    /// Shows `source` a second time.
    ///
    /// # Errors
    /// If it cannot be mounted: only root can.
    pub fn bind(source: &Path) -> io::Result<Self> {
        let directory = reachable()?;
        mount_bind(source, directory.path())?;
        Ok(Self { directory })
    }

    /// Makes and mounts a new ext4, in the file `image`, which must not exist.
    ///
    /// # Errors
    /// If it cannot be made or mounted: that needs root, e2fsprogs and a loop device.
    pub fn ext4(image: &Path) -> io::Result<Self> {
        File::create_new(image)?.set_len(EXT4_BYTES)?;
        process::run(Command::new("mkfs.ext4").arg("-q").arg(image), MOUNT_LIMIT)?;
        let directory = reachable()?;
        process::run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(directory.path()), MOUNT_LIMIT)?;
        Ok(Self { directory })
    }

    /// Returns the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.path(), UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {error}; do it by hand", self.path().display());
        }
    }
}

/// Tells whether something is mounted at `path`. Reads the kernel's list, so that a dead mount cannot block the
/// question.
///
/// # Errors
/// If the list cannot be read.
pub fn is_mounted(path: &Path) -> io::Result<bool> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let path = path.to_str().ok_or_else(|| io::Error::other("the path is no UTF-8"))?.replace(' ', "\\040");
    Ok(mounts.lines().any(|line| line.split(' ').nth(4) == Some(&path)))
}

fn reachable() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("mafs-").permissions(Permissions::from_mode(0o755)).tempdir_in("/tmp")
}
