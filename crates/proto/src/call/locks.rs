//! The calls about locks, and what an attach says of them.

use super::GetStatusReply;
use crate::{Fid, Lock, LockKind, LockRange, ServerEpoch, StoreId};

/// The locks that a client believes its programs to hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeldLocks {
    /// The life of the server in which it knew that last; `None`: it has never been connected.
    pub epoch: Option<ServerEpoch>,
    /// How many locks the server had granted then: whether others were granted some since tells whether these hold.
    pub grants: u64,
    /// At most [`HeldLocks::LOCKS_MAX`].
    pub locks: Vec<HeldLock>,
    /// Whether what it has written to a file under a lock that it has lost is in conflict once another client has had
    /// that. Otherwise what others have written to the file decides.
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

/// Asks for a lock, in place of what its owner has of the range. Asked once more it is the same lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// The lock.
    pub lock: Lock,
    /// Whether it waits in the queue while others have it. While that takes long the answer is
    /// [`FsError::Locked`](crate::FsError), and its place is kept for who asks again soon.
    pub wait: bool,
    /// Tells requests of one client apart: one that waits is asked again under its number.
    pub number: u64,
    /// Whether the client has something of the range that it is about to give up. If only that is in the way the answer
    /// is [`FsError::LockedByOwn`](crate::FsError): the client may grant the lock, and gives up what it has later.
    pub given_up: bool,
    /// As in [`GetStatusRequest`](super::GetStatusRequest).
    pub unanswered: Vec<StoreId>,
}

/// Answers [`LockRequest`]: the lock is held, and what other clients have announced of the file until then is applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockReply {
    /// As in [`AttachReply`](super::AttachReply).
    pub lock_grants: u64,
    /// The file, as it is under the lock.
    pub status: GetStatusReply,
}

/// Gives up what an owner has of a range. May be repeated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnlockRequest {
    /// The file.
    pub fid: Fid,
    /// [`LockOwner::id`](crate::LockOwner).
    pub owner: u64,
    /// Which bytes.
    pub range: LockRange,
    /// [`LockOwner::file`](crate::LockOwner) of requests of this owner that are under way: what was locked through
    /// these open files is not given up. At most [`UnlockRequest::EXCEPT_MAX`].
    pub except: Vec<u64>,
}

impl UnlockRequest {
    /// The most open files that one request names.
    pub const EXCEPT_MAX: usize = 64;
}

/// Answers [`UnlockRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnlockReply;

/// Asks what would keep a lock from being granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestLockRequest {
    /// The lock.
    pub lock: Lock,
}

/// Answers [`TestLockRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestLockReply {
    /// The first of the locks that do; `None`: it would be granted.
    pub conflict: Option<LockConflict>,
}

/// A lock that is in the way of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockConflict {
    /// Which bytes.
    pub range: LockRange,
    /// What it lets others do.
    pub kind: LockKind,
    /// Whose it is if it is the asking client's own: the process. Otherwise 0.
    pub process: u32,
}

/// Nobody waits for a lock any more: it is taken out of the queue. What has been granted stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CancelLockRequest {
    /// [`LockRequest::number`].
    pub number: u64,
}

/// Answers [`CancelLockRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CancelLockReply;
