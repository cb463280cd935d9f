//! Storing: sends the content of changed files to the server, exactly once each.
//!
//! A store is logged before it is sent and leaves the log only when the server has it on stable storage. If its outcome
//! is unknown (the connection broke, the daemon died), it is resolved before anything else is sent of that file: the
//! same record is repeated with the same content, or, if the content has moved on, with none: the server then answers
//! with what it did if it had applied the record, and refuses the incomplete content if not.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::{Payload, PayloadWriter, blocking};
use mafs_proto::call::ApplyReply;
use mafs_proto::{Base, CmlOp, CmlRecord, FsError, StoreId};

use super::file::{File, FrozenContent, Unresolved};
use super::{Error, Inner};
use crate::cache::{seal, stamp};
use crate::core::log::LogEntry;
use crate::remote::{Link, RemoteError};

/// Content up to this size goes out in one piece.
const PIECE_BYTES: usize = 256 * 1024;
/// Pauses between attempts to send what could not be sent: the first and the longest.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// One content on its way.
struct Sending<'a> {
    file: &'a File,
    content: Arc<FrozenContent>,
    record: CmlRecord,
    edits: u64,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.file.state().sending = None;
        self.file.notify();
    }
}

impl Inner {
    /// Sends the content of a file until the server has what it is at some moment after the call.
    pub(super) async fn store(self: &Arc<Self>, file: &Arc<File>) -> Result<(), Error> {
        let wanted = file.state().edits;
        loop {
            let idle = |state: &mut super::file::FileState| state.sending.is_none().then(|| state.is_dirty());
            let dirty = file.wait(idle).await;
            if !dirty || file.state().stored_edits >= wanted {
                return Ok(());
            }
            self.resolve(file).await?;
            let Some(sending) = self.begin_store(file)? else { continue };
            match self.finish_store(sending).await {
                // Its last name went meanwhile: there is nothing to store any more.
                Err(Error::Refused(FsError::Stale)) if file.state().unlinked.is_some() => return Ok(()),
                other => other?,
            }
        }
    }

