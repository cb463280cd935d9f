//! Changes that wait for the server: seen, waited for, and left behind, by the commands of a mount that sends in the
//! background.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use mafs_bench::mounted::is_mounted;
use mafs_bench::process::{Finished, finish, wait_until};
use mafs_bench::world::World;
use serde_json::Value;

/// Longer than any deadline of a command, so that one that hangs fails the test.
const LIMIT: Duration = Duration::from_secs(60);

/// Limit of what takes no time but that of the processors.
const SOON: Duration = Duration::from_secs(20);

const OK: i32 = 0;
const UNSENT: i32 = 4;
const NOT_FOUND: i32 = 6;

/// Size of a file that takes much longer than a test at the rate of [`slow`].
const FILM_BYTES: usize = 2 << 20;

#[test]
#[ignore = "needs: fuse"]
fn the_queue_lists_what_waits_in_order_and_says_when_nothing_does() {
    let world = slow();
    let said = client(&world, &["queue"]);
    assert!(said.stdout.contains("nothing waits: the server has everything"), "{said:?}");

    film(&world);
    fs::write(world.mount().join("note"), "n".repeat(40_000)).unwrap();
    until_listed(&world, 2);
    for command in [&["queue"][..], &["queue", "list"]] {
        let said = client(&world, command);
        assert_eq!((said.code(), said.stderr.as_str()), (OK, ""), "{said:?}");
        let at = |path: &str| said.stdout.lines().position(|line| line.ends_with(path));
        assert!(at("  film").unwrap() < at("  note").unwrap(), "{said:?}");
        assert!(said.stdout.contains("store") && said.stdout.contains("2.00 MiB"), "{said:?}");
        assert!(said.stdout.contains("2 records"), "{said:?}");
    }

    let listing = json(&world, &["queue", "list", "--json"]);
    let film = &listing["changes"][0];
    assert_eq!((&film["what"], &film["path"], &film["size"]), (&"store".into(), &"film".into(), &FILM_BYTES.into()));
    assert!(film["state"] == "sending" || film["state"] == "waiting", "{film}");
    assert_eq!((&listing["log"]["records"], &listing["more"]), (&2.into(), &false.into()));
    let arrives = || Ok(json(&world, &["queue", "--json"])["changes"][0]["acknowledged_bytes"].as_u64() > Some(0));
    wait_until(SOON, "some of it has arrived", arrives).unwrap();

    let status = json(&world, &["status", "--json"]);
    assert_eq!(status["log"]["records"], 2, "{status}");
    let shows_eta = || {
        Ok(client(&world, &["status"])
            .stdout
            .lines()
            .any(|line| line.starts_with("  log      2 records, ") && line.contains(" left at ")))
    };
    wait_until(SOON, "status tells when it will be done", shows_eta).unwrap();
    end(world);
}

#[test]
#[ignore = "needs: fuse"]
fn a_file_says_what_of_it_is_here_and_at_the_server() {
    let world = slow();
    fs::create_dir(world.mount().join("docs")).unwrap();
    fs::write(world.mount().join("docs/letter"), "sent").unwrap();
    assert_eq!(on(&world, &["sync"], "docs").code(), OK);
    film(&world);
    let said = on(&world, &["state"], "film");
    assert!(said.stdout.contains("film: file, 2.00 MiB, ") && said.stdout.contains("1 record in the log"), "{said:?}");
    let said = on(&world, &["state"], "docs/letter");
    assert!(
        said.stdout.contains("letter: file, 4 B, ") && said.stdout.ends_with("cached, at the server\n"),
        "{said:?}"
    );
    let states: Value = serde_json::from_str(&on(&world, &["state", "--json"], "film").stdout).unwrap();
    let film = &states[0];
    assert_eq!((&film["dirty"], &film["cached"], &film["size"]), (&true.into(), &"whole".into(), &FILM_BYTES.into()));
    assert!(film["unsent"]["state"] == "sending" || film["unsent"]["state"] == "waiting", "{film}");
    let said = on(&world, &["state"], "nothing");
    assert_eq!((said.code(), said.stderr.lines().count()), (NOT_FOUND, 1), "{said:?}");
    // Some paths are found without asking the kernel, and others only it can resolve.
    std::os::unix::fs::symlink("docs", world.mount().join("link")).unwrap();
    for path in ["link/letter", "docs/../docs/letter"] {
        let said = on(&world, &["state"], path);
        assert!(said.stdout.contains("file, 4 B, "), "{path}: {said:?}");
    }
    end(world);
}

#[test]
#[ignore = "needs: fuse"]
fn sync_waits_for_what_it_is_given_and_for_no_other() {
    let world = slow();
    film(&world);
    fs::create_dir_all(world.mount().join("docs/old")).unwrap();
    fs::write(world.mount().join("docs/old/letter"), "x".repeat(1000)).unwrap();
    for path in ["docs/old/letter", "docs/old", "docs"] {
        let said = on(&world, &["sync", "--timeout", "30"], path);
        assert_eq!((said.code(), said.stdout.as_str(), said.stderr.as_str()), (OK, "", ""), "{path}: {said:?}");
    }
    let mut stored = world.another_client("other").unwrap();
    assert_eq!(fs::read(stored.mount().join("docs/old/letter")).unwrap().len(), 1000, "it is at the server");
    stored.stop().unwrap();
    let begun = Instant::now();
    let said = on(&world, &["sync", "--timeout", "1"], "film");
    assert_eq!(said.code(), UNSENT, "{said:?}");
    assert!(said.stderr.contains("film") && said.stderr.contains("unsent: 1 file, "), "{said:?}");
    let said = client(&world, &["sync", "--timeout", "1"]);
    assert_eq!(said.code(), UNSENT, "{said:?}");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let said = on(&world, &["sync"], "nothing");
    assert_eq!((said.code(), said.stderr.lines().count()), (NOT_FOUND, 1), "{said:?}");
    end(world);
}

