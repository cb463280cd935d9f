//! Kills: a process that waits for data can be killed, and so can either daemon, without harm to what was acknowledged.

mod at_random;
mod writer;

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mafs_bench::content::{check_file, write_file};
use mafs_bench::measure::state;
use mafs_bench::process::{finish, run, wait, wait_until};
use mafs_bench::world::World;
use rustix::process::Signal;

use self::writer::Writer;

const LIMIT: Duration = Duration::from_secs(60);

/// Limit of the time that a killed process lives while it waits for data.
const KILL_LIMIT: Duration = Duration::from_millis(500);

/// Limit of a call on what is cached while the server is silent.
const CACHED_LIMIT: Duration = Duration::from_secs(1);

const BIG_BYTES: u64 = 64 << 20;

#[test]
#[ignore = "needs: fuse"]
fn invariant_8_a_reader_that_waits_for_data_is_killed_at_once_while_cached_files_are_read() {
    let mut world = World::start().unwrap();
    let mount = world.mount();
    fs::create_dir(mount.join("cached")).unwrap();
    write_file(&mount.join("big"), 1, BIG_BYTES).unwrap();
    write_file(&mount.join("cached/small"), 2, 10_000).unwrap();
    world.forget_cache().unwrap();
    list(&mount).unwrap();
    list(&mount.join("cached")).unwrap();
    check_file(&mount.join("cached/small"), 2, 10_000).unwrap();

    world.server().unwrap().signal(Signal::STOP).unwrap();
    let mut reader = blocked_reader(&mount.join("big"));
    let start = Instant::now();
    list(&mount.join("cached")).unwrap();
    run(Command::new("cat").arg(mount.join("cached/small")), CACHED_LIMIT).unwrap();
    assert!(start.elapsed() < 2 * CACHED_LIMIT, "cached files took {:?}", start.elapsed());

    let start = Instant::now();
    reader.kill().unwrap();
    wait(&mut reader, LIMIT).unwrap();
    let took = start.elapsed();
    println!("the killed reader was gone after {took:?}");
    assert!(took < KILL_LIMIT, "the killed reader was gone only after {took:?}");

    world.server().unwrap().signal(Signal::CONT).unwrap();
    check_file(&mount.join("big"), 1, BIG_BYTES).unwrap();
    world.stop_client().unwrap();
}

#[test]
#[ignore = "needs: fuse"]
fn invariant_8_a_reader_whose_server_stays_silent_gets_an_error_in_bounded_time() {
    let mut world = World::start().unwrap();
    write_file(&world.mount().join("big"), 1, BIG_BYTES).unwrap();
    world.forget_cache().unwrap();
    list(&world.mount()).unwrap();
    world.server().unwrap().signal(Signal::STOP).unwrap();
    let mut reader = blocked_reader(&world.mount().join("big"));
    let status = wait(&mut reader, LIMIT).unwrap();
    assert!(!status.success(), "the reader got data from a stopped server");
    world.server().unwrap().signal(Signal::CONT).unwrap();
    let path = world.mount().join("big");
    wait_until(LIMIT, "the file can be read again", || Ok(check_file(&path, 1, BIG_BYTES).is_ok())).unwrap();
}

/// A child process closes inherited descriptors in execve, with locks of its own held that the client must not wait
/// for.
#[test]
#[ignore = "needs: fuse"]
fn regression_a_program_starts_although_it_closes_a_file_that_cannot_be_sent() {
    let mut world = World::start().unwrap();
    let file = fs::File::create(world.mount().join("f")).unwrap();
    (&file).write_all(b"unsent").unwrap();
    world.kill_server().unwrap();
    run(&mut Command::new("true"), LIMIT).expect("the program runs, at the latest after the deadline");
    world.start_server().unwrap();
    wait_until(LIMIT, "the file is sent", || Ok(file.sync_all().is_ok())).unwrap();
    drop(file);
    world.stop_client().unwrap();
}

/// One close waits for the deadline of 21 s, and no more: the close of a child process that has inherited the
/// descriptor does not, nor does that of another duplicate.
#[test]
#[ignore = "needs: fuse"]
fn a_silent_server_is_waited_for_once_for_each_content() {
    let mut world = World::start().unwrap();
    let path = world.mount().join("f");
    fs::write(&path, "first").unwrap();
    world.server().unwrap().signal(Signal::STOP).unwrap();
    let start = Instant::now();
    // The shell's `true` is a child with the descriptor.
    let script = "exec 9>>\"$1\"; echo more >&9; /bin/true; /bin/true; exec 9>&-";
    let writer = Command::new("sh").args(["-c", script, "sh"]).arg(&path).output();
    let took = start.elapsed();
    println!("{writer:?} after {took:?}");
    assert!(took < Duration::from_secs(27), "the closes took {took:?}");
    let said = finish(world.client_command().arg("status").arg(world.mount()), LIMIT).unwrap();
    assert!(said.stdout.contains("does not answer") && said.stdout.contains("127.0.0.1:"), "{said:?}");
    world.server().unwrap().signal(Signal::CONT).unwrap();
    let synced = || Ok(finish(world.client_command().arg("sync").arg(world.mount()), LIMIT)?.status.success());
    wait_until(LIMIT, "the file is sent", synced).unwrap();
    world.stop_client().unwrap();
}

#[test]
#[ignore = "needs: fuse"]
fn invariant_1_what_close_acknowledged_survives_kill_9_of_the_client() {
    let mut world = World::start().unwrap();
    let writer = Writer::start(world.mount());
    writer.wait_for(200);
    world.kill_client().unwrap();
    let written = writer.stop();
    // The probe is a write, not read_dir: the kernel opens directories by itself.
    assert!(fs::write(world.mount().join("nobody"), "").is_err(), "the dead mount answers");
    world.start_client().expect("mounting over the dead mount");
    written.check(&world.mount());
    world.forget_cache().unwrap();
    written.check(&world.mount());
}

#[test]
#[ignore = "needs: fuse"]
fn invariant_1_what_close_acknowledged_survives_kill_9_of_the_server() {
    let mut world = World::start().unwrap();
    let writer = Writer::start(world.mount());
    for round in 1..=3 {
        writer.wait_for(70 * round);
        world.kill_server().unwrap();
        world.start_server().unwrap();
    }
    let before = writer.acknowledged();
    writer.wait_for(before + 100);
    let written = writer.stop();
    written.check(&world.mount());
    world.forget_cache().unwrap();
    written.check(&world.mount());
}

fn list(directory: &Path) -> io::Result<()> {
    run(Command::new("ls").arg("-l").arg(directory), CACHED_LIMIT).map(|_| ())
}

/// Starts a process that waits in a read of `path`: asleep at every look for half a second.
fn blocked_reader(path: &Path) -> Child {
    let mut reader = Command::new("cat").arg(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut asleep = 0;
    wait_until(LIMIT, "the reader waits", || {
        assert!(reader.try_wait()?.is_none(), "the reader did not wait");
        asleep = if matches!(state(reader.id()), Some('S' | 'D')) { asleep + 1 } else { 0 };
        Ok(asleep > 50)
    })
    .unwrap();
    reader
}
