//! The way between one client and the server: it can break, it can stay broken, and it can fall silent.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mafs_arpc::carrier::Carrier;
use mafs_arpc::carrier::grpc::ConnectError;
use mafs_arpc::carrier::memory::{Cable, Direction, pair_over, pair_with_fault};
use mafs_arpc::link::{Profile, Stream, Uplink};
use mafs_arpc::watch;
use mafs_client::remote::{Connector, Proto};
use mafs_proto::Clock;
use mafs_server::Server;

use crate::VirtualClock;

/// Delay between a stranger and the server.
const STRANGER_DELAY: Duration = Duration::from_millis(5);

/// The path between a client and the server.
#[derive(Clone, Debug)]
pub enum Path {
    /// Frames of any size take this long, one way.
    Delay(Duration),
    /// An emulated link.
    Link(Box<Profile>),
    /// An emulated link behind the server's uplink, which is that of other clients too.
    Behind(Uplink, Box<Profile>),
}

/// The end of all links: the server, if it is up.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) clock: VirtualClock,
    server: Arc<Mutex<Option<Arc<Server>>>>,
    /// Connections made so far over emulated links.
    connections: Arc<AtomicU64>,
}

/// Behavior of a silent link: nothing arrives, and nobody is told. Bytes that are sent wait, as in the buffers of TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Silence {
    /// The direction in which nothing arrives.
    pub way: Way,
    /// The fate of a new connection.
    pub connecting: Connecting,
}

/// Direction in which nothing arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The client cannot send, but it receives.
    ToServer,
    /// The client cannot receive, but it sends.
    ToClient,
    /// Nothing arrives in either direction.
    Both,
}

/// Place where a byte changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harm {
    /// Between the ends, where the check of its frame shows it.
    OnItsWay,
    /// In the memory of an end, where no check shows it.
    InMemory,
}

/// Fate of a connection that is made over a silent link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connecting {
    /// The connection is not made before the silence ends: nobody answers.
    Hangs,
    /// The connection works: the client has come to another address.
    Works,
    /// The connection is made, and as silent as the others: something on the way answers in place of the server.
    Deceives,
}

/// The link of one client. Clones are the same.
#[derive(Clone)]
pub(crate) struct Link {
    network: Network,
    state: Arc<Mutex<State>>,
    /// Notifies of whatever may let a connection be made.
    changed: Arc<watch::Sender<()>>,
}

struct State {
    /// The path of connections to come.
    path: Path,
    /// Whether connections can be made.
    open: bool,
    /// Number of the program that uses the link. Connectors of programs that have died are void.
    life: u64,
    cables: Vec<Cable>,
    silence: Option<Silence>,
    /// Cables that are silent.
    silent_cables: Vec<Cable>,
    /// Counts the beginnings and ends of silence.
    round: u64,
}

impl Network {
    pub(crate) fn new(clock: VirtualClock) -> Self {
        Self { clock, server: Arc::default(), connections: Arc::default() }
    }

    /// Puts a server where clients look for it, or nothing.
    pub(crate) fn set_server(&self, server: Option<Arc<Server>>) {
        *lock(&self.server) = server;
    }

    /// Connects somebody who is no client.
    pub(crate) fn connect_stranger(&self) -> Option<Carrier> {
        self.connect(&Path::Delay(STRANGER_DELAY)).map(|(carrier, _)| carrier)
    }

    fn connect(&self, path: &Path) -> Option<(Carrier, Cable)> {
        let server = lock(&self.server).clone()?;
        let (client_end, server_end, cable) = match path {
            Path::Delay(delay) => pair_with_fault(*delay),
            Path::Link(profile) => pair_over(self.streams(profile), self.clock.now()),
            Path::Behind(uplink, profile) => {
                let [up, down] = self.streams(profile);
                pair_over([up, down.behind(uplink.clone())], self.clock.now())
            }
        };
        tokio::spawn(server.serve_connection(server_end));
        Some((client_end, cable))
    }

    /// For one more connection. The time of a link is the world's: an outage outlasts the connections that it breaks.
    fn streams(&self, profile: &Profile) -> [Stream; 2] {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        profile.streams_of(number, mafs_proto::Instant(0))
    }
}

impl Link {
    pub(crate) fn new(network: Network, path: Path) -> Self {
        let (cables, silent_cables) = (Vec::new(), Vec::new());
        let state = State { path, open: true, life: 0, cables, silence: None, silent_cables, round: 0 };
        Self { network, state: Arc::new(Mutex::new(state)), changed: Arc::new(watch::Sender::new(())) }
    }

    pub(crate) fn clock(&self) -> VirtualClock {
        self.network.clock
    }

    /// Lets new connections go another way from now on.
    pub(crate) fn set_path(&self, path: Path) {
        lock(&self.state).path = path;
    }

