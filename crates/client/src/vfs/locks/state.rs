//! State of the locks and of the requests under way. Notifies tasks that wait for a change; does not wait for the
//! server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mafs_arpc::watch;
use mafs_proto::call::{AttachReply, HeldLocks, UnlockRequest};
use mafs_proto::{Fid, Lock, LockRange};
use tokio::time::timeout;

use super::CLOSE_MAX;
use crate::core::locks::{LockCounts, Locks};

/// The side that grants locks while the server is out of reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Locking {
    /// This client grants them, among the programs of this machine.
    #[default]
    Local,
    /// No side does: `ENOLCK`. Locks that are held end with the lease.
    Fail,
    /// No side does, but a call waits for the server first.
    Strict,
    /// The kernel grants them, among the programs of this machine, and also while the server can be reached.
    Kernel,
}

/// A signal to a lock call that no program waits for it any more. Clones share one signal.
#[derive(Clone, Debug)]
pub struct LockStop(Arc<watch::Sender<bool>>);

impl Default for LockStop {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl LockStop {
    /// Says that no program waits any more.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    pub(super) async fn stopped(&self) {
        // The sender lives in `self`.
        let _ = self.0.subscribe().wait_for(|stopped| *stopped).await;
    }
}

/// State of the locks, and the requests that wait for some.
pub(in crate::vfs) struct LockState {
    pub(super) locking: Locking,
    locks: Mutex<Locks>,
    /// Requests under way, by number.
    asking: Mutex<BTreeMap<u64, (Lock, LockStop)>>,
    /// Notifies of every change that others may wait for.
    pub(super) changed: watch::Sender<()>,
    /// End of the lease that was renewed last.
    until: Mutex<Option<mafs_proto::Instant>>,
}

/// A request that is under way.
pub(super) struct Asking<'a> {
    state: &'a LockState,
    pub(super) number: u64,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.state.asking().remove(&self.number);
        self.state.changed.send_replace(());
    }
}

impl LockState {
    pub(in crate::vfs) fn new(locking: Locking) -> Self {
        let (locks, asking, until) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { locking, locks, asking, changed: watch::Sender::new(()), until }
    }

    pub(in crate::vfs) fn counts(&self) -> LockCounts {
        self.locks().counts()
    }

    /// Returns the locks that programs rely on, for an attach. `trusted`: the session before is to go on.
    pub(in crate::vfs) fn tell(&self, trusted: bool) -> HeldLocks {
        let mut locks = self.locks();
        if !trusted && self.locking != Locking::Local {
            locks.lapse();
        }
        HeldLocks { fenced: matches!(self.locking, Locking::Fail | Locking::Strict), ..locks.tell() }
    }

    /// Takes in the reply to an attach.
    pub(in crate::vfs) fn attached(&self, reply: &AttachReply) {
        let locks = self.locks().attached(reply);
        if locks > 0 {
            tracing::warn!(locks, "locks were lost while the server was out of reach");
        }
        self.changed.send_replace(());
    }

