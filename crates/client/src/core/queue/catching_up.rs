//! Catching up: the server is in reach again, and does not have yet what was made without it. Sending all this may take
//! an hour, and records that are made meanwhile come behind it.

use super::Queue;

impl Queue {
    /// Notes that the records here were made while the server was out of reach.
    pub(crate) fn begin_catching_up(&mut self) {
        self.made_apart = self.entries.keys().next_back().copied();
    }

    /// Whether some of those wait, but for those that were refused and come again.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.made_apart.is_some_and(|last| self.entries.range(..=last).any(|(_, entry)| !entry.refused))
    }
}
