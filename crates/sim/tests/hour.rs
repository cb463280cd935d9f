//! An hour of light use over links that change. A failure names the seed that replays it.
//!
//! `MAFS_SIM_SEEDS=100 cargo test --release -p mafs-sim --test sim hour::` is the long run.

use std::time::Duration;

use mafs_sim::{Hour, run_for};

use crate::support::{assert_same, judged, seeds};

const HOUR: Duration = Duration::from_secs(3600);

fn hour(seed: u64) -> Hour {
    judged(run_for(seed, HOUR))
}

#[test]
fn reftest_in_an_hour_of_changing_links_every_step_ends_no_queue_grows_and_runs_repeat() {
    for seed in 0..seeds(2) {
        let Hour { trace, steps, answered } = hour(seed);
        assert!(steps >= 300 && answered >= steps * 3 / 4, "seed {seed}: {answered} of {steps} steps");
        assert_same(&trace, &hour(seed).trace);
    }
}
