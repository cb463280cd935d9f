//! Nudges: small frames into a short silence, at equal intervals.
//!
//! A TCP knows that a packet was lost when a later one has arrived (RACK, RFC 8985), and otherwise by its timeout,
//! which is 200 ms and more, and twice as much the next time. A sender that fills every queue always has a later one.
//! The window keeps so little in flight that a burst of errors takes all of it, and then the link would be idle for far
//! longer than the burst. So while acknowledgements are missing a small frame goes now and then: the first one behind
//! the burst tells both transports which packets they have to repeat. Nudges are the linear part of the wireless
//! papers' back-off (000, section 4); longer silence is the matter of [`super::timers::Liveness`].
//!
//! Knows only when bytes are missing, and when they have come.

use std::time::Duration;

use mafs_proto::Instant;

/// How much later than expected an acknowledgement is missed: a busy host is late by less.
const LATE: Duration = Duration::from_millis(30);
/// The least time between nudges: as coarse as the timers of the papers.
const STEP_MIN: Duration = Duration::from_millis(20);
/// How many nudges go into one silence. TCP's own timeout has come by then, and behind that it sends nothing new. With
/// one of them a megabyte at 125 KB/s and bad periods of 40 ms has 0.86 of the link, with these 0.89, and with none
/// 0.81.
pub(super) const NUDGES_MAX: u32 = 8;
/// How many nudges go into one silence where each is a packet of its own: enough for as long as a silent peer is waited
/// for.
pub(super) const NUDGES_MAX_IN_DATAGRAMS: u32 = 250;

/// The nudges into one silence.
#[derive(Debug)]
pub(super) struct Nudges {
    most: u32,
    sent: u32,
    last_at: Instant,
}

impl Nudges {
    /// Allows at most so many nudges in one silence.
    pub(super) fn new(most: u32) -> Self {
        Self { most, sent: 0, last_at: Instant(0) }
    }

    /// Notes that a missing acknowledgement has come.
    pub(super) fn progress(&mut self) {
        self.sent = 0;
    }

    /// Notes that a nudge goes.
    pub(super) fn sent(&mut self, now: Instant) {
        self.sent += 1;
        self.last_at = now;
    }

    /// Returns when the next nudge goes, if an acknowledgement was expected at `expected`; `packet_time` is how long a
    /// packet takes on the link, so that all nudges together take little.
    pub(super) fn next_at(&self, expected: Instant, packet_time: Duration) -> Option<Instant> {
        let at = match self.sent {
            0 => expected + LATE.max(packet_time),
            _ => expected.max(self.last_at) + STEP_MIN.max(packet_time),
        };
        (self.sent < self.most).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn nudges_go_at_equal_intervals_and_end() {
        let (mut nudges, mut at) = (Nudges::new(NUDGES_MAX), Vec::new());
        while let Some(next) = nudges.next_at(Instant(0), 12 * MS) {
            at.push(next.0 / 1_000_000);
            nudges.sent(next);
        }
        assert_eq!(at, [30, 50, 70, 90, 110, 130, 150, 170]);
        nudges.progress();
        assert_eq!(nudges.next_at(Instant(0), 100 * MS), Some(Instant(0) + 100 * MS), "a slow link has fewer");
    }

    #[test]
    fn nudges_in_datagrams_go_for_as_long_as_the_peer_is_waited_for() {
        let (mut nudges, mut last) = (Nudges::new(NUDGES_MAX_IN_DATAGRAMS), Instant(0));
        while let Some(next) = nudges.next_at(Instant(0), 12 * MS) {
            assert!(last == Instant(0) || next.since(last) == STEP_MIN, "linear at {next:?}");
            last = next;
            nudges.sent(next);
        }
        assert_eq!(last, Instant(0) + 5010 * MS);
    }
}
