//! A store that is interrupted goes on where it was: over a link that breaks sooner than a large content is through it
//! would never end otherwise (arpc.md, "payloads continue at the last durable offset").

use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::vfs::{Vfs, Writeback};
use mafs_proto::Random;
use mafs_sim::{Crash, Path, World};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::{configured, content, create, seeds, simulate, with_empty_cache, write_and_close};

/// [`large`] takes more than 3 s.
async fn slow_world() -> World {
    let link = Profile::steady(2_000_000, Duration::from_millis(50));
    World::start_over(1, vec![Path::Link(Box::new(link))], false).await.expect("a world")
}

/// How long the link or the server lasts.
const LIFE: Duration = Duration::from_millis(1800);

fn large() -> Vec<u8> {
    (0..8_000_000_u32).map(|at| (at / 251).to_le_bytes()[0] ^ (at / 65_536).to_le_bytes()[0]).collect()
}

fn storing(vfs: &Vfs) -> JoinHandle<()> {
    let vfs = vfs.clone();
    tokio::spawn(async move {
        write_and_close(&vfs, "large", large()).await;
    })
}

/// Does `interrupt` every [`LIFE`] until the close is acknowledged. Returns how often.
async fn interrupt_until_closed(world: &mut World, mut interrupt: impl FnMut(&mut World)) -> u32 {
    let mut closing = storing(world.client());
    let mut interruptions = 0;
    while tokio::time::timeout(LIFE, &mut closing).await.map(|closed| closed.expect("the close")).is_err() {
        interrupt(world);
        interruptions += 1;
        assert!(interruptions < 10, "it makes no progress");
    }
    interruptions
}

async fn check(world: &mut World) {
    with_empty_cache(world).await;
    assert!(content(world.client(), "large").await == large());
}

#[test]
fn a_link_that_breaks_again_and_again_brings_a_large_file_through() {
    simulate(async {
        let mut world = slow_world().await;
        let interruptions = interrupt_until_closed(&mut world, |world| world.cut_link()).await;
        assert!(interruptions >= 2, "it was through before it broke twice: {interruptions}");
        check(&mut world).await;
    });
}

#[test]
fn a_server_that_crashes_again_and_again_takes_a_large_file() {
    for crash in [Crash::Kill, Crash::Power] {
        simulate(async {
            let mut world = slow_world().await;
            let interruptions = interrupt_until_closed(&mut world, |world| {
                world.crash_server(crash);
                world.start_server().expect("the server starts");
            });
            let interruptions = interruptions.await;
            assert!(interruptions >= 2, "it was through before two crashes: {interruptions}");
            check(&mut world).await;
        });
    }
}

#[test]
fn status_says_how_much_has_not_arrived() {
    simulate(async {
        let mut world = slow_world().await;
        let vfs = world.client().clone();
        let mut closing = storing(&vfs);
        let mut last = u64::MAX;
        while tokio::time::timeout(LIFE, &mut closing).await.is_err() {
            let unsent = vfs.status().unsent_bytes;
            assert!(unsent < last.min(large().len() as u64 * 3 / 4), "{unsent} bytes, {last} before");
            // Bytes that were on their way are lost.
            last = unsent + 1_000_000;
            world.cut_link();
        }
        assert_eq!(vfs.status().unsent_bytes, 0);
        check(&mut world).await;
    });
}

#[test]
fn a_client_that_was_killed_goes_on_where_it_was() {
    simulate(async {
        let mut world = slow_world().await;
        let began = Instant::now();
        write_and_close(world.client(), "first", large()).await;
        let whole = began.elapsed();
        let closing = storing(world.client());
        tokio::time::sleep(whole * 4 / 5).await;
        world.crash_client(Crash::Kill);
        closing.abort();
        let began = Instant::now();
        world.start_client().await.expect("the client starts");
        world.client().sync().await.expect("all is sent");
        assert!(began.elapsed() < whole / 2, "{:?} of {whole:?}", began.elapsed());
        check(&mut world).await;
    });
}

#[test]
fn what_changed_after_the_interruption_is_sent_anew() {
    simulate(async {
        let mut world = slow_world().await;
        let (_, file) = create(world.client(), "large").await;
        let vfs = world.client().clone();
        vfs.write(file, 0, large().into()).await.expect("a write");
        let closing = tokio::spawn({
            let vfs = vfs.clone();
            async move { vfs.flush(file).await }
        });
        tokio::time::sleep(LIFE).await;
        world.machines()[0].isolate();
        vfs.write(file, 0, vec![0xEE; 100_000].into()).await.expect("a write");
        world.machines()[0].restore_link();
        let _ = closing.await.expect("the task");
        vfs.flush(file).await.expect("a close");
        vfs.release(file);
        with_empty_cache(&mut world).await;
        let mut wanted = large();
        wanted[..100_000].fill(0xEE);
        assert!(content(world.client(), "large").await == wanted);
    });
}

