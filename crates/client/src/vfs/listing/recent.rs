//! Recent listings: those read last, for the next reader and for readers that go on.

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use mafs_proto::VnodeId;

use super::Listing;

/// Most entries that are kept in all, and most entries of one directory: some 8 MB. To read a listing of 100 entries
/// from the index takes 70 us, a third of the time that programs wait for such a directory.
const ENTRIES_MAX: usize = 64 << 10;
const LISTING_ENTRIES_MAX: usize = 4 << 10;

/// Most longer listings that are kept while they are read. To read one of 100,000 entries from the index takes a tenth
/// of a second, and a reader asks 100 times or more.
const LONG_MAX: NonZeroUsize = NonZeroUsize::new(4).expect("not zero");

pub(super) struct RecentListings {
    listings: LruCache<VnodeId, Arc<Listing>>,
    /// Number of entries of all `listings`, plus one for each listing.
    entries: usize,
    long: LruCache<VnodeId, Arc<Listing>>,
}

impl Default for RecentListings {
    fn default() -> Self {
        Self { listings: LruCache::unbounded(), entries: 0, long: LruCache::new(LONG_MAX) }
    }
}

impl RecentListings {
    pub(super) fn get(&mut self, vnode: VnodeId) -> Option<&Arc<Listing>> {
        self.long.get(&vnode).or_else(|| self.listings.get(&vnode))
    }

    pub(super) fn put(&mut self, listing: Arc<Listing>) {
        let vnode = listing.vnode;
        let before = self.listings.pop(&vnode);
        self.entries -= before.map_or(0, |before| cost(&before));
        self.long.pop(&vnode);
        if listing.entries.len() > LISTING_ENTRIES_MAX {
            self.long.put(vnode, listing);
            return;
        }
        self.entries += cost(&listing);
        self.listings.put(vnode, listing);
        while self.entries > ENTRIES_MAX
            && let Some((_, oldest)) = self.listings.pop_lru()
        {
            self.entries -= cost(&oldest);
        }
    }

    /// Notes that a reader has read this directory to its end. A long listing goes: the kernel has it.
    pub(super) fn read_to_its_end(&mut self, vnode: VnodeId) {
        self.long.pop(&vnode);
    }
}

/// Returns the room that a listing takes, in entries. An empty listing takes room as well.
fn cost(listing: &Listing) -> usize {
    listing.entries.len() + 1
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use mafs_proto::{Fid, Kind, Name, Uniquifier, VolumeId};

    use super::super::in_places;
    use super::*;
    use crate::cache::CachedEntry;

    fn listing(vnode: u64, entries: usize) -> Arc<Listing> {
        let entry = |number: usize| {
            let fid = Fid { volume: VolumeId(1), vnode: VnodeId(1_000_000 + number as u64), unique: Uniquifier(1) };
            let name = Name::new(Bytes::from(format!("{number:06}"))).expect("a name");
            (name, CachedEntry { fid, kind: Kind::File })
        };
        let entries = in_places((0..entries).map(entry).collect());
        Arc::new(Listing { vnode: VnodeId(vnode), parent: VnodeId::ROOT, of: None, edit: None, entries })
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_entries() {
        let mut recent = RecentListings::default();
        let room = ENTRIES_MAX / (LISTING_ENTRIES_MAX + 1);
        let last = room as u64 + 2;
        (2..=last).for_each(|vnode| recent.put(listing(vnode, LISTING_ENTRIES_MAX)));
        assert!(recent.get(VnodeId(2)).is_none());
        assert!((3..=last).all(|vnode| recent.get(VnodeId(vnode)).is_some()));
        (3..=last).for_each(|vnode| recent.put(listing(vnode, 0)));
        assert_eq!(recent.entries, room, "what is replaced takes no room");
    }

    #[test]
    fn long_listings_are_few_and_go_when_one_has_read_them() {
        let mut recent = RecentListings::default();
        let last = LONG_MAX.get() as u64 + 2;
        (2..=last).for_each(|vnode| recent.put(listing(vnode, LISTING_ENTRIES_MAX + 1)));
        assert!(recent.get(VnodeId(2)).is_none());
        assert!((3..=last).all(|vnode| recent.get(VnodeId(vnode)).is_some()));
        recent.read_to_its_end(VnodeId(3));
        assert!(recent.get(VnodeId(3)).is_none());
        recent.put(listing(4, 1));
        assert_eq!(recent.get(VnodeId(4)).map(|listing| listing.entries.len()), Some(1));
        assert_eq!(recent.entries, 2);
        recent.read_to_its_end(VnodeId(4));
        assert!(recent.get(VnodeId(4)).is_some(), "it is short");
    }
}
