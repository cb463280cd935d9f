//! The server, as the rest of the client sees it: typed calls that outlive connections.
//!
//! A call waits for a connection if there is none, and is repeated on the next one if its own breaks: reads may be
//! repeated anyway, mutations because the server applies each `StoreId` once. Every wait ends at the deadline.

mod attempts;
mod auto;
mod by_hand;
mod connection;
mod connector;
mod damage;
mod error;
mod fetch;
mod fids;
mod held;
mod holding;
mod known_server;
mod limits;
mod link;
mod locks;
mod roaming;
mod store;
mod urgency;
mod waiting;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use mafs_arpc::{CallError, CallHandle, Config, Payload, PayloadReader, Peer, blocking, watch};
use mafs_proto::call::{
    ApplyReply, ApplyRequest, AttachReply, BreakRequest, ChangedObject, DetachRequest, ErrorDetail, HeldLocks,
    InvalidateReply, InvalidateRequest, Mark, PullReply, PullRequest,
};
use mafs_proto::{
    Call, Class, Classes, ClientId, Clock, CmlOp, CmlRecord, Fid, FidRange, FsError, Generation, Incarnation, Method,
    OnConflict, Purpose, Removals, Removed, StoreId, Timestamp, VolumeName, Wire,
};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::core::fids::{Fids, Part};
use crate::core::log::Spare;
use crate::core::outstanding::Outstanding;
use crate::core::promises::SessionNumber;
use crate::core::rpc_statistics::RpcStatistics;
use crate::network::Network;
use crate::options::FOR_EVER;
use attempts::{Attempts, Failure};
use by_hand::Wish;
pub(crate) use connection::{RECONNECT_MAX, RECONNECT_STEP};
pub use connector::{Connector, Proto, auto_connector, grpc_connector, quic_connector};
pub(crate) use damage::Damage;
pub use error::RemoteError;
use limits::Limits;
use link::Reach;
pub(crate) use link::{Link, Outage};
pub(crate) use store::{StoreContent, Terms};
pub(crate) use urgency::Urgency;
use waiting::Waiting;

/// Receiver of the server's messages about the session and its promises.
pub(crate) trait Listener: Send + Sync + 'static {
    /// Returns the mark up to which the client has heard of everything that it was promised to.
    fn mark(&self) -> Option<Mark>;
    /// Takes in, durably, that the volume has been attached, before anything else is done on the connection. `changed`
    /// has all objects that are not as earlier sessions were promised; `None`: none need be. Returns the session of
    /// answers from now on, and a future that ends when the kernel, too, will ask again for objects that were promised
    /// before.
    fn attached(
        &self,
        reply: &AttachReply,
        changed: Option<Vec<ChangedObject>>,
    ) -> Result<(SessionNumber, BoxFuture<'static, ()>), String>;
    /// Notes that a request that was sent at `sent` has been answered with a lease.
    fn renewed(&self, sent: mafs_proto::Instant, lease: Duration);
    /// Notes that in a session all has been heard up to `mark`.
    fn caught_up(&self, session: SessionNumber, mark: Mark);
    /// Notes that the lease has ended, and the promises with it.
    fn lapsed(&self);
    /// Returns the locks that programs rely on, for an attach of the volume. `trusted`: the session before is to go
    /// on.
    fn locks(&self, trusted: bool) -> HeldLocks;
    /// Notes how many locks a server that has renewed the lease has granted.
    fn locks_granted(&self, grants: u64);
    /// Takes in broken promises: returns when the client will ask again, with a future that ends when the kernel will
    /// as well.
    fn broken(&self, request: BreakRequest) -> BoxFuture<'static, ()>;
    /// Notes that other clients want to lock these files: yields those of which programs hold locks.
    fn locks_wanted(&self, fids: Vec<Fid>, now: mafs_proto::Instant) -> BoxFuture<'static, Vec<Fid>>;
    /// Notes that another client waits for records of this client, and answers the pull.
    fn pulled(&self, request: PullRequest) -> BoxFuture<'static, PullReply>;
    /// Whether the log holds changes that were decided before the present session.
    fn has_undecided(&self) -> bool;
    /// Begins this life of the client without an attach, and without use of the `spare` fids: durable when this
    /// returns.
    fn begin_life(&self, incarnation: Incarnation, spare: FidRange) -> Result<(), String>;
    /// Logs that this life does not use these fids: durable once [`Self::make_durable`] returns. The newest entry
    /// counts, so entries are logged in the order in which it is decided which fids are used.
    fn spare(&self, fids: FidRange) -> Result<(), String>;
    /// Makes durable all that has been logged.
    fn make_durable(&self) -> Result<(), String>;
    /// Notes that the server is known to be out of reach, or is so no more.
    fn out_of_reach(&self, is_so: bool);
}

