//! Connectors: the ways to make a connection.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use mafs_arpc::BootClock;
use mafs_arpc::carrier::grpc;
use mafs_arpc::carrier::quic::{self, Pin};
use mafs_arpc::carrier::shaped::Shaper;
use mafs_arpc::carrier::{Address, Carrier, ConnectError};
use mafs_arpc::link::ProfileName;

use super::auto::Auto;
use super::known_server::KnownServer;

/// An attempt to connect, under way.
pub(super) type Connecting = BoxFuture<'static, Result<Carrier, ConnectError>>;

/// Makes connections to the server. Clones share their state.
#[derive(Clone)]
pub struct Connector(Way);

#[derive(Clone)]
enum Way {
    /// One carrier.
    One(Proto, Arc<dyn Fn() -> Connecting + Send + Sync>),
    /// The better one of the carriers that work.
    Auto(Arc<Auto>),
}

/// The carrier of everything between client and server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Proto {
    /// gRPC over TCP, or over a UNIX socket.
    Tcp,
    /// QUIC, over UDP.
    Quic,
    /// QUIC where it works, else TCP.
    #[default]
    Auto,
}

impl fmt::Display for Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Quic => "quic",
            Self::Auto => "auto",
        })
    }
}

/// The carrier of the present connection, or of the last, and why it is that one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CarrierReport {
    /// `Auto`: there was no connection yet.
    pub(crate) proto: Proto,
    /// Empty if there was no choice.
    pub(crate) why: String,
    /// The seconds for which QUIC has not been possible, and those until it is tried again.
    pub(crate) blocked: Option<(u64, u64)>,
}

impl Connector {
    /// Connects by one carrier: `dial` is an attempt.
    pub fn new(
        proto: Proto,
        dial: impl Fn() -> BoxFuture<'static, Result<Carrier, ConnectError>> + Send + Sync + 'static,
    ) -> Self {
        Self(Way::One(proto, Arc::new(dial)))
    }

    /// Makes an attempt. Dropping it ends everything that it has begun.
    pub(super) async fn connect(&self) -> Result<Carrier, ConnectError> {
        match &self.0 {
            Way::One(_, dial) => dial().await,
            Way::Auto(auto) => auto.connect().await,
        }
    }

    /// Waits until there is a better carrier than that of the present connection, and returns the reason why that one
    /// is to end; never, if there is no other.
    pub(super) async fn until_better(&self) -> String {
        match &self.0 {
            Way::One(..) => std::future::pending().await,
            Way::Auto(auto) => auto.until_better().await,
        }
    }

    /// Whether the silence of the present connection, or of the last, may be that of its carrier alone.
    pub(super) fn has_another(&self) -> bool {
        match &self.0 {
            Way::One(..) => false,
            Way::Auto(auto) => auto.report().proto == Proto::Quic,
        }
    }

    pub(crate) fn carrier(&self) -> CarrierReport {
        match &self.0 {
            Way::One(proto, _) => CarrierReport { proto: *proto, why: String::new(), blocked: None },
            Way::Auto(auto) => auto.report(),
        }
    }
}

/// The seed of an emulated link: its random events are the same in every mount, so that they can be reproduced.
const LINK_SEED: u64 = 1;

/// Returns a connector over gRPC; over an emulated link if one is given, whose time begins now.
#[must_use]
pub fn grpc_connector(address: Address, link: Option<ProfileName>) -> Connector {
    let link = shaper(link);
    Connector::new(Proto::Tcp, move || connect_tcp(address.clone(), link.clone()))
}

/// Returns a connector over QUIC to `host:port`, likewise. The fingerprint of the server's key is noted in the
/// directory of the cache at the first connection, before anything is said, and no other key is accepted afterwards.
#[must_use]
pub fn quic_connector(host_port: String, link: Option<ProfileName>, cache: PathBuf) -> Connector {
    let (link, known) = (shaper(link), KnownServer::in_cache(cache));
    Connector::new(Proto::Quic, move || {
        let connecting = connect_quic(host_port.clone(), link.clone(), known.clone());
        Box::pin(async move { connecting.await.map_err(QuicFailure::into_error) })
    })
}

/// Returns a connector to `host:port` over both at once, which keeps QUIC if it is there soon, else TCP.
#[must_use]
pub fn auto_connector(host_port: String, link: Option<ProfileName>, cache: PathBuf) -> Connector {
    let (link, known) = (shaper(link), KnownServer::in_cache(cache));
    Connector(Way::Auto(Arc::new(Auto::new(host_port, link, known, Arc::new(BootClock)))))
}

/// The reason why there is no connection over QUIC.
#[derive(Debug)]
pub(super) enum QuicFailure {
    /// The machine that answers is not the known server, or that cannot be checked: no other carrier may be taken
    /// instead.
    Untrusted(ConnectError),
    /// QUIC cannot be used.
    Unusable(ConnectError),
}

impl QuicFailure {
    fn into_error(self) -> ConnectError {
        match self {
            Self::Untrusted(error) | Self::Unusable(error) => error,
        }
    }
}

pub(super) fn connect_tcp(address: Address, link: Option<Shaper>) -> Connecting {
    Box::pin(async move {
        match link {
            Some(link) => grpc::connect_over(&link, &address).await,
            None => grpc::connect(&address).await,
        }
    })
}

pub(super) fn connect_quic(
    host_port: String,
    link: Option<Shaper>,
    known: KnownServer,
) -> BoxFuture<'static, Result<Carrier, QuicFailure>> {
    Box::pin(async move {
        let unusable = |source| ConnectError::Unreachable { address: host_port.clone(), source };
        let noted = mafs_arpc::blocking(|| known.load()).map_err(|source| QuicFailure::Untrusted(unusable(source)))?;
        let pin = noted.map(|fingerprint| Pin { fingerprint, noted_in: known.to_string() });
        let connected = match link {
            Some(link) => quic::connect_over(&link, &host_port, pin.as_ref()).await,
            None => quic::connect(&host_port, pin.as_ref()).await,
        };
        let (carrier, shown) = connected.map_err(|error| match error {
            ConnectError::OtherKey { .. } => QuicFailure::Untrusted(error),
            _ => QuicFailure::Unusable(error),
        })?;
        if noted.is_none() {
            let not_noted = |error| unusable(io::Error::other(format!("its key cannot be noted in {known}: {error}")));
            mafs_arpc::blocking(|| known.save(shown)).map_err(|error| QuicFailure::Unusable(not_noted(error)))?;
            tracing::info!("{host_port} is known by its key from now on: {shown}");
        }
        Ok(carrier)
    })
}

fn shaper(link: Option<ProfileName>) -> Option<Shaper> {
    link.map(|name| Shaper::new(name.profile(LINK_SEED), Arc::new(BootClock)))
}
