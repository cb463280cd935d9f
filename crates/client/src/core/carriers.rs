//! Carriers: which one a connection gets where two may do (`proto=auto`), and what is remembered of networks that let
//! no UDP through.
//!
//! QUIC is wanted where both work: it loses least on wireless links and outlives a change of address. So it goes first,
//! and TCP follows after [`HEAD_START`]; when TCP is there QUIC still has the time in which one lost packet is sent
//! again. Where UDP went unanswered while TCP was not, that time is not spent again: both are tried at once, and the
//! first one is kept.

use std::time::Duration;

// Addresses without sockets.
use ::core::net::IpAddr;

use mafs_proto::Instant;

/// Time by which QUIC goes first. Near servers have answered by then, so there is no connection over TCP that nobody
/// wants; and far ones have not heard of it yet when QUIC is there and it is dropped.
pub(crate) const HEAD_START: Duration = Duration::from_millis(50);
/// A lost first packet of QUIC is sent again after so long (`carrier/quic.rs`).
const RESENT_AFTER: Duration = Duration::from_millis(300);
/// QUIC has no more time than this once TCP is there.
const PATIENCE_MAX: Duration = Duration::from_secs(1);
/// Time for which a network counts as one that lets no UDP through: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_secs(2 * 60), Duration::from_secs(64 * 60)];
/// The reason, for people, where QUIC answers and is not taken yet.
const COMES_AND_GOES: &str = "UDP comes and goes";
/// Most networks that are remembered, the last ones.
const NETWORKS_MAX: usize = 16;

/// A network, as far as it can be told from others: by this machine's address towards the server, and the server's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Network {
    pub(crate) own: IpAddr,
    pub(crate) server: IpAddr,
}

impl Network {
    /// Whether nothing leaves this machine.
    pub(crate) fn is_here(self) -> bool {
        let (own, server) = (self.own.to_canonical(), self.server.to_canonical());
        server.is_loopback() || own == server
    }
}

/// Progress of TCP in a race.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tcp {
    NotBegun,
    UnderWay { since: Instant },
    Up { at: Instant, took: Duration },
    Failed { at: Instant, took: Duration },
}

/// The next step of a race. When QUIC is there it has won, and nobody asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    BeginTcp,
    /// TCP is there, and QUIC has failed or had its time.
    TakeTcp,
    /// TCP has failed, and so has QUIC, or it had its time.
    GiveUp,
    /// Wait until an attempt ends, or this moment has come.
    Wait(Option<Instant>),
}

/// Two attempts to connect, of which one is kept.
#[derive(Debug)]
pub(crate) struct Race {
    began: Instant,
    /// Whether QUIC is waited for.
    waits: bool,
    quic_failed: bool,
    tcp: Tcp,
}

impl Race {
    /// Begins with QUIC alone.
    pub(crate) fn new(waits: bool, now: Instant) -> Self {
        Self { began: now, waits, quic_failed: false, tcp: Tcp::NotBegun }
    }

    pub(crate) fn tcp_begins(&mut self, now: Instant) {
        self.tcp = Tcp::UnderWay { since: now };
    }

    pub(crate) fn tcp_ended(&mut self, is_up: bool, now: Instant) {
        if let Tcp::UnderWay { since } = self.tcp {
            let (at, took) = (now, now.since(since));
            self.tcp = if is_up { Tcp::Up { at, took } } else { Tcp::Failed { at, took } };
        }
    }

    pub(crate) fn quic_failed(&mut self) {
        self.quic_failed = true;
    }

    pub(crate) fn step(&self, now: Instant) -> Step {
        let (until, then) = match self.tcp {
            Tcp::NotBegun if self.waits => (self.began + HEAD_START, Step::BeginTcp),
            Tcp::NotBegun => (self.began, Step::BeginTcp),
            Tcp::UnderWay { .. } => return Step::Wait(None),
            Tcp::Up { at, took } if self.waits => (at + patience(took), Step::TakeTcp),
            Tcp::Up { at, .. } => (at, Step::TakeTcp),
            // A server that is not there is no reason to hurry.
            Tcp::Failed { at, took } => (at + patience(took), Step::GiveUp),
        };
        if self.quic_failed || now >= until { then } else { Step::Wait(Some(until)) }
    }
}

