//! The user disconnects a mount by hand, and reconnects it (docs/semantics.md, "Disconnected by hand").

use std::fs;
use std::time::{Duration, Instant};

use mafs_bench::process::{Finished, finish, run, wait_until};
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;
use rustix::process::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// Limit of a command that asks nobody: it takes no longer on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(500);

const NO_DAEMON: i32 = 3;
const UNSENT: i32 = 4;

fn command(world: &World, arguments: &[&str]) -> Finished {
    finish(world.client_command().args(arguments).arg(world.mount()), LIMIT).unwrap()
}

fn status(world: &World) -> Value {
    serde_json::from_str(&command(world, &["status", "--json"]).stdout).unwrap()
}

/// Counts how often the log has each of these lines.
fn counts<const COUNT: usize>(log: &str, lines: [&str; COUNT]) -> [usize; COUNT] {
    lines.map(|line| log.matches(line).count())
}

#[test]
#[ignore = "needs: fuse, root"]
fn a_mount_is_disconnected_and_reconnected_by_hand() {
    let world = World::start_with("writeback=sirp").unwrap();
    let _watchdog = Watchdog::start(3 * LIMIT, vec![world.mount()]);
    let mut other = world.another_client_beside_server("other").unwrap();
    fs::write(other.mount().join("unread"), "x".repeat(5000)).unwrap();
    fs::write(other.mount().join("read"), "old").unwrap();
    let mount = world.mount();
    assert_eq!(fs::read_to_string(mount.join("read")).unwrap(), "old");
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 2);

    let said = command(&world, &["disconnect"]);
    assert!(said.code() == 0 && said.stdout.contains("unsent: nothing"), "{said:?}");
    let begun = Instant::now();
    let error = fs::read(mount.join("unread")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NETDOWN.raw_os_error()), "{error}");
    fs::write(mount.join("read"), "new").unwrap();
    assert_eq!(fs::read_to_string(mount.join("read")).unwrap(), "new");
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    let report = status(&world);
    assert_eq!((&report["by_hand"], &report["connected"]), (&true.into(), &false.into()));
    // Nobody waits for the lease of a client that has said goodbye.
    let begun = Instant::now();
    fs::write(other.mount().join("unread"), "y".repeat(5000)).unwrap();
    assert!(begun.elapsed() < 2 * AT_ONCE, "{:?}", begun.elapsed());

    let begun = Instant::now();
    let said = command(&world, &["sync"]);
    assert!(
        said.code() == NO_DAEMON && said.stderr.contains("reconnect") && said.stderr.contains("1 file"),
        "{said:?}"
    );
    let said = command(&world, &["umount", "--flush"]);
    assert!(said.code() == UNSENT && said.stderr.contains("disconnected by hand"), "{said:?}");
    assert!(begun.elapsed() < 4 * AT_ONCE, "{:?}", begun.elapsed());
    let again = command(&world, &["disconnect"]);
    assert!(again.code() == 0 && again.stdout.contains("unsent: 1 file"), "{again:?}");
    assert_eq!(fs::read_to_string(other.mount().join("read")).unwrap(), "old", "nothing is sent");

    run(world.client_command().arg("reconnect").arg(&mount), LIMIT).unwrap();
    run(world.client_command().arg("sync").arg(&mount), LIMIT).unwrap();
    assert_eq!(fs::read_to_string(other.mount().join("read")).unwrap(), "new");
    assert_eq!(fs::read_to_string(mount.join("unread")).unwrap(), "y".repeat(5000));
    let lines = ["disconnected by hand: what is", "connecting again", " connected", "out of reach", "has ended"];
    assert_eq!(counts(&world.client().unwrap().log_end(), lines), [1, 1, 2, 0, 0], "one line for each transition");
    other.stop().unwrap();
}

#[test]
#[ignore = "needs: fuse, root"]
fn the_log_has_one_line_for_each_transition() {
    let mut world = World::start_with("writeback=sirp").unwrap();
    let _watchdog = Watchdog::start(3 * LIMIT, vec![world.mount()]);
    let mut other = world.another_client_beside_server("other").unwrap();
    fs::write(other.mount().join("unread"), "x".repeat(5000)).unwrap();
    other.stop().unwrap();
    let connected = |world: &World, connected: bool| {
        wait_until(LIMIT, "the connection", || Ok(status(world)["connected"] == connected)).unwrap();
    };
    // The server is soon back.
    world.kill_server().unwrap();
    connected(&world, false);
    world.start_server().unwrap();
    connected(&world, true);
    assert_eq!(fs::read_dir(world.mount()).unwrap().count(), 1);
    // The server gives no sign of life.
    world.server().unwrap().signal(Signal::STOP).unwrap();
    fs::read(world.mount().join("unread")).unwrap_err();
    connected(&world, false);
    // Other attempts do not begin another outage.
    std::thread::sleep(Duration::from_secs(15));
    world.server().unwrap().signal(Signal::CONT).unwrap();
    connected(&world, true);
    let lines = [" connected", "has ended", "out of reach: what is", "by hand"];
    assert_eq!(counts(&world.client().unwrap().log_end(), lines), [3, 1, 1, 0]);
}
