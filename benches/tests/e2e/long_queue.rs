//! A mount whose log holds much that the server does not have: it starts as quickly as any other, and takes no more
//! descriptors.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use mafs_bench::process::run;
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;
use serde_json::Value;

use crate::number_from_env;

const LIMIT: Duration = Duration::from_secs(600);
/// A satellite link, so that next to nothing of the queue goes while it is made.
const FAR: &str = "writeback=async,fsync=local,profile=geo";
const NEAR: &str = "writeback=async,fsync=local";
const FILES_PER_DIRECTORY: u32 = 10_000;

/// The time from a mount command to the first answer, by how many records waited: at first, and with the queue.
#[test]
#[ignore = "needs: fuse, root"]
fn a_mount_with_100_000_changes_that_wait_answers_at_once() {
    let files = number_from_env("MAFS_QUEUE_RECORDS", 100_000_u32) / 2;
    let mut world = World::start_with(FAR).unwrap();
    let _watchdog = Watchdog::start(LIMIT, vec![world.mount()]);
    make_files(&world.mount(), files);
    world.kill_client().unwrap();
    let waiting = started(&mut world);
    println!("a start with {} changes: {waiting:?}", queued(&world));
    run(world.client_command().arg("sync").arg(world.mount()), LIMIT).unwrap();
    world.stop_client().unwrap();
    let idle = started(&mut world);
    println!("a start without: {idle:?}");
    let file = world.mount().join("d0/f1");
    assert_eq!(fs::read(&file).unwrap(), 1_u32.to_le_bytes());
}

/// What waits takes no descriptors: neither while it is made nor after a start.
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
    // What waits is changed once more, read and removed.
    for number in (0..FILES).step_by(10) {
        let file = world.mount().join(format!("d0/f{number}"));
        assert_eq!(fs::read(&file).unwrap(), number.to_le_bytes());
        fs::write(&file, (number + 1).to_le_bytes()).unwrap();
    }
    fs::remove_file(world.mount().join("d0/f1")).unwrap();
    world.kill_client().unwrap();
    started(&mut world);
    run(world.client_command().arg("sync").arg(world.mount()), LIMIT).unwrap();
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

/// Makes files of a few bytes, each a creation and a content.
fn make_files(mount: &Path, files: u32) {
    let begun = Instant::now();
    for number in 0..files {
        let directory = mount.join(format!("d{}", number / FILES_PER_DIRECTORY));
        if number % FILES_PER_DIRECTORY == 0 {
            fs::create_dir(&directory).unwrap();
        }
        fs::write(directory.join(format!("f{number}")), number.to_le_bytes()).unwrap();
    }
    println!("{files} files made in {:?}", begun.elapsed());
}

fn queued(world: &World) -> u64 {
    let status = run(world.client_command().args(["status", "--json"]).arg(world.mount()), LIMIT).unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    status["log"]["records"].as_u64().unwrap_or_default()
}
