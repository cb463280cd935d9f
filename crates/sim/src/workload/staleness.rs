//! How stale what readers see is (papers/003, section 5.4, "Read staleness").
//!
//! A file's version is how often it has been written; the first is 0. The ideal is what a read would have found had all
//! participants run on one host: there an operation takes no time, so it is the number of writes to the file that were
//! *planned* before the read's operation was. A read's staleness is the ideal version less the version that it
//! returned; a read that came late and returned a newer one than the ideal counts as 0, up to date.

use std::time::Duration;

use super::plan::{Access, Plan, SetOperation};

/// The largest staleness that distributions tell apart, as in the paper's figure 7.
pub const STALENESS_MAX: usize = 10;

/// A read that was performed. Times are since the beginning of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// The file's number.
    pub file: usize,
    /// When it was asked for.
    pub began: Duration,
    /// When it was there.
    pub ended: Duration,
    /// The version that was in it.
    pub version: u64,
}

/// A write that was performed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// Which file.
    pub file: usize,
    /// Which version it made.
    pub version: u64,
    /// When its close returned.
    pub closed: Duration,
    /// From when on the server shows nobody what was before, if that is known: it has the content or has announced it,
    /// and all promises are broken.
    pub announced: Option<Duration>,
}

/// The ideal versions of a reader's reads, in its order.
#[must_use]
pub fn ideal_versions(plan: &Plan, reader: usize) -> Vec<u64> {
    let version_at = |file: usize, at: Duration| {
        let before = plan.writer.iter().take_while(|operation| operation.at <= at);
        let writes = |access: &&Access| access.writes && access.file == file;
        before.map(|operation| operation.accesses.iter().filter(writes).count() as u64).sum()
    };
    let reads = |operation: &SetOperation| -> Vec<u64> {
        operation.accesses.iter().map(|access| version_at(access.file, operation.at)).collect()
    };
    plan.readers[reader].iter().flat_map(reads).collect()
}

/// How many versions each read is behind.
#[must_use]
pub fn staleness(ideal: &[u64], reads: &[Read]) -> Vec<u64> {
    ideal.iter().zip(reads).map(|(ideal, read)| ideal.saturating_sub(read.version)).collect()
}

/// Which part of the reads is at most 0, 1 ... [`STALENESS_MAX`] versions behind.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "some thousands")]
pub fn cumulative(staleness: &[u64]) -> [f64; STALENESS_MAX + 1] {
    std::array::from_fn(|most| {
        let within = staleness.iter().filter(|behind| **behind <= most as u64).count();
        within as f64 / staleness.len().max(1) as f64
    })
}

/// The reads that returned an older version than had been announced when they began.
#[must_use]
pub fn older_than_announced(writes: &[Write], reads: &[Read]) -> Vec<Read> {
    let announced = |write: &Write, began| write.announced.is_some_and(|at| at < began);
    reads.iter().filter(|read| read.version < newest(writes, read, announced)).copied().collect()
}

/// The reads that returned an older version than the writer had closed when they began. The ideal is kind to readers
/// that are late, because they are compared with what was planned; this is not.
#[must_use]
pub fn older_than_closed(writes: &[Write], reads: &[Read]) -> Vec<Read> {
    let closed = |write: &Write, began| write.closed < began;
    reads.iter().filter(|read| read.version < newest(writes, read, closed)).copied().collect()
}

/// The newest version of a read's file of which this was so when the read began.
fn newest(writes: &[Write], read: &Read, was_so: impl Fn(&Write, Duration) -> bool) -> u64 {
    let of_file = writes.iter().filter(|write| write.file == read.file && was_so(write, read.began));
    of_file.map(|write| write.version).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn operation(at: Duration, accesses: &[(usize, bool)]) -> SetOperation {
        SetOperation {
            at,
            accesses: accesses.iter().map(|(file, writes)| Access { file: *file, writes: *writes }).collect(),
        }
    }

    fn read(file: usize, began: Duration, version: u64) -> Read {
        Read { file, began, ended: began, version }
    }

    #[test]
    fn the_ideal_counts_planned_writes_and_the_distribution_what_is_behind() {
        let writer =
            vec![operation(s(2), &[(0, true), (0, true), (1, false)]), operation(s(5), &[(0, true), (1, true)])];
        let reader = vec![
            operation(s(1), &[(0, false)]),
            operation(s(3), &[(0, false), (1, false)]),
            operation(s(6), &[(0, false)]),
        ];
        let plan = Plan { lengths: vec![8; 2], writer, readers: vec![reader] };
        let ideal = ideal_versions(&plan, 0);
        assert_eq!(ideal, [0, 2, 0, 3]);
        // The second is two behind; the third came late, and is newer than the ideal; the last is one behind.
        let reads = [read(0, s(1), 0), read(0, s(3), 0), read(1, s(9), 1), read(0, s(9), 2)];
        let behind = staleness(&ideal, &reads);
        assert_eq!(behind, [0, 2, 0, 1]);
        assert_eq!(cumulative(&behind)[..4], [0.5, 0.75, 1.0, 1.0]);
        assert_eq!(cumulative(&[11])[STALENESS_MAX], 0.0);
    }

    #[test]
    fn only_a_read_that_began_after_the_announcement_can_be_too_old() {
        let write = |file, version, announced| Write { file, version, closed: s(version), announced };
        let writes = [write(0, 1, Some(s(2))), write(0, 2, Some(s(4))), write(0, 3, None), write(1, 1, Some(s(1)))];
        let reads = [read(0, s(3), 1), read(0, s(4), 1), read(0, s(5), 1), read(0, s(6), 2), read(1, s(6), 0)];
        assert_eq!(older_than_announced(&writes, &reads), [reads[2], reads[4]]);
        assert_eq!(older_than_closed(&writes, &reads), reads);
    }
}
