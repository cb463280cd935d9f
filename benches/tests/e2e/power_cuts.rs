//! Power cuts of the server's disk and of the cache's, on ext4 and xfs, while four processes write and fsync: all
//! that fsync acknowledged is there, nothing is torn, nothing twice. `power_cuts/cuts.py` says how.
//!
//! `MAFS_CUTS` says how many cuts there are of each disk on each file system, `MAFS_SEED` repeats the choices of a run.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mafs_bench::process::run;
use mafs_bench::programs::Programs;

use crate::number_from_env;

/// Limit of one cut, and of what comes before the first.
const LIMIT: Duration = Duration::from_secs(100);

/// Has a program find the boot in a file, in a mount namespace of its own.
const WITH_BOOT: &str = r#"mount --bind "$BOOT_ID" /proc/sys/kernel/random/boot_id && exec "$@""#;

#[test]
#[ignore = "needs: fuse, root, xfsprogs, e2fsprogs, loop devices, python3"]
fn invariant_1_what_was_fsynced_survives_power_cuts_of_the_server() {
    ["ext4", "xfs"].iter().for_each(|file_system| cut(file_system, "server"));
}

#[test]
#[ignore = "needs: fuse, root, xfsprogs, e2fsprogs, loop devices, python3"]
fn invariant_1_what_was_fsynced_survives_power_cuts_of_the_client() {
    ["ext4", "xfs"].iter().for_each(|file_system| cut(file_system, "client"));
}

fn cut(file_system: &str, victim: &str) {
    let cuts = number_from_env("MAFS_CUTS", 2_u32);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number_from_env("MAFS_SEED", now.as_secs());
    println!("{cuts} cuts of the {victim} on {file_system}: MAFS_SEED={seed}");
    let programs = Programs::build().unwrap();
    let directory = tempfile::Builder::new().prefix("cuts-").tempdir_in(programs.target_directory()).unwrap();
    // The path of a socket has at most 107 bytes.
    let runtime = tempfile::Builder::new().prefix("mafs-").tempdir_in("/tmp").unwrap();
    let boot = directory.path().join("boot");
    fs::write(&boot, "00000000-0000-0000-0000-000000000000\n").unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/power_cuts/cuts.py");
    let options = std::env::var("MAFS_MOUNT_OPTIONS").unwrap_or_else(|_| "passthrough=off".to_owned());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", WITH_BOOT, "sh", "python3"]).arg(script);
    command.arg(programs.server().parent().unwrap()).arg(directory.path()).args([file_system, victim]);
    command.args([cuts.to_string(), seed.to_string(), options]);
    command.env("BOOT_ID", boot).env("RUNTIME", runtime.path());
    println!("{}", run(&mut command, LIMIT * (cuts + 1)).unwrap());
}
