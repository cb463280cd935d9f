//! Figures W1 and W2: a file of 1 MB over a wireless link with bursts of errors, read and written (papers/000, Tables 1
//! to 7 and figure 4; papers/001, figures 5 and 6): by NFS as the papers ran it, with their two changes, and by mafs.
//!
//! Absolute times of the papers are those of machines of 1995: what compares is how much each change brings. `possible`
//! is what the channel can carry: the bytes at its rate, in the share of time in which it is good.

use std::io;
use std::path::Path;
use std::time::Duration;

use mafs_arpc::link::{Direction, Profile, Receiver, Retransmission};
use mafs_bench::report::mean;
use mafs_sim::nfs::{Backoff, Client, Operation, transfer};

use crate::jobs::run_all;
use crate::plot::{Axes, Scale, Series, write_lines};
use crate::simulated;
use crate::table::write_csv;

/// Seeds by default: as many as the papers' runs.
pub(crate) const SEEDS: u64 = 10;

/// The mean bad period of each row, in milliseconds; 0 is a link without errors.
const BAD_MS: [u64; 6] = [0, 20, 40, 80, 120, 160];
pub(crate) const FILE_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 4096;
const BLOCKS_BYTES: [u64; 4] = [1024, 2048, 4096, 8192];
/// 1 Mbit/s, and the mean good period.
const BYTES_PER_S: f64 = 125_000.0;
const GOOD_MS: f64 = 1000.0;
/// Limit of a transfer: the papers ended transfers that took longer, and began them again.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// Figures of the hosts that the papers do not tell, chosen so that a link without errors gives their times (000, Table
/// 7): calls under way, and how long the client's host and the server work on a block.
const CALLS: usize = 8;
const HOST: Duration = Duration::from_millis(30);
const SERVER: Duration = Duration::from_millis(30);
/// The drivers' queues hold one block of 8 KB, and the mobile host empties its adapter at half of the link's rate: the
/// overflow of their figure 3.
const DRIVER_QUEUE_BYTES: u64 = 8500;
const ADAPTER: Receiver = Receiver { buffer_bytes: 6000, bytes_per_s: 60_000 };

/// One way of transferring the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kind {
    name: &'static str,
    /// Backoff of NFS; `None` for mafs.
    backoff: Option<Backoff>,
    retransmission: Option<Retransmission>,
}

const fn nfs(name: &'static str, backoff: Backoff, retransmission: Option<Retransmission>) -> Kind {
    Kind { name, backoff: Some(backoff), retransmission }
}

/// Retransmission as the papers emulate it, and as a protocol.
const HOLD: Option<Retransmission> = Some(Retransmission::Hold);
const ARQ: Option<Retransmission> = Some(Retransmission::Arq);
const UNCHANGED: Kind = nfs("no changes", Backoff::Exponential, None);
const BOTH: Kind = nfs("both", Backoff::HybridLinear, HOLD);
const BOTH_ARQ: Kind = nfs("both arq", Backoff::HybridLinear, ARQ);
/// All kinds. The first four are the papers'.
const KINDS: [Kind; 9] = [
    UNCHANGED,
    nfs("linear", Backoff::HybridLinear, None),
    nfs("retransmit", Backoff::Exponential, HOLD),
    BOTH,
    nfs("retransmit arq", Backoff::Exponential, ARQ),
    BOTH_ARQ,
    Kind { name: "mafs", backoff: None, retransmission: None },
    Kind { name: "mafs hold", backoff: None, retransmission: HOLD },
    Kind { name: "mafs arq", backoff: None, retransmission: ARQ },
];

/// The papers' means in seconds, of their four kinds, at 40 and 80 ms, and without errors (000, Tables 5 to 7).
const PAPER_READ: ([f64; 4], [f64; 4], f64) = ([49.2, 48.0, 38.3, 37.0], [67.7, 48.7, 31.7, 31.9], 30.7);
const PAPER_WRITE: ([f64; 4], [f64; 4], f64) = ([24.7, 24.6, 16.9, 16.7], [45.5, 24.4, 15.3, 14.8], 14.2);

type Job = (Kind, Operation, u64, u64, u64);

