//! `proto=auto`: attempts over QUIC and TCP side by side, of which one is kept. Decisions are in `core/carriers.rs`.
//!
//! A server that is known by its key and shows another is refused, as with `proto=quic`: TCP, which shows none, is not
//! taken instead. Where UDP is blocked TCP is taken, whatever is known: an attacker that can block UDP can say
//! anything over TCP, so there `auto` protects no better than `tcp`, and no worse.
//!
//! An attempt over QUIC that was too slow goes on beside the connection over TCP, and others follow at long intervals.
//! An attempt that succeeds carries the next connection, and the one over TCP ends.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use mafs_arpc::carrier::shaped::Shaper;
use mafs_arpc::carrier::{Address, Carrier, ConnectError};
use mafs_proto::{Clock, Instant};
use tokio::net::lookup_host;

use super::connector::{CarrierReport, Connecting, Proto, QuicFailure, connect_quic, connect_tcp};
use super::known_server::KnownServer;
use crate::core::carriers::{Carried, Carriers, Network, Race, Step};

/// A connection that has come about beside another is used within this time, or not at all.
const READY_MAX: Duration = Duration::from_secs(5);
/// The time between looks at the clock: timers do not run through suspend.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// An attempt over QUIC, under way.
type QuicConnecting = BoxFuture<'static, Result<Carrier, QuicFailure>>;

/// Both carriers to one server.
pub(super) struct Auto {
    host_port: String,
    link: Option<Shaper>,
    known: KnownServer,
    clock: Arc<dyn Clock>,
    /// Whether QUIC is tried also where nothing leaves this machine, as over an emulated link.
    races_here: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    carriers: Carriers,
    /// QUIC's attempt of the race that TCP has won.
    late: Option<QuicConnecting>,
    /// The outcome of an attempt beside a connection, to be that of the next attempt.
    ready: Option<Ready>,
}

struct Ready {
    network: Network,
    at: Instant,
    outcome: Result<Carrier, ConnectError>,
}

impl Auto {
    pub(super) fn new(host_port: String, link: Option<Shaper>, known: KnownServer, clock: Arc<dyn Clock>) -> Self {
        let races_here = link.is_some();
        Self { host_port, link, known, clock, races_here, state: Mutex::default() }
    }

    /// Makes an attempt.
    pub(super) async fn connect(&self) -> Result<Carrier, ConnectError> {
        self.state().late = None;
        let network = network(&self.host_port).await?;
        if let Some(outcome) = self.take_ready(network) {
            return outcome;
        }
        if network.is_here() && !self.races_here {
            let carrier = self.tcp().await?;
            self.state().carriers.tcp_taken_here();
            return Ok(carrier);
        }
        self.race(network).await
    }

    async fn race(&self, network: Network) -> Result<Carrier, ConnectError> {
        let began = self.clock.now();
        let mut race = Race::new(self.state().carriers.waits(network, began), began);
        let (mut quic, mut tcp) = (Some(self.quic()), None);
        let mut over_tcp = Err(ConnectError::NoAnswer { address: self.host_port.clone() });
        let mut why = format!("nothing answers at {} over UDP", self.host_port);
        loop {
            let left = match race.step(self.clock.now()) {
                Step::BeginTcp => {
                    race.tcp_begins(self.clock.now());
                    tcp = Some(self.tcp());
                    continue;
                }
                Step::TakeTcp | Step::GiveUp => break,
                Step::Wait(until) => until.map(|until| until.since(self.clock.now())),
            };
            tokio::select! {
                biased;
                ended = end_of(&mut quic) => match ended {
                    Ok(carrier) => {
                        self.state().carriers.quic_taken(network);
                        return Ok(carrier);
                    }
                    Err(QuicFailure::Untrusted(error)) => return Err(error),
                    Err(QuicFailure::Unusable(error)) => {
                        why = in_short(&error);
                        race.quic_failed();
                    }
                },
                ended = end_of(&mut tcp) => {
                    race.tcp_ended(ended.is_ok(), self.clock.now());
                    over_tcp = ended;
                }
                () = passed(left) => {}
            }
        }
        let carrier = over_tcp?;
        tracing::info!("TCP carries everything: {why}");
        let mut state = self.state();
        state.carriers.tcp_taken(network, &why, self.clock.now());
        state.late = quic;
        Ok(carrier)
    }

