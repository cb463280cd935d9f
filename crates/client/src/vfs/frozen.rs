//! The content of one version while it is being sent.
//!
//! The content is read from the container until somebody is about to change that; then it moves to a container of its
//! own first, so that what is sent is one version and never a mixture (invariant 4). Writes of the kernel announce
//! themselves to nobody, so where the kernel may write a version is moved before it is sent.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use bytes::{Bytes, BytesMut};
use mafs_arpc::{CallProgress, Payload, PayloadWriter, blocking};
use mafs_durable::{DiskFile, FileSegments, begin_hash};
use mafs_proto::{ContentHash, ContentHasher, Purpose, SegmentHasher};

use crate::cache::{Container, Hold};
use crate::core::content::versions::Frozen;
use crate::remote::{StoreContent, Urgency};

/// Content up to this size goes out in one piece.
const PIECE_BYTES: usize = 256 * 1024;

/// A content that is being sent.
pub(super) struct FrozenContent {
    pub(super) size: u64,
    /// Whether all of it has been sent, so that the server may have it.
    sent: AtomicBool,
    /// Its hash, from when all of it has been read.
    hash: Mutex<Option<ContentHash>>,
    source: RwLock<Arc<Container>>,
    travel: Mutex<Travel>,
}

/// One sending of a content: the segments to be read, and the hash of those that were, until the hash has gone too.
struct Upload {
    segments: FileSegments,
    hasher: Option<SegmentHasher>,
}

impl Upload {
    fn new(range: Range<u64>, begun: ContentHasher) -> Self {
        let hasher = SegmentHasher::new(begun, range.end.saturating_sub(range.start));
        Self { segments: FileSegments::new(range), hasher: Some(hasher) }
    }
}

/// Way in which a content travels.
struct Travel {
    /// Purpose of the sending, unless somebody elsewhere waits for the content.
    purpose: Purpose,
    /// Whether somebody elsewhere waits for it.
    pulled: bool,
    /// Offset from which on it is being sent, how far that has come, and how urgent it is.
    sending: Option<(u64, CallProgress, Urgency)>,
}

impl Travel {
    fn purpose(&self) -> Purpose {
        if self.pulled { Purpose::ForcedStore } else { self.purpose }
    }

    /// Makes what is on its way as urgent as it is.
    fn set_urgency(&mut self) {
        let purpose = self.purpose();
        if let Some((_, _, urgency)) = &mut self.sending {
            urgency.set(purpose);
        }
    }
}

impl FrozenContent {
    pub(super) fn new(container: Arc<Container>, size: u64) -> Arc<Self> {
        let source = RwLock::new(container);
        let travel = Mutex::new(Travel { purpose: Purpose::Store, pulled: false, sending: None });
        Arc::new(Self { size, sent: AtomicBool::new(false), hash: Mutex::default(), source, travel })
    }

    /// Sets the purpose of the sending from now on, also of what is on its way.
    pub(super) fn set_purpose(&self, purpose: Purpose) {
        let mut travel = self.travel();
        travel.purpose = purpose;
        travel.set_urgency();
    }

    /// Notes that somebody elsewhere waits for the content: from now on it is sent as what is fetched, also what is
    /// on its way.
    pub(super) fn pull(&self) {
        let mut travel = self.travel();
        travel.pulled = true;
        travel.set_urgency();
    }

    fn travel(&self) -> MutexGuard<'_, Travel> {
        self.travel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the content to a copy, which is in a container of its own. The caller holds the file's `edit` lock.
    pub(super) fn move_to(&self, copy: Arc<Container>) {
        *self.source.write().unwrap_or_else(PoisonError::into_inner) = copy;
    }

    /// Keeps the content open where it is, until the returned hold is dropped: the sender needs it even if its name
    /// goes.
    pub(super) fn hold(&self) -> io::Result<Hold> {
        Hold::on(&self.source())
    }

