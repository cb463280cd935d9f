//! The logged index: log first, index second.
//!
//! Owns a directory with `journal/` (an append log of batches, the truth) and `checkpoint/` (whole copies of the
//! index), and an index that can be rebuilt from them. Must not know what keys and values mean. Invariants:
//! - a batch is applied to the index only after it is durable in the journal, and in the order of the journal;
//! - the index says, in the same batch, up to which record it goes, so that opening knows where to go on;
//! - the journal reaches back at least to the older of the two checkpoints that are kept;
//! - after the first failed commit nothing more is promised: it must be opened again.
//!
//! Lock order: `checkpoints`, then `writer`. The writer is locked for the length of a commit; readers of the index
//! never wait for it.

mod checkpoint;
mod codec;
mod error;
mod opener;
mod recover;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::join;
use crate::{AppendLog, Batch, Disk, DiskPath, Kv, Lsn};
pub use error::LoggedIndexError;
pub use opener::{KvOpen, OpenKv, sled_opener};

/// The first byte of the keys that are kept for this module.
const RESERVED: u8 = 0;

/// The key under which the index says how far it goes.
const APPLIED: &[u8] = b"\0applied";

/// Checkpoints that are kept: if the newest is damaged, the one before will do.
const CHECKPOINTS_KEPT: usize = 2;

/// Limits of a [`LoggedIndex`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggedIndexConfig {
    /// Size at which a new journal segment begins, in bytes. Default 64 MB.
    pub segment_bytes: u64,
    /// Journal bytes after the last checkpoint that make a new one due. Default 256 MB.
    pub checkpoint_bytes: u64,
    /// History that is kept for [`LoggedIndex::read_journal`], in records. Default 1,000,000.
    pub horizon_records: u64,
    /// History that is kept for [`LoggedIndex::read_journal`], in bytes; whichever limit is met first counts. Default 1
    /// GB.
    pub horizon_bytes: u64,
}

impl Default for LoggedIndexConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            checkpoint_bytes: 256 << 20,
            horizon_records: 1_000_000,
            horizon_bytes: 1 << 30,
        }
    }
}

/// An index whose truth is a journal. All methods block and may be called from any thread.
pub struct LoggedIndex {
    disk: Arc<dyn Disk>,
    dir: String,
    config: LoggedIndexConfig,
    kv: Arc<dyn Kv>,
    writer: Mutex<Writer>,
    /// Positions of the checkpoints, oldest first. Locked while one is written.
    checkpoints: Mutex<Vec<Lsn>>,
    next: AtomicU64,
    journal_bytes: AtomicU64,
    /// Journal bytes that no checkpoint covers.
    uncovered_bytes: AtomicU64,
}

struct Writer {
    journal: AppendLog,
    /// A commit failed: the journal may hold what the index does not.
    failed: bool,
}

impl LoggedIndex {
    /// The longest key, in bytes.
    pub const KEY_BYTES_MAX: usize = 4096;

