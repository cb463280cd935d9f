//! Keeps a connection and a session: connects, attaches, renews the lease, and begins again.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join};
use futures_util::stream::FuturesUnordered;
use mafs_arpc::carrier::Carrier;
use mafs_arpc::{Backoff, CallError, CallHandle, Estimate, Incoming, IncomingCall, Payload, Peer, watch};
use mafs_proto::call::{
    AttachReply, AttachRequest, BreakReply, BreakRequest, ChangedObject, ChangedSinceReply, ChangedSinceRequest,
    InvalidateRequest, Mark, PullRequest, RenewLeaseReply, RenewLeaseRequest,
};
use mafs_proto::{FsError, Generation, Instant, Method, PROTOCOL_MAX, PROTOCOL_MIN, Purpose, Wire};
use tokio::time::timeout;

use super::link::Reach;
use super::roaming::changed;
use super::{Connection, Held, RemoteError, Shared, add_traffic, detail};
use crate::core::fids::Part;
use crate::core::promises::SessionNumber;
use crate::options::{RETRANS_DEFAULT, TIMEO_DEFAULT};

/// The time for connecting, and for attaching, which take a few round trips: a server that needs longer is not there.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// The wait of a mount that has a cache for its first connection: one round trip of a satellite link, and some.
const FIRST_CONNECT_WAIT: Duration = Duration::from_millis(900);
/// The pauses between attempts to connect.
pub(crate) const RECONNECT_STEP: Duration = Duration::from_millis(100);
pub(crate) const RECONNECT_MAX: Duration = Duration::from_secs(3);
/// The silence after which a server is out of reach when a connection is made, or four round trips if that is more: as
/// for a server that gives no sign of life over a connection (cli.md, "Path dead").
const DEAD_AFTER: Duration = Duration::from_secs(5);
/// The time that another carrier has, after the silence of one, to lead to the server before that is out of reach, or
/// four round trips.
const OTHER_CARRIER_WITHIN: Duration = Duration::from_secs(2);
/// The wait for a server that is not there but whose machine answers, if calls wait for ever: it may be back soon. If
/// calls have a deadline, the server is out of reach when those that wait for it have ended.
const GONE_AFTER_MAX: Duration = Duration::from_millis(100 * TIMEO_DEFAULT as u64 * RETRANS_DEFAULT as u64);
/// The most attempts to connect at a time: there is more than one only while the network changes.
const ATTEMPTS_MAX: usize = 3;
/// The number of renewals before a lease ends.
const RENEWALS_PER_LEASE: u32 = 3;
/// The number of looks at the clock in a lease: timers do not run through suspend, leases do.
const LOOKS_PER_LEASE: u32 = 12;
/// The pause before a renewal that failed is tried again.
const RENEWAL_PAUSE: Duration = Duration::from_millis(200);
/// The most parts of a list of changes: that many times 4,096 objects are no fewer than a client asks for again by
/// itself.
const CHANGED_PARTS_MAX: usize = 32;
/// The kernel's time for an invalidation: it needs far less, unless an operation of this client holds the inode.
const KERNEL_GRACE: Duration = Duration::from_millis(5);

/// A connection by which the volume is attached.
pub(super) struct Attached {
    peer: Peer,
    incoming: Incoming,
    generation: Generation,
    session: SessionNumber,
    lease: Duration,
    /// The first renewal, and when it was sent.
    renewal: (CallHandle, Instant),
}

impl Attached {
    pub(super) fn connection(&self, number: u64) -> Connection {
        Connection { peer: self.peer.clone(), number, generation: self.generation, session: self.session }
    }
}

