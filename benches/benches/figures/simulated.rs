//! Figures in virtual time: the real client and server over an emulated link.

use std::io;
use std::time::Duration;

use mafs_arpc::Scheduling;
use mafs_arpc::link::Profile;
use mafs_server::ServerConfig;
use mafs_sim::nfs::Operation;
use mafs_sim::workload::{
    Compilation, Compiled, Plan, READERS, Read, Replayed, Trace, Tree, cumulative, ideal_versions,
    older_than_announced, older_than_closed, populate_shared, populate_trace, replay, share, staleness,
};
use mafs_sim::{Machine, Path, World};

use crate::files::Files;
use crate::m4::{Outcome as SharedOutcome, Policy};
use crate::variant::Variant;
use crate::workload::{Background, Foreground, Outcome, populate, run, warm};

/// Size of a cache that holds all that the workloads make.
const CACHE_BYTES: u64 = 1 << 30;

/// Link of M4's readers (papers/003, section 5.4); the round trip is that of the other figures.
const READER_BYTES_PER_S: u64 = 1024 * 1024;
const SHARED_RTT: Duration = Duration::from_millis(20);

/// Runs M1 once: the client at the end of the link has nothing in its cache.
pub(crate) fn m1(kbytes_per_s: u64, rtt: Duration, variant: Variant, seed: u64) -> io::Result<Compiled> {
    in_virtual_time(async {
        let link = Profile::steady(kbytes_per_s * 1024, rtt);
        let mut world = start(seed, variant.scheduling, vec![link]).await?;
        let compilation = Compilation::of_paper(seed);
        compilation.populate(&Tree::new(world.client().clone())).await?;
        let machine = &mut world.machines_mut()[1];
        restart(machine, variant).await?;
        compilation.run(&Tree::new(machine.client().clone())).await
    })
}

/// Limit of the time that a process of M3 waits for the server: without classes the default of 21 s is not enough at
/// 64 KB/s, because calls wait behind what all other processes have written, and the paper's processes do not give
/// up.
const M3_DEADLINE: Duration = Duration::from_secs(3600);

/// Runs M3 once: the client at the end of the link has nothing in its cache.
pub(crate) fn m3(kbytes_per_s: u64, rtt: Duration, trace: &Trace, variant: Variant, seed: u64) -> io::Result<Replayed> {
    in_virtual_time(async {
        let link = Profile::steady(kbytes_per_s * 1024, rtt);
        let mut world = start(seed, variant.scheduling, vec![link]).await?;
        populate_trace(trace, &Tree::new(world.client().clone())).await?;
        let machine = &mut world.machines_mut()[1];
        machine.set_deadline(M3_DEADLINE);
        restart(machine, variant).await?;
        replay(trace, &Tree::new(machine.client().clone())).await
    })
}

/// Runs M4 once: everybody begins with an empty cache, and all use the same policy.
pub(crate) fn m4(kbytes_per_s: u64, policy: &Policy, seed: u64) -> io::Result<SharedOutcome> {
    let plan = Plan::new(seed);
    let variant = Variant { name: policy.name, scheduling: Scheduling::Classes, writeback: policy.writeback };
    let shared = in_virtual_time(async {
        let readers = std::iter::repeat_n(Profile::steady(READER_BYTES_PER_S, SHARED_RTT), READERS);
        let links = std::iter::once(Profile::steady(kbytes_per_s * 1024, SHARED_RTT)).chain(readers).collect();
        let mut world = start(seed, variant.scheduling, links).await?;
        populate_shared(&plan, &Tree::new(world.client().clone())).await?;
        // The populating client is not one of the five hosts, and has no promises when they begin.
        world.stop_client().await;
        let mut trees = Vec::new();
        for machine in &mut world.machines_mut()[1..] {
            machine.set_close(policy.close);
            restart(machine, variant).await?;
            trees.push(Tree::new(machine.client().clone()));
        }
        let shared = share(&plan, &trees[0], &trees[1..], policy.all_announced).await?;
        let moved: Vec<u64> = trees.iter().map(Tree::moved_bytes).collect();
        Ok((shared, moved, trees[0].calls(), trees[0].vfs().status().announced_changes))
    });
    let (shared, moved, writer_calls, announced) = shared?;
    let behind: Vec<u64> =
        (0..READERS).flat_map(|reader| staleness(&ideal_versions(&plan, reader), &shared.reads[reader])).collect();
    let reads: Vec<Read> = shared.reads.concat();
    Ok(SharedOutcome {
        within: cumulative(&behind),
        too_old: older_than_announced(&shared.writes, &reads).len(),
        older_than_closed: older_than_closed(&shared.writes, &reads).len(),
        writer_bytes: moved[0],
        reader_bytes: moved[1..].iter().sum(),
        writer_calls,
        announced,
        shared,
    })
}