    /// Makes the bytes durable, wherever they are.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    /// Returns how many of the bytes are not holes.
    pub(super) fn allocated(&self) -> io::Result<u64> {
        self.file()?.allocated()
    }

    fn file(&self) -> io::Result<Arc<dyn DiskFile>> {
        self.source().file()
    }

    fn source(&self) -> RwLockReadGuard<'_, Arc<Container>> {
        self.source.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that all of the content may have been sent.
    pub(super) fn note_sent(&self) {
        self.sent.store(true, Ordering::Release);
    }

    /// Returns how much of it has arrived at the server, at least: holes do not count before their turn.
    pub(super) fn arrived_bytes(&self) -> u64 {
        let travel = self.travel();
        let arrived = travel.sending.as_ref().map_or(0, |(offset, progress, _)| offset + progress.acknowledged_bytes());
        arrived.min(self.size)
    }

    fn read_whole(&self, mut upload: Upload) -> io::Result<Bytes> {
        let mut whole = BytesMut::new();
        while let Some(piece) = self.next_piece(&mut upload, usize::MAX)? {
            if whole.is_empty() { whole = piece.into() } else { whole.extend_from_slice(&piece) }
        }
        Ok(whole.freeze())
    }

    async fn pump(self: Arc<Self>, mut upload: Upload, mut writer: PayloadWriter) {
        loop {
            match blocking(|| self.next_piece(&mut upload, PIECE_BYTES)) {
                Ok(Some(piece)) => {
                    if writer.write(piece).await.is_err() {
                        return;
                    }
                }
                Ok(None) => {
                    self.note_sent();
                    return writer.finish();
                }
                Err(error) => return writer.abort(error.to_string()),
            }
        }
    }

    /// Returns the next of the version's segments, and its hash behind the last.
    fn next_piece(&self, upload: &mut Upload, bytes_max: usize) -> io::Result<Option<Bytes>> {
        let Upload { segments, hasher } = upload;
        let source = self.source();
        if let Some(piece) = segments.next_piece(source.file()?.as_ref(), bytes_max)? {
            let piece = Bytes::from(piece);
            if let Some(hasher) = hasher {
                hasher.take(piece.clone()).map_err(io::Error::other)?;
            }
            return Ok(Some(piece));
        }
        let hash = hasher.take().and_then(|hasher| hasher.hash());
        if hash.is_some() {
            *self.hash.lock().unwrap_or_else(PoisonError::into_inner) = hash;
        }
        Ok(hash.map(|hash| Bytes::copy_from_slice(&hash.0)))
    }
}

impl Frozen for Arc<FrozenContent> {
    fn may_have_arrived(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }
}

impl StoreContent for Arc<FrozenContent> {
    fn bytes(&self) -> u64 {
        self.size
    }

    /// Gives the content in one piece if it is small, else reads it while it is sent.
    fn payload(&self, offset: u64, begun: ContentHasher) -> Payload {
        let upload = Upload::new(offset..self.size, begun);
        if self.size - offset > PIECE_BYTES as u64 {
            let (writer, payload) = Payload::stream();
            tokio::spawn(Self::clone(self).pump(upload, writer));
            return payload;
        }
        match self.read_whole(upload).inspect(|_| self.note_sent()) {
            Ok(whole) => Payload::Bytes(whole),
            Err(error) => {
                let (writer, payload) = Payload::stream();
                writer.abort(error.to_string());
                payload
            }
        }
    }

    fn begin_hash(&self, bytes: u64) -> io::Result<ContentHasher> {
        // Not under the lock: a change of the container meanwhile must not wait, and makes this another hash.
        let file = self.file()?;
        blocking(|| begin_hash(file.as_ref(), bytes))
    }

    fn hash(&self) -> Option<ContentHash> {
        *self.hash.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn purpose(&self) -> Purpose {
        self.travel().purpose()
    }

    fn sending(&self, offset: u64, progress: CallProgress, urgency: Urgency) {
        let mut travel = self.travel();
        travel.sending = Some((offset, progress, urgency));
        travel.set_urgency();
    }
}
