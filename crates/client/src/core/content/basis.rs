//! Basis: what a file's content was made from, and so what the server must have for it to take its place.
//!
//! Mostly that is a version. After an answer that nobody remembers it may be the version of a record, if the server has
//! applied that. A content that went *elsewhere*, into another file than the one that was written, is made from no
//! version of this file.
//!
//! Invariant: record and hash belong to the version. A step that changes the version changes them too, so that no
//! content is stored over a version of which it knows nothing (invariant 9).

use mafs_proto::{Base, ContentHash, DataVersion, StoreId};

/// The version that one content was made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Basis {
    version: DataVersion,
    /// The record whose version that may be instead, if it was applied, which the modify log has forgotten.
    record: Option<StoreId>,
    /// The hash of that version, if this client knows it.
    hash: Option<ContentHash>,
}

impl Basis {
    /// Makes a basis of this version, with its hash if that is known.
    pub(crate) fn new(version: DataVersion, hash: Option<ContentHash>) -> Self {
        Self { version, record: None, hash }
    }

    /// Returns the version.
    pub(crate) fn version(&self) -> DataVersion {
        self.version
    }

    /// Returns the version, unless the content is made from none of this file.
    pub(crate) fn own_version(&self) -> Option<DataVersion> {
        (!self.is_elsewhere()).then_some(self.version)
    }

    /// Returns the hash of the version, if this client knows it.
    pub(crate) fn hash(&self) -> Option<ContentHash> {
        self.hash
    }

    /// Names what the server must have for the content to take its place.
    pub(crate) fn of_store(&self) -> Base {
        self.record.map_or(Base::Version(self.version), Base::Record)
    }

    /// Whether the content went elsewhere: it is no version of this file, nor made from one.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.version == DataVersion::NONE
    }

    /// Notes that the content is that of a version of the server's. Nothing that was here before has to do with what is
    /// written next. Returns the version before.
    pub(crate) fn become_version(&mut self, version: DataVersion, hash: ContentHash) -> DataVersion {
        self.replace(version, Some(hash)).version
    }

    /// Notes that the content is about to be that of a version, or to be replaced as a whole by what is made from that.
    /// Returns the basis before.
    pub(crate) fn begin(&mut self, version: DataVersion) -> Self {
        let hash = self.hash.filter(|_| self.version == version);
        self.replace(version, hash)
    }

    /// Notes that the version is here, and hashes to this.
    pub(crate) fn note_hash(&mut self, hash: ContentHash) {
        self.hash = Some(hash);
    }

    /// Notes that the content went elsewhere, by this record. Later writes go where that went.
    pub(crate) fn go_elsewhere(&mut self, id: StoreId) {
        self.replace(DataVersion::NONE, None);
        self.record = Some(id);
    }

    /// Notes that the log has forgotten what became of a record, to which the server has answered; now it shows this
    /// version. If another record has made that version, only this record's may be replaced.
    pub(crate) fn forgot(&mut self, id: StoreId, shown: DataVersion) {
        self.record = (shown != self.version).then_some(id);
    }

    fn replace(&mut self, version: DataVersion, hash: Option<ContentHash>) -> Self {
        std::mem::replace(self, Self { version, record: None, hash })
    }
}

#[cfg(test)]
mod tests;
