//! Figure M4: how stale what three readers see is while somebody writes over a slower link (papers/003, section 5.4,
//! figures 7 and 8). The writer's and the readers' work, and the definition of staleness, are in
//! `mafs_sim::workload`.
//!
//! Times are of two kinds. The writer's time ends with its last access, as programs see it, and what is sent until
//! the server has everything is beside it; a reader's ends with its last access.

use std::io;
use std::path::Path;
use std::time::Duration;

use mafs_client::vfs::{Close, StatusReport, Writeback};
use mafs_sim::workload::{STALENESS_MAX, Shared};

use crate::jobs::run_all;
use crate::plot::{Axes, Scale, Series, write_bars, write_lines};
use crate::simulated;
use crate::table::write_csv;

/// Bandwidths of the writer's link.
const BANDWIDTHS: [u64; 3] = [32, 128, 512];
/// Plans that are run by default.
pub(crate) const SEEDS: u64 = 20;

/// A way to propagate updates.
pub(crate) struct Policy {
    pub(crate) name: &'static str,
    pub(crate) writeback: Writeback,
    pub(crate) close: Close,
    /// Whether the server knows of all that a client's programs have closed, and has broken the promises.
    pub(crate) all_announced: fn(&StatusReport) -> bool,
}

/// The paper's policies, and SIRP with a close that waits until the server has heard of the update: there it is known
/// of each version when it was announced, so whether a read was too old shows exactly. With the others only what was
/// announced before a moment at which the server had everything counts.
const POLICIES: [Policy; 5] = [
    Policy { name: "sync", writeback: Writeback::Sync, close: Close::Logged, all_announced: is_sent },
    Policy { name: "async", writeback: Writeback::Async, close: Close::Logged, all_announced: is_sent },
    Policy { name: "sirp-c", writeback: Writeback::SirpC, close: Close::Logged, all_announced: is_sent },
    Policy { name: "sirp", writeback: Writeback::Sirp, close: Close::Logged, all_announced: is_sent },
    Policy { name: "sirp, announced", writeback: Writeback::Sirp, close: Close::Announced, all_announced: |_| true },
];
/// Policy with which others are compared.
const SYNC: usize = 0;
const ASYNC: usize = 1;
const SIRP: usize = 3;

fn is_sent(status: &StatusReport) -> bool {
    status.unsent_files == 0 && status.unsent_changes == 0
}

/// Results of one run.
pub(crate) struct Outcome {
    pub(crate) shared: Shared,
    /// Share of the reads that are at most 0, 1 ... versions behind.
    pub(crate) within: [f64; STALENESS_MAX + 1],
    /// Reads that returned an older version than had been announced.
    pub(crate) too_old: usize,
    /// Reads that returned an older version than the writer had closed.
    pub(crate) older_than_closed: usize,
    /// Bytes that the writer and the readers have sent and received.
    pub(crate) writer_bytes: u64,
    pub(crate) reader_bytes: u64,
    /// Calls of the writer, and updates that it has announced.
    pub(crate) writer_calls: u64,
    pub(crate) announced: u64,
}

/// Means of all seeds, of one policy at one bandwidth.
struct Cell {
    kbytes_per_s: u64,
    policy: usize,
    /// A run in which a program's operation failed is in none of the means.
    runs: usize,
    within: [f64; STALENESS_MAX + 1],
    /// The sum of all seeds.
    too_old: usize,
    older_than_closed: usize,
    reads: usize,
    writer_s: f64,
    sent_s: f64,
    reader_s: f64,
    writer_mb: f64,
    reader_mb: f64,
    writer_calls: f64,
    announced: f64,
}

impl Cell {
    #[allow(clippy::cast_precision_loss, reason = "some megabytes")]
    fn new(kbytes_per_s: u64, policy: usize, outcomes: &[&Outcome]) -> Self {
        let mean = |value: &dyn Fn(&Outcome) -> f64| {
            outcomes.iter().map(|outcome| value(outcome)).sum::<f64>() / outcomes.len().max(1) as f64
        };
        Self {
            kbytes_per_s,
            policy,
            runs: outcomes.len(),
            within: std::array::from_fn(|most| mean(&|outcome| outcome.within[most])),
            too_old: outcomes.iter().map(|outcome| outcome.too_old).sum(),
            older_than_closed: outcomes.iter().map(|outcome| outcome.older_than_closed).sum(),
            reads: outcomes.iter().flat_map(|outcome| &outcome.shared.reads).map(Vec::len).sum(),
            writer_s: mean(&|outcome| outcome.shared.writer_took.as_secs_f64()),
            sent_s: mean(&|outcome| outcome.shared.sent_after.as_secs_f64()),
            reader_s: mean(&|outcome| average(&outcome.shared.readers_took).as_secs_f64()),
            writer_mb: mean(&|outcome| outcome.writer_bytes as f64 / f64::from(1 << 20)),
            reader_mb: mean(&|outcome| outcome.reader_bytes as f64 / f64::from(1 << 20)),
            writer_calls: mean(&|outcome| outcome.writer_calls as f64),
            announced: mean(&|outcome| outcome.announced as f64),
        }
    }
}

fn average(times: &[Duration]) -> Duration {
    times.iter().sum::<Duration>() / u32::try_from(times.len().max(1)).unwrap_or(1)
}

