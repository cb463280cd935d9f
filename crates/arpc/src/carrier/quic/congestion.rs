//! The congestion window of a QUIC connection: a guard around the engine's window, fair to others.
//!
//! The engine's window keeps little more in flight than the link holds, so most of the time this one is the larger of
//! the two and changes nothing. This window is there for a case that the engine does not judge: a bottleneck that
//! others share. Loss tells nothing there, for a radio loses packets in bursts on an empty path; a queue does. So:
//!
//! - losses that end a silence were a burst of errors, and change nothing: a full queue goes on delivering;
//! - another loss leaves the bytes that the path holds, as long as there is no queue;
//! - a queue that stands is drained, down to the bytes that the path holds;
//! - a queue that stands all the same is another flow's, which would take all of the link from a flow that gives way to
//!   queues. Then the window follows losses as TCP's CUBIC does (RFC 9438), until the queue has been empty once. Arun
//!   and Balakrishnan have such a switch ("Copa: Practical Delay-Based Congestion Control for the Internet", NSDI 2018,
//!   section 4).
//!
//! The path holds the rate of delivery, as a windowed maximum, times the least round trip. The least round trip of a
//! path is never forgotten: if the path gets longer, the difference is taken for another flow's queue, and the window
//! follows losses from then on.

use std::time::Duration;

use mafs_proto::Instant;

/// Packets in the first window (RFC 9002, section 7.2).
const FIRST_PACKETS: u64 = 10;
/// The least window after a loss into a standing queue, in packets.
const LEAST_PACKETS: u64 = 4;
/// Packets beyond the path's own bytes, after a loss without a queue.
const SPARE_PACKETS: u64 = 4;
/// While losses come without a queue, so often the window is small for a round, to see whether there is one; or after
/// so many times the round trip, if that is more.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const LOOK_TIMES: u32 = 40;
const LOOK_ROUNDS: u32 = 1;
/// A silence is at least so long, and as long as so many packets take at this end's own rate.
const SILENCE_MIN: Duration = Duration::from_millis(20);
const SILENCE_PACKETS: u64 = 6;
/// A window that has less room than this many packets grows.
const ROOM_PACKETS: u64 = 6;
/// A queue of less than this, of half a round trip, or of this many packets is nothing to speak of. The packets are
/// those of the first window and two more: on a slow link they are all the queue that a lone flow needs. The engine's
/// own window never makes more: half a round trip, or two chunks of 10 ms.
const QUEUE_MIN: Duration = Duration::from_millis(25);
const QUEUE_PACKETS: u64 = FIRST_PACKETS + 2;
const QUEUE_PACKETS_MAX: Duration = Duration::from_secs(1);
/// After so many rounds that a window as large as the path has not ended, a queue is another flow's.
const FOREIGN_ROUNDS: u32 = 5;
/// After so many rounds in a full window and without a queue the window doubles as it did at first.
const EMPTY_ROUNDS: u32 = 4;
/// RFC 9438: how fast the window comes back to its size before a loss, in packets per cubic second, and how much an
/// AIMD window of the same share grows in a round, in packets.
const CUBIC_SCALE: f64 = 0.4;
const CUBIC_STEP: f64 = 0.53;
/// The rate forgets measurements older than one to two times this, or than this many rounds.
const RATE_MEMORY: Duration = Duration::from_secs(1);
const RATE_ROUNDS: u32 = 10;

/// The news that an acknowledged packet brings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked {
    /// How many bytes the packet had.
    pub(super) bytes: u64,
    /// When it went.
    pub(super) sent_at: Instant,
    /// The round trip of late, smoothed, without the time that acknowledgements wait.
    pub(super) rtt: Duration,
    /// The least round trip of this path.
    pub(super) rtt_min: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// The window doubles in a round, until there is a queue or a loss.
    Growing,
    /// The window keeps the queue short. For so many rounds there was none although the window was full.
    Steady { empty: u32 },
    /// The window gives way to a queue, from this size on. For so many rounds it was as small as it can help.
    Draining { from: u64, rounds: u32 },
    /// The window takes its share of another flow's queue.
    Sharing(Cubic),
}

/// The state of a window that follows losses: its sizes before the last one and after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cubic {
    before: u64,
    after: u64,
    since: Instant,
}

/// The window of one path.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    mtu: u64,
    window: u64,
    mode: Mode,
    rate: RateMax,
    /// The most that this path has ever carried: more than its own share, if others came later.
    most: u64,
    rtt_min: Duration,
    round: Round,
    in_flight: u64,
    /// When the last packet was acknowledged, and whether there had been a silence before that.
    heard_at: Instant,
    after_silence: bool,
    /// The queue of the round before.
    queue: Duration,
    looking: Looking,
    /// Losses of packets sent before this time are one event.
    reacted_at: Instant,
}

/// The check whether the path is shorter than it seems.
#[derive(Clone, Copy, Debug)]
struct Looking {
    /// Whether there were losses without a queue since the path was looked at last.
    wanted: bool,
    /// When the path was looked at last.
    at: Instant,
    /// How many more rounds the path is being looked at.
    rounds: u32,
}

