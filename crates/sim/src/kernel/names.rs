//! Names: walking paths, and making, moving and removing what they mean. After fs/namei.c and fs/fuse/dir.c.

use std::sync::Arc;

use bytes::Bytes;
use mafs_client::vfs::Error;
use mafs_proto::{Kind, Mode, Object, RenameMode, VnodeId};

use super::inode::{Attributes, Inode};
use super::{CALLER, Entry, Errno, Kernel, State, Version, until};
use crate::model::split;

/// How often a path is walked that turns out to be out of date: the second time every name is asked for.
const WALKS: [bool; 2] = [false, true];

/// Entries asked for at a time.
const LISTED_MAX: usize = 1024;

/// A name in a directory.
pub(super) type Place = (VnodeId, Bytes);

impl Kernel {
    /// stat(2), of a symlink what it is itself.
    ///
    /// # Errors
    /// As the call.
    pub async fn stat(&self, path: &str) -> Result<Attributes, Errno> {
        for again in WALKS {
            let stat = async {
                let vnode = self.walk(path, again).await?;
                self.get_attributes(vnode).await
            };
            match stat.await {
                Err(Errno::STALE) if !again => {}
                other => return other,
            }
        }
        Err(Errno::STALE)
    }

    /// unlink(2) and rmdir(2).
    ///
    /// # Errors
    /// As the call.
    pub async fn remove(&self, path: &str, directory: bool) -> Result<(), Errno> {
        let (parent, name) = self.place(path, false).await?;
        let _names = self.names_of(parent)?.write_owned().await;
        let vnode = self.lookup_locked(&(parent, name.clone()), false).await?.ok_or(Errno::NOENT)?;
        let is_directory = self.state().inode(vnode)?.attributes().kind == Kind::Directory;
        match (is_directory, directory) {
            (true, false) => return Err(Errno::ISDIR),
            (false, true) => return Err(Errno::NOTDIR),
            _ => {}
        }
        let removed = {
            let _inode = self.lock_inode(vnode).await?;
            match directory {
                true => self.ask(self.vfs.remove_dir(parent, name.clone(), CALLER)).await,
                false => self.ask(self.vfs.unlink(parent, name.clone(), CALLER)).await,
            }
        };
        if removed.is_ok() {
            self.state().change(vnode, Inode::note_unlinked);
        }
        if matches!(removed, Ok(()) | Err(Errno::NOENT)) {
            self.state().entries.remove(&(parent, name));
        }
        self.forget_removed();
        removed
    }

