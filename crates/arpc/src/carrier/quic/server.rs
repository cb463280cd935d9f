//! The listening end.
//!
//! One task accepts and owns a task per connection, so that dropping the [`Listener`] ends them all. A peer can end at
//! most its own connection.
//!
//! Strangers cost a bounded amount. A datagram that begins nothing is dropped; while many handshakes are under way each
//! further address has to show first that it is real ([`HANDSHAKES_MAX`]), so forged ones cost no handshake; the number
//! of connections is bounded, and one that has not opened its stream in [`GREET_WITHIN`] is cut.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    Connection, Endpoint, EndpointConfig, Incoming, RecvStream, SendStream, ServerConfig, TokioRuntime, VarInt,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::controller::Controllers;
use super::frames::{DONE, GREETING};
use super::{ALPN, KeyError, ServerKey, carrier, transport};
use crate::carrier::Carrier;
use crate::carrier::accepting::Accepting;
use crate::carrier::strangers::Strangers;
use crate::engine::Side;

/// The most connections of one listener.
const CONNECTIONS_MAX: usize = 1024;
/// With more handshakes than this under way, addresses have to be shown to be real first.
const HANDSHAKES_MAX: usize = 16;
/// How long a connection may take until it has opened its stream.
const GREET_WITHIN: Duration = Duration::from_secs(10);
/// Connections that nobody has looked at yet are kept up to this number, and these bytes of one and of all.
const WAITING_MAX: usize = 256;
const WAITING_BYTES_EACH: u64 = 16 * 1024;
const WAITING_BYTES: u64 = 1024 * 1024;
/// The code of a connection that is cut because it does not speak mafs.
const STRANGER: VarInt = VarInt::from_u32(1);

/// A listening server: a stream of carriers. Dropping it ends all its connections.
#[derive(Debug)]
pub struct Listener {
    accepting: Accepting,
    endpoint: Endpoint,
    address: SocketAddr,
}

impl Listener {
    /// Listens on a UDP address (port 0: any free one). Must be called in a tokio runtime.
    ///
    /// # Errors
    /// If the address cannot be bound, or the key cannot be used.
    pub fn bind(address: SocketAddr, key: &ServerKey) -> io::Result<Self> {
        Self::over(std::net::UdpSocket::bind(address)?, key)
    }

    /// Listens on a socket that is bound. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// If the socket or the key cannot be used.
    pub fn over(socket: std::net::UdpSocket, key: &ServerKey) -> io::Result<Self> {
        let configs = Configs::new(key).map_err(io::Error::other)?;
        let address = socket.local_addr()?;
        let config = configs.next().0;
        let endpoint = Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime))?;
        let accepting = Accepting::start(|carriers| accept_all(endpoint.clone(), configs, carriers));
        Ok(Self { accepting, endpoint, address })
    }

    /// Returns the address in use.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the next connection. `None` once the listener is closed.
    pub async fn accept(&mut self) -> Option<Carrier> {
        self.accepting.next().await
    }
}

impl Stream for Listener {
    type Item = Carrier;

    /// Polls for the next connection, as [`Self::accept`].
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Carrier>> {
        self.accepting.poll_next(cx)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.endpoint.close(DONE, b"");
    }
}

/// The maker of each connection's configuration.
struct Configs {
    crypto: Arc<QuicServerConfig>,
}

impl Configs {
    fn new(key: &ServerKey) -> Result<Self, KeyError> {
        let invalid = |error: &dyn std::fmt::Display| KeyError::Invalid(error.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|builder| {
                builder.with_no_client_auth().with_single_cert(vec![key.certificate.clone()], key.key.clone_key())
            })
            .map_err(|error| invalid(&error))?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self { crypto: Arc::new(QuicServerConfig::try_from(tls).map_err(|error| invalid(&error))?) })
    }

    fn next(&self) -> (ServerConfig, Arc<Controllers>) {
        let controllers = Arc::new(Controllers::default());
        let mut config = ServerConfig::with_crypto(Arc::<QuicServerConfig>::clone(&self.crypto));
        config
            .transport_config(Arc::new(transport(&controllers, 1)))
            .max_incoming(WAITING_MAX)
            .incoming_buffer_size(WAITING_BYTES_EACH)
            .incoming_buffer_size_total(WAITING_BYTES);
        (config, controllers)
    }
}

async fn accept_all(endpoint: Endpoint, configs: Configs, carriers: mpsc::Sender<Carrier>) {
    let (strangers, handshakes) = (Arc::new(Strangers::default()), Arc::new(AtomicUsize::new(0)));
    let mut connections = JoinSet::new();
    loop {
        let incoming = tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            incoming = endpoint.accept() => incoming,
        };
        let Some(incoming) = incoming else { return };
        if connections.len() >= CONNECTIONS_MAX {
            incoming.refuse();
        } else if handshakes.load(Ordering::Relaxed) >= HANDSHAKES_MAX && !incoming.remote_address_validated() {
            // This fails only where the address has been shown already.
            let _ = incoming.retry();
        } else {
            let handshake = Handshake::begin(&handshakes);
            let config = configs.next();
            connections.spawn(serve(incoming, config, handshake, Arc::clone(&strangers), carriers.clone()));
        }
    }
}

/// A handshake under way, until it is dropped.
struct Handshake(Arc<AtomicUsize>);

impl Handshake {
    fn begin(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Makes a carrier of a connection, and stays until the connection has ended.
async fn serve(
    incoming: Incoming,
    (config, controllers): (ServerConfig, Arc<Controllers>),
    handshake: Handshake,
    strangers: Arc<Strangers>,
    carriers: mpsc::Sender<Carrier>,
) {
    let peer = incoming.remote_address();
    let greeted = match tokio::time::timeout(GREET_WITHIN, greet(incoming, config)).await {
        Ok(greeted) => greeted,
        Err(_) => Err(format!("it attached nothing for {GREET_WITHIN:?}")),
    };
    drop(handshake);
    match greeted {
        Ok((connection, streams)) => {
            let carrier = carrier(Side::Acceptor, connection.clone(), streams, &controllers.mtu);
            if carriers.send(carrier).await.is_ok() {
                let ended = connection.closed().await;
                tracing::debug!(%peer, %ended, "connection ended");
            }
        }
        Err(why) => strangers.tell(&peer.to_string(), &why),
    }
}

async fn greet(incoming: Incoming, config: ServerConfig) -> Result<(Connection, (SendStream, RecvStream)), String> {
    let in_words = |error: quinn::ConnectionError| error.to_string();
    let connection = incoming.accept_with(Arc::new(config)).map_err(in_words)?.await.map_err(in_words)?;
    let (send, mut receive) = connection.accept_bi().await.map_err(in_words)?;
    let mut greeting = [!GREETING];
    let read = receive.read_exact(&mut greeting).await;
    if read.is_err() || greeting != [GREETING] {
        connection.close(STRANGER, b"not mafs");
        return Err("its stream does not begin as one of mafs".to_owned());
    }
    Ok((connection, (send, receive)))
}
