//! `mafs-server run`: the server in the foreground, until TERM or INT.

use std::path::Path;
use std::sync::Arc;

use mafs_arpc::BootClock;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::{DirStorage, ListenAddress, Server, ServerConfig, ServerError};

/// Worker threads: blocking work brings its own, so these only move frames and decide.
const WORKERS: usize = 2;

/// Serves until a signal says to stop.
pub(super) fn run(
    data: &Path,
    addresses: &[ListenAddress],
    insecure: bool,
    config: ServerConfig,
) -> Result<(), ServerError> {
    let ended = mafs_arpc::run_to_end(WORKERS, serve(data, addresses, insecure, config));
    ended.map_err(|source| ServerError::io("start the runtime", source))?
}

async fn serve(
    data: &Path,
    addresses: &[ListenAddress],
    insecure: bool,
    config: ServerConfig,
) -> Result<(), ServerError> {
    let handler = |kind| signal(kind).map_err(|source| ServerError::io("handle signals", source));
    let (mut term, mut interrupt) = (handler(SignalKind::terminate())?, handler(SignalKind::interrupt())?);
    let storage = DirStorage::open(data)?;
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.push((address, address.bind(insecure).await?));
    }
    if !storage.is_initialised()? {
        tracing::info!("{} is empty: making a data directory with a volume `home`", data.display());
    }
    let server = Server::open(Arc::new(storage), Arc::new(BootClock), config)?;
    let mut serving = JoinSet::new();
    for (address, listener) in listeners {
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
