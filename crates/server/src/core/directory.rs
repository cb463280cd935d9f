//! Directory operations: the meaning of each record of a modify log, with the semantics of POSIX directories.
//!
//! A record says what it expects (a name is free, a name means this object, a file has this version). A record that
//! expects something else is refused: nothing another client did is ever undone silently (invariant 9).

use mafs_proto::{
    Base, ClientId, CmlOp, CmlRecord, ContentHash, DataVersion, Fid, FsError, Kind, Mode, Name, Removed, SetAttr,
    Status, StatusVersion, SymlinkTarget, Timestamp,
};

use super::edit::{Edit, Effect};
use super::rename::{Rename, rename};
use super::{Content, NewContent, Node, Place, Refusal, Transaction, aside, fids, replies, xattrs};

/// Tells whether an operation may make the volume larger; a full disk still takes the others.
pub(crate) fn grows(op: &CmlOp) -> bool {
    match op {
        CmlOp::Create { .. }
        | CmlOp::MakeDir { .. }
        | CmlOp::SymLink { .. }
        | CmlOp::Link { .. }
        | CmlOp::SetXattr { .. }
        | CmlOp::Store { .. } => true,
        CmlOp::Remove { .. }
        | CmlOp::RemoveDir { .. }
        | CmlOp::Rename { .. }
        | CmlOp::SetAttr { .. }
        | CmlOp::RemoveXattr { .. } => false,
    }
}

/// Does what a record of `client` says. `content` is the payload of a Store.
///
/// # Errors
/// The refusal; the transaction must be dropped then.
pub(crate) fn perform(
    transaction: &mut Transaction<'_>,
    client: ClientId,
    record: &CmlRecord,
    content: Option<NewContent>,
) -> Result<Effect, Refusal> {
    let mut edit = Edit::new(transaction, record);
    let edit_ref = &mut edit;
    match &record.op {
        CmlOp::Create { parent, name, fid, kind, mode, rdev } => {
            let node = new_node(record, *kind, *mode, *rdev, None);
            make(edit_ref, client, (*parent, name), *fid, node)?;
        }
        CmlOp::MakeDir { parent, name, fid, mode } => {
            let mut node = new_node(record, Kind::Directory, *mode, 0, None);
            node.parent = Some(*parent);
            make(edit_ref, client, (*parent, name), *fid, node)?;
        }
        CmlOp::SymLink { parent, name, fid, target } => {
            let node = new_node(record, Kind::Symlink, Mode::from_bits(0o777), 0, Some(target.clone()));
            make(edit_ref, client, (*parent, name), *fid, node)?;
        }
        CmlOp::Link { parent, name, fid } => link(edit_ref, *parent, name, *fid)?,
        CmlOp::Remove { .. } | CmlOp::RemoveDir { .. } => remove(edit_ref)?,
        CmlOp::Rename { from_parent, from_name, to_parent, to_name, fid, replaced, mode } => {
            let from = (*from_parent, from_name);
            let to = (*to_parent, to_name);
            let removes = record.removes;
            rename(edit_ref, &Rename { from, to, fid: *fid, replaced: *replaced, removes, mode: *mode })?;
        }
        CmlOp::SetAttr { fid, set } => set_attr(edit_ref, *fid, set)?,
        CmlOp::SetXattr { fid, name, value, mode } => xattrs::set(edit_ref, *fid, name, value, *mode)?,
        CmlOp::RemoveXattr { fid, name } => xattrs::remove(edit_ref, *fid, name)?,
        CmlOp::Store { fid, base, size, mtime } => {
            let content = content.filter(|content| content.size == *size);
            let content = content.ok_or_else(|| Refusal::new(FsError::Malformed, "the content has another size"))?;
            store(edit_ref, *fid, *base, content, *mtime)?;
        }
    }
    edit.finish()
}

pub(super) fn new_node(record: &CmlRecord, kind: Kind, mode: Mode, rdev: u64, target: Option<SymlinkTarget>) -> Node {
    let status = Status {
        kind,
        mode,
        nlink: if kind == Kind::Directory { 2 } else { 1 },
        uid: record.uid,
        gid: record.gid,
        size: target.as_ref().map_or(0, |target| target.as_bytes().len() as u64),
        rdev,
        atime: record.time,
        mtime: record.time,
        ctime: record.time,
        crtime: record.time,
        data_version: DataVersion(1),
        status_version: StatusVersion(1),
        xattrs: None,
    };
    let empty = || Content { hash: ContentHash::of(&[]), place: Place::Index, came_for: None };
    let content = (kind == Kind::File).then(empty);
    Node { status, target, parent: None, content, data_by: Some(record.id) }
}