    /// Tries QUIC while TCP carries. When this ends the next attempt to connect has its outcome at once. Returns the
    /// reason.
    pub(super) async fn until_better(&self) -> String {
        let Some(network) = self.state().carriers.network_of_tcp() else { return std::future::pending().await };
        loop {
            let late = self.state().late.take();
            let attempt = match late {
                Some(attempt) => attempt,
                None => {
                    self.until_next_try(network).await;
                    self.quic()
                }
            };
            let outcome = attempt.await;
            let mut state = self.state();
            let now = self.clock.now();
            let (why, outcome) = match outcome {
                Ok(_) if !state.carriers.moves(network, now) => {
                    state.carriers.answered(network);
                    continue;
                }
                Ok(carrier) => ("UDP gets through: QUIC takes over".to_owned(), Ok(carrier)),
                Err(QuicFailure::Untrusted(error)) => (error.to_string(), Err(error)),
                Err(QuicFailure::Unusable(error)) => {
                    state.carriers.failed(network, &in_short(&error), now);
                    continue;
                }
            };
            state.carriers.answered(network);
            state.ready = Some(Ready { network, at: now, outcome });
            return why;
        }
    }

    async fn until_next_try(&self, network: Network) {
        loop {
            let now = self.clock.now();
            let left = self.state().carriers.next_try(network, now).since(now);
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
        }
    }

    /// Takes the outcome of an attempt beside the last connection, if it is of use.
    fn take_ready(&self, network: Network) -> Option<Result<Carrier, ConnectError>> {
        let mut state = self.state();
        let ready = state.ready.take()?;
        if ready.network != network || self.clock.now().since(ready.at) > READY_MAX {
            return None;
        }
        if ready.outcome.is_ok() {
            state.carriers.quic_taken(network);
        }
        Some(ready.outcome)
    }

    pub(super) fn report(&self) -> CarrierReport {
        let nothing_blocked = |proto, why: &str| CarrierReport { proto, why: why.to_owned(), blocked: None };
        match self.state().carriers.carried(self.clock.now()) {
            Carried::Nothing => nothing_blocked(Proto::Auto, "no connection yet"),
            Carried::Quic => nothing_blocked(Proto::Quic, "UDP gets through"),
            Carried::TcpHere => nothing_blocked(Proto::Tcp, "the server is on this machine"),
            Carried::Tcp { why, since, again_in } => {
                CarrierReport { proto: Proto::Tcp, why, blocked: Some((since.as_secs(), again_in.as_secs())) }
            }
        }
    }

    fn quic(&self) -> QuicConnecting {
        connect_quic(self.host_port.clone(), self.link.clone(), self.known.clone())
    }

    fn tcp(&self) -> Connecting {
        connect_tcp(Address::Tcp(self.host_port.clone()), self.link.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the end of an attempt, and drops it; never ends if none is under way.
async fn end_of<T>(attempt: &mut Option<BoxFuture<'static, T>>) -> T {
    let Some(under_way) = attempt else { return std::future::pending().await };
    let ended = under_way.await;
    *attempt = None;
    ended
}

async fn passed(left: Option<Duration>) {
    match left {
        Some(left) => tokio::time::sleep(left).await,
        None => std::future::pending().await,
    }
}

fn in_short(error: &ConnectError) -> String {
    match error {
        ConnectError::NoAnswer { address } => format!("nothing answers at {address} over UDP"),
        _ => error.to_string(),
    }
}

/// Finds the network that leads to a server, by connecting a UDP socket to it; nothing is sent.
async fn network(host_port: &str) -> Result<Network, ConnectError> {
    let unknown = |source| ConnectError::UnknownHost { address: host_port.to_owned(), source };
    let mut failed = None;
    for server in lookup_host(host_port).await.map_err(unknown)? {
        match own_address(server) {
            Ok(own) => return Ok(Network { own: own.ip(), server: server.ip() }),
            Err(error) => failed = Some(error),
        }
    }
    Err(match failed {
        Some(source) => ConnectError::Unreachable { address: host_port.to_owned(), source },
        None => unknown(io::Error::other("the name has no address")),
    })
}

fn own_address(server: SocketAddr) -> io::Result<SocketAddr> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.local_addr()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
