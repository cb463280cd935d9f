//! Idle: a mount that nobody uses costs nothing that could be seen.

use std::time::Duration;

use mafs_bench::content::write_file;
use mafs_bench::world::World;

const WINDOW: Duration = Duration::from_secs(20);

/// Windows at most: work that was left from before may fall into the first; work that goes on for ever falls into
/// all.
const WINDOWS_MAX: usize = 3;

/// Limit of the wakeups of both daemons' threads in a second. Two to six are seen.
const WAKEUPS_MAX: f64 = 10.0;

/// Limit of the processor's share. Far more than is seen, because a wake-up takes 50 us to 3 ms: a virtual machine's
/// host may have taken back what the thread touches. Work that never sleeps takes more than this everywhere.
const SHARE_MAX: f64 = 0.05;

#[test]
#[ignore = "needs: fuse"]
fn an_idle_mount_sleeps() {
    let world = World::start().unwrap();
    for file in 0..100 {
        write_file(&world.mount().join(format!("f{file}")), file, 10_000).unwrap();
    }
    let mut windows = Vec::new();
    for _ in 0..WINDOWS_MAX {
        let usage = world.usage(WINDOW).unwrap();
        println!("idle: {usage:?}");
        if usage.wakeups_per_second < WAKEUPS_MAX && usage.cpu_share < SHARE_MAX {
            return;
        }
        windows.push(usage);
    }
    panic!(
        "both daemons together may wake up {WAKEUPS_MAX} times a second and use {SHARE_MAX} of a processor: {windows:?}"
    );
}
