//! Figure M2: the cost of background writes for a foreground that somebody waits for, with and without priorities
//! (papers/003, figures 3 and 4), and the cost for the writer: one that waits for each file (sync), and one that
//! waits for none (async) while the log grows.

use std::io;
use std::path::Path;
use std::time::Duration;

use mafs_arpc::Scheduling;
use mafs_arpc::link::Profile;
use mafs_bench::report::median;
use mafs_client::vfs::Writeback;

use crate::plot::{Scale, Series, write_plot};
use crate::real::Place;
use crate::simulated;
use crate::table::write_csv;
use crate::variant::{VARIANTS, Variant};
use crate::workload::{Background, Foreground, Outcome};

pub(crate) const BANDWIDTHS: [u64; 5] = [64, 128, 256, 512, 1024];
/// Bandwidths at which virtual and real time are compared.
const REAL_BANDWIDTHS: [u64; 2] = [64, 512];
pub(crate) const RTT: Duration = Duration::from_millis(20);

/// Foreground and background; the paper's three.
pub(crate) const WORKLOADS: [(Foreground, Background); 3] = [
    (Foreground::Grep, Background::Write),
    (Foreground::Grep, Background::Compile),
    (Foreground::Read, Background::Write),
];

/// The paper's three ways, and one class with the window between the first and the others.
const WAYS: [Variant; 4] = [
    VARIANTS[0],
    Variant { name: "one+sync", scheduling: Scheduling::OneClass, writeback: Writeback::Sync },
    VARIANTS[2],
    VARIANTS[3],
];
const NONE_SYNC: usize = 0;
const PRIO_SYNC: usize = 2;
const PRIO_ASYNC: usize = 3;

/// Seeds by default. Whether the round trip happens to be measured beside a chunk of the other direction follows from
/// the seed, and makes 5 % of the foreground's time at 64 KB/s.
pub(crate) const SEEDS: u64 = 9;

/// Medians of all seeds of one workload at one bandwidth.
pub(crate) struct Cell {
    pub(crate) kbytes_per_s: u64,
    /// The foreground alone.
    idle: Medians,
    /// Limit of the foreground's time beside the background.
    limit_s: f64,
    /// Medians beside the background, in each of [`WAYS`].
    beside: [Medians; WAYS.len()],
}

/// Medians of all seeds; KB are of 1024 bytes.
struct Medians {
    foreground_s: f64,
    /// The least and the most of all seeds.
    spread_s: (f64, f64),
    /// KB per second that the background sent meanwhile, and KB how much less than alone in that time.
    written: f64,
    lost: f64,
    longest_write_s: f64,
    /// Growth of the log in KB per second, and its KB in the end.
    log_growth: f64,
    log: f64,
    /// KB that both have sent and received.
    used: f64,
    calls: f64,
}

/// Measures one cell by `run`, which runs one workload.
pub(crate) fn cell(
    kbytes_per_s: u64,
    (foreground, background): (Foreground, Background),
    seeds: u64,
    mut run: impl FnMut(Variant, (Foreground, Background), u64) -> io::Result<Outcome>,
) -> io::Result<Cell> {
    let mut outcomes = |variant, background| -> io::Result<Medians> {
        let all: io::Result<Vec<Outcome>> =
            (1..=seeds).map(|seed| run(variant, (foreground, background), seed)).collect();
        let all = all?;
        let of = |value: fn(&Outcome) -> f64| median(&all.iter().map(value).collect::<Vec<_>>());
        Ok(Medians {
            foreground_s: of(|outcome| outcome.foreground_s),
            spread_s: spread(&all),
            written: of(|outcome| outcome.written_bytes_per_s / 1024.0),
            lost: of(|outcome| outcome.lost_bytes / 1024.0),
            longest_write_s: of(|outcome| outcome.longest_write_s),
            log_growth: of(|outcome| outcome.log_growth_bytes_per_s / 1024.0),
            log: of(|outcome| outcome.log_bytes / 1024.0),
            used: of(|outcome| outcome.bytes / 1024.0),
            calls: of(|outcome| outcome.calls),
        })
    };
    let idle = outcomes(WAYS[PRIO_SYNC], Background::Idle)?;
    let [none, one, sync, asynchronous] = WAYS.map(|variant| outcomes(variant, background));
    let limit_s = limit_s(kbytes_per_s, idle.foreground_s, idle.calls);
    Ok(Cell { kbytes_per_s, idle, limit_s, beside: [none?, one?, sync?, asynchronous?] })
}

fn spread(outcomes: &[Outcome]) -> (f64, f64) {
    let all = outcomes.iter().map(|outcome| outcome.foreground_s);
    all.fold((f64::INFINITY, 0.0), |(least, most), value| (least.min(value), most.max(value)))
}

/// Returns the goal: 1.15 of the time alone or, where that is more, two chunks' time for each round trip: one is
/// being sent in either direction. The foreground alone makes one call after another.
#[allow(clippy::cast_precision_loss, reason = "some thousands")]
fn limit_s(kbytes_per_s: u64, idle_s: f64, round_trips: f64) -> f64 {
    let chunk_s = f64::max(0.010, 1400.0 / (kbytes_per_s * 1024) as f64);
    f64::max(1.15 * idle_s, idle_s + 2.0 * chunk_s * round_trips)
}

/// Measures all of it in virtual time.
pub(crate) fn simulated(directory: &Path, seeds: u64) -> io::Result<()> {
    for workload in WORKLOADS {
        let cells: io::Result<Vec<Cell>> = BANDWIDTHS
            .into_iter()
            .map(|bandwidth| {
                cell(bandwidth, workload, seeds, |variant, workload, seed| {
                    simulated::m2(bandwidth, RTT, variant, workload, seed)
                })
            })
            .collect();
        report(directory, "sim", workload, &cells?)?;
    }
    Ok(())
}

