//! Errors of operations.

use mafs_proto::FsError;

use crate::cache::CacheError;
use crate::remote::RemoteError;

/// Reason why an operation of the file system failed. `fuse::errno` maps each to one errno.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The server, or the cache in its place, refuses.
    #[error("{0}")]
    Refused(#[from] FsError),
    /// The server was never reached since the mount.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// No answer, or no progress, within the deadline.
    #[error("no answer from the server within the deadline: {0}")]
    TimedOut(String),
    /// The server is known to be out of reach, so nobody has waited for it.
    #[error("the server is out of reach: {0}")]
    OutOfReach(String),
    /// The server is out of reach because the user wants it so.
    #[error("disconnected by hand: `mafs-client reconnect` ends that")]
    ByHand,
    /// The name is longer than 255 bytes, or a target longer than 4,095.
    #[error("the name is too long")]
    NameTooLong,
    /// The name cannot be a name, or an argument makes no sense.
    #[error("invalid argument: {0}")]
    Invalid(String),
    /// The handle or inode is not one of ours.
    #[error("bad file handle")]
    BadHandle,
    /// The disk of the cache is full.
    #[error("the disk of the cache is full")]
    CacheFull,
    /// The disk of the cache failed.
    #[error("the cache cannot be read or written: {0}")]
    Cache(String),
    /// The content at the server, or what arrived of it, is not what was stored.
    #[error("{0}")]
    Damaged(String),
    /// The content that was being read is gone from the server.
    #[error("the version being read is gone from the server")]
    VersionGone,
    /// The caller was killed while waiting.
    #[error("interrupted")]
    Interrupted,
    /// The operation does not exist here.
    #[error("not supported")]
    Unsupported,
    /// A seek found no data, or began behind the end.
    #[error("no data or hole at or behind this offset")]
    NoSuchOffset,
    /// A program that runs cannot be cut.
    #[error("the file is being executed")]
    Executing,
    /// The mount is read-only.
    #[error("the mount is read-only")]
    ReadOnly,
    /// Nobody may do that.
    #[error("not permitted")]
    NotPermitted,
    /// Nobody can grant a lock now.
    #[error("no lock can be granted: the server is out of reach, or there are too many")]
    NoLocks,
    /// A lock that was taken through this open file does not hold any more.
    #[error("a lock was lost while the server was out of reach")]
    LockLost,
}

impl Error {
    /// Turns an error into that of an operation on names: what somebody has removed meanwhile, the directory or what
    /// was in it, does not exist. The kernel looks at an inode of its own before, and would pass `Stale` on to the
    /// program.
    pub(super) fn of_names(self) -> Self {
        match self {
            Self::Refused(FsError::Stale) => Self::Refused(FsError::NotFound),
            other => other,
        }
    }

    /// Returns whether the server was not asked, or has not answered.
    pub(super) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::TimedOut(_) | Self::OutOfReach(_) | Self::ByHand)
    }

    /// Returns whether trying again later may help.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Refused(error) => super::storing::may_pass(*error),
            Self::Unreachable(_)
            | Self::TimedOut(_)
            | Self::OutOfReach(_)
            | Self::ByHand
            | Self::CacheFull
            | Self::Cache(_) => true,
            Self::NameTooLong
            | Self::Invalid(_)
            | Self::BadHandle
            | Self::Damaged(_)
            | Self::VersionGone
            | Self::Interrupted
            | Self::Unsupported
            | Self::NoSuchOffset
            | Self::Executing
            | Self::ReadOnly
            | Self::NotPermitted
            | Self::NoLocks
            | Self::LockLost => false,
        }
    }
}

/// Returns whether a refusal says that the server has no time now, and nothing about what it was asked.
pub(super) fn is_busy(reason: FsError) -> bool {
    matches!(reason, FsError::Busy | FsError::ShuttingDown)
}

impl From<RemoteError> for Error {
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::Refused { error: FsError::VersionGone, .. } => Self::VersionGone,
            RemoteError::Refused { error, message } => {
                if !message.is_empty() {
                    tracing::debug!(%error, message, "the server refused");
                }
                Self::Refused(error)
            }
            RemoteError::Pulling { .. } => Self::TimedOut(error.to_string()),
            RemoteError::Unreachable(why) => Self::Unreachable(why),
            RemoteError::TimedOut(why) => Self::TimedOut(why),
            RemoteError::OutOfReach(why) => Self::OutOfReach(why),
            RemoteError::ByHand => Self::ByHand,
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::CacheFull,
            std::io::ErrorKind::FileTooLarge => Self::Refused(FsError::TooLarge),
            // The file system of the cache lacks the operation.
            std::io::ErrorKind::Unsupported => Self::Unsupported,
            _ => Self::Cache(error.to_string()),
        }
    }
}

impl From<CacheError> for Error {
    fn from(error: CacheError) -> Self {
        match error {
            CacheError::Io(error)
            | CacheError::Index(mafs_durable::KvError::Io(error))
            | CacheError::Log(mafs_durable::LogError::Io(error)) => error.into(),
            CacheError::Index(_) | CacheError::Log(_) | CacheError::OtherServer(_) | CacheError::Damaged(_) => {
                Self::Cache(error.to_string())
            }
        }
    }
}