/// Settings of the remote: the server, the volume, and how long to wait.
pub(crate) struct RemoteConfig {
    pub(crate) connector: Connector,
    pub(crate) client: ClientId,
    pub(crate) client_name: String,
    pub(crate) volume: VolumeName,
    /// The time that a call waits for a connection and an answer.
    pub(crate) deadline: Duration,
    /// The table that assigns classes to calls.
    pub(crate) classes: Classes,
    /// The rules of which call goes first.
    pub(crate) arpc: Config,
    /// The newest incarnation this client knows of.
    pub(crate) incarnation: Incarnation,
    /// Whether the header of a content from the queue announces it.
    pub(crate) announces: bool,
    /// Whether this client decides names where the server lets it.
    pub(crate) decides: bool,
    /// Whether the client finds out that the server is out of reach.
    pub(crate) disconnects: bool,
    /// The source of changes of this host's network.
    pub(crate) network: Arc<dyn Network>,
}

impl RemoteConfig {
    /// Whether calls wait also for a server that is known to be out of reach (`hard`).
    fn waits_for_ever(&self) -> bool {
        self.deadline >= FOR_EVER
    }
}

/// A connection that calls go out on.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Peer,
    /// Tells connections apart.
    number: u64,
    pub(crate) generation: Generation,
    session: SessionNumber,
}

/// A session whose promises are trusted.
struct Held {
    /// The attach that has it.
    generation: Generation,
    until: mafs_proto::Instant,
}

/// A reply with its payload.
pub(crate) struct Answer<R> {
    pub(crate) reply: R,
    pub(crate) payload: PayloadReader,
    /// The session that holds the promises of the reply.
    pub(crate) session: SessionNumber,
}

/// Typed calls to one volume of one server. Clones are the same.
#[derive(Clone)]
pub(crate) struct Remote {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    config: RemoteConfig,
    clock: Arc<dyn Clock>,
    listener: Box<dyn Listener>,
    link: watch::Sender<Link>,
    link_since: Mutex<mafs_proto::Instant>,
    /// Whether the user wants a connection.
    wish: watch::Sender<Wish>,
    /// Wakes the keeper of the connection while it waits until the next attempt to connect.
    hurry: Notify,
    ids: Mutex<Ids>,
    /// The end of a handoff that was announced.
    handoff: watch::Sender<Option<mafs_proto::Instant>>,
    /// Whether there has been a connection since the start.
    reached: AtomicBool,
    held: Mutex<Option<Held>>,
    statistics: Mutex<RpcStatistics>,
    damage: Damage,
    limits: Mutex<Limits>,
    /// Calls that wait for the server and may hold up the kernel.
    waiting: watch::Sender<usize>,
}

/// A call that is under way.
struct Begun {
    class: Class,
    handle: CallHandle,
}

impl Begun {
    fn urgency(&self, classes: Classes) -> Urgency {
        Urgency::new(self.handle.priority(), classes, self.class)
    }
}

/// Adds the traffic of a connection.
fn add_traffic(statistics: &mut RpcStatistics, peer: &Peer) {
    for (class, traffic) in statistics.iter_mut().zip(peer.estimate().traffic) {
        class.add_traffic(traffic);
    }
}

/// Source of ids for new records and objects.
struct Ids {
    outstanding: Outstanding,
    fids: Fids,
    granting: bool,
}

impl Ids {
    /// Begins a new life, which is durable here with the fids that it leaves.
    fn begin_life(&mut self, incarnation: Incarnation, fids: Part) {
        self.outstanding.begin_life(incarnation);
        self.fids.begin(fids);
    }
}

