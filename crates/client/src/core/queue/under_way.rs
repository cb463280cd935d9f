//! Records under way, and whether there is room for more.

use std::collections::BTreeSet;

use mafs_proto::StoreId;

use super::Entry;

/// Records without content that may be under way.
pub(super) const SMALL_MAX: usize = 128;
/// Stores that may be under way.
pub(super) const STORES_MAX: usize = 64;
/// Records that may be under way although there is no room, because somebody waits for them. With the others as many
/// as the server lets wait for each other (`PARKED_MAX` of `server/src/volume/waiting.rs`): what is beyond it refuses,
/// and a barrier may be about all that was done in a long outage.
pub(super) const RAISED_MAX: usize = 64;
/// Bytes of stores that may be under way unless somebody says how many, but one store always may: what a link of 10
/// MB/s and 400 ms holds.
pub(super) const STORE_BYTES_MAX: u64 = 4 << 20;

/// The records that are sent and not answered yet.
pub(super) struct UnderWay {
    ids: BTreeSet<StoreId>,
    small: usize,
    stores: usize,
    /// Bytes of the stores among them.
    pub(super) bytes: u64,
    raised: usize,
    pub(super) store_bytes_max: u64,
}

impl Default for UnderWay {
    fn default() -> Self {
        Self { ids: BTreeSet::new(), small: 0, stores: 0, bytes: 0, raised: 0, store_bytes_max: STORE_BYTES_MAX }
    }
}

impl UnderWay {
    pub(super) fn ids(&self) -> impl ExactSizeIterator<Item = StoreId> {
        self.ids.iter().copied()
    }

    pub(super) fn has_room_for(&self, entry: &Entry) -> bool {
        let has_room = match entry.store_bytes() {
            None => self.small < SMALL_MAX,
            Some(_) if self.stores == 0 => true,
            Some(bytes) => self.stores < STORES_MAX && self.bytes.saturating_add(bytes) <= self.store_bytes_max,
        };
        has_room || entry.raised && self.raised < RAISED_MAX
    }

    pub(super) fn begin(&mut self, id: StoreId, entry: &Entry) {
        self.ids.insert(id);
        self.raised += usize::from(entry.raised);
        match entry.store_bytes() {
            Some(bytes) => (self.stores, self.bytes) = (self.stores + 1, self.bytes.saturating_add(bytes)),
            None => self.small += 1,
        }
    }

    pub(super) fn end(&mut self, id: StoreId, entry: &Entry) {
        self.ids.remove(&id);
        self.raised -= usize::from(entry.raised);
        match entry.store_bytes() {
            Some(bytes) => (self.stores, self.bytes) = (self.stores - 1, self.bytes.saturating_sub(bytes)),
            None => self.small -= 1,
        }
    }

    /// Notes that somebody waits for one of them from now on.
    pub(super) fn note_raised(&mut self) {
        self.raised += 1;
    }

    /// Notes that a content has another size.
    pub(super) fn resize(&mut self, before: u64, now: u64) {
        self.bytes = self.bytes.saturating_sub(before).saturating_add(now);
    }
}
