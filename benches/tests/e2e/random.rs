//! Random programs: several processes use a few files, in turn, and find what an exact model says, after every
//! operation, and at the end through a second client. `MAFS_SEEDS` says how many programs there are,
//! `MAFS_FIRST_SEED` with which to begin, `MAFS_STEPS` how long each is.

mod expected;
mod hands;
mod idioms;
mod model;
mod program;
mod steps;

use std::io;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mafs_bench::process::run;
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;

use crate::number_from_env;
use program::{Place, Program};

const SEEDS: u64 = 30;
const STEPS: u32 = 400;

/// A seed goes with one of these, so that all are tried.
const WRITEBACK: [&str; 3] = ["sirp", "async", "sync"];

/// Limit of so many seeds and a start.
const LIMIT: Duration = Duration::from_secs(300);
const LIMIT_SEEDS: u64 = 10;

#[test]
#[ignore = "needs: fuse, python3"]
fn random_programs_find_what_they_have_written() {
    on_mounts("", Turns::OneClient);
}

#[test]
#[ignore = "needs: fuse, python3"]
fn random_programs_find_what_they_have_written_through_the_daemon() {
    on_mounts("passthrough=off", Turns::OneClient);
}

#[test]
#[ignore = "needs: fuse, python3"]
fn random_programs_of_two_clients_in_turn_find_what_both_have_written() {
    on_mounts("", Turns::BothClients);
}

#[test]
#[ignore = "needs: fuse, python3"]
fn random_programs_of_two_clients_in_turn_find_what_both_have_written_through_the_daemon() {
    on_mounts("passthrough=off", Turns::BothClients);
}

#[test]
#[ignore = "needs: python3"]
fn random_programs_agree_with_a_local_disk() {
    let directory = tempfile::tempdir().unwrap();
    let ways = [directory.path(), directory.path()];
    let nothing = || Ok(());
    let failed = seeds(Turns::BothClients)
        .filter(|seed| !passes(*seed, &ways.map(|way| place(way, *seed, nothing)), Turns::BothClients))
        .count();
    assert_eq!(failed, 0);
}

/// Places of the processes of a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turns {
    /// The processes are on one client; the second looks at the end.
    OneClient,
    BothClients,
}

/// Returns the seeds. One program of two clients takes as long as three of one.
fn seeds(turns: Turns) -> Range<u64> {
    let first = number_from_env("MAFS_FIRST_SEED", 1);
    let count = number_from_env("MAFS_SEEDS", SEEDS);
    first..first + if turns == Turns::BothClients { count.div_ceil(3) } else { count }
}

fn on_mounts(options: &str, turns: Turns) {
    let failed: Vec<u64> = (0..WRITEBACK.len() as u64).flat_map(|number| on_mount(number, options, turns)).collect();
    assert!(failed.is_empty(), "{options}: {} of {} seeds fail: {failed:?}", failed.len(), seeds(turns).count());
}

/// Returns the seeds of one kind of mount that fail.
fn on_mount(number: u64, options: &str, turns: Turns) -> Vec<u64> {
    let seeds: Vec<u64> = seeds(turns).filter(|seed| seed % WRITEBACK.len() as u64 == number).collect();
    if seeds.is_empty() {
        return seeds;
    }
    let writeback = WRITEBACK[usize::try_from(number).unwrap()];
    let mut world = World::start_with(&format!("{options},writeback={writeback}")).unwrap();
    let mut second = world.another_client("second").unwrap();
    let times = u32::try_from(seeds.len() as u64 / LIMIT_SEEDS + 1).unwrap();
    let watchdog = Watchdog::start(LIMIT * times, vec![world.mount(), second.mount()]);
    // The client also sends with `writeback=sync`: what was stored through a mapping is sent when that has gone.
    let sync = |mut command: Command, mount: &Path| run(command.arg("sync").arg(mount), LIMIT).map(|_| ());
    let fails = |seed: &u64| {
        let places = [
            place(&world.mount(), *seed, || sync(world.client_command(), &world.mount())),
            place(&second.mount(), *seed, || sync(second.command(), &second.mount())),
        ];
        !passes(*seed, &places, turns)
    };
    let failed = seeds.into_iter().filter(fails).collect();
    drop(watchdog);
    second.stop().unwrap();
    world.stop_client().unwrap();
    failed
}

fn place<'w>(way: &Path, seed: u64, sync: impl Fn() -> io::Result<()> + 'w) -> Place<'w> {
    Place { directory: way.join(format!("seed-{seed}")), sync: Box::new(sync) }
}

/// Tells whether the program of a seed finds what the model says; prints the error if not.
fn passes(seed: u64, places: &[Place<'_>], turns: Turns) -> bool {
    let works_in = if turns == Turns::BothClients { places.len() } else { 1 };
    let program = Program::start(seed, places, works_in);
    let outcome = program.and_then(|mut program| {
        let outcome = program.run(number_from_env("MAFS_STEPS", STEPS));
        println!("seed {seed}: {} operations", program.operations());
        outcome
    });
    outcome.inspect_err(|error| println!("seed {seed} fails: {error}")).is_ok()
}
