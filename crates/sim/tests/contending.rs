//! Figure M2 on a smaller scale: somebody searches and reads beside a program that writes more than the link carries.
//! With `writeback=async` the writer never waits, and the others wait hardly longer than with the link to themselves.

use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::vfs::Writeback;
use mafs_sim::workload::Tree;
use mafs_sim::{Machine, Path, World};
use tokio::time::{Instant, sleep};

use crate::support::simulated;

const CACHE_BYTES: u64 = 1 << 30;
const RTT: Duration = Duration::from_millis(20);
const SEARCHED: usize = 50;
const READ: usize = 4;
const READ_BYTES: usize = 64 << 10;
const WRITTEN_BYTES: usize = 384 << 10;
const WRITING_EVERY: Duration = Duration::from_millis(200);
/// In this time the client finds out what the link carries.
const WARM_UP: Duration = Duration::from_secs(7);
/// The foreground program pauses after each step.
const THINKING: Duration = Duration::from_millis(300);
/// The most that a chunk takes: two of them may be before a call, one in either direction.
const CHUNK: Duration = Duration::from_millis(22);

/// Times that programs waited.
#[derive(Debug)]
struct Waited {
    searching: Duration,
    reading: Duration,
    /// How long the writer waited for each file.
    writing: Vec<Duration>,
    /// Bytes in the log, which have still to be sent.
    log: usize,
}

/// A client behind a link of 64 KB/s that has what is searched in its cache, to be validated.
async fn world(writeback: Writeback) -> World {
    let link = Path::Link(Box::new(Profile::steady(64 << 10, RTT)));
    let mut world = World::start_over(1, vec![Path::Delay(Duration::ZERO), link], false).await.expect("a world");
    let near = Tree::new(world.client().clone());
    for dir in ["searched", "read", "out"] {
        near.make_dir(dir).await.expect("a directory");
    }
    for file in 0..SEARCHED {
        near.write("searched", &file.to_string(), vec![1; 4 << 10]).await.expect("a file");
    }
    for file in 0..READ {
        near.write("read", &file.to_string(), vec![2; READ_BYTES]).await.expect("a file");
    }
    let machine = &mut world.machines_mut()[1];
    restart(machine, Writeback::Sync).await;
    search(&Tree::new(machine.client().clone())).await;
    restart(machine, writeback).await;
    world
}

async fn restart(machine: &mut Machine, writeback: Writeback) {
    machine.stop().await;
    machine.set_cache_limit_bytes(CACHE_BYTES);
    machine.set_writeback(writeback);
    machine.start().await.expect("a client");
}

async fn search(tree: &Tree) -> Duration {
    let began = Instant::now();
    for file in 0..SEARCHED {
        tree.read("searched", &file.to_string()).await.expect("a file");
    }
    began.elapsed()
}

/// Writes until it is ended, and says how long each file took.
async fn write(tree: &Tree, took: &mut Vec<Duration>) {
    loop {
        let began = Instant::now();
        let name = took.len().to_string();
        tree.write("out", &name, vec![3; WRITTEN_BYTES]).await.expect("a file");
        took.push(began.elapsed());
        sleep(WRITING_EVERY.saturating_sub(began.elapsed())).await;
    }
}

fn run(writeback: Writeback, with_writer: bool) -> Waited {
    simulated(async {
        let world = world(writeback).await;
        let tree = Tree::new(world.machines()[1].client().clone());
        let foreground = async {
            sleep(WARM_UP).await;
            let searching = search(&tree).await;
            let mut reading = Duration::ZERO;
            for file in 0..READ {
                sleep(THINKING).await;
                let began = Instant::now();
                tree.read("read", &file.to_string()).await.expect("a file");
                reading += began.elapsed();
            }
            (searching, reading)
        };
        let mut writing = Vec::new();
        let (searching, reading) = if with_writer {
            tokio::select! {
                waited = foreground => waited,
                () = write(&tree, &mut writing) => unreachable!("the writer has no end"),
            }
        } else {
            foreground.await
        };
        let log = usize::try_from(tree.vfs().status().log.bytes).expect("some megabytes");
        Waited { searching, reading, writing, log }
    })
}

#[test]
fn with_async_the_writer_never_waits_and_others_hardly_longer_than_alone() {
    let alone = run(Writeback::Async, false);
    let waits = run(Writeback::Sync, true);
    let never_waits = run(Writeback::Async, true);
    println!("alone {alone:?}, sync {waits:?}, async {never_waits:?}");
    assert!(waits.writing[0] > Duration::from_secs(5), "{waits:?}");
    // Before the first it asks for the names in the directory.
    assert!(never_waits.writing[1..].iter().all(Duration::is_zero), "{never_waits:?}");
    // The files go into the log, and the link takes from that what it carries.
    assert!(never_waits.log > never_waits.writing.len() * WRITTEN_BYTES / 2, "{never_waits:?}");
    for beside in [&waits, &never_waits] {
        let calls = u32::try_from(READ).expect("some");
        // The figure's limits are for medians of nine seeds; this is one.
        let searching = alone.searching * 120 / 100 + 2 * CHUNK;
        let reading = (alone.reading * 120 / 100).max(alone.reading + 2 * CHUNK * calls);
        assert!(beside.searching < searching, "{beside:?}, alone {alone:?}");
        assert!(beside.reading < reading, "{beside:?}, alone {alone:?}");
    }
}

#[test]
fn what_waits_is_bounded_by_the_disk_and_goes_on_when_some_has_been_sent() {
    const FREE_BYTES: u64 = 4 << 20;
    simulated(async {
        let world = world(Writeback::Async).await;
        let machine = &world.machines()[1];
        let tree = Tree::new(machine.client().clone());
        machine.limit_disk(FREE_BYTES).expect("a disk");
        let mut number = 0;
        let refused = loop {
            match tree.write("out", &number.to_string(), vec![3; WRITTEN_BYTES]).await {
                Ok(()) => number += 1,
                Err(error) => break error,
            }
            assert!(number as u64 * (WRITTEN_BYTES as u64) < 2 * FREE_BYTES, "the disk holds more than it has");
            sleep(WRITING_EVERY).await;
        };
        println!("after {number} files: {refused}");
        assert!(number as u64 * WRITTEN_BYTES as u64 > FREE_BYTES / 2, "{number} files, then {refused}");
        tree.vfs().sync().await.expect("all is sent");
        tree.write("out", "again", vec![3; WRITTEN_BYTES]).await.expect("there is room again");
    });
}
