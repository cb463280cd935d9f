//! Two clients of one volume: the other opens or finds at once what one has closed or named.

mod background;
mod content;
mod crowd;
mod held;
mod names;
mod opens;
mod races;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mafs_bench::client::Client;
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;

use crate::number_from_env;

/// Limit of a test with the default numbers; tests with larger numbers have more time.
const LIMIT: Duration = Duration::from_secs(120);

/// Rounds of a test, unless `MAFS_ROUNDS` says otherwise.
const ROUNDS: u32 = 100;

fn rounds() -> u32 {
    number_from_env("MAFS_ROUNDS", ROUNDS)
}

/// Two ways to one directory, and how often a test uses them.
struct Mounts {
    ways: [PathBuf; 2],
    rounds: u32,
}

impl Mounts {
    /// Returns the paths of the client that changes something in a round, and of the client that looks: in turns.
    fn writer_and_reader(&self, round: u32) -> [PathBuf; 2] {
        let [first, second] = &self.ways;
        if round.is_multiple_of(2) { [first.clone(), second.clone()] } else { [second.clone(), first.clone()] }
    }

    /// Makes a new directory for all that a test makes.
    fn below(&self, name: &str) -> Self {
        fs::create_dir(self.ways[0].join(name)).unwrap();
        Self { ways: self.ways.each_ref().map(|mount| mount.join(name)), rounds: self.rounds }
    }
}

/// A world with two clients of the same volume.
struct Pair {
    mounts: Mounts,
    second: Client,
    // Dropped before the world, which takes the mounts that it watches.
    _watchdog: Watchdog,
    world: World,
}

impl Pair {
    fn start() -> Self {
        Self::start_for(rounds().div_ceil(ROUNDS))
    }

    /// Starts with so many times the time of a test with the default numbers.
    fn start_for(times: u32) -> Self {
        Self::start_with("", rounds(), times)
    }

    /// Starts two clients mounted with options.
    fn start_with(options: &str, rounds: u32, times: u32) -> Self {
        let world = World::start_with(options).unwrap();
        let second = world.another_client("second").unwrap();
        let ways = [world.mount(), second.mount()];
        let watchdog = Watchdog::start(LIMIT * times, ways.to_vec());
        Self { mounts: Mounts { ways, rounds }, second, _watchdog: watchdog, world }
    }

    /// Returns `mafs-client`, to be given arguments about a path below one of the mounts.
    fn command_at(&self, path: &Path) -> Command {
        if path.starts_with(self.second.mount()) { self.second.command() } else { self.world.client_command() }
    }

    fn stop(mut self) {
        self.second.stop().unwrap();
        self.world.stop_client().unwrap();
    }
}

/// A test that works in the root of both mounts.
type Body = fn(&Mounts);

fn on_two_clients(body: Body) {
    let pair = Pair::start();
    body(&pair.mounts);
    pair.stop();
}

#[test]
#[ignore = "needs: python3"]
fn two_ways_to_one_local_directory_show_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let ways = [directory.path().to_path_buf(), directory.path().to_path_buf()];
    let mounts = Mounts { ways, rounds: rounds() };
    let bodies: [(&str, Body); 6] = [
        ("content", content::nobody_holds),
        ("open", content::held_open),
        ("mapped", content::held_mapped),
        ("executed", content::executed),
        ("names", names::at_once),
        ("races", races::one_winner),
    ];
    for (name, body) in bodies {
        body(&mounts.below(name));
    }
}
