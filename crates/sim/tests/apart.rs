//! Clients that change one tree while nobody can reach the server, and come back one after the other: whatever one of
//! them had in the end is there, all see the same, and a client that did not touch what another has changed has no
//! conflict.
//!
//! `MAFS_SIM_SEEDS=2000 cargo test --release -p mafs-sim --test sim apart::` is the long run.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Error, Writeback};
use mafs_proto::{FsError, Mode, Random, VnodeId};
use mafs_sim::{Crash, Machine, World};
use tokio::time::{sleep, timeout};

use crate::support::worker::{DIRS, Tree, Worker, tree};
use crate::support::{BLACK_HOLE, CALLER, seeds_from, simulate, usable_apart};

const CLIENTS: usize = 3;
const STEPS: u64 = 25;
/// Time until all is sent of those who come back together: nobody is waited for to the end of a lease.
const SENT_MAX: Duration = Duration::from_secs(30);

/// How clients come back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Back {
    InTurn,
    Together,
}

/// Puts a tree into the caches of all clients. Returns what it holds.
async fn everybody_has_the_tree(world: &World, own: bool) -> Tree {
    let first = world.machines()[0].client();
    for dir in DIRS {
        let name = Bytes::from(dir);
        first.make_dir(VnodeId::ROOT, name, Mode::from_bits(0o755), CALLER).await.expect("a directory");
    }
    for number in 0..CLIENTS {
        let (vfs, random) = (first.clone(), Random::new(7 + number as u64));
        let mut worker = Worker { vfs, kernel: None, number, random, own, written: 1000 };
        for _ in 0..8 {
            let dir = worker.dir().await.expect("a directory");
            let name = worker.file_name();
            worker.write(&dir, name).await.expect("a file");
        }
    }
    first.sync().await.expect("a sync");
    let mut all = Tree::new();
    for machine in world.machines() {
        // Twice, for directories are cached whole from the second miss on.
        for _ in 0..2 {
            all = tree(machine.client()).await.expect("the tree");
        }
    }
    all
}

async fn part(world: &World) {
    for machine in world.machines() {
        machine.fall_silent(BLACK_HOLE);
        let asked = machine.client().lookup(VnodeId::ROOT, Bytes::from_static(b"nobody-knows")).await;
        assert!(asked.is_err());
    }
    sleep(Duration::from_secs(30)).await;
    assert!(world.machines().iter().all(|machine| !machine.client().status().connected));
}

/// Lets clients with these numbers come back at the same time, and send what they have done.
async fn plug_in(world: &World, numbers: &[usize]) {
    let machines = || numbers.iter().map(|number| &world.machines()[*number]);
    machines().for_each(Machine::break_silence);
    for machine in machines() {
        while !machine.client().status().connected {
            sleep(Duration::from_millis(100)).await;
        }
    }
    for machine in machines() {
        let synced = timeout(SENT_MAX, machine.client().sync()).await.expect("nobody waits for another");
        assert!(matches!(synced, Ok(()) | Err(Error::Refused(_))), "{synced:?}");
    }
}

/// Returns all contents of a tree, whichever client has written them.
fn contents(tree: &Tree) -> BTreeSet<Vec<u8>> {
    tree.values().flatten().cloned().collect()
}

async fn work_apart(seed: u64, own: bool, back: Back) {
    let world = World::start_several(seed, CLIENTS, Duration::from_millis(10), false).await.expect("a world");
    let mut world = usable_apart(world, if seed.is_multiple_of(3) { Writeback::Async } else { Writeback::Sirp }).await;
    let before = everybody_has_the_tree(&world, own).await;
    part(&world).await;
    let mut random = Random::new(seed);
    let mut had = Vec::new();
    for number in 0..CLIENTS {
        let vfs = world.machines()[number].client().clone();
        let random = Random::new(random.below(u64::MAX));
        let mut worker = Worker { vfs, kernel: None, number, random, own, written: 0 };
        for _ in 0..STEPS {
            match worker.step().await {
                Ok(()) | Err(Error::Refused(FsError::NotFound | FsError::Exists | FsError::NotEmpty)) => {}
                Err(error) => panic!("seed {seed}, client {number}: {error}"),
            }
        }
        had.push(tree(&worker.vfs).await.expect("what a client has"));
    }
    if random.below(3) == 0 {
        let victim = usize::try_from(random.below(CLIENTS as u64)).expect("small");
        world.crash_machine(victim, Crash::Kill);
        world.machines_mut()[victim].start().await.expect("it starts without the server");
    }
    let first = usize::try_from(random.below(CLIENTS as u64)).expect("small");
    let order: Vec<usize> = (0..CLIENTS).map(|number| (first + number) % CLIENTS).collect();
    for together in order.chunks(if back == Back::Together { CLIENTS } else { 1 }) {
        plug_in(&world, together).await;
    }
    if random.below(2) == 0 {
        // The server removes contents on its disk that nobody names.
        world.crash_server(Crash::Kill);
        world.start_server().expect("the server starts");
        sleep(Duration::from_secs(5)).await;
    }
    let late = world.add_client().await.expect("another client");
    let now = tree(&late).await.expect("the tree");
    let (known, there) = (contents(&before), contents(&now));
    for (number, had) in had.iter().enumerate() {
        let is_lost = |(_, content): &(&String, &Option<Vec<u8>>)| {
            content.as_ref().is_some_and(|content| !known.contains(content) && !there.contains(content))
        };
        let lost: Vec<_> = had.iter().filter(is_lost).map(|(path, _)| path).collect();
        assert!(lost.is_empty(), "seed {seed}: client {number} has lost {lost:?}; {:?}", now.keys());
        let shown = tree(world.machines()[number].client()).await.expect("the tree");
        assert_eq!(shown, now, "seed {seed}: client {number} shows something else");
    }
    if own {
        let conflicts = late.conflicts().await.expect("the conflicts");
        assert!(conflicts.is_empty(), "seed {seed}: {conflicts:?}");
        for (number, machine) in world.machines().iter().take(CLIENTS).enumerate() {
            assert_eq!(machine.client().status().refused, vec![], "seed {seed}: client {number}");
            let is_own = |path: &String| path.ends_with(&format!("-of-{number}"));
            let of = |tree: &Tree| -> Tree { tree.clone().into_iter().filter(|(path, _)| is_own(path)).collect() };
            assert_eq!(of(&now), of(&had[number]), "seed {seed}: client {number}");
        }
    }
}

#[test]
fn invariant_9_nothing_is_lost_that_clients_have_done_to_the_same_files_while_apart() {
    for seed in seeds_from(0, 8) {
        simulate(work_apart(seed, false, Back::InTurn));
    }
}

#[test]
fn who_works_on_other_files_while_apart_has_no_conflict() {
    for seed in seeds_from(0, 4) {
        simulate(work_apart(seed, true, Back::InTurn));
    }
}

#[test]
fn invariant_9_nothing_is_lost_of_those_who_come_back_at_the_same_time() {
    for seed in seeds_from(0, 8) {
        simulate(work_apart(seed, false, Back::Together));
    }
}

/// A name was made before one that had been made earlier, which was in conflict: their answers waited for each other.
#[test]
fn regression_answers_that_wait_for_each_other_are_taken_in() {
    simulate(work_apart(401, false, Back::InTurn));
}