/// Returns how long QUIC has, from the end of TCP's attempt, which took so long: two round trips, where QUIC needs one.
fn patience(took: Duration) -> Duration {
    (RESENT_AFTER + took / 2).min(PATIENCE_MAX)
}

/// A network in which UDP went unanswered.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Trouble {
    network: Network,
    /// The reason, in words.
    why: String,
    /// Whether QUIC has answered since.
    answers: bool,
    since: Instant,
    pause: Duration,
    until: Instant,
}

/// The carrier of a connection, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Carried {
    /// There was none yet.
    Nothing,
    Quic,
    /// TCP, because the server is on this machine.
    TcpHere,
    /// TCP, because QUIC did not come about.
    Tcp {
        why: String,
        /// For how long QUIC has not come about.
        since: Duration,
        /// Time until it is tried again, at the latest.
        again_in: Duration,
    },
}

/// Networks in which QUIC did not come about, and the carrier in use.
#[derive(Debug, Default)]
pub(crate) struct Carriers {
    /// The newest last.
    troubles: Vec<Trouble>,
    used: Option<Used>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Used {
    Quic,
    TcpHere,
    Tcp(Network),
}

impl Carriers {
    /// Whether a race waits for QUIC.
    pub(crate) fn waits(&self, network: Network, now: Instant) -> bool {
        self.trouble(network).is_none_or(|trouble| trouble.answers || now >= trouble.until)
    }

    /// Notes that QUIC carries from now on. Earlier trouble with it stays remembered for the next time.
    pub(crate) fn quic_taken(&mut self, network: Network) {
        self.used = Some(Used::Quic);
        self.answered(network);
    }

    /// Notes that TCP carries from now on, because nothing leaves this machine.
    pub(crate) fn tcp_taken_here(&mut self) {
        self.used = Some(Used::TcpHere);
    }

    /// Notes that TCP carries from now on, although QUIC was tried.
    pub(crate) fn tcp_taken(&mut self, network: Network, why: &str, now: Instant) {
        self.used = Some(Used::Tcp(network));
        self.failed(network, why, now);
    }

    /// Returns the network of a connection over TCP, where QUIC may come about later.
    pub(crate) fn network_of_tcp(&self) -> Option<Network> {
        match self.used {
            Some(Used::Tcp(network)) => Some(network),
            Some(Used::Quic | Used::TcpHere) | None => None,
        }
    }

    /// Notes that QUIC answers, to whichever attempt: the next race waits for it.
    pub(crate) fn answered(&mut self, network: Network) {
        if let Some(trouble) = self.trouble_mut(network) {
            trouble.answers = true;
        }
    }

    /// Notes that QUIC was tried, and is not there.
    pub(crate) fn failed(&mut self, network: Network, why: &str, now: Instant) {
        let Some(place) = self.troubles.iter().position(|trouble| trouble.network == network) else {
            if self.troubles.len() == NETWORKS_MAX {
                self.troubles.remove(0);
            }
            let [pause, _] = PAUSES;
            let (why, since, until) = (why.to_owned(), now, now + pause);
            self.troubles.push(Trouble { network, why, answers: false, since, pause, until });
            return;
        };
        let mut trouble = self.troubles.remove(place);
        let has_worked = std::mem::take(&mut trouble.answers);
        if has_worked {
            trouble.since = now;
        }
        if has_worked || now >= trouble.until {
            // A network in which it works now and then is not tried again at every turn.
            let is_old = has_worked && now >= trouble.until + trouble.pause;
            trouble.pause = if is_old { PAUSES[0] } else { (2 * trouble.pause).min(PAUSES[1]) };
            trouble.until = now + trouble.pause;
        }
        why.clone_into(&mut trouble.why);
        self.troubles.push(trouble);
    }

