//! Volume: one volume being served: its journal and index, its contents, the client that holds it.
//!
//! Mutations go through one committer task ([`committer`]), in order; reads look at the committed state directly and
//! never wait for a commit. Until clients get promises (a later part) one client at a time holds a volume.
//!
//! Lock order: `holder` is the only lock and the last in every order; it is held for no longer than it takes to read
//! or set it.
//!
//! Dropping a volume without [`Volume::stop`] is like kill -9: its tasks end, nothing is lost that was answered.

mod committer;
mod group;
mod janitor;
mod reads;
mod waiting;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use mafs_durable::{Disk, LoggedIndex, LoggedIndexError};
use mafs_proto::call::{ApplyRequest, StatFsReply};
use mafs_proto::{ClientId, Clock, CmlRecord, Fid, FidRange, FsError, Generation, ServerEpoch, StoreId, VolumeName};
use tokio::sync::{mpsc, oneshot};

use crate::ServerError;
use crate::config::ServerConfig;
use crate::core::clients::Granted;
use crate::core::{NewContent, Refusal, quota, replies};
use crate::store::{ContentStore, SpaceReserve, Storage, VolumeFile, open_index, volume_dir};
use committer::Job;
pub(crate) use reads::{Reading, StoredContent};
use waiting::Apply;

/// Mutations that may wait for the committer; more wait at their sessions.
const JOBS_MAX: usize = 1024;

/// Chores that may wait for the janitor; beyond, the committer does them itself.
const CHORES_MAX: usize = 64;

/// A volume being served.
pub(crate) struct Volume {
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
}

/// What the volume's tasks share.
struct Shared {
    name: VolumeName,
    file: VolumeFile,
    disk: Arc<dyn Disk>,
    index: LoggedIndex,
    contents: Arc<ContentStore>,
    reserve: SpaceReserve,
    holder: Mutex<Option<Holder>>,
}

/// One attach: who, and which one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    pub(crate) client: ClientId,
    pub(crate) generation: Generation,
}

/// The client that holds the volume.
struct Holder {
    ticket: Ticket,
    client_name: String,
}

