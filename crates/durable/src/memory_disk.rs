//! The memory twin of a disk, which can lose everything that was not synced.
//!
//! Owns the whole tree of files and directories, twice: as programs see it and as it is durable. Knows nothing of what
//! the bytes mean. Time does not pass here: each change is a millisecond after the one before, so that runs can be
//! repeated. As on Linux since 6.13 a change gets a later time only if somebody has looked at the file since the last.

mod crash;
mod faults;
mod mapped;
mod tree;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use mafs_proto::Random;

use crate::{Disk, DiskFile, DiskPath, Fallocate, FileStat, SpaceInfo};
use faults::{Faults, Outcome};
use tree::{Ino, Tree};

/// Size of the largest file on ext4, with blocks of 4 KiB.
const FILE_BYTES_MAX: u64 = ((1 << 32) - 1) * 4096;

/// A [`Disk`] in memory. Clones are the same disk.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    world: Arc<Mutex<World>>,
}

/// The tree, and what shall go wrong with it.
#[derive(Default)]
struct World {
    tree: Tree,
    /// The tree at the moment of the power cut, if there was one.
    cut: Option<Tree>,
    faults: Faults,
    /// Files that were opened so far.
    opens: u64,
    freeze_after: Option<u64>,
    capacity: Option<u64>,
    full: bool,
}

impl MemoryDisk {
    /// Makes an empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the disk that a power cut leaves: exactly what was synced. The cut is at the present, or at the sync
    /// that [`Self::freeze_after_syncs`] chose.
    #[must_use]
    pub fn crash(&self) -> Self {
        Self::of(self.at_cut(|tree| tree.durable(None)))
    }

    /// Returns a disk like [`Self::crash`], on which some of what was not synced survives, in part: writes whole,
    /// torn or not at all, in any order; names one by one. A rename never loses a file that was durable under its old
    /// name.
    #[must_use]
    pub fn crash_torn(&self, seed: u64) -> Self {
        Self::of(self.at_cut(|tree| tree.durable(Some(&mut Random::new(seed)))))
    }

    /// Returns the disk that kill -9 leaves: everything, with what is not synced still not synced.
    #[must_use]
    pub fn kill(&self) -> Self {
        Self::of(self.world().tree.without_handles())
    }

    /// Cuts the power at sync number `count` (the first is number 0): it and all later ones make nothing durable,
    /// though they succeed, and what is done from then on is in no image of a crash.
    pub fn freeze_after_syncs(&self, count: u64) {
        self.world().freeze_after = Some(count);
    }

    /// Tells whether the power is cut.
    #[must_use]
    pub fn frozen(&self) -> bool {
        self.world().cut.is_some()
    }

    /// Returns how many files were opened by now.
    #[must_use]
    pub fn opens(&self) -> u64 {
        self.world().opens
    }

    /// Lets writes fail with `StorageFull` that would make all files together larger than `bytes`.
    pub fn set_capacity(&self, bytes: u64) {
        self.world().capacity = Some(bytes);
    }

    /// Lets every write fail with `StorageFull`, or none again, whatever room files have: on a file system that
    /// writes nothing in place reserved room is no promise.
    pub fn set_full(&self, full: bool) {
        self.world().full = full;
    }

    fn of(tree: Tree) -> Self {
        Self { world: Arc::new(Mutex::new(World { tree, ..World::default() })) }
    }

    fn at_cut(&self, image: impl FnOnce(&Tree) -> Tree) -> Tree {
        let world = self.world();
        image(world.cut.as_ref().unwrap_or(&world.tree))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    /// Counts a sync. Returns whether it makes anything durable. If this one fails, `lose` says what it loses.
    fn sync(&mut self, lose: impl FnOnce(&mut Tree) -> io::Result<()>) -> io::Result<bool> {
        let number = self.faults.syncs();
        match self.faults.sync() {
            Outcome::Done => {}
            Outcome::Deceives => return Ok(false),
            Outcome::Fails { loses } => {
                if loses {
                    lose(&mut self.tree)?;
                }
                return Err(faults::failed());
            }
        }
        if self.freeze_after.is_some_and(|count| number >= count) {
            self.cut.get_or_insert_with(|| self.tree.clone());
            return Ok(false);
        }
        Ok(true)
    }

    /// Gives room to a range of a file, unless the disk is full.
    fn take_room(&mut self, ino: Ino, range: Range<u64>) -> io::Result<()> {
        let over = match self.capacity {
            Some(capacity) => {
                let missing = self.tree.file(ino)?.room.missing_bytes(range.clone());
                missing > 0 && self.tree.bytes_used() + missing > capacity
            }
            None => false,
        };
        if self.full || over {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "injected: the disk is full"));
        }
        self.tree.file(ino)?.room.insert(range);
        Ok(())
    }
}

