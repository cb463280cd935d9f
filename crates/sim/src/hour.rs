//! A long run of light use while the links change: people at a few machines think, read, write and list, and their
//! machines go from one network to the next. Judged by [`History`](crate::History), and by three bounds: every step
//! ends, no queue grows, and nothing of what has ended is left.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::vfs::Error;
use mafs_proto::Random;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::machine::Machine;
use crate::network::Path;
use crate::step::{Actor, NAMES, Record, Step};
use crate::world::{LEASE, World};

/// Observations of [`run_for`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hour {
    /// Lines that tell what was done when, and what was seen of the queues.
    pub trace: Vec<String>,
    /// The number of steps that people did.
    pub steps: usize,
    /// How many of these steps were done or refused; the others failed because the server could not be reached.
    pub answered: usize,
}

const CLIENTS: usize = 2;
/// People at each machine.
const PEOPLE: usize = 2;
/// Pause between two steps of a person.
const THINKING: Duration = Duration::from_secs(30);
/// The steps with numbers beyond this write 900 KB or more: several times what of each may wait in an engine.
const LARGE: u64 = 180_000;
const LARGE_ONCE_IN: u64 = 8;
/// How long a machine stays in one network.
const STAY: Duration = Duration::from_secs(10 * 60);
/// How long it is in none, once in so many moves.
const AWAY: Duration = Duration::from_secs(3 * 60);
const AWAY_ONCE_IN: u64 = 3;
/// How long the connection of a network that was left may stay silent.
const SILENCE: Duration = Duration::from_secs(2 * 60);
const CHECKED_EVERY: Duration = Duration::from_secs(1);

/// A step has up to 8 calls, each of which has 21 s; the breaks of one may wait for the lease of whoever is away, and
/// the slowest network carries the large contents of two people in 80 s.
const STEP_MAX: Duration = Duration::from_secs(8 * 21 + 62 + 80);
/// Bytes that may wait in the engine of a client: of each content that is sent, two of the largest chunks and one
/// piece of what is read from the disk at a time.
const QUEUED_BYTES_MAX: u64 = PEOPLE as u64 * (2 * (64 << 10) + (256 << 10));
/// All tasks in the world: some ten of each client and its connection, and what the last connection has left.
const TASKS_MAX: usize = 64;
/// The network of all machines at the end, for [`CALM`].
const LAST: &str = "lan";
const CALM: Duration = LEASE.saturating_mul(2);

/// Lets people use two machines for `time`, from `seed`, over links of arpc's named profiles that change.
///
/// # Errors
/// Behavior that no order of the updates explains, a step that does not end, a queue that grows, something that is
/// left: with the seed and the end of the trace.
pub async fn run_for(seed: u64, time: Duration) -> Result<Hour, String> {
    let mut random = Random::new(seed);
    let paths = (0..CLIENTS).map(|_| network(&mut random).1).collect();
    // Attaching is not what is tested: over some links it takes more than the world waits.
    let mut world = World::start_over(seed, vec![Path::Delay(Duration::ZERO); CLIENTS], false).await?;
    move_all(&world, paths);
    let log = Log::start();
    let run = Run { random, log: log.clone(), record: Arc::default(), end: Instant::now() + time };
    let result = run.go(&mut world).await;
    let hour = std::mem::take(&mut *log.hour());
    match result {
        Ok(()) => Ok(hour),
        Err(why) => {
            let recent = hour.trace.iter().rev().take(30).rev().cloned().collect::<Vec<_>>().join("\n  ");
            Err(format!("seed {seed}: {why}\n  {recent}"))
        }
    }
}

fn move_all(world: &World, paths: Vec<Path>) {
    world.machines().iter().zip(paths).for_each(|(machine, path)| machine.move_to(path, None));
}

/// Chooses a network that works, now and then at least.
fn network(random: &mut Random) -> (&'static str, Path) {
    let working: Vec<&str> = Profile::NAMES.into_iter().filter(|name| *name != "down").collect();
    let name = random.one_of(&working);
    (name, named(name, random.number()))
}

#[allow(clippy::expect_used, reason = "the names are those of the table")]
fn named(name: &str, seed: u64) -> Path {
    Path::Link(Box::new(Profile::named(name, seed).expect("a name of the table")))
}

/// Draws a time from half of this one to twice as long.
fn about(random: &mut Random, time: Duration) -> Duration {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(ms / 2 + random.below(ms * 3 / 2))
}

struct Run {
    random: Random,
    log: Log,
    record: Arc<Mutex<Record>>,
    end: Instant,
}

impl Run {
    async fn go(mut self, world: &mut World) -> Result<(), String> {
        let mut people = JoinSet::new();
        for number in 0..CLIENTS * PEOPLE {
            let client = number % CLIENTS;
            let vfs = world.machines()[client].client().clone();
            let actor = Actor { client, vfs, record: Arc::clone(&self.record) };
            let random = Random::new(self.random.number());
            people.spawn(Person { number, actor, random, log: self.log.clone(), end: self.end }.live());
        }
        let mut moves: Vec<Move> = (0..CLIENTS).map(|client| Move::first(client, &mut self.random)).collect();
        while Instant::now() < self.end {
            sleep(CHECKED_EVERY).await;
            moves.iter_mut().filter(|next| next.at <= Instant::now()).for_each(|next| {
                next.make(&world.machines()[next.client], &mut self.random, &self.log);
            });
            world.machines().iter().try_for_each(|machine| self.check(machine))?;
            while let Some(ended) = people.try_join_next() {
                ended.map_err(|error| format!("somebody panicked: {error}"))??;
            }
        }
        while let Some(ended) = people.join_next().await {
            ended.map_err(|error| format!("somebody panicked: {error}"))??;
        }
        self.settle(world).await
    }

