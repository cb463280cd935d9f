//! Projects: the results of git, cargo, sqlite, tar and rsync on the mount are, byte for byte, those on a local disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mafs_bench::process::run;
use mafs_bench::tree::{Snapshot, generate};
use mafs_bench::world::World;

/// Limit of a command: no single command of these takes nearly as long.
const LIMIT: Duration = Duration::from_secs(300);

const GIT_FILES: usize = 2_000;
/// Times without a server, besides the time that it takes to start.
const OUTAGES: [Duration; 2] = [Duration::ZERO, Duration::from_secs(9)];

/// Time with a server between two outages.
const BETWEEN_OUTAGES: Duration = Duration::from_millis(1_500);

/// Limit of a call once the server listens again.
const GOES_ON_LIMIT: Duration = Duration::from_secs(5);

const SQL_ROWS: usize = 10_000;
const SQL_TRANSACTIONS: usize = 10;

#[test]
#[ignore = "needs: fuse, git"]
fn git_commits_2000_files_on_the_mount_as_locally() {
    on_both_and_after_restarts(git, "writeback=sirp");
}

#[test]
#[ignore = "needs: fuse"]
fn cargo_builds_a_workspace_on_the_mount_as_locally() {
    // Names that come and go in the log give their directory its time here, and not at the server.
    on_both_and_after_restarts(cargo, "writeback=sync");
}

#[test]
#[ignore = "needs: fuse, sqlite3"]
fn sqlite_keeps_its_transactions_on_the_mount_as_locally() {
    on_both_and_after_restarts(sqlite, "writeback=sirp");
}

#[test]
#[ignore = "needs: fuse, tar, rsync"]
fn tar_and_rsync_carry_trees_to_the_mount_and_back() {
    let mut world = World::start().unwrap();
    let (near, far) = (world.local(), world.mount());
    tar_and_rsync(&near, &far).unwrap();
    check_after_restarts(&mut world);
}

#[test]
#[ignore = "needs: fuse, git"]
fn git_goes_on_while_the_server_is_killed_and_started_again() {
    while_the_server_is_killed(git);
}

#[test]
#[ignore = "needs: fuse"]
fn cargo_goes_on_while_the_server_is_killed_and_started_again() {
    while_the_server_is_killed(cargo);
}

#[test]
#[ignore = "needs: git, sqlite3, tar, rsync"]
fn the_same_programs_agree_with_themselves_on_a_local_disk() {
    let directory = tempfile::tempdir().unwrap();
    for (name, body) in [("git", git as Body), ("cargo", cargo), ("sqlite", sqlite)] {
        let (one, two) = (directory.path().join(name), directory.path().join(format!("{name}-2")));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&two).unwrap();
        assert_eq!(body(&one).unwrap(), body(&two).unwrap(), "{name}");
    }
    let (near, far) = (directory.path().join("near"), directory.path().join("far"));
    fs::create_dir(&near).unwrap();
    fs::create_dir(&far).unwrap();
    tar_and_rsync(&near, &far).unwrap();
}

/// Work in an empty directory; the result is the same wherever it runs.
type Body = fn(&Path) -> io::Result<String>;

fn on_both_and_after_restarts(body: Body, options: &str) {
    let mut world = World::start_with(options).unwrap();
    let local = body(&world.local()).unwrap();
    let mounted = body(&world.mount()).unwrap();
    assert_eq!(local, mounted);
    check_after_restarts(&mut world);
}

/// Does the work over and over until the last outage is over.
fn while_the_server_is_killed(body: Body) {
    let mut world = World::start().unwrap();
    let local = body(&world.local()).unwrap();
    let mount = world.mount();
    let over = AtomicBool::new(false);
    let (took, said) = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let numbers = (0..).take_while(|number| *number == 0 || !over.load(Ordering::Relaxed));
            numbers
                .map(|number| work_in(&mount.join(format!("project-{number}")), body))
                .collect::<io::Result<Vec<_>>>()
        });
        let took = OUTAGES.map(|outage| {
            thread::sleep(BETWEEN_OUTAGES);
            outage_of(&mut world, outage)
        });
        over.store(true, Ordering::Relaxed);
        (took, worker.join().unwrap())
    });
    println!("until a call was answered when the server listened again, after {OUTAGES:?}: {took:?}");
    let said = said.expect("the work goes on without an error");
    assert!(said.iter().all(|said| *said == local), "{said:?} in place of {local:?}");
    assert!(took.iter().all(|took| *took <= GOES_ON_LIMIT), "{took:?}");
    check_after_restarts(&mut world);
}

fn work_in(directory: &Path, body: Body) -> io::Result<String> {
    fs::create_dir(directory)?;
    body(directory)
}

