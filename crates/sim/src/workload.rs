//! The programs of the papers' figures, as steps on a simulated client's files: what they do follows from a seed, what
//! they take is virtual time.
//!
//! Each has a part that is drawn up before anything runs and can be looked at ([`Compilation`], [`Trace`], [`Plan`]),
//! and one that performs it. A program computes by sleeping.

mod compile;
mod plan;
mod replay;
mod sharing;
mod staleness;
mod trace;

use std::fmt::Display;

use bytes::Bytes;
use mafs_client::vfs::{Caller, Error, OpenMode, Vfs};
use mafs_proto::{FsError, Mode, Random, VnodeId};

pub use compile::{Compilation, Compiled};
pub use plan::{Access, FILES, Participant, Plan, READERS, SetOperation};
pub use replay::{Replayed, populate as populate_trace, replay};
pub use sharing::{Shared, populate as populate_shared, share};
pub use staleness::{
    Read, STALENESS_MAX, Write, cumulative, ideal_versions, older_than_announced, older_than_closed, staleness,
};
pub use trace::{Trace, TraceAccess, TraceShape};

/// The user that runs the programs: the administrator.
pub const CALLER: Caller = Caller { uid: 0, gid: 0 };
/// `open(O_RDONLY)`.
pub const READ: OpenMode = OpenMode {
    read: true,
    write: false,
    truncate: false,
    append: false,
    direct: false,
    execute: false,
    exclusive: false,
    again: false,
};
/// `open(O_RDWR)`.
pub const WRITE: OpenMode = OpenMode { write: true, ..READ };
/// How a file is made, or opened anew: O_CREAT and O_TRUNC.
pub const MAKE: OpenMode = OpenMode { truncate: true, ..WRITE };
/// `open(O_WRONLY | O_TRUNC)`.
pub(crate) const REPLACE: OpenMode = OpenMode { read: false, ..MAKE };

/// Directories with files, as programs see them through one client. Clones are the same.
#[derive(Clone)]
pub struct Tree(Vfs);

impl Tree {
    /// The files of this client.
    #[must_use]
    pub fn new(vfs: Vfs) -> Self {
        Self(vfs)
    }

    /// The client.
    #[must_use]
    pub fn vfs(&self) -> &Vfs {
        &self.0
    }

    /// mkdir(2) in the root.
    ///
    /// # Errors
    /// The file system's error.
    pub async fn make_dir(&self, dir: &str) -> Result<(), String> {
        let made = self.0.make_dir(VnodeId::ROOT, name(dir), Mode::from_bits(0o755), CALLER).await;
        made.map(drop).map_err(|error| failed(dir, error))
    }

    /// Opens a file, reads it to its end and closes it.
    ///
    /// # Errors
    /// The file system's error.
    pub async fn read(&self, dir: &str, file: &str) -> Result<Bytes, String> {
        self.try_read(dir, file).await.map_err(|error| failed(&format!("reading {dir}/{file}"), error))
    }

    async fn try_read(&self, dir: &str, file: &str) -> Result<Bytes, Error> {
        let dir = self.0.lookup(VnodeId::ROOT, name(dir)).await?.fid.vnode;
        let vnode = self.0.lookup(dir, name(file)).await?.fid.vnode;
        let handle = self.0.open(vnode, READ, CALLER).await?.file;
        let content = self.0.read(handle, 0, u32::MAX / 2).await;
        self.0.release(handle);
        content
    }

    /// Makes a file or replaces its content, as by `open(O_CREAT | O_TRUNC)`: looks the name up, as the kernel does,
    /// and opens, writes and closes.
    ///
    /// # Errors
    /// The file system's error.
    pub async fn write(&self, dir: &str, file: &str, content: Vec<u8>) -> Result<(), String> {
        self.try_write(dir, file, content).await.map_err(|error| failed(&format!("writing {dir}/{file}"), error))
    }

