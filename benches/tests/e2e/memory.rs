//! Memory: a file much larger than the limit goes out and comes back, and neither daemon ever holds it.

use std::time::Duration;

use mafs_bench::content::{check_file, write_file};
use mafs_bench::measure::MemoryWatch;
use mafs_bench::world::World;

use crate::number_from_env;

/// Memory that either daemon may hold of its own at any moment.
const LIMIT_BYTES: u64 = 150 << 20;

const SEED: u64 = 11;

#[test]
#[ignore = "needs: fuse, 3 times MAFS_BIG_GB of disk"]
fn daemons_stay_small_while_a_large_file_is_written_and_read() {
    let mut world = World::start().unwrap();
    let length = number_from_env("MAFS_BIG_GB", 1_u64) << 30;
    let path = world.mount().join("big");

    let watch = watch(&world);
    write_file(&path, SEED, length).unwrap();
    check_file(&path, SEED, length).unwrap();
    check_peaks(watch, "written and read back");

    world.forget_cache().unwrap();
    let watch = self::watch(&world);
    check_file(&path, SEED, length).unwrap();
    check_peaks(watch, "fetched into an empty cache");
}

#[test]
#[ignore = "needs: fuse"]
fn daemons_stay_small_with_many_small_files() {
    let world = World::start().unwrap();
    let watch = watch(&world);
    for directory in 0..20 {
        let directory = world.mount().join(format!("d{directory}"));
        std::fs::create_dir(&directory).unwrap();
        for file in 0..500 {
            write_file(&directory.join(format!("f{file}")), file, 4_096).unwrap();
        }
    }
    check_peaks(watch, "10,000 files created");
}

fn watch(world: &World) -> MemoryWatch {
    MemoryWatch::start(vec![world.server().unwrap().pid(), world.client().unwrap().pid()])
}

fn check_peaks(watch: MemoryWatch, when: &str) {
    // The pause lets one more sample be taken of what is left when the work is done.
    std::thread::sleep(Duration::from_millis(200));
    let peaks = watch.peaks().unwrap();
    println!("{when}: RssAnon at most {} KB in the server, {} KB in the client", peaks[0] >> 10, peaks[1] >> 10);
    assert!(peaks.iter().all(|peak| *peak < LIMIT_BYTES), "{when}: peaks {peaks:?} bytes, limit {LIMIT_BYTES}");
}