    /// Freezes the content and logs the store. `None` if there is nothing to send, or somebody else sends.
    fn begin_store<'a>(&self, file: &'a Arc<File>) -> Result<Option<Sending<'a>>, Error> {
        let _edit = file.edit();
        let (size, mtime, edits, base, writer, again) = {
            let state = file.state();
            if state.sending.is_some() || !state.is_dirty() {
                return Ok(None);
            }
            (state.size, state.mtime, state.edits, state.base, state.writer, state.unresolved.clone())
        };
        let record = match again {
            Some(unresolved) if unresolved.edits == edits => unresolved.record,
            Some(_) => return Ok(None),
            None => {
                let op = CmlOp::Store { fid: file.fid, base: Base::Version(base), size, mtime };
                let record = self.remote.record(op, writer.uid, writer.gid, self.clock.wall());
                let stamp = stamp(file.container.as_ref())?;
                if let Err(error) = self.cache.cml.append(LogEntry::Logged { record: record.clone(), stamp }) {
                    self.remote.end(record.id);
                    return Err(error.into());
                }
                record
            }
        };
        let content = FrozenContent::new(Arc::clone(&file.container), size);
        let mut state = file.state();
        state.sending = Some(Arc::clone(&content));
        state.unresolved = Some(Unresolved { record: record.clone(), edits });
        drop(state);
        self.log_changed.notify_one();
        Ok(Some(Sending { file, content, record, edits }))
    }

    async fn finish_store(self: &Arc<Self>, sending: Sending<'_>) -> Result<(), Error> {
        let content = Arc::clone(&sending.content);
        let begun = self.clock.now();
        let sent = self.remote.store(&sending.record, &|| payload(&content)).await;
        match sent {
            Ok(reply) => {
                self.upload_rate().observe(content.size, self.clock.now().since(begun));
                blocking(|| self.stored(sending.file, &sending.record, &reply, Some(sending.edits)))
            }
            Err(error) => Err(self.not_stored(sending.file, sending.record.id, error)),
        }
    }

    /// Finds out what became of a store whose content is not there any more.
    async fn resolve(self: &Arc<Self>, file: &Arc<File>) -> Result<(), Error> {
        let unresolved = {
            let state = file.state();
            state.unresolved.clone().filter(|unresolved| unresolved.edits != state.edits && state.sending.is_none())
        };
        let Some(Unresolved { record, .. }) = unresolved else { return Ok(()) };
        match self.remote.store(&record, &|| Payload::None).await {
            Ok(reply) => blocking(|| self.stored(file, &record, &reply, None)),
            Err(RemoteError::Refused { error: FsError::Malformed, .. }) => {
                self.abandon(file, record.id);
                Ok(())
            }
            Err(error) => Err(self.not_stored(file, record.id, error)),
        }
    }

    /// The server has the content of edit `edits`; `None`: of an edit before all that are known.
    fn stored(&self, file: &File, record: &CmlRecord, reply: &ApplyReply, edits: Option<u64>) -> Result<(), Error> {
        let Some(object) = reply.objects.iter().find(|object| object.fid == file.fid) else {
            return Err(Error::Refused(FsError::Malformed));
        };
        let version = object.status.data_version;
        self.cache.index.applied(reply, &[])?;
        let _edit = file.edit();
        let (base, clean, size) = {
            let mut state = file.state();
            let clean = edits == Some(state.edits);
            if let Some(edits) = edits {
                state.stored_edits = edits;
            }
            let base = std::mem::replace(&mut state.base, version);
            state.writing_logged = !clean;
            state.unresolved = None;
            state.refused = None;
            (base, clean, state.size)
        };
        if clean {
            seal(file.container.as_ref(), version)?;
            self.set_content(file, version)?;
            self.replacement().touch(file.fid.vnode, size);
        }
        self.cache.cml.append(LogEntry::Done { id: record.id, fid: file.fid, version, clean })?;
        self.remote.end(record.id);
        self.kernel.stored(file.fid.vnode, base, version);
        self.log_changed.notify_one();
        Ok(())
    }

    /// Decides what a failed store means: a refusal ends its record, anything else leaves it to be resolved.
    fn not_stored(&self, file: &File, id: StoreId, error: RemoteError) -> Error {
        if let RemoteError::Refused { error: reason, .. } = &error {
            tracing::warn!(fid = %file.fid, %error, "the server refused a file's content; it stays in the cache");
            file.state().refused = Some(*reason);
            self.abandon(file, id);
        }
        error.into()
    }

    /// The server does not have the record and will not get it again.
    fn abandon(&self, file: &File, id: StoreId) {
        file.state().unresolved = None;
        self.remote.end(id);
        if let Err(error) = self.cache.cml.append(LogEntry::Abandoned { id }) {
            tracing::error!(%error, "the modify log cannot be written");
        }
    }

    /// Sends what is dirty and no longer open, in the background, for ever: after every connect, and now and then.
    pub(super) async fn keep_storing(self: Arc<Self>) {
        let mut link = self.remote.watch_link();
        let mut pause = RETRY_PAUSES[0];
        loop {
            match link.wait_for(|link| !matches!(link, Link::Down(_))).await.map(|link| matches!(*link, Link::Up(..))) {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
            let failed = self.store_abandoned().await;
            pause = if failed { (pause * 2).min(RETRY_PAUSES[1]) } else { RETRY_PAUSES[0] };
            let work = self.left_dirty.notified();
            if failed {
                let _ = tokio::time::timeout(pause, link.changed()).await;
            } else {
                tokio::select! {
                    () = work => {}
                    changed = link.changed() => if changed.is_err() { return },
                }
            }
        }
    }

    /// Tries each dirty file that nobody has open once. Returns whether some failed in a way that may pass.
    async fn store_abandoned(self: &Arc<Self>) -> bool {
        let mut failed = false;
        let dirty = self.files().dirty();
        for file in dirty {
            let left = {
                let state = file.state();
                state.handles == 0 && state.refused.is_none_or(may_pass)
            };
            if left {
                match self.store(&file).await {
                    Ok(()) => self.drop_if_unused(&file),
                    Err(error) => failed |= error.may_pass(),
                }
            }
        }
        failed
    }
}

/// Whether trying again may help although nobody does anything about it.
pub(super) fn may_pass(error: FsError) -> bool {
    matches!(
        error,
        FsError::NoSpace
            | FsError::Quota
            | FsError::Io
            | FsError::Busy
            | FsError::ReadOnly
            | FsError::ShuttingDown
            | FsError::NotAttached
    )
}

/// The content as payload: in one piece if it is small, else read while it is sent.
fn payload(content: &Arc<FrozenContent>) -> Payload {
    match usize::try_from(content.size) {
        Ok(0) => Payload::None,
        Ok(size) if size <= PIECE_BYTES => match read_piece(content, 0, size) {
            Ok(bytes) => Payload::Bytes(bytes),
            Err(error) => {
                let (writer, payload) = Payload::stream();
                writer.abort(error.to_string());
                payload
            }
        },
        _ => {
            let (writer, payload) = Payload::stream();
            tokio::spawn(pump(Arc::clone(content), writer));
            payload
        }
    }
}

async fn pump(content: Arc<FrozenContent>, mut writer: PayloadWriter) {
    let mut offset = 0;
    while offset < content.size {
        let wanted = usize::try_from(content.size - offset).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let bytes = match blocking(|| read_piece(&content, offset, wanted)) {
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

fn read_piece(content: &FrozenContent, offset: u64, wanted: usize) -> std::io::Result<Bytes> {
    let mut buffer = vec![0; wanted];
    match content.read_at(&mut buffer, offset)? {
        read if read == wanted => Ok(buffer.into()),
        _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}
