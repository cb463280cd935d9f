//! Status: what `stat` shows of an object, and its versions.

use crate::{DataVersion, Fid, Name, StatusVersion, SymlinkTarget, Timestamp};

/// The type of an object; it never changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A UNIX socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// Permission, set-id and sticky bits: at most 0o7777.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mode(u16);

impl Mode {
    /// Keeps the permission bits of a `st_mode`-like number and drops the type bits.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "12 bits remain")]
    pub const fn from_bits(bits: u32) -> Self {
        Self((bits & 0o7777) as u16)
    }

    /// `None` if bits above 0o7777 are set.
    #[must_use]
    pub fn parse(bits: u32) -> Option<Self> {
        (bits <= 0o7777).then(|| Self::from_bits(bits))
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }
}

/// Attributes and versions of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The type.
    pub kind: Kind,
    /// Permissions.
    pub mode: Mode,
    /// Hard links; of a directory 2 plus its subdirectories. 0: removed.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Bytes of a file or symlink target; of a directory the number of its entries.
    pub size: u64,
    /// Device number, of devices only.
    pub rdev: u64,
    /// Last access: set by utimens(2) and by creation only (`noatime`).
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of the status.
    pub ctime: Timestamp,
    /// Creation.
    pub crtime: Timestamp,
    /// Which content this is the status of.
    pub data_version: DataVersion,
    /// Counts changes of this status.
    pub status_version: StatusVersion,
    /// The change of status that last changed the extended attributes; `None`: there are none. Equality decides whether
    /// cached ones are current.
    pub xattrs: Option<StatusVersion>,
}

/// An object as clients cache it: fid, status, and the target of a symlink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// Its name for ever.
    pub fid: Fid,
    /// Its attributes.
    pub status: Status,
    /// Present exactly for symlinks.
    pub target: Option<SymlinkTarget>,
}

/// One entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name in the directory.
    pub name: Name,
    /// What it names.
    pub object: Object,
}
