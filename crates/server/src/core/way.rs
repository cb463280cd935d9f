//! Way: directories that the server makes on the way to a place of its own, as far as they are not there.

use mafs_proto::{Fid, FsError, Kind, Mode, Name, Origin, PlacedName};

use super::directory::new_node;
use super::edit::Edit;
use super::{Refusal, conflict_name, fids};

/// Number of names that are tried: each is taken only if there are so many of one name.
pub(super) const NAMES_MAX: u32 = 1000;

/// Entries of one directory that are looked at, to find out what a directory in it is called.
const LOOKED_AT_MAX: usize = 100_000;

/// A directory on the way.
pub(super) struct Stage {
    pub(super) name: Name,
    pub(super) mode: Mode,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Goes from a directory through others, and makes those that are not there; these are added to `placed`. An object
/// that is no directory is passed by, with a number behind the name. Returns where that ends, and the names that it
/// took.
pub(super) fn make(
    edit: &mut Edit<'_, '_>,
    from: Fid,
    stages: impl Iterator<Item = Stage>,
    placed: &mut Vec<PlacedName>,
) -> Result<(Fid, Vec<Name>), Refusal> {
    let (mut at, mut path) = (from, Vec::new());
    for Stage { name, mode, uid, gid } in stages {
        let (name, found) = usable(edit, at, &name)?;
        at = match found {
            Some(found) => found,
            None => {
                let made = fids::own(edit.transaction())?;
                let mut node = new_node(edit.record(), Kind::Directory, mode, 0, None);
                (node.parent, node.status.uid, node.status.gid) = (Some(at), uid, gid);
                edit.insert(made, node);
                edit.enter(at, &name, made, Kind::Directory)?;
                placed.push(PlacedName { directory: at, name: name.clone() });
                made
            }
        };
        path.push(name);
    }
    Ok((at, path))
}

/// Returns the names that lead to a directory from the root, as committed. Empty if one is not found: it is new, or
/// one of very many.
pub(super) fn names_to(edit: &mut Edit<'_, '_>, directory: Fid) -> Result<Vec<Name>, Refusal> {
    let (mut at, mut names) = (directory, Vec::new());
    while let Some(parent) = edit.look(at)?.parent {
        let found = edit.transaction().committed_name(parent, at, LOOKED_AT_MAX)?;
        let Some(name) = found.filter(|_| names.len() < Origin::DEPTH_MAX) else { return Ok(Vec::new()) };
        names.push(name);
        at = parent;
    }
    names.reverse();
    Ok(names)
}

/// Finds a name that is free, or means a directory.
pub(super) fn usable(edit: &Edit<'_, '_>, directory: Fid, name: &Name) -> Result<(Name, Option<Fid>), Refusal> {
    for name in numbered(name) {
        match edit.entry(directory, &name)? {
            None => return Ok((name, None)),
            Some(found) if edit.look(found)?.is_directory() => return Ok((name, Some(found))),
            Some(_) => {}
        }
    }
    Err(none_left())
}

/// Returns the first of these names that is free.
pub(super) fn free(edit: &Edit<'_, '_>, directory: Fid, names: impl Iterator<Item = Name>) -> Result<Name, Refusal> {
    for name in names {
        if edit.entry(directory, &name)?.is_none() {
            return Ok(name);
        }
    }
    Err(none_left())
}

/// Returns a name, and then the name with numbers behind it.
pub(super) fn numbered(name: &Name) -> impl Iterator<Item = Name> {
    (1..=NAMES_MAX).filter_map(|nth| conflict_name::numbered(name, nth))
}

fn none_left() -> Refusal {
    Refusal::new(FsError::Exists, "no name is left for what is to be kept")
}
