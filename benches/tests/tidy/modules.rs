//! Modules: a file of tests that the simulator's binary does not name would never run.

use std::fs;
use std::path::Path;

const TESTS: &str = "crates/sim/tests";

#[test]
fn every_file_of_the_simulators_tests_is_in_their_binary() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(TESTS);
    let files = fs::read_dir(&tests).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let main = fs::read_to_string(tests.join("main.rs")).unwrap();
    assert_eq!(left_out(files, &main), Vec::<String>::new());
}

/// The files that are neither the binary's root nor a module of it.
fn left_out(files: impl Iterator<Item = String>, main: &str) -> Vec<String> {
    let is_named = |module: &str| module == "main" || main.lines().any(|line| line == format!("mod {module};"));
    files.filter_map(|file| Some(file.strip_suffix(".rs")?.to_owned())).filter(|module| !is_named(module)).collect()
}

#[test]
fn a_file_that_is_left_out_is_found() {
    let files = ["main.rs", "named.rs", "forgotten.rs", "support"].map(str::to_owned);
    assert_eq!(left_out(files.into_iter(), "mod named;\nmod support;\n"), ["forgotten"]);
}
