//! A disk that is not used any more after its first failure.
//!
//! After a write or sync has failed nobody knows what the disk has, and bytes that can be read may not be on it. So
//! from then on every call fails. A user that wants to go on starts again from what the disk has, by another guard.
//! The old guard also keeps calls that are still under way from changing what others have opened again.
//!
//! Want of room is no failure of a write, but one of a sync: the bytes that were to be made durable may be lost by
//! it.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use crate::{Batch, Disk, DiskFile, DiskPath, Fallocate, FileStat, Kv, KvError, OpenKv, Pair, SpaceInfo};

/// A [`Disk`] that is given up after the first failure of a write or sync.
pub struct GuardedDisk {
    below: Arc<dyn Disk>,
    guard: Arc<Guard>,
}

struct Guard {
    failed: OnceLock<String>,
    /// Called once, with the reason.
    tell: Box<dyn Fn(&str) + Send + Sync>,
}

impl GuardedDisk {
    /// Guards the disk `below` until it fails; tells `tell` of that at once, and why.
    pub fn new(below: Arc<dyn Disk>, tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { below, guard: Arc::new(Guard { failed: OnceLock::new(), tell: Box::new(tell) }) }
    }

    /// Gives the disk up for another reason than a failure of its own.
    pub fn give_up(&self, why: &str) {
        self.guard.give_up(why);
    }

    /// Opens an index that lies on this disk and writes to it by itself. The disk is given up when the index fails for
    /// another reason than want of room: what the index then shows may not be on the disk either.
    #[must_use]
    pub fn guard_index(&self, open: OpenKv) -> OpenKv {
        let guard = Arc::clone(&self.guard);
        Box::new(move |how| {
            guard.check()?;
            Ok(Arc::new(GuardedKv { below: open(how)?, guard: Arc::clone(&guard) }))
        })
    }

    fn file(&self, file: io::Result<Arc<dyn DiskFile>>) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(GuardedFile { below: file?, guard: Arc::clone(&self.guard) }))
    }
}

impl Guard {
    fn check(&self) -> io::Result<()> {
        match self.failed.get() {
            None => Ok(()),
            Some(why) => Err(io::Error::other(format!("the disk is given up since it failed: {why}"))),
        }
    }

    fn give_up(&self, why: &str) {
        if self.failed.set(why.to_owned()).is_ok() {
            (self.tell)(why);
        }
    }

    fn write(&self, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.check()?;
        write().inspect_err(|error| {
            if !is_refusal(error.kind()) {
                self.give_up(&error.to_string());
            }
        })
    }

    fn sync(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.check()?;
        sync().inspect_err(|error| self.give_up(&error.to_string()))
    }
}

/// Tells whether a write was refused by a disk that is as it was before.
fn is_refusal(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{FileTooLarge, InvalidInput, QuotaExceeded, StorageFull, Unsupported};
    matches!(kind, StorageFull | QuotaExceeded | FileTooLarge | Unsupported | InvalidInput)
}

/// Failed changes of names do not give the disk up: nobody relies on such a change until it is synced.
impl Disk for GuardedDisk {
    fn create(&self, path: &DiskPath) -> io::Result<Arc<dyn DiskFile>> {
        self.guard.check()?;
        self.file(self.below.create(path))
    }

    fn open(&self, path: &DiskPath) -> io::Result<Arc<dyn DiskFile>> {
        self.guard.check()?;
        self.file(self.below.open(path))
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> io::Result<()> {
        self.guard.check()?;
        self.below.rename(from, to)
    }

    fn remove(&self, path: &DiskPath) -> io::Result<()> {
        self.guard.check()?;
        self.below.remove(path)
    }

    fn remove_dir_all(&self, path: &DiskPath) -> io::Result<()> {
        self.guard.check()?;
        self.below.remove_dir_all(path)
    }

    fn create_dir_all(&self, paths: &[&DiskPath]) -> io::Result<()> {
        self.guard.sync(|| self.below.create_dir_all(paths))
    }

    fn list(&self, path: &DiskPath) -> io::Result<Vec<String>> {
        self.guard.check()?;
        self.below.list(path)
    }

    fn sync_dir(&self, path: &DiskPath) -> io::Result<()> {
        self.guard.sync(|| self.below.sync_dir(path))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.guard.sync(|| self.below.sync_all())
    }

    fn space(&self) -> io::Result<SpaceInfo> {
        self.guard.check()?;
        self.below.space()
    }
}

/// An open file of a [`GuardedDisk`].
struct GuardedFile {
    below: Arc<dyn DiskFile>,
    guard: Arc<Guard>,
}

impl DiskFile for GuardedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.guard.check()?;
        self.below.read_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.guard.write(|| self.below.write_all_at(bytes, offset))
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.guard.check()?;
        self.below.stat()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.guard.write(|| self.below.set_len(bytes))
    }

    fn fallocate(&self, how: Fallocate, offset: u64, bytes: u64) -> io::Result<()> {
        self.guard.write(|| self.below.fallocate(how, offset, bytes))
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.guard.check()?;
        self.below.seek_data(offset)
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.guard.check()?;
        self.below.seek_hole(offset)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.below.descriptor()
    }

    fn writable(&self) -> Option<io::Result<Arc<File>>> {
        let opened = self.below.writable()?;
        Some(self.guard.check().and(opened))
    }

    fn wait_for_writes(&self) -> io::Result<()> {
        self.guard.check()?;
        self.below.wait_for_writes()
    }

    fn is_written_elsewhere(&self) -> io::Result<bool> {
        self.guard.check()?;
        self.below.is_written_elsewhere()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.guard.sync(|| self.below.sync_data())
    }

    fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.guard.write(|| self.below.set_modified(time))
    }
}

