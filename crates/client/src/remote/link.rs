//! The link: whether calls go out, and whether waiting for that makes sense.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mafs_arpc::watch;
use tokio::time::{Instant, timeout_at};

use super::connector::CarrierReport;
use super::{Connection, Remote, RemoteError, Shared};

/// The wait for notice of an ended connection, which comes at once; this only bounds it.
const NOTICE_WAIT: Duration = Duration::from_secs(5);

/// The connection's state.
#[derive(Clone, Debug)]
pub(crate) enum Link {
    /// Calls go out.
    Up(Connection),
    /// Connecting is tried again.
    Down(Outage),
    /// The mount has ended the link for good.
    Closed,
}

/// An outage: calls do not go out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outage {
    /// The reason, for people.
    pub(crate) why: String,
    /// The degree to which the server is out of reach.
    pub(crate) reach: Reach,
    /// Whether the user wants it so.
    pub(crate) by_hand: bool,
}

/// The degree to which the server is out of reach during an outage. In the course of one this only grows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Reach {
    /// Nothing is known yet: a connection is being made.
    Unknown,
    /// The server may be back in a moment: cached state counts, and calls that need the server wait.
    OutForNow,
    /// The server is out of reach for longer than that: no call waits (cli.md, "Path dead").
    Out,
}

impl Outage {
    pub(super) fn new(why: &str) -> Self {
        Self { why: why.to_owned(), reach: Reach::Unknown, by_hand: false }
    }

    /// Whether the server is out of reach, if only for now.
    fn is_apart(&self) -> bool {
        self.reach >= Reach::OutForNow
    }

    /// Whether it is in vain to wait for the outage's end.
    fn is_in_vain(&self) -> bool {
        self.reach == Reach::Out || self.by_hand
    }

    /// Returns the error of a call that was not sent.
    fn error(self) -> RemoteError {
        match self {
            Self { by_hand: true, .. } => RemoteError::ByHand,
            Self { why, reach: Reach::Out, .. } => RemoteError::OutOfReach(why),
            Self { why, .. } => RemoteError::TimedOut(why),
        }
    }
}

/// A change of the connection's state that users may notice: the log has a line for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transition {
    Connected,
    /// The connection has ended; the server may be back soon.
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
            (Link::Down(before), Link::Down(_)) if before.is_apart() => None,
            (Link::Up(_) | Link::Down(_), Link::Down(now)) if now.is_apart() => Some(Self::OutOfReach),
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
    /// Returns the error of a call that nobody has answered.
    pub(crate) fn unanswered(&self) -> RemoteError {
        match self.link().0 {
            Link::Down(outage) => outage.error(),
            Link::Up(_) | Link::Closed => RemoteError::TimedOut("the server has not answered".to_owned()),
        }
    }

    /// Returns the connection's state, and when it changed last.
    pub(crate) fn link(&self) -> (Link, mafs_proto::Instant) {
        let since = *self.shared.link_since.lock().unwrap_or_else(PoisonError::into_inner);
        (self.shared.link.borrow().clone(), since)
    }

    /// Returns the carrier of the connection.
    pub(crate) fn carrier(&self) -> CarrierReport {
        self.shared.config.connector.carrier()
    }

    /// Whether calls go out now.
    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.shared.link.borrow(), Link::Up(..))
    }

    /// Whether the server is out of reach, if only for a moment.
    pub(crate) fn is_apart(&self) -> bool {
        self.shared.is_apart()
    }

    /// Whether the server is known to be out of reach for longer than a moment.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        is_out_of_reach(&self.shared.link.borrow())
    }

    /// Waits until the server is known to be out of reach for longer than a moment.
    pub(crate) async fn until_out_of_reach(&self) {
        // The sender lives in `self`.
        let _ = self.shared.link.subscribe().wait_for(is_out_of_reach).await;
    }

    /// Waits until the server is not known to be out of reach.
    pub(crate) async fn until_within_reach(&self) {
        // The sender lives in `self`.
        let _ = self.shared.link.subscribe().wait_for(|link| !is_out_of_reach(link)).await;
    }

    /// Waits until it is in vain to wait for the server: never with `hard`.
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

    /// Waits for a connection even if the server is out of reach, unless the user has ended the connection: for
    /// changes, which their callers cannot do without.
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
                // Another failed attempt does not begin another outage, nor does the user's wish for its end.
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

    /// Whether the server is out of reach, if only for a moment.
    pub(super) fn is_apart(&self) -> bool {
        reach_of(&self.link.borrow()) >= Reach::OutForNow
    }

    /// Notes that calls do not go out, and how far the server is known to be out of reach now. With `disconnected=off`
    /// it never is.
    pub(super) fn set_down(&self, why: String, reach: Reach) {
        let reach = if self.config.disconnects { reach } else { Reach::Unknown };
        let before = reach_of(&self.link.borrow());
        if before == Reach::Unknown && reach > before {
            self.listener.out_of_reach(true);
        }
        self.set_link(Link::Down(Outage { why, reach: reach.max(before), by_hand: self.is_apart_by_hand() }));
    }

    /// Notes that the server is out of reach, after nothing has led to it for as long as the patience lasts.
    pub(super) fn give_up(&self) {
        let why = match &*self.link.borrow() {
            Link::Down(outage) => outage.why.clone(),
            Link::Up(..) | Link::Closed => return,
        };
        self.set_down(why, Reach::Out);
    }

    /// Notes that calls go out.
    pub(super) fn set_up(&self, connection: Connection) {
        self.reached.store(true, Ordering::Release);
        self.set_link(Link::Up(connection));
        // This comes afterwards: an operation that finds cached state not valid any more can ask the server.
        self.listener.out_of_reach(false);
    }
}

