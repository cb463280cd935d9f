//! The way between one client and the server: it can break, and it can stay broken.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mafs_arpc::carrier::Carrier;
use mafs_arpc::carrier::grpc::ConnectError;
use mafs_arpc::carrier::memory::{Cut, pair_with_fault};
use mafs_client::remote::Connector;
use mafs_server::Server;

use crate::VirtualClock;

/// What all links lead to: the server, if it is up.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) clock: VirtualClock,
    pub(crate) delay: Duration,
    server: Arc<Mutex<Option<Arc<Server>>>>,
}

/// The link of one client. Clones are the same.
#[derive(Clone)]
pub(crate) struct Link {
    network: Network,
    state: Arc<Mutex<State>>,
}

struct State {
    /// Whether connections can be made.
    open: bool,
    /// Void connectors belong to programs that have died.
    life: u64,
    cuts: Vec<Cut>,
}

impl Network {
    pub(crate) fn new(clock: VirtualClock, delay: Duration) -> Self {
        Self { clock, delay, server: Arc::default() }
    }

    /// Puts a server where clients look for it, or nothing.
    pub(crate) fn set_server(&self, server: Option<Arc<Server>>) {
        *lock(&self.server) = server;
    }

    fn connect(&self) -> Option<(Carrier, Cut)> {
        let server = lock(&self.server).clone()?;
        let (client_end, server_end, cut) = pair_with_fault(self.delay);
        tokio::spawn(server.serve_connection(server_end));
        Some((client_end, cut))
    }
}

impl Link {
    pub(crate) fn new(network: Network) -> Self {
        Self { network, state: Arc::new(Mutex::new(State { open: true, life: 0, cuts: Vec::new() })) }
    }

    pub(crate) fn clock(&self) -> VirtualClock {
        self.network.clock
    }

    /// Cuts every connection; others can be made.
    pub(crate) fn cut(&self) {
        lock(&self.state).cuts.drain(..).for_each(|cut| cut.cut());
    }

    /// Makes connections possible, or impossible.
    pub(crate) fn set_open(&self, open: bool) {
        lock(&self.state).open = open;
        if !open {
            self.cut();
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        lock(&self.state).open
    }

    /// The program that used the link has died.
    pub(crate) fn end_life(&self) {
        lock(&self.state).life += 1;
        self.cut();
    }

    /// Connects to whatever server is up, as long as the program lives that it was made for.
    pub(crate) fn connector(&self) -> Connector {
        let (link, life) = (self.clone(), lock(&self.state).life);
        Arc::new(move || {
            let connected = link.connect(life);
            Box::pin(async move { connected })
        })
    }

    fn connect(&self, life: u64) -> Result<Carrier, ConnectError> {
        let mut state = lock(&self.state);
        let usable = state.open && state.life == life;
        match usable.then(|| self.network.connect()).flatten() {
            Some((carrier, cut)) => {
                state.cuts.push(cut);
                Ok(carrier)
            }
            None => Err(ConnectError::Unreachable {
                address: "simulated".to_owned(),
                source: io::ErrorKind::ConnectionRefused.into(),
            }),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
