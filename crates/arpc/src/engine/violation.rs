//! The ways to break the protocol: the one error of the engine.

use mafs_proto::Class;

/// How a peer broke the protocol. Ends the connection.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Violation {
    /// A frame that was damaged on its way.
    #[error("a frame was damaged on its way")]
    Damaged,
    /// A frame without a kind this version knows.
    #[error("a frame of an unknown kind")]
    UnknownKind,
    /// A class beyond the five.
    #[error("there is no class {0}")]
    UnknownClass(u32),
    /// Content above the limit.
    #[error("a frame with {0} bytes of content is too large")]
    TooLarge(usize),
    /// A Control frame that is not small and whole.
    #[error("a Control frame with {0} bytes that is too large or not whole")]
    LargeControl(usize),
    /// An acknowledgement from the future.
    #[error("an acknowledgement of bytes that were never sent")]
    AcknowledgedUnsent,
    /// More than the credit.
    #[error("more bytes of class {0:?} than the credit allows")]
    CreditOverrun(Class),
    /// A limit of the class that has none.
    #[error("a limit of Control, which has none")]
    LimitedControl,
    /// A limit in bytes per second that would be no sending at all.
    #[error("a limit of {0} bytes per second is too small")]
    SmallLimit(u64),
    /// A new call with an id of the wrong side, or of a call under way.
    #[error("a new call cannot have the id {0}")]
    InvalidId(u64),
    /// More calls than even a peer that ignores refusals would make.
    #[error("too many calls under way")]
    TooManyCalls,
    /// A frame that does not fit its call.
    #[error("a {frame} frame for call {id}, which expects none")]
    Unexpected {
        /// The kind of frame.
        frame: &'static str,
        /// The call it names.
        id: u64,
    },
}