/// A round trip, which lasts until a packet is acknowledged that went after its beginning.
#[derive(Clone, Copy, Debug)]
struct Round {
    since: Instant,
    delivered: u64,
    /// The least round-trip time in it: a queue that adds to all of them stands.
    rtt: Option<Duration>,
    /// The most bytes in flight.
    peak: u64,
}

/// A maximum over the present epoch and the one before, in bytes per second.
#[derive(Clone, Copy, Debug, Default)]
struct RateMax {
    since: Instant,
    present: u64,
    before: u64,
}

impl Congestion {
    pub(super) fn new(mtu: u64, now: Instant) -> Self {
        Self {
            mtu,
            window: FIRST_PACKETS * mtu,
            mode: Mode::Growing,
            rate: RateMax { since: now, ..RateMax::default() },
            most: 0,
            rtt_min: Duration::ZERO,
            round: Round::begin(now, 0),
            in_flight: 0,
            heard_at: now,
            after_silence: false,
            queue: Duration::ZERO,
            looking: Looking { wanted: false, at: now, rounds: 0 },
            reacted_at: now,
        }
    }

    /// Returns the most bytes that may be in flight.
    pub(super) fn window(&self) -> u64 {
        if self.looking.rounds > 0 { self.window.min(LEAST_PACKETS * self.mtu) } else { self.window }
    }

    /// Notes that packets are now so large.
    pub(super) fn set_mtu(&mut self, mtu: u64) {
        self.mtu = mtu;
        self.window = self.window.max(LEAST_PACKETS * mtu);
    }

    /// Notes that a packet goes.
    pub(super) fn sent(&mut self, bytes: u64) {
        self.in_flight += bytes;
        self.round.peak = self.round.peak.max(self.in_flight);
    }

    /// Notes that a packet is acknowledged.
    pub(super) fn acked(&mut self, acked: Acked, now: Instant) {
        let Acked { bytes, sent_at, rtt, rtt_min } = acked;
        self.in_flight = self.in_flight.saturating_sub(bytes);
        self.rtt_min = rtt_min;
        if now > self.heard_at {
            let silence = SILENCE_MIN.max(self.packets_time(SILENCE_PACKETS, self.rate.max()));
            self.after_silence = now.since(self.heard_at) >= silence;
            self.heard_at = now;
        }
        self.round.delivered += bytes;
        self.round.rtt = Some(self.round.rtt.map_or(rtt, |least| least.min(rtt)));
        if self.mode == Mode::Growing && self.is_full() {
            self.window += bytes;
        }
        if sent_at >= self.round.since && now > self.round.since {
            self.end_round(now);
        }
    }

    /// Notes how much is in flight, when acknowledgements and losses are counted.
    pub(super) fn set_in_flight(&mut self, bytes: u64) {
        self.in_flight = bytes;
    }

    /// Notes that so many bytes are lost, the last of which went at `sent_at`; none: the network says that it has a
    /// queue. Bytes lost without a queue have had their time on the link.
    pub(super) fn lost(&mut self, bytes: u64, sent_at: Instant, now: Instant) {
        let (before, standing) = (self.window, bytes == 0 || self.queue_now() > self.queue_max());
        if !standing {
            self.round.delivered += bytes;
        }
        if sent_at < self.reacted_at {
            return;
        }
        self.reacted_at = now;
        if self.after_silence && !standing {
            return;
        }
        self.looking.wanted |= !standing;
        let least = if standing {
            self.path_bytes().max(LEAST_PACKETS * self.mtu)
        } else {
            self.path_bytes() + SPARE_PACKETS * self.mtu
        };
        self.window = before.min((before * 7 / 10).max(least));
        self.mode = match self.mode {
            Mode::Growing | Mode::Steady { .. } => Mode::Steady { empty: 0 },
            Mode::Sharing(cubic) => {
                // A flow that has lost some of its share leaves more to newcomers.
                let before = if before < cubic.before { before * 17 / 20 } else { before };
                Mode::Sharing(Cubic { before, after: self.window, since: now })
            }
            Mode::Draining { .. } => self.mode,
        };
    }

    /// Whether the window leaves little room.
    fn is_full(&self) -> bool {
        self.round.peak + ROOM_PACKETS * self.mtu >= self.window
    }

    fn end_round(&mut self, now: Instant) {
        let elapsed = now.since(self.round.since);
        self.rate.observe(self.round.delivered, elapsed, RATE_MEMORY.max(RATE_ROUNDS * self.rtt_min), now);
        self.most = self.most.max(self.rate.max());
        if self.looking.look(self.rtt_min + self.queue, now) {
            self.round = Round::begin(now, self.in_flight);
            return;
        }
        self.queue = self.queue_now();
        let full = self.is_full();
        // Losses are followed until the queue is next to nothing.
        let least = match self.mode {
            Mode::Sharing(_) => self.queue_max() / 4,
            Mode::Growing | Mode::Steady { .. } | Mode::Draining { .. } => self.queue_max(),
        };
        self.mode = if self.queue > least { self.queued(full, now) } else { self.unqueued(full) };
        self.round = Round::begin(now, self.in_flight);
    }

