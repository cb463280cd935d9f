//! The link: whether calls go out, and whether anybody need wait for that.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mafs_arpc::watch;
use tokio::time::{Instant, timeout_at};

use super::{Connection, Remote, RemoteError, Shared};

/// An ended connection is noticed at once; this only bounds the wait.
const NOTICE_WAIT: Duration = Duration::from_secs(5);

/// The connection's state.
#[derive(Clone, Debug)]
pub(crate) enum Link {
    /// Calls go out.
    Up(Connection),
    /// Being tried again.
    Down(Outage),
    /// Given up for good.
    Closed,
}

/// That calls do not go out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outage {
    /// For people.
    pub(crate) why: String,
    /// Whether the server is known to be out of reach, so that nobody need wait for it (cli.md, "Path dead").
    pub(crate) dead: bool,
}

impl Outage {
    /// Why a call has failed that was not sent.
    fn error(self) -> RemoteError {
        if self.dead { RemoteError::OutOfReach(self.why) } else { RemoteError::TimedOut(self.why) }
    }
}

impl Remote {
    /// Why nobody has answered.
    pub(crate) fn unanswered(&self) -> RemoteError {
        match self.link().0 {
            Link::Down(outage) => outage.error(),
            Link::Up(_) | Link::Closed => RemoteError::TimedOut("the server has not answered".to_owned()),
        }
    }

    /// The connection's state, and when it changed last.
    pub(crate) fn link(&self) -> (Link, mafs_proto::Instant) {
        let since = *self.shared.link_since.lock().unwrap_or_else(PoisonError::into_inner);
        (self.shared.link.borrow().clone(), since)
    }

    /// Whether calls go out now.
    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.shared.link.borrow(), Link::Up(..))
    }

    /// Whether the server is known to be out of reach.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        is_dead(&self.shared.link.borrow())
    }

    /// Waits until that is so.
    pub(crate) async fn until_out_of_reach(&self) {
        // The sender lives in `self`.
        let _ = self.shared.link.subscribe().wait_for(is_dead).await;
    }

    /// Waits until it is not known to be so.
    pub(crate) async fn until_within_reach(&self) {
        // The sender lives in `self`.
        let _ = self.shared.link.subscribe().wait_for(|link| !is_dead(link)).await;
    }

    /// Waits until it is in vain to wait for the server: never, if the user has said so.
    pub(crate) async fn until_in_vain(&self) {
        match self.shared.config.waits_for_ever() {
            true => std::future::pending().await,
            false => self.until_out_of_reach().await,
        }
    }

    /// Notifies of every change of the connection's state.
    pub(crate) fn watch_link(&self) -> watch::Receiver<Link> {
        self.shared.link.subscribe()
    }

    /// Waits for a connection, unless the server is known to be out of reach.
    pub(super) async fn connected(&self, deadline: Instant) -> Result<Connection, RemoteError> {
        let waits = self.shared.config.waits_for_ever();
        self.connected_unless(deadline, |outage| outage.dead && !waits).await
    }

    /// The same, be the server out of reach or not: for changes, which whoever makes them cannot do without.
    pub(super) async fn connected_by(&self, deadline: Instant) -> Result<Connection, RemoteError> {
        self.connected_unless(deadline, |_| false).await
    }

    async fn connected_unless(
        &self,
        deadline: Instant,
        is_in_vain: impl Fn(&Outage) -> bool,
    ) -> Result<Connection, RemoteError> {
        let is_decided = |link: &Link| !matches!(link, Link::Down(outage) if !is_in_vain(outage));
        let mut link = self.shared.link.subscribe();
        let state = timeout_at(deadline, link.wait_for(is_decided)).await;
        match state.map(|state| state.map(|state| state.clone())) {
            Ok(Ok(Link::Up(connection))) => Ok(connection),
            Ok(Ok(Link::Down(Outage { why, .. }))) if !self.shared.reached.load(Ordering::Acquire) => {
                Err(RemoteError::Unreachable(why))
            }
            Ok(Ok(Link::Down(outage))) => Err(outage.error()),
            Ok(Ok(Link::Closed) | Err(_)) => Err(ending()),
            Err(_) => match self.link().0 {
                Link::Down(Outage { why, .. }) => Err(RemoteError::TimedOut(why)),
                Link::Up(..) | Link::Closed => Err(RemoteError::TimedOut("no connection in time".to_owned())),
            },
        }
    }

    /// Waits, briefly, until a broken connection has been noticed by its keeper, so that the next attempt does not use
    /// it.
    pub(super) async fn left(&self, number: u64) {
        let mut link = self.shared.link.subscribe();
        let noticed = link.wait_for(|link| !matches!(link, Link::Up(current) if current.number == number));
        let _ = tokio::time::timeout(NOTICE_WAIT, noticed).await;
    }
}

impl Shared {
    fn set_link(&self, link: Link) {
        self.link.send_if_modified(|current| {
            let open = !matches!(current, Link::Closed);
            if open {
                // Another failed attempt does not begin another outage.
                if !matches!((&*current, &link), (Link::Down(_), Link::Down(_))) {
                    *self.link_since.lock().unwrap_or_else(PoisonError::into_inner) = self.clock.now();
                }
                *current = link;
            }
            open
        });
    }

    /// Calls do not go out; that it is known to be out of reach stays so until they do.
    pub(super) fn set_down(&self, why: String, dead: bool) {
        let was_dead = is_dead(&self.link.borrow());
        let dead = was_dead || (dead && self.config.disconnects);
        if dead && !was_dead {
            tracing::info!(why, "the server is out of reach: what is cached can be used, changes wait");
            self.listener.out_of_reach(true);
        }
        self.set_link(Link::Down(Outage { why, dead }));
    }

    /// Nothing has led to the server for as long as one waits for that.
    pub(super) fn give_up(&self) {
        let why = match &*self.link.borrow() {
            Link::Down(outage) => outage.why.clone(),
            Link::Up(..) | Link::Closed => return,
        };
        self.set_down(why, true);
    }

    /// Calls go out.
    pub(super) fn set_up(&self, connection: Connection) {
        self.reached.store(true, Ordering::Release);
        self.set_link(Link::Up(connection));
        // Afterwards: who finds that what is known is not valid any more can ask.
        self.listener.out_of_reach(false);
    }
}

fn ending() -> RemoteError {
    RemoteError::Unreachable("the mount is ending".to_owned())
}

fn is_dead(link: &Link) -> bool {
    matches!(link, Link::Down(outage) if outage.dead)
}
