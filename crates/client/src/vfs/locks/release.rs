//! Giving locks up: sends data written under a lock, and then tells the server, or keeps the lock for the next
//! program.

use std::sync::Arc;
use std::time::Duration;

use mafs_proto::call::UnlockRequest;
use mafs_proto::{Fid, LockRange, Purpose};
use tokio::time::{sleep, timeout};

use super::Locking;
use crate::core::locks::{Release, Released};
use crate::core::queue::{HeldUp, Queue};
use crate::remote::Link;
use crate::vfs::{Error, FileHandle, Fsync, Inner};

/// The pause before a failed attempt is repeated.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How long a lock is kept that no program asks for. If this client is gone other clients wait for it until its lease
/// has ended.
const KEPT_FOR: Duration = Duration::from_secs(60);

impl Inner {
    /// Gives up the locks of an owner on a range: here at once, at the server when it has all data written under them.
    pub(super) async fn unlock(self: &Arc<Self>, fid: Fid, owner: u64, range: LockRange) -> Result<(), Error> {
        let released = self.locks.locks().release(fid, owner, range);
        self.locks.changed.send_replace(());
        match released {
            Some(released) => self.tell_given_up(fid, released).await,
            None => Ok(()),
        }
    }

    /// Sends data written under a lock that has been given up here, and tells the server.
    async fn tell_given_up(self: &Arc<Self>, fid: Fid, released: Released) -> Result<(), Error> {
        let sent = async {
            match released {
                Released::There(number) => self.release_or_hand_over(number).await,
                Released::InTurn(since) => {
                    let sent = self.send_in_the_end(fid, since).await;
                    // Otherwise a program that asks next, for a lock that it cannot have in turn, would be refused
                    // though it is free.
                    self.locks.until(|state| state.locks().is_settled(fid)).await;
                    sent
                }
            }
        };
        tokio::select! {
            biased;
            sent = sent => sent,
            // Other clients get the lock when all is sent.
            () = sleep(self.settings.fsync_wait), if !self.unlock_waits() => Ok(()),
            // The barrier is completed when the server is there again.
            () = self.remote.until_out_of_reach() => match self.locks.locking {
                Locking::Local => Ok(()),
                Locking::Fail | Locking::Strict | Locking::Kernel => Err(self.remote.unanswered().into()),
            },
            () = self.until_given_up() => Err(not_sent()),
        }
    }

    /// Waits until there has been no connection for as long as a call waits.
    pub(in crate::vfs) async fn until_given_up(&self) {
        let mut link = self.remote.watch_link();
        loop {
            // The sender lives in `self`.
            let _ = link.wait_for(|link| matches!(link, Link::Down(_))).await;
            let there = link.wait_for(|link| !matches!(link, Link::Down(_)));
            if timeout(self.settings.deadline, there).await.is_err() {
                return;
            }
        }
    }

    /// Whether an unlock waits, for as long as it takes, until the server has all data written under the lock. Where a
    /// lost lock is to be an error for its owner, data that the owner wrote must not turn out to be in conflict later.
    fn unlock_waits(&self) -> bool {
        let tells_of_loss = self.locks.locking != Locking::Local;
        tells_of_loss || self.settings.fsync == Fsync::Server || self.settings.writeback.waits()
    }

    /// Waits until the server knows of the release. The server need not know if the lock stays here and the server has
    /// all data written before.
    async fn release_or_hand_over(self: &Arc<Self>, number: u64) -> Result<(), Error> {
        let Some((Release { fid, since, .. }, _)) = self.locks.locks().released(number) else { return Ok(()) };
        let releasing = tokio::spawn(Arc::clone(self).release_lock(number));
        tokio::select! {
            biased;
            released = releasing => released.unwrap_or(Ok(())),
            () = self.locks.until(|state| state.locks().is_taken_over(number)) => {
                self.send_in_the_end(fid, since).await
            }
            () = self.locks.until(|state| state.locks().is_kept(number, self.clock.now())) => Ok(()),
        }
    }

    /// Tells the server of a release, when all data is there and the lock stays with this client no more.
    async fn release_lock(self: Arc<Self>, number: u64) -> Result<(), Error> {
        loop {
            let Some((release, turn)) = self.locks.locks().released(number) else { return Ok(()) };
            let changes = self.replay.queue().changes();
            let sent = self.send_in_the_end(release.fid, release.since).await;
            match &sent {
                Ok(()) => self.locks.locks().settle(number, turn, changes),
                Err(error) if error.is_unanswered() => return sent,
                Err(_) => {}
            }
            self.locks.changed.send_replace(());
            self.until_kept_no_more(number).await;
            if self.locks.locks().begin_unlock(number, turn) {
                self.unlock_in_the_end(number, release).await?;
                return sent;
            }
            self.locks.until(|state| !state.locks().is_taken_over(number)).await;
        }
    }

