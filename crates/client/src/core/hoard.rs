//! The hoard: which paths are to be in the cache, be there a connection or not, and what that means for objects.
//!
//! A path means what it means when the hoard is walked, as in Coda: it may be one that does not exist yet. An entry for
//! what is there now becomes, at the first walk, one for each thing that the walk finds.

mod marks;
mod plan;

use std::collections::BTreeMap;

use mafs_proto::ContentHash;

use crate::hoard::{HoardSpec, Rank, Scope};
pub(crate) use marks::Marks;
pub(crate) use plan::{Plan, Planned};

/// The most entries, and bytes of their paths: a list of them is one answer to a command.
pub(crate) const ENTRIES_MAX: usize = 20_000;
const PATH_BYTES_MAX: usize = 2 << 20;

/// The longest path, as the kernel has it.
const ONE_PATH_BYTES_MAX: usize = 4096;

/// The first byte of the written form.
const FORMAT: u8 = 1;

/// Reason why an entry cannot be added.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HoardError {
    /// There are too many.
    #[error("the hoard is full ({0} entries): hoard directories with :d+ instead of what is in them")]
    Full(usize),
    /// No object has such a path.
    #[error("the path is longer than {ONE_PATH_BYTES_MAX} bytes")]
    PathTooLong,
}

/// The entries, by their paths below the mount point, without slashes around; the empty path is the mount itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Hoard {
    entries: BTreeMap<Vec<u8>, HoardSpec>,
    path_bytes: usize,
}

impl Hoard {
    /// Adds an entry, in place of another with this path.
    pub(crate) fn add(&mut self, path: &[u8], spec: HoardSpec) -> Result<(), HoardError> {
        if path.len() > ONE_PATH_BYTES_MAX {
            return Err(HoardError::PathTooLong);
        }
        let is_new = !self.entries.contains_key(path);
        if is_new && (self.entries.len() >= ENTRIES_MAX || self.path_bytes + path.len() > PATH_BYTES_MAX) {
            return Err(HoardError::Full(self.entries.len()));
        }
        if is_new {
            self.path_bytes += path.len();
        }
        self.entries.insert(path.to_vec(), spec);
        Ok(())
    }

    /// Adds an entry unless what is there is worth as much.
    pub(crate) fn raise(&mut self, path: &[u8], spec: HoardSpec) -> Result<(), HoardError> {
        let before = self.entries.get(path);
        if before.is_some_and(|before| before.rank > spec.rank || covers(*before, spec)) {
            return Ok(());
        }
        self.add(path, spec)
    }

    /// Removes an entry. Returns what it was.
    pub(crate) fn remove(&mut self, path: &[u8]) -> Option<HoardSpec> {
        let removed = self.entries.remove(path)?;
        self.path_bytes -= path.len();
        Some(removed)
    }

    /// Returns the entry with this path.
    pub(crate) fn get(&self, path: &[u8]) -> Option<HoardSpec> {
        self.entries.get(path).copied()
    }

    /// Turns an entry for what is there now into one for each path that was found. The hoard stays as it is if they are
    /// too many.
    pub(crate) fn expand(&mut self, path: &[u8], found: &[Vec<u8>]) -> Result<(), HoardError> {
        let Some(spec) = self.get(path).filter(|spec| spec.scope.is_of_now()) else { return Ok(()) };
        let before = self.clone();
        let plain = HoardSpec { scope: Scope::Object, ..spec };
        self.entries.insert(path.to_vec(), plain);
        let added = found.iter().try_for_each(|found| self.raise(found, plain));
        if added.is_err() {
            *self = before;
        }
        added
    }

    /// Lists all entries, by their paths.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], HoardSpec)> {
        self.entries.iter().map(|(path, spec)| (path.as_slice(), *spec))
    }

    /// Lists all entries, those of the highest rank first.
    pub(crate) fn by_rank(&self) -> Vec<(Vec<u8>, HoardSpec)> {
        let mut entries: Vec<_> = self.entries.iter().map(|(path, spec)| (path.clone(), *spec)).collect();
        entries.sort_by_key(|(_, spec)| std::cmp::Reverse(spec.rank));
        entries
    }

    /// Returns how many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Encodes the hoard: a hash of all that follows; the format; of each entry the rank, the scope and the path.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = vec![FORMAT];
        for (path, spec) in &self.entries {
            body.extend(u16::from(spec.rank).to_le_bytes());
            body.push(scope_number(spec.scope));
            // At most `ONE_PATH_BYTES_MAX`.
            body.extend(u16::try_from(path.len()).unwrap_or(u16::MAX).to_le_bytes());
            body.extend(path);
        }
        [ContentHash::of(&body).0.as_slice(), &body].concat()
    }

    /// Reads what was written; `None` if it makes no sense.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (hash, body) = bytes.split_first_chunk::<32>()?;
        if ContentHash::of(body).0 != *hash {
            return None;
        }
        let mut rest = body.strip_prefix(&[FORMAT])?;
        let mut hoard = Self::default();
        while let Some((head, behind)) = rest.split_first_chunk::<5>() {
            let [rank_low, rank_high, scope, length_low, length_high] = *head;
            let rank = Rank::try_from(u16::from_le_bytes([rank_low, rank_high])).ok()?;
            let scope = *Scope::ALL.get(usize::from(scope))?;
            let (path, behind) = behind.split_at_checked(usize::from(u16::from_le_bytes([length_low, length_high])))?;
            hoard.add(path, HoardSpec { rank, scope }).ok()?;
            rest = behind;
        }
        rest.is_empty().then_some(hoard)
    }

    /// The most bytes that are written.
    pub(crate) const BYTES_MAX: usize = 33 + ENTRIES_MAX * 5 + PATH_BYTES_MAX;
}

