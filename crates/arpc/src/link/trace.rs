//! Rate traces in Mahimahi's format: each line is a time in milliseconds at which one packet can cross the link.
//!
//! The rules are those of mm-link(1): times do not decrease, the last one is also the length of the trace, which then
//! begins again; an opportunity carries [`PACKET_BYTES`] of the waiting bytes, packets may share one or need several,
//! and a packet that comes at the very moment of an opportunity is too late for it. (mm-link's own opportunity has 4
//! bytes more, for the header that its TUN device puts before each packet.)

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use mafs_proto::Instant;

use super::PACKET_BYTES;
use super::rate::OnAir;

/// The longest trace: 8 MB in memory, 40 minutes at 10 Mbit/s.
pub(super) const OPPORTUNITIES_MAX: usize = 1 << 21;
const NANOS_PER_MS: u64 = 1_000_000;
/// How much of a wrong line an error shows.
const SHOWN_CHARS_MAX: usize = 24;

/// The times when packets can cross a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The times in order, not empty, the last one not 0.
    at_ms: Vec<u32>,
}

/// The reason why a text is not a trace.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TraceError {
    /// A line is something else than a time.
    #[error("line {line} of the trace is `{found}`, not a time in milliseconds below 4,294,967,296")]
    NotATime {
        /// The number of the line, from 1.
        line: usize,
        /// The beginning of the line.
        found: String,
    },
    /// Time goes back.
    #[error("line {line} of the trace is {at_ms} ms, before the {before_ms} ms above it: sort the trace")]
    Backwards {
        /// The number of the line, from 1.
        line: usize,
        /// The time in the line.
        at_ms: u32,
        /// The time in the line above.
        before_ms: u32,
    },
    /// There is no line, or the last one is 0: a trace that is repeated must take time.
    #[error("the trace has no length: its last line must be a time after 0 ms")]
    NoLength,
    /// Too many lines.
    #[error("the trace has more than {OPPORTUNITIES_MAX} lines: cut it, it is repeated anyway")]
    TooLong,
}

impl Trace {
    /// Makes a trace of these times, in milliseconds.
    ///
    /// # Errors
    /// The first fault in them.
    pub fn new(at_ms: Vec<u32>) -> Result<Self, TraceError> {
        if at_ms.len() > OPPORTUNITIES_MAX {
            return Err(TraceError::TooLong);
        }
        if let Some(index) = at_ms.windows(2).position(|pair| pair[1] < pair[0]) {
            return Err(TraceError::Backwards { line: index + 2, at_ms: at_ms[index + 1], before_ms: at_ms[index] });
        }
        match at_ms.last() {
            None | Some(0) => Err(TraceError::NoLength),
            Some(_) => Ok(Self { at_ms }),
        }
    }

    /// Makes a trace of times that are right by construction.
    pub(super) fn generated(at_ms: Vec<u32>) -> Self {
        debug_assert!(at_ms.len() <= OPPORTUNITIES_MAX && at_ms.is_sorted() && at_ms.last().is_some_and(|at| *at > 0));
        Self { at_ms }
    }

    /// Parses the text of a trace file. Its `Display` writes the same text again.
    ///
    /// # Errors
    /// The first fault, and its line.
    pub fn parse(text: &[u8]) -> Result<Self, TraceError> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        if text.is_empty() {
            return Err(TraceError::NoLength);
        }
        let lines = text.split(|byte| *byte == b'\n').take(OPPORTUNITIES_MAX + 1);
        let times = lines.enumerate().map(|(index, line)| {
            parse_time(line).ok_or_else(|| TraceError::NotATime { line: index + 1, found: shown(line) })
        });
        Self::new(times.collect::<Result<_, _>>()?)
    }

    /// Returns the times, in milliseconds.
    #[must_use]
    pub fn at_ms(&self) -> &[u32] {
        &self.at_ms
    }

    /// Returns the length, in milliseconds: the last time.
    #[must_use]
    pub fn length_ms(&self) -> u32 {
        self.at_ms.last().copied().unwrap_or(1)
    }

    /// Returns the rate of the whole trace, in bytes per second.
    #[must_use]
    pub fn bytes_per_s(&self) -> u64 {
        self.at_ms.len() as u64 * PACKET_BYTES * 1000 / u64::from(self.length_ms())
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.at_ms.iter().try_for_each(|at| writeln!(f, "{at}"))
    }
}

/// Parses a decimal number without sign, space or anything else.
fn parse_time(line: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(line).ok().filter(|line| line.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

fn shown(line: &[u8]) -> String {
    // No character has more than 4 bytes.
    let begin = &line[..line.len().min(4 * SHOWN_CHARS_MAX)];
    String::from_utf8_lossy(begin).chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_default).collect()
}

/// A trace as it is used up.
#[derive(Debug)]
pub(super) struct Playback {
    trace: Arc<Trace>,
    /// How often the trace has ended.
    laps: u64,
    /// The next opportunity of this lap.
    next: usize,
    /// The latest opportunity, and the bytes that it can still carry.
    at: Instant,
    spare_bytes: u64,
}

impl Playback {
    pub(super) fn new(trace: Arc<Trace>) -> Self {
        Self { trace, laps: 0, next: 0, at: Instant(0), spare_bytes: 0 }
    }

    pub(super) fn carry(&mut self, bytes: u64, ready: Instant) -> OnAir {
        if self.spare_bytes == 0 || ready >= self.at {
            self.take_opportunity(ready);
        }
        let from = self.at;
        let mut left = bytes;
        while left > self.spare_bytes {
            left -= self.spare_bytes;
            self.take_opportunity(ready);
        }
        self.spare_bytes -= left;
        OnAir { from, to: self.at }
    }

    /// Moves to the first opportunity that is left and comes after `ready`.
    fn take_opportunity(&mut self, ready: Instant) {
        self.skip_to(ready);
        self.at = self.time_of_next();
        self.spare_bytes = PACKET_BYTES;
        self.next += 1;
        self.wrap();
    }

    fn skip_to(&mut self, ready: Instant) {
        if self.time_of_next() > ready {
            return;
        }
        let lap_now = ready.0 / self.lap_nanos();
        match lap_now.cmp(&self.laps) {
            // At the end of time.
            Ordering::Less => return,
            Ordering::Equal => {}
            Ordering::Greater => (self.laps, self.next) = (lap_now, 0),
        }
        let into_lap_ms = (ready.0 - self.laps * self.lap_nanos()) / NANOS_PER_MS;
        let past = self.trace.at_ms.partition_point(|at| u64::from(*at) <= into_lap_ms);
        self.next = self.next.max(past);
        self.wrap();
    }

    fn wrap(&mut self) {
        if self.next == self.trace.at_ms.len() {
            (self.laps, self.next) = (self.laps + 1, 0);
        }
    }

    fn time_of_next(&self) -> Instant {
        let into_lap = u64::from(self.trace.at_ms[self.next]) * NANOS_PER_MS;
        Instant(self.laps.saturating_mul(self.lap_nanos()).saturating_add(into_lap))
    }

    fn lap_nanos(&self) -> u64 {
        u64::from(self.trace.length_ms()) * NANOS_PER_MS
    }
}
