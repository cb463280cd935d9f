//! Peers over gRPC, on TCP loopback and UNIX sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{any_port, call, echoes, patterned, read_patterned, serve, start};
use mafs_arpc::carrier::grpc::{Address, ConnectError, Listener, connect, connect_over};
use mafs_arpc::carrier::shaped::Shaper;
use mafs_arpc::link::Profile;
use mafs_arpc::{BootClock, CallError, Payload, Peer};
use mafs_proto::Class;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn tcp_server() -> (Address, tokio::task::JoinHandle<()>) {
    let listener = Listener::bind_tcp(any_port()).await.unwrap();
    let address = Address::Tcp(listener.local_address().unwrap().to_string());
    (address, serve(listener))
}

async fn echo_works(address: &Address) -> Peer {
    let (peer, _incoming) = start(connect(address).await.unwrap());
    echoes(&peer).await;
    peer
}

#[tokio::test]
async fn calls_travel_over_tcp() {
    let (address, _server) = tcp_server().await;
    let peer = echo_works(&address).await;
    let rtt = peer.estimate().rtt_min.unwrap();
    assert!(rtt < Duration::from_secs(1), "{rtt:?}");
}

#[tokio::test]
#[ignore = "needs: a kernel with inet_diag"]
async fn loss_is_known_over_tcp_while_the_connection_lasts() {
    let (address, _server) = tcp_server().await;
    let (peer, _incoming) = start(connect(&address).await.unwrap());
    peer.call(call(Class::Store, 7, Payload::None)).reply().await.unwrap();
    let loss = peer.loss().unwrap();
    assert!(loss.sent_bytes > 0);
    assert_eq!(loss.ppm(), Some(0), "loopback loses nothing: {loss:?}");
    peer.close("done");
    peer.closed().await;
    assert_eq!(peer.loss(), None);
}

#[tokio::test]
async fn loss_over_an_emulated_link_is_that_links() {
    let (address, _server) = tcp_server().await;
    let mut profile = Profile::steady(10_000_000, Duration::from_millis(2));
    profile.up.loss_ppm = 100_000;
    let shaper = Shaper::new(profile, Arc::new(BootClock));
    let (peer, _incoming) = start(connect_over(&shaper, &address).await.unwrap());
    let reply = peer.call(call(Class::Store, 7, Payload::Bytes(patterned(0, 200_000)))).reply().await.unwrap();
    assert_eq!(read_patterned(reply.payload).await, Ok(200_000));
    let loss = peer.loss().unwrap();
    assert!(loss.sent_bytes > 200_000, "{loss:?}");
    assert!((50_000..200_000).contains(&loss.ppm().unwrap()), "{loss:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_travel_over_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let server = serve(Listener::bind_unix(path.clone()).unwrap());
    let peer = echo_works(&Address::Unix(path.clone())).await;
    assert_eq!(peer.loss(), None, "nothing is lost there, and nobody counts");
    let taken = Listener::bind_unix(path.clone());
    assert_eq!(taken.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    server.abort();
    assert!(server.await.is_err());
    assert!(!path.exists(), "the listener removes its socket");
}

#[tokio::test]
async fn stale_unix_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let _server = serve(Listener::bind_unix(path.clone()).unwrap());
    echo_works(&Address::Unix(path)).await;
}

#[tokio::test]
async fn missing_hosts_dead_ports_and_strangers_are_told_apart() {
    let unknown = connect(&Address::Tcp("no-such-host.invalid:6237".into())).await.unwrap_err();
    assert!(matches!(unknown, ConnectError::UnknownHost { .. }), "{unknown}");

    let closed = TcpListener::bind(any_port()).await.unwrap().local_addr().unwrap();
    let unreachable = connect(&Address::Tcp(closed.to_string())).await.unwrap_err();
    assert!(matches!(unreachable, ConnectError::Unreachable { .. }), "{unreachable}");
    let missing = connect(&Address::Unix("/no/such/socket".into())).await.unwrap_err();
    assert!(matches!(missing, ConnectError::Unreachable { .. }), "{missing}");

    for answer in ["HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "SSH-2.0-OpenSSH_9.9\r\n"] {
        let stranger = TcpListener::bind(any_port()).await.unwrap();
        let address = Address::Tcp(stranger.local_addr().unwrap().to_string());
        let answering = async {
            let (mut stream, _) = stranger.accept().await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        };
        let (connected, ()) = tokio::join!(connect(&address), answering);
        let refused = connected.unwrap_err();
        assert!(matches!(refused, ConnectError::NotMafs { .. }), "{refused}");
    }
}

#[tokio::test]
async fn silent_stranger_is_given_up() {
    let stranger = TcpListener::bind(any_port()).await.unwrap();
    let address = Address::Tcp(stranger.local_addr().unwrap().to_string());
    let silent = connect(&address).await.unwrap_err();
    let expected = format!("{address} takes connections but does not answer: it hangs, or is no mafs server");
    assert_eq!(silent.to_string(), expected);
}

#[tokio::test]
async fn garbage_ends_only_its_own_connection() {
    let (address, _server) = tcp_server().await;
    let Address::Tcp(host_port) = &address else { unreachable!() };
    let peer = echo_works(&address).await;
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 5000], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x40garbage"] {
        let mut stream = TcpStream::connect(host_port).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer));
        let _ = ended.await.expect("the server ends the connection");
    }
    let reply = peer.call(call(Class::Control, 7, Payload::None)).reply().await.unwrap();
    assert_eq!(reply.status, 0);
    echo_works(&address).await;
}

#[tokio::test]
async fn dropped_listener_closes_everything() {
    let mut listener = Listener::bind_tcp(any_port()).await.unwrap();
    let address = Address::Tcp(listener.local_address().unwrap().to_string());
    let (connected, accepted) = tokio::join!(connect(&address), listener.accept());
    let ((peer, _incoming), (served, _calls)) = (start(connected.unwrap()), start(accepted.unwrap()));
    let waiting = peer.call(call(Class::Fetch, 7, Payload::None));
    drop(listener);
    let ended = tokio::time::timeout(Duration::from_secs(5), async { (peer.closed().await, served.closed().await) });
    ended.await.expect("both ends notice");
    assert!(matches!(waiting.reply().await, Err(CallError::Disconnected(_))));
    assert!(matches!(connect(&address).await, Err(ConnectError::Unreachable { .. })));
}

#[tokio::test]
async fn close_reaches_the_peer_with_its_reason() {
    let mut listener = Listener::bind_tcp(any_port()).await.unwrap();
    let address = Address::Tcp(listener.local_address().unwrap().to_string());
    for server_closes in [true, false] {
        let (connected, accepted) = tokio::join!(connect(&address), listener.accept());
        let ((client, _client_calls), (server, _server_calls)) = (start(connected.unwrap()), start(accepted.unwrap()));
        let (closer, other) = if server_closes { (&server, &client) } else { (&client, &server) };
        closer.close("shutting down");
        let why = tokio::time::timeout(Duration::from_secs(5), other.closed()).await.unwrap();
        assert_eq!(why, "closed by the peer: shutting down");
    }
}
