//! The command line: its messages and exit codes when something is not as it should be.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use mafs_bench::daemon::Daemon;
use mafs_bench::mounted::is_mounted;
use mafs_bench::process::{Finished, all_naming, finish, wait_until};
use mafs_bench::world::World;
use rustix::process::{Pid, Signal, kill_process};

use super::number_from_env;

/// Longer than any deadline of a command, so that one that hangs fails the test.
const LIMIT: Duration = Duration::from_secs(60);

const OK: i32 = 0;
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NO_DAEMON: i32 = 3;
const UNSENT: i32 = 4;
const NOT_FOUND: i32 = 6;

/// Exit codes of `mount` and `umount`, as mount(8) has them.
const MOUNT_USAGE: i32 = 1;
const MOUNT_FAILED: i32 = 32;

#[test]
#[ignore = "needs: fuse"]
fn commands_without_a_daemon_say_so() {
    let world = World::new().unwrap();
    for (command, code) in [("status", NO_DAEMON), ("sync", NO_DAEMON), ("umount", MOUNT_FAILED)] {
        let said = finish(world.client_command().arg(command).arg(world.mount()), LIMIT).unwrap();
        check(&said, code, &["mnt"]);
    }
}

#[test]
#[ignore = "needs: fuse"]
fn a_mount_that_cannot_reach_its_server_says_why() {
    let mut world = World::new().unwrap();
    let mount = |target: &str| {
        let mut command = world.client_command();
        command.args(["mount", target]).arg(world.mount());
        finish(&mut command, LIMIT).unwrap()
    };
    check(&mount("host.invalid:/home"), MOUNT_FAILED, &["host.invalid"]);
    check(&mount(&world.target()), MOUNT_FAILED, &["127.0.0.1", "refused"]);
    check(&mount("127.0.0.1"), MOUNT_USAGE, &["127.0.0.1"]);

    // A program listens that is no mafs server.
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    check(&mount(&format!("{}:/home", other.local_addr().unwrap())), MOUNT_FAILED, &["127.0.0.1"]);
    drop(other);

    world.start_server().unwrap();
    let target = world.target().replace("/home", "/nothing");
    let said = finish(world.client_command().args(["mount", &target]).arg(world.mount()), LIMIT).unwrap();
    check(&said, MOUNT_FAILED, &["nothing"]);
    let said = finish(world.client_command().args(["mount", &world.target(), "/no/such/directory"]), LIMIT).unwrap();
    check(&said, MOUNT_FAILED, &["/no/such/directory"]);
    let said = finish(
        world.client_command().args(["mount", &world.target()]).arg(world.mount()).args(["-o", "nonsense"]),
        LIMIT,
    );
    check(&said.unwrap(), MOUNT_USAGE, &["nonsense"]);
    assert!(!is_mounted(&world.mount()).unwrap());
}

#[test]
#[ignore = "needs: fuse"]
fn a_mount_that_is_interrupted_while_it_retries_leaves_nobody_behind() {
    let mut world = World::new().unwrap();
    let mut retrying = world.client_command();
    retrying.args(["mount", &world.target()]).arg(world.mount()).args(["-o", "retry=1"]);
    let mut retrying = retrying.spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(retrying.try_wait().unwrap().is_none(), "it has not retried");
    kill_process(Pid::from_child(&retrying), Signal::INT).unwrap();
    retrying.wait().unwrap();
    let nobody = || Ok(all_naming(&world.mount()).next().is_none());
    wait_until(Duration::from_secs(5), "the daemon has ended", nobody).unwrap();
    world.start_server().unwrap();
    check(&mount(&world), OK, &[]);
    check(&umount(&world), OK, &[]);
}

#[test]
#[ignore = "needs: fuse"]
fn a_volume_has_several_clients_and_a_directory_one_mount() {
    let mut world = World::new().unwrap();
    let added = finish(world.server_command().args(["volume", "add", "work", "--data"]).arg(world.store()), LIMIT);
    check(&added.unwrap(), NOT_FOUND, &["store"]);
    check(&finish(world.server_command().arg("init").arg(world.store()), LIMIT).unwrap(), OK, &[]);
    let added = finish(world.server_command().args(["volume", "add", "work", "--data"]).arg(world.store()), LIMIT);
    check(&added.unwrap(), OK, &[]);
    world.start_server().unwrap();
    world.start_client().unwrap();

    let other = world.local().join("other");
    fs::create_dir(&other).unwrap();
    let cache = format!("cache={}", world.local().join("cache").display());
    let mount = |volume: &str, directory: &Path| {
        let mut command = world.client_command();
        command.arg("mount").arg(format!("{}:/{volume}", world.address())).arg(directory).args(["-o", &cache]);
        finish(&mut command, LIMIT).unwrap()
    };
    check(&mount("work", &world.mount()), MOUNT_FAILED, &["mnt"]);
    check(&mount("home", &other), OK, &[]);
    check(&mount("work", &other), MOUNT_FAILED, &["other", "home"]);
    fs::write(world.mount().join("f"), "shared").unwrap();
    assert_eq!(fs::read_to_string(other.join("f")).unwrap(), "shared");
    check(&finish(world.client_command().arg("umount").arg(&other), LIMIT).unwrap(), OK, &[]);
    fs::write(world.mount().join("f"), "still works").unwrap();
    world.stop_client().unwrap();
}

