//! Names that several clients try to make at once in directories that now one of them has to itself, now all share: of
//! the clients that succeed exactly one has the name in the end, and no other is left in the belief that it has.
//!
//! `MAFS_SIM_SEEDS=1000 cargo test --release -p mafs-sim --test sim contests::` is the long run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Error, OpenMode, Vfs, Writeback};
use mafs_proto::{FsError, Mode, Random, VnodeId};
use mafs_sim::{Crash, LEASE, LEASE_BIAS, World};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::support::{CALLER, WRITE, configured, seeds, simulate};

const EXCLUSIVE: OpenMode = OpenMode { exclusive: true, ..WRITE };
const CLIENTS: usize = 3;
const DIRS: u64 = 2;
const ROUNDS: u64 = 60;
/// One step ends after this long, whatever has happened.
const STEP_MAX: Duration = Duration::from_secs(300);

/// Troubles during a run.
#[derive(Clone, Copy)]
struct Troubles {
    crashes: bool,
    /// Clients are cut off for longer than their leases: what they decided before may come too late, and is listed.
    isolation: bool,
}

/// Makes a name as a program does: the kernel looks first, unless it knows that there is none.
async fn make(vfs: &Vfs, dir: u64, name: String, (kind, looks): (u64, bool)) -> Result<VnodeId, Error> {
    let parent = vfs.lookup(VnodeId::ROOT, Bytes::from(format!("dir-{dir}"))).await?.fid.vnode;
    let bytes = Bytes::from(name);
    match if looks { vfs.lookup(parent, bytes.clone()).await } else { Err(Error::Refused(FsError::NotFound)) } {
        Err(Error::Refused(FsError::NotFound)) => {}
        Ok(_) => return Err(Error::Refused(FsError::Exists)),
        Err(error) => return Err(error),
    }
    let mode = Mode::from_bits(0o755);
    let object = match kind {
        0 => vfs.make_dir(parent, bytes, mode, CALLER).await?,
        1 => vfs.make_symlink(parent, bytes, Bytes::from_static(b"x"), CALLER).await?,
        _ => {
            let (object, opened) = vfs.create(parent, bytes, mode, EXCLUSIVE, CALLER).await?;
            vfs.release(opened.file);
            object
        }
    };
    Ok(object.fid.vnode)
}

/// One client's part in a round: perhaps some names of its own, then the one that all want.
async fn contend(vfs: Vfs, round: u64, number: usize, mut random: Random) -> Option<VnodeId> {
    let dir = round % DIRS;
    sleep(Duration::from_millis(random.below(1_500))).await;
    for own in 0..random.below(4) {
        let name = format!("own-{round}-{number}-{own}");
        // A failure in a fault says nothing.
        let _ = make(&vfs, dir, name, (random.below(3), true)).await;
    }
    let how = (random.below(3), random.below(2) == 0);
    make(&vfs, dir, format!("contest-{round}"), how).await.ok()
}

struct Run {
    world: World,
    random: Random,
    /// The clients that have been told that they made a name, by object.
    told: BTreeMap<u64, BTreeMap<VnodeId, usize>>,
    isolated: BTreeSet<usize>,
}

impl Run {
    async fn round(&mut self, round: u64, troubles: Troubles) {
        // A directory that was asked for stays shared for 10 s: now and then it is one client's again.
        sleep(Duration::from_secs(self.random.below(16))).await;
        let mut tasks: Vec<Option<JoinHandle<Option<VnodeId>>>> = Vec::new();
        for number in 0..CLIENTS {
            let vfs = self.world.machines()[number].client().clone();
            let random = Random::new(self.random.below(u64::MAX));
            tasks.push(Some(tokio::spawn(contend(vfs, round, number, random))));
        }
        sleep(Duration::from_millis(self.random.below(2_500))).await;
        self.strike(&mut tasks, troubles).await;
        for (number, task) in tasks.into_iter().enumerate() {
            let Some(task) = task else { continue };
            let made = timeout(STEP_MAX, task).await.expect("an end").expect("no panic");
            if let Some(vnode) = made {
                self.told.entry(round).or_default().insert(vnode, number);
            }
        }
    }

