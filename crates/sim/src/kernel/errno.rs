//! Errors that programs are told of, in the numbers of Linux, as `fuse/errno.rs` of the client has them.

use std::fmt;
use std::io;

use mafs_client::vfs::Error;
use mafs_proto::FsError;

/// Why a system call has failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Errno(pub i32);

impl Errno {
    /// There is no such name.
    pub const NOENT: Self = Self(2);
    /// The file system has failed.
    pub const IO: Self = Self(5);
    /// No such descriptor, or not one for that.
    pub const BADF: Self = Self(9);
    /// The call is not allowed.
    pub const ACCES: Self = Self(13);
    /// Something else is under way with the object.
    pub const BUSY: Self = Self(16);
    /// The name exists.
    pub const EXIST: Self = Self(17);
    /// Not a directory.
    pub const NOTDIR: Self = Self(20);
    /// A directory.
    pub const ISDIR: Self = Self(21);
    /// The call makes no sense.
    pub const INVAL: Self = Self(22);
    /// The disk is full.
    pub const NOSPC: Self = Self(28);
    /// There is no such attribute.
    pub const NODATA: Self = Self(61);
    /// The directory is not empty.
    pub const NOTEMPTY: Self = Self(39);
    /// The daemon is gone.
    pub const NOTCONN: Self = Self(107);
    /// Nobody has answered.
    pub const TIMEDOUT: Self = Self(110);
    /// The object is not what the kernel has known.
    pub const STALE: Self = Self(116);
}

impl Errno {
    /// Everything that a client may have said for a program to be told this.
    #[must_use]
    pub fn causes(self) -> Vec<Error> {
        match self {
            Self::NOENT => vec![Error::Refused(FsError::NotFound)],
            Self::BUSY => vec![Error::Refused(FsError::Busy)],
            Self::EXIST => vec![Error::Refused(FsError::Exists)],
            Self::INVAL => vec![Error::Refused(FsError::WrongKind)],
            Self::NOSPC => vec![Error::Refused(FsError::NoSpace), Error::CacheFull],
            Self::NOTEMPTY => vec![Error::Refused(FsError::NotEmpty)],
            Self::TIMEDOUT => vec![Error::TimedOut("a kernel was told nothing".to_owned())],
            Self::STALE => vec![Error::Refused(FsError::Stale), Error::Refused(FsError::NameChanged)],
            other => vec![Error::Invalid(format!("a kernel says {other:?}"))],
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", io::Error::from_raw_os_error(self.0))
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(refusal) => of_refusal(refusal),
            Error::Unreachable(_) | Error::TimedOut(_) | Error::OutOfReach(_) => Self::TIMEDOUT,
            Error::Invalid(_) => Self::INVAL,
            Error::BadHandle => Self::BADF,
            Error::CacheFull => Self::NOSPC,
            _ => Self::IO,
        }
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::StorageFull { Self::NOSPC } else { Self::IO }
    }
}

fn of_refusal(refusal: FsError) -> Errno {
    match refusal {
        FsError::NotFound => Errno::NOENT,
        FsError::Denied => Errno::ACCES,
        FsError::Exists => Errno::EXIST,
        FsError::NotDirectory => Errno::NOTDIR,
        FsError::IsDirectory => Errno::ISDIR,
        FsError::NotEmpty => Errno::NOTEMPTY,
        FsError::Stale | FsError::NameChanged => Errno::STALE,
        FsError::BelowItself | FsError::WrongKind => Errno::INVAL,
        FsError::NoSpace => Errno::NOSPC,
        FsError::Busy => Errno::BUSY,
        FsError::NoXattr => Errno::NODATA,
        FsError::Pulling => Errno::TIMEDOUT,
        _ => Errno::IO,
    }
}
