//! State that the kernel keeps of one inode: its attributes with their version, its pages, and the way of its data.
//!
//! After fs/fuse/inode.c (`fuse_change_attributes`), file.c (`fuse_short_read`, `fuse_write_update_attr`) and iomode.c
//! of Linux 6.18, without a writeback cache. This module decides only; the code that asks the daemon is elsewhere.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use mafs_proto::{Kind, Object, VnodeId};
use tokio::sync::{Mutex, RwLock};
use tokio::time::Instant;

use super::backing::Backing;
use super::errno::Errno;

/// Bytes of a page, the unit in which a content is kept.
pub(super) const PAGE_BYTES: u64 = 4096;

/// Bytes of a page in memory: [`PAGE_BYTES`] as a `usize`.
const PAGE: usize = 4096;

/// Counts changes of attributes, over all inodes: an answer that was asked for before a change is older than it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Version(pub(super) u64);

/// Attributes of a file that stat(2) tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// The object.
    pub vnode: VnodeId,
    /// Its kind.
    pub kind: Kind,
    /// Its size.
    pub size: u64,
    /// Permissions.
    pub mode: u16,
    /// Its names.
    pub links: u32,
}

impl Attributes {
    pub(crate) fn of(object: &Object) -> Self {
        let (vnode, status) = (object.fid.vnode, &object.status);
        Self { vnode, kind: status.kind, size: status.size, mode: status.mode.bits(), links: status.nlink }
    }
}

/// An inode.
pub(super) struct Inode {
    /// Lookups that the kernel has to give back.
    pub(super) lookups: u64,
    /// Open files.
    pub(super) opened: u32,
    attributes: Attributes,
    version: Version,
    /// Until when the attributes hold; `None` if the kernel must ask.
    valid_until: Option<Instant>,
    /// The size is being set: no answer says what it is.
    pub(super) resizing: bool,
    pages: BTreeMap<u64, Page>,
    /// How often pages were dropped because they are out of date.
    drops: u64,
    way: Way,
    /// Held while the file is changed.
    pub(super) lock: Arc<Mutex<()>>,
    /// Held to change names of a directory, shared to ask for one.
    pub(super) names: Arc<RwLock<()>>,
}

struct Page {
    bytes: Vec<u8>,
    /// Whether the page was stored to through a mapping.
    dirty: bool,
    /// Whether the bytes that were stored are on their way to the daemon.
    written: bool,
}

impl Page {
    fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, dirty: false, written: false }
    }

    /// Whether the daemon has not heard of what the page holds.
    fn is_ahead(&self) -> bool {
        self.dirty || self.written
    }
}

/// The way of an inode's data: the open files of one are all of one kind.
#[derive(Default)]
struct Way {
    cached: u32,
    passthrough: u32,
    backing: Option<Backing>,
}

impl Inode {
    pub(super) fn new(object: &Object) -> Self {
        Self {
            lookups: 0,
            opened: 0,
            attributes: Attributes::of(object),
            version: Version(0),
            valid_until: None,
            resizing: false,
            pages: BTreeMap::new(),
            drops: 0,
            way: Way::default(),
            lock: Arc::default(),
            names: Arc::default(),
        }
    }

    pub(super) fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    pub(super) fn size(&self) -> u64 {
        self.attributes.size
    }

    pub(super) fn is_valid(&self, now: Instant) -> bool {
        self.valid_until.is_some_and(|until| now <= until)
    }

    /// Takes attributes that the daemon has told; `asked` is the newest version when it was asked, `None` if that does
    /// not count.
    pub(super) fn tell(&mut self, told: Attributes, until: Option<Instant>, asked: Option<Version>, next: Version) {
        if self.resizing || asked.is_some_and(|asked| self.version > asked) {
            return;
        }
        self.take(told, until, next);
    }

