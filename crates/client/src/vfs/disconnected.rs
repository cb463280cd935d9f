//! Disconnected: while the server is known to be out of reach, what is cached is used without it, and what is not fails
//! at once (consistency.md, "What a user may rely on").
//!
//! No operation has a mode for it: the index says that all it knows is valid then, changes are logged as ever, and a
//! name that is free as far as is known counts as free.

use std::time::Duration;

use super::{Error, Inner, Vfs};

impl Vfs {
    /// Ends the connection, and makes none until [`Self::reconnect`]: from now on the server is out of reach, and what
    /// waits for it is not sent. Returns when the server has been told, or does not answer.
    pub async fn disconnect(&self) {
        self.inner.remote.disconnect().await;
    }

    /// Ends [`Self::disconnect`], and returns when there is a connection.
    ///
    /// # Errors
    /// If that takes more than 10 s; it is tried again for ever.
    pub async fn reconnect(&self) -> Result<(), Error> {
        Ok(self.inner.remote.reconnect().await?)
    }

    /// Takes the server for out of reach no sooner than after `time`: the network is about to change.
    pub fn hand_off(&self, time: Duration) {
        self.inner.remote.hand_off(time);
    }
}

impl Inner {
    /// Runs what may have to ask the server; once more if the server turns out to be out of reach meanwhile, for from
    /// then on what is known counts.
    pub(super) async fn with_or_without_server<T, F>(&self, act: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        match act().await {
            Err(error) if error.is_unanswered() && self.cache.index.is_apart() => act().await,
            other => other,
        }
    }
}
