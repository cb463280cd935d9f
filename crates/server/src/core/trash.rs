//! Trash: the place of objects that a client has removed while it could not ask, if they are most of what others have
//! made (consistency.md, "Conflicts"). Somebody may have been in the wrong directory.
//!
//! Each such removal says how many there are in its client's log, so the first that comes decides of all. The
//! decision is kept with the client, for the rest may come after a crash of either side, and say less. A removed
//! object is under its path below `/.mafs-trash/CLIENT/MINUTE`, in the transaction that would have removed it. A
//! directory is there as soon as something of it is, with the owner and the permissions it has, so nobody can read
//! more than before.
//!
//! The client is believed: one that says nothing of this has removed what it might have removed while connected.

use mafs_proto::call::ApplyRequest;
use mafs_proto::{
    ClientId, CmlRecord, Conflict, ConflictKind, Fid, FsError, Name, Origin, Outcome, PlacedName, Removals, Timestamp,
    Uniquifier, VnodeId,
};

use super::directory::Removal;
use super::edit::{Edit, Effect};
use super::records::{ClientState, Judged};
use super::rename::place;
use super::way::{self, Stage};
use super::{Node, Refusal, Transaction, conflict_name, conflicts, fids, tables};

/// Name of the trash, below the root.
const TRASH: &[u8] = b".mafs-trash";

/// Name for a directory whose name its client did not know.
const UNNAMED: &[u8] = b"unnamed";

/// Number of objects that are nobody's all, because they are so few.
const OBJECTS_MAX: u64 = 1000;

/// Keys that are looked at at a time.
const SCAN_MAX: usize = 256;

/// Returns when the removals were begun that the record of `request` is one of, if they go to the trash.
///
/// # Errors
/// `Malformed` if the record is not one of the removals that the request speaks of.
pub(super) fn judge(
    transaction: &Transaction<'_>,
    (client, state): (ClientId, &mut ClientState),
    request: &ApplyRequest,
) -> Result<Option<Timestamp>, Refusal> {
    let Some(Removals { count, up_to, .. }) = &request.removals else { return Ok(None) };
    let record = &request.record;
    if up_to.client != client || *up_to < record.id {
        return Err(Refusal::new(FsError::Malformed, format!("the removal {} is not one up to {up_to}", record.id)));
    }
    let known = state.judged.filter(|judged| record.id <= judged.up_to);
    if known.is_none() && *count <= OBJECTS_MAX {
        return Ok(None);
    }
    let judged = match known {
        Some(judged) => judged,
        None => {
            let trash = is_most(transaction, client, *count)?.then_some(record.time.seconds());
            *state.judged.insert(Judged { up_to: *up_to, trash })
        }
    };
    Ok(judged.trash.and_then(|seconds| Timestamp::new(seconds, 0)))
}

/// Tells whether so many removals may be of more than 1,000 objects, and more than half of all, that others have
/// made. Nobody knows here how many are of the client's own.
fn is_most(transaction: &Transaction<'_>, client: ClientId, count: u64) -> Result<bool, Refusal> {
    let twice = count.saturating_mul(2);
    let others = count_others(transaction, client, twice)?;
    Ok(count.min(others) > OBJECTS_MAX && others < twice)
}

/// Counts the objects that others than `client` have made, as committed; no more than `enough` are counted.
fn count_others(transaction: &Transaction<'_>, client: ClientId, enough: u64) -> Result<u64, Refusal> {
    let (mut found, mut after) = (0, None::<Vec<u8>>);
    let mut foreign = None;
    while found < enough {
        let page = transaction.committed_keys_after(&tables::nodes(), after.as_deref(), SCAN_MAX)?;
        let Some(last) = page.last() else { break };
        after = Some(last.clone());
        for key in &page {
            let vnode = tables::parse_node(key).ok_or_else(|| Refusal::damaged("the key of an object"))?;
            let block = vnode.0 / fids::BLOCK_FIDS;
            if foreign != Some(block) && fids::is_of(transaction, client, vnode)? {
                // Nothing else is in this block.
                after = Some(last_of(transaction, block));
                break;
            }
            foreign = Some(block);
            found += 1;
        }
    }
    Ok(found.min(enough))
}

fn last_of(transaction: &Transaction<'_>, block: u64) -> Vec<u8> {
    let vnode = VnodeId(block.saturating_mul(fids::BLOCK_FIDS) + (fids::BLOCK_FIDS - 1));
    tables::node(Fid { volume: transaction.volume(), vnode, unique: Uniquifier(u32::MAX) })
}

