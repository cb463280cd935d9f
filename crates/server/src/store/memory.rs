//! A data directory in memory, for tests and the simulator; it can lose what was not synced.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mafs_durable::{Disk, MemoryDisk, MemoryKv, OpenKv};
use mafs_proto::VolumeName;

use super::Storage;

/// A data directory in memory. Clones are the same one.
#[derive(Clone)]
pub struct MemoryStorage {
    disk: MemoryDisk,
    indexes: Arc<Mutex<BTreeMap<VolumeName, MemoryKv>>>,
    seed: Arc<AtomicU64>,
}

impl MemoryStorage {
    /// Makes an empty data directory. Identities made here follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { disk: MemoryDisk::new(), indexes: Arc::default(), seed: Arc::new(AtomicU64::new(seed)) }
    }

    /// Returns its disk, to inject faults and count syncs.
    #[must_use]
    pub fn memory_disk(&self) -> &MemoryDisk {
        &self.disk
    }

    /// Returns the data that a power cut leaves: exactly what was synced; of the indexes also some of what was not,
    /// chosen by `seed`.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        self.after(self.disk.crash(), |kv| kv.crash(seed))
    }

    /// Returns the data like [`Self::crash`], but parts of what was not synced survive, torn.
    #[must_use]
    pub fn crash_torn(&self, seed: u64) -> Self {
        self.after(self.disk.crash_torn(seed), |kv| kv.crash(seed))
    }

    /// Returns the data that kill -9 leaves: every file as it was; of the indexes what `seed` chooses, because an
    /// index buffers.
    #[must_use]
    pub fn kill(&self, seed: u64) -> Self {
        self.after(self.disk.kill(), |kv| kv.crash(seed))
    }

    fn after(&self, disk: MemoryDisk, surviving: impl Fn(&MemoryKv) -> MemoryKv) -> Self {
        let indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        let indexes = indexes.iter().map(|(name, kv)| (name.clone(), surviving(kv).on(&disk))).collect();
        Self { disk, indexes: Arc::new(Mutex::new(indexes)), seed: Arc::clone(&self.seed) }
    }
}

impl Storage for MemoryStorage {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.disk.clone())
    }

    fn index(&self, volume: &VolumeName) -> OpenKv {
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        let kv = indexes.entry(volume.clone()).or_insert_with(|| MemoryKv::new().on(&self.disk));
        kv.opener()
    }

    fn random(&self) -> io::Result<[u8; 16]> {
        let seed = self.seed.fetch_add(1, Ordering::Relaxed);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&blake3::hash(&seed.to_le_bytes()).as_bytes()[..16]);
        Ok(bytes)
    }

    fn owner(&self) -> (u32, u32) {
        (0, 0)
    }
}