/// Makes and holds connections, until the link is closed. `attached` is the first, if there is one.
pub(super) async fn keep(shared: Arc<Shared>, mut attached: Option<Attached>) {
    let mut backoff = Backoff::new(RECONNECT_STEP, RECONNECT_MAX);
    let mut number = 0;
    let mut patience = Patience::new(&shared, DEAD_AFTER, Duration::ZERO);
    // Whether the last connection has ended in silence, and its carrier is not the only one.
    let mut may_be_blocked = false;
    let mut changes = shared.config.network.watch();
    loop {
        if let Some(attached) = attached.take() {
            backoff.reset();
            number += 1;
            shared.set_up(attached.connection(number));
            shared.apply_limits();
            let peer = attached.peer.clone();
            let why = hold(&shared, attached).await;
            may_be_blocked = peer.ended_in_silence() && shared.config.connector.has_another();
            let is_out = peer.ended_in_silence() && !may_be_blocked && !shared.is_handing_off();
            shared.set_down(why, if is_out { Reach::Out } else { Reach::Unknown });
            add_traffic(&mut shared.statistics(), &peer);
            shared.note_end(&peer);
            let within = if may_be_blocked { OTHER_CARRIER_WITHIN } else { DEAD_AFTER };
            patience = Patience::new(&shared, within, peer.estimate().rtt.unwrap_or_default());
        }
        let attempt = async {
            if !shared.rest(&mut backoff, &mut changes).await {
                return None;
            }
            Some(giving_up(&shared, patience.silent, shared.unless_by_hand(attach(&shared, &mut changes))).await)
        };
        match giving_up(&shared, patience.left(), attempt).await {
            None => return,
            Some(Ok(now)) => attached = Some(now),
            Some(Err(error)) => {
                tracing::debug!(%error, "not connected");
                let is_out = std::mem::take(&mut may_be_blocked) && !shared.is_handing_off();
                shared.set_down(error.to_string(), if is_out { Reach::Out } else { Reach::Unknown });
            }
        }
    }
}

/// The patience with a server that was there.
#[derive(Clone, Copy)]
struct Patience {
    /// The wait if nothing answers.
    silent: Duration,
    /// The end of the wait, whatever answers.
    until: tokio::time::Instant,
}

impl Patience {
    /// Begins to wait now; for a silent server `silent` or more. `rtt`: the time of the last round trip.
    fn new(shared: &Shared, silent: Duration, rtt: Duration) -> Self {
        let gone = if shared.config.waits_for_ever() { GONE_AFTER_MAX } else { shared.config.deadline };
        // Where no link leads to the server nothing answers, and each attempt ends at once.
        let gone = if shared.is_apart() { DEAD_AFTER.min(gone) } else { gone };
        Self { silent: silent.max(4 * rtt), until: tokio::time::Instant::now() + gone }
    }

    fn left(self) -> Duration {
        self.until.saturating_duration_since(tokio::time::Instant::now())
    }
}

/// Makes an attempt. If it takes longer than `patience` and than a handoff, the server counts as out of reach.
async fn giving_up<T>(shared: &Shared, patience: Duration, attempt: impl Future<Output = T>) -> T {
    let mut attempt = std::pin::pin!(attempt);
    if let Ok(ended) = timeout(patience, &mut attempt).await {
        return ended;
    }
    tokio::select! {
        biased;
        ended = &mut attempt => return ended,
        () = shared.until_handed_off() => shared.give_up(),
    }
    attempt.await
}

/// Takes the server's calls and renews the lease. Returns the reason why the connection has ended, or was given up.
async fn hold(shared: &Arc<Shared>, attached: Attached) -> String {
    let Attached { peer, mut incoming, generation, session, lease, renewal } = attached;
    let take_calls = async {
        while let Some(call) = incoming.next().await {
            take_call(shared, call);
        }
        peer.closed().await
    };
    // The order is fixed, so that runs of the simulator repeat. Calls, which may come without end, are last.
    tokio::select! {
        biased;
        why = peer.closed() => why,
        why = keep_lease(shared, &peer, (generation, session), lease, renewal) => {
            shared.end_session(generation);
            peer.close(&why);
            why
        }
        () = shared.until_apart_by_hand() => shared.leave(&peer, generation).await,
        why = shared.config.connector.until_better() => {
            peer.close(&why);
            why
        }
        why = shared.until_left(&peer) => {
            peer.abandon(&why);
            why
        }
        never = log_link(&peer) => match never {},
        why = take_calls => why,
    }
}

