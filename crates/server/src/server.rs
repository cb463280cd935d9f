//! Server: the volumes of one data directory, served over any carriers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use mafs_arpc::carrier::Carrier;
use mafs_arpc::{Config, IncomingCall, Peer, SharedGate, watch};
use mafs_proto::{Clock, FsError, Generation, ServerEpoch, ServerId, VolumeName};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::core::Refusal;
use crate::service;
use crate::session::{Attachment, Session};
use crate::slot::{Opener, Slot};
use crate::store::{Identity, Storage, list_volumes};
use crate::volume::Volume;
use crate::{ServerConfig, ServerError, admin};

/// Time that calls under way at shutdown may take to end; they wait for a few commits at most.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Time that a connection may be without a volume: a client attaches at once, and its place may be wanted by another.
const ATTACH_WITHIN: Duration = Duration::from_secs(30);

/// A running file server. Dropping it without [`Server::shutdown`] is like kill -9: nothing is lost that was answered.
pub struct Server {
    id: ServerId,
    epoch: ServerEpoch,
    clock: Arc<dyn Clock>,
    volumes: BTreeMap<VolumeName, Arc<Slot>>,
    attaches: AtomicU64,
    sessions: Arc<Semaphore>,
    sessions_max: usize,
    /// The gate to the uplink, if its rate is known.
    gate: Option<SharedGate>,
    arpc: Config,
    lease: Duration,
    stopping: watch::Sender<bool>,
    /// Kept for the tasks that open volumes again: nothing is opened once the server is gone.
    _opener: Arc<Opener>,
    /// Last, so that a lock on the data directory outlives everything that uses it.
    _storage: Arc<dyn Storage>,
}

impl Server {
    /// Starts a server on a data directory; an empty one is made first, with a volume `home`. Must be called in a
    /// tokio runtime; blocks while journals are replayed. A volume that cannot be opened is reported and refuses its
    /// clients; others serve. One whose disk fails is opened again.
    ///
    /// # Errors
    /// [`ServerError`] if the data directory as a whole cannot be used.
    pub fn open(
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
        config: ServerConfig,
    ) -> Result<Arc<Self>, ServerError> {
        let disk = storage.disk();
        let mut identity = match Identity::load(&*disk)? {
            Some(identity) => identity,
            None => admin::initialise(&*storage, clock.wall())?,
        };
        identity.epoch = ServerEpoch(identity.epoch.0 + 1);
        identity.save(&*disk)?;
        let stopping = watch::Sender::new(false);
        let opener = Arc::new(Opener::new(Arc::clone(&storage), config, Arc::clone(&clock)));
        let mut volumes = BTreeMap::new();
        for listed in list_volumes(&*disk)? {
            let name = listed.0.clone();
            volumes.insert(name, Slot::open(&opener, listed, identity.epoch, stopping.subscribe()));
        }
        Ok(Arc::new(Self {
            id: identity.id,
            epoch: identity.epoch,
            clock,
            volumes,
            attaches: AtomicU64::new(0),
            sessions: Arc::new(Semaphore::new(config.sessions_max())),
            sessions_max: config.sessions_max(),
            gate: config.uplink().map(SharedGate::new),
            arpc: Config { scheduling: config.scheduling(), ..Config::default() },
            lease: config.timing().lease,
            stopping,
            _opener: opener,
            _storage: storage,
        }))
    }

