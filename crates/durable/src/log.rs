//! The append log: numbered records in segments, made durable in groups.
//!
//! Owns one directory of segment files (docs/formats.md has their bytes). Must not know what the records mean.
//! Invariants:
//! - a record that a successful `sync` covered is read back until it is truncated, or the log says that it is damaged;
//! - a segment is durable before the next one begins, so only the last can have an unfinished tail;
//! - each record says how many before it were not yet durable when it was written, and so does a seal behind each sync;
//!   so a later record or seal tells whether bad bytes were ever durable;
//! - a sync counts when the disk has taken a write after it, which is the seal;
//! - after the first failed write or sync nothing more is promised: the log must be opened again;
//! - records found at an open that no later record or seal shows to be durable are written again before they are
//!   synced.

pub(crate) mod format;
mod reader;
mod recover;
pub(crate) mod scan;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::{Disk, DiskFile, DiskPath, Fallocate};
use format::{Body, FileHeader, RecordHeader, encode_record};

pub use reader::LogReader;

/// The number of a record. The first is 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The number of a log's first record.
    pub const FIRST: Self = Self(1);

    /// Returns the name of the file that begins here.
    pub(crate) fn file_name(self) -> String {
        format!("{:020}", self.0)
    }

    /// Reverses [`Self::file_name`]; `None` for other names.
    pub(crate) fn from_file_name(name: &str) -> Option<Self> {
        let lsn = Self(name.parse().ok()?);
        (lsn.file_name() == name).then_some(lsn)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Room that a segment takes ahead of its records. An fdatasync that need not make a new size durable takes 0.17 ms
/// here in place of 0.29.
const ROOM_BYTES: u64 = 256 << 10;

/// Bytes that are read and written again at a time.
const AGAIN_BYTES: usize = 256 << 10;

/// Limits of an [`AppendLog`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogConfig {
    /// Size at which a new segment begins, in bytes. Default 64 MB.
    pub segment_bytes: u64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20 }
    }
}

/// Place where an unfinished write was cut off.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TornTail {
    /// File name of the segment.
    pub segment: String,
    /// Place where the good records end.
    pub offset: u64,
    /// Number of bytes that were dropped.
    pub bytes: u64,
}

impl fmt::Display for TornTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, offset, bytes } = self;
        write!(
            f,
            "the last {bytes} bytes of segment {segment}, from byte {offset} on, were never finished and are cut off"
        )
    }
}

/// Result of [`AppendLog::open`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogRecovery {
    /// The oldest record.
    pub first: Lsn,
    /// The number after the newest record.
    pub next: Lsn,
    /// The tail that a crash had left unfinished; nobody was told that it was durable.
    pub torn: Option<TornTail>,
}

/// Reason why a log cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Bytes that were durable are not what was written. Nothing was changed.
    #[error("the log is damaged in segment {segment} at byte {offset}: {why}")]
    Damaged {
        /// File name of the segment.
        segment: String,
        /// Position in it.
        offset: u64,
        /// The kind of damage.
        why: String,
    },
    /// A write or sync failed before, so what is durable is unknown; open again.
    #[error("the log failed before; it must be opened again")]
    Poisoned,
    /// The record is longer than [`AppendLog::RECORD_BYTES_MAX`]. Nothing was written.
    #[error("a record of {bytes} bytes is too long")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The log no longer goes back that far.
    #[error("the log begins at record {first}")]
    Gone {
        /// The oldest record there is.
        first: Lsn,
    },
    /// The disk failed or is full.
    #[error("the log cannot be read or written: {0}")]
    Io(#[from] std::io::Error),
}

/// A segment file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Number of its first record, and its name.
    first: Lsn,
    /// Place where its records end; behind them are a seal and room.
    bytes: u64,
}

/// A sync under way, which its owner runs while others append.
pub struct LogSync {
    file: Arc<dyn DiskFile>,
    /// The number behind the last record that it makes durable.
    up_to: Lsn,
}

impl LogSync {
    /// Waits for the disk.
    ///
    /// # Errors
    /// Errors of the disk, to be told to [`AppendLog::end_sync`].
    pub fn run(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Segments that a log has let go of, whose files are still there.
pub struct OldSegments {
    disk: Arc<dyn Disk>,
    dir: String,
    firsts: Vec<Lsn>,
}

impl OldSegments {
    /// Deletes the files, the oldest first. Files that a crash or an error leaves are part of the log when it is
    /// opened again.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn remove(self) -> io::Result<()> {
        for first in self.firsts {
            self.disk.remove(&recover::segment_path(&self.dir, first))?;
            // The files go one by one: a crash must never bring back an older segment without the one after it.
            self.disk.sync_dir(&self.dir)?;
        }
        Ok(())
    }
}

/// A log of records of up to 1 MB. One writer; calls block.
pub struct AppendLog {
    disk: Arc<dyn Disk>,
    dir: String,
    config: LogConfig,
    /// The segments, never empty; records are appended to the last.
    segments: Vec<Segment>,
    /// The last segment.
    file: Arc<dyn DiskFile>,
    /// Its size.
    file_bytes: u64,
    salt: u32,
    next: Lsn,
    /// Number below which all records are durable.
    durable: Lsn,
    poisoned: bool,
    buffer: Vec<u8>,
}

impl AppendLog {
    /// The longest record, in bytes.
    pub const RECORD_BYTES_MAX: usize = 1 << 20;

