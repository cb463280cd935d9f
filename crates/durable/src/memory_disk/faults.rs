//! Faults of a memory disk: which writes and syncs fail, and what a failed sync means.
//!
//! After a failed sync Linux counts the pages as written and keeps them: their bytes can be read, are not durable,
//! and no later sync makes them so.

use std::io;

use super::MemoryDisk;

/// Counts writes and syncs, and knows which of them are to fail.
#[derive(Default)]
pub(super) struct Faults {
    syncs: u64,
    writes: u64,
    fail_from: Option<u64>,
    fail_sync: Option<u64>,
    fail_write: Option<u64>,
    die_at: Option<u64>,
    dead: bool,
}

/// Outcome of a sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Done,
    /// Nothing is made durable, and nobody is told.
    Deceives,
    Fails {
        /// Whether the bytes that were to be made durable count as written from now on.
        loses: bool,
    },
}

impl Faults {
    pub(super) fn syncs(&self) -> u64 {
        self.syncs
    }

    pub(super) fn sync(&mut self) -> Outcome {
        let number = self.syncs;
        self.syncs += 1;
        if self.dead || self.fail_from.is_some_and(|from| number >= from) {
            return Outcome::Fails { loses: false };
        }
        if self.fail_sync == Some(number) {
            return Outcome::Fails { loses: true };
        }
        self.dead = self.die_at == Some(number);
        if self.dead { Outcome::Deceives } else { Outcome::Done }
    }

    /// Counts a write, or another change of a file.
    pub(super) fn write(&mut self) -> io::Result<()> {
        let number = self.writes;
        self.writes += 1;
        if self.fail_write == Some(number) { Err(failed()) } else { self.alive() }
    }

    /// Fails if names can no longer be changed.
    pub(super) fn alive(&self) -> io::Result<()> {
        if self.dead { Err(failed()) } else { Ok(()) }
    }
}

pub(super) fn failed() -> io::Error {
    io::Error::other("injected: the disk failed")
}

impl MemoryDisk {
    /// Returns how often a file, a directory or all was synced.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.world().faults.syncs
    }

    /// Returns how often something was written into a file, or its size or room changed.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.world().faults.writes
    }

    /// Lets sync number `count` (the first is number 0) and all later ones fail with an I/O error.
    pub fn fail_syncs_from(&self, count: u64) {
        self.world().faults.fail_from = Some(count);
    }

    /// Lets sync number `count` (the first is number 0) fail, and no other. The bytes that it was to make durable can
    /// be read as before, and count as written: no later sync makes them durable, unless they are written again.
    pub fn fail_sync(&self, count: u64) {
        self.world().faults.fail_sync = Some(count);
    }

    /// Lets write number `count` (the first is number 0) fail with an I/O error, and no other.
    pub fn fail_write(&self, count: u64) {
        self.world().faults.fail_write = Some(count);
    }

    /// Lets the disk die in sync number `count` (the first is number 0), which says that all is well: as an ext4 that
    /// shuts down while it makes blocks durable that were reserved. Every call that changes anything fails
    /// afterwards.
    pub fn die_at_sync(&self, count: u64) {
        self.world().faults.die_at = Some(count);
    }

    /// Tells whether the write or sync that was to fail, or to be the last, has been reached.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let Faults { syncs, writes, fail_sync, fail_write, dead, .. } = self.world().faults;
        dead || fail_sync.is_some_and(|number| number < syncs) || fail_write.is_some_and(|number| number < writes)
    }
}
