//! Rename: one name moves, replaces or is exchanged, as rename(2) and renameat2(2) say.

use mafs_proto::{Fid, FsError, Kind, Name, Removed, RenameMode};

use super::edit::Edit;
use super::{Node, Refusal, aside};

/// A rename as its record says it.
pub(crate) struct Rename<'r> {
    pub(crate) from: (Fid, &'r Name),
    pub(crate) to: (Fid, &'r Name),
    /// The object that moves.
    pub(crate) fid: Fid,
    /// The object that the target name must mean.
    pub(crate) replaced: Option<Fid>,
    /// Content that the replaced object must hold.
    pub(crate) removes: Option<Removed>,
    pub(crate) mode: RenameMode,
}

/// Renames.
///
/// # Errors
/// The refusal; the edit must be dropped then.
pub(crate) fn rename(edit: &mut Edit<'_, '_>, rename: &Rename<'_>) -> Result<(), Refusal> {
    let moved = edit.named(rename.from.0, rename.from.1, rename.fid)?;
    let target = edit.entry(rename.to.0, rename.to.1)?;
    check_expectation(rename, target)?;
    match (rename.mode, target) {
        // Two names of one object: rename(2) does nothing and reports success.
        (_, Some(target)) if target == rename.fid => Ok(()),
        (RenameMode::Exchange, Some(target)) => exchange(edit, rename, &moved, target),
        (RenameMode::Replace | RenameMode::NoReplace | RenameMode::Exchange, target) => {
            replace(edit, rename, &moved, target)
        }
    }
}

fn check_expectation(rename: &Rename<'_>, target: Option<Fid>) -> Result<(), Refusal> {
    let name = rename.to.1;
    let exists = || Refusal::new(FsError::Exists, format!("{name} exists"));
    match (rename.mode, target, rename.replaced) {
        (RenameMode::NoReplace, Some(_), _) | (_, Some(_), None) => Err(exists()),
        (RenameMode::Exchange, None, _) => Err(Refusal::new(FsError::NotFound, format!("there is no {name}"))),
        (_, target, expected) if target != expected => {
            Err(Refusal::new(FsError::NameChanged, format!("{name} does not mean what it did")))
        }
        (RenameMode::Replace | RenameMode::NoReplace | RenameMode::Exchange, _, _) => Ok(()),
    }
}

fn replace(edit: &mut Edit<'_, '_>, rename: &Rename<'_>, moved: &Node, target: Option<Fid>) -> Result<(), Refusal> {
    check_not_below(edit, rename.fid, moved, rename.to.0)?;
    if let Some(target) = target {
        // Before anything leaves: the target may be the directory that the name moves out of.
        let node = edit.look(target)?;
        check_replaceable(moved, &node, rename.to.1)?;
        aside::check(edit, target, &node, rename.removes)?;
        edit.leave(rename.to.0, rename.to.1, node.status.kind)?;
        aside::unlink(edit, rename.to, target, &node)?;
    }
    edit.leave(rename.from.0, rename.from.1, moved.status.kind)?;
    edit.enter(rename.to.0, rename.to.1, rename.fid, moved.status.kind)?;
    place(edit, rename.fid, rename.to.0)
}

fn exchange(edit: &mut Edit<'_, '_>, rename: &Rename<'_>, moved: &Node, target: Fid) -> Result<(), Refusal> {
    let node = edit.look(target)?;
    check_not_below(edit, rename.fid, moved, rename.to.0)?;
    check_not_below(edit, target, &node, rename.from.0)?;
    edit.leave(rename.from.0, rename.from.1, moved.status.kind)?;
    edit.leave(rename.to.0, rename.to.1, node.status.kind)?;
    edit.enter(rename.to.0, rename.to.1, rename.fid, moved.status.kind)?;
    edit.enter(rename.from.0, rename.from.1, target, node.status.kind)?;
    place(edit, rename.fid, rename.to.0)?;
    place(edit, target, rename.from.0)
}

/// Gives an object a new name in `parent`: its ctime changes, and a directory's `..`.
pub(super) fn place(edit: &mut Edit<'_, '_>, fid: Fid, parent: Fid) -> Result<(), Refusal> {
    let node = edit.change(fid)?;
    if node.is_directory() {
        node.parent = Some(parent);
    }
    Ok(())
}

fn check_replaceable(moved: &Node, target: &Node, name: &Name) -> Result<(), Refusal> {
    match (moved.is_directory(), target.is_directory()) {
        (true, false) => Err(Refusal::new(FsError::NotDirectory, format!("{name} is not a directory"))),
        (false, true) => Err(Refusal::new(FsError::IsDirectory, format!("{name} is a directory"))),
        (true, true) if target.status.size > 0 => {
            Err(Refusal::new(FsError::NotEmpty, format!("{name} has {} entries", target.status.size)))
        }
        (true, true) | (false, false) => Ok(()),
    }
}

/// Checks that `parent` is neither the directory `fid` nor below it, by walking from `parent` to the root.
pub(super) fn check_not_below(edit: &mut Edit<'_, '_>, fid: Fid, moved: &Node, parent: Fid) -> Result<(), Refusal> {
    if moved.status.kind != Kind::Directory || moved.parent == Some(parent) {
        return Ok(());
    }
    // No path is longer than there are objects: the bound holds even in an index that is damaged.
    let steps_max = edit.transaction().state()?.objects;
    let mut at = parent;
    for _ in 0..steps_max {
        if at == fid {
            return Err(FsError::BelowItself.into());
        }
        match edit.look(at)?.parent {
            Some(above) => at = above,
            None => return Ok(()),
        }
    }
    Err(Refusal::damaged(&format!("the directory {parent} is not below the root")))
}
