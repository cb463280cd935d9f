//! A pipe: pieces of a payload between the task that makes them and the one that takes them.
//!
//! Bounded by the end that pushes: a [`crate::PayloadWriter`] waits before it pushes, the driver is bounded by credit.
//! Knows nothing of calls.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::engine::Charge;
use crate::error::PayloadError;

/// Bytes of a payload, and the credit they hold until they are taken.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) bytes: Bytes,
    pub(crate) charge: Option<Charge>,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Piece>,
    end: Option<Result<(), PayloadError>>,
    unwanted: bool,
}

/// A pipe of one writer and one reader. The lock is held for a few instructions only.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    state: Mutex<State>,
    readable: Notify,
    writable: Notify,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a piece. Gives it back if nobody will take it.
    pub(crate) fn push(&self, piece: Piece) -> Result<(), Piece> {
        let mut state = self.lock();
        if state.unwanted || state.end.is_some() {
            return Err(piece);
        }
        state.pieces.push_back(piece);
        drop(state);
        self.readable.notify_one();
        Ok(())
    }

    /// Says that nothing follows, or why the rest is missing. The first end counts.
    pub(crate) fn end(&self, end: Result<(), PayloadError>) {
        self.lock().end.get_or_insert(end);
        self.readable.notify_one();
    }

    /// Takes the next piece, `None` behind the last; `None` outside: nothing yet.
    pub(crate) fn try_take(&self) -> Option<Result<Option<Piece>, PayloadError>> {
        let mut state = self.lock();
        if let Some(piece) = state.pieces.pop_front() {
            drop(state);
            self.writable.notify_one();
            return Some(Ok(Some(piece)));
        }
        state.end.clone().map(|end| end.map(|()| None))
    }

    /// Waits until [`Self::try_take`] has something.
    pub(crate) async fn wait_readable(&self) {
        self.readable.notified().await;
    }

    /// Waits until fewer than `count` pieces wait; false if nobody will take them.
    pub(crate) async fn wait_below(&self, count: usize) -> bool {
        loop {
            {
                let state = self.lock();
                if state.unwanted || state.pieces.len() < count {
                    return !state.unwanted;
                }
            }
            self.writable.notified().await;
        }
    }

    /// Says that nobody will take the rest, and returns it; true if the end had not come.
    pub(crate) fn abandon(&self) -> (VecDeque<Piece>, bool) {
        let mut state = self.lock();
        state.unwanted = true;
        let rest = std::mem::take(&mut state.pieces);
        let open = state.end.is_none();
        drop(state);
        self.writable.notify_one();
        (rest, open)
    }
}
