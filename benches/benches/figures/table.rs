//! Results of a figure: a table for people, CSV for programs, a plot for the eye.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

/// One line of a plot: a name, and a value for each bandwidth.
pub(crate) struct Series {
    pub(crate) name: String,
    /// KB per second, and the value.
    pub(crate) points: Vec<(u64, f64)>,
}

const COLOURS: [&str; 6] = ["#1b6ca8", "#c8553d", "#2a9d5c", "#8d5fa8", "#b8860b", "#444444"];
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const MARGIN: f64 = 56.0;

/// Writes a header and rows.
pub(crate) fn write_csv(path: &Path, header: &str, rows: &[String]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, format!("{header}\n{}\n", rows.join("\n")))
}

/// Writes a plot over bandwidth, both axes logarithmic.
pub(crate) fn write_plot(path: &Path, title: &str, unit: &str, series: &[Series]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, plot(title, unit, series))
}

fn plot(title: &str, unit: &str, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|series| &series.points);
    let (least, most) = points().fold((f64::MAX, 0.0_f64), |(least, most), (_, y)| (least.min(*y), most.max(*y)));
    let (left, right) = points().fold((u64::MAX, 0), |(left, right), (x, _)| (left.min(*x), right.max(*x)));
    #[allow(clippy::cast_precision_loss, reason = "some thousands")]
    let x_of = |x: u64| scale(x as f64, left as f64, right as f64, MARGIN, WIDTH - MARGIN);
    let (low, high) = (10_f64.powf(least.max(1e-3).log10().floor()), 10_f64.powf(most.log10().ceil()));
    let y_of = |y: f64| scale(y.max(low), low, high, HEIGHT - MARGIN, MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"20\" font-size=\"14\">{title} ({unit})</text>\n"
    );
    // Writing to a string cannot fail.
    let mut tick = low;
    while tick <= high * 1.01 {
        let y = y_of(tick);
        let _ = writeln!(
            svg,
            "<path d=\"M{MARGIN} {y:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"8\" y=\"{:.1}\">{tick}</text>",
            WIDTH - MARGIN,
            y + 4.0
        );
        tick *= 10.0;
    }
    for (x, _) in series.first().map(|series| &series.points[..]).unwrap_or_default() {
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{}\">{x}</text>", x_of(*x) - 10.0, HEIGHT - MARGIN + 20.0);
    }
    let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\">KB/s</text>", WIDTH / 2.0, HEIGHT - 14.0);
    for (number, (Series { name, points }, colour)) in series.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let line: Vec<String> = points.iter().map(|(x, y)| format!("{:.1},{:.1}", x_of(*x), y_of(*y))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{}\" y=\"{}\" fill=\"{colour}\">{name}</text>",
            line.join(" "),
            WIDTH - 2.6 * MARGIN,
            MARGIN + 16.0 * f64::from(u32::try_from(number).unwrap_or_default())
        );
    }
    svg + "</svg>\n"
}

/// Where a value lies, by its logarithm.
fn scale(value: f64, low: f64, high: f64, from: f64, to: f64) -> f64 {
    let span = (high / low).ln();
    if span == 0.0 { from } else { from + (value / low).ln() / span * (to - from) }
}

/// Writes the page that shows all plots of a directory.
pub(crate) fn write_index(directory: &Path) -> io::Result<()> {
    let mut plots: Vec<String> = fs::read_dir(directory)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".svg"))
        .collect();
    plots.sort_unstable();
    let images: String = plots.iter().map(|plot| format!("<img src=\"{plot}\" width=\"640\">\n")).collect();
    let html = format!("<!doctype html>\n<meta charset=\"utf-8\">\n<title>mafs: figures</title>\n{images}");
    fs::write(directory.join("index.html"), html)
}
