//! A writer: works while daemons are killed, and remembers which operations were acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use mafs_bench::content::{check_file, write_file};
use mafs_bench::process::{run, wait_until};

use super::LIMIT;

/// Attempts for each directory that is made.
const DIRECTORY_EVERY: u64 = 4;

/// A writer that works in a directory until it is told to stop. Copies one file after the other: under a new name,
/// or, every third time, over a file that is there. Between two it appends a line to a journal, and at times makes
/// and moves a directory.
pub(super) struct Writer {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: JoinHandle<Written>,
}

impl Writer {
    pub(super) fn start(directory: PathBuf) -> Self {
        Self::resume(directory, Written::default())
    }

    /// Starts a writer that goes on where an earlier one has stopped.
    pub(super) fn resume(directory: PathBuf, mut written: Written) -> Self {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&count));
        let thread = thread::spawn(move || {
            let source = tempfile::NamedTempFile::new().unwrap();
            written.checked = written.number;
            while !stopped.load(Ordering::Relaxed) {
                if written.go_on(source.path(), &directory) {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
            written
        });
        Self { stop, count, thread }
    }

    /// Returns how many files have been written.
    pub(super) fn acknowledged(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn wait_for(&self, count: u64) {
        let what = format!("{count} files are written");
        wait_until(LIMIT, &what, || Ok(self.acknowledged() >= count)).unwrap();
    }

    pub(super) fn stop(self) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Work that a writer has done.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// The last attempt, and the last before the present writer's first.
    number: u64,
    checked: u64,
    /// The attempt that a file holds, by the number in its name; without files of which the last close was not
    /// acknowledged.
    files: BTreeMap<u64, u64>,
    /// The attempts whose line in the journal was acknowledged.
    lines: BTreeSet<u64>,
    directories: BTreeMap<u64, Directory>,
}

/// State of a directory whose making was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directory {
    Made,
    Moved,
    Either,
}

impl Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, files, lines, directories, .. } = self;
        let [files, lines, directories] = [files.len(), lines.len(), directories.len()];
        write!(f, "{files} files, {lines} lines, {directories} directories of {number} attempts")
    }
}

impl Written {
    /// Checks that everything acknowledged is there, whole and once.
    pub(super) fn check(&self, directory: &Path) {
        assert!(self.files.len() >= 100, "only {} files", self.files.len());
        self.check_from(directory, 0);
    }

    /// Checks like [`Self::check`], but only what the last writer has written.
    pub(super) fn check_new(&self, directory: &Path) {
        self.check_from(directory, self.checked);
    }

    fn check_from(&self, directory: &Path, checked: u64) {
        for (name, number) in self.files.iter().filter(|(_, number)| **number > checked) {
            let found = check_file(&file_of(directory, *name), *number, length_of(*number));
            found.unwrap_or_else(|error| panic!("file-{name}, written as number {number}: {error}"));
        }
        for (number, wanted) in self.directories.range(checked + 1..) {
            let found = [made(directory, *number), moved(directory, *number)].map(|path| path.exists());
            let as_wanted = match wanted {
                Directory::Made => found == [true, false],
                Directory::Moved => found == [false, true],
                Directory::Either => found[0] != found[1],
            };
            assert!(as_wanted, "directory {number}, wanted {wanted:?}: [made, moved] are there: {found:?}");
        }
        let journal = fs::read_to_string(journal(directory)).unwrap();
        let lines: Vec<u64> = journal.lines().map(|line| line.parse().expect(line)).collect();
        let once: BTreeSet<u64> = lines.iter().copied().collect();
        assert_eq!(once.len(), lines.len(), "a line is there twice: {lines:?}");
        let lost: Vec<_> = self.lines.difference(&once).collect();
        assert!(lost.is_empty(), "lines are lost: {lost:?}");
    }

    /// Makes one attempt. Returns whether the close of a file was acknowledged.
    fn go_on(&mut self, source: &Path, directory: &Path) -> bool {
        self.number += 1;
        // The making of a directory waits for all that waits in a queue.
        if self.number.is_multiple_of(DIRECTORY_EVERY) {
            self.make_directory(directory);
        }
        self.append(source, directory);
        self.copy(source, directory)
    }

    fn copy(&mut self, source: &Path, directory: &Path) -> bool {
        let number = self.number;
        let name = if number.is_multiple_of(3) { number % 50 } else { 1_000 + number };
        // The file that stood under the name is no longer promised, whether the copy fails or not.
        self.files.remove(&name);
        write_file(source, number, length_of(number)).unwrap();
        // Rust's files hide what close() says; cp tells, and so does dd.
        let done = run(Command::new("cp").arg(source).arg(file_of(directory, name)), LIMIT).is_ok();
        if done {
            self.files.insert(name, number);
        }
        done
    }

    fn append(&mut self, source: &Path, directory: &Path) {
        if append(source, &journal(directory), self.number).is_ok() {
            self.lines.insert(self.number);
        }
    }

    /// Makes a directory and moves it. No other attempt uses these names: one that is taken, or gone, says that it
    /// was done twice.
    fn make_directory(&mut self, directory: &Path) {
        let [made, moved] = [made(directory, self.number), moved(directory, self.number)];
        match fs::create_dir(&made) {
            Ok(()) => {
                let known = match fs::rename(&made, &moved) {
                    Ok(()) => Directory::Moved,
                    Err(error) if error.kind() == ErrorKind::NotFound => Directory::Made,
                    Err(_) => Directory::Either,
                };
                self.directories.insert(self.number, known);
            }
            Err(error) => assert_ne!(error.kind(), ErrorKind::AlreadyExists, "{}: made twice", made.display()),
        }
    }
}

/// Appends a line with a number to a file, by way of another. Rust's files hide what close() says.
pub(super) fn append(source: &Path, file: &Path, number: u64) -> io::Result<String> {
    fs::write(source, format!("{number}\n")).unwrap();
    let (from, to) = (format!("if={}", source.display()), format!("of={}", file.display()));
    run(Command::new("dd").args([from, to]).args(["oflag=append", "conv=notrunc", "status=none"]), LIMIT)
}

fn length_of(number: u64) -> u64 {
    number * 7_919 % 40_000
}

fn file_of(directory: &Path, name: u64) -> PathBuf {
    directory.join(format!("file-{name}"))
}

fn journal(directory: &Path) -> PathBuf {
    directory.join("journal")
}

fn made(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("made-{number}"))
}

fn moved(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("moved-{number}"))
}
