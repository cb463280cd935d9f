//! Replacement: which cached files go when the cache is full. Those that are worth the least go first, by how lately
//! they were used and by what they are hoarded with; busy (open, dirty) or pinned files never go.
//!
//! A file is worth three parts of its hoard priority and one part of its recency, as in Coda. Recency falls from 1,000
//! to nothing while as much is used as the cache holds. So a file hoarded with 334 or more outlives any that was only
//! used, and among equals the least recently used goes first.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mafs_proto::VnodeId;

use crate::hoard::Rank;

/// The recency of what has just been used.
const RECENCY_MAX: u64 = 1000;

/// Parts of the priority to one part of recency.
const PRIORITY_PARTS: u64 = 3;

/// Bytes that a use counts besides those of the file: a block, so that empty files grow old too.
const USE_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug)]
struct Cached {
    bytes: u64,
    /// Bytes that had been used when it was used last.
    used_at: u64,
    rank: Rank,
}

/// The files in the cache, by their last use, with what each takes.
#[derive(Debug)]
pub(crate) struct Replacement {
    limit_bytes: u64,
    used_bytes: u64,
    files: HashMap<VnodeId, Cached>,
    /// All of them, each rank in the order of last use.
    queues: BTreeMap<Rank, BTreeSet<(u64, VnodeId)>>,
    /// Bytes of all uses so far.
    clock: u64,
}

