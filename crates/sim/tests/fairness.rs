//! Clients that share the uplink of their server: greedy ones leave an interactive one its share, and one on a slow way
//! delays nobody. Where nothing in the server knows the uplink that comes of the sessions' own windows, and is no
//! bound; a server that is told its rate has a gate, which is one.
//!
//! `MAFS_SIM_SEEDS=10 cargo test -p mafs-sim --test sim fairness:: -- --nocapture` shows the figures of more seeds.

use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::link::{Profile, Rate, Uplink};
use mafs_client::vfs::Vfs;
use mafs_proto::{Clock, Instant, Random, VnodeId};
use mafs_server::ServerConfig;
use mafs_sim::{Path, VirtualClock, World};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::{CALLER, content, seeds, simulated, write_and_close};

const UPLINK_BYTES_PER_S: u64 = 1_000_000;
/// Deep, so that a client that keeps much on its way delays the others.
const QUEUE_BYTES: u64 = 1 << 20;
const RTT: Duration = Duration::from_millis(20);
/// Rate of the way to each client behind the uplink.
const OWN_BYTES_PER_S: u64 = 10 * UPLINK_BYTES_PER_S;

const GREEDY: usize = 10;
const FETCHES: usize = 24;
const THINKING_MS_MAX: u64 = 2000;
const SMALL_BYTES: u64 = 64_000;
/// An interactive client's share of the uplink, if all clients get the same, brings a small file in this time.
const FAIR: Duration = Duration::from_millis(SMALL_BYTES * (GREEDY as u64 + 1) * 1000 / UPLINK_BYTES_PER_S);

const LARGE: [&str; 8] = ["l0", "l1", "l2", "l3", "l4", "l5", "l6", "l7"];
/// A cache holds one of them.
const LARGE_BYTES: usize = 800_000;

/// Returns the configuration without a gate.
fn told_nothing() -> ServerConfig {
    ServerConfig::default()
}

fn told_its_uplink() -> ServerConfig {
    told_nothing().with_uplink(mafs_arpc::Rate::bytes_per_s(UPLINK_BYTES_PER_S).expect("a rate"))
}

/// A server behind its uplink, clients on ways of their own, and one beside the uplink that makes files.
struct Crowd {
    world: World,
    uplink: Uplink,
    clock: VirtualClock,
}

impl Crowd {
    async fn start(seed: u64, config: ServerConfig, ways: &[Profile]) -> Self {
        let clock = VirtualClock::start();
        let uplink = Uplink::new(&Rate::constant(UPLINK_BYTES_PER_S), QUEUE_BYTES, Instant(0));
        let behind = |way: &Profile| Path::Behind(uplink.clone(), Box::new(way.clone()));
        let maker = Path::Delay(Duration::ZERO);
        let paths = ways.iter().map(behind).chain([maker]).collect();
        let world = World::start_configured(seed, config, paths, false).await.expect("a world");
        let crowd = Self { world, uplink, clock };
        for name in LARGE {
            crowd.write(name, LARGE_BYTES).await;
        }
        crowd
    }

    fn client(&self, number: usize) -> Vfs {
        self.world.machines()[number].client().clone()
    }

    async fn write(&self, name: &'static str, bytes: usize) {
        write_and_close(self.maker(), name, vec![7; bytes]).await;
    }

    /// Returns the bytes received by all behind the uplink.
    fn received_bytes(&self) -> u64 {
        let (_maker, behind) = self.world.machines().split_last().expect("a client");
        behind.iter().flat_map(|machine| machine.client().statistics()).map(|class| class.received_bytes).sum()
    }

    async fn remove(&self, name: &'static str) {
        self.maker().unlink(VnodeId::ROOT, Bytes::from(name), CALLER).await.expect("an unlink");
    }

    fn maker(&self) -> &Vfs {
        self.world.machines().last().expect("a client").client()
    }
}

/// Fetches large files for ever, so many at a time.
fn be_greedy(vfs: &Vfs, parallel: usize) -> JoinSet<()> {
    let fetch = |first| {
        let vfs = vfs.clone();
        async move {
            for name in LARGE.into_iter().cycle().skip(first) {
                assert_eq!(content(&vfs, name).await.len(), LARGE_BYTES);
            }
        }
    };
    // Far enough from each other that nobody finds what another has fetched.
    (0..parallel).map(|number| fetch(number * LARGE.len() / parallel)).collect()
}

/// Fetches of an interactive client beside [`GREEDY`] others that keep the uplink busy.
struct Seen {
    /// How long its fetches take, sorted.
    took: Vec<Duration>,
    /// How many of them found something in the queue of the uplink.
    queued: usize,
    /// How much of the uplink brings bodies and payloads.
    used: f64,
}

impl Seen {
    fn median(&self) -> Duration {
        self.took[FETCHES / 2]
    }

    fn worst(&self) -> Duration {
        self.took[FETCHES - 1]
    }
}

