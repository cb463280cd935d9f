//! Kills at random moments: of either client, of the server, of several at once and of what has only just come back,
//! while two clients write. All that was acknowledged is there, whole and once, and nothing is refused: the clients
//! change nothing at the same time.
//!
//! `MAFS_KILLS` says how many rounds there are, `MAFS_SEED` repeats the choices of a run; the moments are as exact as
//! the machine lets them be.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mafs_bench::client::Client;
use mafs_bench::content::Random;
use mafs_bench::process::{finish, run};
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;
use serde_json::Value;

use super::LIMIT;
use super::writer::{Writer, Written, append};
use crate::number_from_env;

/// Limit of one round: a writer that is stuck for the lease of a dead client passes it.
const ROUND_LIMIT: Duration = Duration::from_secs(60);

/// Files that each writer has closed at least before a moment is chosen, and has once more before it is stopped.
const FILES_MIN: u64 = 12;

/// The longest waits, for the moment of a kill, for a start after it, and for the kill after that.
const LONGEST_MS: [u64; 3] = [400, 200, 150];

/// One of so many rounds kills once more.
const AGAIN: u64 = 3;

/// The daemons that are killed, in the order of their bits in a choice.
const VICTIMS: [&str; 3] = ["server", "first client", "second client"];

#[test]
#[ignore = "needs: fuse"]
fn invariant_1_what_two_clients_closed_survives_kills_of_everything_and_is_there_once() {
    kill_at_random("writeback=sync");
}

#[test]
#[ignore = "needs: fuse"]
fn invariant_1_what_two_clients_closed_survives_kills_of_everything_before_it_was_sent() {
    kill_at_random("writeback=sirp");
}

fn kill_at_random(options: &str) {
    let rounds = number_from_env("MAFS_KILLS", 6_u32);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number_from_env("MAFS_SEED", now.as_secs());
    println!("{rounds} kills with {options}: MAFS_SEED={seed}");
    let mut killed = Killed::start(options, seed);
    let watchdog = Watchdog::start(ROUND_LIMIT * rounds, killed.mounts().to_vec());
    for round in 0..rounds {
        killed.round(round);
    }
    killed.finish();
    drop(watchdog);
}

/// The world whose daemons are killed.
struct Killed {
    world: World,
    second: Client,
    random: Random,
    /// Work of each client's writers in its own directory.
    written: Vec<Written>,
    shared: Shared,
    /// Changes that waited in the logs when they were asked last before a kill, of all rounds.
    waited: u64,
}

impl Killed {
    fn start(options: &str, seed: u64) -> Self {
        let world = World::start_with(options).unwrap();
        let second = world.another_client("second").unwrap();
        let (random, shared) = (Random::new(seed), Shared::default());
        let killed = Self { world, second, random, written: Vec::new(), shared, waited: 0 };
        // A mount point without a mount has no directories: there nothing can be written.
        let [first, second] = killed.directories();
        [first, second].iter().for_each(|directory| fs::create_dir(directory).unwrap());
        fs::write(killed.world.mount().join("shared"), "").unwrap();
        killed.sync();
        Self { written: vec![Written::default(), Written::default()], ..killed }
    }

    fn mounts(&self) -> [PathBuf; 2] {
        [self.world.mount(), self.second.mount()]
    }

    /// Returns the directories where the clients write.
    fn directories(&self) -> [PathBuf; 2] {
        let [first, second] = self.mounts();
        [first.join("first"), second.join("second")]
    }

    fn round(&mut self, round: u32) {
        let began = Instant::now();
        let resumed = self.directories().into_iter().zip(std::mem::take(&mut self.written));
        let writers: Vec<Writer> = resumed.map(|(path, written)| Writer::resume(path, written)).collect();
        wait_for_more(&writers);
        self.shared.append(&self.mounts()[round as usize % 2]);
        self.waited += self.count_waiting();
        let victims = 1 + self.random.below(7);
        self.wait_at_random(0);
        self.kill(victims);
        if self.random.below(AGAIN) == 0 {
            self.wait_at_random(2);
            let victims = 1 + self.random.below(7);
            self.kill(victims);
        }
        wait_for_more(&writers);
        self.written = writers.into_iter().map(Writer::stop).collect();
        let worked = began.elapsed();
        self.check();
        println!("round {round}: {}; {worked:.1?}, checked after {:.1?}", names(victims), began.elapsed());
    }

    fn wait_at_random(&mut self, which: usize) {
        sleep(Duration::from_micros(self.random.below(1000 * LONGEST_MS[which])));
    }

