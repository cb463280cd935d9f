//! NFS over UDP as the wireless papers ran it (papers 000 and 001), over the link model: the baseline of their tables.
//!
//! A file goes in blocks: a call and a reply for each, some under way at a time. Either is one datagram in fragments
//! of at most 1500 bytes. A fragment that is lost loses the datagram, and a timer sends the call again. So it costs at
//! least 700 ms to lose one packet. Hosts of the time are here too: they take packets out of their adapters more
//! slowly than the link brings them, and packets that find no room there are lost.
//!
//! No real time passes and no socket is opened: a transfer is a function of its parameters and the link's seed.

mod caller;
mod network;
mod timer;
mod transfer;

use std::time::Duration;

pub use timer::Backoff;
pub use transfer::{Transferred, transfer, transfer_all};

/// Which way the file goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// From the server.
    Read,
    /// To the server.
    Write,
}

/// A client of NFS, and the server that it speaks to.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The bytes of a block.
    pub block_bytes: u64,
    /// How many calls are under way at most: the program's, and those of the daemons that read ahead or write behind.
    pub calls: usize,
    /// How timeouts grow.
    pub backoff: Backoff,
    /// How long the client's host works on each block, one after the other.
    pub host: Duration,
    /// How long the server takes for a call.
    pub server: Duration,
}
