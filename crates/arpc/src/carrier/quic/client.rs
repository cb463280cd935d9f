//! The connecting end.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    AsyncUdpSocket, ClientConfig, ConnectionError, Endpoint, EndpointConfig, Runtime, TokioRuntime, WriteError,
};
use tokio::net::lookup_host;

use super::controller::Controllers;
use super::frames::GREETING;
use super::identity::{Fingerprint, SERVER_NAME};
use super::lossy::Lossy;
use super::trust::{Pin, Verifier};
use super::{ALPN, carrier, transport};
use crate::carrier::shaped::Shaper;
use crate::carrier::side_by_side::side_by_side;
use crate::carrier::{Carrier, ConnectError};
use crate::engine::Side;

/// How long a server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Connects to `host:port`. The server must be the one that is known, if one is. Returns the fingerprint that it is
/// known by from now on, which is to be noted before anything is said to it.
///
/// # Errors
/// [`ConnectError`]: `NoAnswer` after 5 s of silence, and `OtherKey` if the server is not the one that is known.
/// Resolving the name has no deadline, callers set one.
pub async fn connect(host_port: &str, pin: Option<&Pin>) -> Result<(Carrier, Fingerprint), ConnectError> {
    let open = |address: SocketAddr| TokioRuntime.wrap_udp_socket(std::net::UdpSocket::bind(any(address))?);
    let (carrier, fingerprint, _) = dial(host_port, pin, open).await?;
    Ok((carrier, fingerprint))
}

/// Connects over an emulated link.
///
/// # Errors
/// As [`connect`].
pub async fn connect_over(
    link: &Shaper,
    host_port: &str,
    pin: Option<&Pin>,
) -> Result<(Carrier, Fingerprint), ConnectError> {
    let open = |address| Lossy::wrap(link, std::net::UdpSocket::bind(any(address))?);
    let (carrier, fingerprint, _) = dial(host_port, pin, open).await?;
    Ok((carrier, fingerprint))
}

/// Returns any local address of the same kind.
fn any(remote: SocketAddr) -> SocketAddr {
    match remote {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// A connection that has been made, the fingerprint of its server, and its end of the network, which the connection
/// outlives.
pub(super) type Dialled = (Carrier, Fingerprint, Endpoint);

/// Connects over a socket that `open` makes for an address.
pub(super) async fn dial(
    host_port: &str,
    pin: Option<&Pin>,
    open: impl Fn(SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>>,
) -> Result<Dialled, ConnectError> {
    let unknown = |source| ConnectError::UnknownHost { address: host_port.to_owned(), source };
    let addresses = lookup_host(host_port).await.map_err(unknown)?;
    let attempt = |address| {
        let attempt = Attempt { host_port, pin, address };
        let socket = open(address);
        async move { attempt.make(socket.map_err(|source| attempt.unreachable(source))?).await }
    };
    // An error of a peer that answered, and is not the server, says more than silence.
    let says_most =
        |error: &ConnectError| matches!(error, ConnectError::OtherKey { .. } | ConnectError::NotMafs { .. });
    let dialled = side_by_side(addresses, says_most, attempt).await;
    dialled.unwrap_or_else(|| Err(unknown(io::Error::other("the name has no address"))))
}

/// An attempt at one address of the server.
struct Attempt<'a> {
    host_port: &'a str,
    pin: Option<&'a Pin>,
    address: SocketAddr,
}

impl Attempt<'_> {
    fn unreachable(&self, source: io::Error) -> ConnectError {
        ConnectError::Unreachable { address: self.host_port.to_owned(), source }
    }

    fn not_mafs(&self, why: String) -> ConnectError {
        ConnectError::NotMafs { address: self.host_port.to_owned(), why }
    }

    async fn make(&self, socket: Arc<dyn AsyncUdpSocket>) -> Result<Dialled, ConnectError> {
        let runtime = Arc::new(TokioRuntime);
        let endpoint = Endpoint::new_with_abstract_socket(EndpointConfig::default(), None, socket, runtime)
            .map_err(|source| self.unreachable(source))?;
        let (shown, controllers) = (Arc::new(OnceLock::new()), Arc::new(Controllers::default()));
        let config = self.config(&shown, &controllers).map_err(|error| self.unreachable(io::Error::other(error)))?;
        let connecting = endpoint
            .connect_with(config, self.address, SERVER_NAME)
            .map_err(|error| self.unreachable(io::Error::other(error)))?;
        let connected = async {
            let connection = connecting.await?;
            let (mut send, receive) = connection.open_bi().await?;
            send.write_all(&[GREETING]).await.map_err(|error| match error {
                WriteError::ConnectionLost(reason) => reason,
                _ => ConnectionError::Reset,
            })?;
            Ok((connection, (send, receive)))
        };
        let silent = || ConnectError::NoAnswer { address: self.host_port.to_owned() };
        let connected = tokio::time::timeout(ANSWER_WITHIN, connected).await.map_err(|_| silent())?;
        let (connection, streams) = connected.map_err(|reason| self.refused(&reason, shown.get().copied()))?;
        let fingerprint = *shown.get().ok_or_else(|| self.not_mafs("it has no certificate".to_owned()))?;
        let carrier = carrier(Side::Connector, connection, streams, &controllers.mtu);
        Ok((carrier, fingerprint, endpoint))
    }

    fn config(
        &self,
        shown: &Arc<OnceLock<Fingerprint>>,
        controllers: &Arc<Controllers>,
    ) -> Result<ClientConfig, Box<dyn std::error::Error + Send + Sync>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let known = self.pin.map(|pin| pin.fingerprint);
        let verifier = Verifier { known, shown: Arc::clone(shown), provider: Arc::clone(&provider) };
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        config.transport_config(Arc::new(transport(controllers, 0)));
        Ok(config)
    }

    /// Returns why a handshake has failed.
    fn refused(&self, reason: &ConnectionError, shown: Option<Fingerprint>) -> ConnectError {
        match (self.pin, shown, reason) {
            (Some(pin), Some(shown), _) if pin.fingerprint != shown => ConnectError::OtherKey {
                address: self.host_port.to_owned(),
                known: pin.fingerprint.to_string(),
                shown: shown.to_string(),
                noted_in: pin.noted_in.clone(),
            },
            (_, _, ConnectionError::ConnectionClosed(close)) if close.error_code == REFUSED => {
                self.unreachable(io::Error::other("the server has too many connections"))
            }
            (_, _, ConnectionError::TimedOut) => ConnectError::NoAnswer { address: self.host_port.to_owned() },
            (_, _, reason) => self.not_mafs(reason.to_string()),
        }
    }
}

/// The code by which a full server refuses a connection.
const REFUSED: quinn::TransportErrorCode = quinn::TransportErrorCode::CONNECTION_REFUSED;
