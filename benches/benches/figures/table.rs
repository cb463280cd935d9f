//! Results of a figure besides the table for people: CSV for programs, and the page with all plots.

use std::fs;
use std::io;
use std::path::Path;

/// Writes a header and rows.
pub(crate) fn write_csv(path: &Path, header: &str, rows: &[String]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, format!("{header}\n{}\n", rows.join("\n")))
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
