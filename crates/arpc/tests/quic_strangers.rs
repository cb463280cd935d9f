//! Tests of strangers at a QUIC port, and of their cost.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{any_port, call, serve, start};
use mafs_arpc::carrier::ConnectError;
use mafs_arpc::carrier::quic::{Listener, ServerKey, connect};
use mafs_arpc::{Payload, Peer};
use mafs_proto::Class;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig};
use rustls::RootCertStore;
use tokio::net::UdpSocket;

fn server() -> (SocketAddr, ServerKey) {
    let key = ServerKey::generate().unwrap();
    let listener = Listener::bind(any_port(), &key).unwrap();
    let address = listener.local_address();
    serve(listener);
    (address, key)
}

async fn greets(address: SocketAddr) -> Peer {
    let (peer, _incoming) = start(connect(&address.to_string(), None).await.unwrap().0);
    is_served(&peer).await;
    peer
}

async fn is_served(peer: &Peer) {
    assert_eq!(peer.call(call(Class::Control, 7, Payload::None)).reply().await.unwrap().status, 0);
}

/// Makes a stranger that knows TLS and QUIC, and speaks something else.
fn stranger(key: &ServerKey, alpn: &[u8]) -> Endpoint {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(key));
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![alpn.to_vec()];
    let mut endpoint = Endpoint::client(any_port()).unwrap();
    endpoint.set_default_client_config(ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap())));
    endpoint
}

fn certificates(key: &ServerKey) -> Vec<rustls::pki_types::CertificateDer<'static>> {
    use rustls::pki_types::pem::PemObject;
    rustls::pki_types::CertificateDer::pem_slice_iter(key.to_pem().as_bytes()).map(Result::unwrap).collect()
}

async fn attach(key: &ServerKey, alpn: &[u8], to: SocketAddr) -> Result<Connection, quinn::ConnectionError> {
    stranger(key, alpn).connect(to, "mafs").unwrap().await
}

#[tokio::test]
async fn garbage_and_other_protocols_end_nothing_but_themselves() {
    let (address, key) = server();
    let peer = greets(address).await;
    let socket = UdpSocket::bind(any_port()).await.unwrap();
    for length in (0..1400).step_by(7) {
        let garbage: Vec<u8> = (0..length).map(|at| (at * length % 251) as u8).collect();
        socket.send_to(&garbage, address).await.unwrap();
    }
    attach(&key, b"h3", address).await.expect_err("another protocol");
    let connection = attach(&key, b"mafs/1", address).await.expect("so far it is one of ours");
    let (mut send, _receive) = connection.open_bi().await.unwrap();
    send.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(5), connection.closed()).await.unwrap();
    assert!(matches!(ended, quinn::ConnectionError::ApplicationClosed(_)), "{ended}");
    is_served(&peer).await;
    greets(address).await;
}

#[tokio::test]
async fn who_attaches_nothing_is_cut() {
    let (address, key) = server();
    let connection = attach(&key, b"mafs/1", address).await.unwrap();
    tokio::time::timeout(Duration::from_secs(15), connection.closed()).await.expect("cut after 10 s");
}

#[tokio::test]
async fn while_many_knock_an_address_has_to_be_shown_first() {
    const KNOCKS: usize = 64;
    let (address, key) = server();
    // First packets of clients that will never go on.
    let catcher = UdpSocket::bind(any_port()).await.unwrap();
    let clients = stranger(&key, b"mafs/1");
    let _knocking: Vec<_> =
        (0..KNOCKS).map(|_| clients.connect(catcher.local_addr().unwrap(), "mafs").unwrap()).collect();
    let (mut firsts, mut buffer) = (BTreeSet::new(), [0; 2000]);
    while firsts.len() < KNOCKS {
        let bytes = catcher.recv(&mut buffer).await.unwrap();
        firsts.insert(buffer[..bytes].to_vec());
    }
    let knocker = UdpSocket::bind(any_port()).await.unwrap();
    for first in &firsts {
        knocker.send_to(first, address).await.unwrap();
    }
    let mut retries = 0;
    while let Ok(received) = tokio::time::timeout(Duration::from_millis(500), knocker.recv(&mut buffer)).await {
        assert!(received.unwrap() > 0);
        // RFC 9000, section 17.2.5: a long header of type 3, half a byte of which is unused.
        retries += usize::from(buffer[0] & 0xf0 == 0xf0);
    }
    assert!((KNOCKS - 20..KNOCKS).contains(&retries), "{retries} of {KNOCKS} were asked to show their address");
    greets(address).await;
}

#[tokio::test]
async fn another_server_is_told_from_ours() {
    let key = ServerKey::generate().unwrap();
    let certificate = certificates(&key);
    use rustls::pki_types::pem::PemObject;
    let private = rustls::pki_types::PrivateKeyDer::from_pem_slice(key.to_pem().as_bytes()).unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificate, private)
        .unwrap();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
    let endpoint = Endpoint::server(config, any_port()).unwrap();
    let address = endpoint.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let _ = incoming.await;
        }
    });
    let refused = connect(&address, None).await.unwrap_err();
    assert!(matches!(refused, ConnectError::NotMafs { .. }), "{refused}");
}
