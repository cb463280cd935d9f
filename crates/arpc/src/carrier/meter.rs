//! Who knows how much a carrier's transport has lost.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::TcpStream;

use super::{SEGMENT_BYTES, tcp_info};
use crate::loss::Loss;

/// Whom to ask for the loss of a carrier. Asking costs some microseconds, so it is done when somebody looks.
#[derive(Clone, Debug)]
pub(crate) enum LossMeter {
    /// Nobody knows it.
    Nobody,
    /// The kernel, of the TCP connection between these addresses. It does not hold the connection.
    Kernel {
        /// This end.
        local: SocketAddr,
        /// The other.
        peer: SocketAddr,
    },
    /// The QUIC connection itself: all that it has sent, and what it took for lost of that, with heads. A handle does
    /// not keep the connection, which the carrier ends.
    Quic(quinn::Connection),
    /// Whoever emulates the link, who keeps it here.
    Emulated(Arc<Mutex<Loss>>),
}

/// Between what a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// This end's address; `None`: whichever this host has, the connection moves with it.
    pub local: Option<SocketAddr>,
    /// The other end's.
    pub remote: SocketAddr,
}

/// How much of a connection one packet carries, or what is usual if the kernel does not say.
pub(super) fn segment_bytes_of(stream: &TcpStream) -> u64 {
    let addresses = stream.local_addr().and_then(|local| Ok((local, stream.peer_addr()?)));
    addresses.ok().and_then(|(local, peer)| tcp_info::segment_bytes(local, peer)).unwrap_or(SEGMENT_BYTES)
}

impl LossMeter {
    /// The kernel's, as long as it says what the addresses of the connection are.
    pub(super) fn of_tcp(stream: &TcpStream) -> Self {
        match (stream.local_addr(), stream.peer_addr()) {
            (Ok(local), Ok(peer)) => Self::Kernel { local, peer },
            _ => Self::Nobody,
        }
    }

    /// Between which addresses the connection is, as far as that is known.
    pub(crate) fn ends(&self) -> Option<Ends> {
        match self {
            Self::Nobody | Self::Emulated(_) => None,
            Self::Kernel { local, peer } => Some(Ends { local: Some(*local), remote: *peer }),
            Self::Quic(connection) => Some(Ends { local: None, remote: connection.remote_address() }),
        }
    }

    /// What is known now. Not for a connection that has ended: its addresses may be another's.
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