    /// Cuts every connection; others can be made.
    pub(crate) fn cut(&self) {
        let mut state = lock(&self.state);
        let State { cables, silent_cables, .. } = &mut *state;
        cables.drain(..).chain(silent_cables.drain(..)).for_each(|cable| cable.cut());
    }

    /// Makes connections possible, or impossible.
    pub(crate) fn set_open(&self, open: bool) {
        lock(&self.state).open = open;
        if !open {
            self.cut();
        }
        self.break_silence();
    }

    pub(crate) fn is_open(&self) -> bool {
        lock(&self.state).open
    }

    /// Lets the link fall silent. A silence that has begun before goes on for its connections.
    pub(crate) fn fall_silent(&self, silence: Silence) {
        let mut state = lock(&self.state);
        state.silence = Some(silence);
        state.round += 1;
        let cables = std::mem::take(&mut state.cables);
        cables.iter().for_each(|cable| hold(cable, silence.way));
        state.silent_cables.extend(cables);
    }

    /// Lets the link fall silent for some time. If it is `lost`, what has waited never arrives: the connections end.
    pub(crate) fn fall_silent_for(&self, silence: Silence, time: Duration, lost: bool) {
        self.fall_silent(silence);
        let (link, round) = (self.clone(), lock(&self.state).round);
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            if lock(&link.state).round == round {
                if lost {
                    lock(&link.state).silent_cables.drain(..).for_each(|cable| cable.cut());
                }
                link.break_silence();
            }
        });
    }

    /// Ends all silence; what has waited arrives.
    pub(crate) fn break_silence(&self) {
        let mut state = lock(&self.state);
        let cables = std::mem::take(&mut state.silent_cables);
        cables.iter().for_each(release);
        state.cables.extend(cables);
        state.silence = None;
        state.round += 1;
        drop(state);
        self.changed.send_replace(());
    }

    /// Changes a byte of what travels next by the newest connection: see [`Cable::flip`] and [`Cable::spoil`].
    pub(crate) fn harm(&self, harm: Harm, to: Direction, at: u64) {
        let state = lock(&self.state);
        let Some(cable) = state.cables.last() else { return };
        match harm {
            Harm::OnItsWay => cable.flip(to, at),
            Harm::InMemory => cable.spoil(to, at),
        }
    }

    pub(crate) fn silence(&self) -> Option<Silence> {
        lock(&self.state).silence
    }

    /// Notes that the program that used the link has died.
    pub(crate) fn end_life(&self) {
        lock(&self.state).life += 1;
        self.end_connections(Direction::ToConnector);
        self.changed.send_replace(());
    }

    /// Notes that the server has died.
    pub(crate) fn end_server(&self) {
        self.end_connections(Direction::ToAcceptor);
    }

    /// Notes that the program at one end of all connections has died. The other end hears of that, unless the link is
    /// silent: then it hears first of what was sent before.
    fn end_connections(&self, end: Direction) {
        let mut state = lock(&self.state);
        state.cables.drain(..).for_each(|cable| cable.cut());
        state.silent_cables.iter().for_each(|cable| cable.cut_end(end));
    }

    /// Connects to whatever server is up, as long as the program lives that it was made for.
    pub(crate) fn connector(&self) -> Connector {
        let (link, life) = (self.clone(), lock(&self.state).life);
        Connector::new(Proto::Tcp, move || {
            let link = link.clone();
            Box::pin(async move { link.connect(life).await })
        })
    }

    async fn connect(&self, life: u64) -> Result<Carrier, ConnectError> {
        let mut changed = self.changed.subscribe();
        while self.hangs(life) {
            // The sender lives in `self`.
            let _ = changed.changed().await;
        }
        self.try_connect(life)
    }

    fn hangs(&self, life: u64) -> bool {
        let state = lock(&self.state);
        let hangs = state.silence.is_some_and(|silence| silence.connecting == Connecting::Hangs);
        hangs && state.life == life
    }

    fn try_connect(&self, life: u64) -> Result<Carrier, ConnectError> {
        let mut state = lock(&self.state);
        let usable = state.open && state.life == life;
        let Some((carrier, cable)) = usable.then(|| self.network.connect(&state.path)).flatten() else {
            return Err(ConnectError::Unreachable {
                address: "simulated".to_owned(),
                source: io::ErrorKind::ConnectionRefused.into(),
            });
        };
        match state.silence.filter(|silence| silence.connecting == Connecting::Deceives) {
            Some(silence) => {
                hold(&cable, silence.way);
                state.silent_cables.push(cable);
            }
            None => state.cables.push(cable),
        }
        Ok(carrier)
    }
}

fn hold(cable: &Cable, way: Way) {
    let held: &[Direction] = match way {
        Way::ToServer => &[Direction::ToAcceptor],
        Way::ToClient => &[Direction::ToConnector],
        Way::Both => &Direction::ALL,
    };
    held.iter().for_each(|direction| cable.hold(*direction));
}

fn release(cable: &Cable) {
    Direction::ALL.into_iter().for_each(|direction| cable.release(direction));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