    /// Opens `dir` (made if absent) and brings the index up to the journal's end. An index that is damaged, missing or
    /// does not fit the journal is set aside and rebuilt from the newest good checkpoint and the journal; that is told
    /// through `tracing`.
    ///
    /// # Errors
    /// [`LoggedIndexError::Damaged`], [`Malformed`](LoggedIndexError::Malformed) and
    /// [`Shortened`](LoggedIndexError::Shortened)
    /// if the journal is not what was written, [`Unrecoverable`](LoggedIndexError::Unrecoverable) if the index cannot
    /// be rebuilt; [`Io`](LoggedIndexError::Io) and [`Index`](LoggedIndexError::Index) for failures of disk and index.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &DiskPath,
        open_kv: OpenKv,
        config: LoggedIndexConfig,
    ) -> Result<Self, LoggedIndexError> {
        let recover::Opened { kv, journal, checkpoints } = recover::open(&disk, dir, &open_kv, config)?;
        let covered = checkpoints.last().copied().unwrap_or(Lsn::FIRST);
        Ok(Self {
            disk,
            dir: dir.to_owned(),
            config,
            kv,
            next: AtomicU64::new(journal.next_lsn().0),
            journal_bytes: AtomicU64::new(journal.bytes()),
            uncovered_bytes: AtomicU64::new(journal.bytes_from(covered)),
            checkpoints: Mutex::new(checkpoints),
            writer: Mutex::new(Writer { journal, failed: false }),
        })
    }

    /// Logs each batch as one record, makes all of them durable with one fdatasync, then applies them together.
    /// Returns the number of the first record; the others follow it. If the commit fails or a crash cuts it off, a
    /// prefix of the batches may be there afterwards.
    ///
    /// # Errors
    /// [`LoggedIndexError::Refused`] changes nothing: a batch encodes to more than
    /// [`AppendLog::RECORD_BYTES_MAX`], a value is
    /// longer than [`Batch::VALUE_BYTES_MAX`], a key longer than [`Self::KEY_BYTES_MAX`], empty, or begins with a zero
    /// byte. [`Io`](LoggedIndexError::Io) and [`Index`](LoggedIndexError::Index) poison the index: whether the batches
    /// are durable shows only when it is opened again. [`Poisoned`](LoggedIndexError::Poisoned) ever after.
    pub fn commit(&self, batches: &[Batch]) -> Result<Lsn, LoggedIndexError> {
        let records: Vec<Vec<u8>> = batches.iter().map(to_record).collect::<Result<_, _>>()?;
        let mut writer = self.writer()?;
        let first = writer.journal.next_lsn();
        if batches.is_empty() {
            return Ok(first);
        }
        let result = self.log_and_apply(&mut writer, &records, batches);
        writer.failed = result.is_err();
        result.map(|()| first)
    }

    /// Returns the index, for reading: what is written to it here is lost when it is next rebuilt. Keys that begin
    /// with a zero byte are not the caller's.
    #[must_use]
    pub fn index(&self) -> &dyn Kv {
        &*self.kv
    }

    /// Returns the number that the next record gets.
    #[must_use]
    pub fn next_lsn(&self) -> Lsn {
        Lsn(self.next.load(Ordering::Acquire))
    }

    /// Returns the size of the journal in bytes.
    #[must_use]
    pub fn journal_bytes(&self) -> u64 {
        self.journal_bytes.load(Ordering::Relaxed)
    }

    /// Reads the committed batches from `from` on, up to the last one at the time of the call. Waits for a commit in
    /// progress. The items fail with [`LoggedIndexError::Gone`] if the journal is cut meanwhile, with `Damaged`,
    /// `Malformed` or `Io`.
    ///
    /// # Errors
    /// [`LoggedIndexError::Gone`] if the journal no longer goes back that far.
    pub fn read_journal(
        &self,
        from: Lsn,
    ) -> Result<impl Iterator<Item = Result<(Lsn, Batch), LoggedIndexError>> + use<>, LoggedIndexError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let first = writer.journal.first_lsn();
        if from < first {
            return Err(LoggedIndexError::Gone { first });
        }
        let records = writer.journal.read(from).up_to(self.next_lsn());
        Ok(records.map(|record| {
            let (lsn, payload) = record?;
            match codec::decode(&payload) {
                Ok(batch) => Ok((lsn, batch)),
                Err(why) => Err(LoggedIndexError::Malformed { lsn, why: why.to_owned() }),
            }
        }))
    }

    /// Tells whether [`Self::checkpoint`] should be called.
    #[must_use]
    pub fn checkpoint_due(&self) -> bool {
        self.uncovered_bytes.load(Ordering::Relaxed) > self.config.checkpoint_bytes
    }

    /// Writes the whole index aside while commits go on, then deletes what of checkpoints and journal is no longer
    /// needed. Returns the journal position that the checkpoint is good from. One at a time: a second caller waits.
    ///
    /// # Errors
    /// [`LoggedIndexError::Io`] and [`Index`](LoggedIndexError::Index); commits can go on, unless deleting from
    /// the journal
    /// failed. [`Poisoned`](LoggedIndexError::Poisoned) after a failed commit.
    pub fn checkpoint(&self) -> Result<Lsn, LoggedIndexError> {
        let mut kept = self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let (position, covered) = {
            let writer = self.writer()?;
            (writer.journal.next_lsn(), self.uncovered_bytes.load(Ordering::Relaxed))
        };
        if kept.last() == Some(&position) {
            return Ok(position);
        }
        let dir = checkpoint_dir(&self.dir);
        checkpoint::write(&*self.disk, &dir, position, &*self.kv)?;
        self.uncovered_bytes.fetch_sub(covered, Ordering::Relaxed);
        kept.push(position);
        while kept.len() > CHECKPOINTS_KEPT {
            checkpoint::remove(&*self.disk, &dir, kept.remove(0))?;
        }
        if kept.len() == CHECKPOINTS_KEPT {
            // The index must not fall back, in a crash, to where the journal no longer reaches.
            self.kv.sync()?;
            self.cut_journal(kept[0])?;
        }
        Ok(position)
    }

    /// Makes the index durable, so that the next open replays nothing, and gives the journal's room ahead back.
    ///
    /// # Errors
    /// [`LoggedIndexError::Index`], those of the journal, and [`Poisoned`](LoggedIndexError::Poisoned) after a failed
    /// commit.
    pub fn close(&self) -> Result<(), LoggedIndexError> {
        let mut writer = self.writer()?;
        self.kv.sync()?;
        Ok(writer.journal.close()?)
    }

    fn log_and_apply(
        &self,
        writer: &mut Writer,
        records: &[Vec<u8>],
        batches: &[Batch],
    ) -> Result<(), LoggedIndexError> {
        let bytes_before = writer.journal.bytes();
        for record in records {
            writer.journal.append(record)?;
        }
        writer.journal.sync()?;
        let next = writer.journal.next_lsn();
        let mut together = Batch { changes: batches.iter().flat_map(|batch| batch.changes.iter().cloned()).collect() };
        together.put(APPLIED, next.0.to_le_bytes());
        self.kv.apply(&together)?;
        let bytes = writer.journal.bytes();
        self.next.store(next.0, Ordering::Release);
        self.journal_bytes.store(bytes, Ordering::Relaxed);
        self.uncovered_bytes.fetch_add(bytes - bytes_before, Ordering::Relaxed);
        Ok(())
    }

    /// Deletes the segments below both the oldest checkpoint and the horizon.
    fn cut_journal(&self, oldest_checkpoint: Lsn) -> Result<(), LoggedIndexError> {
        let mut writer = self.writer()?;
        let by_records = Lsn(writer.journal.next_lsn().0.saturating_sub(self.config.horizon_records));
        let horizon = by_records.max(writer.journal.first_within(self.config.horizon_bytes));
        writer.journal.truncate_before(oldest_checkpoint.min(horizon))?;
        self.journal_bytes.store(writer.journal.bytes(), Ordering::Relaxed);
        Ok(())
    }

    fn writer(&self) -> Result<MutexGuard<'_, Writer>, LoggedIndexError> {
        match self.writer.lock() {
            Ok(writer) if !writer.failed => Ok(writer),
            _ => Err(LoggedIndexError::Poisoned),
        }
    }
}

fn journal_dir(dir: &DiskPath) -> String {
    join(dir, "journal")
}

fn checkpoint_dir(dir: &DiskPath) -> String {
    join(dir, "checkpoint")
}

/// Encodes a batch as a journal record, if it may be one.
fn to_record(batch: &Batch) -> Result<Vec<u8>, LoggedIndexError> {
    for (key, value) in &batch.changes {
        let value_bytes = value.as_ref().map_or(0, Vec::len);
        if key.first().is_none_or(|first| *first == RESERVED) || key.len() > LoggedIndex::KEY_BYTES_MAX {
            return Err(LoggedIndexError::Refused(format!(
                "the key {} is empty, reserved or too long",
                key.escape_ascii()
            )));
        }
        if value_bytes > Batch::VALUE_BYTES_MAX {
            return Err(LoggedIndexError::Refused(format!("a value has {value_bytes} bytes")));
        }
    }
    let mut record = Vec::new();
    codec::encode(batch, &mut record);
    if record.len() > AppendLog::RECORD_BYTES_MAX {
        return Err(LoggedIndexError::Refused(format!("it takes {} bytes", record.len())));
    }
    Ok(record)
}
