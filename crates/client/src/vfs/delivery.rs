//! Delivery: waits for what another client has announced and not sent yet.
//!
//! The server asks that client for it and lets the question wait. If that takes long, the server says so, and how far
//! the delivery is; then it is asked again, as long as there is progress.

use mafs_proto::{Call, Purpose};
use tokio::time::{Duration, Instant, sleep};

use super::{Error, Inner};
use crate::remote::{Answer, RemoteError};

/// Result of an open when the newest version that was announced does not come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stale {
    /// An error: `ETIMEDOUT`.
    #[default]
    Error,
    /// The version before, which is counted.
    Serve,
}

/// The pause before the same question. The server has waited for some 10 s; this is for one that has not.
const PAUSE: Duration = Duration::from_millis(50);

impl Inner {
    /// Asks the server for what others may have to deliver first. `None`: there was no progress for too long.
    pub(super) async fn ask_delivered<C: Call>(
        &self,
        request: &C,
        purpose: Purpose,
    ) -> Result<Option<Answer<C::Reply>>, Error> {
        let _waiting = self.remote.waiting();
        let mut progress_at = Instant::now();
        let mut reached = None;
        loop {
            match self.remote.call_patiently(request, purpose).await {
                Ok(answer) => return Ok(Some(answer)),
                Err(RemoteError::Pulling { progress }) => {
                    let now = Instant::now();
                    if reached.is_some_and(|before| progress != before) {
                        progress_at = now;
                    } else if now - progress_at >= self.settings.pull_timeout {
                        return Ok(None);
                    }
                    reached = Some(progress);
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks as [`Self::ask_delivered`] does, where there is nothing else to be shown.
    pub(super) async fn delivered<C: Call>(&self, request: &C, purpose: Purpose) -> Result<Answer<C::Reply>, Error> {
        self.ask_delivered(request, purpose).await?.ok_or_else(not_delivered)
    }
}

/// Returns the error for an announced version that does not come.
pub(super) fn not_delivered() -> Error {
    Error::TimedOut("another client does not send what it has announced".to_owned())
}
