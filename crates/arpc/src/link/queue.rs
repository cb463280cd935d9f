//! A drop-tail queue, of which only the bytes are kept: when each entry leaves is known on entry.

use std::collections::VecDeque;

use mafs_proto::Instant;

/// Bytes that have entered and not left. Asked in order of time.
#[derive(Debug)]
pub(super) struct Queue {
    limit_bytes: u64,
    held_bytes: u64,
    /// When each entry leaves, in that order. Bounded: entries have at least one byte.
    leaving: VecDeque<(Instant, u64)>,
}

impl Queue {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, held_bytes: 0, leaving: VecDeque::new() }
    }

    /// Raises the limit.
    pub(super) fn add_room(&mut self, bytes: u64) {
        self.limit_bytes += bytes;
    }

    pub(super) fn held_bytes(&mut self, now: Instant) -> u64 {
        while let Some((_, bytes)) = self.leaving.front().filter(|(at, _)| *at <= now) {
            self.held_bytes -= bytes;
            self.leaving.pop_front();
        }
        self.held_bytes
    }

    pub(super) fn room_bytes(&mut self, now: Instant) -> u64 {
        self.limit_bytes.saturating_sub(self.held_bytes(now))
    }

    pub(super) fn has_room(&mut self, bytes: u64, now: Instant) -> bool {
        bytes <= self.room_bytes(now)
    }

    pub(super) fn push(&mut self, bytes: u64, leaves: Instant) {
        self.held_bytes += bytes;
        self.leaving.push_back((leaves, bytes));
    }

    /// Returns when no more than the limit is held; `now` if this is so already.
    pub(super) fn within_limit_at(&mut self, now: Instant) -> Instant {
        let mut held = self.held_bytes(now);
        let mut at = now;
        for (leaves, bytes) in &self.leaving {
            if held <= self.limit_bytes {
                break;
            }
            held -= bytes;
            at = *leaves;
        }
        at
    }
}
