//! Writes and reads at random under `close=announced`: what a close has returned for is seen by every later open and
//! look, whoever has its bytes.
//!
//! `MAFS_SIM_SEEDS=1000 cargo test --release -p mafs-sim --test sim announced_at_random::` is the long run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::vfs::{Close, Error, OpenMode, Vfs, Writeback};
use mafs_proto::Random;
use mafs_sim::{History, Path, Register, World};
use tokio::time::sleep;

use crate::support::{CALLER, READ, WRITE, clients, configured, look, seeds, simulate, write_and_close};

/// The rate of the slower of two links.
const RATE: u64 = 64_000;
const WRITER_RTT: Duration = Duration::from_millis(100);
const READER_RTT: Duration = Duration::from_millis(10);
/// The size tells which write a content is of: this and the number of the write.
const SMALLEST_BYTES: usize = 20_000;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Writes of one run, and reads of each client meanwhile.
const WRITES: u64 = 40;
const READS: u64 = 40;

/// History of the acts and sights of the clients of a run.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<History>>);

impl Seen {
    fn history(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write(&self, client: usize, vfs: &Vfs, name: &'static str, number: u64) {
        let vnode = look(vfs, name).await.fid.vnode;
        let update = self.history().begin(client, Register::Content(vnode), Some(number));
        let opened = vfs.open(vnode, OpenMode { truncate: true, ..WRITE }, CALLER).await.expect("an open");
        let bytes = SMALLEST_BYTES + usize::try_from(number).expect("a small number");
        let content = vec![u8::try_from(number % 251).expect("small"); bytes];
        match opened.passthrough {
            true => vfs.container(opened.file).expect("its container").write_all_at(&content, 0).expect("a write"),
            false => vfs.write(opened.file, 0, content.into()).await.expect("a write"),
        }
        if let Err(error) = vfs.flush(opened.file).await {
            panic!("client {client}, {name}, write {number}: {error}");
        }
        vfs.release(opened.file);
        self.history().acknowledge(update, number);
    }

    async fn read(&self, client: usize, vfs: &Vfs, name: &'static str) {
        let began = self.history().now();
        let vnode = look(vfs, name).await.fid.vnode;
        let file = vfs.open(vnode, READ, CALLER).await.expect("an open").file;
        let bytes = vfs.read(file, 0, u32::MAX / 2).await;
        vfs.release(file);
        let bytes = match bytes {
            Ok(bytes) => bytes,
            // The connection broke while it came, and another has taken its place at the server.
            Err(Error::VersionGone) => return,
            Err(error) => panic!("{error}"),
        };
        let number = bytes.len().saturating_sub(SMALLEST_BYTES) as u64;
        assert!(bytes.iter().all(|byte| u64::from(*byte) == number % 251), "a mixture");
        self.history().see(client, Register::Content(vnode), number, began);
    }

    async fn stat(&self, client: usize, vfs: &Vfs, name: &'static str) {
        let began = self.history().now();
        let object = look(vfs, name).await;
        let number = object.status.size.saturating_sub(SMALLEST_BYTES as u64);
        self.history().see(client, Register::Content(object.fid.vnode), number, began);
    }
}

fn one_of(random: &mut Random) -> usize {
    usize::try_from(random.below(3)).expect("below 3")
}

/// Three clients with the three files. The first two are at the end of slow links.
async fn world(seed: u64, writeback: Writeback) -> World {
    let slow = |rate| Path::Link(Box::new(Profile::steady(rate, WRITER_RTT)));
    let paths = vec![slow(RATE), slow(3 * RATE), Path::Delay(READER_RTT / 2)];
    let world = World::start_over(seed, paths, seed % 2 == 1).await.expect("a world");
    let world = configured(world, |machine| {
        machine.set_writeback(writeback);
        machine.set_close(Close::Announced);
    });
    let world = world.await;
    let near = world.machines()[2].client();
    for name in NAMES {
        write_and_close(near, name, Vec::new()).await;
    }
    near.sync().await.expect("a sync");
    world
}

/// Looks at files and opens them.
async fn read_at_random(seen: Seen, client: usize, vfs: Vfs, mut random: Random) {
    for _ in 0..READS {
        let name = NAMES[one_of(&mut random)];
        match random.below(2) {
            0 => seen.read(client, &vfs, name).await,
            _ => seen.stat(client, &vfs, name).await,
        }
        sleep(Duration::from_millis(random.below(900))).await;
    }
}

/// One writes after the other, and all look and open at any time.
async fn write_and_read_at_random(seed: u64, writeback: Writeback, cuts: bool) {
    let world = world(seed, writeback).await;
    let (vfs, seen) = (clients::<3>(&world), Seen::default());
    let reading = |client: usize| {
        let random = Random::new(1000 * seed + client as u64);
        tokio::spawn(read_at_random(seen.clone(), client, vfs[client].clone(), random))
    };
    let readers = [0, 1, 2].map(reading);
    let mut random = Random::new(seed);
    for number in 1..=WRITES {
        let (writer, name) = (one_of(&mut random), NAMES[one_of(&mut random)]);
        seen.write(writer, &vfs[writer], name, number).await;
        if cuts && random.below(4) == 0 {
            world.machines()[one_of(&mut random)].cut_link();
        }
        sleep(Duration::from_millis(random.below(400))).await;
    }
    for reader in readers {
        reader.await.expect("a reader");
    }
    for vfs in &vfs {
        vfs.sync().await.expect("a sync");
    }
    for (client, vfs) in vfs.iter().enumerate() {
        for name in NAMES {
            seen.read(client, vfs, name).await;
        }
        assert!(vfs.status().refused.is_empty() && vfs.status().stale_reads == 0, "{:?}", vfs.status());
    }
    if let Err(why) = seen.history().check() {
        panic!("seed {seed}: {why}");
    }
}

#[test]
fn reftest_whoever_opens_or_looks_sees_what_was_announced() {
    for seed in 0..seeds(4) {
        let writeback = if seed % 4 == 3 { Writeback::SirpC } else { Writeback::Sirp };
        simulate(write_and_read_at_random(seed, writeback, false));
    }
}

#[test]
fn reftest_broken_connections_hide_nothing_that_was_announced() {
    for seed in 0..seeds(4) {
        simulate(write_and_read_at_random(seed, Writeback::Sirp, true));
    }
}
