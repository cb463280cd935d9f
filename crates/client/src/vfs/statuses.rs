//! Statuses: returns the known status of objects, and asks the server where that is not valid.
//!
//! There is no promise for an object of which another client has announced a change. A call that looks at such an
//! object is shown its coming size and times; an open waits for the change.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use mafs_proto::call::{GetStatusReply, GetStatusRequest};
use mafs_proto::{DataVersion, Fid, FsError, Kind, Name, Object, Purpose, StoreId, SymlinkTarget, VnodeId};

use super::delivery::{Stale, not_delivered};
use super::{Error, Inner};
use crate::cache::{CachedEntry, CachedObject};
use crate::core::promises::Grant;
use crate::remote::Answer;

/// Most bytes of symlink targets in one answer: with them and 256 statuses it is well below the 256 KB that an answer
/// may have.
const SIBLING_TARGET_BYTES_MAX: usize = 128 << 10;

impl Inner {
    /// Returns the known status of an object, validated if need be.
    pub(super) async fn status_of(&self, vnode: VnodeId) -> Result<CachedObject, Error> {
        if let Some(cached) = self.cache.index.valid_object(vnode)? {
            return Ok(cached);
        }
        self.status_of_fid(self.fid_in_use(vnode)?).await
    }

    /// Returns the status of an object that the index may have lost.
    pub(super) async fn status_of_fid(&self, fid: Fid) -> Result<CachedObject, Error> {
        self.status_of_named(fid, None).await
    }

    /// Returns the status of an object that was asked for by this name.
    pub(super) async fn status_of_named(&self, fid: Fid, name: Option<&Name>) -> Result<CachedObject, Error> {
        self.with_or_without_server(|| self.status_now(fid, name)).await
    }

    async fn status_now(&self, fid: Fid, name: Option<&Name>) -> Result<CachedObject, Error> {
        if let Some(cached) = self.valid_status(fid)? {
            return Ok(cached);
        }
        let known = self.cache.index.object(fid.vnode)?.filter(|cached| cached.object.fid == fid);
        let mut fids = vec![fid];
        if let Some(parent) = known.and_then(|cached| cached.parent) {
            self.add_siblings(parent, name, &mut fids)?;
        }
        let GetStatusReply { objects, pending, .. } = self.validate(fids, Purpose::Ask).await?;
        match pending.into_iter().find(|object| object.fid == fid) {
            Some(coming) => self.about_to_become(coming),
            None => self.shown_now(fid, objects),
        }
    }

    /// Returns the status of an object that is about to be opened: with all changes that other clients have announced
    /// until now. Waits for these.
    pub(super) async fn settled_status(&self, vnode: VnodeId) -> Result<CachedObject, Error> {
        self.with_or_without_server(|| self.settled_status_now(vnode)).await
    }

    async fn settled_status_now(&self, vnode: VnodeId) -> Result<CachedObject, Error> {
        if let Some(cached) = self.cache.index.valid_object(vnode)? {
            return Ok(cached);
        }
        let fid = self.fid_in_use(vnode)?;
        if let Some(cached) = self.valid_status(fid)? {
            return Ok(cached);
        }
        let request = GetStatusRequest { fids: vec![fid], settled: true, unanswered: self.unanswered(&[fid]) };
        let settled = self.ask_delivered(&request, Purpose::Ask).await?;
        let reply = match (settled, self.settings.stale) {
            (Some(answer), _) => self.take_in_statuses(&request, answer)?,
            (None, Stale::Error) => return Err(not_delivered()),
            (None, Stale::Serve) => GetStatusReply { stale: true, ..self.validate(vec![fid], Purpose::Ask).await? },
        };
        self.note_stale(fid, &reply);
        self.shown_now(fid, reply.objects)
    }

    /// Takes in the server's status of a file that has just been locked. `unanswered`: the records that the question
    /// named. Returns the file's version; `None` if the server does not have it: not yet, or not any more.
    pub(super) fn take_in_locked(
        &self,
        fid: Fid,
        unanswered: Vec<StoreId>,
        answer: Answer<GetStatusReply>,
    ) -> Result<Option<DataVersion>, Error> {
        if !answer.reply.objects.iter().any(|object| object.fid == fid) {
            return Ok(None);
        }
        let request = GetStatusRequest { fids: vec![fid], settled: true, unanswered };
        let reply = self.take_in_statuses(&request, answer)?;
        self.note_stale(fid, &reply);
        Ok(Some(self.shown_now(fid, reply.objects)?.object.status.data_version))
    }

