//! Sessions: the clients of a volume, what they have been promised and have announced, and the breaks on their way to
//! them.
//!
//! Promises and announcements are behind one lock, so nobody is promised anything about what has just been announced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mafs_arpc::{Payload, Peer, watch};
use mafs_proto::call::{BreakReply, BreakRequest};
use mafs_proto::{
    Call, ChangeNumber, Classes, ClientId, Clock, Fid, FsError, Instant, Object, Purpose, ServerEpoch, StoreId,
    VnodeId, Wire,
};

use super::announced::Wanted;
use super::{Continued, Ticket};
use crate::core::Refusal;
use crate::core::exclusive::Exclusive;
use crate::core::locks::{Before, Locks, Present};
use crate::core::pending::{Laid, Pending, Viewer, touched};
use crate::core::promises::{BatchNumber, Owed, Promises, Timing, Touched};

/// Timers do not run through suspend, the clock does: it is read again at least this often.
pub(super) const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Number of unpromised objects that are listed; more are too many.
const UNPROMISED_MAX: usize = 2048;

/// The sessions of one volume.
pub(super) struct Sessions {
    tables: Mutex<Tables>,
    pub(super) clock: Arc<dyn Clock>,
    /// Notifies of breaks that are to be sent.
    pub(super) owed: watch::Sender<()>,
    /// Notifies of breaks that need not be waited for any more.
    settled: watch::Sender<()>,
    /// Notifies of announced records that somebody waits for.
    pub(super) wanted: watch::Sender<()>,
    /// Notifies of announced records that need not be waited for any more.
    pub(super) ended: watch::Sender<()>,
    /// Notifies of locks that others may have now.
    pub(super) unlocked: watch::Sender<()>,
}

/// State that the sessions share.
pub(super) struct Tables {
    pub(super) promises: Promises,
    pub(super) pending: Pending,
    pub(super) exclusive: Exclusive,
    pub(super) locks: Locks,
    /// Records that wait until they may be decided, and how often each does.
    pub(super) admitting: BTreeMap<StoreId, usize>,
    /// The announced records that somebody waits for.
    pub(super) wanted: BTreeMap<StoreId, Wanted>,
    /// Progress of clients with announced records: how much of them they have delivered, in bytes and records. Only
    /// rises.
    pub(super) delivered: BTreeMap<ClientId, u64>,
    /// Number of records that each client has announced. Only rises.
    pub(super) entered: BTreeMap<ClientId, u64>,
}

/// Outcome of an attach for the sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Attached {
    /// Whether the session of the attach before goes on.
    pub(super) resumed: bool,
    /// Objects that others may have been promised meanwhile though the client has announced changes of them: it was
    /// gone.
    pub(super) returns: Vec<Touched>,
    /// Locks that the client relies on and does not have any more, by their places.
    pub(super) lost_locks: Vec<u32>,
}

/// Promise that comes with an answer about objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Granted {
    /// The last change that is certainly in what is seen from now on.
    pub(super) change: ChangeNumber,
    /// The objects that nothing is promised about, and the changes that the announced records will make to each. For
    /// a directory in which another client decides names these are not known.
    pub(super) pending: BTreeMap<VnodeId, Vec<Laid>>,
}

impl Granted {
    /// Returns an object as it will be, if others have announced changes of it.
    pub(super) fn as_it_will_be(&self, object: &Object) -> Option<Object> {
        let laid = self.pending.get(&object.fid.vnode)?;
        let mut object = object.clone();
        laid.iter().for_each(|laid| laid.lay_over(&mut object.status));
        Some(object)
    }

    /// Tells whether others have announced changes of an object.
    pub(super) fn has_pending(&self, fid: Fid) -> bool {
        self.pending.contains_key(&fid.vnode)
    }
}

impl Tables {
    /// Calls `look` with the announcements, and with the clients whose announcements count for `client`.
    pub(super) fn view<T>(&self, client: ClientId, now: Instant, look: impl FnOnce(&Pending, Viewer<'_>) -> T) -> T {
        let is_live = |client| self.promises.is_live(client, now);
        look(&self.pending, Viewer { client, is_live: &is_live })
    }

    fn laid_over(&self, client: ClientId, vnodes: &BTreeSet<VnodeId>, now: Instant) -> BTreeMap<VnodeId, Vec<Laid>> {
        self.view(client, now, |pending, viewer| {
            vnodes.iter().filter_map(|vnode| Some((*vnode, pending.laid_over(*vnode, viewer)?))).collect()
        })
    }
}

impl Sessions {
    pub(super) fn new(
        timing: Timing,
        (epoch, change): (ServerEpoch, ChangeNumber),
        listed: Vec<ClientId>,
        pending: Pending,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let promises = Promises::new(timing, change, listed, clock.now());
        let exclusive = Exclusive::default();
        let (wanted, delivered, entered) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let admitting = BTreeMap::new();
        let locks = Locks::new(epoch);
        let tables = Tables { promises, pending, exclusive, locks, admitting, wanted, delivered, entered };
        let watched = || watch::Sender::new(());
        let (owed, settled, wanted, ended, unlocked) = (watched(), watched(), watched(), watched(), watched());
        Self { tables: Mutex::new(tables), clock, owed, settled, wanted, ended, unlocked }
    }

