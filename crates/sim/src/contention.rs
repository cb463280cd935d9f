//! A run of several clients whose steps overlap, with faults in between, judged by [`History`] and [`Contests`].
//!
//! [`History`]: crate::History
//! [`Contests`]: crate::Contests

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mafs_client::vfs::Error;
use mafs_proto::Random;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use crate::faults::{Faults, Outage, Strike, delays};
use crate::machine::Machine;
use crate::operation::snapshot;
use crate::step::{Actor, NAMES, Record, Step};
use crate::world::{LEASE, World};

/// How long after the end of a fault a step may still fail: breaks wait for the lease of whoever was away.
const CALM_AFTER: Duration = LEASE.saturating_mul(2);
/// How long a step may take while nothing is broken, besides [`STEP_DELAYS_MAX`]: steps wait for each other.
const STEP_MAX: Duration = Duration::from_secs(1);
/// The longest step has some 8 calls, and those that change something wait for all other clients to hear of it.
const STEP_DELAYS_MAX: u32 = 8 * 4;
const THINKING_MS_MAX: u64 = 40;

/// Runs `steps` random steps of `clients` clients at once, from `seed`, over links of at most this one-way delay. The
/// trace says what was done when.
///
/// # Errors
/// Behavior that no order of the updates explains, with the seed and the trace.
pub async fn run_together(
    seed: u64,
    clients: usize,
    steps: u64,
    delay: Duration,
    faults: Faults,
) -> Result<Vec<String>, String> {
    let mut random = Random::new(seed);
    let delays = delays(&mut random, clients, delay);
    let world = World::start_with_delays(seed, &delays, seed.is_multiple_of(2)).await?;
    let now = Instant::now();
    let mut crowd = Crowd {
        random,
        step_max: STEP_MAX + delay * STEP_DELAYS_MAX,
        world,
        faults,
        record: Arc::default(),
        tasks: JoinSet::new(),
        running: vec![None; clients],
        contests: vec![Vec::new(); clients],
        strikes: Vec::new(),
        restorations: vec![None; clients],
        calm_from: now,
        start: now,
        trace: Vec::new(),
    };
    match crowd.go(steps).await {
        Ok(()) => Ok(crowd.trace),
        Err(why) => Err(format!("seed {seed}: {why}\n  {}", crowd.trace.join("\n  "))),
    }
}

struct Crowd {
    random: Random,
    step_max: Duration,
    world: World,
    faults: Faults,
    record: Arc<Mutex<Record>>,
    tasks: JoinSet<Done>,
    /// The step that each client is doing.
    running: Vec<Option<AbortHandle>>,
    /// Contests that each client has yet to take part in.
    contests: Vec<Vec<Step>>,
    strikes: Vec<(Instant, Strike)>,
    /// When the link of a client that is cut off works again.
    restorations: Vec<Option<Instant>>,
    calm_from: Instant,
    start: Instant,
    trace: Vec<String>,
}

/// A step that has ended.
struct Done {
    client: usize,
    number: u64,
    began: Instant,
    result: Result<(), Error>,
}

impl Crowd {
    async fn go(&mut self, steps: u64) -> Result<(), String> {
        let mut number = 0;
        while number < steps || self.running.iter().any(Option::is_some) {
            while number < steps
                && let Some(client) = self.running.iter().position(Option::is_none)
            {
                number += 1;
                self.begin(client, number);
            }
            let next_event = self.next_event();
            tokio::select! {
                biased;
                Some(done) = self.tasks.join_next() => self.finish_with(done).await?,
                () = sleep_until(next_event) => self.strike_and_restore().await?,
            }
        }
        self.settle().await?;
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.history.check().and_then(|()| record.contests.check())
    }

    fn begin(&mut self, client: usize, number: u64) {
        let step = self.contests[client].pop().unwrap_or_else(|| self.random_step(number, client));
        let thinking = Duration::from_millis(self.random.below(THINKING_MS_MAX));
        self.note(format!("{number}: client {client} begins {step:?}"));
        let vfs = self.world.machines()[client].client().clone();
        let actor = Actor { client, vfs, record: Arc::clone(&self.record) };
        let task = self.tasks.spawn(async move {
            let began = Instant::now();
            let result = actor.perform(&step, thinking).await;
            Done { client, number, began, result }
        });
        self.running[client] = Some(task);
        if let Some(strike) = self.faults.strike(&mut self.random, self.running.len()) {
            self.strikes.push((Instant::now() + Duration::from_micros(self.random.below(60_000)), strike));
        }
    }

    fn random_step(&mut self, number: u64, client: usize) -> Step {
        let name = NAMES[usize::try_from(self.random.below(NAMES.len() as u64)).unwrap_or(0)].to_owned();
        match self.random.below(16) {
            0 | 1 => Step::Make { name, token: number },
            2 | 3 => Step::Write { name, token: number },
            4 => Step::Replace { name, token: number },
            5..=8 => Step::Read { name },
            9 | 10 => Step::Stat { name },
            11 | 12 => Step::List,
            13 => Step::Unlink { name },
            14 => Step::SetMode { name, mode: u32::try_from(self.random.below(512)).unwrap_or(0) },
            _ => {
                let contest = Step::Contest { name: format!("contest-{number}"), kind: self.random.below(3) };
                let others = self.contests.iter_mut().enumerate().filter(|(other, _)| *other != client);
                others.for_each(|(_, contests)| contests.push(contest.clone()));
                contest
            }
        }
    }

