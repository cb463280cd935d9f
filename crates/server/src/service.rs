//! Service: parses calls, does them, answers. One task per call, so no call waits for another's disk.
//!
//! Every body is hostile until parsed; what does not parse ends the call, not the session (invariant 10).

mod attach;
mod content;
mod locks;

use std::sync::Arc;

use bytes::Bytes;
use mafs_arpc::{IncomingCall, Payload, blocking};
use mafs_proto::call::{
    ApplyRequest, BreakRequest, ChangedSinceReply, ChangedSinceRequest, ConflictsRequest, DetachReply, DetachRequest,
    ErrorDetail, FetchRequest, GetStatusReply, GetStatusRequest, GetXattrsReply, GetXattrsRequest, GrantFidsReply,
    GrantFidsRequest, HoldReply, HoldRequest, InvalidateReply, InvalidateRequest, LookupReply, LookupRequest,
    PullRequest, ReadDirReply, ReadDirRequest, RenewLeaseReply, RenewLeaseRequest, ResumeStoreRequest, StatFsRequest,
};
use mafs_proto::{Fid, FsError, Method, Segment, Wire};

use crate::core::Refusal;
use crate::core::pending::About;
use crate::server::Server;
use crate::session::{Attachment, Session};
use crate::volume::Reading;
use content::{ContentReader, Received};

/// Parts of an answer: the body, the payload, and the reader that produces the payload while it is sent.
struct Answer {
    body: Bytes,
    payload: Payload,
    reader: Option<ContentReader>,
}

/// Does one call and answers it.
pub(crate) async fn answer(server: &Arc<Server>, session: &Arc<Session>, mut call: IncomingCall) {
    let answer = dispatch(server, session, &mut call).await;
    if let Some(why) = session.failure() {
        // The answer may rest on something that is not on the disk. The client asks again when it has attached again;
        // a call that is dropped earlier is answered.
        session.peer().close(&why);
        session.peer().closed().await;
        return;
    }
    match answer {
        Ok(Answer { body, payload, reader }) => {
            call.reply(0, body, payload);
            if let Some(reader) = reader {
                reader.run().await;
            }
        }
        Err(refusal) => {
            tracing::debug!(method = call.method, error = ?refusal.error, %refusal, "refused");
            let detail = ErrorDetail { message: refusal.detail, progress: refusal.progress };
            call.reply(refusal.error.number(), detail.encode(), Payload::None);
        }
    }
}

async fn dispatch(server: &Arc<Server>, session: &Arc<Session>, call: &mut IncomingCall) -> Result<Answer, Refusal> {
    let Some(method) = Method::from_number(call.method) else {
        return Err(Refusal::new(FsError::NoMethod, format!("the server does not know the call {}", call.method)));
    };
    let body = std::mem::take(&mut call.body);
    match method {
        Method::Attach => reply(attach::attach(server, session, Wire::decode(body)?).await?),
        Method::Detach => {
            DetachRequest::decode(body)?;
            if let Some(attached) = session.detach() {
                attached.volume.detach(attached.ticket).await;
            }
            reply(DetachReply)
        }
        Method::GrantFids => {
            GrantFidsRequest::decode(body)?;
            let attached = session.attachment()?;
            reply(GrantFidsReply { fids: attached.volume.grant_fids(attached.ticket).await? })
        }
        Method::GetStatus => {
            let request = GetStatusRequest::decode(body)?;
            let attached = session.attachment()?;
            reply(status(&attached, &request, call).await?)
        }
        Method::Lookup => {
            let request = LookupRequest::decode(body)?;
            let attached = session.attachment()?;
            reply(lookup(&attached, &request, call).await?)
        }
        Method::ReadDir => {
            let request = ReadDirRequest::decode(body)?;
            let attached = session.attachment()?;
            recall(&attached, request.fid, call).await?;
            settle(&attached, &About::Names(request.fid.vnode), call).await?;
            let page = blocking(|| attached.volume.read_dir(attached.ticket, &request))?;
            Ok(Answer { body: ReadDirReply.encode(), payload: Payload::Bytes(page.encode()), reader: None })
        }
        Method::Fetch => fetch(session, FetchRequest::decode(body)?).await,
        Method::Apply => apply(session, ApplyRequest::decode(body)?, call).await,
        Method::ResumeStore => {
            let request = ResumeStoreRequest::decode(body)?;
            let attached = session.attachment()?;
            reply(blocking(|| attached.volume.spools().resume(attached.ticket.client, request.fid)))
        }
        Method::GetXattrs => reply(xattrs(&session.attachment()?, &Wire::decode(body)?, call).await?),
        Method::StatFs => {
            StatFsRequest::decode(body)?;
            let volume = session.attachment()?.volume;
            reply(blocking(|| volume.space())?)
        }
        Method::RenewLease => reply(renew_lease(Wire::decode(body)?, &session.attachment()?)?),
        Method::Invalidate => reply(announce(Wire::decode(body)?, &session.attachment()?).await?),
        Method::Lock => reply(locks::lock(Wire::decode(body)?, &session.attachment()?, call).await?),
        Method::Unlock => reply(locks::unlock(Wire::decode(body)?, &session.attachment()?)?),
        Method::TestLock => reply(locks::conflict(Wire::decode(body)?, &session.attachment()?)?),
        Method::CancelLock => reply(locks::cancel(Wire::decode(body)?, &session.attachment()?)?),
        Method::ChangedSince => reply(changed_since(Wire::decode(body)?, &session.attachment()?)?),
        Method::Hold => reply(hold(&Wire::decode(body)?, &session.attachment()?)?),
        Method::Conflicts => conflicts(session, &ConflictsRequest::decode(body)?),
        Method::Break => only_of_servers::<BreakRequest>(body),
        Method::Pull => only_of_servers::<PullRequest>(body),
    }
}

