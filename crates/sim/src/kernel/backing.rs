//! The containers as the kernel has them: what programs write into them happens at any moment, also inside a step of
//! the daemon.
//!
//! The daemon's steps are synchronous between awaits, and what it does to a container in one of them are single calls:
//! a look, a read, a time that is set. [`Watched`] stands between the daemon and its disk, and before and after each
//! such call lets writes of programs go on that have begun. As on Linux, a write moves the times when it begins and
//! its bytes come later, in parts; meanwhile it holds the lock of the inode, for which `set_modified`, `set_len`,
//! `wait_for_writes` and writes of the daemon wait, but no look and no read. A store through a mapping is a fault, if
//! its page is clean, and then the bytes; it holds no lock.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use mafs_durable::{Disk, DiskFile, DiskPath, Fallocate, FileStat, MemoryDisk, MemoryFile, SpaceInfo};
use mafs_proto::Random;

/// A file of the cache that the kernel holds open.
pub(super) type Backing = Arc<MemoryFile>;

/// Where containers lie on the disk of a cache.
const CONTAINERS: &str = "containers/";

/// Longer writes come in two parts.
const PAGE_BYTES: usize = 4096;

/// Finds a container on the disk that the daemon has left. One without a name is not there: nobody else has it.
pub(super) fn left_on(disk: &MemoryDisk, container: Backing) -> Backing {
    let list = |path: &str| disk.list(path).unwrap_or_default();
    let directories = list("containers").into_iter().map(|name| format!("{CONTAINERS}{name}"));
    let paths = directories.flat_map(|path| list(&path).into_iter().map(move |name| format!("{path}/{name}")));
    let mut files = paths.filter_map(|path| disk.open_file(&path).ok());
    files.find(|file| file.identity() == container.identity()).map_or(container, Arc::new)
}

/// Names a change that a program has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ChangeId(u64);

/// A program's change of a container.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// write(2); without a place at the end of the file.
    Write { at: Option<u64>, bytes: Vec<u8> },
    /// A store through a mapping.
    Store { mapping: u64, at: u64, bytes: Vec<u8> },
}

/// All containers of one cache, and the changes of them that have begun.
#[derive(Clone)]
pub(super) struct Backings {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    random: Random,
    /// Containers that the daemon has open, by the address of the daemon's file.
    opened: BTreeMap<usize, Backing>,
    begun: Vec<Begun>,
    next_id: u64,
}

struct Begun {
    id: ChangeId,
    file: Backing,
    change: Change,
    stage: Stage,
}

/// How far a change has come.
enum Stage {
    Waiting,
    /// The times have moved. A write knows its place.
    Moved(u64),
    /// So many bytes of a write are there as well.
    Partly(u64, usize),
    Ended(io::Result<u64>),
}

