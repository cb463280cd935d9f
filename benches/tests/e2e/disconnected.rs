//! The link is unplugged: packets vanish, and nothing is refused. Cached files are used without the server, and the
//! server has everything in the end (docs/semantics.md, "Without a connection").

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mafs_arpc::link::Profile;
use mafs_bench::link::EmulatedLink;
use mafs_bench::process::{finish, run, wait_until};
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;
use rustix::fs::{FlockOperation, XattrFlags};
use rustix::io::Errno;
use serde_json::Value;

use super::number_from_env;
use super::projects::write_workspace;

const RATE: u64 = 4 << 20;
const RTT: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(120);

/// Limit of a call on what is cached.
const CALL_MAX: Duration = Duration::from_secs(1);
/// Time until a client finds out: 5 s from the first call without an answer on, and a probe before.
const DEAD_AFTER: Duration = Duration::from_secs(9);
/// Limit of a call that fails at once: it takes no longer on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(200);

/// Seconds for which the link is unplugged: `MAFS_UNPLUGGED=600` for ten minutes.
const UNPLUGGED_S: u64 = 20;
/// Time for which programs work before and after.
const AROUND: Duration = Duration::from_secs(4);

/// Pause between two saves, and between two commits.
const PAUSE: Duration = Duration::from_millis(300);
/// Pause between two builds: each makes what takes the link seconds.
const BUILD_PAUSE: Duration = Duration::from_secs(3);
/// Limit of a build. Most take a second, those that begin while it is not known yet that the link is gone five more.
/// A build that waited for what others have written would take minutes.
const BUILD_MAX: Duration = Duration::from_secs(15);
/// Limit of the time until all that was done in the shortest outage is at the server. After ten minutes it was 1.1
/// GB, 300 s of the link.
const SENT_MAX: Duration = Duration::from_secs(300);

const UNSENT: u32 = 5000;

fn start() -> World {
    let link = EmulatedLink::start(&Profile::steady(RATE, RTT)).unwrap();
    World::start_over(link, "writeback=sirp").unwrap()
}

/// Returns how long the link is unplugged.
fn unplugged() -> Duration {
    Duration::from_secs(number_from_env("MAFS_UNPLUGGED", UNPLUGGED_S))
}

fn set_unplugged(world: &World, unplugged: bool) {
    world.link().unwrap().set_unplugged(unplugged);
}

fn status(world: &World) -> Value {
    let said = finish(world.client_command().args(["status", "--json"]).arg(world.mount()), LIMIT).unwrap();
    serde_json::from_str(&said.stdout).unwrap()
}

fn sync(world: &World) {
    wait_until(LIMIT, "the mount is connected", || Ok(status(world)["connected"] == true)).unwrap();
    run(world.client_command().arg("sync").arg(world.mount()), SENT_MAX + unplugged()).unwrap();
    let status = status(world);
    assert_eq!((&status["refused"], &status["conflicts"]), (&Value::Array(Vec::new()), &0.into()));
}

/// Does something that must not fail, within `limit`.
fn timed<T>(what: &str, limit: Duration, act: impl FnOnce() -> std::io::Result<T>) -> T {
    let begun = Instant::now();
    let done = act();
    let took = begun.elapsed();
    assert!(took < limit, "{what} took {took:?}");
    done.unwrap_or_else(|error| panic!("{what} after {took:?}: {error}"))
}

/// The longest time that one of some calls took.
#[derive(Default)]
struct Calls {
    longest: Duration,
}

impl Calls {
    fn time<T>(&mut self, call: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
        let begun = Instant::now();
        let done = call();
        self.longest = self.longest.max(begun.elapsed());
        done
    }
}

fn in_place(calls: &mut Calls, path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = calls.time(|| OpenOptions::new().write(true).truncate(true).open(path))?;
    calls.time(|| file.write_all(content))?;
    calls.time(|| {
        drop(file);
        Ok(())
    })
}

fn by_rename(calls: &mut Calls, path: &Path, content: &[u8]) -> std::io::Result<()> {
    let draft = path.with_extension("new");
    let mut file = calls.time(|| OpenOptions::new().write(true).create_new(true).open(&draft))?;
    calls.time(|| file.write_all(content))?;
    calls.time(|| file.sync_all())?;
    calls.time(|| fs::rename(draft, path))
}

