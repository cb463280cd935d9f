//! Names the kernel has been told mean nothing, which it remembers as it does those that mean something.
//!
//! Programs ask for names that are not there again and again: git for a `.gitignore` in every directory, compilers and
//! linkers along their search paths.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use mafs_proto::{Name, VnodeId};

/// The most names to remember: some 2 MB. When there are more the kernel forgets them all, which costs one question
/// for each that is asked for again.
const NAMES_MAX: usize = 16 << 10;

/// What the kernel would have to be told of.
#[derive(Default)]
pub(super) struct AbsentNames {
    names: Mutex<HashSet<(VnodeId, Name)>>,
}

impl AbsentNames {
    /// The kernel is about to be told. Returns what it must forget to make room.
    #[must_use]
    pub(super) fn note(&self, parent: VnodeId, name: Name) -> HashSet<(VnodeId, Name)> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let full = names.len() >= NAMES_MAX;
        let forgotten = if full { std::mem::take(&mut *names) } else { HashSet::new() };
        names.insert((parent, name));
        forgotten
    }

    /// All of them, for the kernel to forget.
    #[must_use]
    pub(super) fn take(&self) -> HashSet<(VnodeId, Name)> {
        std::mem::take(&mut *self.names.lock().unwrap_or_else(PoisonError::into_inner))
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
}
