//! Connection of a client, and the volume it is attached to.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mafs_arpc::Peer;
use mafs_proto::FsError;
use tokio::sync::Semaphore;

use crate::core::Refusal;
use crate::volume::{Ticket, Volume};

/// Contents that one session may read at a time: each holds a few pieces of [`crate::service`]'s size in memory.
const READERS_MAX: usize = 16;

/// One connection.
pub(crate) struct Session {
    peer: Peer,
    state: Mutex<Option<Attachment>>,
    /// Permits for contents being read.
    readers: Arc<Semaphore>,
}

/// The volume a session is attached to, and the attach.
#[derive(Clone)]
pub(crate) struct Attachment {
    pub(crate) volume: Arc<Volume>,
    pub(crate) ticket: Ticket,
}

impl Session {
    pub(crate) fn new(peer: Peer) -> Self {
        Self { peer, state: Mutex::new(None), readers: Arc::new(Semaphore::new(READERS_MAX)) }
    }

    /// Returns the attachment of the session.
    ///
    /// # Errors
    /// `NotAttached` if there is none, or if a later attach has replaced this one.
    pub(crate) fn attachment(&self) -> Result<Attachment, Refusal> {
        let attachment = self.state().clone().ok_or_else(|| Refusal::from(FsError::NotAttached))?;
        attachment.volume.check(attachment.ticket)?;
        Ok(attachment)
    }

    /// Returns why the disk of the attached volume has failed, if it has.
    pub(crate) fn failure(&self) -> Option<String> {
        let volume = Arc::clone(&self.state().as_ref()?.volume);
        volume.failure().get().map(|why| volume.why_ended(&why))
    }

    /// Attaches. Returns the attachment that the connection had before.
    pub(crate) fn attach(&self, attachment: Attachment) -> Option<Attachment> {
        self.state().replace(attachment)
    }

    /// Ends the attachment, if there is one.
    pub(crate) fn detach(&self) -> Option<Attachment> {
        self.state().take()
    }

    /// Returns the peer, to which breaks go.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns the permits for readers of contents.
    pub(crate) fn readers(&self) -> &Arc<Semaphore> {
        &self.readers
    }

    fn state(&self) -> MutexGuard<'_, Option<Attachment>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