/// Writes a line about the link, and another when it has changed.
async fn log_link(peer: &Peer) -> Infallible {
    let mut changes = peer.watch();
    loop {
        let Estimate { rate, rtt_min, .. } = peer.estimate();
        let (rate_bytes_per_s, rtt_ms) = (rate, rtt_min.map(|rtt| rtt.as_millis()));
        tracing::info!(rate_bytes_per_s, rtt_ms, "link measured");
        // The sender lives in the connection, which `peer` keeps.
        let _ = changes.changed().await;
    }
}

/// Takes a call of the server, which makes two kinds; calls of newer kinds are refused. There are as many tasks at
/// most as the peer may have calls under way.
fn take_call(shared: &Arc<Shared>, call: IncomingCall) {
    match Method::from_number(call.method) {
        Some(Method::Break) => take_break(shared, call),
        Some(Method::Pull) => take_pull(shared, call),
        Some(_) | None => refuse(call, FsError::NoMethod),
    }
}

fn take_break(shared: &Arc<Shared>, call: IncomingCall) {
    let Ok(request) = BreakRequest::decode(call.body.clone()) else { return refuse(call, FsError::Malformed) };
    let held = shared.listener.locks_wanted(request.wanted.clone(), shared.clock.now());
    let kernel_told = shared.listener.broken(request);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let ((), held) = join(told(&shared, kernel_told), held).await;
        call.reply(0, BreakReply { held }.encode(), Payload::None);
    });
}

fn take_pull(shared: &Arc<Shared>, call: IncomingCall) {
    let request = PullRequest::decode(call.body.clone()).ok();
    let request = request.filter(|request| request.ids.len() <= InvalidateRequest::RECORDS_MAX);
    let Some(request) = request else { return refuse(call, FsError::Malformed) };
    let pulled = shared.listener.pulled(request);
    tokio::spawn(async move { call.reply(0, pulled.await.encode(), Payload::None) });
}

fn refuse(call: IncomingCall, error: FsError) {
    call.reply(error.number(), bytes::Bytes::new(), Payload::None);
}

/// Waits until the kernel has been told, unless the wait could block an operation.
async fn told(shared: &Shared, kernel_told: BoxFuture<'static, ()>) {
    tokio::select! {
        biased;
        () = kernel_told => {}
        () = must_not_wait(shared) => {}
    }
}

/// Returns when the kernel has had its time and an operation is waiting for the server: it may hold the inode that the
/// kernel needs, and the server may be waiting for this very acknowledgement (consistency.md, "Kernel deadlock").
async fn must_not_wait(shared: &Shared) {
    tokio::time::sleep(KERNEL_GRACE).await;
    let mut waiting = shared.waiting.subscribe();
    // The sender lives in `shared`.
    let _ = waiting.wait_for(|calls| *calls > 0).await;
}

/// Renews the lease as long as the server does. Returns the reason why the session is over; never if the connection
/// is.
async fn keep_lease(
    shared: &Shared,
    peer: &Peer,
    (generation, session): (Generation, SessionNumber),
    lease: Duration,
    mut renewal: (CallHandle, Instant),
) -> String {
    loop {
        let (call, sent) = renewal;
        let next = match renewed(call).await {
            Renewal::Renewed { mark, lock_grants } => {
                shared.renew(generation, sent, lease);
                shared.listener.locks_granted(lock_grants);
                // A record under way may be at the server by then, and its answer, once it has been noted, can be lost
                // with the power: then its object would count as known.
                if let Some(mark) = mark.filter(|_| shared.ids().outstanding.is_empty()) {
                    shared.listener.caught_up(session, mark);
                }
                sent + lease / RENEWALS_PER_LEASE
            }
            Renewal::Failed => shared.clock.now() + RENEWAL_PAUSE,
            Renewal::Ended(why) => return why,
        };
        sleep_until(shared, next, lease / LOOKS_PER_LEASE).await;
        if !shared.holds(generation) {
            return "the lease has ended".to_owned();
        }
        renewal = renew(shared, peer, lease);
    }
}

