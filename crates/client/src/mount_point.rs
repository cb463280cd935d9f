//! Mount points: the directory a volume appears at, before, while and after it is mounted.
//!
//! Knows the kernel's mount table and the two ways to unmount (umount2 for root, fusermount3 for others). Asks a
//! mounted file system only whether it is alive, and only if no daemon answers for it, so that a dead one can be found
//! and removed.

mod table;
mod unmount;

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;

use crate::printable::printable_path;
use crate::runtime_dir::RuntimeDir;
pub use table::{MountEntry, mafs_mount_at, mafs_mounts};
pub use unmount::{UnmountError, fusermount, unmount, unmount_lazily};

/// The type of every mount in the mount table.
pub const FS_TYPE: &str = "fuse.mafs";

/// The reason why nothing can be mounted at a directory.
#[derive(Debug, thiserror::Error)]
pub enum MountPointError {
    /// There is nothing of that name.
    #[error("{}: there is no such directory: create it first", printable_path(.0))]
    Missing(PathBuf),
    /// The path is not a directory.
    #[error("{}: not a directory", printable_path(.0))]
    NotDirectory(PathBuf),
    /// The directory is not empty: its entries would be hidden.
    #[error("{}: the directory is not empty: mount on an empty one", printable_path(.0))]
    NotEmpty(PathBuf),
    /// A volume is mounted there and its client lives.
    #[error("{}: {source_name} is mounted there already: unmount it first", printable_path(directory))]
    Mounted {
        /// The directory.
        directory: PathBuf,
        /// The mounted volume.
        source_name: String,
    },
    /// A dead mount is in the way.
    #[error("{}: the mount of a client that has died cannot be removed: {why}", printable_path(directory))]
    Dead {
        /// The directory.
        directory: PathBuf,
        /// The reason why it cannot be removed.
        why: UnmountError,
    },
    /// The directory cannot be looked at.
    #[error("{}: {error}", printable_path(directory))]
    Io {
        /// The directory.
        directory: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
}

/// Returns the absolute path of a directory as the mount table has it, even if a dead or unreachable file system is
/// mounted there.
///
/// # Errors
/// If the directory it lies in cannot be resolved.
pub fn resolve(directory: &Path) -> std::io::Result<PathBuf> {
    std::fs::canonicalize(directory).or_else(|error| {
        let absolute = std::path::absolute(directory)?;
        match (absolute.parent(), absolute.file_name()) {
            (Some(parent), Some(name)) if error.kind() != ErrorKind::NotFound => {
                Ok(std::fs::canonicalize(parent)?.join(name))
            }
            _ => Err(error),
        }
    })
}

/// Makes sure that a volume can be mounted at `directory`, and returns its absolute path. Removes the mount of a
/// client that has died.
///
/// # Errors
/// [`MountPointError`] says what is in the way.
pub fn prepare(directory: &Path, runtime_dir: &RuntimeDir) -> Result<PathBuf, MountPointError> {
    let path = resolve(directory).map_err(|error| of_io(directory, error))?;
    let io = |error| of_io(&path, error);
    if let Some(mount) = mafs_mount_at(&path).map_err(io)? {
        if is_alive(&path, runtime_dir) {
            return Err(MountPointError::Mounted { directory: path, source_name: mount.source });
        }
        tracing::info!(directory = %path.display(), "removing the mount of a client that has died");
        unmount_lazily(&path).map_err(|why| MountPointError::Dead { directory: path.clone(), why })?;
    }
    let mut entries = std::fs::read_dir(&path).map_err(io)?;
    match entries.next() {
        None => Ok(path),
        Some(_) => Err(MountPointError::NotEmpty(path)),
    }
}

/// Whether there is a client behind a mount.
#[must_use]
pub fn is_alive(mount_point: &Path, runtime_dir: &RuntimeDir) -> bool {
    // The socket is asked first, because the client makes a program that asks the mount wait for a server that is
    // gone.
    if UnixStream::connect(runtime_dir.socket(mount_point)).is_ok() {
        return true;
    }
    // Not stat(2), which the kernel answers for a dead client as well, as long as attributes live.
    let answer = statx(CWD, mount_point, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    // The kernel has these two ways to say that nobody serves the mount any more.
    !matches!(answer, Err(Errno::NOTCONN | Errno::CONNABORTED))
}

fn of_io(directory: &Path, error: std::io::Error) -> MountPointError {
    let directory = directory.to_path_buf();
    match error.kind() {
        ErrorKind::NotFound => MountPointError::Missing(directory),
        ErrorKind::NotADirectory => MountPointError::NotDirectory(directory),
        _ => MountPointError::Io { directory, error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_directory_will_do() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        let run = tempfile::tempdir().unwrap();
        let run = RuntimeDir::at(&run.path().join("mafs")).unwrap();
        assert_eq!(prepare(dir.path(), &run).unwrap(), real);
        assert!(matches!(prepare(&dir.path().join("x"), &run), Err(MountPointError::Missing(_))));
        std::fs::write(dir.path().join("file"), b"").unwrap();
        assert!(matches!(prepare(dir.path(), &run), Err(MountPointError::NotEmpty(path)) if path == real));
        assert!(matches!(prepare(&dir.path().join("file"), &run), Err(MountPointError::NotDirectory(_))));
    }

    #[test]
    fn links_are_followed_to_where_the_mount_will_be() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
        let run = RuntimeDir::at(&dir.path().join("run")).unwrap();
        assert_eq!(prepare(&dir.path().join("link"), &run).unwrap(), dir.path().canonicalize().unwrap().join("real"));
    }
}