#[test]
#[ignore = "needs: fuse"]
fn a_mount_in_use_is_not_taken_away() {
    let mut world = World::start().unwrap();
    let mut user = Command::new("sleep");
    let user = Daemon::start("user", user.arg("600").current_dir(world.mount()), &world.local().join("log")).unwrap();
    let said = umount(&world);
    check(&said, MOUNT_FAILED, &["mnt", "busy"]);
    fs::write(world.mount().join("f"), "still works").unwrap();
    user.kill().unwrap();
    world.stop_client().unwrap();
}

/// After a change of unknown outcome the mount asks the server for the attributes of its root.
#[test]
#[ignore = "needs: fuse"]
fn a_mount_without_its_server_is_taken_away_and_is_known_to_be_there() {
    let mut world = World::new().unwrap();
    world.start_server().unwrap();
    let mut command = world.client_command();
    command.args(["mount", &world.target(), "-o", "writeback=sync"]).arg(world.mount());
    check(&finish(&mut command, LIMIT).unwrap(), OK, &[]);
    world.server().unwrap().signal(Signal::STOP).unwrap();
    assert!(fs::create_dir(world.mount().join("d")).is_err());
    let start = Instant::now();
    check(&mount(&world), MOUNT_FAILED, &["mnt", "mounted"]);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    check(&umount(&world), OK, &[]);
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    world.server().unwrap().signal(Signal::CONT).unwrap();
}

#[test]
#[ignore = "needs: fuse"]
fn umount_names_what_the_server_does_not_have() {
    let mut world = World::new().unwrap();
    world.start_server().unwrap();
    let mount = |world: &World| {
        let mut command = world.client_command();
        command.args(["mount", &world.target(), "-o", "timeo=10,retrans=1"]).arg(world.mount());
        check(&finish(&mut command, LIMIT).unwrap(), OK, &[]);
    };
    mount(&world);
    fs::create_dir(world.mount().join("docs")).unwrap();
    fs::write(world.mount().join("docs/letter"), "old").unwrap();
    let sync = |world: &World| finish(world.client_command().arg("sync").arg(world.mount()), LIMIT).unwrap();
    check(&sync(&world), OK, &[]);
    world.kill_server().unwrap();
    fs::write(world.mount().join("docs/letter"), "new").unwrap();
    let said = umount(&world);
    check(&said, UNSENT, &["1 file", "docs/letter", "next mount"]);

    world.start_server().unwrap();
    mount(&world);
    check(&sync(&world), OK, &[]);
    assert_eq!(fs::read_to_string(world.mount().join("docs/letter")).unwrap(), "new");
    let said = finish(world.client_command().args(["umount", "--flush=5s"]).arg(world.mount()), LIMIT).unwrap();
    check(&said, OK, &[]);
}

#[test]
#[ignore = "needs: fuse"]
fn a_volume_can_be_mounted_again_as_soon_as_it_is_unmounted() {
    let mut world = World::new().unwrap();
    world.start_server().unwrap();
    for round in 0..number_from_env("MAFS_REMOUNTS", 20) {
        check(&mount(&world), OK, &[]);
        fs::write(world.mount().join("f"), format!("{round}")).unwrap();
        let mut unmount = match round % 2 {
            0 => world.client_command(),
            _ => Command::new("umount"),
        };
        unmount.args((round % 2 == 0).then_some("umount")).arg(world.mount());
        check(&finish(&mut unmount, LIMIT).unwrap(), OK, &[]);
    }
}

#[test]
#[ignore = "needs: fuse"]
fn status_names_a_mount_whose_client_has_died() {
    let mut world = World::start().unwrap();
    // The kernel keeps the attributes of the root for a while, also of a client that is dead.
    fs::metadata(world.mount()).unwrap();
    world.kill_client().unwrap();
    let said = finish(world.client_command().arg("status").arg(world.mount()), LIMIT).unwrap();
    check(&said, NO_DAEMON, &["mnt", "has died", "mafs-client umount"]);
    // The machine may have more dead mounts than this one.
    let said = finish(world.client_command().arg("status"), LIMIT).unwrap();
    assert_eq!(said.code(), NO_DAEMON, "{said:?}");
    let mount = world.mount();
    let about_this: Vec<&str> = said.stderr.lines().filter(|line| line.contains(mount.to_str().unwrap())).collect();
    assert!(matches!(about_this[..], [line] if line.contains("has died")), "{said:?}");
    check(&umount(&world), OK, &[]);
}

