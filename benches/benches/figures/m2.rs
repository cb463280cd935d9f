//! Figure M2: what background writes cost whoever waits, with and without priorities (papers/003, figures 3 and 4).

use std::io;
use std::path::Path;
use std::time::Duration;

use mafs_arpc::Scheduling;
use mafs_arpc::link::Profile;
use mafs_bench::report::median;

use crate::plot::{Scale, Series, write_plot};
use crate::real::Place;
use crate::simulated;
use crate::table::write_csv;
use crate::workload::{Background, Foreground, Outcome};

pub(crate) const BANDWIDTHS: [u64; 5] = [64, 128, 256, 512, 1024];
/// Where virtual and real time are compared.
const REAL_BANDWIDTHS: [u64; 2] = [64, 512];
pub(crate) const RTT: Duration = Duration::from_millis(20);

/// Foreground and background; the paper's three.
pub(crate) const WORKLOADS: [(Foreground, Background); 3] = [
    (Foreground::Grep, Background::Write),
    (Foreground::Grep, Background::Compile),
    (Foreground::Read, Background::Write),
];

/// Medians of all seeds of one workload at one bandwidth.
pub(crate) struct Cell {
    pub(crate) kbytes_per_s: u64,
    /// Of the foreground alone.
    idle_s: f64,
    /// What it may be beside the background.
    limit_s: f64,
    /// Without classes and window, with the window, with both.
    beside_s: [f64; 3],
    /// What the background wrote meanwhile, in the same three; KB per second.
    written: [f64; 3],
    /// What the background with both wrote less than alone in that time, and what the foreground alone has sent and
    /// received; KB.
    lost_and_used: [f64; 2],
}

/// Of all seeds.
struct Medians {
    foreground_s: f64,
    written: f64,
    lost: f64,
    used: f64,
    calls: f64,
}

/// Measures one cell by whatever runs workloads.
pub(crate) fn cell(
    kbytes_per_s: u64,
    (foreground, background): (Foreground, Background),
    seeds: u64,
    mut run: impl FnMut(Scheduling, (Foreground, Background), u64) -> io::Result<Outcome>,
) -> io::Result<Cell> {
    let mut outcomes = |scheduling, background| -> io::Result<Medians> {
        let all: io::Result<Vec<Outcome>> =
            (1..=seeds).map(|seed| run(scheduling, (foreground, background), seed)).collect();
        let all = all?;
        let of = |value: fn(&Outcome) -> f64| median(&all.iter().map(value).collect::<Vec<_>>());
        Ok(Medians {
            foreground_s: of(|outcome| outcome.foreground_s),
            written: of(|outcome| outcome.written_bytes_per_s / 1024.0),
            lost: of(|outcome| outcome.lost_bytes / 1024.0),
            used: of(|outcome| outcome.bytes) / 1024.0,
            calls: of(|outcome| outcome.calls),
        })
    };
    let idle = outcomes(Scheduling::Classes, Background::Idle)?;
    let none = outcomes(Scheduling::Off, background)?;
    let one = outcomes(Scheduling::OneClass, background)?;
    let prio = outcomes(Scheduling::Classes, background)?;
    Ok(Cell {
        kbytes_per_s,
        idle_s: idle.foreground_s,
        limit_s: limit_s(kbytes_per_s, idle.foreground_s, idle.calls),
        beside_s: [none.foreground_s, one.foreground_s, prio.foreground_s],
        written: [none.written, one.written, prio.written],
        lost_and_used: [prio.lost, idle.used],
    })
}

/// The goal: 1.15 of the time alone or, where that is more, two chunks' time for each round trip: one is being sent in
/// either direction. The foreground alone makes one call after another.
#[allow(clippy::cast_precision_loss, reason = "some thousands")]
fn limit_s(kbytes_per_s: u64, idle_s: f64, round_trips: f64) -> f64 {
    let chunk_s = f64::max(0.010, 1400.0 / (kbytes_per_s * 1024) as f64);
    f64::max(1.15 * idle_s, idle_s + 2.0 * chunk_s * round_trips)
}

