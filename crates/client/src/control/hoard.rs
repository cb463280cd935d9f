//! Questions of commands about the hoard. Paths are those below the mount point.

use serde::{Deserialize, Serialize};

use crate::hoard::{HoardSpec, Rank};
use crate::vfs::{Evicted, HoardEntry, HoardReport, Recorded, Warmed};

/// A command's question about the hoard.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoardRequest {
    /// Keep in the cache what is or will be at a path.
    Add {
        /// The path.
        below: Vec<u8>,
        /// The part that is meant, and its rank.
        spec: HoardSpec,
    },
    /// End [`Self::Add`].
    Remove {
        /// The path.
        below: Vec<u8>,
        /// Whether only a pin is removed.
        pin: bool,
    },
    /// List the entries of the hoard.
    List,
    /// Walk the hoard and fetch what is missing; answer when the walk has ended.
    Walk,
    /// Fetch everything below a path once; answer when that has ended.
    Warm {
        /// The path.
        below: Vec<u8>,
        /// A number of the command's choice, for [`Self::Warming`].
        ticket: u64,
    },
    /// Ask for the progress of the [`Self::Warm`] with this number.
    Warming(u64),
    /// Ask how much of everything below a path is here.
    Check(Vec<u8>),
    /// Drop what is here of everything below a path, as far as the server has it and nobody uses it.
    Evict(Vec<u8>),
    /// Note what is opened by programs that have this number in their environment, until the command goes away.
    Record(u64),
    /// Ask whether the [`Self::Record`] with this number has begun.
    Recording(u64),
    /// Hoard the objects that the [`Self::Record`] with this number has noted.
    EndRecord {
        /// Its number.
        ticket: u64,
        /// The rank of the hoarded objects.
        rank: Rank,
    },
}

impl HoardRequest {
    /// Whether the answer may take as long as the network does.
    pub(super) fn waits(&self) -> bool {
        match self {
            Self::Walk | Self::Warm { .. } | Self::Record(_) | Self::EndRecord { .. } => true,
            Self::Check(_) | Self::Evict(_) => true,
            Self::Add { .. } | Self::Remove { .. } | Self::List | Self::Warming(_) | Self::Recording(_) => false,
        }
    }
}

/// The daemon's answer about the hoard.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoardResponse {
    /// Answer to [`HoardRequest::Add`].
    Added {
        /// Whether the server can be asked for it now.
        connected: bool,
        /// Whether anything is known at this path.
        known: bool,
    },
    /// Answer to [`HoardRequest::Remove`]: whether there was such an entry.
    Removed(bool),
    /// Answer to [`HoardRequest::List`].
    List(Vec<HoardEntry>),
    /// Answer to [`HoardRequest::Walk`].
    Walked(HoardReport),
    /// Answer to [`HoardRequest::Warm`] and [`HoardRequest::Check`].
    Warmed(Warmed),
    /// Answer to [`HoardRequest::Warming`]; none if nobody waits with this number.
    Warming(Option<Warmed>),
    /// Answer to [`HoardRequest::Evict`].
    Evicted(Evicted),
    /// Answer to [`HoardRequest::Recording`].
    Recording(bool),
    /// Answer to [`HoardRequest::EndRecord`], and to [`HoardRequest::Record`] if that cannot begin; none if nothing is
    /// recorded with this number.
    Recorded(Option<Recorded>),
}
