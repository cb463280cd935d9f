//! Traces like those of figure M3 (papers/003, section 4.3, Table 2), which are not published: generated to the table's
//! figures.
//!
//! The paper gives duration, processes, files, the total of their sizes, and the bytes that synchronous writeback
//! reads from the server and writes to it. With whole files in a cache that begins empty a file is read from the
//! server once at most, so the table's reads are the files that are read before they are written, and some that are
//! written without having been read: those are new. Chosen here: sizes are about lognormal (a factor of five from the
//! median is usual); which file is accessed again and which process does something follow Zipf's distribution; first
//! accesses are spread evenly over nine tenths of the duration, the others over what is left of it then, so reads from
//! the server and writes contend all the time; at least half of the accesses after the first read files that are here
//! already.

use std::time::Duration;

use mafs_proto::Random;

use super::{Zipf, shares, shuffle};

/// Figures of a trace: a column of Table 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceShape {
    /// The paper's name of it.
    pub name: &'static str,
    /// From first to last access.
    pub duration: Duration,
    /// Processes that do something.
    pub processes: usize,
    /// Files that are accessed.
    pub files: usize,
    /// Bytes of all files.
    pub size_bytes: u64,
    /// Bytes that come from the server.
    pub read_bytes: u64,
    /// Bytes that are written.
    pub write_bytes: u64,
}

/// Hundredths of a MB; 2^20 bytes are one, which is what the table's average bandwidths imply.
const fn mb(hundredths: u64) -> u64 {
    hundredths * (1 << 20) / 100
}

impl TraceShape {
    /// Table 2.
    pub const PAPER: [Self; 3] = [
        Self {
            name: "mostly writes",
            duration: Duration::from_secs(106),
            processes: 15,
            files: 276,
            size_bytes: mb(1651),
            read_bytes: mb(917),
            write_bytes: mb(3239),
        },
        Self {
            name: "mostly reads",
            duration: Duration::from_secs(31),
            processes: 47,
            files: 726,
            size_bytes: mb(1218),
            read_bytes: mb(1011),
            write_bytes: mb(235),
        },
        Self {
            name: "heavy traffic",
            duration: Duration::from_secs(26),
            processes: 30,
            files: 227,
            size_bytes: mb(1765),
            read_bytes: mb(1761),
            write_bytes: mb(542),
        },
    ];
}

/// A generated trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Bytes of each file.
    pub sizes: Vec<u64>,
    /// Whether each file is there before the trace begins; the others are made by their first write.
    pub exists: Vec<bool>,
    /// The accesses by time.
    pub accesses: Vec<TraceAccess>,
}

/// One access to one file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TraceAccess {
    /// Time since the beginning.
    pub at: Duration,
    /// The number of the process.
    pub process: usize,
    /// The number of the file.
    pub file: usize,
    /// Whether it replaces the whole content; the others read it.
    pub writes: bool,
}

impl Trace {
    /// The trace of a seed.
    #[must_use]
    pub fn new(shape: &TraceShape, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (sizes, exists) = files(&mut random, shape);
        let new = || (0..shape.files).filter(|file| !exists[*file]);
        let written_first: u64 = new().map(|file| sizes[file]).sum();
        let again = written_again(&mut random, &sizes, shape.write_bytes.saturating_sub(written_first));
        let firsts = first_times(&mut random, shape);
        let mut accesses: Vec<TraceAccess> = (0..shape.files)
            .map(|file| TraceAccess { at: firsts[file], process: 0, file, writes: !exists[file] })
            .collect();
        let popular = popular(&mut random, shape.files);
        let read_again =
            (0..again.len().max(shape.files / 2)).map(|_| (popular(&mut random), false)).collect::<Vec<_>>();
        for (file, writes) in again.into_iter().map(|file| (file, true)).chain(read_again) {
            let left_ms = millis(shape.duration.saturating_sub(firsts[file])).max(1);
            let at = firsts[file] + Duration::from_millis(1 + random.below(left_ms));
            accesses.push(TraceAccess { at: at.min(shape.duration), process: 0, file, writes });
        }
        accesses.sort_unstable();
        if let Some(last) = accesses.last_mut() {
            last.at = shape.duration;
        }
        give_to_processes(&mut random, shape, &mut accesses);
        Self { sizes, exists, accesses }
    }

    /// Drops all writes: there remain the reads of files that are there before the trace begins, at the same times.
    #[must_use]
    pub fn without_writes(mut self) -> Self {
        self.accesses.retain(|access| !access.writes && self.exists[access.file]);
        self
    }

    /// Returns the bytes of the files that are read before they are written: they have to come from the server.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.sizes.iter().zip(&self.exists).filter(|(_, exists)| **exists).map(|(size, _)| size).sum()
    }

    /// Returns the bytes that are written.
    #[must_use]
    pub fn write_bytes(&self) -> u64 {
        self.accesses.iter().filter(|access| access.writes).map(|access| self.sizes[access.file]).sum()
    }
}

