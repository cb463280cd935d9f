//! Locks: asks the server for locks, makes files current under them, and sends data written under them before other
//! clients get them.
//!
//! - A granted lock comes with the status of its file: a newer content is brought into the container before the lock
//!   call returns, also while programs have the file open for writing, as long as they have not changed it.
//! - To give a lock up is a barrier. Another client gets the lock when the server has all records that this client has
//!   logged since it took the first lock of the file, and all data written to the file itself. The call that gives it
//!   up waits for that as long as `fsync=auto` waits; with `fsync=server`, with `lock=strict` or `fail`, and where
//!   nothing is logged, until the server has them. As long as no other client waits, another program of this machine
//!   gets the lock before that (`Locks::may_take_over`): a barrier can take minutes on a slow link, and is for other
//!   clients.
//! - An exclusive lock of a whole file stays with this client after it is given up, until another client wants it
//!   (`Locks::is_kept`): the next program of this machine has it without a round trip, even when the link has just
//!   gone. The server says when another client asks; where that happens locks go back at once.
//! - While the server is known to be out of reach this client decides among its own programs, if the user has not said
//!   otherwise ([`Locking`]). At the next attach the server confirms the locks that this client has granted itself, or
//!   not: then the open file through which the lock was taken has lost it for good.

mod release;
mod state;

use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::blocking;
use mafs_durable::DiskFile;
use mafs_proto::call::{CancelLockRequest, GetStatusReply, LockConflict, LockReply, LockRequest, TestLockRequest};
use mafs_proto::{Fid, FsError, Lock, LockOwner, LockRange, Purpose, StoreId};
use tokio::time::{Instant, sleep, timeout};

use super::file::File;
use super::{Error, FileHandle, Inner, Vfs};
use crate::core::content::users::DataPath;
use crate::core::locks::{Granted, Locks};
use crate::remote::{Answer, HOLDER_WAIT, Link, RemoteError};
pub(super) use state::LockState;
pub use state::{LockStop, Locking};

/// The pause before a question is asked again, if the server has not waited itself.
const PAUSE: Duration = Duration::from_millis(50);

/// How long the last close of an open file may be on its way here after a descriptor of it has been closed. The kernel
/// reports the close once it has let the program go, to a thread that may then wait for a processor. While another
/// program has the descriptor too, the kernel does not report it at all.
const CLOSE_MAX: Duration = Duration::from_millis(300);

/// How many newer versions a lock tries to fetch: other clients may store without locking.
const VERSIONS_MAX: u32 = 8;

impl Vfs {
    /// Locks a range of an open file, in place of the locks that `lock.owner` has on it. If another owner excludes the
    /// lock, the call fails with `Locked`, or waits until `stop`.
    pub async fn lock(&self, file: FileHandle, lock: RangeLock, wait: bool, stop: LockStop) -> Result<(), Error> {
        self.inner.lock(file, lock, wait, stop).await
    }

    /// Gives up the locks that an owner has on a range. Another client has them when the server has all data written
    /// under the lock; the server has it when this returns, unless it takes longer than an fsync waits.
    pub async fn unlock(&self, file: FileHandle, owner: u64, range: LockRange) -> Result<(), Error> {
        let fid = self.inner.handle(file)?.file.fid;
        let unlocked = self.inner.unlock(fid, owner, range).await;
        self.inner.check_locks(file).and(unlocked)
    }

    /// Does the same as [`Vfs::flush`], and gives up the locks that the process, `owner`, has on the file. For a
    /// handle that has only read, on a mount without locks, this is one look.
    pub async fn flush_and_unlock(&self, file: FileHandle, owner: u64) -> Result<(), Error> {
        let has_locks = self.inner.locks.locks().begin_close(file.0);
        if file.only_reads() && !has_locks {
            return Ok(());
        }
        let flushed = if file.only_reads() { Ok(()) } else { self.inner.flush(file).await };
        let unlocked = self.inner.unlock_closed(file, owner).await;
        flushed.and(unlocked).and_then(|()| self.inner.check_locks(file))
    }

