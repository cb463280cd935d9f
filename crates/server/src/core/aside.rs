//! Aside: a content that others have stored in a file does not go with its last name, if the client that takes the
//! name had not heard of the content (invariant 9).
//!
//! A client that could ask nobody is refused, and what it had there is kept beside. A client that was connected has
//! its way, for others may have been shown it already: it was announced. The stored content gets another name
//! instead, and is listed as a conflict of the client that stored it.

use mafs_proto::{CmlOp, Conflict, ConflictKind, Fid, FsError, Kind, Name, PlacedName, Removed};

use super::edit::Edit;
use super::rename::place;
use super::{Node, Refusal, conflict_name, conflicts, keep, way};

/// Checks an object that is about to lose a name.
///
/// # Errors
/// `BaseChanged` if the client that takes it could not ask whether that holds something new, and it does.
pub(super) fn check(edit: &Edit<'_, '_>, fid: Fid, node: &Node, removes: Option<Removed>) -> Result<(), Refusal> {
    if removes.is_none_or(|removed| !removed.alone) || !is_news(edit, node, removes) {
        return Ok(());
    }
    let version = node.status.data_version.0;
    Err(Refusal::new(FsError::BaseChanged, format!("the file {fid} has been changed, it is at version {version}")))
}

/// Takes a name from the object that it meant; the name has left its directory.
pub(super) fn unlink(edit: &mut Edit<'_, '_>, wanted: (Fid, &Name), fid: Fid, node: &Node) -> Result<(), Refusal> {
    match edit.record().removes.filter(|_| is_news(edit, node, edit.record().removes)) {
        Some(removed) => set_aside(edit, wanted, fid, (node, removed)),
        None => edit.unlink(fid),
    }
}

/// Tells whether a content would go that others have stored since the client of the record knew what was there.
fn is_news(edit: &Edit<'_, '_>, node: &Node, removes: Option<Removed>) -> bool {
    let is_own = node.data_by.is_some_and(|by| by.client == edit.record().id.client);
    let goes = node.status.kind == Kind::File && node.status.nlink == 1;
    goes && !is_own && removes.is_some_and(|removed| removed.version != node.status.data_version)
}

fn set_aside(
    edit: &mut Edit<'_, '_>,
    (directory, wanted): (Fid, &Name),
    fid: Fid,
    (node, removed): (&Node, Removed),
) -> Result<(), Refusal> {
    let client = node.data_by.unwrap_or(edit.record().id).client;
    let client_name = edit.transaction().client(client)?.map(|state| state.name).unwrap_or_default();
    let (time, status) = (node.status.ctime, &node.status);
    let names = (1..=way::NAMES_MAX).filter_map(|nth| conflict_name::beside(wanted, &client_name, time, nth));
    let name = way::free(edit, directory, names)?;
    edit.enter(directory, &name, fid, status.kind)?;
    place(edit, fid, directory)?;
    let is_replaced = matches!(edit.record().op, CmlOp::Rename { .. });
    let kind = if is_replaced { ConflictKind::Update } else { ConflictKind::Removed };
    keep::mark(edit, fid, kind)?;
    let path = way::names_to(edit, directory)?;
    let conflict = Conflict {
        place: PlacedName { directory, name },
        kind,
        mine: fid,
        wanted: PlacedName { directory, name: wanted.clone() },
        path,
        client,
        client_name,
        uid: status.uid,
        time,
        base: Some(removed.version),
        mine_now: None,
        theirs_now: None,
    };
    conflicts::note(edit.transaction(), &conflict, false);
    edit.note_aside(conflict.place);
    Ok(())
}