#[test]
#[ignore = "needs: fuse"]
fn umount_with_flush_leaves_a_mount_that_has_unsent_data() {
    let world = slow();
    film(&world);
    let said = client(&world, &["umount", "--flush=1s"]);
    assert_eq!((said.code(), said.stderr.lines().count()), (UNSENT, 1), "{said:?}");
    for words in ["not unmounted", "1 file", "without --flush", "next mount"] {
        assert!(said.stderr.contains(words), "{words}: {said:?}");
    }
    assert!(is_mounted(&world.mount()).unwrap());
    fs::write(world.mount().join("note"), "still works").unwrap();
    assert_eq!(client(&world, &["limit", "store=off"]).code(), OK);
    let said = client(&world, &["umount", "--flush"]);
    assert_eq!((said.code(), said.stderr.as_str()), (OK, ""), "{said:?}");
    assert!(!is_mounted(&world.mount()).unwrap());
}

#[test]
#[ignore = "needs: fuse"]
fn umount_leaves_what_is_unsent_for_the_next_mount() {
    let mut world = slow();
    film(&world);
    let said = client(&world, &["umount"]);
    assert_eq!(said.code(), UNSENT, "{said:?}");
    assert!(
        said.stderr.contains("1 file is not on the server: film") && said.stderr.contains("next mount"),
        "{said:?}"
    );
    world.start_client().unwrap();
    assert_eq!(client(&world, &["sync", "--timeout", "30"]).code(), OK);
    world.forget_cache().unwrap();
    assert_eq!(fs::read(world.mount().join("film")).unwrap().len(), FILM_BYTES);
}

#[test]
#[ignore = "needs: fuse"]
fn a_long_queue_is_shown_at_once_and_in_part() {
    let world = slow();
    film(&world);
    for number in 0..300 {
        fs::write(world.mount().join(format!("n{number}")), "x".repeat(50_000)).unwrap();
    }
    until_listed(&world, 301);
    let begun = Instant::now();
    let said = client(&world, &["queue"]);
    // The lines are the name of the mount, the columns, 100 changes, how to see the others, and all in one line.
    assert_eq!(said.stdout.lines().count(), 104, "{said:?}");
    assert!(said.stdout.contains("--all shows all"), "{said:?}");
    let all = json(&world, &["queue", "--all", "--json"]);
    assert_eq!((all["changes"].as_array().unwrap().len(), &all["more"]), (301, &false.into()));
    assert_eq!(client(&world, &["status"]).code(), OK);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    end(world);
}

#[test]
#[ignore = "needs: fuse"]
fn what_the_server_has_been_told_of_is_announced() {
    let world = slow_with("writeback=sirp");
    film(&world);
    fs::write(world.mount().join("note"), "n".repeat(100_000)).unwrap();
    let announced = || Ok(on(&world, &["state"], "note").stdout.ends_with("in the log, announced\n"));
    wait_until(SOON, "the note is announced", announced).unwrap();
    let listing = json(&world, &["queue", "--json"]);
    let changes = listing["changes"].as_array().unwrap();
    let note = changes.iter().find(|change| change["path"] == "note" && change["what"] == "store").unwrap();
    assert_eq!(note["state"], "announced", "{listing}");
    assert!(listing["log"]["announced"].as_u64() >= Some(1), "{listing}");
    end(world);
}

/// Makes a mount that takes everything at once and sends 16 KiB per second.
fn slow() -> World {
    slow_with("writeback=async")
}

fn slow_with(options: &str) -> World {
    let world = World::start_with(options).unwrap();
    assert_eq!(client(&world, &["limit", "store=16k"]).code(), OK);
    world
}

fn film(world: &World) {
    fs::write(world.mount().join("film"), vec![b'f'; FILM_BYTES]).unwrap();
    until_listed(world, 1);
}

/// Waits until names are at the server, which go ahead of contents: so many of these are left.
fn until_listed(world: &World, contents: usize) {
    let listed = || json(world, &["queue", "--all", "--json"])["changes"].as_array().unwrap().len();
    wait_until(SOON, "the names are at the server", || Ok(listed() == contents)).unwrap();
}

/// Sends the rest, which would keep the end of a world waiting.
fn end(mut world: World) {
    assert_eq!(client(&world, &["limit", "store=off"]).code(), OK);
    world.stop_client().unwrap();
}

fn json(world: &World, arguments: &[&str]) -> Value {
    serde_json::from_str(&client(world, arguments).stdout).expect("JSON")
}

/// Runs a command about the mount, which takes it last, but for `limit`.
fn client(world: &World, arguments: &[&str]) -> Finished {
    let mut command = world.client_command();
    match arguments {
        ["limit", limit] => command.arg("limit").arg(world.mount()).arg(limit),
        _ => command.args(arguments).arg(world.mount()),
    };
    run(&mut command)
}

/// Runs a command about something below the mount.
fn on(world: &World, arguments: &[&str], path: &str) -> Finished {
    run(world.client_command().args(arguments).arg(world.mount().join(path)))
}

fn run(command: &mut Command) -> Finished {
    finish(command, LIMIT).unwrap()
}
