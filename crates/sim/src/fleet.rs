//! A run of several clients that send in the background: random acts, one at a time, with faults during and between
//! them. All that a client is shown is compared with what docs/semantics.md allows, as [`Versions`] has it.
//!
//! While one acts the logs of all are being sent, announced and pulled. An act may fail only while somebody is out of
//! touch, or has just come back, or while something else goes wrong that it cannot be expected to outlast; a change
//! that had no answer is looked up when its client can send all it has, and what is there then counts.

mod bounds;
mod outages;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::hoard::{HoardSpec, Rank, Scope};
use mafs_client::vfs::{Close, Error, Fsync, Vfs, Writeback};
use mafs_proto::{FsError, Kind, Random, VnodeId};
use tokio::time::{Instant, sleep, timeout};

use self::bounds::{SteadyLink, call_nonsense};
use self::outages::{Image, Out};
use crate::act::{Act, Actor, BELOW, NAMES, Told, Undone, find, log_of, size_of, values_of, xattr};
use crate::faults::{Faults, Strike, happens, some_client};
use crate::history::Register;
use crate::network::Path;
use crate::operation::{CALLER, Programs};
use crate::versions::{DURABLE_AFTER, Versions};
use crate::world::{Crash, LEASE, World};

const CLIENTS: usize = 3;
/// Limit of each cache: little, so that clean contents make way for others all the time.
const CACHE_BYTES: u64 = 400_000;
/// Largest size of a content.
const SIZE_MAX: u64 = 160_000;

/// An act has up to 8 calls, each with its deadline; one may wait for the lease of somebody, one for a pull, and one
/// for both again.
const ACT_MAX: Duration = Duration::from_secs(8 * 21 + 2 * 62 + 30);
/// A client that is in touch again has found that out within this time, and has sent what others wait for.
const RECOVERED: Duration = Duration::from_secs(40);
/// A client that is in touch hears within this time of an update that was acknowledged to nobody yet.
const CATCH_UP: Duration = Duration::from_secs(10);
/// How often a client is asked to send all that it has: longer than a lease in all.
const SETTLE_TRIES: u32 = 10;

/// How fast clients' clocks go, in millionths: over a lease of 60 s wrong by less than the server's bias of 2 s.
const CLOCK_RATES: [u32; 3] = [970_000, 1_000_000, 1_030_000];

/// Reserve of the server's disk: with less left the server takes nothing that needs room, and with a quarter of it
/// nothing at all.
const RESERVE: u64 = 64 << 20;

/// In so many acts a stranger comes once.
const STRANGER_ONCE_IN: u64 = 50;

/// Room on a disk that is not full.
const AMPLE: u64 = 1 << 40;

/// Lines of the trace that a violation is told with: what came before is in the same order again.
const TRACE_MAX: usize = 100;

/// Runs `operations` random acts of three clients from `seed`. The trace names every act and answer.
///
/// # Errors
/// The first violation of what docs/semantics.md promises, with the seed and the end of the trace.
pub async fn run_fleet(seed: u64, operations: usize, faults: Faults) -> Result<Vec<String>, String> {
    run(seed, operations, faults, false).await
}

/// Does as [`run_fleet`] with a kernel between programs and each client.
///
/// # Errors
/// As [`run_fleet`].
pub async fn run_fleet_above_kernels(seed: u64, operations: usize, faults: Faults) -> Result<Vec<String>, String> {
    run(seed, operations, faults, true).await
}

