//! Clients that come and go: rounds in which some have no connection for long while others have, with work on one
//! tree, kills, clocks that are set, and a counter under locks. Nothing that close() has acknowledged is lost, a
//! client that works on other files has no conflict, all are shown one tree when they are back, and no two hold a lock
//! at a time.
//!
//! `MAFS_SIM_SEEDS=2000 cargo test --release -p mafs-sim --test sim journeys::` is the long run; a failure names its
//! seed.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Error, LockStop, Locking, RangeLock, Vfs, Writeback};
use mafs_proto::{FsError, LockKind, LockOwner, LockRange, Random, VnodeId};
use mafs_sim::{Crash, Machine, World};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::support::worker::{DIRS, Tree, Worker, tree, tree_above};
use crate::support::{BLACK_HOLE, CALLER, READ, WRITE, content, name, seeds_from, simulate, write_and_close};
use crate::support::{configured, make_dir};

const CLIENTS: usize = 3;
const ROUNDS: u64 = 3;
const STEPS: u64 = 20;
/// Without a server nobody waits.
const APART_MAX: Duration = Duration::from_secs(1);
/// A client that is out of touch may hold this up for a lease.
const TOGETHER_MAX: Duration = Duration::from_secs(100);
const DAY_S: i64 = 86_400;
/// How often a client counts in a round.
const COUNTS: u64 = 4;
/// A name that the tree does not show.
const COUNTER: &str = ".counter";

/// The counter's locks, as their holders saw them.
#[derive(Default)]
struct Held {
    /// The client, and from when to when: to the lock's end or, with a connection lost before, to when the lease may
    /// end.
    times: Vec<(usize, Instant, Instant)>,
    counted: u64,
    /// Counts of which nobody knows whether they were stored.
    unsure: u64,
}

/// How the clients of a journey work.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Setup {
    /// Each on files of its own.
    own: bool,
    /// Programs call a kernel.
    kernel: bool,
}

const BARE: Setup = Setup { own: false, kernel: false };
const ABOVE: Setup = Setup { own: false, kernel: true };

struct Journey {
    seed: u64,
    setup: Setup,
    world: World,
    random: Random,
    workers: Vec<Worker>,
    is_apart: [bool; CLIENTS],
    /// Contents that a client has written since it went apart begin behind this one.
    written_before: [u64; CLIENTS],
    held: Rc<RefCell<Held>>,
    begun: Instant,
}

/// Whether a content is one of a client's own that it wrote after so many others.
fn is_by(content: &[u8], client: usize, after: u64) -> bool {
    let text = String::from_utf8_lossy(content);
    let Some((number, by)) = text.split_once(" of ") else { return false };
    by.trim_end_matches('.') == client.to_string() && number.parse::<u64>().is_ok_and(|number| number > after)
}

fn contents(tree: &Tree) -> BTreeSet<Vec<u8>> {
    tree.values().flatten().cloned().collect()
}

/// Returns what two clients show differently.
fn differences(one: &Tree, other: &Tree) -> Vec<(String, Option<String>, Option<String>)> {
    let paths: BTreeSet<_> = one.keys().chain(other.keys()).collect();
    let shown = |content: &Option<Vec<u8>>| content.as_ref().map_or("a directory".to_owned(), |content| short(content));
    let of = |tree: &Tree, path: &String| tree.get(path).map(shown);
    let compared = paths.into_iter().map(|path| (path.clone(), of(one, path), of(other, path)));
    compared.filter(|(_, one, other)| one != other).collect()
}

fn short(content: &[u8]) -> String {
    String::from_utf8_lossy(&content[..content.len().min(40)]).trim_end_matches('.').to_owned()
}

fn is_network(error: &Error) -> bool {
    matches!(error, Error::TimedOut(_) | Error::OutOfReach(_) | Error::Unreachable(_))
}