fn make(
    edit: &mut Edit<'_, '_>,
    client: ClientId,
    (parent, name): (Fid, &Name),
    fid: Fid,
    node: Node,
) -> Result<(), Refusal> {
    edit.free(parent, name)?;
    fids::take(edit.transaction(), client, fid)?;
    edit.enter(parent, name, fid, node.status.kind)?;
    edit.insert(fid, node);
    Ok(())
}

fn link(edit: &mut Edit<'_, '_>, parent: Fid, name: &Name, fid: Fid) -> Result<(), Refusal> {
    edit.free(parent, name)?;
    let node = edit.look(fid)?;
    if node.is_directory() {
        return Err(Refusal::new(FsError::IsDirectory, "a directory has one name only"));
    }
    edit.enter(parent, name, fid, node.status.kind)?;
    edit.link(fid)
}

fn remove(edit: &mut Edit<'_, '_>) -> Result<(), Refusal> {
    let Some(removal) = Removal::of(edit.record()) else { return Ok(()) };
    let node = removal.check(edit)?;
    edit.leave(removal.parent, removal.name, node.status.kind)?;
    aside::unlink(edit, (removal.parent, removal.name), removal.fid, &node)
}

/// A removal as its record says it.
pub(super) struct Removal<'r> {
    pub(super) parent: Fid,
    pub(super) name: &'r Name,
    pub(super) fid: Fid,
    /// Whether a directory is removed.
    pub(super) is_directory: bool,
    /// Content that the object must hold.
    removes: Option<Removed>,
}

impl<'r> Removal<'r> {
    pub(super) fn of(record: &'r CmlRecord) -> Option<Self> {
        let (parent, name, fid, is_directory) = match &record.op {
            CmlOp::Remove { parent, name, fid } => (*parent, name, *fid, false),
            CmlOp::RemoveDir { parent, name, fid } => (*parent, name, *fid, true),
            _ => return None,
        };
        Some(Self { parent, name, fid, is_directory, removes: record.removes })
    }

    /// Checks the removal. Returns the object that loses its name.
    pub(super) fn check(&self, edit: &Edit<'_, '_>) -> Result<Node, Refusal> {
        let Self { parent, name, fid, is_directory, removes } = self;
        let node = edit.named(*parent, name, *fid)?;
        match (node.is_directory(), is_directory) {
            (true, false) => Err(Refusal::new(FsError::IsDirectory, format!("{name} is a directory"))),
            (false, true) => Err(Refusal::new(FsError::NotDirectory, format!("{name} is not a directory"))),
            (true, true) if node.status.size > 0 => {
                Err(Refusal::new(FsError::NotEmpty, format!("{name} has {} entries", node.status.size)))
            }
            (true, true) => Ok(node),
            (false, false) => aside::check(edit, *fid, &node, *removes).map(|()| node),
        }
    }
}

fn set_attr(edit: &mut Edit<'_, '_>, fid: Fid, set: &SetAttr) -> Result<(), Refusal> {
    edit.change(fid)?.status.set(set);
    Ok(())
}

fn store(edit: &mut Edit<'_, '_>, fid: Fid, base: Base, content: NewContent, mtime: Timestamp) -> Result<(), Refusal> {
    let node = edit.look(fid)?;
    if node.status.kind != Kind::File {
        return Err(Refusal::new(FsError::WrongKind, format!("the object {fid} is not a file")));
    }
    let version = node.status.data_version;
    let is_present = match base {
        Base::Version(known) => version == known,
        Base::Record(id) => node.data_by == Some(id) || replies::left(edit.transaction(), &id, fid)? == Some(version),
    };
    if !is_present {
        return Err(Refusal::new(FsError::BaseChanged, format!("the file {fid} is at version {}", version.0)));
    }
    edit.store(fid, content, mtime)
}

/// Tells whether a file has this content.
pub(super) fn holds(node: &Node, content: &NewContent) -> bool {
    let hash = node.content.map(|present| present.hash);
    node.status.kind == Kind::File && node.status.size == content.size && hash == Some(content.hash)
}
