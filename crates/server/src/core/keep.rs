//! Keep: the fate of a record that is in conflict with what others have done (consistency.md, "Conflicts").
//!
//! The work of others keeps the name. The record is done beside it, in the transaction that would have been its own,
//! so it happens once however often the record comes (invariants 2 and 9): a content goes into another file, an
//! object that was made or moved gets another name, and where the directory is gone too, one below
//! `/.mafs-conflicts/CLIENT`. If what the record says is so already there is no conflict. A record with nothing to be
//! kept is refused: a removal of what others have changed, a change of what they have removed.

use mafs_proto::{
    Base, ClientId, CmlOp, CmlRecord, Conflict, ConflictKind, DataVersion, Fid, FsError, Kind, Mode, Name, Origin,
    Outcome, PlacedName, RenameMode, StatusVersion, XattrMode, XattrName, XattrValue,
};

use super::directory::{holds, new_node};
use super::edit::{Edit, Effect};
use super::records::ClientState;
use super::rename::{Rename, check_not_below, place};
use super::way::{self, Stage};
use super::{NewContent, Node, Refusal, Transaction, aliases, conflict_name, conflicts, fids, xattrs};

/// Directory for objects whose own directory is gone.
const LOST: &[u8] = b".mafs-conflicts";

/// Attribute that says on the copy what it is, for tools that look at files.
const XATTR: &[u8] = b"user.mafs.conflict";

/// The client of a record, and the place where the record was made.
pub(super) struct Keeper<'k> {
    pub(super) client: ClientId,
    pub(super) state: &'k mut ClientState,
    pub(super) origin: &'k Origin,
}

/// Description of something that is kept.
struct Kept {
    kind: ConflictKind,
    mine: Fid,
    /// Kind of the kept object.
    is: Kind,
    /// The name it was to have.
    wanted: PlacedName,
    base: Option<DataVersion>,
    /// Whether the record made the kept object.
    is_new: bool,
}

/// Keeps the work of a record that was refused; `content` is the payload of a Store.
///
/// # Errors
/// The `refusal` if nothing is to be kept; the transaction must be dropped then.
pub(super) fn keep(
    transaction: &mut Transaction<'_>,
    mut keeper: Keeper<'_>,
    record: &CmlRecord,
    content: Option<NewContent>,
    refusal: Refusal,
) -> Result<(Effect, Outcome), Refusal> {
    let mut edit = Edit::new(transaction, record);
    let outcome = match (&record.op, content) {
        (CmlOp::Store { fid, .. }, Some(content)) if edit.look(*fid).is_ok_and(|node| holds(&node, &content)) => {
            let object = edit.look(*fid)?.object(*fid);
            let mut effect = edit.finish()?;
            effect.objects.push(object);
            effect.freed.extend(content.file());
            return Ok((effect, Outcome::WasSo));
        }
        (CmlOp::Store { fid, base, mtime, .. }, Some(content)) => {
            keeper.content(&mut edit, (*fid, *base), content, *mtime)?
        }
        (CmlOp::Create { .. } | CmlOp::MakeDir { .. } | CmlOp::SymLink { .. }, _) => {
            keeper.made(&mut edit, record, refusal)?
        }
        (CmlOp::Link { parent, name, fid }, _) => keeper.linked(&mut edit, (*parent, name), *fid, refusal)?,
        (CmlOp::Remove { fid, .. } | CmlOp::RemoveDir { fid, .. }, _) => match edit.look(*fid) {
            Err(gone) if gone.error == FsError::Stale => Outcome::WasSo,
            Ok(_) | Err(_) => return Err(refusal),
        },
        (CmlOp::Rename { from_parent, from_name, to_parent, to_name, fid, replaced, mode }, _) => {
            let (from, to) = ((*from_parent, from_name), (*to_parent, to_name));
            let rename = Rename { from, to, fid: *fid, replaced: *replaced, removes: record.removes, mode: *mode };
            keeper.moved(&mut edit, &rename, refusal)?
        }
        (CmlOp::Store { .. } | CmlOp::SetAttr { .. } | CmlOp::SetXattr { .. } | CmlOp::RemoveXattr { .. }, _) => {
            return Err(refusal);
        }
    };
    Ok((edit.finish()?, outcome))
}

