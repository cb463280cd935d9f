//! How connections are made.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use mafs_arpc::BootClock;
use mafs_arpc::carrier::grpc;
use mafs_arpc::carrier::quic::{self, Pin};
use mafs_arpc::carrier::shaped::Shaper;
use mafs_arpc::carrier::{Address, Carrier, ConnectError};
use mafs_arpc::link::ProfileName;

use super::known_server::KnownServer;

/// Makes connections to the server.
pub type Connector = Arc<dyn Fn() -> BoxFuture<'static, Result<Carrier, ConnectError>> + Send + Sync>;

/// The carrier of everything between client and server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Proto {
    /// gRPC over TCP, or over a UNIX socket.
    #[default]
    Tcp,
    /// QUIC, over UDP.
    Quic,
}

impl fmt::Display for Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Quic => "quic",
        })
    }
}

/// What is random in an emulated link is the same in every mount, so that what has been seen is seen again.
const LINK_SEED: u64 = 1;

/// Connects over gRPC; over an emulated link if one is given, whose time begins now.
#[must_use]
pub fn grpc_connector(address: Address, link: Option<ProfileName>) -> Connector {
    let link = shaper(link);
    Arc::new(move || {
        let (address, link) = (address.clone(), link.clone());
        Box::pin(async move {
            match link {
                Some(link) => grpc::connect_over(&link, &address).await,
                None => grpc::connect(&address).await,
            }
        })
    })
}

/// Connects over QUIC to `host:port`, likewise. What the server is known by is noted in the directory of the cache at
/// the first connection, before anything is said, and nobody else is taken for the server afterwards.
#[must_use]
pub fn quic_connector(host_port: String, link: Option<ProfileName>, cache: PathBuf) -> Connector {
    let link = shaper(link);
    Arc::new(move || {
        let (host_port, link, known) = (host_port.clone(), link.clone(), KnownServer::in_cache(cache.clone()));
        Box::pin(async move {
            let unusable = |source| ConnectError::Unreachable { address: host_port.clone(), source };
            let noted = mafs_arpc::blocking(|| known.load()).map_err(unusable)?;
            let pin = noted.map(|fingerprint| Pin { fingerprint, noted_in: known.to_string() });
            let (carrier, shown) = match link {
                Some(link) => quic::connect_over(&link, &host_port, pin.as_ref()).await?,
                None => quic::connect(&host_port, pin.as_ref()).await?,
            };
            if noted.is_none() {
                mafs_arpc::blocking(|| known.save(shown)).map_err(unusable)?;
                tracing::info!("{host_port} is known by its key from now on: {shown}");
            }
            Ok(carrier)
        })
    })
}

fn shaper(link: Option<ProfileName>) -> Option<Shaper> {
    link.map(|name| Shaper::new(name.profile(LINK_SEED), Arc::new(BootClock)))
}
