//! mafs beside the local disk: the same work on a mount over loopback and on the directory that holds cache and
//! store, in alternating runs. Prints one table and writes every run to `target/figures/local.csv`.
//!
//! `cargo bench --bench local`; needs `/dev/fuse`, and root or `fusermount3`. `MAFS_BENCH_RUNS` changes the number of
//! runs (5), `MAFS_BENCH_OPTIONS` the options of the mount (`passthrough=off`). `cargo bench --bench local -- git`
//! does only the work with `git` in its name.

mod loads;

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mafs_bench::measure::Usage;
use mafs_bench::report::{Row, table, write_csv};
use mafs_bench::tree;
use mafs_bench::world::World;

const COLD_READ: &str = "cold read of 256 MB (local: copy, then read)";
const GIT_STATUS: &str = "git status of 2,000 files";
const RUNS: usize = 5;
const IDLE: Duration = Duration::from_secs(20);

/// Windows of idle time: work that was left from before falls into the first ones.
const IDLE_WINDOWS: usize = 3;

fn main() -> io::Result<()> {
    if !env::args().any(|argument| argument == "--bench") {
        println!("measures nothing unless run by `cargo bench --bench local`");
        return Ok(());
    }
    if !Path::new("/dev/fuse").exists() {
        return Err(io::Error::other("/dev/fuse is missing: this measures a real mount (root, or the package fuse3)"));
    }
    let runs = env::var("MAFS_BENCH_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(RUNS);
    let mut world = World::start_with(&env::var("MAFS_BENCH_OPTIONS").unwrap_or_default())?;
    let rows = measure(&mut world, runs)?;
    println!("\nmedian of {runs} alternating runs; ratio is mafs / local, larger is better\n\n{}", table(&rows));
    for window in 1..=IDLE_WINDOWS {
        let Usage { cpu_share, wakeups_per_second } = world.usage(IDLE)?;
        let percent = 100.0 * cpu_share;
        println!(
            "an idle mount, both daemons, {IDLE:?} window {window}: {percent:.3} % of a processor, \
             {wakeups_per_second:.1} wake-ups a second"
        );
    }
    let csv = world.target_directory().join("figures/local.csv");
    write_csv(&rows, &csv)?;
    println!("every run: {}", csv.display());
    world.stop_client()?;
    world.stop_server()
}

fn measure(world: &mut World, runs: usize) -> io::Result<Vec<Row>> {
    let places = [world.mount(), world.local()];
    for place in &places {
        loads::prepare(place)?;
    }
    let chosen = chosen();
    let mut rows = Vec::new();
    if chosen(COLD_READ) {
        rows.push(cold_read(world, runs)?);
    }
    for (name, unit, load) in loads::LOADS.into_iter().filter(|(name, ..)| chosen(name)) {
        let mut pairs = Vec::new();
        for run in 0..runs {
            pairs.push((settled(|| load(&places[0], run))?, settled(|| load(&places[1], run))?));
        }
        progress(name);
        rows.push(Row { name, unit, pairs });
    }
    if chosen(GIT_STATUS) {
        rows.push(git_status(&places, runs)?);
    }
    Ok(rows)
}

/// Returns the filter of the work by its name: names that hold the word given on the command line, or all.
fn chosen() -> impl Fn(&str) -> bool {
    let word = env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    move |name| name.contains(&word)
}

fn git_status(places: &[PathBuf; 2], runs: usize) -> io::Result<Row> {
    for place in places {
        tree::generate(&place.join("repository"), 1, 2_000)?;
        loads::make_repository(&place.join("repository"))?;
    }
    let mut pairs = Vec::new();
    for _ in 0..runs {
        pairs.push((settled(|| loads::git_status(&places[0]))?, settled(|| loads::git_status(&places[1]))?));
    }
    Ok(Row { name: GIT_STATUS, unit: "1/s", pairs })
}

/// Measures a read of a file that is not in the cache through the mount; locally it is copied, as the cache does, and
/// then read.
fn cold_read(world: &mut World, runs: usize) -> io::Result<Row> {
    let mut pairs = Vec::new();
    for _ in 0..runs {
        world.forget_cache()?;
        let mafs = settled(|| loads::read_large(&world.mount(), 0))?;
        pairs.push((mafs, settled(|| loads::copy_and_read_large(&world.local()))?));
    }
    progress(COLD_READ);
    Ok(Row { name: COLD_READ, unit: "MB/s", pairs })
}

/// Measures when the disk has nothing left to do from before, so that no load pays for another's writes.
fn settled(load: impl FnOnce() -> io::Result<f64>) -> io::Result<f64> {
    rustix::fs::sync();
    load()
}

fn progress(name: &str) {
    eprintln!("measured: {name}");
}
