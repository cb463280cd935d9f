//! `mafs-server run`: the server in the foreground, until TERM or INT.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use mafs_arpc::BootClock;
use mafs_arpc::carrier::quic;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::listen::bind_udp;
use crate::{DirStorage, ListenAddress, Server, ServerConfig, ServerError};

/// Number of worker threads: blocking work brings its own, so these only move frames and decide.
const WORKERS: usize = 2;

/// Places where the server listens.
pub(super) struct Places<'a> {
    pub(super) addresses: &'a [ListenAddress],
    /// Whether it also listens where other machines can connect.
    pub(super) insecure: bool,
    /// Whether it listens on UDP besides TCP.
    pub(super) udp: Udp,
}

/// Whether the server listens on UDP, on the port that it has for TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Udp {
    /// Unless the port cannot be had: then TCP alone serves, and the log says so.
    IfFree,
    /// In any case: without the port the server does not start.
    Required,
    /// Never.
    Off,
}

impl Udp {
    /// Takes the port of a TCP listener at `address` for UDP.
    fn bind(self, address: SocketAddr) -> Result<Option<UdpSocket>, ServerError> {
        if self == Self::Off {
            return Ok(None);
        }
        match bind_udp(address) {
            Ok(socket) => Ok(Some(socket)),
            Err(error) if self == Self::Required => Err(error),
            Err(error) => {
                tracing::warn!(
                    "{error}; {address} serves over TCP alone, and no client with `proto=quic`: `--no-quic` says that \
                     it is to be so, `--quic` that the server is not to start then"
                );
                Ok(None)
            }
        }
    }
}

/// Serves until a signal says to stop.
pub(super) fn run(data: &Path, places: &Places<'_>, config: ServerConfig) -> Result<(), ServerError> {
    let ended = mafs_arpc::run_to_end(WORKERS, serve(data, places, config));
    ended.map_err(|source| ServerError::io("start the runtime", source))?
}

async fn serve(data: &Path, places: &Places<'_>, config: ServerConfig) -> Result<(), ServerError> {
    let handler = |kind| signal(kind).map_err(|source| ServerError::io("handle signals", source));
    let (mut term, mut interrupt) = (handler(SignalKind::terminate())?, handler(SignalKind::interrupt())?);
    let storage = DirStorage::open(data)?;
    let mut listeners = Vec::new();
    for address in places.addresses {
        let listener = address.bind(places.insecure).await?;
        let udp = listener.local_address().map(|bound| places.udp.bind(bound)).transpose()?.flatten();
        listeners.push((address, listener, udp));
    }
    if !storage.is_initialised()? {
        tracing::info!("{} is empty: making a data directory with a volume `home`", data.display());
    }
    let storage = Arc::new(storage);
    let server = Server::open(Arc::<DirStorage>::clone(&storage), Arc::new(BootClock), config)?;
    let mut serving = JoinSet::new();
    for (address, listener, udp) in listeners {
        if !address.is_local() {
            tracing::warn!(
                "{address}: whoever can connect can read and change everything, as any user: \
                 the connection is not encrypted, and the user ids that clients name are trusted"
            );
        }
        match listener.local_address() {
            Some(bound) => tracing::info!("listening on {bound}"),
            None => tracing::info!("listening on {address}"),
        }
        serving.spawn(Arc::clone(&server).serve(listener));
        if let Some(socket) = udp {
            let key = storage.key()?;
            let listener = quic::Listener::over(socket, &key).map_err(|source| ServerError::io("use UDP", source))?;
            tracing::info!("QUIC on {}, with the key {}", listener.local_address(), key.fingerprint());
            serving.spawn(Arc::clone(&server).serve(listener));
        }
    }
    tracing::info!(
        data = %data.display(), server = %server.id(), epoch = server.epoch().0,
        "serving {}", server.volumes().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    );
    tokio::select! {
        _ = term.recv() => tracing::info!("stopping on TERM"),
        _ = interrupt.recv() => tracing::info!("stopping on INT"),
        _ = serving.join_next() => tracing::error!("stopping: a listener failed"),
    }
    server.shutdown().await;
    tracing::info!("stopped");
    Ok(())
}
