//! The gain of fetching ahead for everyday programs over a long link, and its cost in vain: each with an empty cache,
//! with `prefetch=off` and without. `--nocapture` shows the table of docs/link.md.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mafs_arpc::link::Profile;
use mafs_bench::link::EmulatedLink;
use mafs_bench::process::run;
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;
use mafs_client::vfs::{PrefetchReport, RpcStatistics};
use mafs_proto::Class;
use serde_json::Value;

use super::number_from_env;
use super::projects::write_workspace;

const RATE: u64 = 512_000;
const RTT_VARIABLE: &str = "MAFS_EVERYDAY_RTT_MS";
const RTT_MS: u64 = 100;
const LIMIT: Duration = Duration::from_secs(300);

/// Variable that names the crates of this project that are the repository, separated by commas: with more it takes
/// longer.
const CRATES_VARIABLE: &str = "MAFS_EVERYDAY_CRATES";
const CRATES: &str = "proto";
const COMMITS: usize = 4;

/// Part of the bytes that have come for contents: one in so many at most was fetched in vain.
const VAIN_PARTS: u64 = 5;
/// Files of one directory.
const FILES: usize = 60;
const FILE_BYTES: usize = 2000;

/// Limit in percent of the time with `prefetch=off`.
const SLOWEST: u128 = 115;
/// Limit for a tree, where most of the time goes for directories.
const TREE: u128 = 85;
const SCAN: u128 = 50;

/// Work that people do in a directory of the mount.
struct Workload {
    name: &'static str,
    directory: &'static str,
    script: &'static str,
    /// Limit in percent of the time with `prefetch=off`.
    at_most: u128,
}

const GIT: &str = "git status --short && git diff HEAD~1 --stat && git log -p && git grep -c fn";
/// Results go to a place that is not in the mount.
const WORKLOADS: [Workload; 5] = [
    Workload { name: "git status, diff, log -p, grep", directory: "repository", script: GIT, at_most: SLOWEST },
    Workload { name: "cargo build", directory: "workspace", script: "cargo build -q --offline", at_most: SLOWEST },
    Workload { name: "grep -r", directory: "repository", script: "grep -rc fn --exclude-dir=.git .", at_most: TREE },
    Workload { name: "tar c", directory: "repository", script: "tar c --exclude=.git . | wc -c", at_most: TREE },
    Workload { name: "cat *", directory: "notes", script: "cat * | wc -c", at_most: SCAN },
];

/// Time and bytes that a workload took.
struct Figures {
    took: Duration,
    fetched_bytes: u64,
    ahead: PrefetchReport,
}

impl Figures {
    /// Returns the bytes that were fetched in vain: nobody has opened their files by the end.
    fn in_vain(&self) -> u64 {
        self.ahead.bytes - self.ahead.used_bytes
    }
}

fn run_in(directory: &Path, results: &Path, script: &str) {
    let mut command = Command::new("bash");
    command.args(["-ec", script]).current_dir(directory).env("CARGO_TARGET_DIR", results).env("GIT_PAGER", "cat");
    // git works as root in a directory of somebody else's, and without what it would only write.
    command.env("GIT_OPTIONAL_LOCKS", "0");
    run(&mut command, LIMIT).unwrap();
}

/// A repository with some history, packed but for the last commit, and a workspace that has been built before.
fn make(root: &Path, results: &Path) {
    let repository = root.join("repository");
    fs::create_dir(&repository).unwrap();
    let git = "git -c user.name=n -c user.email=e@e";
    run_in(&repository, results, "git init -q");
    let crates: String = number_from_env(CRATES_VARIABLE, CRATES.to_owned());
    for name in crates.split(',') {
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crates").join(name);
        run_in(&repository, results, &format!("cp -r '{}' . && git add -A", source.display()));
        run_in(&repository, results, &format!("{git} commit -qm 'the crate {name}'"));
    }
    for number in 0..COMMITS {
        let files = format!("find . -name '*.rs' | sort | awk 'NR % {COMMITS} == {number}'");
        run_in(&repository, results, &format!("{files} | xargs sed -i '1s/$/ ({number})/'; git add -A"));
        run_in(&repository, results, &format!("{git} commit -qm 'change {number}'"));
        if number + 2 == COMMITS {
            run_in(&repository, results, "git gc -q");
        }
    }
    let notes = root.join("notes");
    fs::create_dir(&notes).unwrap();
    (0..FILES).for_each(|number| fs::write(notes.join(format!("{number:03}")), vec![b'n'; FILE_BYTES]).unwrap());
    let workspace = root.join("workspace");
    write_workspace(&workspace).unwrap();
    run_in(&workspace, results, "cargo generate-lockfile -q --offline");
}

fn fetched_bytes(world: &World) -> u64 {
    let said = run(world.client_command().args(["stats", "--rpc", "--json"]).arg(world.mount()), LIMIT).unwrap();
    let statistics: RpcStatistics = serde_json::from_str(&said).unwrap();
    [Class::Fetch, Class::Prefetch].iter().map(|class| statistics[class.index()].received_bytes).sum()
}

fn ahead(world: &World) -> PrefetchReport {
    let said = run(world.client_command().args(["status", "--json"]).arg(world.mount()), LIMIT).unwrap();
    let status: Value = serde_json::from_str(&said).unwrap();
    serde_json::from_value(status["prefetch"].clone()).unwrap()
}

fn measure(world: &mut World, workload: &Workload, prefetch: &str) -> Figures {
    world.set_client_options(&format!("writeback=sirp,prefetch={prefetch}"));
    world.forget_cache().unwrap();
    let results = world.local().join("results");
    let _ = fs::remove_dir_all(&results);
    let begun = Instant::now();
    run_in(&world.mount().join(workload.directory), &results, workload.script);
    let took = begun.elapsed();
    Figures { took, fetched_bytes: fetched_bytes(world), ahead: ahead(world) }
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2, git, cargo"]
fn fetching_ahead_makes_scans_quicker_and_nothing_slower_and_wastes_a_fifth_at_most() {
    let rtt = Duration::from_millis(number_from_env(RTT_VARIABLE, RTT_MS));
    let link = EmulatedLink::start(&Profile::steady(RATE, rtt)).unwrap();
    let mut world = World::start_over(link, "writeback=sirp").unwrap();
    let _watchdog = Watchdog::start(10 * LIMIT, vec![world.mount()]);
    let mut maker = world.another_client_beside_server("maker").unwrap();
    make(&maker.mount(), &world.local().join("results"));
    maker.stop().unwrap();
    println!("workload: seconds without and with, files and bytes ahead, used, in vain, of so many fetched");
    let mut failed = Vec::new();
    for workload in &WORKLOADS {
        let [off, auto] = ["off", "auto"].map(|prefetch| measure(&mut world, workload, prefetch));
        let Figures { took, fetched_bytes, ahead } = &auto;
        println!(
            "{}: {:.1} {:.1}, {} of {} {} {} {} of {fetched_bytes}",
            workload.name,
            off.took.as_secs_f64(),
            took.as_secs_f64(),
            ahead.used_files,
            ahead.files,
            ahead.bytes,
            ahead.used_bytes,
            auto.in_vain(),
        );
        assert_eq!(off.ahead, PrefetchReport::default());
        if took.as_millis() * 100 > off.took.as_millis() * workload.at_most {
            failed.push(format!("{}: {took:?} in place of {:?}", workload.name, off.took));
        }
        if auto.in_vain() * VAIN_PARTS > *fetched_bytes {
            failed.push(format!("{}: {ahead:?} of {fetched_bytes}", workload.name));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