/// All of it, in virtual time.
pub(crate) fn simulated(directory: &Path, seeds: u64) -> io::Result<()> {
    for workload in WORKLOADS {
        let cells: io::Result<Vec<Cell>> = BANDWIDTHS
            .into_iter()
            .map(|bandwidth| {
                cell(bandwidth, workload, seeds, |scheduling, workload, seed| {
                    simulated::m2(bandwidth, RTT, scheduling, workload, seed)
                })
            })
            .collect();
        report(directory, "sim", workload, &cells?)?;
    }
    Ok(())
}

/// Over real mounts, to see whether virtual time tells the truth.
pub(crate) fn real(directory: &Path, seeds: u64) -> io::Result<()> {
    let place = Place::new()?;
    let lan = Profile::named("lan", 1).map_err(io::Error::other)?;
    place.run(&lan, "populating", "", &["as-populate".to_owned()])?;
    place.run(&lan, "warm", "", &["as-warm".to_owned()])?;
    for workload in WORKLOADS {
        let cells: io::Result<Vec<Cell>> = crate::chosen(&REAL_BANDWIDTHS)?
            .into_iter()
            .map(|bandwidth| {
                cell(bandwidth, workload, seeds, |scheduling, workload, seed| {
                    run_real(&place, bandwidth, scheduling, workload, seed)
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
    scheduling: Scheduling,
    (foreground, background): (Foreground, Background),
    seed: u64,
) -> io::Result<Outcome> {
    let classes = match scheduling {
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
    let printed = place.run_classes(&Profile::steady(kbytes_per_s * 1024, RTT), cache, classes, &arguments)?;
    let numbers: Vec<f64> = printed.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    match numbers[..] {
        [foreground_s, written_bytes_per_s, lost_bytes, calls, bytes] => {
            Ok(Outcome { foreground_s, written_bytes_per_s, lost_bytes, calls, bytes })
        }
        _ => Err(io::Error::other(format!("not an outcome: {printed:?}"))),
    }
}

/// Prints and writes what was measured of one workload.
pub(crate) fn report(
    directory: &Path,
    how: &str,
    (foreground, background): (Foreground, Background),
    cells: &[Cell],
) -> io::Result<()> {
    println!("\nM2 ({how}): {foreground} beside {background}, round trip {RTT:?}; seconds of the foreground, medians");
    println!(
        "{:>6} {:>8} {:>10} {:>10} {:>10} {:>8}   {:>12} {:>12}   writer KB/s none, one, prio; loses KB of",
        "KB/s", "idle", "none+sync", "one+sync", "prio+sync", "limit", "prio / idle", "none / prio"
    );
    let mut rows = Vec::new();
    for cell in cells {
        let Cell { kbytes_per_s, idle_s, limit_s, beside_s: [none, one, prio], written, .. } = cell;
        let [lost, used] = cell.lost_and_used;
        print!("{kbytes_per_s:>6} {idle_s:>8.2} {none:>10.2} {one:>10.2} {prio:>10.2} {limit_s:>8.2}   ");
        print!("{:>12.2} {:>12.2}   ", prio / idle_s, none / prio);
        println!("{:.1}, {:.1}, {:.1}; {lost:.0} of {used:.0}", written[0], written[1], written[2]);
        let written: Vec<String> = written.iter().map(ToString::to_string).collect();
        rows.push(format!("{kbytes_per_s},{idle_s},{none},{one},{prio},{limit_s},{},{lost},{used}", written.join(",")));
    }
    let name = format!("m2-{how}-{foreground}-beside-{background}");
    let header = "kbytes_per_s,idle_s,none_s,one_s,prio_s,limit_s,none_written_kbytes_per_s,one_written_kbytes_per_s,\
                  prio_written_kbytes_per_s,prio_lost_kbytes,idle_used_kbytes";
    write_csv(&directory.join(format!("{name}.csv")), header, &rows)?;
    let series = |name: &str, value: fn(&Cell) -> f64| {
        Series::new(name, cells.iter().map(|cell| (cell.kbytes_per_s, value(cell))))
    };
    let lines = [
        series("idle link", |cell| cell.idle_s),
        series("none+sync", |cell| cell.beside_s[0]),
        series("one class+sync", |cell| cell.beside_s[1]),
        series("prio+sync", |cell| cell.beside_s[2]),
    ];
    let title = format!("M2, {how}: {foreground} beside {background}");
    write_plot(&directory.join(format!("{name}.svg")), &title, ("seconds", Scale::Log), &lines)
}