    /// Whether QUIC, which has answered after TCP was taken, is to take over: at first at once, and where that has
    /// happened before only when it is time to try again.
    pub(crate) fn moves(&self, network: Network, now: Instant) -> bool {
        self.trouble(network).is_none_or(|trouble| trouble.pause == PAUSES[0] || now >= trouble.until)
    }

    /// Returns when QUIC is tried again in a network, while TCP carries.
    pub(crate) fn next_try(&self, network: Network, now: Instant) -> Instant {
        self.trouble(network).map_or(now + PAUSES[0], |trouble| trouble.until)
    }

    pub(crate) fn carried(&self, now: Instant) -> Carried {
        match self.used {
            None => Carried::Nothing,
            Some(Used::Quic) => Carried::Quic,
            Some(Used::TcpHere) => Carried::TcpHere,
            Some(Used::Tcp(network)) => self.trouble(network).map_or(Carried::Nothing, |trouble| Carried::Tcp {
                why: if trouble.answers { COMES_AND_GOES.to_owned() } else { trouble.why.clone() },
                since: now.since(trouble.since),
                again_in: trouble.until.since(now),
            }),
        }
    }

    fn trouble(&self, network: Network) -> Option<&Trouble> {
        self.troubles.iter().find(|trouble| trouble.network == network)
    }

