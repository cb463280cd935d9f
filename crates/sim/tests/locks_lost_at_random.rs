//! Locks that are lost at random: two programs on each of three clients count under a lock, with `lock=strict` or
//! `fail`, while links fall silent, for longer than leases last or not. A program that was told that it is done has
//! done it for good: everybody counts on from there, and it is no conflict.
//!
//! `MAFS_SIM_SEEDS=1000 cargo test --release -p mafs-sim --test sim locks_lost_at_random::` is the long run.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mafs_client::vfs::{Locking, Vfs, Writeback};
use mafs_proto::{Random, VnodeId};
use mafs_sim::World;
use tokio::time::sleep;

use crate::support::locking::{Process, until_connected};
use crate::support::{BLACK_HOLE, clients, configured, content, names, seeds_from, simulate, write_and_close};

const DELAY: Duration = Duration::from_millis(20);
const CLIENTS: usize = 3;
const PROGRAMS: u32 = 2;
const ROUNDS: u32 = 15;
/// The longest pauses of a program between two locks, and under one: seldom longer than a lease lasts.
const PAUSE_MAX_MS: [u64; 4] = [200, 2_000, 20_000, 100_000];
/// A refusal comes at once with `lock=fail`.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);
const SILENCES: u32 = 40;
const SILENCE_MAX_MS: [u64; 2] = [10_000, 150_000];
/// Time until everybody has sent everything.
const SETTLED_AFTER: Duration = Duration::from_secs(300);

/// A count in a file: its value, and a token of the program that counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Count {
    value: u32,
    /// No two are alike.
    token: u32,
}

impl Count {
    fn to_bytes(self) -> Vec<u8> {
        format!("{:>10} {:>10}", self.value, self.token).into_bytes()
    }

    fn of(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).expect("digits");
        let mut numbers = text.split_whitespace().map(|number| number.parse().expect("a number"));
        let mut next = || numbers.next().expect("two numbers");
        Self { value: next(), token: next() }
    }
}

/// Counts that programs were told are done.
#[derive(Default)]
struct Truth {
    done: Vec<Count>,
    tokens: u32,
}

fn last_of(done: &[Count]) -> u32 {
    done.iter().map(|count| count.value).max().unwrap_or_default()
}

/// One program of the run.
struct Program {
    vfs: Vfs,
    number: u32,
    random: Random,
    truth: Arc<Mutex<Truth>>,
}

impl Program {
    fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().expect("no panic before")
    }

    async fn pause(&mut self) {
        let kind = usize::try_from(self.random.below(12)).expect("a few").saturating_sub(8);
        sleep(Duration::from_millis(self.random.below(PAUSE_MAX_MS[kind]))).await;
    }

    async fn run(mut self) {
        for _ in 0..ROUNDS {
            self.pause().await;
            // The file may be out of reach if what is cached is not valid any more.
            let Ok((process, passthrough)) = Process::try_open(&self.vfs, "counter", self.number).await else {
                sleep(AFTER_REFUSAL).await;
                continue;
            };
            let done_before = last_of(&self.truth().done);
            match process.lock().await {
                Ok(()) => self.count(&process, passthrough, done_before).await,
                Err(_) => sleep(AFTER_REFUSAL).await,
            }
            // The answer of the close is known by now.
            let _ = process.close().await;
        }
    }

    async fn count(&mut self, process: &Process, passthrough: bool, done_before: u32) {
        let seen = Count::of(&process.read().await);
        assert!(seen.value >= done_before, "program {} sees {seen:?} after {done_before}", self.number);
        self.pause().await;
        let counted = {
            let mut truth = self.truth();
            truth.tokens += 1;
            Count { value: seen.value + 1, token: truth.tokens }
        };
        process.write(counted.to_bytes(), passthrough).await;
        if self.random.below(3) == 0 {
            // The lock may have been lost; the unlock says so, too.
            let _ = self.vfs.flush(process.file).await;
        }
        self.pause().await;
        if process.unlock().await.is_ok() {
            let mut truth = self.truth();
            let other = truth.done.iter().find(|count| count.value == counted.value);
            assert_eq!(other, None, "program {} has counted {counted:?} too", self.number);
            truth.done.push(counted);
        }
    }
}

async fn silences(world: &World, random: &mut Random) {
    for _ in 0..SILENCES {
        sleep(Duration::from_millis(random.below(60_000))).await;
        let machine = &world.machines()[usize::try_from(random.below(CLIENTS as u64)).expect("a few")];
        machine.fall_silent(BLACK_HOLE);
        let max_ms = SILENCE_MAX_MS[usize::try_from(random.below(2)).expect("one of two")];
        sleep(Duration::from_millis(random.below(max_ms))).await;
        machine.break_silence();
    }
}

async fn count_while_links_fail(seed: u64) {
    let passthrough = seed % 2 == 1;
    let locking = if seed.is_multiple_of(3) { Locking::Fail } else { Locking::Strict };
    let world = World::start_several(seed, CLIENTS, DELAY, passthrough).await.expect("a world");
    let world = configured(world, |machine| {
        machine.set_writeback(Writeback::Sirp);
        machine.set_disconnected(true);
        machine.set_locking(locking);
    })
    .await;
    let all: [Vfs; CLIENTS] = clients(&world);
    write_and_close(&all[0], "counter", Count { value: 0, token: 0 }.to_bytes()).await;
    all[0].sync().await.expect("a sync");
    let truth = Arc::new(Mutex::new(Truth::default()));
    let programs = (1..).zip(all.iter().flat_map(|vfs| [vfs; PROGRAMS as usize])).map(|(number, vfs)| {
        let random = Random::new(seed ^ u64::from(number) << 32);
        let (vfs, truth) = (vfs.clone(), Arc::clone(&truth));
        tokio::spawn(Program { vfs, number, random, truth }.run())
    });
    let programs: Vec<_> = programs.collect();
    silences(&world, &mut Random::new(seed)).await;
    for program in programs {
        program.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    for vfs in &all {
        until_connected(vfs).await;
    }
    sleep(SETTLED_AFTER).await;
    let Truth { done, .. } = std::mem::take(&mut *truth.lock().expect("no panic before"));
    let last = last_of(&done);
    assert!(done.len() > 10, "seed {seed}: {}", done.len());
    for vfs in &all {
        assert_eq!((vfs.status().unsent_files, vfs.status().refused), (0, vec![]), "seed {seed}");
        let present = Count::of(&content(vfs, "counter").await);
        assert!(present.value >= last, "seed {seed}: {present:?}, {done:?}");
        for name in names(vfs, VnodeId::ROOT).await.expect("names") {
            let name: &'static str = String::from_utf8(name.to_vec()).expect("a name").leak();
            if name != "counter" {
                let kept = Count::of(&content(vfs, name).await);
                assert!(!done.contains(&kept), "seed {seed}: {kept:?} was done, and is in conflict");
            }
        }
    }
}

#[test]
fn reftest_who_was_told_that_it_is_done_has_done_it_for_good() {
    for seed in seeds_from(0, if cfg!(debug_assertions) { 4 } else { 20 }) {
        simulate(count_while_links_fail(seed));
    }
}