    /// Begins a session, or continues that of an earlier attach.
    pub(super) fn attach(&self, ticket: Ticket, session: &Continued) -> Attached {
        let now = self.clock.now();
        let mut tables = self.tables();
        let was_gone = !tables.promises.is_live(ticket.client, now);
        let listed = tables.promises.is_listed(ticket.client, now);
        let resumed = tables.promises.attach(ticket.client, ticket.generation, session.before, now);
        tables.exclusive.attach(ticket.client, session.decides, was_gone);
        let Tables { promises, locks, .. } = &mut *tables;
        let is_live = |client| promises.is_live(client, now);
        let before = Before { resumed, listed };
        let lost_locks = locks.attach(ticket.client, before, &session.locks, Present { now, is_live: &is_live });
        let announced = tables.pending.of_client(ticket.client).filter(|_| was_gone);
        let returns = announced.flat_map(|announced| touched(&announced.record.op)).collect();
        drop(tables);
        self.owed.send_replace(());
        self.unlocked.send_replace(());
        Attached { resumed, returns, lost_locks }
    }

    /// # Errors
    /// `NotAttached` if a later attach has replaced this one, or its lease has ended.
    pub(super) fn check(&self, ticket: Ticket) -> Result<(), Refusal> {
        let current = self.tables().promises.is_current(ticket.client, ticket.generation, self.clock.now());
        if current { Ok(()) } else { Err(FsError::NotAttached.into()) }
    }

    /// Renews a lease; see [`Promises::renew`].
    ///
    /// # Errors
    /// `NotAttached` as in [`Self::check`].
    pub(super) fn renew(&self, ticket: Ticket, undecided: bool) -> Result<bool, Refusal> {
        let mut tables = self.tables();
        let renewed = tables.promises.renew(ticket.client, ticket.generation, self.clock.now());
        if renewed.is_some() {
            tables.exclusive.note_undecided(ticket.client, undecided);
        }
        drop(tables);
        self.settled.send_replace(());
        self.ended.send_replace(());
        renewed.ok_or_else(|| FsError::NotAttached.into())
    }

    /// Ends a session. Returns whether its client has none now.
    pub(super) fn detach(&self, ticket: Ticket) -> bool {
        let mut tables = self.tables();
        let none = tables.promises.detach(ticket.client, ticket.generation);
        if none {
            tables.exclusive.end(ticket.client);
            tables.locks.end(ticket.client);
        }
        drop(tables);
        self.unlocked.send_replace(());
        self.settled.send_replace(());
        self.ended.send_replace(());
        none
    }

    /// Ends the sessions whose leases have ended. Returns which clients have none now.
    pub(super) fn expire(&self) -> Vec<ClientId> {
        let mut tables = self.tables();
        let now = self.clock.now();
        let ended = tables.promises.expire(now);
        for client in &ended {
            tables.delivered.remove(client);
            tables.entered.remove(client);
            tables.exclusive.end(*client);
            tables.locks.end(*client);
        }
        tables.exclusive.expire(now);
        ended
    }

    pub(super) fn has_session(&self, client: ClientId) -> bool {
        self.tables().promises.has_session(client)
    }

    /// Promises a client to tell it of changes of objects that it is about to be shown, but for those that others
    /// have announced changes of. To be called before the objects are looked at.
    pub(super) fn grant(&self, ticket: Ticket, vnodes: impl IntoIterator<Item = VnodeId>) -> Granted {
        let now = self.clock.now();
        let mut tables = self.tables();
        if tables.pending.is_empty() && tables.exclusive.is_empty() {
            let change = tables.promises.grant(ticket.client, vnodes);
            return Granted { change, pending: BTreeMap::new() };
        }
        let vnodes: BTreeSet<_> = vnodes.into_iter().collect();
        let mut pending = tables.laid_over(ticket.client, &vnodes, now);
        for vnode in vnodes.iter().filter(|vnode| tables.is_decided_elsewhere(ticket.client, **vnode, now)) {
            pending.entry(*vnode).or_default();
        }
        let free = vnodes.into_iter().filter(|vnode| !pending.contains_key(vnode));
        let change = tables.promises.grant(ticket.client, free);
        Granted { change, pending }
    }