    async fn until_kept_no_more(&self, number: u64) {
        let mut link = self.remote.watch_link();
        tokio::select! {
            biased;
            () = self.locks.until(|state| !state.locks().is_kept(number, self.clock.now())) => {}
            () = sleep(KEPT_FOR) => {}
            // The lock ends with the session.
            _ = link.wait_for(|link| matches!(link, Link::Closed)) => {}
        }
    }

    /// Tells the server of a release until it has answered. Data written under the lock is there; other clients do not
    /// wait for data written since, even in an outage.
    ///
    /// The kernel names the owner of an flock by the address of the open file in its memory. The next open file may
    /// get that address, and lock, before the release of the first is known here: its locks stay.
    async fn unlock_in_the_end(&self, number: u64, release: Release) -> Result<(), Error> {
        loop {
            let through = self.locks.locks().released_through(number);
            // Before the ranges are read: no range granted from now on is given up.
            let except = self.locks.asked_through(release.fid, release.owner, &through);
            let ranges = self.locks.locks().to_unlock(number);
            if self.unlock_there(release, ranges, except).await {
                self.locks.locks().end_release(number);
                self.locks.changed.send_replace(());
                return Ok(());
            }
            self.until_tried_again().await?;
        }
    }

    /// Repeats `send_written` also after outages, until the mount ends.
    async fn send_in_the_end(self: &Arc<Self>, fid: Fid, since: u64) -> Result<(), Error> {
        loop {
            match self.send_written(fid, since).await {
                Err(error) if error.is_unanswered() => self.until_tried_again().await?,
                sent => return sent,
            }
        }
    }

    /// Tells the server that ranges are given up. Returns whether the server knows.
    async fn unlock_there(&self, release: Release, ranges: Vec<LockRange>, except: Vec<u64>) -> bool {
        let Release { fid, owner, .. } = release;
        let mut knows = true;
        for range in ranges {
            let request = UnlockRequest { fid, owner, range, except: except.clone() };
            let unlocked = self.remote.call(&request, Purpose::Ask).await;
            knows &= !unlocked.is_err_and(|error| error.may_pass());
        }
        knows
    }

    /// Waits until it is worth asking the server again.
    ///
    /// # Errors
    /// The mount ends.
    async fn until_tried_again(&self) -> Result<(), Error> {
        sleep(RETRY_PAUSE).await;
        let mut link = self.remote.watch_link();
        let up = link.wait_for(|link| !matches!(link, Link::Down(_))).await;
        if up.is_ok_and(|link| matches!(*link, Link::Up(_))) { Ok(()) } else { Err(not_sent()) }
    }

    /// Waits until the server has all data written to a file, and all records logged since change number `since`.
    pub(super) async fn send_written(self: &Arc<Self>, fid: Fid, since: u64) -> Result<(), Error> {
        let file = self.files().get(fid.vnode).filter(|file| file.fid == fid);
        if let Some(file) = file
            && self.is_changed(&file)?
        {
            self.store_now(&file).await?;
        }
        let ids = self.replay.queue().changed_since(since);
        if ids.is_empty() {
            return Ok(());
        }
        self.send_first(&ids);
        {
            let mut queue = self.replay.queue();
            ids.iter().for_each(|id| queue.let_go(*id));
        }
        self.note_queue_changed();
        // A record may wait for another client's answer, and that one for this client's answer to a break.
        let _waiting = self.remote.waiting();
        let mut left = ids.clone();
        // The last record mostly goes last.
        let is_gone = |queue: &Queue| {
            while left.pop_if(|id| !queue.contains(*id)).is_some() {}
            left.is_empty()
        };
        let mut held_up = HeldUp::new(ids);
        self.until_gone(is_gone, |queue| held_up.is_so(queue), || {}).await
    }

    /// Gives up the locks that a process has on a file, because the process has closed a descriptor of it.
    pub(super) async fn unlock_closed(self: &Arc<Self>, handle: FileHandle, owner: u64) -> Result<(), Error> {
        let fid = self.handle(handle)?.file.fid;
        let holds_any = self.locks.locks().holds_any(fid, owner, LockRange::ALL);
        if holds_any { self.unlock(fid, owner, LockRange::ALL).await } else { Ok(()) }
    }

    /// Gives up the locks of an open file at once, because the open file is gone.
    pub(in crate::vfs) fn unlock_released(self: &Arc<Self>, handle: FileHandle) {
        let given_up = self.locks.locks().close(handle.0);
        if given_up.is_empty() {
            return;
        }
        self.locks.changed.send_replace(());
        for (fid, released) in given_up {
            let inner = Arc::clone(self);
            tokio::spawn(async move {
                if let Err(error) = inner.tell_given_up(fid, released).await {
                    tracing::warn!(%fid, %error, "what was written under a lock is not at the server");
                }
            });
        }
    }
}

/// Returns the error for data written under a lock that is not at the server yet.
fn not_sent() -> Error {
    Error::TimedOut("the server does not have what was written under a lock".to_owned())
}
