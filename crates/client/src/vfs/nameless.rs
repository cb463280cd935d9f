//! Nameless: files that have lost their last name, and what there is of them for those who use them still.

use mafs_proto::{Fid, Object};

use super::file::{File, Unlinked};
use super::{Error, Inner};
use crate::core::log::LogEntry;

impl Inner {
    /// The last name of an object is gone: nothing of it will be sent. It stays readable for those who have it open.
    pub(super) fn object_gone(&self, object: &Object) {
        self.kernel.note_removed(object);
        let file = self.files().get(object.fid.vnode);
        match file {
            Some(file) => {
                self.mark_unlinked(&file, object);
                self.drop_if_unused(&file);
            }
            None => {
                let content =
                    self.cache.index.object(object.fid.vnode).ok().flatten().and_then(|cached| cached.content);
                self.remove_content(object.fid.vnode, content.map(|content| content.container));
                if let Err(error) = self.drop_part(object.fid.vnode) {
                    tracing::warn!(fid = %object.fid, %error, "what is here of a removed file stays for now");
                }
            }
        }
    }

    /// Another client has removed the last name of an object. Who has it open here keeps it, but what the server lacks
    /// of it is not dropped.
    pub(super) fn object_gone_elsewhere(&self, fid: Fid) -> Result<(), Error> {
        let known = self.cache.index.object(fid.vnode)?.filter(|cached| cached.object.fid == fid);
        let file = self.files().get(fid.vnode);
        let changed = file.is_some_and(|file| {
            let state = file.state();
            state.is_dirty() || state.kernel.may_write()
        });
        if let Some(mut cached) = known {
            self.remember_home(&cached);
            cached.object.status.nlink = 0;
            if changed { self.kernel.note_removed(&cached.object) } else { self.object_gone(&cached.object) }
        }
        Ok(self.cache.index.remove(fid.vnode)?)
    }

    fn mark_unlinked(&self, file: &File, object: &Object) {
        let xattrs = self.cache.index.xattrs(object).ok().flatten();
        let _edit = file.edit();
        let named = self.named_versions(file);
        let (logged, unresolved) = {
            let mut state = file.state();
            if !state.is_dirty() {
                state.mtime = object.status.mtime;
            }
            state.ctime = object.status.ctime;
            state.unlinked = Some(Unlinked { object: Some(object.clone()), xattrs, named });
            let unresolved = if state.storing { None } else { state.unresolved.take() };
            (std::mem::take(&mut state.writing_logged), unresolved)
        };
        if let Some(unresolved) = unresolved {
            self.end_record(unresolved.record.id);
        }
        self.drop_versions(file);
        if logged && let Err(error) = self.cache.cml.append(self.told_of_unlinked(file)) {
            tracing::error!(%error, "the modify log cannot be written");
        }
    }

    /// What the log is told of a file without a name: of versions that may have been sent it keeps the records.
    fn told_of_unlinked(&self, file: &File) -> LogEntry {
        let fid = file.fid;
        let newest = self.remote.outstanding(|log| log.newest(fid));
        let state = file.state();
        let by =
            newest.filter(|id| !state.versions.is_empty() && state.versions.iter().all(|version| version.id != *id));
        by.map_or(LogEntry::Dropped { fid }, |by| LogEntry::Unlinked { fid, by })
    }
}