    /// Ends a round without a queue worth the name.
    fn unqueued(&mut self, full: bool) -> Mode {
        let empty = match self.mode {
            Mode::Growing => return Mode::Growing,
            Mode::Steady { empty } => empty,
            Mode::Draining { .. } | Mode::Sharing(_) => 0,
        };
        if !full {
            return Mode::Steady { empty: 0 };
        }
        self.window += self.mtu;
        let empty = if self.queue < self.queue_max() / 4 { empty + 1 } else { 0 };
        if empty > EMPTY_ROUNDS { Mode::Growing } else { Mode::Steady { empty } }
    }

    /// Ends a round in which a queue stood.
    fn queued(&mut self, full: bool, now: Instant) -> Mode {
        let (from, rounds) = match self.mode {
            Mode::Sharing(cubic) => {
                if full {
                    self.window = cubic.window(self.window, self.mtu, self.rtt_min + self.queue, now);
                }
                return Mode::Sharing(cubic);
            }
            Mode::Draining { from, rounds } => (from, rounds),
            Mode::Growing | Mode::Steady { .. } => (self.window, 0),
        };
        let enough = (self.path_bytes() + self.bytes_in(self.queue_max() * 3 / 4)).max(FIRST_PACKETS * self.mtu);
        self.window = self.window.min((self.window * 7 / 8).max(enough));
        let rounds = if self.window <= enough { rounds + 1 } else { rounds };
        if rounds > FOREIGN_ROUNDS {
            return Mode::Sharing(Cubic { before: from, after: self.window, since: now });
        }
        Mode::Draining { from, rounds }
    }

    fn queue_now(&self) -> Duration {
        self.round.rtt.map_or(self.queue, |rtt| rtt.saturating_sub(self.rtt_min))
    }

    /// Returns the longest queue that does not count as one.
    fn queue_max(&self) -> Duration {
        let packets = self.packets_time(QUEUE_PACKETS, self.most).min(QUEUE_PACKETS_MAX);
        QUEUE_MIN.max(self.rtt_min / 2).max(packets)
    }

    /// Returns how long so many packets take at a rate.
    fn packets_time(&self, packets: u64, rate: u64) -> Duration {
        Duration::from_nanos(packets * self.mtu * 1_000_000_000 / rate.max(1))
    }

    /// Returns the bytes that the path holds.
    fn path_bytes(&self) -> u64 {
        self.bytes_in(self.rtt_min)
    }

    fn bytes_in(&self, time: Duration) -> u64 {
        u64::try_from(u128::from(self.rate.max()) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX / 8)
    }
}

impl Cubic {
    /// Returns the window this long after a loss (RFC 9438, sections 4.2 and 4.3), which never shrinks.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "packets")]
    fn window(&self, window: u64, mtu: u64, rtt: Duration, now: Instant) -> u64 {
        let packets = |bytes: u64| bytes as f64 / mtu as f64;
        let (elapsed, missing) = (now.since(self.since).as_secs_f64(), self.before.saturating_sub(self.after));
        let time = elapsed - (packets(missing) / CUBIC_SCALE).cbrt();
        let target = CUBIC_SCALE * time.powi(3) + packets(self.before);
        let friendly = packets(self.after) + CUBIC_STEP * elapsed / rtt.as_secs_f64().max(f64::EPSILON);
        let wanted = target.min(1.5 * packets(window)).max(friendly);
        ((wanted * mtu as f64) as u64).max(window)
    }
}

impl Looking {
    /// Whether the path is being looked at in the round that begins now, or has been in the one that ends.
    fn look(&mut self, rtt: Duration, now: Instant) -> bool {
        if self.rounds > 0 {
            self.rounds -= 1;
            return true;
        }
        let due = self.wanted && now.since(self.at) >= LOOK_EVERY.max(LOOK_TIMES * rtt);
        if due {
            *self = Self { wanted: false, at: now, rounds: LOOK_ROUNDS };
        }
        due
    }
}

impl Round {
    fn begin(now: Instant, in_flight: u64) -> Self {
        Self { since: now, delivered: 0, rtt: None, peak: in_flight }
    }
}

impl RateMax {
    fn observe(&mut self, bytes: u64, time: Duration, memory: Duration, now: Instant) {
        let rate = u64::try_from(u128::from(bytes) * 1_000_000_000 / time.as_nanos().max(1)).unwrap_or(u64::MAX);
        if now.since(self.since) >= memory {
            (self.before, self.present, self.since) = (self.present, 0, now);
        }
        self.present = self.present.max(rate);
    }

    fn max(&self) -> u64 {
        self.present.max(self.before)
    }
}
#[cfg(test)]
mod tests;