    /// Opens the log in `dir` (made if absent), checks every record, cuts off an unfinished tail and makes the rest
    /// durable.
    ///
    /// # Errors
    /// [`LogError::Damaged`] if bytes are wrong that had been durable; nothing was changed then.
    /// [`LogError::Io`] for errors of the disk.
    pub fn open(disk: Arc<dyn Disk>, dir: &DiskPath, config: LogConfig) -> Result<(Self, LogRecovery), LogError> {
        recover::open(disk, dir, config)
    }

    /// Writes a record. The record survives kill -9 from now on, and power loss after the next [`Self::sync`].
    ///
    /// # Errors
    /// [`LogError::TooLong`] changes nothing. [`LogError::Io`] poisons the log; [`LogError::Poisoned`] ever after.
    pub fn append(&mut self, payload: &[u8]) -> Result<Lsn, LogError> {
        if payload.len() > Self::RECORD_BYTES_MAX {
            return Err(LogError::TooLong { bytes: payload.len() });
        }
        self.guarded(|log| log.write_record(payload))
    }

    /// Makes everything appended so far durable.
    ///
    /// # Errors
    /// [`LogError::Io`] poisons the log, and whether what was appended is durable shows only when it is opened again;
    /// [`LogError::Poisoned`] ever after.
    pub fn sync(&mut self) -> Result<(), LogError> {
        self.guarded(|log| {
            if log.durable < log.next {
                log.sync_segment()?;
                log.seal()?;
            }
            Ok(())
        })
    }

    /// Begins a sync of everything appended so far. Records may be appended until [`Self::end_sync`].
    ///
    /// # Errors
    /// [`LogError::Poisoned`] if the log failed before.
    pub fn begin_sync(&self) -> Result<LogSync, LogError> {
        if self.poisoned {
            return Err(LogError::Poisoned);
        }
        Ok(LogSync { file: Arc::clone(&self.file), up_to: self.next })
    }

    /// Ends a sync of this log, with what [`LogSync::run`] has returned.
    ///
    /// # Errors
    /// Those of [`Self::sync`].
    pub fn end_sync(&mut self, sync: &LogSync, outcome: io::Result<()>) -> Result<(), LogError> {
        self.guarded(|log| {
            outcome?;
            log.durable = log.durable.max(sync.up_to);
            Ok(log.seal()?)
        })
    }

    /// Makes everything durable and gives the room ahead back: for an owner that ends.
    ///
    /// # Errors
    /// Those of [`Self::sync`].
    pub fn close(&mut self) -> Result<(), LogError> {
        self.guarded(|log| log.settle(true))
    }

    /// Reads the records from `from` on, up to the last one at the time of the call. The items are [`LogError::Gone`]
    /// if records were truncated, [`LogError::Damaged`] or [`LogError::Io`].
    pub fn read(&self, from: Lsn) -> LogReader {
        let skipped = self.segments.partition_point(|segment| segment.first <= from).saturating_sub(1);
        LogReader::new(Arc::clone(&self.disk), self.dir.clone(), self.segments[skipped..].to_vec(), from, self.next)
    }

    /// Deletes whole segments whose records are all below `lsn`; never the last segment.
    ///
    /// # Errors
    /// [`LogError::Io`] poisons the log; [`LogError::Poisoned`] ever after.
    pub fn truncate_before(&mut self, lsn: Lsn) -> Result<(), LogError> {
        self.guarded(|log| Ok(log.let_go_before(lsn).remove()?))
    }

    /// Lets go of the segments that [`Self::truncate_before`] would delete: for an owner that deletes them while others
    /// append.
    #[must_use = "the files are there until they are removed"]
    pub fn let_go_before(&mut self, lsn: Lsn) -> OldSegments {
        let newest = self.segments.partition_point(|segment| segment.first <= lsn).saturating_sub(1);
        let firsts = self.segments.drain(..newest).map(|segment| segment.first).collect();
        OldSegments { disk: Arc::clone(&self.disk), dir: self.dir.clone(), firsts }
    }

    /// Returns the number of the oldest record there is; that of the next one if there is none.
    #[must_use]
    pub fn first_lsn(&self) -> Lsn {
        self.segments.first().map_or(self.next, |segment| segment.first)
    }

    /// Returns the number that the next record gets.
    #[must_use]
    pub fn next_lsn(&self) -> Lsn {
        self.next
    }

    /// Returns the number before which all records are durable.
    #[must_use]
    pub fn durable_lsn(&self) -> Lsn {
        self.durable
    }

