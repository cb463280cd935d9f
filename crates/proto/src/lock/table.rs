//! The table of one file's locks.

use super::{LockKind, LockOwner, LockRange};

/// A possible holder of locks.
pub trait Holder: Clone + Eq {
    /// Whether a lock of one replaces the locks of the other.
    fn is_same(&self, other: &Self) -> bool;
    /// Whether locks of the two do not exclude each other.
    fn is_kin(&self, other: &Self) -> bool;
}

impl Holder for LockOwner {
    fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
    }

    fn is_kin(&self, other: &Self) -> bool {
        self.is_kin(other)
    }
}

/// A range with its holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldRange<H> {
    /// The holder.
    pub holder: H,
    /// The bytes.
    pub range: LockRange,
    /// The kind: whether others may share the lock.
    pub kind: LockKind,
}

impl<H> HeldRange<H> {
    /// Whether no other holder can have any lock in the file.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.range == LockRange::ALL && self.kind == LockKind::Exclusive
    }
}

/// The table of the held ranges of one file.
///
/// Invariants: no two ranges of one holder overlap, and none touches another of the same kind that was locked in the
/// same way; ranges of different holders overlap only if they do not exclude each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockTable<H>(Vec<HeldRange<H>>);

impl<H> Default for LockTable<H> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<H: Holder> LockTable<H> {
    /// Whether no range is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how many ranges there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Lists all ranges, in the order of their first bytes.
    pub fn iter(&self) -> impl Iterator<Item = &HeldRange<H>> {
        self.0.iter()
    }

    /// Lists the ranges that keep a holder from locking a range, in the order of their first bytes.
    pub fn conflicts(&self, holder: &H, range: LockRange, kind: LockKind) -> impl Iterator<Item = &HeldRange<H>> {
        let excludes = move |held: &&HeldRange<H>| held.kind.excludes(kind) && held.range.overlaps(range);
        self.0.iter().filter(excludes).filter(move |held| !held.holder.is_kin(holder))
    }

    /// Whether a holder has all of a range, as a lock of this kind or a stronger one.
    #[must_use]
    pub fn holds(&self, holder: &H, range: LockRange, kind: LockKind) -> bool {
        let mut missing = vec![range];
        for held in self.0.iter().filter(|held| held.holder.is_same(holder) && held.kind >= kind) {
            missing = missing.into_iter().flat_map(|part| part.without(held.range)).collect();
        }
        missing.is_empty()
    }

    /// Gives a holder a range, in place of its locks there. The caller must make sure that the holder may have it.
    pub fn lock(&mut self, holder: H, range: LockRange, kind: LockKind) {
        self.unlock(&holder, range);
        let mut range = range;
        let joins = |held: &HeldRange<H>| held.holder == holder && held.kind == kind;
        // At most two ranges touch it, one on each side, and they touch nothing else.
        self.0.retain(|held| {
            let joined = joins(held) && held.range.touches(range);
            if joined {
                let (first, last) = (range.first.min(held.range.first), range.last.max(held.range.last));
                range = LockRange { first, last };
            }
            !joined
        });
        self.insert(HeldRange { holder, range, kind });
    }

    /// Takes a range from a holder. Returns whether it had any of the range.
    pub fn unlock(&mut self, holder: &H, range: LockRange) -> bool {
        self.unlock_where(holder, range, |_| true)
    }

    /// Takes a range from a holder, where the entry's holder `may` lose it. Returns whether anything was taken.
    pub fn unlock_where(&mut self, holder: &H, range: LockRange, may: impl Fn(&H) -> bool) -> bool {
        let is_meant =
            |held: &HeldRange<H>| held.holder.is_same(holder) && held.range.overlaps(range) && may(&held.holder);
        if !self.0.iter().any(is_meant) {
            return false;
        }
        let (meant, others) = std::mem::take(&mut self.0).into_iter().partition(is_meant);
        self.0 = others;
        let meant: Vec<HeldRange<H>> = meant;
        for held in meant {
            for left in held.range.without(range) {
                self.insert(HeldRange { range: left, ..held.clone() });
            }
        }
        true
    }

    /// Keeps only the wanted ranges.
    pub fn retain(&mut self, wanted: impl FnMut(&HeldRange<H>) -> bool) {
        self.0.retain(wanted);
    }

