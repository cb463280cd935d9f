//! Changing contents: write, truncate, and the close that sends what was changed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::blocking;
use mafs_durable::DiskFile;
use mafs_proto::{DataVersion, FILE_SIZE_MAX, FsError};
use tokio::time::timeout;

use super::changes::Close;
use super::file::File;
use super::files::Handle;
use super::passthrough::sight;
use super::storing::Patience;
use super::{Error, FileHandle, Inner, Vfs};
use crate::core::log::LogEntry;

/// A content being sent that is larger than this is copied away from the session threads.
const COPY_BYTES_MAX: u64 = 1 << 20;

/// Time for which a program waits until the kernel has forgotten the page in which a file ends: a long time only if
/// that page is what the program writes, and then no mapping has it.
const FORGET_MAX: Duration = Duration::from_millis(20);

/// Place where bytes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    At(u64),
    /// Pages that the kernel writes back, in which a mapping has stored.
    Pages(u64),
    /// Where the content ends at that moment.
    End,
}

impl Place {
    /// Returns where the content ends at least when so many bytes are written there. Pages are not beyond its end.
    fn end(self, file: &File, bytes: u64) -> u64 {
        match self {
            Self::At(offset) => offset.saturating_add(bytes),
            Self::Pages(_) => 0,
            Self::End => file.state().stat().size().saturating_add(bytes),
        }
    }
}

impl Vfs {
    /// Writes all of `data` behind what the file holds at that moment, as a program that writes with `O_APPEND`
    /// expects: the kernel may not know yet what another client, or a lock, has brought. Returns where that was.
    pub async fn append(&self, file: FileHandle, data: Bytes) -> Result<u64, Error> {
        self.inner.write(file, Place::End, data).await
    }

    /// Writes pages in which a mapping has stored.
    pub async fn write_back(&self, file: FileHandle, offset: u64, data: Bytes) -> Result<(), Error> {
        self.inner.write(file, Place::Pages(offset), data).await.map(drop)
    }
}

