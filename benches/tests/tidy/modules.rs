//! Modules: a file of tests that no binary of the simulator names would never run.

use std::fs;
use std::path::Path;

const SIM: &str = "crates/sim";

#[test]
fn every_file_of_the_simulators_tests_is_in_a_binary() {
    let sim = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(SIM);
    let files = fs::read_dir(sim.join("tests")).unwrap();
    let files = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let read = |file: &str| fs::read_to_string(sim.join(file)).unwrap();
    assert_eq!(left_out(files, &read("Cargo.toml"), &read("tests/main.rs")), Vec::<String>::new());
}

/// Returns the files that are neither the root of a binary nor a module of the one that has most.
fn left_out(files: impl Iterator<Item = String>, manifest: &str, main: &str) -> Vec<String> {
    let has = |text: &str, wanted: String| text.lines().any(|line| line == wanted);
    let is_root = |module: &str| has(manifest, format!("path = \"tests/{module}.rs\""));
    let is_named = |module: &str| is_root(module) || has(main, format!("mod {module};"));
    files.filter_map(|file| Some(file.strip_suffix(".rs")?.to_owned())).filter(|module| !is_named(module)).collect()
}

#[test]
fn a_file_that_is_left_out_is_found() {
    let files = ["main.rs", "named.rs", "forgotten.rs", "support"].map(str::to_owned);
    let manifest = "path = \"tests/main.rs\"\n";
    assert_eq!(left_out(files.into_iter(), manifest, "mod named;\nmod support;\n"), ["forgotten"]);
}