    fn trouble_mut(&mut self, network: Network) -> Option<&mut Trouble> {
        self.troubles.iter_mut().find(|trouble| trouble.network == network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(1_000_000_000);
    const RTT: Duration = Duration::from_millis(40);
    const MINUTE: Duration = Duration::from_secs(60);

    fn network(host: u8) -> Network {
        Network { own: [10, 0, 0, host].into(), server: [192, 0, 2, 1].into() }
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn tcp_begins_after_the_head_start_or_when_quic_has_failed() {
        let mut race = Race::new(true, START);
        assert_eq!(race.step(START), Step::Wait(Some(START + HEAD_START)));
        assert_eq!(race.step(START + HEAD_START), Step::BeginTcp);
        race.quic_failed();
        assert_eq!(race.step(START), Step::BeginTcp);
        assert_eq!(Race::new(false, START).step(START), Step::BeginTcp, "where UDP is known to be blocked");
    }

    #[test]
    fn quic_has_the_time_for_one_lost_packet_once_tcp_is_there() {
        let begin = |waits| {
            let mut race = Race::new(waits, START);
            race.tcp_begins(START + HEAD_START);
            assert_eq!(race.step(START + HEAD_START), Step::Wait(None));
            race.tcp_ended(true, START + HEAD_START + 2 * RTT);
            race
        };
        let up = START + HEAD_START + 2 * RTT;
        let mut race = begin(true);
        assert_eq!(race.step(up), Step::Wait(Some(up + millis(300) + RTT)));
        assert_eq!(race.step(up + millis(300) + RTT), Step::TakeTcp);
        race.quic_failed();
        assert_eq!(race.step(up), Step::TakeTcp);
        assert_eq!(begin(false).step(up), Step::TakeTcp);
    }

    #[test]
    fn blocked_udp_costs_less_than_two_seconds_on_any_path() {
        for rtt_ms in [0, 1, 50, 600, 5_000] {
            let mut race = Race::new(true, START);
            race.tcp_begins(START + HEAD_START);
            let tcp_alone = millis(2 * rtt_ms);
            race.tcp_ended(true, START + HEAD_START + tcp_alone);
            let taken = START + tcp_alone + millis(1_100);
            assert_eq!(race.step(taken), Step::TakeTcp, "{rtt_ms}");
        }
    }

    #[test]
    fn a_server_that_is_not_there_is_given_up_soon_but_not_before_quic_could_answer() {
        for waits in [true, false] {
            let mut race = Race::new(waits, START);
            race.tcp_begins(START);
            race.tcp_ended(false, START + RTT);
            let until = START + RTT + millis(300) + RTT / 2;
            assert_eq!(race.step(START + RTT), Step::Wait(Some(until)));
            assert_eq!(race.step(until), Step::GiveUp);
            race.quic_failed();
            assert_eq!(race.step(START + RTT), Step::GiveUp);
        }
    }

    #[test]
    fn blocked_udp_is_remembered_for_its_network_and_tried_again_later_and_later() {
        let mut carriers = Carriers::default();
        assert!(carriers.waits(network(1), START));
        carriers.tcp_taken(network(1), "silence", START);
        let later = START + MINUTE;
        assert!(!carriers.waits(network(1), later) && carriers.waits(network(2), later));
        assert_eq!(
            carriers.carried(later),
            Carried::Tcp { why: "silence".to_owned(), since: MINUTE, again_in: MINUTE }
        );
        // Another connection in between says nothing new.
        carriers.tcp_taken(network(1), "silence", later);
        let mut now = START + 2 * MINUTE;
        for pause in [4, 8, 16, 32, 64, 64] {
            assert!(carriers.waits(network(1), now) && carriers.next_try(network(1), now) == now);
            carriers.failed(network(1), "silence", now);
            assert!(!carriers.waits(network(1), now + (pause - 1) * MINUTE));
            now = now + pause * MINUTE;
        }
        assert!(matches!(carriers.carried(now), Carried::Tcp { since, .. } if since == 190 * MINUTE));
    }

    #[test]
    fn udp_that_works_again_is_waited_for_again() {
        let mut carriers = Carriers::default();
        carriers.tcp_taken(network(1), "silence", START);
        assert_eq!(carriers.network_of_tcp(), Some(network(1)));
        carriers.quic_taken(network(1));
        assert_eq!((carriers.carried(START), carriers.network_of_tcp()), (Carried::Quic, None));
        assert!(carriers.waits(network(1), START));
        // Blocked once more: the time is counted anew.
        carriers.tcp_taken(network(1), "silence", START + MINUTE);
        let expected = Carried::Tcp { why: "silence".to_owned(), since: MINUTE, again_in: 3 * MINUTE };
        assert_eq!(carriers.carried(START + 2 * MINUTE), expected);
    }

    #[test]
    fn where_udp_comes_and_goes_nobody_moves_at_every_turn() {
        let mut carriers = Carriers::default();
        carriers.tcp_taken(network(1), "silence", START);
        assert!(carriers.moves(network(1), START), "the first packets were lost, say");
        carriers.quic_taken(network(1));
        carriers.tcp_taken(network(1), "silence", START + MINUTE);
        assert!(!carriers.moves(network(1), START + 2 * MINUTE));
        assert!(carriers.moves(network(1), START + 5 * MINUTE));
        carriers.answered(network(1));
        assert!(carriers.waits(network(1), START + 2 * MINUTE), "the next connection may have it");
        assert!(matches!(carriers.carried(START), Carried::Tcp { why, .. } if why == COMES_AND_GOES));
        // After hours in which it has worked it is blocked again.
        carriers.quic_taken(network(1));
        carriers.tcp_taken(network(1), "silence", START + 300 * MINUTE);
        assert!(carriers.moves(network(1), START + 300 * MINUTE));
    }

    #[test]
    fn the_networks_that_are_remembered_are_the_last_ones() {
        let mut carriers = Carriers::default();
        for host in 0..200 {
            carriers.tcp_taken(network(host), "silence", START);
        }
        assert_eq!(carriers.troubles.len(), NETWORKS_MAX);
        assert!(carriers.waits(network(0), START) && !carriers.waits(network(199), START));
    }

    #[test]
    fn what_stays_on_this_machine_is_told_from_what_leaves_it() {
        let network = |own: &str, server: &str| Network { own: own.parse().unwrap(), server: server.parse().unwrap() };
        for here in [("127.0.0.1", "127.9.9.9"), ("::1", "::1"), ("10.0.0.1", "10.0.0.1"), ("::1", "::ffff:127.0.0.1")]
        {
            assert!(network(here.0, here.1).is_here(), "{here:?}");
        }
        assert!(!network("10.0.0.1", "10.0.0.2").is_here());
    }
}
