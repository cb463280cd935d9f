//! Session: one connection of a client, and the volume it is attached to.
//!
//! Lock order: a session's state, then its volume's holder; never the other way round.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mafs_proto::FsError;
use tokio::sync::Semaphore;

use crate::core::Refusal;
use crate::volume::{Ticket, Volume};

/// Contents that one session may read at a time: each holds a few pieces of [`crate::service`]'s size in memory.
const READERS_MAX: usize = 16;

/// One connection.
pub(crate) struct Session {
    state: Mutex<State>,
    /// Contents being read.
    readers: Arc<Semaphore>,
}

/// The volume a session is attached to, and as which attach.
#[derive(Clone)]
pub(crate) struct Attachment {
    pub(crate) volume: Arc<Volume>,
    pub(crate) ticket: Ticket,
}

enum State {
    /// Connected, no volume yet.
    Detached,
    Attached(Attachment),
    /// The connection has ended: an attach that is still under way must not hold the volume.
    Ended,
}

impl Session {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State::Detached), readers: Arc::new(Semaphore::new(READERS_MAX)) }
    }

    /// What the session is attached to.
    ///
    /// # Errors
    /// `NotAttached` if to nothing, or if a later attach has replaced this one.
    pub(crate) fn attachment(&self) -> Result<Attachment, Refusal> {
        let State::Attached(attachment) = &*self.state() else { return Err(FsError::NotAttached.into()) };
        attachment.volume.check(attachment.ticket)?;
        Ok(attachment.clone())
    }

    /// Attaches; what the session was attached to before is released.
    ///
    /// # Errors
    /// `NotAttached` if the connection has ended meanwhile.
    pub(crate) fn attach(&self, attachment: Attachment) -> Result<(), Refusal> {
        let mut state = self.state();
        if matches!(*state, State::Ended) {
            attachment.release();
            return Err(FsError::NotAttached.into());
        }
        std::mem::replace(&mut *state, State::Attached(attachment)).release();
        Ok(())
    }

    /// Gives the volume back.
    pub(crate) fn detach(&self) {
        std::mem::replace(&mut *self.state(), State::Detached).release();
    }

    /// The connection has ended.
    pub(crate) fn end(&self) {
        std::mem::replace(&mut *self.state(), State::Ended).release();
    }

    /// Who may read contents.
    pub(crate) fn readers(&self) -> &Arc<Semaphore> {
        &self.readers
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attachment {
    fn release(&self) {
        self.volume.release(self.ticket);
    }
}

impl State {
    fn release(self) {
        match self {
            Self::Attached(attachment) => attachment.release(),
            Self::Detached | Self::Ended => {}
        }
    }
}
