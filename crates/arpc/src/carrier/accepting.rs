//! The task behind a listener, which makes carriers, and the carriers that nobody has taken yet.

use std::task::{Context, Poll};

use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::Carrier;

/// How many carriers may wait to be taken.
const BACKLOG: usize = 16;

/// Connections as they come. Dropping it ends the task, and with that all connections.
#[derive(Debug)]
pub(super) struct Accepting {
    carriers: mpsc::Receiver<Carrier>,
    acceptor: AbortHandle,
}

impl Accepting {
    /// Starts the task, which gives its carriers to the sender. Must be called in a tokio runtime.
    pub(super) fn start<F>(accept_all: impl FnOnce(mpsc::Sender<Carrier>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (accepted, carriers) = mpsc::channel(BACKLOG);
        let acceptor = tokio::spawn(accept_all(accepted)).abort_handle();
        Self { carriers, acceptor }
    }

    /// Returns the next connection; `None` once the task has ended.
    pub(super) async fn next(&mut self) -> Option<Carrier> {
        self.carriers.recv().await
    }

    /// Polls for the next connection, as [`Self::next`].
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Carrier>> {
        self.carriers.poll_recv(cx)
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}
