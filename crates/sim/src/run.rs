//! A run: random operations, one at a time, on the real system and on the model, compared after each, with faults in
//! between. With several clients each operation is some client's, and the trees of all are compared.

use std::time::Duration;

use mafs_client::vfs::Writeback;
use mafs_proto::Random;
use tokio::time::Instant;

use crate::faults::{Faults, Outage, Strike, delays, happens, some_client};
use crate::model::{Model, Snapshot};
use crate::network::Connecting;
use crate::operation::{Operation, Outcome};
use crate::world::{Crash, LEASE, World};

/// Runs `operations` random operations of one client from `seed`, over a link of at most this one-way delay. The trace
/// names every operation and answer.
///
/// # Errors
/// The first answer or tree that the model does not allow, with the seed and the end of the trace.
pub async fn run(seed: u64, operations: usize, delay: Duration, faults: Faults) -> Result<Vec<String>, String> {
    run_in_turns(seed, 1, operations, delay, faults).await
}

/// Runs operations like [`run_in_turns`], with a kernel between programs and each client, which sends its changes in
/// this way.
///
/// # Errors
/// The first answer or tree that the model does not allow, with the seed and the end of the trace.
pub async fn run_above_kernel(
    seed: u64,
    clients: usize,
    operations: usize,
    delay: Duration,
    faults: Faults,
    writeback: Writeback,
) -> Result<Vec<String>, String> {
    let setup = Setup { clients, writeback, kernel: true };
    run_all(seed, setup, operations, delay, faults).await
}

/// Runs operations like [`run`], with a client that sends its changes in the background, in this way.
///
/// # Errors
/// The first answer or tree that the model does not allow, with the seed and the end of the trace.
pub async fn run_in_background(
    seed: u64,
    operations: usize,
    delay: Duration,
    faults: Faults,
    writeback: Writeback,
) -> Result<Vec<String>, String> {
    run_all(seed, Setup { clients: 1, writeback, kernel: false }, operations, delay, faults).await
}

/// Runs operations like [`run`], of `clients` clients, one at a time. All others must show what one has been answered.
/// A client that is cut off may fail instead, and must once its lease has lapsed.
///
/// # Errors
/// The first answer or tree that the model does not allow, with the seed and the end of the trace.
pub async fn run_in_turns(
    seed: u64,
    clients: usize,
    operations: usize,
    delay: Duration,
    faults: Faults,
) -> Result<Vec<String>, String> {
    run_all(seed, Setup { clients, writeback: Writeback::Sync, kernel: false }, operations, delay, faults).await
}

/// The clients of a run.
#[derive(Clone, Copy)]
struct Setup {
    clients: usize,
    writeback: Writeback,
    /// Whether their programs call a kernel.
    kernel: bool,
}

