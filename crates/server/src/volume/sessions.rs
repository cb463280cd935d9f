//! Sessions: the clients of a volume, what they have been promised, and the breaks on their way to them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mafs_arpc::{Payload, Peer, watch};
use mafs_proto::call::{BreakReply, BreakRequest};
use mafs_proto::{Call, ChangeNumber, Classes, ClientId, Clock, FsError, Generation, Purpose, VnodeId, Wire};

use super::Ticket;
use crate::core::Refusal;
use crate::core::promises::{BatchNumber, Owed, Promises, Timing, Touched};

/// Timers do not run through suspend, the clock does: it is read again at least this often.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The sessions of one volume.
pub(super) struct Sessions {
    promises: Mutex<Promises>,
    clock: Arc<dyn Clock>,
    /// Notifies of breaks that are to be sent.
    owed: watch::Sender<()>,
    /// Notifies of breaks that need not be waited for any more.
    settled: watch::Sender<()>,
}

impl Sessions {
    pub(super) fn new(timing: Timing, change: ChangeNumber, listed: Vec<ClientId>, clock: Arc<dyn Clock>) -> Self {
        let promises = Mutex::new(Promises::new(timing, change, listed, clock.now()));
        Self { promises, clock, owed: watch::Sender::new(()), settled: watch::Sender::new(()) }
    }

    /// Begins a session, or continues that of an earlier attach; says whether it does.
    pub(super) fn attach(&self, ticket: Ticket, continued: Option<Generation>) -> bool {
        let resumed = self.promises().attach(ticket.client, ticket.generation, continued, self.clock.now());
        self.owed.send_replace(());
        resumed
    }

    /// # Errors
    /// `NotAttached` if a later attach has replaced this one, or its lease has ended.
    pub(super) fn check(&self, ticket: Ticket) -> Result<(), Refusal> {
        let current = self.promises().is_current(ticket.client, ticket.generation, self.clock.now());
        if current { Ok(()) } else { Err(FsError::NotAttached.into()) }
    }

    /// Renews a lease; see [`Promises::renew`].
    ///
    /// # Errors
    /// `NotAttached` as in [`Self::check`].
    pub(super) fn renew(&self, ticket: Ticket) -> Result<bool, Refusal> {
        let renewed = self.promises().renew(ticket.client, ticket.generation, self.clock.now());
        self.settled.send_replace(());
        renewed.ok_or_else(|| FsError::NotAttached.into())
    }

    /// Ends a session; says whether its client has none now.
    pub(super) fn detach(&self, ticket: Ticket) -> bool {
        let none = self.promises().detach(ticket.client, ticket.generation);
        self.settled.send_replace(());
        none
    }

    /// Ends the sessions whose leases have ended; says which clients have none now.
    pub(super) fn expire(&self) -> Vec<ClientId> {
        self.promises().expire(self.clock.now())
    }

    pub(super) fn has_session(&self, client: ClientId) -> bool {
        self.promises().has_session(client)
    }

    /// Promises a client to tell it of changes of objects that it is about to be shown. To be called before they are
    /// looked at. Returns the last change that is certainly in what is seen then.
    pub(super) fn grant(&self, ticket: Ticket, vnodes: impl IntoIterator<Item = VnodeId>) -> ChangeNumber {
        self.promises().grant(ticket.client, vnodes)
    }

    /// A mutation is durable: breaks the promises of others. Returns what its acknowledgement waits for.
    pub(super) fn changed(&self, client: ClientId, change: ChangeNumber, touched: &[Touched]) -> Owed {
        let owed = self.promises().changed(client, change, touched, self.clock.now());
        if !owed.is_empty() {
            self.owed.send_replace(());
        }
        owed
    }

    /// What an answer about objects that were changed before waits for.
    pub(super) fn owed(&self, client: ClientId, touched: &[Touched]) -> Owed {
        self.promises().owed(client, touched, self.clock.now())
    }

    /// Waits until breaks have been acknowledged, or the leases of those who do not have ended.
    pub(super) async fn settled(&self, mut owed: Owed) {
        let mut settled = self.settled.subscribe();
        loop {
            settled.mark_unchanged();
            let now = self.clock.now();
            let Some(until) = self.promises().remaining(&mut owed, now) else { return };
            // The sender lives as long as this does.
            let _ = tokio::time::timeout(until.since(now).min(SLEEP_MAX), settled.changed()).await;
        }
    }

    /// Sends the breaks of a session over its connection, until that has ended or another attach has the session.
    pub(super) async fn deliver(&self, ticket: Ticket, peer: &Peer) {
        let mut owed = self.owed.subscribe();
        while self.check(ticket).is_ok() {
            owed.mark_unchanged();
            let next = self.promises().next_batch(ticket.client, ticket.generation, self.clock.now());
            let Some((number, request)) = next else {
                tokio::select! {
                    biased;
                    _ = peer.closed() => return,
                    _ = owed.changed() => {}
                }
                continue;
            };
            if let Err(why) = send(peer, &request).await {
                tracing::warn!(client = %ticket.client, "a break was not acknowledged: {why}");
                return peer.close("a break was not acknowledged");
            }
            self.acknowledge(ticket, number);
        }
    }

    fn acknowledge(&self, ticket: Ticket, number: BatchNumber) {
        self.promises().acknowledge(ticket.client, ticket.generation, number);
        self.settled.send_replace(());
    }

    fn promises(&self) -> MutexGuard<'_, Promises> {
        self.promises.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the acknowledgement, without limit: the lease bounds it.
async fn send(peer: &Peer, request: &BreakRequest) -> Result<(), String> {
    let body = request.encode();
    let class = Classes::default().class(Purpose::Break);
    let method = BreakRequest::METHOD.number();
    let call = mafs_arpc::Call { class, timeout: None, method, body, payload: Payload::None };
    let reply = peer.call(call).reply().await.map_err(|error| error.to_string())?;
    match reply.status {
        0 => BreakReply::decode(reply.body).map(drop).map_err(|why| why.to_string()),
        status => Err(FsError::from_number(status).to_string()),
    }
}
