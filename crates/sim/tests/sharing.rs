//! Figure M4 on a small scale: no reader is shown a version older than one that has been announced.

use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::vfs::{Close, StatusReport, Writeback};
use mafs_sim::workload::{Plan, READERS, Shared, Tree, older_than_announced, populate_shared, share};
use mafs_sim::{Path, World};

use crate::support::simulated;

const CACHE_BYTES: u64 = 1 << 30;
const RTT: Duration = Duration::from_millis(20);
const OPERATIONS: usize = 12;

fn shared(seed: u64, writeback: Writeback, close: Close, all_announced: fn(&StatusReport) -> bool) -> Shared {
    simulated(async {
        let link = |kbytes_per_s: u64| Path::Link(Box::new(Profile::steady(kbytes_per_s * 1024, RTT)));
        let paths = [Path::Delay(Duration::ZERO), link(32)].into_iter();
        let paths = paths.chain(std::iter::repeat_n(link(1024), READERS)).collect();
        let mut world = World::start_over(seed, paths, false).await.expect("a world");
        let plan = Plan::new(seed).truncated(OPERATIONS);
        populate_shared(&plan, &Tree::new(world.client().clone())).await.expect("files");
        world.stop_client().await;
        let mut trees = Vec::new();
        for machine in &mut world.machines_mut()[1..] {
            machine.stop().await;
            machine.set_cache_limit_bytes(CACHE_BYTES);
            machine.set_writeback(writeback);
            machine.set_close(close);
            machine.start().await.expect("a client");
            trees.push(Tree::new(machine.client().clone()));
        }
        share(&plan, &trees[0], &trees[1..], all_announced).await.expect("a shared tree")
    })
}

#[test]
fn nobody_reads_what_is_older_than_announced() {
    for seed in 1..=2 {
        let Shared { writes, reads, writer_took, .. } = shared(seed, Writeback::Sirp, Close::Announced, |_| true);
        println!(
            "seed {seed}: {} writes, {} reads, the writer took {writer_took:?}",
            writes.len(),
            reads.concat().len()
        );
        assert!(writes.iter().all(|write| write.announced.is_some()));
        assert_eq!(older_than_announced(&writes, &reads.concat()), []);
    }
}
