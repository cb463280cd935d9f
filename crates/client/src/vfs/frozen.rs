//! The content of one version while it is being sent.
//!
//! It is read from the container until somebody is about to change that; then it moves to a copy first, so that what is
//! sent is one version and never a mixture (invariant 4).

use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use mafs_arpc::{Payload, PayloadWriter, blocking};
use mafs_durable::DiskFile;

use crate::cache::{ContainerCopy, Containers};

/// Content up to this size goes out in one piece.
const PIECE_BYTES: usize = 256 * 1024;

/// A content that is being sent.
pub(super) struct FrozenContent {
    pub(super) size: u64,
    source: RwLock<Source>,
}

enum Source {
    Container(Arc<dyn DiskFile>),
    Copy(ContainerCopy),
}

impl FrozenContent {
    pub(super) fn new(container: Arc<dyn DiskFile>, size: u64) -> Arc<Self> {
        Arc::new(Self { size, source: RwLock::new(Source::Container(container)) })
    }

    /// Moves the version out of the container, whose bytes are about to change. The caller holds the file's `edit`
    /// lock.
    pub(super) fn preserve(&self, containers: &Containers) -> io::Result<()> {
        let mut source = self.source.write().unwrap_or_else(PoisonError::into_inner);
        if let Source::Container(container) = &*source {
            *source = Source::Copy(containers.copy(container.as_ref(), self.size)?);
        }
        Ok(())
    }

    /// The content as payload: in one piece if it is small, else read while it is sent.
    pub(super) fn payload(self: &Arc<Self>) -> Payload {
        match usize::try_from(self.size) {
            Ok(0) => Payload::None,
            Ok(size) if size <= PIECE_BYTES => match self.read_piece(0, size) {
                Ok(bytes) => Payload::Bytes(bytes),
                Err(error) => {
                    let (writer, payload) = Payload::stream();
                    writer.abort(error.to_string());
                    payload
                }
            },
            _ => {
                let (writer, payload) = Payload::stream();
                tokio::spawn(Arc::clone(self).pump(writer));
                payload
            }
        }
    }

    async fn pump(self: Arc<Self>, mut writer: PayloadWriter) {
        let mut offset = 0;
        while offset < self.size {
            let wanted = usize::try_from(self.size - offset).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let bytes = match blocking(|| self.read_piece(offset, wanted)) {
                Ok(bytes) => bytes,
                Err(error) => return writer.abort(error.to_string()),
            };
            offset += bytes.len() as u64;
            if writer.write(bytes).await.is_err() {
                return;
            }
        }
        writer.finish();
    }

    fn read_piece(&self, offset: u64, wanted: usize) -> io::Result<Bytes> {
        let mut buffer = vec![0; wanted];
        let read = match &*self.source.read().unwrap_or_else(PoisonError::into_inner) {
            Source::Container(file) => file.read_at(&mut buffer, offset)?,
            Source::Copy(copy) => copy.file.read_at(&mut buffer, offset)?,
        };
        if read == wanted { Ok(buffer.into()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}