    /// rename(2) over what has the name.
    ///
    /// # Errors
    /// As the call.
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        let (old_place, new_place) = (self.place(from, false).await?, self.place(to, false).await?);
        let (_first, _second) = self.lock_both(old_place.0, new_place.0).await?;
        let moved = self.lookup_locked(&old_place, false).await?.ok_or(Errno::NOENT)?;
        let replaced = self.lookup_locked(&new_place, true).await?;
        if is_below(to, from) {
            return Err(Errno::INVAL);
        }
        if replaced == Some(moved) {
            return Ok(());
        }
        let ((parent, name), (new_parent, new_name)) = (old_place.clone(), new_place.clone());
        [parent, new_parent].into_iter().for_each(|directory| self.state().begin_naming(directory));
        let rename = self.vfs.rename(parent, name, new_parent, new_name, RenameMode::Replace, CALLER);
        let renamed = self.ask(rename).await;
        let mut state = self.state();
        match renamed {
            Ok(()) => {
                state.change(moved, |inode, _| inode.forget_attributes());
                if let Some(replaced) = replaced {
                    state.change(replaced, Inode::note_unlinked);
                }
                match state.entries.remove(&old_place) {
                    Some(entry) => state.entries.insert(new_place, entry),
                    None => state.entries.remove(&new_place),
                };
            }
            Err(Errno::NOENT) => drop(state.entries.remove(&old_place)),
            Err(_) => {}
        }
        [parent, new_parent].into_iter().for_each(|directory| state.end_naming(directory));
        renamed
    }

    /// link(2).
    ///
    /// # Errors
    /// As the call.
    pub async fn link(&self, from: &str, to: &str) -> Result<(), Errno> {
        let vnode = self.walk(from, false).await?;
        let place = self.place(to, false).await?;
        self.make(place.clone(), async { self.vfs.link(vnode, place.0, place.1, CALLER).await }).await.map(drop)
    }

    /// mkdir(2). Returns the new directory.
    ///
    /// # Errors
    /// As the call.
    pub async fn make_dir(&self, path: &str, mode: u32) -> Result<VnodeId, Errno> {
        let place = self.place(path, false).await?;
        let (parent, name) = place.clone();
        self.make(place, async { self.vfs.make_dir(parent, name, Mode::from_bits(mode), CALLER).await }).await
    }

    /// symlink(2). Returns the new symlink.
    ///
    /// # Errors
    /// As the call.
    pub async fn make_symlink(&self, path: &str, target: &str) -> Result<VnodeId, Errno> {
        let place = self.place(path, false).await?;
        let ((parent, name), target) = (place.clone(), Bytes::copy_from_slice(target.as_bytes()));
        self.make(place, async { self.vfs.make_symlink(parent, name, target, CALLER).await }).await
    }

    /// readlink(2).
    ///
    /// # Errors
    /// As the call.
    pub async fn read_link(&self, path: &str) -> Result<String, Errno> {
        let vnode = self.walk(path, false).await?;
        let target = self.ask(self.vfs.read_link(vnode)).await?;
        Ok(String::from_utf8_lossy(target.as_bytes()).into_owned())
    }

    /// Lists the names in a directory, sorted.
    ///
    /// # Errors
    /// As getdents(2).
    pub async fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        Ok(self.entries(path).await?.into_iter().map(|(name, _)| name).collect())
    }

    /// Lists names as [`Self::list`], with the objects that they mean.
    ///
    /// # Errors
    /// As getdents(2).
    pub async fn entries(&self, path: &str) -> Result<Vec<(String, VnodeId)>, Errno> {
        let vnode = self.walk(path, false).await?;
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            let page = self.ask_and_keep(self.vfs.read_dir(vnode, offset, LISTED_MAX), |_, page| page).await?;
            let Some(last) = page.entries.last() else { break };
            offset = last.next_offset;
            let shown =
                page.entries.iter().map(|entry| (String::from_utf8_lossy(&entry.name).into_owned(), entry.vnode));
            names.extend(shown.filter(|(name, _)| name != "." && name != ".."));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the object that a path means; every name is asked for if that is `fresh`.
    pub(super) async fn walk(&self, path: &str, fresh: bool) -> Result<VnodeId, Errno> {
        self.ensure_root().await?;
        let mut at = VnodeId::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if self.state().inode(at)?.attributes().kind != Kind::Directory {
                return Err(Errno::NOTDIR);
            }
            let place = (at, Bytes::copy_from_slice(name.as_bytes()));
            at = self.lookup(&place, fresh).await?.ok_or(Errno::NOENT)?;
        }
        Ok(at)
    }

    /// Returns the directory and the name of a path.
    pub(super) async fn place(&self, path: &str, fresh: bool) -> Result<Place, Errno> {
        let (directory, name) = split(path);
        let parent = self.walk(directory, fresh).await?;
        if self.state().inode(parent)?.attributes().kind != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        Ok((parent, Bytes::copy_from_slice(name.as_bytes())))
    }

    async fn ensure_root(&self) -> Result<(), Errno> {
        if self.state().inodes.contains_key(&VnodeId::ROOT) {
            return Ok(());
        }
        let root = self.ask(self.vfs.get_attributes(VnodeId::ROOT)).await?;
        self.state().inodes.entry(VnodeId::ROOT).or_insert_with(|| Inode::new(&root));
        Ok(())
    }

    /// Looks a name up. A call that has to ask shares the directory with others that ask.
    async fn lookup(&self, place: &Place, fresh: bool) -> Result<Option<VnodeId>, Errno> {
        if let Some(known) = self.known(place, fresh) {
            return Ok(known);
        }
        if self.is_revalidated(place).await? {
            return Ok(self.state().entries.get(place).and_then(|entry| entry.vnode));
        }
        let _names = self.names_of(place.0)?.read_owned().await;
        self.ask_for(place).await
    }

    /// Looks a name up like [`Self::lookup`], for a call that has locked the directory.
    pub(super) async fn lookup_locked(&self, place: &Place, fresh: bool) -> Result<Option<VnodeId>, Errno> {
        if let Some(known) = self.known(place, fresh) {
            return Ok(known);
        }
        if self.is_revalidated(place).await? {
            return Ok(self.state().entries.get(place).and_then(|entry| entry.vnode));
        }
        self.ask_for(place).await
    }

    fn known(&self, place: &Place, fresh: bool) -> Option<Option<VnodeId>> {
        let now = tokio::time::Instant::now();
        let state = self.state();
        let entry = state.entries.get(place).filter(|entry| entry.until.is_some_and(|until| now <= until))?;
        (!fresh).then_some(entry.vnode)
    }

    /// Asks for a name that has expired. Returns whether it means what it did. One that meant nothing is dropped.
    async fn is_revalidated(&self, place: &Place) -> Result<bool, Errno> {
        let known = self.state().entries.get(place).map(|entry| entry.vnode);
        let Some(known) = known else { return Ok(false) };
        let Some(vnode) = known else {
            self.state().entries.remove(place);
            return Ok(false);
        };
        let asked = self.state().version;
        let request = self.vfs.lookup_remembered(place.0, place.1.clone());
        let kept = self.ask_and_keep(request, |state, found| match found {
            Some(object) if object.fid.vnode == vnode => {
                self.keep(state, place, &object, Some(asked));
                true
            }
            other => {
                other.iter().for_each(|object| self.vfs.forget(object.fid.vnode, 1));
                false
            }
        });
        let is_same = kept.await.unwrap_or(false);
        if !is_same {
            self.state().entries.remove(place);
        }
        Ok(is_same)
    }

    async fn ask_for(&self, place: &Place) -> Result<Option<VnodeId>, Errno> {
        let asked = {
            let mut state = self.state();
            state.begin_naming(place.0);
            state.version
        };
        let request = self.vfs.lookup_remembered(place.0, place.1.clone());
        let found = self.ask_and_keep(request, |state, found| match found {
            Some(object) => {
                self.keep(state, place, &object, Some(asked));
                Some(object.fid.vnode)
            }
            None => {
                let until = until(self.vfs.absence_time_to_live(place.0));
                state.entries.insert(place.clone(), Entry { vnode: None, until });
                None
            }
        });
        let found = found.await;
        self.state().end_naming(place.0);
        found
    }

    /// Notes that a name means an object, which the daemon has counted as looked up.
    pub(super) fn keep(&self, state: &mut State, place: &Place, object: &Object, asked: Option<Version>) {
        let keep = self.vfs.entry_time_to_live(place.0, &place.1, object);
        state.look_up(object, keep, asked);
        let until = until(keep);
        state.entries.insert(place.clone(), Entry { vnode: Some(object.fid.vnode), until });
    }

    /// Makes a name, in a directory that is locked meanwhile.
    async fn make(&self, place: Place, request: impl Future<Output = Result<Object, Error>>) -> Result<VnodeId, Errno> {
        let _names = self.names_of(place.0)?.write_owned().await;
        if self.lookup_locked(&place, true).await?.is_some() {
            return Err(Errno::EXIST);
        }
        self.state().begin_naming(place.0);
        let made = self.ask_and_keep(request, |state, object| {
            self.keep(state, &place, &object, None);
            object.fid.vnode
        });
        let made = made.await;
        self.state().end_naming(place.0);
        made
    }

    pub(super) fn names_of(&self, vnode: VnodeId) -> Result<Arc<tokio::sync::RwLock<()>>, Errno> {
        Ok(Arc::clone(&self.state().inode(vnode)?.names))
    }

    /// Locks two directories, in one order, or one.
    async fn lock_both(&self, one: VnodeId, other: VnodeId) -> Result<(Guard, Option<Guard>), Errno> {
        let first = self.names_of(one.min(other))?.write_owned().await;
        if one == other {
            return Ok((first, None));
        }
        let second = self.names_of(one.max(other))?.write_owned().await;
        Ok((first, Some(second)))
    }
}

type Guard = tokio::sync::OwnedRwLockWriteGuard<()>;

/// Whether a path leads through another: no symlinks are on the way.
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}
