//! Origin: what the server needs to know to keep a change beside what it is in conflict with, instead of refusing it.
//!
//! Nearly no change is in conflict, so the server is told only when it has asked. It asks before a large content is
//! sent, if it knows by then. Nor is it told earlier because this client may remove a file while its content is sent.

use mafs_proto::{CmlOp, CmlRecord, Fid, Mode, Name, OnConflict, Origin, Removals, Removed};

use super::{Error, Inner};
use crate::cache::CachedObject;

/// Of what is not known here any more: nobody else is to read it.
const MODE_UNKNOWN: u32 = 0o600;

impl Inner {
    /// What the server is to do with a record if it is in conflict. A program that waits for the outcome is told,
    /// and what this client has removed itself nobody wants.
    pub(super) fn on_conflict(&self, record: &CmlRecord, awaited: bool) -> OnConflict {
        if awaited || !self.comes_again(record) || self.is_moot(record) {
            return OnConflict::Refuse;
        }
        if !self.replay.queue().is_kept(record.id) {
            return OnConflict::Ask;
        }
        // Without a place nothing can be kept, and the refusal is listed.
        self.origin_of(record).map_or(OnConflict::Refuse, OnConflict::Keep)
    }

    /// What the server is told of removals that were made while nobody could be asked, if a record is one: there may be
    /// so many that it moves all to the trash.
    pub(super) fn removals_with(&self, record: &CmlRecord) -> Option<Removals> {
        let (count, up_to) = self.replay.queue().removals_with(record)?;
        let (directory, _) = self.place_of(&record.op)?;
        Some(Removals { count, up_to, path: self.path_to_origin(directory) })
    }

    /// Where a directory is, or was when a change was made in it.
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

    /// A change is logged that nobody can be asked about: it is remembered where it was made, for the directory may be
    /// gone when the server hears of it.
    pub(super) fn note_place(&self, op: &CmlOp) {
        if self.cache.index.is_apart() {
            self.remember_place(op);
        }
    }

    /// Remembers where a change was made, if that is known.
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

    /// Others have removed a file. Where it was is remembered if changes of it wait: its content is kept there.
    pub(super) fn remember_home(&self, gone: &CachedObject) {
        let fid = gone.object.fid;
        if let (Some(vnode), Some(name)) = (gone.parent, &gone.name) {
            self.remember_home_at(fid, (Fid { vnode, ..fid }, name.clone()));
        }
    }

    /// What a record was to make another client has made too, and the server knows it by that one's name for it: the
    /// same of where it is.
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

    /// What the server has shown of a file whose last name a change takes: what others have stored since is not to be
    /// removed. Who has heard that there is something newer, whatever it is, may remove that.
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