/// Prints the figure and writes it to a directory.
pub(crate) fn measure(directory: &Path, seeds: u64) -> io::Result<()> {
    let of = |rate| (0..POLICIES.len()).flat_map(move |policy| (1..=seeds).map(move |seed| (rate, policy, seed)));
    let jobs: Vec<(u64, usize, u64)> = BANDWIDTHS.into_iter().flat_map(of).collect();
    let outcomes = run_all(&jobs, |(rate, policy, seed)| {
        let outcome = simulated::m4(*rate, &POLICIES[*policy], *seed);
        let failed = |error: &io::Error| println!("{} at {rate} KB/s, seed {seed}: {error}", POLICIES[*policy].name);
        Ok(outcome.inspect_err(failed).ok())
    })?;
    for rate in BANDWIDTHS {
        let cells: Vec<Cell> = (0..POLICIES.len())
            .map(|policy| {
                let chosen = jobs.iter().zip(&outcomes).filter(|(job, _)| (job.0, job.1) == (rate, policy));
                let chosen: Vec<&Outcome> = chosen.filter_map(|(_, outcome)| outcome.as_ref()).collect();
                Cell::new(rate, policy, &chosen)
            })
            .collect();
        print(seeds, &cells);
        write(directory, &cells)?;
    }
    Ok(())
}

fn print(seeds: u64, cells: &[Cell]) {
    let rate = cells.first().map_or(0, |cell| cell.kbytes_per_s);
    println!(
        "\nM4, writer at {rate} KB/s: % of reads at most so many versions behind the ideal, means of {seeds} seeds"
    );
    print!("{:>16}", "");
    (0..=STALENESS_MAX).for_each(|most| print!(" {most:>6}"));
    println!(
        "   too old of reads   writer s  until sent  readers s   writer MB  readers MB  writer's calls  announced"
    );
    for cell in cells {
        print!("{:>16}", POLICIES[cell.policy].name);
        cell.within.iter().for_each(|part| print!(" {:>6.1}", part * 100.0));
        print!("   {:>7}, {:>17}, of {:>5}", cell.too_old, cell.older_than_closed, cell.reads);
        print!("   {:>8.1}  {:>10.1}  {:>9.1}", cell.writer_s, cell.sent_s, cell.reader_s);
        print!("   {:>9.2}  {:>10.2}", cell.writer_mb, cell.reader_mb);
        println!("  {:>14.0}  {:>9.0}  {:>4}", cell.writer_calls, cell.announced, cell.runs);
    }
    for cell in cells {
        for (other, name) in
            [(SYNC, "sync"), (ASYNC, "async"), (SIRP, "sirp")].into_iter().filter(|(other, _)| *other != cell.policy)
        {
            print!("{:>16}", format!("{} - {name}", POLICIES[cell.policy].name));
            let differences: Vec<f64> =
                cell.within.iter().zip(cells[other].within).map(|(ours, theirs)| (ours - theirs) * 100.0).collect();
            differences.iter().for_each(|points| print!(" {points:>+6.1}"));
            let least = differences.iter().copied().fold(f64::INFINITY, f64::min);
            let slower = (cell.writer_s / cells[other].writer_s - 1.0) * 100.0;
            let bytes = (cell.writer_mb / cells[other].writer_mb - 1.0) * 100.0;
            println!("   points, {least:+.1} at least; writer's time {slower:+.1} %, bytes {bytes:+.1} %");
        }
    }
}

fn write(directory: &Path, cells: &[Cell]) -> io::Result<()> {
    let rate = cells.first().map_or(0, |cell| cell.kbytes_per_s);
    let name = |cell: &Cell| POLICIES[cell.policy].name;
    let lines: Vec<Series> =
        cells.iter().map(|cell| Series::new(name(cell), (0..).zip(cell.within.map(|part| part * 100.0)))).collect();
    let title = format!("M4, writer at {rate} KB/s");
    let axes = Axes { title: &title, x: ("versions behind", Scale::Linear), y: ("% of reads", Scale::Linear) };
    write_lines(&directory.join(format!("m4-staleness-{rate}.svg")), &axes, &lines)?;
    let times: Vec<Series> = cells
        .iter()
        .map(|cell| Series::new(name(cell), (0..).zip([cell.writer_s, cell.sent_s, cell.reader_s])))
        .collect();
    let groups = ["writer", "until sent", "readers"];
    write_bars(&directory.join(format!("m4-times-{rate}.svg")), &title, "seconds", &groups, &times)?;
    let rows: Vec<String> = cells
        .iter()
        .map(|cell| {
            let within: Vec<String> = cell.within.iter().map(ToString::to_string).collect();
            let Cell { too_old, older_than_closed, reads, writer_s, sent_s, reader_s, writer_mb, reader_mb, .. } = cell;
            let Cell { writer_calls, announced, runs, .. } = cell;
            format!(
                "{rate},{},{},{too_old},{older_than_closed},{reads},{writer_s},{sent_s},{reader_s},{writer_mb},\
                 {reader_mb},{writer_calls},{announced},{runs}",
                name(cell),
                within.join(",")
            )
        })
        .collect();
    let within: Vec<String> = (0..=STALENESS_MAX).map(|most| format!("within_{most}")).collect();
    let header = format!(
        "kbytes_per_s,policy,{},too_old,older_than_closed,reads,writer_s,sent_s,reader_s,writer_mbytes,\
         reader_mbytes,writer_calls,announced,runs",
        within.join(",")
    );
    write_csv(&directory.join(format!("m4-{rate}.csv")), &header, &rows)
}
