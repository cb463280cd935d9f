//! Listings: directories as readdir(3) shows them.

mod recent;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use mafs_arpc::{PayloadReader, blocking};
use mafs_proto::call::{ReadDirPage, ReadDirRequest};
use mafs_proto::{DataVersion, Fid, FsError, Instant, Kind, Name, Object, Purpose, VnodeId, Wire};
use tokio::time::timeout;

use self::recent::RecentListings;
use super::{DirEntry, DirEntryPlus, DirHandle, Error, Inner, OpenedDir};
use crate::cache::{CachedEntries, CachedEntry, CachedObject};
use crate::core::promises::SessionNumber;
use crate::remote::RemoteError;

/// A page is at most this long: 1,024 entries of the longest names and some symlinks.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// How often a directory that changes while it is read is read again.
const RESTARTS_MAX: u32 = 7;

/// A name and what it means.
type NamedEntry = (Name, CachedEntry);

/// Open directories, those read last, and those being fetched.
#[derive(Default)]
pub(super) struct Listings {
    open: HashMap<DirHandle, OpenDir>,
    recent: RecentListings,
    /// Directories with an open handle by which the kernel keeps what it reads. One handle each: if another made the
    /// kernel read anew, the first, half way, would go on at its offset among the new entries, and miss those that have
    /// moved up (fs/fuse/readdir.c, fuse_readdir_cached).
    kept_by_kernel: HashSet<VnodeId>,
    fetching: HashSet<VnodeId>,
}

/// A directory that a program has open.
#[derive(Clone)]
struct OpenDir {
    vnode: VnodeId,
    /// What is being read; none before the first read. Reading from the start takes a new look (rewinddir(3)).
    listing: Option<Arc<Listing>>,
    /// Whether the kernel keeps what it reads by this handle.
    kept_by_kernel: bool,
}

/// A directory as it was when it was last read from its start.
struct Listing {
    vnode: VnodeId,
    parent: VnodeId,
    /// Which state of which directory; none of one that has been removed.
    of: Option<(Fid, CachedEntries)>,
    entries: Vec<NamedEntry>,
}

/// Removes the mark that a directory is being fetched.
struct FetchingListing<'a> {
    inner: &'a Inner,
    vnode: VnodeId,
}

impl Drop for FetchingListing<'_> {
    fn drop(&mut self) {
        self.inner.listings().fetching.remove(&self.vnode);
        self.inner.listing_fetched.send_replace(());
    }
}

impl Listings {
    /// Opens a directory; `None` if it has been removed. The kernel may keep what it reads if this daemon has the whole
    /// listing at hand: should the kernel drop it half way, it goes on here at the same place of the same listing.
    fn open(&mut self, vnode: VnodeId, directory: Option<&CachedObject>, now: Instant, lease: Duration) -> OpenedDir {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let dir = DirHandle(NEXT.fetch_add(1, Ordering::Relaxed));
        let listing = directory.and_then(|directory| self.recent(directory));
        let kept_by_kernel = listing.is_some() && self.kept_by_kernel.insert(vnode);
        let keep_cache = !kept_by_kernel || self.recent.hand_to_kernel(vnode, now, lease);
        self.open.insert(dir, OpenDir { vnode, listing, kept_by_kernel });
        OpenedDir { dir, cache: kept_by_kernel, keep_cache }
    }

    fn release(&mut self, dir: DirHandle) {
        if let Some(open) = self.open.remove(&dir)
            && open.kept_by_kernel
        {
            self.kept_by_kernel.remove(&open.vnode);
        }
    }

    /// The listing of exactly this state of a directory, if it was read lately.
    fn recent(&mut self, directory: &CachedObject) -> Option<Arc<Listing>> {
        let recent = self.recent.get(directory.object.fid.vnode)?;
        let complete = directory.entries.is_some_and(|entries| entries.complete);
        (complete && (recent.of, recent.parent) == identity(directory)).then(|| Arc::clone(recent))
    }
}

