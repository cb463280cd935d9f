//! Conflicts: what becomes of a record that others' changes have made impossible. Nothing of it is lost: it is kept
//! beside what it is in conflict with, under a name that says so (consistency.md, "Conflicts").

use crate::{ClientId, DataVersion, Fid, Mode, Name, Object, StoreId, Timestamp};

/// What the server does with a record that is in conflict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OnConflict {
    /// Refuses it: a program waits for the outcome.
    Refuse,
    /// Refuses it for now: it comes again, with its origin.
    Ask,
    /// Keeps what it says elsewhere.
    Keep(Origin),
}

/// Where a record was made. If it is kept, that happens in this directory or, if that is gone, under the same path
/// below `/.mafs-conflicts/CLIENT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The directory.
    pub directory: Fid,
    /// The name in it.
    pub name: Name,
    /// Where the directory is, from the root, as far as the client knows; at most [`Origin::DEPTH_MAX`] names.
    pub path: Vec<Name>,
    /// Permissions of the file, if it is one whose content is kept.
    pub mode: Mode,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Origin {
    /// The most names of a path: with names of 15 bytes as long as PATH_MAX. A deeper one is cut.
    pub const DEPTH_MAX: usize = 256;
}

/// What a client has removed while nobody could be asked; each of these removals says it. If it is most of what others
/// have made, the server moves it to the trash instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removals {
    /// How many there are, or were since the client's log had none.
    pub count: u64,
    /// The last of them.
    pub up_to: StoreId,
    /// Where the directory is that loses the name, from the root, as far as the client knows; at most
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

/// What a record that was applied has come to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Outcome {
    /// What it says.
    #[default]
    AsSaid,
    /// Nothing: what it says was so.
    WasSo,
    /// What it says was done to something else: these names have changed their meaning instead of those in the record,
    /// and a content has gone into another file.
    Elsewhere(Vec<PlacedName>),
    /// What it removes has gone to the trash: these names have got a meaning.
    Trashed(Vec<PlacedName>),
    /// What it says, but what loses its last name by it has got this one: others had stored there what its client had
    /// not heard of.
    SetAside(PlacedName),
}

impl Outcome {
    /// The most names that one record places: the way to where it is kept.
    pub const PLACED_MAX: usize = Origin::DEPTH_MAX + 4;

    /// The names that have got another meaning besides those in the record, or instead of them.
    #[must_use]
    pub fn placed(&self) -> &[PlacedName] {
        match self {
            Self::AsSaid | Self::WasSo => &[],
            Self::Elsewhere(placed) | Self::Trashed(placed) => placed,
            Self::SetAside(place) => std::slice::from_ref(place),
        }
    }
}

/// Why something was kept.
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
    /// Removed while nobody could be asked, with most of what there was.
    Trash,
}

impl ConflictKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Update, Self::Removed, Self::Name, Self::Orphan, Self::Trash];

    /// The number on the wire, from 1 on.
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

/// Something that was kept, until its name is given up: who renames or removes it has resolved the conflict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// What it is called.
    pub place: PlacedName,
    /// Why.
    pub kind: ConflictKind,
    /// What was kept.
    pub mine: Fid,
    /// The name it was to have, and where.
    pub wanted: PlacedName,
    /// The way to the directory of [`Self::place`], from the root, as it was then.
    pub path: Vec<Name>,
    /// Whose record it was.
    pub client: ClientId,
    /// The host name of that client, for people.
    pub client_name: String,
    /// The user.
    pub uid: u32,
    /// When the change was made, by the clock of that client.
    pub time: Timestamp,
    /// The version that a content was made from, if it was made from one that the server had.
    pub base: Option<DataVersion>,
    /// What was kept, as it is now. Only in replies.
    pub mine_now: Option<Object>,
    /// What the wanted name means now. Only in replies.
    pub theirs_now: Option<Object>,
}