    /// Kills those of [`VICTIMS`] whose bits are set, and starts them again in an order that may be any.
    fn kill(&mut self, victims: u64) {
        let mut dead: Vec<usize> = (0..VICTIMS.len()).filter(|victim| victims & (1 << victim) != 0).collect();
        for victim in &dead {
            match victim {
                0 => self.world.kill_server().unwrap(),
                1 => self.world.kill_client().unwrap(),
                _ => self.second.kill().unwrap(),
            }
        }
        // A client without a server cannot be looked into, so its start would not end.
        if dead.first() != Some(&0) && self.random.below(2) == 0 {
            dead.reverse();
        }
        for victim in dead {
            self.wait_at_random(1);
            match victim {
                0 => self.world.start_server().unwrap(),
                1 => self.world.start_client().unwrap(),
                _ => self.second.start().unwrap(),
            }
        }
    }

    /// Checks that each client shows its own at once, and everybody's when both have sent what waited.
    fn check(&self) {
        self.directories().iter().zip(&self.written).for_each(|(path, written)| written.check_new(path));
        self.sync();
        for mount in self.mounts() {
            ["first", "second"]
                .iter()
                .zip(&self.written)
                .for_each(|(name, written)| written.check_new(&mount.join(name)));
            self.shared.check(&mount);
        }
        self.check_nothing_is_refused();
    }

    fn check_nothing_is_refused(&self) {
        for command in self.commands() {
            let status = say_json(command, "status");
            assert_eq!(status["refused"], Value::Array(Vec::new()), "{status:#}");
        }
        for command in self.commands() {
            let queue = say_json(command, "queue");
            assert_eq!(queue["changes"], Value::Array(Vec::new()), "{queue:#}");
        }
    }

    fn count_waiting(&self) -> u64 {
        let waiting = |command| say_json(command, "status")["log"]["records"].as_u64().unwrap();
        self.commands().into_iter().map(waiting).sum()
    }

    /// Returns the program of each client, and its mount.
    fn commands(&self) -> [(Command, PathBuf); 2] {
        let [first, second] = self.mounts();
        [(self.world.client_command(), first), (self.second.command(), second)]
    }

    fn sync(&self) {
        for (mut command, mount) in self.commands() {
            let synced = finish(command.arg("sync").arg(mount), LIMIT).unwrap();
            assert!(synced.status.success(), "{synced:?}");
        }
    }

    fn finish(mut self) {
        println!("{}; {}; {} changes waited at the kills", self.written[0], self.written[1], self.waited);
        self.world.forget_cache().unwrap();
        for mount in self.mounts() {
            ["first", "second"].iter().zip(&self.written).for_each(|(name, written)| written.check(&mount.join(name)));
            self.shared.check(&mount);
        }
        self.second.stop().unwrap();
        self.world.stop_client().unwrap();
    }
}

/// A file that both clients append to in turns, each when it has what the other has appended.
#[derive(Default)]
struct Shared {
    last: u64,
    acknowledged: BTreeSet<u64>,
}

impl Shared {
    fn append(&mut self, mount: &Path) {
        self.last += 1;
        let source = tempfile::NamedTempFile::new().unwrap();
        append(source.path(), &mount.join("shared"), self.last).unwrap();
        self.acknowledged.insert(self.last);
    }

    fn check(&self, mount: &Path) {
        let text = run(Command::new("cat").arg(mount.join("shared")), LIMIT).unwrap();
        let lines: Vec<u64> = text.lines().map(|line| line.parse().expect(line)).collect();
        assert!(lines.iter().eq(&self.acknowledged), "{}: {lines:?}", mount.display());
    }
}

fn wait_for_more(writers: &[Writer]) {
    let counts: Vec<u64> = writers.iter().map(Writer::acknowledged).collect();
    writers.iter().zip(counts).for_each(|(writer, count)| writer.wait_for(count + FILES_MIN));
}

fn names(victims: u64) -> String {
    let named = VICTIMS.iter().enumerate().filter(|(bit, _)| victims & (1 << bit) != 0).map(|(_, name)| *name);
    named.collect::<Vec<_>>().join(" and ")
}

fn say_json((mut command, mount): (Command, PathBuf), what: &str) -> Value {
    let said = finish(command.args([what, "--json"]).arg(mount), LIMIT).unwrap();
    assert!(said.status.success(), "{said:?}");
    serde_json::from_str(&said.stdout).unwrap()
}
