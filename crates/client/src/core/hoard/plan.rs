//! The plan of a walk: once it is known which objects the hoard means, which contents are fetched, and in which order.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use mafs_proto::{Fid, VnodeId};

use crate::hoard::Rank;

/// An object that the hoard means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Planned {
    pub(crate) fid: Fid,
    pub(crate) rank: Rank,
    /// Bytes that its content takes; none if it has no content.
    pub(crate) bytes: u64,
    /// Whether its content is here.
    pub(crate) cached: bool,
}

/// Number of objects, and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

impl Totals {
    fn of(planned: impl Iterator<Item = Planned>) -> Self {
        planned.fold(Self::default(), |sum, one| Self { objects: sum.objects + 1, bytes: sum.bytes + one.bytes })
    }
}

/// The objects that were found, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    objects: Vec<Planned>,
    places: HashMap<VnodeId, usize>,
    /// Objects for which there is no room.
    left_out: HashSet<VnodeId>,
}

impl Plan {
    /// Adds an object that has been found. One that is found again, under another path, has the higher rank of both.
    /// Returns whether the object is new.
    pub(crate) fn add(&mut self, planned: Planned) -> bool {
        let next = self.objects.len();
        let place = *self.places.entry(planned.fid.vnode).or_insert(next);
        match self.objects.get_mut(place) {
            Some(known) => known.rank = known.rank.max(planned.rank),
            None => self.objects.push(planned),
        }
        place == next
    }

    /// Returns the objects to be fetched, in order: those of the highest ranks, as many as fit into `room_bytes` with
    /// those that are here already. Among equals those count first that are here, so that none is fetched in place of
    /// another.
    pub(crate) fn fetches(&mut self, room_bytes: u64) -> Vec<Planned> {
        let mut order: Vec<Planned> = self.objects.clone();
        order.sort_by_key(|planned| (Reverse(planned.rank), !planned.cached));
        let mut left_bytes = room_bytes;
        self.left_out.clear();
        order.retain(|planned| {
            let fits = planned.bytes <= left_bytes;
            if fits {
                left_bytes -= planned.bytes;
            } else {
                self.left_out.insert(planned.fid.vnode);
            }
            fits && !planned.cached
        });
        order
    }

    /// Lists all objects.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Planned> {
        self.objects.iter().copied()
    }

    /// Whether an object has been found.
    pub(crate) fn holds(&self, vnode: VnodeId) -> bool {
        self.places.contains_key(&vnode)
    }

    /// Sums up all objects.
    pub(crate) fn totals(&self) -> Totals {
        Totals::of(self.iter())
    }

    /// Sums up the objects whose content is not here.
    pub(crate) fn missing(&self) -> Totals {
        Totals::of(self.missing_objects())
    }

    /// Lists the objects whose content is not here.
    pub(crate) fn missing_objects(&self) -> impl Iterator<Item = Planned> {
        self.iter().filter(|planned| !planned.cached)
    }

    /// Sums up the objects whose content is not here and for which there is no room.
    pub(crate) fn left_out(&self) -> Totals {
        Totals::of(self.missing_objects().filter(|planned| self.left_out.contains(&planned.fid.vnode)))
    }

    /// Notes whether the content of an object is here, as it has come or gone.
    pub(crate) fn note_cached(&mut self, vnode: VnodeId, cached: bool) {
        if let Some(planned) = self.places.get(&vnode).and_then(|place| self.objects.get_mut(*place)) {
            planned.cached = cached;
        }
    }

    /// Notes that there is no room for an object after all.
    pub(crate) fn note_left_out(&mut self, vnode: VnodeId) {
        self.left_out.insert(vnode);
    }
}

#[cfg(test)]
mod tests {
    use mafs_proto::VolumeId;
    use proptest::prelude::*;

    use super::*;

    fn planned(number: u64, rank: u16, bytes: u64, cached: bool) -> Planned {
        let fid = Fid { vnode: VnodeId(number), ..Fid::root(VolumeId(1)) };
        Planned { fid, rank: Rank::try_from(rank).unwrap(), bytes, cached }
    }

    fn plan(objects: impl IntoIterator<Item = Planned>) -> Plan {
        let mut plan = Plan::default();
        objects.into_iter().for_each(|planned| assert!(plan.add(planned)));
        plan
    }

    fn numbers(planned: Vec<Planned>) -> Vec<u64> {
        planned.into_iter().map(|planned| planned.fid.vnode.0).collect()
    }

    #[test]
    fn the_most_wanted_comes_first_and_what_does_not_fit_stays_out() {
        let mut plan = plan([
            planned(1, 10, 40, false),
            planned(2, 1001, 50, false),
            planned(3, 500, 30, true),
            planned(4, 500, 30, false),
            planned(5, 500, 20, false),
        ]);
        assert_eq!(numbers(plan.fetches(170)), [2, 4, 5, 1]);
        assert_eq!(numbers(plan.fetches(110)), [2, 4]);
        assert_eq!(numbers(plan.fetches(100)), [2, 5], "what is here is not given up for an equal");
        assert_eq!(plan.fetches(0), []);
        assert_eq!(plan.left_out(), Totals { objects: 4, bytes: 140 });
        assert_eq!(plan.totals(), Totals { objects: 5, bytes: 170 });
        assert_eq!(plan.missing(), Totals { objects: 4, bytes: 140 });
    }

    #[test]
    fn an_object_with_two_paths_counts_once_with_the_higher_rank() {
        let mut plan = plan([planned(1, 10, 40, false)]);
        assert!(!plan.add(planned(1, 20, 40, false)) && !plan.add(planned(1, 5, 40, false)));
        assert_eq!(plan.fetches(40), [planned(1, 20, 40, false)]);
        plan.note_cached(VnodeId(1), true);
        assert_eq!((plan.fetches(40), plan.missing()), (Vec::new(), Totals::default()));
    }

    proptest! {
        #[test]
        fn proptest_never_more_than_fits_and_never_the_lesser_in_place_of_the_greater(
            objects in proptest::collection::vec((0u16..=1001, 0u64..100, any::<bool>()), 0..30),
            room in 0u64..1000,
        ) {
            let objects: Vec<_> = objects.into_iter().enumerate()
                .map(|(at, (rank, bytes, cached))| planned(at as u64, rank, bytes, cached)).collect();
            let fetched = plan(objects.clone()).fetches(room);
            prop_assert!(fetched.is_sorted_by_key(|planned| Reverse(planned.rank)));
            let bytes: u64 = fetched.iter().map(|planned| planned.bytes).sum();
            prop_assert!(bytes <= room);
            for left in objects.iter().filter(|planned| !planned.cached && !fetched.contains(planned)) {
                // Objects of this rank or a higher one fill the room so that it does not fit.
                let stays = |other: &&Planned| other.cached || fetched.contains(other);
                let above = objects.iter().filter(|other| other.rank >= left.rank).filter(stays);
                prop_assert!(above.map(|planned| planned.bytes).sum::<u64>() + left.bytes > room);
            }
        }
    }
}
