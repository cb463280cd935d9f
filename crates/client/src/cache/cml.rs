//! The client modify log on disk: entries of [`LogState`] in an append log.
//!
//! An entry survives kill -9 as soon as it is appended, and power loss after `sync`. Entries are appended while the
//! disk is waited for: one sync at a time covers all that was there when it began.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use mafs_durable::{AppendLog, Disk, LogConfig, LogError, Lsn};
use mafs_proto::{CmlRecord, DataVersion, Fid, FidRange, FsError, Incarnation, Kind, Malformed, StoreId, Wire};

use super::CacheError;
use super::record::{kind_from_number, kind_number};
use crate::core::log::{ContainerId, LogEntry, LogState, Stamp};
use crate::core::queue::Queued;

/// A segment is deleted whole, so a small one keeps the log short.
const SEGMENT_BYTES: u64 = 4 << 20;
const COMPACTION_BYTES: u64 = 2 * SEGMENT_BYTES;

/// The modify log of a cache, with the state that its entries add up to.
pub(crate) struct Cml {
    disk: Arc<dyn Disk>,
    inner: Mutex<Inner>,
    /// Signal that a sync has ended.
    synced: Condvar,
}

struct Inner {
    log: AppendLog,
    state: LogState,
    /// How often the log was opened again: entries appended before the last time may be gone.
    opened: u64,
    /// Whether somebody waits for the disk.
    syncing: bool,
    /// The newest entry that makes durable contents unwanted.
    dropped: Option<Lsn>,
    /// Length of the log in bytes when it was shortened last.
    shortest: u64,
}

impl Cml {
    /// Opens the log of a disk and reads it.
    pub(crate) fn open(disk: &Arc<dyn Disk>) -> Result<Self, CacheError> {
        Ok(Self { disk: Arc::clone(disk), inner: Mutex::new(Inner::open(disk)?), synced: Condvar::new() })
    }

    /// Returns the state that the log's entries add up to now.
    pub(crate) fn state(&self) -> LogState {
        self.lock().state.clone()
    }

    /// Whether the machine has been started again since a run was begun.
    pub(crate) fn is_of_another_run(&self, boot: &str) -> bool {
        self.lock().state.boot.as_ref().is_some_and(|last| last != boot)
    }

    /// Notes durably that the machine's run is `boot`, unless the log says so already. Called only once all that the
    /// run before has left is taken up: a start that fails before must not make the next one believe that nothing was
    /// lost.
    pub(crate) fn begin_run(&self, boot: &str) -> Result<(), CacheError> {
        let last = self.lock().state.boot.clone();
        if last.as_deref() != Some(boot) {
            self.append(LogEntry::Run(boot.to_owned()))?;
            self.sync()?;
        }
        Ok(())
    }

    /// Appends an entry.
    pub(crate) fn append(&self, entry: LogEntry) -> Result<(), CacheError> {
        let mut inner = self.lock();
        let bytes = encode(&entry);
        let number = match inner.log.append(&bytes) {
            // A write failed earlier, as on a full disk. Only reading tells how much of it is there.
            Err(LogError::Poisoned) => {
                inner.open_again(&self.disk)?;
                inner.log.append(&bytes)?
            }
            other => other?,
        };
        if inner.state.drops_durable(&entry) {
            inner.dropped = Some(number);
        }
        inner.state.apply(entry);
        Ok(())
    }

    /// Syncs the log before a removal is sent, if an entry that drops durable contents is not durable yet: a loss of
    /// power must not bring back contents of what is not at the server any more.
    pub(crate) fn sync_drops(&self) -> Result<(), CacheError> {
        let is_unsynced = {
            let inner = self.lock();
            inner.dropped.is_some_and(|dropped| dropped >= inner.log.durable_lsn())
        };
        if is_unsynced { self.sync() } else { Ok(()) }
    }

    /// Whether a loss of power may take from the log that the server has a content of a file: the next bytes in its
    /// container would be taken for that content.
    pub(crate) fn may_forget_answer(&self, fid: Fid) -> bool {
        let inner = self.lock();
        inner.is_unsynced() && inner.state.versions.contains_key(&fid)
    }

    /// Whether the log says that the server may have a record, or is to get it.
    pub(crate) fn lists(&self, id: StoreId) -> bool {
        let state = &self.lock().state;
        state.logged.contains_key(&id) || state.queued.contains_key(&id)
    }

