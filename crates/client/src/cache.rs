//! The cache on the local disk: containers with the contents of files, an index of everything known, and the modify
//! log.
//!
//! The log is the truth about what the server does not have. The index and the containers can be thrown away at any
//! time as far as the log does not name them; what is lost is fetched again.

mod cml;
mod container;
mod containers;
mod hoard_file;
mod identity;
mod index;
mod record;
mod storage;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::sync::Arc;

use mafs_durable::{Disk, KvError, KvOpen, LogError};
use mafs_proto::{ClientId, Clock, Incarnation};

use crate::core::log::LogEntry;
pub(crate) use cml::Cml;
pub(crate) use container::{Container, Hold};
pub(crate) use containers::{ContainerCopy, Containers, is_sealed, last_change, seal, shows_seal, stamp, unseal};
use hoard_file::HoardFile;
use identity::Identity;
pub(crate) use index::{AttachedVolume, Index, Known, NameEdit};
#[cfg(test)]
pub(crate) use record::tests::example;
pub(crate) use record::{CachedContent, CachedEntries, CachedEntry, CachedObject, CachedPart, RunId};
pub use storage::{CacheStorage, StorageError};

/// Reason why the cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The disk failed or is full.
    #[error("the cache's disk failed: {0}")]
    Io(#[from] std::io::Error),
    /// The index failed.
    #[error(transparent)]
    Index(#[from] KvError),
    /// The modify log failed.
    #[error("its modify log cannot be used: {0}{advice}", advice = log_advice(.0))]
    Log(#[from] LogError),
    /// Files that the server lacks are another server's.
    #[error(
        "the cache of this mount holds changes of {0} files that another server does not have yet: mount that one, or \
         choose another cache with -o cache=DIR"
    )]
    OtherServer(usize),
    /// A file of the cache makes no sense.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

/// Returns advice for a log that does not open: the files it tells of may exist nowhere else.
fn log_advice(error: &LogError) -> &'static str {
    match error {
        LogError::Damaged { .. } => {
            ": changes that the server does not have may be in `containers` beside it: keep a copy, and mount with \
             another, -o cache=DIR"
        }
        LogError::Poisoned | LogError::TooLong { .. } | LogError::Gone { .. } | LogError::Io(_) => "",
    }
}

impl CacheError {
    /// Whether freeing space on its disk helps.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::Io(error) | Self::Index(KvError::Io(error)) | Self::Log(LogError::Io(error)) => {
                matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
            }
            Self::Index(_) | Self::Log(_) | Self::OtherServer(_) | Self::Damaged(_) => false,
        }
    }
}

/// The cache on this disk, with all its parts.
pub(crate) struct Cache {
    /// Identity of this cache to servers.
    pub(crate) client: ClientId,
    /// Disk that holds all of it.
    pub(crate) disk: Arc<dyn Disk>,
    /// Index of the known objects and names.
    pub(crate) index: Index,
    /// Contents of files.
    pub(crate) containers: Containers,
    /// Modify log: the changes that the server does not have.
    pub(crate) cml: Cml,
    /// Hoard: the paths that are to be in the cache.
    pub(crate) hoard: HoardFile,
    /// Whether the machine has been started again since this cache was last in use.
    pub(crate) power_lost: bool,
}

impl Cache {
    /// Opens a cache, or makes an empty one. A damaged index is replaced by an empty one: it is filled again from the
    /// server.
    pub(crate) fn open(storage: &CacheStorage, clock: Arc<dyn Clock>) -> Result<Self, CacheError> {
        let disk = storage.disk();
        let cml = Cml::open(&disk)?;
        let client = identify(disk.as_ref(), storage.place(), &cml)?;
        let kv = match storage.open_kv(KvOpen::Existing) {
            Err(KvError::Damaged(why)) => {
                tracing::warn!("the index of the cache is damaged ({why}); it is made anew, files are fetched again");
                storage.open_kv(KvOpen::Fresh)?
            }
            other => other?,
        };
        let index = Index::open(kv, clock)?;
        let power_lost = cml.is_of_another_run(storage.boot());
        if power_lost {
            index.forget_unsynced_contents()?;
            index.forget_unsynced_parts()?;
        }
        let containers = Containers::open(Arc::clone(&disk), storage.run())?;
        let hoard = HoardFile::new(Arc::clone(&disk));
        Ok(Self { client, index, containers, cml, hoard, disk, power_lost })
    }

    /// Makes index and log durable.
    pub(crate) fn sync(&self) -> Result<(), CacheError> {
        self.cml.sync()?;
        self.index.sync()
    }

    /// Shortens the log if it has grown, keeping what the server does not have.
    pub(crate) fn compact_log(&self) -> Result<(), CacheError> {
        if self.cml.compaction_due() {
            self.index.sync()?;
            self.cml.compact()?;
        }
        Ok(())
    }
}

/// Finds the identity of this cache. A copy becomes a client of its own: records that the original may have sent are
/// not sent again under its name, and contents that it left are sent as the copy's.
fn identify(disk: &dyn Disk, place: &str, cml: &Cml) -> Result<ClientId, CacheError> {
    match Identity::load(disk, place)? {
        Identity::Own(client) => Ok(client),
        Identity::None => Identity::make(disk, place),
        Identity::OfAnother => {
            tracing::warn!("the cache is a copy, or was moved here: it becomes another client to the server");
            for id in cml.state().logged.into_keys() {
                cml.append(LogEntry::Abandoned { id })?;
            }
            cml.append(LogEntry::Incarnation(Incarnation(0)))?;
            // Lives granted in advance are the original's.
            cml.append(LogEntry::LastLife(Incarnation(0)))?;
            cml.sync()?;
            Identity::make(disk, place)
        }
    }
}
