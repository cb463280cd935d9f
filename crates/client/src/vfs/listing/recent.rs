//! Listings read last, for the next reader, and which of them the kernel keeps.

use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;
use mafs_proto::{Instant, VnodeId};

use super::Listing;

/// So many entries are kept in all, and of one directory: some 8 MB. To read a listing of 100 entries from the index
/// takes 70 us, a third of what programs wait for such a directory.
const ENTRIES_MAX: usize = 64 << 10;
const LISTING_ENTRIES_MAX: usize = 4 << 10;

/// The part of the lease that was left when the kernel read a listing, for which it may go on using it. It read the
/// attributes of the entries with it (readdirplus), and when these expire, with that lease, it asks for each by itself:
/// 2,000 of them took 40 to 55 ms, all at once 4 ms.
const IN_KERNEL_PART: (u32, u32) = (3, 4);

pub(super) struct RecentListings {
    listings: LruCache<VnodeId, Recent>,
    /// How many entries they have, and one more each.
    entries: usize,
}

struct Recent {
    listing: Arc<Listing>,
    /// Until when the kernel may use its pages of this directory, which can only be of this listing or a newer one.
    in_kernel: Option<Instant>,
}

impl Default for RecentListings {
    fn default() -> Self {
        Self { listings: LruCache::unbounded(), entries: 0 }
    }
}

impl RecentListings {
    pub(super) fn get(&mut self, vnode: VnodeId) -> Option<&Arc<Listing>> {
        Some(&self.listings.get(&vnode)?.listing)
    }

    pub(super) fn put(&mut self, listing: Arc<Listing>) {
        if listing.entries.len() > LISTING_ENTRIES_MAX {
            return;
        }
        self.entries += cost(&listing);
        let replaced = self.listings.put(listing.vnode, Recent { listing, in_kernel: None });
        self.entries -= replaced.map_or(0, |replaced| cost(&replaced.listing));
        while self.entries > ENTRIES_MAX
            && let Some((_, oldest)) = self.listings.pop_lru()
        {
            self.entries -= cost(&oldest.listing);
        }
    }

    /// The kernel will keep what it reads of this listing, with attributes that expire after `lease`. Returns whether
    /// it may keep what it has.
    pub(super) fn hand_to_kernel(&mut self, vnode: VnodeId, now: Instant, lease: Duration) -> bool {
        let Some(recent) = self.listings.get_mut(&vnode) else { return false };
        let keep = recent.in_kernel.is_some_and(|until| now < until);
        if !keep {
            let (part, whole) = IN_KERNEL_PART;
            recent.in_kernel = Some(now + lease * part / whole);
        }
        keep
    }
}

/// An empty listing takes room as well.
fn cost(listing: &Listing) -> usize {
    listing.entries.len() + 1
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use mafs_proto::{Fid, Kind, Name, Uniquifier, VolumeId};

    use super::*;
    use crate::cache::CachedEntry;

    const LEASE: Duration = Duration::from_secs(60);

    fn listing(vnode: u64, entries: usize) -> Arc<Listing> {
        let entry = |number: usize| {
            let fid = Fid { volume: VolumeId(1), vnode: VnodeId(1_000_000 + number as u64), unique: Uniquifier(1) };
            let name = Name::new(Bytes::from(format!("{number:06}"))).expect("a name");
            (name, CachedEntry { fid, kind: Kind::File })
        };
        let entries = (0..entries).map(entry).collect();
        Arc::new(Listing { vnode: VnodeId(vnode), parent: VnodeId::ROOT, of: None, entries })
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
    fn a_listing_that_is_too_long_is_not_kept() {
        let mut recent = RecentListings::default();
        recent.put(listing(2, LISTING_ENTRIES_MAX + 1));
        assert!(recent.get(VnodeId(2)).is_none());
    }

    #[test]
    fn the_kernel_keeps_what_it_has_until_there_is_another_listing() {
        let (mut recent, directory, now) = (RecentListings::default(), VnodeId(2), Instant(0));
        recent.put(listing(2, 1));
        assert!(!recent.hand_to_kernel(directory, now, LEASE), "it has none yet");
        assert!(recent.hand_to_kernel(directory, now, LEASE));
        recent.put(listing(2, 2));
        assert!(!recent.hand_to_kernel(directory, now, LEASE));
    }

    #[test]
    fn the_kernel_reads_again_before_the_attributes_expire() {
        let (mut recent, directory, now) = (RecentListings::default(), VnodeId(2), Instant(0));
        recent.put(listing(2, 1));
        assert!(!recent.hand_to_kernel(directory, now, LEASE));
        assert!(recent.hand_to_kernel(directory, now + LEASE / 2, LEASE));
        assert!(!recent.hand_to_kernel(directory, now + LEASE, LEASE));
        assert!(recent.hand_to_kernel(directory, now + LEASE, LEASE), "since it read again");
    }
}