/// The size of a content that is interrupted so often, and the most that may be sent of it in all.
const HUGE_BYTES: u32 = 50_000_000;
const INTERRUPTIONS: usize = 10;
const SENT_BYTES_MAX: u64 = 51_000_000;

/// Event that ends an attempt to store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Interruption {
    Cut,
    KillClient,
    KillServer,
}

/// Returns the bytes of all classes: what is pulled travels as what is fetched does.
fn sent_bytes(vfs: &Vfs) -> u64 {
    vfs.statistics().iter().map(|class| class.sent_bytes).sum()
}

/// Moments in the time that storing takes by this rate, the earliest first.
fn moments(random: &mut Random, bytes_per_s: u64) -> Vec<Duration> {
    let whole_ms = u64::from(HUGE_BYTES) * 1000 / bytes_per_s;
    let mut moments: Vec<u64> = (0..INTERRUPTIONS).map(|_| whole_ms / 100 + random.below(whole_ms * 9 / 10)).collect();
    moments.sort_unstable();
    moments.into_iter().map(Duration::from_millis).collect()
}

/// Stores a large file and interrupts that at random moments. Returns how much was sent in all.
async fn interrupt_at_random(seed: u64, writeback: Writeback, bytes_per_s: u64, choices: &[Interruption]) -> u64 {
    let link = Profile::steady(bytes_per_s, Duration::from_millis(10));
    let world = World::start_over(seed, vec![Path::Link(Box::new(link))], false).await.expect("a world");
    let mut world = configured(world, |machine| machine.set_writeback(writeback)).await;
    let content: Vec<u8> =
        (0..HUGE_BYTES).map(|at| (at / 251).to_le_bytes()[0] ^ (at / 65_536).to_le_bytes()[0]).collect();
    let (mut random, mut sent) = (Random::new(seed), 0);
    let closing = tokio::spawn({
        let (vfs, content) = (world.client().clone(), content.clone());
        async move { write_and_close(&vfs, "huge", content).await }
    });
    let began = Instant::now();
    for moment in moments(&mut random, bytes_per_s) {
        tokio::time::sleep_until(began + moment).await;
        assert_eq!(world.client().status().unsent_files, 1, "it is through at {moment:?}");
        match choices[usize::try_from(random.below(choices.len() as u64)).expect("small")] {
            Interruption::Cut => world.cut_link(),
            Interruption::KillClient => {
                sent += sent_bytes(world.client());
                world.crash_client(Crash::Kill);
                world.start_client().await.expect("the client starts");
            }
            Interruption::KillServer => {
                world.crash_server(Crash::Kill);
                world.start_server().expect("the server starts");
            }
        }
    }
    world.client().sync().await.expect("all is sent");
    sent += sent_bytes(world.client());
    closing.abort();
    with_empty_cache(&mut world).await;
    assert!(crate::support::content(world.client(), "huge").await == content, "{seed}");
    sent
}

#[test]
fn ten_interruptions_cost_less_than_a_fiftieth() {
    for seed in 0..seeds(1) {
        for writeback in [Writeback::Sync, Writeback::Async, Writeback::Sirp] {
            simulate(async move {
                let sent = interrupt_at_random(seed, writeback, 1_000_000, &[Interruption::Cut]).await;
                println!("seed {seed}, {writeback:?}: {sent} bytes");
                assert!(sent < SENT_BYTES_MAX, "seed {seed}, {writeback:?}: {sent} bytes");
            });
        }
    }
}

/// A server that is killed has lost what came in the last second, so how much that is follows the link.
#[test]
fn ten_interruptions_of_which_some_kill_cost_less_than_a_fiftieth() {
    let choices = [Interruption::Cut, Interruption::KillClient, Interruption::KillServer];
    for seed in 0..seeds(1) {
        for writeback in [Writeback::Async, Writeback::Sirp] {
            simulate(async move {
                let sent = interrupt_at_random(seed, writeback, 100_000, &choices).await;
                println!("seed {seed}, {writeback:?}: {sent} bytes");
                assert!(sent < SENT_BYTES_MAX, "seed {seed}, {writeback:?}: {sent} bytes");
            });
        }
    }
}