impl Journey {
    async fn start(seed: u64, setup: Setup) -> Self {
        let Setup { own, kernel } = setup;
        let passthrough = kernel && seed.is_multiple_of(4);
        let world = World::start_several(seed, CLIENTS, Duration::from_millis(10), passthrough).await.expect("a world");
        let mut kernels = Random::new(seed ^ 1);
        let world = configured(world, |machine| {
            machine.set_writeback(if seed.is_multiple_of(3) { Writeback::Async } else { Writeback::Sirp });
            machine.set_disconnected(true);
            machine.set_locking(if seed.is_multiple_of(2) { Locking::Fail } else { Locking::Strict });
            if kernel {
                machine.set_kernel(kernels.number());
            }
        })
        .await;
        let mut random = Random::new(seed);
        let worker = |(number, machine): (usize, &Machine)| Worker {
            vfs: machine.client().clone(),
            kernel: kernel.then(|| machine.kernel().clone()),
            number,
            random: Random::new(random.below(u64::MAX)),
            own,
            written: 0,
        };
        let workers = world.machines().iter().enumerate().map(worker).collect();
        let (is_apart, written_before, held) = ([false; CLIENTS], [0; CLIENTS], Rc::default());
        let begun = Instant::now();
        let journey = Self { seed, setup, world, random, workers, is_apart, written_before, held, begun };
        journey.prepare().await;
        journey
    }

    /// Makes a tree that all have seen, and one file of each that no other has read.
    async fn prepare(&self) {
        let first = self.vfs(0);
        for dir in DIRS {
            make_dir(&first, VnodeId::ROOT, dir).await.expect("a directory");
        }
        write_and_close(&first, COUNTER, b"0".to_vec()).await;
        for (number, hidden) in [".unread-0", ".unread-1", ".unread-2"].into_iter().enumerate() {
            write_and_close(&self.vfs(number), hidden, vec![7; 5000]).await;
            self.vfs(number).sync().await.expect("a sync");
        }
        first.sync().await.expect("a sync");
        for number in 0..CLIENTS {
            // Twice, for directories are cached whole from the second miss on.
            for _ in 0..2 {
                self.tree(number).await.expect("the tree");
            }
            content(&self.vfs(number), COUNTER).await;
        }
    }

    /// Tells what happens; the tests' harness shows it of a seed that fails.
    fn tell(&self, what: &str) {
        println!("seed {}: {:?}: {what}", self.seed, self.begun.elapsed());
    }

    fn vfs(&self, number: usize) -> Vfs {
        self.world.machines()[number].client().clone()
    }

    /// The tree as a client's programs are shown it.
    async fn tree(&self, number: usize) -> Result<Tree, Error> {
        match &self.workers[number].kernel {
            Some(kernel) => tree_above(kernel).await,
            None => tree(&self.vfs(number)).await,
        }
    }

    /// The tree, as soon as nobody removes what has just been listed: others' logs are being sent.
    async fn tree_at_rest(&self, number: usize) -> Tree {
        for _ in 0..10 {
            match self.tree(number).await {
                Err(Error::Refused(FsError::NotFound | FsError::Stale)) => sleep(Duration::from_secs(1)).await,
                other => return other.expect("the tree"),
            }
        }
        panic!("what is listed is not there")
    }

    fn below(&mut self, bound: u64) -> usize {
        usize::try_from(self.random.below(bound)).expect("small")
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.random.below(times) == 0
    }

    async fn round(&mut self, is_last: bool) {
        self.part().await;
        self.work().await;
        self.befall().await;
        let first = self.below(CLIENTS as u64);
        for number in (0..CLIENTS).map(|number| (first + number) % CLIENTS) {
            if self.is_apart[number] && (is_last || !self.once_in(3)) {
                self.plug_in(number).await;
            }
        }
        self.count_together().await;
        self.compare().await;
    }

