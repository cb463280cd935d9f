//! The rate of a direction: steady, in steps, or by a trace.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mafs_proto::Instant;

use super::trace::{Playback, Trace};

const NANOS_PER_S: u128 = 1_000_000_000;

/// The rate of a direction over time.
#[derive(Clone, Debug)]
pub enum Rate {
    /// One rate after another, in bytes per second; 0 counts as 1.
    Steps {
        /// The rate at the start.
        first: u64,
        /// Other rates, each from a time since the start on, in the order of time.
        then: Vec<(Duration, u64)>,
    },
    /// The delivery opportunities of a trace, again and again. In its gaps packets wait in the queue.
    Trace(Arc<Trace>),
}

impl Rate {
    /// Makes a rate of so many bytes per second at all times; 0 counts as 1.
    #[must_use]
    pub const fn constant(bytes_per_s: u64) -> Self {
        Self::Steps { first: bytes_per_s, then: Vec::new() }
    }
}

/// The time during which a packet was sent, in which a channel can spoil it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OnAir {
    pub(super) from: Instant,
    pub(super) to: Instant,
}

/// The transmitter: sends one thing after the other at the rate of the time.
#[derive(Debug)]
pub(super) struct Line {
    pace: Pace,
    free_at: Instant,
}

#[derive(Debug)]
enum Pace {
    Steps(Steps),
    Trace(Playback),
}

impl Line {
    pub(super) fn new(rate: &Rate) -> Self {
        let pace = match rate {
            Rate::Steps { first, then } => Pace::Steps(Steps {
                bytes_per_s: (*first).max(1),
                then: then.iter().map(|(after, rate)| (Instant(0) + *after, (*rate).max(1))).collect(),
                ahead: 0,
            }),
            Rate::Trace(trace) => Pace::Trace(Playback::new(Arc::clone(trace))),
        };
        Self { pace, free_at: Instant(0) }
    }

    /// Sends `bytes` that are there at `ready`, after earlier bytes.
    pub(super) fn carry(&mut self, bytes: u64, ready: Instant) -> OnAir {
        let air = match &mut self.pace {
            Pace::Steps(steps) => {
                if ready > self.free_at {
                    steps.ahead = 0;
                }
                steps.carry(bytes, ready.max(self.free_at))
            }
            Pace::Trace(playback) => playback.carry(bytes, ready),
        };
        self.free_at = air.to;
        air
    }

    /// Sends an answer of the link level. A trace counts the bytes that hosts get, so answers take nothing of it.
    pub(super) fn carry_answer(&mut self, bytes: u64, ready: Instant) -> OnAir {
        match self.pace {
            Pace::Steps(_) => self.carry(bytes, ready),
            Pace::Trace(_) => OnAir { from: ready, to: ready },
        }
    }
}

/// A rate in steps. Work is counted in bytes times nanoseconds per second, so that nothing is rounded on the way.
#[derive(Debug)]
struct Steps {
    bytes_per_s: u64,
    then: VecDeque<(Instant, u64)>,
    /// Work that could have been done in the rest of the last nanosecond: it does not get lost if the line stays busy.
    ahead: u128,
}

impl Steps {
    fn carry(&mut self, bytes: u64, from: Instant) -> OnAir {
        let mut left = (u128::from(bytes) * NANOS_PER_S).saturating_sub(self.ahead);
        let mut at = from;
        while let Some((change, next)) = self.then.front().copied() {
            let carried = u128::from(self.bytes_per_s) * change.since(at).as_nanos();
            if carried >= left {
                break;
            }
            left -= carried;
            at = at.max(change);
            self.bytes_per_s = next;
            self.then.pop_front();
        }
        let nanos = left.div_ceil(u128::from(self.bytes_per_s));
        self.ahead = nanos * u128::from(self.bytes_per_s) - left;
        OnAir { from, to: Instant(at.0.saturating_add(u64::try_from(nanos).unwrap_or(u64::MAX))) }
    }
}
