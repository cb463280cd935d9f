//! Mounts over QUIC: what is carried, and by whom a client lets itself be served.

use std::fs;
use std::time::Duration;

use mafs_bench::content::write_file;
use mafs_bench::process::{finish, run};
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
    // Another one in its place.
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
