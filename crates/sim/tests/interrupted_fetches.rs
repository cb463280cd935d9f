//! A fetch that is interrupted goes on where it was, when there is a connection again: nobody has to ask for it, and
//! what has come does not come again (docs/semantics.md, "Without a connection").

use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::hoard::HoardSpec;
use mafs_client::vfs::{Cached, Error, FileHandle, Vfs, Writeback};
use mafs_proto::{Class, Random, VnodeId};
use mafs_sim::{Crash, LEASE, LEASE_BIAS, Path, World};
use tokio::time::{Instant, sleep};

use crate::support::{
    BLACK_HOLE, READ, clients, configured, content, look, open_by_name, overwrite, seeds, simulate, usable_apart,
    write_and_close,
};

const RATE: u64 = 1_000_000;
const RTT: Duration = Duration::from_millis(50);
const UNPLUGGED: Duration = Duration::from_secs(20);
/// An operation that needs no server, or knows that there is none.
const INSTANT: Duration = Duration::from_millis(50);
/// Silence is taken for the end of the path after this long.
const DEAD_AFTER: Duration = Duration::from_secs(8);
/// The wait that `hard` sets.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
const LARGE_BYTES: u32 = 20_000_000;
/// Bytes received at most over interruptions that the client survives.
const RECEIVED_BYTES_MAX: u64 = 20_400_000;
const INTERRUPTIONS: u64 = 5;

fn large() -> Vec<u8> {
    (0..LARGE_BYTES).map(|at| (at / 251).to_le_bytes()[0] ^ (at / 65_536).to_le_bytes()[0]).collect()
}

/// Two clients, of which the first has made a file that takes the second 20 s to fetch.
async fn two() -> (World, [Vfs; 2]) {
    let near = Path::Delay(Duration::from_millis(10));
    let far = Path::Link(Box::new(Profile::steady(RATE, RTT)));
    let world = World::start_over(1, vec![near, far], false).await.expect("a world");
    let world = usable_apart(world, Writeback::Sync).await;
    let vfs = clients(&world);
    write_and_close(&vfs[0], "large", large()).await;
    (world, vfs)
}

fn received_bytes(vfs: &Vfs) -> u64 {
    vfs.statistics().iter().map(|class| class.received_bytes).sum()
}

fn received_as(vfs: &Vfs, class: Class) -> u64 {
    vfs.statistics()[class.index()].received_bytes
}

fn is_whole(vfs: &Vfs, vnode: VnodeId) -> bool {
    vfs.object_report(vnode).is_some_and(|report| report.cached == Cached::Whole)
}

async fn until_connected(vfs: &Vfs) {
    while !vfs.status().connected {
        sleep(RTT).await;
    }
}

async fn read(vfs: &Vfs, file: FileHandle, offset: usize) -> Result<Vec<u8>, Error> {
    vfs.read(file, offset as u64, 4096).await.map(|bytes| bytes.to_vec())
}

/// Programs read a file, and the link is gone for a while in the middle.
#[test]
fn a_read_fails_while_the_link_is_gone_and_goes_on_afterwards() {
    simulate(async {
        let (world, [_, two]) = two().await;
        let vnode = look(&two, "large").await.fid.vnode;
        let file = open_by_name(&two, "large").await;
        sleep(Duration::from_secs(8)).await;
        world.machines()[1].fall_silent_for(BLACK_HOLE, UNPLUGGED, true);
        let begun = Instant::now();
        let failed = read(&two, file, 15_000_000).await;
        assert!(matches!(failed, Err(Error::OutOfReach(_))), "{failed:?}");
        assert!(begun.elapsed() < DEAD_AFTER, "it took {:?}", begun.elapsed());
        let begun = Instant::now();
        assert!(read(&two, file, 15_000_000).await.is_err());
        assert!(two.open(vnode, READ, crate::support::CALLER).await.is_err(), "it is not here whole");
        assert_eq!(read(&two, file, 5_000_000).await.expect("what has come"), large()[5_000_000..5_004_096]);
        assert!(begun.elapsed() < INSTANT, "it took {:?}", begun.elapsed());
        let report = two.object_report(vnode).expect("a report");
        assert!(report.cached == Cached::Partly && report.cached_bytes > 6_000_000, "{report:?}");
        until_connected(&two).await;
        let begun = Instant::now();
        assert_eq!(read(&two, file, 19_000_000).await.expect("a read"), large()[19_000_000..19_004_096]);
        assert!(begun.elapsed() < Duration::from_secs(2), "it took {:?}", begun.elapsed());
        assert!(two.read(file, 0, LARGE_BYTES).await.expect("a read") == large());
        let received = received_bytes(&two);
        assert!(received < RECEIVED_BYTES_MAX, "{received} bytes");
        two.release(file);
        assert!(is_whole(&two, vnode));
    });
}