    /// Notes that other clients want to lock these files. Yields those that programs have locked, once closes on their
    /// way have arrived.
    pub(in crate::vfs) fn want(
        self: &Arc<Self>,
        mut fids: Vec<Fid>,
        now: mafs_proto::Instant,
    ) -> BoxFuture<'static, Vec<Fid>> {
        if !fids.is_empty() {
            self.locks().want(&fids, now);
            self.changed.send_replace(());
        }
        let state = Arc::clone(self);
        async move {
            let may_end = |state: &Self| {
                let locks = state.locks();
                fids.iter().any(|fid| locks.is_closing(*fid))
            };
            if may_end(&state) && timeout(CLOSE_MAX, state.until(|state| !may_end(state))).await.is_err() {
                fids.iter().for_each(|fid| state.locks().stay_open(*fid));
            }
            fids.retain(|fid| state.locks().is_held(*fid));
            fids
        }
        .boxed()
    }

    /// Notes that the lease has been renewed, also by an attach.
    pub(in crate::vfs) fn renewed(&self, sent: mafs_proto::Instant, lease: Duration) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(sent + lease);
    }

    /// Whether the lease has ended. The lease goes on while the client attaches anew.
    pub(super) fn is_over(&self, now: mafs_proto::Instant) -> bool {
        self.until.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| until <= now)
    }

    /// Notes the number of locks that the server has granted, from its answer to a renewal.
    pub(in crate::vfs) fn note_grants(&self, grants: u64) {
        self.locks().note_grants(grants);
    }

    /// Lets the locks lapse, because the lease has ended.
    pub(in crate::vfs) fn lapsed(&self) {
        if self.locking != Locking::Local {
            self.locks().lapse();
            self.changed.send_replace(());
        }
    }

    pub(in crate::vfs) fn locks(&self) -> MutexGuard<'_, Locks> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asking(&self) -> MutexGuard<'_, BTreeMap<u64, (Lock, LockStop)>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, lock: &Lock, stop: &LockStop) -> Asking<'_> {
        let number = self.locks().next_number();
        self.asking().insert(number, (*lock, stop.clone()));
        Asking { state: self, number }
    }

    /// Whether a lock waits until the server knows of releases before it. The task that tells the server is notified.
    pub(super) fn awaits_release(&self, lock: &Lock, wait: bool) -> bool {
        let (awaits, is_news) = self.locks().await_release(lock, wait);
        if is_news {
            self.changed.send_replace(());
        }
        awaits
    }

    /// Whether an abandoned request of this owner has not come to its end.
    pub(super) fn is_stopping(&self, lock: &Lock) -> bool {
        let is_it = |(other, stop): &(Lock, LockStop)| {
            (other.fid, other.owner.id) == (lock.fid, lock.owner.id) && stop.is_stopped()
        };
        self.asking().values().any(is_it)
    }

    /// Lists the open files through which an owner asks for all of a file, except those in `but`.
    pub(super) fn asked_through(&self, fid: Fid, owner: u64, but: &[u64]) -> Vec<u64> {
        let asking = self.asking();
        let own = asking.values().map(|(lock, _)| lock).filter(|lock| {
            (lock.fid, lock.owner.id, lock.range) == (fid, owner, LockRange::ALL) && !but.contains(&lock.owner.file)
        });
        own.map(|lock| lock.owner.file).take(UnlockRequest::EXCEPT_MAX).collect()
    }

    /// Whether a program other than `but` waits for a lock of a file.
    pub(super) fn is_asked_for(&self, fid: Fid, but: u64) -> bool {
        self.asking().values().any(|(lock, _)| lock.fid == fid && lock.owner.id != but)
    }

    /// Whether the owner of a requested lock would wait for itself, as far as the programs of this machine go.
    pub(super) fn is_deadlock(&self, locks: &Locks, lock: &Lock) -> bool {
        leads_to(&self.asking(), locks, lock, lock.owner.id)
    }

    /// Whether another program has asked before for a lock that this one excludes, and does not wait for its owner.
    pub(super) fn is_behind(&self, locks: &Locks, lock: &Lock, number: u64) -> bool {
        let asking = self.asking();
        let mut earlier = asking.range(..number).map(|(_, (earlier, _))| earlier).filter(|earlier| {
            let is_another = earlier.fid == lock.fid && !earlier.owner.is_kin(&lock.owner);
            is_another && earlier.kind.excludes(lock.kind) && earlier.range.overlaps(lock.range)
        });
        earlier.any(|earlier| !leads_to(&asking, locks, earlier, lock.owner.id))
    }

    /// Waits until `is_so` holds; checks again after every change.
    pub(super) async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        let mut changed = self.changed.subscribe();
        while !is_so(self) {
            // The sender lives in `self`.
            let _ = changed.changed().await;
        }
    }
}

/// Whether the owner of a requested lock waits for `owner`, directly or by way of others.
fn leads_to(asking: &BTreeMap<u64, (Lock, LockStop)>, locks: &Locks, lock: &Lock, owner: u64) -> bool {
    let (mut open, mut seen) = (locks.holders_against(lock), BTreeSet::new());
    while let Some(next) = open.pop() {
        if next == owner {
            return true;
        }
        if seen.insert(next) {
            let wanted = asking.values().map(|(wanted, _)| wanted).filter(|wanted| wanted.owner.id == next);
            open.extend(wanted.flat_map(|wanted| locks.holders_against(wanted)));
        }
    }
    false
}
