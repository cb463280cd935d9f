//! Locks at random: two clients with several programs each take and give up whole files and parts, for themselves or
//! shared, waiting or not. No program has what another excludes, each sees what the last has written, none waits much
//! longer than the others hold it, and none is refused what is free.
//!
//! `MAFS_SIM_SEEDS=1000 cargo test --release -p mafs-sim --test sim locks_at_random::` is the long run.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mafs_client::vfs::Writeback;
use mafs_proto::{LockKind, LockRange, Random};
use mafs_sim::World;
use tokio::time::{Instant, sleep};

use crate::support::locking::{Process, is_locked};
use crate::support::{clients, configured, content, seeds_from, simulate, write_and_close};

const DELAY: Duration = Duration::from_millis(20);
const PROGRAMS: u32 = 3;
const ROUNDS: u32 = 25;
const HELD_MAX_MS: u64 = 60;
/// So long that what another client has wanted is forgotten, and a lock kept.
const AWAY_MAX_MS: u64 = 200_000;
/// The longest wait for a lock: all others hold it once, and the server is told of each. A kept lock is kept for a
/// minute.
const WAIT_MAX: Duration = Duration::from_secs(8);
/// Everybody knows of the end of a lock this long after it.
const KNOWN_AFTER: Duration = Duration::from_secs(2);

/// A lock that a program has asked for.
struct Asked {
    program: u32,
    range: LockRange,
    kind: LockKind,
    is_held: bool,
    /// `None`: the program holds it, or may be about to.
    until: Option<Instant>,
}

/// The true state, whatever clients and server believe.
#[derive(Default)]
struct Truth {
    asked: Vec<Asked>,
    content: u8,
}

impl Truth {
    fn excluding(&self, program: u32, range: LockRange, kind: LockKind) -> impl Iterator<Item = &Asked> {
        let others = self.asked.iter().filter(move |asked| asked.program != program && asked.range.overlaps(range));
        others.filter(move |asked| asked.kind.excludes(kind))
    }

    /// Whether nobody has held or wanted for a while what excludes a lock.
    fn is_free(&self, program: u32, range: LockRange, kind: LockKind) -> bool {
        let now = Instant::now();
        self.excluding(program, range, kind).all(|asked| asked.until.is_some_and(|until| until + KNOWN_AFTER < now))
    }

    fn ask(&mut self, program: u32, range: LockRange, kind: LockKind) {
        self.asked.push(Asked { program, range, kind, is_held: false, until: None });
    }

    fn take(&mut self, program: u32) {
        let asked = self.asked.iter_mut().rfind(|asked| asked.program == program).expect("it has asked");
        asked.is_held = true;
        let (range, kind) = (asked.range, asked.kind);
        let mut others = self.excluding(program, range, kind).filter(|asked| asked.is_held && asked.until.is_none());
        assert_eq!(
            others.next().map(|other| other.program),
            None,
            "has what program {program} has: {range:?}, {kind:?}"
        );
    }

    fn give_up(&mut self, program: u32) {
        let asked = self.asked.iter_mut().filter(|asked| asked.program == program && asked.until.is_none());
        asked.for_each(|asked| asked.until = Some(Instant::now()));
    }
}

/// One program of the run.
struct Program {
    number: u32,
    process: Process,
    random: Random,
    truth: Arc<Mutex<Truth>>,
    passthrough: bool,
}

