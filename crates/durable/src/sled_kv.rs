//! The index over sled 0.34.
//!
//! sled is used with care, for reasons measured in facts.md section 5: its `flush` is no fdatasync, so the database
//! file is synced here; values of 128 KB and more are never synced at all, so they are refused; damaged files make it
//! panic as often as answer, so every call is guarded and both become [`KvError::Damaged`]; its own flush thread syncs
//! twice a second for ever (0.3 % of a CPU, and a disk that never sleeps), so a thread here does it, which sleeps while
//! nothing changes. Changes are gathered ([`pending`]) and made by that thread alone ([`writer`]); any may read.
//!
//! After a write of sled has failed it refuses all others for good, and some reads, which also tidy up. So nothing is
//! moved into it while the disk is nearly full. If a write fails all the same, it is opened anew as soon as there is
//! room, and given what it has not made durable once more.

mod database;
mod pending;
mod writer;

use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use database::{Database, check_room, try_room};
use pending::Pending;
use writer::{Work, Writer};

use crate::{Batch, Kv, KvError, Pair};

/// A [`Kv`] in a directory of sled.
pub struct SledKv {
    store: Arc<Store>,
    writer: Writer,
}

struct Store {
    path: PathBuf,
    /// The database; `None` if it could not be opened anew.
    database: RwLock<Option<Database>>,
    /// Whether the database refuses everything since a write failed.
    failed: AtomicBool,
    pending: RwLock<Pending>,
}

impl SledKv {
    /// Opens the index at `path`, or makes an empty one.
    ///
    /// # Errors
    /// [`KvError::Damaged`] if the files make no sense; [`KvError::Io`] if they cannot be read or written, or (kind
    /// `ResourceBusy`) if another process has them open.
    pub fn open(path: &Path) -> Result<Self, KvError> {
        let store = Arc::new(Store {
            path: path.to_path_buf(),
            database: RwLock::new(Some(Database::open(path)?)),
            failed: AtomicBool::new(false),
            pending: RwLock::default(),
        });
        Ok(Self { writer: Writer::start(Arc::clone(&store))?, store })
    }
}

impl Work for Arc<Store> {
    fn move_closed(&self) -> Result<(), KvError> {
        self.recover()?;
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
            self.write(|database| {
                database.call(|db| {
                    db.apply_batch(batch)?;
                    free_replaced_pages(db, changes)
                })
            })?;
            let too_many = self.pending_mut().moved();
            if too_many {
                self.make_durable()?;
            }
        }
    }

    fn sync(&self) -> Result<(), KvError> {
        self.pending_mut().close();
        self.move_closed()?;
        self.make_durable()
    }
}

impl Store {
    /// Opens the database anew if it refuses to be written to, and there is room.
    fn recover(&self) -> Result<(), KvError> {
        if !self.failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        try_room(&self.path)?;
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // The database locks its files, so it has to go first.
        *database = None;
        *database = Some(Database::open(&self.path)?);
        self.pending_mut().repeat();
        self.failed.store(false, Ordering::Relaxed);
        drop(database);
        tracing::info!(path = %self.path.display(), "the index can be written again");
        Ok(())
    }

    fn make_durable(&self) -> Result<(), KvError> {
        if self.pending().is_durable() {
            return Ok(());
        }
        self.write(Database::sync)?;
        let durable = self.pending_mut().durable();
        drop(durable);
        Ok(())
    }

    fn write(&self, write: impl FnOnce(&Database) -> Result<(), KvError>) -> Result<(), KvError> {
        check_room(&self.path)?;
        let written = self.with_database(write);
        if written.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        written
    }

    fn with_database<T>(&self, call: impl FnOnce(&Database) -> Result<T, KvError>) -> Result<T, KvError> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let closed = || KvError::Io(io::Error::other("it could not be opened again after a write had failed"));
        call(database.as_ref().ok_or_else(closed)?)
    }

    fn pending(&self) -> RwLockReadGuard<'_, Pending> {
        self.pending.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending_mut(&self) -> RwLockWriteGuard<'_, Pending> {
        self.pending.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has sled free replaced pages. sled frees a few at a time, when it is called; a batch is one call however large it
/// is. Loading 950,000 keys in batches of 3,000 took 2.6 GB without this, and takes 0.1 GB with it.
fn free_replaced_pages(db: &sled::Db, changes: usize) -> sled::Result<()> {
    for _ in 0..changes / 4 {
        db.contains_key(b"")?;
    }
    Ok(())
}

impl SledKv {
    /// Reads, once more if the database had to be opened anew first.
    fn read<T>(&self, read: impl Fn(&Database) -> Result<T, KvError>) -> Result<T, KvError> {
        match self.store.with_database(&read) {
            Err(KvError::Io(error)) => {
                self.store.failed.store(true, Ordering::Relaxed);
                self.writer.move_closed().map_err(|_| error)?;
                self.store.with_database(read)
            }
            other => other,
        }
    }
}

impl Kv for SledKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        // The database is taken first: while it is held nothing can go back from it to what is pending.
        self.read(|database| {
            if let Some(changed) = self.store.pending().get(key) {
                return Ok(changed.clone());
            }
            database.call(|db| Ok(db.get(key)?.map(|value| value.to_vec())))
        })
    }

    fn check_writable(&self) -> Result<(), KvError> {
        if self.store.pending().is_full() { self.writer.move_closed() } else { Ok(()) }
    }

    fn apply(&self, batch: &Batch) -> Result<(), KvError> {
        let sizes = batch.changes.iter().filter_map(|(_, value)| Some(value.as_ref()?.len()));
        if let Some(size) = sizes.max().filter(|size| *size > Batch::VALUE_BYTES_MAX) {
            let why = format!("a value of {size} bytes, at most {}", Batch::VALUE_BYTES_MAX);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why).into());
        }
        if let Err(error) = self.check_writable()
            && !self.store.pending().has_reserve()
        {
            return Err(error);
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
        self.read(|database| {
            let pending = self.store.pending();
            database.call(|db| {
                let stored = db.range::<&[u8], _>((start, Bound::Unbounded));
                let stored = stored.map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())));
                pending.merge(prefix, start, limit, stored)
            })
        })
    }

    fn sync(&self) -> Result<(), KvError> {
        self.writer.sync()
    }
}
