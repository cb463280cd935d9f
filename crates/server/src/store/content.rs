//! Content files: each holds one version of one file, and never changes once it has its name.
//!
//! A content arrives into one of the [`Spools`](super::Spools), is made durable, and gets its name `content/xx/ID`
//! before the journal record that names it. So a content file that no object names is legal: it is left over from a
//! store that was not committed, or from one that has been replaced, and is collected at the next start.
//!
//! Contents of at most [`INLINE_BYTES_MAX`] have no file. Blocks of zeros in others are holes and take no room, whether
//! they were sent or not.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mafs_durable::{Disk, DiskFile, Fallocate};
use mafs_proto::{Fid, FsError, Uniquifier, VnodeId, VolumeId};

use crate::core::{ContentId, ContentSerial, Refusal};

/// Contents up to this size live in the index and travel in the journal record (architecture.md, "Log first, index
/// second").
pub(crate) const INLINE_BYTES_MAX: u64 = 16 * 1024;

/// Content files are spread over this many directories.
const SHARDS: usize = 256;

/// Room that contents may not use, so that the journal always has some.
///
/// Below `bytes` nothing is taken that makes the volume larger; below a quarter of it nothing at all, so a full disk
/// can still be emptied by removing files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SpaceReserve {
    pub(crate) bytes: u64,
}

impl SpaceReserve {
    /// Checks that there is room for a mutation, which may need `content_bytes` of its own if it `grows` the volume.
    pub(crate) fn check(self, disk: &dyn Disk, grows: bool, content_bytes: u64) -> Result<(), Refusal> {
        let free = disk.space().map_err(|error| refuse_io("ask for free space", &error))?.bytes_free;
        let needed = if grows { self.bytes.saturating_add(content_bytes) } else { self.bytes / 4 };
        if free >= needed {
            return Ok(());
        }
        let detail = format!(
            "no space left on the server: {free} bytes are free, {needed} are needed, as {} are kept for the journal",
            self.bytes
        );
        Err(Refusal::new(FsError::NoSpace, detail))
    }
}

/// Contents that are to be removed.
#[derive(Default)]
struct Unwanted {
    ids: Vec<ContentId>,
    /// Number of contents that have been removed.
    removed: u64,
}

/// The content files of one volume.
pub(crate) struct ContentStore {
    disk: Arc<dyn Disk>,
    dir: String,
    volume: VolumeId,
    /// Epoch of the present start: files of earlier ones that nothing names are orphans.
    epoch: u64,
    next: AtomicU64,
    reserve: SpaceReserve,
    /// Contents that nothing names any more and that are still there. Locked while they are removed, so that a caller
    /// that needs the room waits.
    unwanted: Mutex<Unwanted>,
    /// Whether each shard exists for certain; also serialises "is there room" with "take the room".
    shards: Mutex<Box<[bool; SHARDS]>>,
}

