//! How soon the window follows the link, over real mounts: Control calls beside a store while the rate falls from
//! 1 MB/s to 32 KB/s, and when it is back.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use mafs_arpc::BootClock;
use mafs_arpc::link::{Profile, Rate};
use mafs_bench::content::write_file;
use mafs_bench::report::median;
use mafs_proto::{Clock, Instant};

use crate::control::{bound, percentile, populate_directories};
use crate::m2::RTT;
use crate::real::{Place, sent};
use crate::table::write_csv;

const FAST: u64 = 1024 << 10;
const SLOW: u64 = 32 << 10;
/// Time in which the window must follow each rate.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(3);
/// The phases: when each rate begins, since the link did, when it ends, and which it is. The first is for the mount
/// and the store to get under way.
const PHASES: [(&str, Duration, Duration, u64); 3] = [
    ("before", Duration::from_secs(10), Duration::from_secs(20), FAST),
    ("slower", Duration::from_secs(20), Duration::from_secs(50), SLOW),
    ("faster", Duration::from_secs(50), Duration::from_secs(65), FAST),
];
/// More bytes than the link carries in all phases.
const STORE_BYTES: u64 = 64 << 20;
const DIRECTORIES: usize = 1500;
const EVERY: Duration = Duration::from_millis(50);

pub(crate) fn measure(directory: &Path) -> io::Result<()> {
    let place = Place::new()?;
    let lan = Profile::named("lan", 1).map_err(io::Error::other)?;
    place.run(&lan, "populating", "", &["as-step-populate".to_owned()])?;
    let mut profile = Profile::steady(FAST, RTT);
    let then = PHASES.iter().map(|(_, from, _, rate)| (*from, *rate)).collect();
    profile.up.rate = Rate::Steps { first: FAST, then };
    let began = BootClock.now();
    let printed = place.run(&profile, "cold", "", &["as-step".to_owned(), began.0.to_string()])?;
    println!(
        "\nControl calls beside a store, {FOLLOWED_WITHIN:?} and more after a step of the rate, round trip {RTT:?} (ms)"
    );
    println!("{:>8} {:>6} {:>6} {:>8} {:>8} {:>8} {:>11}", "", "KB/s", "calls", "p50", "p99", "bound", "store KB/s");
    for line in printed.lines() {
        println!(
            "{}",
            line.split(',')
                .zip([8, 6, 6, 8, 8, 8, 11])
                .map(|(cell, width)| format!("{cell:>width$} "))
                .collect::<String>()
        );
    }
    let rows: Vec<String> = printed.lines().map(str::to_owned).collect();
    write_csv(&directory.join("step.csv"), "phase,kbytes_per_s,calls,p50_ms,p99_ms,bound_ms,store_kbytes_per_s", &rows)
}

/// Makes directories to look into.
pub(crate) fn populate(mount: &Path) -> io::Result<()> {
    populate_directories(mount, DIRECTORIES)
}

/// Stores, looks names up meanwhile, and prints a line for each phase of the link that began at `began`.
pub(crate) fn play(mount: &Path, began: Instant) -> io::Result<()> {
    fs::read_dir(mount)?.for_each(drop);
    let stored = mount.join(format!("stored-{}", std::process::id()));
    thread::spawn(move || write_file(&stored, 2, STORE_BYTES));
    let mut names = (0..DIRECTORIES).map(|number| mount.join(format!("d{number}/f")));
    for (name, from, until, rate) in PHASES {
        let (from, until) = (began + from + FOLLOWED_WITHIN, began + until);
        thread::sleep(from.since(BootClock.now()));
        let (start, before) = (BootClock.now(), sent(mount)?.stored_bytes);
        let (mut took, mut bounds) = (Vec::new(), Vec::new());
        while BootClock.now() < until {
            let name = names.next().ok_or_else(|| io::Error::other("no directory is left"))?;
            let asked = BootClock.now();
            fs::metadata(name)?;
            took.push(BootClock.now().since(asked).as_secs_f64() * 1000.0);
            bounds.push(bound(mount, false)? * 1000.0);
            thread::sleep(EVERY);
        }
        let (bytes, time) = (sent(mount)?.stored_bytes - before, BootClock.now().since(start));
        #[allow(clippy::cast_precision_loss, reason = "some megabytes")]
        let stored = bytes as f64 / 1024.0 / time.as_secs_f64();
        took.sort_unstable_by(f64::total_cmp);
        let (p50, p99) = (percentile(&took, 50), percentile(&took, 99));
        let (calls, bound) = (took.len(), median(&bounds));
        println!("{name},{},{calls},{p50:.1},{p99:.1},{bound:.1},{stored:.1}", rate / 1024);
    }
    // The store's thread is not waited for.
    std::process::exit(0);
}
