//! Figure M2 in virtual time: the real client and server over an emulated link.

use std::io;
use std::time::Duration;

use mafs_arpc::Scheduling;
use mafs_arpc::link::Profile;
use mafs_server::ServerConfig;
use mafs_sim::{Path, World};

use crate::files::Files;
use crate::workload::{Background, Foreground, Outcome, populate, run, warm};

/// Large enough for all that the workloads make.
const CACHE_BYTES: u64 = 1 << 30;

/// One run: the client at the end of the link has what a search needs in its cache, and has just been started again, so
/// all of it has to be validated.
pub(crate) fn m2(
    kbytes_per_s: u64,
    rtt: Duration,
    scheduling: Scheduling,
    (foreground, background): (Foreground, Background),
    seed: u64,
) -> io::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(async {
        let link = Path::Link(Box::new(Profile::steady(kbytes_per_s * 1024, rtt)));
        let paths = vec![Path::Delay(Duration::ZERO), link];
        let server = ServerConfig::default().with_scheduling(scheduling);
        let mut world = World::start_configured(seed, server, paths, false).await.map_err(io::Error::other)?;
        populate(&Files::Simulated(world.client().clone())).await?;
        let machine = &mut world.machines_mut()[1];
        machine.stop().await;
        machine.set_cache_limit_bytes(CACHE_BYTES);
        machine.start().await.map_err(io::Error::other)?;
        if foreground == Foreground::Grep {
            warm(&Files::Simulated(machine.client().clone())).await?;
        }
        machine.stop().await;
        machine.set_scheduling(scheduling);
        machine.start().await.map_err(io::Error::other)?;
        run(&Files::Simulated(machine.client().clone()), foreground, background, seed).await
    })
}