impl ContentStore {
    /// Makes the store for the content files of `volume`, below `dir`.
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: String, volume: VolumeId, epoch: u64, reserve: SpaceReserve) -> Self {
        let shards = Mutex::new(Box::new([false; SHARDS]));
        Self { disk, dir, volume, epoch, next: AtomicU64::new(1), reserve, unwanted: Mutex::default(), shards }
    }

    pub(super) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    pub(super) fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Checks that a content may take so much more room.
    ///
    /// # Errors
    /// `NoSpace` if not, or errors of the disk.
    pub(super) fn check_room(&self, bytes: u64) -> Result<(), Refusal> {
        self.reserve.check(&*self.disk, true, bytes)
    }

    /// Takes room for a part of a file.
    ///
    /// # Errors
    /// `NoSpace` if there is not enough, or errors of the disk.
    pub(super) fn take_room(&self, file: &dyn DiskFile, offset: u64, bytes: u64) -> Result<(), Refusal> {
        let _taking_room = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_room(bytes)?;
        match file.fallocate(Fallocate::Reserve, offset, bytes) {
            Err(error) if error.kind() != io::ErrorKind::Unsupported => {
                Err(refuse_io("reserve room for a content", &error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Opens a content for reading; it can be read to its end even if it is removed meanwhile.
    pub(crate) fn read(&self, id: ContentId) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(&self.path(id))
    }

    /// Notes contents that nothing names any more; [`Self::remove_unwanted`] removes them. If a crash comes before,
    /// they are orphans, which are legal.
    pub(crate) fn discard(&self, ids: Vec<ContentId>) {
        self.unwanted().ids.extend(ids);
    }

    /// Removes the contents that have been discarded. Returns how many have been removed so far, ever.
    pub(crate) fn remove_unwanted(&self) -> u64 {
        let mut unwanted = self.unwanted();
        let ids = std::mem::take(&mut unwanted.ids);
        unwanted.removed += ids.len() as u64;
        ids.into_iter().for_each(|id| self.remove_file(&self.path(id)));
        unwanted.removed
    }

    /// Returns how many contents have been removed so far.
    pub(super) fn removed(&self) -> u64 {
        self.unwanted().removed
    }

    fn unwanted(&self) -> MutexGuard<'_, Unwanted> {
        self.unwanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the orphans of earlier starts in one shard; `is_named` tells whether an object names a content.
    /// Returns how many there were.
    pub(crate) fn collect_orphans(&self, shard: u8, is_named: impl Fn(ContentId) -> bool) -> io::Result<u64> {
        let dir = self.shard_dir(shard.into());
        let names = match self.disk.list(&dir) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error),
        };
        let mut orphans = 0;
        for name in names {
            let Some(id) = self.parse_name(&name) else { continue };
            if id.serial.epoch < self.epoch && !is_named(id) {
                self.remove_file(&format!("{dir}/{name}"));
                orphans += 1;
            }
        }
        Ok(orphans)
    }

    pub(super) fn remove_file(&self, path: &str) {
        if let Err(error) = self.disk.remove(path) {
            tracing::debug!(path, %error, "a content file could not be removed");
        }
    }

    /// Gives a durable content of `fid` its name.
    pub(super) fn publish(&self, from: &str, fid: Fid) -> io::Result<ContentSerial> {
        let serial = ContentSerial { epoch: self.epoch, number: self.next.fetch_add(1, Ordering::Relaxed) };
        let id = ContentId { fid, serial };
        let shard = shard(id);
        let dir = self.shard_dir(shard);
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = shards.get_mut(shard).filter(|made| !**made) {
            self.disk.create_dir_all(&[&dir])?;
            *made = true;
        }
        drop(shards);
        self.disk.rename(from, &self.path(id))?;
        self.disk.sync_dir(&dir)?;
        Ok(serial)
    }

    /// Returns the path of a content, below the data directory.
    pub(crate) fn path(&self, id: ContentId) -> String {
        let ContentId { fid, serial } = id;
        let dir = self.shard_dir(shard(id));
        format!("{dir}/{:x}.{:x}.{:x}.{:x}", fid.vnode.0, fid.unique.0, serial.epoch, serial.number)
    }

    fn shard_dir(&self, shard: usize) -> String {
        format!("{}/{shard:02x}", self.dir)
    }

    fn parse_name(&self, name: &str) -> Option<ContentId> {
        let mut parts = name.split('.').map(|part| u64::from_str_radix(part, 16).ok());
        let mut part = || parts.next().flatten();
        let (vnode, unique, epoch, number) = (part()?, part()?, part()?, part()?);
        let unique = Uniquifier(unique.try_into().ok()?);
        let fid = Fid { volume: self.volume, vnode: VnodeId(vnode), unique };
        Some(ContentId { fid, serial: ContentSerial { epoch, number } })
    }
}

fn shard(id: ContentId) -> usize {
    usize::from(id.fid.vnode.0.to_le_bytes()[0])
}

/// Turns a failure of the disk into a refusal for the caller.
pub(crate) fn refuse_io(what: &str, error: &io::Error) -> Refusal {
    let number = match error.kind() {
        io::ErrorKind::StorageFull => FsError::NoSpace,
        io::ErrorKind::QuotaExceeded => FsError::Quota,
        io::ErrorKind::FileTooLarge => FsError::TooLarge,
        _ => FsError::Io,
    };
    if number == FsError::Io {
        tracing::error!(%error, "cannot {what}");
    }
    Refusal::new(number, format!("cannot {what}: {error}"))
}
