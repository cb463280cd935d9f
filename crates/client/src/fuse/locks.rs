//! Locks: requests of the kernel, and their answers.
//!
//! flock(2) and fcntl(2) come as the same request: fuser does not pass on which of them it was. Their owners differ
//! ([`LockOwner`](mafs_proto::LockOwner)).

use std::sync::Arc;

use fuser::{FileHandle, LockOwner, ReplyEmpty, ReplyLock, Request};
use mafs_proto::{LockKind, LockRange};

use super::convert::file;
use super::edge::{Edge, done};
use super::errno::{INVALID, errno};
use crate::vfs::{LockStop, RangeLock};

/// `F_RDLCK`, `F_WRLCK` and `F_UNLCK`.
const SHARED: i32 = 0;
const EXCLUSIVE: i32 = 1;
const UNLOCKED: i32 = 2;

/// The last byte that the kernel can name: a lock up to it goes on for ever.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// A lock as the kernel says it.
pub(super) struct AskedLock {
    pub(super) handle: FileHandle,
    pub(super) owner: LockOwner,
    /// 0 in a request to unlock.
    pub(super) process: u32,
    pub(super) start: u64,
    /// The last byte.
    pub(super) end: u64,
    pub(super) kind: i32,
}

impl AskedLock {
    fn range(&self) -> Option<LockRange> {
        LockRange::new(self.start, if self.end >= OFFSET_MAX { u64::MAX } else { self.end })
    }

    fn lock(&self) -> Option<RangeLock> {
        let kind = match self.kind {
            SHARED => LockKind::Shared,
            EXCLUSIVE => LockKind::Exclusive,
            _ => return None,
        };
        let owner = mafs_proto::LockOwner { id: self.owner.0, process: self.process, file: self.handle.0 };
        Some(RangeLock { owner, range: self.range()?, kind })
    }
}

/// Locks or unlocks a range.
pub(super) fn set(edge: &Arc<Edge>, request: &Request, asked: AskedLock, wait: bool, reply: ReplyEmpty) {
    let (file, owner) = (file(asked.handle), asked.owner.0);
    match (asked.kind, asked.range(), asked.lock()) {
        (UNLOCKED, Some(range), _) => edge.run(
            request,
            move |vfs| async move { vfs.unlock(file, owner, range).await },
            |_, result| done(reply, result),
            |_, ()| {},
        ),
        (_, _, Some(lock)) => {
            let stop = LockStop::default();
            let stopped = stop.clone();
            edge.run_until_interrupted(
                request,
                wait,
                move |vfs| async move { vfs.lock(file, lock, wait, stop).await },
                |_, result| done(reply, result),
                move || stopped.stop(),
            );
        }
        (_, _, None) => reply.error(INVALID),
    }
}

/// Answers with the lock that is in the way of another.
pub(super) fn test(edge: &Arc<Edge>, request: &Request, asked: AskedLock, reply: ReplyLock) {
    let file = file(asked.handle);
    let Some(lock) = asked.lock() else { return reply.error(INVALID) };
    edge.run(
        request,
        move |vfs| async move { vfs.lock_conflict(file, lock).await },
        move |_, result| match result {
            Ok(None) => reply.locked(asked.start, asked.end, UNLOCKED, 0),
            Ok(Some(conflict)) => {
                let kind = match conflict.kind {
                    LockKind::Shared => SHARED,
                    LockKind::Exclusive => EXCLUSIVE,
                };
                let (first, last) = (conflict.range.first(), conflict.range.last());
                reply.locked(first.min(OFFSET_MAX), last.min(OFFSET_MAX), kind, conflict.process);
            }
            Err(error) => reply.error(errno(&error)),
        },
        |_, _| {},
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(start: u64, end: u64, kind: i32) -> AskedLock {
        AskedLock { handle: FileHandle(3), owner: LockOwner(9), process: 7, start, end, kind }
    }

    #[test]
    fn a_lock_to_the_end_goes_on_for_ever() {
        let lock = asked(5, OFFSET_MAX, EXCLUSIVE).lock().unwrap();
        assert_eq!((lock.range.first(), lock.range.last(), lock.kind), (5, u64::MAX, LockKind::Exclusive));
        assert_eq!(asked(5, 5, SHARED).lock().unwrap().range.last(), 5);
        assert_eq!((lock.owner.id, lock.owner.process, lock.owner.file), (9, 7, 3));
    }

    #[test]
    fn what_makes_no_sense_is_no_lock() {
        assert!(asked(5, 4, SHARED).lock().is_none());
        assert!(asked(0, 4, 7).lock().is_none());
        assert!(asked(0, 4, UNLOCKED).lock().is_none());
    }
}
