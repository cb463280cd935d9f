//! Reports: measurements of mafs beside the local disk, as a table for people and as CSV.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

/// One quantity, measured several times alternately on mafs and on the local directory.
#[derive(Debug)]
pub struct Row {
    /// The measured quantity.
    pub name: &'static str,
    /// The quantity's unit.
    pub unit: &'static str,
    /// Pairs of mafs and local, one per run, in order.
    pub pairs: Vec<(f64, f64)>,
}

impl Row {
    fn ratios(&self) -> Vec<f64> {
        self.pairs.iter().map(|(mafs, local)| mafs / local).collect()
    }
}

/// Returns a table with medians: mafs, local, and mafs / local with the smallest and largest ratio of the runs.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text =
        format!("{:<44}{:>12}{:>12} {:<8}{:>8}  {}\n", "", "mafs", "local", "", "ratio", "smallest..largest");
    for row in rows {
        let (mafs, local): (Vec<f64>, Vec<f64>) = row.pairs.iter().copied().unzip();
        let ratios = row.ratios();
        let (least, most) = ratios.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), r| (a.min(*r), b.max(*r)));
        let (mafs, local, ratio) = (median(&mafs), median(&local), median(&ratios));
        let _ = writeln!(
            text,
            "{:<44}{mafs:>12.1}{local:>12.1} {:<8}{ratio:>8.3}  {least:.3}..{most:.3}",
            row.name, row.unit
        );
    }
    text
}

/// Writes every run of every row, one a line, creating the directories above.
///
/// # Errors
/// The file system's error.
pub fn write_csv(rows: &[Row], path: &Path) -> io::Result<()> {
    let mut text = String::from("quantity,unit,run,mafs,local,ratio\n");
    for row in rows {
        for (run, (mafs, local)) in row.pairs.iter().enumerate() {
            let _ = writeln!(text, "{},{},{run},{mafs},{local},{}", row.name, row.unit, mafs / local);
        }
    }
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, text)
}

/// Returns the middle value; of an even number the upper one; 0 of none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Returns the mean; not a number of none.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "some tens")]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_median_of_ratios() {
        let row = Row { name: "speed", unit: "MB/s", pairs: vec![(10.0, 100.0), (50.0, 100.0), (90.0, 100.0)] };
        let text = table(&[row]);
        assert!(text.contains("0.500  0.100..0.900"), "{text}");
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
    }
}
