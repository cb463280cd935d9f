//! Catching up: the server is in reach again, and does not have yet what was made without it. That may take an hour,
//! and what is made meanwhile comes behind it.

use super::Queue;

impl Queue {
    /// What is here was made while the server was out of reach.
    pub(crate) fn begin_catching_up(&mut self) {
        self.made_apart = self.entries.keys().next_back().copied();
    }

    /// Whether some of that waits, but for what was refused and comes again.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.made_apart.is_some_and(|last| self.entries.range(..=last).any(|(_, entry)| !entry.refused))
    }
}
