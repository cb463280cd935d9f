//! Directories: one with very many names is as quick as an empty one, and costs the daemons little memory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use mafs_bench::measure::{MemoryWatch, cpu_time, rss_anon};
use mafs_bench::process::run;
use mafs_bench::world::World;

use crate::number_from_env;

/// The rate in a large directory is at least this share of that in an empty one.
const SHARE_MIN: f64 = 0.5;

/// Turns that the two take, so that both see the same machine.
const TURNS: u64 = 25;

/// Threads that make the first nine tenths.
const MAKERS: usize = 4;

/// Limit of a cold `ls -l` of 100,000 names on loopback, and, for machines that are slow for a while, how many times
/// that of a local disk: measured 10 to 15.
const LIST_LIMIT: Duration = Duration::from_secs(5);
const LIST_LOCAL_MAX: u32 = 25;

/// Memory that the server may have beyond what it has when it is idle: measured 30 to 48 MB in seven runs, whether
/// others use the processors or not, and 53 and 56 in two others. A third are mapped blocks of some 500 KB, as sled's
/// segments are, and how many of them there are differs from run to run.
const SERVER_GROWTH_BYTES: u64 = 64 << 20;

/// Memory that the client may have: measured 66 to 87 MB.
const CLIENT_BYTES: u64 = 128 << 20;

#[test]
#[ignore = "needs: fuse"]
fn a_directory_with_very_many_names_is_quick_and_costs_little_memory() {
    let names = number_from_env("MAFS_NAMES", 100_000_u64);
    let mut world = World::start().unwrap();
    let mount = world.mount();
    let (large, small) = (mount.join("large"), |turn: u64| mount.join(format!("small-{turn}")));
    fs::create_dir(&large).unwrap();
    (0..TURNS).for_each(|turn| fs::create_dir(small(turn)).unwrap());
    let of_turn = names / 10 / TURNS;
    let numbers = |turn: u64| names - (turn + 1) * of_turn..names - turn * of_turn;

    let idle = rss_anon(world.server().unwrap().pid()).unwrap();
    let memory = Memory::watch(&world, idle);
    let begun = Instant::now();
    make_in_parallel(&large, names - TURNS * of_turn);
    println!("{:.0} creates/s by {MAKERS} threads", 0.9 * names as f64 / begun.elapsed().as_secs_f64());
    let make = |directory: &Path, turn| numbers(turn).for_each(|number| make(&file(directory, number)));
    let creates = share("creates", of_turn, |turn| make(&large, turn), |turn| make(&small(turn), turn));
    let made = memory.peaks("making");

    // The kernel forgets the names, the cache does not.
    world.stop_client().unwrap();
    world.start_client().unwrap();
    let find = |directory: &Path, turn| numbers(turn).for_each(|number| find(&file(directory, number)));
    let lookups = share("lookups", of_turn, |turn| find(&large, turn), |turn| find(&small(turn), turn));

    world.forget_cache().unwrap();
    let memory = Memory::watch(&world, idle);
    let listing = list(&world, &large, names);
    let listed = memory.peaks("listing");
    let local = list_local(&world.local().join("names"), names);

    assert!(creates >= SHARE_MIN && lookups >= SHARE_MIN, "shares of creates {creates}, of lookups {lookups}");
    let limit = LIST_LIMIT.max(local * LIST_LOCAL_MAX);
    assert!(listing <= limit, "a cold ls -l takes {listing:?}, a local one {local:?}");
    for (when, [server, client]) in [("made", made), ("listed", listed)] {
        assert!(server <= SERVER_GROWTH_BYTES, "{when}: the server has {server} bytes more than when it is idle");
        assert!(client <= CLIENT_BYTES, "{when}: the client has {client} bytes");
    }
}

