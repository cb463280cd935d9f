//! Contents on their way in and out: a few pieces in memory at a time, never a whole file.

use std::io;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use mafs_arpc::{Payload, PayloadError, PayloadReader, PayloadWriter, blocking};
use mafs_durable::{FileSegments, hash_content};
use mafs_proto::call::ApplyRequest;
use mafs_proto::{
    CmlOp, ContentHash, ContentHasher, ContentPart, Fid, FsError, OnConflict, Segment, SegmentHasher, SegmentReader,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::core::edit::{ContentBody, check_arrived};
use crate::core::{NewContent, Refusal};
use crate::session::Attachment;
use crate::store::{Arrival, INLINE_BYTES_MAX};
use crate::volume::StoredContent;

/// Bytes read from a content file at a time: the largest chunk of arpc, so that each piece is one frame.
const PIECE_BYTES: usize = 256 * 1024;

/// Bytes spooled at a time: handing over to another thread costs as much as copying some 100 KB.
const SPOOL_BYTES: usize = 512 * 1024;

/// Contents up to this size are checked before they are sent: some 3 ms at most. Larger ones would keep a reader
/// waiting.
const CHECK_FIRST_BYTES_MAX: u64 = 4 << 20;

/// Outcome of the receipt of a record's content.
pub(super) enum Received {
    /// The record has been applied before; this was the reply, and its payload is not wanted again.
    Known(Bytes),
    /// A record without content, with this one, or with one that is refused, and the record with it.
    Content(Result<Option<NewContent>, Refusal>),
    /// The record is not decided. Either the call has ended, so nobody gets an answer and the record may come again;
    /// or the record says that it does; or the content that came is damaged.
    Undecided(Refusal),
}

/// Takes the content that belongs to a record. The payload of a record without content is not looked at.
pub(super) async fn receive(attached: &Attachment, request: &ApplyRequest, payload: &mut PayloadReader) -> Received {
    let CmlOp::Store { fid, size, .. } = request.record.op else { return Received::Content(Ok(None)) };
    match blocking(|| attached.volume.known(attached.ticket, &request.record)) {
        Ok(None) => {}
        Ok(Some(reply)) => return Received::Known(reply),
        Err(refusal) => return Received::Content(Err(refusal)),
    }
    if request.on_conflict == OnConflict::Ask && size > INLINE_BYTES_MAX {
        // The record comes again, so its content is not to be sent twice.
        if let Err(refusal) = blocking(|| attached.volume.check_base(request)) {
            return Received::Content(Err(refusal));
        }
    }
    if request.announces && size > INLINE_BYTES_MAX {
        attached.volume.announce_arriving(attached.ticket, request).await;
    }
    let content = match size {
        0..=INLINE_BYTES_MAX => receive_inline(attached, fid, size, payload).await,
        _ => receive_spooled(attached, fid, (size, request.content_offset), payload).await,
    };
    match content {
        Ok(content) => Received::Content(Ok(Some(content))),
        // The client could not send this content, or must send it anew.
        Err(NotReceived::Refused(refusal)) if is_sent_anew(refusal.error, request.comes_again) => {
            Received::Undecided(refusal)
        }
        Err(NotReceived::Refused(refusal)) => Received::Content(Err(refusal)),
        Err(NotReceived::CallEnded(why)) => Received::Undecided(Refusal::new(FsError::Malformed, why)),
    }
}

fn is_sent_anew(error: FsError, comes_again: bool) -> bool {
    match error {
        FsError::Malformed | FsError::NotKept => comes_again,
        // The client knows nothing of this damage yet.
        error => error == FsError::Damaged,
    }
}

enum NotReceived {
    Refused(Refusal),
    CallEnded(String),
}

impl From<Refusal> for NotReceived {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<PayloadError> for NotReceived {
    fn from(error: PayloadError) -> Self {
        match error {
            PayloadError::Aborted(_) => Self::Refused(Refusal::new(FsError::Malformed, error.to_string())),
            PayloadError::CallEnded(_) => Self::CallEnded(error.to_string()),
        }
    }
}

async fn receive_inline(
    attached: &Attachment,
    fid: Fid,
    size: u64,
    payload: &mut PayloadReader,
) -> Result<NewContent, NotReceived> {
    let mut segments = SegmentReader::of_upload(size);
    let mut content = BytesMut::new();
    while let Some(mut piece) = payload.read().await? {
        attached.volume.note_delivered(attached.ticket, piece.len() as u64);
        while let Some(part) = segments.next(&mut piece).map_err(|_| wrong_size(size))? {
            match part {
                // There are no more than `size` bytes, which is small: the reader has looked.
                ContentPart::Segment(Segment { zeros, .. }) => {
                    content.put_bytes(0, usize::try_from(zeros).unwrap_or(0));
                }
                ContentPart::Data(bytes) => content.extend_from_slice(&bytes),
            }
        }
    }
    let Some(sent) = segments.hash().filter(|_| segments.is_whole()) else { return Err(wrong_size(size).into()) };
    let bytes = content.freeze();
    let hash = ContentHash::of(&bytes);
    check_arrived(hash, sent)?;
    Ok(NewContent { fid, size, hash, body: ContentBody::Bytes(bytes) })
}

async fn receive_spooled(
    attached: &Attachment,
    fid: Fid,
    (size, offset): (u64, u64),
    payload: &mut PayloadReader,
) -> Result<NewContent, NotReceived> {
    let first = payload.read_many(SPOOL_BYTES).await?;
    if first.is_empty() {
        // The sender only asks whether the record has been applied: what was kept for the next one stays.
        return Err(wrong_size(size).into());
    }
    let mut arrival = blocking(|| {
        attached.volume.check_quota(fid, size)?;
        attached.volume.spools().begin(attached.ticket.client, fid, size, offset)
    })?;
    let received = receive_rest(attached, &mut arrival, (size, offset), first, payload).await;
    blocking(|| match received {
        Ok(sent) => Ok(arrival.finish(sent)?),
        Err(NotReceived::CallEnded(why)) => {
            arrival.interrupt();
            Err(NotReceived::CallEnded(why))
        }
        Err(NotReceived::Refused(refusal)) => {
            arrival.discard();
            Err(NotReceived::Refused(refusal))
        }
    })
}

/// Spools the content that comes. Returns the hash of the content that was sent.
async fn receive_rest(
    attached: &Attachment,
    arrival: &mut Arrival,
    (size, offset): (u64, u64),
    mut pieces: Vec<Bytes>,
    payload: &mut PayloadReader,
) -> Result<ContentHash, NotReceived> {
    let mut segments = SegmentReader::of_upload(size - offset);
    while !pieces.is_empty() {
        attached.volume.note_delivered(attached.ticket, pieces.iter().map(|piece| piece.len() as u64).sum());
        blocking(|| {
            pieces.into_iter().try_for_each(|piece| spool_piece(arrival, &mut segments, size, piece))?;
            arrival.mark_now_and_then();
            Ok::<_, Refusal>(())
        })?;
        pieces = payload.read_many(SPOOL_BYTES).await?;
    }
    segments.hash().filter(|_| segments.is_whole()).ok_or_else(|| wrong_size(size).into())
}

fn spool_piece(arrival: &Arrival, segments: &mut SegmentReader, size: u64, mut piece: Bytes) -> Result<(), Refusal> {
    while let Some(part) = segments.next(&mut piece).map_err(|_| wrong_size(size))? {
        arrival.take(&part)?;
    }
    Ok(())
}

fn wrong_size(size: u64) -> Refusal {
    Refusal::new(FsError::Malformed, format!("the content does not have the {size} bytes that its record says"))
}

/// Sends a part of a content file as payload. Bytes that the disk has changed since the store must not pass for the
/// version: a small content is hashed before its first byte goes, a large one on the way, and then its last piece
/// goes only if the hash is right.
pub(super) struct ContentReader {
    stored: StoredContent,
    segments: FileSegments,
    check: Option<SegmentHasher>,
    writer: PayloadWriter,
    _permit: Option<OwnedSemaphorePermit>,
}

impl ContentReader {
    /// Prepares to send a content from `offset` on, when it is its turn among the readers of its session.
    pub(super) async fn start(readers: &Arc<Semaphore>, stored: StoredContent, offset: u64) -> (Self, Payload) {
        // An error means that the semaphore is closed, which nobody does.
        let permit = Arc::clone(readers).acquire_owned().await.ok();
        let (writer, payload) = Payload::stream();
        let check = (offset == 0).then(|| SegmentHasher::new(ContentHasher::default(), stored.size));
        let segments = FileSegments::new(offset..stored.size);
        (Self { stored, segments, check, writer, _permit: permit }, payload)
    }

    /// Sends the content; ends early when nobody wants the rest.
    pub(super) async fn run(mut self) {
        if self.stored.size <= CHECK_FIRST_BYTES_MAX
            && let Err(error) = blocking(|| self.check_first())
        {
            return self.give_up(&error);
        }
        loop {
            match blocking(|| self.next_piece()) {
                Ok(Some(piece)) => {
                    if self.writer.write(piece).await.is_err() {
                        return;
                    }
                }
                Ok(None) => return self.writer.finish(),
                Err(error) => return self.give_up(&error),
            }
        }
    }

    fn give_up(self, error: &io::Error) {
        let path = &self.stored.path;
        tracing::error!("the content file {path} cannot be read: {error}: restore it from a backup");
        self.writer.abort(format!("the server cannot read the content: {error}"));
    }

    /// Hashes all of the content.
    fn check_first(&mut self) -> io::Result<()> {
        self.check = None;
        match hash_content(&*self.stored.file, self.stored.size)? {
            hash if hash == self.stored.hash => Ok(()),
            _ => Err(not_what_was_stored()),
        }
    }

    fn next_piece(&mut self) -> io::Result<Option<Bytes>> {
        let Some(piece) = self.segments.next_piece(&*self.stored.file, PIECE_BYTES)? else { return Ok(None) };
        let piece = Bytes::from(piece);
        if let Some(check) = &mut self.check {
            check.take(piece.clone()).map_err(io::Error::other)?;
            if check.hash().is_some_and(|hash| hash != self.stored.hash) {
                return Err(not_what_was_stored());
            }
        }
        Ok(Some(piece))
    }
}

fn not_what_was_stored() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not what was stored")
}