    /// Takes attributes that the daemon has set, as they are now.
    pub(super) fn take(&mut self, told: Attributes, until: Option<Instant>, next: Version) {
        let old_size = self.attributes.size;
        (self.attributes, self.valid_until, self.version) = (told, until, next);
        if self.attributes.size != old_size {
            self.cut_pages(self.attributes.size);
            self.drop_pages();
        }
    }

    /// Notes that a program has written, up to `end`.
    pub(super) fn note_written(&mut self, end: u64, next: Version) {
        self.version = next;
        self.attributes.size = self.attributes.size.max(end);
        self.valid_until = None;
    }

    /// Notes that the file was opened to be cut.
    pub(super) fn note_cut(&mut self, next: Version) {
        self.version = next;
        self.attributes.size = 0;
        self.valid_until = None;
        self.cut_pages(0);
    }

    /// Notes that a name has gone.
    pub(super) fn note_unlinked(&mut self, next: Version) {
        self.version = next;
        self.attributes.links = self.attributes.links.saturating_sub(1);
        self.valid_until = None;
    }

    pub(super) fn forget_attributes(&mut self) {
        self.valid_until = None;
    }

    /// Takes the daemon's word that what is known is out of date, with the pages or without.
    pub(super) fn invalidate(&mut self, pages: bool, next: Version) {
        self.version = next;
        self.valid_until = None;
        if pages {
            self.drop_pages();
        }
    }