    /// Returns the size of all segments in bytes, as far as records go.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Returns the bytes from the segment that holds `lsn` on.
    #[must_use]
    pub(crate) fn bytes_from(&self, lsn: Lsn) -> u64 {
        let skipped = self.segments.partition_point(|segment| segment.first <= lsn).saturating_sub(1);
        self.segments[skipped..].iter().map(|segment| segment.bytes).sum()
    }

    /// Returns the first record of the oldest segment from which on there are at most `bytes` bytes, or of the last
    /// segment.
    #[must_use]
    pub(crate) fn first_within(&self, bytes: u64) -> Lsn {
        let mut sum = 0;
        let mut first = self.next;
        for (index, segment) in self.segments.iter().rev().enumerate() {
            sum += segment.bytes;
            if index > 0 && sum > bytes {
                break;
            }
            first = segment.first;
        }
        first
    }

    /// Makes durable what the last owner may have left unsynced, or this one leaves. With `cut` the file ends with
    /// its records then, without a torn tail or room.
    fn settle(&mut self, cut: bool) -> Result<(), LogError> {
        if cut {
            self.file.set_len(self.end())?;
            self.file_bytes = self.end();
        }
        self.sync_segment()?;
        Ok(self.seal()?)
    }

    /// Writes once more what the last owner wrote from `offset` on and nothing shows to be durable. After a sync that
    /// failed Linux counts these bytes as written, and still has them in memory: the next sync would say that all is
    /// well.
    fn write_again(&self, offset: u64) -> io::Result<()> {
        let mut bytes = vec![0; AGAIN_BYTES];
        let mut at = offset;
        while at < self.end() {
            let count = usize::try_from(self.end() - at).unwrap_or(AGAIN_BYTES).min(AGAIN_BYTES);
            let read = self.file.read_at(&mut bytes[..count], at)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.file.write_all_at(&bytes[..read], at)?;
            at += read as u64;
        }
        Ok(())
    }

    fn write_record(&mut self, payload: &[u8]) -> Result<Lsn, LogError> {
        let bytes = (RecordHeader::BYTES + payload.len()) as u64;
        if self.end() > FileHeader::BYTES as u64 && self.end() + bytes > self.config.segment_bytes {
            self.sync_segment()?;
            let (file, salt, segment) = recover::begin(&*self.disk, &self.dir, self.next)?;
            (self.file, self.salt, self.file_bytes) = (file, salt, segment.bytes);
            self.segments.push(segment);
        }
        self.make_room(bytes + RecordHeader::BYTES as u64);
        let number = self.next;
        let unsynced = u32::try_from(number.0 - self.durable.0).map_err(io::Error::other)?;
        self.buffer.clear();
        encode_record(self.salt, number, unsynced, payload, &mut self.buffer);
        self.file.write_all_at(&self.buffer, self.end())?;
        if let Some(last) = self.segments.last_mut() {
            last.bytes += bytes;
        }
        self.next = Lsn(number.0 + 1);
        Ok(number)
    }

    /// Has the file reach beyond the next `bytes` bytes, so that writing them does not change its size.
    fn make_room(&mut self, bytes: u64) {
        let end = self.end() + bytes;
        if end <= self.file_bytes {
            return;
        }
        let ahead = (end + ROOM_BYTES).min(self.config.segment_bytes).max(end);
        match self.file.fallocate(Fallocate::Reserve, self.file_bytes, ahead - self.file_bytes) {
            Ok(()) => self.file_bytes = ahead,
            // The disk is full, or cannot reserve: the write tells whether there is room for it.
            Err(error) => tracing::debug!(dir = self.dir, %error, "no room ahead"),
        }
    }

    fn sync_segment(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        self.durable = self.next;
        Ok(())
    }

    /// Marks what is durable, so that damage to the last records shows. The seal is not synced itself: that would
    /// double the cost of a commit. The next record is written over it, so want of room for it is of no consequence.
    ///
    /// Any other failure says that the sync before was none: when an ext4 shuts down while it makes blocks durable that
    /// were reserved, fdatasync(2) answers that all is well, and only the next write is refused.
    fn seal(&self) -> io::Result<()> {
        let unsynced = u32::try_from(self.next.0 - self.durable.0).map_err(io::Error::other)?;
        let head = RecordHeader { number: self.next, unsynced, body: Body::Seal };
        match self.file.write_all_at(&head.encode(self.salt), self.end()) {
            Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                tracing::debug!(dir = self.dir, %error, "log not sealed");
                Ok(())
            }
            sealed => sealed,
        }
    }

    /// Returns the place where the next record goes in the last segment.
    fn end(&self) -> u64 {
        self.segments.last().map_or(0, |last| last.bytes)
    }

    fn guarded<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T, LogError>) -> Result<T, LogError> {
        if self.poisoned {
            return Err(LogError::Poisoned);
        }
        let result = step(self);
        self.poisoned = result.is_err();
        result
    }
}