/// Prints the figure and writes it to a directory.
pub(crate) fn measure(directory: &Path, seeds: u64) -> io::Result<()> {
    for (operation, name, paper) in [(Operation::Read, "read", PAPER_READ), (Operation::Write, "write", PAPER_WRITE)] {
        let cells = run(&KINDS, operation, &BAD_MS, &[BLOCK_BYTES], seeds)?;
        report_w1(directory, name, paper, seeds, &cells)?;
    }
    Ok(())
}

/// Prints figure W2, which is W1's base with blocks of other sizes, and writes it to a directory.
pub(crate) fn measure_blocks(directory: &Path, seeds: u64) -> io::Result<()> {
    println!("\nW2: NFS, blocks of other sizes; seconds, means of {seeds} seeds");
    println!("the papers, without changes: a knee at 4096 bytes, with more errors the best");
    let mut lines = Vec::new();
    let mut series = Vec::new();
    for kind in [UNCHANGED, BOTH, BOTH_ARQ] {
        for (operation, name) in [(Operation::Read, "read"), (Operation::Write, "write")] {
            for bad_ms in [40, 80] {
                let cells = run(&[kind], operation, &[bad_ms], &BLOCKS_BYTES, seeds)?;
                let means = cells.iter().map(|cell| (cell.block_bytes, mean(&cell.took_s)));
                let times = means.clone().map(|(bytes, mean_s)| format!("{bytes}: {mean_s:5.1}"));
                println!("{:>10}: {name:>5}, {bad_ms} ms   {}", kind.name, times.collect::<Vec<_>>().join("   "));
                lines.extend(
                    means.clone().map(|(bytes, mean_s)| format!("{},{name},{bad_ms},{bytes},{mean_s}", kind.name)),
                );
                if kind == UNCHANGED {
                    series.push(Series::new(&format!("{name}, {bad_ms} ms"), means));
                }
            }
        }
    }
    write_csv(&directory.join("w2.csv"), "kind,operation,bad_ms,block_bytes,mean_s", &lines)?;
    let axes = Axes { title: "W2: size of blocks", x: ("bytes", Scale::Log), y: ("seconds", Scale::Linear) };
    write_lines(&directory.join("w2.svg"), &axes, &series)
}

/// All runs of one kind at one mean bad period.
struct Cell {
    kind: Kind,
    bad_ms: u64,
    block_bytes: u64,
    took_s: Vec<f64>,
}

impl Cell {
    fn spread_s(&self) -> (f64, f64) {
        self.took_s.iter().fold((f64::INFINITY, 0.0), |(least, most), took| (least.min(*took), most.max(*took)))
    }
}

fn run(
    kinds: &[Kind],
    operation: Operation,
    bad_ms: &[u64],
    blocks_bytes: &[u64],
    seeds: u64,
) -> io::Result<Vec<Cell>> {
    let mut jobs: Vec<Job> = Vec::new();
    let mut cells = Vec::new();
    for &kind in kinds {
        for &bad_ms in bad_ms {
            for &block_bytes in blocks_bytes {
                jobs.extend((1..=seeds).map(|seed| (kind, operation, bad_ms, block_bytes, seed)));
                cells.push(Cell { kind, bad_ms, block_bytes, took_s: Vec::new() });
            }
        }
    }
    let took = run_all(&jobs, |job| took(*job))?;
    let count = usize::try_from(seeds).map_err(io::Error::other)?;
    for (cell, took) in cells.iter_mut().zip(took.chunks(count)) {
        cell.took_s = took.iter().map(Duration::as_secs_f64).collect();
    }
    Ok(cells)
}

fn took((kind, operation, bad_ms, block_bytes, seed): Job) -> io::Result<Duration> {
    let bad = Duration::from_millis(bad_ms);
    let link = |seed| Profile { retransmission: kind.retransmission, ..Profile::burst_errors(bad, seed) };
    let Some(backoff) = kind.backoff else { return simulated::w1(link(seed), operation, FILE_BYTES, seed) };
    let client = Client { block_bytes, ..papers_client(backoff) };
    let once = |seed| transfer(&client, operation, FILE_BYTES, &with_papers_hosts(link(seed)), LIMIT);
    Ok(begun_again(kind.name, seed, once)?.took)
}

