//! Hoarded files are here when the link is unplugged, stay here however full the cache is, and follow what other
//! clients make of them (docs/semantics.md, "What is kept here").

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_bench::link::EmulatedLink;
use mafs_bench::process::{Finished, finish, run, wait_until};
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use serde_json::Value;

use super::projects::write_workspace;

const LIMIT: Duration = Duration::from_secs(240);
const RATE: u64 = 4 << 20;
const RTT: Duration = Duration::from_millis(20);

/// A file that is not hoarded and not read.
const ASIDE: &str = "aside";

fn start(options: &str) -> World {
    let link = EmulatedLink::start(&Profile::steady(RATE, RTT)).unwrap();
    World::start_over(link, &format!("writeback=sirp{options}")).unwrap()
}

fn unplug(world: &World) {
    world.link().unwrap().set_unplugged(true);
    // The client has to ask for this file, so that it notices.
    assert!(fs::read(world.mount().join(ASIDE)).is_err());
    wait_until(LIMIT, "the path is dead", || Ok(status(world)["disconnected"] == true)).unwrap();
}

fn plug_in(world: &World) {
    world.link().unwrap().set_unplugged(false);
    wait_until(LIMIT, "the mount is connected", || Ok(status(world)["connected"] == true)).unwrap();
}

/// Waits until the server has everything: what a killed client had begun to send may be busy there for a moment.
fn sync(world: &World) {
    wait_until(LIMIT, "all is sent", || Ok(client(world, &["sync", "."]).status.success())).unwrap();
    assert_eq!(status(world)["refused"], Value::Array(Vec::new()));
}

fn status(world: &World) -> Value {
    json(&client(world, &["status", "--json", "."]))
}

