//! Plots for the eye: lines over a logarithmic or linear axis, and bars, as SVG.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

/// One line of a plot, or the bars of one colour.
pub(crate) struct Series {
    pub(crate) name: String,
    /// Places of the values, and the values there. Bars are of the groups 0, 1 ...
    pub(crate) points: Vec<(f64, f64)>,
}

impl Series {
    /// Makes a line over something that is counted.
    pub(crate) fn new(name: &str, points: impl IntoIterator<Item = (u64, f64)>) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "some thousands")]
        let points = points.into_iter().map(|(x, y)| (x as f64, y)).collect();
        Self { name: name.to_owned(), points }
    }
}

/// Scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scale {
    /// All are more than 0.
    Log,
    Linear,
}

/// Title and axes of a plot.
pub(crate) struct Axes<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: (&'a str, Scale),
    pub(crate) y: (&'a str, Scale),
}

const COLOURS: [&str; 9] =
    ["#1b6ca8", "#c8553d", "#2a9d5c", "#8d5fa8", "#b8860b", "#444444", "#00a3a3", "#d1478c", "#7a9a01"];
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const MARGIN: f64 = 56.0;
/// Room for the names of the lines, from the right.
const LEGEND: f64 = 2.6 * MARGIN;

/// Writes lines over bandwidth in KB per second.
pub(crate) fn write_plot(path: &Path, title: &str, (unit, scale): (&str, Scale), series: &[Series]) -> io::Result<()> {
    write_lines(path, &Axes { title, x: ("KB/s", Scale::Log), y: (unit, scale) }, series)
}

/// Writes lines.
pub(crate) fn write_lines(path: &Path, axes: &Axes<'_>, series: &[Series]) -> io::Result<()> {
    let mut svg = Svg::new(axes.title, axes.y.0, series);
    let xs: Vec<f64> = series.iter().flat_map(|series| series.points.iter().map(|(x, _)| *x)).collect();
    let (left, right) = range(&xs);
    let x_of = |x: f64| along(axes.x.1, x, (left, right), (MARGIN, WIDTH - MARGIN - LEGEND / 2.0));
    let y_of = svg.y_axis(axes.y.1, series);
    for (x, _) in series.first().map(|series| &series.points[..]).unwrap_or_default() {
        svg.text(x_of(*x) - 8.0, HEIGHT - MARGIN + 20.0, &x.to_string());
    }
    svg.text(WIDTH / 2.0, HEIGHT - 14.0, axes.x.0);
    for (Series { points, .. }, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let line: Vec<String> = points.iter().map(|(x, y)| format!("{:.1},{:.1}", x_of(*x), y_of(*y))).collect();
        svg.add(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            line.join(" ")
        ));
    }
    svg.write(path)
}

/// Writes bars in groups that have names.
pub(crate) fn write_bars(path: &Path, title: &str, unit: &str, groups: &[&str], series: &[Series]) -> io::Result<()> {
    let mut svg = Svg::new(title, unit, series);
    let y_of = svg.y_axis(Scale::Linear, series);
    let group_width = (WIDTH - 2.0 * MARGIN - LEGEND / 2.0) / count(groups.len());
    let bar_width = 0.8 * group_width / count(series.len());
    for (number, group) in groups.iter().enumerate() {
        svg.text(MARGIN + group_width * (count(number) + 0.2), HEIGHT - MARGIN + 20.0, group);
    }
    for (number, (Series { points, .. }, colour)) in series.iter().zip(COLOURS.iter().cycle()).enumerate() {
        for (group, value) in points {
            let (x, y) = (MARGIN + group_width * group + bar_width * count(number), y_of(*value));
            let height = HEIGHT - MARGIN - y;
            svg.add(&format!(
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{bar_width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
            ));
        }
    }
    svg.write(path)
}

struct Svg(String);

impl Svg {
    /// Makes a plot with the names of the lines or bars.
    fn new(title: &str, unit: &str, series: &[Series]) -> Self {
        let mut svg = Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{MARGIN}\" y=\"20\" font-size=\"14\">{title} ({unit})</text>\n"
        ));
        for (number, (series, colour)) in series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let (x, y) = (WIDTH - LEGEND, MARGIN + 16.0 * count(number));
            svg.add(&format!("<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{}</text>", series.name));
        }
        svg
    }

    fn add(&mut self, element: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{element}");
    }

    fn text(&mut self, x: f64, y: f64, text: &str) {
        self.add(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"));
    }

    /// Draws the vertical axis. Returns where a value lies.
    fn y_axis(&mut self, scale: Scale, series: &[Series]) -> impl Fn(f64) -> f64 + use<> {
        let values: Vec<f64> = series.iter().flat_map(|series| series.points.iter().map(|(_, y)| *y)).collect();
        let (least, most) = range(&values);
        let ticks = match scale {
            Scale::Log => {
                let (low, high) = (least.max(1e-3).log10().floor(), most.max(1e-3).log10().ceil());
                powers_of_ten(low, high.max(low + 1.0))
            }
            Scale::Linear => steps(most),
        };
        let ends = (ticks.first().copied().unwrap_or(0.0), ticks.last().copied().unwrap_or(1.0));
        let y_of = move |y: f64| along(scale, y.max(ends.0), ends, (HEIGHT - MARGIN, MARGIN));
        for tick in ticks {
            let y = y_of(tick);
            self.add(&format!("<path d=\"M{MARGIN} {y:.1}H{:.1}\" stroke=\"#ddd\"/>", WIDTH - MARGIN));
            self.text(8.0, y + 4.0, &format!("{tick}"));
        }
        y_of
    }

    fn write(self, path: &Path) -> io::Result<()> {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, self.0 + "</svg>\n")
    }
}

fn range(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(*value), most.max(*value)))
}

fn powers_of_ten(low: f64, high: f64) -> Vec<f64> {
    let powers = std::iter::successors(Some(low), |power| Some(power + 1.0));
    powers.take_while(|power| *power <= high).map(|power| 10_f64.powf(power)).collect()
}

/// Returns the steps from 0 to `most` or a little more, four to ten of 1, 2 or 5.
fn steps(most: f64) -> Vec<f64> {
    let decade = 10_f64.powf(most.max(1e-3).log10().floor());
    let step = [0.2, 0.5, 1.0].map(|part| part * decade).into_iter().find(|step| most / step <= 10.0);
    let step = step.unwrap_or(decade);
    let ticks = std::iter::successors(Some(0_u32), |tick| Some(tick + 1)).take_while(|tick| {
        // The first tick that reaches `most` is the last.
        f64::from(*tick) * step < most + step * 0.999
    });
    // Rounding removes the noise of binary fractions.
    ticks.map(|tick| (f64::from(tick) * step * 1e6).round() / 1e6).collect()
}

/// Returns where a value lies between two places.
fn along(scale: Scale, value: f64, (low, high): (f64, f64), (from, to): (f64, f64)) -> f64 {
    let (part, whole) = match scale {
        Scale::Log => ((value / low).ln(), (high / low).ln()),
        Scale::Linear => (value - low, high - low),
    };
    if whole == 0.0 { from } else { from + part / whole * (to - from) }
}

#[allow(clippy::cast_precision_loss, reason = "a few")]
fn count(of: usize) -> f64 {
    of as f64
}
