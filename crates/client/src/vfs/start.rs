//! Start and end of a mount: takes up the state that the last life left, and puts this life's state in order.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mafs_arpc::link::ProfileName;
use mafs_arpc::{Config, blocking, watch};
use mafs_proto::{Classes, ClientId, Clock, Fid, Incarnation, VnodeId, VolumeName};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::announce::Writer;
use super::changes::{Close, Writeback};
use super::delivery::Stale;
use super::file::File;
use super::files::Files;
use super::fsync::Fsync;
use super::hoarding::{Hoarding, keep_hoarding};
use super::kernel::Kernel;
use super::listing::Listings;
use super::locks::{LockState, Locking};
use super::progress::SyncJobs;
use super::promises::SessionListener;
use super::refreshing::{Refreshes, keep_refreshing};
use super::replay::Replay;
use super::rests::Rests;
use super::storing::Patience;
use super::{Error, Inner, Vfs};
use crate::cache::{Cache, CacheError, CacheStorage};
use crate::core::log::{ContainerId, LogEntry, LogState, LoggedStore, Writing};
use crate::core::queue::Queued;
use crate::core::replacement::Replacement;
use crate::core::upload::UploadRate;
use crate::network::Network;
use crate::remote::{Connector, Remote, RemoteConfig, RemoteError};

/// Settings of a mount.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of the server as people write it, for messages.
    pub server: String,
    /// The volume.
    pub volume: VolumeName,
    /// This machine's name, shown to people at the server.
    pub client_name: String,
    /// The most bytes of contents in the cache.
    pub cache_limit_bytes: u64,
    /// Bytes of the cache's disk to leave free.
    pub min_free_bytes: u64,
    /// How long an operation waits for the server.
    pub deadline: Duration,
    /// When the server gets changes.
    pub writeback: Writeback,
    /// When close returns, if the server gets changes later.
    pub close: Close,
    /// Result of an open of a file whose newest version does not come.
    pub stale: Stale,
    /// How long an open waits for that version without progress.
    pub pull_timeout: Duration,
    /// Where fsync makes content durable.
    pub fsync: Fsync,
    /// How long an automatic fsync, and a release of a lock, waits for the server.
    pub fsync_wait: Duration,
    /// Class that each call travels in.
    pub classes: Classes,
    /// Settings of the RPC engine: which calls go first.
    pub arpc: Config,
    /// Whether cached objects can be used while the server is out of reach.
    pub disconnected: bool,
    /// Side that grants locks while the server is out of reach.
    pub locking: Locking,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether the kernel may read and write containers itself, if it can.
    pub passthrough: bool,
    /// Whether files that programs will probably open next are fetched before that.
    pub prefetch: bool,
    /// The emulated link that the connector was made with, for people.
    pub profile: Option<ProfileName>,
    /// Source of notices about changes of this host's network.
    pub network: Arc<dyn Network>,
}

impl Settings {
    /// Returns the settings of the connection to the server, with the client that makes it.
    fn remote(&self, connector: Connector, client: ClientId, incarnation: Incarnation) -> RemoteConfig {
        RemoteConfig {
            connector,
            client,
            client_name: self.client_name.clone(),
            volume: self.volume.clone(),
            deadline: self.deadline,
            classes: self.classes,
            arpc: self.arpc,
            incarnation,
            announces: self.writeback == Writeback::Sirp,
            decides: !self.writeback.waits(),
            disconnects: self.disconnected,
            network: Arc::clone(&self.network),
        }
    }
}

/// Reason why a mount cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The server cannot be used.
    #[error("{0}")]
    Remote(#[from] RemoteError),
}

/// A log entry becomes durable at most this long after it was written (consistency.md, "The modify log").
const LOG_SYNC_DELAY: Duration = Duration::from_secs(1);
/// How long an ending mount tries to send what is not on the server yet.
const LAST_STORE_WAIT: Duration = Duration::from_secs(8);