impl Keeper<'_> {
    fn content(
        &mut self,
        edit: &mut Edit<'_, '_>,
        (fid, base): (Fid, Base),
        content: NewContent,
        mtime: mafs_proto::Timestamp,
    ) -> Result<Outcome, Refusal> {
        let Origin { directory, name, mode, uid, gid, .. } = self.origin;
        let mut node = new_node(edit.record(), Kind::File, *mode, 0, None);
        (node.status.uid, node.status.gid) = (*uid, *gid);
        let copy = fids::own(edit.transaction())?;
        edit.insert(copy, node);
        edit.store(copy, content, mtime)?;
        aliases::add(edit.transaction(), self.client, self.state, (fid, copy))?;
        let kind = if edit.look(fid).is_ok() { ConflictKind::Update } else { ConflictKind::Removed };
        let base = if let Base::Version(version) = base { Some(version) } else { None };
        let wanted = PlacedName { directory: *directory, name: name.clone() };
        self.place(edit, Kept { kind, mine: copy, is: Kind::File, wanted, base, is_new: false })
    }

    fn made(&mut self, edit: &mut Edit<'_, '_>, record: &CmlRecord, refusal: Refusal) -> Result<Outcome, Refusal> {
        let (parent, name, fid, node) = match &record.op {
            CmlOp::Create { parent, name, fid, kind, mode, rdev } => {
                (*parent, name, *fid, new_node(record, *kind, *mode, *rdev, None))
            }
            CmlOp::MakeDir { parent, name, fid, mode } => {
                (*parent, name, *fid, new_node(record, Kind::Directory, *mode, 0, None))
            }
            CmlOp::SymLink { parent, name, fid, target } => {
                let mode = Mode::from_bits(0o777);
                (*parent, name, *fid, new_node(record, Kind::Symlink, mode, 0, Some(target.clone())))
            }
            _ => return Err(refusal),
        };
        fids::take(edit.transaction(), self.client, fid)?;
        let there = edit.entry(parent, name).ok().flatten();
        if let Some(there) = there
            && is_the_same(&edit.look(there)?, &node)
            && aliases::add(edit.transaction(), self.client, self.state, (fid, there))?
        {
            return Ok(Outcome::Elsewhere(Vec::new()));
        }
        let kind = if there.is_some() { ConflictKind::Name } else { ConflictKind::Orphan };
        let is = node.status.kind;
        edit.insert(fid, node);
        let wanted = PlacedName { directory: parent, name: name.clone() };
        self.place(edit, Kept { kind, mine: fid, is, wanted, base: None, is_new: true })
    }

    fn linked(
        &mut self,
        edit: &mut Edit<'_, '_>,
        (parent, name): (Fid, &Name),
        fid: Fid,
        refusal: Refusal,
    ) -> Result<Outcome, Refusal> {
        let Ok(node) = edit.look(fid) else { return Err(refusal) };
        let there = edit.entry(parent, name).ok().flatten();
        if there == Some(fid) {
            return Ok(Outcome::WasSo);
        }
        edit.link(fid)?;
        let kind = if there.is_some() { ConflictKind::Name } else { ConflictKind::Orphan };
        let wanted = PlacedName { directory: parent, name: name.clone() };
        self.place(edit, Kept { kind, mine: fid, is: node.status.kind, wanted, base: None, is_new: false })
    }

    fn moved(&mut self, edit: &mut Edit<'_, '_>, rename: &Rename<'_>, refusal: Refusal) -> Result<Outcome, Refusal> {
        let (to_parent, to_name) = rename.to;
        let there = edit.entry(to_parent, to_name).ok().flatten();
        let Ok(moved) = edit.named(rename.from.0, rename.from.1, rename.fid) else {
            return if there == Some(rename.fid) { Ok(Outcome::WasSo) } else { Err(refusal) };
        };
        if rename.mode == RenameMode::Exchange || refusal.error == FsError::BelowItself {
            return Err(refusal);
        }
        let is_orphan = edit.look(to_parent).is_err();
        if !is_orphan {
            check_not_below(edit, rename.fid, &moved, to_parent)?;
        }
        edit.leave(rename.from.0, rename.from.1, moved.status.kind)?;
        let kind = match (is_orphan, rename.replaced, there) {
            (true, _, _) => ConflictKind::Orphan,
            (false, Some(_), None) => ConflictKind::Removed,
            (false, Some(_), Some(_)) => ConflictKind::Update,
            (false, None, _) => ConflictKind::Name,
        };
        let wanted = PlacedName { directory: to_parent, name: to_name.clone() };
        let is = moved.status.kind;
        self.place(edit, Kept { kind, mine: rename.fid, is, wanted, base: None, is_new: false })
    }

    /// Gives a kept object a name that is free, and notes that it is kept.
    fn place(&self, edit: &mut Edit<'_, '_>, kept: Kept) -> Result<Outcome, Refusal> {
        let Kept { kind, mine, is, wanted, base, is_new } = kept;
        let (client, time) = (self.state.name.as_str(), edit.record().time);
        let mut placed = Vec::new();
        let beside = self.directory(edit, wanted.directory)?;
        let (directory, path, name) = match beside {
            Some(directory) => {
                let names =
                    (1..=way::NAMES_MAX).filter_map(|nth| conflict_name::beside(&wanted.name, client, time, nth));
                (directory, self.origin.path.clone(), way::free(edit, directory, names)?)
            }
            None => {
                let (directory, path) = self.lost_directory(edit, &mut placed)?;
                (directory, path, way::free(edit, directory, way::numbered(&wanted.name))?)
            }
        };
        edit.enter(directory, &name, mine, is)?;
        place(edit, mine, directory)?;
        if matches!(is, Kind::File | Kind::Directory) {
            mark(edit, mine, kind)?;
        }
        let place = PlacedName { directory, name };
        placed.push(place.clone());
        let (uid, client_name) = (edit.record().uid, client.to_owned());
        let (mine_now, theirs_now) = (None, None);
        let client = self.client;
        let conflict =
            Conflict { place, kind, mine, wanted, path, client, client_name, uid, time, base, mine_now, theirs_now };
        conflicts::note(edit.transaction(), &conflict, is_new);
        Ok(Outcome::Elsewhere(placed))
    }

    /// Returns the directory, if it is there.
    fn directory(&self, edit: &mut Edit<'_, '_>, directory: Fid) -> Result<Option<Fid>, Refusal> {
        let directory = aliases::resolve(edit.transaction(), self.client, self.state, directory)?;
        Ok(edit.look(directory).is_ok_and(|node| node.is_directory()).then_some(directory))
    }

    /// Makes the path of the lost directory below a directory for what is lost, as far as it is not there.
    fn lost_directory(
        &self,
        edit: &mut Edit<'_, '_>,
        placed: &mut Vec<PlacedName>,
    ) -> Result<(Fid, Vec<Name>), Refusal> {
        let own = conflict_name::directory_of(&self.state.name);
        let lost = Name::new(LOST).map_err(|_| Refusal::damaged("a name"))?;
        let names = std::iter::once(lost).chain(own).chain(self.origin.path.iter().cloned());
        let (uid, gid) = (edit.record().uid, edit.record().gid);
        let stages = names.map(|name| Stage { name, mode: Mode::from_bits(0o755), uid, gid });
        let root = Fid::root(edit.transaction().volume());
        way::make(edit, root, stages, placed)
    }
}

