//! Roaming: the connection while this host's network changes, and announced handoffs.

use std::time::Duration;

use mafs_arpc::{Peer, watch};
use mafs_proto::Instant;

use super::link::Reach;
use super::{Remote, Shared};
use crate::core::roaming::{Roaming, Step, Way};

/// The reason of an outage, for people.
const MOVED: &str = "this host has another address";

impl Remote {
    /// Takes the server for out of reach no sooner than after `time`, whatever the network does and however silent the
    /// server is: calls that need it wait.
    pub(crate) fn hand_off(&self, time: Duration) {
        tracing::info!(?time, "a handoff has been announced");
        let until = self.shared.clock.now() + time;
        self.shared.handoff.send_modify(|end| *end = (*end).max(Some(until)));
    }
}

impl Shared {
    /// Whether a handoff that has been announced is not over.
    pub(super) fn is_handing_off(&self) -> bool {
        self.handoff_left().is_some()
    }

    /// Waits for the end of a handoff, if there is one.
    pub(super) async fn until_handed_off(&self) {
        while let Some(left) = self.handoff_left() {
            tokio::time::sleep(left).await;
        }
    }

    fn handoff_left(&self) -> Option<Duration> {
        let until = *self.handoff.borrow();
        until.map(|until| until.since(self.clock.now())).filter(|left| !left.is_zero())
    }

    /// Looks after a connection when the network changes. Returns the reason why it is of no use any more.
    pub(super) async fn until_left(&self, peer: &Peer) -> String {
        let Some(ends) = peer.ends() else { return std::future::pending().await };
        let mut changes = self.config.network.watch();
        let mut roaming = Roaming::new(ends.local.is_none());
        let mut again_at = None;
        loop {
            next_look(self, &mut changes, again_at).await;
            let held_until = *self.handoff.borrow();
            again_at = None;
            match roaming.step(self.config.network.way(ends), held_until, self.clock.now()) {
                Step::Look => peer.look(),
                Step::Wait(until) => again_at = Some(until),
                Step::Replace => return MOVED.to_owned(),
                Step::End(why) => {
                    self.set_down(why.clone(), Reach::OutForNow);
                    return why;
                }
            }
        }
    }

    /// Waits until a connection that is being made leads nowhere because the network has changed. Returns the reason.
    pub(super) async fn until_useless(&self, peer: &Peer, changes: &mut watch::Receiver<()>) -> String {
        loop {
            next_look(self, changes, None).await;
            let Some(ends) = peer.ends() else { continue };
            match self.config.network.way(ends) {
                Way::Closed(why) => return why,
                Way::Moved if ends.local.is_some() => return MOVED.to_owned(),
                Way::Moved | Way::Open => peer.look(),
            }
        }
    }
}

/// Waits for a change, or until `at` if that is given.
async fn next_look(shared: &Shared, changes: &mut watch::Receiver<()>, at: Option<Instant>) {
    let time = async {
        match at {
            Some(at) => tokio::time::sleep(at.since(shared.clock.now())).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = changed(changes) => {}
        () = time => {}
    }
}

/// Waits for a change of the network; for ever if nothing watches for changes.
pub(super) async fn changed(changes: &mut watch::Receiver<()>) {
    if changes.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