impl Remote {
    /// Connects and attaches once; after that connections are replaced in the background for ever. If the server is
    /// out of reach and there is a `spare` life, that life begins without the server.
    ///
    /// # Errors
    /// If the first attempt fails: [`RemoteError`] says why.
    pub(crate) async fn start(
        config: RemoteConfig,
        unanswered: impl IntoIterator<Item = CmlRecord>,
        spare: Option<Spare>,
        clock: Arc<dyn Clock>,
        listener: Box<dyn Listener>,
    ) -> Result<Self, RemoteError> {
        let mut outstanding = Outstanding::new(config.client, config.incarnation);
        unanswered.into_iter().for_each(|record| outstanding.resume(record));
        let shared = Arc::new(Shared {
            link_since: Mutex::new(clock.now()),
            config,
            clock,
            listener,
            link: watch::Sender::new(Link::Down(Outage::new("not tried yet"))),
            wish: watch::Sender::new(Wish::default()),
            hurry: Notify::new(),
            ids: Mutex::new(Ids { outstanding, fids: Fids::default(), granting: false }),
            handoff: watch::Sender::new(None),
            reached: AtomicBool::new(false),
            held: Mutex::new(None),
            statistics: Mutex::default(),
            damage: Damage::default(),
            limits: Mutex::default(),
            waiting: watch::Sender::new(0),
        });
        let first = match (connection::attach_first(&shared, spare.is_some()).await, spare) {
            (Ok(first), _) => {
                shared.set_up(first.connection(0));
                Some(first)
            }
            (Err(error), Some(spare)) if error.may_pass() => {
                shared.begin_apart(spare, &error)?;
                None
            }
            (Err(error), _) => return Err(error),
        };
        tokio::spawn(connection::keep(Arc::clone(&shared), first));
        Ok(Self { shared })
    }

    /// Makes a call without payload.
    pub(crate) async fn call<C: Call>(&self, request: &C, purpose: Purpose) -> Result<Answer<C::Reply>, RemoteError> {
        let deadline = Instant::now() + self.shared.config.deadline;
        self.call_until(request, purpose, Some(deadline), &|| Payload::None).await
    }

    /// Applies a mutation without content. A connection must be there within the deadline; the answer may wait besides
    /// until a client that cannot be reached has lost its lease. The record stays outstanding until its end is noted.
    pub(crate) async fn apply(&self, record: &CmlRecord) -> Result<Answer<ApplyReply>, RemoteError> {
        let request = self.apply_request(record);
        let patience = self.shared.config.deadline + HOLDER_WAIT;
        let no_payload = || Payload::None;
        let answer = timeout(patience, self.call_until(&request, record.op.purpose(), None, &no_payload)).await;
        answer.unwrap_or_else(|_| Err(RemoteError::TimedOut("the server has not answered".to_owned())))
    }

    /// Makes the record of a mutation that waits in a queue, with the records it must wait for besides those that it
    /// names. `removes` is as in [`CmlRecord`].
    pub(crate) fn queued_record(
        &self,
        (op, removes): (CmlOp, Option<Removed>),
        owner: (u32, u32),
        time: Timestamp,
    ) -> (CmlRecord, Vec<StoreId>) {
        self.shared.ids().outstanding.begin_queued((op, removes), time, owner)
    }

    /// Reads or changes the outstanding records.
    pub(crate) fn outstanding<T>(&self, ask: impl FnOnce(&mut Outstanding) -> T) -> T {
        ask(&mut self.shared.ids().outstanding)
    }

    /// Sends a record of the queue that has no content, for `purpose`. The record stays outstanding until its end is
    /// noted. There is no deadline while there is a connection: the answer may wait for a client that cannot be
    /// reached.
    pub(crate) async fn replay(
        &self,
        record: &CmlRecord,
        purpose: Purpose,
        (on_conflict, removals): (OnConflict, Option<Removals>),
        repeated: bool,
    ) -> Result<Answer<ApplyReply>, RemoteError> {
        let attempts = Attempts::new(&self.shared.config, repeated);
        let request = ApplyRequest { on_conflict, removals, ..self.apply_request(record) };
        let answer = self.once(&request, purpose, &attempts).await?;
        Ok(attempts.answered(Method::Apply, answer))
    }

    /// Tells the server of records of the queue that wait, and of others that will never come. There is no deadline
    /// while there is a connection, and no second attempt.
    pub(crate) async fn announce(&self, request: InvalidateRequest) -> Result<InvalidateReply, RemoteError> {
        let confirmed_below = Some(self.shared.ids().outstanding.confirmed_below());
        let request = InvalidateRequest { confirmed_below, ..request };
        let attempts = Attempts::new(&self.shared.config, false);
        Ok(self.once(&request, Purpose::Announce, &attempts).await?.reply)
    }

    /// Makes a call that the server may hold up until another client has sent something.
    pub(crate) async fn call_patiently<C: Call>(
        &self,
        request: &C,
        purpose: Purpose,
    ) -> Result<Answer<C::Reply>, RemoteError> {
        let deadline = Instant::now() + self.shared.config.deadline + PULL_WAIT;
        self.call_until(request, purpose, Some(deadline), &|| Payload::None).await
    }

