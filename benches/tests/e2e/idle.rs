//! Idle: a mount that nobody uses costs nothing that could be seen.

use std::time::Duration;

use mafs_bench::content::write_file;
use mafs_bench::world::World;

const WINDOW: Duration = Duration::from_secs(20);

/// Work that was left from before may fall into the first window; work that goes on for ever falls into all.
const WINDOWS_MAX: usize = 3;

const SHARE_MAX: f64 = 0.001;

#[test]
#[ignore = "needs: fuse"]
fn an_idle_mount_uses_less_than_a_thousandth_of_a_processor() {
    let world = World::start().unwrap();
    for file in 0..100 {
        write_file(&world.mount().join(format!("f{file}")), file, 10_000).unwrap();
    }
    let mut shares = Vec::new();
    for _ in 0..WINDOWS_MAX {
        shares.push(world.cpu_share(WINDOW).unwrap());
        println!("idle: {:.4} % of a processor", 100.0 * shares[shares.len() - 1]);
        if shares[shares.len() - 1] < SHARE_MAX {
            return;
        }
    }
    panic!("both daemons together used these shares of a processor: {shares:?}; at most {SHARE_MAX}");
}