/// Which state of which directory a listing is of, and below what it is.
fn identity(directory: &CachedObject) -> (Option<(Fid, CachedEntries)>, VnodeId) {
    let fid = directory.object.fid;
    (directory.entries.map(|entries| (fid, entries)), directory.parent.unwrap_or(fid.vnode))
}

impl Inner {
    pub(super) async fn open_dir(self: &Arc<Self>, vnode: VnodeId) -> Result<OpenedDir, Error> {
        let directory = match self.kernel.removed(vnode) {
            Some(_) => None,
            None => Some(self.directory(vnode).await?),
        };
        let lease = self.cache.index.lease_remaining();
        Ok(self.listings().open(vnode, directory.as_ref(), self.clock.now(), lease))
    }

    pub(super) async fn read_dir(
        self: &Arc<Self>,
        handle: DirHandle,
        offset: u64,
        count_max: usize,
    ) -> Result<Vec<DirEntry>, Error> {
        let page = self.page(handle, offset, count_max).await?;
        Ok(page.into_iter().map(|(entry, _)| entry).collect())
    }

    pub(super) async fn read_dir_plus(
        self: &Arc<Self>,
        handle: DirHandle,
        offset: u64,
        count_max: usize,
    ) -> Result<Vec<DirEntryPlus>, Error> {
        let page = self.page(handle, offset, count_max).await?;
        let mut with_objects = Vec::with_capacity(page.len());
        for (entry, fid) in page {
            let object = match fid {
                None => None,
                Some(fid) => match self.listed_object(fid, &entry.name).await? {
                    None => continue,
                    object => object,
                },
            };
            with_objects.push(DirEntryPlus { entry, object });
        }
        Ok(with_objects)
    }

    async fn page(
        self: &Arc<Self>,
        handle: DirHandle,
        offset: u64,
        count_max: usize,
    ) -> Result<Vec<(DirEntry, Option<Fid>)>, Error> {
        let open = self.listings().open.get(&handle).cloned().ok_or(Error::BadHandle)?;
        let listing = match open.listing.filter(|_| offset != 0) {
            Some(listing) => listing,
            None => self.look_at_dir(handle, open.vnode).await?,
        };
        Ok(listing.page(offset, count_max))
    }

