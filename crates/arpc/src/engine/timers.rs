//! Timers of one connection: a table, and the watch over a silent peer.
//!
//! Only seven things ever wake an engine: an acknowledgement that no frame carried, a call's deadline, a peer that is
//! silent, one that is silent for a moment, a frame that was early, a limit that lets the next frame pass, a change of
//! the link that is to be told.

use std::time::Duration;

use mafs_proto::Instant;

use crate::Backoff;

/// Silence after which an idle peer is probed.
pub(super) const PROBE_IDLE_AFTER: Duration = Duration::from_secs(20);
/// The silence, at the connecting end and at the other, after which an idle peer is probed where an idle connection is
/// to send next to nothing: three packets a minute, for the other end leaves the probing to the first.
pub(super) const PROBE_IDLE_AFTER_IN_DATAGRAMS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(75)];
/// Bounds of the wait for a sign of life from a peer that owes something; the upper bound is `timeo`'s default
/// (cli.md), the wait before anything is known is RFC 6298's.
const WAIT_MIN: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(7);
const WAIT_FIRST: Duration = Duration::from_secs(1);
/// How long probes may stay unanswered, or four times the round trip if that is more (cli.md, "Path dead").
const DEAD_AFTER: Duration = Duration::from_secs(5);
/// How long probes may stay unanswered once this end's network has changed, or four times the round trip likewise.
const DEAD_AFTER_CHANGE: Duration = Duration::from_secs(1);

/// The reasons to wake an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// When to acknowledge although no frame carries the acknowledgement.
    Acknowledge,
    /// When the first call's deadline passes.
    Deadline,
    /// When to ask a silent peer for a sign of life.
    Probe,
    /// When to tell the transports what they have lost in a short silence.
    Nudge,
    /// When a silent peer is given up.
    Dead,
    /// When the next frame may go that was early.
    Pace,
    /// When a limit lets the next frame of a class pass.
    Limit,
    /// When to tell watchers of the link that it has changed.
    Notice,
}

impl Timer {
    const ALL: [Self; 8] = [
        Self::Acknowledge,
        Self::Deadline,
        Self::Probe,
        Self::Nudge,
        Self::Dead,
        Self::Pace,
        Self::Limit,
        Self::Notice,
    ];
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
    idle_after: Duration,
    quiet_since: Instant,
    owed: bool,
    rtt: SmoothedRtt,
    probing: Option<Probing>,
}

/// Probes that nothing has answered.
#[derive(Debug)]
struct Probing {
    next_at: Instant,
    dead_at: Instant,
    backoff: Backoff,
}

impl Liveness {
    /// Starts to watch a peer, which is probed after so much silence if it is idle.
    pub(crate) fn new(idle_after: Duration, now: Instant) -> Self {
        let rtt = SmoothedRtt::default();
        Self { idle_after, quiet_since: now, owed: false, rtt, probing: None }
    }

    /// Notes that the peer gave a sign of life.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.quiet_since = now;
        self.probing = None;
    }

    /// Notes how long a round trip took, queues included, if one has ended. After a suspend, an acknowledgement that
    /// had come before it seems to have taken hours.
    pub(crate) fn observe_rtt(&mut self, rtt: Option<Duration>) {
        rtt.into_iter().for_each(|rtt| self.rtt.observe(rtt.min(WAIT_MAX)));
    }

    /// Returns the smoothed round-trip time, queues included.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        self.rtt.smoothed
    }

    /// Notes whether the peer owes something: an answer or an acknowledgement.
    pub(crate) fn set_owed(&mut self, owed: bool, now: Instant) {
        if owed && !self.owed {
            self.quiet_since = self.quiet_since.max(now);
        }
        self.owed = owed;
    }

    /// Notes that a probe is sent.
    pub(crate) fn probed(&mut self, now: Instant) {
        let (step, dead_at) = (self.rtt.wait(), now + self.patience(DEAD_AFTER));
        let first = Probing { next_at: now, dead_at, backoff: Backoff::new(step, WAIT_MAX) };
        let probing = self.probing.get_or_insert(first);
        probing.next_at = now + probing.backoff.next_delay();
    }

    /// Notes that a probe is sent because this end's network has changed. If `hurried`, the answer is awaited for a
    /// shorter time than usual, where it is known how long answers take.
    pub(crate) fn probed_after_change(&mut self, hurried: bool, now: Instant) {
        self.probing.iter_mut().for_each(|probing| probing.backoff.reset());
        self.probed(now);
        let dead_at = now + self.patience(DEAD_AFTER_CHANGE);
        if let Some(probing) = self.probing.as_mut().filter(|_| hurried && self.rtt.smoothed.is_some()) {
            probing.dead_at = probing.dead_at.min(dead_at);
        }
    }

    fn patience(&self, least: Duration) -> Duration {
        least.max(4 * self.rtt.smoothed.unwrap_or_default())
    }

    /// Returns when to probe.
    pub(crate) fn probe_at(&self) -> Instant {
        match &self.probing {
            Some(probing) => probing.next_at,
            None if self.owed => self.quiet_since + self.rtt.wait(),
            None => self.quiet_since + self.idle_after,
        }
    }

    /// Returns when to give the peer up.
    pub(crate) fn dead_at(&self) -> Option<Instant> {
        self.probing.as_ref().map(|probing| probing.dead_at)
    }

    /// Gives the peer another chance: this end was not awake when it should have given the peer up.
    pub(crate) fn wake_up(&mut self) {
        self.probing = None;
    }

    /// Whether this end was not awake when it should have given the peer up.
    pub(crate) fn slept(&self, now: Instant) -> bool {
        self.dead_at().is_some_and(|at| now.since(at) >= LATE)
    }

    /// Returns how long the peer has been silent.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        now.since(self.quiet_since)
    }
}

/// The round-trip time as RFC 6298 smooths it.
#[derive(Debug, Default)]
struct SmoothedRtt {
    smoothed: Option<Duration>,
    variation: Duration,
}

impl SmoothedRtt {
    fn observe(&mut self, rtt: Duration) {
        let Some(smoothed) = self.smoothed else {
            (self.smoothed, self.variation) = (Some(rtt), rtt / 2);
            return;
        };
        self.variation = (3 * self.variation + smoothed.abs_diff(rtt)) / 4;
        self.smoothed = Some((7 * smoothed + rtt) / 8);
    }

    /// Returns how long an answer may take before it is missed: twice RFC 6298's time, for a probe too many costs
    /// little, but not nothing.
    fn wait(&self) -> Duration {
        let Some(smoothed) = self.smoothed else { return WAIT_FIRST };
        (2 * (smoothed + 4 * self.variation)).clamp(WAIT_MIN, WAIT_MAX)
    }
}
