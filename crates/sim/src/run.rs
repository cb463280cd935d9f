//! A run: random operations on the real system and on the model, compared after each, with faults in between.

use std::time::Duration;

use crate::model::{Model, Snapshot};
use crate::operation::{Operation, Outcome, snapshot};
use crate::random::Random;
use crate::world::{Crash, World};

/// What happens besides the operations: each about once in so many of them; 0: never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The connection is cut while an operation is under way.
    pub cut: u64,
    /// The server is killed and started again, between operations or during one.
    pub kill_server: u64,
    /// The server's power goes.
    pub power_server: u64,
    /// The client is killed during an operation and started again.
    pub kill_client: u64,
    /// The client's power goes during an operation.
    pub power_client: u64,
    /// The client is unmounted and mounted again.
    pub remount: u64,
}

/// Runs `operations` random operations from `seed`. The trace names every operation and answer.
///
/// # Errors
/// The first answer or tree that the model does not allow, with the seed and the end of the trace.
pub async fn run(seed: u64, operations: usize, delay: Duration, faults: Faults) -> Result<Vec<String>, String> {
    let mut run = Run {
        random: Random::new(seed),
        world: World::start_with(seed, delay, seed.is_multiple_of(2)).await?,
        model: Model::default(),
        faults,
        trace: Vec::new(),
    };
    let result = run.go(operations).await;
    result.map_err(|why| {
        let recent = run.trace.iter().rev().take(12).rev().cloned().collect::<Vec<_>>().join("\n  ");
        format!("seed {seed}: {why}\n  {recent}")
    })?;
    Ok(run.trace)
}

struct Run {
    random: Random,
    world: World,
    model: Model,
    faults: Faults,
    trace: Vec<String>,
}

/// A fault that strikes during an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Strike {
    Cut,
    Server(Crash),
    Client(Crash),
}

impl Run {
    async fn go(&mut self, operations: usize) -> Result<(), String> {
        for _ in 0..operations {
            let operation = Operation::random(&mut self.random, &self.model);
            match self.strike() {
                None => self.undisturbed(&operation).await?,
                Some(strike) => self.disturbed(&operation, strike).await?,
            }
            if self.happens(self.faults.remount) {
                self.trace.push("remount".to_owned());
                self.world.stop_client().await;
                self.world.start_client().await?;
                self.compare("after a remount").await?;
            }
        }
        self.compare("at the end").await?;
        self.world.stop_client().await;
        self.world.empty_cache();
        self.world.start_client().await?;
        self.compare("on the server").await
    }

    async fn undisturbed(&mut self, operation: &Operation) -> Result<(), String> {
        let expected = self.model.apply(operation);
        let outcome = operation.perform(self.world.client()).await;
        self.note(operation, &outcome);
        match outcome.agrees(&expected) {
            true => Ok(()),
            false => Err(format!("{operation:?} answered {}, not {}", short(&outcome), short(&expected))),
        }
    }

    /// An operation during which a fault strikes. The client survives faults of link and server, so the operation must
    /// succeed all the same; of its own crash only what was answered must survive.
    async fn disturbed(&mut self, operation: &Operation, strike: Strike) -> Result<(), String> {
        let after = Duration::from_micros(self.random.below(60_000));
        let client = self.world.client().clone();
        let mut work = std::pin::pin!(operation.perform(&client));
        let early = tokio::time::timeout(after, &mut work).await.ok();
        self.trace.push(format!("{strike:?} {}", if early.is_some() { "after" } else { "during" }));
        match strike {
            Strike::Cut => self.world.cut_link(),
            Strike::Server(crash) => {
                self.world.crash_server(crash);
                self.world.start_server()?;
            }
            Strike::Client(crash) => return self.client_crash(operation, early, crash).await,
        }
        let outcome = match early {
            Some(outcome) => outcome,
            None => work.await,
        };
        let expected = self.model.apply(operation);
        self.note(operation, &outcome);
        match outcome.agrees(&expected) {
            true => self.compare("after a fault").await,
            false => Err(format!("{operation:?} answered {}, not {}", short(&outcome), short(&expected))),
        }
    }

