//! Objects as the index last showed them, so that those in use are neither looked up nor parsed again: from sled that
//! took 1.7 us each, 38 % of the client's time in a `git status`.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use mafs_durable::Batch;
use mafs_proto::VnodeId;

use super::vnode_of;
use crate::cache::{CacheError, CachedObject};

/// Most objects that are kept: some 5 MB.
const OBJECTS_MAX: NonZeroUsize = NonZeroUsize::new(16 << 10).expect("not zero");

/// The objects used last. Code that changes the index tells of it *after* the change.
pub(super) struct RecentObjects {
    recent: Mutex<Recent>,
}

struct Recent {
    objects: LruCache<VnodeId, CachedObject>,
    /// Counts changes: an object that was read from the index before one may not be kept after it.
    changes: u64,
}

impl RecentObjects {
    pub(super) fn new() -> Self {
        Self { recent: Mutex::new(Recent { objects: LruCache::new(OBJECTS_MAX), changes: 0 }) }
    }

    /// Returns the object, with the help of `load`, which reads it from the index.
    pub(super) fn get(
        &self,
        vnode: VnodeId,
        load: impl FnOnce() -> Result<Option<CachedObject>, CacheError>,
    ) -> Result<Option<CachedObject>, CacheError> {
        let changes = {
            let mut recent = self.lock();
            if let Some(object) = recent.objects.get(&vnode) {
                return Ok(Some(object.clone()));
            }
            recent.changes
        };
        let loaded = load()?;
        if let Some(object) = &loaded {
            let mut recent = self.lock();
            if recent.changes == changes {
                recent.objects.put(vnode, object.clone());
            }
        }
        Ok(loaded)
    }

    /// Notes that these keys of the index have changed.
    pub(super) fn changed(&self, batch: &Batch) {
        let mut recent = self.lock();
        recent.changes += 1;
        for vnode in batch.changes.iter().filter_map(|(key, _)| vnode_of(b"o", key)) {
            recent.objects.pop(&vnode);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::object_key;
    use super::*;
    use crate::cache::example;

    const VNODE: VnodeId = VnodeId(5);

    fn object(trust: u64) -> CachedObject {
        CachedObject { trust, ..example() }
    }

    fn change() -> Batch {
        let mut batch = Batch::default();
        batch.put(object_key(VNODE), Vec::new());
        batch
    }

    #[test]
    fn an_object_is_read_once_until_it_changes() {
        let recent = RecentObjects::new();
        let get = |trust| recent.get(VNODE, || Ok(Some(object(trust)))).unwrap();
        assert_eq!((get(1), get(2)), (Some(object(1)), Some(object(1))));
        recent.changed(&change());
        assert_eq!(get(2), Some(object(2)));
        recent.changed(&Batch::default());
        assert_eq!(get(3), Some(object(2)), "another key has changed");
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept_after_it() {
        let recent = RecentObjects::new();
        let overtaken = recent.get(VNODE, || {
            recent.changed(&change());
            Ok(Some(object(1)))
        });
        assert_eq!(overtaken.unwrap(), Some(object(1)));
        assert_eq!(recent.get(VNODE, || Ok(Some(object(2)))).unwrap(), Some(object(2)));
    }

    #[test]
    fn what_is_missing_is_asked_for_again() {
        let recent = RecentObjects::new();
        assert_eq!(recent.get(VNODE, || Ok(None)).unwrap(), None);
        assert_eq!(recent.get(VNODE, || Ok(Some(object(1)))).unwrap(), Some(object(1)));
    }
}
