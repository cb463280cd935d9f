//! Conflicts: records that changes of others have made impossible. Nothing of such a record is lost: its effect is
//! kept beside the object it is in conflict with, under a name that says so (consistency.md, "Conflicts").

use crate::{ClientId, DataVersion, Fid, Mode, Name, Object, StoreId, Timestamp};

/// The server's treatment of a record that is in conflict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OnConflict {
    /// Refuses the record: a program waits for the outcome.
    Refuse,
    /// Refuses the record for now: the record comes again, with its origin.
    Ask,
    /// Keeps the record's effect elsewhere.
    Keep(Origin),
}

/// The place where a record was made. If the record is kept, that happens in this directory or, if the directory is
/// gone, under the same path below `/.mafs-conflicts/CLIENT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The directory.
    pub directory: Fid,
    /// The name in it.
    pub name: Name,
    /// The way to the directory, from the root, as far as the client knows; at most [`Origin::DEPTH_MAX`] names.
    pub path: Vec<Name>,
    /// Permissions of the file, if its content is kept.
    pub mode: Mode,
    /// The file's owner.
    pub uid: u32,
    /// The file's group.
    pub gid: u32,
}

impl Origin {
    /// The most names of a path: with names of 15 bytes as long as PATH_MAX. A deeper one is cut.
    pub const DEPTH_MAX: usize = 256;
}

/// The removals a client has made while the server could not be asked; each of their records carries this. If they are
/// most of what others have made, the server moves the objects to the trash instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removals {
    /// The number of removals that are in the client's log, or were since it had none.
    pub count: u64,
    /// The last of them.
    pub up_to: StoreId,
    /// The way to the directory that loses the name, from the root, as far as the client knows; at most
    /// [`Origin::DEPTH_MAX`] names.
    pub path: Vec<Name>,
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PlacedName {
    /// The directory.
    pub directory: Fid,
    /// The name.
    pub name: Name,
}

/// Outcome of a record that was applied.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Outcome {
    /// The effect is that which the record says.
    #[default]
    AsSaid,
    /// Nothing was done: the effect was there already.
    WasSo,
    /// The effect has gone elsewhere: these names have changed their meaning instead of those in the record, and a
    /// content has gone into another file.
    Elsewhere(Vec<PlacedName>),
    /// The removed object has gone to the trash: these names have got a meaning.
    Trashed(Vec<PlacedName>),
    /// The effect is that which the record says, but the object that loses its last name by it has got this one:
    /// others had stored a content there of which its client had not heard.
    SetAside(PlacedName),
}

impl Outcome {
    /// The most names that one record places: the way to where it is kept.
    pub const PLACED_MAX: usize = Origin::DEPTH_MAX + 4;

    /// Returns the names that have got another meaning besides those in the record, or instead of them.
    #[must_use]
    pub fn placed(&self) -> &[PlacedName] {
        match self {
            Self::AsSaid | Self::WasSo => &[],
            Self::Elsewhere(placed) | Self::Trashed(placed) => placed,
            Self::SetAside(place) => std::slice::from_ref(place),
        }
    }
}

/// The reason why something was kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConflictKind {
    /// Changed by both.
    Update,
    /// Changed by one, removed by the other.
    Removed,
    /// Both have given the name to something.
    Name,
    /// Made by one in a directory that the other has removed.
    Orphan,
    /// Removed while the server could not be asked, with most of what there was.
    Trash,
}

impl ConflictKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Update, Self::Removed, Self::Name, Self::Orphan, Self::Trash];

    /// Returns the number on the wire, from 1 on.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Update => 1,
            Self::Removed => 2,
            Self::Name => 3,
            Self::Orphan => 4,
            Self::Trash => 5,
        }
    }
}

impl std::fmt::Display for ConflictKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Update => "both changed it",
            Self::Removed => "removed by others",
            Self::Name => "the name was taken",
            Self::Orphan => "its directory was removed by others",
            Self::Trash => "removed without a connection, with most of what there was",
        })
    }
}

/// A conflict: something that was kept, until its name is given up. A user who renames or removes it has resolved the
/// conflict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// The name of the kept object.
    pub place: PlacedName,
    /// The reason.
    pub kind: ConflictKind,
    /// The kept object.
    pub mine: Fid,
    /// The name that the object was to have, with its directory.
    pub wanted: PlacedName,
    /// The way to the directory of [`Self::place`], from the root, as it was then.
    pub path: Vec<Name>,
    /// The client that made the record.
    pub client: ClientId,
    /// The host name of that client, for people.
    pub client_name: String,
    /// The user that made the change.
    pub uid: u32,
    /// The time of the change, by the clock of that client.
    pub time: Timestamp,
    /// The version that a content was made from, if it was made from one that the server had.
    pub base: Option<DataVersion>,
    /// The kept object as it is now. Only in replies.
    pub mine_now: Option<Object>,
    /// The object that the wanted name means now. Only in replies.
    pub theirs_now: Option<Object>,
}
