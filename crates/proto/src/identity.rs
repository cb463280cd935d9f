//! Identities of the peers: clients, servers, their lives, and the records they make.

use std::fmt;

/// The oldest protocol version this build speaks. In version 1 the hash of a content did not come with it.
pub const PROTOCOL_MIN: u32 = 2;
/// The newest protocol version this build speaks.
pub const PROTOCOL_MAX: u32 = 2;

/// Identity of a client, which is one cache directory: made at random when the cache is created.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub [u8; 16]);

/// Identity of a server, which is one data directory: made at random by `init`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub [u8; 16]);

/// One life of a client, granted by attach and durable on both sides before the first record under it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Incarnation(pub u64);

/// One attach of a client; frames of older ones are fenced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Generation(pub u64);

/// One start of a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerEpoch(pub u64);

/// One history of a volume; restoring it from a backup begins another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HistoryId(pub u64);

/// The name of one mutation, and of nothing else ever: the key of exactly-once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StoreId {
    /// The client that made the record.
    pub client: ClientId,
    /// The client's life.
    pub incarnation: Incarnation,
    /// Its place in that life, from 1 on.
    pub seq: u64,
}

fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Debug for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.client.0[..4], f)?;
        write!(f, "-{}-{}", self.incarnation.0, self.seq)
    }
}
