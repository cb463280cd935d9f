//! dbench: an office's work on its file server, by four clients at once, each checking what it reads.

use std::process::Command;
use std::time::Duration;

use mafs_bench::process::{finish, run};
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;

use super::number_from_env;

/// Seconds for which dbench works, unless `MAFS_DBENCH_SECONDS` says otherwise.
const SECONDS: u32 = 5;
const CLIENTS: &str = "4";

/// Time for the removal of what dbench has made, after its working time.
const CLEANUP: Duration = Duration::from_secs(120);

#[test]
#[ignore = "needs: fuse, dbench"]
fn dbench_finds_every_call_answered_as_it_should_be() {
    let seconds = number_from_env("MAFS_DBENCH_SECONDS", SECONDS);
    let limit = Duration::from_secs(seconds.into()) * 2 + CLEANUP;
    let mut world = World::start_with("writeback=sirp").unwrap();
    let _watchdog = Watchdog::start(limit * 2, vec![world.mount()]);
    let mut command = Command::new("dbench");
    command.arg("-D").arg(world.mount()).args(["-t", &seconds.to_string(), CLIENTS]);
    let finished = finish(&mut command, limit).unwrap();
    // dbench goes on after a read that was too short, and says so: `[LINE] read failed on handle NUMBER`.
    let wrong = |line: &&str| line.contains("ERROR") || line.starts_with('[') && line.contains("failed");
    let complaints: Vec<&str> = finished.stdout.lines().chain(finished.stderr.lines()).filter(wrong).collect();
    assert!(finished.status.success() && complaints.is_empty(), "{}: {complaints:#?}", finished.status);
    println!("{}", finished.stdout.lines().last().unwrap_or_default());
    run(world.client_command().arg("sync").arg(world.mount()), limit).unwrap();
    world.stop_client().unwrap();
}