impl Program {
    fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().expect("no panic before")
    }

    fn odds(&mut self, in_ten: u64) -> bool {
        self.random.below(10) < in_ten
    }

    async fn pause(&mut self, max_ms: u64) {
        sleep(Duration::from_millis(self.random.below(max_ms))).await;
    }

    async fn run(mut self) {
        for _ in 0..ROUNDS {
            let max_ms = if self.odds(2) { AWAY_MAX_MS } else { HELD_MAX_MS };
            self.pause(max_ms).await;
            let range = match self.random.below(10) {
                0..7 => LockRange::ALL,
                part => LockRange::new(4 * (part - 7), 4 * (part - 7) + 5).expect("a range"),
            };
            let kind = if self.odds(7) { LockKind::Exclusive } else { LockKind::Shared };
            let wait = self.odds(7);
            if !self.lock(range, kind, wait).await {
                continue;
            }
            self.use_content(range, kind).await;
            self.pause(HELD_MAX_MS).await;
            if kind == LockKind::Exclusive && self.odds(3) {
                self.truth().give_up(self.number);
                assert!(self.lock(range, LockKind::Shared, true).await);
                self.use_content(range, LockKind::Shared).await;
            }
            self.unlock().await;
        }
        self.process.close().await.expect("a close");
    }

    /// Asks for a lock. Returns whether it is held.
    async fn lock(&mut self, range: LockRange, kind: LockKind, wait: bool) -> bool {
        let (begun, was_free) = (Instant::now(), self.truth().is_free(self.number, range, kind));
        self.truth().ask(self.number, range, kind);
        let locked = self.process.lock_range(range, kind, wait).await;
        let took = begun.elapsed();
        assert!(took < WAIT_MAX, "program {} has waited {took:?} for {range:?}, {kind:?}, {wait}", self.number);
        if locked.is_ok() {
            self.truth().take(self.number);
            return true;
        }
        self.truth().give_up(self.number);
        assert!(!wait && is_locked(&locked), "program {}: {locked:?}", self.number);
        let is_free = self.truth().is_free(self.number, range, kind);
        assert!(!was_free || !is_free, "program {} was refused {range:?}, {kind:?}, after {took:?}", self.number);
        false
    }

    async fn unlock(&mut self) {
        self.truth().give_up(self.number);
        let begun = Instant::now();
        self.process.unlock().await.expect("an unlock");
        assert!(begun.elapsed() < WAIT_MAX, "program {} has waited {:?}", self.number, begun.elapsed());
    }

    /// Reads and writes the content. Only a program that has all of a file may rely on what is in it: it is stored as
    /// a whole.
    async fn use_content(&mut self, range: LockRange, kind: LockKind) {
        if range != LockRange::ALL {
            return;
        }
        let expected = self.truth().content;
        assert_eq!(self.process.read().await, [expected; 10], "program {} with {kind:?}", self.number);
        if kind == LockKind::Exclusive {
            let next = expected.wrapping_add(1);
            self.process.write(vec![next; 10], self.passthrough).await;
            self.truth().content = next;
        }
    }
}

async fn run(seed: u64) {
    let mut random = Random::new(seed);
    let passthrough = random.below(2) == 0;
    let policy = if random.below(4) == 0 { Writeback::Sync } else { Writeback::Sirp };
    let world = World::start_several(seed, 2, DELAY, passthrough).await.expect("a world");
    let world = configured(world, |machine| machine.set_writeback(policy)).await;
    write_and_close(world.client(), "file", vec![0; 10]).await;
    world.client().sync().await.expect("a sync");
    let truth = Arc::new(Mutex::new(Truth::default()));
    let machines: [_; 2] = clients(&world);
    let mut running = Vec::new();
    for number in 0..2 * PROGRAMS {
        let process = Process::open(&machines[(number % 2) as usize], "file", number + 1).await;
        let random = Random::new(random.below(u64::MAX));
        let program = Program { number, process, random, truth: Arc::clone(&truth), passthrough };
        running.push(tokio::spawn(program.run()));
    }
    for program in running {
        program.await.unwrap_or_else(|_| panic!("seed {seed}, {policy:?}, passthrough: {passthrough}"));
    }
    let expected = truth.lock().expect("no panic before").content;
    for machine in &machines {
        assert_eq!(content(machine, "file").await, [expected; 10], "seed {seed}");
        assert_eq!(machine.status().locks, 0, "seed {seed}");
    }
}

#[test]
fn locks_exclude_each_other_and_go_on() {
    for seed in seeds_from(0, 20) {
        simulate(run(seed));
    }
}
