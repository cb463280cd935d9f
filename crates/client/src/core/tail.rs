//! The page in which a file ends, as the kernel may have it of a file that is read and written by this daemon.
//!
//! A mapping may store in that page beyond the end. Such bytes are not part of the file: where it grows it has zeros.
//! The kernel cuts them off when it writes the page back, but not when the file grows first (fs/fuse of Linux 6.18).
//!
//! This module must not know files or the kernel. A doubt is decided for what a program has stored: it may have stored
//! it after the file has grown.

use std::ops::Range;

/// The size of a page.
const PAGE_BYTES: u64 = 4096;

/// State of the end of a file as the kernel may have it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tail {
    /// Offset up to which it has read: only in a page that was read can a mapping store.
    read_to: u64,
    /// Bytes that were beyond the end when a program has made the file longer: what comes next from a mapping is from
    /// before that.
    zeros: Range<u64>,
}

impl Tail {
    /// Notes that the kernel reads a range.
    pub(crate) fn read(&mut self, range: Range<u64>) {
        self.read_to = self.read_to.max(range.end);
        // The page is a new one.
        self.end_zeros(&range);
    }

    /// Notes that the file is opened again, and the kernel keeps the pages that it has read before.
    pub(crate) fn kept(&mut self) {
        self.read_to = u64::MAX;
    }

    /// Notes that a program has written a range.
    pub(crate) fn written(&mut self, range: &Range<u64>) {
        self.end_zeros(range);
    }

    /// Returns the page that the kernel must forget before a file of this size holds something from `start` on: else it
    /// would go on showing what a mapping has stored beyond the end.
    pub(crate) fn to_forget(&self, size: u64, start: u64) -> Option<Range<u64>> {
        let page = size - size % PAGE_BYTES;
        (start > size && page < size && page < self.read_to).then_some(page..page + PAGE_BYTES)
    }

    /// Notes that the kernel has forgotten its pages from this one on.
    pub(crate) fn forgotten(&mut self, page: u64) {
        self.read_to = self.read_to.min(page);
    }

    /// Notes that a program sets the size. The kernel drops its pages behind that, but writes back those that were
    /// changed.
    pub(crate) fn resized(&mut self, before: u64, size: u64) {
        self.zeros = self.to_forget(before, size).map_or(0..0, |page| before..page.end.min(size));
        self.read_to = 0;
    }

    /// Returns which bytes are zeros all the same of those that the kernel writes back. Once: the pages are new ones
    /// then.
    pub(crate) fn take_zeros(&mut self, range: &Range<u64>) -> Range<u64> {
        if !overlap(&self.zeros, range) {
            return 0..0;
        }
        let zeros = std::mem::replace(&mut self.zeros, 0..0);
        zeros.start.max(range.start)..zeros.end.min(range.end)
    }

    fn end_zeros(&mut self, range: &Range<u64>) {
        if overlap(&self.zeros, range) {
            self.zeros = 0..0;
        }
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_to(end: u64) -> Tail {
        let mut tail = Tail::default();
        tail.read(0..end);
        tail
    }

    #[test]
    fn what_was_stored_beyond_the_end_of_a_file_that_is_made_longer_is_zeros_once() {
        let mut tail = read_to(8192);
        tail.resized(5000, 20_000);
        assert_eq!(tail.take_zeros(&(0..4096)), 0..0, "another page");
        assert_eq!(tail.take_zeros(&(4096..8192)), 5000..8192);
        assert_eq!(tail.take_zeros(&(4096..8192)), 0..0, "stored since");
    }

    #[test]
    fn no_more_than_what_the_file_has_gained_is_zeros() {
        let mut tail = read_to(8192);
        tail.resized(5000, 6000);
        assert_eq!(tail.take_zeros(&(4096..6000)), 5000..6000);
    }

    #[test]
    fn what_is_read_or_written_since_is_what_it_is() {
        let (mut read, mut written) = (read_to(8192), read_to(8192));
        read.resized(5000, 20_000);
        read.read(4096..8192);
        assert_eq!(read.take_zeros(&(4096..8192)), 0..0);
        written.resized(5000, 20_000);
        written.written(&(6000..6001));
        assert_eq!(written.take_zeros(&(4096..8192)), 0..0);
    }

    #[test]
    fn a_page_that_was_never_read_has_nothing_beyond_the_end() {
        let mut tail = read_to(4096);
        assert_eq!(tail.to_forget(5000, 6000), None);
        tail.resized(5000, 20_000);
        assert_eq!(tail.take_zeros(&(4096..8192)), 0..0);
    }

    #[test]
    fn pages_that_are_kept_may_be_any() {
        let mut tail = Tail::default();
        tail.kept();
        assert_eq!(tail.to_forget(5000, 5001), Some(4096..8192));
    }

    #[test]
    fn the_last_page_is_forgotten_before_something_is_written_behind_a_gap() {
        let mut tail = read_to(8192);
        assert_eq!(tail.to_forget(5000, 5000), None, "there is no gap");
        assert_eq!(tail.to_forget(8192, 9000), None, "it ends with a page");
        assert_eq!(tail.to_forget(5000, 5001), Some(4096..8192));
        tail.forgotten(4096);
        assert_eq!(tail.to_forget(5000, 5001), None);
    }
}