/// Sizes, and which files are there before: those sum to the bytes that are read, the others to the rest.
fn files(random: &mut Random, shape: &TraceShape) -> (Vec<u64>, Vec<bool>) {
    let weights: Vec<u64> = (0..shape.files).map(|_| lognormal(random)).collect();
    let sum: u64 = weights.iter().sum();
    let mut order: Vec<usize> = (0..shape.files).collect();
    shuffle(random, &mut order);
    let (mut exists, mut reached) = (vec![false; shape.files], 0);
    let wanted = u128::from(sum) * u128::from(shape.read_bytes) / u128::from(shape.size_bytes);
    // The last one is new, whatever the table says.
    for file in order.iter().take(shape.files - 1) {
        if u128::from(reached + weights[*file]) <= wanted {
            reached += weights[*file];
            exists[*file] = true;
        }
    }
    let mut sizes = vec![0; shape.files];
    for (there, total) in [(true, shape.read_bytes), (false, shape.size_bytes - shape.read_bytes)] {
        let group: Vec<usize> = (0..shape.files).filter(|file| exists[*file] == there).collect();
        let parts = shares(total, &group.iter().map(|file| weights[*file]).collect::<Vec<_>>());
        group.iter().zip(parts).for_each(|(file, size)| sizes[*file] = size);
    }
    (sizes, exists)
}

/// About lognormal: two to a power that is the sum of four dice, which has a standard deviation of 2.3.
fn lognormal(random: &mut Random) -> u64 {
    let power: u64 = (0..4).map(|_| random.below(256)).sum();
    ((64 + power % 64) << (power / 64)) / 64
}

/// Which files are written again so that these bytes come together, to a hundredth.
fn written_again(random: &mut Random, sizes: &[u64], bytes: u64) -> Vec<usize> {
    const TRIES_MAX: usize = 10_000;
    let popular = popular(random, sizes.len());
    let (mut left, mut files) = (bytes, Vec::new());
    for _ in 0..TRIES_MAX {
        let file = popular(random);
        if sizes[file] <= left {
            left -= sizes[file];
            files.push(file);
        }
        if left < bytes / 200 {
            break;
        }
    }
    files
}

/// Draws files of which some are more popular than others.
fn popular(random: &mut Random, files: usize) -> impl Fn(&mut Random) -> usize + use<> {
    let (zipf, mut ranks) = (Zipf::new(files), (0..files).collect::<Vec<_>>());
    shuffle(random, &mut ranks);
    move |random| ranks[zipf.draw(random)]
}

/// When each file is accessed first: in the first nine tenths, one of them at the beginning.
fn first_times(random: &mut Random, shape: &TraceShape) -> Vec<Duration> {
    let end_ms = millis(shape.duration) * 9 / 10;
    let mut times: Vec<u64> = (1..shape.files).map(|_| random.below(end_ms)).chain([0]).collect();
    shuffle(random, &mut times);
    times.into_iter().map(Duration::from_millis).collect()
}

/// Every process does something.
fn give_to_processes(random: &mut Random, shape: &TraceShape, accesses: &mut [TraceAccess]) {
    let zipf = Zipf::new(shape.processes);
    let drawn = (shape.processes..accesses.len()).map(|_| zipf.draw(random));
    let mut processes: Vec<usize> = (0..shape.processes).chain(drawn).collect();
    shuffle(random, &mut processes);
    accesses.iter_mut().zip(processes).for_each(|(access, process)| access.process = process);
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn traces_have_the_papers_figures() {
        for (shape, seed) in TraceShape::PAPER.into_iter().flat_map(|shape| (1..=5).map(move |seed| (shape, seed))) {
            let trace = Trace::new(&shape, seed);
            assert_eq!((trace.sizes.len(), trace.sizes.iter().sum()), (shape.files, shape.size_bytes));
            assert_eq!(trace.read_bytes(), shape.read_bytes);
            let (written, wanted) = (trace.write_bytes(), shape.write_bytes);
            assert!(written <= wanted && written >= wanted - wanted / 100, "{}: {written} of {wanted}", shape.name);
            let processes: BTreeSet<usize> = trace.accesses.iter().map(|access| access.process).collect();
            let files: BTreeSet<usize> = trace.accesses.iter().map(|access| access.file).collect();
            assert_eq!((processes.len(), files.len()), (shape.processes, shape.files));
            assert_eq!(trace.accesses.first().map(|access| access.at), Some(Duration::ZERO));
            assert_eq!(trace.accesses.last().map(|access| access.at), Some(shape.duration));
        }
    }

    #[test]
    fn what_is_there_is_read_first_and_what_is_not_is_written_first() {
        for shape in TraceShape::PAPER {
            let trace = Trace::new(&shape, 7);
            let mut seen = BTreeSet::new();
            let firsts = trace.accesses.iter().filter(|access| seen.insert(access.file));
            firsts.for_each(|access| assert_eq!(access.writes, !trace.exists[access.file], "{access:?}"));
            assert!(trace.accesses.is_sorted_by_key(|access| access.at));
        }
    }

    #[test]
    fn traces_follow_from_the_seed() {
        let shape = TraceShape::PAPER[0];
        assert_eq!(Trace::new(&shape, 1), Trace::new(&shape, 1));
        assert_ne!(Trace::new(&shape, 1), Trace::new(&shape, 2));
    }
}
