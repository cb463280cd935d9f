//! An ordinary user: `quickstart` without root, where the device is open to all, as udev makes it, and every test of
//! these that needs no root.

use std::env;
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

/// Script as root, in a mount namespace of its own: the device for everybody, then another user.
const AS_ROOT: &str = r#"
mknod device/fuse c 10 229
chmod 666 device/fuse
mount --bind device/fuse /dev/fuse
exec setpriv --reuid=65534 --regid=65534 --clear-groups bash -euc "$AS_USER"
"#;

/// Script as that user. Calls that must not work are named by their errors.
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

/// Script as that user: the tests in `$TESTS`, by their names. The programs are built: `true` takes cargo's place.
const TESTS_AS_USER: &str = r#"
export HOME=$PWD/home PATH=$PWD:$PATH CARGO=true
exec "./$THIS" --include-ignored --exact --test-threads=1 $TESTS
"#;

/// Tests that need no root and are left to it, by the beginnings of their names.
const LEFT_TO_ROOT: [(&str, &str); 7] = [
    ("directories::", "100,000 files"),
    ("idle::", "measures the same daemons in the same way"),
    ("memory::", "gigabytes, and 10,000 files"),
    ("projects::cargo", "the toolchain lies in root's home"),
    ("projects::the_same", "the toolchain too"),
    ("random::random_programs_find_what_they_have_written_through", "every file of theirs goes through the daemon"),
    ("kill::", "what hangs in the kernel with a daemon that was killed only root can end"),
];

/// The suite takes 10 s on each; all tests together four minutes, on a machine that does nothing else.
const LIMIT: Duration = Duration::from_secs(1200);

#[test]
#[ignore = "needs: fuse, fuse3, root, a loop device, e2fsprogs, pjdfstest, util-linux"]
fn an_ordinary_user_needs_no_root_and_finds_what_ext4_gives() {
    let place = tempfile::tempdir().unwrap();
    prepare(place.path());
    fs::copy(Programs::build().unwrap().client(), place.path().join("mafs-client")).unwrap();
    fs::copy(program("pjdfstest"), place.path().join("pjdfstest")).unwrap();
    fs::write(place.path().join("once.toml"), pjdfstest::CONFIG).unwrap();
    let ext4 = Mounted::ext4(&place.path().join("image")).unwrap();
    chown(ext4.path(), Some(USER), Some(USER)).unwrap();
    let finished = finish(as_user(place.path(), AS_USER).env("EXT4", ext4.path()), LIMIT).unwrap();
    assert!(finished.status.success(), "{finished:?}");
    check(&finished, ext4.path());
}

#[test]
#[ignore = "needs: fuse, fuse3, root, dbench, fsx, git, make, python3, rsync, sqlite3, tar, util-linux"]
fn an_ordinary_user_passes_every_test_that_needs_no_root() {
    const THIS: &str = "target/release/deps/e2e";
    let programs = Programs::build().unwrap();
    let this = env::current_exe().unwrap();
    // There is room beside the build, but the way there may be closed to others.
    let disk = tempfile::tempdir_in(programs.target_directory()).unwrap();
    let place = Mounted::bind(disk.path()).unwrap();
    prepare(place.path());
    fs::create_dir_all(place.path().join(THIS).parent().unwrap()).unwrap();
    for (from, to) in [
        (this.clone(), THIS),
        (programs.server(), "target/release/mafs-server"),
        (programs.client(), "target/release/mafs-client"),
        (program("fsx"), "fsx"),
    ] {
        fs::copy(from, place.path().join(to)).unwrap();
    }
    chown(place.path().join("target"), Some(USER), Some(USER)).unwrap();
    let left_out = finish(&mut Command::new(this), LIMIT).unwrap().stdout;
    let tests = tests_without_root(&left_out);
    assert!(tests.len() > 20, "{tests:?}");
    let mut command = as_user(place.path(), TESTS_AS_USER);
    command.env("THIS", THIS).env("TESTS", tests.join(" ")).env("MAFS_FSX_OPS", "2000").env("MAFS_REMOUNTS", "4");
    command.env("MAFS_SEEDS", "6").env("MAFS_DBENCH_SECONDS", "2");
    let finished = finish(&mut command, LIMIT).unwrap();
    println!("{}", finished.stdout);
    assert!(finished.status.success(), "{}", finished.stderr);
    let wanted = format!("test result: ok. {} passed; 0 failed; 0 ignored", tests.len());
    assert!(finished.stdout.contains(&wanted), "{wanted}");
}

/// Returns the names of all tests that say in their `#[ignore]` what they need, and not root, out of what this
/// program prints when it leaves them out: `test NAME ... ignored, needs: THIS, THAT`.
fn tests_without_root(output: &str) -> Vec<&str> {
    let left_to_root = |name: &str| LEFT_TO_ROOT.iter().any(|(beginning, _)| name.starts_with(beginning));
    let parse = |line| {
        let (name, needs) = str::strip_prefix(line, "test ")?.split_once(" ... ignored, needs: ")?;
        (!needs.split(", ").any(|need| need == "root") && !left_to_root(name)).then_some(name)
    };
    output.lines().filter_map(parse).collect()
}

/// Runs a script as the user in `place`, in a mount namespace with an open device.
fn as_user(place: &Path, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-euc", AS_ROOT]).current_dir(place);
    command.env("AS_USER", script).env_remove("MAFS_LOG");
    command
}

/// Prepares a directory that the user can walk, with one of their own.
fn prepare(place: &Path) {
    fs::set_permissions(place, Permissions::from_mode(0o755)).unwrap();
    for directory in ["device", "home"] {
        fs::create_dir(place.join(directory)).unwrap();
    }
    chown(place.join("home"), Some(USER), Some(USER)).unwrap();
}

fn program(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap();
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file()).unwrap()
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
