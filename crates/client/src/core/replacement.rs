//! Replacement: which cached files go when the cache is full. Least recently used first; what is busy (open, dirty)
//! never.

use lru::LruCache;
use mafs_proto::VnodeId;

/// The files in the cache, by their last use, with what each takes.
#[derive(Debug)]
pub(crate) struct Replacement {
    limit_bytes: u64,
    used_bytes: u64,
    files: LruCache<VnodeId, u64>,
}

impl Replacement {
    /// An empty cache that may hold `limit_bytes`.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, used_bytes: 0, files: LruCache::unbounded() }
    }

    /// A file of this size is in the cache and was used just now.
    pub(crate) fn touch(&mut self, vnode: VnodeId, bytes: u64) {
        let before = self.files.put(vnode, bytes).unwrap_or(0);
        self.used_bytes = self.used_bytes - before + bytes;
    }

    /// A file is no longer in the cache.
    pub(crate) fn remove(&mut self, vnode: VnodeId) {
        self.used_bytes -= self.files.pop(&vnode).unwrap_or(0);
    }

    /// How many bytes too many the cache would hold with `wanted_bytes` more.
    pub(crate) fn excess_bytes(&self, wanted_bytes: u64) -> u64 {
        self.used_bytes.saturating_add(wanted_bytes).saturating_sub(self.limit_bytes)
    }

    /// Files to evict, in order, so that `bytes` become free; fewer if the rest is busy. They stay until `remove`.
    pub(crate) fn plan(&self, bytes: u64, busy: impl Fn(VnodeId) -> bool) -> Vec<VnodeId> {
        let mut missing = bytes;
        let mut evicted = Vec::new();
        for (vnode, bytes) in self.files.iter().rev().filter(|(vnode, _)| !busy(**vnode)) {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(*bytes);
            evicted.push(*vnode);
        }
        evicted
    }

    /// What a file takes, if it is in the cache.
    pub(crate) fn bytes_of(&self, vnode: VnodeId) -> Option<u64> {
        self.files.peek(&vnode).copied()
    }

    /// All files, least recently used first.
    pub(crate) fn by_use(&self) -> impl Iterator<Item = VnodeId> {
        self.files.iter().rev().map(|(vnode, _)| *vnode)
    }

    /// Bytes in the cache.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Files in the cache.
    pub(crate) fn files(&self) -> usize {
        self.files.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = Replacement::new(30);
        for vnode in [1, 2, 3] {
            cache.touch(VnodeId(vnode), 10);
        }
        cache.touch(VnodeId(1), 10);
        assert_eq!(cache.plan(cache.excess_bytes(10), |_| false), [VnodeId(2)]);
        assert_eq!(cache.plan(cache.excess_bytes(15), |_| false), [VnodeId(2), VnodeId(3)]);
        assert_eq!(cache.plan(cache.excess_bytes(0), |_| false), []);
    }

    proptest! {
        #[test]
        fn proptest_invariant_5_busy_files_are_never_evicted_and_the_limit_holds(
            sizes in proptest::collection::vec(1u64..50, 1..40),
            limit in 50u64..200,
        ) {
            let busy = |vnode: VnodeId| vnode.0.is_multiple_of(7);
            let mut cache = Replacement::new(limit);
            for (index, bytes) in sizes.iter().enumerate() {
                let evicted = cache.plan(cache.excess_bytes(*bytes), busy);
                prop_assert!(evicted.iter().all(|vnode| !busy(*vnode)));
                for vnode in evicted {
                    cache.remove(vnode);
                }
                cache.touch(VnodeId(index as u64), *bytes);
                let busy_sizes = sizes[..=index].iter().enumerate().filter(|(at, _)| busy(VnodeId(*at as u64)));
                let busy_bytes: u64 = busy_sizes.map(|(_, size)| size).sum();
                prop_assert!(cache.used_bytes() <= limit + busy_bytes + bytes);
            }
        }
    }
}
