//! Holding: after a session has begun in which the server tells of every change, it is told which objects are relied
//! on here, so that it need not. Until then every change in the volume waits for this client's word. Objects that
//! have changed since the session before are asked for at the same time, if they are few: a program that uses one
//! does not wait then.

use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::blocking;
use mafs_proto::Purpose;
use mafs_proto::call::HoldRequest;

use super::Inner;
use crate::core::promises::SessionNumber;
use crate::remote::Link;

/// The pause before another attempt.
const PAUSE: Duration = Duration::from_secs(5);

impl Inner {
    /// Tells the server whenever it has to be told, until the link is closed.
    pub(super) async fn keep_holding(self: Arc<Self>) {
        let mut link = self.remote.watch_link();
        loop {
            if let Link::Closed = self.remote.link().0 {
                return;
            }
            let unnamed = self.cache.index.unnamed().filter(|_| self.remote.is_up());
            let told = match unnamed {
                Some(session) => tokio::join!(self.tell_held(session), self.validate_stale()).0,
                None => true,
            };
            let changed = link.changed();
            if told {
                if changed.await.is_err() {
                    return;
                }
            } else {
                // The session goes on, or another begins: either shows in the next attempt.
                let _ = tokio::time::timeout(PAUSE, changed).await;
            }
        }
    }

    async fn validate_stale(&self) {
        let stale = self.cache.index.take_stale();
        if !stale.is_empty()
            && let Err(error) = self.validate(stale, Purpose::Ask).await
        {
            tracing::debug!(%error, "what has changed is asked for when it is used");
        }
    }

    /// Tells the server of all objects that are relied on. Returns whether it has heard of all.
    async fn tell_held(&self, session: SessionNumber) -> bool {
        let mut after = None;
        loop {
            let (vnodes, next) = match blocking(|| self.cache.index.promised_behind(after)) {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "the server cannot be told what is held here");
                    return false;
                }
            };
            let last = next.is_none();
            if (last || !vnodes.is_empty()) && !self.remote.hold(session, &HoldRequest { vnodes, last }).await {
                return false;
            }
            if last {
                self.cache.index.named(session);
                return true;
            }
            after = next;
        }
    }
}
