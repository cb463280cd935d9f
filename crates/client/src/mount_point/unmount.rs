//! Unmounting: by umount2(2) where that is permitted, otherwise by the set-uid helper of the package fuse3.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno as Code;
use rustix::mount::UnmountFlags;

/// The reason why something is still mounted.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Files are open or a process has its working directory there.
    #[error("it is busy: files are open below it, or a process is in it; `fuser -vm` shows which")]
    Busy,
    /// Nothing is mounted there.
    #[error("nothing is mounted there")]
    NotMounted,
    /// Only root may unmount without the helper.
    #[error("only root can unmount without fusermount3: install the package fuse3")]
    NoHelper,
    /// The system refuses.
    #[error("{0}")]
    Refused(String),
}

/// Unmounts a file system that is not in use.
///
/// # Errors [`UnmountError::Busy`] if it is in use, and the others.
pub fn unmount(mount_point: &Path) -> Result<(), UnmountError> {
    detach(mount_point, UnmountFlags::NOFOLLOW, &["-u"])
}

/// Takes the mount out of sight at once; it ends when nobody uses it any more.
///
/// # Errors
/// [`UnmountError`], never `Busy`.
pub fn unmount_lazily(mount_point: &Path) -> Result<(), UnmountError> {
    detach(mount_point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH, &["-u", "-z"])
}

fn detach(mount_point: &Path, flags: UnmountFlags, helper_flags: &[&str]) -> Result<(), UnmountError> {
    match rustix::mount::unmount(mount_point, flags) {
        Ok(()) => Ok(()),
        Err(Code::PERM) => by_helper(mount_point, helper_flags),
        Err(Code::BUSY) => Err(UnmountError::Busy),
        Err(Code::INVAL) => Err(UnmountError::NotMounted),
        Err(other) => Err(UnmountError::Refused(other.to_string())),
    }
}

fn by_helper(mount_point: &Path, flags: &[&str]) -> Result<(), UnmountError> {
    let helper = fusermount().ok_or(UnmountError::NoHelper)?;
    let output = Command::new(helper)
        .args(flags)
        .arg("--")
        .arg(mount_point)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| UnmountError::Refused(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("busy") { Err(UnmountError::Busy) } else { Err(UnmountError::Refused(one_line(&said))) }
}

/// Finds the helper that mounts and unmounts for users, if it is installed.
#[must_use]
pub fn fusermount() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/bin", "/usr/bin", "/sbin"].map(PathBuf::from));
    let candidates = folders.flat_map(|folder| ["fusermount3", "fusermount"].map(|name| folder.join(name)));
    candidates.into_iter().find(|candidate| candidate.is_file())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_where_nothing_is_mounted_cannot_be_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        assert!(unmount(dir.path()).is_err());
        assert!(unmount_lazily(dir.path()).is_err());
    }
}