    /// Serves the connections of a listener, until the listener closes or the server shuts down.
    pub async fn serve(self: Arc<Self>, mut listener: impl Stream<Item = Carrier> + Unpin) {
        let mut stopping = self.stopping.subscribe();
        loop {
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return,
                carrier = listener.next() => match carrier {
                    Some(carrier) => drop(tokio::spawn(Self::serve_connection(Arc::clone(&self), carrier))),
                    None => return,
                },
            }
        }
    }

    /// Serves one connection until it ends or the server shuts down.
    pub async fn serve_connection(self: Arc<Self>, carrier: Carrier) {
        let (peer, mut incoming) = Peer::start_behind(self.gate.as_ref(), carrier, self.arpc, Arc::clone(&self.clock));
        let Ok(_place) = Arc::clone(&self.sessions).try_acquire_owned() else {
            tracing::warn!(sessions = self.sessions_max, "a connection was turned away: there are too many");
            peer.close(if *self.stopping.borrow() { "the server is shutting down" } else { "too many connections" });
            return;
        };
        let session = Arc::new(Session::new(peer.clone()));
        let mut stopping = self.stopping.subscribe();
        let mut calls = JoinSet::new();
        let mut look = tokio::time::interval(ATTACH_WITHIN);
        look.reset();
        loop {
            // The branches are in a fixed order, so that runs of the simulator repeat. Calls, which may come without
            // end, are last.
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => break,
                _ = look.tick() => if session.attachment().is_err() {
                    let seconds = ATTACH_WITHIN.as_secs();
                    peer.close(&format!("no volume was attached for {seconds} s, or the lease has ended"));
                },
                Some(_) = calls.join_next() => {}
                call = incoming.next() => match call {
                    Some(call) => drop(calls.spawn(self.clone().answer(Arc::clone(&session), call))),
                    None => break,
                },
            }
        }
        if *self.stopping.borrow() {
            // The bound is for callers that do not take their payload.
            let _ = tokio::time::timeout(DRAIN_MAX, async { while calls.join_next().await.is_some() {} }).await;
            peer.close("the server is shutting down");
        } else {
            tell_end(&session, &peer.closed().await);
        }
    }

    /// Ends the server: connections are told, commits finish, indexes are closed so that the next start replays
    /// nothing.
    pub async fn shutdown(&self) {
        self.stopping.send_replace(true);
        let all = u32::try_from(self.sessions_max).unwrap_or(u32::MAX);
        // Connections drain within DRAIN_MAX each; one that does not is cut off when its volume stops.
        let _ = tokio::time::timeout(DRAIN_MAX + Duration::from_secs(1), self.sessions.acquire_many(all)).await;
        self.sessions.close();
        for slot in self.volumes.values() {
            if let Ok(volume) = slot.volume() {
                volume.stop().await;
            }
        }
    }

    /// Returns the names of the volumes that are served.
    pub fn volumes(&self) -> impl Iterator<Item = &VolumeName> {
        self.volumes.iter().filter(|(_, slot)| slot.volume().is_ok()).map(|(name, _)| name)
    }

    /// Returns the id of this server.
    #[must_use]
    pub fn id(&self) -> ServerId {
        self.id
    }

    /// Returns the number of this start of the server.
    #[must_use]
    pub fn epoch(&self) -> ServerEpoch {
        self.epoch
    }

    /// Returns the volume of this name.
    pub(crate) fn volume(&self, name: &VolumeName) -> Result<Arc<Volume>, Refusal> {
        match self.volumes.get(name) {
            Some(slot) => slot.volume(),
            None => {
                let advice = "`mafs-server volume list` there shows those it has";
                Err(Refusal::new(FsError::NoVolume, format!("the server has no volume {name}: {advice}")))
            }
        }
    }

    /// Returns how long promises hold unless they are renewed.
    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns a number for one more attach: higher than all before, those of earlier starts included.
    pub(crate) fn next_generation(&self) -> Generation {
        let attach = self.attaches.fetch_add(1, Ordering::Relaxed);
        Generation((self.epoch.0 << 32) + attach + 1)
    }

    async fn answer(self: Arc<Self>, session: Arc<Session>, call: IncomingCall) {
        service::answer(&self, &session, call).await;
    }
}

fn tell_end(session: &Session, why: &str) {
    match session.attachment() {
        Ok(Attachment { volume, ticket }) => {
            tracing::info!(volume = %volume.name(), client = %ticket.client, "a connection ended: {why}");
        }
        Err(_) => tracing::info!("a connection without a volume ended: {why}"),
    }
}