impl Backings {
    pub(super) fn new(seed: u64) -> Self {
        let shared = Shared { random: Random::new(seed), opened: BTreeMap::new(), begun: Vec::new(), next_id: 0 };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// A disk for the daemon, whose containers programs change meanwhile.
    pub(super) fn watch(&self, disk: MemoryDisk) -> Arc<dyn Disk> {
        Arc::new(WatchedDisk { disk, backings: self.clone() })
    }

    /// Returns the container that the daemon has open, for the kernel to take.
    pub(super) fn take(&self, container: &Arc<dyn DiskFile>) -> Option<Backing> {
        self.shared().opened.get(&address(container.as_ref())).cloned()
    }

    /// Begins a program's change of a file: from now on it may happen at any moment.
    pub(super) fn begin(&self, file: &Backing, change: Change) -> ChangeId {
        let mut shared = self.shared();
        let id = ChangeId(shared.next_id);
        shared.next_id += 1;
        shared.begun.push(Begun { id, file: Arc::clone(file), change, stage: Stage::Waiting });
        id
    }

    /// Brings a change to its end. Returns where a write has ended.
    pub(super) fn end(&self, id: ChangeId) -> io::Result<u64> {
        let mut shared = self.shared();
        let Some(at) = shared.begun.iter().position(|begun| begun.id == id) else {
            return Err(io::Error::other("no such change"));
        };
        let mut begun = shared.begun.swap_remove(at);
        begun.complete();
        match begun.stage {
            Stage::Ended(result) => result,
            Stage::Waiting | Stage::Moved(_) | Stage::Partly(..) => Err(io::Error::other("a change without an end")),
        }
    }

    /// Brings all changes to their ends, of which programs are told later.
    pub(super) fn end_all(&self) {
        self.shared().begun.iter_mut().for_each(Begun::complete);
    }

    /// Lets changes of a file go on before or after a call of the daemon. One that is `exclusive` waits for writes that
    /// have begun.
    fn interfere(&self, file: &MemoryFile, exclusive: bool) {
        let mut shared = self.shared();
        let Shared { random, begun, .. } = &mut *shared;
        for begun in begun.iter_mut().filter(|begun| begun.file.identity() == file.identity()) {
            while !begun.has_ended() && random.once_in(3) {
                begun.go_on(random.coin());
            }
            if exclusive && begun.holds_lock() {
                begun.complete();
            }
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Begun {
    fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended(_))
    }

    fn holds_lock(&self) -> bool {
        matches!(self.change, Change::Write { .. }) && matches!(self.stage, Stage::Moved(_) | Stage::Partly(..))
    }

    fn complete(&mut self) {
        while !self.has_ended() {
            self.go_on(false);
        }
    }

    /// Does the next part of a change; of a long write only a part of the bytes if it is to be `partly`.
    fn go_on(&mut self, partly: bool) {
        let next = match &self.change {
            Change::Write { at, bytes } => write_on(&self.file, *at, bytes, &self.stage, partly),
            Change::Store { mapping, at, bytes } => store_on(&self.file, *mapping, *at, bytes, &self.stage),
        };
        self.stage = next.unwrap_or_else(|error| Stage::Ended(Err(error)));
    }
}

fn write_on(file: &MemoryFile, at: Option<u64>, bytes: &[u8], stage: &Stage, partly: bool) -> io::Result<Stage> {
    let (start, done) = match stage {
        Stage::Waiting => {
            file.begin_write()?;
            return Ok(Stage::Moved(match at {
                Some(at) => at,
                None => file.len()?,
            }));
        }
        Stage::Moved(start) => (*start, 0),
        Stage::Partly(start, done) => (*start, *done),
        Stage::Ended(_) => return Err(io::Error::other("a write that has ended goes on")),
    };
    let rest = &bytes[done..];
    if partly && rest.len() > PAGE_BYTES {
        file.go_on_writing(&rest[..PAGE_BYTES], start + done as u64)?;
        return Ok(Stage::Partly(start, done + PAGE_BYTES));
    }
    file.go_on_writing(rest, start + done as u64)?;
    Ok(Stage::Ended(Ok(start + bytes.len() as u64)))
}

fn store_on(file: &MemoryFile, mapping: u64, at: u64, bytes: &[u8], stage: &Stage) -> io::Result<Stage> {
    if let Stage::Waiting = stage {
        file.fault(mapping, at..at + bytes.len() as u64)?;
        return Ok(Stage::Moved(at));
    }
    // Another fault, if the page has become clean meanwhile.
    file.store(mapping, bytes, at)?;
    Ok(Stage::Ended(Ok(at + bytes.len() as u64)))
}

fn address(file: &dyn DiskFile) -> usize {
    std::ptr::from_ref(file).cast::<()>() as usize
}

/// A disk whose containers are [`Watched`].
struct WatchedDisk {
    disk: MemoryDisk,
    backings: Backings,
}

impl WatchedDisk {
    fn watched(&self, file: MemoryFile) -> Arc<dyn DiskFile> {
        let file = Arc::new(file);
        let watched: Arc<dyn DiskFile> = Arc::new(Watched { file: Arc::clone(&file), backings: self.backings.clone() });
        self.backings.shared().opened.insert(address(watched.as_ref()), file);
        watched
    }
}

impl Disk for WatchedDisk {
    fn create(&self, path: &DiskPath) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.create_file(path)?;
        Ok(if path.starts_with(CONTAINERS) { self.watched(file) } else { Arc::new(file) })
    }

    fn open(&self, path: &DiskPath) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open_file(path)?;
        Ok(if path.starts_with(CONTAINERS) { self.watched(file) } else { Arc::new(file) })
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &DiskPath) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn remove_dir_all(&self, path: &DiskPath) -> io::Result<()> {
        self.disk.remove_dir_all(path)
    }

