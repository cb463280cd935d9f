//! Absent names: the kernel has been told that they mean nothing, and remembers that as it does names that mean
//! something.
//!
//! Programs ask for names that are not there again and again: git for a `.gitignore` in every directory, compilers and
//! linkers along their search paths.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mafs_proto::{Name, VnodeId};

/// The most names to remember: some 2 MB. When there are more the kernel forgets them all, which costs one question
/// for each that is asked for again.
const NAMES_MAX: usize = 16 << 10;

/// Names that the kernel would have to be told of.
#[derive(Default)]
pub(super) struct AbsentNames {
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    names: HashMap<VnodeId, HashSet<Name>>,
    count: usize,
}

impl AbsentNames {
    /// Notes a name that the kernel is about to be told means nothing. Returns the names it must forget to make room.
    #[must_use]
    pub(super) fn note(&self, parent: VnodeId, name: Name) -> Vec<(VnodeId, Name)> {
        let mut noted = self.lock();
        let forgotten = if noted.count >= NAMES_MAX { std::mem::take(&mut *noted).listed() } else { Vec::new() };
        if noted.names.entry(parent).or_default().insert(name) {
            noted.count += 1;
        }
        forgotten
    }

    /// Takes the names of one directory, for the kernel to forget.
    #[must_use]
    pub(super) fn take_of(&self, parent: VnodeId) -> HashSet<Name> {
        let mut noted = self.lock();
        let names = noted.names.remove(&parent).unwrap_or_default();
        noted.count -= names.len();
        names
    }

    /// Takes all names, for the kernel to forget.
    #[must_use]
    pub(super) fn take(&self) -> Vec<(VnodeId, Name)> {
        std::mem::take(&mut *self.lock()).listed()
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Noted {
    fn listed(self) -> Vec<(VnodeId, Name)> {
        let of_directory =
            |(parent, names): (VnodeId, HashSet<Name>)| names.into_iter().map(move |name| (parent, name));
        self.names.into_iter().flat_map(of_directory).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> Name {
        Name::new(number.to_string()).unwrap()
    }

    #[test]
    fn names_are_bounded_and_none_is_forgotten_untold() {
        let absent = AbsentNames::default();
        let mut told = HashSet::new();
        for number in 0..3 * NAMES_MAX {
            let forgotten = absent.note(VnodeId::ROOT, name(number));
            assert!(forgotten.len() <= NAMES_MAX);
            told.extend(forgotten);
        }
        let left = absent.take();
        assert!(left.len() <= NAMES_MAX && absent.take().is_empty());
        told.extend(left);
        assert_eq!(told.len(), 3 * NAMES_MAX);
    }

    #[test]
    fn the_names_of_a_directory_are_told_by_themselves() {
        let (absent, other) = (AbsentNames::default(), VnodeId(7));
        for (parent, number) in [(VnodeId::ROOT, 1), (other, 1), (other, 2), (other, 2)] {
            assert_eq!(absent.note(parent, name(number)), []);
        }
        assert_eq!(absent.take_of(other), HashSet::from([name(1), name(2)]));
        assert_eq!(absent.take_of(other), HashSet::new());
        assert_eq!(absent.lock().count, 1);
        assert_eq!(absent.take(), [(VnodeId::ROOT, name(1))]);
    }
}