    fn insert(&mut self, held: HeldRange<H>) {
        let place = self.0.partition_point(|other| other.range.first <= held.range.first);
        self.0.insert(place, held);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes of the model: the last one stands for all that come behind.
    const BYTES: usize = 12;
    const OWNERS: usize = 3;

    fn owner(number: usize) -> LockOwner {
        let id = number as u64;
        LockOwner { id, process: 100 + u32::try_from(number).unwrap(), file: id }
    }

    fn range(first: usize, last: usize) -> LockRange {
        LockRange::new(first as u64, if last == BYTES - 1 { u64::MAX } else { last as u64 }).unwrap()
    }

    /// The kind of lock on each byte, by owner.
    type Bytes = [[Option<LockKind>; BYTES]; OWNERS];

    #[derive(Default)]
    struct Model(Bytes);

    impl Model {
        fn conflicts(&self, by: usize, first: usize, last: usize, kind: LockKind) -> bool {
            let others = (0..OWNERS).filter(|other| *other != by);
            let mut held = others.flat_map(|other| &self.0[other][first..=last]).flatten();
            held.any(|held| held.excludes(kind))
        }

        fn set(&mut self, by: usize, first: usize, last: usize, kind: Option<LockKind>) {
            self.0[by][first..=last].fill(kind);
        }
    }

    fn as_model(table: &LockTable<LockOwner>) -> Bytes {
        let mut model = Bytes::default();
        let byte = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).min(BYTES - 1);
        for held in table.iter() {
            let bytes = &mut model[byte(held.holder.id)][byte(held.range.first())..=byte(held.range.last())];
            assert!(bytes.iter().all(Option::is_none), "two ranges of one owner overlap: {table:?}");
            bytes.fill(Some(held.kind));
        }
        model
    }

    proptest! {
        #[test]
        fn proptest_a_table_is_an_array_of_bytes(
            steps in proptest::collection::vec(
                (0..OWNERS, 0..BYTES, 0..BYTES, prop_oneof![
                    Just(None), Just(Some(LockKind::Shared)), Just(Some(LockKind::Exclusive))
                ]),
                1..60,
            )
        ) {
            let (mut table, mut model) = (LockTable::default(), Model::default());
            for (by, one, other, kind) in steps {
                let (first, last) = (one.min(other), one.max(other));
                let (holder, bytes) = (owner(by), range(first, last));
                match kind {
                    Some(kind) => {
                        let free = table.conflicts(&holder, bytes, kind).next().is_none();
                        prop_assert_eq!(free, !model.conflicts(by, first, last, kind));
                        if free {
                            table.lock(holder, bytes, kind);
                            model.set(by, first, last, Some(kind));
                            prop_assert!(table.holds(&holder, bytes, kind));
                        }
                    }
                    None => {
                        table.unlock(&holder, bytes);
                        model.set(by, first, last, None);
                    }
                }
                prop_assert_eq!(as_model(&table), model.0);
                for held in table.iter() {
                    let touching = table.iter().filter(|other| {
                        other.holder == held.holder && other.kind == held.kind && other.range.touches(held.range)
                    });
                    prop_assert_eq!(touching.count(), 1, "ranges that touch are one: {:?}", table);
                }
            }
        }
    }

    #[test]
    fn what_is_locked_in_the_middle_of_a_range_splits_it() {
        let mut table = LockTable::default();
        table.lock(owner(1), LockRange::ALL, LockKind::Shared);
        table.lock(owner(1), LockRange::new(10, 19).unwrap(), LockKind::Exclusive);
        let ranges: Vec<_> = table.iter().map(|held| (held.range.first(), held.range.last(), held.kind)).collect();
        assert_eq!(ranges, [(0, 9, LockKind::Shared), (10, 19, LockKind::Exclusive), (20, u64::MAX, LockKind::Shared)]);
        assert!(table.holds(&owner(1), LockRange::ALL, LockKind::Shared));
        assert!(!table.holds(&owner(1), LockRange::ALL, LockKind::Exclusive));
        table.lock(owner(1), LockRange::new(10, 19).unwrap(), LockKind::Shared);
        assert_eq!(table.len(), 1, "ranges that touch are one again");
    }

    #[test]
    fn flock_and_fcntl_of_one_process_on_one_open_file_do_not_exclude_each_other() {
        let by_file = LockOwner { id: 1, process: 7, file: 3 };
        let by_process = LockOwner { id: 2, ..by_file };
        let mut table = LockTable::default();
        table.lock(by_file, LockRange::ALL, LockKind::Exclusive);
        let conflicts =
            |owner: LockOwner| table.conflicts(&owner, LockRange::ALL, LockKind::Exclusive).next().is_some();
        assert!(!conflicts(by_process));
        assert!(conflicts(LockOwner { file: 4, ..by_process }), "two open files of one process exclude each other");
        assert!(conflicts(LockOwner { process: 8, ..by_process }));
        let unseen = LockOwner { id: 5, process: 0, file: 3 };
        table.lock(unseen, LockRange::ALL, LockKind::Exclusive);
        assert!(table.conflicts(&LockOwner { id: 6, ..unseen }, LockRange::ALL, LockKind::Shared).count() > 0);
    }
}
