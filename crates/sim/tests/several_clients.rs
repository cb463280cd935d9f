//! Several clients against the reference models, with every kind of crash and with clients cut off. A failure names
//! the seed that replays it.
//!
//! `MAFS_SIM_SEEDS=1000 cargo test --release -p mafs-sim --test sim several_clients::` is the long run.

use std::time::Duration;

use mafs_client::vfs::Writeback;
use mafs_sim::{Faults, run_above_kernel, run_in_turns, run_together};

use crate::support::{assert_same, judged, seeds};

/// The longest delay of a link, one way.
const DELAY: Duration = Duration::from_millis(40);

const CRASHES: Faults = Faults {
    cut: 15,
    kill_server: 25,
    power_server: 40,
    kill_client: 25,
    power_client: 40,
    remount: 40,
    isolate: 0,
    silent: 0,
    fill_server: 0,
    fill_client: 0,
    suspend: 0,
    restore: 0,
};
const ALL: Faults = Faults { isolate: 25, silent: 15, ..CRASHES };

/// Two clients, or three.
fn clients(seed: u64) -> usize {
    if seed.is_multiple_of(3) { 3 } else { 2 }
}

fn in_turns(seed: u64, faults: Faults) -> Vec<String> {
    judged(run_in_turns(seed, clients(seed), 300, DELAY, faults))
}

fn together(seed: u64, faults: Faults) -> Vec<String> {
    judged(run_together(seed, clients(seed), 300, DELAY, faults))
}

#[test]
fn reftest_every_client_shows_what_another_was_acknowledged() {
    for seed in 0..seeds(1) {
        in_turns(seed, Faults::default());
    }
}

#[test]
fn reftest_every_client_shows_what_another_was_acknowledged_whatever_crashes() {
    for seed in 1000..1000 + seeds(1) {
        in_turns(seed, CRASHES);
    }
}

#[test]
fn reftest_a_client_that_is_cut_off_shows_nothing_old_and_holds_nobody_up_for_ever() {
    for seed in 2000..2000 + seeds(1) {
        in_turns(seed, Faults { isolate: 15, ..Faults::default() });
    }
}

#[test]
fn reftest_silent_links_show_nothing_old_and_hold_nobody_up_for_ever() {
    for seed in 7000..7000 + seeds(1) {
        in_turns(seed, Faults { silent: 10, ..Faults::default() });
        together(seed, Faults { silent: 10, ..Faults::default() });
    }
}

#[test]
fn reftest_in_turns_with_everything_at_once() {
    for seed in 3000..3000 + seeds(1) {
        in_turns(seed, ALL);
    }
}

#[test]
fn reftest_versions_never_go_back_whatever_crashes() {
    for seed in 5000..5000 + seeds(1) {
        together(seed, CRASHES);
    }
}

#[test]
fn reftest_versions_never_go_back_while_clients_are_cut_off() {
    for seed in 6000..6000 + seeds(1) {
        together(seed, ALL);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 8000..8000 + seeds(1) {
        assert_same(&in_turns(seed, ALL), &in_turns(seed, ALL));
        assert_same(&together(seed, ALL), &together(seed, ALL));
    }
}

#[test]
fn reftest_versions_never_go_back_and_exclusive_names_have_one_maker() {
    for seed in 4000..4000 + seeds(1) {
        together(seed, Faults::default());
    }
}

fn above_kernels(seed: u64, faults: Faults) -> Vec<String> {
    judged(run_above_kernel(seed, clients(seed), 300, DELAY, faults, Writeback::Sync))
}

#[test]
fn reftest_every_kernel_shows_what_another_client_was_acknowledged() {
    for seed in 8000..8000 + seeds(1) {
        above_kernels(seed, Faults::default());
    }
}

#[test]
fn reftest_every_kernel_shows_what_another_client_was_acknowledged_whatever_crashes() {
    for seed in 9000..9000 + seeds(1) {
        above_kernels(seed, CRASHES);
    }
}
