//! Disconnected: while the server is known to be out of reach, what is cached is used without it, and what is not fails
//! at once (consistency.md, "What a user may rely on").
//!
//! No operation has a mode for it: the index says that all it knows is valid then, changes are logged as ever, and a
//! name that is free as far as is known counts as free.

use super::{Error, Inner};

impl Inner {
    /// Does what may have to ask the server; once more if that turns out to be out of reach meanwhile, for from then on
    /// what is known counts.
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
