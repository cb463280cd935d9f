//! Versions of objects and volumes.

/// Counts the contents of one object: of a file its data, of a directory its entries. Equality decides whether cached
/// data is current.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DataVersion(pub u64);

impl DataVersion {
    /// That of no content.
    pub const NONE: Self = Self(0);
}

/// Counts every change of one object's status, those of its data included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StatusVersion(pub u64);

/// Counts the transactions of a volume, from 1 on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ChangeNumber(pub u64);

impl DataVersion {
    /// The version after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl StatusVersion {
    /// The version after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl ChangeNumber {
    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
