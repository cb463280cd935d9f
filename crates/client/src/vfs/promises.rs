//! Promises at work: the index takes them in, and the kernel keeps answers for as long as they hold.
//!
//! A break is marked in the index first, then noted for the operations under way, then the kernel is told. An
//! operation that saw the state before the mark has also begun before the note: the kernel is told again behind its
//! answer ([`Inner::tell_again`]). Between break and answer the kernel may hold stale data; after that it never does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mafs_arpc::blocking;
use mafs_proto::call::{AttachReply, BreakRequest, Broken, ChangedObject, HeldLocks, Mark, PullReply, PullRequest};
use mafs_proto::{Fid, FidRange, Incarnation, Instant, Kind, Name, Object, VnodeId};

use super::Inner;
use super::announce::Writer;
use super::hoarding::Hoarding;
use super::kernel::{Kernel, NamesOf};
use super::locks::LockState;
use super::refreshing::{Changed, Refreshes};
use super::shown::{Noted, Part};
use crate::cache::{AttachedVolume, Cache, CacheError, Known};
use crate::core::fids;
use crate::core::log::LogEntry;
use crate::core::promises::{Grant, Missed, SessionNumber};
use crate::remote::Listener;

/// Part of the remaining lease, when the kernel reads a listing, for which it may go on using the listing. The kernel
/// also reads the attributes of the entries (readdirplus). When these expire, with that lease, it asks for each by
/// itself: 2,000 of them took 40 to 55 ms, all at once 4 ms.
const LISTING_PART: (u32, u32) = (3, 4);

/// How often the clock is looked at while the kernel has listings: timers do not run through suspend, leases do.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Listener that takes in the server's messages about the session.
pub(super) struct SessionListener {
    cache: Arc<Cache>,
    kernel: Arc<Kernel>,
    writer: Writer,
    hoarding: Arc<Hoarding>,
    locks: Arc<LockState>,
    refreshes: Arc<Refreshes>,
    /// The life of this client in which the present session began.
    incarnation: AtomicU64,
}

impl SessionListener {
    pub(super) fn new(
        cache: Arc<Cache>,
        kernel: Arc<Kernel>,
        writer: Writer,
        hoarding: Arc<Hoarding>,
        locks: Arc<LockState>,
        refreshes: Arc<Refreshes>,
    ) -> Self {
        Self { cache, kernel, writer, hoarding, locks, refreshes, incarnation: AtomicU64::new(0) }
    }
}

impl Listener for SessionListener {
    fn mark(&self) -> Option<Mark> {
        self.cache.index.mark()
    }

    fn attached(
        &self,
        reply: &AttachReply,
        changed: Option<Vec<ChangedObject>>,
    ) -> Result<(SessionNumber, BoxFuture<'static, ()>), String> {
        let before = self.cache.index.session();
        if self.cache.index.known_volume().is_some_and(|known| known.history != reply.history) {
            self.writer.forget_announcements();
        }
        let session =
            blocking(|| attached(&self.cache, reply, changed.as_deref())).map_err(|error| error.to_string())?;
        self.hoarding.note_due(false);
        self.locks.attached(reply);
        let told = match session == before {
            true => std::future::ready(()).boxed(),
            false => {
                self.incarnation.store(reply.incarnation.0, Ordering::Release);
                self.refreshes.note(Changed::All);
                self.kernel.forget_everything(names_in(&self.cache))
            }
        };
        Ok((session, told))
    }

    fn renewed(&self, sent: Instant, lease: Duration) {
        self.cache.index.renew_lease(sent, lease);
        self.locks.renewed(sent, lease);
    }

    fn caught_up(&self, session: SessionNumber, mark: Mark) {
        blocking(|| self.cache.index.caught_up(session, mark));
    }

    /// Has the kernel forget everything, because its timers do not run through suspend.
    fn lapsed(&self) {
        self.locks.lapsed();
        drop(self.kernel.forget_everything(names_in(&self.cache)));
    }