fn json(said: &Finished) -> Value {
    serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

/// Runs `mafs-client` in the mount.
fn client(world: &World, arguments: &[&str]) -> Finished {
    finish(world.client_command().args(arguments).current_dir(world.mount()), LIMIT).unwrap()
}

/// Runs `mafs-client` like [`client`]; it must succeed.
fn done(world: &World, arguments: &[&str]) -> Finished {
    let said = client(world, arguments);
    assert!(said.status.success(), "{arguments:?}: {said:?}");
    said
}

fn code(said: &Finished) -> i32 {
    said.status.code().unwrap_or_else(|| panic!("{said:?}"))
}

/// A workspace of three crates that another client has made, with a file beside.
fn made_elsewhere(world: &World) {
    let mut maker = world.another_client_beside_server("maker").unwrap();
    let project = maker.mount().join("project");
    write_workspace(&project).unwrap();
    fs::write(project.join("README"), "nobody builds this").unwrap();
    fs::write(maker.mount().join(ASIDE), vec![1; 5000]).unwrap();
    maker.stop().unwrap();
}

/// Returns the command that builds and runs the program of the workspace, with all that comes of it on the mount.
fn cargo(world: &World) -> Command {
    let project = world.mount().join("project");
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--offline", "--quiet", "--package", "program"]).current_dir(&project);
    cargo.env("CARGO_TARGET_DIR", project.join("target")).env_remove("RUSTFLAGS");
    cargo
}

fn build_from_clean(world: &World) -> String {
    let target = world.mount().join("project/target");
    if target.exists() {
        fs::remove_dir_all(&target).unwrap();
    }
    run(&mut cargo(world), LIMIT).unwrap()
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn what_a_build_has_opened_once_is_enough_to_build_without_the_link() {
    let world = start("");
    let _watchdog = Watchdog::start(10 * LIMIT, vec![world.mount()]);
    made_elsewhere(&world);
    let project = world.mount().join("project");
    let mut recording = world.client_command();
    recording.args(["hoard", "record", "--priority", "700", "--", "cargo", "run", "--offline", "--quiet"]);
    recording.args(["--package", "program"]).current_dir(&project);
    recording.env("CARGO_TARGET_DIR", project.join("target")).env_remove("RUSTFLAGS");
    // The toolchain is in the real home directory.
    recording.envs(std::env::var_os("HOME").map(|home| ("HOME", home)));
    let recorded = finish(&mut recording, LIMIT).unwrap();
    assert!(recorded.status.success() && recorded.stderr.contains("hoarded"), "{recorded:?}");
    let entries = json(&client(&world, &["hoard", "list", "--json", "."]));
    let paths: Vec<&str> =
        entries["entries"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    for needed in ["project/Cargo.lock", "project/Cargo.toml", "project/library/src/m7.rs", "project/library/build.rs"]
    {
        assert!(paths.contains(&needed), "{needed}: {paths:?}");
    }
    assert!(!paths.iter().any(|path| path.contains("/target")), "what it made is no need of it: {paths:?}");
    assert!(!paths.contains(&"project/README") && !paths.contains(&ASIDE), "{paths:?}");
    // Nothing of the project may be here only because it has just been used.
    fs::remove_dir_all(project.join("target")).unwrap();
    done(&world, &["sync", "."]);
    done(&world, &["evict", "."]);
    assert_eq!(code(&client(&world, &["warmup", "--check", "project/library/src"])), 1);
    done(&world, &["hoard", "walk", "."]);
    assert_eq!(status(&world)["hoard"]["missing_objects"], 0);
    done(&world, &["warmup", "--check", "project/library/src"]);
    let missing = client(&world, &["warmup", "--check", "project"]);
    assert!(code(&missing) == 1 && missing.stdout.contains("project/README"), "{missing:?}");
    unplug(&world);
    assert_eq!(build_from_clean(&world), recorded.stdout);
    plug_in(&world);
    sync(&world);
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn what_is_pinned_builds_without_the_link_though_nobody_has_read_it() {
    let mut world = start("");
    let _watchdog = Watchdog::start(10 * LIMIT, vec![world.mount()]);
    made_elsewhere(&world);
    done(&world, &["pin", "project"]);
    done(&world, &["warmup", "project"]);
    done(&world, &["warmup", "--check", "project"]);
    let state = json(&client(&world, &["state", "--json", "project/library/src/m7.rs"]));
    assert_eq!((&state[0]["pinned"], &state[0]["cached"]), (&Value::Bool(true), &"whole".into()));
    unplug(&world);
    let said = build_from_clean(&world);
    // The build still works after a restart without the server.
    world.kill_client().unwrap();
    world.start_client().unwrap();
    assert_eq!(build_from_clean(&world), said);
    done(&world, &["warmup", "--check", "project/library"]);
    for (arguments, expected) in [
        (&["warmup", "project"][..], 3),
        (&["hoard", "walk", "."], 3),
        (&["unpin", "project/program"], 6),
        (&["warmup", "--check", "nothing"], 6),
        (&["hoard", "add", ASIDE, "10"], 0),
        (&["hoard", "add", ASIDE, "x"], 2),
    ] {
        let said = client(&world, arguments);
        assert_eq!(code(&said), expected, "{arguments:?}: {said:?}");
        assert!(!said.stderr.is_empty(), "{arguments:?} says what is the matter");
    }
    plug_in(&world);
    let aside = world.mount().join(ASIDE);
    wait_until(LIMIT, "what was hoarded meanwhile is here", || Ok(own(&aside, "user.mafs.state") == "cached")).unwrap();
    sync(&world);
    done(&world, &["unpin", "project"]);
    let report = status(&world)["hoard"].clone();
    assert_eq!((&report["entries"], &report["pins"]), (&1.into(), &0.into()));
}

/// Returns an attribute in which the client tells the state of a file.
fn own(path: &Path, name: &str) -> String {
    let mut value = [0; 64];
    let length = getxattr(path, name, &mut value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    String::from_utf8_lossy(&value[..length]).into_owned()
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn a_pinned_file_that_another_client_changes_comes_without_anybody_opening_it() {
    let world = start("");
    let _watchdog = Watchdog::start(10 * LIMIT, vec![world.mount()]);
    let mut other = world.another_client_beside_server("other").unwrap();
    fs::create_dir(other.mount().join("dir")).unwrap();
    let (theirs, here) = (other.mount().join("dir/file"), world.mount().join("dir/file"));
    fs::write(&theirs, "first").unwrap();
    fs::write(other.mount().join(ASIDE), vec![1; 5000]).unwrap();
    done(&world, &["pin", "dir"]);
    done(&world, &["warmup", "dir"]);
    assert_eq!(own(&here, "user.mafs.pinned"), "1");
    assert_eq!((own(&here, "user.mafs.state"), own(&here, "user.mafs.dirty")), ("cached".into(), "0".into()));
    let before = own(&here, "user.mafs.version");
    for round in 0..3 {
        fs::write(&theirs, format!("round {round}")).unwrap();
        fs::write(theirs.with_file_name(format!("new-{round}")), "new").unwrap();
    }
    let new = world.mount().join("dir/new-2");
    wait_until(LIMIT, "the newest is here", || {
        let walked = status(&world)["hoard"]["missing_objects"] == 0 && new.exists();
        Ok(walked && own(&here, "user.mafs.version") != before && own(&here, "user.mafs.state") == "cached")
    })
    .unwrap();
    wait_until(LIMIT, "what came later is here", || Ok(own(&new, "user.mafs.state") == "cached")).unwrap();
    // Another round trip of the hoard may be under way for the last of the three changes.
    done(&world, &["hoard", "walk", "."]);
    unplug(&world);
    assert_eq!(fs::read_to_string(&here).unwrap(), "round 2");
    assert_eq!(fs::read_to_string(&new).unwrap(), "new");
    plug_in(&world);
    let mut names = vec![0; 1024];
    assert_eq!(listxattr(&here, &mut names).unwrap(), 0, "they are not listed");
    let refused = setxattr(&here, "user.mafs.pinned", b"0", XattrFlags::empty());
    assert_eq!((refused, removexattr(&here, "user.mafs.state")), (Err(Errno::PERM), Err(Errno::PERM)));
    let absent = getxattr(&here, "user.mafs.nothing", &mut names);
    assert_eq!(absent, Err(Errno::NODATA));
    other.stop().unwrap();
}

const MIB: usize = 1 << 20;

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn a_full_cache_keeps_what_is_pinned_dirty_or_open() {
    let world = start(",cachesize=16M");
    let _watchdog = Watchdog::start(10 * LIMIT, vec![world.mount()]);
    let mut maker = world.another_client_beside_server("maker").unwrap();
    fs::create_dir(maker.mount().join("pinned")).unwrap();
    fs::create_dir(maker.mount().join("many")).unwrap();
    for number in 0..3 {
        fs::write(maker.mount().join(format!("pinned/{number}")), vec![number; MIB]).unwrap();
    }
    for (name, byte) in [("open", 10), ("dirty", 11), (ASIDE, 12)] {
        fs::write(maker.mount().join(name), vec![byte; MIB]).unwrap();
    }
    for number in 0..24 {
        fs::write(maker.mount().join(format!("many/{number}")), vec![number; MIB]).unwrap();
    }
    maker.stop().unwrap();
    done(&world, &["pin", "pinned"]);
    done(&world, &["warmup", "pinned"]);
    let mount = world.mount();
    let mut open = File::open(mount.join("open")).unwrap();
    open.read_exact(&mut [0]).unwrap();
    // Nothing of this file is sent while it is open.
    let dirty = OpenOptions::new().write(true).open(mount.join("dirty")).unwrap();
    dirty.write_all_at(b"changed", 0).unwrap();
    for number in 0..24 {
        assert_eq!(fs::read(mount.join(format!("many/{number}"))).unwrap(), vec![number; MIB]);
    }
    let report = status(&world);
    let cached = report["cache_bytes"].as_u64().unwrap();
    assert!(cached <= 18 * MIB as u64, "{report}");
    assert_eq!(own(&mount.join("many/0"), "user.mafs.state"), "not cached", "there was pressure");
    let evicted = done(&world, &["evict", "."]);
    assert!(evicted.stdout.contains("3 stay: pinned") && evicted.stdout.contains("stay: open"), "{evicted:?}");
    unplug(&world);
    for number in 0..3 {
        assert_eq!(fs::read(mount.join(format!("pinned/{number}"))).unwrap(), vec![number; MIB]);
    }
    let mut rest = Vec::new();
    open.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, vec![10; MIB - 1]);
    drop(open);
    let mut dirty = dirty;
    dirty.flush().unwrap();
    drop(dirty);
    let content = fs::read(mount.join("dirty")).unwrap();
    assert_eq!((&content[..7], content.len()), (b"changed".as_slice(), MIB));
    plug_in(&world);
    sync(&world);
}
