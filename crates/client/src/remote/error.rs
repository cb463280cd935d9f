//! Why the server did not do what it was asked.

use mafs_proto::{FsError, Malformed};

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RemoteError {
    /// The server refused; its message says the reason again with more of it, or is empty.
    #[error("{}", if .message.is_empty() { .error.to_string() } else { .message.clone() })]
    Refused {
        /// The reason.
        error: FsError,
        /// More about it, for people.
        message: String,
    },
    /// Another client has announced what was asked for and has not brought it in time; what it brings goes on.
    #[error("another client has not sent yet what was asked for")]
    Pulling {
        /// Rises as long as something arrives.
        progress: u64,
    },
    /// There is no connection, and none can be made.
    #[error("{0}")]
    Unreachable(String),
    /// No answer within the deadline.
    #[error("{0}")]
    TimedOut(String),
    /// The server is known to be out of reach, so nobody has waited for it.
    #[error("{0}")]
    OutOfReach(String),
    /// The same, because the user wants it so.
    #[error("disconnected by hand: `mafs-client reconnect` ends that")]
    ByHand,
}

impl RemoteError {
    pub(crate) fn refused(error: FsError, message: &str) -> Self {
        Self::Refused { error, message: message.to_owned() }
    }

    /// Whether the server has said nothing.
    pub(crate) fn is_unanswered(&self) -> bool {
        !matches!(self, Self::Refused { .. })
    }

    /// Whether another attempt may succeed although nobody does anything about it.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Refused { error, .. } => matches!(error, FsError::Busy | FsError::ShuttingDown),
            Self::Pulling { .. } | Self::Unreachable(_) | Self::TimedOut(_) | Self::OutOfReach(_) | Self::ByHand => {
                true
            }
        }
    }

    pub(crate) fn malformed(why: &Malformed) -> Self {
        Self::refused(
            FsError::Malformed,
            &format!("the server's answer makes no sense ({why}): is it of another version?"),
        )
    }
}
