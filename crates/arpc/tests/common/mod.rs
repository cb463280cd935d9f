//! Helpers that the tests of the driver share.

#![allow(dead_code, unreachable_pub, reason = "not every test uses all of it")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use mafs_arpc::carrier::Carrier;
use mafs_arpc::{Call, Config, Incoming, Payload, PayloadError, PayloadReader, Peer};
use mafs_proto::{Class, Clock, Instant, Timestamp};
use tokio::task::JoinHandle;

/// The clock of tokio, which tests may pause.
pub struct TokioClock {
    start: tokio::time::Instant,
}

impl TokioClock {
    pub fn start() -> Self {
        Self { start: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        Instant::default() + self.start.elapsed()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::default()
    }
}

pub fn start(carrier: Carrier) -> (Peer, Incoming) {
    Peer::start(carrier, Config::default(), Arc::new(TokioClock::start()))
}

pub fn call(class: Class, method: u32, payload: Payload) -> Call {
    let timeout = Some(Duration::from_secs(60));
    Call { class, timeout, method, body: Bytes::from_static(b"request"), payload }
}

/// Answers every call with its body and its payload, as they come.
pub async fn echo(mut incoming: Incoming) {
    while let Some(mut call) = incoming.next().await {
        let payload = Payload::Stream(std::mem::take(&mut call.payload));
        let body = call.body.clone();
        call.reply(0, body, payload);
    }
}

/// Returns the byte at a place of a payload.
#[allow(clippy::cast_possible_truncation, reason = "below 251")]
pub fn pattern(offset: u64) -> u8 {
    (offset % 251) as u8
}

pub fn patterned(offset: u64, len: u64) -> Bytes {
    (offset..offset + len).map(pattern).collect()
}

/// Reads to the end and checks every byte.
pub async fn read_patterned(mut payload: PayloadReader) -> Result<u64, PayloadError> {
    let mut offset = 0;
    while let Some(bytes) = payload.read().await? {
        for byte in bytes {
            assert_eq!(byte, pattern(offset), "at {offset}");
            offset += 1;
        }
    }
    Ok(offset)
}

/// Returns any free port of this machine.
pub fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Serves echoes on every connection.
pub fn serve(mut listener: impl Stream<Item = Carrier> + Send + Unpin + 'static) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(carrier) = listener.next().await {
            let (peer, incoming) = start(carrier);
            tokio::spawn(async move {
                echo(incoming).await;
                drop(peer);
            });
        }
    })
}

/// Has calls of several sizes echoed by the other end.
pub async fn echoes(peer: &Peer) {
    for bytes in [0, 4096, 5_000_000] {
        let reply = peer.call(call(Class::Store, 7, Payload::Bytes(patterned(0, bytes)))).reply().await.unwrap();
        assert_eq!((reply.status, &reply.body[..]), (0, &b"request"[..]));
        assert_eq!(read_patterned(reply.payload).await, Ok(bytes));
    }
}
