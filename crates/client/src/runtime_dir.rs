//! The runtime directory, where the daemons of this user can be reached: private, with one control socket and one log
//! per mount.
//!
//! Invariant: the directory belongs to this user and nobody else can enter it; otherwise it is not used.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::file_name;

const SOCKET_SUFFIX: &str = "sock";

/// A runtime directory, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// Opens the directory of this user: `MAFS_RUNTIME_DIR`, or `/run/mafs` for root, or `$XDG_RUNTIME_DIR/mafs`, or
    /// `/tmp/mafs-UID`.
    ///
    /// # Errors
    /// If it cannot be made, or is not private.
    pub fn open() -> io::Result<Self> {
        let user = rustix::process::geteuid();
        let given = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        let path = match given("MAFS_RUNTIME_DIR") {
            Some(path) => path,
            None if user.is_root() => PathBuf::from("/run/mafs"),
            None => match given("XDG_RUNTIME_DIR") {
                Some(session) => session.join("mafs"),
                None => std::env::temp_dir().join(format!("mafs-{}", user.as_raw())),
            },
        };
        Self::at(&path)
    }

    /// Uses `path`, which is made if it is missing.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn at(path: &Path) -> io::Result<Self> {
        let with_path = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let path = std::path::absolute(path).map_err(with_path)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(with_path)?;
        let found = std::fs::symlink_metadata(&path).map_err(with_path)?;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
            return Err(with_path(io::Error::other("must be a directory of this user that nobody else can enter")));
        }
        if found.permissions().mode() & 0o077 != 0 {
            let why = format!("nobody else may be able to enter it: chmod 700 {}", path.display());
            return Err(with_path(io::Error::other(why)));
        }
        Ok(Self(path))
    }

    /// Returns the control socket of the daemon for a mount point, an absolute path.
    #[must_use]
    pub fn socket(&self, mount_point: &Path) -> PathBuf {
        self.0.join(format!("{}.{SOCKET_SUFFIX}", file_stem(mount_point)))
    }

    /// Returns the daemon's log, when it runs in the background.
    #[must_use]
    pub fn log(&self, mount_point: &Path) -> PathBuf {
        self.0.join(format!("{}.log", file_stem(mount_point)))
    }

    /// Returns the socket of a server that runs in the process of its only client, told apart by its data directory.
    #[must_use]
    pub fn server_socket(&self, data: &Path) -> PathBuf {
        self.0.join(format!("{}.server", file_stem(data)))
    }

    /// Lists all control sockets, in the order of their names; some may belong to daemons that have died.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn sockets(&self) -> io::Result<Vec<PathBuf>> {
        let paths: io::Result<Vec<PathBuf>> =
            std::fs::read_dir(&self.0)?.map(|entry| entry.map(|entry| entry.path())).collect();
        let mut sockets = paths?;
        sockets.retain(|path| path.extension().is_some_and(|extension| extension == SOCKET_SUFFIX));
        sockets.sort();
        Ok(sockets)
    }
}

fn file_stem(mount_point: &Path) -> String {
    let last = mount_point.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    file_name::for_identity(&last, mount_point.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_can_enter_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/mafs");
        RuntimeDir::at(&path).unwrap();
        RuntimeDir::at(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let refused = RuntimeDir::at(&path).unwrap_err().to_string();
        assert!(refused.ends_with(&format!("chmod 700 {}", path.display())), "{refused}");
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        assert!(RuntimeDir::at(&dir.path().join("link")).is_err());
    }

    #[test]
    fn only_sockets_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::at(&dir.path().join("mafs")).unwrap();
        let (one, two) = (Path::new("/mnt/b"), Path::new("/mnt/a"));
        for path in [runtime.socket(one), runtime.socket(two), runtime.log(one), runtime.server_socket(one)] {
            std::fs::write(path, b"").unwrap();
        }
        assert_eq!(runtime.sockets().unwrap(), [runtime.socket(two), runtime.socket(one)]);
    }
}