/// Moves what the record of `request` removes to the trash. `None`: the object is removed for good, because it is the
/// client's own, has other names, or was in the trash.
///
/// # Errors
/// The refusal, if it could not be removed either; the transaction must be dropped then.
pub(super) fn take(
    transaction: &mut Transaction<'_>,
    (client, state): (ClientId, &ClientState),
    (request, record): (&ApplyRequest, &CmlRecord),
    begun: Timestamp,
) -> Result<Option<(Effect, Outcome)>, Refusal> {
    let (Some(removals), Some(removal)) = (&request.removals, Removal::of(record)) else { return Ok(None) };
    if fids::is_of(transaction, client, removal.fid.vnode)? {
        return Ok(None);
    }
    let mut edit = Edit::new(transaction, record);
    let node = removal.check(&edit)?;
    let above = ancestors(&mut edit, removal.parent)?;
    if (!removal.is_directory && node.status.nlink > 1) || is_in_trash(&mut edit, &above)? {
        return Ok(None);
    }
    let trash = Trash { client, state, begun };
    let mut placed = Vec::new();
    let at = trash.directory(&mut edit, &mut placed)?;
    let (at, _) = way::make(&mut edit, at, stages(&removals.path, &above)?.into_iter(), &mut placed)?;
    edit.leave(removal.parent, removal.name, node.status.kind)?;
    let name = match removal.is_directory {
        true => match way::usable(&edit, at, removal.name)? {
            // The trash has the directory already, with what was in it.
            (_, Some(_)) => None,
            (name, None) => Some(name),
        },
        false => Some(way::free(&edit, at, way::numbered(removal.name))?),
    };
    match name {
        Some(name) => {
            edit.enter(at, &name, removal.fid, node.status.kind)?;
            place(&mut edit, removal.fid, at)?;
            placed.push(PlacedName { directory: at, name });
        }
        None => edit.unlink(removal.fid)?,
    }
    Ok(Some((edit.finish()?, Outcome::Trashed(placed))))
}

/// Returns the directories from this one up to the root, which is not among them.
fn ancestors(edit: &mut Edit<'_, '_>, directory: Fid) -> Result<Vec<(Fid, Node)>, Refusal> {
    // No path is longer than there are objects: the bound holds even in an index that is damaged.
    let steps_max = edit.transaction().state()?.objects;
    let (mut at, mut above) = (directory, Vec::new());
    for _ in 0..steps_max {
        let node = edit.look(at)?;
        let Some(parent) = node.parent else { return Ok(above) };
        above.push((at, node));
        at = parent;
    }
    Err(Refusal::damaged(&format!("the directory {directory} is not below the root")))
}

fn is_in_trash(edit: &mut Edit<'_, '_>, above: &[(Fid, Node)]) -> Result<bool, Refusal> {
    let Some((top, _)) = above.last() else { return Ok(false) };
    let root = Fid::root(edit.transaction().volume());
    Ok(edit.entry(root, &trash_name()?)? == Some(*top))
}

fn trash_name() -> Result<Name, Refusal> {
    Name::new(TRASH).map_err(|_| Refusal::damaged("a name"))
}

/// Describes the directories above, with the names on the path as its client knew it, as far as it did. Others may
/// have moved them, and nobody is to read by that what was closed to him.
fn stages(path: &[Name], above: &[(Fid, Node)]) -> Result<Vec<Stage>, Refusal> {
    let unnamed = Name::new(UNNAMED).map_err(|_| Refusal::damaged("a name"))?;
    let names = path.iter().rev().map(Some).chain(std::iter::repeat(None));
    let above = above.iter().take(Origin::DEPTH_MAX).zip(names);
    let mut stages: Vec<_> = above.map(|((_, node), name)| stage(name.unwrap_or(&unnamed).clone(), node)).collect();
    stages.reverse();
    Ok(stages)
}

fn stage(name: Name, Node { status, .. }: &Node) -> Stage {
    Stage { name, mode: status.mode, uid: status.uid, gid: status.gid }
}

/// The place of all removals that belong together.
struct Trash<'s> {
    client: ClientId,
    state: &'s ClientState,
    begun: Timestamp,
}

impl Trash<'_> {
    /// Returns the directory that stands for the root. One that is made is listed with the conflicts, until it has
    /// another name or none.
    fn directory(&self, edit: &mut Edit<'_, '_>, placed: &mut Vec<PlacedName>) -> Result<Fid, Refusal> {
        let root = Fid::root(edit.transaction().volume());
        let like = edit.look(root)?;
        let names = [Some(trash_name()?), conflict_name::directory_of(&self.state.name)];
        let stages = names.into_iter().flatten().map(|name| stage(name, &like));
        let (above, path) = way::make(edit, root, stages, placed)?;
        let minute = conflict_name::minute_of(self.begun).ok_or_else(|| Refusal::damaged("a time"))?;
        let made_before = placed.len();
        let (directory, _) = way::make(edit, above, std::iter::once(stage(minute, &like)), placed)?;
        if let Some(place) = placed.get(made_before) {
            let conflict = self.listed(edit, (place.clone(), path), directory);
            conflicts::note(edit.transaction(), &conflict, false);
        }
        Ok(directory)
    }

    fn listed(&self, edit: &Edit<'_, '_>, (place, path): (PlacedName, Vec<Name>), directory: Fid) -> Conflict {
        Conflict {
            wanted: place.clone(),
            place,
            kind: ConflictKind::Trash,
            mine: directory,
            path,
            client: self.client,
            client_name: self.state.name.clone(),
            uid: edit.record().uid,
            time: self.begun,
            base: None,
            mine_now: None,
            theirs_now: None,
        }
    }
}
