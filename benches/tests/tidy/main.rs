//! Tidy: the rules of the source tree that the compiler does not know.
//!
//! Reads every source file and manifest of the workspace and lists every break of a rule. Needs only Rust. Each rule
//! lives beside tests that show it can fail; the reasons for the rules are in CONTRIBUTING.md.
#![allow(clippy::unwrap_used, reason = "a tree that cannot be read is a test that fails")]

mod layers;
mod modules;
mod plants;
mod sentences;
mod shape;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use source::{Complaint, Source};

/// Entries in the root of the workspace besides source: build results, history, and the quickstart's mount point.
const NOT_SOURCE: [&str; 3] = ["target", ".git", "mafs"];

#[test]
fn the_tree_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let sources = sources_below(root);
    assert!(sources.len() > 20, "only {} files found below {}", sources.len(), root.display());

    let rules = [shape::check, layers::check, sentences::check];
    let complaints: Vec<Complaint> =
        sources.iter().flat_map(|source| rules.iter().flat_map(|rule| rule(source))).collect();
    let list: Vec<String> = complaints.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "{} complaints:\n{}", list.len(), list.join("\n"));
}

fn sources_below(root: &Path) -> Vec<Source> {
    let mut paths = Vec::new();
    for (name, path) in entries(root) {
        if !NOT_SOURCE.contains(&name.as_str()) {
            collect(&name, path, &mut paths);
        }
    }
    paths.sort();
    let relative = |path: &Path| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
    paths.iter().map(|path| Source::new(&relative(path), &fs::read_to_string(path).unwrap())).collect()
}

fn collect(name: &str, path: PathBuf, paths: &mut Vec<PathBuf>) {
    if path.is_symlink() {
        return;
    }
    if path.is_dir() {
        for (name, path) in entries(&path) {
            collect(&name, path, paths);
        }
    } else if Source::is_kept(name) {
        paths.push(path);
    }
}

fn entries(directory: &Path) -> Vec<(String, PathBuf)> {
    let named = |path: PathBuf| (path.file_name().unwrap().to_str().unwrap().to_owned(), path);
    fs::read_dir(directory).unwrap().map(|entry| named(entry.unwrap().path())).collect()
}
