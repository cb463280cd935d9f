//! Passthrough: the kernel reads and writes the container of a file itself, without this daemon.
//!
//! An inode has one way for its data, from the end of its first open until its last handle is gone: the kernel refuses
//! a mixture. Nobody tells of a write that goes past the daemon, so the container does: while a handle that may write
//! is open, its modification time is a *mark*, the seal of its version or the time of [`watch`], as long as nobody has
//! written; any write moves it. The rules that keep a change from being missed:
//!
//! - The log says `Writing` before an open for writing returns, and until the last such handle is gone. It also says
//!   that the container is lent until then, or for good if it could be mapped: kill -9 of the daemon leaves descriptors
//!   and mappings with the programs, so that the next daemon goes on with a copy (`vfs/lent.rs`).
//! - The mark is set only when an edit has just been counted, so what came before it is part of that edit. The seal is
//!   put back only when nobody can write any more: finding the container unwritten and then sealing it would race.
//! - After the mark has been set, pages that a mapping may change without a fault are written to the disk, which makes
//!   the next store through the mapping a fault and moves the time.
//! - A handle's release comes after its last mapping is gone, and looks at the container once more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mafs_arpc::blocking;
use mafs_durable::DiskFile;
use mafs_proto::{DataVersion, Object};
use tokio::time::timeout;

use super::editing::before_copy;
use super::file::{File, FileState};
use super::{Error, FileHandle, Inner, OpenMode};
use crate::cache::{CacheError, is_unwritten, last_change, seal, watch};
use crate::core::log::LogEntry;

/// The way of a file's data between program and container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DataPath {
    /// Through this daemon.
    Daemon,
    /// The kernel has the container.
    Passthrough,
}

/// How the kernel uses a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KernelUse {
    /// `None` until the first open by the kernel has come to its end.
    pub(super) path: Option<DataPath>,
    /// Handles through which the kernel may write to the container.
    pub(super) writers: u32,
    /// Those that may also read: a mapping that writes needs one.
    mappers: u32,
    /// There were some: a mapping has the container itself, and may outlive the release of its handle, as on Linux
    /// 6.18.
    mappable: bool,
    /// The newest edit goes on: what is written until the mark is set again belongs to it.
    goes_on: bool,
    /// How often the mark was set while there were mappings, and after which of these the pages were protected.
    marked: u64,
    protected: u64,
}

/// Files up to this size that are opened for reading only, while nobody writes them, are read through this daemon:
/// once, as the kernel keeps the pages. To hand over a container costs an open some 4 us (38,000 opens/s in place of
/// 45,000), to read from pages of FUSE costs 0.1 us more for each KB.
const KEPT_BYTES_MAX: u64 = 32 << 10;

/// How long the kernel's release of a handle may take after its program has closed it. It is on its way when close(2)
/// returns; a thread that has read it may then wait for a processor.
const RELEASE_MAX: Duration = Duration::from_secs(1);