    fn locks(&self, trusted: bool) -> HeldLocks {
        self.locks.tell(trusted)
    }

    fn locks_granted(&self, grants: u64) {
        self.locks.note_grants(grants);
    }

    fn locks_wanted(&self, fids: Vec<Fid>, now: Instant) -> BoxFuture<'static, Vec<Fid>> {
        self.locks.want(fids, now)
    }

    fn broken(&self, request: BreakRequest) -> BoxFuture<'static, ()> {
        let BreakRequest { change, broken, recalled, .. } = request;
        tracing::debug!(change = change.0, ?broken, ?recalled, "promises of the server are broken");
        self.hoarding.note_broken(&self.cache, &broken);
        let changed = Changed::of(&broken);
        let names_of = names_in(&self.cache);
        let told = match broken {
            Broken::Objects(objects) => {
                blocking(|| self.cache.index.break_objects(change, &objects));
                self.kernel.forget_objects(objects, names_of)
            }
            Broken::All => {
                blocking(|| self.cache.index.break_all(change));
                self.kernel.forget_everything(names_of)
            }
        };
        // By now the index marks its data as out of date.
        self.refreshes.note(changed);
        self.writer.recalled(recalled);
        told
    }

    fn pulled(&self, request: PullRequest) -> BoxFuture<'static, PullReply> {
        self.writer.pulled(request).boxed()
    }

    fn spare(&self, fids: FidRange) -> Result<(), String> {
        self.cache.cml.append(LogEntry::SpareFids(fids)).map_err(|error| error.to_string())
    }

    fn make_durable(&self) -> Result<(), String> {
        self.cache.cml.sync().map_err(|error| error.to_string())
    }

    fn begin_life(&self, incarnation: Incarnation, spare: FidRange) -> Result<(), String> {
        let logged = self.cache.cml.append(LogEntry::Incarnation(incarnation)).map_err(|error| error.to_string());
        logged.and_then(|()| self.spare(spare)).and_then(|()| self.make_durable())
    }

    fn out_of_reach(&self, is_so: bool) {
        if !is_so && self.cache.index.is_apart() {
            self.writer.begin_catching_up();
        }
        self.cache.index.set_apart(is_so);
    }

    fn has_undecided(&self) -> bool {
        let before = self.incarnation.load(Ordering::Acquire);
        self.writer.has_undecided_before(before).unwrap_or_else(|| !self.cache.cml.state().queued.is_empty())
    }
}

/// Takes in an attach: the server of this volume, whether the promises still hold, and the new life.
fn attached(
    cache: &Cache,
    reply: &AttachReply,
    changed: Option<&[ChangedObject]>,
) -> Result<SessionNumber, CacheError> {
    if cache.index.known_volume().is_some_and(|known| known.server != reply.server) {
        let log = cache.cml.state();
        if !log.writing.is_empty() || !log.queued.is_empty() {
            return Err(CacheError::OtherServer(log.writing.len() + log.queued.len()));
        }
        tracing::warn!("this is another server than before: the cache is emptied");
        cache.containers.clear()?;
        cache.index.clear()?;
    }
    let volume = AttachedVolume { server: reply.server, history: reply.history, mark: reply.mark };
    let session = cache.index.attached(volume, reply.resumed, changed)?;
    let granted = if reply.root_pending { SessionNumber::NONE } else { session };
    cache.index.install(std::slice::from_ref(&reply.root), Grant { session: granted, change: reply.change })?;
    cache.cml.append(LogEntry::Incarnation(reply.incarnation))?;
    let last = reply.incarnation.0.saturating_add(reply.spare_lives);
    cache.cml.append(LogEntry::LastLife(Incarnation(last)))?;
    cache.cml.append(LogEntry::SpareFids(fids::Part::of(reply.fids).spare))?;
    cache.cml.sync()?;
    Ok(session)
}

