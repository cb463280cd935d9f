//! What goes wrong in a run.

use mafs_proto::Random;

use crate::world::Crash;

/// What happens besides the operations: each about once in so many of them; 0: never.
#[derive(Clone, Copy, Debug, Default)]
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
}

/// A fault that strikes during an operation. Clients are numbered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Strike {
    Cut(usize),
    Server(Crash),
    Client(usize, Crash),
    Isolate(usize),
}

impl Faults {
    /// What strikes during the next operation, if anything.
    pub(crate) fn strike(self, random: &mut Random, clients: usize) -> Option<Strike> {
        let victim = some_client(random, clients);
        let strikes = [
            (self.cut, Strike::Cut(victim)),
            (self.kill_server, Strike::Server(Crash::Kill)),
            (self.power_server, Strike::Server(Crash::Power)),
            (self.kill_client, Strike::Client(victim, Crash::Kill)),
            (self.power_client, Strike::Client(victim, Crash::Power)),
            (self.isolate, Strike::Isolate(victim)),
        ];
        strikes.into_iter().find(|(rate, _)| happens(random, *rate)).map(|(_, strike)| strike)
    }
}

/// One of the clients.
pub(crate) fn some_client(random: &mut Random, clients: usize) -> usize {
    usize::try_from(random.below(clients as u64)).unwrap_or(0)
}

/// Whether something happens that happens once in so many times; 0: never.
pub(crate) fn happens(random: &mut Random, once_in: u64) -> bool {
    once_in != 0 && random.once_in(once_in)
}
