//! Acts of the kernel on a file of a memory disk besides whole calls: writes whose bytes come after their times, and
//! stores through mappings.

use std::io;
use std::ops::Range;

use super::{MemoryDisk, MemoryFile};
use crate::DiskPath;

impl MemoryDisk {
    /// Makes a file like [`crate::Disk::create`], for callers that do to files what the kernel does.
    ///
    /// # Errors
    /// Those of [`crate::Disk::create`].
    pub fn create_file(&self, path: &DiskPath) -> io::Result<MemoryFile> {
        let ino = {
            let mut world = self.world();
            world.faults.alive()?;
            world.tree.create(path)?
        };
        Ok(MemoryFile { disk: self.clone(), ino })
    }

    /// Opens a file like [`crate::Disk::open`], for callers that do to files what the kernel does.
    ///
    /// # Errors
    /// Those of [`crate::Disk::open`].
    pub fn open_file(&self, path: &DiskPath) -> io::Result<MemoryFile> {
        let mut world = self.world();
        world.opens += 1;
        let ino = world.tree.open(path)?;
        Ok(MemoryFile { disk: self.clone(), ino })
    }
}

impl MemoryFile {
    /// Returns a name of the file on its disk, however often it is opened, and by whatever path.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.ino.0
    }

    /// Moves the times, as the kernel does when a write begins.
    ///
    /// # Errors
    /// None that a test does not ask for.
    pub fn begin_write(&self) -> io::Result<()> {
        self.disk.world().tree.touch(self.ino)
    }

    /// Writes bytes of a write that has begun; moves no time.
    ///
    /// # Errors
    /// If the disk is full.
    pub fn go_on_writing(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.take_room(self.ino, offset..offset.saturating_add(bytes.len() as u64))?;
        world.tree.write_begun(self.ino, bytes, offset)
    }

    /// Maps the file so that it can be written. A mapping needs no open file once it is there.
    ///
    /// # Errors
    /// None that a test does not ask for.
    pub fn map(&self, mapping: u64) -> io::Result<()> {
        self.disk.world().tree.file(self.ino)?.mappings.insert(mapping);
        Ok(())
    }

    /// Ends a mapping.
    ///
    /// # Errors
    /// None that a test does not ask for.
    pub fn unmap(&self, mapping: u64) -> io::Result<()> {
        self.disk.world().tree.file(self.ino)?.mappings.remove(&mapping);
        Ok(())
    }

    /// Makes pages writable through a mapping. Moves the times if one of them was not: by such a fault the kernel
    /// hears of a store.
    ///
    /// # Errors
    /// None that a test does not ask for.
    pub fn fault(&self, mapping: u64, range: Range<u64>) -> io::Result<()> {
        self.disk.world().tree.fault(self.ino, mapping, range)
    }

    /// Stores through a mapping. Bytes behind the end go nowhere.
    ///
    /// # Errors
    /// If the disk is full.
    pub fn store(&self, mapping: u64, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        let inside = world.tree.file(self.ino)?.len().saturating_sub(offset).min(bytes.len() as u64);
        let range = offset..offset + inside;
        world.tree.fault(self.ino, mapping, range.clone())?;
        world.take_room(self.ino, range)?;
        let inside = usize::try_from(inside).map_err(io::Error::other)?;
        world.tree.write_begun(self.ino, &bytes[..inside], offset)
    }
}
