//! How calls and payloads fail, as users of the crate see it.

use std::time::Duration;

/// The reason why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// The deadline passed.
    #[error("no answer within {0:?}")]
    DeadlineExceeded(Duration),
    /// This end cancelled the call.
    #[error("the call was cancelled")]
    Cancelled,
    /// The connection ended; whether the call took effect is not known.
    #[error("the connection ended: {0}")]
    Disconnected(String),
    /// The request is larger than a body may be.
    #[error("a request of {0} bytes is too large")]
    TooLarge(usize),
    /// The peer has too many calls under way.
    #[error("the peer has too many calls under way")]
    Busy,
}

/// The reason why a payload ended early.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PayloadError {
    /// The sender gave up: the bytes so far are not the whole.
    #[error("the sender cut the payload short: {0}")]
    Aborted(String),
    /// The connection, or the call, ended.
    #[error("the call ended before its payload: {0}")]
    CallEnded(String),
}