    /// Returns the lock that keeps an owner from a lock.
    pub async fn lock_conflict(&self, file: FileHandle, lock: RangeLock) -> Result<Option<LockConflict>, Error> {
        self.inner.lock_conflict(file, lock).await
    }

    /// Returns which side grants locks.
    #[must_use]
    pub fn locking(&self) -> Locking {
        self.inner.settings.locking
    }
}

/// A lock on an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeLock {
    /// Owner of the lock.
    pub owner: LockOwner,
    /// Range of bytes.
    pub range: LockRange,
    /// Access that the lock leaves to others.
    pub kind: mafs_proto::LockKind,
}

impl RangeLock {
    fn on(self, fid: Fid) -> Lock {
        Lock { fid, owner: self.owner, range: self.range, kind: self.kind }
    }
}

impl Inner {
    /// Checks that the locks taken through a handle still hold.
    ///
    /// # Errors
    /// [`Error::LockLost`] if a lock that was taken through this handle does not hold any more.
    pub(super) fn check_locks(&self, handle: FileHandle) -> Result<(), Error> {
        // Without a connection nothing else checks the lease.
        if self.locks.is_over(self.clock.now()) {
            self.locks.lapsed();
        }
        if self.locks.locks().is_lost(handle.0) { Err(Error::LockLost) } else { Ok(()) }
    }

    /// Whether a file may hold data from a program that relies on a lost lock. With `lock=local` this does not matter.
    pub(super) fn is_doubtful(&self, fid: Fid) -> bool {
        matches!(self.locks.locking, Locking::Fail | Locking::Strict) && self.locks.locks().is_doubtful(fid)
    }

    async fn lock(
        self: &Arc<Self>,
        handle: FileHandle,
        lock: RangeLock,
        wait: bool,
        stop: LockStop,
    ) -> Result<(), Error> {
        let file = self.handle(handle)?.file;
        self.check_locks(handle)?;
        let lock = lock.on(file.fid);
        self.locks.locks().note_asked(file.fid);
        let locked = self.lock_file(&file, lock, wait, stop).await;
        if handle.closes_unseen() {
            // As far as is known here the handle may be closed at any time.
            self.locks.locks().begin_close(handle.0);
        }
        locked
    }

    async fn lock_file(
        self: &Arc<Self>,
        file: &Arc<File>,
        lock: Lock,
        wait: bool,
        stop: LockStop,
    ) -> Result<(), Error> {
        if self.lock_again(&lock) {
            return Ok(());
        }
        if !wait && self.is_excluded(&lock).await {
            return Err(Error::Refused(FsError::Locked));
        }
        self.until_told(&lock, wait, &stop).await?;
        let weakened = self.locks.locks().weakens(&lock);
        if let Some(since) = weakened {
            match self.send_written(lock.fid, since).await {
                Err(error) if error.is_unanswered() && self.grants_here() => {}
                sent => sent?,
            }
        }
        let asking = self.locks.begin(&lock, &stop);
        let had = self.locks.locks().holds_any(lock.fid, lock.owner.id, lock.range);
        let mut acquiring = std::pin::pin!(self.acquire(file, &lock, wait, asking.number, &stop));
        let acquired = tokio::select! {
            biased;
            acquired = &mut acquiring => acquired,
            () = stop.stopped() => {
                let cancel = CancelLockRequest { number: asking.number };
                let cancelled = self.remote.call(&cancel, Purpose::Ask);
                futures_util::future::join(cancelled, acquiring).await.1
            }
        };
        if !stop.is_stopped() {
            return acquired;
        }
        if acquired.is_ok() && !had {
            // The program was not told of the lock. Locks that the owner had before it keeps, perhaps stronger than it
            // knows.
            self.unlock(lock.fid, lock.owner.id, lock.range).await?;
        }
        Err(Error::Interrupted)
    }