fn with_backup(calls: &mut Calls, path: &Path, content: &[u8]) -> std::io::Result<()> {
    calls.time(|| fs::rename(path, path.with_extension("bak")))?;
    let mut file = calls.time(|| OpenOptions::new().write(true).create_new(true).open(path))?;
    calls.time(|| file.write_all(content))
}

/// A way in which a program saves a file.
type Save = fn(&mut Calls, &Path, &[u8]) -> std::io::Result<()>;
const SAVES: [(&str, Save); 3] = [("in-place", in_place), ("by-rename", by_rename), ("with-backup", with_backup)];

/// The state of the link.
#[derive(Default)]
struct Course {
    /// The link is there again, and what waits is being sent: a call that needs the server's word waits for what was
    /// before.
    plugged_in: AtomicBool,
    over: AtomicBool,
}

impl Course {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Returns how long a call may take. When the link is there again the call shares it with all that waits.
    fn call_max(&self) -> Duration {
        if self.plugged_in.load(Ordering::Relaxed) { 5 * CALL_MAX } else { CALL_MAX }
    }
}

/// Saves files in each way again and again until that is over. Returns how often.
fn save_until(course: &Course, directory: &Path) -> u32 {
    let (mut round, mut all) = (0, Calls::default());
    while !course.is_over() {
        round += 1;
        for (name, save) in SAVES {
            let content = format!("{name} {round}").repeat(100);
            let mut calls = Calls::default();
            let saved = save(&mut calls, &directory.join(name), content.as_bytes());
            saved.unwrap_or_else(|error| panic!("{name}, round {round}: {error}"));
            // The limit is that of the end: the save may have begun before. One call is an fsync, which waits half a
            // second for a server that does not answer yet, beside a build that needs all of the machine.
            let most = course.call_max().max(2 * CALL_MAX);
            assert!(calls.longest < most, "a call of {name}, round {round}, took {:?}", calls.longest);
            all.longest = all.longest.max(calls.longest);
        }
        thread::sleep(PAUSE);
    }
    println!("the longest call of a save took {:?}", all.longest);
    round
}

/// Takes a lock again and again, each time through another open file, as one build after the other does.
fn lock_until(course: &Course, path: &Path) {
    let mut longest = Duration::ZERO;
    while !course.is_over() {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        let begun = Instant::now();
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        let took = begun.elapsed();
        assert!(took < course.call_max(), "a lock took {took:?}");
        longest = longest.max(took);
        thread::sleep(PAUSE);
    }
    println!("the longest lock took {longest:?}");
}

/// Commits again and again. Returns how often.
fn commit_until(course: &Course, repository: &Path) -> u32 {
    let (mut commits, begun) = (0, Instant::now());
    while !course.is_over() {
        commits += 1;
        fs::write(repository.join("file"), format!("version {commits}")).unwrap();
        let git = |arguments: &[&str]| {
            run(Command::new("git").arg("-C").arg(repository).args(arguments), LIMIT)
                .unwrap_or_else(|why| panic!("after {:?}: {why}", begun.elapsed()))
        };
        git(&["add", "file"]);
        git(&["commit", "-qm", &format!("commit {commits}")]);
        thread::sleep(PAUSE);
    }
    commits
}

/// Changes a source and builds, again and again. Returns how often.
fn build_until(course: &Course, project: &Path) -> u32 {
    let (mut builds, begun, mut longest) = (0, Instant::now(), Duration::ZERO);
    while !course.is_over() {
        builds += 1;
        let program = format!("fn main() {{ println!(\"{{}} {builds}\", library::sum()); }}\n");
        by_rename(&mut Calls::default(), &project.join("program/src/main.rs"), program.as_bytes()).unwrap();
        let build_begun = Instant::now();
        build(project).unwrap_or_else(|why| panic!("build {builds} after {:?}: {why}", begun.elapsed()));
        let took = build_begun.elapsed();
        assert!(took < BUILD_MAX, "build {builds} took {took:?}");
        longest = longest.max(took);
        thread::sleep(BUILD_PAUSE);
    }
    println!("the longest build took {longest:?}");
    builds
}

