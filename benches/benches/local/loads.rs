//! The loads: each works in a directory that [`prepare`] has filled, and returns a rate; larger is better.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use mafs_bench::content::{self, bytes, write_file};
use mafs_bench::process::run;

/// A load, given the directory and the number of the run.
type Load = fn(&Path, usize) -> io::Result<f64>;

/// The measured loads: name, unit, load.
pub(crate) const LOADS: [(&str, &str, Load); 8] = [
    ("warm read of 256 MB", "MB/s", read_large),
    ("mmap read of 256 MB", "MB/s", read_mapped),
    ("4 KB writes, 64 MB, without the close", "MB/s", write_small_pieces),
    ("stat", "1/s", stat),
    ("open + read 4 KB + close", "1/s", open_read_close),
    ("create + write 4 KB + close, 1 writer", "1/s", create_by_one),
    ("the same, 8 writers in a directory each", "1/s", create_by_eight),
    ("write of 1 GB + close", "MB/s", write_huge),
];

const LARGE_BYTES: u64 = 256 << 20;
const HUGE_BYTES: u64 = 1 << 30;
const PIECEWISE_BYTES: u64 = 64 << 20;
const SMALL_BYTES: usize = 4_096;
const SMALL_FILES: usize = 2_000;
const CREATED_FILES: usize = 800;
const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_secs(300);

/// Makes the files that the loads read.
pub(crate) fn prepare(directory: &Path) -> io::Result<()> {
    write_file(&directory.join("large"), 1, LARGE_BYTES)?;
    fs::create_dir(directory.join("small"))?;
    (0..SMALL_FILES).try_for_each(|number| fs::write(small_file(directory, number), bytes(2, SMALL_BYTES)))
}

pub(crate) fn read_large(directory: &Path, _run: usize) -> io::Result<f64> {
    let start = Instant::now();
    read_through(&directory.join("large"))?;
    Ok(megabytes_per_second(LARGE_BYTES, start))
}

/// Reads a large file through a mapping. Rust cannot map a file without `unsafe`, so a script does, and says how long
/// it took.
fn read_mapped(directory: &Path, _run: usize) -> io::Result<f64> {
    const SCRIPT: &str = "
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
start = time.perf_counter()
mapped = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
for at in range(0, len(mapped), 1 << 20):
    mapped[at:at + (1 << 20)]
print(len(mapped) / 1e6 / (time.perf_counter() - start))
";
    let output = run(Command::new("python3").args(["-c", SCRIPT]).arg(directory.join("large")), LIMIT)?;
    output.trim().parse().map_err(io::Error::other)
}

fn write_small_pieces(directory: &Path, _run: usize) -> io::Result<f64> {
    let path = directory.join("piecewise");
    let piece = bytes(5, SMALL_BYTES);
    let mut file = File::create(&path)?;
    let start = Instant::now();
    for _ in 0..PIECEWISE_BYTES / SMALL_BYTES as u64 {
        io::Write::write_all(&mut file, &piece)?;
    }
    let rate = megabytes_per_second(PIECEWISE_BYTES, start);
    drop(file);
    fs::remove_file(&path)?;
    Ok(rate)
}

pub(crate) fn copy_and_read_large(directory: &Path) -> io::Result<f64> {
    let copy = directory.join("copy");
    let start = Instant::now();
    fs::copy(directory.join("large"), &copy)?;
    read_through(&copy)?;
    let rate = megabytes_per_second(LARGE_BYTES, start);
    fs::remove_file(&copy)?;
    Ok(rate)
}

pub(crate) fn make_repository(repository: &Path) -> io::Result<()> {
    git(repository, &["init", "--quiet"])?;
    git(repository, &["add", "--all"])?;
    git(repository, &["commit", "--quiet", "-m", "everything"])?;
    git(repository, &["status"])
}

pub(crate) fn git_status(directory: &Path) -> io::Result<f64> {
    let start = Instant::now();
    for _ in 0..ROUNDS {
        git(&directory.join("repository"), &["status", "--porcelain"])?;
    }
    Ok(rate(ROUNDS, start))
}

fn stat(directory: &Path, _run: usize) -> io::Result<f64> {
    let start = Instant::now();
    for _ in 0..ROUNDS {
        for number in 0..SMALL_FILES {
            black_box(fs::metadata(small_file(directory, number))?);
        }
    }
    Ok(rate(ROUNDS * SMALL_FILES, start))
}

fn open_read_close(directory: &Path, _run: usize) -> io::Result<f64> {
    let start = Instant::now();
    let mut piece = [0; SMALL_BYTES];
    for number in 0..SMALL_FILES {
        File::open(small_file(directory, number))?.read_exact(&mut piece)?;
    }
    Ok(rate(SMALL_FILES, start))
}

fn create_by_one(directory: &Path, run: usize) -> io::Result<f64> {
    create(directory, run, 1)
}

fn create_by_eight(directory: &Path, run: usize) -> io::Result<f64> {
    create(directory, run, 8)
}

fn write_huge(directory: &Path, _run: usize) -> io::Result<f64> {
    let path = directory.join("huge");
    let piece = bytes(4, 1 << 20);
    let start = Instant::now();
    let mut file = File::create(&path)?;
    for _ in 0..HUGE_BYTES >> 20 {
        io::Write::write_all(&mut file, &piece)?;
    }
    drop(file);
    let rate = megabytes_per_second(HUGE_BYTES, start);
    fs::remove_file(&path)?;
    Ok(rate)
}

fn create(directory: &Path, run: usize, writers: usize) -> io::Result<f64> {
    let directory = directory.join(format!("created-{writers}-{run}"));
    for writer in 0..writers {
        fs::create_dir_all(directory.join(writer.to_string()))?;
    }
    let content = content::bytes(3, SMALL_BYTES);
    let each = CREATED_FILES / writers;
    let write = |writer: usize| -> io::Result<()> {
        (0..each).try_for_each(|number| fs::write(directory.join(format!("{writer}/{number}")), &content))
    };
    let start = Instant::now();
    thread::scope(|scope| {
        let handles: Vec<_> = (0..writers).map(|writer| scope.spawn(move || write(writer))).collect();
        handles.into_iter().try_for_each(|handle| handle.join().map_err(|_| io::Error::other("a writer panicked"))?)
    })?;
    // The files stay: for minutes ext4 walks past each inode that was removed (`recently_deleted`) whenever it makes
    // one, which took half of the time of the runs that followed.
    Ok(rate(each * writers, start))
}

fn read_through(path: &Path) -> io::Result<()> {
    let mut piece = vec![0; 1 << 20];
    let mut file = File::open(path)?;
    while file.read(&mut piece)? > 0 {
        black_box(&piece);
    }
    Ok(())
}

fn git(repository: &Path, arguments: &[&str]) -> io::Result<()> {
    let mut command = Command::new("git");
    command.arg("-C").arg(repository).args(["-c", "user.name=mafs", "-c", "user.email=mafs@localhost"]);
    run(command.args(arguments), LIMIT).map(|_| ())
}

fn small_file(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("small/f{number}"))
}

#[allow(clippy::cast_precision_loss, reason = "a few thousand")]
fn rate(count: usize, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn megabytes_per_second(bytes: u64, start: Instant) -> f64 {
    bytes as f64 / 1e6 / start.elapsed().as_secs_f64()
}