    fn create_dir_all(&self, paths: &[&DiskPath]) -> io::Result<()> {
        self.disk.create_dir_all(paths)
    }

    fn list(&self, path: &DiskPath) -> io::Result<Vec<String>> {
        self.disk.list(path)
    }

    fn sync_dir(&self, path: &DiskPath) -> io::Result<()> {
        self.disk.sync_dir(path)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.disk.sync_all()
    }

    fn space(&self) -> io::Result<SpaceInfo> {
        self.disk.space()
    }
}

/// A container as the daemon has it open.
struct Watched {
    file: Backing,
    backings: Backings,
}

impl Watched {
    /// Makes a call of the daemon, with what programs do just before and just after it.
    fn among_changes<T>(&self, exclusive: bool, call: impl FnOnce(&MemoryFile) -> io::Result<T>) -> io::Result<T> {
        self.backings.interfere(&self.file, exclusive);
        let result = call(&self.file);
        self.backings.interfere(&self.file, false);
        result
    }
}

impl DiskFile for Watched {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.among_changes(false, |file| file.read_at(buffer, offset))
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.among_changes(true, |file| file.write_all_at(bytes, offset))
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.among_changes(false, MemoryFile::stat)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.among_changes(true, |file| file.set_len(bytes))
    }

    fn fallocate(&self, how: Fallocate, offset: u64, bytes: u64) -> io::Result<()> {
        self.among_changes(true, |file| file.fallocate(how, offset, bytes))
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.among_changes(false, |file| file.seek_data(offset))
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.among_changes(false, |file| file.seek_hole(offset))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn writable(&self) -> Option<io::Result<Arc<File>>> {
        None
    }

    fn wait_for_writes(&self) -> io::Result<()> {
        self.among_changes(true, MemoryFile::wait_for_writes)
    }

    fn is_written_elsewhere(&self) -> io::Result<bool> {
        self.among_changes(false, MemoryFile::is_written_elsewhere)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.among_changes(false, MemoryFile::sync_data)
    }

    fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.among_changes(true, |file| file.set_modified(time))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.backings.shared().opened.remove(&address(self));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container, as the kernel and as the daemon has it.
    fn container(seed: u64) -> (Backings, Backing, Arc<dyn DiskFile>) {
        let (disk, backings) = (MemoryDisk::new(), Backings::new(seed));
        disk.create_dir_all(&["containers"]).expect("a directory");
        let daemons = backings.watch(disk).create("containers/c").expect("a container");
        let kernels = backings.take(&daemons).expect("the same one");
        (backings, kernels, daemons)
    }

    #[test]
    fn a_write_happens_between_any_two_looks_of_the_daemon() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let (backings, file, daemons) = container(seed);
            // A first look: only the change behind a look is sure to move the time.
            let before = daemons.stat().expect("a look").changed;
            let write = backings.begin(&file, Change::Write { at: None, bytes: vec![7; 10_000] });
            let looks = [0; 2].map(|_| daemons.stat().expect("a look"));
            assert_eq!(backings.end(write).expect("a write"), 10_000);
            assert_eq!(daemons.len().expect("a size"), 10_000);
            let moved = looks.map(|look| look.changed != before);
            seen.insert((looks.map(|look| look.bytes), moved));
        }
        for expected in [([0, 0], [false, true]), ([0, 4096], [true, true]), ([0, 10_000], [false, true])] {
            assert!(seen.contains(&expected), "{seen:?}");
        }
    }

    #[test]
    fn no_time_is_set_in_the_middle_of_a_write() {
        for seed in 0..200 {
            let (backings, file, daemons) = container(seed);
            let write = backings.begin(&file, Change::Write { at: Some(0), bytes: vec![7; 10_000] });
            daemons.set_modified(SystemTime::UNIX_EPOCH).expect("a time");
            let set = file.stat().expect("a look");
            backings.end(write).expect("a write");
            let is_still_set = file.stat().expect("a look").modified == SystemTime::UNIX_EPOCH;
            assert_eq!(is_still_set, set.bytes == 10_000 && set.modified == SystemTime::UNIX_EPOCH, "{set:?}");
        }
    }
}