/// Merges a Store whose `content` is just what others have given the name its file was to have: then there was no
/// conflict after all.
pub(super) fn merge(
    transaction: &mut Transaction<'_>,
    (client, state): (ClientId, &mut ClientState),
    record: &CmlRecord,
    content: &NewContent,
) -> Result<Option<(Effect, Outcome)>, Refusal> {
    let CmlOp::Store { fid, .. } = record.op else { return Ok(None) };
    let mut edit = Edit::new(transaction, record);
    let Some(Conflict { place, wanted, .. }) = conflicts::made_beside(&mut edit, fid)? else { return Ok(None) };
    let Some(theirs) = edit.entry(wanted.directory, &wanted.name).ok().flatten() else { return Ok(None) };
    let mine = edit.look(fid)?;
    let are_same = edit.look(theirs).is_ok_and(|node| holds(&node, content));
    if !are_same || mine.status.nlink != 1 || !aliases::add(edit.transaction(), client, state, (fid, theirs))? {
        return Ok(None);
    }
    edit.leave(place.directory, &place.name, mine.status.kind)?;
    edit.unlink(fid)?;
    let mut effect = edit.finish()?;
    effect.freed.extend(content.file());
    Ok(Some((effect, Outcome::Elsewhere(vec![place]))))
}

/// Tells whether two clients have made the same: directories are one, and what comes into them is merged.
fn is_the_same(there: &Node, made: &Node) -> bool {
    match (there.status.kind, made.status.kind) {
        (Kind::Directory, Kind::Directory) => true,
        (Kind::Symlink, Kind::Symlink) => there.target == made.target,
        (Kind::File, Kind::File) => there.status.size == 0 && there.status.status_version == StatusVersion(1),
        _ => false,
    }
}

/// Marks a kept object with the reason.
pub(super) fn mark(edit: &mut Edit<'_, '_>, fid: Fid, kind: ConflictKind) -> Result<(), Refusal> {
    let (Ok(name), Some(value)) = (XattrName::new(XATTR), XattrValue::new(kind.to_string())) else { return Ok(()) };
    match xattrs::set(edit, fid, &name, &value, XattrMode::Either) {
        // There is no room for the mark, which only repeats what is known.
        Err(refusal) if refusal.error == FsError::NoSpace => Ok(()),
        other => other,
    }
}

/// Removes the mark of an object that is in conflict no more.
pub(super) fn unmark(edit: &mut Edit<'_, '_>, fid: Fid) -> Result<(), Refusal> {
    let Ok(name) = XattrName::new(XATTR) else { return Ok(()) };
    match xattrs::remove(edit, fid, &name) {
        Err(refusal) if matches!(refusal.error, FsError::NoXattr | FsError::Stale) => Ok(()),
        other => other,
    }
}