#[test]
fn with_hard_a_read_waits_for_the_link() {
    simulate(async {
        let (world, _) = two().await;
        let world = configured(world, |machine| machine.set_deadline(FOR_EVER)).await;
        let [_, two] = clients(&world);
        let file = open_by_name(&two, "large").await;
        sleep(Duration::from_secs(8)).await;
        world.machines()[1].fall_silent_for(BLACK_HOLE, 3 * UNPLUGGED, true);
        assert!(two.read(file, 0, LARGE_BYTES).await.expect("a read") == large());
        assert!(received_bytes(&two) < RECEIVED_BYTES_MAX, "{} bytes", received_bytes(&two));
    });
}

/// The rest comes of a file that has been closed, though the link was gone when that happened.
#[test]
fn the_rest_comes_by_itself_after_the_reconnection_and_delays_nobody() {
    simulate(async {
        let (world, [one, two]) = two().await;
        write_and_close(&one, "small", vec![7; 100_000]).await;
        let vnode = look(&two, "large").await.fid.vnode;
        let file = open_by_name(&two, "large").await;
        sleep(Duration::from_secs(5)).await;
        world.machines()[1].fall_silent_for(BLACK_HOLE, UNPLUGGED, true);
        assert!(read(&two, file, 15_000_000).await.is_err());
        two.release(file);
        let fetched = received_as(&two, Class::Fetch);
        until_connected(&two).await;
        sleep(Duration::from_secs(3)).await;
        let begun = Instant::now();
        assert_eq!(content(&two, "small").await.len(), 100_000);
        assert!(begun.elapsed() < Duration::from_millis(500), "it took {:?}", begun.elapsed());
        sleep(Duration::from_secs(20)).await;
        assert!(is_whole(&two, vnode));
        let fetched = received_as(&two, Class::Fetch) - fetched;
        assert!(fetched < 110_000, "the rest is nobody's: {fetched} bytes");
        assert!(received_bytes(&two) < RECEIVED_BYTES_MAX + 110_000, "{} bytes", received_bytes(&two));
    });
}

/// A file that nobody could open while the link was gone is not fetched afterwards.
#[test]
fn what_was_looked_for_in_vain_is_not_fetched_later() {
    simulate(async {
        let (world, [_, two]) = two().await;
        let vnode = look(&two, "large").await.fid.vnode;
        world.machines()[1].fall_silent_for(BLACK_HOLE, UNPLUGGED, true);
        for _ in 0..3 {
            assert!(two.open(vnode, READ, crate::support::CALLER).await.is_err());
        }
        until_connected(&two).await;
        sleep(Duration::from_secs(30)).await;
        assert!(received_bytes(&two) < 50_000, "{} bytes", received_bytes(&two));
    });
}

