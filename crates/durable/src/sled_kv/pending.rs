//! Pending: changes that are applied as far as readers can tell, and not in the database yet.
//!
//! sled writes to its file twice for every batch, by way of a pool of threads: measured for one new file, 13 writes and
//! 125 futex calls. So neighbouring batches are gathered into groups, and a group goes to sled as one batch. A crash
//! leaves a prefix of the groups, hence of the batches, as [`crate::Kv`] says.
//!
//! Groups stay small, because sled copies a whole page for every change, and keeps the old ones until the end of a
//! batch: with up to 4 MB in a group a server with 30,000 files of 4 KB took 388 MB.
//!
//! Groups that have moved into the database are kept until they are durable there, in case it has to be opened anew.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use crate::{Batch, Pair};

/// Changed keys with which a group is closed.
const GROUP_KEYS: usize = 128;

/// Bytes of keys and values with which a group is closed.
const GROUP_BYTES: usize = 256 << 10;

/// Closed groups that may wait.
const CLOSED_MAX: usize = 8;

/// Closed groups that may wait while none can leave, for operations that have been begun.
const RESERVE_MAX: usize = 16;

/// Groups in the database that may wait to be made durable.
const MOVED_MAX: usize = 64;

/// Keys with what they were changed to; `None`: removed.
pub(super) type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The changes in front of the database.
#[derive(Default)]
pub(super) struct Pending {
    /// Closed groups, oldest first; each leaves whole.
    closed: VecDeque<Changes>,
    /// Groups that have left, oldest first, while a crash could still undo them.
    moved: VecDeque<Changes>,
    gathered: Changes,
    gathered_bytes: usize,
}

impl Pending {
    /// Takes a batch in. Returns whether the writer should come and see: there is a first change, or one more group.
    pub(super) fn gather(&mut self, batch: &Batch) -> bool {
        let first = self.is_empty();
        for (key, value) in &batch.changes {
            self.gathered_bytes += key.len() + value.as_ref().map_or(0, Vec::len);
            self.gathered.insert(key.clone(), value.clone());
        }
        let full = self.gathered.len() >= GROUP_KEYS || self.gathered_bytes >= GROUP_BYTES;
        if full {
            self.close();
        }
        first || full
    }

    /// Tells whether groups should leave before more is taken in.
    pub(super) fn is_full(&self) -> bool {
        self.closed.len() >= CLOSED_MAX
    }

    /// Tells whether there is still a place for operations that have been begun.
    pub(super) fn has_reserve(&self) -> bool {
        self.closed.len() < RESERVE_MAX
    }

    fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.gathered.is_empty()
    }

    /// Closes the group that is being gathered.
    pub(super) fn close(&mut self) {
        if !self.gathered.is_empty() {
            self.closed.push_back(std::mem::take(&mut self.gathered));
            self.gathered_bytes = 0;
        }
    }

    /// Returns the closed group that leaves next.
    pub(super) fn next(&self) -> Option<&Changes> {
        self.closed.front()
    }

    /// Notes that the group of [`Self::next`] is in the database. Returns whether so many are that they should be
    /// made durable.
    pub(super) fn moved(&mut self) -> bool {
        self.moved.extend(self.closed.pop_front());
        self.moved.len() >= MOVED_MAX
    }

    /// Tells whether everything that has moved is durable.
    pub(super) fn is_durable(&self) -> bool {
        self.moved.is_empty()
    }

    /// Notes that everything that has moved is durable. Returns the groups, which are no longer needed.
    pub(super) fn durable(&mut self) -> VecDeque<Changes> {
        std::mem::take(&mut self.moved)
    }

    /// Queues once more what has moved and is not durable: the database may have lost it.
    pub(super) fn repeat(&mut self) {
        self.moved.append(&mut self.closed);
        self.closed = self.durable();
    }

    /// Returns the change of a key: its new value, or `None` if it is removed; the outer `None`: it was not changed.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.gathered.get(key).or_else(|| self.closed.iter().rev().find_map(|group| group.get(key)))
    }

    /// Returns up to `limit` pairs of the keys that start with `prefix`, from `start` on: those of `stored`, which
    /// come in order, as changed.
    pub(super) fn merge<E>(
        &self,
        prefix: &[u8],
        start: Bound<&[u8]>,
        limit: usize,
        stored: impl Iterator<Item = Result<Pair, E>>,
    ) -> Result<Vec<Pair>, E> {
        let in_prefix = |key: &[u8]| key.starts_with(prefix);
        let mut changed: BTreeMap<&[u8], &Option<Vec<u8>>> = BTreeMap::new();
        for group in self.closed.iter().chain([&self.gathered]) {
            let range = group.range::<[u8], _>((start, Bound::Unbounded)).take_while(|(key, _)| in_prefix(key));
            changed.extend(range.map(|(key, value)| (key.as_slice(), value)));
        }
        let mut changed = changed.into_iter().peekable();
        let mut stored = stored.take_while(|pair| pair.as_ref().map_or(true, |(key, _)| in_prefix(key))).peekable();
        let mut found = Vec::new();
        while found.len() < limit {
            let stored_first = match (changed.peek(), stored.peek()) {
                (None, None) => break,
                (Some((key, _)), Some(Ok((stored_key, _)))) => stored_key.as_slice() < *key,
                (Some(_), None) => false,
                (_, Some(_)) => true,
            };
            if stored_first {
                found.extend(stored.next().transpose()?);
            } else if let Some((key, value)) = changed.next() {
                stored.next_if(|pair| pair.as_ref().is_ok_and(|(stored_key, _)| stored_key == key));
                found.extend(value.as_ref().map(|value| (key.to_vec(), value.clone())));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A step of a test; keys and values are small numbers.
    #[derive(Clone, Debug)]
    enum Step {
        Apply(Vec<(u8, Option<u8>)>),
        Close,
        Move {
            acknowledged: bool,
        },
        Sync,
        /// The database is opened anew, with what is durable and the first so many groups of the rest.
        Reopen {
            kept: usize,
        },
        Scan {
            high: u8,
            after: Option<u8>,
            limit: usize,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        let change = (0u8..32, proptest::option::of(any::<u8>()));
        prop_oneof![
            4 => vec(change, 1..5).prop_map(Step::Apply),
            1 => Just(Step::Close),
            2 => any::<bool>().prop_map(|acknowledged| Step::Move { acknowledged }),
            1 => Just(Step::Sync),
            1 => (0usize..4).prop_map(|kept| Step::Reopen { kept }),
            4 => (0u8..3, proptest::option::of(0u8..32), 0usize..20)
                .prop_map(|(high, after, limit)| Step::Scan { high, after, limit }),
        ]
    }

    /// Makes a key of two bytes, so that there are prefixes.
    fn key(number: u8) -> Vec<u8> {
        vec![number / 16, number]
    }

    fn change(map: &mut BTreeMap<Vec<u8>, Vec<u8>>, changes: impl IntoIterator<Item = (Vec<u8>, Option<Vec<u8>>)>) {
        for (key, value) in changes {
            match value {
                Some(value) => drop(map.insert(key, value)),
                None => drop(map.remove(&key)),
            }
        }
    }

    proptest! {
        #[test]
        fn proptest_readers_see_every_change_in_order_wherever_it_is(steps in vec(step(), 1..40)) {
            let (mut model, mut stored, mut pending) = (BTreeMap::new(), BTreeMap::new(), Pending::default());
            let mut durable = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Apply(changes) => {
                        let changes: Vec<_> =
                            changes.into_iter().map(|(at, value)| (key(at), value.map(|byte| vec![byte]))).collect();
                        change(&mut model, changes.clone());
                        pending.gather(&Batch { changes });
                    }
                    Step::Close => pending.close(),
                    Step::Move { acknowledged } => {
                        change(&mut stored, pending.next().cloned().unwrap_or_default());
                        if acknowledged {
                            pending.moved();
                        }
                    }
                    Step::Sync => {
                        pending.durable();
                        durable.clone_from(&stored);
                    }
                    Step::Reopen { kept } => {
                        stored.clone_from(&durable);
                        for group in pending.moved.iter().take(kept) {
                            change(&mut stored, group.clone());
                        }
                        pending.repeat();
                    }
                    Step::Scan { high, after, limit } => {
                        let prefix = [high];
                        let after = after.map(key).filter(|after| after.as_slice() >= prefix.as_slice());
                        let start = after.as_deref().map_or(Bound::Included(prefix.as_slice()), Bound::Excluded);
                        let ours = stored.range::<[u8], _>((start, Bound::Unbounded));
                        let ours = ours.map(|(key, value)| Ok::<_, ()>((key.clone(), value.clone())));
                        let found = pending.merge(&prefix, start, limit, ours).unwrap();
                        let expected = model.range::<[u8], _>((start, Bound::Unbounded));
                        let expected = expected.take_while(|(key, _)| key[0] == high).take(limit);
                        let expected: Vec<Pair> = expected.map(|(key, value)| (key.clone(), value.clone())).collect();
                        prop_assert_eq!(found, expected);
                    }
                }
                for number in 0..32 {
                    let key = key(number);
                    let seen = pending.get(&key).cloned().unwrap_or_else(|| stored.get(&key).cloned());
                    prop_assert_eq!(seen.as_ref(), model.get(&key));
                }
            }
        }
    }

    #[test]
    fn a_group_closes_when_it_is_large_and_asks_to_be_fetched() {
        let mut pending = Pending::default();
        let batch = |number: usize| {
            let mut batch = Batch::default();
            batch.put(number.to_be_bytes(), [0]);
            batch
        };
        assert!(pending.gather(&batch(0)), "the first change");
        assert!((1..GROUP_KEYS - 1).all(|number| !pending.gather(&batch(number))));
        assert!(pending.next().is_none());
        assert!(pending.gather(&batch(GROUP_KEYS)), "a full group");
        assert_eq!(pending.next().map(BTreeMap::len), Some(GROUP_KEYS));
        assert!(!pending.is_full());
    }
}
