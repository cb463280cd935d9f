//! Versions of objects and volumes.

/// Version of an object's content, which is the data of a file or the entries of a directory. Equality decides whether
/// cached data is current.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DataVersion(pub u64);

impl DataVersion {
    /// The version of no content.
    pub const NONE: Self = Self(0);
}

/// Version of an object's status: counts every change of it, those of its data included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StatusVersion(pub u64);

/// Number of a change: counts the transactions of a volume, from 1 on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ChangeNumber(pub u64);

impl DataVersion {
    /// Returns the version after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl StatusVersion {
    /// Returns the version after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl ChangeNumber {
    /// Returns the number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
