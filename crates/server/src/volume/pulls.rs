//! Pulls: a client that opens what others have announced waits for it, and they are asked to send it now.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::{Payload, Peer};
use mafs_proto::call::{PullReply, PullRequest};
use mafs_proto::{Call, Classes, FsError, Object, Purpose, StoreId, Wire};
use tokio::task::JoinSet;

use super::announced::{Pulled, Want};
use super::committer::Job;
use super::sessions::SLEEP_MAX;
use super::{Ticket, Volume};
use crate::core::Refusal;
use crate::core::pending::About;

/// Time for which one call waits for announced records. A client that asks again keeps its call's place free
/// meanwhile, shows that it still waits, and sees whether there is progress; often enough for the 30 s without any
/// that it puts up with.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Pulls that may be under way to one client: each is answered at once.
const PULLS_MAX: usize = 16;

impl Volume {
    /// Waits until the records of others that touch something now have been applied, or will not be, or their clients
    /// are gone. Asks for these records meanwhile.
    ///
    /// # Errors
    /// `Pulling` if it takes long, with what has been delivered so far. `NotAttached` if the session has ended.
    pub(crate) async fn settle(&self, ticket: Ticket, about: &About) -> Result<(), Refusal> {
        let sessions = &self.shared.sessions;
        let mut ids = sessions.touching(ticket, about);
        if ids.is_empty() {
            return Ok(());
        }
        tracing::debug!(client = %ticket.client, ?ids, "waits for announced records");
        let mut ended = sessions.ended.subscribe();
        let _want = Want::new(Arc::clone(sessions), ids.clone());
        let until = sessions.clock.now() + WAIT_MAX;
        loop {
            ended.mark_unchanged();
            self.check(ticket)?;
            let delivered = sessions.awaited(&mut ids);
            if ids.is_empty() {
                return Ok(());
            }
            let left = until.since(sessions.clock.now());
            if left.is_zero() {
                return Err(Refusal { progress: delivered, ..FsError::Pulling.into() });
            }
            // The sender lives as long as this does.
            let _ = tokio::time::timeout(left.min(SLEEP_MAX), ended.changed()).await;
        }
    }

    /// Tells whether an object as a client is shown it lacks something that another has announced, because that one
    /// is gone.
    pub(crate) fn is_stale(&self, ticket: Ticket, shown: &Object) -> bool {
        self.shared.sessions.leaves_out(ticket, shown.fid.vnode, shown.status.data_version)
    }

    /// Asks a client for what it has announced and somebody waits for, over the connection of an attach, as long as
    /// that lasts.
    pub(crate) async fn deliver_pulls(&self, ticket: Ticket, peer: &Peer) {
        let sessions = &self.shared.sessions;
        let mut wanted = sessions.wanted.subscribe();
        let mut pulled = Pulled::new();
        let mut pulls = JoinSet::new();
        while sessions.check(ticket).is_ok() {
            wanted.mark_unchanged();
            if pulls.len() < PULLS_MAX {
                let next = sessions.next_pull(ticket.client, &mut pulled);
                for (id, fid) in &next {
                    tracing::debug!(client = %ticket.client, %id, %fid, "pull");
                }
                if !next.is_empty() {
                    pulls.spawn(pull(peer.clone(), next.into_iter().map(|(id, _)| id).collect()));
                    continue;
                }
            }
            tokio::select! {
                biased;
                _ = peer.closed() => return,
                Some(missing) = pulls.join_next() => self.end_missing(ticket, missing.unwrap_or_default()).await,
                _ = wanted.changed() => {}
            }
        }
    }

    /// Ends the announcements of records that a client does not have in its log: they will not come.
    async fn end_missing(&self, ticket: Ticket, ids: Vec<StoreId>) {
        if !ids.is_empty() {
            tracing::debug!(client = %ticket.client, records = ids.len(), "announced records are missing");
            // If the volume stops, the next start asks for them again.
            let _ = self.jobs.send(Job::EndAnnounced { ticket, ids }).await;
        }
    }
}

/// Asks a client for records. Returns those of `ids` that are not in its log.
async fn pull(peer: Peer, ids: Vec<StoreId>) -> Vec<StoreId> {
    let asked: BTreeSet<_> = ids.iter().copied().collect();
    let body = PullRequest { ids }.encode();
    let (class, method) = (Classes::default().class(Purpose::Pull), PullRequest::METHOD.number());
    let call = mafs_arpc::Call { class, timeout: None, method, body, payload: Payload::None };
    // A connection that has ended asks for nothing any more; the next one does.
    let Ok(reply) = peer.call(call).reply().await else { return Vec::new() };
    match (reply.status, PullReply::decode(reply.body)) {
        (0, Ok(PullReply { missing })) => missing.into_iter().filter(|id| asked.contains(id)).collect(),
        (status, _) => {
            tracing::warn!("a pull was not answered: {}", FsError::from_number(status));
            Vec::new()
        }
    }
}