/// How often the sizes of files are looked at that the kernel writes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Inner {
    /// Decides how the kernel gets at a file that has been opened; the way the others go, if it is open. Returns
    /// whether the kernel is given the container.
    pub(super) async fn hand_over(self: &Arc<Self>, file: &Arc<File>, mode: OpenMode) -> Result<bool, Error> {
        loop {
            if self.choose_path(file, mode) == DataPath::Daemon {
                return Ok(false);
            }
            // Another version may be coming in, into the container that the kernel has.
            file.complete().await?;
            if !mode.write {
                return Ok(true);
            }
            before_copy(file).await;
            if blocking(|| self.begin_passthrough_writing(file, mode))? {
                return Ok(true);
            }
        }
    }

    fn choose_path(&self, file: &File, mode: OpenMode) -> DataPath {
        let crowded = mode.write && self.is_crowded();
        let mut state = file.state();
        let allowed = self.passthrough.load(Ordering::Relaxed);
        let small = !mode.write && state.size <= KEPT_BYTES_MAX;
        let fit = state.is_complete() && !mode.direct && !crowded && !small;
        let path = if allowed && fit { DataPath::Passthrough } else { DataPath::Daemon };
        *state.kernel.path.get_or_insert(path)
    }

    /// Whether files take more room than they may: then writes had better come by here, where they can be refused.
    fn is_crowded(&self) -> bool {
        let short = self.cache.disk.space().is_ok_and(|space| space.bytes_free < self.settings.min_free_bytes);
        short || self.replacement().excess_bytes(0) > 0
    }

    /// From now on the kernel may write. `false` if the content is not all here any more.
    fn begin_passthrough_writing(self: &Arc<Self>, file: &Arc<File>, mode: OpenMode) -> Result<bool, Error> {
        let _edit = file.edit();
        let (complete, first, base, dirty) = {
            let state = file.state();
            (state.is_complete(), state.kernel.writers == 0, state.base, state.is_dirty())
        };
        if !complete {
            return Ok(false);
        }
        if first {
            self.begin_lending(file)?;
            // Nobody writes yet, so what is there is what is known.
            if !is_unwritten(file.container.modified()?, base) {
                if dirty { watch(file.container.as_ref())? } else { seal(file.container.as_ref(), base)? }
            }
        }
        let mut state = file.state();
        if first {
            state.kernel.goes_on = false;
        }
        state.kernel.writers += 1;
        state.kernel.mappers += u32::from(mode.read);
        state.kernel.mappable |= mode.read;
        drop(state);
        self.kernel.forget_pages(file.fid.vnode);
        self.watch_sizes();
        Ok(true)
    }

    /// A handle through which the kernel could write is gone, and with it every mapping made through it.
    pub(super) fn end_passthrough_writing(&self, file: &File, mode: OpenMode) -> Result<(), Error> {
        let _edit = file.edit();
        let looked = self.look(file);
        let (last, as_known, base, hash) = {
            let mut state = file.state();
            state.kernel.writers -= 1;
            state.kernel.mappers -= u32::from(mode.read);
            if looked.is_err() || state.kernel.is_unprotected() {
                // It may have changed unseen.
                state.count_edit();
            }
            let as_known = !state.is_dirty() && state.unlinked.is_none() && state.is_complete();
            (state.kernel.writers == 0, as_known, state.base, state.hash)
        };
        file.notify();
        looked?;
        let returned = last && !as_known && {
            let state = file.state();
            state.writing_logged && !state.kernel.mappable
        };
        if returned {
            self.cache.cml.append(LogEntry::Returned { fid: file.fid })?;
        }
        if !last || !as_known {
            return Ok(());
        }
        seal(file.container.as_ref(), base)?;
        if let Some(hash) = hash {
            self.set_content(file, base, hash)?;
        }
        self.count_content(file)?;
        if std::mem::take(&mut file.state().writing_logged) {
            self.cache.cml.append(LogEntry::Dropped { fid: file.fid })?;
            self.log_changed.notify_one();
        }
        Ok(())
    }

    /// Counts what the kernel has written since the last look. Under `edit`.
    pub(super) fn look(&self, file: &File) -> Result<(), CacheError> {
        let (writers, base, complete) = {
            let state = file.state();
            (state.kernel.writers, state.base, state.is_complete())
        };
        // What arrives under a lock moves the time as well, and what has not all come is nobody's.
        if writers == 0 || !complete {
            return Ok(());
        }
        let modified = file.container.modified()?;
        if is_unwritten(modified, base) {
            return Ok(());
        }
        let size = file.container.len()?;
        let mut state = file.state();
        if !state.kernel.goes_on {
            self.note_edit(&mut state);
            state.kernel.goes_on = true;
        }
        state.size = size;
        state.mtime = modified.into();
        state.ctime = state.mtime;
        Ok(())
    }

    /// The same, for whoever is not changing the file.
    pub(super) fn look_now(&self, file: &File) -> Result<(), CacheError> {
        if file.state().kernel.writers == 0 {
            return Ok(());
        }
        let _edit = file.edit();
        self.look(file)
    }

    /// Looks at every file that the kernel may be writing.
    pub(super) fn look_at_all(&self) {
        let files = self.files().all();
        for file in files {
            if let Err(error) = self.look_now(&file) {
                tracing::warn!(fid = %file.fid, %error, "a file that is being written cannot be looked at");
            }
        }
    }

    /// Ends the newest edit: what the kernel writes from now on moves the container's time. Under `edit`; the caller
    /// sees to [`Self::protect`] before it reads the content.
    pub(super) fn end_edit(&self, file: &File) -> Result<(), CacheError> {
        self.look(file)?;
        let (goes_on, sending) = {
            let mut state = file.state();
            let goes_on = std::mem::take(&mut state.kernel.goes_on) && state.kernel.writers > 0;
            state.kernel.marked += u64::from(goes_on && state.kernel.mappers > 0);
            (goes_on, state.sending.clone())
        };
        if goes_on {
            if let Some(content) = sending {
                content.look()?;
            }
            watch(file.container.as_ref())?;
            let size = file.container.len()?;
            file.state().size = size;
        }
        Ok(())
    }

    /// Makes a container hold one edit, and its time tell of the next.
    pub(super) async fn settle(&self, file: &File) -> Result<(), Error> {
        blocking(|| {
            let _edit = file.edit();
            self.end_edit(file)
        })?;
        let unprotected = file.state().kernel.is_unprotected();
        if unprotected {
            // Not on a session thread: a disk takes its time.
            tokio::task::yield_now().await;
            blocking(|| protect(file))?;
        }
        Ok(())
    }

    /// Waits until what programs here have closed does not count as being written any more, where others have made the
    /// version `shown` since. A handle that stays, because something else has its descriptor, is waited for once.
    pub(super) async fn until_released(&self, file: &File, shown: DataVersion) {
        let in_the_way = |state: &FileState| state.kernel.writers > 0 && !state.is_dirty() && state.base != shown;
        // Two locks, one after the other: elsewhere they are taken in the other order.
        let is_in_the_way = in_the_way(&file.state());
        if !is_in_the_way || !self.files().are_closing(file.fid.vnode) {
            return;
        }
        let released = file.wait(|state| (!in_the_way(state)).then_some(()));
        if timeout(RELEASE_MAX, released).await.is_err() {
            self.files().stay_open(file.fid.vnode);
        }
    }

    /// What stat(2) shows of a file that the kernel may be writing: what its container shows, unless all who could have
    /// written have closed it and have not.
    pub(super) fn present_written(&self, file: &File, object: &mut Object) {
        let (writers, base, newer) = {
            let state = file.state();
            (state.kernel.writers, state.base, state.is_newer_than(object.status.data_version))
        };
        if writers == 0 {
            return;
        }
        let are_closing = !newer && self.files().are_closing(file.fid.vnode);
        match file.container.stat() {
            Ok(stat) if are_closing && is_unwritten(stat.modified, base) => {}
            Ok(stat) => {
                object.status.size = stat.bytes;
                if let Some(changed) = last_change(stat.modified, base) {
                    object.status.mtime = changed.into();
                    object.status.ctime = object.status.ctime.max(changed.into());
                }
            }
            Err(error) => {
                tracing::warn!(fid = %file.fid, %error, "a file that is being written cannot be looked at");
            }
        }
    }

    /// The container behind a handle.
    pub(super) fn container(&self, handle: FileHandle) -> Result<Arc<dyn DiskFile>, Error> {
        Ok(self.handle(handle)?.file.container.file()?)
    }

    /// The kernel does not take containers: from now on it is given none.
    pub(super) fn end_passthrough(&self, why: &str) {
        if self.passthrough.swap(false, Ordering::Relaxed) {
            tracing::info!(why, "files are read and written through this daemon: no passthrough");
        }
    }

    /// The kernel has not taken the container of this handle: its data comes by here.
    pub(super) fn leave_passthrough(&self, handle: FileHandle) -> Result<(), Error> {
        let left = self.files().leave_passthrough(handle);
        let Some((file, mode)) = left else { return Ok(()) };
        file.state().kernel.path = Some(DataPath::Daemon);
        if mode.write { self.end_passthrough_writing(&file, mode) } else { Ok(()) }
    }

    /// Keeps an eye on how large files grow while the kernel writes any.
    fn watch_sizes(self: &Arc<Self>) {
        if self.watching_sizes.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(inner) = inner.upgrade() else { return };
                if !blocking(|| inner.look_at_sizes()) {
                    inner.watching_sizes.store(false, Ordering::Release);
                    // One may have come between the look and the line above.
                    if !blocking(|| inner.look_at_sizes()) || inner.watching_sizes.swap(true, Ordering::AcqRel) {
                        return;
                    }
                }
            }
        });
    }

    /// Counts the bytes that the kernel has written, and makes room for them. Returns whether it may be writing.
    fn look_at_sizes(&self) -> bool {
        let mut written = false;
        {
            // Held so that none of them is dropped, and evicted, meanwhile.
            let files = self.files();
            for file in files.all().into_iter().filter(|file| file.state().kernel.writers > 0) {
                written = true;
                if let Err(error) = self.count_content(&file) {
                    tracing::warn!(fid = %file.fid, %error, "a file that is being written cannot be looked at");
                }
            }
        }
        if written {
            self.make_room(0);
        }
        written
    }
}

