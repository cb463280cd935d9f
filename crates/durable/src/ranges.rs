//! Ranges: the bytes of a file that have arrived, take room, and the like.
//!
//! Invariant: the ranges are sorted, not empty, and neither overlap nor touch.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of byte positions as few ranges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RangeSet {
    ends: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds the bytes of `range`.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        while let Some((&other_start, &other_end)) = self.ends.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            self.ends.remove(&other_start);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.ends.insert(start, end);
    }

    /// Takes the bytes of `range` out.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) = self.ends.range(..range.end).next_back() {
            if end <= range.start {
                break;
            }
            self.ends.remove(&start);
            if range.end < end {
                self.ends.insert(range.end, end);
            }
            if start < range.start {
                self.ends.insert(start, range.start);
                break;
            }
        }
    }

    /// Returns the ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ends.iter().map(|(&start, &end)| start..end)
    }

    /// Returns how many bytes there are.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ends.iter().map(|(start, end)| end - start).sum()
    }

    /// Returns how many bytes of `range` are missing.
    #[must_use]
    pub fn missing_bytes(&self, range: Range<u64>) -> u64 {
        let mut with = self.clone();
        with.insert(range);
        with.bytes() - self.bytes()
    }

    /// Tells whether all bytes of `range` are there.
    #[must_use]
    pub fn contains(&self, range: Range<u64>) -> bool {
        range.is_empty() || self.run_end(range.start) >= range.end
    }

    /// Finds the first byte at or behind `from` that is missing, and the end of that gap; `None` if nothing below
    /// `size` is missing.
    #[must_use]
    pub fn first_gap(&self, from: u64, size: u64) -> Option<Range<u64>> {
        let start = self.run_end(from);
        let end = self.ends.range(start..).next().map_or(size, |(&next_start, _)| next_start.min(size));
        (start < size).then_some(start..end)
    }

    /// Returns the end of the run of bytes that `offset` is in; `offset` itself if that byte is missing.
    fn run_end(&self, offset: u64) -> u64 {
        match self.ends.range(..=offset).next_back() {
            Some((_, &end)) => end.max(offset),
            None => offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        #[allow(clippy::cast_possible_truncation, reason = "small numbers")]
        fn proptest_ranges_hold_exactly_what_was_inserted_and_not_removed(
            changes in proptest::collection::vec((any::<bool>(), 0u64..64, 0u64..16), 0..20),
            from in 0u64..80,
        ) {
            let mut set = RangeSet::default();
            let mut model = [false; 96];
            for (insert, start, length) in changes {
                let range = start..start + length;
                let missing = (range.start..range.end).filter(|at| !model[*at as usize]).count();
                prop_assert_eq!(set.missing_bytes(range.clone()), missing as u64);
                model[range.start as usize..range.end as usize].fill(insert);
                if insert {
                    set.insert(range);
                } else {
                    set.remove(range);
                }
            }
            prop_assert_eq!(set.bytes(), model.iter().filter(|there| **there).count() as u64);
            let mut again = RangeSet::default();
            set.iter().for_each(|range| again.insert(range));
            prop_assert_eq!(&again, &set);
            for start in 0..90u64 {
                let all = model[start as usize..start as usize + 3].iter().all(|there| *there);
                prop_assert_eq!(set.contains(start..start + 3), all);
            }
            let size = 80;
            let gap_start = (from..size).find(|at| !model[*at as usize]);
            let gap = gap_start.map(|start| start..(start..size).find(|at| model[*at as usize]).unwrap_or(size));
            prop_assert_eq!(set.first_gap(from, size), gap);
            let touching = set.ends.iter().zip(set.ends.keys().skip(1)).any(|((_, end), next)| end >= next);
            prop_assert!(!touching);
        }
    }
}
