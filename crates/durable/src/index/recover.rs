//! Opening a logged index: the journal is checked, and the index brought up to its end or rebuilt.

use std::sync::Arc;

use super::{APPLIED, KvOpen, LoggedIndexConfig, LoggedIndexError, OpenKv, checkpoint, codec};
use crate::{AppendLog, Batch, Disk, DiskPath, Kv, KvError, LogConfig, Lsn};

/// Replayed journal records are applied together, up to this many records or bytes at once.
const REPLAY_RECORDS: u64 = 1000;
const REPLAY_BYTES: usize = 1 << 20;

/// Batches of a rebuild that pass between two lines of progress.
const PROGRESS_EVERY: u64 = 100_000;

/// Parts of an opened index.
pub(super) struct Opened {
    pub(super) kv: Arc<dyn Kv>,
    pub(super) journal: AppendLog,
    /// Positions of the good checkpoints, oldest first.
    pub(super) checkpoints: Vec<Lsn>,
}

pub(super) fn open(
    disk: &Arc<dyn Disk>,
    dir: &DiskPath,
    open_kv: &OpenKv,
    config: LoggedIndexConfig,
) -> Result<Opened, LoggedIndexError> {
    let log_config = LogConfig { segment_bytes: config.segment_bytes };
    let (journal, found) = AppendLog::open(Arc::clone(disk), &super::journal_dir(dir), log_config)?;
    if let Some(torn) = found.torn {
        tracing::warn!("the journal {}: {torn}", super::journal_dir(dir));
    }
    let checkpoint_dir = super::checkpoint_dir(dir);
    let mut checkpoints = checkpoint::list(&**disk, &checkpoint_dir)?;
    if let Some(newest) = checkpoints.last().filter(|newest| **newest > found.next) {
        return Err(LoggedIndexError::Shortened { next: found.next, checkpoint: *newest });
    }
    // A checkpoint that the journal no longer continues was about to be deleted.
    for stale in checkpoints.extract_if(.., |position| *position < found.first) {
        checkpoint::remove(&**disk, &checkpoint_dir, stale)?;
    }
    let mut recovery = Recovery { disk: &**disk, dir, checkpoint_dir, journal: &journal, checkpoints };
    let kv = match recovery.catch_up(open_kv) {
        Err(LoggedIndexError::Index(KvError::Damaged(why))) => {
            tracing::warn!("the index {dir}/index is damaged ({why}); it is set aside and rebuilt from the journal");
            recovery.rebuild(open_kv)?
        }
        other => other?,
    };
    let checkpoints = recovery.checkpoints;
    Ok(Opened { kv, journal, checkpoints })
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    dir: &'a DiskPath,
    checkpoint_dir: String,
    journal: &'a AppendLog,
    checkpoints: Vec<Lsn>,
}