    /// Takes in all steps that end now, in the order of the clients: otherwise runs of one seed would differ.
    async fn finish_with(&mut self, first: Result<Done, JoinError>) -> Result<(), String> {
        // Virtual time goes on when nothing more can happen at this instant.
        sleep(Duration::from_millis(1)).await;
        let others = std::iter::from_fn(|| self.tasks.try_join_next());
        let mut ended = Vec::new();
        for done in std::iter::once(first).chain(others) {
            match done {
                Ok(done) => ended.push(done),
                Err(error) if error.is_panic() => return Err(format!("a step panicked: {error}")),
                // The step belonged to a client that has died.
                Err(_) => {}
            }
        }
        ended.sort_by_key(|done| done.client);
        ended.iter().try_for_each(|done| self.finish(done))
    }

    fn finish(&mut self, done: &Done) -> Result<(), String> {
        let Done { client, number, began, result } = done;
        self.running[*client] = None;
        let outcome = match result {
            Ok(()) => "done".to_owned(),
            Err(error) => error.to_string(),
        };
        self.note(format!("{number}: client {client}: {outcome}"));
        if *began < self.calm_from {
            return Ok(());
        }
        match result {
            Ok(()) | Err(Error::Refused(_)) if began.elapsed() <= self.step_max => Ok(()),
            Ok(()) | Err(Error::Refused(_)) => Err(format!("step {number} took {:?}", began.elapsed())),
            Err(error) => Err(format!("step {number} failed, though nothing was broken: {error}")),
        }
    }

    fn next_event(&self) -> Instant {
        let strikes = self.strikes.iter().map(|(at, _)| *at);
        let restorations = self.restorations.iter().copied().flatten();
        strikes.chain(restorations).min().unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
    }

    async fn strike_and_restore(&mut self) -> Result<(), String> {
        let now = Instant::now();
        for client in 0..self.restorations.len() {
            if self.restorations[client].is_some_and(|at| at <= now) {
                self.restore(client);
            }
        }
        while let Some(at) = self.strikes.iter().position(|(at, _)| *at <= now) {
            let (_, strike) = self.strikes.remove(at);
            self.strike(strike).await?;
        }
        Ok(())
    }

    async fn strike(&mut self, strike: Strike) -> Result<(), String> {
        self.note(format!("{strike:?}"));
        match strike {
            Strike::Cut(client) => self.world.machines()[client].cut_link(),
            Strike::Server(crash) => {
                self.world.crash_server(crash);
                sleep(Duration::from_millis(self.random.below(3_000))).await;
                self.world.start_server()?;
            }
            Strike::Client(client, crash) => {
                if let Some(task) = self.running[client].take() {
                    task.abort();
                }
                self.restore(client);
                if !self.world.machines()[client].can_attach() {
                    self.world.machines()[client].break_silence();
                }
                self.world.crash_machine(client, crash);
                self.world.machines_mut()[client].start().await?;
            }
            Strike::Isolate(client) => {
                self.world.machines()[client].isolate();
                let away = self.random.below(2 * LEASE.as_secs());
                self.restorations[client] = Some(Instant::now() + Duration::from_secs(away));
            }
            Strike::Silent(client, Outage { silence, time, lost }) => {
                if self.restorations[client].is_none() {
                    self.world.machines()[client].fall_silent_for(silence, time, lost);
                    self.calm_from = self.calm_from.max(Instant::now() + time + CALM_AFTER);
                }
            }
        }
        self.disturb();
        Ok(())
    }

    fn restore(&mut self, client: usize) {
        if self.restorations[client].take().is_some() {
            self.note(format!("client {client} is reachable again"));
            self.world.machines()[client].restore_link();
            self.disturb();
        }
    }

    /// Puts off the calm: nothing is calm before everybody is reachable again.
    fn disturb(&mut self) {
        let last = self.restorations.iter().copied().flatten().max();
        let calm_from = last.unwrap_or_else(Instant::now).max(Instant::now()) + CALM_AFTER;
        self.calm_from = self.calm_from.max(calm_from);
    }

    /// Repairs everything, and compares what the clients have in the end.
    async fn settle(&mut self) -> Result<(), String> {
        (0..self.restorations.len()).for_each(|client| self.restore(client));
        self.world.machines().iter().for_each(Machine::break_silence);
        sleep(CALM_AFTER).await;
        for (number, machine) in self.world.machines().iter().enumerate() {
            match machine.client().sync().await {
                // A record is refused if it was based on a version that another client has replaced meanwhile.
                Ok(()) | Err(Error::Refused(_)) => {}
                Err(error) => return Err(format!("client {number} cannot send the rest: {error}")),
            }
        }
        self.world.add_client().await?;
        let mut trees = Vec::new();
        // A client that has lost a race keeps its own version, and shows it.
        let lost_none = |(_, machine): &(usize, &Machine)| machine.client().status().refused.is_empty();
        for (number, machine) in self.world.machines().iter().enumerate().filter(lost_none) {
            let tree = snapshot(machine.client()).await;
            let tree = tree.map_err(|error| format!("client {number} cannot read the tree in the end: {error}"))?;
            trees.push((number, tree));
        }
        match trees.iter().find(|(_, tree)| *tree != trees[0].1) {
            None => Ok(()),
            Some(other) => Err(format!("in the end clients differ: {:?}, {other:?}", trees[0])),
        }
    }

    fn note(&mut self, what: String) {
        self.trace.push(format!("{} ms: {what}", self.start.elapsed().as_millis()));
    }
}