/// An index on a [`GuardedDisk`].
struct GuardedKv {
    below: Arc<dyn Kv>,
    guard: Arc<Guard>,
}

impl GuardedKv {
    fn call<T>(&self, call: impl FnOnce(&dyn Kv) -> Result<T, KvError>) -> Result<T, KvError> {
        self.guard.check()?;
        call(&*self.below).inspect_err(|error| match error {
            KvError::Io(error) if is_refusal(error.kind()) => {}
            KvError::Io(_) | KvError::Damaged(_) => self.guard.give_up(&error.to_string()),
        })
    }
}

impl Kv for GuardedKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        self.call(|kv| kv.get(key))
    }

    fn check_writable(&self) -> Result<(), KvError> {
        self.call(Kv::check_writable)
    }

    fn apply(&self, batch: &Batch) -> Result<(), KvError> {
        self.call(|kv| kv.apply(batch))
    }

    fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Pair>, KvError> {
        self.call(|kv| kv.scan(prefix, after, limit))
    }

    fn sync(&self) -> Result<(), KvError> {
        self.call(Kv::sync)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::{KvOpen, MemoryDisk};

    fn guarded(disk: &MemoryDisk) -> (GuardedDisk, Arc<AtomicU64>) {
        let told = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&told);
        let tell = move |why: &str| {
            assert!(why.contains("injected"), "{why}");
            count.fetch_add(1, Ordering::Relaxed);
        };
        (GuardedDisk::new(Arc::new(disk.clone()), tell), told)
    }

    #[test]
    fn nothing_is_read_or_written_after_the_first_failure_and_it_is_told_once() {
        for sync in [false, true] {
            let disk = MemoryDisk::new();
            let (guarded, told) = guarded(&disk);
            let file = guarded.create("a").unwrap();
            file.write_all_at(b"one", 0).unwrap();
            if sync {
                disk.fail_sync(disk.syncs());
                assert!(file.sync_data().is_err());
            } else {
                disk.fail_write(disk.writes());
                assert!(file.write_all_at(b"two", 0).is_err());
            }
            assert!(
                file.sync_data().is_err() && file.read_at(&mut [0], 0).is_err() && file.write_all_at(b"", 0).is_err()
            );
            assert!(guarded.open("a").is_err() && guarded.remove("a").is_err() && guarded.sync_dir("").is_err());
            assert_eq!(told.load(Ordering::Relaxed), 1);
            assert!(disk.open("a").is_ok(), "by another way");
        }
    }

    #[test]
    fn what_is_refused_for_want_of_room_or_not_found_is_no_failure() {
        let disk = MemoryDisk::new();
        let (guarded, told) = guarded(&disk);
        let file = guarded.create("a").unwrap();
        disk.set_full(true);
        assert_eq!(file.write_all_at(b"one", 0).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(guarded.open("b").is_err() && guarded.remove("b").is_err());
        disk.set_full(false);
        file.write_all_at(b"one", 0).unwrap();
        file.sync_data().unwrap();
        assert_eq!(told.load(Ordering::Relaxed), 0);
    }

    /// An index that answers every read with the error it is made of.
    struct FailingKv(fn() -> KvError);

    impl Kv for FailingKv {
        fn get(&self, _: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
            Err(self.0())
        }

        fn check_writable(&self) -> Result<(), KvError> {
            Ok(())
        }

        fn apply(&self, _: &Batch) -> Result<(), KvError> {
            Ok(())
        }

        fn scan(&self, _: &[u8], _: Option<&[u8]>, _: usize) -> Result<Vec<Pair>, KvError> {
            Err(self.0())
        }

        fn sync(&self) -> Result<(), KvError> {
            Ok(())
        }
    }

    fn give_up_with(error: fn() -> KvError) -> (GuardedDisk, Arc<dyn Kv>, u64) {
        let (guarded, told) = guarded(&MemoryDisk::new());
        let index = guarded.guard_index(Box::new(move |_| Ok(Arc::new(FailingKv(error)))))(KvOpen::Existing).unwrap();
        assert!(index.sync().is_ok() && index.get(b"a").is_err());
        let told = told.load(Ordering::Relaxed);
        (guarded, index, told)
    }

    #[test]
    fn a_disk_whose_index_fails_is_given_up() {
        for error in [|| io::Error::other("injected").into(), || KvError::Damaged("injected".to_owned())] {
            let (disk, index, told) = give_up_with(error);
            assert_eq!(told, 1);
            assert!(index.sync().is_err() && disk.create("a").is_err());
        }
    }

    #[test]
    fn an_index_without_room_is_no_failure() {
        let (disk, index, told) = give_up_with(|| io::Error::from(io::ErrorKind::StorageFull).into());
        assert_eq!(told, 0);
        assert!(index.sync().is_ok() && disk.create("a").is_ok());
    }
}
