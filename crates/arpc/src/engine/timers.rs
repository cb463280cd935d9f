//! Timers of one connection: a table, and the watch over a silent peer.
//!
//! Only four things ever wake an engine: an acknowledgement that nothing carried, a call's deadline, a peer that is
//! silent, a frame that was early.

use std::time::Duration;

use mafs_proto::Instant;

/// Silence after which a peer that owes something is probed.
const PROBE_AFTER: Duration = Duration::from_secs(2);
/// Silence after which an idle peer is probed.
const PROBE_IDLE_AFTER: Duration = Duration::from_secs(20);
/// How long a probe may stay unanswered: with [`PROBE_AFTER`] 10 s of silence, with [`PROBE_IDLE_AFTER`] less than 30
/// s.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);

/// What an engine can be woken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// When to acknowledge although no frame carries the acknowledgement.
    Acknowledge,
    /// When the first call's deadline passes.
    Deadline,
    /// When to ask a silent peer for a sign of life.
    Probe,
    /// When a silent peer is given up.
    Dead,
    /// When the next frame may go that was early.
    Pace,
}

impl Timer {
    const ALL: [Self; 5] = [Self::Acknowledge, Self::Deadline, Self::Probe, Self::Dead, Self::Pace];
}

/// When each timer fires.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    at: [Option<Instant>; Timer::ALL.len()],
}

impl Timers {
    pub(crate) fn set(&mut self, timer: Timer, at: Option<Instant>) {
        self.at[timer as usize] = at;
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.at.into_iter().flatten().min()
    }

    /// Takes a timer that has fired.
    pub(crate) fn expired(&mut self, now: Instant) -> Option<Timer> {
        let timer = Timer::ALL.into_iter().find(|timer| self.at[*timer as usize].is_some_and(|at| at <= now))?;
        self.at[timer as usize] = None;
        Some(timer)
    }
}

/// A timer that comes this much late says that this end was suspended or stopped.
const LATE: Duration = Duration::from_secs(2);

/// Watches for silence. A peer is given up only after it failed to answer a probe, so that silence during a suspend
/// does not count.
#[derive(Debug)]
pub(crate) struct Liveness {
    quiet_since: Instant,
    owed: bool,
    probed_at: Option<Instant>,
}

impl Liveness {
    pub(crate) fn new(now: Instant) -> Self {
        Self { quiet_since: now, owed: false, probed_at: None }
    }

    /// The peer gave a sign of life.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.quiet_since = now;
        self.probed_at = None;
    }

    /// Whether the peer owes something: an answer or an acknowledgement.
    pub(crate) fn set_owed(&mut self, owed: bool, now: Instant) {
        if owed && !self.owed {
            self.quiet_since = self.quiet_since.max(now);
        }
        self.owed = owed;
    }

    /// Notes that a probe is sent.
    pub(crate) fn probed(&mut self, now: Instant) {
        self.probed_at = Some(now);
    }

    /// When to probe.
    pub(crate) fn probe_at(&self) -> Option<Instant> {
        let after = if self.owed { PROBE_AFTER } else { PROBE_IDLE_AFTER };
        self.probed_at.is_none().then(|| self.quiet_since + after)
    }

    /// When to give the peer up.
    pub(crate) fn dead_at(&self) -> Option<Instant> {
        Some(self.probed_at? + ANSWER_WITHIN)
    }

    /// Whether this end was not awake when it should have given the peer up.
    pub(crate) fn slept(&self, now: Instant) -> bool {
        self.dead_at().is_some_and(|at| now.since(at) >= LATE)
    }

    /// How long the peer has been silent.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        now.since(self.quiet_since)
    }
}