/// A fetch is of one version.
#[test]
fn a_version_that_is_gone_at_the_reconnection_is_an_error_for_who_reads_it_and_no_mixture() {
    simulate(async {
        let (world, [one, two]) = two().await;
        let file = open_by_name(&two, "large").await;
        sleep(Duration::from_secs(8)).await;
        world.machines()[1].fall_silent(BLACK_HOLE);
        sleep(LEASE + LEASE_BIAS).await;
        let mut changed = large();
        changed[..10].fill(0xEE);
        overwrite(&one, "large", changed[..10].to_vec()).await;
        world.machines()[1].break_silence();
        until_connected(&two).await;
        sleep(Duration::from_secs(1)).await;
        let gone = read(&two, file, 19_000_000).await;
        assert!(matches!(gone, Err(Error::VersionGone)), "{:?}", gone.map(|bytes| bytes[0]));
        assert!(content(&two, "large").await == changed);
        two.release(file);
    });
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Interruption {
    Cut,
    Silence,
    KillClient,
    Unmount,
    KillServer,
}

/// Interrupts the client. Returns what it has received, as far as that will not be counted otherwise.
async fn interrupt(world: &mut World, interruption: Interruption) -> u64 {
    let received = received_bytes(world.machines()[1].client());
    match interruption {
        Interruption::Cut => world.cut_link(),
        Interruption::Silence => {
            world.machines()[1].fall_silent_for(BLACK_HOLE, UNPLUGGED, true);
            sleep(UNPLUGGED + Duration::from_secs(2)).await;
        }
        Interruption::KillClient => world.crash_machine(1, Crash::Kill),
        Interruption::Unmount => world.machines_mut()[1].stop().await,
        Interruption::KillServer => {
            world.crash_server(Crash::Kill);
            world.start_server().expect("the server starts");
        }
    }
    if matches!(interruption, Interruption::KillClient | Interruption::Unmount) {
        world.machines_mut()[1].start().await.expect("a client");
        return received;
    }
    0
}

/// A program reads, is interrupted and reads again.
#[test]
fn five_interruptions_of_a_reader_cost_less_than_a_fiftieth() {
    use Interruption::{Cut, KillClient, KillServer, Silence, Unmount};
    for seed in 0..seeds(1) {
        simulate(async move {
            let (mut world, [_, two]) = two().await;
            drop(two);
            let (mut random, mut received) = (Random::new(seed), 0);
            for interruption in [KillClient, Cut, Unmount, Silence, KillServer] {
                let vfs = world.machines()[1].client().clone();
                open_by_name(&vfs, "large").await;
                sleep(Duration::from_millis(1000 + random.below(2000))).await;
                drop(vfs);
                received += interrupt(&mut world, interruption).await;
            }
            let two = world.machines()[1].client().clone();
            assert!(content(&two, "large").await == large(), "{seed}");
            received += received_bytes(&two);
            println!("seed {seed}: {received} bytes");
            // A killed client has lost what came within a second.
            assert!(received < RECEIVED_BYTES_MAX + RATE, "seed {seed}: {received} bytes");
        });
    }
}

/// A pinned file comes by itself, whatever happens meanwhile.
#[test]
fn five_interruptions_of_what_is_pinned_cost_less_than_a_fiftieth() {
    use Interruption::{Cut, KillServer, Silence, Unmount};
    for seed in 0..seeds(1) {
        simulate(async move {
            let (mut world, [_, two]) = two().await;
            let vnode = look(&two, "large").await.fid.vnode;
            two.hoard(b"large", HoardSpec::PIN).expect("a pin");
            drop(two);
            let (mut random, mut received) = (Random::new(seed), 0);
            let choices = [Cut, Unmount, Silence, KillServer];
            for _ in 0..INTERRUPTIONS {
                sleep(Duration::from_millis(2000 + random.below(2000))).await;
                let choice = choices[usize::try_from(random.below(4)).expect("small")];
                received += interrupt(&mut world, choice).await;
            }
            sleep(Duration::from_secs(60)).await;
            let two = world.machines()[1].client().clone();
            assert!(is_whole(&two, vnode), "{:?}", two.status().hoard);
            received += received_bytes(&two);
            println!("seed {seed}: {received} bytes");
            assert!(received < RECEIVED_BYTES_MAX, "seed {seed}: {received} bytes");
            assert!(content(&two, "large").await == large(), "{seed}");
        });
    }
}

/// Bytes that came just before a loss of power may be anything; those that came long before, or before an unmount, are
/// kept.
#[test]
fn a_loss_of_power_costs_what_was_not_durable_and_brings_nothing_wrong() {
    for unmounted in [false, true] {
        simulate(async move {
            let (mut world, [_, two]) = two().await;
            open_by_name(&two, "large").await;
            sleep(Duration::from_secs(8)).await;
            let before = received_bytes(&two);
            drop(two);
            if unmounted {
                world.machines_mut()[1].stop().await;
            }
            world.crash_machine(1, Crash::Power);
            world.machines_mut()[1].start().await.expect("a client");
            let two = world.machines()[1].client().clone();
            assert!(content(&two, "large").await == large());
            let after = received_bytes(&two);
            if unmounted {
                assert!(before + after < RECEIVED_BYTES_MAX, "{before} and {after} bytes");
            } else {
                assert!(after > u64::from(LARGE_BYTES), "{after} bytes");
            }
        });
    }
}

/// A part that nobody uses makes room like any content.
#[test]
fn what_came_in_part_makes_room() {
    simulate(async {
        let (mut world, [_, two]) = two().await;
        let vnode = look(&two, "large").await.fid.vnode;
        open_by_name(&two, "large").await;
        sleep(Duration::from_secs(8)).await;
        drop(two);
        world.crash_machine(1, Crash::Kill);
        world.machines_mut()[1].start().await.expect("a client");
        let two = world.machines()[1].client().clone();
        let report = two.object_report(vnode).expect("a report");
        assert!(report.cached == Cached::Partly && report.cached_bytes > 5_000_000, "{report:?}");
        assert!(two.status().cache_bytes > 5_000_000, "{:?}", two.status());
        two.evict(b"large").await.expect("an eviction").expect("a path");
        assert!(two.status().cache_bytes < 100_000, "{:?}", two.status());
        assert_eq!(two.object_report(vnode).expect("a report").cached, Cached::No);
    });
}
