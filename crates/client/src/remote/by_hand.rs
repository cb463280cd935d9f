//! By hand: the user ends the connection, and wants none until `reconnect`.
//!
//! From then on nothing is sent, and every call finds the server out of reach. The session is given back, so that no
//! other client waits for this client's promises or locks.

use std::time::Duration;

use mafs_arpc::{Backoff, Payload, Peer, watch};
use mafs_proto::call::DetachRequest;
use mafs_proto::{Generation, Purpose};
use tokio::time::timeout;

use super::link::{Reach, ending};
use super::roaming::changed;
use super::{DETACH_WAIT, Link, Remote, RemoteError, Shared};

/// The reason of the outage, for people.
const WHY: &str = "disconnected by hand";
/// The reason until there is a connection again, for people.
const TRYING: &str = "connecting";
/// The wait for the keeper of the connection to say goodbye: more than it takes.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// The wait of `reconnect` for the connection: as long as an attempt to connect may take.
const RECONNECT_WAIT: Duration = Duration::from_secs(10);

/// The user's wish about the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Wish {
    /// There is to be a connection: the user has not said otherwise.
    #[default]
    Connected,
    /// There is to be no connection.
    Apart,
    /// There is to be no connection, and the last one has ended.
    Left,
}

impl Wish {
    fn is_apart(self) -> bool {
        self != Self::Connected
    }
}

impl Remote {
    /// Ends the connection, and makes none until [`Self::reconnect`]. The server is told if it answers at once.
    pub(crate) async fn disconnect(&self) {
        self.shared.wish.send_if_modified(|wish| {
            let is_new = !wish.is_apart();
            if is_new {
                *wish = Wish::Apart;
            }
            is_new
        });
        let mut wish = self.shared.wish.subscribe();
        // If the mount ends meanwhile, the keeper of the connection has gone.
        let _ = timeout(LEAVE_MAX, wish.wait_for(|wish| *wish != Wish::Apart)).await;
    }

    /// Ends [`Self::disconnect`], and connects at once, also if the server was out of reach by itself.
    ///
    /// # Errors
    /// If that takes long; it is tried again for ever.
    pub(crate) async fn reconnect(&self) -> Result<(), RemoteError> {
        self.shared.wish.send_replace(Wish::Connected);
        if !self.is_up() {
            self.shared.hurry.notify_one();
        }
        let mut link = self.shared.link.subscribe();
        let connected = link.wait_for(|link| !matches!(link, Link::Down(_)));
        match timeout(RECONNECT_WAIT, connected).await {
            Ok(_) => Ok(()),
            Err(_) => Err(self.unanswered()),
        }
    }

    /// Whether the user has ended the connection.
    pub(crate) fn is_apart_by_hand(&self) -> bool {
        self.shared.is_apart_by_hand()
    }

    /// Waits until the user has ended the connection.
    pub(crate) async fn until_apart_by_hand(&self) {
        self.shared.until_apart_by_hand().await;
    }

    /// Waits until the user has ended the connection, so that waiting for the server is in vain: never with `hard`.
    pub(crate) async fn until_in_vain_by_hand(&self) {
        match self.shared.config.waits_for_ever() {
            true => std::future::pending().await,
            false => self.until_apart_by_hand().await,
        }
    }
}

impl Shared {
    pub(super) fn is_apart_by_hand(&self) -> bool {
        self.wish.borrow().is_apart()
    }

    /// Waits until the user wants no connection.
    pub(super) async fn until_apart_by_hand(&self) {
        // The sender lives in `self`.
        let _ = self.wish.subscribe().wait_for(|wish| wish.is_apart()).await;
    }

    /// Makes an attempt as long as the user wants a connection, until the mount ends.
    pub(super) async fn unless_by_hand<T>(
        &self,
        attempt: impl Future<Output = Result<T, RemoteError>>,
    ) -> Result<T, RemoteError> {
        let mut link = self.link.subscribe();
        tokio::select! {
            biased;
            _ = link.wait_for(|link| matches!(link, Link::Closed)) => Err(ending()),
            ended = attempt => ended,
            () = self.until_apart_by_hand() => Err(RemoteError::ByHand),
        }
    }

    /// Ends the connection because the user wants none: no call goes out from now on, and the session is given back.
    /// Returns the reason.
    pub(super) async fn leave(&self, peer: &Peer, generation: Generation) -> String {
        self.set_down(WHY.to_owned(), Reach::Out);
        self.end_session(generation);
        // The session's promises are worth nothing from the moment on at which the server hears of its end.
        self.listener.renewed(self.clock.now(), Duration::ZERO);
        self.listener.lapsed();
        let goodbye = self.to_call(&DetachRequest, Purpose::Ask, Some(DETACH_WAIT), Payload::None);
        if let Err(error) = peer.call(goodbye).reply().await {
            tracing::debug!(%error, "the server did not confirm the detach");
        }
        peer.close(WHY);
        WHY.to_owned()
    }

    /// Waits until the next attempt to connect is due: for the pause between attempts, or until a caller hurries it,
    /// or until the network has changed, which begins a new series of pauses; and for as long as the user wants no
    /// connection. Returns whether there is to be an attempt.
    pub(super) async fn rest(&self, backoff: &mut Backoff, changes: &mut watch::Receiver<()>) -> bool {
        let mut link = self.link.subscribe();
        let pause = backoff.next_delay();
        tokio::select! {
            biased;
            _ = link.wait_for(|link| matches!(link, Link::Closed)) => return false,
            () = self.until_apart_by_hand() => {}
            () = self.hurry.notified() => {}
            () = changed(changes) => backoff.reset(),
            () = tokio::time::sleep(pause) => {}
        }
        if !self.is_apart_by_hand() {
            return true;
        }
        self.set_down(WHY.to_owned(), Reach::Out);
        self.wish.send_if_modified(|wish| {
            let leaves = *wish == Wish::Apart;
            if leaves {
                *wish = Wish::Left;
            }
            leaves
        });
        tokio::select! {
            biased;
            _ = link.wait_for(|link| matches!(link, Link::Closed)) => return false,
            () = self.until_wanted() => {}
        }
        self.set_down(TRYING.to_owned(), Reach::Out);
        true
    }

    /// Waits until the user wants a connection.
    async fn until_wanted(&self) {
        // The sender lives in `self`.
        let _ = self.wish.subscribe().wait_for(|wish| !wish.is_apart()).await;
    }
}
