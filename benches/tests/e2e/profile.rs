//! Emulated links: a mount over one waits for it as long as its name says, and only when it has to.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use mafs_bench::content::write_file;
use mafs_bench::daemon::Daemon;
use mafs_bench::mounted::is_mounted;
use mafs_bench::process::run;
use mafs_bench::world::World;
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(60);
/// The round trip of the profile `3g`.
const RTT: Duration = Duration::from_millis(300);

fn read_takes(path: &Path) -> Duration {
    let start = Instant::now();
    assert_eq!(fs::read(path).unwrap().len(), 10_000);
    start.elapsed()
}

/// Returns how many calls the server has answered since the mount.
fn calls(world: &World) -> u64 {
    let status = run(world.client_command().args(["status", "--json"]).arg(world.mount()), LIMIT).unwrap();
    serde_json::from_str::<serde_json::Value>(&status).unwrap()["calls"].as_u64().unwrap()
}

#[test]
#[ignore = "needs: fuse"]
fn what_is_not_cached_takes_a_round_trip_of_the_profile() {
    let mut world = World::start_with("profile=3g").unwrap();
    let file = world.mount().join("f");
    write_file(&file, 1, 10_000).unwrap();
    world.forget_cache().unwrap();
    let before = calls(&world);
    let (cold, warm) = (read_takes(&file), read_takes(&file));
    // Each takes a round trip: a call for the name, one for the content, and perhaps one that renews the lease.
    let made = calls(&world) - before;
    assert!(made <= 3, "{made}");
    println!("cold {cold:?}, warm {warm:?}");
    assert!(cold >= RTT, "{cold:?}");
    assert!(warm < RTT, "{warm:?}");
    let status = run(world.client_command().arg("status").arg(world.mount()), LIMIT).unwrap();
    assert!(status.contains("profile  3g: the link is emulated"), "{status}");
    let json = run(world.client_command().args(["status", "--json"]).arg(world.mount()), LIMIT).unwrap();
    assert!(json.contains("\"profile\":\"3g\"") || json.contains("\"profile\": \"3g\""), "{json}");
    world.stop_client().unwrap();
}

#[test]
#[ignore = "needs: fuse"]
fn quickstart_puts_a_link_between_the_two() {
    let world = World::new().unwrap();
    let mount = world.mount();
    let mut command = world.client_command();
    command.arg("quickstart").arg(&mount).args(["--link", "3g"]);
    let mut daemon = Daemon::start("quickstart", &mut command, &world.local().join("quickstart.log")).unwrap();
    daemon.wait_ready(LIMIT, || is_mounted(&mount)).unwrap();
    let start = Instant::now();
    write_file(&mount.join("f"), 1, 10_000).unwrap();
    run(world.client_command().arg("sync").arg(&mount), LIMIT).unwrap();
    assert!(start.elapsed() >= RTT, "the server has it after {:?}", start.elapsed());
    assert!(daemon.log_end().contains("over 3g"), "{}", daemon.log_end());
    daemon.signal(Signal::INT).unwrap();
    assert!(daemon.wait_end(LIMIT).unwrap().success());
    assert!(!is_mounted(&mount).unwrap());
}