async fn run(seed: u64, operations: usize, faults: Faults, kernel: bool) -> Result<Vec<String>, String> {
    let mut random = Random::new(seed);
    let (paths, links) = (0..CLIENTS).map(|_| path(&mut random)).unzip();
    // After a crash a client takes what the kernel could write to for changed, and has it refused if others have
    // changed or removed it since.
    let passthrough = (kernel || faults.kill_client == 0 && faults.power_client == 0) && random.once_in(2);
    let mut world = World::start_over(seed, paths, passthrough).await?;
    let (mut announces, mut trace) = (Vec::new(), Vec::new());
    let (mut clocks, mut hoards) = (Random::new(!seed), Random::new(seed.rotate_left(16)));
    let mut kernels = Random::new(seed.rotate_left(48));
    for machine in world.machines_mut() {
        machine.stop().await;
        let (writeback, close) = random.one_of(&[
            (Writeback::Sirp, Close::Logged),
            (Writeback::Sirp, Close::Announced),
            (Writeback::Async, Close::Logged),
        ]);
        machine.set_writeback(writeback);
        machine.set_close(close);
        machine.set_fsync(random.one_of(&[Fsync::Auto, Fsync::Local]));
        machine.set_cache_limit_bytes(CACHE_BYTES);
        machine.set_clock_rate(clocks.one_of(&CLOCK_RATES));
        announces.push(close == Close::Announced);
        trace.push(format!("{writeback:?}, {close:?}"));
        if kernel {
            machine.set_kernel(kernels.number());
        }
        machine.start().await?;
        if hoards.once_in(4) {
            hoard_everything(machine.client(), hoards.one_of(&[100, 500]))?;
        }
    }
    let below = world.client().make_dir(VnodeId::ROOT, BELOW.into(), mafs_proto::Mode::from_bits(0o755), CALLER).await;
    below.map_err(|error| format!("seed {seed}: {error}"))?;
    world.client().sync().await.map_err(|error| format!("seed {seed}: {error}"))?;
    let mut fleet = Fleet {
        random,
        strangers: Random::new(seed.rotate_left(32)),
        world,
        links,
        announces,
        versions: Rc::new(RefCell::new(Versions::new(CLIENTS))),
        faults,
        out: [None; CLIENTS],
        full: [false; CLIENTS],
        image: None,
        troubled: Instant::now(),
        tokens: 0,
        begun: Instant::now(),
        trace,
    };
    let result = fleet.go(operations).await;
    result.map_err(|why| {
        let recent = fleet.trace.iter().rev().take(TRACE_MAX).rev().cloned().collect::<Vec<_>>().join("\n  ");
        format!("seed {seed}: {why}\n  {recent}")
    })?;
    Ok(fleet.trace)
}

/// Has a client fetch whatever others make, besides what it is asked for.
fn hoard_everything(client: &Vfs, priority: u16) -> Result<(), String> {
    let rank = Rank::hoarded(priority).ok_or("no such priority")?;
    let spec = HoardSpec { rank, scope: Scope::Descendants { later: true } };
    client.hoard(b"", spec).map_err(|error| error.to_string())
}

/// A near client, or one behind a link that takes its time for contents.
fn path(random: &mut Random) -> (Path, Option<SteadyLink>) {
    match random.below(2) {
        0 => (Path::Delay(Duration::from_millis(1 + random.below(40))), None),
        _ => {
            let bytes_per_s = random.one_of(&[64_000, 250_000, 1_000_000]);
            let rtt = Duration::from_millis(2 + random.below(150));
            (Path::Link(Box::new(Profile::steady(bytes_per_s, rtt))), Some(SteadyLink::new(bytes_per_s, rtt)))
        }
    }
}

struct Fleet {
    random: Random,
    /// Random numbers for the acts of strangers, so that the rest of a run does not depend on them.
    strangers: Random,
    world: World,
    /// The steady link of each client that is at the end of one.
    links: Vec<Option<SteadyLink>>,
    /// Whether the closes of each client wait for the announcement.
    announces: Vec<bool>,
    versions: Rc<RefCell<Versions>>,
    faults: Faults,
    /// Clients that are out of touch.
    out: [Option<Out>; CLIENTS],
    /// Whether the disk of each client is full.
    full: [bool; CLIENTS],
    /// The disk of a client as it was once.
    image: Option<Image>,
    /// The last moment at which something was wrong.
    troubled: Instant,
    /// Contents written so far.
    tokens: u64,
    begun: Instant,
    trace: Vec<String>,
}

impl Fleet {
    async fn go(&mut self, operations: usize) -> Result<(), String> {
        for _ in 0..operations {
            self.pause().await;
            self.end_outages()?;
            if happens(&mut self.random, self.faults.fill_server) {
                self.fill_server()?;
            }
            if happens(&mut self.random, self.faults.fill_client) {
                self.fill_client()?;
            }
            self.look_at_logs()?;
            if happens(&mut self.random, self.faults.suspend) {
                self.suspend();
            }
            if happens(&mut self.random, self.faults.restore) {
                self.restore().await?;
            }
            let (first, act) = (some_client(&mut self.random, CLIENTS), self.some_act());
            let mut others = (first..CLIENTS).chain(0..first);
            let Some(actor) = others.find(|client| self.is_awake(*client)) else { continue };
            let strike = self.faults.strike(&mut self.random, CLIENTS);
            self.act(actor, &act, strike).await?;
            self.look_at_logs()?;
            self.look_around().await?;
            self.check_wire().await?;
            if happens(&mut self.random, self.faults.remount) {
                self.remount().await?;
            }
        }
        self.finish().await
    }