/// Kills the server and starts it again. Returns how long a call that waited for it took from then on.
fn outage_of(world: &mut World, length: Duration) -> Duration {
    world.kill_server().unwrap();
    let probe = Probe::start(world.mount().join(format!("probe-{length:?}")));
    thread::sleep(length);
    world.start_server().unwrap();
    let listens = Instant::now();
    probe.done().saturating_duration_since(listens)
}

/// One call that begins while there is no server.
struct Probe(JoinHandle<io::Result<Instant>>);

impl Probe {
    fn start(directory: PathBuf) -> Self {
        Self(thread::spawn(move || fs::create_dir(directory).map(|()| Instant::now())))
    }

    /// Returns when the call was answered.
    fn done(self) -> Instant {
        self.0.join().unwrap().expect("a call waits for the server")
    }
}

/// Checks that the mount's content stays the same when both daemons start again, and when all of it is fetched
/// afresh.
fn check_after_restarts(world: &mut World) {
    let before = Snapshot::take(&world.mount()).unwrap();
    assert!(before.count() > 1);
    world.restart().unwrap();
    before.compare(&Snapshot::take(&world.mount()).unwrap()).expect("after a restart of both daemons");
    world.forget_cache().unwrap();
    before.compare(&Snapshot::take(&world.mount()).unwrap()).expect("fetched into an empty cache");
}

fn git(directory: &Path) -> io::Result<String> {
    let repository = directory.join("repository");
    generate(&repository, 1, GIT_FILES)?;
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(&repository).args(["-c", "user.name=mafs", "-c", "user.email=mafs@localhost"]);
        command.args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        command.env("GIT_AUTHOR_DATE", "@1700000000 +0000").env("GIT_COMMITTER_DATE", "@1700000000 +0000");
        run(&mut command, LIMIT)
    };
    git(&["init", "--quiet"])?;
    git(&["add", "--all"])?;
    git(&["commit", "--quiet", "-m", "everything"])?;
    git(&["mv", "d0", "moved"])?;
    git(&["commit", "--quiet", "-m", "move"])?;
    git(&["checkout", "--quiet", "-b", "before", "HEAD~1"])?;
    git(&["checkout", "--quiet", "-"])?;
    git(&["gc", "--quiet", "--prune=now"])?;
    let mut said = git(&["fsck", "--full", "--strict"])?;
    for question in [&["status", "--porcelain"][..], &["rev-parse", "HEAD"], &["count-objects"], &["ls-files", "-s"]] {
        said += &git(question)?;
    }
    Ok(said)
}

/// Builds three crates: a macro, a library with a build script and 40 modules, and a program that prints what they
/// computed.
fn cargo(directory: &Path) -> io::Result<String> {
    let root = directory.join("workspace");
    write_workspace(&root)?;
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new("cargo");
        command.args(arguments).args(["--offline", "--quiet"]).current_dir(&root);
        command.env("CARGO_TARGET_DIR", root.join("target")).env_remove("RUSTFLAGS");
        run(&mut command, LIMIT)
    };
    let said = cargo(&["run", "--package", "program"])?;
    fs::write(root.join("library/src/m0.rs"), "pub fn number() -> u64 { 1000 }\n")?;
    cargo(&["test", "--workspace"])?;
    Ok(said + &cargo(&["run", "--package", "program"])?)
}

pub(crate) fn write_workspace(root: &Path) -> io::Result<()> {
    let manifest = |name: &str, more: &str| {
        format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n{more}")
    };
    let modules = 0..40;
    let declared: String = modules.clone().map(|number| format!("pub mod m{number};\n")).collect();
    let calls: Vec<String> = modules.clone().map(|number| format!("m{number}::number()")).collect();
    let library = format!(
        "{declared}include!(concat!(env!(\"OUT_DIR\"), \"/made.rs\"));\n\
         pub fn sum() -> u64 {{ MADE + {} }}\n#[test]\nfn sums() {{ assert!(sum() > MADE); }}\n",
        calls.join(" + ")
    );
    let build = "fn main() { let out = std::env::var(\"OUT_DIR\").unwrap(); \
                 std::fs::write(out + \"/made.rs\", \"pub const MADE: u64 = 7;\").unwrap(); }\n";
    let derive = "extern crate proc_macro;\n#[proc_macro]\n\
                  pub fn answer(_: proc_macro::TokenStream) -> proc_macro::TokenStream { \"42\".parse().unwrap() }\n";
    let program = "fn main() { println!(\"{} {}\", library::sum(), derive::answer!()); }\n";
    let uses = "[dependencies]\nlibrary = { path = \"../library\" }\nderive = { path = \"../derive\" }\n";
    let members = "[workspace]\nresolver = \"2\"\nmembers = [\"derive\", \"library\", \"program\"]\n";
    let mut files: Vec<(PathBuf, String)> = vec![
        ("Cargo.toml".into(), members.to_owned()),
        ("derive/Cargo.toml".into(), manifest("derive", "[lib]\nproc-macro = true\n")),
        ("derive/src/lib.rs".into(), derive.to_owned()),
        ("library/Cargo.toml".into(), manifest("library", "")),
        ("library/build.rs".into(), build.to_owned()),
        ("library/src/lib.rs".into(), library),
        ("program/Cargo.toml".into(), manifest("program", uses)),
        ("program/src/main.rs".into(), program.to_owned()),
    ];
    files.extend(modules.map(|number| {
        let text = format!("pub fn number() -> u64 {{ {number} }}\n");
        (format!("library/src/m{number}.rs").into(), text)
    }));
    for (path, text) in files {
        let path = root.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, text)?;
    }
    Ok(())
}

