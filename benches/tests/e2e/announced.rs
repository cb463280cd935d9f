//! Two mounts of one volume, one of them behind a slow link and with much to send: the other opens the content that
//! this one has closed, as soon as it is announced (consistency.md, "SIRP").

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use mafs_arpc::link::Profile;
use mafs_bench::client::Client;
use mafs_bench::content::bytes;
use mafs_bench::link::EmulatedLink;
use mafs_bench::process::{finish, wait_until};
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;
use serde_json::Value;

/// The writer's link: bytes per second, and the round trip.
const RATE: u32 = 64 << 10;
const RTT: Duration = Duration::from_millis(20);
/// Rate that a plain upload gets of it: 59 of 64 KB/s (facts.md, section 3).
const GOODPUT: f64 = RATE as f64 * 59.0 / 64.0;
/// Bytes that may be on their way when somebody pulls: the window on this link, and the packets around it.
const WINDOW_BYTES: f64 = 6000.0;

const QUEUED: u64 = 8;
const QUEUED_BYTES: usize = 128 << 10;
const SHARED_BYTES: u32 = 64 << 10;

const LIMIT: Duration = Duration::from_secs(120);
/// Some 30 times the time that consistency.md allows: a processor may be busy elsewhere.
const ANNOUNCED_LIMIT: Duration = Duration::from_secs(10);

/// A way in which a program saves a file.
type Save = fn(&Path, &[u8]);

fn in_place(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
}

/// Saves as editors do, and git.
fn by_rename(path: &Path, content: &[u8]) {
    let temporary = path.with_extension("new");
    fs::write(&temporary, content).unwrap();
    fs::rename(temporary, path).unwrap();
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn what_a_slow_writer_has_announced_is_what_others_open() {
    for (name, save) in [("in place", in_place as Save), ("by rename", by_rename)] {
        let link = EmulatedLink::start(&Profile::steady(u64::from(RATE), RTT)).unwrap();
        let world = World::start_over(link, "writeback=sirp").unwrap();
        let mut reader = world.another_client_beside_server("reader").unwrap();
        let _watchdog = Watchdog::start(LIMIT, vec![world.mount(), reader.mount()]);
        let (written, read) = (world.mount().join("shared"), reader.mount().join("shared"));
        fs::write(&written, bytes(1, 1000)).unwrap();
        client(&world, &["sync"], &world.mount());
        assert!(fs::read(&read).unwrap() == bytes(1, 1000));

        queue_much(&world);
        let content = bytes(2, SHARED_BYTES as usize);
        let closed = Instant::now();
        save(&written, &content);
        let saved = closed.elapsed();
        wait_until(ANNOUNCED_LIMIT, "the file is announced", || Ok(is_announced(&world, &written))).unwrap();
        let announced = closed.elapsed();
        let looked = Instant::now();
        let (status, took) = (fs::metadata(&read).unwrap(), looked.elapsed());
        assert_eq!(status.len(), u64::from(SHARED_BYTES), "{name}");
        assert_eq!(status.mtime_nsec(), fs::metadata(&written).unwrap().mtime_nsec(), "{name}");
        let opened = Instant::now();
        assert!(fs::read(&read).unwrap() == content, "{name}: something else than what was announced");
        let arrived = opened.elapsed();
        let transfer = Duration::from_secs_f64(f64::from(SHARED_BYTES) / GOODPUT + WINDOW_BYTES / f64::from(RATE));
        let limit = transfer + 3 * RTT + Duration::from_millis(100);
        println!("{name}: saved in {saved:?}, announced (as a process sees it) {announced:?}");
        println!("{name}: stat {took:?}, read {arrived:?} (limit {limit:?})");
        assert!(arrived <= limit, "{name}: the new content came after {arrived:?}, the limit is {limit:?}");
        end(world, &mut reader);
    }
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn a_close_that_is_queued_waits_for_nobody() {
    const FILES: usize = 1000;
    let link = EmulatedLink::start(&Profile::steady(u64::from(RATE), RTT)).unwrap();
    let mut world = World::start_over(link, "writeback=sirp").unwrap();
    queue_much(&world);
    let mut took: Vec<Duration> = (0..FILES)
        .map(|number| {
            let mut file = File::create(world.mount().join(format!("f{number}"))).unwrap();
            file.write_all(&bytes(number as u64, 4096)).unwrap();
            let begun = Instant::now();
            drop(file);
            begun.elapsed()
        })
        .collect();
    took.sort_unstable();
    let (median, most) = (took[FILES / 2], took[FILES * 999 / 1000]);
    println!("close() of {FILES} queued files: median {median:?}, 99.9 of 100 within {most:?}");
    assert!(median < Duration::from_millis(1), "{median:?}");
    world.kill_client().unwrap();
}

/// Writes files that keep the link busy for 16 s.
fn queue_much(world: &World) {
    for number in 0..QUEUED {
        fs::write(world.mount().join(format!("queued-{number}")), bytes(100 + number, QUEUED_BYTES)).unwrap();
    }
}

fn is_announced(world: &World, path: &Path) -> bool {
    let states: Value = serde_json::from_str(&client(world, &["state", "--json"], path)).unwrap();
    states[0]["unsent"]["state"] == "announced"
}

fn client(world: &World, arguments: &[&str], path: &Path) -> String {
    let mut command: Command = world.client_command();
    let finished = finish(command.args(arguments).arg(path), LIMIT).unwrap();
    assert!(finished.status.success(), "{arguments:?}: {finished:?}");
    finished.stdout
}

fn end(mut world: World, reader: &mut Client) {
    reader.stop().unwrap();
    client(&world, &["sync"], &world.mount());
    world.stop_client().unwrap();
}
