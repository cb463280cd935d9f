//! The index over sled 0.34.
//!
//! sled is used with care, for reasons measured in facts.md section 5: its `flush` is no fdatasync, so the database
//! file is synced here; values of 128 KB and more are never synced at all, so they are refused; damaged files make it
//! panic as often as answer, so every call is guarded and both become [`KvError::Damaged`]; its own flush thread syncs
//! twice a second for ever (0.3 % of a CPU, and a disk that never sleeps), so a thread here does it, which sleeps while
//! nothing changes. Changes are gathered ([`pending`]) and made by that thread alone ([`writer`]); any may read.

mod pending;
mod writer;

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::Duration;

use pending::Pending;
use writer::{Work, Writer};

use crate::{Batch, Kv, KvError, Pair};

/// What sled may keep of its pages in memory, as they are on disk; in memory they take some 2.5 times that. Small: the
/// kernel's page cache stands behind it, and a daemon has 150 MB in all.
const CACHE_BYTES: u64 = 8 << 20;

/// How often, and how far apart, opening is tried while somebody else has the index: a database that this process just
/// dropped is let go by sled's threads a little later.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A [`Kv`] in a directory of sled.
pub struct SledKv {
    store: Arc<Store>,
    writer: Writer,
}

struct Store {
    db: sled::Db,
    pending: RwLock<Pending>,
    /// The file that `db` writes to, for the sync that sled leaves out.
    file: File,
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
        let store = Arc::new(Store { db, pending: RwLock::default(), file });
        Ok(Self { writer: Writer::start(Arc::clone(&store))?, store })
    }
}

impl Work for Arc<Store> {
    fn move_closed(&self) -> Result<(), KvError> {
        loop {
            let (mut batch, mut changes) = (sled::Batch::default(), 0);
            for (key, value) in self.pending().next().into_iter().flatten() {
                changes += 1;
                match value {
                    Some(value) => batch.insert(key.as_slice(), value.as_slice()),
                    None => batch.remove(key.as_slice()),
                }
            }
            if changes == 0 {
                return Ok(());
            }
            guarded(|| {
                self.db.apply_batch(batch)?;
                self.free_replaced_pages(changes)
            })?;
            let left = self.pending_mut().left();
            drop(left);
        }
    }

    fn sync(&self) -> Result<(), KvError> {
        self.pending_mut().close();
        self.move_closed()?;
        guarded(|| self.db.flush())?;
        Ok(self.file.sync_data()?)
    }
}

impl Store {
    /// sled frees replaced pages a few at a time, when it is called; a batch is one call however large it is. Loading
    /// 950,000 keys in batches of 3,000 took 2.6 GB without this, and takes 0.1 GB with it.
    fn free_replaced_pages(&self, changes: usize) -> sled::Result<()> {
        for _ in 0..changes / 4 {
            self.db.contains_key(b"")?;
        }
        Ok(())
    }

    fn pending(&self) -> RwLockReadGuard<'_, Pending> {
        self.pending.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending_mut(&self) -> RwLockWriteGuard<'_, Pending> {
        self.pending.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kv for SledKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        if let Some(changed) = self.store.pending().get(key) {
            return Ok(changed.clone());
        }
        guarded(|| Ok(self.store.db.get(key)?.map(|value| value.to_vec())))
    }

    fn apply(&self, batch: &Batch) -> Result<(), KvError> {
        let sizes = batch.changes.iter().filter_map(|(_, value)| Some(value.as_ref()?.len()));
        if let Some(size) = sizes.max().filter(|size| *size > Batch::VALUE_BYTES_MAX) {
            let why = format!("a value of {size} bytes, at most {}", Batch::VALUE_BYTES_MAX);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why).into());
        }
        if self.store.pending().is_full() {
            self.writer.move_closed()?;
        }
        let tell = self.store.pending_mut().gather(batch);
        if tell {
            self.writer.tell();
        }
        Ok(())
    }

    fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Pair>, KvError> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let pending = self.store.pending();
        guarded(|| {
            let stored = self.store.db.range::<&[u8], _>((start, Bound::Unbounded));
            let stored = stored.map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())));
            pending.merge(prefix, start, limit, stored)
        })
    }

    fn sync(&self) -> Result<(), KvError> {
        self.writer.sync()
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
        Ok(Err(sled::Error::Io(error))) => Err(KvError::Io(error)),
        Ok(Err(error)) => Err(KvError::Damaged(error.to_string())),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(KvError::Damaged(text.unwrap_or("sled panicked").to_owned()))
        }
    }
}

/// A panic in sled becomes an error, which says all that its users can act on; lines about threads and backtraces
/// beside it look like a crash. sled's own threads have names of theirs.
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
