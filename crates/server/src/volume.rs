//! Volume: one volume being served: its journal and index, its contents, the sessions of its clients.
//!
//! Mutations go through one committer task ([`committer`]), in order; reads look at the committed state directly and
//! never wait for a commit. Any number of clients share a volume; [`sessions`] says which must hear of what.
//!
//! A volume whose disk has failed answers nothing more: it ends as if it had been killed, and its owner opens it again
//! from the disk.
//!
//! Dropping a volume without [`Volume::stop`] is like kill -9: its tasks end, nothing is lost that was answered.

mod announced;
mod committer;
mod exclusive;
mod failure;
mod group;
mod janitor;
mod locks;
mod pulls;
mod reads;
mod sessions;
mod validation;
mod waiting;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::{Peer, blocking, watch};
use mafs_durable::{Disk, GuardedDisk, KvError, LoggedIndex, LoggedIndexError};
use mafs_proto::call::{
    ApplyRequest, ConflictsReply, ConflictsRequest, HeldLocks, InvalidateReply, InvalidateRequest, StatFsReply,
};
use mafs_proto::{
    Base, ChangeNumber, ClientId, Clock, CmlOp, CmlRecord, Fid, FidRange, FsError, Generation, ServerEpoch, StoreId,
    VolumeId, VolumeName,
};
use tokio::sync::{mpsc, oneshot};

use crate::ServerError;
use crate::config::ServerConfig;
use crate::core::clients::{self, Granted};
use crate::core::pending::Pending;
use crate::core::{NewContent, Overlay, Refusal, announce, conflicts, quota, replies};
use crate::store::{ContentStore, SpaceReserve, Spools, Storage, VolumeFile, open_index, volume_dir};
use committer::{Announce, Job};
pub(crate) use failure::Failure;
pub(crate) use reads::{Reading, Root, StoredContent};
use sessions::Sessions;
use waiting::Apply;

/// Number of mutations that may wait for the committer; more wait at their sessions.
const JOBS_MAX: usize = 1024;

/// Number of chores that may wait for the janitor; beyond, the committer does them itself.
const CHORES_MAX: usize = 64;

/// Time between two looks for what has lasted too long.
const EXPIRY_PERIOD: Duration = Duration::from_secs(10);

/// A volume being served.
pub(crate) struct Volume {
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
}

/// State that the volume's tasks share.
struct Shared {
    name: VolumeName,
    file: VolumeFile,
    epoch: ServerEpoch,
    failure: Failure,
    disk: Arc<GuardedDisk>,
    index: LoggedIndex,
    contents: Arc<ContentStore>,
    spools: Arc<Spools>,
    reserve: SpaceReserve,
    /// Whether mutations that make the volume larger were refused last.
    is_full: AtomicBool,
    sessions: Arc<Sessions>,
    /// Dropped with this state, and last, so that nothing of the volume is left then.
    present: watch::Sender<()>,
}

/// Statements of a client about its session when it attaches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Continued {
    /// The attach whose promises it still trusts.
    pub(crate) before: Option<Generation>,
    /// Whether it decides names by itself where it may.
    pub(crate) decides: bool,
    /// The locks that it relies on.
    pub(crate) locks: HeldLocks,
}

/// Result of an attach.
pub(crate) struct Begun {
    pub(crate) granted: Granted,
    /// Whether an earlier session goes on.
    pub(crate) resumed: bool,
    /// Locks that the client relies on and does not have any more, by their places.
    pub(crate) lost_locks: Vec<u32>,
}