    /// Makes a call once, on the connection that there is, or will be soon.
    async fn once<C: Call>(
        &self,
        request: &C,
        purpose: Purpose,
        attempts: &Attempts,
    ) -> Result<Answer<C::Reply>, RemoteError> {
        let connection = self.connected(attempts.connect_by()).await?;
        match self.attempt(&connection, request, purpose, None, Payload::None).await {
            Ok(answer) => Ok(answer),
            Err(Failure::Broken(why)) => {
                self.left(connection.number).await;
                Err(RemoteError::TimedOut(why))
            }
            Err(Failure::Busy) => {
                tokio::time::sleep(BUSY_WAIT).await;
                Err(RemoteError::TimedOut("too many calls are under way".to_owned()))
            }
            Err(Failure::Final(error)) => Err(error),
        }
    }

    /// Makes the record of a mutation.
    pub(crate) fn record(&self, op: CmlOp, uid: u32, gid: u32, time: Timestamp) -> CmlRecord {
        self.shared.ids().outstanding.begin(op, time, uid, gid)
    }

    /// Returns the number of calls answered so far.
    pub(crate) fn calls(&self) -> u64 {
        self.shared.statistics().iter().map(|class| class.calls).sum()
    }

    /// Returns the statistics of calls so far, by class.
    pub(crate) fn statistics(&self) -> RpcStatistics {
        let mut statistics = self.shared.statistics().clone();
        if let Link::Up(connection) = self.link().0 {
            add_traffic(&mut statistics, &connection.peer);
        }
        statistics
    }

    /// Gives the volume back if the server answers at once, and ends the connection.
    pub(crate) async fn close(&self) {
        if let Link::Up(Connection { peer, .. }) = self.link().0 {
            let call = self.shared.to_call(&DetachRequest, Purpose::Ask, Some(DETACH_WAIT), Payload::None);
            if let Err(error) = peer.call(call).reply().await {
                tracing::debug!(%error, "the server did not confirm the detach");
            }
            self.shared.link.send_replace(Link::Closed);
            peer.close("unmounted");
        } else {
            self.shared.link.send_replace(Link::Closed);
        }
    }

    fn apply_request(&self, record: &CmlRecord) -> ApplyRequest {
        let ids = self.shared.ids();
        let request = ApplyRequest::new(record.clone(), Some(ids.outstanding.confirmed_below()));
        let queued = ids.outstanding.is_queued(record.id);
        let content = matches!(record.op, CmlOp::Store { .. });
        ApplyRequest { comes_again: queued, announces: queued && content && self.shared.config.announces, ..request }
    }

    async fn call_until<C: Call>(
        &self,
        request: &C,
        purpose: Purpose,
        deadline: Option<Instant>,
        payload: &(dyn Fn() -> Payload + Sync),
    ) -> Result<Answer<C::Reply>, RemoteError> {
        self.call_with(Attempts::new(&self.shared.config, false), request, purpose, deadline, payload).await
    }

    async fn call_with<C: Call>(
        &self,
        mut attempts: Attempts,
        request: &C,
        purpose: Purpose,
        deadline: Option<Instant>,
        payload: &(dyn Fn() -> Payload + Sync),
    ) -> Result<Answer<C::Reply>, RemoteError> {
        // A grant of fids waits for nobody else, and a call that waits for a lock holds nothing of the kernel's.
        let _waiting = (!matches!(C::METHOD, Method::GrantFids | Method::Lock)).then(|| Waiting::begin(&self.shared));
        loop {
            let connection = match deadline {
                Some(deadline) => self.connected(deadline).await?,
                None => self.connected_by(attempts.connect_by()).await?,
            };
            match self.attempt(&connection, request, purpose, deadline, payload()).await {
                Ok(answer) => return Ok(attempts.answered(C::METHOD, answer)),
                Err(failure) => self.before_next(failure, &connection, &mut attempts).await?,
            }
        }
    }

    /// Makes a call on a connection, once.
    async fn attempt<C: Call>(
        &self,
        connection: &Connection,
        request: &C,
        purpose: Purpose,
        deadline: Option<Instant>,
        payload: Payload,
    ) -> Result<Answer<C::Reply>, Failure> {
        self.finish(connection, self.begin(connection, request, purpose, deadline, payload)).await
    }

