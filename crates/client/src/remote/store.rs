//! A store: a call whose content may take long to send, and goes on where it was when a connection breaks.

use std::io;
use std::time::Duration;

use mafs_arpc::{CallProgress, Payload};
use mafs_proto::call::{ApplyReply, ApplyRequest, ResumeStoreReply, ResumeStoreRequest};
use mafs_proto::{CmlRecord, ContentHash, ContentHasher, Fid, FsError, Method, OnConflict, Purpose};
use tokio::time::{Instant, sleep};

use super::attempts::{Attempts, Failure};
use super::waiting::Waiting;
use super::{Answer, Connection, Remote, RemoteError, Urgency};

/// The most sendings of a content that arrives damaged; then the caller decides when it comes again.
const SENDINGS_MAX: u32 = 4;
/// The pause before the second sending; each later pause is twice the one before.
const DAMAGED_PAUSE: Duration = Duration::from_millis(100);

/// The content of a store, sent from where the server has it.
pub(crate) trait StoreContent: Send + Sync {
    /// Returns the content's size.
    fn bytes(&self) -> u64;
    /// Returns all of the content from `offset` on, and its hash; `begun` has hashed the bytes before.
    fn payload(&self, offset: u64, begun: ContentHasher) -> Payload;
    /// Begins the content's hash with its first bytes.
    fn begin_hash(&self, bytes: u64) -> io::Result<ContentHasher>;
    /// Returns the content's hash, if all of it has been sent.
    fn hash(&self) -> Option<ContentHash>;
    /// Returns the purpose for which the content is sent now.
    fn purpose(&self) -> Purpose;
    /// Notes that the content behind `offset` is on its way.
    fn sending(&self, offset: u64, progress: CallProgress, urgency: Urgency);
}

/// The terms on which a content is sent.
pub(crate) struct Terms {
    /// Whether part of the content may be at the server.
    pub(crate) interrupted: bool,
    pub(crate) on_conflict: OnConflict,
    /// The field of the same name in [`ApplyRequest`].
    pub(crate) lock_lost: bool,
}

/// The part of a content that the server has already, and the hash of that part as it is here.
#[derive(Default)]
struct Kept {
    bytes: u64,
    hasher: ContentHasher,
}

impl Remote {
    /// Finds out the fate of a store whose content is not there any more: sent without content, the store is refused
    /// for good unless it has been applied, and records that depend on it need not wait for it. The record stays
    /// outstanding until its end is noted.
    pub(crate) async fn resolve(&self, record: &CmlRecord) -> Result<Answer<ApplyReply>, RemoteError> {
        let attempts = Attempts::new(&self.shared.config, true);
        let request = ApplyRequest { comes_again: false, ..self.apply_request(record) };
        self.call_with(attempts, &request, Purpose::Store, None, &|| Payload::None).await
    }

    /// Sends a store with its content; the record stays outstanding until its end is noted. A store has no deadline
    /// while it is being sent; a connection must be there within the deadline. Bytes that an attempt before has
    /// brought to the server are not sent again: an attempt of this call, or of an earlier one if that was
    /// `interrupted`.
    pub(crate) async fn store(
        &self,
        record: &CmlRecord,
        content: &dyn StoreContent,
        Terms { interrupted, on_conflict, lock_lost }: Terms,
    ) -> Result<Answer<ApplyReply>, RemoteError> {
        let _waiting = Waiting::begin(&self.shared);
        let request = ApplyRequest { on_conflict, lock_lost, ..self.apply_request(record) };
        // Nobody is to wait for a content that may be in conflict with locked bytes.
        let request = ApplyRequest { announces: request.announces && !lock_lost, ..request };
        let mut attempts = Attempts::new(&self.shared.config, interrupted);
        let (mut brought, mut sendings) = (0, 1);
        loop {
            let connection = self.connected_by(attempts.connect_by()).await?;
            let asks = attempts.repeated && content.bytes() >= ResumeStoreRequest::CONTENT_BYTES_MIN;
            let kept = if asks { self.kept(&connection, record.op.fid(), content).await } else { Ok(Kept::default()) };
            if let Ok(kept) = &kept
                && kept.bytes > brought
            {
                brought = kept.bytes;
                attempts.progressed();
            }
            match self.send_rest(&connection, &request, content, kept).await {
                Ok(answer) => return Ok(attempts.answered(Method::Apply, self.compared(record, answer, content))),
                // The kept part has gone since: the next attempt finds that out.
                Err(Failure::Final(RemoteError::Refused { error: FsError::NotKept, message })) => {
                    attempts.failed(message)?;
                }
                Err(Failure::Final(RemoteError::Refused { error: FsError::Damaged, .. }))
                    if sendings < SENDINGS_MAX =>
                {
                    self.shared.note_damaged(record);
                    sleep(DAMAGED_PAUSE * (1 << (sendings - 1))).await;
                    sendings += 1;
                }
                Err(failure) => {
                    if let Failure::Final(RemoteError::Refused { error: FsError::Damaged, .. }) = &failure {
                        self.shared.note_damaged(record);
                    }
                    self.before_next(failure, &connection, &mut attempts).await?;
                }
            }
        }
    }

    /// Returns the answer with the hash of the content that was sent. The server has compared the content with that
    /// hash, so its answer only differs if the server is damaged itself. Then the hash here is right.
    fn compared(
        &self,
        record: &CmlRecord,
        answer: Answer<ApplyReply>,
        content: &dyn StoreContent,
    ) -> Answer<ApplyReply> {
        let hash = content.hash().or(answer.reply.hash);
        if hash != answer.reply.hash {
            tracing::error!(fid = %record.op.fid(), "the server has another content than it was sent");
            self.shared.note_damaged(record);
        }
        Answer { reply: ApplyReply { hash, ..answer.reply }, ..answer }
    }

    async fn send_rest(
        &self,
        connection: &Connection,
        request: &ApplyRequest,
        content: &dyn StoreContent,
        kept: Result<Kept, Failure>,
    ) -> Result<Answer<ApplyReply>, Failure> {
        let Kept { bytes: content_offset, hasher } = kept?;
        let request = ApplyRequest { content_offset, ..request.clone() };
        let call = self.begin(connection, &request, content.purpose(), None, content.payload(content_offset, hasher));
        content.sending(content_offset, call.handle.progress(), call.urgency(self.shared.config.classes));
        self.finish(connection, call).await
    }

    /// Asks how much of a content the server has.
    async fn kept(&self, connection: &Connection, fid: Fid, content: &dyn StoreContent) -> Result<Kept, Failure> {
        let deadline = Instant::now() + self.shared.config.deadline;
        let request = ResumeStoreRequest { fid };
        let answer = self.attempt(connection, &request, Purpose::Ask, Some(deadline), Payload::None).await?;
        let ResumeStoreReply { bytes, hash } = answer.reply;
        let begun = (bytes <= content.bytes()).then(|| content.begin_hash(bytes).ok()).flatten();
        let same = begun.filter(|begun| begun.clone().finish() == hash);
        tracing::info!(bytes, same = same.is_some(), of = content.bytes(), "a store goes on");
        Ok(same.map(|hasher| Kept { bytes, hasher }).unwrap_or_default())
    }
}
