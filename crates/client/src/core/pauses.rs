//! Pauses: when records that were refused, and come again, are tried again.
//!
//! A pause grows with every attempt that was refused, not with every answer: of what was under way when the first
//! refusal came all may be refused, for the same reason.

use std::time::Duration;

use mafs_proto::Instant;

/// The first pause and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Verdict of the answers about those to come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Verdict {
    Done,
    /// The server has waited in vain for what a record depends on, or had no time: nothing speaks against the next try.
    Busy,
    /// There is no room for some.
    Full,
    /// Something stands in the way that may pass.
    Passes,
}

/// Time when the next attempt is due.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
    until: Instant,
    is_full: bool,
}

impl Pauses {
    /// Begins without a pause.
    pub(crate) fn new(now: Instant) -> Self {
        Self { next: PAUSES[0], until: now, is_full: false }
    }

    /// Takes in answers that have come.
    pub(crate) fn answered(&mut self, outcome: Verdict, now: Instant) {
        let pauses = self.left(now).is_some();
        match outcome {
            Verdict::Done => self.next = PAUSES[0],
            Verdict::Busy if pauses => {}
            Verdict::Busy => self.begin(PAUSES[0], now),
            Verdict::Full | Verdict::Passes if pauses => self.is_full &= outcome == Verdict::Full,
            Verdict::Full | Verdict::Passes => {
                self.begin(self.next, now);
                self.is_full = outcome == Verdict::Full;
                self.next = (self.next * 2).min(PAUSES[1]);
            }
        }
    }

    /// Ends the pause, as everything may be different now.
    pub(crate) fn end(&mut self, now: Instant) {
        self.until = now;
    }

    /// Returns how long nothing is tried again.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        (self.until > now).then(|| self.until.since(now))
    }

    /// Whether what was not refused may be sent meanwhile.
    pub(crate) fn lets_others_pass(&self) -> bool {
        self.is_full
    }

    fn begin(&mut self, pause: Duration, now: Instant) {
        (self.until, self.is_full) = (now + pause, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(1_000_000_000);

    #[test]
    fn answers_to_what_was_sent_before_the_pause_do_not_lengthen_it() {
        let mut pauses = Pauses::new(START);
        assert_eq!(pauses.left(START), None);
        for _ in 0..10 {
            pauses.answered(Verdict::Passes, START);
        }
        assert_eq!(pauses.left(START), Some(PAUSES[0]));
        let again = START + PAUSES[0];
        assert_eq!(pauses.left(again), None);
        pauses.answered(Verdict::Passes, again);
        assert_eq!(pauses.left(again), Some(2 * PAUSES[0]), "that was another attempt");
    }

    #[test]
    fn pauses_grow_up_to_the_longest_and_begin_anew_after_a_success() {
        let (mut pauses, mut now) = (Pauses::new(START), START);
        for _ in 0..10 {
            pauses.answered(Verdict::Full, now);
            now = now + pauses.left(now).unwrap();
        }
        pauses.answered(Verdict::Full, now);
        assert_eq!(pauses.left(now), Some(PAUSES[1]));
        pauses.end(now);
        assert_eq!(pauses.left(now), None);
        pauses.answered(Verdict::Done, now);
        pauses.answered(Verdict::Full, now);
        assert_eq!(pauses.left(now), Some(PAUSES[0]));
    }

    #[test]
    fn a_busy_server_is_tried_again_soon_however_often_it_was_busy() {
        let (mut pauses, mut now) = (Pauses::new(START), START);
        for _ in 0..10 {
            pauses.answered(Verdict::Busy, now);
            assert_eq!(pauses.left(now), Some(PAUSES[0]));
            now = now + PAUSES[0];
        }
    }

    #[test]
    fn others_pass_what_there_is_no_room_for_unless_something_else_stands_in_the_way() {
        let mut pauses = Pauses::new(START);
        pauses.answered(Verdict::Full, START);
        assert!(pauses.lets_others_pass());
        pauses.answered(Verdict::Passes, START);
        assert!(!pauses.lets_others_pass());
        pauses.answered(Verdict::Full, START);
        assert!(!pauses.lets_others_pass());
    }
}
