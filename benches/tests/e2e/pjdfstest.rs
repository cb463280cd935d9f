//! pjdfstest: some 400 checks of POSIX's rules for single calls, as root and as other users, on an ext4 and on the
//! mount.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mafs_bench::conformance::{Exception, Outcome, Outcomes, complaints};
use mafs_bench::mounted::Mounted;
use mafs_bench::process::finish;
use mafs_bench::world::World;

/// Checks that cannot pass, with their reasons in docs/semantics.md too.
pub(crate) const EXCEPTIONS: [Exception; 1] = [Exception {
    check: "link::link_count_max",
    why: "pathconf(3) knows no limit of FUSE and says 127, so the suite leaves the check out",
}];

/// The users and groups are Debian's own. Times of ext4 move every 4 ms.
pub(crate) const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]

[settings]
naptime = 0.02
"#;

/// The suite remounts read-only with mount(8), which would ask the helper mount.fuse, which knows no remount; `-i` asks
/// the kernel.
const MOUNT: &str = "#!/bin/sh\nexec /usr/bin/mount -i \"$@\"\n";

/// Checks with this in their names remount the file system read-only.
const READ_ONLY: &str = "erofs";

/// Prefix that the suite puts before its names when it looks for one.
const NAME_PREFIX: &str = "pjdfstest::tests::";

/// Limit of a run: the suite takes 10 s.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
#[ignore = "needs: fuse, root, a loop device, e2fsprogs, pjdfstest"]
fn pjdfstest_passes_as_on_ext4() {
    passes_as_on_ext4("dev,suid");
}

#[test]
#[ignore = "needs: fuse, root, a loop device, e2fsprogs, pjdfstest"]
fn pjdfstest_passes_as_on_ext4_through_the_daemon() {
    passes_as_on_ext4("dev,suid,passthrough=off,writeback=sirp");
}

fn passes_as_on_ext4(mount_options: &str) {
    let world = World::start_with(mount_options).unwrap();
    let suite = Suite::new(&world.local());
    let ext4 = suite.run(Mounted::ext4(&world.local().join("image")).unwrap().path());
    let passed = ext4.values().filter(|outcome| **outcome == Outcome::Passed).count();
    assert!(passed > 390, "{passed} of {} on ext4", ext4.len());
    let here = suite.run(Mounted::bind(&world.mount()).unwrap().path());
    let complaints = complaints(&ext4, &here, &EXCEPTIONS);
    assert!(complaints.is_empty(), "with `{mount_options}`: {complaints:#?}");
}

/// The suite with its files.
struct Suite {
    directory: PathBuf,
}

impl Suite {
    fn new(directory: &Path) -> Self {
        fs::write(directory.join("once.toml"), CONFIG).unwrap();
        fs::write(directory.join("remount.toml"), format!("{CONFIG}allow_remount = true\n")).unwrap();
        fs::create_dir(directory.join("bin")).unwrap();
        fs::write(directory.join("bin/mount"), MOUNT).unwrap();
        fs::set_permissions(directory.join("bin/mount"), Permissions::from_mode(0o755)).unwrap();
        Self { directory: directory.to_owned() }
    }

    /// Runs all checks; those that remount in a process each, because the suite leaves files open for writing, which
    /// makes any later remount fail.
    fn run(&self, on: &Path) -> Outcomes {
        let mut outcomes = self.pjdfstest(on, "once.toml", &[]);
        let remounting: Vec<String> = outcomes.keys().filter(|name| name.contains(READ_ONLY)).cloned().collect();
        for name in remounting {
            outcomes.extend(self.pjdfstest(on, "remount.toml", &["--exact", &format!("{NAME_PREFIX}{name}")]));
        }
        outcomes
    }

    fn pjdfstest(&self, on: &Path, config: &str, which: &[&str]) -> Outcomes {
        let path = format!("{}:{}", self.directory.join("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("pjdfstest");
        command.env("PATH", path).env("NO_COLOR", "1").env("RUST_BACKTRACE", "0");
        command.arg("-c").arg(self.directory.join(config)).arg("-p").arg(on);
        command.arg("-s").arg(&self.directory).args(which);
        let finished = finish(&mut command, LIMIT).unwrap();
        assert!(finished.stdout.contains("\nSummary: "), "{finished:?}");
        if !finished.status.success() {
            // The reason stands below the name of a check that failed.
            for line in finished.stdout.lines().filter(|line| !line.ends_with(" ok")) {
                eprintln!("{line}");
            }
        }
        parse(&finished.stdout)
    }
}

/// Parses lines such as `unlink::erofs_named     skipped`; what is said of a check stands indented below.
pub(crate) fn parse(output: &str) -> Outcomes {
    let parse_line = |line: &str| {
        let (name, outcome) = line.split_once(' ')?;
        let outcome = match outcome.trim() {
            "ok" => Outcome::Passed,
            "skipped" => Outcome::Skipped,
            "FAILED" => Outcome::Failed,
            _ => return None,
        };
        Some((name.to_owned(), outcome))
    };
    output.lines().filter_map(parse_line).collect()
}