/// Writes dirty pages to the disk, so that the next store through a mapping is a fault. Twice: a fault that had moved
/// the time just before the mark was set may make its page dirty just after the first pass over the pages; it has all
/// the time of a disk's flush to do so.
pub(super) fn protect(file: &File) -> Result<(), Error> {
    let marked = file.state().kernel.marked;
    file.container.sync_data()?;
    file.container.sync_data()?;
    file.state().kernel.note_protected(marked);
    Ok(())
}

/// The same of a file whose mark has been set since it was settled: what it holds may be read then, and is one edit.
/// Under `edit`.
pub(super) fn protect_marked(file: &File) -> Result<(), Error> {
    let unprotected = file.state().kernel.is_unprotected();
    if unprotected { protect(file) } else { Ok(()) }
}

impl KernelUse {
    /// Whether a mapping may write.
    pub(super) fn is_mapped(&self) -> bool {
        self.mappers > 0
    }

    /// Whether the mark is set, and mappings may still store without moving it.
    pub(super) fn is_unprotected(&self) -> bool {
        self.marked > self.protected
    }

    /// The pages have been protected that were marked up to this count.
    fn note_protected(&mut self, marked: u64) {
        self.protected = self.protected.max(marked);
    }

    /// What is left when the last handle is gone. The counts go on: who is just protecting has looked at one of them.
    fn without_handles(self) -> Self {
        let Self { goes_on, mappable, marked, .. } = self;
        Self { goes_on, mappable, marked, protected: marked, ..Self::default() }
    }
}

impl FileState {
    /// The last handle is gone: the next open decides anew.
    pub(super) fn forget_path(&mut self) {
        if self.handles == 0 {
            self.kernel = self.kernel.without_handles();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_protects_pages_while_the_last_handle_goes_protects_none_that_are_marked_later() {
        let mut kernel = KernelUse { marked: 3, protected: 2, ..KernelUse::default() };
        let looked = kernel.marked;
        kernel = kernel.without_handles();
        assert!(!kernel.is_unprotected(), "nobody has mapped it any more");
        kernel.marked += 1;
        kernel.note_protected(looked);
        assert!(kernel.is_unprotected());
        kernel.note_protected(kernel.marked);
        assert!(!kernel.is_unprotected());
    }
}
