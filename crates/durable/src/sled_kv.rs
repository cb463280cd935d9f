//! The index over sled 0.34.
//!
//! sled is used with care, for reasons measured in facts.md section 5: its `flush` is no fdatasync, so the database
//! file is synced here; values of 128 KB and more are never synced at all, so they are refused; damaged files make it
//! panic as often as answer, so every call is guarded and both become [`KvError::Damaged`]; its own flush thread syncs
//! twice a second for ever (0.3 % of a CPU, and a disk that never sleeps), so a thread here does it, which sleeps while
//! nothing changes.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Batch, Kv, KvError, Pair};

/// What sled may keep of its pages in memory. Small: the kernel's page cache stands behind it, and a daemon has 150 MB
/// in all.
const CACHE_BYTES: u64 = 24 << 20;

/// How long after the first change without a sync the flush thread makes one.
const FLUSH_AFTER: Duration = Duration::from_millis(500);

/// Changes from which on a batch leaves more replaced pages behind than sled frees by the way.
const LARGE_BATCH_CHANGES: usize = 256;

/// How often, and how far apart, opening is tried while somebody else has the index: a database that this process just
/// dropped is let go by sled's threads a little later.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A [`Kv`] in a directory of sled.
pub struct SledKv {
    store: Arc<Store>,
    flusher: Option<JoinHandle<()>>,
}

struct Store {
    db: sled::Db,
    /// The file that `db` writes to, for the sync that sled leaves out.
    file: File,
    flush: Mutex<Flush>,
    changed: Condvar,
}

/// What the flush thread has to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    Idle,
    Due,
    Stop,
}

impl SledKv {
    /// Opens the index at `path`, or makes an empty one.
    ///
    /// # Errors
    /// [`KvError::Damaged`] if the files make no sense; [`KvError::Io`] if they cannot be read or written, or (kind
    /// `ResourceBusy`) if another process has them open.
    pub fn open(path: &Path) -> Result<Self, KvError> {
        let mut tries = LOCK_TRIES;
        let db = loop {
            match open_database(path) {
                Err(KvError::Io(error)) if error.kind() == io::ErrorKind::ResourceBusy && tries > 0 => {
                    tries -= 1;
                    std::thread::sleep(LOCK_PAUSE);
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
        let store = Arc::new(Store { db, file, flush: Mutex::new(Flush::Idle), changed: Condvar::new() });
        let thread = std::thread::Builder::new().name("index flush".to_owned());
        let flusher = thread.spawn({
            let store = Arc::clone(&store);
            move || store.flush_when_due()
        })?;
        Ok(Self { store, flusher: Some(flusher) })
    }
}

impl Drop for SledKv {
    fn drop(&mut self) {
        self.store.tell_flusher(Flush::Stop);
        if let Some(flusher) = self.flusher.take() {
            // It ends after at most one sync; if it panicked, there is nothing left to tell.
            let _ = flusher.join();
        }
    }
}

impl Store {
    fn sync(&self) -> Result<(), KvError> {
        guarded(|| self.db.flush())?;
        Ok(self.file.sync_data()?)
    }

    /// sled frees replaced pages a few at a time, when it is called; a batch is one call however large it is. Loading
    /// 950,000 keys in batches of 3,000 took 2.6 GB without this, and takes 0.1 GB with it.
    fn free_replaced_pages(&self, changes: usize) -> sled::Result<()> {
        if changes > LARGE_BATCH_CHANGES {
            for _ in 0..changes / 4 {
                self.db.contains_key(b"")?;
            }
        }
        Ok(())
    }

    fn tell_flusher(&self, order: Flush) {
        let mut flush = self.flush.lock().unwrap_or_else(PoisonError::into_inner);
        if *flush == Flush::Idle || order == Flush::Stop {
            *flush = order;
            self.changed.notify_all();
        }
    }

    /// The flush thread.
    fn flush_when_due(&self) {
        loop {
            let flush = self.flush.lock().unwrap_or_else(PoisonError::into_inner);
            let idle = self.changed.wait_while(flush, |flush| *flush == Flush::Idle);
            let due = idle.unwrap_or_else(PoisonError::into_inner);
            let waited = self.changed.wait_timeout_while(due, FLUSH_AFTER, |flush| *flush == Flush::Due);
            let (mut flush, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if *flush == Flush::Stop {
                return;
            }
            *flush = Flush::Idle;
            drop(flush);
            if let Err(error) = self.sync() {
                tracing::warn!(%error, "the index could not be synced in the background");
            }
        }
    }
}

impl Kv for SledKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        guarded(|| Ok(self.store.db.get(key)?.map(|value| value.to_vec())))
    }

    fn apply(&self, batch: &Batch) -> Result<(), KvError> {
        let mut changes = sled::Batch::default();
        for (key, value) in &batch.changes {
            match value {
                Some(value) if value.len() > Batch::VALUE_BYTES_MAX => {
                    let why = format!("a value of {} bytes, at most {}", value.len(), Batch::VALUE_BYTES_MAX);
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, why).into());
                }
                Some(value) => changes.insert(key.as_slice(), value.as_slice()),
                None => changes.remove(key.as_slice()),
            }
        }
        guarded(|| {
            self.store.db.apply_batch(changes)?;
            self.store.free_replaced_pages(batch.changes.len())
        })?;
        self.store.tell_flusher(Flush::Due);
        Ok(())
    }

    fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Pair>, KvError> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        guarded(|| {
            let mut found = Vec::new();
            for pair in self.store.db.range::<&[u8], _>((start, Bound::Unbounded)).take(limit) {
                let (key, value) = pair?;
                if !key.starts_with(prefix) {
                    break;
                }
                found.push((key.to_vec(), value.to_vec()));
            }
            Ok(found)
        })
    }

    fn sync(&self) -> Result<(), KvError> {
        self.store.sync()
    }
}

fn open_database(path: &Path) -> Result<sled::Db, KvError> {
    let config = sled::Config::new().path(path).cache_capacity(CACHE_BYTES).flush_every_ms(None);
    guarded(|| config.open()).map_err(|error| match error {
        // sled gives no kind to the failure of its lock.
        KvError::Io(error) if error.to_string().contains("could not acquire lock") => KvError::Io(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!("{} is in use by another process", path.display()),
        )),
        other => other,
    })
}

/// Runs a call of sled; a panic means that it found what it cannot handle.
fn guarded<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, KvError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(error))) => Err(KvError::Io(error)),
        Ok(Err(error)) => Err(KvError::Damaged(error.to_string())),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(KvError::Damaged(text.unwrap_or("sled panicked").to_owned()))
        }
    }
}