impl Vfs {
    /// Opens the cache, attaches the volume and takes up what an earlier life left unsent.
    ///
    /// # Errors
    /// [`StartError`] if the cache cannot be used, or the server cannot be reached or refuses.
    pub async fn start(
        settings: Settings,
        storage: CacheStorage,
        connector: Connector,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        let cache = Arc::new(blocking(|| Cache::open(&storage, Arc::clone(&clock)))?);
        let kernel = Arc::new(Kernel::default());
        let telling = Arc::clone(&kernel);
        cache.index.set_on_forgotten(Box::new(move |parent, names| {
            telling.expire_names(parent, names.into_iter().map(|(name, entry)| (name, entry.fid.vnode)).collect());
        }));
        let mut log = blocking(|| take_stock(&cache))?;
        let config = settings.remote(connector, cache.client, log.incarnation.unwrap_or(Incarnation(0)));
        let writer = Writer::default();
        let locks = Arc::new(LockState::new(settings.locking));
        let (listening, telling) = (Arc::clone(&cache), Arc::clone(&kernel));
        let hoarding = blocking(|| Hoarding::load(&cache))?;
        let (told, held) = (Arc::clone(&hoarding), Arc::clone(&locks));
        let refreshes = Arc::new(Refreshes::default());
        let noting = Arc::clone(&refreshes);
        let listener = Box::new(SessionListener::new(listening, telling, writer.clone(), told, held, noting));
        let spare = log.spare().filter(|_| settings.disconnected && is_usable_alone(&cache));
        let remote = Remote::start(config, log.unanswered(), spare, Arc::clone(&clock), listener).await?;
        let passthrough = AtomicBool::new(settings.passthrough && storage.tells_changes());
        let policy = settings.writeback.policy();
        let has_announced = !settings.writeback.waits() && log.incarnation.is_some();
        let inner = Arc::new(Inner {
            replacement: Mutex::new(Replacement::new(settings.cache_limit_bytes)),
            settings,
            clock,
            cache,
            remote,
            kernel,
            locks,
            files: Mutex::new(Files::default()),
            listings: Mutex::new(Listings::default()),
            listing_fetched: watch::Sender::new(()),
            passthrough,
            watching_sizes: AtomicBool::new(false),
            rests: Rests::default(),
            refreshes,
            prediction: Mutex::default(),
            hoarding,
            replay: Replay::new(policy, has_announced),
            stale_reads: AtomicU64::new(0),
            conflicts: Default::default(),
            left_dirty: Notify::new(),
            log_changed: Notify::new(),
            room: Mutex::default(),
            unnamed: Mutex::default(),
            upload_rate: Mutex::new(UploadRate::default()),
            hearing_time: Mutex::default(),
            drain: Mutex::default(),
            sync_jobs: SyncJobs::default(),
            storage,
        });
        blocking(|| {
            let lent = inner.move_out_lent(&mut log)?;
            inner.take_up(&mut log, &lent)?;
            inner.cache.cml.begin_run(inner.storage.boot())
        })?;
        writer.begin(&inner);
        // Entries that the life before logged just before it was killed may not be durable yet.
        inner.log_changed.notify_one();
        inner.begin_tasks(&log);
        Ok(Self { inner })
    }

    /// Ends the mount: tries for a few seconds to send changes that the server lacks; the rest stays in the log for
    /// the next mount.
    pub async fn shut_down(&self) {
        // Contents that the user has paused are not sent now.
        let paused = self.inner.is_paused();
        if !paused && tokio::time::timeout(LAST_STORE_WAIT, self.inner.sync()).await.is_err() {
            tracing::warn!("not everything is on the server yet; it is sent at the next mount");
        }
        self.inner.look_at_all();
        let unsent = self.inner.files().dirty();
        blocking(|| unsent.iter().for_each(|file| self.inner.keep_unsent(file)));
        self.inner.remote.close().await;
        let ended = blocking(|| {
            self.inner.files().all().iter().try_for_each(|file| self.inner.end_fetch(file))?;
            let by_use = self.inner.replacement().by_use();
            self.inner.cache.index.save_usage(by_use.into_iter())?;
            self.inner.sync_contents()?;
            self.inner.sync_log()?;
            self.inner.cache.sync()
        });
        if let Err(error) = ended {
            tracing::error!(%error, "the cache could not be made durable");
        }
    }
}

