//! An ordinary user: `quickstart` without root, where the device is open to all, as udev makes it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mafs_bench::conformance::{Outcome, Outcomes, complaints};
use mafs_bench::mounted::Mounted;
use mafs_bench::process::{Finished, finish};
use mafs_bench::programs::Programs;

use crate::pjdfstest;

/// `nobody` and `nogroup`.
const USER: u32 = 65_534;

/// As root, in a mount namespace of its own: the device for everybody, then another user.
const AS_ROOT: &str = r#"
mknod device/fuse c 10 229
chmod 666 device/fuse
mount --bind device/fuse /dev/fuse
exec setpriv --reuid=65534 --regid=65534 --clear-groups bash -euc "$AS_USER"
"#;

/// As that user. What must not work is named by its error.
const AS_USER: &str = r#"
cd home
export HOME=$PWD XDG_RUNTIME_DIR=$PWD/run
unset XDG_DATA_HOME XDG_CACHE_HOME MAFS_RUNTIME_DIR
mkdir -m 700 run
../mafs-client quickstart >quickstart.log 2>&1 &
for _ in $(seq 300); do grep -q " $HOME/mafs fuse.mafs" /proc/mounts && break; sleep 0.1; done
echo hello >mafs/file
refused() { ! "$@" 2>refusal && grep -q 'Operation not permitted' refusal; }
refused chown 0 mafs/file
refused mknod mafs/device b 1 1
mkfifo mafs/fifo
../mafs-client status mafs
for directory in "$EXT4" mafs; do
    echo "== $directory"
    NO_COLOR=1 ../pjdfstest -c ../once.toml -p "$directory" -s "$HOME"
done
kill -INT %1
wait %1
cat quickstart.log
"#;

/// The suite takes 10 s on each.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
#[ignore = "needs: fuse, fuse3, root, a loop device, e2fsprogs, pjdfstest, util-linux"]
fn an_ordinary_user_needs_no_root_and_finds_what_ext4_gives() {
    let place = tempfile::tempdir().unwrap();
    prepare(place.path());
    let ext4 = Mounted::ext4(&place.path().join("image")).unwrap();
    chown(ext4.path(), Some(USER), Some(USER)).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-euc", AS_ROOT]).current_dir(place.path());
    command.env("AS_USER", AS_USER).env("EXT4", ext4.path()).env_remove("MAFS_LOG");
    let finished = finish(&mut command, LIMIT).unwrap();
    assert!(finished.status.success(), "{finished:?}");
    check(&finished, ext4.path());
}

/// Programs and files where the user can reach them.
fn prepare(place: &Path) {
    fs::set_permissions(place, Permissions::from_mode(0o755)).unwrap();
    fs::copy(Programs::build().unwrap().client(), place.join("mafs-client")).unwrap();
    fs::copy(program("pjdfstest"), place.join("pjdfstest")).unwrap();
    fs::write(place.join("once.toml"), pjdfstest::CONFIG).unwrap();
    for directory in ["device", "home"] {
        fs::create_dir(place.join(directory)).unwrap();
    }
    chown(place.join("home"), Some(USER), Some(USER)).unwrap();
}

fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file()).unwrap()
}

fn check(finished: &Finished, ext4: &Path) {
    let said = &finished.stdout;
    let (status, suites) = said.split_once(&format!("== {}\n", ext4.display())).unwrap();
    assert!(status.contains("through the daemon"), "passthrough is for root: {status}");
    let (on_ext4, here) = suites.split_once("== mafs\n").unwrap();
    let [on_ext4, here]: [Outcomes; 2] = [on_ext4, here].map(pjdfstest::parse);
    let passed = on_ext4.values().filter(|outcome| **outcome == Outcome::Passed).count();
    assert!(passed > 250, "{passed} of {} on ext4", on_ext4.len());
    let complaints = complaints(&on_ext4, &here, &pjdfstest::EXCEPTIONS);
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert!(said.contains("Unmounted."), "{said}");
}