impl Recovery<'_> {
    /// Brings the index that is there up to the journal's end. Answers [`KvError::Damaged`] if it cannot be.
    fn catch_up(&self, open_kv: &OpenKv) -> Result<Arc<dyn Kv>, LoggedIndexError> {
        let kv = open_kv(KvOpen::Existing)?;
        let (first, next) = (self.journal.first_lsn(), self.journal.next_lsn());
        let from = match applied(&*kv)? {
            None if self.checkpoints.is_empty() && kv.scan(b"", None, 1)?.is_empty() => Lsn::FIRST,
            None => return Err(KvError::Damaged("it does not say how far it goes".to_owned()).into()),
            Some(applied) => applied,
        };
        if from < first || from > next {
            let why = format!("it goes up to record {from}, the journal from {first} to {next}");
            return Err(KvError::Damaged(why).into());
        }
        self.replay(&*kv, from)?;
        Ok(kv)
    }

    fn rebuild(&mut self, open_kv: &OpenKv) -> Result<Arc<dyn Kv>, LoggedIndexError> {
        let base = self.newest_good_checkpoint()?;
        if base.is_none() && self.journal.first_lsn() > Lsn::FIRST {
            return Err(LoggedIndexError::Unrecoverable { first: self.journal.first_lsn() });
        }
        let kv = open_kv(KvOpen::Fresh)?;
        let from = base.unwrap_or(Lsn::FIRST);
        tracing::info!(dir = self.dir, from_record = from.0, to_record = self.journal.next_lsn().0, "rebuilding");
        if let Some(position) = base {
            self.load(&*kv, position)?;
        }
        self.replay(&*kv, from)?;
        kv.sync()?;
        tracing::info!(dir = self.dir, "the index is rebuilt");
        Ok(kv)
    }

    /// Checks the checkpoints, newest first, and deletes damaged ones, so that none of them is taken for one of the two
    /// to keep.
    fn newest_good_checkpoint(&mut self) -> Result<Option<Lsn>, LoggedIndexError> {
        while let Some(position) = self.checkpoints.last().copied() {
            match checkpoint::read(self.disk, &self.checkpoint_dir, position, |_| Ok(())) {
                Ok(()) => return Ok(Some(position)),
                Err(checkpoint::Unusable::Other(error)) => return Err(error),
                Err(checkpoint::Unusable::Damaged(why)) => {
                    tracing::warn!(dir = self.dir, position = position.0, why, "a checkpoint is damaged");
                    checkpoint::remove(self.disk, &self.checkpoint_dir, position)?;
                    self.checkpoints.pop();
                }
            }
        }
        Ok(None)
    }

    /// Loads a checkpoint into an empty index, which says how far it goes only when all is in it.
    fn load(&self, kv: &dyn Kv, position: Lsn) -> Result<(), LoggedIndexError> {
        let mut progress = Progress::new(self.dir, "loading the checkpoint");
        let load = checkpoint::read(self.disk, &self.checkpoint_dir, position, |batch| {
            progress.add(batch.changes.len() as u64);
            Ok(kv.apply(&batch)?)
        });
        load.map_err(|unusable| match unusable {
            checkpoint::Unusable::Damaged(why) => LoggedIndexError::Io(std::io::Error::other(format!(
                "the checkpoint at record {position} was good a moment ago: {why}"
            ))),
            checkpoint::Unusable::Other(error) => error,
        })?;
        let mut done = Batch::default();
        done.put(APPLIED, position.0.to_le_bytes());
        Ok(kv.apply(&done)?)
    }

    /// Applies the journal from `from` on, in batches of bounded size.
    fn replay(&self, kv: &dyn Kv, from: Lsn) -> Result<(), LoggedIndexError> {
        let mut progress = Progress::new(self.dir, "replaying the journal");
        let mut waiting = Batch::default();
        let mut bytes = 0;
        let mut applied = from;
        for record in self.journal.read(from) {
            let (lsn, payload) = record?;
            let batch = codec::decode(&payload);
            let batch = batch.map_err(|why| LoggedIndexError::Malformed { lsn, why: why.to_owned() })?;
            waiting.changes.extend(batch.changes);
            bytes += payload.len();
            progress.add(1);
            let end = Lsn(lsn.0 + 1);
            if end.0 - applied.0 >= REPLAY_RECORDS || bytes >= REPLAY_BYTES || end == self.journal.next_lsn() {
                waiting.put(APPLIED, end.0.to_le_bytes());
                kv.apply(&waiting)?;
                waiting.changes.clear();
                (applied, bytes) = (end, 0);
            }
        }
        Ok(())
    }
}

/// Returns how far the index goes: the number of the first record that is not in it.
fn applied(kv: &dyn Kv) -> Result<Option<Lsn>, KvError> {
    let Some(value) = kv.get(APPLIED)? else { return Ok(None) };
    match <[u8; 8]>::try_from(value.as_slice()) {
        Ok(bytes) => Ok(Some(Lsn(u64::from_le_bytes(bytes)))),
        Err(_) => Err(KvError::Damaged("what it says of how far it goes makes no sense".to_owned())),
    }
}

/// Reports now and then how far a long piece of work is.
struct Progress<'a> {
    dir: &'a DiskPath,
    what: &'static str,
    done: u64,
}

impl<'a> Progress<'a> {
    fn new(dir: &'a DiskPath, what: &'static str) -> Self {
        Self { dir, what, done: 0 }
    }

    fn add(&mut self, count: u64) {
        let before = self.done;
        self.done += count;
        if before / PROGRESS_EVERY != self.done / PROGRESS_EVERY {
            tracing::info!(dir = self.dir, done = self.done, "{}", self.what);
        }
    }
}