/// Measures a read of a file that is not cached, over a link, or a write until the server has it.
pub(crate) fn w1(link: Profile, operation: Operation, file_bytes: u64, seed: u64) -> io::Result<Duration> {
    const DIRECTORY: &str = "w1";
    let content = vec![7; usize::try_from(file_bytes).map_err(io::Error::other)?];
    in_virtual_time(async {
        let mut world = start(seed, Scheduling::Classes, vec![link]).await?;
        let near = Tree::new(world.client().clone());
        near.make_dir(DIRECTORY).await?;
        near.write(DIRECTORY, "old", content.clone()).await?;
        near.vfs().sync().await.map_err(|error| error.to_string())?;
        let machine = &mut world.machines_mut()[1];
        machine.stop().await;
        machine.set_prefetch(false);
        machine.start().await?;
        let far = Tree::new(machine.client().clone());
        let begun = tokio::time::Instant::now();
        match operation {
            Operation::Read => {
                far.read(DIRECTORY, "old").await?;
            }
            Operation::Write => {
                far.write(DIRECTORY, "new", content).await?;
                far.vfs().sync().await.map_err(|error| error.to_string())?;
            }
        }
        Ok(begun.elapsed())
    })
}

fn in_virtual_time<T>(work: impl Future<Output = Result<T, String>>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(work).map_err(io::Error::other)
}

/// Starts a server, a client beside it and one at the end of each link.
async fn start(seed: u64, scheduling: Scheduling, links: Vec<Profile>) -> Result<World, String> {
    let far = links.into_iter().map(|link| Path::Link(Box::new(link)));
    let paths = std::iter::once(Path::Delay(Duration::ZERO)).chain(far).collect();
    World::start_configured(seed, ServerConfig::default().with_scheduling(scheduling), paths, false).await
}

/// Restarts with a cache that is large enough for all that the workloads make; what is in it stays.
async fn restart(machine: &mut Machine, Variant { scheduling, writeback, .. }: Variant) -> Result<(), String> {
    machine.stop().await;
    machine.set_cache_limit_bytes(CACHE_BYTES);
    machine.set_scheduling(scheduling);
    machine.set_writeback(writeback);
    machine.start().await
}

/// Runs M2 once: the client at the end of the link has what a search needs in its cache, and has just been started
/// again, so all of it has to be validated.
pub(crate) fn m2(
    kbytes_per_s: u64,
    rtt: Duration,
    variant: Variant,
    (foreground, background): (Foreground, Background),
    seed: u64,
) -> io::Result<Outcome> {
    in_virtual_time(async {
        let said = |error: io::Error| error.to_string();
        let mut world = start(seed, variant.scheduling, vec![Profile::steady(kbytes_per_s * 1024, rtt)]).await?;
        populate(&Files::Simulated(world.client().clone())).await.map_err(said)?;
        let machine = &mut world.machines_mut()[1];
        machine.stop().await;
        machine.set_cache_limit_bytes(CACHE_BYTES);
        machine.start().await?;
        if foreground == Foreground::Grep {
            warm(&Files::Simulated(machine.client().clone())).await.map_err(said)?;
        }
        restart(machine, variant).await?;
        run(&Files::Simulated(machine.client().clone()), foreground, background, seed).await.map_err(said)
    })
}