/// Measures over real mounts, to see whether virtual time tells the truth.
pub(crate) fn real(directory: &Path, seeds: u64) -> io::Result<()> {
    let place = Place::new()?;
    let lan = Profile::named("lan", 1).map_err(io::Error::other)?;
    place.run(&lan, "populating", "", &["as-populate".to_owned()])?;
    place.run(&lan, "warm", "", &["as-warm".to_owned()])?;
    for workload in WORKLOADS {
        let cells: io::Result<Vec<Cell>> = crate::chosen(&REAL_BANDWIDTHS)?
            .into_iter()
            .map(|bandwidth| {
                cell(bandwidth, workload, seeds, |variant, workload, seed| {
                    run_real(&place, bandwidth, variant, workload, seed)
                })
            })
            .collect();
        report(directory, "real", workload, &cells?)?;
    }
    Ok(())
}

fn run_real(
    place: &Place,
    kbytes_per_s: u64,
    variant: Variant,
    (foreground, background): (Foreground, Background),
    seed: u64,
) -> io::Result<Outcome> {
    let classes = match variant.scheduling {
        Scheduling::Classes => "waiting",
        Scheduling::OneClass => "one",
        Scheduling::Off => "none",
    };
    let cache = match foreground {
        Foreground::Grep => "warm",
        Foreground::Read => "cold",
    };
    place.forget("cold")?;
    let arguments = ["as-processes".to_owned(), foreground.to_string(), background.to_string(), seed.to_string()];
    let options = match variant.writeback {
        Writeback::Sync => "writeback=sync",
        Writeback::Async => "writeback=async",
        Writeback::Sirp => "writeback=sirp",
        Writeback::SirpC => "writeback=sirp-c",
    };
    let profile = Profile::steady(kbytes_per_s * 1024, RTT);
    Outcome::from_line(&place.run_classes(&profile, (cache, options), classes, &arguments)?)
}

/// Prints and writes the results of one workload.
pub(crate) fn report(
    directory: &Path,
    how: &str,
    (foreground, background): (Foreground, Background),
    cells: &[Cell],
) -> io::Result<()> {
    println!("\nM2 ({how}): {foreground} beside {background}, round trip {RTT:?}; seconds of the foreground, medians");
    print!("{:>6} {:>10}", "KB/s", "idle");
    WAYS.iter().for_each(|variant| print!(" {:>10}", variant.name));
    println!(
        " {:>14} {:>8}   {:>11} {:>11}   writer KB/s in the same order; prio+sync loses KB of",
        "(least..most)", "limit", "sync / idle", "async / idle"
    );
    let mut rows = Vec::new();
    for cell in cells {
        let Cell { kbytes_per_s, idle, limit_s, beside } = cell;
        print!("{kbytes_per_s:>6} {:>10.2}", idle.foreground_s);
        beside.iter().for_each(|of| print!(" {:>10.2}", of.foreground_s));
        let (least, most) = beside[PRIO_ASYNC].spread_s;
        let over_idle = |way: usize| beside[way].foreground_s / idle.foreground_s;
        print!(" {:>14} {limit_s:>8.2}   ", format!("({least:.2}..{most:.2})"));
        print!("{:>11.2} {:>12.2}   ", over_idle(PRIO_SYNC), over_idle(PRIO_ASYNC));
        let written = beside.each_ref().map(|of| format!("{:.1}", of.written)).join(", ");
        println!("{written}; {:.0} of {:.0}", beside[PRIO_SYNC].lost, idle.used);
        for (name, of) in WAYS.iter().map(|variant| variant.name).zip(beside).chain([("idle", idle)]) {
            let Medians { foreground_s, spread_s: (least, most), written, lost, longest_write_s, .. } = of;
            let Medians { log_growth, log, used, .. } = of;
            let writer = format!("{written},{lost},{longest_write_s},{log_growth},{log}");
            rows.push(format!("{kbytes_per_s},{name},{foreground_s},{least},{most},{limit_s},{writer},{used}"));
        }
    }
    println!(
        "the writer: its longest wait for a file, none+sync, prio+sync, prio+async; what its log gains with the last"
    );
    for Cell { kbytes_per_s, beside, .. } in cells {
        let longest = [NONE_SYNC, PRIO_SYNC, PRIO_ASYNC].map(|way| format!("{:.3} s", beside[way].longest_write_s));
        let Medians { log_growth, written, log, .. } = &beside[PRIO_ASYNC];
        print!("{kbytes_per_s:>6} {:>34}   ", longest.join(", "));
        println!("{log_growth:.0} KB/s besides {written:.0} that are sent, {:.1} MB in the end", log / 1024.0);
    }
    let name = format!("m2-{how}-{foreground}-beside-{background}");
    let header = "kbytes_per_s,variant,foreground_s,least_s,most_s,limit_s,written_kbytes_per_s,lost_kbytes,\
                  longest_write_s,log_growth_kbytes_per_s,log_kbytes,used_kbytes";
    write_csv(&directory.join(format!("{name}.csv")), header, &rows)?;
    let series = |name: &str, value: &dyn Fn(&Cell) -> f64| {
        Series::new(name, cells.iter().map(|cell| (cell.kbytes_per_s, value(cell))))
    };
    let ways = WAYS.iter().enumerate();
    let lines: Vec<Series> = std::iter::once(series("idle link", &|cell| cell.idle.foreground_s))
        .chain(ways.map(|(way, variant)| series(variant.name, &|cell| cell.beside[way].foreground_s)))
        .collect();
    let title = format!("M2, {how}: {foreground} beside {background}");
    write_plot(&directory.join(format!("{name}.svg")), &title, ("seconds", Scale::Log), &lines)
}