    /// Whether another program of this machine has a lock that excludes this one, once closes on their way have
    /// arrived.
    async fn is_excluded(&self, lock: &Lock) -> bool {
        let is_excluded = |locks: &Locks| locks.conflict(lock).is_some();
        let may_end = |state: &LockState| {
            let locks = state.locks();
            is_excluded(&locks) && locks.may_be_closed(lock)
        };
        if may_end(&self.locks) && timeout(CLOSE_MAX, self.locks.until(|state| !may_end(state))).await.is_err() {
            self.locks.locks().stay_open(lock.fid);
        }
        is_excluded(&self.locks.locks())
    }

    /// Waits until the server knows of all locks that the owner has given up, and until the owner's abandoned requests
    /// have ended: otherwise the server would mix them up with this request. Returns whether the server knows; while
    /// it is out of reach it cannot be told.
    async fn until_told(&self, lock: &Lock, wait: bool, stop: &LockStop) -> Result<bool, Error> {
        let is_told = |locks: &LockState| !locks.awaits_release(lock, wait) && !locks.is_stopping(lock);
        tokio::select! {
            biased;
            () = self.locks.until(is_told) => Ok(true),
            // Another program has in turn the lock that this owner has given up.
            () = self.locks.until(|state| !wait && state.locks().conflict(lock).is_some()) => {
                Err(Error::Refused(FsError::Locked))
            }
            () = stop.stopped() => Err(Error::Interrupted),
            () = self.remote.until_out_of_reach() => Ok(false),
            () = self.until_given_up() => Err(Error::NoLocks),
        }
    }

    /// Waits until a lock is held.
    async fn acquire(
        self: &Arc<Self>,
        file: &Arc<File>,
        lock: &Lock,
        wait: bool,
        number: u64,
        stop: &LockStop,
    ) -> Result<(), Error> {
        let patience = Instant::now() + self.settings.deadline + HOLDER_WAIT;
        loop {
            let may_decide = |locks: &Locks| locks.may_take_over(lock) && self.decides(locks, lock);
            let may = |locks: &Locks| self.grants_here() || locks.has_taken_over(lock) || may_decide(locks);
            let is_here = may(&self.locks.locks());
            if is_here {
                if self.lock_here(lock, wait, (number, stop), may).await? {
                    return Ok(());
                }
                continue;
            }
            if wait {
                self.locks.locks().want_here(lock.fid);
                self.locks.changed.send_replace(());
            }
            if self.locks.locking == Locking::Strict {
                self.until_connected().await?;
            }
            // The server may have been out of reach when the owner gave something up.
            match (self.until_told(lock, wait, stop).await?, self.locks.locking) {
                (true, _) => {}
                (false, Locking::Local | Locking::Strict) => continue,
                (false, Locking::Fail | Locking::Kernel) => return Err(Error::NoLocks),
            }
            match self.until_made(file, stop).await {
                Err(Error::NoLocks) if self.grants_here() => continue,
                made => made?,
            }
            if self.is_doubtful(lock.fid) {
                // Doubtful data is sent to its place before the server says which content the file has.
                let changes = self.replay.queue().changes();
                self.send_written(lock.fid, changes).await?;
            }
            let given_up = self.locks.locks().may_take_over(lock);
            let unanswered = self.unanswered(&[lock.fid]);
            let request = LockRequest { lock: *lock, wait, number, given_up, unanswered };
            match self.remote.ask_for_lock(&request).await {
                Ok(answer) => {
                    if self.note_granted(file, request, answer).await? {
                        return Ok(());
                    }
                }
                Err(RemoteError::Refused { error: FsError::LockedByOwn, .. }) if !stop.is_stopped() => {
                    if self.lock_here(lock, wait, (number, stop), |locks| locks.may_take_over(lock)).await? {
                        return Ok(());
                    }
                }
                Err(RemoteError::Refused { error: FsError::Locked, .. }) if wait && !stop.is_stopped() => {
                    sleep(PAUSE).await;
                }
                Err(RemoteError::Pulling { .. }) if !stop.is_stopped() && (wait || Instant::now() < patience) => {
                    sleep(PAUSE).await;
                }
                Err(RemoteError::Refused { error, .. }) => return Err(Error::Refused(error)),
                Err(_) if self.grants_here() => {}
                Err(error) => {
                    tracing::debug!(%error, "no lock");
                    return Err(Error::NoLocks);
                }
            }
        }
    }