    /// Lets some lose their connections; the others wait until nobody waits for these any more.
    async fn part(&mut self) {
        let some = 1 + self.below(CLIENTS as u64);
        for _ in 0..some {
            let number = self.below(CLIENTS as u64);
            if self.is_apart[number] {
                continue;
            }
            let vfs = self.vfs(number);
            vfs.sync().await.expect("nothing waits");
            // All of it, or what is not there could not be told from what is not known.
            self.tree_at_rest(number).await;
            self.world.machines()[number].fall_silent(BLACK_HOLE);
            assert!(vfs.lookup(VnodeId::ROOT, name("nobody-knows")).await.is_err());
            self.tell(&format!("client {number} is apart"));
            (self.is_apart[number], self.written_before[number]) = (true, self.workers[number].written);
        }
        let long = [70, 70, 600, 4000][self.below(4)];
        sleep(Duration::from_secs(long)).await;
        for number in 0..CLIENTS {
            assert_eq!(self.vfs(number).status().connected, !self.is_apart[number], "seed {}: {number}", self.seed);
        }
    }

    async fn work(&mut self) {
        for _ in 0..STEPS {
            let number = self.below(CLIENTS as u64);
            let (is_apart, seed) = (self.is_apart[number], self.seed);
            let most = if is_apart { APART_MAX } else { TOGETHER_MAX };
            let stepped = timeout(most, self.workers[number].step()).await;
            self.tell(&format!("client {number}: {stepped:?}"));
            match stepped.unwrap_or_else(|_| panic!("seed {seed}: client {number} waits, apart: {is_apart}")) {
                Ok(()) | Err(Error::Refused(FsError::NotFound | FsError::Exists | FsError::NotEmpty)) => {}
                // Another client has removed what this one has just looked up; the kernel would look it up again.
                Err(Error::Refused(FsError::Stale)) if !is_apart => {}
                Err(error) => panic!("seed {seed}: client {number}, apart: {is_apart}: {error}"),
            }
            if is_apart && self.once_in(5) {
                self.look_for_what_is_not_here(number).await;
            } else if !is_apart && self.once_in(4) {
                self.look_from_elsewhere(number).await;
            }
        }
    }

    /// Checks that a read of a file that is not here fails at once, and not because there is nothing.
    async fn look_for_what_is_not_here(&self, number: usize) {
        let (vfs, unread) = (self.vfs(number), format!(".unread-{}", (number + 1) % CLIENTS));
        let read = async {
            let file = vfs.lookup(VnodeId::ROOT, name(&unread)).await?;
            let opened = vfs.open(file.fid.vnode, READ, CALLER).await?;
            vfs.read(opened.file, 0, 100).await
        };
        let read = timeout(APART_MAX, read).await.expect("it fails at once");
        assert!(read.as_ref().is_err_and(is_network), "seed {}: client {number}: {read:?}", self.seed);
    }

    /// Checks that others show what a client with a connection has written and shows, when all have sent what they
    /// have: one that has not may be about to write over it.
    async fn look_from_elsewhere(&self, number: usize) {
        for connected in (0..CLIENTS).filter(|client| !self.is_apart[*client]) {
            let synced = self.vfs(connected).sync().await;
            assert!(matches!(synced, Ok(()) | Err(Error::Refused(_))), "seed {}: {synced:?}", self.seed);
        }
        let mut others = (0..CLIENTS).filter(|other| *other != number && !self.is_apart[*other]);
        let Some(other) = others.next() else { return };
        let shown = self.tree_at_rest(number).await;
        let there = contents(&self.tree_at_rest(other).await);
        let last = self.workers[number].written.saturating_sub(1);
        let missing = contents(&shown).into_iter().filter(|content| is_by(content, number, last));
        let missing: Vec<_> =
            missing.filter(|content| !there.contains(content)).map(|content| short(&content)).collect();
        assert!(missing.is_empty(), "seed {}: {other} does not show {missing:?} of {number}", self.seed);
    }

