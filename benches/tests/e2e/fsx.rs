//! fsx: random reads, writes, truncates and mappings of one file, each checked against a model.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mafs_bench::process::run;
use mafs_bench::world::World;

use crate::number_from_env;

/// `cargo install fsx --version 0.3.2`
const CONFIG: &str = "\
flen = 1048576

[opsize]
max = 65536

[weights]
close_open = 10
read = 100
write = 100
mapread = 100
mapwrite = 100
truncate = 40
fsync = 5
fdatasync = 5
invalidate = 10
posix_fadvise = 10
sendfile = 10
posix_fallocate = 20
punch_hole = 20
copy_file_range = 20
";

#[test]
#[ignore = "needs: fuse, fsx"]
fn fsx_with_mappings_finds_no_wrong_byte_with_and_without_passthrough() {
    for (options, seeds) in [("passthrough=auto", [1, 2, 3]), ("passthrough=off,writeback=sirp", [4, 5, 6])] {
        let mut world = World::start_with(options).unwrap();
        for seed in seeds {
            fsx(&world.mount(), &world.local(), seed);
        }
        world.stop_client().unwrap();
    }
}

#[test]
#[ignore = "needs: fsx"]
fn fsx_accepts_its_configuration_on_a_local_disk() {
    let directory = tempfile::tempdir().unwrap();
    fsx(directory.path(), directory.path(), 1);
}

/// `artifacts` gets the good copy and the log if a byte is wrong.
fn fsx(directory: &Path, artifacts: &Path, seed: u64) {
    let operations: u64 = number_from_env("MAFS_FSX_OPS", 20_000);
    let config = artifacts.join("fsx.toml");
    fs::write(&config, CONFIG).unwrap();
    let mut command = Command::new("fsx");
    command.arg("-f").arg(&config).arg("-P").arg(artifacts);
    command.args(["-N", &operations.to_string(), "-S", &seed.to_string()]).arg(directory.join(format!("fsx-{seed}")));
    let limit = Duration::from_secs(60) + Duration::from_millis(20 * operations);
    run(&mut command, limit).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}
