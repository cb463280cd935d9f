//! Usage: which contents there are, and in which order they were used last: under `u` + vnode, from the last clean end.

use mafs_durable::Batch;
use mafs_proto::{Fid, VnodeId};

use super::{Index, SCAN_MAX, vnode_key};
use crate::cache::CacheError;
use crate::cache::record::CachedObject;

impl Index {
    /// Lists every file with content in the cache, least recently used first as far as that is known, with its size.
    pub(crate) fn contents(&self) -> Result<Vec<(Fid, u64)>, CacheError> {
        let mut found = Vec::new();
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.kv.scan(b"o", after.as_deref(), SCAN_MAX)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for cached in page.into_iter().filter_map(|(_, value)| CachedObject::decode(value)) {
                if cached.content.is_some() {
                    let used = self.kv.get(&vnode_key(b'u', cached.object.fid.vnode))?;
                    let used = used.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
                    found.push((used, cached.object.fid, cached.object.status.size));
                }
            }
        }
        found.sort_unstable_by_key(|(used, fid, _)| (*used, *fid));
        Ok(found.into_iter().map(|(_, fid, size)| (fid, size)).collect())
    }

    /// Notes the order of last use for the next start.
    pub(crate) fn save_usage(&self, by_use: impl Iterator<Item = VnodeId>) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        for (order, vnode) in (1u64..).zip(by_use) {
            batch.put(vnode_key(b'u', vnode), order.to_le_bytes());
            if batch.changes.len() == SCAN_MAX {
                self.apply(&std::mem::take(&mut batch))?;
            }
        }
        self.apply(&batch)
    }
}