    /// Makes durable all entries there are at the time of the call.
    pub(crate) fn sync(&self) -> Result<(), CacheError> {
        let mut inner = self.lock();
        let (opened, wanted) = (inner.opened, inner.log.next_lsn());
        while inner.opened == opened && inner.log.durable_lsn() < wanted {
            inner = if inner.syncing {
                self.synced.wait(inner).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.sync_beside(inner)?
            };
        }
        if inner.opened == opened { Ok(()) } else { Err(LogError::Poisoned.into()) }
    }

    /// Waits for the disk while others append.
    fn sync_beside<'a>(&'a self, mut inner: MutexGuard<'a, Inner>) -> Result<MutexGuard<'a, Inner>, CacheError> {
        let (sync, opened) = (inner.log.begin_sync()?, inner.opened);
        inner.syncing = true;
        drop(inner);
        let done = sync.run();
        let mut inner = self.lock();
        inner.syncing = false;
        self.synced.notify_all();
        if inner.opened == opened {
            inner.log.end_sync(&sync, done)?;
        }
        Ok(inner)
    }

    /// Whether the log is long enough to be worth shortening.
    pub(crate) fn compaction_due(&self) -> bool {
        let inner = self.lock();
        // The entries of a long queue are not written again and again.
        inner.log.bytes() > COMPACTION_BYTES.max(2 * inner.shortest)
    }

