//! The index seam: an ordered map of small values that can always be rebuilt.

/// Reason why the index cannot answer. A damaged index is set aside and rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// The disk failed or is full.
    #[error("the index cannot be read or written: {0}")]
    Io(#[from] std::io::Error),
    /// The files of the index make no sense.
    #[error("the index is damaged: {0}")]
    Damaged(String),
}

/// Changes that are applied together or not at all. Values are absolute, so that applying a batch again changes
/// nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// The changes in order; a later change of a key wins. `None` removes the key.
    pub changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    /// The longest value, in bytes. From 128 KB on sled would keep it in a file that it never syncs.
    pub const VALUE_BYTES_MAX: usize = 64 * 1024;

    /// Sets a key.
    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.changes.push((key.into(), Some(value.into())));
    }

    /// Removes a key.
    pub fn remove(&mut self, key: impl Into<Vec<u8>>) {
        self.changes.push((key.into(), None));
    }

    /// Tells whether nothing would change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// An ordered map from bytes to bytes. Values stay under 64 KB (facts.md section 5).
///
/// An applied batch survives the end of the process only after `sync`; after a crash a prefix of the batches is
/// there.
pub trait Kv: Send + Sync + 'static {
    /// Returns the value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError>;

    /// Tells whether a batch that follows will be taken, as far as that can be known: for callers whose act elsewhere
    /// must not be done if the batch then fails here.
    fn check_writable(&self) -> Result<(), KvError>;

    /// Applies a batch atomically.
    fn apply(&self, batch: &Batch) -> Result<(), KvError>;

    /// Returns up to `limit` pairs with keys that start with `prefix` and are greater than `after` (from the first if
    /// `None`), in order.
    fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Pair>, KvError>;

    /// Makes everything applied so far durable.
    fn sync(&self) -> Result<(), KvError>;
}
