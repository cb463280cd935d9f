//! The source that knows how much a carrier's transport has lost.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::TcpStream;

use super::{SEGMENT_BYTES, tcp_info};
use crate::loss::Loss;

/// The source to ask for the loss of a carrier. Asking costs some microseconds, so it is done only on demand.
#[derive(Clone, Debug)]
pub(crate) enum LossMeter {
    /// Nobody knows the loss.
    Nobody,
    /// The kernel knows the loss of the TCP connection between these addresses. The meter does not hold the connection.
    Kernel {
        /// This end's address.
        local: SocketAddr,
        /// The other end's address.
        peer: SocketAddr,
    },
    /// The QUIC connection itself knows all that it has sent, and how much of it it took for lost, with heads. A handle
    /// does not keep the connection, which the carrier ends.
    Quic(quinn::Connection),
    /// The emulated link, which keeps its loss here.
    Emulated(Arc<Mutex<Loss>>),
}

/// The addresses of a connection's ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// This end's address; `None`: any that this host has, the connection moves with it.
    pub local: Option<SocketAddr>,
    /// The other end's address.
    pub remote: SocketAddr,
}

/// Returns how much of a connection one packet carries, or the usual size if the kernel does not say.
pub(super) fn segment_bytes_of(stream: &TcpStream) -> u64 {
    let addresses = stream.local_addr().and_then(|local| Ok((local, stream.peer_addr()?)));
    addresses.ok().and_then(|(local, peer)| tcp_info::segment_bytes(local, peer)).unwrap_or(SEGMENT_BYTES)
}

impl LossMeter {
    /// Returns the kernel's meter, if the kernel tells the addresses of the connection.
    pub(super) fn of_tcp(stream: &TcpStream) -> Self {
        match (stream.local_addr(), stream.peer_addr()) {
            (Ok(local), Ok(peer)) => Self::Kernel { local, peer },
            _ => Self::Nobody,
        }
    }

    /// Returns the addresses of the connection, as far as they are known.
    pub(crate) fn ends(&self) -> Option<Ends> {
        match self {
            Self::Nobody | Self::Emulated(_) => None,
            Self::Kernel { local, peer } => Some(Ends { local: Some(*local), remote: *peer }),
            Self::Quic(connection) => Some(Ends { local: None, remote: connection.remote_address() }),
        }
    }

    /// Returns the loss as known now. Do not ask for a connection that has ended: its addresses may be another's.
    pub(crate) fn read(&self) -> Option<Loss> {
        match self {
            Self::Nobody => None,
            Self::Kernel { local, peer } => tcp_info::loss(*local, *peer),
            Self::Quic(connection) => {
                let stats = connection.stats();
                Some(Loss { sent_bytes: stats.udp_tx.bytes, lost_bytes: stats.path.lost_bytes })
            }
            Self::Emulated(loss) => Some(*loss.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}