impl Disk for MemoryDisk {
    fn create(&self, path: &DiskPath) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(self.create_file(path)?))
    }

    fn open(&self, path: &DiskPath) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(self.open_file(path)?))
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> io::Result<()> {
        let mut world = self.world();
        world.faults.alive()?;
        world.tree.rename(from, to)
    }

    fn remove(&self, path: &DiskPath) -> io::Result<()> {
        let mut world = self.world();
        world.faults.alive()?;
        world.tree.remove(path)
    }

    fn remove_dir_all(&self, path: &DiskPath) -> io::Result<()> {
        let mut world = self.world();
        world.faults.alive()?;
        world.tree.remove_dir_all(path)
    }

    fn create_dir_all(&self, paths: &[&DiskPath]) -> io::Result<()> {
        let mut world = self.world();
        let durable = world.sync(|_| Ok(()))?;
        paths.iter().try_for_each(|path| world.tree.create_dir_all(path, durable))
    }

    fn list(&self, path: &DiskPath) -> io::Result<Vec<String>> {
        self.world().tree.list(path)
    }

    fn sync_dir(&self, path: &DiskPath) -> io::Result<()> {
        let mut world = self.world();
        let durable = world.sync(|tree| tree.lose_names(path))?;
        world.tree.sync_dir(path, durable)
    }

    fn sync_all(&self) -> io::Result<()> {
        let mut world = self.world();
        let lose = |tree: &mut Tree| {
            tree.lose_all();
            Ok(())
        };
        if world.sync(lose)? {
            world.tree.sync_all();
        }
        Ok(())
    }

    fn space(&self) -> io::Result<SpaceInfo> {
        let world = self.world();
        let used = world.tree.bytes_used();
        let total = world.capacity.unwrap_or(1 << 40);
        let files_total = 1 << 20;
        Ok(SpaceInfo {
            bytes_total: total,
            bytes_free: total.saturating_sub(used),
            bytes_unused: total.saturating_sub(used),
            files_total,
            files_free: files_total - (world.tree.count() as u64).min(files_total),
        })
    }
}

/// An open file of a [`MemoryDisk`].
pub struct MemoryFile {
    disk: MemoryDisk,
    ino: Ino,
}

impl DiskFile for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut world = self.disk.world();
        let bytes = world.tree.file(self.ino)?.bytes();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let count = buffer.len().min(bytes.len() - start);
        buffer[..count].copy_from_slice(&bytes[start..start + count]);
        Ok(count)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if bytes.is_empty() {
            // As with pwrite(2), a write of nothing grows nothing.
            return Ok(());
        }
        let mut world = self.disk.world();
        let end = offset.saturating_add(bytes.len() as u64);
        world.faults.write()?;
        world.take_room(self.ino, offset..end)?;
        world.tree.write(self.ino, bytes, offset)
    }

    fn stat(&self) -> io::Result<FileStat> {
        let mut world = self.disk.world();
        Ok(world.tree.file(self.ino)?.stat())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        if bytes > FILE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut world = self.disk.world();
        world.faults.write()?;
        world.tree.resize(self.ino, bytes)
    }

    fn fallocate(&self, how: Fallocate, offset: u64, bytes: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.faults.write()?;
        let end = offset.saturating_add(bytes);
        let len = world.tree.file(self.ino)?.len();
        match how {
            Fallocate::Punch => world.tree.file(self.ino)?.room.remove(offset..end),
            _ => world.take_room(self.ino, offset..end)?,
        }
        let changed = end.min(len).saturating_sub(offset);
        if how.zeroes() && changed > 0 {
            let zeros = vec![0; usize::try_from(changed).map_err(io::Error::other)?];
            world.tree.write(self.ino, &zeros, offset)?;
        }
        if how.grows() && end > len { world.tree.resize(self.ino, end) } else { Ok(()) }
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok(self.disk.world().tree.file(self.ino)?.seek(offset, false))
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        let mut world = self.disk.world();
        let file = world.tree.file(self.ino)?;
        Ok((offset < file.len()).then(|| file.seek(offset, true).unwrap_or(file.len())))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn writable(&self) -> Option<io::Result<Arc<File>>> {
        None
    }

    /// Returns at once: every change of memory is whole when its call returns.
    fn wait_for_writes(&self) -> io::Result<()> {
        Ok(())
    }

    /// Tells whether a mapping is there: all open files are this process's.
    fn is_written_elsewhere(&self) -> io::Result<bool> {
        Ok(!self.disk.world().tree.file(self.ino)?.mappings.is_empty())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut world = self.disk.world();
        let lose = |tree: &mut Tree| {
            tree.file(self.ino)?.lose();
            Ok(())
        };
        if world.sync(lose)? {
            world.tree.file(self.ino)?.sync();
        }
        Ok(())
    }

    fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.disk.world().tree.set_modified(self.ino, time)
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        self.disk.world().tree.close(self.ino);
    }
}

#[cfg(test)]
mod tests;
