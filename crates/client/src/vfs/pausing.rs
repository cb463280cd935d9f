//! Pausing: `queue pause`, `resume` and `first`.

use std::sync::{Mutex, PoisonError};

use mafs_proto::{Incarnation, StoreId};

use super::{Inner, Vfs};

impl Vfs {
    /// Holds back the contents that are sent in the background, or ends that. Contents that a caller waits for are
    /// sent.
    pub fn set_paused(&self, paused: bool) {
        self.inner.set_paused(paused);
    }

    /// Sends these records of the log before others, with all that they depend on. Returns the records that are not
    /// there.
    #[must_use]
    pub fn send_first(&self, records: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let client = self.inner.cache.client;
        let id =
            |(incarnation, seq): &(u64, u64)| StoreId { client, incarnation: Incarnation(*incarnation), seq: *seq };
        let ids: Vec<StoreId> = records.iter().map(id).collect();
        let missing = self.inner.replay.queue().ask(&ids).missing;
        self.inner.note_queue_changed();
        missing.into_iter().map(|id| (id.incarnation.0, id.seq)).collect()
    }
}

impl Inner {
    fn set_paused(&self, paused: bool) {
        // Programs wait for the server's answer to these.
        let awaited = self.replay.awaited();
        let mut queue = self.replay.queue();
        queue.set_paused(paused);
        if paused {
            queue.ask(&awaited);
        }
        drop(queue);
        tracing::info!("{}", if paused { "the queue is paused" } else { "the queue is not paused any more" });
        self.replay.note_progress();
        self.note_queue_changed();
        self.left_dirty.notify_one();
    }

    pub(super) fn is_paused(&self) -> bool {
        self.replay.queue().is_paused()
    }

    /// Waits until a record is to be held back.
    pub(super) async fn until_paused_for(&self, id: StoreId) {
        let mut progress = self.watch_progress();
        while !self.replay.queue().is_paused_for(id) {
            // The sender lives in `self`.
            let _ = progress.changed().await;
        }
    }
}

/// Records that a command waits for. If the queue is paused it has asked for them, until it ends.
pub(super) struct AskedFor<'a> {
    inner: &'a Inner,
    new: Mutex<Vec<StoreId>>,
}

impl<'a> AskedFor<'a> {
    pub(super) fn none(inner: &'a Inner) -> Self {
        Self { inner, new: Mutex::default() }
    }

    pub(super) fn ask(&self, ids: &[StoreId]) {
        let new = self.inner.replay.queue().ask(ids).new;
        self.new.lock().unwrap_or_else(PoisonError::into_inner).extend(new);
        self.inner.note_queue_changed();
    }
}

impl Drop for AskedFor<'_> {
    fn drop(&mut self) {
        let new = std::mem::take(self.new.get_mut().unwrap_or_else(PoisonError::into_inner));
        if !new.is_empty() {
            self.inner.replay.queue().unask(&new);
            self.inner.replay.note_progress();
        }
    }
}
