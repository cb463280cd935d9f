//! A compiler whose source is in the file system: figure M1 (papers/003, section 4.3, figure 3).
//!
//! The bytes are the paper's: 1.20 MB of source read, 7.21 MB written. The paper does not say the rest, so it is
//! chosen here: 80 sources and 50 headers, two thirds and one third of the bytes; for each source a compiler reads it
//! and ten headers (which are in the cache after the first time), computes, and writes an object; in the end a linker
//! reads all objects (from the cache), computes, and writes the program, a third of all that is written. One process,
//! as by `make` without -j. Computing takes 90 s in all, so that at 1 MB/s it is nine tenths of the time: "at 1 MB/s,
//! bandwidth is high enough to eliminate differences between writeback schemes".

use std::time::Duration;

use mafs_proto::Random;
use tokio::time::{Instant, sleep};

use super::{Tree, content, even_lengths, failed};

const SOURCES: usize = 80;
const HEADERS: usize = 50;
/// How many headers each source includes.
const INCLUDED: usize = 10;
/// The paper's 1.20 MB and 7.21 MB; a MB is 2^20 bytes, as in its Table 2.
const READ_BYTES: u64 = 120 * (1 << 20) / 100;
const WRITTEN_BYTES: u64 = 721 * (1 << 20) / 100;
/// Time for a source of average length; in proportion to it with others.
const COMPILING: Duration = Duration::from_secs(1);
const LINKING: Duration = Duration::from_secs(10);

/// A program to compile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compilation {
    seed: u64,
    /// Bytes of each source.
    sources: Vec<u64>,
    headers: Vec<u64>,
    objects: Vec<u64>,
    /// Bytes of what the linker writes.
    program: u64,
    /// Computing time for all sources, and of the linker.
    compiling: Duration,
    linking: Duration,
}

/// Times of a compilation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// Until the linker had ended.
    pub took: Duration,
    /// Until the server had everything besides.
    pub sent_after: Duration,
}

impl Compilation {
    /// Makes the paper's compilation; the seed says how its bytes are divided among the files.
    #[must_use]
    pub fn of_paper(seed: u64) -> Self {
        Self::shrunk(seed, 1)
    }

    /// Makes a compilation with so many times fewer files of the same lengths, and less to compute.
    #[must_use]
    pub fn shrunk(seed: u64, by: u32) -> Self {
        let (mut random, divisor) = (Random::new(seed), u64::from(by.max(1)));
        let count = |files: usize| files.div_ceil(by.max(1) as usize);
        let (read, written) = (READ_BYTES / divisor, WRITTEN_BYTES / divisor);
        let sources = even_lengths(&mut random, count(SOURCES), read - read / 3);
        let headers = even_lengths(&mut random, count(HEADERS), read / 3);
        let objects = even_lengths(&mut random, count(SOURCES), written - written / 3);
        let compiling = COMPILING * u32::try_from(sources.len()).unwrap_or(u32::MAX);
        Self { seed, sources, headers, objects, program: written / 3, compiling, linking: LINKING / by.max(1) }
    }

    /// Returns the bytes that have to come from the server.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.sources.iter().chain(&self.headers).sum()
    }

    /// Returns the bytes that have to go there.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.objects.iter().sum::<u64>() + self.program
    }

    /// Writes the sources.
    ///
    /// # Errors
    /// The file system's error.
    pub async fn populate(&self, tree: &Tree) -> Result<(), String> {
        tree.make_dir("src").await?;
        tree.make_dir("obj").await?;
        for (number, length) in self.sources.iter().enumerate() {
            tree.write("src", &source(number), content(*length)).await?;
        }
        for (number, length) in self.headers.iter().enumerate() {
            tree.write("src", &header(number), content(*length)).await?;
        }
        Ok(())
    }

    /// Compiles and links.
    ///
    /// # Errors
    /// The file system's error.
    pub async fn run(&self, tree: &Tree) -> Result<Compiled, String> {
        let (start, mut random) = (Instant::now(), Random::new(self.seed));
        let all: u64 = self.sources.iter().sum();
        for (number, (length, object_length)) in self.sources.iter().zip(&self.objects).enumerate() {
            tree.read("src", &source(number)).await?;
            for at in 0..INCLUDED {
                // Each header is included by somebody, the first sources' included.
                let any = random.up_to(self.headers.len() - 1);
                let next = (number * INCLUDED / 2 + at) % self.headers.len();
                tree.read("src", &header(if at % 2 == 0 { next } else { any })).await?;
            }
            sleep(part(self.compiling, *length, all)).await;
            tree.write("obj", &object(number), content(*object_length)).await?;
        }
        for number in 0..self.objects.len() {
            tree.read("obj", &object(number)).await?;
        }
        sleep(self.linking).await;
        tree.write("obj", "program", content(self.program)).await?;
        let took = start.elapsed();
        tree.vfs().sync().await.map_err(|error| failed("sync", error))?;
        Ok(Compiled { took, sent_after: start.elapsed() - took })
    }
}

fn part(of: Duration, numerator: u64, denominator: u64) -> Duration {
    let nanos = of.as_nanos() * u128::from(numerator) / u128::from(denominator.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn source(number: usize) -> String {
    format!("{number}.cc")
}

fn header(number: usize) -> String {
    format!("{number}.h")
}

fn object(number: usize) -> String {
    format!("{number}.o")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_has_the_papers_bytes() {
        let compilation = Compilation::of_paper(1);
        assert_eq!((compilation.read_bytes(), compilation.written_bytes()), (1_258_291, 7_560_232));
        assert_eq!(compilation, Compilation::of_paper(1));
        assert_ne!(compilation, Compilation::of_paper(2));
    }
}