/// Returns the speed of work in the large directory as a share of that in the small ones, in turns.
fn share(what: &str, of_turn: u64, in_large: impl Fn(u64), in_small: impl Fn(u64)) -> f64 {
    let time = |work: &dyn Fn(u64), turn| {
        let begun = Instant::now();
        work(turn);
        begun.elapsed().as_secs_f64()
    };
    let (mut large, mut small) = (0.0, 0.0);
    for turn in 0..TURNS {
        small += time(&in_small, turn);
        large += time(&in_large, turn);
    }
    let rate = |seconds: f64| (TURNS * of_turn) as f64 / seconds;
    println!("{what}/s: {:.0} in the large directory, {:.0} in small ones", rate(large), rate(small));
    small / large
}

/// The memory of the daemons, compared with what the server had before there were any files.
struct Memory {
    idle: u64,
    watch: MemoryWatch,
}

impl Memory {
    fn watch(world: &World, idle: u64) -> Self {
        let pids = vec![world.server().unwrap().pid(), world.client().unwrap().pid()];
        Self { idle, watch: MemoryWatch::start(pids) }
    }

    /// Returns the most that the server had more, and that the client had.
    fn peaks(self, when: &str) -> [u64; 2] {
        let peaks = self.watch.peaks().unwrap();
        let (more, client) = (peaks[0].saturating_sub(self.idle), peaks[1]);
        println!("{when}: the server {} KB beyond {}, the client {} KB", more >> 10, self.idle >> 10, client >> 10);
        [more, client]
    }
}

/// The kernel is told to forget names that are not there when there are too many (`NAMES_MAX` of `vfs/absent.rs`).
#[test]
#[ignore = "needs: fuse"]
fn regression_a_directory_in_use_has_a_path_however_many_names_are_not_there() {
    const NAMES: u32 = 17_000;
    let world = World::start().unwrap();
    let directory = world.mount().join("directory");
    assert!(!directory.exists());
    fs::create_dir(&directory).unwrap();
    let mut program = Command::new("sleep").arg("600").current_dir(&directory).spawn().unwrap();
    for number in 0..NAMES {
        assert!(!world.mount().join(format!("none {number}")).exists());
    }
    // The kernel is told in the background.
    thread::sleep(Duration::from_secs(1));
    let path = fs::read_link(format!("/proc/{}/cwd", program.id())).unwrap();
    program.kill().unwrap();
    program.wait().unwrap();
    assert_eq!(path, directory, "getcwd(2) fails otherwise");
}

fn make_in_parallel(directory: &Path, count: u64) {
    thread::scope(|scope| {
        for maker in 0..MAKERS as u64 {
            scope.spawn(move || {
                (maker..count).step_by(MAKERS).for_each(|number| make(&file(directory, number)));
            });
        }
    });
}

/// Returns how long the daemons work for `ls -l`. The command waits for nothing but them, so it takes no longer where
/// nobody else works.
fn list(world: &World, directory: &Path, names: u64) -> Duration {
    let pids = [world.server().unwrap().pid(), world.client().unwrap().pid()];
    let used = || pids.iter().map(|pid| cpu_time(*pid).unwrap()).sum::<Duration>();
    let before = used();
    let took = ls(directory, names);
    let worked = used() - before;
    println!("cold ls -l: {took:?}, of which the daemons worked {worked:?}");
    worked
}

/// Returns how long `ls -l` takes on the local disk.
fn list_local(directory: &Path, names: u64) -> Duration {
    fs::create_dir(directory).unwrap();
    (0..names).for_each(|number| make(&file(directory, number)));
    let took = ls(directory, names);
    println!("local ls -l: {took:?}");
    took
}

fn ls(directory: &Path, names: u64) -> Duration {
    let begun = Instant::now();
    let listed = run(Command::new("ls").arg("-l").arg(directory), 20 * LIST_LIMIT).unwrap();
    let took = begun.elapsed();
    assert_eq!(listed.lines().filter(|line| line.contains(" a-file-with-a-name-")).count() as u64, names);
    took
}

fn make(path: &Path) {
    File::create_new(path).unwrap();
}

fn find(path: &Path) {
    fs::symlink_metadata(path).unwrap();
}

fn file(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("a-file-with-a-name-{number}"))
}
