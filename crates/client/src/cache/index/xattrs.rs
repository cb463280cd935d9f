//! Extended attributes in the index: all of one object under `x` + vnode, with the version they are.

use mafs_durable::Batch;
use mafs_proto::{Fid, Object, StatusVersion, VnodeId, Xattrs};

use super::{Index, vnode_key};
use crate::cache::CacheError;
use crate::cache::record::CachedXattrs;

impl Index {
    /// The extended attributes that belong to this status; `None` if they are not known.
    pub(crate) fn xattrs(&self, object: &Object) -> Result<Option<Xattrs>, CacheError> {
        let Some(version) = object.status.xattrs else { return Ok(Some(Xattrs::default())) };
        let cached = self.kv.get(&xattrs_key(object.fid.vnode))?.and_then(CachedXattrs::decode);
        let current = cached.filter(|cached| (cached.unique, cached.version) == (object.fid.unique, version));
        Ok(current.map(|cached| cached.xattrs))
    }

    /// The extended attributes of an object are these since `version` of its status.
    pub(crate) fn install_xattrs(&self, fid: Fid, version: StatusVersion, xattrs: Xattrs) -> Result<(), CacheError> {
        let _turn = self.lock();
        // An object that has gone meanwhile must leave nothing behind.
        if self.shown(fid.vnode)?.is_none_or(|cached| cached.object.fid != fid) {
            return Ok(());
        }
        let mut batch = Batch::default();
        batch.put(xattrs_key(fid.vnode), CachedXattrs { version, unique: fid.unique, xattrs }.encode());
        self.apply(&batch)
    }
}

pub(super) fn xattrs_key(vnode: VnodeId) -> Vec<u8> {
    vnode_key(b'x', vnode)
}