#[test]
#[ignore = "needs: fuse"]
fn sync_without_time_says_what_is_unsent_or_nothing() {
    let mut world = World::start().unwrap();
    fs::write(world.mount().join("f"), "sent").unwrap();
    let sync = |world: &World| {
        finish(world.client_command().args(["sync", "--timeout", "0"]).arg(world.mount()), LIMIT).unwrap()
    };
    check(&sync(&world), OK, &[]);
    let file = fs::OpenOptions::new().append(true).open(world.mount().join("f")).unwrap();
    world.kill_server().unwrap();
    (&file).write_all(b" not").unwrap();
    check(&sync(&world), UNSENT, &["mnt", "time", "1 file"]);
    drop(file);
}

#[test]
#[ignore = "needs: fuse"]
fn a_mount_goes_to_the_background_and_answers_in_words_and_json() {
    let mut world = World::new().unwrap();
    world.start_server().unwrap();
    check(&mount(&world), OK, &[]);
    assert!(is_mounted(&world.mount()).unwrap(), "mount returns when the mount is there");
    fs::write(world.mount().join("f"), "x").unwrap();
    for command in [&["status"][..], &["sync"]] {
        let said = finish(world.client_command().args(command).arg(world.mount()), LIMIT).unwrap();
        check(&said, OK, &[]);
    }
    let said = finish(world.client_command().args(["status", "--json"]).arg(world.mount()), LIMIT).unwrap();
    check(&said, OK, &[]);
    serde_json::from_str::<serde_json::Value>(&said.stdout).expect("status --json");
    check(&umount(&world), OK, &[]);
    assert!(!is_mounted(&world.mount()).unwrap());
}

#[test]
#[ignore = "needs: the programs"]
fn the_server_guards_its_data_and_its_wire() {
    let world = World::new().unwrap();
    let store = world.local().join("store");
    let server = |arguments: &[&str]| finish(world.server_command().args(arguments), LIMIT).unwrap();
    let store = store.to_str().unwrap();
    check(&server(&["init", store]), OK, &[]);
    check(&server(&["init", store]), FAILED, &["store"]);
    check(&server(&["run", "--data", store, "--listen", "0.0.0.0:0"]), USAGE, &["--insecure"]);
    check(&server(&["run", "--data", store, "--listen", "nonsense"]), USAGE, &["nonsense"]);
    check(&server(&["volume", "--data", store, "add", "work"]), OK, &[]);
    check(&server(&["volume", "--data", store, "add", "work"]), FAILED, &["work"]);
    check(&server(&["volume", "--data", store, "add", "../up"]), USAGE, &["../up"]);
    let said = server(&["volume", "--data", store, "list", "--json"]);
    let volumes: serde_json::Value = serde_json::from_str(&said.stdout).expect("volume list --json");
    assert!(volumes.to_string().contains("home") && volumes.to_string().contains("work"), "{volumes}");
}

#[test]
#[ignore = "needs: the programs"]
fn help_lists_what_works_and_nothing_else() {
    let world = World::new().unwrap();
    for (mut command, wanted) in [
        (
            world.client_command(),
            vec![
                "mount",
                "umount",
                "status",
                "stats",
                "limit",
                "disconnect",
                "reconnect",
                "handoff",
                "sync",
                "queue",
                "state",
                "conflicts",
                "pin",
                "unpin",
                "hoard",
                "warmup",
                "evict",
                "verify",
                "quickstart",
            ],
        ),
        (world.server_command(), vec!["init", "run", "volume", "verify"]),
    ] {
        let said = finish(command.arg("--help"), LIMIT).unwrap();
        check(&said, OK, &[]);
        let commands =
            said.stdout.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        let listed: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
        let listed: Vec<&str> = listed.into_iter().filter(|name| *name != "help").collect();
        assert_eq!(
            listed.iter().collect::<std::collections::BTreeSet<_>>(),
            wanted.iter().collect(),
            "{}",
            said.stdout
        );
    }
    let said = finish(world.client_command().arg("doctor"), LIMIT).unwrap();
    check(&said, USAGE, &["doctor"]);
    let said = finish(world.client_command().args(["mount", "--help"]), LIMIT).unwrap();
    for option in [
        "timeo",
        "retry",
        "cache",
        "cachesize",
        "minfree",
        "passthrough",
        "fsync",
        "fsync_wait",
        "classes",
        "reserve",
        "profile",
        "proto",
    ] {
        assert!(said.stdout.contains(&format!("  {option}=")), "{option} in {}", said.stdout);
    }
}

/// Mounts in the background, as people do.
fn mount(world: &World) -> Finished {
    finish(world.client_command().args(["mount", &world.target()]).arg(world.mount()), LIMIT).unwrap()
}

fn umount(world: &World) -> Finished {
    finish(world.client_command().arg("umount").arg(world.mount()), LIMIT).unwrap()
}

/// Checks a message: one line on standard error that names what it is about. A success is silent there.
#[track_caller]
fn check(said: &Finished, code: i32, words: &[&str]) {
    assert_eq!(said.code(), code, "{said:?}");
    let missing: Vec<&&str> = words.iter().filter(|word| !said.stderr.contains(**word)).collect();
    assert!(missing.is_empty(), "{missing:?} in {said:?}");
    if code != OK && code != USAGE {
        assert_eq!(said.stderr.trim().lines().count(), 1, "one line: {said:?}");
    }
}
