//! Listings: directories as readdir(3) shows them.
//!
//! Directories are not opened here: the kernel asks to read one from a *place* on, and each name has its own
//! ([`place`]). So a reader that stops half way goes on at the right name, whatever has changed meanwhile and however
//! many others read the directory.

mod place;
mod recent;

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use mafs_arpc::{PayloadError, PayloadReader, blocking};
use mafs_proto::call::{ReadDirPage, ReadDirRequest};
use mafs_proto::{DataVersion, Fid, FsError, Kind, Name, Object, Purpose, StoreId, VnodeId, Wire};
use tokio::sync::Notify;
use tokio::time::timeout;

use self::place::in_places;
use self::recent::RecentListings;
use super::shown::Part;
use super::{DirEntry, DirEntryPlus, DirPage, Error, Inner};
use crate::cache::{CachedEntries, CachedEntry, CachedObject};
use crate::core::promises::{Grant, SessionNumber};
use crate::remote::RemoteError;

/// Longest page, in bytes: 1,024 entries of the longest names and some symlinks.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Connections in a row that may break in one page.
const PAGE_TRIES_MAX: u32 = 3;
/// How often the read of a directory begins again because the directory changes meanwhile.
const RESTARTS_MAX: u32 = 7;

/// A name and the object that it means.
type NamedEntry = (Name, CachedEntry);

/// Listings read last, and directories whose names are being fetched.
#[derive(Default)]
pub(super) struct Listings {
    recent: RecentListings,
    fetching: HashMap<VnodeId, Arc<Fetching>>,
}

/// A fetch of the names of a directory.
struct Fetching {
    purpose: Purpose,
    /// Notifies that a more urgent caller waits for the names.
    wanted: Notify,
}

/// A directory as it was at some time.
struct Listing {
    vnode: VnodeId,
    parent: VnodeId,
    /// The directory and its state; `None` for a directory that has been removed.
    of: Option<(Fid, CachedEntries)>,
    /// State of this client's own changes on top; `None` if there are none.
    edit: Option<u64>,
    /// Entries in the order of their places.
    entries: Vec<ListedEntry>,
}

/// A name with its place.
struct ListedEntry {
    place: u64,
    name: Name,
    entry: CachedEntry,
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
    /// Returns the listing of exactly this state of a directory, if it was read lately.
    fn recent(&mut self, directory: &CachedObject, edit: Option<u64>) -> Option<Arc<Listing>> {
        let recent = self.recent.get(directory.object.fid.vnode)?;
        let complete = directory.entries.is_some_and(|entries| entries.complete);
        let same = (recent.of, recent.parent) == identity(directory) && recent.edit == edit;
        (complete && same).then(|| Arc::clone(recent))
    }
}

/// Returns the state of a directory that a listing shows, and the directory's parent.
fn identity(directory: &CachedObject) -> (Option<(Fid, CachedEntries)>, VnodeId) {
    let fid = directory.object.fid;
    (directory.entries.map(|entries| (fid, entries)), directory.parent.unwrap_or(fid.vnode))
}

/// A page of a listing, the session that its promises belong to, and the unanswered records that its question named.
struct Fetched {
    page: ReadDirPage,
    session: SessionNumber,
    said: Vec<StoreId>,
}

impl Inner {
    pub(super) async fn read_dir(
        self: &Arc<Self>,
        vnode: VnodeId,
        offset: u64,
        count_max: usize,
    ) -> Result<DirPage<DirEntry>, Error> {
        let listing = self.listing_at(vnode, offset).await?;
        let page = listing.page(offset, count_max);
        let entries = page.into_iter().map(|(entry, _)| entry).collect();
        Ok(self.shown(&listing, offset, entries))
    }

    pub(super) async fn read_dir_plus(
        self: &Arc<Self>,
        vnode: VnodeId,
        offset: u64,
        count_max: usize,
    ) -> Result<DirPage<DirEntryPlus>, Error> {
        let listing = self.listing_at(vnode, offset).await?;
        let mut behind = offset;
        loop {
            let page = listing.page(behind, count_max);
            let Some((last, _)) = page.last() else { return Ok(self.shown(&listing, offset, Vec::new())) };
            behind = last.next_offset;
            let entries = self.with_objects(vnode, page).await?;
            // Without entries it would be the end of the listing.
            if !entries.is_empty() {
                return Ok(self.shown(&listing, offset, entries));
            }
        }
    }

