//! Errors of calls to the server.

use mafs_proto::{FsError, Malformed};

/// The reason why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RemoteError {
    /// The server refused; its message repeats the reason with more detail, or is empty.
    #[error("{}", if .message.is_empty() { .error.to_string() } else { .message.clone() })]
    Refused {
        /// The reason.
        error: FsError,
        /// More about it, for people.
        message: String,
    },
    /// Another client has announced an update that was asked for, and has not sent it in time; the transfer goes on.
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
    /// The server is known to be out of reach, so the call has not waited for it.
    #[error("{0}")]
    OutOfReach(String),
    /// The user has disconnected by hand, so the call has not waited for the server.
    #[error("disconnected by hand: `mafs-client reconnect` ends that")]
    ByHand,
}

impl RemoteError {
    pub(crate) fn refused(error: FsError, message: &str) -> Self {
        Self::Refused { error, message: message.to_owned() }
    }

    /// Whether the server has given no answer.
    pub(crate) fn is_unanswered(&self) -> bool {
        !matches!(self, Self::Refused { .. })
    }

    /// Whether another attempt may succeed without any repair.
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