/// Lists the names that the kernel may know in a directory, with the objects that they mean.
fn names_in(cache: &Arc<Cache>) -> NamesOf {
    let cache = Arc::clone(cache);
    Box::new(move |vnode| {
        let mut names: Vec<(Name, VnodeId)> = Vec::new();
        while let Ok(page) = cache.index.entries(vnode, names.last().map(|(name, _)| name))
            && !page.is_empty()
        {
            names.extend(page.into_iter().map(|(name, entry)| (name, entry.fid.vnode)));
        }
        names
    })
}

impl Inner {
    /// Returns how long the kernel may take a name in a directory to mean nothing.
    pub(super) fn absence_time_to_live(&self, parent: VnodeId) -> Duration {
        self.cache.index.valid_for(parent)
    }

    /// Returns how long the kernel may use these attributes of an object: as long as there is a promise. Not at all
    /// while the attributes change past this daemon, or if they were made from another version than the promised one:
    /// then they are older, or in conflict.
    pub(super) fn time_to_live(&self, object: &Object) -> Duration {
        let (vnode, version) = (object.fid.vnode, object.status.data_version);
        let valid = self.cache.index.promised_object(vnode).ok().flatten().map(|valid| valid.object.status);
        let is_valid = valid.is_some_and(|valid| valid.kind != Kind::File || valid.data_version == version);
        let in_use = self.files().get(vnode);
        let is_written = in_use.is_some_and(|file| file.state().users().may_write());
        if is_valid && !is_written { self.cache.index.lease_remaining() } else { Duration::ZERO }
    }

    /// Returns how long the kernel may take a name in a directory for this object. Not at all unless the index has
    /// that name: when the directory's promise is broken the kernel is told of the names that the index has.
    pub(super) fn entry_time_to_live(&self, parent: VnodeId, name: &Bytes, object: &Object) -> Duration {
        let known = Name::new(name.clone()).map(|name| self.cache.index.known_entry(parent, &name));
        match known {
            Ok(Ok(Known::Means(Some(entry)))) if entry.fid == object.fid => {
                self.cache.index.valid_for(parent).min(self.time_to_live(object))
            }
            Ok(_) | Err(_) => Duration::ZERO,
        }
    }

    /// Notes that the kernel is about to be shown a part of a listing that is good for `keep`.
    pub(super) fn kernel_keeps_listing(self: &Arc<Self>, vnode: VnodeId, part: Part, keep: Duration) {
        let (some, whole) = LISTING_PART;
        // The task that forgets listings in time does not look oftener than that.
        let keep = Some(keep * some / whole).filter(|keep| *keep > LOOK_EVERY).unwrap_or_default();
        let noted = self.kernel.note_listing(vnode, part, self.clock.now() + keep);
        if noted == Noted::NoPlace || keep.is_zero() {
            // The kernel is told after it has taken in the answer.
            drop(self.kernel.forget_listings(vec![vnode]));
        }
        if noted == Noted::Unwatched {
            tokio::spawn(expire_listings(Arc::downgrade(self)));
        }
    }

    /// Repeats to the kernel all that it was told since there had been `breaks`, behind the answer of an operation
    /// that began then.
    pub(super) fn tell_again(&self, breaks: u64) {
        match self.kernel.missed(breaks) {
            None => {}
            Some(Missed::Objects(objects)) => {
                drop(self.kernel.forget_objects_again(objects, names_in(&self.cache)));
            }
            Some(Missed::Anything) => self.kernel.forget_everything_again(names_in(&self.cache)),
        }
    }
}

/// Has the kernel forget listings in time, until it has none.
async fn expire_listings(inner: Weak<Inner>) {
    loop {
        let Some(inner) = inner.upgrade() else { return };
        let now = inner.clock.now();
        let (due, next) = inner.kernel.listings_due(now);
        if !due.is_empty() {
            drop(inner.kernel.forget_listings(due));
        }
        let Some(next) = next else { return };
        drop(inner);
        tokio::time::sleep(next.since(now).min(LOOK_EVERY)).await;
    }
}
