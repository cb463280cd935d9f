//! The memory twin of an index, which can lose what was not synced.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mafs_proto::Random;

use crate::{Batch, Kv, KvError, KvOpen, MemoryDisk, OpenKv, Pair};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A [`Kv`] in memory. Clones are the same index.
#[derive(Clone, Default)]
pub struct MemoryKv {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    map: Map,
    durable: Map,
    /// Batches that made `map` of `durable`, in order.
    pending: VecDeque<Batch>,
    damaged: bool,
    full: bool,
    disk: Option<MemoryDisk>,
}

/// Batches that may wait for a sync; beyond, the oldest become durable by themselves, as a real index flushes now and
/// then.
const PENDING_MAX: usize = 4096;

impl MemoryKv {
    /// Makes an empty index.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts the index on the power supply of `disk`: once that is frozen, nothing applied or synced here survives a
    /// crash.
    #[must_use]
    pub fn on(self, disk: &MemoryDisk) -> Self {
        self.state().disk = Some(disk.clone());
        self
    }

    /// Returns the index that a power cut leaves: what was synced, and some number of the batches after it.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        let state = self.state();
        let kept = Random::new(seed).up_to(state.pending.len());
        let mut map = state.durable.clone();
        for batch in state.pending.iter().take(kept) {
            change(&mut map, batch);
        }
        let state = State { durable: map.clone(), map, damaged: state.damaged, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Damages the index: every call answers so, until it is opened afresh.
    pub fn damage(&self) {
        self.state().damaged = true;
    }

    /// Takes no changes from now on, as on a full disk, or takes them again.
    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// Opens this index, or empties it.
    #[must_use]
    pub fn opener(&self) -> OpenKv {
        let kv = self.clone();
        Box::new(move |how| {
            match how {
                KvOpen::Existing => drop(kv.usable()?),
                KvOpen::Fresh => {
                    let mut state = kv.state();
                    *state = State { disk: state.disk.take(), ..State::default() };
                }
            }
            Ok(Arc::new(kv.clone()))
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn usable(&self) -> Result<MutexGuard<'_, State>, KvError> {
        let state = self.state();
        if state.damaged { Err(KvError::Damaged("injected".to_owned())) } else { Ok(state) }
    }

    fn writable(&self) -> Result<MutexGuard<'_, State>, KvError> {
        let state = self.usable()?;
        if state.full { Err(KvError::Io(std::io::ErrorKind::StorageFull.into())) } else { Ok(state) }
    }
}

impl State {
    fn powered(&self) -> bool {
        !self.disk.as_ref().is_some_and(MemoryDisk::frozen)
    }

    fn flush(&mut self, keep: usize) {
        while self.pending.len() > keep {
            if let Some(batch) = self.pending.pop_front() {
                change(&mut self.durable, &batch);
            }
        }
    }
}

impl Kv for MemoryKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        Ok(self.usable()?.map.get(key).cloned())
    }

    fn check_writable(&self) -> Result<(), KvError> {
        self.writable().map(drop)
    }

    fn apply(&self, batch: &Batch) -> Result<(), KvError> {
        let mut state = self.writable()?;
        change(&mut state.map, batch);
        if state.powered() {
            state.pending.push_back(batch.clone());
            state.flush(PENDING_MAX);
        }
        Ok(())
    }

    fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Pair>, KvError> {
        let state = self.usable()?;
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let pairs = state.map.range::<[u8], _>((start, Bound::Unbounded));
        let pairs = pairs.take_while(|(key, _)| key.starts_with(prefix)).take(limit);
        Ok(pairs.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn sync(&self) -> Result<(), KvError> {
        let mut state = self.usable()?;
        if state.powered() {
            state.flush(0);
        }
        Ok(())
    }
}

fn change(map: &mut Map, batch: &Batch) {
    for (key, value) in &batch.changes {
        match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
}