fn build(project: &Path) -> std::io::Result<String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--offline", "--quiet"]).current_dir(project);
    run(cargo.env("CARGO_TARGET_DIR", project.join("target")).env_remove("RUSTFLAGS"), LIMIT)
}

fn make_repository(path: &Path) {
    fs::create_dir(path).unwrap();
    let git = |arguments: &[&str]| run(Command::new("git").arg("-C").arg(path).args(arguments), LIMIT).unwrap();
    git(&["init", "-q"]);
    git(&["config", "user.name", "somebody"]);
    git(&["config", "user.email", "somebody@example.org"]);
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2, git, cargo"]
fn programs_go_on_while_the_link_is_unplugged_and_everything_arrives() {
    let world = start();
    let _watchdog = Watchdog::start(10 * LIMIT + 2 * unplugged(), vec![world.mount()]);
    let [saved, repository, project, lock] =
        ["saved", "repository", "project", "lock"].map(|name| world.mount().join(name));
    fs::create_dir(&saved).unwrap();
    fs::write(&lock, "").unwrap();
    SAVES.iter().for_each(|(name, _)| fs::write(saved.join(name), "first").unwrap());
    make_repository(&repository);
    write_workspace(&project).unwrap();
    build(&project).unwrap();
    let course = Course::default();
    let (rounds, commits, builds) = thread::scope(|scope| {
        let saving = scope.spawn(|| save_until(&course, &saved));
        let committing = scope.spawn(|| commit_until(&course, &repository));
        let building = scope.spawn(|| build_until(&course, &project));
        let locking = scope.spawn(|| lock_until(&course, &lock));
        thread::sleep(AROUND);
        set_unplugged(&world, true);
        thread::sleep(unplugged());
        course.plugged_in.store(true, Ordering::Relaxed);
        set_unplugged(&world, false);
        thread::sleep(AROUND);
        course.over.store(true, Ordering::Relaxed);
        locking.join().expect("locking");
        (saving.join(), committing.join(), building.join())
    });
    let [rounds, commits, builds] = [rounds.expect("saving"), commits.expect("committing"), builds.expect("building")];
    println!("{rounds} rounds of saves, {commits} commits, {builds} builds");
    sync(&world);
    let mut other = world.another_client_beside_server("other").unwrap();
    for (name, _) in SAVES {
        let there = fs::read_to_string(other.mount().join("saved").join(name)).unwrap();
        assert_eq!(there, format!("{name} {rounds}").repeat(100));
    }
    let repository = other.mount().join("repository");
    let git = |arguments: &[&str]| run(Command::new("git").arg("-C").arg(&repository).args(arguments), LIMIT).unwrap();
    git(&["fsck", "--full", "--strict"]);
    assert_eq!(git(&["rev-list", "--count", "HEAD"]).trim(), commits.to_string());
    let program = other.mount().join("project/target/debug/program");
    assert_eq!(run(&mut Command::new(program), LIMIT).unwrap(), format!("787 {builds}\n"));
    other.stop().unwrap();
}

/// Makes a tree of which everything is known here but one directory and one content.
fn cached_tree(world: &World) -> PathBuf {
    let mut maker = world.another_client_beside_server("maker").unwrap();
    for directory in ["dir", "unseen"] {
        fs::create_dir(maker.mount().join(directory)).unwrap();
    }
    for file in ["a", "b", "c", "unread", "dir/in-dir", "unseen/in-unseen"] {
        fs::write(maker.mount().join(file), file.repeat(5000)).unwrap();
    }
    symlink("a", maker.mount().join("symlink")).unwrap();
    maker.stop().unwrap();
    let mount = world.mount();
    for directory in [mount.clone(), mount.join("dir")] {
        for entry in fs::read_dir(directory).unwrap() {
            entry.unwrap().metadata().unwrap();
        }
    }
    for file in ["a", "b", "c", "dir/in-dir"] {
        fs::read(mount.join(file)).unwrap();
    }
    fs::read_link(mount.join("symlink")).unwrap();
    mount
}

/// Makes thirty system calls on what is cached.
fn thirty_calls(at: &Path, round: &str) {
    let call = |what: &str, act: &dyn Fn() -> std::io::Result<()>| timed(what, CALL_MAX, act);
    let made = |name: &str| at.join(format!("{name}-{round}"));
    call("stat of the root", &|| fs::metadata(at).map(drop));
    call("stat", &|| fs::metadata(at.join("a")).map(drop));
    call("stat below", &|| fs::metadata(at.join("dir/in-dir")).map(drop));
    call("lstat", &|| fs::symlink_metadata(at.join("symlink")).map(drop));
    call("readlink", &|| fs::read_link(at.join("symlink")).map(drop));
    call("stat through a symlink", &|| fs::metadata(at.join("symlink")).map(drop));
    call("readdir", &|| fs::read_dir(at).map(|entries| assert!(entries.count() >= 7)));
    call("readdir below", &|| fs::read_dir(at.join("dir")).map(|entries| assert!(entries.count() >= 1)));
    call("access to what is not there", &|| {
        let missing = fs::metadata(at.join("dir/missing")).map_err(|error| error.kind()).err();
        assert_eq!(missing, Some(ErrorKind::NotFound), "all names are known");
        Ok(())
    });
    call("open and read", &|| fs::read(at.join("b")).map(|content| assert_eq!(content.len(), 5000)));
    call("read at the end", &|| {
        let mut file = File::open(at.join("b"))?;
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut [0])
    });
    call("write", &|| OpenOptions::new().write(true).open(at.join("a"))?.write_all(b"changed"));
    call("append", &|| OpenOptions::new().append(true).open(at.join("a"))?.write_all(b"more"));
    call("truncate", &|| OpenOptions::new().write(true).open(at.join("a"))?.set_len(3000));
    call("write at", &|| OpenOptions::new().write(true).open(at.join("a"))?.write_all_at(b"x", 2999));
    call("fsync", &|| OpenOptions::new().write(true).open(at.join("a"))?.sync_all());
    call("create", &|| File::create(made("created")).map(drop));
    call("O_EXCL", &|| OpenOptions::new().write(true).create_new(true).open(made("new")).map(drop));
    call("mkdir", &|| fs::create_dir(made("made")));
    call("create below", &|| fs::write(made("made").join("file"), "content"));
    call("symlink", &|| symlink("a", made("link")));
    call("link", &|| fs::hard_link(made("new"), made("hard")));
    call("chmod", &|| fs::set_permissions(made("new"), fs::Permissions::from_mode(0o600)));
    call("utimes", &|| File::open(made("new"))?.set_modified(std::time::SystemTime::UNIX_EPOCH));
    call("rename", &|| fs::rename(made("hard"), made("renamed")));
    call("rename over", &|| fs::rename(made("created"), made("renamed")));
    call("unlink", &|| fs::remove_file(made("link")));
    call("rename of a directory", &|| fs::rename(made("made"), made("moved")));
    call("statfs", &|| {
        let space = rustix::fs::statvfs(at).map_err(std::io::Error::from)?;
        assert!(space.f_blocks > 0);
        Ok(())
    });
    call("what was written", &|| {
        assert_eq!(fs::metadata(at.join("a"))?.size(), 3000);
        Ok(())
    });
}

