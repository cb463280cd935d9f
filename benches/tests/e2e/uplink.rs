//! Many clients behind one uplink whose rate the server is told (`--uplink`): greedy ones leave an interactive one
//! its share. `mafs-sim`, `fairness`, tests this in virtual time, with more seeds and round-trip times.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mafs_arpc::link::Profile;
use mafs_bench::client::Client;
use mafs_bench::content::{Random, bytes, write_file};
use mafs_bench::link::EmulatedLink;
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;

const LIMIT: Duration = Duration::from_secs(300);

/// 1 MB/s, and the round trip.
const UPLINK: (u64, Duration) = (1 << 20, Duration::from_millis(20));
const GREEDY: u32 = 10;
/// Files that are enough for a greedy client's share until the last small file is there.
const LARGE: [&str; 4] = ["large-0", "large-1", "large-2", "large-3"];
const LARGE_BYTES: u64 = 2 << 20;
const SMALL_FILES: u64 = 12;
const SMALL_BYTES: usize = 64 << 10;
const THINKING_MS_MAX: u64 = 1000;
/// Time that 64 KB take with an eleventh of the uplink.
const FAIR: Duration = Duration::from_millis(SMALL_BYTES as u64 * (GREEDY as u64 + 1) * 1000 / UPLINK.0);

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn ten_greedy_clients_leave_an_eleventh_its_share_of_the_uplink() {
    let (rate, rtt) = UPLINK;
    let mut world = World::over(EmulatedLink::start(&Profile::steady(rate, rtt)).unwrap()).unwrap();
    world.set_server_options(&["--uplink", "1M"]);
    world.start_server().unwrap();
    world.start_client().unwrap();
    populate(&world.mount());
    let others: Vec<_> = (0..=GREEDY).map(|number| world.another_client(&format!("c{number}")).unwrap()).collect();
    let mounts: Vec<_> = others.iter().map(Client::mount).collect();
    let (interactive, greedy) = mounts.split_first().unwrap();
    let all = mounts.iter().cloned().chain([world.mount()]).collect();
    let _watchdog = Watchdog::start(LIMIT, all);

    let over = AtomicBool::new(false);
    let mut took = thread::scope(|scope| {
        let fetching: Vec<_> = greedy.iter().map(|mount| scope.spawn(|| fetch_all(mount, &over))).collect();
        let took = fetch_small_files(interactive);
        over.store(true, Ordering::Relaxed);
        for one in fetching {
            assert!(one.join().unwrap().unwrap(), "a greedy client was done too soon");
        }
        took
    });
    took.sort_unstable();
    let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
    println!("median {median:?}, worst {worst:?}; the fair share's time is {FAIR:?}");
    assert!(
        worst <= FAIR * 3 / 2,
        "the worst of {SMALL_FILES} fetches took {worst:?}, the fair share's time is {FAIR:?}"
    );
    others.into_iter().for_each(|mut client| client.stop().unwrap());
    world.stop_client().unwrap();
}

fn populate(mount: &Path) {
    for (seed, name) in LARGE.iter().enumerate() {
        write_file(&mount.join(name), seed as u64, LARGE_BYTES).unwrap();
    }
    for number in 0..SMALL_FILES {
        fs::write(small(mount, number), bytes(100 + number, SMALL_BYTES)).unwrap();
    }
}

fn small(mount: &Path, number: u64) -> PathBuf {
    mount.join(format!("small-{number}"))
}

/// Opens small files, each after a while, and returns how long each takes.
fn fetch_small_files(mount: &Path) -> Vec<Duration> {
    let mut random = Random::new(1);
    // The greedy clients begin, and what they have in flight settles.
    thread::sleep(Duration::from_secs(3));
    let fetch = |number| {
        thread::sleep(Duration::from_millis(100 + random.below(THINKING_MS_MAX)));
        let began = Instant::now();
        assert!(fs::read(small(mount, number)).unwrap() == bytes(100 + number, SMALL_BYTES));
        began.elapsed()
    };
    (0..SMALL_FILES).map(fetch).collect()
}

/// Fetches one large file after another until it is over. Returns whether that was before the last one had come.
fn fetch_all(mount: &Path, over: &AtomicBool) -> io::Result<bool> {
    let mut piece = vec![0; 64 << 10];
    for name in LARGE {
        let mut file = File::open(mount.join(name))?;
        while file.read(&mut piece)? > 0 {
            if over.load(Ordering::Relaxed) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
