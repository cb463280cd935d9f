//! Origin: data that the server needs to keep a change beside the version it conflicts with, instead of refusing it.
//!
//! Nearly no change is in conflict, so the server is told the origin only when it has asked. If it knows of a conflict
//! by then, it asks before a large content is sent. This client does not tell it earlier because it may remove a file
//! while the content is sent.

use mafs_proto::{CmlOp, CmlRecord, Fid, Mode, Name, OnConflict, Origin, Removals, Removed};

use super::{Error, Inner};
use crate::cache::CachedObject;

/// Mode of a file that is not known here any more: only its owner may read it.
const MODE_UNKNOWN: u32 = 0o600;

impl Inner {
    /// Decides what the server is to do with a record in conflict. A program that waits for the outcome is told, and
    /// files that this client has removed itself are not kept.
    pub(super) fn on_conflict(&self, record: &CmlRecord, awaited: bool) -> OnConflict {
        if awaited || !self.comes_again(record) || self.is_moot(record) {
            return OnConflict::Refuse;
        }
        if !self.replay.queue().is_kept(record.id) {
            return OnConflict::Ask;
        }
        // Without a place the change cannot be kept, and the refusal is listed.
        self.origin_of(record).map_or(OnConflict::Refuse, OnConflict::Keep)
    }

    /// Describes the removals made while the server was out of reach, if a record is one of them. They may be so many
    /// that the server moves them all to the trash.
    pub(super) fn removals_with(&self, record: &CmlRecord) -> Option<Removals> {
        let (count, up_to) = self.replay.queue().removals_with(record)?;
        let (directory, _) = self.place_of(&record.op)?;
        Some(Removals { count, up_to, path: self.path_to_origin(directory) })
    }

    /// Returns the path of a directory, now or when a change was made in it.
    fn path_to_origin(&self, directory: Fid) -> Vec<Name> {
        let known = self.names_to(directory).or_else(|| self.replay.places().get(&directory.vnode).cloned());
        let mut path = known.unwrap_or_default();
        path.truncate(Origin::DEPTH_MAX);
        path
    }

    fn origin_of(&self, record: &CmlRecord) -> Option<Origin> {
        let (directory, name) = self.place_of(&record.op)?;
        let path = self.path_to_origin(directory);
        let known = self.cache.index.object(record.op.fid().vnode).ok().flatten().map(|known| known.object.status);
        let unknown = (Mode::from_bits(MODE_UNKNOWN), record.uid, record.gid);
        let (mode, uid, gid) = known.map_or(unknown, |status| (status.mode, status.uid, status.gid));
        Some(Origin { directory, name, path, mode, uid, gid })
    }

    /// Remembers the place of a change that is logged while the server is out of reach: the directory may be gone when
    /// the server hears of the change.
    pub(super) fn note_place(&self, op: &CmlOp) {
        if self.cache.index.is_apart() {
            self.remember_place(op);
        }
    }

    /// Remembers the place where a change was made, if that is known.
    pub(super) fn remember_place(&self, op: &CmlOp) {
        if let Some((directory, _)) = self.place_of(op) {
            self.remember_path(directory);
        }
    }

    fn remember_path(&self, directory: Fid) {
        let known = self.replay.places().contains_key(&directory.vnode);
        let path = (!known).then(|| self.names_to(directory)).flatten();
        self.replay.places().extend(path.map(|path| (directory.vnode, path)));
    }

    /// Remembers the place of a file that another client has removed, if changes of it wait: its content is kept
    /// there.
    pub(super) fn remember_home(&self, gone: &CachedObject) {
        let fid = gone.object.fid;
        if let (Some(vnode), Some(name)) = (gone.parent, &gone.name) {
            self.remember_home_at(fid, (Fid { vnode, ..fid }, name.clone()));
        }
    }

    /// Remembers the place of an object that a record was to make, when another client has made it too: the server
    /// knows it by that client's fid.
    pub(super) fn remember_home_of_made(&self, op: &CmlOp) {
        if let (Some(made), Some(place)) = (op.made(), self.place_of(op)) {
            self.remember_home_at(made, place);
        }
    }

    fn remember_home_at(&self, fid: Fid, (directory, name): (Fid, Name)) {
        if self.remote.outstanding(|log| log.newest(fid).is_some()) {
            self.remember_path(directory);
            self.replay.homes().insert(fid.vnode, (directory, name));
        }
    }

    pub(super) fn place_of(&self, op: &CmlOp) -> Option<(Fid, Name)> {
        match op {
            CmlOp::Create { parent, name, .. }
            | CmlOp::MakeDir { parent, name, .. }
            | CmlOp::SymLink { parent, name, .. }
            | CmlOp::Link { parent, name, .. }
            | CmlOp::Remove { parent, name, .. }
            | CmlOp::RemoveDir { parent, name, .. }
            | CmlOp::Rename { to_parent: parent, to_name: name, .. } => Some((*parent, name.clone())),
            CmlOp::Store { fid, .. } => {
                let known = self.cache.index.object(fid.vnode).ok().flatten();
                // The directory may be gone: only the server knows.
                let place = known.and_then(|file| Some((Fid { vnode: file.parent?, ..*fid }, file.name?)));
                place.or_else(|| self.replay.homes().get(&fid.vnode).cloned())
            }
            CmlOp::SetAttr { .. } | CmlOp::SetXattr { .. } | CmlOp::RemoveXattr { .. } => None,
        }
    }

    /// Returns the version that the server has shown of a file whose last name a change takes: a version that another
    /// client has stored since is not to be removed. If this client has heard of a newer version, it may remove that,
    /// whatever it is.
    pub(super) fn removed(&self, op: &CmlOp) -> Result<Option<Removed>, Error> {
        let Some(fid) = op.unnamed_fid() else { return Ok(None) };
        let alone = self.cache.index.is_apart();
        let file = self.files().get(fid.vnode).filter(|_| alone);
        let version = match file {
            Some(file) => file.state().basis().own_version(),
            None => self.cache.index.valid_object(fid.vnode)?.map(|known| known.object.status.data_version),
        };
        Ok(version.map(|version| Removed { version, alone }))
    }
}
