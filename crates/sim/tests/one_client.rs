//! One client against the reference model, with every kind of crash. A failure names the seed that replays it.
//!
//! `MAFS_SIM_SEEDS=2000 cargo test --release -p mafs-sim --test one_client everything` is the long run.

#![allow(clippy::expect_used, reason = "clippy sees helpers of tests outside of #[test]")]

use std::time::Duration;

use mafs_sim::{Faults, run};

const DELAY: Duration = Duration::from_millis(5);

/// Runs one seed in a paused, single-threaded runtime of its own.
fn run_seed(seed: u64, operations: usize, faults: Faults) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    match runtime.block_on(run(seed, operations, DELAY, faults)) {
        Ok(trace) => trace,
        Err(violation) => panic!("{violation}"),
    }
}

#[test]
fn reftest_operations_answer_as_the_model_does() {
    for seed in 0..20 {
        run_seed(seed, 150, Faults { remount: 40, ..Faults::default() });
    }
}

#[test]
fn reftest_invariant_1_nothing_acknowledged_is_lost_when_the_server_dies() {
    for seed in 100..120 {
        run_seed(seed, 100, Faults { kill_server: 12, power_server: 12, ..Faults::default() });
    }
}

#[test]
fn reftest_invariant_1_nothing_acknowledged_is_lost_when_the_client_dies() {
    for seed in 200..220 {
        run_seed(seed, 100, Faults { kill_client: 12, power_client: 12, ..Faults::default() });
    }
}

#[test]
fn reftest_invariant_2_every_mutation_is_applied_once_over_broken_links() {
    for seed in 300..320 {
        run_seed(seed, 100, Faults { cut: 5, ..Faults::default() });
    }
}

#[test]
fn reftest_everything_at_once() {
    let seeds = std::env::var("MAFS_SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    for seed in 400..400 + seeds {
        let faults = Faults {
            cut: 15,
            kill_server: 25,
            power_server: 25,
            kill_client: 25,
            power_client: 25,
            remount: 30,
            isolate: 0,
        };
        run_seed(seed, 100, faults);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let faults = Faults { cut: 10, kill_server: 20, ..Faults::default() };
    assert_eq!(run_seed(7, 60, faults), run_seed(7, 60, faults));
}
