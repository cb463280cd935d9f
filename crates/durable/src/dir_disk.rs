//! A disk in a real directory.
//!
//! Owns nothing but the root path; every call goes straight to the kernel. The root is made private to its user (mode
//! 0700), because everything of everybody's files lies below it.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::disk::components;
use crate::lease;
use crate::{Disk, DiskFile, DiskPath, Fallocate, FileStat, SpaceInfo};

/// A [`Disk`] in a directory of the real file system.
#[derive(Clone, Debug)]
pub struct DirDisk {
    root: PathBuf,
}

impl DirDisk {
    /// Returns the disk below `root`, which is made (readable by its user only) if it is absent.
    ///
    /// # Errors
    /// Errors of making the directory.
    pub fn new(root: PathBuf) -> io::Result<Self> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&root)?;
        let root = root.canonicalize()?;
        if let Some(parent) = root.parent() {
            // A parent that may be passed but not read cannot be synced; then it is not ours to vouch for either.
            match sync_directory(parent) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                other => other?,
            }
        }
        Ok(Self { root })
    }

    /// Returns the place of a path of this disk in the real file system. The path must be one that this disk takes:
    /// this does not check it.
    #[must_use]
    pub fn path(&self, path: &DiskPath) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    fn checked(&self, path: &DiskPath) -> io::Result<PathBuf> {
        components(path).map(|_| self.path(path))
    }
}

impl Disk for DirDisk {
    fn create(&self, path: &DiskPath) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.checked(path)?;
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
        Ok(Arc::new(DirFile::new(file.map_err(|errno| naming(&path, errno.into()))?.into())))
    }

    fn open(&self, path: &DiskPath) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.checked(path)?;
        let file = File::open(&path).map_err(|error| naming(&path, error))?;
        Ok(Arc::new(DirFile::new(file)))
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> io::Result<()> {
        let from = self.checked(from)?;
        fs::rename(&from, self.checked(to)?).map_err(|error| naming(&from, error))
    }

    fn remove(&self, path: &DiskPath) -> io::Result<()> {
        let path = self.checked(path)?;
        fs::remove_file(&path).map_err(|error| naming(&path, error))
    }

    fn remove_dir_all(&self, path: &DiskPath) -> io::Result<()> {
        let path = self.checked(path)?;
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(naming(&path, error)),
            _ => Ok(()),
        }
    }

    fn create_dir_all(&self, paths: &[&DiskPath]) -> io::Result<()> {
        let mut parents = BTreeSet::new();
        for path in paths {
            let mut at = self.root.clone();
            for part in components(path)? {
                let parent = at.clone();
                at.push(part);
                match fs::create_dir(&at) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists && at.is_dir() => {}
                    other => other.map_err(|error| naming(&at, error))?,
                }
                // Also if it was there: the process that made it may have been killed before its own sync.
                parents.insert(parent);
            }
        }
        parents.iter().try_for_each(|parent| sync_directory(parent))
    }

    fn list(&self, path: &DiskPath) -> io::Result<Vec<String>> {
        let path = self.checked(path)?;
        let mut names = Vec::new();
        for entry in fs::read_dir(&path).map_err(|error| naming(&path, error))? {
            let name = entry?.file_name().into_string().map_err(|name| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{name:?} in {} is not UTF-8", path.display()))
            })?;
            names.push(name);
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_dir(&self, path: &DiskPath) -> io::Result<()> {
        sync_directory(&self.checked(path)?)
    }

    fn sync_all(&self) -> io::Result<()> {
        let root = File::open(&self.root).map_err(|error| naming(&self.root, error))?;
        Ok(rustix::fs::syncfs(root)?)
    }

    fn space(&self) -> io::Result<SpaceInfo> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(SpaceInfo {
            bytes_total: stat.f_blocks.saturating_mul(stat.f_frsize),
            bytes_free: stat.f_bavail.saturating_mul(stat.f_frsize),
            bytes_unused: stat.f_bfree.saturating_mul(stat.f_frsize),
            files_total: stat.f_files,
            files_free: stat.f_favail,
        })
    }
}

/// An open file of a [`DirDisk`]. The file is open for reading only, until this process writes to it: so the kernel
/// can say whether anybody else has it open for writing.
struct DirFile {
    reading: File,
    writing: Mutex<Option<Arc<File>>>,
}

impl DirFile {
    fn new(reading: File) -> Self {
        Self { reading, writing: Mutex::default() }
    }