impl Volume {
    /// Opens a volume and starts its tasks; must be called in a tokio runtime. Replays the journal, so it may take a
    /// while.
    pub(crate) fn open(
        storage: &dyn Storage,
        name: &VolumeName,
        file: VolumeFile,
        epoch: ServerEpoch,
        config: &ServerConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ServerError> {
        let reserve = SpaceReserve { bytes: config.space_reserve_bytes() };
        let content_dir = format!("{}/content", volume_dir(name));
        let contents = ContentStore::open(storage.disk(), content_dir, file.id(), epoch.0, reserve)
            .map_err(|source| ServerError::io(format!("open the contents of the volume {name}"), source))?;
        let index = open_index(storage, name, config.index())?;
        let shared = Arc::new(Shared {
            name: name.clone(),
            file,
            disk: storage.disk(),
            index,
            contents: Arc::new(contents),
            reserve,
            holder: Mutex::new(None),
        });
        shared.check_founded()?;
        let (jobs, job_queue) = mpsc::channel(JOBS_MAX);
        let (chores, chore_queue) = mpsc::channel(CHORES_MAX);
        tokio::spawn(committer::run(Arc::clone(&shared), job_queue, chores, Arc::clone(&clock)));
        tokio::spawn(janitor::run(Arc::clone(&shared), chore_queue, clock));
        Ok(Self { shared, jobs })
    }

    pub(crate) fn name(&self) -> &VolumeName {
        &self.shared.name
    }

    pub(crate) fn file(&self) -> &VolumeFile {
        &self.shared.file
    }

    pub(crate) fn contents(&self) -> &Arc<ContentStore> {
        &self.shared.contents
    }

    /// Lets a client hold the volume; its older attach, if any, is fenced from the moment this one is decided.
    ///
    /// # Errors
    /// `VolumeInUse` if another client holds it.
    pub(crate) async fn attach(
        &self,
        ticket: Ticket,
        client_name: String,
        confirmed_below: Option<StoreId>,
    ) -> Result<Granted, Refusal> {
        self.submit(|answer| Job::Attach { ticket, client_name, confirmed_below, answer }).await
    }

    /// Grants more fids.
    pub(crate) async fn grant_fids(&self, ticket: Ticket) -> Result<FidRange, Refusal> {
        self.submit(|answer| Job::GrantFids { ticket, answer }).await
    }

    /// Applies a record exactly once; returns the encoded reply when it is durable. A record whose content was refused
    /// is decided here too, so that those that wait for it learn of it.
    pub(crate) async fn apply(
        &self,
        ticket: Ticket,
        request: ApplyRequest,
        content: Result<Option<NewContent>, Refusal>,
    ) -> Result<Bytes, Refusal> {
        let request = Box::new(request);
        self.submit(|answer| Job::Apply(Apply { ticket, request, content, answer })).await
    }

    /// The kept reply to a record, if it has been applied and committed before.
    ///
    /// # Errors
    /// `StoreIdReused` if another record has been.
    pub(crate) fn known(&self, ticket: Ticket, record: &CmlRecord) -> Result<Option<Bytes>, Refusal> {
        self.shared.read(|transaction| replies::known(transaction, ticket.client, record))
    }

    /// Checks that an attach still holds the volume.
    ///
    /// # Errors
    /// `NotAttached` if not.
    pub(crate) fn check(&self, ticket: Ticket) -> Result<(), Refusal> {
        self.shared.check(ticket)
    }

    /// Gives the volume back, unless a later attach has it.
    pub(crate) fn release(&self, ticket: Ticket) {
        self.shared.release(ticket);
    }

    /// Whether a content of `size` bytes for a file may be within the quota, before it is received. The commit decides
    /// again: other stores may come first.
    ///
    /// # Errors
    /// `Quota` if not.
    pub(crate) fn check_quota(&self, fid: Fid, size: u64) -> Result<(), Refusal> {
        let Some(quota) = self.shared.file.quota_bytes else { return Ok(()) };
        self.shared.read(|transaction| {
            let used = transaction.state()?.used_bytes;
            let replaced = transaction.node(fid).map_or(0, |node| node.used_bytes());
            quota::check(Some(quota), used, used.saturating_sub(replaced).saturating_add(size))
        })
    }

    /// Room on the disk, without what the journal keeps for itself, or in the quota, if that is less.
    pub(crate) fn space(&self) -> Result<StatFsReply, Refusal> {
        let space = self.shared.disk.space();
        let space = space.map_err(|error| Refusal::new(FsError::Io, format!("cannot ask for free space: {error}")))?;
        let bytes_free = space.bytes_free.saturating_sub(self.shared.reserve.bytes);
        let quota = self.shared.file.quota_bytes.unwrap_or(u64::MAX);
        let used = self.shared.read(|transaction| Ok(transaction.state()?.used_bytes))?;
        Ok(StatFsReply {
            bytes_total: space.bytes_total.min(quota),
            bytes_free: bytes_free.min(quota.saturating_sub(used)),
            files_total: space.files_total,
            files_free: space.files_free,
        })
    }

    /// Finishes what has been submitted, then closes the index. Later calls are answered `ShuttingDown`.
    pub(crate) async fn stop(&self) {
        let (answer, stopped) = oneshot::channel();
        if self.jobs.send(Job::Stop { answer }).await.is_ok() {
            // An error means that the committer has ended, which is what was wanted.
            let _ = stopped.await;
        }
    }

    async fn submit<T>(&self, job: impl FnOnce(oneshot::Sender<Result<T, Refusal>>) -> Job) -> Result<T, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.jobs.send(job(answer)).await.map_err(|_| Refusal::from(FsError::ShuttingDown))?;
        answered.await.map_err(|_| Refusal::from(FsError::ShuttingDown))?
    }
}

impl Shared {
    fn check(&self, ticket: Ticket) -> Result<(), Refusal> {
        match &*self.holder() {
            Some(holder) if holder.ticket == ticket => Ok(()),
            Some(_) | None => Err(FsError::NotAttached.into()),
        }
    }

    fn release(&self, ticket: Ticket) {
        let mut holder = self.holder();
        if holder.as_ref().is_some_and(|holder| holder.ticket == ticket) {
            *holder = None;
        }
    }

    fn holder(&self) -> MutexGuard<'_, Option<Holder>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A volume whose first transaction is missing has lost its journal.
    fn check_founded(&self) -> Result<(), ServerError> {
        match self.read(|transaction| transaction.state().map(drop)) {
            Ok(()) => Ok(()),
            Err(refusal) => Err(ServerError::Volume {
                name: self.name.clone(),
                source: LoggedIndexError::Index(mafs_durable::KvError::Damaged(refusal.detail)),
            }),
        }
    }
}
