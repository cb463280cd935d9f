//! Faults of a run.

use std::time::Duration;

use mafs_proto::Random;

use crate::network::{Connecting, Silence, Way};
use crate::world::Crash;

/// Faults that happen besides the operations: each about once in so many of them; 0: never.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// The connection of a client is cut while an operation is under way.
    pub cut: u64,
    /// The server is killed and started again, between operations or during one.
    pub kill_server: u64,
    /// The server's power goes.
    pub power_server: u64,
    /// A client is killed during an operation and started again.
    pub kill_client: u64,
    /// A client's power goes during an operation.
    pub power_client: u64,
    /// A client is unmounted and mounted again.
    pub remount: u64,
    /// A client is cut off for a while. Needs another one.
    pub isolate: u64,
    /// A client's link falls silent for a while: nothing arrives, and nobody is told.
    pub silent: u64,
    /// The server's disk is full, or nearly, for a while. In a fleet.
    pub fill_server: u64,
    /// The disk of a client is full, or nearly, for a while. In a fleet.
    pub fill_client: u64,
    /// A client sleeps for a while: nothing reaches it, and it does nothing. In a fleet.
    pub suspend: u64,
    /// An image of a client's disk is taken, or put back. In a fleet.
    pub restore: u64,
}

/// A fault that strikes during an operation. Clients are numbered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Strike {
    Cut(usize),
    Server(Crash),
    Client(usize, Crash),
    Isolate(usize),
    Silent(usize, Outage),
}

/// A silence of some length. If it is `lost`, what has waited never arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outage {
    pub(crate) silence: Silence,
    pub(crate) time: Duration,
    pub(crate) lost: bool,
}

impl Outage {
    /// Draws an outage from some milliseconds to twice a lease: short ones are as frequent as long ones.
    pub(crate) fn random(random: &mut Random) -> Self {
        let way = random.one_of(&[Way::ToServer, Way::ToClient, Way::Both]);
        let connecting = random.one_of(&[Connecting::Hangs, Connecting::Works, Connecting::Deceives]);
        let about = 1 << random.below(17);
        let time = Duration::from_millis(about + random.below(about));
        Self { silence: Silence { way, connecting }, time, lost: random.once_in(2) }
    }
}

impl Faults {
    /// Chooses the fault that strikes during the next operation, if any.
    pub(crate) fn strike(self, random: &mut Random, clients: usize) -> Option<Strike> {
        let victim = some_client(random, clients);
        let strikes = [
            (self.cut, Strike::Cut(victim)),
            (self.kill_server, Strike::Server(Crash::Kill)),
            (self.power_server, Strike::Server(Crash::Power)),
            (self.kill_client, Strike::Client(victim, Crash::Kill)),
            (self.power_client, Strike::Client(victim, Crash::Power)),
            (self.isolate, Strike::Isolate(victim)),
            (self.silent, Strike::Silent(victim, Outage::random(random))),
        ];
        strikes.into_iter().find(|(rate, _)| happens(random, *rate)).map(|(_, strike)| strike)
    }
}

/// Chooses one of the clients.
pub(crate) fn some_client(random: &mut Random, clients: usize) -> usize {
    usize::try_from(random.below(clients as u64)).unwrap_or(0)
}

/// Whether something happens that happens once in so many times; 0: never.
pub(crate) fn happens(random: &mut Random, once_in: u64) -> bool {
    once_in != 0 && random.once_in(once_in)
}

/// Draws delays for the links of so many clients: each has its own, and one may have the longest.
pub(crate) fn delays(random: &mut Random, clients: usize, longest: Duration) -> Vec<Duration> {
    (0..clients).map(|_| longest / random.one_of(&[1, 2, 4, 8, 16, 32])).collect()
}
