//! Figure W3: two and eight stations that share a base station (papers/000, Tables 8 and 9; papers/001, figures 7 and
//! 8 and section 6): each station's share of the air, the cost of one bad channel for the others, and the papers' own
//! experiment.
//!
//! Link-level retransmission with a queue for each station, served in turn, stands beside a single queue, whose first
//! packet holds up all others when its station does not hear.

use std::io;
use std::path::Path;
use std::time::Duration;

use mafs_arpc::link::arq::{Queues, Settings};
use mafs_arpc::link::{Periods, Profile};
use mafs_proto::Instant;
use mafs_sim::nfs::{Backoff, Operation, transfer_all};
use mafs_sim::stations::saturate;

use crate::jobs::run_all;
use crate::plot::{Axes, Scale, Series, write_lines};
use crate::table::write_csv;
use crate::w1::{FILE_BYTES, LIMIT, begun_again, papers_client, with_papers_hosts};

const STATIONS: [usize; 2] = [2, 8];
/// The mean bad periods, in milliseconds.
const BAD_MS: [u64; 4] = [0, 40, 80, 160];
/// The mean bad periods of the one bad channel. Good periods have a second on average, as all others here.
const ONE_BAD_MS: [u64; 6] = [0, 40, 80, 160, 320, 1000];
/// Time for which stations send.
const TIME: Duration = Duration::from_secs(60);
/// The packets that 1 Mbit/s carries in that time.
const LINE_PACKETS: f64 = 60.0 * 125_000.0 / 1500.0;
const QUEUES: [(Queues, &str); 2] = [(Queues::PerStation, "per station"), (Queues::Shared, "one queue")];

/// The papers' means in seconds for two stations, at 40 and 80 ms: without changes, and with both (000, Tables 8, 9).
const PAPER: [(Operation, &str, [f64; 2], [f64; 2]); 2] =
    [(Operation::Read, "read", [56.1, 61.9], [33.4, 35.2]), (Operation::Write, "write", [46.1, 45.0], [25.3, 25.5])];

/// Prints the figure and writes it to a directory.
pub(crate) fn measure(directory: &Path, seeds: u64) -> io::Result<()> {
    shares(directory, seeds)?;
    one_bad_channel(directory, seeds)?;
    transfers(directory, seeds)
}

fn bursts(bad_ms: u64) -> Option<Periods> {
    let bad = Duration::from_millis(bad_ms);
    (bad_ms > 0).then_some(Periods::Random { good: Duration::from_secs(1), bad })
}

/// Returns the packets of each station, of each seed, over these channels.
fn saturated(channels: &[Option<Periods>], queues: Queues, seeds: u64) -> io::Result<Vec<Vec<f64>>> {
    let settings = Settings::default().with_queues(queues);
    let seeds: Vec<u64> = (1..=seeds).collect();
    run_all(&seeds, |seed| {
        let got = saturate(channels, Some(settings), TIME, *seed);
        Ok(got.into_iter().map(f64::from).collect())
    })
}

#[allow(clippy::cast_precision_loss, reason = "some tens")]
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the distance of the furthest value from the mean of all, as a part of it.
fn furthest_from_mean(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value / mean - 1.0).abs()).fold(0.0, f64::max)
}

