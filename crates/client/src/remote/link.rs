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
    /// Whether the server is known to be out of reach, so that what is cached counts (cli.md, "Path dead").
    pub(crate) dead: bool,
    /// Whether the user wants it so.
    pub(crate) by_hand: bool,
}

impl Outage {
    pub(super) fn new(why: &str) -> Self {
        Self { why: why.to_owned(), dead: false, by_hand: false }
    }

    /// Whether nobody need wait for its end.
    fn is_in_vain(&self) -> bool {
        self.dead || self.by_hand
    }

    /// Why a call has failed that was not sent.
    fn error(self) -> RemoteError {
        match self {
            Self { by_hand: true, .. } => RemoteError::ByHand,
            Self { why, dead: true, .. } => RemoteError::OutOfReach(why),
            Self { why, .. } => RemoteError::TimedOut(why),
        }
    }
}

/// A change of the connection's state that users may notice: the log has a line for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transition {
    Connected,
    /// It may be back soon.
    Ended,
    OutOfReach,
    ByHand,
    /// The user wants a connection again.
    Again,
}

impl Transition {
    fn of(before: &Link, now: &Link) -> Option<Self> {
        match (before, now) {
            (Link::Down(_), Link::Up(_)) => Some(Self::Connected),
            (Link::Down(before), Link::Down(now)) if before.by_hand && !now.by_hand => Some(Self::Again),
            (Link::Down(Outage { by_hand: true, .. }), Link::Down(_)) => None,
            (_, Link::Down(Outage { by_hand: true, .. })) => Some(Self::ByHand),
            (Link::Down(Outage { dead: true, .. }), Link::Down(_)) => None,
            (Link::Up(_) | Link::Down(_), Link::Down(Outage { dead: true, .. })) => Some(Self::OutOfReach),
            (Link::Up(_), Link::Down(_)) => Some(Self::Ended),
            (Link::Down(_), Link::Down(_)) | (Link::Up(_), Link::Up(_)) => None,
            // The mount ends.
            (Link::Closed, _) | (_, Link::Closed) => None,
        }
    }

    fn log(self, why: &str) {
        match self {
            Self::Connected => tracing::info!("connected"),
            Self::Ended => tracing::info!(why, "the connection has ended"),
            Self::OutOfReach => {
                tracing::info!(why, "the server is out of reach: what is cached can be used, changes wait");
            }
            Self::ByHand => tracing::info!("disconnected by hand: what is cached can be used, changes wait"),
            Self::Again => tracing::info!("connecting again, by hand"),
        }
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
            false => {
                let is_in_vain = |link: &Link| matches!(link, Link::Down(outage) if outage.is_in_vain());
                // The sender lives in `self`.
                let _ = self.shared.link.subscribe().wait_for(is_in_vain).await;
            }
        }
    }

    /// Notifies of every change of the connection's state.
    pub(crate) fn watch_link(&self) -> watch::Receiver<Link> {
        self.shared.link.subscribe()
    }

    /// Waits for a connection, unless the server is known to be out of reach.
    pub(super) async fn connected(&self, deadline: Instant) -> Result<Connection, RemoteError> {
        let waits = self.shared.config.waits_for_ever();
        self.connected_unless(deadline, |outage| outage.is_in_vain() && !waits).await
    }

    /// The same, be the server out of reach or not, unless the user wants it so: for changes, which whoever makes them
    /// cannot do without.
    pub(super) async fn connected_by(&self, deadline: Instant) -> Result<Connection, RemoteError> {
        let waits = self.shared.config.waits_for_ever();
        self.connected_unless(deadline, |outage| outage.by_hand && !waits).await
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
            Ok(Ok(Link::Down(outage))) if outage.by_hand || self.shared.reached.load(Ordering::Acquire) => {
                Err(outage.error())
            }
            Ok(Ok(Link::Down(Outage { why, .. }))) => Err(RemoteError::Unreachable(why)),
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
        let why = if let Link::Down(outage) = &link { outage.why.clone() } else { String::new() };
        let mut transition = None;
        self.link.send_if_modified(|current| {
            let open = !matches!(current, Link::Closed);
            if open {
                transition = Transition::of(current, &link);
                // Another failed attempt does not begin another outage, nor does the wish that it may end.
                let is_another = !matches!(transition, None | Some(Transition::OutOfReach | Transition::Again));
                if is_another || !matches!((&*current, &link), (Link::Down(_), Link::Down(_))) {
                    *self.link_since.lock().unwrap_or_else(PoisonError::into_inner) = self.clock.now();
                }
                *current = link;
            }
            open
        });
        if let Some(transition) = transition {
            transition.log(&why);
        }
    }

    /// Calls do not go out; that it is known to be out of reach stays so until they do.
    pub(super) fn set_down(&self, why: String, dead: bool) {
        let was_dead = is_dead(&self.link.borrow());
        let dead = was_dead || (dead && self.config.disconnects);
        if dead && !was_dead {
            self.listener.out_of_reach(true);
        }
        self.set_link(Link::Down(Outage { why, dead, by_hand: self.is_apart_by_hand() }));
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

/// Says that nobody is to wait for the server any more.
pub(super) fn ending() -> RemoteError {
    RemoteError::Unreachable("the mount is ending".to_owned())
}

fn is_dead(link: &Link) -> bool {
    matches!(link, Link::Down(outage) if outage.dead)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn down(dead: bool, by_hand: bool) -> Link {
        Link::Down(Outage { why: String::new(), dead, by_hand })
    }

    #[test]
    fn each_transition_is_told_once() {
        use Transition::{Again, ByHand, OutOfReach};
        let states = [down(false, false), down(true, false), down(false, true), down(true, true), Link::Closed];
        let [trying, dead, apart, dead_apart, closed] = &states;
        let told = [
            (trying, trying, None),
            (trying, dead, Some(OutOfReach)),
            (dead, dead, None),
            (dead, dead_apart, Some(ByHand)),
            (trying, apart, Some(ByHand)),
            (dead_apart, dead_apart, None),
            (dead_apart, dead, Some(Again)),
            (apart, trying, Some(Again)),
            (dead, closed, None),
            (closed, dead, None),
        ];
        for (before, now, transition) in told {
            assert_eq!(Transition::of(before, now), transition, "{before:?}, {now:?}");
        }
    }
}
