//! Two clients change the same files while apart: both versions of everything are there afterwards, the tree is as
//! usable as before, and each kind of conflict is resolved by one command (docs/operations.md, "Conflicts").

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

use mafs_arpc::link::Profile;
use mafs_bench::client::Client;
use mafs_bench::link::EmulatedLink;
use mafs_bench::process::{finish, run, wait_until};
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;
use serde_json::Value;

const RATE: u64 = 4 << 20;
const RTT: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(120);
const FILES: usize = 20;
/// A content of this size needs a file of its own at the server.
const LARGE: usize = 40_000;

struct Apart {
    world: World,
    other: Client,
}

/// Files by their paths; directories hold nothing.
type Tree = BTreeMap<PathBuf, Option<String>>;

fn tree(root: &Path) -> io::Result<Tree> {
    let (mut found, mut left) = (Tree::new(), vec![root.to_path_buf()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.ends_with(".git") {
                continue;
            }
            let below = path.strip_prefix(root).unwrap().to_path_buf();
            if path.symlink_metadata()?.is_dir() {
                left.push(path);
                found.insert(below, None);
            } else {
                found.insert(below, Some(fs::read_to_string(path)?));
            }
        }
    }
    Ok(found)
}

fn content(by: &str, number: usize) -> String {
    let text = format!("{by} {number}\n");
    if number == 3 { text.repeat(LARGE / text.len()) } else { text }
}

fn file(number: usize) -> String {
    format!("file-{number:02}.txt")
}

impl Apart {
    /// Makes two clients with everything in their caches; the first client's packets vanish.
    fn new() -> Self {
        let link = EmulatedLink::start(&Profile::steady(RATE, RTT)).unwrap();
        let world = World::start_over(link, "writeback=sirp").unwrap();
        let other = world.another_client_beside_server("other").unwrap();
        let apart = Self { world, other };
        for number in 0..FILES {
            fs::write(apart.mine().join(file(number)), content("before", number)).unwrap();
        }
        fs::create_dir(apart.mine().join("removed")).unwrap();
        apart.sync();
        for mount in [apart.mine(), apart.theirs()] {
            // The trees are read twice, for directories are cached whole from the second miss on.
            assert_eq!(tree(&mount).unwrap(), tree(&mount).unwrap());
        }
        apart.world.link().unwrap().set_unplugged(true);
        let new = apart.mine().join("unheard-of");
        wait_until(LIMIT, "the path is known to be dead", || {
            let _ = fs::metadata(new.join("x"));
            let _ = fs::write(apart.mine().join("probe"), "x");
            Ok(apart.status()["disconnected"] == true)
        })
        .unwrap();
        fs::remove_file(apart.mine().join("probe")).unwrap();
        apart
    }

    fn mine(&self) -> PathBuf {
        self.world.mount()
    }

    fn theirs(&self) -> PathBuf {
        self.other.mount()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.client_command();
        command.args(arguments);
        command
    }

    fn status(&self) -> Value {
        let said = finish(self.command(&["status", "--json"]).arg(self.mine()), LIMIT).unwrap();
        serde_json::from_str(&said.stdout).unwrap()
    }

    fn sync(&self) {
        run(self.command(&["sync"]).arg(self.mine()), LIMIT).unwrap();
    }

    fn come_back(&self) {
        self.world.link().unwrap().set_unplugged(false);
        wait_until(LIMIT, "everything is sent", || {
            let status = self.status();
            Ok(status["connected"] == true && status["log"]["records"] == 0 && status["unsent_files"] == 0)
        })
        .unwrap();
    }

    /// Waits until both show one tree, and returns it: the kernel is told in the background of changes.
    fn shown(&self) -> Tree {
        let mut shown = Tree::new();
        wait_until(LIMIT, "both show the same", || {
            let (Ok(mine), Ok(theirs)) = (tree(&self.mine()), tree(&self.theirs())) else { return Ok(false) };
            let same = mine == theirs;
            shown = mine;
            Ok(same)
        })
        .unwrap();
        shown
    }

    /// Returns the output of `conflicts list`, and its exit code.
    fn conflicts(&self) -> (Vec<Value>, Option<i32>) {
        let said = finish(self.command(&["conflicts", "list", "--json"]).arg(self.mine()), LIMIT).unwrap();
        (serde_json::from_str(&said.stdout).unwrap(), Some(said.code()))
    }

    /// Resolves the conflict about a path, and waits until it is listed no more.
    fn resolve(&self, how: &str, path: &str) {
        run(self.command(&["conflicts", "resolve", how]).arg(self.mine().join(path)), LIMIT).unwrap();
        self.sync();
        let (left, _) = self.conflicts();
        assert!(
            left.iter().all(|conflict| conflict["path"] != path && conflict["kept"] != path),
            "{how} {path}: {left:?}"
        );
    }
}

/// Makes the changes of one of the two clients to the files that both have.
fn change(mount: &Path, by: &str, is_mine: bool) {
    for number in 0..8 {
        fs::write(mount.join(file(number)), content(by, number)).unwrap();
    }
    for number in 8..12 {
        let draft = mount.join(format!("draft-of-{by}-{number}"));
        fs::write(&draft, content(by, number)).unwrap();
        fs::rename(draft, mount.join(file(number))).unwrap();
    }
    for number in 12..16 {
        // One removes what the other changes.
        if (number < 14) == is_mine {
            fs::remove_file(mount.join(file(number))).unwrap();
        } else {
            fs::write(mount.join(file(number)), content(by, number)).unwrap();
        }
    }
    for number in 16..18 {
        fs::rename(mount.join(file(number)), mount.join(format!("renamed-by-{by}-{number}"))).unwrap();
    }
    fs::write(mount.join(file(18)), content("the same", 18)).unwrap();
    fs::write(mount.join("made-by-both.txt"), content(by, 100)).unwrap();
    fs::create_dir(mount.join("both")).unwrap();
    fs::write(mount.join(format!("both/by-{by}")), content(by, 101)).unwrap();
    if is_mine {
        fs::write(mount.join("removed/made"), content(by, 102)).unwrap();
    } else {
        fs::remove_dir(mount.join("removed")).unwrap();
    }
}

