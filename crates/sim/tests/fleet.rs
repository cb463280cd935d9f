//! Three clients that send in the background, against the reference model of versions. A failure names the seed that
//! replays it, with `MAFS_SIM_FIRST_SEED=SEED MAFS_SIM_SEEDS=1`.
//!
//! `MAFS_SIM_SEEDS=2000 cargo test --release -p mafs-sim --test sim fleet::` is the long run, of all of `reftest_...`;
//! with `fleet::reftest_above_kernels` of those in which programs call a kernel: in the rest they call the client.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use mafs_sim::{Faults, run_fleet, run_fleet_above_kernels};

use crate::support::{assert_same, judged, seeds_from};

const OPERATIONS: usize = 500;
/// Seeds without faults: fewer without optimisation, where one takes seconds.
const FIXED: u64 = if cfg!(debug_assertions) { 5 } else { 40 };
/// Seeds with each of three kinds of faults.
const FAULTY: u64 = if cfg!(debug_assertions) { 1 } else { 20 };
/// Operations and seeds above kernels, where one seed takes half as long again.
const OPERATIONS_ABOVE: usize = if cfg!(debug_assertions) { 100 } else { OPERATIONS };
const FIXED_ABOVE: u64 = if cfg!(debug_assertions) { 1 } else { 10 };
const FAULTY_ABOVE: u64 = if cfg!(debug_assertions) { 1 } else { 5 };
/// Seeds that nobody has chosen: without faults, and with all.
const FRESH: u64 = if cfg!(debug_assertions) { 1 } else { 10 };

/// Faults of links and the server.
const REMOTE: Faults = Faults {
    cut: 30,
    kill_server: 50,
    power_server: 70,
    kill_client: 0,
    power_client: 0,
    remount: 70,
    isolate: 50,
    silent: 30,
    fill_server: 40,
    fill_client: 0,
    suspend: 80,
    restore: 0,
};
/// With clients whose disks fill up, and a server that has room.
const FULL_CLIENTS: Faults = Faults { fill_client: 30, fill_server: 0, ..REMOTE };
const ALL: Faults = Faults { kill_client: 50, power_client: 70, fill_client: 50, restore: 60, ..REMOTE };

fn run(seed: u64, faults: Faults) -> Vec<String> {
    judged(run_fleet(seed, OPERATIONS, faults))
}

/// Runs a seed with a kernel between programs and each client.
fn above(seed: u64, faults: Faults) -> Vec<String> {
    judged(run_fleet_above_kernels(seed, OPERATIONS_ABOVE, faults))
}

/// Runs a seed above kernels with some kinds of faults, each alone, that other faults may hide.
fn above_with_one_kind(seed: u64) {
    above(seed, Faults { kill_client: 50, ..Faults::default() });
    above(seed, Faults { fill_server: 40, ..Faults::default() });
}

/// Returns some seeds that nobody has chosen.
fn fresh_seeds() -> Range<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that is set").as_secs();
    let first = 1_000_000 + now * FRESH;
    println!("fresh seeds: MAFS_SIM_FIRST_SEED={first} MAFS_SIM_SEEDS={FRESH}");
    first..first + FRESH
}

#[test]
fn reftest_everybody_is_shown_what_was_announced() {
    for seed in seeds_from(0, FIXED) {
        run(seed, Faults::default());
    }
}

#[test]
fn reftest_everybody_is_shown_what_was_announced_with_fresh_seeds() {
    for seed in fresh_seeds() {
        run(seed, Faults::default());
        run(seed, ALL);
    }
}

#[test]
fn reftest_everybody_is_shown_what_was_announced_whatever_befalls_links_and_server() {
    for seed in seeds_from(2000, FAULTY) {
        run(seed, REMOTE);
    }
}

#[test]
fn reftest_everybody_is_shown_what_was_announced_whatever_goes_wrong() {
    for seed in seeds_from(1000, FAULTY) {
        run(seed, ALL);
    }
}

/// Ten chunks were let go before anything was known of a link, and were chunks of the size that small frames had shown.
#[test]
fn regression_what_goes_first_is_as_little_as_on_a_link_of_which_nothing_is_known() {
    run(5013, Faults::default());
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    assert_same(&run(9000, ALL), &run(9000, ALL));
}

#[test]
fn reftest_everybody_is_shown_what_was_announced_however_full_the_clients_are() {
    for seed in seeds_from(3000, FAULTY) {
        run(seed, FULL_CLIENTS);
    }
}

/// A version that was refused for want of room was announced too late (95555, 60037), or taken for applied with a
/// removal that went ahead of it (95461); what depended on a moot content was refused with it (60374).
#[test]
fn regression_of_what_was_refused() {
    for seed in [95_555, 60_037, 95_461, 60_374] {
        run(seed, ALL);
    }
}

