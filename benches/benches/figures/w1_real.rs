//! Figure W1 over real mounts: files of 1 MB read and written over the papers' wireless channel, emulated in real time,
//! by mafs with each carrier and, where sshd and sshfs are installed, by sshfs beside it.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use mafs_arpc::link::{Profile, Retransmission};
use mafs_bench::content::write_file;
use mafs_bench::report::{mean, median};

use crate::jobs::run_all;
use crate::real::{Place, sync};
use crate::sshfs;
use crate::table::write_csv;
use crate::w1::{FILE_BYTES, possible_s};

/// The mean bad period of each row, in milliseconds; 0 is a link without errors.
const BAD_MS: [u64; 4] = [0, 40, 80, 160];
/// Pause between transfers, long enough for what the last one has left on the link: acknowledgements.
const PAUSE: Duration = Duration::from_millis(300);

/// File system that transfers the files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mount {
    /// mafs with its option `proto`.
    Mafs(&'static str),
    Sshfs,
}

/// One way over one channel: all its transfers are made one after the other, over one link.
#[derive(Clone, Copy, Debug)]
struct Cell {
    mount: Mount,
    retransmission: Option<Retransmission>,
    bad_ms: u64,
}

impl Cell {
    fn name(self) -> String {
        let mount = match self.mount {
            Mount::Mafs(carrier) => format!("mafs {carrier}"),
            Mount::Sshfs => "sshfs".to_owned(),
        };
        match self.retransmission {
            None => mount,
            Some(Retransmission::Hold) => format!("{mount} hold"),
            Some(Retransmission::Arq) => format!("{mount} arq"),
        }
    }
}

/// The seconds that each transfer took.
struct Took {
    read_s: Vec<f64>,
    write_s: Vec<f64>,
}

/// Prints the figure and writes it to a directory: `runs` transfers each way in each cell.
pub(crate) fn measure(directory: &Path, runs: u64) -> io::Result<()> {
    let cells = cells();
    let took = run_all(&cells, |cell| transfers(*cell, runs))?;
    let mut rows = Vec::new();
    for (way, of) in [("read", (|took| &took.read_s) as fn(&Took) -> &Vec<f64>), ("write", |took| &took.write_s)] {
        println!("\nW1 over real mounts, {way}: 1 MB at 1 Mbit/s; share of what the channel can carry, {runs} runs");
        println!("{:>16} {:>8} {:>8} {:>8} {:>8} {:>12}", "", "bad, ms", "mean", "median", "first", "most / mean");
        for (cell, took) in cells.iter().zip(&took) {
            let took_s = of(took);
            let (mean_s, most_s) = (mean(took_s), took_s.iter().copied().fold(0.0, f64::max));
            let first_s = took_s.first().copied().unwrap_or(f64::NAN);
            let share = |took_s: f64| possible_s(cell.bad_ms) / took_s;
            println!(
                "{:>16} {:>8} {:>8.3} {:>8.3} {:>8.3} {:>12.2}",
                cell.name(),
                cell.bad_ms,
                share(mean_s),
                share(median(took_s)),
                share(first_s),
                most_s / mean_s
            );
            let all: Vec<String> = took_s.iter().map(|took_s| format!("{took_s:.3}")).collect();
            rows.push(format!("{way},{},{},{},{}", cell.name(), cell.bad_ms, possible_s(cell.bad_ms), all.join(" ")));
        }
    }
    write_csv(&directory.join("w1-real.csv"), "operation,kind,bad_ms,possible_s,took_s", &rows)
}

/// Returns all cells. Those of retransmission are for the channels that lose something.
fn cells() -> Vec<Cell> {
    let mounts = [Mount::Mafs("quic"), Mount::Mafs("tcp"), Mount::Sshfs];
    let mounts = mounts.into_iter().filter(|mount| *mount != Mount::Sshfs || sshfs::is_installed());
    let mut cells = Vec::new();
    for mount in mounts {
        for retransmission in [None, Some(Retransmission::Hold)] {
            let lossy = BAD_MS.into_iter().filter(|bad_ms| *bad_ms > 0 || retransmission.is_none());
            cells.extend(lossy.map(|bad_ms| Cell { mount, retransmission, bad_ms }));
        }
    }
    cells
}

fn transfers(cell: Cell, runs: u64) -> io::Result<Took> {
    // Each channel has a seed of its own, and all mounts on it have the same: they meet the same bursts.
    let profile = Profile::burst_errors(Duration::from_millis(cell.bad_ms), 1 + cell.bad_ms);
    let profile = Profile { retransmission: cell.retransmission, ..profile };
    let printed = match cell.mount {
        Mount::Mafs(carrier) => {
            let place = Place::new()?;
            let lan = Profile::named("lan", 1).map_err(io::Error::other)?;
            place.run(&lan, "populating", "", &["as-w1-populate".to_owned(), runs.to_string()])?;
            let options = format!("prefetch=off,proto={carrier}");
            place.run(&profile, "cold", &options, &["as-w1".to_owned(), runs.to_string()])?
        }
        Mount::Sshfs => sshfs::run(&profile, |store| populate(store, runs), &["as-w1".to_owned(), runs.to_string()])?,
    };
    eprintln!("measured: {} at {} ms", cell.name(), cell.bad_ms);
    parse(&printed)
}

fn parse(printed: &str) -> io::Result<Took> {
    let mut took = Took { read_s: Vec::new(), write_s: Vec::new() };
    for line in printed.lines() {
        let wrong = || io::Error::other(format!("not what a run shows: {line:?}"));
        let (way, seconds) = line.split_once(' ').ok_or_else(wrong)?;
        let seconds = seconds.parse().map_err(|_| wrong())?;
        match way {
            "read" => took.read_s.push(seconds),
            "write" => took.write_s.push(seconds),
            _ => return Err(wrong()),
        }
    }
    Ok(took)
}

/// Makes the files that are read.
pub(crate) fn populate(mount: &Path, runs: u64) -> io::Result<()> {
    (0..runs).try_for_each(|run| write_file(&mount.join(format!("read-{run}")), run, FILE_BYTES))
}

/// Reads and writes a file in each run, and prints what each took. A file is written when the server has it.
pub(crate) fn play(mount: &Path, runs: u64) -> io::Result<()> {
    // Names are not measured.
    fs::read_dir(mount)?.for_each(drop);
    for run in 0..runs {
        thread::sleep(PAUSE);
        let start = Instant::now();
        let mut content = Vec::new();
        File::open(mount.join(format!("read-{run}")))?.read_to_end(&mut content)?;
        println!("read {}", start.elapsed().as_secs_f64());
        thread::sleep(PAUSE);
        let start = Instant::now();
        write_file(&mount.join(format!("written-{run}")), 1000 + run, FILE_BYTES)?;
        if env::var_os(sshfs::VARIABLE).is_none() {
            sync(mount)?;
        }
        println!("write {}", start.elapsed().as_secs_f64());
    }
    Ok(())
}
