//! Planted bugs: a patch that does not fit the tree any more shows nothing.

use std::fs;
use std::path::Path;

/// The planted bugs of the simulator.
const PLANTS: &str = "crates/sim/plants";

#[test]
fn every_planted_bug_fits_the_tree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut plants = 0;
    for entry in fs::read_dir(root.join(PLANTS)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            plants += 1;
            let patch = fs::read_to_string(&path).unwrap();
            let fits = check(&patch, |file| fs::read_to_string(root.join(file)).ok());
            fits.unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        }
    }
    assert!(plants >= 5, "only {plants} bugs are planted");
}

/// Whether what each hunk replaces is in its file exactly once.
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