/// One attach: its client, and its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    pub(crate) client: ClientId,
    pub(crate) generation: Generation,
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
        let failure = Failure::new();
        let noted = failure.clone();
        let disk = Arc::new(GuardedDisk::new(storage.disk(), move |why| noted.note(why)));
        let content_dir = format!("{}/content", volume_dir(name));
        let spool_dir = format!("{content_dir}/spool");
        let contents =
            Arc::new(ContentStore::new(Arc::<GuardedDisk>::clone(&disk), content_dir, file.id(), epoch.0, reserve));
        let spools = Spools::open(Arc::clone(&contents), spool_dir, Arc::clone(&clock))
            .map_err(|source| ServerError::io(format!("open the contents of the volume {name}"), source))?;
        let open_kv = disk.guard_index(storage.index(name));
        let index = open_index(Arc::<GuardedDisk>::clone(&disk), open_kv, name, config.index())?;
        let (change, listed, pending) = last_state(name, file.id(), &index)?;
        let sessions = Sessions::new(config.timing(), (epoch, change), listed, pending, Arc::clone(&clock));
        let shared = Arc::new(Shared {
            name: name.clone(),
            file,
            epoch,
            failure,
            disk,
            index,
            contents,
            spools: Arc::new(spools),
            reserve,
            is_full: AtomicBool::new(false),
            sessions: Arc::new(sessions),
            present: watch::Sender::new(()),
        });
        let (jobs, job_queue) = mpsc::channel(JOBS_MAX);
        let (chores, chore_queue) = mpsc::channel(CHORES_MAX);
        tokio::spawn(committer::run(Arc::clone(&shared), job_queue, chores, Arc::clone(&clock)));
        tokio::spawn(janitor::run(Arc::clone(&shared), chore_queue, clock));
        tokio::spawn(expire(Arc::downgrade(&shared), jobs.downgrade()));
        Ok(Self { shared, jobs })
    }

    pub(crate) fn name(&self) -> &VolumeName {
        &self.shared.name
    }

    pub(crate) fn file(&self) -> &VolumeFile {
        &self.shared.file
    }

    /// Returns which of the times that it was opened this is, among the starts of the server.
    pub(crate) fn epoch(&self) -> ServerEpoch {
        self.shared.epoch
    }

    /// Returns the state of the disk.
    pub(crate) fn failure(&self) -> &Failure {
        &self.shared.failure
    }

    /// Returns when nothing is left of the volume in memory. Does not keep it there.
    pub(crate) fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut present = self.shared.present.subscribe();
        async move { while present.changed().await.is_ok() {} }
    }

    /// Ends a connection that the volume is attached by when the disk fails, so that its client attaches again.
    pub(crate) async fn end_with_disk(&self, peer: &Peer) {
        tokio::select! {
            biased;
            _ = peer.closed() => {}
            why = self.shared.failure.wait() => peer.close(&self.why_ended(&why)),
        }
    }

    /// Returns the text by which clients are told of a failure.
    pub(crate) fn why_ended(&self, why: &str) -> String {
        format!("the disk of the volume {} has failed at the server: {why}", self.shared.name)
    }

    /// Returns the contents that are arriving.
    pub(crate) fn spools(&self) -> &Arc<Spools> {
        &self.shared.spools
    }

    /// Lets a client use the volume; its older attach, if any, is fenced from the moment this one is decided.
    pub(crate) async fn attach(
        &self,
        ticket: Ticket,
        client_name: String,
        confirmed_below: Option<StoreId>,
        session: Continued,
    ) -> Result<Begun, Refusal> {
        self.submit(|answer| Job::Attach { ticket, client_name, confirmed_below, session, answer }).await
    }

    /// Ends a session at the wish of its client.
    pub(crate) async fn detach(&self, ticket: Ticket) {
        if self.shared.sessions.detach(ticket) {
            // If the volume stops, the next start waits for this client's lease in vain.
            let _ = self.jobs.send(Job::EndSessions(vec![ticket.client])).await;
        }
    }

    /// Renews the lease of a session; `false` if it may not be.
    ///
    /// # Errors
    /// `NotAttached` if the attach is not the client's last one, or its lease has ended.
    pub(crate) fn renew_lease(&self, ticket: Ticket, undecided: bool) -> Result<bool, Refusal> {
        self.shared.sessions.renew(ticket, undecided)
    }

    /// Tells a client of what its promises are broken by, over the connection of an attach, as long as that lasts.
    pub(crate) async fn deliver_breaks(&self, ticket: Ticket, peer: &Peer) {
        self.shared.sessions.deliver(ticket, peer).await;
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
        let mut request = Box::new(request);
        loop {
            let forced = self.admit(ticket, &request).await?;
            let again = request.clone();
            let taken = content.clone();
            let applied =
                self.submit(|answer| Job::Apply(Apply { ticket, request, content: taken, forced, answer })).await;
            match applied {
                // Somebody else has come to decide names there meanwhile.
                Err(refusal) if refusal.error == FsError::Pulling => request = again,
                applied => return applied,
            }
        }
    }

    /// Takes note of records that come later; returns when nobody relies on what was before them.
    pub(crate) async fn announce(
        &self,
        ticket: Ticket,
        request: InvalidateRequest,
    ) -> Result<InvalidateReply, Refusal> {
        self.submit(|answer| Job::Announce(Announce { ticket, request, answer: Some(answer) })).await
    }

    /// Takes note of a record whose content is arriving, if it is not announced yet. Waits for nobody.
    pub(crate) async fn announce_arriving(&self, ticket: Ticket, request: &ApplyRequest) {
        if !self.shared.sessions.is_announced(&request.record.id) {
            let records = vec![request.record.clone()];
            let (retracted, settled) = (Vec::new(), Vec::new());
            let request = InvalidateRequest { records, retracted, confirmed_below: None, settled };
            // If the volume stops, the record itself is refused.
            let _ = self.jobs.send(Job::Announce(Announce { ticket, request, answer: None })).await;
        }
    }

    /// Takes note that bytes of a client's content have arrived: callers that wait for it see progress.
    pub(crate) fn note_delivered(&self, ticket: Ticket, bytes: u64) {
        self.shared.sessions.note_delivered(ticket.client, bytes);
    }

    /// Waits until nobody relies on what was before a record that had been applied already. Then its kept reply may
    /// be given.
    pub(crate) async fn settled(&self, ticket: Ticket, record: &CmlRecord, reply: &Bytes) -> Result<(), Refusal> {
        let touched = replies::touched(record, reply)?;
        let owed = self.shared.sessions.owed(ticket.client, &touched);
        self.shared.sessions.settled(owed).await;
        Ok(())
    }

    /// Returns the kept reply to a record, if it has been applied and committed before.
    ///
    /// # Errors
    /// `StoreIdReused` if another record has been.
    pub(crate) fn known(&self, ticket: Ticket, record: &CmlRecord) -> Result<Option<Bytes>, Refusal> {
        self.shared.read(|transaction| replies::known(transaction, ticket.client, record))
    }

    /// Checks that an attach is its client's last one, and that its lease has not ended.
    ///
    /// # Errors
    /// `NotAttached` if not.
    pub(crate) fn check(&self, ticket: Ticket) -> Result<(), Refusal> {
        self.shared.sessions.check(ticket)
    }

    /// Checks that a content is not in conflict for certain, before it is received: versions do not come back.
    ///
    /// # Errors
    /// `BaseChanged` if so.
    pub(crate) fn check_base(&self, request: &ApplyRequest) -> Result<(), Refusal> {
        if self.shared.sessions.is_fenced(request) {
            return Err(FsError::BaseChanged.into());
        }
        let CmlOp::Store { fid, base: Base::Version(base), .. } = request.record.op else { return Ok(()) };
        self.shared.read(|transaction| match transaction.node(fid) {
            Ok(node) if node.status.data_version > base => Err(FsError::BaseChanged.into()),
            Ok(_) | Err(_) => Ok(()),
        })
    }

    /// Checks that a content of `size` bytes for a file may be within the quota, before it is received. The commit
    /// decides again: other stores may come first.
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

    /// Lists what is kept of records in conflict.
    pub(crate) fn conflicts(&self, request: &ConflictsRequest) -> Result<ConflictsReply, Refusal> {
        conflicts::page(&Overlay::new(self.shared.file.id(), self.shared.index.index()), request)
    }

    /// Returns the room on the disk, without what the journal and the disk keep for themselves, or in the quota, if
    /// that is less.
    pub(crate) fn space(&self) -> Result<StatFsReply, Refusal> {
        let space = self.shared.disk.space();
        let space = space.map_err(|error| Refusal::new(FsError::Io, format!("cannot ask for free space: {error}")))?;
        let bytes_free = space.bytes_free.saturating_sub(self.shared.reserve.bytes);
        let quota = self.shared.file.quota_bytes.unwrap_or(u64::MAX);
        let used = self.shared.read(|transaction| Ok(transaction.state()?.used_bytes))?;
        Ok(StatFsReply {
            bytes_total: space.bytes_total.min(quota),
            bytes_free: bytes_free.min(quota.saturating_sub(used)),
            bytes_unused: space.bytes_unused.min(quota.saturating_sub(used)),
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
        self.jobs.send(job(answer)).await.map_err(|_| self.ended())?;
        answered.await.map_err(|_| self.ended())?
    }

    /// Returns the answer when the committer has ended.
    fn ended(&self) -> Refusal {
        match self.shared.failure.get() {
            Some(why) => Refusal::new(FsError::Io, self.why_ended(&why)),
            None => FsError::ShuttingDown.into(),
        }
    }
}

/// Returns the last change of a volume, the clients that may hold promises, and the announced records. A volume whose
/// first transaction is missing has lost its journal.
fn last_state(
    name: &VolumeName,
    id: VolumeId,
    index: &LoggedIndex,
) -> Result<(ChangeNumber, Vec<ClientId>, Pending), ServerError> {
    let overlay = Overlay::new(id, index.index());
    let state = overlay.begin().state();
    let index = index.index();
    let found = state.and_then(|state| Ok((state.change, clients::with_sessions(index)?, announce::load(index)?)));
    found.map_err(|refusal| ServerError::Volume {
        name: name.clone(),
        source: LoggedIndexError::Index(KvError::Damaged(refusal.detail)),
    })
}

/// Ends sessions whose leases have ended, and removes old spools, until the volume is dropped.
async fn expire(shared: Weak<Shared>, jobs: mpsc::WeakSender<Job>) {
    loop {
        tokio::time::sleep(EXPIRY_PERIOD).await;
        let (Some(shared), Some(jobs)) = (shared.upgrade(), jobs.upgrade()) else { return };
        blocking(|| shared.spools.expire());
        let ended = shared.sessions.expire();
        if !ended.is_empty() && jobs.send(Job::EndSessions(ended)).await.is_err() {
            return;
        }
    }
}
