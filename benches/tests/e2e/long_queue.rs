//! A mount whose log holds much that the server does not have: it starts as quickly as any other, and takes no more
//! descriptors.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use mafs_bench::process::run;
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;
use rustix::process::Signal;
use serde_json::Value;

use crate::number_from_env;

const LIMIT: Duration = Duration::from_secs(600);
/// A satellite link, so that next to nothing of the queue goes while it is made.
const FAR: &str = "writeback=async,fsync=local,profile=geo";
const NEAR: &str = "writeback=async,fsync=local";
/// Limit of a start. The goal for 100,000 records is 1 s; the machine may be busy elsewhere.
const START_MAX: Duration = Duration::from_secs(10);
const FILES_PER_DIRECTORY: u32 = 10_000;

/// Records by default. With 100,000 the last are made when the lease of a client that nobody answers has ended.
const RECORDS: u32 = 20_000;

/// Measures the time from a mount command to the first answer, with so many records in the log: half of them
/// contents, half attributes.
#[test]
#[ignore = "needs: fuse, root"]
fn a_mount_with_many_changes_that_wait_answers_at_once() {
    let files = number_from_env("MAFS_QUEUE_RECORDS", RECORDS) / 2;
    let mut world = World::start_with(NEAR).unwrap();
    let _watchdog = Watchdog::start(LIMIT, vec![world.mount()]);
    make_files(&world.mount(), files);
    sync(&world);
    // The promises of the stopped server hold for a minute.
    world.server().unwrap().signal(Signal::STOP).unwrap();
    change_files(&world.mount(), files);
    let waiting = queued(&world);
    world.kill_client().unwrap();
    world.server().unwrap().signal(Signal::CONT).unwrap();
    let with = started(&mut world);
    println!("a start with {waiting} changes: {with:?}");
    let last = world.mount().join(path_of(files - 1));
    assert_eq!(fs::read(&last).unwrap(), files.to_le_bytes());
    assert!(waiting >= u64::from(files), "{waiting}");
    assert!(with < START_MAX, "{with:?}");
}

/// Files that wait take no descriptors: neither while they are made nor after a start.
#[test]
#[ignore = "needs: fuse, root, prlimit"]
fn two_thousand_files_wait_and_are_sent_by_a_client_that_may_have_256_files_open() {
    const FILES: u32 = 2000;
    let mut world = World::new().unwrap();
    world.limit_client_descriptors(256);
    world.set_client_options(FAR);
    world.start_server().unwrap();
    world.start_client().unwrap();
    let _watchdog = Watchdog::start(LIMIT, vec![world.mount()]);
    make_files(&world.mount(), FILES);
    let waiting = queued(&world);
    assert!(waiting > 1000, "{waiting}");
    // Some of the waiting files are changed once more and read, and one is removed.
    for number in (0..FILES).step_by(10) {
        let file = world.mount().join(format!("d0/f{number}"));
        assert_eq!(fs::read(&file).unwrap(), number.to_le_bytes());
        fs::write(&file, (number + 1).to_le_bytes()).unwrap();
    }
    fs::remove_file(world.mount().join("d0/f1")).unwrap();
    world.kill_client().unwrap();
    started(&mut world);
    sync(&world);
    assert_eq!(queued(&world), 0);
    world.forget_cache().unwrap();
    let content = |number: u32| fs::read(world.mount().join(format!("d0/f{number}"))).unwrap();
    for number in (0..FILES).filter(|number| *number != 1) {
        let expected = if number % 10 == 0 { number + 1 } else { number };
        assert_eq!(content(number), expected.to_le_bytes(), "{number}");
    }
    assert_eq!(fs::read_dir(world.mount().join("d0")).unwrap().count(), FILES as usize - 1);
}

fn started(world: &mut World) -> Duration {
    world.set_client_options(NEAR);
    let begun = Instant::now();
    world.start_client().unwrap();
    begun.elapsed()
}

fn sync(world: &World) {
    run(world.client_command().arg("sync").arg(world.mount()), LIMIT).unwrap();
}

fn path_of(number: u32) -> String {
    format!("d{}/f{number}", number / FILES_PER_DIRECTORY)
}

/// Makes files of a few bytes, each a creation and a content.
fn make_files(mount: &Path, files: u32) {
    let begun = Instant::now();
    for number in 0..files {
        if number % FILES_PER_DIRECTORY == 0 {
            fs::create_dir(mount.join(path_of(number)).parent().unwrap()).unwrap();
        }
        fs::write(mount.join(path_of(number)), number.to_le_bytes()).unwrap();
    }
    println!("{files} files made in {:?}", begun.elapsed());
}

/// Gives each of them another content, and another mode.
fn change_files(mount: &Path, files: u32) {
    let begun = Instant::now();
    for number in 0..files {
        let path = mount.join(path_of(number));
        fs::write(&path, (number + 1).to_le_bytes()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    }
    println!("{files} files changed in {:?}", begun.elapsed());
}

fn queued(world: &World) -> u64 {
    let status = run(world.client_command().args(["status", "--json"]).arg(world.mount()), LIMIT).unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    status["log"]["records"].as_u64().unwrap_or_default()
}
