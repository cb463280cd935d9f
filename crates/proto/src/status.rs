//! Status of an object: the attributes that `stat` shows, and versions.

use crate::{DataVersion, Fid, Name, SetAttr, StatusVersion, SymlinkTarget, Timestamp};

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

    /// Checks the bits; `None` if bits above 0o7777 are set.
    #[must_use]
    pub fn parse(bits: u32) -> Option<Self> {
        (bits <= 0o7777).then(|| Self::from_bits(bits))
    }

    /// Returns the bits.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Drops the bits that lend the rights of owner and group to a user that executes the file: set-user-id, and
    /// set-group-id where the group may execute. They go when a file changes, or its owner (Linux,
    /// `setattr_should_drop_suidgid`).
    #[must_use]
    pub const fn without_set_id(self) -> Self {
        const SET_USER_ID: u16 = 0o4000;
        const SET_GROUP_ID: u16 = 0o2000;
        const GROUP_EXECUTES: u16 = 0o0010;
        match self.0 & GROUP_EXECUTES {
            0 => Self(self.0 & !SET_USER_ID),
            _ => Self(self.0 & !(SET_USER_ID | SET_GROUP_ID)),
        }
    }
}

/// Attributes and versions of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The type.
    pub kind: Kind,
    /// Permissions.
    pub mode: Mode,
    /// Hard links; for a directory 2 plus its subdirectories. 0: removed.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Bytes of a file or symlink target; for a directory the number of its entries.
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
    /// The content to which this status belongs.
    pub data_version: DataVersion,
    /// Counts changes of this status.
    pub status_version: StatusVersion,
    /// The change of status that last changed the extended attributes; `None`: there are none. Equality decides whether
    /// cached ones are current.
    pub xattrs: Option<StatusVersion>,
}

impl Status {
    /// The most hard links of an object, and subdirectories of a directory: as on ext4.
    pub const LINKS_MAX: u32 = 65_000;

    /// Changes attributes as [`crate::CmlOp::SetAttr`] does. A change of owner or group drops a file's set-id bits
    /// (chown(2)).
    pub fn set(&mut self, set: &SetAttr) {
        let drops_set_id = set.gives_away() && self.kind != Kind::Directory;
        let mode = if drops_set_id { self.mode.without_set_id() } else { self.mode };
        self.mode = set.mode.unwrap_or(mode);
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        self.atime = set.atime.unwrap_or(self.atime);
        self.mtime = set.mtime.unwrap_or(self.mtime);
    }
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
    /// The object that it names.
    pub object: Object,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;

    #[test]
    fn two_changes_of_attributes_do_what_their_fold_does() {
        let time = Timestamp::default();
        let status = |kind| Status {
            kind,
            mode: Mode::from_bits(0o6755),
            nlink: 1,
            uid: 1,
            gid: 1,
            size: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            data_version: DataVersion(1),
            status_version: StatusVersion(1),
            xattrs: None,
        };
        let none = SetAttr::default();
        let sets = [
            SetAttr { mode: Some(Mode::from_bits(0o4711)), ..none },
            SetAttr { uid: Some(7), ..none },
            SetAttr { gid: Some(8), mode: Some(Mode::from_bits(0o2755)), ..none },
            none,
        ];
        for kind in [Kind::File, Kind::Directory] {
            for (first, second) in sets.iter().flat_map(|first| sets.iter().map(move |second| (first, second))) {
                let (mut one_by_one, mut folded) = (status(kind), status(kind));
                one_by_one.set(first);
                one_by_one.set(second);
                folded.set(&first.then(second, kind));
                assert_eq!(one_by_one, folded, "{first:?} {second:?}");
            }
        }
    }

    #[test]
    fn set_group_id_stays_where_the_group_cannot_execute() {
        let without = |bits| Mode::from_bits(bits).without_set_id().bits();
        assert_eq!([0o4755, 0o2755, 0o6755, 0o1777].map(without), [0o755, 0o755, 0o755, 0o1777]);
        assert_eq!([0o2745, 0o6666].map(without), [0o2745, 0o2666]);
    }
}
