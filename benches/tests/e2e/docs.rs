//! Documents: the commands of the manual do what it says.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mafs_bench::process::run;
use mafs_bench::world::{World, is_mounted};

const MANUAL: &str = include_str!("../../../docs/operations.md");

#[test]
#[ignore = "needs: fuse, root"]
fn operations_md_does_what_it_says() {
    let world = World::new().unwrap();
    let script = shell_blocks(MANUAL);
    assert!(script.lines().count() > 10, "{script}");
    let programs = Path::new(world.client_command().get_program()).parent().unwrap().to_owned();
    let path = env::join_paths([programs].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap()))).unwrap();
    let mut bash = Command::new("bash");
    for (name, value) in world.client_command().get_envs() {
        bash.env(name, value.unwrap_or_default());
    }
    bash.env("PATH", path).env("STORE", world.local().join("store")).env("CACHE", world.local().join("cache"));
    bash.env("SERVER", world.address()).env("DIR", world.mount());
    let said = run(bash.args(["-euo", "pipefail", "-c", &script]), Duration::from_secs(120)).unwrap();
    assert!(said.contains("work"), "{said}");
    assert!(!is_mounted(&world.mount()).unwrap());
    assert_eq!(fs::read_dir(world.mount()).unwrap().count(), 0);
}

#[test]
fn only_sh_blocks_are_shell() {
    assert_eq!(shell_blocks("# T\n```sh\na\nb\n```\ntext\n```ini\nc\n```\n```sh\nd\n```\n"), "a\nb\nd\n");
}

/// The lines of all `sh` code blocks of a document.
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
