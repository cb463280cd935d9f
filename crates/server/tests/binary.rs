//! Tests of the binary `mafs-server`: exit codes, messages, signals, sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::carrier::grpc::{Address, connect};
use mafs_arpc::{BootClock, Config, Payload, Peer};
use mafs_proto::call::{AttachReply, AttachRequest, HeldLocks};
use mafs_proto::{Call, Class, PROTOCOL_MAX, PROTOCOL_MIN, VolumeName, Wire};
use support::ALICE;
use tempfile::TempDir;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mafs-server"));
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A server under test; killed if the test ends before it.
struct Running(Child);

impl Running {
    /// Starts on a free port or socket, and waits until it serves; returns the address it logged.
    fn start(data: &Path, listen: &str) -> (Self, String) {
        let data = data.to_str().unwrap();
        let mut child = command(&["run", "--data", data, "--listen", listen]).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("the server ended").unwrap();
            if let Some((_, address)) = line.split_once("listening on ") {
                break address.to_owned();
            }
        };
        // The log is read on, so that the server never waits for a reader of it.
        std::thread::spawn(move || lines.count());
        (Self(child), address)
    }

    fn terminate(mut self) -> i32 {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.0.wait().unwrap().code().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn attach(address: Address) -> AttachReply {
    let carrier = connect(&address).await.unwrap();
    let (peer, _incoming) = Peer::start(carrier, Config::default(), Arc::new(BootClock));
    let request = AttachRequest {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL_MAX,
        client: ALICE,
        client_name: "test".to_owned(),
        volume: VolumeName::new("home").unwrap(),
        confirmed_below: None,
        session: None,
        decides: false,
        locks: HeldLocks::default(),
    };
    let call = mafs_arpc::Call {
        class: Class::Control,
        timeout: Some(Duration::from_secs(10)),
        method: AttachRequest::METHOD.number(),
        body: request.encode(),
        payload: Payload::None,
    };
    let reply = peer.call(call).reply().await.unwrap();
    assert_eq!(reply.status, 0);
    AttachReply::decode(reply.body).unwrap()
}

#[tokio::test]
async fn the_first_run_makes_the_data_directory_and_term_ends_it_well() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let (server, address) = Running::start(&data, "127.0.0.1:0");
    let first = attach(Address::Tcp(address)).await;
    let listed = run(&["volume", "list", "--data", data.to_str().unwrap()]);
    assert_eq!(code(&listed), 75, "{}", stderr(&listed));
    assert_eq!(server.terminate(), 0);

    let (server, address) = Running::start(&data, "127.0.0.1:0");
    let second = attach(Address::Tcp(address)).await;
    assert_eq!(second.server, first.server);
    assert_eq!(second.incarnation.0, first.incarnation.0 + first.spare_lives + 1);
    assert_eq!(server.terminate(), 0);
}

#[tokio::test]
async fn a_unix_socket_serves_as_well() {
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("socket");
    let (server, _) = Running::start(&dir.path().join("data"), &format!("unix:{}", socket.display()));
    attach(Address::Unix(socket)).await;
    assert_eq!(server.terminate(), 0);
}

#[tokio::test]
async fn a_server_whose_udp_port_is_taken_serves_over_tcp_alone_and_says_so() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let run_there = ["run", "--data", data.to_str().unwrap(), "--listen", &address];

    let refused = run(&[&run_there[..], &["--quic"]].concat());
    assert_eq!(code(&refused), 1, "{}", stderr(&refused));
    assert!(stderr(&refused).contains(&format!("cannot listen on {address} over UDP")), "{}", stderr(&refused));

    for (options, warns) in [(&[][..], true), (&["--no-quic"], false)] {
        let arguments = [&run_there[..], options].concat();
        let mut server = Running(command(&arguments).stderr(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(server.0.stderr.take().unwrap()).lines().map(Result::unwrap);
        let begun: Vec<_> = lines.by_ref().take_while(|line| !line.contains("serving home")).collect();
        let warning = begun.iter().find(|line| line.contains("over TCP alone"));
        assert_eq!(
            warning.is_some_and(|line| line.contains(&address) && line.contains("--no-quic")),
            warns,
            "{begun:?}"
        );
        assert!(!begun.iter().any(|line| line.contains("QUIC on")), "{begun:?}");
        std::thread::spawn(move || lines.count());
        attach(Address::Tcp(address.clone())).await;
        assert_eq!(server.terminate(), 0);
    }
}

#[test]
fn other_machines_are_kept_out_until_the_wire_is_encrypted() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let refused = run(&["run", "--data", data.to_str().unwrap(), "--listen", "0.0.0.0:0"]);
    assert_eq!(code(&refused), 2);
    let message = stderr(&refused);
    assert!(message.contains("not encrypted") && message.contains("--insecure"), "{message}");
}

#[test]
fn a_server_that_others_can_reach_says_what_that_means() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let mut child = command(&["run", "--data", data.to_str().unwrap(), "--listen", "0.0.0.0:0", "--insecure"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let said: Vec<String> = lines.map(Result::unwrap).take_while(|line| !line.contains("listening on")).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said.iter().any(|line| line.contains("as any user") && line.contains("not encrypted")), "{said:?}");
}