    /// Has a client hear of every change from now on.
    ///
    /// # Errors
    /// `NotAttached` as in [`Self::check`].
    pub(super) fn hear_all(&self, ticket: Ticket) -> Result<(), Refusal> {
        let mut tables = self.tables();
        if !tables.promises.is_current(ticket.client, ticket.generation, self.clock.now()) {
            return Err(FsError::NotAttached.into());
        }
        tables.promises.hear_all(ticket.client);
        Ok(())
    }

    /// Promises a client that hears of every change to tell it of these objects in any case; behind the `last` of them
    /// it hears of others no more.
    ///
    /// # Errors
    /// `NotAttached` as in [`Self::check`].
    pub(super) fn hold(&self, ticket: Ticket, vnodes: &[VnodeId], last: bool) -> Result<(), Refusal> {
        let mut tables = self.tables();
        if !tables.promises.is_current(ticket.client, ticket.generation, self.clock.now()) {
            return Err(FsError::NotAttached.into());
        }
        tables.promises.hold(ticket.client, vnodes.iter().copied(), last);
        Ok(())
    }

    /// Returns the last change, if a client has heard of everything.
    pub(super) fn caught_up(&self, ticket: Ticket) -> Option<ChangeNumber> {
        self.tables().promises.caught_up(ticket.client)
    }

    /// Returns the objects of which a client is promised nothing, because of what other clients have announced or
    /// decide. `None`: they are not known, or too many.
    pub(super) fn unpromised(&self, ticket: Ticket) -> Option<BTreeSet<VnodeId>> {
        let tables = self.tables();
        let decided = tables.exclusive.directories_of_others(ticket.client)?;
        let unpromised = tables.pending.touched_by_others(ticket.client).chain(decided);
        let unpromised: BTreeSet<_> = unpromised.collect();
        (unpromised.len() <= UNPROMISED_MAX).then_some(unpromised)
    }

    /// Breaks the promises of others after an announcement is durable. Returns what its acknowledgement waits for.
    pub(super) fn announced(&self, client: ClientId, change: ChangeNumber, touched: &[Touched]) -> Owed {
        let owed = self.tables().promises.announced(client, change, touched, self.clock.now());
        self.tell(owed)
    }

    /// Wakes the tasks that send breaks.
    pub(super) fn tell(&self, owed: Owed) -> Owed {
        if !owed.is_empty() {
            self.owed.send_replace(());
        }
        owed
    }

    /// Returns the breaks that an answer about objects that were changed before waits for.
    pub(super) fn owed(&self, client: ClientId, touched: &[Touched]) -> Owed {
        self.tables().promises.owed(client, touched, self.clock.now())
    }

    /// Waits until breaks have been acknowledged, or the leases have ended of the clients that do not acknowledge.
    pub(super) async fn settled(&self, mut owed: Owed) {
        let mut settled = self.settled.subscribe();
        loop {
            settled.mark_unchanged();
            let now = self.clock.now();
            let Some(until) = self.tables().promises.remaining(&mut owed, now) else { return };
            // The sender lives as long as this does.
            let _ = tokio::time::timeout(until.since(now).min(SLEEP_MAX), settled.changed()).await;
        }
    }

    /// Sends the breaks of a session over its connection, until that has ended or another attach has the session.
    pub(super) async fn deliver(&self, ticket: Ticket, peer: &Peer) {
        let mut owed = self.owed.subscribe();
        while self.check(ticket).is_ok() {
            owed.mark_unchanged();
            let next = self.tables().promises.next_batch(ticket.client, ticket.generation, self.clock.now());
            let Some((number, request)) = next else {
                tokio::select! {
                    biased;
                    _ = peer.closed() => return,
                    _ = owed.changed() => {}
                }
                continue;
            };
            match send(peer, &request).await {
                Ok(reply) => {
                    self.acknowledge(ticket, number);
                    self.note_held(ticket, &reply.held);
                }
                Err(why) => {
                    tracing::warn!(client = %ticket.client, "a break was not acknowledged: {why}");
                    return peer.close("a break was not acknowledged");
                }
            }
        }
    }

    fn acknowledge(&self, ticket: Ticket, number: BatchNumber) {
        self.tables().promises.acknowledge(ticket.client, ticket.generation, number);
        self.settled.send_replace(());
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a break and waits for the acknowledgement, without limit: the lease bounds it.
async fn send(peer: &Peer, request: &BreakRequest) -> Result<BreakReply, String> {
    let body = request.encode();
    let class = Classes::default().class(Purpose::Break);
    let method = BreakRequest::METHOD.number();
    let call = mafs_arpc::Call { class, timeout: None, method, body, payload: Payload::None };
    let reply = peer.call(call).reply().await.map_err(|error| error.to_string())?;
    match reply.status {
        0 => BreakReply::decode(reply.body).map_err(|why| why.to_string()),
        status => Err(FsError::from_number(status).to_string()),
    }
}
