//! The disk seam: files and directories below one root.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::SystemTime;

use crate::Fallocate;

/// A path below the root of a [`Disk`]: `/`-separated components, none of them empty, `.` or `..`. The empty path is
/// the root itself.
pub type DiskPath = str;

/// Splits a path into its components; those of the root are none.
pub(crate) fn components(path: &DiskPath) -> io::Result<Vec<&str>> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let parts: Vec<&str> = path.split('/').collect();
    match parts.iter().find(|part| matches!(**part, "" | "." | "..") || part.contains('\0')) {
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{path:?} is not a path below the root"))),
        None => Ok(parts),
    }
}

/// Returns the directory that holds `path`.
pub(crate) fn parent(path: &DiskPath) -> &DiskPath {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Returns the path of `name` in a directory.
pub(crate) fn join(dir: &DiskPath, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

/// Room on a disk, as statvfs(3) tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceInfo {
    /// Size of the file system in bytes.
    pub bytes_total: u64,
    /// Bytes this process may still use.
    pub bytes_free: u64,
    /// Bytes that nobody uses: besides the free ones, those that the file system keeps for root.
    pub bytes_unused: u64,
    /// Inodes of the file system.
    pub files_total: u64,
    /// Inodes this process may still use.
    pub files_free: u64,
}

/// Files and directories below one root.
///
/// As on POSIX, a crash leaves the bytes of a file from before its last `sync`, and the names of a directory from
/// before its last `sync_dir`. Anything later may be there, or not, or in part.
pub trait Disk: Send + Sync + 'static {
    /// Makes an empty file, or empties an existing one; its directory must exist.
    fn create(&self, path: &DiskPath) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file for reading and writing. Answers `NotFound` if there is none.
    fn open(&self, path: &DiskPath) -> io::Result<Arc<dyn DiskFile>>;

    /// Moves a file or directory; an existing target file is replaced atomically.
    fn rename(&self, from: &DiskPath, to: &DiskPath) -> io::Result<()>;

    /// Removes a file. Open handles keep its bytes.
    fn remove(&self, path: &DiskPath) -> io::Result<()>;

    /// Removes a directory with everything below it; no error if there is none.
    fn remove_dir_all(&self, path: &DiskPath) -> io::Result<()>;

    /// Makes directories and their parents, durably; no error if they exist. Each parent is synced once, however many
    /// directories are made in it.
    fn create_dir_all(&self, paths: &[&DiskPath]) -> io::Result<()>;

    /// Lists the names in a directory, sorted. Answers `NotFound` if there is none.
    fn list(&self, path: &DiskPath) -> io::Result<Vec<String>>;

    /// Makes the names of a directory durable.
    fn sync_dir(&self, path: &DiskPath) -> io::Result<()>;

    /// Makes everything durable that was done before, by whomever. For many files at once: each sync of one is a
    /// flush of the disk.
    fn sync_all(&self) -> io::Result<()>;

    /// Tells how much room there is.
    fn space(&self) -> io::Result<SpaceInfo>;
}

/// Facts about a file besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileStat {
    /// Its size.
    pub bytes: u64,
    /// Bytes that it takes on the disk.
    pub allocated: u64,
    /// Time when its bytes last changed, or the time that was set.
    pub modified: SystemTime,
    /// Time when anything of the file last changed: bytes, size or times. Nobody can set it. Where the file system
    /// has multigrain times (ext4 and xfs since Linux 6.13), a change that follows a look always moves it.
    pub changed: SystemTime,
}

/// An open file. All methods may be called from any thread at any time.
#[allow(clippy::len_without_is_empty, reason = "a file is not a collection")]
pub trait DiskFile: Send + Sync + 'static {
    /// Reads into `buffer` from `offset`; fewer bytes than asked only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`, growing the file (with zeros in between) if need be.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Size, room and time, as of one moment.
    fn stat(&self) -> io::Result<FileStat>;

    /// The size in bytes.
    fn len(&self) -> io::Result<u64> {
        Ok(self.stat()?.bytes)
    }

    /// Cuts the file, or grows it with zeros.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Reserves, zeroes or gives back a range; an empty one is left alone. `Unsupported` if the file system cannot.
    fn fallocate(&self, how: Fallocate, offset: u64, bytes: u64) -> io::Result<()>;

    /// Finds the first byte at or behind `offset` that may be other than zero; `None` if there is none, or `offset`
    /// is at or behind the end.
    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>>;

    /// Finds the first byte at or behind `offset` that lies in a hole; the end of the file counts as one. `None` if
    /// `offset` is at or behind the end.
    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>>;

    /// Returns how many bytes the file takes on the disk.
    fn allocated(&self) -> io::Result<u64> {
        Ok(self.stat()?.allocated)
    }

    /// Returns the kernel's file behind this one, if there is one, open for reading.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the kernel's file behind this one, if there is one, open for writing.
    fn writable(&self) -> Option<io::Result<Arc<File>>>;

    /// Waits until every write, cut and reservation that had begun before this call has ended. A write moves the times
    /// when it begins and the bytes later, so a look at the times alone tells nothing of a write that goes on.
    fn wait_for_writes(&self) -> io::Result<()>;

    /// Tells whether anybody but this process may be able to write to the file: has it open for writing, or has
    /// mapped it so. A doubt counts as yes.
    fn is_written_elsewhere(&self) -> io::Result<bool>;

    /// Makes the bytes and the size durable (fdatasync).
    fn sync_data(&self) -> io::Result<()>;

    /// Tells when the bytes last changed. Every write sets this time to the present.
    fn modified(&self) -> io::Result<SystemTime> {
        Ok(self.stat()?.modified)
    }

    /// Sets the time when the bytes last changed.
    fn set_modified(&self, time: SystemTime) -> io::Result<()>;
}