#[test]
fn volume_commands_say_what_they_did_by_their_exit_code() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let volume = |args: &[&str]| run(&[&["volume", "--data", data], args].concat());
    assert_eq!(code(&volume(&["list"])), 6, "no data directory yet");
    assert_eq!(code(&run(&["init", data])), 0);
    assert_eq!(code(&run(&["init", data])), 1);
    assert_eq!(code(&volume(&["add", "work"])), 0);
    assert_eq!(code(&volume(&["add", "work"])), 1);
    assert_eq!(code(&volume(&["add", "no/name"])), 2);
    assert_eq!(code(&volume(&["set", "work", "--ro", "--quota", "10G"])), 0);
    assert_eq!(code(&volume(&["set", "work", "--quota", "plenty"])), 2);
    let listed = volume(&["list", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(json[1]["name"], "work");
    assert_eq!(json[1]["read_only"], true);
    assert_eq!(json[1]["quota_bytes"], 10_u64 << 30);
    assert_eq!(json[0]["objects"], 0);
    assert_eq!(code(&volume(&["rm", "work"])), 0);
    assert_eq!(code(&volume(&["rm", "work"])), 6);
    assert_eq!(code(&volume(&[])), 2);
    assert_eq!(code(&run(&["frobnicate"])), 2);
}

/// Runs the binary, and checks the exit code and that one line says all of `parts`.
fn check_message(args: &[&str], expected: i32, parts: &[&str]) {
    let output = run(args);
    let message = stderr(&output);
    assert_eq!(code(&output), expected, "{args:?}: {message}");
    let told = message.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(told, "{args:?}: {parts:?} expected in: {message}");
}

#[tokio::test]
async fn a_number_to_listen_on_is_a_port_of_this_machine() {
    let dir = TempDir::new().unwrap();
    let (server, address) = Running::start(&dir.path().join("data"), "0");
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    assert_eq!(server.terminate(), 0);
}

#[test]
fn an_address_that_cannot_be_listened_on_is_told_with_one_that_can() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let listen = |address: &str, code, parts: &[&str]| {
        check_message(&["run", "--data", data.to_str().unwrap(), "--listen", address], code, parts);
    };
    listen("77211", 2, &["77211", "at most 65535", "127.0.0.1:6237"]);
    listen("", 2, &["127.0.0.1:6237"]);
    listen("unix:socket", 2, &["unix:socket", "begins with /", "unix:/PATH"]);
    listen("unix:/nowhere/socket", 2, &["unix:/nowhere/socket", "directory of the socket does not exist"]);
    listen("192.0.2.1:1", 2, &["192.0.2.1:1", "not encrypted", "--insecure"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    listen(&taken, 1, &[&taken, "in use", "--listen"]);
}

#[test]
fn a_volume_name_that_is_not_allowed_is_told_with_those_that_are() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    assert_eq!(code(&run(&["init", data])), 0);
    for name in ["../x", "a b", "", ".hidden", "no/name", &"x".repeat(65)] {
        check_message(&["volume", "--data", data, "add", name], 2, &["1 to 64 of A-Z a-z 0-9 . _ -", "no dot first"]);
    }
    check_message(&["volume", "--data", data, "add", "home"], 1, &[data, "home exists", "another name"]);
    check_message(&["volume", "--data", data, "rm", "work"], 6, &[data, "no volume work", "volume list"]);
}

#[test]
fn a_data_directory_that_cannot_be_used_is_told_with_what_to_do() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let each = |data: &str, code, parts: &[&str]| {
        check_message(&["run", "--data", data, "--listen", "0"], code, parts);
        check_message(&["volume", "--data", data, "list"], code, parts);
    };
    fs::write(at("file"), "").unwrap();
    each(&at("file"), 1, &[&at("file"), "not a directory", "choose another"]);
    fs::create_dir(at("foreign")).unwrap();
    fs::write(at("foreign/thesis"), "").unwrap();
    each(&at("foreign"), 1, &[&at("foreign"), "not a mafs data directory", "thesis", "choose another"]);
    check_message(&["volume", "--data", &at("missing"), "list"], 6, &[&at("missing"), "mafs-server init"]);

    let data = at("data");
    assert_eq!(code(&run(&["init", &data])), 0);
    check_message(&["init", &data], 1, &[&data, "already", "mafs-server run --data"]);
    let identity = fs::read_to_string(at("data/server.json")).unwrap();
    fs::write(at("data/server.json"), identity.replace("\"format\": 1", "\"format\": 9")).unwrap();
    each(&data, 1, &[&data, "format 9", "knows 1", "version that wrote it"]);
    fs::write(at("data/server.json"), "rubbish").unwrap();
    each(&data, 8, &[&data, "server.json is damaged", "backup"]);
}

#[test]
fn a_damaged_volume_is_told_with_what_to_do() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().to_str().unwrap();
    assert_eq!(code(&run(&["init", data])), 0);
    let journal = dir.path().join("volumes/home/journal");
    let segment = fs::read_dir(journal).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[60] ^= 1;
    fs::write(&segment, bytes).unwrap();
    check_message(&["volume", "--data", data, "rm", "home"], 8, &[data, "home", "damaged", "byte 28", "backup"]);
    let listed = run(&["volume", "--data", data, "list"]);
    assert_eq!(code(&listed), 8);
    let table = String::from_utf8(listed.stdout).unwrap();
    assert!(table.lines().any(|line| line.starts_with("home") && line.contains("backup")), "{table}");
}
