//! An outgoing payload: the pieces at hand, and the source of more.
//!
//! Holds little more than [`Outbound::fill`] is told to, however long the payload is.

use std::collections::VecDeque;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use futures_util::future::{AbortHandle, Abortable};

use crate::engine::{CallId, Ready};
use crate::error::PayloadError;
use crate::payload::{Payload, PayloadReader};

/// A read under way; resolves to nothing when its payload is dropped.
pub(super) type Reading = Abortable<Pin<Box<dyn Future<Output = Read> + Send>>>;

/// The result of a read.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) id: CallId,
    reader: PayloadReader,
    next: Result<Option<Bytes>, PayloadError>,
}

/// Changes of a payload since the last look.
#[derive(Debug)]
pub(super) enum Progress {
    /// So many bytes more, and whether they are the last.
    Ready(Ready),
    /// The payload cannot be had whole.
    Failed(String),
}

#[derive(Debug)]
enum Source {
    /// No more comes.
    End,
    /// The payload is not read while enough is at hand.
    Resting(PayloadReader),
    /// A read is under way.
    Reading(AbortHandle),
}

/// The payload of one call or reply that is being sent.
#[derive(Debug)]
pub(super) struct Outbound {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    source: Source,
}

impl Drop for Outbound {
    fn drop(&mut self) {
        if let Source::Reading(reading) = &self.source {
            reading.abort();
        }
    }
}

impl Outbound {
    pub(super) fn new(payload: Payload) -> Self {
        let (pieces, source) = match payload {
            Payload::None => (VecDeque::new(), Source::End),
            Payload::Bytes(bytes) => (VecDeque::from_iter([bytes]), Source::End),
            Payload::Stream(reader) => (VecDeque::new(), Source::Resting(reader)),
        };
        Self { bytes: pieces.iter().map(Bytes::len).sum(), pieces, source }
    }

    /// Bytes at hand.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether more may come.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.source, Source::End)
    }

    /// Whether nothing is at hand and no more comes.
    pub(super) fn is_over(&self) -> bool {
        self.bytes == 0 && !self.is_open()
    }

    /// Takes bytes that have come, until `limit` are at hand. `None`: nothing has changed. A read that has to be waited
    /// for is returned, to come back through [`Self::finish_read`].
    pub(super) fn fill(&mut self, id: CallId, limit: usize) -> (Option<Progress>, Option<Reading>) {
        let reader = match std::mem::replace(&mut self.source, Source::End) {
            Source::Resting(reader) => reader,
            other => {
                self.source = other;
                return (None, None);
            }
        };
        let before = self.bytes;
        while self.bytes < limit {
            match reader.try_read() {
                Some(Ok(Some(bytes))) => self.push(bytes),
                Some(Ok(None)) => return (Some(self.progress(before, true)), None),
                Some(Err(error)) => return (Some(Progress::Failed(error.to_string())), None),
                None => {
                    let reading = self.read(id, reader);
                    return ((self.bytes > before).then(|| self.progress(before, false)), Some(reading));
                }
            }
        }
        self.source = Source::Resting(reader);
        ((self.bytes > before).then(|| self.progress(before, false)), None)
    }

    /// Takes the result of a read.
    pub(super) fn finish_read(&mut self, read: Read) -> Progress {
        let before = self.bytes;
        self.source = Source::End;
        match read.next {
            Ok(Some(bytes)) => {
                self.push(bytes);
                self.source = Source::Resting(read.reader);
                self.progress(before, false)
            }
            Ok(None) => self.progress(before, true),
            Err(error) => Progress::Failed(error.to_string()),
        }
    }

    /// Takes the next `count` bytes, which must be at hand. Copies only where they span pieces.
    pub(super) fn take(&mut self, count: usize) -> Bytes {
        self.bytes = self.bytes.saturating_sub(count);
        if let Some(front) = self.pieces.front_mut().filter(|front| front.len() > count) {
            return front.split_to(count);
        }
        if self.pieces.front().is_some_and(|front| front.len() == count) {
            return self.pieces.pop_front().unwrap_or_default();
        }
        let mut joined = BytesMut::with_capacity(count);
        while joined.len() < count {
            let Some(mut piece) = self.pieces.pop_front() else { break };
            let part = piece.split_to(piece.len().min(count - joined.len()));
            joined.extend_from_slice(&part);
            if !piece.is_empty() {
                self.pieces.push_front(piece);
            }
        }
        joined.freeze()
    }

    fn push(&mut self, bytes: Bytes) {
        self.bytes += bytes.len();
        self.pieces.push_back(bytes);
    }

    fn progress(&self, before: usize, finished: bool) -> Progress {
        Progress::Ready(Ready { bytes: (self.bytes - before) as u64, finished })
    }

    fn read(&mut self, id: CallId, mut reader: PayloadReader) -> Reading {
        let (handle, registration) = AbortHandle::new_pair();
        self.source = Source::Reading(handle);
        let read = async move {
            let next = reader.read().await;
            Read { id, reader, next }
        };
        Abortable::new(Box::pin(read), registration)
    }
}
