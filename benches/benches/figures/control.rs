//! How long urgent calls wait while a store fills the link, over real mounts: a Control call is a lookup of a name in
//! a directory that nobody has looked into.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use mafs_arpc::link::Profile;
use mafs_bench::content::write_file;
use mafs_bench::report::median;

use crate::m2::RTT;
use crate::plot::{Scale, Series, write_plot};
use crate::real::{DOWNLOAD_TIMES, Place, status};
use crate::table::write_csv;

const BANDWIDTHS: [u64; 6] = [32, 64, 128, 256, 512, 1024];
const STORE_BYTES: u64 = 10 << 20;
/// Directories for the slowest link: one each [`EVERY`].
const DIRECTORIES: usize = 2000;
const EVERY: Duration = Duration::from_millis(207);
const PLAIN_PORT: u16 = 6238;
/// Head start of the store, which has to find the link's rate out.
const LEAD: Duration = Duration::from_secs(2);
/// The bound's allowance (arpc.md, "Control bound").
const ALLOWANCE_S: f64 = 0.010;

/// Results of one run, in seconds and bytes per second.
struct Shown {
    p50_s: f64,
    p99_s: f64,
    bound_s: f64,
    stored: f64,
    calls: f64,
}

pub(crate) fn measure(directory: &Path) -> io::Result<()> {
    let place = Place::new()?;
    let lan = Profile::named("lan", 1).map_err(io::Error::other)?;
    place.run(&lan, "populating", "cachesize=4G", &["as-control-populate".to_owned()])?;
    println!("\na Control call beside a store of 10 MB, round trip {RTT:?}, over real mounts (ms)");
    println!(
        "{:>6} {:>9} {:>6} {:>8} {:>8} {:>8} {:>14} {:>14} {:>6}",
        "KB/s", "load", "calls", "p50", "p99", "bound", "store KB/s", "plain KB/s", "ratio"
    );
    let (mut rows, mut medians, mut highs) = (Vec::new(), Vec::new(), Vec::new());
    for bandwidth in crate::chosen(&BANDWIDTHS)? {
        let profile = Profile::steady(bandwidth * 1024, RTT);
        for load in ["store", "both"] {
            let plain = plain_upload(&profile, load == "both")?;
            place.forget("cold")?;
            let printed = place.run(&profile, "cold", "", &["as-control".to_owned(), load.to_owned()])?;
            let Shown { p50_s, p99_s, bound_s, stored, calls } = parse(&printed)?;
            let (p50, p99, bound) = (p50_s * 1000.0, p99_s * 1000.0, bound_s * 1000.0);
            let (stored, plain) = (stored / 1024.0, plain / 1024.0);
            let ratio = stored / plain;
            print!("{bandwidth:>6} {load:>9} {calls:>6} {p50:>8.1} {p99:>8.1} {bound:>8.1} ");
            println!("{stored:>14.1} {plain:>14.1} {ratio:>6.3}");
            rows.push(format!("{bandwidth},{load},{calls},{p50},{p99},{bound},{stored},{plain}"));
            if load == "store" {
                medians.push((bandwidth, p50));
                highs.push((bandwidth, p99));
            }
        }
    }
    let header = "kbytes_per_s,load,calls,p50_ms,p99_ms,bound_ms,store_kbytes_per_s,plain_kbytes_per_s";
    write_csv(&directory.join("control.csv"), header, &rows)?;
    let series = [Series::new("median", medians), Series::new("99th percentile", highs)];
    write_plot(&directory.join("control.svg"), "a Control call beside a store", ("ms", Scale::Log), &series)
}

/// Returns the rate of a plain gRPC upload of the same size, beside a plain download if `both`.
fn plain_upload(profile: &Profile, both: bool) -> io::Result<f64> {
    let printed = Place::run_plain(profile, PLAIN_PORT, STORE_BYTES, both)?;
    printed.trim().parse().map_err(io::Error::other)
}

fn parse(printed: &str) -> io::Result<Shown> {
    let numbers: Vec<f64> = printed.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    match numbers[..] {
        [p50_s, p99_s, bound_s, stored, calls] => Ok(Shown { p50_s, p99_s, bound_s, stored, calls }),
        _ => Err(io::Error::other(format!("not what a run shows: {printed:?}"))),
    }
}

/// Makes directories to look into, and a file to download.
pub(crate) fn populate(mount: &Path) -> io::Result<()> {
    populate_directories(mount, DIRECTORIES)?;
    write_file(&mount.join("large"), 1, DOWNLOAD_TIMES * STORE_BYTES)
}

/// Makes directories `d0` and so on, with a file `f` each.
pub(crate) fn populate_directories(mount: &Path, count: usize) -> io::Result<()> {
    for number in 0..count {
        let directory = mount.join(format!("d{number}"));
        fs::create_dir(&directory)?;
        fs::write(directory.join("f"), "x")?;
    }
    Ok(())
}

/// Stores, looks names up meanwhile, and prints what that took; `both` downloads besides.
pub(crate) fn play(mount: &Path, both: bool) -> io::Result<()> {
    // The names of the directories are not measured.
    fs::read_dir(mount)?.for_each(drop);
    let download = both.then(|| {
        let large = mount.join("large");
        thread::spawn(move || fs::copy(large, "/dev/null"))
    });
    let (start, stored) = (Instant::now(), mount.join(format!("stored-{}", std::process::id())));
    let store = thread::spawn(move || write_file(&stored, 2, STORE_BYTES).map(|()| start.elapsed()));
    thread::sleep(LEAD);
    let (mut took, mut bounds) = (Vec::new(), Vec::new());
    for number in 0..DIRECTORIES {
        if store.is_finished() {
            break;
        }
        let before = Instant::now();
        fs::metadata(mount.join(format!("d{number}/f")))?;
        took.push(before.elapsed().as_secs_f64());
        bounds.push(bound(mount, both)?);
        thread::sleep(EVERY.saturating_sub(before.elapsed()));
    }
    let stored = store.join().map_err(|_| io::Error::other("the store panicked"))??;
    // A download that is longer than the store has shown enough.
    drop(download);
    took.sort_unstable_by(f64::total_cmp);
    #[allow(clippy::cast_precision_loss, reason = "ten megabytes")]
    let rate = STORE_BYTES as f64 / stored.as_secs_f64();
    let (p50, p99) = (percentile(&took, 50), percentile(&took, 99));
    println!("{p50} {p99} {} {rate} {}", median(&bounds), took.len());
    // The download's thread is not waited for.
    std::process::exit(0);
}

/// Returns a percentile of sorted values; 0 of none.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
}

/// Returns how long a call may take now: the round trip, what the window holds beyond what the link does, a chunk,
/// and [`ALLOWANCE_S`]. The other direction's queue is taken to be as long.
pub(crate) fn bound(mount: &Path, both: bool) -> io::Result<f64> {
    let status = status(mount)?;
    let number = |name: &str| status[name].as_f64().ok_or_else(|| io::Error::other(format!("no {name}: {status}")));
    let (rate, rtt) = (number("rate_bytes_per_s")?, number("rtt_us")? / 1e6);
    let queue = (number("window_bytes")? - rate * rtt).max(0.0) / rate + number("chunk_bytes")? / rate;
    Ok(rtt + if both { 2.0 * queue } else { queue } + ALLOWANCE_S)
}