    /// Returns the file open for writing; opens it for the first of several writes.
    fn writing(&self) -> io::Result<Arc<File>> {
        let mut writing = self.opened_for_writing();
        if let Some(file) = &*writing {
            return Ok(Arc::clone(file));
        }
        // By its descriptor, for its name may be gone.
        let path = format!("/proc/self/fd/{}", self.reading.as_raw_fd());
        let file = Arc::new(OpenOptions::new().write(true).open(path)?);
        *writing = Some(Arc::clone(&file));
        Ok(file)
    }

    fn opened_for_writing(&self) -> MutexGuard<'_, Option<Arc<File>>> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskFile for DirFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.reading.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.writing()?.write_all_at(bytes, offset)
    }

    fn stat(&self) -> io::Result<FileStat> {
        const BLOCK_BYTES: u64 = 512;
        let stat = self.reading.metadata()?;
        let allocated = stat.blocks().saturating_mul(BLOCK_BYTES);
        Ok(FileStat { bytes: stat.len(), allocated, modified: stat.modified()?, changed: changed(&stat)? })
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.writing()?.set_len(bytes)
    }

    fn fallocate(&self, how: Fallocate, offset: u64, bytes: u64) -> io::Result<()> {
        let keep_size = if how.grows() { FallocateFlags::empty() } else { FallocateFlags::KEEP_SIZE };
        let mode = match how {
            Fallocate::Reserve | Fallocate::ReserveKeepingSize => keep_size,
            Fallocate::Punch => FallocateFlags::PUNCH_HOLE | keep_size,
            Fallocate::Zero | Fallocate::ZeroKeepingSize => FallocateFlags::ZERO_RANGE | keep_size,
        };
        if bytes == 0 {
            return Ok(());
        }
        let file = self.writing()?;
        Ok(rustix::io::retry_on_intr(|| rustix::fs::fallocate(&*file, mode, offset, bytes))?)
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        seek(&self.reading, SeekFrom::Data(offset))
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        seek(&self.reading, SeekFrom::Hole(offset))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.reading.as_fd())
    }

    fn writable(&self) -> Option<io::Result<Arc<File>>> {
        Some(self.writing())
    }

    /// Asks for an extended attribute to be removed that is not there: that takes the lock which a write holds from its
    /// start to its end, on every file system of Linux, and changes nothing.
    fn wait_for_writes(&self) -> io::Result<()> {
        match rustix::fs::fremovexattr(&self.reading, c"user.mafs.none") {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn is_written_elsewhere(&self) -> io::Result<bool> {
        // This process counts too. A call that still uses the file makes the answer a doubt.
        let ours = self.opened_for_writing().take();
        drop(ours);
        lease::is_open_for_writing(self.reading.as_fd())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.reading.sync_data()
    }

    fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.reading.set_modified(time)
    }
}

/// Returns the time of the last change of anything, which `std` has no name for.
fn changed(stat: &fs::Metadata) -> io::Result<SystemTime> {
    let nanos = u32::try_from(stat.ctime_nsec()).map_err(io::Error::other)?;
    let seconds = Duration::from_secs(stat.ctime().unsigned_abs());
    let whole = if stat.ctime() < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    let time = whole.and_then(|time| time.checked_add(Duration::from_nanos(nanos.into())));
    time.ok_or_else(|| io::Error::other("the time of a change is out of range"))
}

/// Seeks in a file. All reads and writes name their place, so the file's own does not matter.
fn seek(file: &File, to: SeekFrom) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, to) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(|error| naming(path, error))
}

/// Adds the path to an error of the kernel, which names none.
fn naming(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_cannot_leave_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let disk = DirDisk::new(dir.path().join("root")).unwrap();
        for bad in ["..", "a/../b", "/etc/passwd", "a//b", "a/", ".", "a\0b"] {
            assert_eq!(disk.create(bad).err().unwrap().kind(), io::ErrorKind::InvalidInput, "{bad:?}");
            assert_eq!(disk.create_dir_all(&[bad]).err().unwrap().kind(), io::ErrorKind::InvalidInput, "{bad:?}");
        }
    }

    #[test]
    fn the_root_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let disk = DirDisk::new(dir.path().join("root")).unwrap();
        assert_eq!(fs::metadata(disk.path("")).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn files_are_for_their_user_alone() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let disk = DirDisk::new(directory.path().to_owned()).unwrap();
        disk.create("file").unwrap();
        crate::write_file_atomically(&disk, "key", b"secret").unwrap();
        for name in ["file", "key"] {
            assert_eq!(fs::metadata(disk.path(name)).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn space_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let space = DirDisk::new(dir.path().to_owned()).unwrap().space().unwrap();
        assert!(space.bytes_free > 0 && space.bytes_free <= space.bytes_unused);
        assert!(space.bytes_unused <= space.bytes_total);
    }
}