/// Measures stations whose channels are all alike.
fn shares(directory: &Path, seeds: u64) -> io::Result<()> {
    println!(
        "\nW3: full packets for a minute; the share of the line that is used, and how far a station's share is from"
    );
    println!("equal: by its mean of {seeds} seeds, and in the worst run");
    println!("{:>9} {:>8} {:>12} {:>6} {:>8} {:>8}", "stations", "bad, ms", "queues", "used", "mean", "worst");
    let (mut lines, mut series) = (Vec::new(), Vec::new());
    for stations in STATIONS {
        for (queues, name) in QUEUES {
            let mut points = Vec::new();
            for bad_ms in BAD_MS {
                let got = saturated(&vec![bursts(bad_ms); stations], queues, seeds)?;
                let used = mean(&got.iter().map(|got| got.iter().sum::<f64>() / LINE_PACKETS).collect::<Vec<_>>());
                let of_station = |station| mean(&got.iter().map(|got: &Vec<f64>| got[station]).collect::<Vec<_>>());
                let of_means = furthest_from_mean(&(0..stations).map(of_station).collect::<Vec<_>>());
                let worst = got.iter().map(|got| furthest_from_mean(got)).fold(0.0, f64::max);
                let percent = |part: f64| format!("{:.1} %", 100.0 * part);
                println!(
                    "{stations:>9} {bad_ms:>8} {name:>12} {used:>6.3} {:>8} {:>8}",
                    percent(of_means),
                    percent(worst)
                );
                lines.push(format!("{stations},{bad_ms},{name},{used},{of_means},{worst}"));
                points.push((bad_ms, 100.0 * used));
            }
            series.push(Series::new(&format!("{stations}, {name}"), points));
        }
    }
    let header = "stations,bad_ms,queues,used,furthest_of_means,furthest_of_runs";
    write_csv(&directory.join("w3-shares.csv"), header, &lines)?;
    let x = ("mean bad period of all, ms", Scale::Linear);
    let axes = Axes { title: "W3: what is used of the line", x, y: ("percent", Scale::Linear) };
    write_lines(&directory.join("w3-shares.svg"), &axes, &series)
}

/// Measures the slowest of the stations that have no errors, beside one that has.
fn one_bad_channel(directory: &Path, seeds: u64) -> io::Result<()> {
    println!("\nW3: what the slowest of the others has when one channel is bad, in parts of what it has when none is:");
    println!("the mean of {seeds} seeds, and the worst run");
    println!("{:>9} {:>12} {:>12} {:>7} {:>7}", "stations", "queues", "bad, ms", "mean", "worst");
    let (mut lines, mut series) = (Vec::new(), Vec::new());
    for stations in STATIONS {
        for (queues, name) in QUEUES {
            let mut others: Vec<Option<Periods>> = vec![None; stations];
            let mut slowest = |first| {
                others[0] = first;
                let got = saturated(&others, queues, seeds)?;
                Ok::<_, io::Error>(
                    got.iter().map(|got| got[1..].iter().copied().fold(f64::INFINITY, f64::min)).collect(),
                )
            };
            let usual: Vec<f64> = slowest(None)?;
            let bad = ONE_BAD_MS.map(|bad_ms| (bad_ms.to_string(), bursts(bad_ms)));
            let mut points = Vec::new();
            for (bad_ms, periods) in bad.into_iter().chain([("always".to_owned(), Some(Periods::always_bad()))]) {
                let beside: Vec<f64> = slowest(periods)?;
                let left: Vec<f64> = beside.iter().zip(&usual).map(|(beside, usual)| beside / usual).collect();
                let worst = left.iter().copied().fold(f64::INFINITY, f64::min);
                println!("{stations:>9} {name:>12} {bad_ms:>12} {:>7.3} {worst:>7.3}", mean(&left));
                lines.push(format!("{stations},{name},{bad_ms},{},{worst}", mean(&left)));
                points.extend(bad_ms.parse().ok().map(|bad_ms: u64| (bad_ms, mean(&left))));
            }
            series.push(Series::new(&format!("{stations}, {name}"), points));
        }
    }
    write_csv(&directory.join("w3-one-bad.csv"), "stations,queues,bad_ms,left_mean,left_worst", &lines)?;
    let x = ("mean bad period of one, ms", Scale::Linear);
    let axes = Axes { title: "W3: what one bad channel leaves the others", x, y: ("of usual", Scale::Linear) };
    write_lines(&directory.join("w3-one-bad.svg"), &axes, &series)
}

/// A way in which the stations of the papers' experiment transfer their files.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    backoff: Backoff,
    retransmission: Option<Queues>,
}

