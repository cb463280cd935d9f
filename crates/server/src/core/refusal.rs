//! Refusal: the reason why the server does not do what a call asks, as it travels to the caller.
//!
//! The one error of core, volume and service: each of them ends in an answer on the wire, never in a panic.

use mafs_durable::KvError;
use mafs_proto::{FsError, Malformed};

/// An error for the caller: the number that programs act on, and a line for people.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{detail}")]
pub(crate) struct Refusal {
    pub(crate) error: FsError,
    pub(crate) detail: String,
    /// With `Pulling`: how much has been delivered so far. Otherwise 0.
    pub(crate) progress: u64,
}

impl Refusal {
    pub(crate) fn new(error: FsError, detail: impl Into<String>) -> Self {
        Self { error, detail: detail.into(), progress: 0 }
    }

    /// Makes the refusal of an index that holds what this server never writes.
    pub(crate) fn damaged(what: &str) -> Self {
        Self::new(FsError::VolumeDamaged, format!("the volume's index is damaged: {what}"))
    }
}

impl From<FsError> for Refusal {
    fn from(error: FsError) -> Self {
        Self::new(error, error.to_string())
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Self::new(FsError::Malformed, malformed.to_string())
    }
}

impl From<KvError> for Refusal {
    fn from(error: KvError) -> Self {
        let number = match error {
            KvError::Io(_) => FsError::Io,
            KvError::Damaged(_) => FsError::VolumeDamaged,
        };
        Self::new(number, error.to_string())
    }
}
