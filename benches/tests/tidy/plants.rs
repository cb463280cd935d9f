//! Planted bugs: a patch that does not fit the tree any more shows nothing, nor does one that no test is known to find.

use std::fs;
use std::path::Path;

/// The planted bugs of the simulator.
const PLANTS: &str = "crates/sim/plants";

#[test]
fn every_planted_bug_fits_the_tree_and_names_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut plants = 0;
    for entry in fs::read_dir(root.join(PLANTS)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            plants += 1;
            let patch = fs::read_to_string(&path).unwrap();
            let fits = check(&patch, |file| fs::read_to_string(root.join(file)).ok());
            let found = found_by(&patch, |file| fs::read_to_string(root.join(file)).ok());
            fits.and(found).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        }
    }
    assert!(plants >= 21, "only {plants} bugs are planted");
}

/// Checks that what each hunk replaces is in its file exactly once.
fn check(patch: &str, read: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    let mut files = patch.split("\n+++ b/").skip(1).peekable();
    if files.peek().is_none() {
        return Err("it changes nothing".to_owned());
    }
    for of_file in files {
        let (path, hunks) = of_file.split_once('\n').unwrap_or((of_file, ""));
        let text = read(path).ok_or_else(|| format!("there is no {path}"))?;
        for hunk in hunks.split("@@ -").skip(1) {
            let lines = hunk.lines().skip(1).take_while(|line| line.starts_with([' ', '-', '+']));
            let old: Vec<_> = lines.filter(|line| !line.starts_with('+')).map(|line| &line[1..]).collect();
            let old = format!("{}\n", old.join("\n"));
            let places = text.matches(&old).count();
            if places != 1 {
                return Err(format!("{places} places in {path} are\n{old}"));
            }
        }
    }
    Ok(())
}

/// Checks that a patch says what its bug is, and which test finds it.
fn found_by(patch: &str, read: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    let header = patch.split("\n--- ").next().unwrap_or_default();
    let line = |start: &str| header.lines().find_map(|line| line.strip_prefix(start));
    line("Bug: ").ok_or("it does not say what the bug is")?;
    let found_by = line("Found by: ").ok_or("it does not say what finds it")?;
    let (test, seeds) = found_by.split_once(" seeds ").map_or((found_by, None), |(test, seeds)| (test, Some(seeds)));
    let (module, test) = test.split_once("::").ok_or_else(|| format!("{test} is no test"))?;
    let text = ["sim", "server"].iter().find_map(|tests| read(&format!("crates/{tests}/tests/{module}.rs")));
    let text = text.ok_or_else(|| format!("there are no tests {module}"))?;
    if !text.contains(&format!("#[test]\nfn {test}() {{\n")) {
        return Err(format!("there is no test {test}"));
    }
    let parsed = |(first, end): (&str, &str)| Some((first.parse::<u64>().ok()?, end.parse::<u64>().ok()?));
    match seeds.map(|seeds| seeds.split_once("..").and_then(parsed)) {
        None => Ok(()),
        Some(Some((first, end))) if first < end && text.contains("seeds_from(") => Ok(()),
        Some(_) => Err(format!("these are no seeds: {found_by}")),
    }
}

#[test]
fn a_patch_names_a_test_that_there_is() {
    let found = |header: &str| {
        let patch = format!("{header}\n--- a/x.rs\n+++ b/x.rs\n");
        let text = "#[test]\nfn finds() {\n    seeds_from(0, 5)\n}\n";
        found_by(&patch, |file| (file == "crates/sim/tests/t.rs").then(|| text.to_owned()))
    };
    found("Bug: wrong\nFound by: t::finds").unwrap();
    found("Bug: wrong\nFound by: t::finds seeds 3..9").unwrap();
    for header in ["t::finds seeds 3", "t::finds seeds 9..3", "t::find", "u::finds", "finds"] {
        found(&format!("Bug: wrong\nFound by: {header}")).unwrap_err();
    }
    found("Found by: t::finds").unwrap_err();
    found("Bug: wrong").unwrap_err();
}

#[test]
fn a_patch_fits_where_its_old_lines_stand_once() {
    const PATCH: &str = "--- a/x.rs\n+++ b/x.rs\n@@ -1,3 +1,3 @@ fn x()\n a\n-b\n+d\n c\n";
    let fits = |text: &str| check(PATCH, |_| Some(text.to_owned()));
    fits("a\nb\nc\n").unwrap();
    fits("z\na\nb\nc\n").unwrap();
    fits("a\nd\nc\n").unwrap_err();
    fits("a\nb\nc\na\nb\nc\n").unwrap_err();
    check(PATCH, |_| None).unwrap_err();
    check("", |_| Some("a\nb\nc\n".to_owned())).unwrap_err();
}