    async fn client_crash(
        &mut self,
        operation: &Operation,
        early: Option<Outcome>,
        crash: Crash,
    ) -> Result<(), String> {
        let before = self.model.snapshot();
        let mut model = self.model.clone();
        model.apply(operation);
        self.world.crash_client(crash);
        self.world.start_client().await?;
        self.world.client().sync().await.map_err(|error| format!("sync after a crash: {error}"))?;
        let seen = self.seen("after a client crash").await?;
        match early {
            Some(outcome) => {
                self.note(operation, &outcome);
                self.model = model;
                expect(&seen, &self.model.snapshot(), "after a client crash")
            }
            None if seen == model.snapshot() => {
                self.model = model;
                Ok(())
            }
            None if seen == before => Ok(()),
            None => self.adopt_partial(operation, &seen),
        }
    }

    /// A write of a program that died with its machine may be half done, like on a local disk: a new file may be empty,
    /// an overwritten one may be cut, half of an append may be there. Nothing else may differ.
    fn adopt_partial(&mut self, operation: &Operation, seen: &Snapshot) -> Result<(), String> {
        let halves = match operation {
            Operation::Write { path, content } => {
                let empty = Operation::Write { path: path.clone(), content: Vec::new() };
                vec![empty, Operation::Write { path: path.clone(), content: content.clone() }]
            }
            Operation::Append { path, content } => {
                let half = content[..content.len() / 2].to_vec();
                vec![Operation::Append { path: path.clone(), content: half }]
            }
            Operation::Overwrite { path, at, contents: [first, _], pause } => {
                let contents = [first.clone(), Vec::new()];
                vec![Operation::Overwrite { path: path.clone(), at: *at, contents, pause: *pause }]
            }
            _ => Vec::new(),
        };
        for half in halves {
            let mut model = self.model.clone();
            model.apply(&half);
            if *seen == model.snapshot() {
                self.model = model;
                return Ok(());
            }
        }
        expect(seen, &self.model.snapshot(), "after a client crash, neither before nor after the operation")
    }

    async fn compare(&mut self, when: &str) -> Result<(), String> {
        let seen = self.seen(when).await?;
        expect(&seen, &self.model.snapshot(), when)
    }

    async fn seen(&self, when: &str) -> Result<Snapshot, String> {
        snapshot(self.world.client()).await.map_err(|error| format!("the tree cannot be read {when}: {error}"))
    }

    fn strike(&mut self) -> Option<Strike> {
        let faults = self.faults;
        let strikes = [
            (faults.cut, Strike::Cut),
            (faults.kill_server, Strike::Server(Crash::Kill)),
            (faults.power_server, Strike::Server(Crash::Power)),
            (faults.kill_client, Strike::Client(Crash::Kill)),
            (faults.power_client, Strike::Client(Crash::Power)),
        ];
        strikes.into_iter().find(|(rate, _)| self.happens(*rate)).map(|(_, strike)| strike)
    }

    fn happens(&mut self, once_in: u64) -> bool {
        once_in != 0 && self.random.once_in(once_in)
    }

    fn note(&mut self, operation: &Operation, outcome: &Outcome) {
        let mut text = format!("{operation:?}");
        text.truncate(120);
        self.trace.push(format!("{text} -> {}", short(outcome)));
    }
}

fn short(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done(Some(content)) => format!("Done({} bytes)", content.len()),
        other => format!("{other:?}"),
    }
}

fn expect(seen: &Snapshot, wanted: &Snapshot, when: &str) -> Result<(), String> {
    let differ = |path: &&String| seen.get(*path) != wanted.get(*path);
    match seen.keys().chain(wanted.keys()).find(differ) {
        None => Ok(()),
        Some(path) => Err(format!("{when}: {path} is {:?}, should be {:?}", seen.get(path), wanted.get(path))),
    }
}
