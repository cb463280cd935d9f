//! Tests that need the inside of a client.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mafs_proto::Class;
use quinn::{Runtime, TokioRuntime};

use super::client::dial;
use super::{Listener, ServerKey};
use crate::{BootClock, Call, Config, Incoming, Payload, Peer};

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn call(payload: Payload) -> Call {
    Call { class: Class::Store, timeout: Some(Duration::from_secs(30)), method: 1, body: Bytes::new(), payload }
}

/// Counts the payload of every call.
async fn count(mut incoming: Incoming) {
    while let Some(mut call) = incoming.next().await {
        tokio::spawn(async move {
            let mut bytes = 0;
            while let Ok(Some(piece)) = call.payload.read().await {
                bytes += u32::try_from(piece.len()).unwrap();
            }
            call.reply(bytes, Bytes::new(), Payload::None);
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_with_another_socket_goes_on_where_it_was() {
    let mut listener = Listener::bind(any_port(), &ServerKey::generate().unwrap()).unwrap();
    let address = listener.local_address().to_string();
    let open = |_| TokioRuntime.wrap_udp_socket(std::net::UdpSocket::bind(any_port())?);
    let (dialled, accepted) = tokio::join!(dial(&address, None, open), listener.accept());
    let (carrier, _, endpoint) = dialled.unwrap();
    let (_served, incoming) = Peer::start(accepted.unwrap(), Config::default(), Arc::new(BootClock));
    tokio::spawn(count(incoming));
    let (peer, _none) = Peer::start(carrier, Config::default(), Arc::new(BootClock));
    let (mut writer, payload) = Payload::stream();
    let storing = peer.call(call(payload));
    let before = endpoint.local_addr().unwrap();
    for part in 0..40 {
        writer.write(Bytes::from(vec![part; 50_000])).await.unwrap();
        if part == 20 {
            endpoint.rebind(std::net::UdpSocket::bind(any_port()).unwrap()).unwrap();
            let begin = Instant::now();
            peer.call(call(Payload::None)).reply().await.unwrap();
            assert!(begin.elapsed() < Duration::from_millis(300), "{:?}", begin.elapsed());
        }
    }
    writer.finish();
    assert_eq!(storing.reply().await.unwrap().status, 40 * 50_000);
    assert_ne!(endpoint.local_addr().unwrap(), before);
}
