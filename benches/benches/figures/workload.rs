//! The processes of figure M2 (papers/003, section 4.3): one in the foreground that somebody waits for, one in the
//! background that writes.

use std::fmt;
use std::io;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mafs_bench::content::{Random, bytes};
use tokio::time::{Instant, sleep, sleep_until};

use crate::files::Files;

const DIRECTORIES: usize = 20;
const FILES_PER_DIRECTORY: usize = 10;
const SOURCE_BYTES: usize = 4 << 10;
/// Time that a search computes with each file.
const COMPUTING: Duration = Duration::from_millis(1);
/// Milliseconds for which the user looks at a directory that was searched, or at a large file that was read. Without
/// that the foreground's calls come right behind the background's. Then a matter of a millisecond decides which of
/// the two is first, and beside 6 s for each upload that is all that is measured.
const THINKING_MS: Range<u64> = 200..400;
const LARGE_FILES: usize = 10;
const LARGE_BYTES: usize = 64 << 10;
/// Bytes that the background writes at a time: 6 s of the slowest link, for so long a tiny call waits behind an
/// upload over plain gRPC (arpc.md).
const WRITTEN_BYTES: usize = 384 << 10;
/// Least time between the beginnings of two files in the background. This rate is nearly twice what the fastest link
/// carries, so a writer that waits for each file does not notice; one that waits for none would write without end.
const WRITING_EVERY: Duration = Duration::from_millis(200);
/// Figures of a compiler: the shares of M1's program, 1.20 MB read and 7.21 MB written.
const OBJECT_BYTES: usize = 24 << 10;
const COMPILING: Duration = Duration::from_millis(100);
/// Time in which the background finds out what the link carries.
const WARM_UP: Duration = Duration::from_secs(2);
/// Time for which the background has the link alone after that.
const LEAD: Duration = Duration::from_secs(5);

/// A process that somebody waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Foreground {
    /// Searches cached files that have to be validated.
    Grep,
    /// Reads files that are not cached.
    Read,
}

/// A process that nobody waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Background {
    /// Nothing: an idle link.
    Idle,
    /// Writes files rapidly.
    Write,
    /// Reads sources, computes, writes larger objects.
    Compile,
}

/// Results of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Outcome {
    /// Time that the user in the foreground has waited, thinking apart.
    pub(crate) foreground_s: f64,
    /// Bytes that the background has sent per second meanwhile, and how many fewer than it would have alone.
    pub(crate) written_bytes_per_s: f64,
    pub(crate) lost_bytes: f64,
    /// The longest time that the background has waited for a file to be written and closed.
    pub(crate) longest_write_s: f64,
    /// Growth per second of what waits to be sent, and its size in the end.
    pub(crate) log_growth_bytes_per_s: f64,
    pub(crate) log_bytes: f64,
    /// Calls of both to the server.
    pub(crate) calls: f64,
    /// Bytes that both have sent and received.
    pub(crate) bytes: f64,
}

impl Outcome {
    /// Writes a line that [`Outcome::from_line`] understands, for another process.
    pub(crate) fn to_line(self) -> String {
        let Self { foreground_s, written_bytes_per_s, lost_bytes, longest_write_s, .. } = self;
        let Self { log_growth_bytes_per_s, log_bytes, calls, bytes, .. } = self;
        let background = format!("{written_bytes_per_s} {lost_bytes} {longest_write_s}");
        format!("{foreground_s} {background} {log_growth_bytes_per_s} {log_bytes} {calls} {bytes}")
    }

    pub(crate) fn from_line(line: &str) -> io::Result<Self> {
        let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        match numbers.map_err(io::Error::other)?[..] {
            [
                foreground_s,
                written_bytes_per_s,
                lost_bytes,
                longest_write_s,
                log_growth_bytes_per_s,
                log_bytes,
                calls,
                bytes,
            ] => Ok(Self {
                foreground_s,
                written_bytes_per_s,
                lost_bytes,
                longest_write_s,
                log_growth_bytes_per_s,
                log_bytes,
                calls,
                bytes,
            }),
            _ => Err(io::Error::other(format!("not an outcome: {line:?}"))),
        }
    }
}

/// Traffic of a client since it was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) calls: u64,
    /// Bytes sent and received.
    pub(crate) bytes: u64,
    /// Bytes sent in class Store; where classes do not count, of everything.
    pub(crate) stored_bytes: u64,
    /// Bytes of the contents that wait in the log.
    pub(crate) log_bytes: u64,
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

/// Makes the files that the workloads read.
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

/// Brings the files of a search into the cache.
pub(crate) async fn warm(files: &Files) -> io::Result<()> {
    for (dir, file) in sources(0) {
        files.read(&dir, &file).await?;
    }
    Ok(())
}

