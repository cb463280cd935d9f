//! A crowded directory: two clients create, rename and remove in it at the same time, in each other's way.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use mafs_bench::content::Random;
use mafs_bench::tree::Snapshot;

use super::Pair;
use crate::number_from_env;

/// Operations of each client, unless `MAFS_OPERATIONS` says otherwise.
const OPERATIONS: u32 = 1_000;

const CALL_LIMIT: Duration = Duration::from_secs(1);

/// Names in use: so few that most are there, and that both clients often mean the same one.
const NAMES: u64 = 50;

#[test]
#[ignore = "needs: fuse"]
fn two_clients_work_in_one_directory_and_no_call_is_slow() {
    let operations = number_from_env("MAFS_OPERATIONS", OPERATIONS);
    let pair = Pair::start_for(operations.div_ceil(OPERATIONS));
    let directories = pair.mounts.below("crowd").ways;
    let begun = Instant::now();
    let both = thread::scope(|scope| {
        let workers = [0, 1].map(|number| Worker::new(&directories[number], number as u64));
        workers.map(|worker| scope.spawn(move || worker.work(operations))).map(|thread| thread.join().unwrap().unwrap())
    });
    let rate = 2.0 * f64::from(operations) / begun.elapsed().as_secs_f64();
    let slowest = both.iter().map(|done| done.slowest).max().unwrap();
    println!("{rate:.0} operations/s, the slowest call took {slowest:?}");

    let mut fresh = pair.world.another_client("fresh").unwrap();
    let seen =
        [&directories[0], &directories[1], &fresh.mount().join("crowd")].map(|path| Snapshot::take(path).unwrap());
    seen[0].compare(&seen[1]).expect("both clients see the same");
    seen[0].compare(&seen[2]).expect("a fresh client sees the same");
    fresh.stop().unwrap();
    let names = |number| names_of(number, &directories[0]);
    assert_eq!([names(0), names(1)], both.map(|done| done.own), "what only one client touched");
    assert!(slowest < CALL_LIMIT, "a call took {slowest:?}");
    pair.stop();
}

/// One client's work: on names of its own, of which it knows whether they are there, and on names of both.
struct Worker<'a> {
    directory: &'a Path,
    number: u64,
    random: Random,
    own: BTreeSet<String>,
    slowest: Duration,
}

impl<'a> Worker<'a> {
    fn new(directory: &'a Path, number: u64) -> Self {
        Self { directory, number, random: Random::new(number), own: BTreeSet::new(), slowest: Duration::ZERO }
    }

    fn work(mut self, operations: u32) -> io::Result<Self> {
        for _ in 0..operations {
            if self.random.below(2) == 0 { self.with_own_names()? } else { self.with_shared_names()? }
        }
        Ok(self)
    }

    fn with_own_names(&mut self) -> io::Result<()> {
        let [one, other] = [(); 2].map(|()| format!("own-{}-{}", self.number, self.random.below(NAMES)));
        if self.own.contains(&one) && self.random.below(2) == 0 {
            self.timed(|path| fs::remove_file(path(&one)))?;
            self.own.remove(&one);
        } else if self.own.contains(&one) {
            self.timed(|path| fs::rename(path(&one), path(&other)))?;
            self.own.remove(&one);
            self.own.insert(other);
        } else {
            self.timed(|path| OpenOptions::new().write(true).create_new(true).open(path(&one)).map(|_| ()))?;
            self.own.insert(one);
        }
        Ok(())
    }

    /// Works on names of both. The other client may have taken away what is to be renamed or removed.
    fn with_shared_names(&mut self) -> io::Result<()> {
        let [one, other] = [(); 2].map(|()| format!("shared-{}", self.random.below(NAMES)));
        let done = match self.random.below(3) {
            0 => return self.timed(|path| OpenOptions::new().append(true).create(true).open(path(&one)).map(|_| ())),
            1 => self.timed(|path| fs::rename(path(&one), path(&other))),
            _ => self.timed(|path| fs::remove_file(path(&one))),
        };
        done.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
    }

    fn timed(&mut self, call: impl Fn(&dyn Fn(&str) -> PathBuf) -> io::Result<()>) -> io::Result<()> {
        let begun = Instant::now();
        let done = call(&|name| self.directory.join(name));
        self.slowest = self.slowest.max(begun.elapsed());
        done
    }
}

fn names_of(number: u64, directory: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(&format!("own-{number}-"))).collect()
}
