//! Tests of two clients with changes that are sent in the background (docs/semantics.md): with `close=announced` as
//! if they were not, and without it once `state` says that they are announced.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mafs_bench::process::{finish, wait_until};
use serde_json::Value;

use super::{Body, Pair, content, names, races};
use crate::number_from_env;

const SIRP: &str = "writeback=sirp";
const ANNOUNCED: &str = "writeback=sirp,close=announced";

/// Rounds of each test, a part of those in the foreground.
const ROUNDS: u32 = 30;

/// Some 100 times the time that an announcement takes.
const LIMIT: Duration = Duration::from_secs(10);

fn start(options: &str) -> Pair {
    let rounds = number_from_env("MAFS_ROUNDS", ROUNDS);
    Pair::start_with(options, rounds, rounds.div_ceil(ROUNDS))
}

fn with_options(options: &str, body: Body) {
    let pair = start(options);
    body(&pair.mounts);
    pair.stop();
}

#[test]
#[ignore = "needs: fuse"]
fn with_close_announced_open_gives_the_new_content_after_close() {
    with_options(ANNOUNCED, content::nobody_holds);
}

#[test]
#[ignore = "needs: fuse, python3"]
fn with_close_announced_open_gives_the_new_content_while_a_program_has_the_old_one_open() {
    with_options(ANNOUNCED, content::held_open);
}

#[test]
#[ignore = "needs: fuse"]
fn with_close_announced_ls_and_stat_show_at_once_what_the_other_changes() {
    with_options(ANNOUNCED, names::at_once);
}

#[test]
#[ignore = "needs: fuse"]
fn with_close_announced_exactly_one_of_two_clients_makes_a_name() {
    with_options(ANNOUNCED, races::one_winner);
}

#[test]
#[ignore = "needs: fuse"]
fn in_the_background_too_exactly_one_of_two_clients_makes_a_name() {
    with_options(SIRP, races::one_winner);
}

#[test]
#[ignore = "needs: fuse"]
fn what_state_calls_announced_the_other_opens() {
    let pair = start(SIRP);
    content::once_settled(&pair.mounts, &|path| {
        wait_until(LIMIT, "the change is announced", || Ok(is_announced(pair.command_at(path), path))).unwrap();
    });
    pair.stop();
}

/// Tells whether nothing about an object is still to be announced, as `state` says.
fn is_announced(mut command: Command, path: &Path) -> bool {
    let finished = finish(command.args(["state", "--json"]).arg(path), LIMIT).unwrap();
    assert!(finished.status.success(), "{finished:?}");
    let states: Value = serde_json::from_str(&finished.stdout).unwrap();
    let unsent = &states[0]["unsent"];
    unsent.is_null() || unsent["state"] == "announced"
}