    fn note_stale(&self, fid: Fid, reply: &GetStatusReply) {
        if reply.stale {
            tracing::warn!(%fid, "a file is opened or locked without an update that another client has announced");
            self.stale_reads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Validates objects that are about to be shown together, in one round trip if they are not too many. Returns
    /// those that are about to change, as they will be.
    pub(super) async fn validate_together(
        &self,
        entries: impl Iterator<Item = CachedEntry>,
    ) -> Result<BTreeMap<Fid, Object>, Error> {
        let mut fids = Vec::new();
        self.add_invalid(entries, &mut fids)?;
        if fids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut pending = BTreeMap::new();
        for coming in self.validate(fids, Purpose::Ask).await?.pending {
            // Objects that this client removes are asked for by name.
            if let Ok(cached) = self.about_to_become(coming) {
                pending.insert(cached.object.fid, cached.object);
            }
        }
        Ok(pending)
    }

    /// Returns the fid of an object that the index knows, or that a program has open.
    fn fid_in_use(&self, vnode: VnodeId) -> Result<Fid, Error> {
        let in_use = self.files().get(vnode).map(|file| file.fid);
        let known = self.cache.index.object(vnode)?.map(|cached| cached.object.fid);
        known.or(in_use).ok_or(Error::Refused(FsError::Stale))
    }

    /// Returns the known status of an object, if it is valid.
    fn valid_status(&self, fid: Fid) -> Result<Option<CachedObject>, Error> {
        let valid = self.cache.index.valid_object(fid.vnode)?.filter(|cached| cached.object.fid == fid);
        if valid.is_none() && self.cache.index.is_certainly_removed(fid.vnode)? {
            return Err(Error::Refused(FsError::Stale));
        }
        Ok(valid)
    }

    /// Returns an object that the server has just shown, if it has. The index's other data about it counts too, unless
    /// an older answer has come after this one.
    fn shown_now(&self, fid: Fid, objects: Vec<Object>) -> Result<CachedObject, Error> {
        let shown = objects.into_iter().find(|object| object.fid == fid).ok_or(Error::Refused(FsError::Stale))?;
        if self.cache.index.is_removed(fid.vnode)? {
            return Err(Error::Refused(FsError::Stale));
        }
        let as_new = |cached: &CachedObject| {
            cached.object.fid == fid && cached.object.status.status_version >= shown.status.status_version
        };
        let cached = self.cache.index.object(fid.vnode)?.filter(as_new);
        Ok(cached.unwrap_or_else(|| CachedObject::shown(shown)))
    }

    /// Returns an object as programs here see it once the announced changes of other clients are done. The names in a
    /// directory must be asked for.
    pub(super) fn about_to_become(&self, coming: Object) -> Result<CachedObject, Error> {
        self.cache.index.with_own_changes(coming)?.ok_or(Error::Refused(FsError::Stale))
    }

    /// Adds the objects behind a name in its directory: a program that looks at one will look at those next. All are
    /// validated in one round trip.
    fn add_siblings(&self, parent: VnodeId, name: Option<&Name>, fids: &mut Vec<Fid>) -> Result<(), Error> {
        let siblings = self.cache.index.entries_up_to(GetStatusRequest::FIDS_MAX, parent, name)?;
        self.add_invalid(siblings.into_iter().map(|(_, entry)| entry), fids)
    }

    /// Adds the entries that must be validated, as many as one answer holds.
    fn add_invalid(&self, entries: impl Iterator<Item = CachedEntry>, fids: &mut Vec<Fid>) -> Result<(), Error> {
        let asked = fids.first().copied();
        let mut target_bytes = 0;
        for entry in entries {
            if fids.len() == GetStatusRequest::FIDS_MAX || target_bytes > SIBLING_TARGET_BYTES_MAX {
                break;
            }
            if Some(entry.fid) != asked && self.cache.index.valid_object(entry.fid.vnode)?.is_none() {
                target_bytes += self.target_bytes(entry)?;
                fids.push(entry.fid);
            }
        }
        Ok(())
    }

    /// Returns the bytes that the target of a symlink adds to its status.
    fn target_bytes(&self, entry: CachedEntry) -> Result<usize, Error> {
        if entry.kind != Kind::Symlink {
            return Ok(0);
        }
        let target = self.cache.index.object(entry.fid.vnode)?.and_then(|cached| cached.object.target);
        Ok(target.map_or(SymlinkTarget::BYTES_MAX, |target| target.as_bytes().len()))
    }

    /// Asks the server for the status of objects; those that the server does not know are forgotten.
    pub(super) async fn validate(&self, fids: Vec<Fid>, purpose: Purpose) -> Result<GetStatusReply, Error> {
        let unanswered = self.unanswered(&fids);
        let request = GetStatusRequest { fids, settled: false, unanswered };
        let answer = self.remote.call(&request, purpose).await?;
        self.take_in_statuses(&request, answer)
    }

    /// Takes in the server's status of objects: without trust where other clients have announced more.
    fn take_in_statuses(
        &self,
        request: &GetStatusRequest,
        answer: Answer<GetStatusReply>,
    ) -> Result<GetStatusReply, Error> {
        let Answer { reply, session, .. } = answer;
        let grant = Grant { session, change: reply.change };
        self.note_applied(&reply.applied, grant)?;
        let is_said = |object: &&Object| !self.is_unsaid(object.fid, &request.unanswered);
        let said: Vec<&Object> = reply.objects.iter().filter(is_said).collect();
        self.cache.index.install_some(&said, &reply.pending, grant)?;
        for gone in request.fids.iter().filter(|fid| !reply.objects.iter().any(|object| object.fid == **fid)) {
            self.object_gone_elsewhere(*gone)?;
        }
        Ok(reply)
    }
}