fn renew_lease(request: RenewLeaseRequest, attached: &Attachment) -> Result<RenewLeaseReply, Refusal> {
    let Attachment { volume, ticket } = attached;
    let renewed = volume.renew_lease(*ticket, request.undecided)?;
    Ok(RenewLeaseReply { renewed, lock_grants: volume.lock_grants(), mark: blocking(|| volume.caught_up(*ticket))? })
}

async fn announce(request: InvalidateRequest, attached: &Attachment) -> Result<InvalidateReply, Refusal> {
    attached.volume.announce(attached.ticket, request).await
}

fn changed_since(request: ChangedSinceRequest, attached: &Attachment) -> Result<ChangedSinceReply, Refusal> {
    let changed = blocking(|| attached.volume.changed_since(attached.ticket, request.mark))?;
    Ok(ChangedSinceReply { changed })
}

fn hold(request: &HoldRequest, attached: &Attachment) -> Result<HoldReply, Refusal> {
    attached.volume.hold(attached.ticket, &request.vnodes, request.last)?;
    Ok(HoldReply)
}

/// Returns the status of objects; of the first one, if it is to be settled, when what others have announced of it is
/// there.
async fn status(
    attached: &Attachment,
    request: &GetStatusRequest,
    call: &IncomingCall,
) -> Result<GetStatusReply, Refusal> {
    let Attachment { volume, ticket } = attached;
    let opened = request.fids.first().filter(|_| request.settled);
    if let Some(fid) = opened {
        settle(attached, &About::Object(fid.vnode), call).await?;
    }
    let reply = blocking(|| volume.objects(*ticket, request))?;
    let shown = reply.objects.first().filter(|object| opened == Some(&object.fid));
    let stale = shown.is_some_and(|shown| volume.is_stale(*ticket, shown));
    Ok(GetStatusReply { stale, ..reply })
}

/// Returns the extended attributes of an object; if they are to be settled, when what others have announced of them
/// is there.
async fn xattrs(
    attached: &Attachment,
    request: &GetXattrsRequest,
    call: &IncomingCall,
) -> Result<GetXattrsReply, Refusal> {
    if request.settled {
        settle(attached, &About::Xattrs(request.fid.vnode), call).await?;
    }
    blocking(|| attached.volume.xattrs(attached.ticket, request))
}

/// Waits for what others have announced, while the caller does.
async fn settle(attached: &Attachment, about: &About, call: &IncomingCall) -> Result<(), Refusal> {
    tokio::select! {
        biased;
        settled = attached.volume.settle(attached.ticket, about) => settled,
        () = call.cancelled() => Err(Refusal::new(FsError::Pulling, "nobody waits for the answer")),
    }
}

/// Waits until nobody else decides names in a directory, while the caller does.
async fn recall(attached: &Attachment, directory: Fid, call: &IncomingCall) -> Result<(), Refusal> {
    tokio::select! {
        biased;
        recalled = attached.volume.recall(attached.ticket, directory) => recalled,
        () = call.cancelled() => Err(Refusal::new(FsError::Pulling, "nobody waits for the answer")),
    }
}

/// Looks a name up: if somebody has announced that it will mean another object, that one is returned.
async fn lookup(attached: &Attachment, request: &LookupRequest, call: &IncomingCall) -> Result<LookupReply, Refusal> {
    let Attachment { volume, ticket } = attached;
    let LookupRequest { parent, name, .. } = request;
    recall(attached, *parent, call).await?;
    if let Some(reply) = blocking(|| volume.lookup_announced(*ticket, *parent, name))? {
        return Ok(reply);
    }
    settle(attached, &About::Name(parent.vnode, name.clone()), call).await?;
    blocking(|| volume.lookup(*ticket, request))
}

async fn fetch(session: &Arc<Session>, request: FetchRequest) -> Result<Answer, Refusal> {
    let attached = session.attachment()?;
    let (reply, reading) = blocking(|| attached.volume.open_content(attached.ticket, &request))?;
    let body = reply.encode();
    match reading {
        Reading::Bytes(bytes) => {
            let offset = usize::try_from(request.offset).unwrap_or(usize::MAX).min(bytes.len());
            Ok(Answer { body, payload: Payload::Bytes(Segment::of(&bytes[offset..])), reader: None })
        }
        Reading::File(stored) => {
            let (reader, payload) = ContentReader::start(session.readers(), stored, request.offset).await;
            Ok(Answer { body, payload, reader: Some(reader) })
        }
    }
}

async fn apply(session: &Arc<Session>, request: ApplyRequest, call: &mut IncomingCall) -> Result<Answer, Refusal> {
    let attached = session.attachment()?;
    let body = match content::receive(&attached, &request, &mut call.payload).await {
        Received::Known(reply) => {
            attached.volume.settled(attached.ticket, &request.record, &reply).await?;
            reply
        }
        Received::Content(content) => attached.volume.apply(attached.ticket, request, content).await?,
        Received::Undecided(refusal) => return Err(refusal),
    };
    Ok(Answer { body, payload: Payload::None, reader: None })
}

fn conflicts(session: &Session, request: &ConflictsRequest) -> Result<Answer, Refusal> {
    let volume = session.attachment()?.volume;
    reply(blocking(|| volume.conflicts(request))?)
}

/// Refuses a call that clients do not make.
fn only_of_servers<T: Wire>(body: Bytes) -> Result<Answer, Refusal> {
    T::decode(body)?;
    Err(Refusal::new(FsError::NoMethod, "only a server makes this call"))
}

/// Makes an answer without payload.
fn reply<T: Wire>(reply: T) -> Result<Answer, Refusal> {
    Ok(Answer { body: reply.encode(), payload: Payload::None, reader: None })
}