    /// Lets time pass: mostly too little to send anything, sometimes enough for all of it, sometimes for leases to
    /// end.
    async fn pause(&mut self) {
        let about = match self.random.below(64) {
            0 => 80_000,
            1..=3 => 8_000,
            4..=15 => 1_000,
            16..=40 => 50,
            _ => 1,
        };
        sleep(Duration::from_millis(self.random.below(about))).await;
    }

    fn some_path(&mut self) -> String {
        let name = self.random.one_of(&NAMES);
        if self.random.once_in(3) { format!("{BELOW}/{name}") } else { name.to_owned() }
    }

    fn some_token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }

    fn some_act(&mut self) -> Act {
        let (path, other) = (self.some_path(), self.some_path());
        let fsync = self.random.once_in(3);
        match self.random.below(27) {
            0..=4 => Act::Write { path, token: self.some_token(), again: None, fsync },
            5..=6 => {
                let (one, two) = (self.some_token(), self.some_token());
                // The second must cover the first.
                let [token, second] = if size_of(one) <= size_of(two) { [one, two] } else { [two, one] };
                let pause = Duration::from_millis(self.random.below(200));
                Act::Write { path, token, again: Some((second, pause)), fsync: false }
            }
            7..=9 => Act::Replace { path, token: self.some_token(), fsync },
            10..=13 => Act::Read { path },
            14 => Act::Stat { path },
            15 => Act::List { below: self.random.once_in(2) },
            16 | 17 => Act::Remove { path },
            18 | 19 => Act::Rename { from: path, to: other },
            20 | 21 => Act::SetMode { path, mode: 0o600 + u32::try_from(self.random.below(64)).unwrap_or(0) },
            22 | 23 => Act::Link { from: path, to: other, token: self.some_token() },
            24 | 25 => Act::SetXattr { path, token: self.some_token() },
            _ => Act::Make { path, kind: self.random.one_of(&[Kind::Directory, Kind::Symlink]) },
        }
    }

    async fn act(&mut self, actor: usize, act: &Act, strike: Option<Strike>) -> Result<(), String> {
        if matches!(strike, Some(Strike::Client(_, Crash::Power))) {
            sleep(DURABLE_AFTER).await;
        }
        let programs = self.world.machines()[actor].programs();
        let versions = Rc::clone(&self.versions);
        let body = Actor { client: actor, announces: self.announces[actor], versions: &versions };
        let mut work = Box::pin(timeout(ACT_MAX, body.perform(act, &programs)));
        let (mut early, mut crashed) = (None, None);
        if let Some(strike) = strike {
            let after = Duration::from_micros(self.random.below(60_000));
            early = timeout(after, &mut work).await.ok();
            let when = if early.is_some() { "after" } else { "during" };
            self.trace.push(format!("{:?}: {strike:?} {when} {act:?} of client {actor}", self.begun.elapsed()));
            crashed = self.strike(strike)?;
        }
        let result = match (early, crashed) {
            (Some(result), _) => Some(result),
            // Programs outlive a client that is killed under their kernel.
            (None, Some((victim, crash))) if victim == actor => match (&programs, crash) {
                (Programs::Above(_), Crash::Kill) => {
                    let (started, result) = tokio::join!(self.start_again(actor), work.as_mut());
                    started?;
                    Some(result)
                }
                _ => None,
            },
            (None, _) => Some(work.as_mut().await),
        };
        drop(work);
        if let Some((victim, _)) = crashed {
            self.restart(victim).await?;
        }
        match result {
            Some(Ok(result)) => self.judge(actor, act, result).await,
            Some(Err(_)) => Err(format!("invariant 8: {act:?} of client {actor} does not end")),
            None => Ok(()),
        }
    }

    async fn judge(&mut self, actor: usize, act: &Act, result: Result<(), Undone>) -> Result<(), String> {
        let told = match &result {
            Ok(()) => "done".to_owned(),
            Err(Undone::NotNow) => return Ok(()),
            // The client has been started again since.
            Err(Undone::Failed(told)) if told.is_gone() => return Ok(()),
            Err(Undone::Failed(told)) => told.to_string(),
            Err(Undone::Violation(why)) => why.clone(),
        };
        self.trace.push(format!("{:?}: client {actor}: {act:?} -> {told}", self.begun.elapsed()));
        match result {
            Ok(()) | Err(Undone::NotNow) => Ok(()),
            Err(Undone::Violation(why)) => Err(why),
            Err(Undone::Failed(told)) => {
                if !told.may_be(|error| self.is_excused(actor, error)) {
                    return Err(format!("client {actor}: {act:?} failed: {told}"));
                }
                self.settle(actor).await
            }
        }
    }

    /// Whether a call may fail with this error.
    fn is_excused(&self, actor: usize, error: &Error) -> bool {
        let is_full = self.versions.borrow().is_full();
        let has_trouble = is_full || self.out.iter().any(Option::is_some) || self.troubled.elapsed() < RECOVERED;
        match error {
            Error::Unreachable(_) | Error::TimedOut(_) | Error::OutOfReach(_) | Error::ByHand => has_trouble,
            // An object that others have announced is shown, and cannot be changed before it is there.
            Error::Refused(FsError::NoSpace | FsError::NameChanged | FsError::NotFound | FsError::Stale) => {
                self.faults.fill_server > 0 && has_trouble
            }
            // The change is behind fsynced content, for which there is no room.
            Error::Refused(FsError::Busy) => self.faults.fill_server > 0 && has_trouble,
            Error::CacheFull => {
                self.faults.fill_client > 0 && (self.full[actor] || self.troubled.elapsed() < RECOVERED)
            }
            _ => false,
        }
    }

    async fn restart(&mut self, client: usize) -> Result<(), String> {
        self.start_again(client).await?;
        self.settle(client).await
    }

    /// Starts a client that has crashed, unless it has been started since.
    async fn start_again(&mut self, client: usize) -> Result<(), String> {
        if self.world.machines()[client].is_up() {
            return Ok(());
        }
        self.reach(client);
        self.troubled = Instant::now();
        self.world.machines_mut()[client].start().await
    }

    async fn remount(&mut self) -> Result<(), String> {
        let client = some_client(&mut self.random, CLIENTS);
        self.trace.push(format!("{:?}: remount of client {client}", self.begun.elapsed()));
        self.reach(client);
        self.world.machines_mut()[client].stop().await;
        self.versions.borrow_mut().restart(client);
        self.world.machines_mut()[client].start().await
    }

    /// Notes which records are announced and applied by now. Checks that nothing is refused, since nothing is in
    /// conflict.
    fn look_at_logs(&mut self) -> Result<(), String> {
        for client in 0..CLIENTS {
            let vfs = self.world.machines()[client].client();
            let status = vfs.status();
            if let Some((path, why)) = status.refused.first() {
                return Err(format!("invariant 9: client {client} was refused {path}: {why}"));
            }
            let records = log_of(vfs);
            self.versions.borrow_mut().note_log(client, &records);
            if self.out[client].is_none() && status.connected {
                self.versions.borrow_mut().come_back(client);
            }
        }
        Ok(())
    }

    /// Checks the bounds of every connection, whoever else connects.
    async fn check_wire(&mut self) -> Result<(), String> {
        for (client, machine) in self.world.machines().iter().enumerate() {
            if let (Some(link), true) = (&mut self.links[client], self.faults == Faults::default()) {
                link.check(client, machine.client())?;
            }
        }
        if self.strangers.once_in(STRANGER_ONCE_IN) {
            let (carrier, clock) = (self.world.connect_stranger()?, self.world.clock());
            call_nonsense(carrier, clock, &mut self.strangers).await?;
        }
        Ok(())
    }

    /// Lets some of the other clients look at something.
    async fn look_around(&mut self) -> Result<(), String> {
        for client in 0..CLIENTS {
            if self.random.once_in(2) || !self.is_awake(client) {
                continue;
            }
            let path = self.some_path();
            let act = if self.random.once_in(2) { Act::Read { path } } else { Act::Stat { path } };
            self.act(client, &act, None).await?;
        }
        Ok(())
    }

    /// Has a client send all that it has, and takes what it shows then of what had no answer.
    async fn settle(&mut self, client: usize) -> Result<(), String> {
        let unanswered = self.versions.borrow().unanswered(client);
        if unanswered.is_empty() {
            return Ok(());
        }
        self.end_all_outages()?;
        self.send_all(client).await?;
        let programs = self.world.machines()[client].programs();
        for register in unanswered {
            let value = self.value_of(&programs, &register).await;
            let value = value.map_err(|told| format!("client {client} cannot look at {register:?}: {told}"))?;
            self.trace.push(format!("{:?}: client {client} has {value:?} of {register:?}", self.begun.elapsed()));
            self.versions.borrow_mut().settle(client, &register, value)?;
        }
        // The server may have had it before, and others be about to hear of it.
        sleep(CATCH_UP).await;
        self.look_at_logs()
    }

    async fn send_all(&mut self, client: usize) -> Result<(), String> {
        let mut last = None;
        for _ in 0..SETTLE_TRIES {
            match timeout(ACT_MAX, self.world.machines()[client].client().sync()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => last = Some(error),
                Err(_) => return Err(format!("invariant 8: client {client} does not send what it has")),
            }
            sleep(Duration::from_secs(10)).await;
        }
        Err(format!("invariant 1: client {client} cannot send what it has: {last:?}"))
    }

    /// Reads the value of a register. `None`: the object is not there.
    async fn value_of(&self, programs: &Programs, register: &Register) -> Result<Option<u64>, Told> {
        let name = match register {
            Register::Name(path) => Some(path.clone()),
            Register::Content(vnode) | Register::Mode(vnode) | Register::Xattr(vnode) => {
                self.versions.borrow().name_of(*vnode)
            }
            // Whether a name was made is to be seen by itself.
            Register::Links(_) => None,
        };
        let Some(name) = name else { return Ok(None) };
        let found = find(programs, &name).await?;
        let of = |vnode: &VnodeId| found.as_ref().filter(|object| object.vnode == *vnode);
        Ok(match register {
            Register::Name(_) => Some(found.map_or(0, |object| object.vnode.0)),
            Register::Content(vnode) => of(vnode).map(|object| values_of(object)[0]),
            Register::Mode(vnode) => of(vnode).map(|object| values_of(object)[1]),
            Register::Xattr(vnode) if of(vnode).is_some() => Some(xattr(programs, &name, *vnode).await?),
            Register::Xattr(_) | Register::Links(_) => None,
        })
    }

    /// Checks that all clients, one with an empty cache among them, show the same when all is well and sent.
    async fn finish(&mut self) -> Result<(), String> {
        self.end_all_outages()?;
        sleep(LEASE).await;
        for client in 0..CLIENTS {
            self.send_all(client).await?;
        }
        self.look_at_logs()?;
        self.compare().await?;
        self.compare_sizes()?;
        for machine in self.world.machines_mut() {
            machine.stop().await;
        }
        self.world.empty_cache();
        for machine in self.world.machines_mut() {
            machine.start().await?;
        }
        self.trace.push("client 0 has an empty cache".to_owned());
        self.compare().await
    }

    /// Checks that the caches keep within their limit, but for one content, when everything is clean.
    fn compare_sizes(&self) -> Result<(), String> {
        for (client, machine) in self.world.machines().iter().enumerate() {
            let bytes = machine.client().status().cache_bytes;
            if bytes > CACHE_BYTES + SIZE_MAX {
                return Err(format!("invariant 5: the cache of client {client} has {bytes} bytes"));
            }
        }
        Ok(())
    }

    async fn compare(&mut self) -> Result<(), String> {
        for client in 0..CLIENTS {
            for below in [false, true] {
                self.act(client, &Act::List { below }, None).await?;
                for name in NAMES {
                    let path = if below { format!("{BELOW}/{name}") } else { name.to_owned() };
                    self.act(client, &Act::Stat { path: path.clone() }, None).await?;
                    self.act(client, &Act::Read { path }, None).await?;
                }
            }
        }
        match self.versions.borrow().unknown() {
            None => Ok(()),
            Some(what) => Err(format!("invariant 1: {what} is not at the server when all has been sent")),
        }
    }
}