    /// Kills a client or the server, or sets a clock by a day while its client runs or while it does not.
    async fn befall(&mut self) {
        let victim = self.below(CLIENTS as u64);
        let ahead_s = [0, DAY_S, -DAY_S][self.below(3)];
        let what = self.random.below(5);
        self.tell(&format!("strike {what} at {victim}, {ahead_s} s ahead"));
        match what {
            0 => {
                // The disk has it by then.
                sleep(Duration::from_secs(2)).await;
                let crash = if self.once_in(2) { Crash::Kill } else { Crash::Power };
                self.world.crash_machine(victim, crash);
                self.world.machines()[victim].set_time_of_day(ahead_s);
                self.world.machines_mut()[victim].start().await.expect("it starts");
                self.workers[victim].vfs = self.vfs(victim);
                self.workers[victim].kernel = self.setup.kernel.then(|| self.world.machines()[victim].kernel().clone());
            }
            1 => {
                self.world.crash_server(Crash::Kill);
                self.world.start_server().expect("the server starts");
                // Clients that were listed are waited for.
                sleep(Duration::from_secs(75)).await;
            }
            2 => self.world.machines()[victim].set_time_of_day(ahead_s),
            _ => {}
        }
        for number in 0..CLIENTS {
            if !self.is_apart[number] {
                self.until_connected(number).await;
            }
        }
    }

