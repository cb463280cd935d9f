//! The five classes of traffic, after Table 1 of the MAFS paper (papers/003, section 3.3).

/// How urgently somebody waits for a call. Strictly ordered: a higher class is always sent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Small calls that somebody waits for: status, lookup, names, locks, breaks, pulls, probes.
    Control,
    /// File data and directory pages that somebody waits for.
    Fetch,
    /// The same, on speculation.
    Prefetch,
    /// Log records without data.
    Metadata,
    /// File data written back.
    Store,
}

impl Class {
    /// All classes, most urgent first.
    pub const ALL: [Self; 5] = [Self::Control, Self::Fetch, Self::Prefetch, Self::Metadata, Self::Store];

    /// The number of the class on the wire, and its index in per-class tables: 0 is the most urgent.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The class with this number on the wire.
    #[must_use]
    pub fn from_index(index: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(index).ok()?).copied()
    }
}
