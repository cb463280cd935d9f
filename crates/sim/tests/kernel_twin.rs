//! Programs above a kernel: random calls of several at once against an exact model, of one client and of two. A failure
//! names the seed that replays it.
//!
//! `MAFS_SIM_SEEDS=1000 cargo test --release -p mafs-sim --test sim kernel_twin::` is the long run.

use std::time::Duration;

use mafs_client::vfs::{Close, Writeback};
use mafs_proto::Random;
use mafs_sim::World;
use mafs_sim::script::{Mix, Script, check, run};

use crate::support::{seeds_from, simulated};

/// The longest delay of a link, one way.
const DELAY_MS: u64 = 20;

/// The steps of a run.
const STEPS: usize = 150;

/// How programs get at their files.
#[derive(Clone, Copy)]
struct Setup {
    passthrough: bool,
    /// Another client reads what was closed, at once.
    close_to_open: bool,
}

const PASSTHROUGH: Setup = Setup { passthrough: true, close_to_open: false };
const DAEMON: Setup = Setup { passthrough: false, close_to_open: false };

/// Runs a script on one of two clients; the other looks at the end, and then one that has only what the server has.
async fn run_seed(seed: u64, mix: Mix, setup: Setup) -> Result<(), String> {
    let mut random = Random::new(seed ^ 0x7717);
    let longest = random.one_of(&[1, 500, 3000, DELAY_MS * 1000]);
    let delays = [0; 2].map(|_| Duration::from_micros(random.below(longest)));
    let mut world = World::start_with_delays(seed, &delays, setup.passthrough).await?;
    let close = if setup.close_to_open { Close::Announced } else { Close::Logged };
    for machine in world.machines_mut() {
        machine.stop().await;
        machine.set_writeback(Writeback::Sirp);
        machine.set_close(close);
        machine.set_cache_limit_bytes(64 << 20);
        machine.set_kernel(random.number());
        machine.start().await?;
    }
    let script = Script::random(seed, STEPS, mix);
    let [one, other] = [0, 1].map(|number| world.machines()[number].kernel().clone());
    let others = if setup.close_to_open { vec![other.clone()] } else { Vec::new() };
    run(&one, "/w", &script, &others).await?;
    check(&one, "/w", &script.left).await.map_err(|wrong| format!("in the end {wrong}"))?;
    one.released().await;
    one.vfs().sync().await.map_err(|error| format!("what was closed cannot be sent: {error}"))?;
    check(&other, "/w", &script.left).await.map_err(|wrong| format!("on the other client {wrong}"))?;
    drop((one, other, others));
    world.stop_client().await;
    world.empty_cache();
    world.start_client().await?;
    let fresh = world.machines()[0].kernel();
    check(fresh, "/w", &script.left).await.map_err(|wrong| format!("on the server {wrong}"))
}

fn run_seeds(first: u64, mix: Mix, setup: Setup) {
    let mut failed = Vec::new();
    let seeds = seeds_from(first, 30);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        if let Err(wrong) = simulated(run_seed(seed, mix, setup)) {
            println!("seed {seed}: {wrong}");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "{} of {count} seeds: {failed:?}", failed.len());
}

const IDIOMS: Mix = Mix { idioms: true, mappings: false, together: false };
const ALONE: Mix = Mix { idioms: false, ..IDIOMS };
const TOGETHER: Mix = Mix { together: true, ..ALONE };
const MAPPED: Mix = Mix { mappings: true, ..TOGETHER };

#[test]
fn invariant_1_a_file_that_is_made_empty_and_written_at_once_has_its_content() {
    run_seeds(1000, IDIOMS, PASSTHROUGH);
}

#[test]
fn invariant_1_programs_find_what_they_have_written() {
    run_seeds(2000, ALONE, PASSTHROUGH);
}

#[test]
fn invariant_1_several_programs_find_what_they_have_written() {
    run_seeds(3000, TOGETHER, PASSTHROUGH);
}

#[test]
fn invariant_1_what_is_stored_through_mappings_stays() {
    run_seeds(4000, MAPPED, PASSTHROUGH);
}

#[test]
fn invariant_1_several_programs_find_what_they_have_written_through_the_daemon() {
    run_seeds(5000, TOGETHER, DAEMON);
}

#[test]
fn invariant_1_what_is_stored_through_mappings_stays_through_the_daemon() {
    run_seeds(6000, MAPPED, DAEMON);
}

#[test]
fn another_client_opens_what_was_closed() {
    run_seeds(7000, TOGETHER, Setup { close_to_open: true, ..PASSTHROUGH });
}

#[test]
fn another_client_opens_what_was_closed_through_the_daemon() {
    run_seeds(8000, TOGETHER, Setup { close_to_open: true, ..DAEMON });
}
