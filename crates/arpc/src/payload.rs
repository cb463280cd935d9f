//! Payloads: streams of bytes of any size that go with a call or a reply; never whole in memory.

use std::sync::Arc;

use bytes::Bytes;
use mafs_proto::Class;

use crate::engine::{CallId, Charge};
use crate::error::PayloadError;
use crate::pipe::{Piece, Pipe};
use crate::shared::{Command, Link};

/// How many pieces a [`PayloadWriter`] may be ahead.
const PIECES_MAX: usize = 2;

/// The bytes that are sent along with a call or reply.
#[derive(Debug)]
pub enum Payload {
    /// Nothing.
    None,
    /// All bytes at hand.
    Bytes(Bytes),
    /// Bytes to come from the writer's other end.
    Stream(PayloadReader),
}

impl Payload {
    /// Makes a payload that is produced while it is sent: write to the writer from another task. Holds at most two
    /// pieces.
    #[must_use]
    pub fn stream() -> (PayloadWriter, Self) {
        let pipe = Arc::new(Pipe::default());
        let reader = PayloadReader { pipe: Some(pipe.clone()), origin: None };
        (PayloadWriter { pipe }, Self::Stream(reader))
    }
}

/// The producing end. Dropping it without [`PayloadWriter::finish`] aborts the payload.
#[derive(Debug)]
pub struct PayloadWriter {
    pipe: Arc<Pipe>,
}

impl PayloadWriter {
    /// Hands over the next bytes (best 64 to 256 KB); waits while two pieces are unsent.
    ///
    /// # Errors
    /// When nobody wants the rest.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), PayloadError> {
        let unwanted = || PayloadError::CallEnded("nobody wants the rest".into());
        if !self.pipe.wait_below(PIECES_MAX).await {
            return Err(unwanted());
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.pipe.push(Piece { bytes, charge: None }).map_err(|_| unwanted())
    }

    /// Says that this was all.
    pub fn finish(self) {
        self.pipe.end(Ok(()));
    }

    /// Says that the rest cannot be had, and why.
    pub fn abort(self, why: impl Into<String>) {
        self.pipe.end(Err(PayloadError::Aborted(why.into())));
    }
}

impl Drop for PayloadWriter {
    fn drop(&mut self) {
        self.pipe.end(Err(PayloadError::Aborted("the sender gave up".into())));
    }
}

/// The consuming end. Taking bytes returns credit to the sender; dropping it before the end stops the sender.
///
/// The default one is empty.
#[derive(Debug, Default)]
pub struct PayloadReader {
    /// `None`: empty.
    pipe: Option<Arc<Pipe>>,
    /// The call whose payload this is; `None` if it comes from a writer at this end.
    origin: Option<Origin>,
}

#[derive(Debug)]
struct Origin {
    id: CallId,
    link: Arc<Link>,
}

impl PayloadReader {
    /// Waits for the next bytes; `None` at the end. Cancelling this loses nothing.
    ///
    /// # Errors
    /// If the payload ends early; what came before is not the whole.
    pub async fn read(&mut self) -> Result<Option<Bytes>, PayloadError> {
        loop {
            if let Some(next) = self.try_read() {
                return next;
            }
            if let Some(pipe) = &self.pipe {
                pipe.wait_readable().await;
            }
        }
    }

    /// Waits for the next piece, then takes all others that are here, until there are `bytes_max` bytes or more. Empty
    /// at the end. A caller that does something costly per piece, such as handing it to another thread, should ask for
    /// many.
    ///
    /// # Errors
    /// If the payload ends early; what came before is not the whole.
    pub async fn read_many(&mut self, bytes_max: usize) -> Result<Vec<Bytes>, PayloadError> {
        let Some(first) = self.read().await? else { return Ok(Vec::new()) };
        let mut bytes = first.len();
        let mut pieces = vec![first];
        while bytes < bytes_max
            && let Some(Ok(Some(piece))) = self.try_read()
        {
            bytes += piece.len();
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// Takes the next bytes, if they are here already.
    pub(crate) fn try_read(&self) -> Option<Result<Option<Bytes>, PayloadError>> {
        let Some(pipe) = &self.pipe else { return Some(Ok(None)) };
        let next = pipe.try_take()?;
        Some(next.map(|piece| piece.map(|piece| self.taken(piece))))
    }

    fn taken(&self, piece: Piece) -> Bytes {
        if let (Some(origin), Some(charge)) = (&self.origin, piece.charge) {
            origin.link.consumed(charge);
        }
        piece.bytes
    }

    /// Makes the reader of an incoming payload, whose first bytes and end may be here already, and the pipe for the
    /// rest.
    pub(crate) fn incoming(
        id: CallId,
        link: &Arc<Link>,
        class: Class,
        data: Bytes,
        last: bool,
    ) -> (Self, Option<Arc<Pipe>>) {
        if last && data.is_empty() {
            return (Self::default(), None);
        }
        let pipe = Arc::new(Pipe::default());
        if !data.is_empty() {
            // A new pipe takes everything.
            let _ = pipe.push(Piece { charge: Some(Charge::of(class, data.len() as u64)), bytes: data });
        }
        if last {
            pipe.end(Ok(()));
        }
        let reader = Self { pipe: Some(pipe.clone()), origin: Some(Origin { id, link: link.clone() }) };
        (reader, (!last).then_some(pipe))
    }
}

impl Drop for PayloadReader {
    fn drop(&mut self) {
        let Some(pipe) = &self.pipe else { return };
        let (rest, open) = pipe.abandon();
        for piece in rest {
            self.taken(piece);
        }
        if let Some(origin) = self.origin.as_ref().filter(|_| open) {
            origin.link.send(Command::Unwanted { id: origin.id });
        }
    }
}
