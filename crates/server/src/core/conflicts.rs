//! Conflicts: the table of what is kept of records in conflict: by the name it is kept under, for as long as it has
//! that name.

use bytes::Bytes;
use mafs_proto::call::{ConflictsReply, ConflictsRequest};
use mafs_proto::{Conflict, Fid, Name, PlacedName, Wire};

use super::edit::Edit;
use super::{Overlay, Refusal, Transaction, tables};

/// Notes that an object is kept. `is_new`: the record made it, and it may turn out to be what others have made.
pub(super) fn note(transaction: &mut Transaction<'_>, conflict: &Conflict, is_new: bool) {
    let PlacedName { directory, name } = &conflict.place;
    transaction.put(tables::conflict(*directory, name), conflict.encode());
    if is_new {
        transaction.put(tables::made_beside(conflict.mine), conflict.place.encode());
    }
}

/// Gives a name up: the object that was kept under it is in conflict no more. Returns that object.
pub(super) fn resolve(transaction: &mut Transaction<'_>, directory: Fid, name: &Name) -> Result<Option<Fid>, Refusal> {
    let key = tables::conflict(directory, name);
    let Some(bytes) = transaction.get(&key)? else { return Ok(None) };
    let kept = decode(bytes)?.mine;
    transaction.remove(key);
    transaction.remove(tables::made_beside(kept));
    Ok(Some(kept))
}

/// Returns the conflict of an object that was made beside the name it was to have.
pub(super) fn made_beside(edit: &mut Edit<'_, '_>, fid: Fid) -> Result<Option<Conflict>, Refusal> {
    let transaction = edit.transaction();
    let Some(bytes) = transaction.get(&tables::made_beside(fid))? else { return Ok(None) };
    let place = PlacedName::decode(Bytes::from(bytes)).map_err(|_| Refusal::damaged("the place of a kept object"))?;
    transaction.get(&tables::conflict(place.directory, &place.name))?.map(decode).transpose()
}

/// Lists the committed conflicts behind a place.
pub(crate) fn page(overlay: &Overlay<'_>, request: &ConflictsRequest) -> Result<ConflictsReply, Refusal> {
    let transaction = overlay.begin();
    let after = request.after.as_ref().map(|place| tables::conflict(place.directory, &place.name));
    let rows = transaction.committed(&tables::conflicts(), after.as_deref(), ConflictsReply::CONFLICTS_MAX)?;
    let end = rows.len() < ConflictsReply::CONFLICTS_MAX;
    let shown = |fid: Fid| transaction.node(fid).ok().map(|node| node.object(fid));
    let conflicts = rows.into_iter().map(|bytes| {
        let conflict = decode(bytes)?;
        let theirs = transaction.entry(conflict.wanted.directory, &conflict.wanted.name)?;
        Ok(Conflict { mine_now: shown(conflict.mine), theirs_now: theirs.and_then(shown), ..conflict })
    });
    Ok(ConflictsReply { conflicts: conflicts.collect::<Result<_, Refusal>>()?, end })
}

fn decode(bytes: Vec<u8>) -> Result<Conflict, Refusal> {
    Conflict::decode(Bytes::from(bytes)).map_err(|_| Refusal::damaged("a conflict"))
}