fn all_contents(tree: &Tree) -> BTreeSet<&str> {
    tree.values().flatten().map(String::as_str).collect()
}

#[test]
#[ignore = "needs: root, /dev/fuse, network namespaces, TUN, git"]
fn invariant_9_what_two_clients_do_to_the_same_files_while_apart_is_all_there_and_resolved_by_one_command_each() {
    let apart = Apart::new();
    let _watchdog = Watchdog::start(LIMIT * 3, vec![apart.mine(), apart.theirs()]);
    change(&apart.mine(), "mine", true);
    change(&apart.theirs(), "theirs", false);
    let (mine, theirs) = (tree(&apart.mine()).unwrap(), tree(&apart.theirs()).unwrap());
    apart.come_back();

    let now = apart.shown();
    for (whose, had) in [("mine", &mine), ("theirs", &theirs)] {
        let lost: Vec<_> = all_contents(had).difference(&all_contents(&now)).copied().collect();
        let lost: Vec<_> = lost.into_iter().filter(|lost| !lost.starts_with("before")).collect();
        assert!(lost.is_empty(), "{whose}: {lost:?}");
    }
    for number in 0..12 {
        assert_eq!(now[Path::new(&file(number))].as_deref(), Some(&content("theirs", number)[..]), "it was first");
    }
    let merged: Vec<_> = now.keys().filter(|path| path.starts_with("both")).collect();
    assert_eq!(merged.len(), 3, "directories are merged: {merged:?}");
    run(Command::new("ls").arg("-lR").arg(apart.mine()), LIMIT).unwrap();
    run(Command::new("grep").args(["-rq", "mine 3"]).arg(apart.mine()), LIMIT).unwrap();
    let git = |arguments: &[&str]| {
        let named = ["-c", "user.name=n", "-c", "user.email=e@e"];
        run(Command::new("git").current_dir(apart.mine()).args(named).args(arguments), LIMIT).unwrap();
    };
    git(&["init", "-q"]);
    git(&["add", "-A"]);
    git(&["commit", "-q", "-m", "all of it"]);
    git(&["fsck", "--strict"]);

    resolve_all(&apart);
}

fn resolve_all(apart: &Apart) {
    let (listed, exit) = apart.conflicts();
    assert_eq!(exit, Some(5));
    let kept_of = |path: &str| {
        let conflict = listed.iter().find(|conflict| conflict["path"] == path && !conflict["kept"].is_null());
        conflict.unwrap_or_else(|| panic!("{path}: {listed:?}"))["kept"].as_str().unwrap().to_owned()
    };
    // Both changed the file: in place, and by a new file that takes the name.
    for number in [0, 3, 8] {
        let kept = kept_of(&file(number));
        let shown = run(apart.command(&["conflicts", "show"]).arg(apart.mine().join(&kept)), LIMIT).unwrap();
        assert!(shown.contains("theirs  file"), "{shown:?}");
        let diff = run(apart.command(&["conflicts", "diff"]).arg(apart.mine().join(&kept)), LIMIT).unwrap();
        assert!(diff.contains("-theirs") && diff.contains("+mine"), "{diff:?}");
        apart.resolve("--mine", &kept);
        assert_eq!(fs::read_to_string(apart.theirs().join(file(number))).unwrap(), content("mine", number));
    }
    apart.resolve("--theirs", &file(1));
    assert_eq!(fs::read_to_string(apart.theirs().join(file(1))).unwrap(), content("theirs", 1));
    apart.resolve("--both", &file(2));
    let beside = format!("file-02 (from {}).txt", client_name(&listed));
    assert_eq!(fs::read_to_string(apart.theirs().join(beside)).unwrap(), content("mine", 2));
    // Changed here and removed there, and the other way round.
    apart.resolve("--both", &file(14));
    assert_eq!(fs::read_to_string(apart.theirs().join(file(14))).unwrap(), content("mine", 14));
    apart.resolve("--theirs", &file(12));
    assert_eq!(fs::read_to_string(apart.theirs().join(file(12))).unwrap(), content("theirs", 12));
    // Renamed by both, made by both, made in a directory that was removed.
    apart.resolve("--theirs", "renamed-by-mine-16");
    apart.resolve("--mine", "made-by-both.txt");
    assert_eq!(fs::read_to_string(apart.theirs().join("made-by-both.txt")).unwrap(), content("mine", 100));
    let orphan = listed.iter().find_map(|conflict| conflict["kept"].as_str().filter(|kept| kept.contains("removed/")));
    apart.resolve("--theirs", orphan.unwrap_or_else(|| panic!("{listed:?}")));
    // The conflicts that are left.
    for conflict in apart.conflicts().0 {
        let path = conflict["kept"].as_str().or(conflict["path"].as_str()).unwrap();
        apart.resolve("--theirs", path);
    }
    assert_eq!(apart.conflicts(), (Vec::new(), Some(0)));
    assert_eq!(apart.status()["refused"], Value::Array(Vec::new()));
    let marked = apart.shown().into_keys().filter(|path| path.to_string_lossy().contains("(conflict ")).count();
    assert_eq!(marked, 0);
}

fn client_name(listed: &[Value]) -> String {
    let mut names = listed.iter().filter_map(|conflict| conflict["client"].as_str().filter(|name| !name.is_empty()));
    names.next().unwrap().to_owned()
}