    /// Writes the entries that still count again at the end of the log and drops all before. The index must be durable.
    pub(crate) fn compact(&self) -> Result<(), CacheError> {
        let (opened, start) = {
            let mut inner = self.lock();
            let start = inner.log.next_lsn();
            for entry in inner.state.compacted() {
                inner.log.append(&encode(&entry))?;
            }
            inner.state.versions.clear();
            (inner.opened, start)
        };
        self.sync()?;
        let old = {
            let mut inner = self.lock();
            if inner.opened != opened {
                return Err(LogError::Poisoned.into());
            }
            let old = inner.log.let_go_before(start);
            inner.shortest = inner.log.bytes();
            old
        };
        Ok(old.remove()?)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn open(disk: &Arc<dyn Disk>) -> Result<Self, CacheError> {
        let config = LogConfig { segment_bytes: SEGMENT_BYTES };
        let (log, recovery) = AppendLog::open(Arc::clone(disk), "cml", config)?;
        if let Some(torn) = &recovery.torn {
            tracing::warn!("the modify log of the cache: {torn}");
        }
        let mut state = LogState::default();
        for record in log.read(recovery.first) {
            let (lsn, bytes) = record?;
            let entry = decode(bytes.into())
                .map_err(|why| CacheError::Damaged(format!("record {lsn} of its modify log: {why}")))?;
            state.apply(entry);
        }
        Ok(Self { log, state, opened: 0, syncing: false, dropped: None, shortest: 0 })
    }

    /// Opens the log once more: all that is found is durable then.
    fn open_again(&mut self, disk: &Arc<dyn Disk>) -> Result<(), CacheError> {
        let (opened, syncing) = (self.opened + 1, self.syncing);
        *self = Self { opened, syncing, ..Self::open(disk)? };
        Ok(())
    }

    /// Whether a loss of power may take the newest entries.
    fn is_unsynced(&self) -> bool {
        self.log.durable_lsn() < self.log.next_lsn()
    }
}

const INCARNATION: u8 = 1;
const WRITING: u8 = 2;
const LOGGED: u8 = 3;
const DONE: u8 = 4;
const ABANDONED: u8 = 5;
const DROPPED: u8 = 6;
const SYNCED: u8 = 7;
const RUN: u8 = 8;
const REMOVING: u8 = 9;
const MOVED: u8 = 10;
const KEPT: u8 = 11;
const QUEUED: u8 = 12;
const ENDED: u8 = 13;
const REFUSED: u8 = 14;
const SNAPSHOT: u8 = 15;
const DURABLE: u8 = 16;
const LOGGED_QUEUED: u8 = 17;
const WRITING_HERE: u8 = 18;
const LENT: u8 = 19;
const RETURNED: u8 = 20;
const UNLINKED: u8 = 21;
const FREED: u8 = 22;
const LAST_LIFE: u8 = 23;
const SPARE_FIDS: u8 = 24;

/// Encodes an entry: one byte for the kind, numbers in little endian, then at most two messages, the first with its
/// length (u32) before it.
fn encode(entry: &LogEntry) -> Vec<u8> {
    match entry {
        LogEntry::Run(boot) => joined(RUN, &[boot.as_bytes()]),
        LogEntry::Incarnation(incarnation) => joined(INCARNATION, &[&incarnation.0.to_le_bytes()]),
        LogEntry::LastLife(last) => joined(LAST_LIFE, &[&last.0.to_le_bytes()]),
        LogEntry::SpareFids(fids) => joined(SPARE_FIDS, &[&fids.count().to_le_bytes(), &fids.first().encode()]),
        LogEntry::Writing { fid, base, container, lent } => {
            let kind = if *lent { WRITING } else { WRITING_HERE };
            joined(kind, &[&base.0.to_le_bytes(), &container.0.to_le_bytes(), &fid.encode()])
        }
        LogEntry::Lent { fid } => joined(LENT, &[&fid.encode()]),
        LogEntry::Returned { fid } => joined(RETURNED, &[&fid.encode()]),
        LogEntry::Logged { record, stamp, immutable } => {
            let kind = if *immutable { LOGGED_QUEUED } else { LOGGED };
            joined(kind, &[&stamp.0.to_le_bytes(), &record.encode()])
        }
        LogEntry::Done { id, fid, version, clean, synced } => {
            let fid = fid.encode();
            let flags = u8::from(*clean) | u8::from(*synced) << 1;
            let length = u8::try_from(fid.len()).unwrap_or(u8::MAX);
            joined(DONE, &[&version.0.to_le_bytes(), &[flags, length], &fid, &id.encode()])
        }
        LogEntry::Abandoned { id } => joined(ABANDONED, &[&id.encode()]),
        LogEntry::Synced { fid } => joined(SYNCED, &[&fid.encode()]),
        LogEntry::Moved { fid, container } => joined(MOVED, &[&container.0.to_le_bytes(), &fid.encode()]),
        LogEntry::Removing { fid } => joined(REMOVING, &[&fid.encode()]),
        LogEntry::Kept { fid } => joined(KEPT, &[&fid.encode()]),
        LogEntry::Dropped { fid } => joined(DROPPED, &[&fid.encode()]),
        LogEntry::Unlinked { fid, by } => joined_pair(UNLINKED, &fid.encode(), &by.encode()),
        LogEntry::Freed { id, of } => joined_pair(FREED, &id.encode(), &of.encode()),
        LogEntry::Queued(Queued { record, kind, replaced }) => {
            let kinds = [kind_number(*kind), replaced.map_or(NO_KIND, kind_number)];
            joined(QUEUED, &[&kinds, &record.encode()])
        }
        LogEntry::Ended { id } => joined(ENDED, &[&id.encode()]),
        LogEntry::Refused { id, reason } => joined(REFUSED, &[&reason.number().to_le_bytes(), &id.encode()]),
        LogEntry::Snapshot { id, container } => joined(SNAPSHOT, &[&container.0.to_le_bytes(), &id.encode()]),
        LogEntry::Durable { id } => joined(DURABLE, &[&id.encode()]),
    }
}

fn joined(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(96);
    out.push(kind);
    out.extend(parts.iter().copied().flatten());
    out
}

/// Joins two short messages, the first with its length before it.
fn joined_pair(kind: u8, first: &[u8], second: &[u8]) -> Vec<u8> {
    let length = u8::try_from(first.len()).unwrap_or(u8::MAX);
    joined(kind, &[&[length], first, second])
}

/// No number of a kind.
const NO_KIND: u8 = u8::MAX;

#[derive(Debug, thiserror::Error)]
enum BadEntry {
    #[error("entry cut short")]
    Short,
    #[error("unknown kind {0}")]
    Kind(u8),
    #[error("{0} fids are more than there are")]
    Fids(u64),
    #[error("unknown kind of object {0}")]
    ObjectKind(u8),
    #[error(transparent)]
    Message(#[from] Malformed),
}

fn decode(mut bytes: Bytes) -> Result<LogEntry, BadEntry> {
    Ok(match take_u8(&mut bytes)? {
        RUN => LogEntry::Run(String::from_utf8_lossy(&bytes).into_owned()),
        INCARNATION => LogEntry::Incarnation(Incarnation(take_u64(&mut bytes)?)),
        LAST_LIFE => LogEntry::LastLife(Incarnation(take_u64(&mut bytes)?)),
        SPARE_FIDS => {
            let count = take_u64(&mut bytes)?;
            LogEntry::SpareFids(FidRange::new(Fid::decode(bytes)?, count).ok_or(BadEntry::Fids(count))?)
        }
        kind @ (WRITING | WRITING_HERE) => LogEntry::Writing {
            base: DataVersion(take_u64(&mut bytes)?),
            container: ContainerId(take_u64(&mut bytes)?),
            fid: Fid::decode(bytes)?,
            // Older clients, which knew one kind only, did not say: perhaps.
            lent: kind == WRITING,
        },
        LENT => LogEntry::Lent { fid: Fid::decode(bytes)? },
        RETURNED => LogEntry::Returned { fid: Fid::decode(bytes)? },
        kind @ (LOGGED | LOGGED_QUEUED) => {
            let stamp = Stamp(take_u64(&mut bytes)?);
            LogEntry::Logged { record: CmlRecord::decode(bytes)?, stamp, immutable: kind == LOGGED_QUEUED }
        }
        DONE => {
            let version = DataVersion(take_u64(&mut bytes)?);
            let left = take_u8(&mut bytes)?;
            let (clean, synced) = (left & 1 != 0, left & 2 != 0);
            let fid = Fid::decode(take_first(&mut bytes)?)?;
            LogEntry::Done { id: StoreId::decode(bytes)?, fid, version, clean, synced }
        }
        ABANDONED => LogEntry::Abandoned { id: StoreId::decode(bytes)? },
        SYNCED => LogEntry::Synced { fid: Fid::decode(bytes)? },
        MOVED => LogEntry::Moved { container: ContainerId(take_u64(&mut bytes)?), fid: Fid::decode(bytes)? },
        REMOVING => LogEntry::Removing { fid: Fid::decode(bytes)? },
        KEPT => LogEntry::Kept { fid: Fid::decode(bytes)? },
        DROPPED => LogEntry::Dropped { fid: Fid::decode(bytes)? },
        UNLINKED => {
            let fid = Fid::decode(take_first(&mut bytes)?)?;
            LogEntry::Unlinked { fid, by: StoreId::decode(bytes)? }
        }
        FREED => {
            let id = StoreId::decode(take_first(&mut bytes)?)?;
            LogEntry::Freed { id, of: StoreId::decode(bytes)? }
        }
        QUEUED => {
            let kind = take_kind(&mut bytes)?.ok_or(BadEntry::ObjectKind(NO_KIND))?;
            let replaced = take_kind(&mut bytes)?;
            LogEntry::Queued(Queued { record: CmlRecord::decode(bytes)?, kind, replaced })
        }
        ENDED => LogEntry::Ended { id: StoreId::decode(bytes)? },
        REFUSED => {
            let reason = FsError::from_number(take_u32(&mut bytes)?);
            LogEntry::Refused { id: StoreId::decode(bytes)?, reason }
        }
        SNAPSHOT => LogEntry::Snapshot { container: ContainerId(take_u64(&mut bytes)?), id: StoreId::decode(bytes)? },
        DURABLE => LogEntry::Durable { id: StoreId::decode(bytes)? },
        kind => return Err(BadEntry::Kind(kind)),
    })
}

/// Takes the first of two messages.
fn take_first(bytes: &mut Bytes) -> Result<Bytes, BadEntry> {
    let length = usize::from(take_u8(bytes)?);
    take(bytes, length)
}

fn take(bytes: &mut Bytes, count: usize) -> Result<Bytes, BadEntry> {
    if bytes.len() < count { Err(BadEntry::Short) } else { Ok(bytes.split_to(count)) }
}

fn take_u8(bytes: &mut Bytes) -> Result<u8, BadEntry> {
    take(bytes, 1).map(|one| one[0])
}

fn take_kind(bytes: &mut Bytes) -> Result<Option<Kind>, BadEntry> {
    match take_u8(bytes)? {
        NO_KIND => Ok(None),
        number => kind_from_number(number).map(Some).ok_or(BadEntry::ObjectKind(number)),
    }
}

fn take_u32(bytes: &mut Bytes) -> Result<u32, BadEntry> {
    let four = take(bytes, 4)?;
    four[..].try_into().map(u32::from_le_bytes).map_err(|_| BadEntry::Short)
}

fn take_u64(bytes: &mut Bytes) -> Result<u64, BadEntry> {
    let eight = take(bytes, 8)?;
    eight[..].try_into().map(u64::from_le_bytes).map_err(|_| BadEntry::Short)
}

#[cfg(test)]
mod tests;
