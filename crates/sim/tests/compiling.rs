//! Figure M1 on a small scale: a compilation on a slow link is faster with `writeback=async` and priorities than with
//! neither.

use std::time::Duration;

use mafs_arpc::Scheduling;
use mafs_arpc::link::Profile;
use mafs_client::vfs::Writeback;
use mafs_server::ServerConfig;
use mafs_sim::workload::{Compilation, Compiled, Tree};
use mafs_sim::{Path, World};

use crate::support::simulated;

const CACHE_BYTES: u64 = 1 << 30;

fn compile(kbytes_per_s: u64, scheduling: Scheduling, writeback: Writeback) -> Compiled {
    simulated(async {
        let link = Path::Link(Box::new(Profile::steady(kbytes_per_s * 1024, Duration::from_millis(20))));
        let server = ServerConfig::default().with_scheduling(scheduling);
        let paths = vec![Path::Delay(Duration::ZERO), link];
        let mut world = World::start_configured(1, server, paths, false).await.expect("a world");
        let compilation = Compilation::shrunk(1, 10);
        compilation.populate(&Tree::new(world.client().clone())).await.expect("sources");
        let machine = &mut world.machines_mut()[1];
        machine.stop().await;
        machine.set_cache_limit_bytes(CACHE_BYTES);
        machine.set_scheduling(scheduling);
        machine.set_writeback(writeback);
        machine.start().await.expect("a client");
        compilation.run(&Tree::new(machine.client().clone())).await.expect("a program")
    })
}

#[test]
fn compiling_is_faster_with_async_and_priorities() {
    for (kbytes_per_s, by_percent) in [(64, 150), (1024, 105)] {
        let plain = compile(kbytes_per_s, Scheduling::Off, Writeback::Sync);
        let ours = compile(kbytes_per_s, Scheduling::Classes, Writeback::Async);
        println!("{kbytes_per_s} KB/s: {plain:?}, {ours:?}");
        assert!(ours.took * by_percent < plain.took * 100, "{kbytes_per_s} KB/s: {ours:?}, {plain:?}");
        // The link's rate and a few round trips for each file: nothing is sent twice.
        assert!(ours.took + ours.sent_after < plain.took * 11 / 10, "{kbytes_per_s} KB/s: {ours:?}, {plain:?}");
    }
}
