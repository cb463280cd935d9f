//! Places: where names stand in a listing, so that a reader can go on behind one.
//!
//! A place follows from the name and the object alone: names that come or go do not move others. Objects are in the
//! order in which they were made, as in the index.

use std::hash::{DefaultHasher, Hash, Hasher};

use mafs_proto::{Name, VnodeId};

use super::{ListedEntry, NamedEntry};

/// First place of a name: `.` and `..` have the places below.
const FIRST: u64 = 3;

/// Bits of a place, which has 62 and some, because the kernel's offsets have a sign. 38 bits are of the object's
/// number, enough for 275 thousand million objects before places repeat; 24 bits tell the names of one object apart.
const OBJECT_BITS: u32 = 38;
const NAME_BITS: u32 = 24;

/// Puts names in the order of their places.
pub(super) fn in_places(names: Vec<NamedEntry>) -> Vec<ListedEntry> {
    let listed = |(name, entry): NamedEntry| ListedEntry { place: place(entry.fid.vnode, &name), name, entry };
    let mut listed: Vec<_> = names.into_iter().map(listed).collect();
    listed.sort_unstable_by(|one, other| (one.place, &one.name).cmp(&(other.place, &other.name)));
    let mut last = 0;
    for entry in &mut listed {
        // Two names of an object with the same place: the later one moves up.
        entry.place = entry.place.max(last + 1);
        last = entry.place;
    }
    listed
}

fn place(vnode: VnodeId, name: &Name) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.as_bytes().hash(&mut hasher);
    let object = vnode.0 % (1 << OBJECT_BITS);
    FIRST + (object << NAME_BITS | hasher.finish() >> (u64::BITS - NAME_BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use mafs_proto::{Fid, Kind, Uniquifier, VolumeId};
    use proptest::prelude::*;

    use super::*;
    use crate::cache::CachedEntry;

    fn entry(vnode: u64) -> CachedEntry {
        let fid = Fid { volume: VolumeId(1), vnode: VnodeId(vnode), unique: Uniquifier(1) };
        CachedEntry { fid, kind: Kind::File }
    }

    fn names(vnodes: impl IntoIterator<Item = (u32, u64)>) -> Vec<NamedEntry> {
        let named = |(number, vnode)| (Name::new(format!("name {number}")).unwrap(), entry(vnode));
        vnodes.into_iter().map(named).collect()
    }

    #[test]
    fn places_ascend_and_fit_into_the_kernels_offsets() {
        let vnodes = [1, 2, 7, 1 << 37, (1 << 38) - 1, 1 << 38, u64::MAX];
        let listed = in_places(names((0..7).zip(vnodes)));
        assert!(listed.is_sorted_by(|one, other| one.place < other.place));
        assert!(listed.iter().all(|entry| (FIRST..=i64::MAX.cast_unsigned()).contains(&entry.place)));
    }

    #[test]
    fn many_names_of_one_object_have_a_place_each() {
        let listed = in_places(names((0..20_000).map(|number| (number, 7))));
        assert!(listed.is_sorted_by(|one, other| one.place < other.place));
    }

    proptest! {
        #[test]
        fn proptest_names_that_come_and_go_move_no_others(
            before in prop::collection::btree_map(0..200_u32, 2..100_000_u64, 0..100),
            gone in prop::collection::btree_set(0..200_u32, 0..100),
            come in prop::collection::btree_map(200..400_u32, 2..100_000_u64, 0..100),
        ) {
            let places = |names| -> HashMap<Name, u64> {
                in_places(names).into_iter().map(|listed| (listed.name, listed.place)).collect()
            };
            let first = places(names(before.clone()));
            let kept = before.into_iter().filter(|(number, _)| !gone.contains(number));
            let then = places(names(kept.chain(come)));
            for (name, place) in then {
                prop_assert!(first.get(&name).is_none_or(|before| *before == place));
            }
        }
    }
}
