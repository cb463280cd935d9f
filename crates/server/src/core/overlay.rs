//! Overlay: the index as it will be when the transactions decided so far are applied.
//!
//! A group commit decides many transactions before any of them is in the index. [`Overlay`] is the index plus what
//! earlier transactions of the group change; [`Transaction`] is one more on top. A transaction that is not finished
//! leaves no trace, which is how a refusal is atomic.

use std::collections::BTreeMap;

use mafs_durable::{Batch, Kv};
use mafs_proto::{ClientId, Fid, FsError, Name, StatusVersion, VolumeId, Wire, Xattrs};

use super::records::{ClientState, VolumeState};
use super::{Node, Refusal, tables};

type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The index with the decided transactions of one group on top.
pub(crate) struct Overlay<'a> {
    volume: VolumeId,
    index: &'a dyn Kv,
    changes: Changes,
}

impl<'a> Overlay<'a> {
    /// Begins with the committed state of `volume`.
    pub(crate) fn new(volume: VolumeId, index: &'a dyn Kv) -> Self {
        Self { volume, index, changes: Changes::new() }
    }

    /// Starts one more transaction on what has been decided.
    pub(crate) fn begin(&self) -> Transaction<'_> {
        Transaction { below: self, changes: Changes::new() }
    }

    /// Adds a decided transaction.
    pub(crate) fn absorb(&mut self, batch: &Batch) {
        self.changes.extend(batch.changes.iter().cloned());
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
        match self.changes.get(key) {
            Some(value) => Ok(value.clone()),
            None => Ok(self.index.get(key)?),
        }
    }
}

/// One transaction being decided.
pub(crate) struct Transaction<'o> {
    below: &'o Overlay<'o>,
    changes: Changes,
}

impl Transaction<'_> {
    /// Copies the transaction, for work that may come to nothing.
    pub(crate) fn fork(&self) -> Self {
        Self { below: self.below, changes: self.changes.clone() }
    }

    /// Returns the changes, for the journal.
    pub(crate) fn finish(self) -> Batch {
        Batch { changes: self.changes.into_iter().collect() }
    }

    pub(crate) fn volume(&self) -> VolumeId {
        self.below.volume
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
        match self.changes.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.below.get(key),
        }
    }

    pub(crate) fn put(&mut self, key: Vec<u8>, value: impl Into<Vec<u8>>) {
        self.changes.insert(key, Some(value.into()));
    }

    pub(crate) fn remove(&mut self, key: Vec<u8>) {
        self.changes.insert(key, None);
    }

    /// Returns an object; [`FsError::Stale`] if it is gone.
    pub(crate) fn node(&self, fid: Fid) -> Result<Node, Refusal> {
        self.check_volume(fid)?;
        let bytes = self
            .get(&tables::node(fid))?
            .ok_or_else(|| Refusal::new(FsError::Stale, format!("the object {fid} does not exist any more")))?;
        Node::decode(fid, bytes)
    }

    /// Returns the object that a name means; the directory is not looked at.
    pub(crate) fn entry(&self, directory: Fid, name: &Name) -> Result<Option<Fid>, Refusal> {
        self.check_volume(directory)?;
        let Some(bytes) = self.get(&tables::entry(directory, name))? else { return Ok(None) };
        let fid = tables::parse_fid(self.volume(), &bytes);
        Ok(Some(fid.ok_or_else(|| Refusal::damaged(&format!("the entry {name} of {directory}")))?))
    }

    /// Returns the extended attributes an object got with `version` of its status; `None` if it has others by now.
    pub(crate) fn xattrs(&self, fid: Fid, version: StatusVersion) -> Result<Option<Xattrs>, Refusal> {
        let Some(bytes) = self.get(&tables::xattrs(fid, version))? else { return Ok(None) };
        let xattrs = Xattrs::decode(bytes.into());
        Ok(Some(xattrs.map_err(|error| Refusal::damaged(&format!("the attributes of {fid}: {error}")))?))
    }

    /// Returns the volume's counters.
    pub(crate) fn state(&self) -> Result<VolumeState, Refusal> {
        let bytes = self.get(tables::VOLUME)?.ok_or_else(|| Refusal::damaged("the volume has no counters"))?;
        VolumeState::decode(&bytes)
    }

    pub(crate) fn put_state(&mut self, state: &VolumeState) {
        self.put(tables::VOLUME.to_vec(), state.encode());
    }

    /// Returns the state of a client; `None` if it never attached.
    pub(crate) fn client(&self, client: ClientId) -> Result<Option<ClientState>, Refusal> {
        self.get(&tables::client(client))?.map(ClientState::decode).transpose()
    }

    pub(crate) fn put_client(&mut self, client: ClientId, state: &ClientState) {
        self.put(tables::client(client), state.encode());
    }

    /// Returns up to `limit` of the first *committed* keys with `prefix` that no transaction decided since has
    /// removed.
    pub(crate) fn committed_keys(&self, prefix: &[u8], limit: usize) -> Result<Vec<Vec<u8>>, Refusal> {
        let mut keys = Vec::new();
        for (key, _) in self.below.index.scan(prefix, None, limit)? {
            if self.get(&key)?.is_some() {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    /// Returns up to `limit` *committed* keys with `prefix` behind a key.
    pub(crate) fn committed_keys_after(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        Ok(self.below.index.scan(prefix, after, limit)?.into_iter().map(|(key, _)| key).collect())
    }

    /// Returns up to `limit` *committed* values with `prefix` behind a key, as long as no transaction decided since
    /// has removed them.
    pub(crate) fn committed(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Vec<u8>>, Refusal> {
        Ok(self.below.index.scan(prefix, after, limit)?.into_iter().map(|(_, value)| value).collect())
    }

    /// Returns the first *committed* name of an object in a directory, among so many.
    pub(crate) fn committed_name(
        &self,
        directory: Fid,
        fid: Fid,
        looked_at_max: usize,
    ) -> Result<Option<Name>, Refusal> {
        let (entries, means) = (tables::entries(directory), tables::fid_bytes(fid));
        let rows = self.below.index.scan(&entries, None, looked_at_max)?;
        let found = rows.into_iter().find(|(_, meaning)| *meaning == means);
        Ok(found.and_then(|(key, _)| Name::new(key.get(entries.len()..)?.to_vec()).ok()))
    }

    fn check_volume(&self, fid: Fid) -> Result<(), Refusal> {
        if fid.volume == self.volume() {
            return Ok(());
        }
        Err(Refusal::new(FsError::CrossVolume, format!("the object {fid} is not in the attached volume")))
    }
}