    async fn strike(&mut self, tasks: &mut [Option<JoinHandle<Option<VnodeId>>>], troubles: Troubles) {
        let victim = usize::try_from(self.random.below(CLIENTS as u64)).expect("small");
        match self.random.below(12) {
            0 | 1 => self.world.machines()[victim].cut_link(),
            2 if troubles.crashes => {
                let crash = if self.random.below(2) == 0 { Crash::Kill } else { Crash::Power };
                self.world.crash_server(crash);
                sleep(Duration::from_millis(self.random.below(5_000))).await;
                self.world.start_server().expect("the server starts");
            }
            3 if troubles.crashes && !self.isolated.contains(&victim) => {
                if let Some(task) = tasks[victim].take() {
                    task.abort();
                }
                self.world.crash_machine(victim, Crash::Kill);
                sleep(Duration::from_millis(self.random.below(5_000))).await;
                self.world.machines_mut()[victim].start().await.expect("the client starts");
            }
            4 if troubles.isolation && self.isolated.insert(victim) => self.world.machines()[victim].isolate(),
            5 | 6 => {
                for victim in std::mem::take(&mut self.isolated) {
                    self.world.machines()[victim].restore_link();
                }
            }
            _ => {}
        }
    }

    /// Looks at what everybody has in the end.
    async fn check(&mut self, seed: u64, troubles: Troubles) {
        for victim in std::mem::take(&mut self.isolated) {
            self.world.machines()[victim].restore_link();
        }
        sleep(3 * (LEASE + LEASE_BIAS)).await;
        let mut refused = 0;
        for machine in self.world.machines() {
            let vfs = machine.client();
            if let Err(error) = vfs.sync().await {
                assert!(matches!(error, Error::Refused(_)), "seed {seed}: {error}");
            }
            refused += vfs.status().refused.len();
        }
        let late = self.world.add_client().await.expect("another client");
        let mut lost = 0;
        for (round, told) in &self.told {
            let dir =
                late.lookup(VnodeId::ROOT, Bytes::from(format!("dir-{}", round % DIRS))).await.expect("a directory");
            let there = late.lookup(dir.fid.vnode, Bytes::from(format!("contest-{round}"))).await;
            let there =
                there.unwrap_or_else(|error| panic!("seed {seed}, {round}: made by {told:?}: {error}")).fid.vnode;
            lost += told.keys().filter(|vnode| **vnode != there).count();
        }
        if troubles.isolation {
            assert!(refused >= lost, "seed {seed}: {lost} names were lost, and {refused} changes are listed");
        } else {
            assert_eq!((lost, refused), (0, 0), "seed {seed}: {:?}", self.told);
        }
    }
}

async fn contests(seed: u64, policy: Writeback, troubles: Troubles) {
    let mut random = Random::new(seed);
    let delays: Vec<_> = (0..CLIENTS).map(|_| Duration::from_millis(5 + random.below(200))).collect();
    let world = World::start_with_delays(seed, &delays, false).await.expect("a world");
    let world = configured(world, |machine| machine.set_writeback(policy)).await;
    let first = world.machines()[0].client();
    for dir in 0..DIRS {
        let name = Bytes::from(format!("dir-{dir}"));
        first.make_dir(VnodeId::ROOT, name, Mode::from_bits(0o755), CALLER).await.expect("a directory");
    }
    first.sync().await.expect("a sync");
    let mut run = Run { world, random, told: BTreeMap::new(), isolated: BTreeSet::new() };
    for round in 0..ROUNDS {
        run.round(round, troubles).await;
    }
    run.check(seed, troubles).await;
}

fn policy(seed: u64) -> Writeback {
    if seed.is_multiple_of(2) { Writeback::Sirp } else { Writeback::Async }
}

#[test]
fn reftest_a_name_has_one_winner() {
    for seed in 0..seeds(2) {
        simulate(contests(seed, policy(seed), Troubles { crashes: false, isolation: false }));
    }
}

#[test]
fn reftest_a_name_has_one_winner_whatever_crashes() {
    for seed in 1000..1000 + seeds(4) {
        simulate(contests(seed, policy(seed), Troubles { crashes: true, isolation: false }));
    }
}

#[test]
fn reftest_what_comes_too_late_is_listed() {
    for seed in 2000..2000 + seeds(4) {
        simulate(contests(seed, policy(seed), Troubles { crashes: true, isolation: true }));
    }
}
