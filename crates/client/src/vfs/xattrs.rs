//! Extended attributes: the server is asked once for all of an object, and the index answers from then on.
//!
//! A status says whether there are any, so the many questions about objects without them cost nothing. With `sync` a
//! change goes to the server first; the result is known here if nothing else happened to the object in between. With
//! the other policies a change is decided from the state known here and logged, as other changes are.
//!
//! The namespaces are those of ext4. The kernel checks access in them, except that `trusted.` is not listed to
//! everybody. POSIX ACLs (`system.`) are not supported: nothing would enforce them.
//!
//! Names below `user.mafs.` are this client's own: its state of an object, without a question to the server. They are
//! not listed, so that a copy of a file does not take them along, and no program can set them.

use bytes::Bytes;
use mafs_proto::call::{GetXattrsReply, GetXattrsRequest};
use mafs_proto::{CmlOp, Fid, FsError, Object, Purpose, VnodeId, XattrMode, XattrName, XattrValue, Xattrs};

use super::changes::Change;
use super::delivery::not_delivered;
use super::{Cached, Caller, Error, Inner, Stale};
use crate::core::promises::{Grant, SessionNumber};
use crate::remote::Answer;

const TRUSTED: &[u8] = b"trusted.";
/// Prefix of the attributes that the client itself answers.
const OWN: &[u8] = b"user.mafs.";
const NAMESPACES: [&[u8]; 3] = [b"user.", TRUSTED, b"security."];

/// Attribute that `ls -l` asks of every file. Where SELinux labels files the kernel answers it; elsewhere a label is
/// one that a program has copied here. If there is none, the answer is that such attributes are not supported rather
/// than that this file has none, as on NFS: then `ls` asks once for the whole mount, and not 100,000 times in a
/// directory of so many.
const LABEL: &[u8] = b"security.selinux";

/// A change of one attribute.
pub(super) enum XattrChange {
    Set { name: XattrName, value: XattrValue, mode: XattrMode },
    Remove { name: XattrName },
}

impl Inner {
    pub(super) async fn get_xattr(&self, vnode: VnodeId, name: Bytes) -> Result<XattrValue, Error> {
        let name = parse(name)?;
        if let Some(own) = name.as_bytes().strip_prefix(OWN) {
            return self.own_xattr(vnode, own);
        }
        let xattrs = self.xattrs(vnode).await?;
        let absent = || if name.as_bytes() == LABEL { Error::Unsupported } else { FsError::NoXattr.into() };
        xattrs.get(&name).cloned().ok_or_else(absent)
    }

    pub(super) async fn list_xattrs(&self, vnode: VnodeId, caller: Caller) -> Result<Vec<XattrName>, Error> {
        let xattrs = self.xattrs(vnode).await?;
        let shown = |name: &XattrName| caller.uid == 0 || !name.as_bytes().starts_with(TRUSTED);
        Ok(xattrs.iter().map(|(name, _)| name.clone()).filter(shown).collect())
    }

    pub(super) async fn set_xattr(
        &self,
        vnode: VnodeId,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
        caller: Caller,
    ) -> Result<(), Error> {
        let too_large = || Error::Invalid("the value is larger than 64 KiB".to_owned());
        let value = XattrValue::new(value).ok_or_else(too_large)?;
        self.change_xattrs(vnode, XattrChange::Set { name: parse_settable(name)?, value, mode }, caller).await
    }

    pub(super) async fn remove_xattr(&self, vnode: VnodeId, name: Bytes, caller: Caller) -> Result<(), Error> {
        self.change_xattrs(vnode, XattrChange::Remove { name: parse_settable(name)? }, caller).await
    }

    /// Returns this client's own attribute of an object.
    fn own_xattr(&self, vnode: VnodeId, name: &[u8]) -> Result<XattrValue, Error> {
        let report = self.object_report(vnode).ok_or(Error::Refused(FsError::Stale))?;
        let yes_or_no = |is_so: bool| if is_so { "1" } else { "0" }.to_owned();
        let value = match name {
            b"state" => match report.cached {
                Cached::Whole => "cached".to_owned(),
                Cached::Partly => "partly cached".to_owned(),
                Cached::No => "not cached".to_owned(),
            },
            b"dirty" => yes_or_no(report.dirty),
            b"pinned" => yes_or_no(report.pinned),
            b"version" => report.version.to_string(),
            _ => return Err(FsError::NoXattr.into()),
        };
        XattrValue::new(value.into_bytes()).ok_or(Error::Refused(FsError::Malformed))
    }

    async fn change_xattrs(&self, vnode: VnodeId, change: XattrChange, caller: Caller) -> Result<(), Error> {
        self.check_writable()?;
        let in_use = self.files().get(vnode);
        if let Some(file) = in_use {
            let mut state = file.state();
            if state.fate().is_unlinked() {
                let changed = state.change_nameless_xattrs(|xattrs| change.apply(xattrs), self.clock.wall());
                return Ok(changed.ok_or(Error::VersionGone)??);
            }
        }
        if !self.settings.writeback.waits() {
            // The present attributes decide whether the change can be made.
            self.xattrs(vnode).await?;
            let object = self.with_or_without_server(|| self.status_of(vnode)).await?.object;
            let change = Change::new(change.op(object.fid), object.status.kind);
            return self.change(change, caller, &[]).await.map(drop);
        }
        self.until_applied(vnode).await?;
        let before = self.status_of(vnode).await?.object;
        let known = self.cache.index.xattrs(&before)?;
        let reply = self.mutate(change.op(before.fid), caller, &[]).await?;
        let after = reply.objects.iter().find(|object| object.fid == before.fid);
        let after = after.ok_or(Error::Refused(FsError::Malformed))?.status;
        if let (Some(mut xattrs), Some(version)) = (known, after.xattrs)
            && after.status_version == before.status.status_version.next()
        {
            change.apply(&mut xattrs)?;
            self.cache.index.install_xattrs(before.fid, version, xattrs)?;
        }
        Ok(())
    }