    /// Waits until the server has a file that was made here. Another client may have made one of that name: then each
    /// client would lock its own file.
    ///
    /// # Errors
    /// `Stale` if another client has made the file; `NoLocks` if the server does not say.
    async fn until_made(&self, file: &File, stop: &LockStop) -> Result<(), Error> {
        if let Some(make) = self.cache.index.made_by(file.fid.vnode) {
            self.send_first(&[make]);
            tokio::select! {
                biased;
                made = self.until_answered(make) => match made {
                    Err(error) if error.is_unanswered() => return Err(Error::NoLocks),
                    made => made?,
                },
                () = stop.stopped() => return Err(Error::Interrupted),
            }
        }
        if file.state().fate().is_overtaken() { Err(Error::Refused(FsError::Stale)) } else { Ok(()) }
    }

    /// Whether this client alone decides about a lock: the server keeps other clients from the file until they want
    /// it, and this client's lease has not ended.
    fn decides(&self, locks: &Locks, lock: &Lock) -> bool {
        let now = self.clock.now();
        locks.decides(lock, now) && !self.locks.is_over(now)
    }

    /// Gives an owner back the lock that it has given up, if the lock is kept and no other program waits for it.
    fn lock_again(&self, lock: &Lock) -> bool {
        let (now, changes) = (self.clock.now(), self.replay.queue().changes());
        let may = !self.locks.is_over(now) && !self.locks.is_asked_for(lock.fid, lock.owner.id);
        let taken = may && self.locks.locks().take_back(lock, changes, now);
        if taken {
            self.locks.changed.send_replace(());
        }
        taken
    }

    /// Whether this client itself grants locks now.
    fn grants_here(&self) -> bool {
        self.locks.locking == Locking::Local && self.remote.is_out_of_reach()
    }

    async fn until_connected(&self) -> Result<(), Error> {
        let mut link = self.remote.watch_link();
        let connected = link.wait_for(|link| !matches!(link, Link::Down(_)));
        timeout(self.settings.deadline, connected).await.map(drop).map_err(|_| Error::NoLocks)
    }

    /// Grants a lock if no program of this machine has one that excludes it. Returns whether the lock is held:
    /// otherwise this client `may` not grant it any more.
    async fn lock_here(
        &self,
        lock: &Lock,
        wait: bool,
        (number, stop): (u64, &LockStop),
        may: impl Fn(&Locks) -> bool,
    ) -> Result<bool, Error> {
        let mut changed = self.locks.changed.subscribe();
        let mut link = self.remote.watch_link();
        loop {
            changed.mark_unchanged();
            let changes = self.replay.queue().changes();
            {
                let mut locks = self.locks.locks();
                if !may(&locks) {
                    return Ok(false);
                }
                if locks.conflict(lock).is_none() && !self.locks.is_behind(&locks, lock, number) {
                    if !locks.has_room() {
                        return Err(Error::NoLocks);
                    }
                    locks.grant(lock, Granted::Here, changes);
                    return Ok(true);
                }
            }
            if !wait {
                return Err(Error::Refused(FsError::Locked));
            }
            if self.locks.is_deadlock(&self.locks.locks(), lock) {
                return Err(Error::Refused(FsError::Deadlock));
            }
            tokio::select! {
                biased;
                () = stop.stopped() => return Err(Error::Interrupted),
                _ = changed.changed() => {}
                _ = link.changed() => {}
            }
        }
    }

