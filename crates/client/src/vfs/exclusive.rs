//! Exclusive: where this client decides by itself what names mean, and what it does when others want to know
//! (consistency.md, "Promises and leases").
//!
//! In a directory that nobody else has been shown mkdir, O_EXCL and the like need no answer: nobody else can have
//! made the name. O_CREAT without O_TRUNC is like them ([`OpenMode::makes_alone`](super::OpenMode)): a program that
//! does not truncate wants what is there. When another client asks for such a directory the server recalls it: from
//! then on names are decided there, the server is told of all that was decided here, and then that the directory is
//! settled.

use std::sync::Arc;
use std::time::Duration;

use mafs_proto::call::InvalidateRequest;
use mafs_proto::{CmlOp, Fid, StoreId};
use tokio::time::{sleep, timeout};

use super::{Error, Inner};
use crate::cache::Known;
use crate::core::queue::Queue;

/// The longest time between two looks whether a directory is settled; and the pause behind a call that failed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Party that says whether a name was free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decider {
    /// This client: nobody else can make the name, or nobody can be asked, or could answer before it has what was made
    /// while nobody could be asked.
    Client,
    /// The server, as long as it is in reach: as far as was known here last the name is free.
    ServerInReach,
    /// The server.
    Server,
}

impl Inner {
    /// Finds the party that decides whether a change that makes a name is the first to do so.
    pub(super) fn decider(&self, queue: &Queue, op: &CmlOp) -> Result<Decider, Error> {
        let Some((parent, name)) = op.made_name() else { return Ok(Decider::Server) };
        if self.cache.index.known_entry(parent.vnode, name)? != Known::Means(None) {
            let last_known = self.cache.index.last_known_entry(parent.vnode, name)?;
            return Ok(if last_known == Known::Means(None) { Decider::ServerInReach } else { Decider::Server });
        }
        let alone = || self.is_alone_in(queue, parent);
        let decides = self.cache.index.is_apart() || queue.is_catching_up() || alone();
        Ok(if decides { Decider::Client } else { Decider::ServerInReach })
    }

    /// Returns whether nobody else has been shown a directory: the server does not have it yet, or has said so. A
    /// directory about which this client itself waits for the server's word may be another's.
    pub(super) fn is_alone_in(&self, queue: &Queue, directory: Fid) -> bool {
        let made_by = self.cache.index.made_by(directory.vnode);
        let is_doubtful = made_by.is_some_and(|id| self.replay.is_awaited(id));
        let is_unsent = made_by.is_some_and(|id| queue.is_unsent(id));
        !is_doubtful && (is_unsent || self.cache.index.is_exclusive(directory.vnode))
    }

    /// Returns whether the log holds what was decided before a life of this client.
    pub(super) fn has_undecided_before(&self, incarnation: u64) -> bool {
        self.replay.queue().first().is_some_and(|id| id.incarnation.0 < incarnation)
    }

    /// Tells the server of all names that were decided here in a directory: others want to know them, and nothing is
    /// decided there any more. Names that are decided later are not this session's.
    pub(super) async fn settle_names(self: Arc<Self>, directory: Fid) {
        let session = self.cache.index.session();
        let mut progress = self.watch_progress();
        while self.cache.index.session() == session {
            if self.tell_names(directory) > 0 {
                self.note_queue_changed();
                // The sender lives in `self`.
                let _ = timeout(LOOK_EVERY, progress.changed()).await;
                continue;
            }
            let settled = vec![directory];
            let request =
                InvalidateRequest { records: Vec::new(), retracted: Vec::new(), confirmed_below: None, settled };
            match self.remote.announce(request).await {
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(%directory, %error, "a directory is not settled yet");
                    sleep(LOOK_EVERY).await;
                }
            }
        }
    }

    /// Has changes of names in a directory announced, and those that the server does not take note of sent first.
    /// Returns how many of them the server does not know yet.
    fn tell_names(&self, directory: Fid) -> usize {
        let ids: Vec<StoreId> = self.remote.outstanding(|log| log.below(directory));
        let untold = self.replay.queue().recall(&ids);
        self.send_first(&untold.refused);
        untold.count
    }
}