    /// Returns all attributes of an inode.
    async fn xattrs(&self, vnode: VnodeId) -> Result<Xattrs, Error> {
        self.with_or_without_server(|| self.xattrs_now(vnode)).await
    }

    async fn xattrs_now(&self, vnode: VnodeId) -> Result<Xattrs, Error> {
        let in_use = self.files().get(vnode);
        if let Some(file) = in_use
            && let Some(unlinked) = file.state().fate().left()
        {
            return unlinked.xattrs().cloned().ok_or(Error::VersionGone);
        }
        if let Some(removed) = self.kernel.removed(vnode) {
            return self.xattrs_of(&removed, Purpose::Fetch).await;
        }
        let fid = self.status_of(vnode).await?.object.fid;
        // If the object is not valid other clients have announced changes of it, perhaps of its attributes.
        let valid = self.cache.index.valid_object(vnode)?;
        let known = valid.map(|valid| self.cache.index.xattrs(&valid.object)).transpose()?.flatten();
        match known {
            Some(xattrs) => Ok(xattrs),
            None => self.settled_xattrs(fid).await,
        }
    }

    /// Returns all attributes of an object with this status. Asks the server if they are not known, and waits for no
    /// other client.
    pub(super) async fn xattrs_of(&self, object: &Object, purpose: Purpose) -> Result<Xattrs, Error> {
        if let Some(xattrs) = self.cache.index.xattrs(object)? {
            return Ok(xattrs);
        }
        self.present_xattrs(object.fid, purpose).await
    }

    /// Returns all attributes of an object as the server has them now.
    async fn present_xattrs(&self, fid: Fid, purpose: Purpose) -> Result<Xattrs, Error> {
        let request = self.ask_for_xattrs(fid, false);
        let answer = self.remote.call(&request, purpose).await?;
        self.take_in_xattrs(&request, answer)
    }

    /// Returns all attributes of an object, with all changes that other clients have announced until now.
    async fn settled_xattrs(&self, fid: Fid) -> Result<Xattrs, Error> {
        let request = self.ask_for_xattrs(fid, true);
        if let Some(answer) = self.ask_delivered(&request, Purpose::Fetch).await? {
            return self.take_in_xattrs(&request, answer);
        }
        match self.settings.stale {
            Stale::Error => Err(not_delivered()),
            Stale::Serve => self.present_xattrs(fid, Purpose::Fetch).await,
        }
    }

    fn ask_for_xattrs(&self, fid: Fid, settled: bool) -> GetXattrsRequest {
        GetXattrsRequest { fid, settled, unanswered: self.unanswered(&[fid]) }
    }

    /// Takes in the server's answer, and lays this client's changes over it.
    fn take_in_xattrs(&self, request: &GetXattrsRequest, answer: Answer<GetXattrsReply>) -> Result<Xattrs, Error> {
        let Answer { reply, session, .. } = answer;
        let session = if reply.pending { SessionNumber::NONE } else { session };
        let grant = Grant { session, change: reply.change };
        self.note_applied(&reply.applied, grant)?;
        let mut xattrs = reply.xattrs;
        if !self.is_unsaid(request.fid, &request.unanswered) {
            self.cache.index.install(std::slice::from_ref(&reply.object), grant)?;
            if let Some(version) = reply.object.status.xattrs {
                self.cache.index.install_xattrs(request.fid, version, xattrs.clone())?;
            }
        }
        self.cache.index.lay_over_xattrs(request.fid, &mut xattrs);
        Ok(xattrs)
    }
}

impl XattrChange {
    fn op(&self, fid: Fid) -> CmlOp {
        match self {
            Self::Set { name, value, mode } => {
                CmlOp::SetXattr { fid, name: name.clone(), value: value.clone(), mode: *mode }
            }
            Self::Remove { name } => CmlOp::RemoveXattr { fid, name: name.clone() },
        }
    }

    fn apply(self, xattrs: &mut Xattrs) -> Result<(), FsError> {
        match self {
            Self::Set { name, value, mode } => xattrs.set(name, value, mode),
            Self::Remove { name } => xattrs.remove(&name),
        }
    }
}

/// Parses a name that may be given a value.
fn parse_settable(name: Bytes) -> Result<XattrName, Error> {
    if name.starts_with(OWN) { Err(Error::NotPermitted) } else { parse(name) }
}

/// Parses a name: of a namespace that is supported here, with something behind it.
fn parse(name: Bytes) -> Result<XattrName, Error> {
    let namespace = NAMESPACES.into_iter().find(|namespace| name.starts_with(namespace));
    match namespace {
        None => Err(Error::Unsupported),
        Some(namespace) if name.len() == namespace.len() => {
            Err(Error::Invalid("an attribute's name ends with its namespace".to_owned()))
        }
        // The kernel lets no other name through.
        Some(_) => XattrName::new(name).map_err(|error| Error::Invalid(error.to_string())),
    }
}