fn sqlite(directory: &Path) -> io::Result<String> {
    let mut said = String::new();
    for journal in ["wal", "delete", "truncate", "persist"] {
        let file = directory.join(format!("{journal}.db"));
        let sqlite = |sql: &str| run(Command::new("sqlite3").arg("-batch").arg("-bail").arg(&file).arg(sql), LIMIT);
        said += &sqlite(&format!("PRAGMA journal_mode={journal}; CREATE TABLE t(id INTEGER PRIMARY KEY, text TEXT);"))?;
        for transaction in 0..SQL_TRANSACTIONS {
            let first = transaction * SQL_ROWS / SQL_TRANSACTIONS;
            let last = first + SQL_ROWS / SQL_TRANSACTIONS - 1;
            sqlite(&format!(
                "PRAGMA synchronous=FULL; BEGIN; WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i+1 FROM n \
                 WHERE i < {last}) INSERT INTO t SELECT i, hex(i * 7919) || printf('%.200c', 'x') FROM n; COMMIT;"
            ))?;
            sqlite(&format!(
                "BEGIN; DELETE FROM t WHERE id = {first}; ROLLBACK; UPDATE t SET text='u' WHERE id={last};"
            ))?;
        }
        said += &sqlite("PRAGMA integrity_check; SELECT count(*), sum(id), sum(length(text)) FROM t;")?;
        said += &sqlite("CREATE INDEX i ON t(text); VACUUM; PRAGMA integrity_check; SELECT max(text) FROM t;")?;
    }
    Ok(said)
}

/// Moves a tree made near to `far` and back by tar and by rsync; five trees with one content.
fn tar_and_rsync(near: &Path, far: &Path) -> io::Result<()> {
    generate(&near.join("original"), 2, 600)?;
    let original = Snapshot::take(&near.join("original"))?;
    tar(&near.join("original"), &far.join("tar"), &near.join("there.tar"))?;
    tar(&far.join("tar"), &near.join("tar"), &far.join("back.tar"))?;
    rsync(&near.join("original"), &far.join("rsync"))?;
    rsync(&far.join("rsync"), &near.join("rsync"))?;
    for copy in [far.join("tar"), near.join("tar"), far.join("rsync"), near.join("rsync")] {
        let same = original.compare(&Snapshot::take(&copy)?);
        same.map_err(|error| io::Error::other(format!("{}: {error}", copy.display())))?;
    }
    let mut again = Command::new("rsync");
    again.args(rsync_options()).arg("--itemize-changes").args(in_and_out(&far.join("rsync"), &near.join("rsync")));
    let changed = run(&mut again, LIMIT)?;
    if changed.is_empty() { Ok(()) } else { Err(io::Error::other(format!("rsync found differences:\n{changed}"))) }
}

fn tar(from: &Path, to: &Path, archive: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    // Only this format keeps nanoseconds.
    run(Command::new("tar").args(["--format=posix", "-cf"]).arg(archive).arg("-C").arg(from).arg("."), LIMIT)?;
    run(Command::new("tar").arg("-xpf").arg(archive).arg("-C").arg(to), LIMIT).map(|_| ())
}

fn rsync(from: &Path, to: &Path) -> io::Result<()> {
    run(Command::new("rsync").args(rsync_options()).args(in_and_out(from, to)), LIMIT).map(|_| ())
}

fn rsync_options() -> [&'static str; 3] {
    ["--archive", "--hard-links", "--checksum"]
}

/// Returns paths for rsync, which copies the content of a directory if its path ends with a slash.
fn in_and_out(from: &Path, to: &Path) -> [PathBuf; 2] {
    [from.join(""), to.to_path_buf()]
}
