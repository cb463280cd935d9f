//! Stat: size and times of a content as they are here, and what the kernel may have of the page in which it ends.
//!
//! Invariant: whatever changes the content moves both times, and the time of change never lies behind what the index
//! has shown before.

use std::ops::Range;

use mafs_proto::{Status, Timestamp};

use crate::core::tail::Tail;

/// Size and times of one content, as stat(2) shows them.
#[derive(Clone, Debug)]
pub(crate) struct Stat {
    size: u64,
    mtime: Timestamp,
    ctime: Timestamp,
    tail: Tail,
}

impl Stat {
    /// Makes the stat of a version of the server's.
    pub(crate) fn of(status: &Status) -> Self {
        Self { size: status.size, mtime: status.mtime, ctime: status.ctime, tail: Tail::default() }
    }

    /// Makes the stat of a content that an earlier life has changed at this time.
    pub(crate) fn taken_up(size: u64, changed: Timestamp) -> Self {
        Self { size, mtime: changed, ctime: changed, tail: Tail::default() }
    }

    /// Its size.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Its modification time.
    pub(crate) fn mtime(&self) -> Timestamp {
        self.mtime
    }

    /// Returns when anything of the file was changed last, here or as the index knows.
    pub(crate) fn last_change(&self, known: Option<&Status>) -> Timestamp {
        known.map_or(self.ctime, |known| known.ctime.max(self.ctime))
    }

    /// Puts size and times in the place of those in a status.
    pub(crate) fn lay_over(&self, status: &mut Status) {
        (status.size, status.mtime, status.ctime) = (self.size, self.mtime, self.ctime);
    }

    /// Notes that the content is this version.
    pub(crate) fn become_version(&mut self, status: &Status) {
        (self.size, self.mtime, self.ctime) = (status.size, status.mtime, status.ctime);
    }

    /// Notes that the content was changed at this time.
    pub(crate) fn change(&mut self, now: Timestamp) {
        (self.mtime, self.ctime) = (now, now);
    }

    /// Notes that the content has this size now.
    pub(crate) fn set_size(&mut self, size: u64) {
        self.size = size;
    }

    /// Notes that a program has set the time of the content.
    pub(crate) fn set_mtime(&mut self, mtime: Timestamp) {
        self.mtime = mtime;
    }

    /// Notes that something else than the content was changed at this time.
    pub(crate) fn set_ctime(&mut self, now: Timestamp) {
        self.ctime = now;
    }

    /// Notes that the kernel reads a range.
    pub(crate) fn read(&mut self, range: Range<u64>) {
        self.tail.read(range);
    }

    /// Notes that the kernel keeps the pages that it has.
    pub(crate) fn keep_pages(&mut self) {
        self.tail.kept();
    }

    /// Notes that a program has written a range.
    pub(crate) fn written(&mut self, range: &Range<u64>) {
        self.tail.written(range);
    }

    /// Returns the page that the kernel must forget before the file holds something from `start` on. Once.
    pub(crate) fn take_page_to_forget(&mut self, start: u64) -> Option<Range<u64>> {
        let page = self.tail.to_forget(self.size, start)?;
        self.tail.forgotten(page.start);
        Some(page)
    }

    /// Returns which bytes are zeros all the same of those that the kernel writes back. Once.
    pub(crate) fn take_zeros(&mut self, range: &Range<u64>) -> Range<u64> {
        self.tail.take_zeros(range)
    }

    /// Notes that a program has set the size, which was another `before`.
    pub(crate) fn resized(&mut self, before: u64) {
        self.tail.resized(before, self.size);
    }
}

#[cfg(test)]
mod tests;
