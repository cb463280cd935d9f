//! stress-ng: each of its stressors of file systems for some seconds, checking what it reads back, on the mount. A
//! stressor that does not pass there is run on an ext4 as well.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mafs_bench::conformance::{Exception, Outcome, Outcomes, complaints};
use mafs_bench::mounted::Mounted;
use mafs_bench::process::{finish, run};
use mafs_bench::world::World;

/// Stressors that cannot pass, with their reasons in docs/semantics.md too.
const EXCEPTIONS: [Exception; 2] = [
    Exception { check: "fiemap", why: "FUSE has no request for where the bytes of a file lie" },
    Exception {
        check: "xattr",
        why: "it fills a file with attributes, each on the server's disk, before it counts once",
    },
];

/// Stressors that use no file of the directory they are given, and two that have no place in a test.
const ELSEWHERE: [&str; 6] = [
    // Mounts itself over and over, which stress-ng itself calls pathological.
    "bind-mount",
    // A file system of its own.
    "binderfs",
    // Descriptors of /dev/zero and the like.
    "dup",
    "eventfd",
    // Calls sync(2): every file system of the machine.
    "io",
    // Files of /proc.
    "procfs",
];

/// Seconds for which a stressor works, and once more if it did not finish even one operation: one round of some
/// writes gigabytes.
const SECONDS: [&str; 2] = ["2", "10"];

/// A stressor removes what it made after its time, which may be many thousand files.
const LIMIT_SECONDS: &str = "60";

#[test]
#[ignore = "needs: fuse, root, a loop device, e2fsprogs, stress-ng"]
fn stressors_of_file_systems_pass_as_on_ext4() {
    let world = World::start_with("dev,suid").unwrap();
    let here: Outcomes = stressors().into_iter().map(|name| (name.clone(), stress(&name, &world.mount()))).collect();
    let image = Mounted::ext4(&world.local().join("image")).unwrap();
    let on_ext4 = |name: &str, here| if here == Outcome::Passed { here } else { stress(name, image.path()) };
    let ext4 = here.iter().map(|(name, here)| (name.clone(), on_ext4(name, *here))).collect();
    let complaints = complaints(&ext4, &here, &EXCEPTIONS);
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// Returns all that this version of stress-ng counts to the file systems.
fn stressors() -> Vec<String> {
    let listed = run(Command::new("stress-ng").args(["--class", "filesystem?"]), Duration::from_secs(10)).unwrap();
    let (_, names) = listed.split_once(" stressors:").expect("class 'filesystem' stressors: access ...");
    let names: Vec<String> =
        names.split_whitespace().filter(|name| !ELSEWHERE.contains(name)).map(str::to_owned).collect();
    assert!(names.len() > 40, "{listed}");
    names
}

fn stress(name: &str, below: &Path) -> Outcome {
    let tries = SECONDS.iter().map(|seconds| stress_for(seconds, name, below));
    tries.into_iter().find(|outcome| *outcome != Outcome::Skipped).unwrap_or(Outcome::Skipped)
}

fn stress_for(seconds: &str, name: &str, below: &Path) -> Outcome {
    let directory = below.join(format!("{name}-{seconds}"));
    fs::create_dir(&directory).unwrap();
    // timeout(1) ends the workers as well, which are processes of their own.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT_SECONDS, "stress-ng", &format!("--{name}"), "1", "--timeout", seconds]);
    command.args(["--verify", "--metrics-brief", "--temp-path"]).arg(&directory);
    let finished = finish(&mut command, Duration::from_secs(120)).unwrap();
    let said = finished.stdout.clone() + &finished.stderr;
    let outcome = outcome(name, finished.code(), &said);
    if outcome != Outcome::Passed {
        eprintln!("{name} in {}: {outcome:?}, code {}\n{said}", below.display(), finished.code());
    }
    outcome
}

/// Returns the outcome. A stressor that did not finish even one operation has skipped its work, whatever it says.
fn outcome(name: &str, code: i32, said: &str) -> Outcome {
    // `stress-ng: metrc: [PID] NAME OPERATIONS SECONDS ...`
    let operations = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "metrc:").skip(2);
        (words.next() == Some(name)).then(|| words.next()?.parse::<u64>().ok()).flatten()
    };
    let failed = said.lines().any(|line| line.starts_with("stress-ng: fail:"));
    match code {
        0 if failed => Outcome::Failed,
        0 if said.lines().filter_map(operations).any(|count| count > 0) => Outcome::Passed,
        // These codes mean no resources, not implemented.
        0 | 3 | 4 => Outcome::Skipped,
        _ => Outcome::Failed,
    }
}
