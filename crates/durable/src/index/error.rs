//! Reasons why a logged index cannot go on.

use crate::{KvError, LogError, Lsn};

/// Reason why a [`LoggedIndex`](crate::LoggedIndex) cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LoggedIndexError {
    /// The journal is damaged before its tail. Nothing was changed.
    #[error("the journal is damaged in segment {segment} at byte {offset}: {why}")]
    Damaged {
        /// File name of the segment.
        segment: String,
        /// Position in it.
        offset: u64,
        /// The kind of damage.
        why: String,
    },
    /// A journal record is whole but no batch: another program wrote it.
    #[error("journal record {lsn} makes no sense: {why}")]
    Malformed {
        /// Its number.
        lsn: Lsn,
        /// The fault of the record.
        why: String,
    },
    /// The index has to be rebuilt and there is nothing to do it from.
    #[error("the index is lost: there is no good checkpoint, and the journal begins only at record {first}")]
    Unrecoverable {
        /// The journal's oldest record.
        first: Lsn,
    },
    /// Records are missing that a checkpoint shows were there. Nothing was changed.
    #[error("the journal ends before record {next}, but there is a checkpoint at record {checkpoint}")]
    Shortened {
        /// The number after the journal's newest record.
        next: Lsn,
        /// The position of the checkpoint.
        checkpoint: Lsn,
    },
    /// An earlier failure left it unknown what is durable; open again.
    #[error("the journal or its index failed before; it must be opened again")]
    Poisoned,
    /// A batch is too large, or a key or value in it. Nothing was written.
    #[error("the batch cannot be logged: {0}")]
    Refused(String),
    /// The journal no longer goes back that far.
    #[error("the journal begins at record {first}")]
    Gone {
        /// The oldest record there is.
        first: Lsn,
    },
    /// The disk failed or is full.
    #[error("the journal or a checkpoint cannot be read or written: {0}")]
    Io(#[from] std::io::Error),
    /// The index failed.
    #[error(transparent)]
    Index(#[from] KvError),
}

impl From<LogError> for LoggedIndexError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Damaged { segment, offset, why } => Self::Damaged { segment, offset, why },
            LogError::Poisoned => Self::Poisoned,
            LogError::TooLong { bytes } => Self::Refused(format!("it takes {bytes} bytes")),
            LogError::Gone { first } => Self::Gone { first },
            LogError::Io(error) => Self::Io(error),
        }
    }
}
