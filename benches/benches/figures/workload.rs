//! The processes of figure M2 (papers/003, section 4.3): one in the foreground that somebody waits for, one in the
//! background that writes.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mafs_bench::content::{Random, bytes};
use tokio::time::{Instant, sleep};

use crate::files::Files;

const DIRECTORIES: usize = 20;
const FILES_PER_DIRECTORY: usize = 10;
const SOURCE_BYTES: usize = 4 << 10;
/// What the foreground computes with each file.
const COMPUTING: Duration = Duration::from_millis(1);
const LARGE_FILES: usize = 10;
const LARGE_BYTES: usize = 64 << 10;
/// What the background writes at a time: 6 s of the slowest link, for so long a tiny call waits behind an upload over
/// plain gRPC (arpc.md).
const WRITTEN_BYTES: usize = 384 << 10;
/// Of a compiler: the shares of M1's program, 1.20 MB read and 7.21 MB written.
const OBJECT_BYTES: usize = 24 << 10;
const COMPILING: Duration = Duration::from_millis(100);
/// In this time the background finds out what the link carries.
const WARM_UP: Duration = Duration::from_secs(2);
/// So long it has the link alone after that.
const LEAD: Duration = Duration::from_secs(5);

/// Somebody waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Foreground {
    /// Searches cached files that have to be validated.
    Grep,
    /// Reads files that are not cached.
    Read,
}

/// Nobody waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Background {
    /// Nothing: an idle link.
    Idle,
    /// Writes files rapidly.
    Write,
    /// Reads sources, computes, writes larger objects.
    Compile,
}

/// What a run has shown.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Outcome {
    pub(crate) foreground_s: f64,
    /// What the background has sent per second in that time, and before, when it was alone.
    pub(crate) written_bytes_per_s: [f64; 2],
    /// Calls of both to the server.
    pub(crate) calls: f64,
    /// What both have sent and received.
    pub(crate) bytes: f64,
}

impl Outcome {
    /// What the background has written less than it would have alone.
    pub(crate) fn lost_bytes(&self) -> f64 {
        let [beside, alone] = self.written_bytes_per_s;
        (alone - beside) * self.foreground_s
    }
}

/// What a client has sent since it was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) calls: u64,
    /// And received.
    pub(crate) bytes: u64,
    /// In class Store; where classes do not count, of everything.
    pub(crate) stored_bytes: u64,
}

macro_rules! named {
    ($type:ident: $($variant:ident $name:literal),*) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $name),* })
            }
        }

        impl FromStr for $type {
            type Err = io::Error;

            fn from_str(name: &str) -> io::Result<Self> {
                match name {
                    $($name => Ok(Self::$variant),)*
                    _ => Err(io::Error::other(format!("unknown: {name}"))),
                }
            }
        }
    };
}

named!(Foreground: Grep "grep", Read "read");
named!(Background: Idle "idle", Write "write", Compile "compile");

/// Makes what the workloads read.
pub(crate) async fn populate(files: &Files) -> io::Result<()> {
    for dir in 0..DIRECTORIES {
        files.make_dir(&format!("d{dir}")).await?;
        for file in 0..FILES_PER_DIRECTORY {
            files.write(&format!("d{dir}"), &format!("f{file}"), bytes(1, SOURCE_BYTES)).await?;
        }
    }
    files.make_dir("large").await?;
    for file in 0..LARGE_FILES {
        files.write("large", &format!("f{file}"), bytes(2, LARGE_BYTES)).await?;
    }
    files.make_dir("out").await
}

/// Brings into the cache what a search finds there.
pub(crate) async fn warm(files: &Files) -> io::Result<()> {
    for (dir, file) in sources(0) {
        files.read(&dir, &file).await?;
    }
    Ok(())
}

/// All sources, in an order that follows from the seed.
fn sources(seed: u64) -> Vec<(String, String)> {
    let mut random = Random::new(seed);
    let mut dirs: Vec<usize> = (0..DIRECTORIES).collect();
    for last in (1..dirs.len()).rev() {
        dirs.swap(last, usize::try_from(random.below(last as u64 + 1)).unwrap_or(last));
    }
    let files = |dir| (0..FILES_PER_DIRECTORY).map(move |file| (format!("d{dir}"), format!("f{file}")));
    dirs.into_iter().flat_map(files).collect()
}

/// Runs both until the foreground has ended.
pub(crate) async fn run(
    files: &Files,
    foreground: Foreground,
    background: Background,
    seed: u64,
) -> io::Result<Outcome> {
    let stop = Arc::new(AtomicBool::new(false));
    let task = tokio::spawn(work(files.clone(), background, seed, Arc::clone(&stop)));
    sleep(WARM_UP + Duration::from_millis(Random::new(seed).below(1000))).await;
    let (alone, alone_start) = (files.sent().await?, Instant::now());
    sleep(LEAD).await;
    let (before, start) = (files.sent().await?, Instant::now());
    match foreground {
        Foreground::Grep => grep(files, seed).await?,
        Foreground::Read => read(files).await?,
    }
    let foreground_s = start.elapsed().as_secs_f64();
    let after = files.sent().await?;
    stop.store(true, Ordering::Relaxed);
    task.await.map_err(io::Error::other)??;
    #[allow(clippy::cast_precision_loss, reason = "some megabytes")]
    let more = |after: u64, before: u64| (after - before) as f64;
    let written_beside = more(after.stored_bytes, before.stored_bytes) / foreground_s;
    let written_alone = more(before.stored_bytes, alone.stored_bytes) / start.duration_since(alone_start).as_secs_f64();
    let (calls, bytes) = (more(after.calls, before.calls), more(after.bytes, before.bytes));
    Ok(Outcome { foreground_s, written_bytes_per_s: [written_beside, written_alone], calls, bytes })
}

async fn grep(files: &Files, seed: u64) -> io::Result<()> {
    for (dir, file) in sources(seed) {
        files.read(&dir, &file).await?;
        files.compute(COMPUTING).await?;
    }
    Ok(())
}

async fn read(files: &Files) -> io::Result<()> {
    for file in 0..LARGE_FILES {
        files.read("large", &format!("f{file}")).await?;
    }
    Ok(())
}

async fn work(files: Files, background: Background, seed: u64, stop: Arc<AtomicBool>) -> io::Result<()> {
    let sources = sources(seed);
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) && background != Background::Idle {
        let bytes_each = match background {
            Background::Compile => {
                let (dir, file) = &sources[number % sources.len()];
                files.read(dir, file).await?;
                files.compute(COMPILING).await?;
                OBJECT_BYTES
            }
            Background::Write | Background::Idle => WRITTEN_BYTES,
        };
        files.write("out", &format!("{seed}-{number}"), bytes(number as u64, bytes_each)).await?;
        number += 1;
    }
    Ok(())
}
