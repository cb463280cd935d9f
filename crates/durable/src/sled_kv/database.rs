//! A database of sled: opened, called with care, made durable.

use std::cell::Cell;
use std::fs::{self, File};
use std::future::Future;
use std::io;
use std::num::NonZeroU64;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::pin;
use std::sync::Once;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use rustix::thread::set_current_timer_slack;

use crate::KvError;

/// Bytes of its pages that sled may keep in memory, counted as they are on disk; in memory they take some 2.5 times
/// that. The number is small: the kernel's page cache stands behind it, and a daemon has 150 MB in all. With twice
/// that a server takes 58 MB for 100,000 names in place of 35, and is no quicker.
const CACHE_BYTES: u64 = 4 << 20;

/// Number of tries to open, and the pause between them, while somebody else has the index: a database that this
/// process just dropped is let go by sled's threads a little later.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Delay that the kernel may add to a wait of the threads in sled's pool. There are seven. Each wakes every second to
/// see whether it should end, and never does; work wakes them at once.
const POOL_TIMER_SLACK: Duration = Duration::from_secs(60);

/// Room that a database must find to be written to: some of its segments of 512 KB.
const ROOM_BYTES: usize = 4 << 20;

pub(super) struct Database {
    db: sled::Db,
    /// The file that `db` writes to, for the sync that sled leaves out.
    file: File,
}

impl Database {
    /// Opens the database at `path`, or makes an empty one.
    pub(super) fn open(path: &Path) -> Result<Self, KvError> {
        let mut tries = LOCK_TRIES;
        let db = loop {
            match open_once(path) {
                Err(KvError::Io(error)) if error.kind() == io::ErrorKind::ResourceBusy && tries > 0 => {
                    tries -= 1;
                    thread::sleep(LOCK_PAUSE);
                }
                other => break other?,
            }
        };
        let file = File::open(path.join("db"))?;
        file.sync_all()?;
        File::open(path)?.sync_all()?;
        if let Some(parent) = path.parent() {
            File::open(parent)?.sync_all()?;
        }
        Ok(Self { db, file })
    }

    /// Calls sled.
    pub(super) fn call<T>(&self, call: impl FnOnce(&sled::Db) -> sled::Result<T>) -> Result<T, KvError> {
        guarded(|| call(&self.db))
    }

    /// Makes everything durable that the database has taken.
    pub(super) fn sync(&self) -> Result<(), KvError> {
        self.call(|db| db.flush())?;
        Ok(self.file.sync_data()?)
    }
}

/// Checks whether the file system of `path` has room, as far as it says.
///
/// # Errors
/// `StorageFull` if it has not.
pub(super) fn check_room(path: &Path) -> io::Result<()> {
    let space = rustix::fs::statvfs(path)?;
    let enough = space.f_bavail.saturating_mul(space.f_frsize) >= ROOM_BYTES as u64;
    if enough { Ok(()) } else { Err(rustix::io::Errno::NOSPC.into()) }
}

/// Tries whether something can be written beside `path`, by writing it.
///
/// # Errors
/// Those of the write.
pub(super) fn try_room(path: &Path) -> io::Result<()> {
    let probe = path.with_extension("probe");
    let written = fs::write(&probe, vec![0; ROOM_BYTES]);
    fs::remove_file(&probe).and(written)
}

fn open_once(path: &Path) -> Result<sled::Db, KvError> {
    let config = sled::Config::new().path(path).cache_capacity(CACHE_BYTES).flush_every_ms(None);
    with_timer_slack(POOL_TIMER_SLACK, || guarded(|| start_pool(config.open()?))).map_err(|error| match error {
        // sled gives no kind to the failure of its lock.
        KvError::Io(error) if error.to_string().contains("could not acquire lock") => KvError::Io(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!("{} is in use by another process", path.display()),
        )),
        other => other,
    })
}

/// Has sled start the threads of its pool, which it does for the first work.
fn start_pool(db: sled::Db) -> sled::Result<sled::Db> {
    match pin!(db.flush_async()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Err(error)) => return Err(error),
        Poll::Ready(Ok(_)) | Poll::Pending => {}
    }
    Ok(db)
}

/// Calls `call` while the kernel may end waits of this thread, and of those that it starts, so much later.
fn with_timer_slack<T>(slack: Duration, call: impl FnOnce() -> T) -> T {
    let nanos = u64::try_from(slack.as_nanos()).unwrap_or(u64::MAX);
    // Where the kernel refuses this, threads are as punctual as usual.
    set_current_timer_slack(NonZeroU64::new(nanos)).ok();
    let answer = call();
    set_current_timer_slack(None).ok();
    answer
}

thread_local! {
    /// Whether this thread is in a call of sled.
    static IN_SLED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call of sled; a panic means that it found what it cannot handle.
fn guarded<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, KvError> {
    quiet_panics_in_sled();
    let outer = IN_SLED.replace(true);
    let answer = catch_unwind(AssertUnwindSafe(call));
    IN_SLED.set(outer);
    match answer {
        Ok(Ok(value)) => Ok(value),
        // For an error that it has kept, sled gives the kind and a text for programmers.
        Ok(Err(sled::Error::Io(error))) if error.raw_os_error().is_none() && error.kind() != io::ErrorKind::Other => {
            Err(KvError::Io(error.kind().into()))
        }
        Ok(Err(sled::Error::Io(error))) => Err(KvError::Io(error)),
        Ok(Err(error)) => Err(KvError::Damaged(error.to_string())),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(KvError::Damaged(text.unwrap_or("sled panicked").to_owned()))
        }
    }
}

/// Keeps panics in sled out of the error output. Such a panic becomes an error, which says all that its users can act
/// on; lines about threads and backtraces beside it look like a crash. sled's own threads have names of theirs.
fn quiet_panics_in_sled() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let is_sleds = thread::current().name().is_some_and(|name| name.starts_with("sled-"));
            if is_sleds || IN_SLED.get() {
                tracing::debug!(%panic, "sled gave up");
            } else {
                usual(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rustix::thread::current_timer_slack;

    use super::*;

    #[test]
    fn a_thread_that_starts_with_a_slack_keeps_it() {
        let slack = || current_timer_slack().unwrap();
        let before = slack();
        // The kernel tells the slack as an int.
        let started = with_timer_slack(Duration::from_secs(2), || thread::spawn(slack));
        assert_eq!(started.join().unwrap(), 2_000_000_000);
        assert_eq!(slack(), before, "this thread is as punctual as it was");
    }

    #[test]
    fn the_pool_has_its_threads_when_a_database_is_open() {
        let directory = tempfile::tempdir().unwrap();
        let _database = Database::open(&directory.path().join("index")).unwrap();
        // A thread takes its name itself, a little after it has started.
        let deadline = Instant::now() + Duration::from_secs(10);
        while threads_of_the_pool() < 7 {
            assert!(Instant::now() < deadline, "{} threads", threads_of_the_pool());
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn threads_of_the_pool() -> usize {
        let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("comm"));
        // Threads of other tests may end meanwhile.
        tasks.filter_map(|comm| fs::read_to_string(comm).ok()).filter(|name| name.starts_with("sled-io-")).count()
    }
}
