//! The calls about locks, and the locks that an attach names.

use super::GetStatusReply;
use crate::{Fid, Lock, LockKind, LockRange, ServerEpoch, StoreId};

/// The locks that a client believes its programs to hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeldLocks {
    /// The life of the server in which the client knew that last; `None`: the client has never been connected.
    pub epoch: Option<ServerEpoch>,
    /// The number of locks the server had granted then: grants to others since then tell whether these locks still
    /// hold.
    pub grants: u64,
    /// The locks, at most [`HeldLocks::LOCKS_MAX`].
    pub locks: Vec<HeldLock>,
    /// Whether a content written under a lock that the client has lost is in conflict once another client has had the
    /// lock. Otherwise the contents that others have written to the file decide.
    pub fenced: bool,
}

impl HeldLocks {
    /// The most locks of one client.
    pub const LOCKS_MAX: usize = 2048;
}

/// A lock that a client believes to be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldLock {
    /// The lock.
    pub lock: Lock,
    /// Whether the server has granted it; otherwise the client has, while the server was out of reach.
    pub granted: bool,
}

/// Asks for a lock, in place of the locks its owner has in the range. A repeated request means the same lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// The lock.
    pub lock: Lock,
    /// Whether the request waits in the queue while others have the lock. While that takes long the answer is
    /// [`FsError::Locked`](crate::FsError), and the place is kept for a client that asks again soon.
    pub wait: bool,
    /// Tells requests of one client apart: a request that waits is repeated under its number.
    pub number: u64,
    /// Whether the client has locks in the range that it is about to give up. If only these are in the way the answer
    /// is [`FsError::LockedByOwn`](crate::FsError): the client may grant the lock, and gives up its own later.
    pub given_up: bool,
    /// As in [`GetStatusRequest`](super::GetStatusRequest).
    pub unanswered: Vec<StoreId>,
}

/// Answers [`LockRequest`]: the lock is held, and the updates of the file that other clients had announced by then are
/// applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockReply {
    /// As in [`AttachReply`](super::AttachReply).
    pub lock_grants: u64,
    /// The status of the file under the lock.
    pub status: GetStatusReply,
}

/// Gives up the locks that an owner has in a range. May be repeated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnlockRequest {
    /// The file.
    pub fid: Fid,
    /// [`LockOwner::id`](crate::LockOwner).
    pub owner: u64,
    /// The bytes.
    pub range: LockRange,
    /// [`LockOwner::file`](crate::LockOwner) of requests of this owner that are under way: locks made through these
    /// open files are not given up. At most [`UnlockRequest::EXCEPT_MAX`].
    pub except: Vec<u64>,
}

impl UnlockRequest {
    /// The most open files that one request names.
    pub const EXCEPT_MAX: usize = 64;
}

/// Answers [`UnlockRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnlockReply;

/// Asks for the lock that would keep another from being granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestLockRequest {
    /// The lock.
    pub lock: Lock,
}

/// Answers [`TestLockRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestLockReply {
    /// The first lock in the way; `None`: the lock would be granted.
    pub conflict: Option<LockConflict>,
}

/// A lock that is in the way of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockConflict {
    /// The bytes.
    pub range: LockRange,
    /// Whether others may share it.
    pub kind: LockKind,
    /// The process that holds the lock, if it is the asking client's own. Otherwise 0.
    pub process: u32,
}

/// Takes a request for a lock out of the queue, because nobody waits for it any more. A granted lock stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CancelLockRequest {
    /// [`LockRequest::number`].
    pub number: u64,
}

/// Answers [`CancelLockRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CancelLockReply;
