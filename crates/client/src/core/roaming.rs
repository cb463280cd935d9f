//! Roaming: what is done about a connection when this host's network has changed.

use std::time::Duration;

use mafs_proto::Instant;

/// An address or a route is replaced within so long; until then the way may only seem to be closed. With the time in
/// which messages of the kernel are gathered it is less than 100 ms.
const REPLACED_WITHIN: Duration = Duration::from_millis(60);

/// Whether packets of a connection can be sent, as far as this host knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Way {
    /// They can.
    Open,
    /// They cannot from where the connection began, but from another address of this host.
    Moved,
    /// They cannot, and neither can those of another connection: why, for people.
    Closed(String),
}

/// Next step for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Ask the server for a sign of life.
    Look,
    /// Make another connection at once: this one is of no use any more.
    Replace,
    /// The server is out of reach, and another connection is needed when it is not.
    End(String),
    /// Look at the way again then, if nothing changes before.
    Wait(Instant),
}

/// The way of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Roaming {
    moves: bool,
    closed_since: Option<Instant>,
}

impl Roaming {
    /// Begins with a connection that has an open way. `moves`: it goes on from another address.
    pub(crate) fn new(moves: bool) -> Self {
        Self { moves, closed_since: None }
    }

    /// Decides the next step now that the way is like this. A handoff that has been announced lasts until `held_until`.
    pub(crate) fn step(&mut self, way: Way, held_until: Option<Instant>, now: Instant) -> Step {
        let Way::Closed(why) = way else {
            self.closed_since = None;
            return if way == Way::Moved && !self.moves { Step::Replace } else { Step::Look };
        };
        let since = *self.closed_since.get_or_insert(now);
        let until = held_until.into_iter().fold(since + REPLACED_WITHIN, Instant::max);
        if until > now { Step::Wait(until) } else { Step::End(why) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    fn closed() -> Way {
        Way::Closed("why".to_owned())
    }

    #[test]
    fn what_may_live_is_not_ended() {
        for held in [None, Some(at(1)), Some(at(9000))] {
            for moves in [false, true] {
                assert_eq!(Roaming::new(moves).step(Way::Open, held, at(5000)), Step::Look);
            }
            assert_eq!(Roaming::new(true).step(Way::Moved, held, at(5000)), Step::Look);
            assert_eq!(Roaming::new(false).step(Way::Moved, held, at(5000)), Step::Replace, "nobody waits for it");
        }
    }

    #[test]
    fn a_way_that_stays_closed_puts_the_server_out_of_reach_within_100_ms() {
        for moves in [false, true] {
            let mut roaming = Roaming::new(moves);
            assert_eq!(roaming.step(closed(), None, at(1000)), Step::Wait(at(1060)));
            assert_eq!(roaming.step(closed(), None, at(1030)), Step::Wait(at(1060)), "others do not prolong that");
            assert_eq!(roaming.step(closed(), None, at(1060)), Step::End("why".to_owned()));
        }
    }

    #[test]
    fn an_address_that_is_replaced_is_no_outage() {
        let mut roaming = Roaming::new(false);
        assert_eq!(roaming.step(closed(), None, at(1000)), Step::Wait(at(1060)));
        assert_eq!(roaming.step(Way::Open, None, at(1020)), Step::Look);
        assert_eq!(roaming.step(closed(), None, at(5000)), Step::Wait(at(5060)), "another one");
    }

    #[test]
    fn a_handoff_holds_for_as_long_as_was_announced() {
        for moves in [false, true] {
            let mut roaming = Roaming::new(moves);
            assert_eq!(roaming.step(closed(), Some(at(9000)), at(1000)), Step::Wait(at(9000)));
            assert!(!matches!(roaming.step(closed(), Some(at(9000)), at(9000)), Step::Wait(_)));
        }
    }
}