impl Inner {
    /// Writes. Returns where.
    pub(super) async fn write(&self, handle: FileHandle, place: Place, data: Bytes) -> Result<u64, Error> {
        let Handle { file, mode, .. } = self.handle(handle)?;
        // The kernel writes pages of a shared mapping back through any handle it likes.
        if !mode.write && !mode.read {
            return Err(Error::BadHandle);
        }
        loop {
            file.complete().await?;
            before_copy(&file).await;
            if let Place::At(offset) = place {
                self.before_gap(&file, offset).await;
            }
            let bytes = data.len() as u64;
            self.until_uncrowded(&file, place.end(&file, bytes), bytes).await?;
            match blocking(|| self.write_now(&file, place, &data)) {
                Ok(Some(offset)) => return Ok(offset),
                // Another version began to come in; this write goes on top of it.
                Ok(None) => {}
                Err(Error::CacheFull) if self.find_room(data.len() as u64) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes the kernel forget the page in which a file ends, before bytes are written from `start` on, which may lie
    /// behind the end: what a mapping has stored there must not become part of the file.
    pub(super) async fn before_gap(&self, file: &File, start: u64) {
        let page = file.state().stat_mut().take_page_to_forget(start);
        if let Some(page) = page {
            let forgotten = self.kernel.forget_range(file.fid.vnode, page);
            if timeout(FORGET_MAX, forgotten).await.is_err() {
                tracing::debug!(fid = %file.fid, "the kernel does not forget the page in which a file ends");
            }
        }
    }

    /// Writes, unless the content is not all here any more. Returns where.
    fn write_now(&self, file: &File, place: Place, data: &Bytes) -> Result<Option<u64>, Error> {
        let _edit = file.edit();
        if !file.state().is_complete() {
            return Ok(None);
        }
        self.look(file)?;
        let offset = match place {
            Place::At(offset) | Place::Pages(offset) => offset,
            Place::End => file.state().stat().size(),
        };
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_SIZE_MAX);
        let Some(end) = end else { return Err(Error::Refused(FsError::TooLarge)) };
        let cleared = match place {
            Place::Pages(_) => without_zeros(data, offset, file.state().stat_mut().take_zeros(&(offset..end))),
            Place::At(_) | Place::End => None,
        };
        self.edit_with(file, || write_or_cut(file, cleared.as_ref().unwrap_or(data), offset))?;
        if !matches!(place, Place::Pages(_)) {
            file.state().stat_mut().written(&(offset..end));
        }
        Ok(Some(offset))
    }

    /// Cuts or grows a file.
    pub(super) async fn resize(&self, file: &File, size: u64) -> Result<(), Error> {
        if size > FILE_SIZE_MAX {
            return Err(Error::Refused(FsError::TooLarge));
        }
        loop {
            if size > 0 {
                file.complete().await?;
            }
            before_copy(file).await;
            if blocking(|| self.resize_to(file, size))? {
                return Ok(());
            }
        }
    }

    /// Drops the content of a file that is opened for that when it is at this version. The bytes written then replace
    /// that version, whichever others here have open.
    pub(super) async fn cut_opened(&self, file: &File, version: DataVersion) -> Result<(), Error> {
        before_copy(file).await;
        blocking(|| {
            let _edit = file.edit();
            let before = file.state().rebase(version);
            let cut = self.resize_now(file, 0);
            if let (Err(_), Some(before)) = (&cut, before) {
                file.state().undo_rebase(before);
            }
            cut
        })
    }

    /// Cuts or grows, unless the content to keep is not all here any more.
    fn resize_to(&self, file: &File, size: u64) -> Result<bool, Error> {
        let _edit = file.edit();
        if size > 0 && !file.state().is_complete() {
            return Ok(false);
        }
        self.resize_now(file, size).map(|()| true)
    }

    /// Cuts or grows. Under `edit`.
    fn resize_now(&self, file: &File, size: u64) -> Result<(), Error> {
        self.forget_part(file)?;
        let before = file.state().stat().size();
        self.edit_with(file, || file.container.set_len(size))?;
        {
            file.state().cut(before);
        }
        file.notify();
        Ok(())
    }

    /// Changes bytes, and the size with them. Under `edit`.
    pub(super) fn edit_with(&self, file: &File, change: impl FnOnce() -> std::io::Result<()>) -> Result<(), Error> {
        let was_clean = !file.state().is_writing_logged();
        self.begin_edit(file)?;
        let before = sight(file)?;
        let changed = change();
        let after = sight(file);
        // A change that fails half-way has changed bytes too.
        if changed.is_err() && after.as_ref().is_ok_and(|after| *after == before) && self.storage.tells_changes() {
            if was_clean {
                self.undo_begin(file)?;
            }
            return Ok(changed?);
        }
        let mut state = file.state();
        state.edit(self.clock.wall());
        state.see_edit(after?);
        Ok(changed?)
    }

    /// Logs that a file is not being changed: it is as it was, and a power loss would else be taken for a loss.
    fn undo_begin(&self, file: &File) -> Result<(), Error> {
        if file.state().log_writing(false) {
            self.cache.cml.append(LogEntry::Dropped { fid: file.fid })?;
            self.log_changed.notify_one();
        }
        Ok(())
    }

    /// Prepares a change of bytes: what is being sent moves out of the way, and the log says that the file is dirty.
    /// Under `edit`.
    pub(super) fn begin_edit(&self, file: &File) -> Result<(), Error> {
        let lent = file.state().users().may_write();
        self.begin(file, lent)
    }

    /// Prepares as [`Self::begin_edit`] does, before the kernel is given the container to write to. Under `edit`.
    pub(super) fn begin_lending(&self, file: &File) -> Result<(), Error> {
        let logged = file.state().is_writing_logged();
        self.begin(file, true)?;
        if logged || file.state().fate().is_unlinked() {
            // This includes a file without a name, of which the log may still know versions.
            self.cache.cml.append(LogEntry::Lent { fid: file.fid })?;
        }
        Ok(())
    }

    fn begin(&self, file: &File, lent: bool) -> Result<(), Error> {
        self.look(file)?;
        let (logged, base, unlinked) = {
            let state = file.state();
            (state.is_writing_logged(), state.basis().version(), state.fate().is_unlinked())
        };
        self.preserve_version(file)?;
        if !logged && !unlinked {
            let (fid, container) = (file.fid, file.container_id);
            let may_forget = self.cache.cml.may_forget_answer(fid);
            self.cache.cml.append(LogEntry::Writing { fid, base, container, lent })?;
            if may_forget || self.cache.index.is_content_durable(fid.vnode)? {
                // After a power loss only the log tells that these bytes are no longer the version the index says, or
                // the one that was durable when it was sent.
                self.cache.cml.sync()?;
            }
            file.state().log_writing(true);
            self.log_changed.notify_one();
        }
        Ok(())
    }

    /// Logs the file's content before a close returns, if the server lacks it, and waits as long as the user wants.
    pub(super) async fn flush(self: &Arc<Self>, handle: FileHandle) -> Result<(), Error> {
        let file = self.files().begin_close(handle)?;
        if !self.is_changed(&file)? {
            return Ok(());
        }
        if self.settings.writeback.waits() {
            return self.store(&file, Patience::Once).await;
        }
        blocking(|| self.log_version(&file))?;
        self.until_it_fits(&file).await?;
        match self.settings.close {
            Close::Logged => Ok(()),
            Close::Auto => self.until_announced_if_soon(&file).await,
            Close::Announced => self.until_announced(&file).await,
        }
    }

    /// Returns whether the server lacks content of a file, as of now.
    pub(super) fn is_changed(&self, file: &File) -> Result<bool, Error> {
        self.look_now(file)?;
        Ok(file.state().is_dirty())
    }
}

/// Leaves the session thread, which others need, before a change that has to copy a large content being sent.
pub(super) async fn before_copy(file: &File) {
    let large = file.state().versions().sending().is_some_and(|content| content.size > COPY_BYTES_MAX);
    if large {
        tokio::task::yield_now().await;
    }
}

/// Returns the bytes from `offset` on with zeros where there are to be some; `None`: as they are.
fn without_zeros(data: &Bytes, offset: u64, zeros: Range<u64>) -> Option<Bytes> {
    let place = |at: u64| usize::try_from(at.checked_sub(offset)?).ok();
    let range = place(zeros.start)?..place(zeros.end)?;
    let mut cleared = data.to_vec();
    cleared.get_mut(range).filter(|range| !range.is_empty())?.fill(0);
    Some(cleared.into())
}

/// Writes, and cuts off what a failed write has left behind the end: that must not appear when the file grows.
fn write_or_cut(file: &File, data: &[u8], offset: u64) -> std::io::Result<()> {
    let written = file.container.write_all_at(data, offset);
    if written.is_err() {
        let size = file.state().stat().size();
        let cut = match file.container.len() {
            Ok(bytes) if bytes > size => file.container.set_len(size),
            other => other.map(drop),
        };
        if let Err(error) = cut {
            tracing::error!(fid = %file.fid, %error, "what a failed write has left cannot be cut off");
        }
    }
    written
}