    async fn until_connected(&self, number: usize) {
        for _ in 0..6000 {
            if self.vfs(number).status().connected {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("seed {}: client {number} does not connect", self.seed);
    }

    /// Brings a client back. Content that it has written while apart and still shows is there then.
    async fn plug_in(&mut self, number: usize) {
        let vfs = self.vfs(number);
        let (seed, before) = (self.seed, self.written_before[number]);
        let had = self.tree(number).await.expect("what a client has made is here, and what it knew");
        self.tell(&format!("client {number} is back"));
        self.world.machines()[number].break_silence();
        self.until_connected(number).await;
        self.is_apart[number] = false;
        let synced = vfs.sync().await;
        assert!(matches!(synced, Ok(()) | Err(Error::Refused(_))), "seed {seed}: client {number}: {synced:?}");
        let now = self.tree_at_rest(number).await;
        let there = contents(&now);
        let written = had.iter().filter_map(|(path, content)| content.as_ref().map(|content| (path, content)));
        let written = written.filter(|(_, content)| is_by(content, number, before));
        let lost: Vec<_> = written.filter(|(_, content)| !there.contains(*content)).map(|(path, _)| path).collect();
        assert!(lost.is_empty(), "seed {seed}: client {number} has lost {lost:?}; {:?}", now.keys());
        if self.setup.own {
            let is_own = |path: &String| path.ends_with(&format!("-of-{number}"));
            let of = |tree: &Tree| -> Tree { tree.clone().into_iter().filter(|(path, _)| is_own(path)).collect() };
            let differs = differences(&of(&had), &of(&now));
            assert!(differs.is_empty(), "seed {seed}: client {number} had, and now shows {differs:#?}");
        }
    }

    /// Checks that all clients that are connected are shown one tree.
    async fn compare(&self) {
        let mut shown: Option<(usize, Tree)> = None;
        for number in (0..CLIENTS).filter(|number| !self.is_apart[*number]) {
            let synced = self.vfs(number).sync().await;
            assert!(matches!(synced, Ok(()) | Err(Error::Refused(_))), "seed {}: {synced:?}", self.seed);
        }
        for number in (0..CLIENTS).filter(|number| !self.is_apart[*number]) {
            let now = self.tree_at_rest(number).await;
            match &shown {
                Some((first, tree)) => {
                    let differs = differences(tree, &now);
                    assert!(differs.is_empty(), "seed {}: {first} and {number} show {differs:#?}", self.seed);
                }
                None => shown = Some((number, now)),
            }
        }
    }

    /// Lets all clients that are connected count at the same time; one of them may lose its connection on the way, for
    /// longer than its lease.
    async fn count_together(&mut self) {
        let clients: Vec<_> = (0..CLIENTS).filter(|number| !self.is_apart[*number]).collect();
        if clients.is_empty() {
            return;
        }
        let victim = clients[self.below(clients.len() as u64)];
        let is_cut = self.once_in(2);
        let silent_at = Instant::now() + Duration::from_micros(self.random.below(900_000));
        // The lease ends no earlier for the server than for the client.
        let lease_end = Rc::new(RefCell::new(None));
        let counting = clients.iter().map(|number| {
            let (vfs, held) = (self.vfs(*number), Rc::clone(&self.held));
            let lost_at = (is_cut && *number == victim).then(|| Rc::clone(&lease_end));
            count(vfs, *number, held, lost_at, Random::new(self.random.below(u64::MAX)))
        });
        let counting: Vec<_> = counting.collect();
        let silence = async {
            if is_cut {
                sleep_until(silent_at).await;
                let machine = &self.world.machines()[victim];
                *lease_end.borrow_mut() = Some(Instant::now() + Duration::from_secs(machine.client().status().lease_s));
                machine.fall_silent(BLACK_HOLE);
                sleep(Duration::from_secs(100)).await;
                machine.break_silence();
            }
        };
        tokio::join!(silence, all(counting.into_iter()));
        self.until_connected(victim).await;
        self.check_counter(victim).await;
    }

    async fn check_counter(&self, client: usize) {
        let (counted, unsure) = {
            let mut held = self.held.borrow_mut();
            held.times.sort_by_key(|(_, from, _)| *from);
            for pair in held.times.windows(2) {
                let [(one, _, until), (other, from, _)] = [pair[0], pair[1]];
                assert!(until <= from, "seed {}: {one} had the lock when {other} got it: {:?}", self.seed, held.times);
            }
            (held.counted, held.unsure)
        };
        self.tell(&format!("counted {counted}, and perhaps {unsure}"));
        // A count that the client could not send is in conflict by now.
        let synced = self.vfs(client).sync().await;
        assert!(matches!(synced, Ok(()) | Err(Error::Refused(_))), "seed {}: {synced:?}", self.seed);
        let now = number_in(&content(&self.vfs(client), COUNTER).await);
        assert!((counted..=counted + unsure).contains(&now), "seed {}: {now} of {counted} and {unsure}", self.seed);
    }

    async fn finish(mut self) {
        let late = self.world.add_client().await.expect("another client");
        let now = tree(&late).await.expect("the tree");
        for number in 0..CLIENTS {
            let shown = self.tree(number).await.expect("the tree");
            let differs = differences(&shown, &now);
            assert!(differs.is_empty(), "seed {}: {number} and a new client show {differs:#?}", self.seed);
        }
        if self.setup.own {
            let mut conflicts = late.conflicts().await.expect("the conflicts");
            // A client that has lost a lock may have counted all the same.
            conflicts.retain(|conflict| conflict.wanted.name.as_bytes() != COUNTER.as_bytes());
            assert!(conflicts.is_empty(), "seed {}: {conflicts:?}", self.seed);
            for number in 0..CLIENTS {
                let mut refused = self.vfs(number).status().refused;
                refused.retain(|(path, _)| !path.contains(COUNTER));
                assert_eq!(refused, vec![], "seed {}: client {number}", self.seed);
            }
        }
    }
}

/// Goes on with all of these until each has ended.
async fn all(futures: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut left: Vec<_> = futures.map(Box::pin).collect();
    poll_fn(|context| {
        left.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if left.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn number_in(content: &[u8]) -> u64 {
    String::from_utf8_lossy(content).trim().parse().expect("a number")
}

/// Counts under a lock, a few times. `lost_at`: when this client's lease ends, should it lose its connection.
async fn count(
    vfs: Vfs,
    client: usize,
    held: Rc<RefCell<Held>>,
    lost_at: Option<Rc<RefCell<Option<Instant>>>>,
    mut random: Random,
) {
    for turn in 0..COUNTS {
        sleep(Duration::from_millis(random.below(100))).await;
        let Ok(object) = vfs.lookup(VnodeId::ROOT, name(COUNTER)).await else { continue };
        let Ok(opened) = vfs.open(object.fid.vnode, WRITE, CALLER).await else { continue };
        let owner = LockOwner { id: turn, process: 1, file: opened.file.0 };
        // A byte of it is as good as all of it.
        let range = if random.below(2) == 0 { LockRange::ALL } else { LockRange::new(0, 1).expect("a byte") };
        let lock = RangeLock { owner, range, kind: LockKind::Exclusive };
        if vfs.lock(opened.file, lock, true, LockStop::default()).await.is_ok() {
            let from = Instant::now();
            let wrote = async {
                let now = number_in(&vfs.read(opened.file, 0, 100).await?);
                sleep(Duration::from_millis(random.below(20))).await;
                vfs.write(opened.file, 0, Bytes::from((now + 1).to_string())).await
            };
            let wrote = wrote.await.is_ok();
            let until = Instant::now();
            let unlocked = vfs.unlock(opened.file, owner.id, range).await.is_ok();
            let mut held = held.borrow_mut();
            let lease_end = lost_at.as_ref().and_then(|lost_at| *lost_at.borrow());
            let until = lease_end.map_or(until, |end| end.min(until));
            held.times.push((client, from, until.max(from)));
            match (wrote, unlocked) {
                (true, true) => held.counted += 1,
                (true, false) => held.unsure += 1,
                (false, _) => {}
            }
        }
        vfs.flush_and_unlock(opened.file, owner.id).await.ok();
        vfs.release(opened.file);
    }
}

async fn travel(seed: u64, setup: Setup) {
    let mut journey = Journey::start(seed, setup).await;
    for round in 1..=ROUNDS {
        journey.round(round == ROUNDS).await;
    }
    journey.finish().await;
}

fn travel_all(first: u64, count: u64, setup: Setup) {
    for seed in seeds_from(first, count) {
        simulate(travel(seed, setup));
    }
}

#[test]
fn invariant_9_nothing_is_lost_however_clients_come_and_go() {
    travel_all(0, 3, BARE);
}

#[test]
fn who_works_on_other_files_has_no_conflict_however_clients_come_and_go() {
    travel_all(0, 2, Setup { own: true, ..BARE });
}

#[test]
fn invariant_9_nothing_is_lost_above_kernels_however_clients_come_and_go() {
    travel_all(5000, 3, ABOVE);
}

#[test]
fn who_works_on_other_files_above_kernels_has_no_conflict() {
    travel_all(6000, 2, Setup { own: true, ..ABOVE });
}

/// Two clients made one name when the server was killed, and each one's record waited for the other's announcement.
#[test]
fn regression_of_two_that_announced_one_name_the_first_goes_first() {
    simulate(travel(3212, BARE));
}

/// A content waited for a file that another client had removed meanwhile, as this client had just heard.
#[test]
fn regression_what_waits_for_a_file_that_is_gone_is_kept_where_that_was() {
    simulate(travel(689, BARE));
}

/// Two clients made one name, whose contents were still on their way: for a moment that was one empty file.
#[test]
fn regression_what_was_stored_into_a_file_that_another_has_made_too_is_kept_where_that_is() {
    simulate(travel(1234, BARE));
}

/// An unlock did not wait for what was written, and the lock was lost before that was sent.
#[test]
fn regression_what_was_written_under_a_lock_that_was_given_up_is_there() {
    simulate(travel(6, BARE));
}

/// A client that was back stored into a file that another one had just replaced, before the server had heard of that.
#[test]
fn regression_what_is_about_to_be_replaced_takes_no_new_content_with_it() {
    simulate(travel(818, BARE));
}