    /// Returns the entries of a page with their objects, without those that are gone.
    async fn with_objects(
        self: &Arc<Self>,
        directory: VnodeId,
        page: Vec<(DirEntry, Option<CachedEntry>)>,
    ) -> Result<Vec<DirEntryPlus>, Error> {
        let validate = || self.validate_together(page.iter().filter_map(|(_, named)| *named));
        let pending = self.with_or_without_server(validate).await?;
        let mut with_objects = Vec::with_capacity(page.len());
        for (mut entry, named) in page {
            let mut object = None;
            if let Some(named) = named {
                let listed = match pending.get(&named.fid) {
                    Some(object) => Some(self.present(object.clone())),
                    None => self.listed_object(directory, named.fid, &entry.name).await?,
                };
                let Some(listed) = listed else { continue };
                (entry.vnode, entry.kind) = (listed.fid.vnode, listed.status.kind);
                object = Some(listed);
            }
            with_objects.push(DirEntryPlus { entry, object });
        }
        Ok(with_objects)
    }

    /// Returns the listing that a reader begins with or goes on with. A reader goes on with the listing at hand, which
    /// is no older than the one that it has begun with.
    async fn listing_at(self: &Arc<Self>, vnode: VnodeId, offset: u64) -> Result<Arc<Listing>, Error> {
        let at_hand = match offset {
            0 => None,
            _ => self.listings().recent.get(vnode).cloned(),
        };
        match at_hand {
            Some(listing) => Ok(listing),
            None => self.listing(vnode).await,
        }
    }

    /// Returns the part of a listing from `offset` on for the kernel, with the time for which the kernel may keep it.
    fn shown<E>(self: &Arc<Self>, listing: &Listing, offset: u64, entries: Vec<E>) -> DirPage<E> {
        let vnode = listing.vnode;
        if entries.is_empty() {
            self.listings().recent.read_to_its_end(vnode);
        }
        let keep = self.listing_time_to_live(listing);
        let part = match offset {
            0 => Part::First,
            _ if entries.is_empty() => Part::End,
            _ => Part::Middle,
        };
        self.kernel_keeps_listing(vnode, part, keep);
        DirPage { entries, keep }
    }