/// Outcome of an attempt to renew.
enum Renewal {
    /// Renewed, by a server that has granted `lock_grants` locks.
    Renewed {
        mark: Option<Mark>,
        lock_grants: u64,
    },
    Failed,
    Ended(String),
}

async fn renewed(call: CallHandle) -> Renewal {
    let Ok(reply) = call.reply().await else { return Renewal::Failed };
    match reply.status {
        0 => match RenewLeaseReply::decode(reply.body) {
            Ok(RenewLeaseReply { renewed: true, mark, lock_grants }) => Renewal::Renewed { mark, lock_grants },
            Ok(RenewLeaseReply { renewed: false, .. }) => {
                Renewal::Ended("the server waits for an answer of this client that does not come".to_owned())
            }
            Err(why) => Renewal::Ended(RemoteError::malformed(&why).to_string()),
        },
        status => match FsError::from_number(status) {
            FsError::NotAttached => Renewal::Ended("the server has ended the session".to_owned()),
            _ => Renewal::Failed,
        },
    }
}

fn renew(shared: &Shared, peer: &Peer, lease: Duration) -> (CallHandle, Instant) {
    let sent = shared.clock.now();
    let request = RenewLeaseRequest { undecided: shared.listener.has_undecided() };
    let call = shared.to_call(&request, Purpose::Ask, Some(lease / RENEWALS_PER_LEASE), Payload::None);
    (peer.call(call), sent)
}

async fn sleep_until(shared: &Shared, end: Instant, look_every: Duration) {
    loop {
        let left = end.since(shared.clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(look_every)).await;
    }
}

/// Makes a connection and attaches the volume.
async fn attach(shared: &Shared, changes: &mut watch::Receiver<()>) -> Result<Attached, RemoteError> {
    let carrier = connect(shared, CONNECT_WAIT, changes).await?;
    attach_over(shared, carrier, changes).await
}

/// Makes the first connection and attaches the volume; a mount with a cache does not wait long for a connection.
pub(super) async fn attach_first(shared: &Shared, has_cache: bool) -> Result<Attached, RemoteError> {
    let patience = if has_cache { FIRST_CONNECT_WAIT } else { CONNECT_WAIT };
    let mut changes = shared.config.network.watch();
    let carrier = connect(shared, patience, &mut changes).await?;
    attach_over(shared, carrier, &mut changes).await
}

/// Connects. When the network changes meanwhile, another attempt is made beside the one under way, which may wait for
/// an answer over a way that leads nowhere any more.
async fn connect(
    shared: &Shared,
    patience: Duration,
    changes: &mut watch::Receiver<()>,
) -> Result<Carrier, RemoteError> {
    let (unreachable, connector) = (RemoteError::Unreachable, &shared.config.connector);
    let attempts = async {
        let mut attempts = FuturesUnordered::from_iter([connector.connect()]);
        loop {
            tokio::select! {
                biased;
                Some(ended) = attempts.next() => match ended {
                    Ok(carrier) => return Ok(carrier),
                    Err(error) if attempts.is_empty() => return Err(unreachable(error.to_string())),
                    Err(_) => {}
                },
                () = changed(changes), if attempts.len() < ATTEMPTS_MAX => attempts.push(connector.connect()),
            }
        }
    };
    let late = || unreachable(format!("no connection within {patience:?}"));
    timeout(patience, attempts).await.unwrap_or_else(|_| Err(late()))
}

