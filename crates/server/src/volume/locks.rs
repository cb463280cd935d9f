//! Locks: waits until a lock is granted, and gives locks up.

use std::time::Duration;

use mafs_proto::call::{ApplyRequest, LockConflict, UnlockRequest};
use mafs_proto::{ClientId, Fid, FsError, Lock, StoreId};

use super::sessions::{SLEEP_MAX, Sessions, Tables};
use super::{Ticket, Volume};
use crate::core::Refusal;
use crate::core::locks::{Asked, Present, Wanted};

/// Time for which one call waits; then the client asks again. As for announced records.
const WAIT_MAX: Duration = Duration::from_secs(10);

impl Sessions {
    /// Returns how many locks have been granted.
    pub(super) fn lock_grants(&self) -> u64 {
        self.tables().locks.grants()
    }

    /// Asks for a lock.
    ///
    /// # Errors
    /// `Pulling` also as long as it is not known what was locked before the server's start, `NotAttached`, or as
    /// [`Locks::ask`](crate::core::locks::Locks::ask).
    fn ask_for_lock(&self, ticket: Ticket, wanted: &Wanted) -> Result<Asked, FsError> {
        let now = self.clock.now();
        let mut tables = self.tables();
        let Tables { promises, locks, .. } = &mut *tables;
        // The check is under the same lock: a call of an earlier attach changes nothing any more.
        if !promises.is_current(ticket.client, ticket.generation, now) {
            return Err(FsError::NotAttached);
        }
        if promises.is_anything_held(ticket.client, now) && !locks.holds(ticket.client, &wanted.lock) {
            return Err(FsError::Pulling);
        }
        let is_live = |client| promises.is_live(client, now);
        let asked = locks.ask(ticket.client, wanted, Present { now, is_live: &is_live });
        self.recall_locks(&mut tables);
        asked
    }

    /// Has clients told of others that want what they have locked.
    fn recall_locks(&self, tables: &mut Tables) {
        let recalls = tables.locks.take_recalls();
        for (client, fid) in &recalls {
            tracing::debug!(%client, %fid, "others want a lock");
            tables.promises.want_locks(*client, *fid);
        }
        if !recalls.is_empty() {
            self.owed.send_replace(());
        }
    }

    /// Tells whether a record stores a content that may have been written under a lock that others have had since.
    pub(super) fn is_fenced(&self, request: &ApplyRequest) -> bool {
        self.tables().locks.is_fenced(&request.record, request.lock_lost)
    }

    /// Notes that a client has stored a content.
    pub(super) fn note_stored(&self, client: ClientId, fid: Fid) {
        self.tables().locks.stored(client, fid);
    }

    /// Returns the contents that a client has announced and is fenced from.
    pub(super) fn fenced(&self, client: ClientId) -> Vec<StoreId> {
        let tables = self.tables();
        let announced = tables.pending.of_client(client).map(|announced| &announced.record);
        announced.filter(|record| tables.locks.is_fenced(record, false)).map(|record| record.id).collect()
    }

    /// Notes that a client has said of which files its programs hold locks that others want.
    pub(super) fn note_held(&self, ticket: Ticket, fids: &[Fid]) {
        if !fids.is_empty() && self.check(ticket).is_ok() {
            self.tables().locks.note_held(ticket.client, fids);
            self.unlocked.send_replace(());
        }
    }
}

impl Volume {
    /// Returns how many locks have been granted in this life of the server.
    pub(crate) fn lock_grants(&self) -> u64 {
        self.shared.sessions.lock_grants()
    }

    /// Waits for a lock, if it is to be waited for.
    ///
    /// # Errors
    /// `Locked` if others have it, or have had it for as long as a call waits; then the place in the queue is kept for
    /// a while. `Pulling` as long as it is not known what was locked before the server's start, or whether others only
    /// keep it. `Deadlock`, `TooManyLocks`, `NotAttached`.
    pub(crate) async fn lock(&self, ticket: Ticket, wanted: &Wanted) -> Result<(), Refusal> {
        let sessions = &self.shared.sessions;
        let mut changed = sessions.unlocked.subscribe();
        let until = sessions.clock.now() + WAIT_MAX;
        loop {
            changed.mark_unchanged();
            let error = match sessions.ask_for_lock(ticket, wanted) {
                Ok(Asked::Granted) => {
                    tracing::debug!(client = %ticket.client, lock = ?wanted.lock, "locked");
                    // A request that waits in another range behind this one may have to wait no longer.
                    sessions.unlocked.send_replace(());
                    return Ok(());
                }
                Ok(Asked::Waits) => FsError::Locked,
                Err(FsError::Pulling) => FsError::Pulling,
                Err(error) => return Err(error.into()),
            };
            let left = until.since(sessions.clock.now());
            if left.is_zero() {
                return Err(error.into());
            }
            // The sender lives as long as this does.
            let _ = tokio::time::timeout(left.min(SLEEP_MAX), changed.changed()).await;
        }
    }

    /// Gives a range up.
    ///
    /// # Errors
    /// `NotAttached`.
    pub(crate) fn unlock(&self, ticket: Ticket, request: &UnlockRequest) -> Result<(), Refusal> {
        self.with_locks(ticket, |tables, _| {
            tables.locks.unlock(ticket.client, request);
        })?;
        self.shared.sessions.unlocked.send_replace(());
        Ok(())
    }

    /// Returns the lock that keeps a client from another.
    ///
    /// # Errors
    /// `NotAttached`; `Pulling` as long as it is not known what was locked before the server's start, or whether others
    /// only keep it.
    pub(crate) fn lock_conflict(&self, ticket: Ticket, lock: &Lock) -> Result<Option<LockConflict>, Refusal> {
        self.with_locks(ticket, |tables, now| {
            let Tables { promises, locks, .. } = &mut *tables;
            if promises.is_anything_held(ticket.client, now) {
                return Err(FsError::Pulling.into());
            }
            let is_live = |client| promises.is_live(client, now);
            let tested = locks.test(ticket.client, lock, Present { now, is_live: &is_live });
            self.shared.sessions.recall_locks(tables);
            Ok(tested?)
        })?
    }

    /// Takes a request out of the queue.
    ///
    /// # Errors
    /// `NotAttached`.
    pub(crate) fn cancel_lock(&self, ticket: Ticket, number: u64) -> Result<(), Refusal> {
        self.with_locks(ticket, |tables, _| tables.locks.cancel(ticket.client, number))?;
        self.shared.sessions.unlocked.send_replace(());
        Ok(())
    }

    fn with_locks<T>(
        &self,
        ticket: Ticket,
        act: impl FnOnce(&mut Tables, mafs_proto::Instant) -> T,
    ) -> Result<T, Refusal> {
        let sessions = &self.shared.sessions;
        let now = sessions.clock.now();
        let mut tables = sessions.tables();
        if !tables.promises.is_current(ticket.client, ticket.generation, now) {
            return Err(FsError::NotAttached.into());
        }
        Ok(act(&mut tables, now))
    }
}