    /// Returns the object of a listed name. If the name means another object by now, returns that one: a name that was
    /// there all the time must not be missing. `None` if the name is gone.
    async fn listed_object(
        self: &Arc<Self>,
        directory: VnodeId,
        fid: Fid,
        name: &Bytes,
    ) -> Result<Option<Object>, Error> {
        let name = Name::new(name.clone()).ok();
        let listed = self.status_of_named(fid, name.as_ref()).await;
        let now = match (listed, name) {
            (Err(Error::Refused(FsError::Stale)), Some(name)) => self.child(directory, &name).await,
            (listed, _) => listed,
        };
        match now {
            Ok(cached) => Ok(Some(self.present(cached.object))),
            Err(Error::Refused(FsError::Stale | FsError::NotFound)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns how long the kernel may keep a listing of its directory: not at all once the directory has changed.
    fn listing_time_to_live(&self, listing: &Listing) -> Duration {
        match self.cache.index.promised_object(listing.vnode) {
            Ok(Some(directory))
                if listing.of == identity(&directory).0
                    && listing.edit == self.cache.index.name_edit(listing.vnode) =>
            {
                self.cache.index.lease_remaining()
            }
            Ok(_) | Err(_) => Duration::ZERO,
        }
    }

    /// Returns the whole listing of a directory as of now.
    async fn listing(self: &Arc<Self>, vnode: VnodeId) -> Result<Arc<Listing>, Error> {
        if self.kernel.removed(vnode).is_some() {
            return Ok(Arc::new(Listing { vnode, parent: vnode, of: None, edit: None, entries: Vec::new() }));
        }
        for _ in 0..=RESTARTS_MAX {
            let (directory, fetched) = self.fetched_listing(vnode, Purpose::Fetch).await?;
            let edit = self.cache.index.name_edit(vnode);
            if let Some(recent) = self.listings().recent(&directory, edit) {
                return Ok(recent);
            }
            let entries = match fetched.filter(|_| edit.is_none()) {
                Some(entries) => Some(entries),
                None => self.listing_from_index(&directory, edit)?,
            };
            if let Some(entries) = entries {
                let (of, parent) = identity(&directory);
                let listing = Arc::new(Listing { vnode, parent, of, edit, entries: in_places(entries) });
                self.listings().recent.put(Arc::clone(&listing));
                return Ok(listing);
            }
        }
        Err(changes_too_fast())
    }

    /// Reads the names of a directory from the index, which has all of them. `None` if some were dropped meanwhile.
    fn listing_from_index(
        &self,
        directory: &CachedObject,
        edit: Option<u64>,
    ) -> Result<Option<Vec<NamedEntry>>, Error> {
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
        let same = self.cache.index.name_edit(vnode) == edit && now.is_some_and(|now| now.entries == directory.entries);
        Ok(same.then_some(entries))
    }

    /// Makes sure that all names of a directory are in the index.
    pub(super) async fn fetch_listing(
        self: &Arc<Self>,
        vnode: VnodeId,
        purpose: Purpose,
    ) -> Result<CachedObject, Error> {
        Ok(self.fetched_listing(vnode, purpose).await?.0)
    }

    /// Puts all names of a directory into the index, and returns them too if they have just been fetched: to read
    /// 100,000 of them back from the index takes as long as a tenth of fetching them.
    async fn fetched_listing(
        self: &Arc<Self>,
        vnode: VnodeId,
        purpose: Purpose,
    ) -> Result<(CachedObject, Option<Vec<NamedEntry>>), Error> {
        for _ in 0..=RESTARTS_MAX {
            let directory = self.directory(vnode).await?;
            if directory.entries.is_some_and(|entries| entries.complete) {
                return Ok((directory, None));
            }
            let mut fetched = self.listing_fetched.subscribe();
            if let Some(wanted) = self.begin_listing(vnode, purpose) {
                let _mark = FetchingListing { inner: self, vnode };
                let pages = tokio::select! {
                    biased;
                    pages = self.fetch_pages(directory.object.fid, purpose) => pages?,
                    // The urgent caller begins anew: the names that have come are not all, and count as such.
                    () = wanted.wanted.notified() => return Err(overtaken()),
                };
                let (version, names) = pages;
                // Even if the directory has changed again: this was its state when it was asked for.
                let fetched = self.cache.index.object(vnode)?.filter(|now| now.object.fid == directory.object.fid);
                if let Some((fetched, entries)) = fetched.and_then(|now| now.entries.map(|entries| (now, entries)))
                    && entries.complete
                {
                    return Ok((fetched, (entries.version == version).then_some(names)));
                }
            } else {
                while self.listings().fetching.contains_key(&vnode) {
                    // Each page that arrives notifies.
                    let waited = timeout(self.settings.deadline, fetched.changed()).await;
                    waited.map_err(|_| RemoteError::TimedOut("a listing did not arrive".to_owned()))?.ok();
                }
            }
        }
        Err(changes_too_fast())
    }

    /// Marks the names of a directory as being fetched. `None` if they are already: a prefetch ends then in favour of
    /// a more urgent caller.
    fn begin_listing(&self, vnode: VnodeId, purpose: Purpose) -> Option<Arc<Fetching>> {
        match self.listings().fetching.entry(vnode) {
            Entry::Occupied(other) => {
                if other.get().purpose == Purpose::Prefetch && purpose != Purpose::Prefetch {
                    other.get().wanted.notify_one();
                }
                None
            }
            Entry::Vacant(place) => {
                Some(Arc::clone(place.insert(Arc::new(Fetching { purpose, wanted: Notify::new() }))))
            }
        }
    }

    /// Reads all pages of one version of a directory into the index. Returns the version and its names: all of them if
    /// the index has them all.
    async fn fetch_pages(&self, fid: Fid, purpose: Purpose) -> Result<(DataVersion, Vec<NamedEntry>), Error> {
        let Fetched { mut page, mut session, mut said } = self.fetch_page(fid, None, purpose).await?;
        let version = page.directory.status.data_version;
        let mut names = Vec::new();
        while page.directory.status.data_version == version {
            let first = names.is_empty();
            take_names(&page, &mut names)?;
            let shown = page.entries.iter().map(|entry| entry.object.fid);
            let unsaid: BTreeSet<Fid> = shown.filter(|fid| self.is_unsaid(*fid, &said)).collect();
            let take_in = || self.cache.index.install_page(&page, session, first, &unsaid);
            let Some((last, _)) = names.last().filter(|_| !page.end) else {
                take_in()?;
                break;
            };
            // The server reads the next page while this one is taken in.
            let next = self.fetch_page(fid, Some(last.clone()), purpose);
            let (next, taken_in) = tokio::join!(next, async { blocking(take_in) });
            taken_in?;
            Fetched { page, session, said } = next?;
            self.listing_fetched.send_replace(());
        }
        Ok((version, names))
    }

    async fn fetch_page(&self, fid: Fid, after: Option<Name>, purpose: Purpose) -> Result<Fetched, Error> {
        let (entries_max, unanswered) = (ReadDirRequest::ENTRIES_MAX, self.unanswered(&[fid]));
        let request = ReadDirRequest { fid, after, entries_max, unanswered };
        for _ in 0..PAGE_TRIES_MAX {
            let answer = self.delivered(&request, purpose).await?;
            let Some(bytes) = self.collect(answer.payload).await? else { continue };
            let page = ReadDirPage::decode(bytes).map_err(|why| RemoteError::malformed(&why))?;
            let session = answer.session;
            self.note_applied(&page.applied, Grant { session, change: page.change })?;
            return Ok(Fetched { page, session, said: request.unanswered });
        }
        Err(RemoteError::TimedOut(format!("{PAGE_TRIES_MAX} connections in a row broke in a listing")).into())
    }

    /// Reads all bytes of a page. `None` if the connection broke: the next one may bring them.
    async fn collect(&self, mut payload: PayloadReader) -> Result<Option<Bytes>, Error> {
        let mut bytes = BytesMut::new();
        loop {
            let piece = timeout(self.settings.deadline, payload.read()).await;
            let piece = match piece.map_err(|_| RemoteError::TimedOut("a listing stopped arriving".to_owned()))? {
                Ok(piece) => piece,
                Err(PayloadError::CallEnded(_)) => return Ok(None),
                Err(PayloadError::Aborted(why)) => return Err(RemoteError::TimedOut(why).into()),
            };
            match piece {
                Some(piece) if bytes.len() + piece.len() <= PAGE_BYTES_MAX => bytes.extend_from_slice(&piece),
                Some(_) => return Err(Error::Refused(FsError::Malformed)),
                None => return Ok(Some(bytes.freeze())),
            }
        }
    }
}

impl Listing {
    /// Returns the entries behind the place `offset`: `.` is at 1, `..` at 2, both without an object.
    fn page(&self, offset: u64, count_max: usize) -> Vec<(DirEntry, Option<CachedEntry>)> {
        let dot = |name: &'static [u8], vnode, next_offset| {
            let name = Bytes::from_static(name);
            (DirEntry { next_offset, name, vnode, kind: Kind::Directory }, None)
        };
        let dots = [dot(b".", self.vnode, 1), dot(b"..", self.parent, 2)];
        let first = self.entries.partition_point(|listed| listed.place <= offset);
        let named = self.entries[first..].iter().map(|ListedEntry { place, name, entry }| {
            let name = Bytes::copy_from_slice(name.as_bytes());
            (DirEntry { next_offset: *place, name, vnode: entry.fid.vnode, kind: entry.kind }, Some(*entry))
        });
        dots.into_iter().filter(|(dot, _)| dot.next_offset > offset).chain(named).take(count_max).collect()
    }
}

/// Adds the names of a page, which must lead on. The names are copied: one in its arrival buffer would keep the whole
/// page in memory.
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

fn overtaken() -> Error {
    Error::TimedOut("the names are fetched for somebody who waits for them".to_owned())
}

fn changes_too_fast() -> Error {
    Error::TimedOut("the directory changes faster than it can be read".to_owned())
}

#[cfg(test)]
mod tests {
    use mafs_proto::ChangeNumber;

    use super::*;
    use crate::cache::example;

    fn page(names: &[&'static str], end: bool) -> ReadDirPage {
        let object = example().object;
        let entry = |name: &&'static str| mafs_proto::Entry { name: Name::new(*name).unwrap(), object: object.clone() };
        let entries = names.iter().map(entry).collect();
        ReadDirPage {
            directory: object.clone(),
            entries,
            end,
            change: ChangeNumber(1),
            pending: Vec::new(),
            applied: Vec::new(),
        }
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
