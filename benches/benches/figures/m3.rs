//! Figure M3: traces with the figures of the paper's Table 2 are replayed (papers/003, section 4.3, figure 4). How they
//! are generated is in `mafs_sim::workload`.
//!
//! As in the paper a trace's duration is until its last read has ended, and the sum of the fetch times is that of all
//! reads: what is in the cache takes no time. The paper shows that sum at 512 KB/s only. At 64 KB/s the link cannot
//! carry the reads alone in the time that a trace has, so they queue, and the sum says mostly how many wait for each
//! other: a process that stands in a write asks for nothing meanwhile. Two more times do not depend on that: how long
//! any fetch was under way, and how late reads ended. And the reads alone, with nobody who writes, say what can be had.

use std::io;
use std::path::Path;
use std::time::Duration;

use mafs_bench::report::median;
use mafs_sim::workload::{Replayed, Trace, TraceShape};

use crate::jobs::run_all;
use crate::plot::{Series, write_bars};
use crate::simulated;
use crate::table::write_csv;
use crate::variant::{VARIANTS, Variant};

const BANDWIDTHS: [u64; 2] = [64, 512];
const RTT: Duration = Duration::from_millis(20);

/// Columns that are compared: the variants, and the last of them with nobody who writes.
const COLUMNS: [(&str, Variant); VARIANTS.len() + 1] = [
    (VARIANTS[0].name, VARIANTS[0]),
    (VARIANTS[1].name, VARIANTS[1]),
    (VARIANTS[2].name, VARIANTS[2]),
    (VARIANTS[3].name, VARIANTS[3]),
    ("reads alone", VARIANTS[3]),
];
const ALONE: usize = VARIANTS.len();

/// A time of a run, and its names for files and people.
type Measure = (&'static str, &'static str, fn(&Replayed) -> Duration);

/// Times that are reported of a run.
const MEASURES: [Measure; 6] = [
    ("duration", "until the last read", |replayed| replayed.last_read),
    ("fetching", "sum of the fetch times", |replayed| replayed.fetching),
    ("some-fetching", "time with a fetch under way", |replayed| replayed.some_fetching),
    ("late", "sum of how late reads ended", |replayed| replayed.late),
    ("programs", "until the last access", |replayed| replayed.last_access),
    ("sent", "until the server has everything", |replayed| replayed.sent_after),
];
/// The paper shows the first two measures; it has no sum of the fetch times at 64 KB/s.
const PLOTTED: usize = 4;

/// Bandwidth, shape, column and seed.
type Job = (u64, usize, usize, u64);

/// Prints the figure and writes it to a directory.
pub(crate) fn measure(directory: &Path, seeds: u64) -> io::Result<()> {
    let mut jobs: Vec<Job> = Vec::new();
    for (rate, shape) in BANDWIDTHS.into_iter().flat_map(|rate| (0..TraceShape::PAPER.len()).map(move |at| (rate, at)))
    {
        jobs.extend((0..COLUMNS.len()).flat_map(|column| (1..=seeds).map(move |seed| (rate, shape, column, seed))));
    }
    let replayed = run_all(&jobs, |(rate, shape, column, seed)| {
        let (shape, (name, variant)) = (&TraceShape::PAPER[*shape], COLUMNS[*column]);
        let trace = Trace::new(shape, *seed);
        let trace = if *column == ALONE { trace.without_writes() } else { trace };
        let replayed = simulated::m3(*rate, RTT, &trace, variant, *seed);
        let of = || format!("{} of seed {seed} with {name} at {rate} KB/s", shape.name);
        replayed.map_err(|error| io::Error::other(format!("{}: {error}", of())))
    })?;
    let mut rows = Vec::new();
    for rate in BANDWIDTHS {
        for (number, (name, title, value)) in MEASURES.into_iter().enumerate() {
            // Returns the values of all seeds of a shape and a column.
            let of = |shape: usize, column: usize| -> Vec<f64> {
                let chosen =
                    jobs.iter().zip(&replayed).filter(|(job, _)| (job.0, job.1, job.2) == (rate, shape, column));
                chosen.map(|(_, replayed)| value(replayed).as_secs_f64()).collect()
            };
            print(rate, title, seeds, &of);
            for (shape, column) in pairs() {
                let (all, which) = (of(shape, column), TraceShape::PAPER[shape].name);
                let (least, most) = spread(&all);
                let (variant, middle) = (COLUMNS[column].0, median(&all));
                rows.push(format!("{rate},{name},{which},{variant},{middle},{least},{most}"));
            }
            if number < PLOTTED {
                plot(&directory.join(format!("m3-{name}-{rate}.svg")), &format!("M3 at {rate} KB/s: {title}"), &of)?;
            }
        }
    }
    write_csv(&directory.join("m3.csv"), "kbytes_per_s,measure,trace,variant,median_s,least_s,most_s", &rows)
}

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..TraceShape::PAPER.len()).flat_map(|shape| (0..COLUMNS.len()).map(move |column| (shape, column)))
}

fn spread(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, 0.0), |(least, most), value| (least.min(*value), most.max(*value)))
}

fn print(rate: u64, title: &str, seeds: u64, of: &dyn Fn(usize, usize) -> Vec<f64>) {
    println!("\nM3 at {rate} KB/s, {title}; seconds, medians of {seeds} seeds (least..most), and gain over none+sync");
    println!("the paper: async and priorities are 10 to 20 % better where reads and writes contend");
    print!("{:>14}", "");
    COLUMNS.iter().for_each(|(name, _)| print!(" {name:>34}"));
    println!();
    for (shape, TraceShape { name, .. }) in TraceShape::PAPER.iter().enumerate() {
        print!("{name:>14}");
        let plain = median(&of(shape, 0));
        for column in 0..COLUMNS.len() {
            let (all, middle) = (of(shape, column), median(&of(shape, column)));
            let (least, most) = spread(&all);
            let times = format!("{middle:.1} ({least:.1}..{most:.1})");
            print!(" {times:>26} {:>+5.1} %", (1.0 - middle / plain) * 100.0);
        }
        println!();
    }
}

fn plot(path: &Path, title: &str, of: &dyn Fn(usize, usize) -> Vec<f64>) -> io::Result<()> {
    let bars = |column: usize| (0_u64..).zip((0..TraceShape::PAPER.len()).map(move |shape| median(&of(shape, column))));
    let series: Vec<Series> =
        COLUMNS.iter().enumerate().map(|(column, (name, _))| Series::new(name, bars(column))).collect();
    write_bars(path, title, "seconds", &TraceShape::PAPER.map(|shape| shape.name), &series)
}
