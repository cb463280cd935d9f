//! Figure M1: a program compiles whose source is in the file system (papers/003, section 4.3, figure 3). The
//! compiler's work is in `mafs_sim::workload`.
//!
//! The paper's time is that of the compiler: what asynchronous writeback has not sent by then is not in it, and is
//! printed beside it.

use std::io;
use std::path::Path;
use std::time::Duration;

use mafs_bench::report::median;
use mafs_sim::workload::Compiled;

use crate::jobs::run_all;
use crate::plot::{Scale, Series, write_plot};
use crate::simulated;
use crate::table::write_csv;
use crate::variant::VARIANTS;

const BANDWIDTHS: [u64; 6] = [32, 64, 128, 256, 512, 1024];
const RTT: Duration = Duration::from_millis(20);

/// Medians of all seeds at one bandwidth, of each variant.
struct Row {
    kbytes_per_s: u64,
    took_s: [f64; 4],
    /// The least and the most of all seeds.
    spread_s: [(f64, f64); 4],
    /// Time from the end of the compiler until everything is sent.
    sent_after_s: [f64; 4],
}

impl Row {
    fn speedup(&self, variant: usize) -> f64 {
        self.took_s[0] / self.took_s[variant]
    }
}

/// Prints the figure and writes it to a directory.
pub(crate) fn measure(directory: &Path, seeds: u64) -> io::Result<()> {
    let of = |rate| (0..VARIANTS.len()).flat_map(move |variant| (1..=seeds).map(move |seed| (rate, variant, seed)));
    let jobs: Vec<(u64, usize, u64)> = BANDWIDTHS.into_iter().flat_map(of).collect();
    let compiled = run_all(&jobs, |(rate, variant, seed)| simulated::m1(*rate, RTT, VARIANTS[*variant], *seed))?;
    let of = |rate: u64, variant: usize, value: fn(&Compiled) -> Duration| -> Vec<f64> {
        let all = jobs.iter().zip(&compiled).filter(|((of, which, _), _)| (*of, *which) == (rate, variant));
        all.map(|(_, compiled)| value(compiled).as_secs_f64()).collect()
    };
    let rows: Vec<Row> = BANDWIDTHS
        .into_iter()
        .map(|rate| {
            let took = [0, 1, 2, 3].map(|variant| of(rate, variant, |compiled| compiled.took));
            Row {
                kbytes_per_s: rate,
                took_s: [0, 1, 2, 3].map(|variant| median(&took[variant])),
                spread_s: [0, 1, 2, 3].map(|variant| spread(&took[variant])),
                sent_after_s: [0, 1, 2, 3].map(|variant| median(&of(rate, variant, |compiled| compiled.sent_after))),
            }
        })
        .collect();
    report(directory, seeds, &rows)
}

fn spread(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, 0.0), |(least, most), value| (least.min(*value), most.max(*value)))
}

fn report(directory: &Path, seeds: u64, rows: &[Row]) -> io::Result<()> {
    let names = VARIANTS.map(|variant| variant.name);
    println!("\nM1: compiling, round trip {RTT:?}; seconds and speedup, medians of {seeds} seeds (least..most)");
    println!("the paper: async is faster at each bandwidth up to 1 MB/s, at best 1.6 to 1.7 times");
    print!("{:>6}", "KB/s");
    names.iter().for_each(|name| print!(" {name:>30}"));
    println!("   sent afterwards: none+async, prio+async");
    let mut lines = Vec::new();
    for row in rows {
        print!("{:>6}", row.kbytes_per_s);
        for variant in 0..names.len() {
            let (least, most) = row.spread_s[variant];
            let times = format!("{:.1} ({least:.1}..{most:.1})", row.took_s[variant]);
            print!(" {times:>24} {:>5.2}", row.speedup(variant));
        }
        println!("   {:.1}, {:.1} s", row.sent_after_s[1], row.sent_after_s[3]);
        for (variant, name) in names.iter().enumerate() {
            let (least, most) = row.spread_s[variant];
            lines.push(format!(
                "{},{name},{},{least},{most},{},{}",
                row.kbytes_per_s,
                row.took_s[variant],
                row.speedup(variant),
                row.sent_after_s[variant]
            ));
        }
    }
    let header = "kbytes_per_s,variant,took_s,took_s_min,took_s_max,speedup,sent_after_s";
    write_csv(&directory.join("m1.csv"), header, &lines)?;
    let series: Vec<Series> = (0..names.len())
        .map(|variant| Series::new(names[variant], rows.iter().map(|row| (row.kbytes_per_s, row.speedup(variant)))))
        .collect();
    write_plot(&directory.join("m1.svg"), "M1: compiling", ("speedup over none+sync", Scale::Linear), &series)
}