/// Returns all sources, in an order that follows from the seed.
fn sources(seed: u64) -> Vec<(String, String)> {
    let mut random = Random::new(seed);
    let mut dirs: Vec<usize> = (0..DIRECTORIES).collect();
    for last in (1..dirs.len()).rev() {
        dirs.swap(last, usize::try_from(random.below(last as u64 + 1)).unwrap_or(last));
    }
    let files = |dir| (0..FILES_PER_DIRECTORY).map(move |file| (format!("d{dir}"), format!("f{file}")));
    dirs.into_iter().flat_map(files).collect()
}

fn large_files() -> Vec<Vec<(String, String)>> {
    (0..LARGE_FILES).map(|file| vec![("large".to_owned(), format!("f{file}"))]).collect()
}

/// Looks up the names of the files that will be read: one round trip for each file is left. Otherwise the first file
/// took three calls, and whether those come before or behind the next upload is a matter of milliseconds again.
async fn look_at(files: &Files, steps: &[Vec<(String, String)>]) -> io::Result<()> {
    for (dir, file) in steps.iter().flatten() {
        files.look(dir, file).await?;
    }
    Ok(())
}

/// Runs both until the foreground has ended.
pub(crate) async fn run(
    files: &Files,
    foreground: Foreground,
    background: Background,
    seed: u64,
) -> io::Result<Outcome> {
    let steps: Vec<Vec<(String, String)>> = match foreground {
        Foreground::Grep => sources(seed).chunks(FILES_PER_DIRECTORY).map(<[_]>::to_vec).collect(),
        Foreground::Read => large_files(),
    };
    if foreground == Foreground::Read {
        look_at(files, &steps).await?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let task = tokio::spawn(work(files.clone(), background, seed, Arc::clone(&stop)));
    sleep(WARM_UP + Duration::from_millis(Random::new(seed).below(1000))).await;
    let (alone, alone_start) = (files.sent().await?, Instant::now());
    sleep(LEAD).await;
    let (before, start) = (files.sent().await?, Instant::now());
    let mut random = Random::new(seed);
    let mut waited = Duration::ZERO;
    for step in steps {
        let (step_start, files_read) = (Instant::now(), u32::try_from(step.len()).unwrap_or(u32::MAX));
        for (dir, file) in step {
            files.read(&dir, &file).await?;
            if foreground == Foreground::Grep {
                files.compute(COMPUTING).await?;
            }
        }
        files.take_host_time(files_read).await;
        waited += step_start.elapsed();
        let thinking_ms = THINKING_MS.start + random.below(THINKING_MS.end - THINKING_MS.start);
        sleep(Duration::from_millis(thinking_ms)).await;
    }
    let lasted_s = start.elapsed().as_secs_f64();
    let after = files.sent().await?;
    stop.store(true, Ordering::Relaxed);
    let written = task.await.map_err(io::Error::other)??;
    let longest = written.iter().filter(|file| file.began >= start).map(|file| file.took).max();
    files.remove_left("out", written.into_iter().map(|file| file.name).collect()).await?;
    #[allow(clippy::cast_precision_loss, reason = "some megabytes")]
    let more = |after: u64, before: u64| after as f64 - before as f64;
    let beside = more(after.stored_bytes, before.stored_bytes) / lasted_s;
    let alone = more(before.stored_bytes, alone.stored_bytes) / start.duration_since(alone_start).as_secs_f64();
    Ok(Outcome {
        foreground_s: waited.as_secs_f64(),
        written_bytes_per_s: beside,
        lost_bytes: (alone - beside) * lasted_s,
        longest_write_s: longest.unwrap_or_default().as_secs_f64(),
        log_growth_bytes_per_s: more(after.log_bytes, before.log_bytes) / lasted_s,
        log_bytes: more(after.log_bytes, 0),
        calls: more(after.calls, before.calls),
        bytes: more(after.bytes, before.bytes),
    })
}

/// A file that the background has written.
struct Written {
    name: String,
    began: Instant,
    took: Duration,
}

async fn work(files: Files, background: Background, seed: u64, stop: Arc<AtomicBool>) -> io::Result<Vec<Written>> {
    let (sources, writer) = (sources(seed), std::process::id());
    let mut written: Vec<Written> = Vec::new();
    while !stop.load(Ordering::Relaxed) && background != Background::Idle {
        let number = written.len();
        let bytes_each = match background {
            Background::Compile => {
                let (dir, file) = &sources[number % sources.len()];
                files.read(dir, file).await?;
                files.compute(COMPILING).await?;
                OBJECT_BYTES
            }
            Background::Write | Background::Idle => {
                if let Some(last) = written.last() {
                    sleep_until(last.began + WRITING_EVERY).await;
                }
                WRITTEN_BYTES
            }
        };
        // Names of one length take equally long.
        let (name, began) = (format!("{writer:010}-{number:05}"), Instant::now());
        files.write("out", &name, bytes(number as u64, bytes_each)).await?;
        written.push(Written { name, began, took: began.elapsed() });
    }
    Ok(written)
}
