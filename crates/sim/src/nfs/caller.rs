//! A client with a file calls for its blocks, and calls again for those that stay out.

use std::collections::BTreeMap;

use mafs_proto::Instant;

use super::timer::Timer;
use super::{Client, Operation};

/// The bytes of a call and a reply besides the block: RPC's header, the file's handle or attributes (RFC 1094).
pub(super) const CALL_BYTES: u64 = 144;
pub(super) const REPLY_BYTES: u64 = 112;

/// A client that has a file under way.
#[derive(Debug)]
pub(super) struct Caller {
    client: Client,
    operation: Operation,
    blocks: u64,
    timer: Timer,
    host_free: Instant,
    /// Blocks that have been called for.
    begun: u64,
    /// Blocks without a reply, and when each was called for last.
    waiting: BTreeMap<u64, Instant>,
    repeated: u64,
}

impl Caller {
    pub(super) fn new(client: Client, operation: Operation, file_bytes: u64) -> Self {
        Self {
            client,
            operation,
            blocks: file_bytes.div_ceil(client.block_bytes),
            timer: Timer::new(client.backoff),
            host_free: Instant(0),
            begun: 0,
            waiting: BTreeMap::new(),
            repeated: 0,
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// The next block to call for, if another call may be under way.
    pub(super) fn begin(&mut self, now: Instant) -> Option<u64> {
        let block = self.begun;
        if block == self.blocks || self.waiting.len() >= self.client.calls {
            return None;
        }
        self.begun += 1;
        self.waiting.insert(block, now);
        Some(block)
    }

    /// A reply is here. Returns when the host can begin another block, unless the reply came before.
    pub(super) fn take(&mut self, block: u64, now: Instant) -> Option<Instant> {
        self.waiting.remove(&block)?;
        self.timer.answered();
        self.host_free = self.host_free.max(now) + self.client.host;
        Some(self.host_free)
    }

    /// The blocks without a reply.
    pub(super) fn waiting(&self) -> Vec<u64> {
        self.waiting.keys().copied().collect()
    }

    /// Says whether a block is to be called for again now, and counts that.
    pub(super) fn repeat_if_late(&mut self, block: u64, now: Instant) -> bool {
        let wait = self.timer.wait();
        let Some(called) = self.waiting.get_mut(&block).filter(|called| now.since(**called) >= wait) else {
            return false;
        };
        *called = now;
        self.timer.timed_out();
        self.repeated += 1;
        true
    }

    /// True when all blocks have their replies.
    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.begun == self.blocks
    }

    /// The calls that were sent again.
    pub(super) fn repeated(&self) -> u64 {
        self.repeated
    }

    /// The bytes of a call.
    pub(super) fn call_bytes(&self) -> u64 {
        CALL_BYTES + if self.operation == Operation::Write { self.client.block_bytes } else { 0 }
    }

    /// The bytes of a reply.
    pub(super) fn reply_bytes(&self) -> u64 {
        REPLY_BYTES + if self.operation == Operation::Read { self.client.block_bytes } else { 0 }
    }
}