    /// Checks that no queue of a client grows, nor the number of tasks in the world.
    fn check(&self, machine: &Machine) -> Result<(), String> {
        let report = machine.client().status();
        let (queued, tasks) = (report.queued_bytes.iter().sum::<u64>(), Handle::current().metrics().num_alive_tasks());
        if queued > 0 {
            self.log.note(&format!("{queued} bytes wait, {tasks} tasks"));
        }
        if queued > QUEUED_BYTES_MAX || tasks > TASKS_MAX {
            return Err(format!("{queued} bytes wait in an engine, and there are {tasks} tasks"));
        }
        if report.fetching_files > PEOPLE as u64 || report.unsent_files > NAMES.len() as u64 {
            return Err(format!("{} files are being fetched, {} sent", report.fetching_files, report.unsent_files));
        }
        Ok(())
    }

    /// Checks that on good links everything is sent, and nothing is left to do.
    async fn settle(&mut self, world: &mut World) -> Result<(), String> {
        world.machines().iter().for_each(Machine::restore_link);
        move_all(world, vec![named(LAST, 0); CLIENTS]);
        sleep(CALM).await;
        for machine in world.machines() {
            match machine.client().sync().await {
                Ok(()) | Err(Error::Refused(_)) => {}
                Err(error) => return Err(format!("a client cannot send the rest: {error}")),
            }
            let report = machine.client().status();
            let left = (report.queued_bytes, report.fetching_files);
            if !report.connected || left != ([0; 5], 0) {
                return Err(format!("in the end connected {}: left are {left:?}", report.connected));
            }
        }
        self.record.lock().unwrap_or_else(PoisonError::into_inner).history.check()
    }
}

/// The next change of a machine's network.
struct Move {
    client: usize,
    at: Instant,
    /// Whether the machine is out of reach until then.
    away: bool,
}

impl Move {
    fn first(client: usize, random: &mut Random) -> Self {
        Self { client, at: Instant::now() + about(random, STAY), away: false }
    }

    fn make(&mut self, machine: &Machine, random: &mut Random, log: &Log) {
        let client = self.client;
        self.away = !self.away && random.once_in(AWAY_ONCE_IN);
        if self.away {
            log.note(&format!("client {client} is away"));
            machine.isolate();
        } else {
            let (name, path) = network(random);
            let silence = random.coin().then(|| about(random, SILENCE));
            log.note(&format!("client {client} comes to {name}; silent {silence:?}"));
            machine.restore_link();
            machine.move_to(path, silence);
        }
        self.at = Instant::now() + about(random, if self.away { AWAY } else { STAY });
    }
}

/// A person at a machine.
struct Person {
    number: usize,
    actor: Actor,
    random: Random,
    log: Log,
    end: Instant,
}

impl Person {
    async fn live(mut self) -> Result<(), String> {
        for count in 0.. {
            let next = Instant::now() + about(&mut self.random, THINKING);
            if next >= self.end {
                return Ok(());
            }
            sleep_until(next).await;
            let large = if self.random.once_in(LARGE_ONCE_IN) { LARGE } else { 0 };
            let step = self.step((count * CLIENTS * PEOPLE + self.number + 1) as u64 + large);
            let began = Instant::now();
            let Ok(result) = timeout(STEP_MAX, self.actor.perform(&step, Duration::ZERO)).await else {
                return Err(format!("{step:?} of client {} does not end", self.actor.client));
            };
            self.log.step(&format!("{}: {step:?} took {:?}", self.number, began.elapsed()), &result);
        }
        Ok(())
    }

    fn step(&mut self, token: u64) -> Step {
        let name = self.random.one_of(&NAMES).to_owned();
        match self.random.below(16) {
            0 | 1 => Step::Make { name, token },
            2 | 3 => Step::Write { name, token },
            4 => Step::Replace { name, token },
            5..=9 => Step::Read { name },
            10..=12 => Step::Stat { name },
            13 | 14 => Step::List,
            _ => Step::Unlink { name },
        }
    }
}

/// Record of what happened so far. Clones are the same.
#[derive(Clone)]
struct Log {
    start: Instant,
    hour: Arc<Mutex<Hour>>,
}

impl Log {
    fn start() -> Self {
        Self { start: Instant::now(), hour: Arc::default() }
    }

    fn note(&self, what: &str) {
        let at = self.start.elapsed().as_millis();
        self.hour().trace.push(format!("{at} ms: {what}"));
    }

    fn step(&self, what: &str, result: &Result<(), Error>) {
        let outcome = match result {
            Ok(()) => "done".to_owned(),
            Err(error) => error.to_string(),
        };
        self.note(&format!("{what}: {outcome}"));
        let mut hour = self.hour();
        hour.steps += 1;
        hour.answered += usize::from(matches!(result, Ok(()) | Err(Error::Refused(_))));
    }

    fn hour(&self) -> MutexGuard<'_, Hour> {
        self.hour.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
