//! What commands ask about the hoard. Paths are those below the mount point.

use serde::{Deserialize, Serialize};

use crate::hoard::{HoardSpec, Rank};
use crate::vfs::{Evicted, HoardEntry, HoardReport, Recorded, Warmed};

/// What a command asks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoardRequest {
    /// Have what is or will be at a path here.
    Add {
        /// Where.
        below: Vec<u8>,
        /// How much of it, and for how much.
        spec: HoardSpec,
    },
    /// End that.
    Remove {
        /// Where.
        below: Vec<u8>,
        /// Only if it is a pin.
        pin: bool,
    },
    /// What is to be here?
    List,
    /// Look at all of it and fetch what is missing; answer when that has ended.
    Walk,
    /// Fetch everything below a path once; answer when that has ended.
    Warm {
        /// Where.
        below: Vec<u8>,
        /// A number of the command's choice, for [`Self::Warming`].
        ticket: u64,
    },
    /// How far is the [`Self::Warm`] with this number?
    Warming(u64),
    /// What of everything below a path is here?
    Check(Vec<u8>),
    /// Drop what is here of everything below a path, as far as the server has it and nobody uses it.
    Evict(Vec<u8>),
    /// Note what is opened by programs that have this number in their environment, until the command goes away.
    Record(u64),
    /// Has the [`Self::Record`] with this number begun?
    Recording(u64),
    /// Hoard what was noted by the [`Self::Record`] with this number, with this rank.
    EndRecord {
        /// Its number.
        ticket: u64,
        /// What it is worth.
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

/// What the daemon answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoardResponse {
    /// To [`HoardRequest::Add`].
    Added {
        /// Whether the server can be asked for it now.
        connected: bool,
        /// Whether anything is known at this path.
        known: bool,
    },
    /// To [`HoardRequest::Remove`]: whether there was such an entry.
    Removed(bool),
    /// To [`HoardRequest::List`].
    List(Vec<HoardEntry>),
    /// To [`HoardRequest::Walk`].
    Walked(HoardReport),
    /// To [`HoardRequest::Warm`] and [`HoardRequest::Check`].
    Warmed(Warmed),
    /// To [`HoardRequest::Warming`]; none if nobody waits with this number.
    Warming(Option<Warmed>),
    /// To [`HoardRequest::Evict`].
    Evicted(Evicted),
    /// To [`HoardRequest::Recording`].
    Recording(bool),
    /// To [`HoardRequest::EndRecord`], and to [`HoardRequest::Record`] if that cannot be; none if nothing is recorded
    /// with this number.
    Recorded(Option<Recorded>),
}
