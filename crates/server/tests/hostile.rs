//! Tests of peers that are no client: each ends its own call or its own connection, and the server says so in one
//! line.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::Payload;
use mafs_proto::call::{ApplyRequest, LookupRequest};
use mafs_proto::{Call, Class, Fid, FsError, Wire};
use mafs_server::Server;
use support::{ALICE, BOB, Client, create, name};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(20);

fn serve() -> Arc<Server> {
    support::open(&mafs_server::MemoryStorage::new(1))
}

/// Returns a body with other bytes in the place of the name `two`, which ends a message that has no length around it.
fn renamed(body: &[u8], two: &[u8], bad: &[u8]) -> Bytes {
    let marked = [&[2], two].concat();
    let at = body.windows(marked.len()).position(|part| part == marked).unwrap();
    let mut length = Vec::new();
    prost::encode_length_delimiter(bad.len(), &mut length).unwrap();
    [&body[..at], &length, bad, &body[at + marked.len()..]].concat().into()
}

#[tokio::test(start_paused = true)]
async fn invariant_10_what_is_no_name_is_refused_by_the_rule_it_breaks() {
    let server = serve();
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let lookup = LookupRequest { parent: root, name: name("zz"), unanswered: Vec::new() };
    let huge = vec![b'x'; 200_000];
    let bad_names: [(&[u8], &str); 7] = [
        (b"", "a name is empty"),
        (b".", "`.` and `..` are not names of entries"),
        (b"..", "`.` and `..` are not names of entries"),
        (b"a/b", "a name holds the byte 0x2f"),
        (b"a\0b", "a name holds the byte 0x00"),
        (&huge[..256], "a name is longer than 255 bytes"),
        (&huge, "a name is longer than 255 bytes"),
    ];
    for (bad, rule) in bad_names {
        let body = renamed(&lookup.encode(), b"zz", bad);
        let class = if body.len() > 1000 { Class::Fetch } else { Class::Control };
        let refused = alice.raw(LookupRequest::METHOD.number(), body, Payload::None, class).await.unwrap_err();
        assert_eq!(refused.error, FsError::Malformed, "{}", bad.escape_ascii());
        assert!(refused.message.contains(rule), "{}", refused.message);
    }
    // In a record lengths stand around the name, so only names as long as the good one fit.
    for bad in [&b".."[..], b"a/", b"a\0"] {
        let fid = alice.next_fid();
        let record = alice.next_record(create(root, "zz", fid));
        let body = renamed(&ApplyRequest::new(record, None).encode(), b"zz", bad);
        let refused = alice.raw(ApplyRequest::METHOD.number(), body, Payload::None, Class::Control).await.unwrap_err();
        assert_eq!(refused.error, FsError::Malformed, "{}", bad.escape_ascii());
    }
    assert!(alice.read_dir(root, None, 100).await.unwrap().entries.is_empty(), "nothing was made");
}

#[tokio::test(start_paused = true)]
async fn a_fid_that_does_not_exist_is_stale_and_not_a_crash() {
    let server = serve();
    let alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    for vnode in [0, 1 << 40, u64::MAX] {
        let parent = Fid { vnode: mafs_proto::VnodeId(vnode), ..root };
        let body = LookupRequest { parent, name: name("a"), unanswered: Vec::new() }.encode();
        let refused = alice.raw(LookupRequest::METHOD.number(), body, Payload::None, Class::Control).await;
        assert!(matches!(refused.unwrap_err().error, FsError::Stale | FsError::Malformed), "{vnode}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_volume_makes_room_for_others() {
    let server = serve();
    let idle = Client::connect(&server, BOB);
    let alice = Client::attached(&server, ALICE).await;
    let why = tokio::time::timeout(Duration::from_secs(40), idle.peer.closed()).await.unwrap();
    assert_eq!(why, "closed by the peer: no volume was attached for 30 s, or the lease has ended");
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_secs(25)).await;
        assert!(alice.renew().await.unwrap());
    }
    assert_eq!(alice.lookup(alice.root(), "nothing").await.unwrap(), None, "who has a volume stays");
}

/// `mafs-server` with its log.
struct Running {
    child: Child,
    log: Receiver<String>,
    address: String,
    _data: TempDir,
}

impl Running {
    fn start() -> Self {
        let data = TempDir::new().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mafs-server"));
        command.arg("run").arg("--data").arg(data.path()).args(["--listen", "127.0.0.1:0"]);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, log) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
        let mut running = Self { child, log, address: String::new(), _data: data };
        running.address = running.wait_for("listening on ").split_once("listening on ").unwrap().1.to_owned();
        running
    }

    /// Waits for the next line of the log with these words.
    fn wait_for(&self, words: &str) -> String {
        loop {
            let line = self.log.recv_timeout(LONG).unwrap_or_else(|_| panic!("the log does not say {words:?}"));
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Sends bytes and waits until the server has ended the connection.
    fn send(&self, bytes: &[u8]) -> (Vec<u8>, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let from = stream.local_addr().unwrap().to_string();
        // The server may have ended the connection before all was sent.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the server must end the connection");
        }
        (answer, from)
    }

    fn resident_kb(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_stranger_is_told_in_one_line_with_its_address() {
    for bytes in
        [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 5000], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
    {
        let server = Running::start();
        let (_, from) = server.send(bytes);
        let line = server.wait_for("a connection from");
        assert!(line.contains(&format!("a connection from {from} was ended: it does not speak mafs")), "{line}");
    }
}

#[test]
fn invariant_10_what_a_connection_sends_bounds_neither_the_memory_nor_the_life_of_the_server() {
    let server = Running::start();
    for _ in 0..20 {
        server.send(&[0xff; 200_000]);
        // A frame of HTTP/2 that says it is longer than any may be.
        server.send(&[&PREFACE[..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], &[7; 200_000]].concat());
        // Headers without end.
        let endless = [&[0, 0x40, 0, 9, 0, 0, 0, 0, 1][..], &[0x40; 0x4000]].concat().repeat(20);
        server.send(&[&PREFACE[..], &endless].concat());
    }
    assert!(server.resident_kb() < 60_000, "{} KB", server.resident_kb());
    let (answer, _) = server.send(b"GET / HTTP/1.1\r\n\r\n");
    assert!(!answer.is_empty(), "it still answers");
}

/// First bytes of a connection of HTTP/2, with empty settings.
const PREFACE: [u8; 33] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
