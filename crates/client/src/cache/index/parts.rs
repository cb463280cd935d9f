//! Parts in the index: what has come of contents that are not here whole, under `i` + vnode.

use mafs_durable::Batch;
use mafs_proto::{Fid, VnodeId};

use super::{Index, SCAN_MAX, vnode_key, vnode_of};
use crate::cache::CacheError;
use crate::cache::record::CachedPart;

impl Index {
    /// Returns the part of a file's content that is here, as far as the index was told; it may be of another version
    /// than the file has now.
    pub(crate) fn part(&self, fid: Fid) -> Result<Option<CachedPart>, CacheError> {
        let part = self.kv.get(&part_key(fid.vnode))?.and_then(|bytes| CachedPart::decode(bytes.into()));
        Ok(part.filter(|part| part.unique == fid.unique))
    }

    /// Notes which part of a content is here.
    pub(crate) fn set_part(&self, vnode: VnodeId, part: &CachedPart) -> Result<(), CacheError> {
        let _turn = self.lock();
        // An object that has gone meanwhile must leave nothing behind.
        if self.shown(vnode)?.is_none_or(|cached| cached.object.fid.unique != part.unique) {
            return Ok(());
        }
        let mut batch = Batch::default();
        batch.put(part_key(vnode), part.encode());
        self.apply(&batch)
    }

    /// Forgets the part of a content that is here. Returns that part.
    pub(crate) fn take_part(&self, vnode: VnodeId) -> Result<Option<CachedPart>, CacheError> {
        let _turn = self.lock();
        let Some(bytes) = self.kv.get(&part_key(vnode))? else { return Ok(None) };
        let mut batch = Batch::default();
        batch.remove(part_key(vnode));
        self.apply(&batch)?;
        Ok(CachedPart::decode(bytes.into()))
    }

    /// Returns all parts, with their objects.
    pub(crate) fn parts(&self) -> Result<Vec<(VnodeId, CachedPart)>, CacheError> {
        let mut found = Vec::new();
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.kv.scan(b"i", after.as_deref(), SCAN_MAX)?;
            let Some((last, _)) = page.last() else { return Ok(found) };
            after = Some(last.clone());
            let known =
                |(key, value): (Vec<u8>, Vec<u8>)| Some((vnode_of(b"i", &key)?, CachedPart::decode(value.into())?));
            found.extend(page.into_iter().filter_map(known));
        }
    }

    /// Forgets the parts that were not durable when the power was lost.
    pub(crate) fn forget_unsynced_parts(&self) -> Result<(), CacheError> {
        for (vnode, part) in self.parts()? {
            if !part.durable {
                self.take_part(vnode)?;
            }
        }
        Ok(())
    }
}

pub(super) fn part_key(vnode: VnodeId) -> Vec<u8> {
    vnode_key(b'i', vnode)
}