async fn attach_over(
    shared: &Shared,
    carrier: Carrier,
    changes: &mut watch::Receiver<()>,
) -> Result<Attached, RemoteError> {
    let (peer, incoming) = Peer::start(carrier, shared.config.arpc, Arc::clone(&shared.clock));
    tokio::select! {
        biased;
        attached = attach_by(shared, peer.clone(), incoming) => attached,
        why = shared.until_useless(&peer, changes) => Err(RemoteError::Unreachable(why)),
    }
}

async fn attach_by(shared: &Shared, peer: Peer, incoming: Incoming) -> Result<Attached, RemoteError> {
    let sent = shared.clock.now();
    let session = shared.trusted_session(sent);
    let request = AttachRequest {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL_MAX,
        client: shared.config.client,
        client_name: shared.config.client_name.clone(),
        volume: shared.config.volume.clone(),
        confirmed_below: Some(shared.ids().outstanding.confirmed_below()),
        session,
        decides: shared.config.decides,
        locks: shared.listener.locks(session.is_some()),
    };
    let call = shared.to_call(&request, Purpose::Ask, Some(CONNECT_WAIT), Payload::None);
    let reply = peer.call(call).reply().await.map_err(|error| match error {
        CallError::DeadlineExceeded(_) => RemoteError::TimedOut(error.to_string()),
        CallError::Disconnected(_) | CallError::Busy | CallError::Cancelled | CallError::TooLarge(_) => {
            RemoteError::Unreachable(error.to_string())
        }
    })?;
    if reply.status != 0 {
        return Err(RemoteError::refused(FsError::from_number(reply.status), &detail(reply.body)));
    }
    let reply = AttachReply::decode(reply.body).map_err(|why| RemoteError::malformed(&why))?;
    let changed = all_changed(shared, &peer, shared.listener.mark().filter(|_| !reply.resumed)).await;
    let (session, kernel_told) = take_in(shared, &reply, changed, sent)?;
    // The first renewal says that nobody here relies on earlier promises any more.
    told(shared, kernel_told).await;
    let renewal = renew(shared, &peer, reply.lease);
    Ok(Attached { peer, incoming, generation: reply.generation, session, lease: reply.lease, renewal })
}

/// Asks for all objects that have changed since this client heard from the server last. `None`: that is not known.
async fn all_changed(shared: &Shared, peer: &Peer, mark: Option<Mark>) -> Option<Vec<ChangedObject>> {
    let (mut mark, mut changed) = (mark?, Vec::new());
    for _ in 0..CHANGED_PARTS_MAX {
        let request = ChangedSinceRequest { mark };
        let call = shared.to_call(&request, Purpose::Ask, Some(CONNECT_WAIT), Payload::None);
        let reply = peer.call(call).reply().await.ok().filter(|reply| reply.status == 0)?;
        let part = ChangedSinceReply::decode(reply.body).ok()?.changed?;
        changed.extend(part.objects);
        if !part.more {
            return Some(changed);
        }
        mark = part.through;
    }
    None
}

/// Checks the server's grants and makes them durable before any record uses them.
fn take_in(
    shared: &Shared,
    reply: &AttachReply,
    changed: Option<Vec<ChangedObject>>,
    sent: Instant,
) -> Result<(SessionNumber, BoxFuture<'static, ()>), RemoteError> {
    if !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&reply.protocol) {
        let message = format!(
            "the server chose protocol version {}, this client speaks {PROTOCOL_MIN} to {PROTOCOL_MAX}",
            reply.protocol
        );
        return Err(RemoteError::refused(FsError::ProtocolMismatch, &message));
    }
    // Until this attach is taken in, no session is to be continued.
    *shared.held() = None;
    let attached = shared.listener.attached(reply, changed).map_err(RemoteError::Unreachable)?;
    shared.listener.renewed(sent, reply.lease);
    *shared.held() = Some(Held { generation: reply.generation, until: sent + reply.lease });
    shared.ids().begin_life(reply.incarnation, Part::of(reply.fids));
    Ok(attached)
}
