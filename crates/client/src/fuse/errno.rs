//! The only table of errnos, which applications are told. No arm matches several errors by accident, because none is
//! `_`.

use fuser::Errno;
use mafs_proto::FsError;

use crate::vfs::Error;

/// Answers flags that no operation of `vfs` stands for.
pub(super) const INVALID: Errno = Errno::EINVAL;

/// Answers modes of an operation that exist on other file systems only.
pub(super) const UNSUPPORTED: Errno = Errno::EOPNOTSUPP;

/// Answers requests that the kernel need not send again as long as the mount lives.
pub(super) const NEEDLESS: Errno = Errno::ENOSYS;

/// Replaces answers that are longer than the room the caller has for them.
pub(super) const TOO_SMALL: Errno = Errno::ERANGE;

/// Answers the opening of a file, to be made if there was none, that another client has made since the kernel looked.
/// Path walks answer this with a second try, in which the kernel asks for every name, and opens what is there.
pub(super) const STALE: Errno = Errno::ESTALE;

/// Returns the errno of a failed operation. Logs an error that a program only sees as EIO.
pub(super) fn errno(error: &Error) -> Errno {
    let errno = errno_of(error);
    if errno == Errno::EIO {
        tracing::warn!(%error, "a program is told of an input/output error");
    }
    errno
}

fn errno_of(error: &Error) -> Errno {
    match error {
        Error::Refused(refusal) => errno_of_refusal(*refusal),
        Error::Unreachable(_) => Errno::EHOSTUNREACH,
        Error::TimedOut(_) | Error::OutOfReach(_) => Errno::ETIMEDOUT,
        Error::ByHand => Errno::ENETDOWN,
        Error::NameTooLong => Errno::ENAMETOOLONG,
        Error::Invalid(_) => Errno::EINVAL,
        Error::BadHandle => Errno::EBADF,
        Error::CacheFull => Errno::ENOSPC,
        Error::Cache(_) | Error::Damaged(_) => Errno::EIO,
        // Not ESTALE: path walks answer that one with a second try, but here content is gone, not a name.
        Error::VersionGone => Errno::EIO,
        Error::Interrupted => Errno::EINTR,
        // Never ENOSYS: the kernel would not send that operation again as long as the mount lives.
        Error::Unsupported => Errno::EOPNOTSUPP,
        Error::NoSuchOffset => Errno::ENXIO,
        Error::Executing => Errno::ETXTBSY,
        Error::ReadOnly => Errno::EROFS,
        Error::NotPermitted => Errno::EPERM,
        Error::NoLocks => Errno::ENOLCK,
        // Another program may have changed the locked bytes: the program must not go on as if it had not.
        Error::LockLost => Errno::EIO,
    }
}

fn errno_of_refusal(refusal: FsError) -> Errno {
    match refusal {
        FsError::NotFound => Errno::ENOENT,
        FsError::Exists => Errno::EEXIST,
        FsError::NotDirectory => Errno::ENOTDIR,
        FsError::IsDirectory => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::Stale => Errno::ESTALE,
        // The kernel walks the path once more, and so gets the object the name means now.
        FsError::NameChanged => Errno::ESTALE,
        // The update was not taken. ESTALE would say that the file is gone; it is not.
        FsError::BaseChanged => Errno::EIO,
        FsError::BelowItself => Errno::EINVAL,
        FsError::TooManyLinks => Errno::EMLINK,
        FsError::CrossVolume => Errno::EXDEV,
        FsError::WrongKind => Errno::EINVAL,
        FsError::TooLarge => Errno::EFBIG,
        FsError::NoSpace => Errno::ENOSPC,
        FsError::Quota => Errno::EDQUOT,
        FsError::ReadOnly => Errno::EROFS,
        FsError::Denied => Errno::EACCES,
        FsError::Io => Errno::EIO,
        // The two ends do not understand each other: an application could do nothing differently.
        FsError::Malformed | FsError::ProtocolMismatch => Errno::EPROTO,
        // The whole file system is not there; ENOENT would say that a file is not.
        FsError::NoVolume => Errno::ENODEV,
        FsError::VolumeDamaged => Errno::EIO,
        // The content has not come for as long as people wait.
        FsError::Pulling => Errno::ETIMEDOUT,
        // Not ENOTCONN: that is how the kernel says that the daemon is dead.
        FsError::NotAttached => Errno::EIO,
        // Faults of this client, which the server was right to refuse.
        FsError::FidNotGranted | FsError::StoreIdReused => Errno::EIO,
        FsError::Busy => Errno::EBUSY,
        // Not ENOSYS, as for `Unsupported`.
        FsError::NoMethod => Errno::EOPNOTSUPP,
        FsError::VersionGone => Errno::EIO,
        FsError::ShuttingDown => Errno::EHOSTDOWN,
        FsError::NoXattr => Errno::ENODATA,
        // The client sends all of it then.
        FsError::NotKept | FsError::Damaged => Errno::EIO,
        FsError::Locked | FsError::LockedByOwn => Errno::EAGAIN,
        FsError::Deadlock => Errno::EDEADLK,
        FsError::TooManyLocks => Errno::ENOLCK,
        FsError::Unknown(_) => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_switches_an_operation_off() {
        for refusal in FsError::ALL {
            assert_ne!(errno(&Error::Refused(*refusal)).code(), Errno::ENOSYS.code(), "{refusal:?}");
        }
        assert_ne!(errno(&Error::Unsupported).code(), Errno::ENOSYS.code());
    }

    #[test]
    fn only_a_missing_name_is_a_missing_name() {
        let missing: Vec<_> = FsError::ALL
            .iter()
            .filter(|error| errno(&Error::Refused(**error)).code() == Errno::ENOENT.code())
            .collect();
        assert_eq!(missing, [&FsError::NotFound]);
        for error in [
            Error::Unreachable(String::new()),
            Error::TimedOut(String::new()),
            Error::OutOfReach(String::new()),
            Error::ByHand,
            Error::VersionGone,
        ] {
            assert_ne!(errno(&error).code(), Errno::ENOENT.code(), "could not ask is never does not exist");
        }
    }
}