async fn run_all(
    seed: u64,
    setup: Setup,
    operations: usize,
    delay: Duration,
    faults: Faults,
) -> Result<Vec<String>, String> {
    let Setup { clients, writeback, kernel } = setup;
    let mut random = Random::new(seed);
    let delays = delays(&mut random, clients, delay);
    let mut world = World::start_with_delays(seed, &delays, seed.is_multiple_of(2)).await?;
    for machine in world.machines_mut() {
        if kernel || writeback != Writeback::Sync {
            machine.stop().await;
            machine.set_writeback(writeback);
            if kernel {
                machine.set_kernel(random.number());
            }
            machine.start().await?;
        }
    }
    let mut run = Run {
        random,
        world,
        writeback,
        model: Model::default(),
        faults,
        cut_off: None,
        unanswered: Vec::new(),
        uncertain: Vec::new(),
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
    writeback: Writeback,
    model: Model,
    faults: Faults,
    /// The client that is cut off.
    cut_off: Option<CutOff>,
    /// Trees that this client may show as well, because operations since then have had no answer.
    unanswered: Vec<Model>,
    /// Operations without an answer: nobody knows what this client has of them.
    uncertain: Vec<Operation>,
    trace: Vec<String>,
}

/// A client that is cut off, or whose link is silent.
#[derive(Clone, Copy)]
struct CutOff {
    client: usize,
    since: Instant,
    /// When a silence ends by itself.
    until: Option<Instant>,
    /// Whether a new connection may work.
    may_connect: bool,
}

/// Timers of one instant go off in any order within this time.
const TIMERS: Duration = Duration::from_millis(2);

/// A link that is silent for no longer than this lets no operation fail: within 6 s of silence a connection is given
/// up, and an operation has 21 s.
const SILENCE_SURVIVED: Duration = Duration::from_secs(8);

/// A client that is reachable hears within this time of an update that was acknowledged to nobody yet.
const CATCH_UP: Duration = Duration::from_secs(10);

/// A logged record is durable on the client's disk after this time: consistency.md says 1 s.
const DURABLE_AFTER: Duration = Duration::from_millis(1500);

/// How often a client that was refused an answer is asked to send what it has: longer than a lease in all.
const SETTLE_TRIES: u32 = 10;

impl Run {
    async fn go(&mut self, operations: usize) -> Result<(), String> {
        let clients = self.world.machines().len();
        for _ in 0..operations {
            self.let_silence_end().await;
            let operation = Operation::random(&mut self.random, &self.model);
            let actor = self.connected_client();
            match self.faults.strike(&mut self.random, clients) {
                None => self.undisturbed(actor, &operation).await?,
                Some(strike) => self.disturbed(actor, &operation, strike).await?,
            }
            if clients > 1 {
                self.compare(&format!("after {operation:.80?} by client {actor}")).await?;
            }
            self.shorten_outage().await;
            if happens(&mut self.random, self.faults.remount) {
                self.remount().await?;
            }
        }
        self.restore_link().await;
        self.compare("at the end").await?;
        for machine in self.world.machines_mut() {
            machine.stop().await;
        }
        self.world.empty_cache();
        self.world.start_client().await?;
        let seen = self.seen(0, "on the server").await?;
        expect(&seen, &self.model.snapshot(), "on the server")
    }

    /// Chooses a client that is not cut off.
    fn connected_client(&mut self) -> usize {
        let clients = self.world.machines().len();
        let client = some_client(&mut self.random, clients);
        match self.cut_off {
            Some(cut_off) if cut_off.client == client => (client + 1) % clients,
            Some(_) | None => client,
        }
    }

    fn is_cut_off(&self, client: usize) -> bool {
        self.cut_off.is_some_and(|cut_off| cut_off.client == client)
    }

    async fn restore_link(&mut self) {
        if let Some(CutOff { client, .. }) = self.cut_off {
            self.trace.push(format!("client {client} is reachable again"));
            self.world.machines()[client].restore_link();
            self.end_outage().await;
        }
    }

    async fn end_outage(&mut self) {
        self.cut_off = None;
        self.uncertain.clear();
        if !std::mem::take(&mut self.unanswered).is_empty() {
            tokio::time::sleep(CATCH_UP).await;
        }
    }

    async fn let_silence_end(&mut self) {
        let until = self.cut_off.and_then(|cut_off| cut_off.until);
        if until.is_some_and(|until| until <= Instant::now()) {
            self.restore_link().await;
        }
    }

    /// Lets time pass in which somebody is cut off, or ends that.
    async fn shorten_outage(&mut self) {
        match self.cut_off {
            Some(cut_off) if self.random.once_in(3) => match cut_off.until {
                None => self.restore_link().await,
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now()).as_millis();
                    let some = self.random.below(u64::try_from(left).unwrap_or(0) + 1);
                    tokio::time::sleep(Duration::from_millis(some)).await;
                }
            },
            Some(_) | None => {}
        }
    }

    async fn outlast_silence(&mut self) {
        if let Some(until) = self.cut_off.and_then(|cut_off| cut_off.until) {
            tokio::time::sleep_until(until).await;
            self.restore_link().await;
        }
    }

    async fn remount(&mut self) -> Result<(), String> {
        let client = self.connected_client();
        self.trace.push(format!("remount of client {client}"));
        self.world.machines_mut()[client].stop().await;
        self.world.machines_mut()[client].start().await?;
        self.compare("after a remount").await
    }

    async fn undisturbed(&mut self, actor: usize, operation: &Operation) -> Result<(), String> {
        let outcome = self.world.machines()[actor].programs().perform(operation).await;
        self.judge(actor, operation, outcome).await
    }

    /// Does an operation during which a fault strikes. The client survives faults of link and server, so the operation
    /// must succeed all the same; of its own crash only what was answered must survive.
    async fn disturbed(&mut self, actor: usize, operation: &Operation, strike: Strike) -> Result<(), String> {
        let after = Duration::from_micros(self.random.below(60_000));
        let programs = self.world.machines()[actor].programs();
        if self.writeback != Writeback::Sync && matches!(strike, Strike::Client(_, Crash::Power)) {
            tokio::time::sleep(DURABLE_AFTER).await;
        }
        let mut work = std::pin::pin!(programs.perform(operation));
        let early = tokio::time::timeout(after, &mut work).await.ok();
        self.trace.push(format!("{strike:?} {}", if early.is_some() { "after" } else { "during" }));
        match strike {
            Strike::Cut(victim) => self.world.machines()[victim].cut_link(),
            Strike::Server(crash) => {
                self.world.crash_server(crash);
                self.world.start_server()?;
            }
            Strike::Isolate(victim) => self.isolate(if victim == actor { victim + 1 } else { victim }),
            Strike::Silent(victim, outage) => self.fall_silent(victim, outage),
            Strike::Client(victim, crash) => {
                if self.is_cut_off(victim) && self.world.machines()[victim].can_attach() {
                    // The victim's next life reaches the server. Messages that this life has sent may arrive later.
                    self.end_outage().await;
                } else if self.is_cut_off(victim) {
                    self.restore_link().await;
                }
                self.world.crash_machine(victim, crash);
                self.world.machines_mut()[victim].start().await?;
                if victim == actor {
                    // An operation that was answered just before a loss of power may be lost with it.
                    let may_be_lost = self.writeback != Writeback::Sync && crash == Crash::Power;
                    return self.crashed(actor, operation, early.filter(|_| !may_be_lost)).await;
                }
            }
        }
        let outcome = match early {
            Some(outcome) => outcome,
            None => work.await,
        };
        self.judge(actor, operation, outcome).await?;
        if self.world.machines().len() == 1 {
            self.outlast_silence().await;
        }
        self.compare("after a fault").await
    }

    fn fall_silent(&mut self, client: usize, Outage { silence, time, lost }: Outage) {
        if self.cut_off.is_none() {
            self.world.machines()[client].fall_silent_for(silence, time, lost);
            let (since, may_connect) = (Instant::now(), silence.connecting == Connecting::Works);
            // By then the link has ended it, in its own way.
            let until = Some(since + time + TIMERS);
            self.cut_off = Some(CutOff { client, since, until, may_connect });
        }
    }

    fn isolate(&mut self, client: usize) {
        let client = client % self.world.machines().len();
        if self.cut_off.is_none() && self.world.machines().len() > 1 {
            self.world.machines()[client].isolate();
            self.cut_off = Some(CutOff { client, since: Instant::now(), until: None, may_connect: false });
        }
    }

    /// Judges an answer, which must be the model's. There may be none while a client that is cut off holds up a change
    /// that it was promised to be told of; the operation may have been done then or not.
    async fn judge(&mut self, actor: usize, operation: &Operation, outcome: Outcome) -> Result<(), String> {
        self.note(actor, operation, &outcome);
        if self.is_excused(actor) && matches!(outcome, Outcome::Failed(_)) {
            if self.is_cut_off(actor) {
                self.outlast_silence().await;
                tokio::time::sleep(CATCH_UP).await;
                return self.adopt(actor, operation).await;
            }
            self.leave_unanswered(operation);
            return self.adopt(actor, operation).await;
        }
        let expected = self.apply(operation);
        match outcome.agrees(&expected) {
            true => Ok(()),
            false => Err(format!("{operation:?} answered {}, not {}", short(&outcome), short(&expected))),
        }
    }

    /// Whether an operation of a client may fail: when somebody else is cut off, or its own link has been silent for
    /// too long.
    fn is_excused(&self, actor: usize) -> bool {
        self.cut_off.is_some_and(|CutOff { client, since, until, .. }| {
            client != actor || until.is_none_or(|until| until.duration_since(since) > SILENCE_SURVIVED)
        })
    }

    async fn crashed(&mut self, actor: usize, operation: &Operation, early: Option<Outcome>) -> Result<(), String> {
        let Some(outcome) = early else {
            self.trace.push(format!("client {actor}: {} -> no answer", shortened(operation)));
            if self.cut_off.is_some() {
                self.leave_unanswered(operation);
            }
            self.adopt(actor, operation).await?;
            // The operation was not acknowledged, so others may be about to hear of it.
            tokio::time::sleep(CATCH_UP).await;
            return Ok(());
        };
        self.note(actor, operation, &outcome);
        self.apply(operation);
        self.send_all(actor).await?;
        let seen = self.seen(actor, "after a client crash").await?;
        expect(&seen, &self.model.snapshot(), "after a client crash")
    }

    /// Applies an operation that has been answered, to all models.
    fn apply(&mut self, operation: &Operation) -> Outcome {
        self.unanswered.iter_mut().for_each(|model| drop(model.apply(operation)));
        self.model.apply(operation)
    }

    /// Notes an operation that has not been answered: a client that is cut off need not show it.
    fn leave_unanswered(&mut self, operation: &Operation) {
        self.unanswered.push(self.model.clone());
        self.uncertain.push(operation.clone());
    }

    /// Takes in what became of an operation without an answer.
    async fn adopt(&mut self, actor: usize, operation: &Operation) -> Result<(), String> {
        self.send_all(actor).await?;
        let seen = self.seen(actor, "after an operation without an answer").await?;
        let mut model = self.model.clone();
        model.apply(operation);
        if seen == model.snapshot() {
            self.model = model;
            return Ok(());
        }
        if seen == self.model.snapshot() { Ok(()) } else { self.adopt_partial(operation, &seen) }
    }

    /// Lets a client send what the server lacks.
    async fn send_all(&self, client: usize) -> Result<(), String> {
        let mut last = String::new();
        for _ in 0..SETTLE_TRIES {
            match self.world.machines()[client].client().sync().await {
                Ok(()) => return Ok(()),
                Err(error) => last = format!("client {client} cannot send what it has: {error}"),
            }
            if self.cut_off.is_none() {
                break;
            }
            tokio::time::sleep(LEASE / 4).await;
        }
        Err(last)
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
        expect(seen, &self.model.snapshot(), "neither before nor after an operation without an answer")
    }

    /// Compares what all clients show.
    async fn compare(&mut self, when: &str) -> Result<(), String> {
        let wanted = self.model.snapshot();
        for client in 0..self.world.machines().len() {
            match self.cut_off {
                Some(cut_off) if cut_off.client == client => self.look_at_cache(cut_off, when).await?,
                Some(_) | None => {
                    let seen = self.seen(client, when).await?;
                    expect(&seen, &wanted, &format!("{when}, on client {client}"))?;
                }
            }
        }
        Ok(())
    }

    /// Checks that a client that is cut off shows what is true, or nothing; and nothing once its lease has lapsed.
    async fn look_at_cache(&mut self, cut_off: CutOff, when: &str) -> Result<(), String> {
        let CutOff { client, since, until, may_connect } = cut_off;
        let paths: Vec<_> = self.model.snapshot().into_keys().collect();
        for _ in 0..LOOKS {
            let at = self.random.below(paths.len() as u64 + 1);
            let path = paths.get(usize::try_from(at).unwrap_or(0)).map_or("/a", String::as_str);
            let read = Operation::Read { path: path.to_owned() };
            let began = since.elapsed();
            let outcome = self.world.machines()[client].programs().perform(&read).await;
            let over = may_connect || until.is_some_and(|until| until <= Instant::now());
            let lapsed = began > LEASE && !over;
            let mut models = std::iter::once(&self.model).chain(&self.unanswered);
            let right = models.any(|model| outcome.agrees(&model.clone().apply(&read)))
                || self.uncertain.iter().any(|operation| operation.touches(path));
            if !matches!(outcome, Outcome::Failed(_)) && (lapsed || !right) {
                let outcome = short(&outcome);
                return Err(format!("{when}: client {client}, cut off for {began:?}, reads {path}: {outcome}"));
            }
        }
        Ok(())
    }

    async fn seen(&self, client: usize, when: &str) -> Result<Snapshot, String> {
        let seen = self.world.machines()[client].programs().snapshot().await;
        seen.map_err(|error| format!("client {client} cannot read the tree {when}: {error}"))
    }

    fn note(&mut self, actor: usize, operation: &Operation, outcome: &Outcome) {
        self.trace.push(format!("client {actor}: {} -> {}", shortened(operation), short(outcome)));
    }
}

/// Reads of a client that is cut off, each of which may wait for the deadline.
const LOOKS: usize = 2;

fn shortened(operation: &Operation) -> String {
    let mut text = format!("{operation:?}");
    text.truncate(120);
    text
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
