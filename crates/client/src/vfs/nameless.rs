//! Nameless files: files that have lost their last name, and their contents for programs that still use them.

use mafs_proto::{Fid, Kind, Object, VnodeId};

use super::file::{Content, File};
use super::kernel::{Left, Nameless};
use super::{Error, Inner, Vfs};
use crate::core::content::fate::Unlinked;
use crate::core::log::{ContainerId, LogEntry};

impl Vfs {
    /// Takes in that the kernel has dropped `count` lookups.
    pub fn forget(&self, vnode: VnodeId, count: u64) {
        self.inner.forget(vnode, count);
    }
}

impl Inner {
    /// Takes in that the last name of an object is gone: nothing of the object will be sent. The object stays readable
    /// for programs that have it open, and while the kernel knows it.
    pub(super) fn object_gone(&self, object: &Object) {
        self.note_gone(object, true);
    }

    /// Takes in that an object is gone. `known`: no other client may have written to it.
    fn note_gone(&self, object: &Object, known: bool) {
        match self.hold(object.fid.vnode) {
            Some(file) => {
                self.kernel.note_removed(Nameless::of(object));
                self.mark_unlinked(&file, object);
                self.let_go(&file);
            }
            None => {
                let nameless = self.left_of(object, known);
                let content = nameless.content.container();
                if !self.kernel.note_removed(nameless) {
                    self.remove_content(object.fid.vnode, content);
                }
                if let Err(error) = self.drop_part(object.fid.vnode) {
                    tracing::warn!(fid = %object.fid, %error, "what is here of a removed file stays for now");
                }
            }
        }
    }

    /// Returns the parts of an unused object that are here. A store of it may have been answered since the caller
    /// looked.
    fn left_of(&self, object: &Object, known: bool) -> Nameless {
        let mut nameless = Nameless::of(object);
        match self.cache.index.known_content(object.fid) {
            Ok(Some((content, shown))) => {
                let status = &mut nameless.object.status;
                (status.data_version, status.size, status.mtime) = (shown.data_version, shown.size, shown.mtime);
                nameless.content = Left::In(content.container);
            }
            Ok(None) if known && object.status.kind == Kind::File && object.status.size == 0 => {
                nameless.content = Left::Empty;
            }
            Ok(None) | Err(_) => {}
        }
        nameless
    }

    /// Takes in that another client has removed the last name of an object. A program that has it open here keeps it,
    /// but changes that the server lacks are not dropped.
    pub(super) fn object_gone_elsewhere(&self, fid: Fid) -> Result<(), Error> {
        let known = self.cache.index.object(fid.vnode)?.filter(|cached| cached.object.fid == fid);
        let file = self.files().get(fid.vnode);
        let changed = file.is_some_and(|file| {
            let state = file.state();
            state.may_be_changed()
        });
        if let Some(mut cached) = known {
            self.remember_home(&cached);
            cached.object.status.nlink = 0;
            if changed {
                self.kernel.note_removed(Nameless::of(&cached.object));
            } else {
                self.note_gone(&cached.object, false);
            }
        }
        Ok(self.cache.index.remove(fid.vnode)?)
    }

    fn mark_unlinked(&self, file: &File, object: &Object) {
        let xattrs = self.cache.index.xattrs(object).ok().flatten();
        let _edit = file.edit();
        let named = self.named_versions(file);
        let logged = {
            let mut state = file.state();
            state.lose_name(Unlinked::new(object.clone(), xattrs, named), &object.status);
            state.log_writing(false)
        };
        self.drop_versions(file);
        if logged && let Err(error) = self.cache.cml.append(self.told_of_unlinked(file)) {
            tracing::error!(%error, "the modify log cannot be written");
        }
    }

    /// Returns the log entry for a file without a name. The log keeps the records of versions that may have been sent.
    fn told_of_unlinked(&self, file: &File) -> LogEntry {
        let fid = file.fid;
        let newest = self.remote.outstanding(|log| log.newest(fid));
        let state = file.state();
        let by = newest.filter(|id| !state.versions().is_empty() && state.versions().get(*id).is_none());
        by.map_or(LogEntry::Dropped { fid }, |by| LogEntry::Unlinked { fid, by })
    }

    /// Leaves the content of a file without a name, which no program has open any more, to the kernel's inode. Returns
    /// whether there is such an inode.
    pub(super) fn leave_to_kernel(&self, file: &File) -> bool {
        let left = file.state().nameless_object();
        let nameless = left.map(|(object, xattrs)| Nameless { object, content: Left::In(file.container_id), xattrs });
        nameless.is_some_and(|nameless| {
            // An object that is known by another way has a name again.
            let is_nameless = self.kernel.change_removed(file.fid.vnode, |_| ()).is_some();
            // From now on the content goes like any other when there is no room.
            is_nameless && self.count_content(file).is_ok() && self.kernel.note_removed(nameless)
        })
    }

    /// Returns an object without a name that can be opened: it is in use, or its content is here for the kernel.
    pub(super) fn nameless(&self, vnode: VnodeId) -> Result<Option<Object>, Error> {
        if let Some(object) = self.unlinked(vnode) {
            return Ok(Some(object));
        }
        let mut files = self.files();
        if files.contains(vnode) {
            return Ok(None);
        }
        let left = self.kernel.change_removed(vnode, |removed| {
            let content = std::mem::take(&mut removed.content);
            Nameless { content, ..removed.clone() }
        });
        let Some(Nameless { object, content, xattrs }) = left else { return Ok(None) };
        let size = object.status.size;
        let id = match content {
            Left::In(id) if self.size_of(vnode, id)? == Some(size) => id,
            Left::Empty => self.cache.containers.create(vnode)?.0,
            Left::In(_) | Left::Nothing => return Ok(None),
        };
        let unlinked = Unlinked::new(object.clone(), xattrs, Vec::new());
        let state = Content::nameless(&object.status, unlinked);
        files.insert(File::new(object.fid, self.cache.containers.lazy(vnode, id), state));
        Ok(Some(object))
    }

    /// Returns the size of a container, if it is there.
    fn size_of(&self, vnode: VnodeId, id: ContainerId) -> Result<Option<u64>, Error> {
        Ok(self.cache.containers.get(vnode, id)?.map(|container| container.len()).transpose()?)
    }

    /// Takes in that the kernel has dropped lookups. A content that was here for the kernel alone may go.
    pub(super) fn forget(&self, vnode: VnodeId, count: u64) {
        if let Some(content) = self.kernel.forget(vnode, count)
            && !self.files().contains(vnode)
        {
            self.remove_content(vnode, Some(content));
        }
    }
}

impl Nameless {
    /// Describes an object whose content, if it is here, is in use.
    pub(super) fn of(object: &Object) -> Self {
        Self { object: object.clone(), content: Left::Nothing, xattrs: None }
    }
}
