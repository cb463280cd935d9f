//! One client against the reference model, with every kind of crash. A failure names the seed that replays it.
//!
//! `MAFS_SIM_SEEDS=1000 cargo test --release -p mafs-sim --test sim one_client::` is the long run.

use std::time::Duration;

use mafs_client::vfs::Writeback;
use mafs_sim::{Faults, run, run_above_kernel, run_in_background};

use crate::support::{assert_same, judged, seeds};

/// The longest delay of a link, one way.
const DELAY: Duration = Duration::from_millis(40);
/// The operations of a run.
const OPERATIONS: usize = 300;

const ALL: Faults = Faults {
    cut: 15,
    kill_server: 25,
    power_server: 25,
    kill_client: 25,
    power_client: 25,
    remount: 30,
    isolate: 0,
    silent: 20,
    fill_server: 0,
    fill_client: 0,
    suspend: 0,
    restore: 0,
};

fn run_seed(seed: u64, faults: Faults) -> Vec<String> {
    judged(run(seed, OPERATIONS, DELAY, faults))
}

#[test]
fn reftest_operations_answer_as_the_model_does() {
    for seed in 0..seeds(4) {
        run_seed(seed, Faults { remount: 40, ..Faults::default() });
    }
}

#[test]
fn reftest_invariant_1_nothing_acknowledged_is_lost_when_the_server_dies() {
    for seed in 10_000..10_000 + seeds(2) {
        run_seed(seed, Faults { kill_server: 12, power_server: 12, ..Faults::default() });
    }
}

#[test]
fn reftest_invariant_1_nothing_acknowledged_is_lost_when_the_client_dies() {
    for seed in 20_000..20_000 + seeds(2) {
        run_seed(seed, Faults { kill_client: 12, power_client: 12, ..Faults::default() });
    }
}

#[test]
fn reftest_invariant_2_every_mutation_is_applied_once_over_broken_links() {
    for seed in 30_000..30_000 + seeds(2) {
        run_seed(seed, Faults { cut: 5, ..Faults::default() });
    }
}

#[test]
fn reftest_everything_at_once() {
    for seed in 40_000..40_000 + seeds(4) {
        run_seed(seed, ALL);
    }
}

#[test]
fn reftest_a_silent_link_loses_nothing() {
    for seed in 50_000..50_000 + seeds(2) {
        run_seed(seed, Faults { silent: 8, ..Faults::default() });
    }
}

/// By turns without announcements, and with.
fn run_in_background_seed(seed: u64, faults: Faults) -> Vec<String> {
    let writeback = if seed.is_multiple_of(4) { Writeback::Async } else { Writeback::Sirp };
    judged(run_in_background(seed, OPERATIONS, DELAY, faults, writeback))
}

#[test]
fn reftest_changes_in_the_background_are_what_the_model_says() {
    for seed in 70_000..70_000 + seeds(4) {
        run_in_background_seed(seed, Faults { remount: 40, ..Faults::default() });
    }
}

#[test]
fn reftest_invariant_1_nothing_that_waits_is_lost_when_the_client_dies() {
    for seed in 80_000..80_000 + seeds(2) {
        run_in_background_seed(seed, Faults { kill_client: 12, power_client: 12, ..Faults::default() });
    }
}

#[test]
fn reftest_invariant_2_what_waits_is_applied_once_over_broken_links_and_dying_servers() {
    for seed in 90_000..90_000 + seeds(2) {
        run_in_background_seed(seed, Faults { cut: 5, kill_server: 12, power_server: 12, ..Faults::default() });
    }
}

#[test]
fn reftest_everything_at_once_in_the_background() {
    for seed in 100_000..100_000 + seeds(4) {
        run_in_background_seed(seed, ALL);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_in_the_background() {
    for seed in 110_000..110_000 + seeds(1) {
        assert_same(&run_in_background_seed(seed, ALL), &run_in_background_seed(seed, ALL));
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 60_000..60_000 + seeds(1) {
        assert_same(&run_seed(seed, ALL), &run_seed(seed, ALL));
    }
}

/// Above a kernel, by turns with what close waits for.
fn run_above_kernel_seed(seed: u64, faults: Faults) -> Vec<String> {
    let writeback = [Writeback::Sirp, Writeback::Sync, Writeback::Sirp, Writeback::Async][(seed % 4) as usize];
    judged(run_above_kernel(seed, 1, OPERATIONS, DELAY, faults, writeback))
}

#[test]
fn reftest_programs_above_a_kernel_find_what_the_model_says() {
    for seed in 120_000..120_000 + seeds(4) {
        run_above_kernel_seed(seed, Faults { remount: 40, ..Faults::default() });
    }
}

#[test]
fn reftest_invariant_1_nothing_acknowledged_above_a_kernel_is_lost_when_the_client_dies() {
    for seed in 130_000..130_000 + seeds(4) {
        run_above_kernel_seed(seed, Faults { kill_client: 12, power_client: 12, ..Faults::default() });
    }
}

#[test]
fn reftest_everything_at_once_above_a_kernel() {
    for seed in 140_000..140_000 + seeds(4) {
        run_above_kernel_seed(seed, ALL);
    }
}

/// A symlink(2) that timed out was made all the same; `ls` showed it and stat(2) did not find it.
#[test]
fn regression_a_kernel_asks_again_for_a_name_whose_making_timed_out() {
    run_above_kernel_seed(140_055, ALL);
}

#[test]
fn the_same_seed_gives_the_same_trace_above_a_kernel() {
    for seed in 150_000..150_000 + seeds(1) {
        assert_same(&run_above_kernel_seed(seed, ALL), &run_above_kernel_seed(seed, ALL));
    }
}