    fn begin<C: Call>(
        &self,
        connection: &Connection,
        request: &C,
        purpose: Purpose,
        deadline: Option<Instant>,
        payload: Payload,
    ) -> Begun {
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let call = self.shared.to_call(request, purpose, remaining, payload);
        Begun { class: call.class, handle: connection.peer.call(call) }
    }

    async fn finish<R: Wire>(&self, connection: &Connection, call: Begun) -> Result<Answer<R>, Failure> {
        let Begun { class, handle } = call;
        let answer = handle.reply().await;
        match &answer {
            Ok(reply) => self.shared.statistics()[class.index()].answered(reply.timing),
            Err(CallError::Disconnected(_) | CallError::Busy) => self.shared.statistics()[class.index()].retries += 1,
            Err(CallError::DeadlineExceeded(_) | CallError::Cancelled | CallError::TooLarge(_)) => {}
        }
        match answer {
            Ok(reply) if reply.status == 0 => {
                let decoded = R::decode(reply.body).map_err(|why| RemoteError::malformed(&why))?;
                Ok(Answer { reply: decoded, payload: reply.payload, session: connection.session })
            }
            Ok(reply) => match FsError::from_number(reply.status) {
                // The session was replaced or lost: the next attach repeats the call.
                FsError::NotAttached => {
                    self.shared.end_session(connection.generation);
                    connection.peer.close("the server says that this client is not attached");
                    Err(Failure::Broken("not attached".to_owned()))
                }
                FsError::Pulling => {
                    let progress = ErrorDetail::decode(reply.body).map_or(0, |detail| detail.progress);
                    Err(RemoteError::Pulling { progress }.into())
                }
                error => Err(RemoteError::refused(error, &detail(reply.body)).into()),
            },
            Err(CallError::Disconnected(why)) => Err(Failure::Broken(why)),
            Err(CallError::Busy) => Err(Failure::Busy),
            Err(error @ CallError::DeadlineExceeded(_)) => Err(RemoteError::TimedOut(error.to_string()).into()),
            Err(error @ (CallError::Cancelled | CallError::TooLarge(_))) => {
                Err(RemoteError::refused(FsError::Malformed, &error.to_string()).into())
            }
        }
    }

    /// Waits until another attempt is worthwhile after a failure; fails if none is.
    async fn before_next(
        &self,
        failure: Failure,
        connection: &Connection,
        attempts: &mut Attempts,
    ) -> Result<(), RemoteError> {
        match failure {
            Failure::Broken(why) => {
                attempts.failed(why)?;
                self.left(connection.number).await;
            }
            Failure::Busy => {
                attempts.busy()?;
                tokio::time::sleep(BUSY_WAIT).await;
            }
            Failure::Final(error) => return Err(error),
        }
        Ok(())
    }
}

/// The wait for holders of promises. A server acknowledges a change when every client that could rely on the state
/// before has been told, or has lost its lease: a client that hears nothing may renew it for 15 s more, then it lasts
/// 62 s.
pub(crate) const HOLDER_WAIT: Duration = Duration::from_secs(80);
/// The time a server lets a question wait for an announced update of another client, before it tells the progress: 10
/// s, and some for the way.
const PULL_WAIT: Duration = Duration::from_secs(12);
const BUSY_WAIT: Duration = Duration::from_millis(50);
const DETACH_WAIT: Duration = Duration::from_secs(2);

impl Shared {
    fn to_call<C: Call>(
        &self,
        request: &C,
        purpose: Purpose,
        timeout: Option<Duration>,
        payload: Payload,
    ) -> mafs_arpc::Call {
        mafs_arpc::Call {
            class: self.config.classes.class(purpose),
            timeout,
            method: C::METHOD.number(),
            body: request.encode(),
            payload,
        }
    }

    fn ids(&self) -> MutexGuard<'_, Ids> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a life while the server is out of reach.
    fn begin_apart(&self, spare: Spare, why: &RemoteError) -> Result<(), RemoteError> {
        let part = Part::of(spare.fids);
        let begun = blocking(|| self.listener.begin_life(spare.incarnation, part.spare));
        begun.map_err(RemoteError::Unreachable)?;
        self.ids().begin_life(spare.incarnation, part);
        self.set_down(why.to_string(), Reach::Out);
        Ok(())
    }

    fn statistics(&self) -> MutexGuard<'_, RpcStatistics> {
        self.statistics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the message of an error reply, for people.
fn detail(body: Bytes) -> String {
    ErrorDetail::decode(body).map(|detail| detail.message).unwrap_or_default()
}