/// Whether an entry means all that another with the same path does.
fn covers(one: HoardSpec, other: HoardSpec) -> bool {
    one.rank >= other.rank && (one.scope == other.scope || other.scope == Scope::Object)
}

fn scope_number(scope: Scope) -> u8 {
    match scope {
        Scope::Object => 0,
        Scope::Children { later: false } => 1,
        Scope::Children { later: true } => 2,
        Scope::Descendants { later: false } => 3,
        Scope::Descendants { later: true } => 4,
    }
}

/// Splits a path into its names.
pub(crate) fn names_of(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(text: &str) -> HoardSpec {
        text.parse().unwrap()
    }

    #[test]
    fn there_is_one_entry_of_a_path() {
        let mut hoard = Hoard::default();
        hoard.add(b"a", spec("10")).unwrap();
        hoard.add(b"b", spec("900:d+")).unwrap();
        hoard.add(b"a", HoardSpec::PIN).unwrap();
        let order: Vec<_> = hoard.by_rank().into_iter().map(|(path, spec)| (path, spec.to_string())).collect();
        assert_eq!(order, [(b"a".to_vec(), "pinned".to_owned()), (b"b".to_vec(), "900:d+".to_owned())]);
        assert_eq!(hoard.remove(b"a"), Some(HoardSpec::PIN));
        assert_eq!((hoard.remove(b"a"), hoard.len()), (None, 1));
        hoard.raise(b"b", spec("500")).unwrap();
        assert_eq!(hoard.get(b"b"), Some(spec("900:d+")), "what is recorded takes nothing away");
        hoard.raise(b"b", spec("950")).unwrap();
        assert_eq!(hoard.get(b"b"), Some(spec("950")));
    }

    #[test]
    fn what_is_there_now_becomes_an_entry_for_each() {
        let mut hoard = Hoard::default();
        hoard.add(b"dir", spec("10:d")).unwrap();
        hoard.add(b"dir/more", spec("20")).unwrap();
        hoard.expand(b"dir", &[b"dir/a".to_vec(), b"dir/more".to_vec()]).unwrap();
        let all: Vec<_> = hoard.iter().map(|(path, spec)| (path.to_vec(), spec.to_string())).collect();
        let expected = [("dir", "10"), ("dir/a", "10"), ("dir/more", "20")];
        assert_eq!(all, expected.map(|(path, spec)| (path.as_bytes().to_vec(), spec.to_owned())));
        hoard.add(b"later", spec("10:d+")).unwrap();
        let before = hoard.clone();
        hoard.expand(b"later", &[b"later/a".to_vec()]).unwrap();
        assert_eq!(hoard, before, "what is to come has no end");
    }

    #[test]
    fn it_is_bounded_and_says_so() {
        let mut hoard = Hoard::default();
        for number in 0..ENTRIES_MAX {
            hoard.add(number.to_string().as_bytes(), spec("1")).unwrap();
        }
        assert_eq!(hoard.add(b"more", spec("1")), Err(HoardError::Full(ENTRIES_MAX)));
        hoard.add(b"7", spec("2:d")).unwrap();
        let before = hoard.clone();
        assert!(hoard.expand(b"7", &[b"7/a".to_vec()]).is_err());
        assert_eq!(hoard, before);
        assert_eq!(hoard.add(&[b'x'; 4097], spec("1")), Err(HoardError::PathTooLong));
        assert!(hoard.encode().len() <= Hoard::BYTES_MAX);
    }

    proptest! {
        #[test]
        fn proptest_what_is_written_is_read(
            entries in proptest::collection::btree_map(
                proptest::collection::vec(any::<u8>(), 0..50), (1u16..=1001, 0usize..5), 0..20,
            ),
        ) {
            let mut hoard = Hoard::default();
            for (path, (rank, scope)) in entries {
                let spec = HoardSpec { rank: Rank::try_from(rank).unwrap(), scope: Scope::ALL[scope] };
                hoard.add(&path, spec).unwrap();
            }
            prop_assert_eq!(Hoard::decode(&hoard.encode()), Some(hoard));
        }

        #[test]
        fn proptest_invariant_10_damaged_bytes_are_no_hoard(at in 0usize..60, bit in 0u32..8, cut in 0usize..60) {
            let mut hoard = Hoard::default();
            hoard.add(b"some/directory", spec("10:d+")).unwrap();
            hoard.add(b"some", HoardSpec::PIN).unwrap();
            let bytes = hoard.encode();
            let mut damaged = bytes.clone();
            damaged[at % bytes.len()] ^= 1 << bit;
            prop_assert_eq!(Hoard::decode(&damaged), None);
            prop_assert_eq!(Hoard::decode(&bytes[..cut % bytes.len()]), None);
        }
    }
}
