//! Locks: the calls by which clients ask for them, and give them up.

use mafs_arpc::IncomingCall;
use mafs_proto::FsError;
use mafs_proto::call::{
    CancelLockReply, CancelLockRequest, GetStatusRequest, LockReply, LockRequest, TestLockReply, TestLockRequest,
    UnlockReply, UnlockRequest,
};

use super::status;
use crate::core::Refusal;
use crate::core::locks::Wanted;
use crate::session::Attachment;

/// Waits for a lock. Returns its file as it is under the lock: with what others have announced by then.
pub(super) async fn lock(
    request: LockRequest,
    attached: &Attachment,
    call: &IncomingCall,
) -> Result<LockReply, Refusal> {
    let Attachment { volume, ticket } = attached;
    let LockRequest { lock, wait, number, given_up, unanswered } = request;
    let wanted = Wanted { lock, wait, number, given_up };
    tokio::select! {
        biased;
        locked = volume.lock(*ticket, &wanted) => locked?,
        () = call.cancelled() => return Err(Refusal::new(FsError::Locked, "nobody waits for the answer")),
    }
    let asked = GetStatusRequest { fids: vec![lock.fid], settled: true, unanswered };
    let status = status(attached, &asked, call).await?;
    Ok(LockReply { lock_grants: volume.lock_grants(), status })
}

pub(super) fn unlock(request: UnlockRequest, attached: &Attachment) -> Result<UnlockReply, Refusal> {
    attached.volume.unlock(attached.ticket, &request).map(|()| UnlockReply)
}

/// Returns the lock that is in the way of another.
pub(super) fn conflict(request: TestLockRequest, attached: &Attachment) -> Result<TestLockReply, Refusal> {
    let conflict = attached.volume.lock_conflict(attached.ticket, &request.lock)?;
    Ok(TestLockReply { conflict })
}

pub(super) fn cancel(request: CancelLockRequest, attached: &Attachment) -> Result<CancelLockReply, Refusal> {
    attached.volume.cancel_lock(attached.ticket, request.number).map(|()| CancelLockReply)
}