impl Replacement {
    /// Makes an empty cache that may hold `limit_bytes`.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, used_bytes: 0, files: HashMap::new(), queues: BTreeMap::new(), clock: 0 }
    }

    /// Notes that a file of this size and rank is in the cache and was used just now.
    pub(crate) fn touch(&mut self, vnode: VnodeId, bytes: u64, rank: Rank) {
        self.clock = self.clock.saturating_add(bytes).saturating_add(USE_BYTES);
        self.put(vnode, Cached { bytes, used_at: self.clock, rank });
    }

    /// Sets the rank of a file, if it is in the cache.
    pub(crate) fn set_rank(&mut self, vnode: VnodeId, rank: Rank) {
        if let Some(cached) = self.files.get(&vnode).copied().filter(|cached| cached.rank != rank) {
            self.put(vnode, Cached { rank, ..cached });
        }
    }

    fn put(&mut self, vnode: VnodeId, cached: Cached) {
        self.remove(vnode);
        self.used_bytes += cached.bytes;
        self.files.insert(vnode, cached);
        self.queues.entry(cached.rank).or_default().insert((cached.used_at, vnode));
    }

    /// Removes a file that is no longer in the cache.
    pub(crate) fn remove(&mut self, vnode: VnodeId) {
        let Some(cached) = self.files.remove(&vnode) else { return };
        self.used_bytes -= cached.bytes;
        if let Some(queue) = self.queues.get_mut(&cached.rank) {
            queue.remove(&(cached.used_at, vnode));
            if queue.is_empty() {
                self.queues.remove(&cached.rank);
            }
        }
    }

    /// Returns how many bytes too many the cache would hold with `wanted_bytes` more.
    pub(crate) fn excess_bytes(&self, wanted_bytes: u64) -> u64 {
        self.excess_over(self.limit_bytes, wanted_bytes)
    }

    fn excess_over(&self, limit_bytes: u64, wanted_bytes: u64) -> u64 {
        self.used_bytes.saturating_add(wanted_bytes).saturating_sub(limit_bytes)
    }

    /// Plans which files to evict, in order, so that `bytes` become free; fewer if the rest is busy. They stay until
    /// `remove`.
    pub(crate) fn plan(&self, bytes: u64, busy: impl Fn(VnodeId) -> bool) -> Vec<VnodeId> {
        self.plan_below(u64::MAX, bytes, busy).0
    }

    /// Plans which files to evict for one of this rank that nobody has used yet, so that with `wanted_bytes` more a
    /// part of the cache stays free, and `short_bytes` become free besides if that is more. `None`: the files there are
    /// worth as much.
    pub(crate) fn make_way(
        &self,
        rank: Rank,
        wanted_bytes: u64,
        short_bytes: u64,
        busy: impl Fn(VnodeId) -> bool,
    ) -> Option<Vec<VnodeId>> {
        let bytes = self.excess_over(self.hoard_limit_bytes(), wanted_bytes).max(short_bytes);
        let worth = if rank.is_pinned() { u64::MAX } else { PRIORITY_PARTS * u64::from(u16::from(rank)) };
        let (evicted, missing) = self.plan_below(worth, bytes, busy);
        (missing == 0).then_some(evicted)
    }

    /// Returns the bytes that may be filled with files that nobody asks for now: the rest of the cache stays free for
    /// programs that ask.
    pub(crate) fn hoard_limit_bytes(&self) -> u64 {
        self.limit_bytes - self.limit_bytes / 10
    }

    /// Plans which files that are worth less than `worth` to evict. Also returns how many bytes are missing.
    fn plan_below(&self, worth: u64, bytes: u64, busy: impl Fn(VnodeId) -> bool) -> (Vec<VnodeId>, u64) {
        let (mut evicted, mut missing) = (Vec::new(), bytes);
        let unpinned = self.queues.iter().filter(|(rank, _)| !rank.is_pinned());
        let mut queues: Vec<_> = unpinned.map(|(rank, queue)| (*rank, queue.iter().peekable())).collect();
        while missing > 0 {
            // The first of each queue is worth the least of it. Few ranks are in use.
            let worths = queues.iter_mut().filter_map(|(rank, queue)| {
                let (used_at, _) = **queue.peek()?;
                Some((self.worth(*rank, used_at), used_at, queue))
            });
            let Some((least, _, queue)) = worths.min_by_key(|(worth, used_at, _)| (*worth, *used_at)) else { break };
            if least >= worth {
                break;
            }
            let Some((_, vnode)) = queue.next().filter(|(_, vnode)| !busy(*vnode)) else { continue };
            missing = missing.saturating_sub(self.bytes_of(*vnode).unwrap_or(0));
            evicted.push(*vnode);
        }
        (evicted, missing)
    }

    fn worth(&self, rank: Rank, used_at: u64) -> u64 {
        let age = u128::from(self.clock - used_at) * u128::from(RECENCY_MAX) / u128::from(self.limit_bytes.max(1));
        let recency = RECENCY_MAX.saturating_sub(u64::try_from(age).unwrap_or(RECENCY_MAX));
        PRIORITY_PARTS * u64::from(u16::from(rank)) + recency
    }

    /// Returns the bytes of a file, if it is in the cache.
    pub(crate) fn bytes_of(&self, vnode: VnodeId) -> Option<u64> {
        self.files.get(&vnode).map(|cached| cached.bytes)
    }

    /// Lists all files, least recently used first.
    pub(crate) fn by_use(&self) -> Vec<VnodeId> {
        let mut files: Vec<_> = self.files.iter().map(|(vnode, cached)| (cached.used_at, *vnode)).collect();
        files.sort_unstable();
        files.into_iter().map(|(_, vnode)| vnode).collect()
    }

    /// Returns the bytes of those files that have this rank or a higher one and are `counted`.
    pub(crate) fn bytes_from(&self, rank: Rank, counted: impl Fn(VnodeId) -> bool) -> u64 {
        let ranked = self.queues.range(rank..).flat_map(|(_, queue)| queue.iter().map(|(_, vnode)| *vnode));
        ranked.filter(|vnode| counted(*vnode)).filter_map(|vnode| self.bytes_of(vnode)).sum()
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

    fn rank(priority: u16) -> Rank {
        Rank::hoarded(priority).unwrap()
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = Replacement::new(30);
        for vnode in [1, 2, 3] {
            cache.touch(VnodeId(vnode), 10, Rank::NONE);
        }
        cache.touch(VnodeId(1), 10, Rank::NONE);
        assert_eq!(cache.plan(cache.excess_bytes(10), |_| false), [VnodeId(2)]);
        assert_eq!(cache.plan(cache.excess_bytes(15), |_| false), [VnodeId(2), VnodeId(3)]);
        assert_eq!(cache.plan(cache.excess_bytes(0), |_| false), []);
        assert_eq!(cache.by_use(), [VnodeId(2), VnodeId(3), VnodeId(1)]);
    }

    #[test]
    fn what_is_hoarded_outlives_what_was_only_used_and_a_pin_stays() {
        const MB: u64 = 1 << 20;
        let mut cache = Replacement::new(100 * MB);
        cache.touch(VnodeId(1), MB, Rank::PINNED);
        cache.touch(VnodeId(2), MB, rank(500));
        cache.touch(VnodeId(3), MB, rank(100));
        for vnode in 4..200 {
            cache.touch(VnodeId(vnode), MB, Rank::NONE);
        }
        // With 100, a file is worth less than one that was used just now and more than one that was not for long.
        let order = cache.plan(u64::MAX, |_| false);
        let place = |vnode| order.iter().position(|at| *at == VnodeId(vnode));
        assert_eq!((order.len(), place(1), place(2)), (198, None, Some(197)));
        assert!(place(4) < place(3) && place(3) < place(199), "{order:?}");
        cache.set_rank(VnodeId(1), Rank::NONE);
        assert_eq!(cache.plan(1, |_| false), [VnodeId(1)]);
    }

    #[test]
    fn the_hoard_takes_the_place_of_what_is_worth_less_and_leaves_a_tenth_free() {
        let mut cache = Replacement::new(100_000);
        for vnode in 1..=8 {
            cache.touch(VnodeId(vnode), 10_000, rank(500));
        }
        assert_eq!(cache.make_way(rank(500), 10_000, 0, |_| false), Some(Vec::new()));
        cache.touch(VnodeId(9), 10_000, Rank::NONE);
        assert_eq!(cache.make_way(rank(500), 10_000, 0, |_| false), Some(vec![VnodeId(9)]));
        assert_eq!(cache.make_way(rank(500), 20_000, 0, |_| false), None, "equals do not take turns");
        assert_eq!(cache.make_way(rank(1), 10_000, 0, |_| false), None, "it was used just now");
        assert_eq!(cache.make_way(rank(900), 20_000, 0, |_| false), Some(vec![VnodeId(9), VnodeId(1)]));
        assert_eq!(cache.make_way(rank(900), 20_000, 0, |vnode| vnode.0 != 9), None);
        assert_eq!(cache.make_way(Rank::PINNED, 0, 15_000, |_| false), Some(vec![VnodeId(9), VnodeId(1)]));
    }

    proptest! {
        #[test]
        fn proptest_invariant_5_busy_and_pinned_files_are_never_evicted_and_the_limit_holds(
            sizes in proptest::collection::vec(1u64..50, 1..40),
            limit in 50u64..200,
        ) {
            let busy = |vnode: VnodeId| vnode.0.is_multiple_of(7);
            let rank_of = |index: usize| match index % 5 {
                0 => Rank::PINNED,
                1 => rank(700),
                _ => Rank::NONE,
            };
            let stays = |index: usize| busy(VnodeId(index as u64)) || rank_of(index).is_pinned();
            let mut cache = Replacement::new(limit);
            for (index, bytes) in sizes.iter().enumerate() {
                let evicted = cache.plan(cache.excess_bytes(*bytes), busy);
                prop_assert!(evicted.iter().all(|vnode| !stays(usize::try_from(vnode.0).unwrap())));
                for vnode in evicted {
                    cache.remove(vnode);
                }
                cache.touch(VnodeId(index as u64), *bytes, rank_of(index));
                let kept = sizes[..=index].iter().enumerate().filter(|(at, _)| stays(*at));
                let kept_bytes: u64 = kept.map(|(_, size)| size).sum();
                prop_assert!(cache.used_bytes() <= limit + kept_bytes + bytes);
            }
        }

        #[test]
        fn proptest_every_file_is_counted_once(
            uses in proptest::collection::vec((0u64..10, 0u64..50, 0u16..4, any::<bool>()), 1..100),
        ) {
            let mut cache = Replacement::new(100);
            let mut model = HashMap::new();
            for (vnode, bytes, number, stays) in uses {
                if stays {
                    cache.touch(VnodeId(vnode), bytes, Rank::try_from(number).unwrap());
                    model.insert(vnode, bytes);
                } else {
                    cache.remove(VnodeId(vnode));
                    model.remove(&vnode);
                }
                prop_assert_eq!(cache.used_bytes(), model.values().sum::<u64>());
                prop_assert_eq!(cache.files(), model.len());
                prop_assert_eq!(cache.queues.values().map(BTreeSet::len).sum::<usize>(), model.len());
            }
        }
    }
}
