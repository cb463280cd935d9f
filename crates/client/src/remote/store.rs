//! A store: a call whose content may take long to send, and goes on where it was when a connection breaks.

use std::io;

use mafs_arpc::{CallProgress, Payload};
use mafs_proto::call::{ApplyReply, ApplyRequest, ResumeStoreReply, ResumeStoreRequest};
use mafs_proto::{CmlRecord, ContentHash, Fid, FsError, Method, OnConflict, Purpose};
use tokio::time::Instant;

use super::attempts::{Attempts, Failure};
use super::waiting::Waiting;
use super::{Answer, Connection, Remote, RemoteError, Urgency};

/// The content of a store, sent from where the server has it.
pub(crate) trait StoreContent: Send + Sync {
    /// Its size.
    fn bytes(&self) -> u64;
    /// All of it from `offset` on.
    fn payload(&self, offset: u64) -> Payload;
    /// The hash of its first bytes, as if they were all of it.
    fn hash_of_first(&self, bytes: u64) -> io::Result<ContentHash>;
    /// What it is sent for now.
    fn purpose(&self) -> Purpose;
    /// What is behind `offset` is on its way.
    fn sending(&self, offset: u64, progress: CallProgress, urgency: Urgency);
}

/// How a content is sent.
pub(crate) struct Terms {
    /// Part of it may be at the server.
    pub(crate) interrupted: bool,
    pub(crate) on_conflict: OnConflict,
    /// As in [`ApplyRequest`].
    pub(crate) lock_lost: bool,
}

impl Remote {
    /// Finds out what became of a store whose content is not there any more: sent without, it is refused for good
    /// unless it has been applied, and what depends on it need not wait for it. The record stays outstanding until its
    /// end is noted.
    pub(crate) async fn resolve(&self, record: &CmlRecord) -> Result<Answer<ApplyReply>, RemoteError> {
        let attempts = Attempts::new(&self.shared.config, true);
        let request = ApplyRequest { comes_again: false, ..self.apply_request(record) };
        self.call_with(attempts, &request, Purpose::Store, None, &|| Payload::None).await
    }

    /// Sends a store with its content; the record stays outstanding until its end is noted. A store has no deadline
    /// while it is being sent; a connection must be there within the deadline. What an attempt before has brought to
    /// the server is not sent again: one of this call, or an earlier one, if that was `interrupted`.
    pub(crate) async fn store(
        &self,
        record: &CmlRecord,
        content: &dyn StoreContent,
        Terms { interrupted, on_conflict, lock_lost }: Terms,
    ) -> Result<Answer<ApplyReply>, RemoteError> {
        let _waiting = Waiting::begin(&self.shared);
        let request = ApplyRequest { on_conflict, lock_lost, ..self.apply_request(record) };
        // Nobody is to wait for what may be in conflict with what is locked.
        let request = ApplyRequest { announces: request.announces && !lock_lost, ..request };
        let mut attempts = Attempts::new(&self.shared.config, interrupted);
        let mut brought = 0;
        loop {
            let connection = self.connected_by(attempts.connect_by()).await?;
            let asks = attempts.repeated && content.bytes() >= ResumeStoreRequest::CONTENT_BYTES_MIN;
            let kept = if asks { self.kept(&connection, record.op.fid(), content).await } else { Ok(0) };
            if let Ok(kept) = kept
                && kept > brought
            {
                brought = kept;
                attempts.progressed();
            }
            match self.send_rest(&connection, &request, content, kept).await {
                Ok(answer) => return Ok(attempts.answered(Method::Apply, answer)),
                // It has gone since: the next attempt finds that out.
                Err(Failure::Final(RemoteError::Refused { error: FsError::NotKept, message })) => {
                    attempts.failed(message)?;
                }
                Err(failure) => self.before_next(failure, &connection, &mut attempts).await?,
            }
        }
    }

    async fn send_rest(
        &self,
        connection: &Connection,
        request: &ApplyRequest,
        content: &dyn StoreContent,
        kept: Result<u64, Failure>,
    ) -> Result<Answer<ApplyReply>, Failure> {
        let content_offset = kept?;
        let request = ApplyRequest { content_offset, ..request.clone() };
        let call = self.begin(connection, &request, content.purpose(), None, content.payload(content_offset));
        content.sending(content_offset, call.handle.progress(), call.urgency(self.shared.config.classes));
        self.finish(connection, call).await
    }

    /// How much of a content the server has.
    async fn kept(&self, connection: &Connection, fid: Fid, content: &dyn StoreContent) -> Result<u64, Failure> {
        let deadline = Instant::now() + self.shared.config.deadline;
        let request = ResumeStoreRequest { fid };
        let answer = self.attempt(connection, &request, Purpose::Ask, Some(deadline), Payload::None).await?;
        let ResumeStoreReply { bytes, hash } = answer.reply;
        let same = bytes <= content.bytes() && content.hash_of_first(bytes).is_ok_and(|own| own == hash);
        tracing::info!(bytes, same, of = content.bytes(), "a store goes on");
        Ok(if same { bytes } else { 0 })
    }
}