/// A change by this client of a file that it has removed was refused too, because it had heard first that the file is
/// gone.
#[test]
fn regression_what_is_changed_of_a_file_before_its_removal_is_no_conflict() {
    run(823_100, REMOTE);
}

/// A rename that others had been shown was in conflict with what was stored into the file that it replaced.
#[test]
fn regression_what_was_announced_to_replace_a_file_does() {
    run(500_109, ALL);
}

/// Another client made a name that this one was not told of, because its session ended: it went on with what it knew,
/// though a status had shown that there was more.
#[test]
fn regression_names_that_lack_a_change_are_forgotten_with_the_session() {
    run(300_751, ALL);
}

/// A name of a file was replaced while another client stored into the file by its other name: that is no conflict.
#[test]
fn regression_a_file_that_keeps_a_name_keeps_its_content() {
    run(710_999, Faults::default());
}

/// A client was killed when all of a file had come and it had not been compared yet: nothing was left to ask for, and
/// so nothing came to compare it with.
#[test]
fn regression_a_content_that_was_here_whole_before_a_kill_is_not_taken_for_damaged() {
    run(760_608, ALL);
}

#[test]
fn reftest_above_kernels_everybody_is_shown_what_was_announced() {
    for seed in seeds_from(10_000, FIXED_ABOVE) {
        above(seed, Faults::default());
    }
}

#[test]
fn reftest_above_kernels_everybody_is_shown_what_was_announced_whatever_befalls_links_and_server() {
    for seed in seeds_from(12_000, FAULTY_ABOVE) {
        above(seed, REMOTE);
    }
}

#[test]
fn reftest_above_kernels_everybody_is_shown_what_was_announced_whatever_goes_wrong() {
    for seed in seeds_from(11_000, FAULTY_ABOVE) {
        above(seed, ALL);
    }
}

#[test]
fn reftest_above_kernels_everybody_is_shown_what_was_announced_however_full_the_clients_are() {
    for seed in seeds_from(13_000, FAULTY_ABOVE) {
        above(seed, FULL_CLIENTS);
    }
}

#[test]
fn reftest_above_kernels_everybody_is_shown_what_was_announced_when_one_kind_of_fault_is_alone() {
    for seed in seeds_from(14_000, FAULTY_ABOVE) {
        above_with_one_kind(seed);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_above_kernels() {
    assert_same(&above(19_000, ALL), &above(19_000, ALL));
}

/// While the content before was on its way, the file had the size of the next one, which nobody sends because the
/// server is full or the writer gone: programs read the beginning of the one as the whole of the other.
#[test]
fn regression_a_file_has_the_size_of_what_is_read_before_all_of_it_has_come() {
    above(10_020, REMOTE);
}

/// The version that was to be opened had gone, and the next one was opened. The kernel went by the end of the one that
/// it had been told of: what was longer was cut short, and what was shorter was filled up with zeros.
#[test]
fn regression_what_is_opened_is_read_to_its_own_end() {
    for seed in [22_235, 10_087] {
        above(seed, REMOTE);
    }
    above(24_082, Faults::default());
}

/// The kernel kept a name that was not in the index, so nobody told it when the directory was broken.
#[test]
fn regression_a_name_of_a_file_with_unsent_changes_is_not_kept_by_the_kernel_alone() {
    above(24_145, Faults::default());
    above(21_388, ALL);
}

/// A lookup showed the mode that the server had, without the change that waited here.
#[test]
fn regression_a_lookup_shows_what_was_changed_here() {
    above_with_one_kind(25_017);
    above(21_149, ALL);
}

/// A file with two names had lost one here, and was not there by the other, because the server's word that it has that
/// was not taken (21207). A removal went ahead of an attribute that waited for room (22391).
#[test]
fn regression_of_removals_that_are_not_answered() {
    above(21_207, ALL);
    above(22_391, REMOTE);
}

/// A file lost one of two names by a record that the server had applied and not answered when the client was unmounted.
/// After the next mount that counted twice, and the other name was not there.
#[test]
fn regression_a_name_that_was_lost_in_a_life_before_is_not_lost_twice() {
    above(20_486, ALL);
}

/// A full server took a removal ahead of a content, and was then told of a conflict with it.
#[test]
fn regression_a_content_that_waits_for_room_is_in_no_conflict_with_the_removal_of_its_file() {
    above_with_one_kind(20_001);
}

/// A connection that was being made when its client was unmounted was taken in afterwards: the next life took what was
/// promised in it for its own.
#[test]
fn regression_a_connection_that_comes_when_the_mount_has_ended_promises_nothing() {
    above(20_555, ALL);
}