    /// The object of a listed name; `None` if it is gone.
    async fn listed_object(&self, fid: Fid, name: &Bytes) -> Result<Option<Object>, Error> {
        let name = Name::new(name.clone()).ok();
        match self.status_of_named(fid, name.as_ref()).await {
            Ok(cached) => Ok(Some(self.present(cached.object))),
            Err(Error::Refused(FsError::Stale)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes a new look at an open directory.
    async fn look_at_dir(self: &Arc<Self>, handle: DirHandle, vnode: VnodeId) -> Result<Arc<Listing>, Error> {
        let listing = self.listing(vnode).await?;
        if let Some(open) = self.listings().open.get_mut(&handle) {
            open.listing = Some(Arc::clone(&listing));
        }
        Ok(listing)
    }

    /// How long the kernel may take the names it reads of an open directory for what they are in its listing: not at
    /// all once the directory is another.
    pub(super) fn listing_time_to_live(&self, handle: DirHandle) -> Duration {
        let listing = self.listings().open.get(&handle).and_then(|open| open.listing.clone());
        let Some(listing) = listing else { return Duration::ZERO };
        match self.cache.index.valid_object(listing.vnode) {
            Ok(Some(directory)) if listing.of == identity(&directory).0 => self.cache.index.lease_remaining(),
            Ok(_) | Err(_) => Duration::ZERO,
        }
    }

    pub(super) fn release_dir(&self, handle: DirHandle) {
        self.listings().release(handle);
    }

    /// The whole listing of a directory as of now.
    async fn listing(self: &Arc<Self>, vnode: VnodeId) -> Result<Arc<Listing>, Error> {
        if self.kernel.removed(vnode).is_some() {
            return Ok(Arc::new(Listing { vnode, parent: vnode, of: None, entries: Vec::new() }));
        }
        for _ in 0..=RESTARTS_MAX {
            let (directory, fetched) = self.fetched_listing(vnode).await?;
            if let Some(recent) = self.listings().recent(&directory) {
                return Ok(recent);
            }
            let entries = match fetched {
                Some(entries) => Some(entries),
                None => self.listing_from_index(&directory)?,
            };
            if let Some(entries) = entries {
                let (of, parent) = identity(&directory);
                let listing = Arc::new(Listing { vnode, parent, of, entries });
                self.listings().recent.put(Arc::clone(&listing));
                return Ok(listing);
            }
        }
        Err(changes_too_fast())
    }

    /// The names of a directory of which the index has all; `None` if some were dropped while they were read.
    fn listing_from_index(&self, directory: &CachedObject) -> Result<Option<Vec<NamedEntry>>, Error> {
        let vnode = directory.object.fid.vnode;
        let mut entries: Vec<NamedEntry> = Vec::new();
        loop {
            let page = self.cache.index.entries(vnode, entries.last().map(|(name, _)| name))?;
            if page.is_empty() {
                break;
            }
            entries.extend(page);
        }
        let now = self.cache.index.object(vnode)?;
        Ok(now.is_some_and(|now| now.entries == directory.entries).then_some(entries))
    }

    /// Makes sure that all names of a directory are in the index.
    pub(super) async fn fetch_listing(self: &Arc<Self>, vnode: VnodeId) -> Result<CachedObject, Error> {
        Ok(self.fetched_listing(vnode).await?.0)
    }

    /// The same, with the names if they have just been fetched: to read 100,000 of them back from the index takes as
    /// long as a tenth of fetching them.
    async fn fetched_listing(
        self: &Arc<Self>,
        vnode: VnodeId,
    ) -> Result<(CachedObject, Option<Vec<NamedEntry>>), Error> {
        for _ in 0..=RESTARTS_MAX {
            let directory = self.directory(vnode).await?;
            if directory.entries.is_some_and(|entries| entries.complete) {
                return Ok((directory, None));
            }
            let mut fetched = self.listing_fetched.subscribe();
            let first = self.listings().fetching.insert(vnode);
            if first {
                let _mark = FetchingListing { inner: self, vnode };
                let (version, names) = self.fetch_pages(directory.object.fid).await?;
                // Changed again or not: it was like this when it was asked for.
                let fetched = self.cache.index.object(vnode)?.filter(|now| now.object.fid == directory.object.fid);
                if let Some((fetched, entries)) = fetched.and_then(|now| now.entries.map(|entries| (now, entries)))
                    && entries.complete
                {
                    return Ok((fetched, (entries.version == version).then_some(names)));
                }
            } else {
                let others = fetched.changed();
                let waited = timeout(self.settings.deadline, others).await;
                waited.map_err(|_| RemoteError::TimedOut("a listing did not arrive".to_owned()))?.ok();
            }
        }
        Err(changes_too_fast())
    }

    /// Reads all pages of one version of a directory into the index. Returns the version and its names: all of them if
    /// the index has them all.
    async fn fetch_pages(&self, fid: Fid) -> Result<(DataVersion, Vec<NamedEntry>), Error> {
        let (mut page, mut session) = self.fetch_page(fid, None).await?;
        let version = page.directory.status.data_version;
        let mut names = Vec::new();
        while page.directory.status.data_version == version {
            let first = names.is_empty();
            take_names(&page, &mut names)?;
            let take_in = || self.cache.index.install_page(&page, session, first);
            let Some((last, _)) = names.last().filter(|_| !page.end) else {
                take_in()?;
                break;
            };
            // The server reads the next page while this one is taken in.
            let next = self.fetch_page(fid, Some(last.clone()));
            let (next, taken_in) = tokio::join!(next, async { blocking(take_in) });
            taken_in?;
            (page, session) = next?;
        }
        Ok((version, names))
    }

    async fn fetch_page(&self, fid: Fid, after: Option<Name>) -> Result<(ReadDirPage, SessionNumber), Error> {
        let request = ReadDirRequest { fid, after, entries_max: ReadDirRequest::ENTRIES_MAX };
        let answer = self.remote.call(&request, Purpose::Fetch).await?;
        let bytes = self.collect(answer.payload).await?;
        let page = ReadDirPage::decode(bytes).map_err(|why| RemoteError::malformed(&why))?;
        Ok((page, answer.session))
    }

    async fn collect(&self, mut payload: PayloadReader) -> Result<Bytes, Error> {
        let mut bytes = BytesMut::new();
        loop {
            let piece = timeout(self.settings.deadline, payload.read()).await;
            let piece = piece.map_err(|_| RemoteError::TimedOut("a listing stopped arriving".to_owned()))?;
            match piece.map_err(|error| RemoteError::TimedOut(error.to_string()))? {
                Some(piece) if bytes.len() + piece.len() <= PAGE_BYTES_MAX => bytes.extend_from_slice(&piece),
                Some(_) => return Err(Error::Refused(FsError::Malformed)),
                None => return Ok(bytes.freeze()),
            }
        }
    }
}

impl Listing {
    /// Entries from `offset` on, with their fids: `.` is 0, `..` is 1, both without.
    fn page(&self, offset: u64, count_max: usize) -> Vec<(DirEntry, Option<Fid>)> {
        let dot = |name: &'static [u8], vnode, next_offset| {
            let name = Bytes::from_static(name);
            (DirEntry { next_offset, name, vnode, kind: Kind::Directory }, None)
        };
        let dots = [dot(b".", self.vnode, 1), dot(b"..", self.parent, 2)];
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let first = skip.saturating_sub(dots.len()).min(self.entries.len());
        let named = (first as u64 + 3..).zip(&self.entries[first..]).map(|(next_offset, (name, entry))| {
            let name = Bytes::copy_from_slice(name.as_bytes());
            (DirEntry { next_offset, name, vnode: entry.fid.vnode, kind: entry.kind }, Some(entry.fid))
        });
        dots.into_iter().skip(skip).chain(named).take(count_max).collect()
    }
}

/// Adds the names of a page, which must lead on. They are copied: one that has arrived keeps the whole page in memory.
fn take_names(page: &ReadDirPage, names: &mut Vec<NamedEntry>) -> Result<(), Error> {
    if page.entries.is_empty() && !page.end {
        return Err(Error::Refused(FsError::Malformed));
    }
    for entry in &page.entries {
        if names.last().is_some_and(|(last, _)| *last >= entry.name) {
            return Err(Error::Refused(FsError::Malformed));
        }
        names.push((entry.name.detached(), CachedEntry::of(&entry.object)));
    }
    Ok(())
}

fn changes_too_fast() -> Error {
    Error::TimedOut("the directory changes faster than it can be read".to_owned())
}

#[cfg(test)]
mod tests {
    use mafs_proto::{ChangeNumber, Entry};

    use super::*;
    use crate::cache::example;

    fn page(names: &[&'static str], end: bool) -> ReadDirPage {
        let object = example().object;
        let entry = |name: &&'static str| Entry { name: Name::new(*name).unwrap(), object: object.clone() };
        let entries = names.iter().map(entry).collect();
        ReadDirPage { directory: object.clone(), entries, end, change: ChangeNumber(1) }
    }

    #[test]
    fn invariant_10_pages_of_a_listing_must_lead_on() {
        let mut names = Vec::new();
        take_names(&page(&["a", "b"], false), &mut names).unwrap();
        take_names(&page(&["c"], true), &mut names).unwrap();
        take_names(&page(&[], true), &mut names).unwrap();
        assert_eq!(names.len(), 3);
        for astray in [page(&["c"], true), page(&["b"], false), page(&["e", "d"], false), page(&[], false)] {
            assert!(take_names(&astray, &mut names.clone()).is_err(), "{astray:?}");
        }
    }
}
