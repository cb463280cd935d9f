//! Errors of the file server, as they travel.

/// Declares the table once: variant, number, meaning.
macro_rules! fs_errors {
    ($($(#[doc = $doc:literal])+ $variant:ident = $number:literal $text:literal;)+) => {
        /// The reason why the file server refused a call. Numbers are never reused; an unknown one parses to
        /// `Unknown`.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
        pub enum FsError {
            $($(#[doc = $doc])+ #[error($text)] $variant,)+
            /// A number this build does not know, from a newer server.
            #[error("the server reports error {0}, which this version does not know")]
            Unknown(u32),
        }

        impl FsError {
            /// Every error with a name.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the number on the wire; 0 is success and no error has it.
            #[must_use]
            pub const fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)+
                    Self::Unknown(number) => number,
                }
            }

            /// Returns the error with this number.
            #[must_use]
            pub const fn from_number(number: u32) -> Self {
                match number {
                    $($number => Self::$variant,)+
                    other => Self::Unknown(other),
                }
            }
        }
    };
}

fs_errors! {
    /// No such name in the directory.
    NotFound = 1 "no such file or directory";
    /// The name is taken.
    Exists = 2 "the name exists";
    /// A directory was needed.
    NotDirectory = 3 "not a directory";
    /// Anything but a directory was needed.
    IsDirectory = 4 "is a directory";
    /// A directory to be removed or replaced has entries.
    NotEmpty = 5 "the directory is not empty";
    /// The object is gone.
    Stale = 6 "the object does not exist any more";
    /// The name means another object than the record says.
    NameChanged = 7 "the name means another object";
    /// The update was made from a version that is not the present one.
    BaseChanged = 8 "the file has been changed by another client";
    /// A directory would come to lie below itself.
    BelowItself = 9 "a directory cannot be moved below itself";
    /// Too many hard links.
    TooManyLinks = 10 "too many links";
    /// Link or rename across volumes.
    CrossVolume = 11 "the objects are on different volumes";
    /// The operation makes no sense for this kind of object.
    WrongKind = 12 "wrong kind of object for this operation";
    /// The file would be too large.
    TooLarge = 13 "the file is too large";
    /// The server's disk is full.
    NoSpace = 14 "no space left on the server";
    /// The volume's quota is used up.
    Quota = 15 "the volume's quota is used up";
    /// The volume takes no changes.
    ReadOnly = 16 "the volume is read-only";
    /// No client may do this.
    Denied = 17 "permission denied";
    /// The server's disk failed.
    Io = 18 "input/output error on the server";
    /// The message breaks the protocol.
    Malformed = 19 "the peer sent a malformed message";
    /// The peers have no protocol version in common.
    ProtocolMismatch = 20 "the peers speak different protocol versions";
    /// No volume of that name.
    NoVolume = 21 "no such volume";
    /// The volume's data is damaged; it does not serve.
    VolumeDamaged = 23 "the volume is damaged";
    /// The call needs an attach, and there is none, or a later one replaced it.
    NotAttached = 24 "not attached, or replaced by a later attach";
    /// The fid was not granted to this client, or is used up.
    FidNotGranted = 25 "the fid was not granted to this client";
    /// The StoreId has been used for another record.
    StoreIdReused = 26 "the record's id has been used for another record";
    /// A bound is reached; trying again later may help.
    Busy = 27 "the server is busy";
    /// The call is unknown to this server.
    NoMethod = 28 "the server does not know this call";
    /// The version asked for is gone.
    VersionGone = 29 "that version of the file is gone";
    /// The server is going down.
    ShuttingDown = 30 "the server is shutting down";
    /// The object has no extended attribute of that name.
    NoXattr = 31 "no such extended attribute";
    /// The part of the content that the client does not send is not at the server (any more).
    NotKept = 32 "the server does not have the part of the content that was sent before";
    /// An announced update is on its way from the client that has it: ask again.
    Pulling = 33 "the newest version is on its way from another client";
    /// Another holder has a lock there, or is to have it first. A client that waits for it asks again.
    Locked = 34 "the range is locked";
    /// A program that waited here would wait for itself.
    Deadlock = 35 "a deadlock is avoided";
    /// A client, or all clients of a volume, have as many locks as they may.
    TooManyLocks = 36 "too many locks";
    /// The lock in the way is the client's own, which gives it up, and nobody else is to have it first.
    LockedByOwn = 37 "another program of this client has the range locked";
    /// The content that arrived has another hash than the content that was sent, which is to be sent again.
    Damaged = 38 "a content was damaged on its way to the server";
}

impl FsError {
    /// Whether the server has no room for the sent data.
    #[must_use]
    pub const fn is_for_want_of_room(self) -> bool {
        matches!(self, Self::NoSpace | Self::Quota)
    }

    /// Whether the same call may be answered otherwise later, though nobody changes it: a record that waits in a log is
    /// sent again after such a refusal.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        match self {
            Self::NoSpace
            | Self::Quota
            | Self::ReadOnly
            | Self::Io
            | Self::Busy
            | Self::ShuttingDown
            | Self::Damaged => true,
            Self::NotFound
            | Self::Exists
            | Self::NotDirectory
            | Self::IsDirectory
            | Self::NotEmpty
            | Self::Stale
            | Self::NameChanged
            | Self::BaseChanged
            | Self::BelowItself
            | Self::TooManyLinks
            | Self::CrossVolume
            | Self::WrongKind
            | Self::TooLarge
            | Self::Denied
            | Self::Malformed
            | Self::ProtocolMismatch
            | Self::NoVolume
            | Self::VolumeDamaged
            | Self::NotAttached
            | Self::FidNotGranted
            | Self::StoreIdReused
            | Self::NoMethod
            | Self::VersionGone
            | Self::NoXattr
            | Self::NotKept
            | Self::Pulling
            | Self::Locked
            | Self::Deadlock
            | Self::TooManyLocks
            | Self::LockedByOwn
            | Self::Unknown(_) => false,
        }
    }

    /// Whether changes of others stand against a record: its effect may be kept beside them.
    #[must_use]
    pub const fn is_conflict(self) -> bool {
        matches!(
            self,
            Self::NotFound
                | Self::Exists
                | Self::NotDirectory
                | Self::IsDirectory
                | Self::NotEmpty
                | Self::Stale
                | Self::NameChanged
                | Self::BaseChanged
                | Self::BelowItself
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_unique_and_round_trips() {
        let mut seen = std::collections::BTreeSet::from([0]);
        for error in FsError::ALL {
            assert!(seen.insert(error.number()), "{error:?}");
            assert_eq!(FsError::from_number(error.number()), *error);
        }
        assert_eq!(FsError::from_number(9999), FsError::Unknown(9999));
    }
}
