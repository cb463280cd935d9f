//! The five classes of traffic, after Table 1 of the MAFS paper (papers/003, section 3.3), and the one table that says
//! which call travels in which.

use std::fmt;

/// The urgency of a call, by how somebody waits for it. Strictly ordered: a higher class is always sent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Small calls that somebody waits for: status, lookup, names, locks, breaks, pulls, probes.
    Control,
    /// File data and directory pages that somebody waits for.
    Fetch,
    /// File data and directory pages that are fetched on speculation.
    Prefetch,
    /// Log records without data.
    Metadata,
    /// File data written back.
    Store,
}

impl Class {
    /// All classes, most urgent first.
    pub const ALL: [Self; 5] = [Self::Control, Self::Fetch, Self::Prefetch, Self::Metadata, Self::Store];

    /// Returns the number of the class on the wire, and its index in per-class tables: 0 is the most urgent.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Finds the class with this number on the wire.
    #[must_use]
    pub fn from_index(index: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(index).ok()?).copied()
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Control => "control",
            Self::Fetch => "fetch",
            Self::Prefetch => "prefetch",
            Self::Metadata => "metadata",
            Self::Store => "store",
        })
    }
}

/// The purpose of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Asks for or validates the status of objects, looks names up, keeps the session: small, and somebody waits.
    Ask,
    /// Tells a client that cached objects have changed.
    Break,
    /// Fetches file data, a directory or attributes of any size for somebody who waits.
    Fetch,
    /// Fetches file data that nobody waits for now.
    Prefetch,
    /// Changes names or attributes while a program waits for the outcome.
    Change,
    /// Removes a name while a program waits.
    Remove,
    /// Replays a change of names or attributes from the log: nobody waits for it.
    Replay,
    /// Announces records that wait in the log.
    Announce,
    /// Asks a client for records it has announced.
    Pull,
    /// Writes file data back.
    Store,
    /// Writes file data back while a program waits until the server has them (fsync).
    ForcedStore,
}

impl Purpose {
    /// All purposes.
    pub const ALL: [Self; 11] = [
        Self::Ask,
        Self::Break,
        Self::Fetch,
        Self::Prefetch,
        Self::Change,
        Self::Remove,
        Self::Replay,
        Self::Announce,
        Self::Pull,
        Self::Store,
        Self::ForcedStore,
    ];
}

/// The table that assigns classes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Classes {
    /// Our table: calls are Control if somebody waits for a small answer (arpc.md, "What it offers").
    #[default]
    ByWaiting,
    /// Table 1 of the paper as it stands: metadata below prefetching, unlink with the stores.
    Paper,
}

impl Classes {
    /// Returns the class of a call. A Control call that is larger than a packet travels as Fetch, and so does its
    /// reply.
    #[must_use]
    pub const fn class(self, purpose: Purpose) -> Class {
        match (purpose, self) {
            (Purpose::Ask | Purpose::Break | Purpose::Pull, _) => Class::Control,
            (Purpose::Fetch | Purpose::ForcedStore, _) => Class::Fetch,
            (Purpose::Prefetch, _) => Class::Prefetch,
            (Purpose::Change | Purpose::Remove | Purpose::Announce, Self::ByWaiting) => Class::Control,
            (Purpose::Change, Self::Paper) | (Purpose::Replay | Purpose::Announce, _) => Class::Metadata,
            (Purpose::Remove, Self::Paper) | (Purpose::Store, _) => Class::Store,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_table_is_table_1() {
        // "fetch file attributes, callback"; "fetch file data, store file data (if forced)"; "most metadata RPCs";
        // "store file data, unlink file".
        let expected = [
            (Purpose::Ask, Class::Control),
            (Purpose::Break, Class::Control),
            (Purpose::Fetch, Class::Fetch),
            (Purpose::ForcedStore, Class::Fetch),
            (Purpose::Prefetch, Class::Prefetch),
            (Purpose::Change, Class::Metadata),
            (Purpose::Remove, Class::Store),
            (Purpose::Replay, Class::Metadata),
            (Purpose::Announce, Class::Metadata),
            (Purpose::Pull, Class::Control),
            (Purpose::Store, Class::Store),
        ];
        for (purpose, class) in expected {
            assert_eq!(Classes::Paper.class(purpose), class, "{purpose:?}");
        }
        assert_eq!(expected.len(), Purpose::ALL.len());
    }

    #[test]
    fn whoever_waits_for_a_small_answer_is_control() {
        for purpose in [Purpose::Ask, Purpose::Break, Purpose::Pull, Purpose::Change, Purpose::Remove] {
            assert_eq!(Classes::default().class(purpose), Class::Control, "{purpose:?}");
        }
        assert_eq!(Classes::default().class(Purpose::Store), Class::Store);
    }
}
