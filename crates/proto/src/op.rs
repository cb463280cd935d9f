//! Mutations: the records of the modify log, the same on disk and on the wire.

use crate::{
    DataVersion, Fid, Kind, Mode, Name, Purpose, StoreId, SymlinkTarget, Timestamp, XattrMode, XattrName, XattrValue,
};

/// A record: one mutation with everything that is needed to apply it exactly once, at any time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CmlRecord {
    /// Its name, never used for anything else.
    pub id: StoreId,
    /// Records that must be applied before it; at most [`CmlRecord::DEPENDS_ON_MAX`].
    pub depends_on: Vec<StoreId>,
    /// The client's wall clock at the operation: the ctime and mtime it causes.
    pub time: Timestamp,
    /// The caller's user, owner of what is created.
    pub uid: u32,
    /// The caller's group.
    pub gid: u32,
    /// The known state of the object that loses a name by the record: a content that others have stored there
    /// meanwhile stays. `None`: any content may go.
    pub removes: Option<Removed>,
    /// The operation.
    pub op: CmlOp,
}

impl CmlRecord {
    /// The most records one may depend on.
    pub const DEPENDS_ON_MAX: usize = 1024;
}

/// The object that loses a name, as its client knew it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removed {
    /// The version of its content.
    pub version: DataVersion,
    /// Whether the server could not be asked.
    pub alone: bool,
}

/// The operation of a mutation. Names are as in Coda's client modify log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CmlOp {
    /// Makes a file, pipe, socket or device. The name must be free.
    Create {
        /// Directory.
        parent: Fid,
        /// Name in it.
        name: Name,
        /// The new object, from a range granted to the client.
        fid: Fid,
        /// The type; neither directory nor symlink.
        kind: Kind,
        /// Permissions.
        mode: Mode,
        /// Device number, of devices only.
        rdev: u64,
    },
    /// Makes a directory. The name must be free.
    MakeDir {
        /// Directory.
        parent: Fid,
        /// Name in it.
        name: Name,
        /// The new object, from a range granted to the client.
        fid: Fid,
        /// Permissions.
        mode: Mode,
    },
    /// Makes a symbolic link. The name must be free.
    SymLink {
        /// Directory.
        parent: Fid,
        /// Name in it.
        name: Name,
        /// The new object, from a range granted to the client.
        fid: Fid,
        /// The target of the link.
        target: SymlinkTarget,
    },
    /// Gives an object that is not a directory another name. The name must be free.
    Link {
        /// Directory.
        parent: Fid,
        /// Name in it.
        name: Name,
        /// The object.
        fid: Fid,
    },
    /// Removes a name of an object that is not a directory.
    Remove {
        /// Directory.
        parent: Fid,
        /// Name in it.
        name: Name,
        /// The object that the name must mean.
        fid: Fid,
    },
    /// Removes an empty directory.
    RemoveDir {
        /// Directory.
        parent: Fid,
        /// Name in it.
        name: Name,
        /// The object that the name must mean.
        fid: Fid,
    },
    /// Moves a name.
    Rename {
        /// Directory it leaves.
        from_parent: Fid,
        /// Name it loses.
        from_name: Name,
        /// Directory it enters.
        to_parent: Fid,
        /// Name it gets.
        to_name: Name,
        /// The object that moves.
        fid: Fid,
        /// The object that the target name must mean; `None`: the name must be free.
        replaced: Option<Fid>,
        /// The treatment of the target.
        mode: RenameMode,
    },
    /// Changes attributes.
    SetAttr {
        /// The object.
        fid: Fid,
        /// The attributes to change.
        set: SetAttr,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// The object.
        fid: Fid,
        /// The attribute.
        name: XattrName,
        /// Its new value.
        value: XattrValue,
        /// Whether the attribute may exist.
        mode: XattrMode,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// The object.
        fid: Fid,
        /// The attribute; it must exist.
        name: XattrName,
    },
    /// Replaces the whole content of a file; the content comes as payload.
    Store {
        /// The file.
        fid: Fid,
        /// The content the new one was made from.
        base: Base,
        /// Bytes of the payload.
        size: u64,
        /// The file's new mtime.
        mtime: Timestamp,
    },
}