/// Measures the fetches of an interactive client. The greedy ones are so far away.
async fn interactive_fetches(seed: u64, config: ServerConfig, rtt: Duration, parallel: usize) -> Seen {
    let mut ways = vec![Profile::steady(OWN_BYTES_PER_S, rtt); GREEDY];
    ways.push(Profile::steady(OWN_BYTES_PER_S, RTT));
    let crowd = Crowd::start(seed, config, &ways).await;
    let (start, before) = (crowd.clock.now(), crowd.received_bytes());
    let _greedy: Vec<_> = (0..GREEDY).map(|number| be_greedy(&crowd.client(number), parallel)).collect();
    let (vfs, mut random) = (crowd.client(GREEDY), Random::new(seed));
    let (mut took, mut queued) = (Vec::new(), 0);
    while took.len() < FETCHES {
        crowd.write("small", usize::try_from(SMALL_BYTES).expect("small")).await;
        sleep(Duration::from_millis(100 + random.below(THINKING_MS_MAX))).await;
        let began = crowd.clock.now();
        queued += usize::from(crowd.uplink.queued_bytes(began) > 0);
        assert_eq!(content(&vfs, "small").await.len() as u64, SMALL_BYTES);
        took.push(crowd.clock.now().since(began));
        // The next one is another, which it has not.
        crowd.remove("small").await;
    }
    took.sort();
    let carried = UPLINK_BYTES_PER_S as f64 * crowd.clock.now().since(start).as_secs_f64();
    Seen { took, queued, used: (crowd.received_bytes() - before) as f64 / carried }
}

/// Checks the share of an interactive client. The goal is 1.5 times the fair share's time for the worst fetch as well.
/// Of sixteen runs (seeds 0 to 7) fifteen keep it; one has 2.6 times, when the client's window is at its least beside
/// windows that grow.
fn check_share(parallel: usize) {
    for seed in 0..seeds(1) {
        let seen = simulated(interactive_fetches(seed, told_nothing(), RTT, parallel));
        let (median, worst, queued) = (seen.median(), seen.worst(), seen.queued);
        println!("seed {seed}, {parallel} at a time: median {median:?}, worst {worst:?} of {FAIR:?}");
        assert!(queued > FETCHES * 3 / 4, "nobody is greedy: the uplink was busy at {queued} of {FETCHES} times");
        assert!(median <= FAIR * 3 / 2, "seed {seed}: the median is {median:?}, the fair share's {FAIR:?}");
        assert!(worst <= FAIR * 3, "seed {seed}: the worst is {worst:?}, the fair share's {FAIR:?}");
    }
}

#[test]
fn ten_greedy_clients_leave_an_interactive_one_its_share() {
    check_share(1);
}

#[test]
fn greedy_clients_get_no_more_by_fetching_several_files_at_a_time() {
    check_share(4);
}

/// Checks the goal, for each fetch. Without the gate the worst of each run takes 2 to 14 times the fair share's time
/// where the greedy clients are far away.
fn check_gate(rtt: Duration, parallel: usize, used_min: f64) {
    for seed in 0..seeds(if cfg!(debug_assertions) { 1 } else { 16 }) {
        let seen = simulated(interactive_fetches(seed, told_its_uplink(), rtt, parallel));
        let (median, worst, used) = (seen.median(), seen.worst(), seen.used);
        println!("gate, {rtt:?}, seed {seed}, {parallel} at a time: {median:?}, worst {worst:?}, {used:.3} used");
        assert!(worst <= FAIR * 3 / 2, "seed {seed}: the worst is {worst:?}, the fair share's {FAIR:?}");
        assert!(used > used_min, "seed {seed}: only {used:.3} of the uplink brings content");
    }
}

#[test]
fn behind_a_gate_each_fetch_takes_its_share_s_time() {
    // 0.917 are possible: 97 % of the uplink, with headers of 80 bytes for each 1,400.
    check_gate(RTT, 1, 0.88);
    check_gate(RTT, 4, 0.88);
}

#[test]
fn behind_a_gate_far_greedy_clients_delay_nobody() {
    for rtt in [100, 200, 300].map(Duration::from_millis) {
        // All get the same, so all have a file whole and begin the next one at the same time.
        check_gate(rtt, 1, 0.78);
    }
}

/// How long a fast client takes for all large files, alone or beside a greedy one on a way of this rate.
async fn fast_client(config: ServerConfig, beside: Option<u64>) -> Duration {
    let ways = [OWN_BYTES_PER_S, beside.unwrap_or(OWN_BYTES_PER_S)].map(|rate| Profile::steady(rate, RTT));
    let crowd = Crowd::start(1, config, &ways).await;
    let _slow = beside.map(|_| be_greedy(&crowd.client(1), 4));
    let began = crowd.clock.now();
    for name in LARGE {
        assert_eq!(content(&crowd.client(0), name).await.len(), LARGE_BYTES);
    }
    crowd.clock.now().since(began)
}

#[test]
fn a_client_on_a_slow_way_does_not_slow_a_fast_one() {
    check_fast_client(told_nothing(), 110);
}

#[test]
fn behind_a_gate_a_client_on_a_slow_way_does_not_slow_a_fast_one() {
    // The 3 % that are left free are 3 % more time.
    check_fast_client(told_its_uplink(), 113);
}

/// Checks that a fast client alone takes at most so many percent of the time that the uplink takes for the contents,
/// and hardly more beside a slow one.
fn check_fast_client(config: ServerConfig, percent_max: u32) {
    let alone = simulated(fast_client(config, None));
    let least = Duration::from_millis((LARGE_BYTES * LARGE.len()) as u64 * 1000 / UPLINK_BYTES_PER_S);
    assert!(alone < least * percent_max / 100, "alone it takes {alone:?}, not {least:?}");
    for slow_bytes_per_s in [5_000, 20_000] {
        let beside = simulated(fast_client(config, Some(slow_bytes_per_s)));
        println!("{alone:?} alone, {beside:?} beside {slow_bytes_per_s} B/s");
        assert!(beside < alone * 21 / 20, "{beside:?} beside a client of {slow_bytes_per_s} B/s, {alone:?} alone");
    }
}