/// Does something once or, as in the papers, again if it takes too long: with a seed of which no other run begins.
pub(crate) fn begun_again<T>(name: &str, seed: u64, once: impl Fn(u64) -> Option<T>) -> io::Result<T> {
    let done = (0..10).find_map(|again| once(seed + again * 1000));
    done.ok_or_else(|| io::Error::other(format!("{name} never ends: seed {seed}")))
}

/// Returns the papers' NFS client, with blocks of 4096 bytes.
pub(crate) fn papers_client(backoff: Backoff) -> Client {
    Client { block_bytes: BLOCK_BYTES, calls: CALLS, backoff, host: HOST, server: SERVER }
}

/// Puts the papers' hosts at the ends of a link.
pub(crate) fn with_papers_hosts(mut link: Profile) -> Profile {
    link.up.queue_bytes = DRIVER_QUEUE_BYTES;
    link.down = Direction { queue_bytes: DRIVER_QUEUE_BYTES, receiver: Some(ADAPTER), ..link.down };
    link
}

/// Returns the least time that the channel needs.
#[allow(clippy::cast_precision_loss, reason = "a file")]
pub(crate) fn possible_s(bad_ms: u64) -> f64 {
    let bad_ms = bad_ms as f64;
    FILE_BYTES as f64 / BYTES_PER_S * (GOOD_MS + bad_ms) / GOOD_MS
}

fn report_w1(
    directory: &Path,
    name: &str,
    (paper_40, paper_80, paper_0): ([f64; 4], [f64; 4], f64),
    seeds: u64,
    cells: &[Cell],
) -> io::Result<()> {
    println!("\nW1, {name}: 1 MB at 1 Mbit/s; seconds, means of {seeds} seeds (least..most)");
    print!("{:>8}{:>10}", "bad, ms", "possible");
    KINDS.iter().for_each(|kind| print!(" {:>18}", kind.name));
    println!();
    for bad_ms in BAD_MS {
        print!("{bad_ms:>8}{:>10.1}", possible_s(bad_ms));
        for cell in cells.iter().filter(|cell| cell.bad_ms == bad_ms) {
            let (least, most) = cell.spread_s();
            print!(" {:>18}", format!("{:.1} ({least:.1}..{most:.1})", mean(&cell.took_s)));
        }
        println!();
    }
    println!("the paper, of 1995: without errors {paper_0}; at 40 ms {paper_40:?}; at 80 ms {paper_80:?}");
    let mean_s = |kind: usize, bad_ms: u64| {
        let cell = cells.iter().find(|cell| cell.kind == KINDS[kind] && cell.bad_ms == bad_ms);
        cell.map_or(f64::NAN, |cell| mean(&cell.took_s))
    };
    let less = |kind: usize| 100.0 * (1.0 - mean_s(kind, 80) / mean_s(0, 80));
    let papers_less = |kind: usize| 100.0 * (1.0 - paper_80[kind] / paper_80[0]);
    println!(
        "at 80 ms linear takes {:.0} % less (the paper: {:.0} %), retransmission {:.0} % ({:.0} %); both take {:.2} of \
         the time without errors ({:.2})",
        less(1),
        papers_less(1),
        less(2),
        papers_less(2),
        mean_s(3, 80) / mean_s(0, 0),
        paper_80[3] / paper_0
    );
    let line = |cell: &Cell| {
        let (least, most) = cell.spread_s();
        format!("{},{},{},{},{least},{most}", cell.bad_ms, cell.kind.name, possible_s(cell.bad_ms), mean(&cell.took_s))
    };
    let lines: Vec<String> = cells.iter().map(line).collect();
    let header = "bad_ms,kind,possible_s,mean_s,min_s,max_s";
    write_csv(&directory.join(format!("w1-{name}.csv")), header, &lines)?;
    let of = |kind| cells.iter().filter(move |cell| cell.kind == kind).map(|cell| (cell.bad_ms, mean(&cell.took_s)));
    let series: Vec<Series> = KINDS.into_iter().map(|kind| Series::new(kind.name, of(kind))).collect();
    let title = format!("W1: {name} of 1 MB");
    let axes = Axes { title: &title, x: ("mean bad period, ms", Scale::Linear), y: ("seconds", Scale::Linear) };
    write_lines(&directory.join(format!("w1-{name}.svg")), &axes, &series)
}