impl CmlOp {
    /// Lists the names that the operation finds, in their directories, with the objects that they must mean.
    pub fn found_names(&self) -> impl Iterator<Item = (Fid, &Name, Fid)> {
        let (found, replaced) = match self {
            Self::Remove { parent, name, fid } | Self::RemoveDir { parent, name, fid } => {
                (Some((*parent, name, *fid)), None)
            }
            Self::Rename { from_parent, from_name, to_parent, to_name, fid, replaced, .. } => {
                (Some((*from_parent, from_name, *fid)), replaced.map(|replaced| (*to_parent, to_name, replaced)))
            }
            Self::Create { .. }
            | Self::MakeDir { .. }
            | Self::SymLink { .. }
            | Self::Link { .. }
            | Self::SetAttr { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::Store { .. } => (None, None),
        };
        found.into_iter().chain(replaced)
    }

    /// Returns the name that the operation makes where there must be none, with its directory.
    #[must_use]
    pub const fn made_name(&self) -> Option<(Fid, &Name)> {
        match self {
            Self::Create { parent, name, .. }
            | Self::MakeDir { parent, name, .. }
            | Self::SymLink { parent, name, .. }
            | Self::Link { parent, name, .. }
            | Self::Rename { to_parent: parent, to_name: name, mode: RenameMode::NoReplace, .. } => {
                Some((*parent, name))
            }
            Self::Rename { .. }
            | Self::Remove { .. }
            | Self::RemoveDir { .. }
            | Self::SetAttr { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::Store { .. } => None,
        }
    }

    /// Returns the object that the operation makes.
    #[must_use]
    pub const fn made(&self) -> Option<Fid> {
        match self {
            Self::Create { fid, .. } | Self::MakeDir { fid, .. } | Self::SymLink { fid, .. } => Some(*fid),
            Self::Link { .. }
            | Self::Rename { .. }
            | Self::Remove { .. }
            | Self::RemoveDir { .. }
            | Self::SetAttr { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::Store { .. } => None,
        }
    }

    /// Returns the purpose of the operation's call, unless the call is forced.
    #[must_use]
    pub fn purpose(&self) -> Purpose {
        match self {
            Self::Store { .. } => Purpose::Store,
            Self::Remove { .. } | Self::RemoveDir { .. } => Purpose::Remove,
            Self::Create { .. }
            | Self::MakeDir { .. }
            | Self::SymLink { .. }
            | Self::Link { .. }
            | Self::Rename { .. }
            | Self::SetAttr { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. } => Purpose::Change,
        }
    }

    /// Returns the object the operation is about.
    #[must_use]
    pub fn fid(&self) -> Fid {
        match self {
            Self::Create { fid, .. }
            | Self::MakeDir { fid, .. }
            | Self::SymLink { fid, .. }
            | Self::Link { fid, .. }
            | Self::Remove { fid, .. }
            | Self::RemoveDir { fid, .. }
            | Self::Rename { fid, .. }
            | Self::SetAttr { fid, .. }
            | Self::SetXattr { fid, .. }
            | Self::RemoveXattr { fid, .. }
            | Self::Store { fid, .. } => *fid,
        }
    }

    /// Returns the object that had a name before and is given one.
    #[must_use]
    pub fn named_fid(&self) -> Option<Fid> {
        match self {
            Self::Rename { fid, .. } | Self::Link { fid, .. } => Some(*fid),
            _ => None,
        }
    }

    /// Returns the object that loses a name and is given none.
    #[must_use]
    pub fn unnamed_fid(&self) -> Option<Fid> {
        match self {
            Self::Remove { fid, .. } | Self::RemoveDir { fid, .. } => Some(*fid),
            Self::Rename { replaced, mode: RenameMode::Replace, .. } => *replaced,
            _ => None,
        }
    }
}

/// The way in which a rename treats its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameMode {
    /// An existing target is removed in the same step.
    Replace,
    /// An existing target is an error (`RENAME_NOREPLACE`).
    NoReplace,
    /// The two names swap their objects (`RENAME_EXCHANGE`).
    Exchange,
}

/// Attributes to set; `None` leaves one as it is. Sizes change by Store only, because contents are whole versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permissions.
    pub mode: Option<Mode>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Access time.
    pub atime: Option<Timestamp>,
    /// Modification time.
    pub mtime: Option<Timestamp>,
}

impl SetAttr {
    /// Whether nothing would change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether an owner or a group is set.
    #[must_use]
    pub fn gives_away(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }

    /// Combines both changes of an object of this kind, `later` after this one.
    #[must_use]
    pub fn then(&self, later: &Self, kind: Kind) -> Self {
        let drops_set_id = later.gives_away() && kind != Kind::Directory;
        let mode = self.mode.map(|mode| if drops_set_id { mode.without_set_id() } else { mode });
        Self {
            mode: later.mode.or(mode),
            uid: later.uid.or(self.uid),
            gid: later.gid.or(self.gid),
            atime: later.atime.or(self.atime),
            mtime: later.mtime.or(self.mtime),
        }
    }
}

/// The version an update was made from. The server accepts it only if that is the present one (invariant 9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// A version the server has shown.
    Version(DataVersion),
    /// The version that another record of this client makes.
    Record(StoreId),
}
