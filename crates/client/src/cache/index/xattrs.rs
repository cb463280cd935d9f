//! Extended attributes in the index: all of one object under `x` + vnode, with their version.

use mafs_durable::Batch;
use mafs_proto::{CmlRecord, Fid, Object, StatusVersion, VnodeId, Xattrs};

use super::{Index, vnode_key};
use crate::cache::CacheError;
use crate::cache::record::{CachedObject, CachedXattrs};
use crate::core::overlay::{change_xattr, xattr_of};

impl Index {
    /// Returns the extended attributes that belong to this status, with this client's changes on top; `None` if they
    /// are not known.
    pub(crate) fn xattrs(&self, object: &Object) -> Result<Option<Xattrs>, CacheError> {
        let overlay = self.pending.read();
        let mut xattrs = self.shown_xattrs(object)?;
        if let (Some(overlay), Some(xattrs)) = (overlay, &mut xattrs) {
            overlay.lay_over_xattrs(object.fid.vnode, xattrs);
        }
        Ok(xattrs)
    }

    /// Lays this client's changes over what the server has shown.
    pub(crate) fn lay_over_xattrs(&self, fid: Fid, xattrs: &mut Xattrs) {
        if let Some(overlay) = self.pending.read() {
            overlay.lay_over_xattrs(fid.vnode, xattrs);
        }
    }

    /// Returns the extended attributes that a record makes of those the server has shown, if these are known; and the
    /// status version that the record makes if nothing else has happened to the object.
    pub(super) fn xattrs_behind(&self, record: &CmlRecord) -> Result<Option<(StatusVersion, Xattrs)>, CacheError> {
        let Some(change) = xattr_of(record) else { return Ok(None) };
        let Some(CachedObject { object, .. }) = self.shown(record.op.fid().vnode)? else { return Ok(None) };
        let Some(mut xattrs) = self.shown_xattrs(&object)? else { return Ok(None) };
        Ok(change_xattr(&mut xattrs, &change).is_ok().then_some((object.status.status_version.next(), xattrs)))
    }

    /// Notes the extended attributes that a record leaves, as the server has shown the object again behind it.
    pub(super) fn adopt_xattrs(
        &self,
        object: &Object,
        behind: Option<(StatusVersion, Xattrs)>,
    ) -> Result<(), CacheError> {
        match (behind, object.status.xattrs) {
            (Some((expected, xattrs)), Some(version)) if object.status.status_version == expected => {
                self.install_xattrs(object.fid, version, xattrs)
            }
            _ => Ok(()),
        }
    }

    fn shown_xattrs(&self, object: &Object) -> Result<Option<Xattrs>, CacheError> {
        let Some(version) = object.status.xattrs else { return Ok(Some(Xattrs::default())) };
        let cached = self.kv.get(&xattrs_key(object.fid.vnode))?.and_then(CachedXattrs::decode);
        let current = cached.filter(|cached| (cached.unique, cached.version) == (object.fid.unique, version));
        Ok(current.map(|cached| cached.xattrs))
    }

    /// Notes that an object has these extended attributes since `version` of its status.
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
