//! Documents: the commands of the manual do what it says.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mafs_bench::mounted::is_mounted;
use mafs_bench::process::{finish, run};
use mafs_bench::transcript::{Session, sessions};
use mafs_bench::world::World;

const MANUAL: &str = include_str!("../../../docs/operations.md");
const LINK: &str = include_str!("../../../docs/link.md");

/// Limit of all that one shell does.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
#[ignore = "needs: fuse"]
fn operations_md_does_what_it_says() {
    let world = World::new().unwrap();
    let script = shell_blocks(MANUAL);
    assert!(script.lines().count() > 10, "{script}");
    let said = run(in_manual(&world, &mut Command::new("bash")).args(["-euo", "pipefail", "-c", &script]), LIMIT);
    let said = said.unwrap();
    assert!(said.contains("work"), "{said}");
    assert!(!is_mounted(&world.mount()).unwrap());
    assert_eq!(fs::read_dir(world.mount()).unwrap().count(), 0);
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn link_md_does_what_it_says() {
    let world = World::new().unwrap();
    let script = shell_blocks(LINK);
    assert!(script.contains("mafs-link"), "{script}");
    let finished =
        finish(in_manual(&world, &mut Command::new("bash")).args(["-euo", "pipefail", "-c", &script]), LIMIT);
    let finished = finished.unwrap();
    assert!(finished.status.success(), "{finished:?}");
    assert!(finished.stderr.contains("mafs-link: up: ") && finished.stderr.contains("real"), "{finished:?}");
    assert!(!is_mounted(&world.mount()).unwrap());
}

/// `MAFS_SECTION` chooses the section whose heading it is.
#[test]
#[ignore = "needs: fuse, root, tmpfs"]
fn operations_md_shows_what_is_seen() {
    let only = env::var("MAFS_SECTION").ok();
    let mut sessions = sessions(MANUAL);
    sessions.retain(|session| only.as_ref().is_none_or(|heading| session.heading == *heading));
    assert!(!sessions.is_empty(), "no transcripts");
    let found: Vec<String> = sessions.iter().flat_map(differences).collect();
    assert!(found.is_empty(), "docs/operations.md differs from what is seen:\n{}", found.join("\n"));
}

fn differences(session: &Session) -> Vec<String> {
    let world = World::new().unwrap();
    for (variable, path) in places(&world) {
        if variable != "STORE" {
            fs::create_dir_all(path).unwrap();
        }
    }
    // In a mount namespace of its own nothing stays mounted, however far the session comes, and `status` shows no mount
    // of anybody else.
    let script = format!("umount --all --lazy --types fuse.mafs\n{}", session.script());
    let mut bash = Command::new("unshare");
    bash.args(["--mount", "bash", "-c", &script]);
    let said = finish(in_manual(&world, &mut bash), LIMIT).unwrap();
    let paths = places(&world).map(|(variable, path)| (variable, path.to_str().unwrap().to_owned()));
    let variables: Vec<_> = paths.into_iter().chain([("SERVER", world.address())]).collect();
    session.differences(&said.stdout, &variables)
}

/// Gives a shell what the manual assumes: the programs, and variables for what the reader chooses.
fn in_manual<'a>(world: &World, shell: &'a mut Command) -> &'a mut Command {
    let programs = Path::new(world.client_command().get_program()).parent().unwrap().to_owned();
    let path = env::join_paths([programs].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap()))).unwrap();
    for (name, value) in world.client_command().get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    // Messages are not translated.
    shell
        .current_dir(world.local())
        .envs(places(world))
        .env("PATH", path)
        .env("SERVER", world.address())
        .env("LC_ALL", "C")
}

fn places(world: &World) -> [(&'static str, PathBuf); 4] {
    let local = world.local();
    [
        ("STORE", local.join("store")),
        ("CACHE", local.join("cache")),
        ("DIR", world.mount()),
        ("DISK", local.join("disk")),
    ]
}

#[test]
fn only_sh_blocks_are_shell() {
    assert_eq!(shell_blocks("# T\n```sh\na\nb\n```\ntext\n```ini\nc\n```\n```sh\nd\n```\n"), "a\nb\nd\n");
}

/// Returns the lines of all `sh` code blocks of a document.
fn shell_blocks(document: &str) -> String {
    let mut script = String::new();
    let mut inside = false;
    for line in document.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
        } else if inside {
            script += line;
            script.push('\n');
        }
    }
    script
}