    /// Takes the daemon's word that what is known is out of date, with the pages of a range.
    pub(super) fn invalidate_range(&mut self, range: Range<u64>, next: Version) {
        self.invalidate(false, next);
        self.drops += 1;
        self.drop_range(range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES));
    }

    /// Notes that a read has ended before its range: the file does, as far as is known here.
    fn note_short_read(&mut self, end: u64, asked: Version, next: Version) {
        if asked >= self.version && end < self.attributes.size && !self.resizing {
            (self.version, self.attributes.size) = (next, end);
        }
    }

    /// Drops all pages that nobody has stored to.
    pub(super) fn drop_pages(&mut self) {
        self.drops += 1;
        self.pages.retain(|_, page| page.is_ahead());
    }

    /// Returns how often pages were dropped: for [`Self::fill`].
    pub(super) fn drops(&self) -> u64 {
        self.drops
    }

    fn cut_pages(&mut self, size: u64) {
        self.pages.retain(|number, _| number * PAGE_BYTES < size);
        if let Some(last) = self.pages.get_mut(&(size / PAGE_BYTES)) {
            let kept = usize::try_from(size % PAGE_BYTES).unwrap_or(0);
            last.bytes[kept..].fill(0);
        }
    }

    /// Returns the first pages in a row that are not here, of a range of bytes.
    pub(super) fn missing(&self, range: Range<u64>) -> Option<Range<u64>> {
        let end = range.end.div_ceil(PAGE_BYTES);
        let is_missing = |number: &u64| !self.pages.contains_key(number);
        let first = (range.start / PAGE_BYTES..end).find(is_missing)?;
        Some(first..(first..end).find(|number| !is_missing(number)).unwrap_or(end))
    }

    /// Takes what the daemon has answered to a read of whole pages, filled up with zeros. An answer that was asked for
    /// before pages were dropped is used once, and not kept by the kernel: here it goes with the next drop.
    pub(super) fn fill(&mut self, pages: Range<u64>, read: &[u8], asked: Version, next: Version) {
        for number in pages.clone() {
            let start = usize::try_from((number - pages.start) * PAGE_BYTES).unwrap_or(usize::MAX).min(read.len());
            let mut bytes = read[start..read.len().min(start + PAGE)].to_vec();
            bytes.resize(PAGE, 0);
            self.pages.entry(number).or_insert(Page::new(bytes));
        }
        let end = pages.start * PAGE_BYTES + read.len() as u64;
        if end < pages.end * PAGE_BYTES {
            self.note_short_read(end, asked, next);
        }
    }

    /// Drops pages again that were read before others were dropped.
    pub(super) fn drop_range(&mut self, pages: Range<u64>) {
        self.pages.retain(|number, page| !pages.contains(number) || page.is_ahead());
    }

    /// Returns the bytes of a range whose pages are here.
    pub(super) fn copy(&self, range: Range<u64>) -> Vec<u8> {
        let (mut bytes, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let Some(page) = self.pages.get(&(at / PAGE_BYTES)) else { break };
            let end = range.end.min((at / PAGE_BYTES + 1) * PAGE_BYTES);
            let [first, count] = [at % PAGE_BYTES, end - at].map(|bytes| usize::try_from(bytes).unwrap_or(0));
            bytes.extend_from_slice(&page.bytes[first..first + count]);
            at = end;
        }
        bytes
    }

    /// Puts bytes that a program writes into the pages that are here; pages that it writes whole are here then.
    pub(super) fn write_pages(&mut self, at: u64, bytes: &[u8]) {
        self.change_pages(at, bytes, false);
    }

    /// Puts bytes of a store through a mapping into its pages, which are here.
    pub(super) fn store_pages(&mut self, at: u64, bytes: &[u8]) {
        self.change_pages(at, bytes, true);
    }

    fn change_pages(&mut self, at: u64, bytes: &[u8], store: bool) {
        let mut done = 0;
        while done < bytes.len() {
            let place = at + done as u64;
            let first = usize::try_from(place % PAGE_BYTES).unwrap_or(0);
            let count = (PAGE - first).min(bytes.len() - done);
            let part = &bytes[done..done + count];
            match self.pages.get_mut(&(place / PAGE_BYTES)) {
                Some(page) => {
                    page.bytes[first..first + count].copy_from_slice(part);
                    page.dirty |= store;
                }
                None if count == PAGE => {
                    self.pages.insert(place / PAGE_BYTES, Page::new(part.to_vec()));
                }
                None => {}
            }
            done += count;
        }
    }

    /// Takes what stores have changed: places and bytes up to the end of the file, to be written.
    pub(super) fn take_dirty(&mut self) -> Vec<(u64, Vec<u8>)> {
        let size = self.attributes.size;
        let dirty = self.pages.iter_mut().filter(|(_, page)| page.dirty);
        dirty
            .filter_map(|(number, page)| {
                (page.dirty, page.written) = (false, true);
                let (at, mut bytes) = (number * PAGE_BYTES, page.bytes.clone());
                bytes.truncate(usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX));
                (!bytes.is_empty()).then_some((at, bytes))
            })
            .collect()
    }

    /// Notes that the daemon has got what was stored.
    pub(super) fn end_writing(&mut self) {
        self.pages.values_mut().for_each(|page| page.written = false);
    }

    /// Notes an open file, which brings its way.
    pub(super) fn open(&mut self, backing: Option<&Backing>) -> Result<(), Errno> {
        let way = &mut self.way;
        match (backing, &way.backing) {
            (None, Some(_)) => return Err(Errno::IO),
            (None, None) => way.cached += 1,
            (Some(_), _) if way.cached > 0 => return Err(Errno::IO),
            (Some(new), Some(old)) if new.identity() != old.identity() => return Err(Errno::IO),
            (Some(new), _) => {
                way.backing = Some(Arc::clone(new));
                way.passthrough += 1;
            }
        }
        self.opened += 1;
        Ok(())
    }

    /// Notes that an open file is gone, before the daemon hears of it.
    pub(super) fn close(&mut self, passthrough: bool) {
        self.opened = self.opened.saturating_sub(1);
        if !passthrough {
            self.way.cached = self.way.cached.saturating_sub(1);
            return;
        }
        self.way.passthrough = self.way.passthrough.saturating_sub(1);
        if self.way.passthrough == 0 {
            self.way.backing = None;
        }
    }
}