impl Inner {
    /// Begins all tasks that run until the mount ends.
    fn begin_tasks(self: &Arc<Self>, log: &LogState) {
        tokio::spawn(Arc::clone(self).keep_storing());
        tokio::spawn(Arc::clone(self).keep_replaying());
        tokio::spawn(keep_hoarding(Arc::downgrade(self), Arc::clone(&self.hoarding)));
        tokio::spawn(keep_refreshing(Arc::downgrade(self), Arc::clone(&self.refreshes)));
        tokio::spawn(Arc::clone(self).keep_holding());
        Arc::clone(self).sweep_in_background(log);
        tokio::spawn(keep_log_durable(Arc::downgrade(self)));
    }

    /// Logs a removal that waits and may take the last name of its file, if a crash came before the log was told of
    /// that: then it is no news that the server does not know the file.
    fn note_perhaps_unlinked(&self, log: &mut LogState) -> Result<(), CacheError> {
        for fid in log.perhaps_unlinked() {
            let known = self.cache.index.object(fid.vnode)?;
            if known.is_none_or(|known| known.object.status.nlink <= 1) {
                let entry = LogEntry::Removing { fid };
                self.cache.cml.append(entry.clone())?;
                log.apply(entry);
            }
        }
        Ok(())
    }

    /// Takes up the state in the cache: contents, and changes that the server does not have.
    fn take_up(&self, log: &mut LogState, lent: &BTreeSet<Fid>) -> Result<(), CacheError> {
        self.note_perhaps_unlinked(log)?;
        self.count_contents()?;
        self.take_up_queue(log, lent)?;
        let mut given_up = Vec::new();
        let is_left =
            |(fid, writing): &(&Fid, &Writing)| writing.unlinked.is_none() && !self.files().contains(fid.vnode);
        for (&fid, writing) in log.writing.iter().filter(is_left) {
            // Data not fsynced may be torn or zero after a power loss: the server's version stays (consistency.md).
            let kept = writing.synced || !self.cache.power_lost;
            match if kept { self.load_dirty(fid, *writing, None)? } else { None } {
                Some(file) => {
                    tracing::info!(%fid, "a file that the server does not have yet was found in the cache");
                    self.files().insert(file);
                }
                None => given_up.push((fid, writing.container)),
            }
        }
        self.give_up_dirty(&given_up)
    }

    /// Gives up these files' changes, of which nothing is left that could be sent: the versions that the server has
    /// stay. The containers go: programs that wrote before the last daemon was killed may still have them.
    fn give_up_dirty(&self, files: &[(Fid, ContainerId)]) -> Result<(), CacheError> {
        if files.is_empty() {
            return Ok(());
        }
        let mut before = Vec::with_capacity(files.len());
        for (fid, _) in files {
            if self.cache.power_lost {
                tracing::error!(%fid, "an unsaved change was lost with the power; the last stored version stays");
            }
            before.push(self.cache.index.set_content(fid.vnode, None)?);
        }
        // One flush of the disk for all.
        self.cache.index.sync()?;
        for (&(fid, container), before) in files.iter().zip(before) {
            self.remove_content(fid.vnode, before.map(|content| content.container));
            self.remove_content(fid.vnode, Some(container));
            self.cache.cml.append(LogEntry::Dropped { fid })?;
        }
        Ok(())
    }

