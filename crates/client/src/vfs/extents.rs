//! Ranges of contents: reserving and giving back room, finding holes, copying from file to file.

use std::ops::Range;
use std::sync::Arc;

use mafs_arpc::blocking;
use mafs_durable::{DiskFile, Fallocate, copy_range};
use mafs_proto::{FILE_SIZE_MAX, FsError};
use tokio::task::yield_now;

use super::file::File;
use super::files::Handle;
use super::{Error, FileHandle, Inner};

/// The most bytes that one request copies, so that its caller can be interrupted between two.
const COPY_BYTES_MAX: u64 = 16 << 20;

/// Target of a seek.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTarget {
    /// Bytes that may be other than zero.
    Data,
    /// A hole; the end of the file is one.
    Hole,
}

impl Inner {
    /// Reserves, zeroes or gives back a range.
    pub(super) async fn allocate(
        &self,
        handle: FileHandle,
        how: Fallocate,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        let Handle { file, mode, .. } = self.handle(handle)?;
        if !mode.write {
            return Err(Error::BadHandle);
        }
        let end = checked_end(offset, bytes)?;
        // Large ranges take their time: not on a session thread, which others need.
        yield_now().await;
        loop {
            file.complete().await?;
            self.before_gap(&file, end).await;
            match blocking(|| self.allocate_now(&file, how, offset..end)) {
                Ok(true) => return Ok(()),
                // Another version began to come in; this change goes on top of it.
                Ok(false) => {}
                Err(Error::CacheFull) if self.find_room(bytes) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Changes the range, unless the content is not all here any more.
    fn allocate_now(&self, file: &File, how: Fallocate, range: Range<u64>) -> Result<bool, Error> {
        let _edit = file.edit();
        if !file.state().is_complete() {
            return Ok(false);
        }
        self.edit_with(file, || file.container.fallocate(how, range.start, range.end - range.start))?;
        Ok(true)
    }

    /// Returns the first byte at or behind `offset` that is data, or in a hole; `NoSuchOffset` if there is none.
    /// Waits until what has arrived tells. All is data of a file that programs may have mapped by way of this daemon:
    /// the kernel has what they have stored, and asks here all the same.
    pub(super) async fn seek(&self, handle: FileHandle, target: SeekTarget, offset: u64) -> Result<u64, Error> {
        let file = self.handle(handle)?.file;
        if self.files().may_be_mapped_unseen(file.fid.vnode) {
            let size = file.state().stat().size();
            return match target {
                _ if offset >= size => Err(Error::NoSuchOffset),
                SeekTarget::Data => Ok(offset),
                SeekTarget::Hole => Ok(size),
            };
        }
        file.wait_for_content(|state| {
            let (found, size) = match seek_arrived(&file, target, offset) {
                Ok(found) => found,
                Err(error) => return Some(Err(error)),
            };
            // A hole in the container is one of the file only where the bytes have arrived.
            let looked_at = found.map_or(size, |found| size.min(found.saturating_add(1)));
            state.arrival_mut().want(offset..looked_at).map(|here| here.map(|()| found).map_err(Error::from))
        })
        .await?
        .ok_or(Error::NoSuchOffset)
    }

    /// Copies up to `bytes` bytes from one open file into another, or within one, and returns how many: fewer at the
    /// end of the source, and never more than a few megabytes at a time.
    pub(super) async fn copy_range(
        &self,
        (from, from_offset): (FileHandle, u64),
        (to, to_offset): (FileHandle, u64),
        bytes: u64,
    ) -> Result<u64, Error> {
        let (from, to) = (self.handle(from)?, self.handle(to)?);
        if !from.mode.read || !to.mode.write || to.mode.append {
            return Err(Error::BadHandle);
        }
        let bytes = bytes.min(COPY_BYTES_MAX);
        checked_end(from_offset, bytes)?;
        checked_end(to_offset, bytes)?;
        let same = Arc::ptr_eq(&from.file, &to.file);
        if same && from_offset.abs_diff(to_offset) < bytes {
            return Err(Error::Invalid("the ranges overlap".to_owned()));
        }
        // Copying is not for a session thread, which others need.
        yield_now().await;
        loop {
            self.look_now(&from.file)?;
            let size = from.file.arrived(from_offset..from_offset + bytes).await?;
            let bytes = bytes.min(size.saturating_sub(from_offset));
            if bytes == 0 {
                return Ok(0);
            }
            to.file.complete().await?;
            self.before_gap(&to.file, to_offset).await;
            match blocking(|| self.copy_now((&from.file, from_offset), (&to.file, to_offset), bytes)) {
                Ok(Some(copied)) => return Ok(copied),
                // Another version began to come in; this change goes on top of it.
                Ok(None) => {}
                Err(Error::CacheFull) if self.find_room(bytes) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Copies, unless the target's content is not all here any more.
    fn copy_now(&self, from: (&File, u64), to: (&File, u64), bytes: u64) -> Result<Option<u64>, Error> {
        let (file, offset) = to;
        let _edit = file.edit();
        if !file.state().is_complete() {
            return Ok(None);
        }
        let mut copied = 0;
        self.edit_with(file, || {
            let (source, target) = (from.0.container.file()?, file.container.file()?);
            copied = copy_range((source.as_ref(), from.1), (target.as_ref(), offset), bytes)?;
            Ok(())
        })?;
        Ok(Some(copied))
    }
}

/// Returns where a seek ends as far as the container knows, `None` if nowhere; and the size of the content.
fn seek_arrived(file: &File, target: SeekTarget, offset: u64) -> Result<(Option<u64>, u64), Error> {
    let found = match target {
        SeekTarget::Data => file.container.seek_data(offset)?,
        SeekTarget::Hole => file.container.seek_hole(offset)?,
    };
    Ok((found, file.container.len()?))
}

fn checked_end(offset: u64, bytes: u64) -> Result<u64, Error> {
    offset.checked_add(bytes).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Error::Refused(FsError::TooLarge))
}