    async fn try_write(&self, dir: &str, file: &str, content: Vec<u8>) -> Result<(), Error> {
        let dir = self.0.lookup(VnodeId::ROOT, name(dir)).await?.fid.vnode;
        let handle = match self.0.lookup(dir, name(file)).await {
            Ok(object) => self.0.open(object.fid.vnode, REPLACE, CALLER).await?.file,
            Err(Error::Refused(FsError::NotFound)) => {
                let mode = Mode::from_bits(0o644);
                self.0.create(dir, name(file), mode, REPLACE, CALLER).await?.1.file
            }
            Err(error) => return Err(error),
        };
        let written = match self.0.write(handle, 0, content.into()).await {
            Ok(_) => self.0.flush(handle).await,
            Err(error) => Err(error),
        };
        self.0.release(handle);
        written
    }

    /// Returns the bytes that the client has sent and received since it was started.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.0.statistics().iter().map(|class| class.sent_bytes + class.received_bytes).sum()
    }

    /// Returns how many calls it has made since then.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.0.statistics().iter().map(|class| class.calls).sum()
    }
}

/// Makes a content of bytes that do not matter.
fn content(length: u64) -> Vec<u8> {
    vec![7; usize::try_from(length).unwrap_or_default()]
}

fn name(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

fn failed(what: &str, error: impl Display) -> String {
    format!("{what}: {error}")
}

/// Divides `total` by weights of which one at least is not 0; the parts sum to `total` exactly.
fn shares(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().copied().map(u128::from).sum();
    let mut reached = 0;
    let bounds = weights.iter().map(|weight| {
        reached += u128::from(*weight);
        u64::try_from(u128::from(total) * reached / sum.max(1)).unwrap_or(total)
    });
    let bounds: Vec<u64> = std::iter::once(0).chain(bounds).collect();
    bounds.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// `count` lengths from half their mean to one and a half; they sum to `total`.
fn even_lengths(random: &mut Random, count: usize, total: u64) -> Vec<u64> {
    let weights: Vec<u64> = (0..count).map(|_| 500 + random.below(1001)).collect();
    shares(total, &weights)
}

/// Draws ranks with Zipf's distribution: the second is half as likely as the first, the third a third.
struct Zipf {
    /// Each rank's weight and those of all before it.
    cumulative: Vec<u64>,
}

impl Zipf {
    /// Makes a distribution of so many ranks, one at least.
    fn new(ranks: usize) -> Self {
        const FIRST: u64 = 1 << 32;
        let weights = (1..=ranks.max(1) as u64).map(|rank| FIRST / rank);
        let cumulative = weights.scan(0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Self { cumulative: cumulative.collect() }
    }

    fn draw(&self, random: &mut Random) -> usize {
        let drawn = random.below(self.cumulative.last().copied().unwrap_or(1));
        self.cumulative.partition_point(|bound| *bound <= drawn)
    }
}

/// Shuffles items into an order that follows from the random numbers (Fisher and Yates).
fn shuffle<T>(random: &mut Random, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.up_to(last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_sum_to_the_total() {
        assert_eq!(shares(10, &[1, 1, 1]), [3, 3, 4]);
        assert_eq!(shares(7, &[0, 1]), [0, 7]);
        let lengths = even_lengths(&mut Random::new(3), 160, 160 << 17);
        assert_eq!(lengths.iter().sum::<u64>(), 160 << 17);
        assert!(lengths.iter().all(|length| (1 << 15..1 << 18).contains(length)), "{lengths:?}");
    }

    #[test]
    fn the_first_rank_is_drawn_as_often_as_zipf_says() {
        let (zipf, mut random, mut drawn) = (Zipf::new(100), Random::new(1), [0_u32; 100]);
        (0..100_000).for_each(|_| drawn[zipf.draw(&mut random)] += 1);
        // The harmonic number of 100 is 5.187.
        assert!((18_800..19_800).contains(&drawn[0]), "{}", drawn[0]);
        assert!((9_200..10_100).contains(&drawn[1]), "{}", drawn[1]);
        assert!((150..250).contains(&drawn[99]), "{}", drawn[99]);
    }
}
