//! POSIX: the same checks on a local directory and on the mount.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mafs_bench::process::run;
use mafs_bench::world::World;

use crate::operations::CHECKS;

#[test]
#[ignore = "needs: ext4 or tmpfs below the temporary directory"]
fn the_checks_hold_on_a_local_directory() {
    let directory = tempfile::tempdir().unwrap();
    run_checks(directory.path());
}

#[test]
#[ignore = "needs: fuse"]
fn the_checks_hold_on_the_mount() {
    let world = World::start().unwrap();
    run_checks(&world.mount());
}

#[test]
#[ignore = "needs: fuse, python3"]
fn shared_mappings_and_files_show_the_same_bytes() {
    let world = World::start().unwrap();
    for directory in [world.local(), world.mount()] {
        shared_mappings(&directory);
    }
}

#[test]
#[ignore = "needs: fuse, root"]
fn another_user_is_bound_by_modes_on_the_mount_as_locally() {
    let world = World::start().unwrap();
    for directory in [world.local(), world.mount()] {
        other_user(&directory);
    }
}

/// Runs every check in a directory of its own and reports all that fail.
fn run_checks(root: &Path) {
    let mut failed = Vec::new();
    for (name, check) in CHECKS {
        let directory = root.join(name);
        fs::create_dir(&directory).unwrap();
        if catch_unwind(AssertUnwindSafe(|| check(&directory))).is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "in {}: {failed:?}", root.display());
}

/// Checks shared mappings. Rust cannot map a file without `unsafe`, so a script does: what is stored through a
/// mapping is read through another, by read(2), and after the file was closed; what is written is seen in a mapping
/// that was there before.
fn shared_mappings(directory: &Path) {
    const SCRIPT: &str = "
import mmap, os, sys
path = sys.argv[1]
with open(path, 'wb') as f: f.truncate(100000)
fd = os.open(path, os.O_RDWR)
one = mmap.mmap(fd, 100000)
other = os.open(path, os.O_RDWR)
two = mmap.mmap(other, 100000)
one[5000:5005] = b'first'
assert two[5000:5005] == b'first'
assert os.pread(other, 5, 5000) == b'first'
os.pwrite(other, b'second', 90000)
assert one[90000:90006] == b'second'
one.flush()
os.fsync(fd)
one[70000:70005] = b'third'
one.close(); two.close(); os.close(fd); os.close(other)
data = open(path, 'rb').read()
assert len(data) == 100000
assert (data[5000:5005], data[90000:90006], data[70000:70005]) == (b'first', b'second', b'third')
private = mmap.mmap(os.open(path, os.O_RDONLY), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
assert private[:] == data
";
    let mut command = Command::new("python3");
    run(command.args(["-c", SCRIPT]).arg(directory.join("mapped")), Duration::from_secs(60)).unwrap();
}

/// `nobody` reads what the modes allow and no more, and cannot touch what belongs to root. Works with relative paths,
/// because directories above may be closed to others.
fn other_user(directory: &Path) {
    const SCRIPT: &str = r#"
set -eu
umask 022
chmod 755 "$1"; mkdir "$1/users"; cd "$1/users"
echo open > open; chmod 644 open
echo closed > closed; chmod 600 closed
mkdir shut; chmod 700 shut; mkdir sticky; chmod 1777 sticky; echo mine > sticky/root
as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
refused() { if as_nobody "$@" 2>&1; then echo "allowed: $*"; exit 1; fi; }
[ "$(as_nobody cat open)" = open ]
refused cat closed
refused ls shut
refused rm -f open
refused chmod 666 open
refused sh -c 'echo x >> open'
refused rm -f sticky/root
as_nobody sh -c 'echo his > sticky/nobody'
[ "$(stat -c %u:%g sticky/nobody)" = 65534:65534 ]
as_nobody rm sticky/nobody
"#;
    let mut command = Command::new("bash");
    command.args(["-c", SCRIPT, "bash"]).arg(directory);
    run(&mut command, Duration::from_secs(60)).unwrap();
}
