//! Races: if two clients make one name at the same time, exactly one of them does.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{Mounts, on_two_clients};

/// Makes the name `made`, which there must not be; `own` is a file of whoever races.
type Make = fn(own: &Path, made: &Path) -> io::Result<()>;

const RACES: [(&str, Make); 4] = [
    ("O_EXCL", |_, made| File::create_new(made).map(|_| ())),
    ("mkdir", |_, made| fs::create_dir(made)),
    ("link", |own, made| fs::hard_link(own, made)),
    ("rename without replacing", |own, made| {
        renameat_with(CWD, own, CWD, made, RenameFlags::NOREPLACE)?;
        File::create_new(own).map(|_| ())
    }),
];

#[test]
#[ignore = "needs: fuse"]
fn of_two_clients_that_make_a_name_at_once_exactly_one_does() {
    on_two_clients(one_winner);
}

pub(super) fn one_winner(mounts: &Mounts) {
    for (name, make) in RACES {
        let Mounts { ways: directories, rounds } = mounts.below(name);
        let won = race(&directories, rounds, make);
        println!("{name}: {won:?} won of {rounds}");
        let listed = directories.map(|directory| fs::read_dir(directory).unwrap().count());
        // Each directory also holds the two files of their own.
        assert_eq!(listed, [rounds as usize + 2; 2], "{name}");
    }
}

/// Returns how often each of the two has made the name.
fn race(directories: &[PathBuf; 2], rounds: u32, make: Make) -> [usize; 2] {
    let barrier = Barrier::new(2);
    let run = |number: usize| {
        let directory = &directories[number];
        let own = directory.join(format!("own-{number}"));
        let created = File::create_new(&own).map(|_| ());
        let one = |round| {
            barrier.wait();
            make(&own, &directory.join(format!("made-{round}")))
        };
        // If one side fails, the other one still waits for every round.
        let outcomes: Vec<io::Result<()>> = (0..rounds).map(one).collect();
        created.map(|()| outcomes)
    };
    let both = thread::scope(|scope| {
        let second = scope.spawn(|| run(1));
        [run(0).unwrap(), second.join().unwrap().unwrap()]
    });
    for (round, outcomes) in both[0].iter().zip(&both[1]).enumerate() {
        let lost = |outcome: &io::Result<()>| matches!(outcome, Err(error) if error.kind() == ErrorKind::AlreadyExists);
        let one_winner = match outcomes {
            (Ok(()), other) | (other, Ok(())) => lost(other),
            (Err(_), Err(_)) => false,
        };
        assert!(one_winner, "round {round}: {outcomes:?}");
    }
    both.map(|outcomes| outcomes.iter().filter(|outcome| outcome.is_ok()).count())
}
