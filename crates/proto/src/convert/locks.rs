//! Locks.

use super::{Convert, Malformed, at_most, list, optional, required, to_messages, wire};
use crate::call::{
    CancelLockRequest, GetStatusRequest, HeldLock, HeldLocks, LockConflict, LockReply, LockRequest, TestLockReply,
    TestLockRequest, UnlockRequest,
};
use crate::{Lock, LockKind, LockOwner, LockRange, ServerEpoch};

fn range(first: u64, last: u64) -> Result<LockRange, Malformed> {
    LockRange::new(first, last).ok_or_else(|| Malformed::invalid("last", "before the first"))
}

const fn kind_number(kind: LockKind) -> u32 {
    match kind {
        LockKind::Shared => 1,
        LockKind::Exclusive => 2,
    }
}

fn kind(number: u32) -> Result<LockKind, Malformed> {
    match number {
        1 => Ok(LockKind::Shared),
        2 => Ok(LockKind::Exclusive),
        _ => Err(Malformed::invalid("kind", format_args!("{number} is not 1 or 2"))),
    }
}

impl Convert for LockOwner {
    type Message = wire::LockOwner;
    const NAME: &'static str = "LockOwner";

    fn to_message(&self) -> wire::LockOwner {
        wire::LockOwner { id: self.id, process: self.process, file: self.file }
    }

    fn from_message(message: wire::LockOwner) -> Result<Self, Malformed> {
        Ok(Self { id: message.id, process: message.process, file: message.file })
    }
}

impl Convert for Lock {
    type Message = wire::Lock;
    const NAME: &'static str = "Lock";

    fn to_message(&self) -> wire::Lock {
        wire::Lock {
            fid: Some(self.fid.to_message()),
            owner: Some(self.owner.to_message()),
            first: self.range.first(),
            last: self.range.last(),
            kind: kind_number(self.kind),
        }
    }

    fn from_message(message: wire::Lock) -> Result<Self, Malformed> {
        Ok(Self {
            fid: required(message.fid, "fid")?,
            owner: required(message.owner, "owner")?,
            range: range(message.first, message.last)?,
            kind: kind(message.kind)?,
        })
    }
}

impl Convert for HeldLock {
    type Message = wire::HeldLock;
    const NAME: &'static str = "HeldLock";

    fn to_message(&self) -> wire::HeldLock {
        wire::HeldLock { lock: Some(self.lock.to_message()), granted: self.granted }
    }

    fn from_message(message: wire::HeldLock) -> Result<Self, Malformed> {
        Ok(Self { lock: required(message.lock, "lock")?, granted: message.granted })
    }
}

impl Convert for HeldLocks {
    type Message = wire::HeldLocks;
    const NAME: &'static str = "HeldLocks";

    fn to_message(&self) -> wire::HeldLocks {
        wire::HeldLocks {
            epoch: self.epoch.map_or(0, |epoch| epoch.0),
            grants: self.grants,
            locks: to_messages(&self.locks),
            fenced: self.fenced,
        }
    }

    fn from_message(message: wire::HeldLocks) -> Result<Self, Malformed> {
        Ok(Self {
            epoch: (message.epoch != 0).then_some(ServerEpoch(message.epoch)),
            grants: message.grants,
            locks: list(message.locks, Self::LOCKS_MAX, "locks")?,
            fenced: message.fenced,
        })
    }
}

impl Convert for LockRequest {
    type Message = wire::LockRequest;
    const NAME: &'static str = "LockRequest";

    fn to_message(&self) -> wire::LockRequest {
        wire::LockRequest {
            lock: Some(self.lock.to_message()),
            wait: self.wait,
            number: self.number,
            given_up: self.given_up,
            unanswered: to_messages(&self.unanswered),
        }
    }

    fn from_message(message: wire::LockRequest) -> Result<Self, Malformed> {
        Ok(Self {
            lock: required(message.lock, "lock")?,
            wait: message.wait,
            number: message.number,
            given_up: message.given_up,
            unanswered: list(message.unanswered, GetStatusRequest::RECORDS_MAX, "unanswered")?,
        })
    }
}

impl Convert for LockReply {
    type Message = wire::LockReply;
    const NAME: &'static str = "LockReply";

    fn to_message(&self) -> wire::LockReply {
        wire::LockReply { lock_grants: self.lock_grants, status: Some(self.status.to_message()) }
    }

    fn from_message(message: wire::LockReply) -> Result<Self, Malformed> {
        Ok(Self { lock_grants: message.lock_grants, status: required(message.status, "status")? })
    }
}

impl Convert for UnlockRequest {
    type Message = wire::UnlockRequest;
    const NAME: &'static str = "UnlockRequest";

    fn to_message(&self) -> wire::UnlockRequest {
        wire::UnlockRequest {
            fid: Some(self.fid.to_message()),
            owner: self.owner,
            first: self.range.first(),
            last: self.range.last(),
            except: self.except.clone(),
        }
    }

    fn from_message(message: wire::UnlockRequest) -> Result<Self, Malformed> {
        Ok(Self {
            fid: required(message.fid, "fid")?,
            owner: message.owner,
            range: range(message.first, message.last)?,
            except: at_most(message.except, Self::EXCEPT_MAX, "except")?,
        })
    }
}

impl Convert for TestLockRequest {
    type Message = wire::TestLockRequest;
    const NAME: &'static str = "TestLockRequest";

    fn to_message(&self) -> wire::TestLockRequest {
        wire::TestLockRequest { lock: Some(self.lock.to_message()) }
    }

    fn from_message(message: wire::TestLockRequest) -> Result<Self, Malformed> {
        Ok(Self { lock: required(message.lock, "lock")? })
    }
}

impl Convert for LockConflict {
    type Message = wire::LockConflict;
    const NAME: &'static str = "LockConflict";

    fn to_message(&self) -> wire::LockConflict {
        wire::LockConflict {
            first: self.range.first(),
            last: self.range.last(),
            kind: kind_number(self.kind),
            process: self.process,
        }
    }

    fn from_message(message: wire::LockConflict) -> Result<Self, Malformed> {
        Ok(Self { range: range(message.first, message.last)?, kind: kind(message.kind)?, process: message.process })
    }
}

impl Convert for TestLockReply {
    type Message = wire::TestLockReply;
    const NAME: &'static str = "TestLockReply";

    fn to_message(&self) -> wire::TestLockReply {
        wire::TestLockReply { conflict: self.conflict.as_ref().map(Convert::to_message) }
    }

    fn from_message(message: wire::TestLockReply) -> Result<Self, Malformed> {
        Ok(Self { conflict: optional(message.conflict)? })
    }
}

impl Convert for CancelLockRequest {
    type Message = wire::CancelLockRequest;
    const NAME: &'static str = "CancelLockRequest";

    fn to_message(&self) -> wire::CancelLockRequest {
        wire::CancelLockRequest { number: self.number }
    }

    fn from_message(message: wire::CancelLockRequest) -> Result<Self, Malformed> {
        Ok(Self { number: message.number })
    }
}
