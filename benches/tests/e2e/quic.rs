//! Mounts over QUIC: what is carried, and which servers a client accepts.

use std::fs;
use std::thread;
use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_bench::content::write_file;
use mafs_bench::link::EmulatedLink;
use mafs_bench::process::{finish, run, wait_until};
use mafs_bench::world::World;

const LIMIT: Duration = Duration::from_secs(60);

fn status(world: &World) -> String {
    run(world.client_command().arg("status").arg(world.mount()), LIMIT).unwrap()
}

#[test]
#[ignore = "needs: fuse"]
fn a_mount_over_quic_works_and_knows_its_server() {
    let mut world = World::start_with("proto=quic").unwrap();
    let file = world.mount().join("f");
    write_file(&file, 1, 3_000_000).unwrap();
    run(world.client_command().arg("sync").arg(world.mount()), LIMIT).unwrap();
    assert!(status(&world).contains("carrier  quic, over UDP\n"), "{}", status(&world));
    let json = run(world.client_command().args(["status", "--json"]).arg(world.mount()), LIMIT).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["carrier"], "quic");
    world.forget_cache().unwrap();
    assert_eq!(fs::read(&file).unwrap().len(), 3_000_000);
    // A restart keeps the key.
    world.restart().unwrap();
    assert_eq!(fs::read(&file).unwrap().len(), 3_000_000);
    world.stop_client().unwrap();
    // The server gets another key in place of this one.
    world.stop_server().unwrap();
    fs::remove_file(world.store().join("server.pem")).unwrap();
    world.start_server().unwrap();
    world.set_client_options("proto=quic,disconnected=off");
    let refused = world.start_client().unwrap_err().to_string();
    assert!(refused.contains("is not the server that it was") && refused.contains("server-key"), "{refused}");
}

#[test]
#[ignore = "needs: fuse"]
fn a_server_without_udp_and_a_socket_are_told_apart() {
    let mut world = World::new().unwrap();
    world.set_server_options(&["--no-quic"]);
    world.start_server().unwrap();
    let mut command = world.client_command();
    command.arg("mount").arg(world.target()).arg(world.mount()).args(["-o", "proto=quic"]);
    let silent = finish(&mut command, LIMIT).unwrap();
    assert!(silent.stderr.contains("over UDP") && silent.stderr.contains("proto=tcp"), "{}", silent.stderr);
    let mut command = world.client_command();
    command.args(["mount", "unix:/no/such:/home"]).arg(world.mount()).args(["-o", "proto=quic"]);
    let socket = finish(&mut command, LIMIT).unwrap();
    assert!(socket.stderr.contains("is a UNIX socket"), "{}", socket.stderr);
}

/// Waits until `status` says so of the carrier.
fn carried_by(world: &World, text: &str) {
    let line = || status(world).lines().any(|line| line.contains("carrier  ") && line.contains(text));
    wait_until(LIMIT, text, || Ok(line())).unwrap_or_else(|error| panic!("{error}: {}", status(world)));
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn udp_that_comes_and_goes_in_the_middle_of_transfers_fails_nothing() {
    const SIZE: u64 = 6_000_000;
    let link = EmulatedLink::start(&Profile::steady(1 << 20, Duration::from_millis(20))).unwrap();
    link.set_udp_blocked(true);
    let mut world = World::start_over(link, "proto=auto").unwrap();
    let block = |world: &World, blocked| world.link().unwrap().set_udp_blocked(blocked);
    let file = world.mount().join("f");
    carried_by(&world, "tcp: nothing answers at 10.77.0.1:6237 over UDP for ");
    carried_by(&world, "; tried again in ");
    write_file(&file, 1, 100_000).unwrap();

    block(&world, false);
    for command in ["disconnect", "reconnect"] {
        run(world.client_command().arg(command).arg(world.mount()), LIMIT).unwrap();
    }
    carried_by(&world, "quic, over UDP: UDP gets through");
    // Six seconds over the link.
    let in_its_middle = Duration::from_millis(2_500);
    thread::scope(|scope| {
        let writing = scope.spawn(|| write_file(&file, 2, SIZE));
        thread::sleep(in_its_middle);
        block(&world, true);
        writing.join().unwrap().unwrap();
    });
    carried_by(&world, "tcp: nothing answers at 10.77.0.1:6237 over UDP for ");
    let beside = world.another_client_beside_server("beside").unwrap();
    let written = fs::read(beside.mount().join("f")).unwrap();
    assert_eq!(written, fs::read(&file).unwrap());
    assert_eq!(written.len() as u64, SIZE);

    block(&world, false);
    world.forget_cache().unwrap();
    carried_by(&world, "quic, over UDP: UDP gets through");
    thread::scope(|scope| {
        let reading = scope.spawn(|| fs::read(&file));
        thread::sleep(in_its_middle);
        block(&world, true);
        assert!(reading.join().unwrap().unwrap() == written);
    });
    carried_by(&world, "tcp: nothing answers");
}