const KINDS: [Kind; 3] = [
    Kind { name: "no changes", backoff: Backoff::Exponential, retransmission: None },
    Kind { name: "both, one queue", backoff: Backoff::HybridLinear, retransmission: Some(Queues::Shared) },
    Kind { name: "both", backoff: Backoff::HybridLinear, retransmission: Some(Queues::PerStation) },
];

/// Measures a file of 1 MB for each of two stations at once, by NFS as the papers ran it.
fn transfers(directory: &Path, seeds: u64) -> io::Result<()> {
    let (mut lines, mut series) = (Vec::new(), Vec::new());
    for (operation, name, paper_without, paper_with) in PAPER {
        println!("\nW3, {name}: 1 MB for each of two stations at once; seconds, means of {seeds} seeds (least..most)");
        print!("{:>8}", "bad, ms");
        KINDS.iter().for_each(|kind| print!(" {:>20}", kind.name));
        println!();
        let mut means = Vec::new();
        for bad_ms in BAD_MS {
            print!("{bad_ms:>8}");
            for kind in KINDS {
                let took = took_s(kind, operation, bad_ms, seeds)?;
                let (least, most) = took.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), s| (a.min(*s), b.max(*s)));
                print!(" {:>20}", format!("{:.1} ({least:.1}..{most:.1})", mean(&took)));
                let kind_name = kind.name.replace(',', "");
                lines.push(format!("{name},{bad_ms},{kind_name},{},{least},{most}", mean(&took)));
                means.push((kind.name, bad_ms, mean(&took)));
            }
            println!();
        }
        let of =
            |kind: &Kind| means.iter().filter(|mean| mean.0 == kind.name).map(|(_, x, y)| (*x, *y)).collect::<Vec<_>>();
        let at = |kind: &Kind, bad_ms: u64| of(kind).iter().find(|(x, _)| *x == bad_ms).map_or(f64::NAN, |(_, y)| *y);
        for (number, bad_ms) in [40, 80].into_iter().enumerate() {
            println!(
                "at {bad_ms} ms both take {:.0} % less; the papers: {} s, {} s, {:.0} % less",
                100.0 * (1.0 - at(&KINDS[2], bad_ms) / at(&KINDS[0], bad_ms)),
                paper_without[number],
                paper_with[number],
                100.0 * (1.0 - paper_with[number] / paper_without[number])
            );
        }
        series.extend(KINDS.iter().map(|kind| Series::new(&format!("{name}, {}", kind.name), of(kind))));
    }
    write_csv(&directory.join("w3-transfers.csv"), "operation,bad_ms,kind,mean_s,min_s,max_s", &lines)?;
    let x = ("mean bad period, ms", Scale::Linear);
    let axes = Axes { title: "W3: 1 MB for each of two stations", x, y: ("seconds", Scale::Linear) };
    write_lines(&directory.join("w3-transfers.svg"), &axes, &series)
}

/// Returns the times of both stations, of all seeds.
fn took_s(kind: Kind, operation: Operation, bad_ms: u64, seeds: u64) -> io::Result<Vec<f64>> {
    const STATIONS: usize = 2;
    let seeds: Vec<u64> = (1..=seeds).collect();
    let took = run_all(&seeds, |seed| {
        let retransmission = kind.retransmission.map(|queues| Settings::default().with_queues(queues));
        let once = |seed| {
            let link = with_papers_hosts(Profile::burst_errors(Duration::ZERO, seed));
            let cells = link.cells(&vec![bursts(bad_ms); STATIONS], retransmission, Instant(0));
            let done = transfer_all(&papers_client(kind.backoff), operation, FILE_BYTES, (STATIONS, cells), LIMIT);
            done.into_iter().map(|done| Some(done?.took.as_secs_f64())).collect::<Option<Vec<_>>>()
        };
        begun_again(kind.name, *seed, once)
    })?;
    Ok(took.concat())
}