    /// Takes in a lock that the server has granted, and makes the file current under it. Returns whether the lock
    /// counts: not if the session has ended meanwhile.
    async fn note_granted(
        self: &Arc<Self>,
        file: &Arc<File>,
        request: LockRequest,
        answer: Answer<LockReply>,
    ) -> Result<bool, Error> {
        let LockRequest { lock, unanswered, .. } = request;
        let Answer { reply: LockReply { lock_grants, status }, payload, session } = answer;
        let changes = self.replay.queue().changes();
        {
            let mut locks = self.locks.locks();
            if self.cache.index.session() != session {
                return Ok(false);
            }
            locks.note_grants(lock_grants);
            locks.grant(&lock, Granted::There, changes);
            // Programs here may wait at the server, which asks no client on behalf of that client's own programs.
            if self.locks.is_asked_for(lock.fid, lock.owner.id) {
                locks.want_here(lock.fid);
            }
        }
        let fresh = self.make_current(file, unanswered, Answer { reply: status, payload, session }).await;
        if let Err(error) = &fresh {
            tracing::warn!(fid = %file.fid, %error, "a file cannot be made current under a lock");
            self.unlock(lock.fid, lock.owner.id, lock.range).await?;
        }
        fresh.map(|()| true)
    }

    /// Brings the content that a file has under a lock into its container.
    async fn make_current(
        self: &Arc<Self>,
        file: &Arc<File>,
        unanswered: Vec<StoreId>,
        answer: Answer<GetStatusReply>,
    ) -> Result<(), Error> {
        // The server does not know of files made or removed here lately.
        let Some(version) = self.take_in_locked(file.fid, unanswered, answer)? else { return Ok(()) };
        self.until_placed(file, version).await?;
        let mut changed = false;
        for _ in 0..VERSIONS_MAX {
            self.look_now(file)?;
            let present = self.cache.index.object(file.fid.vnode)?;
            let version = present.map_or(version, |present| present.object.status.data_version);
            if !file.state().is_behind(version) {
                break;
            }
            changed = true;
            match self.fetch_under_lock(file).await {
                Err(Error::VersionGone) => {
                    self.cache.index.distrust(std::iter::once(file.fid))?;
                    self.status_of_fid(file.fid).await?;
                }
                other => other?,
            }
        }
        if changed {
            let end = blocking(|| end_of(file))?;
            self.kernel.forget_content(file.fid.vnode, end).await;
        }
        Ok(())
    }

    async fn lock_conflict(
        self: &Arc<Self>,
        handle: FileHandle,
        lock: RangeLock,
    ) -> Result<Option<LockConflict>, Error> {
        let file = self.handle(handle)?.file;
        self.check_locks(handle)?;
        let lock = lock.on(file.fid);
        let patience = Instant::now() + self.settings.deadline + HOLDER_WAIT;
        loop {
            {
                let locks = self.locks.locks();
                let is_here = locks.may_take_over(&lock) || locks.has_taken_over(&lock) || self.grants_here();
                if is_here || self.decides(&locks, &lock) {
                    return Ok(locks.conflict(&lock));
                }
            }
            match self.remote.call(&TestLockRequest { lock }, Purpose::Ask).await {
                Ok(answer) => return Ok(answer.reply.conflict),
                Err(RemoteError::Pulling { .. }) if Instant::now() < patience => sleep(PAUSE).await,
                Err(RemoteError::Refused { error, .. }) => return Err(Error::Refused(error)),
                Err(_) if self.grants_here() => {}
                Err(_) => return Err(Error::NoLocks),
            }
        }
    }
}

/// Returns the end of a file's content and its last byte, if this daemon reads and writes the file.
fn end_of(file: &File) -> std::io::Result<Option<(u64, u8)>> {
    let (path, size) = {
        let state = file.state();
        (state.users().path(), state.stat().size())
    };
    let Some(last) = size.checked_sub(1).filter(|_| path != Some(DataPath::Passthrough)) else { return Ok(None) };
    let mut byte = [0];
    Ok((file.container.read_at(&mut byte, last)? == 1).then_some((size, byte[0])))
}
