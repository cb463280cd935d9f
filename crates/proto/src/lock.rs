//! Locks of byte ranges: their nouns, and the table of the ranges of one file and their holders, as in fcntl(2).
//!
//! Server and client use the same table, so that both split, join and replace ranges in the same way.

mod table;

pub use table::{HeldRange, Holder, LockTable};

use crate::Fid;

/// The kind of a lock: whether others may hold it too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LockKind {
    /// Others may hold a shared lock there too.
    Shared,
    /// Nobody else holds anything there.
    Exclusive,
}

impl LockKind {
    /// Whether two locks on the same bytes exclude each other.
    #[must_use]
    pub fn excludes(self, other: Self) -> bool {
        self == Self::Exclusive || other == Self::Exclusive
    }
}

/// The bytes of a lock, the last included. A lock to the end of the file ends with the largest number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockRange {
    first: u64,
    last: u64,
}

impl LockRange {
    /// Every byte that there may be.
    pub const ALL: Self = Self { first: 0, last: u64::MAX };

    /// Makes a range; `None` if the last byte comes before the first.
    #[must_use]
    pub fn new(first: u64, last: u64) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// Returns the first byte.
    #[must_use]
    pub const fn first(self) -> u64 {
        self.first
    }

    /// Returns the last byte.
    #[must_use]
    pub const fn last(self) -> u64 {
        self.last
    }

    /// Whether the two ranges have a byte in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Whether all of the other is in this one.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    /// Whether the two ranges overlap, or one begins where the other ends.
    const fn touches(self, other: Self) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }

    /// Returns the parts of the range before and behind another.
    fn without(self, other: Self) -> impl Iterator<Item = Self> {
        if !self.overlaps(other) {
            return [Some(self), None].into_iter().flatten();
        }
        let before = (self.first < other.first).then(|| Self { first: self.first, last: other.first - 1 });
        let behind = (self.last > other.last).then(|| Self { first: other.last + 1, last: self.last });
        [before, behind].into_iter().flatten()
    }
}

/// The owner of a lock among those of one client: a process, or an open file, as the kernel names them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockOwner {
    /// The kernel's number for the owner: a new lock of the owner replaces its old ones there.
    pub id: u64,
    /// The calling process; 0 if it cannot be seen.
    pub process: u32,
    /// The open file through which the process called. flock(2) and fcntl(2) name different owners; where both come
    /// from one process and through one open file they are of different kinds, which on Linux know nothing of each
    /// other.
    pub file: u64,
}

impl LockOwner {
    /// Whether two owners of one client do not exclude each other.
    #[must_use]
    pub const fn is_kin(&self, other: &Self) -> bool {
        self.id == other.id || (self.process != 0 && self.process == other.process && self.file == other.file)
    }
}

/// A lock of one client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The file.
    pub fid: Fid,
    /// The owner that has the lock, or wants it.
    pub owner: LockOwner,
    /// The bytes.
    pub range: LockRange,
    /// The kind: whether others may share the lock.
    pub kind: LockKind,
}