/// Makes the error that nobody is to wait for the server any more.
pub(super) fn ending() -> RemoteError {
    RemoteError::Unreachable("the mount is ending".to_owned())
}

fn reach_of(link: &Link) -> Reach {
    match link {
        Link::Down(outage) => outage.reach,
        Link::Up(_) | Link::Closed => Reach::Unknown,
    }
}

fn is_out_of_reach(link: &Link) -> bool {
    reach_of(link) == Reach::Out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn down(reach: Reach, by_hand: bool) -> Link {
        Link::Down(Outage { reach, by_hand, ..Outage::new("") })
    }

    #[test]
    fn an_outage_that_may_be_over_in_a_moment_is_told_and_waited_for() {
        assert!(!Outage { reach: Reach::OutForNow, ..Outage::new("") }.is_in_vain());
        let moment = down(Reach::OutForNow, false);
        assert_eq!(Transition::of(&down(Reach::Unknown, false), &moment), Some(Transition::OutOfReach));
        assert_eq!(Transition::of(&moment, &down(Reach::Out, false)), None, "told already");
        assert!(!is_out_of_reach(&moment));
    }

    #[test]
    fn each_transition_is_told_once() {
        use Transition::{Again, ByHand, OutOfReach};
        let [trying, out] = [Reach::Unknown, Reach::Out].map(|reach| down(reach, false));
        let [trying_by_hand, out_by_hand] = [Reach::Unknown, Reach::Out].map(|reach| down(reach, true));
        let told = [
            (&trying, &trying, None),
            (&trying, &out, Some(OutOfReach)),
            (&out, &out, None),
            (&out, &out_by_hand, Some(ByHand)),
            (&trying, &trying_by_hand, Some(ByHand)),
            (&out_by_hand, &out_by_hand, None),
            (&out_by_hand, &out, Some(Again)),
            (&trying_by_hand, &trying, Some(Again)),
            (&out, &Link::Closed, None),
            (&Link::Closed, &out, None),
        ];
        for (before, now, transition) in told {
            assert_eq!(Transition::of(before, now), transition, "{before:?}, {now:?}");
        }
    }
}