    /// Removes containers that a crash left without a name in index or log. This runs in the background: it looks at
    /// each container there is.
    fn sweep_in_background(self: Arc<Self>, log: &LogState) {
        let snapshot = |store: &LoggedStore| store.snapshot.map(|container| (store.record.op.fid().vnode, container));
        let snapshots = log.logged.values().filter_map(snapshot);
        let writing = log.writing.iter().map(|(fid, writing)| (fid.vnode, writing.container));
        let dirty: HashSet<_> = writing.chain(snapshots).collect();
        mafs_arpc::spawn_blocking(move || {
            let is_named = |vnode: VnodeId, id: ContainerId| {
                // The lock is held so that no container is missed between the two checks: taken into use, and named by
                // the index no more.
                let files = self.files();
                let in_use = files.get(vnode).is_some_and(|file| file.container_id == id);
                in_use || dirty.contains(&(vnode, id)) || self.is_named_by_index(vnode, id)
            };
            if let Err(error) = self.cache.containers.sweep(is_named) {
                tracing::warn!(%error, "the cache could not be swept");
            }
        });
    }

    pub(super) fn is_named_by_index(&self, vnode: VnodeId, id: ContainerId) -> bool {
        match self.cache.index.object(vnode) {
            Ok(Some(cached)) => {
                let is_whole = cached.content.is_some_and(|content| content.container == id);
                let part = self.cache.index.part(cached.object.fid);
                is_whole || part.map_or(true, |part| part.is_some_and(|part| part.container == id))
            }
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Sends the content of a file, or puts it in the queue.
    pub(super) async fn sync_file(self: &Arc<Self>, file: &Arc<File>) -> Result<(), Error> {
        match self.settings.writeback.waits() {
            true => self.store(file, Patience::Full).await,
            false => blocking(|| self.log_version(file)),
        }
    }
}

/// Whether the cache knows enough of a volume to be used without its server.
fn is_usable_alone(cache: &Cache) -> bool {
    let has_root = || cache.index.object(VnodeId::ROOT).is_ok_and(|root| root.is_some());
    cache.index.known_volume().is_some() && has_root()
}

/// Returns the state of the log, without the entries that a loss of power has made void.
fn take_stock(cache: &Cache) -> Result<LogState, CacheError> {
    let mut log = cache.cml.state();
    for id in log.take_superseded() {
        cache.cml.append(LogEntry::Abandoned { id })?;
    }
    if cache.power_lost {
        let (stores, others) = log.take_lost();
        for LoggedStore { record, .. } in stores {
            tracing::error!(fid = %record.op.fid(), "a content that was not sent was lost with the power");
            cache.cml.append(LogEntry::Abandoned { id: record.id })?;
        }
        for Queued { record, .. } in others {
            tracing::error!(op = ?record.op, "a change that needs what was lost with the power is not sent");
            cache.cml.append(LogEntry::Ended { id: record.id })?;
        }
    }
    Ok(log)
}

/// Makes the log durable soon after it has grown, and keeps it short. From time to time also makes fetched contents
/// and names durable. Writes nothing while nothing happens.
async fn keep_log_durable(inner: std::sync::Weak<Inner>) {
    let mut cache_due = Instant::now() + CACHE_SYNC_DELAY;
    loop {
        let Some(strong) = inner.upgrade() else { return };
        let changed = tokio::time::timeout_at(cache_due, strong.log_changed.notified()).await;
        let is_cramped = strong.is_cramped();
        drop(strong);
        if changed.is_ok() && !is_cramped {
            tokio::time::sleep(LOG_SYNC_DELAY).await;
        }
        let Some(inner) = inner.upgrade() else { return };
        let mut synced = match changed {
            Ok(()) => blocking(|| inner.sync_log().and_then(|_| inner.cache.compact_log())),
            Err(_) => Ok(()),
        };
        if cache_due <= Instant::now() {
            synced = synced.and(blocking(|| inner.sync_contents().and_then(|()| inner.cache.index.sync())));
            cache_due = Instant::now() + CACHE_SYNC_DELAY;
        }
        if let Err(error) = synced {
            tracing::error!(%error, "the cache cannot be made durable");
        }
    }
}

/// How often fetched contents and names are made durable, so that a loss of power does not cost them: without a
/// connection they could not be fetched again.
const CACHE_SYNC_DELAY: Duration = Duration::from_secs(30);