/// Makes system calls on extended attributes of what is cached.
fn attribute_calls(at: &Path, round: &str) {
    let call = |what: &str, act: &dyn Fn() -> rustix::io::Result<()>| {
        timed(what, CALL_MAX, || act().map_err(std::io::Error::from));
    };
    let (file, attribute) = (at.join("c"), format!("user.{round}"));
    let set = |flags| rustix::fs::setxattr(&file, attribute.as_str(), b"value", flags);
    let value = || {
        let mut room = [0; 64];
        rustix::fs::getxattr(&file, attribute.as_str(), &mut room).map(|length| room[..length].to_vec())
    };
    call("setxattr", &|| set(XattrFlags::CREATE));
    call("setxattr again", &|| {
        assert_eq!(set(XattrFlags::CREATE), Err(Errno::EXIST));
        Ok(())
    });
    call("getxattr", &|| value().map(|value| assert_eq!(value, b"value")));
    call("listxattr", &|| rustix::fs::listxattr(&file, &mut [0; 1024]).map(|length| assert!(length > 0)));
    call("removexattr", &|| rustix::fs::removexattr(&file, attribute.as_str()));
    call("getxattr of what is gone", &|| {
        assert_eq!(value(), Err(Errno::NODATA));
        Ok(())
    });
    call("setxattr of a new file", &|| {
        rustix::fs::setxattr(at.join(format!("new-{round}")), "user.kept", round.as_bytes(), XattrFlags::empty())
    });
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn calls_on_what_is_cached_are_answered_and_others_fail_in_time() {
    let world = start();
    let _watchdog = Watchdog::start(10 * LIMIT, vec![world.mount()]);
    let mount = cached_tree(&world);
    // The work goes on in a directory that nobody else uses any more: one that was shared stays so for 10 s.
    thread::sleep(Duration::from_secs(11));
    fs::write(mount.join("mine"), "").unwrap();
    sync(&world);
    set_unplugged(&world, true);
    thirty_calls(&mount, "silent");
    let begun = Instant::now();
    let unread = fs::read(mount.join("unread")).unwrap_err();
    assert!(begun.elapsed() < DEAD_AFTER, "{unread} after {:?}", begun.elapsed());
    wait_until(LIMIT, "the path is dead", || Ok(status(&world)["disconnected"] == true)).unwrap();
    thirty_calls(&mount, "dead");
    attribute_calls(&mount, "dead");
    for uncached in ["unread", "unseen/anything", "unseen/in-unseen"] {
        let begun = Instant::now();
        let error = fs::read(mount.join(uncached)).unwrap_err();
        assert!(begun.elapsed() < AT_ONCE, "{uncached}: {error} after {:?}", begun.elapsed());
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{uncached}: {error}");
    }
    let begun = Instant::now();
    let listed = fs::read_dir(mount.join("unseen")).and_then(|mut entries| entries.next().transpose());
    assert!(listed.is_err() && begun.elapsed() < AT_ONCE, "{listed:?} after {:?}", begun.elapsed());
    // The wait is longer than any promise holds.
    thread::sleep(Duration::from_secs(70));
    thirty_calls(&mount, "later");
    set_unplugged(&world, false);
    sync(&world);
    assert_eq!(fs::read(mount.join("unread")).unwrap().len(), 6 * 5000);
    let mut other = world.another_client_beside_server("other").unwrap();
    for round in ["silent", "dead", "later"] {
        let there = fs::read_to_string(other.mount().join(format!("moved-{round}/file"))).unwrap();
        assert_eq!(there, "content");
    }
    let mut kept = [0; 4];
    rustix::fs::getxattr(other.mount().join("new-dead"), "user.kept", &mut kept).unwrap();
    assert_eq!(&kept, b"dead");
    other.stop().unwrap();
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn a_mount_with_much_unsent_is_there_again_without_a_network() {
    let mut world = start();
    let _watchdog = Watchdog::start(10 * LIMIT, vec![world.mount()]);
    let directory = world.mount().join("many");
    fs::create_dir(&directory).unwrap();
    sync(&world);
    set_unplugged(&world, true);
    for number in 0..UNSENT / 2 {
        // Each file makes a record for the name and one for the content.
        fs::write(directory.join(number.to_string()), number.to_string()).unwrap();
    }
    assert!(status(&world)["log"]["records"].as_u64().unwrap() + 100 >= u64::from(UNSENT));
    world.kill_client().unwrap();
    let begun = Instant::now();
    world.start_client().unwrap();
    println!("mounted after {:?}, as a test sees it", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    for number in 0..UNSENT / 2 {
        assert_eq!(fs::read_to_string(directory.join(number.to_string())).unwrap(), number.to_string());
    }
    assert_eq!(fs::read_dir(&directory).unwrap().count(), (UNSENT / 2) as usize);
    fs::write(directory.join("after"), "the restart").unwrap();
    set_unplugged(&world, false);
    sync(&world);
    let mut other = world.another_client_beside_server("other").unwrap();
    assert_eq!(fs::read_dir(other.mount().join("many")).unwrap().count(), (UNSENT / 2) as usize + 1);
    assert_eq!(fs::read_to_string(other.mount().join("many/after")).unwrap(), "the restart");
    other.stop().unwrap();
}
