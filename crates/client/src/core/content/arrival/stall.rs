//! Stall: a state in which what is being fetched does not come. Callers wait for it in vain, but the fetch goes on.

/// Count of how often waiting was in vain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Stalls(u64);

/// Whether waiting is in vain, and why.
pub(super) struct Stall<E> {
    times: Stalls,
    /// Whether the server is out of reach, so that nobody need begin to wait.
    lasts: bool,
    why: Option<E>,
}

impl<E> Default for Stall<E> {
    fn default() -> Self {
        Self { times: Stalls(0), lasts: false, why: None }
    }
}

impl<E: Clone> Stall<E> {
    /// Lets callers that wait do so in vain. `lasts`: so do later ones, until it is worth waiting again.
    pub(super) fn begin(&mut self, why: E, lasts: bool) {
        *self = Self { times: Stalls(self.times.0 + 1), lasts, why: Some(why) };
    }

    /// Notes that waiting is worth it again. Callers that have waited before give up all the same.
    pub(super) fn end(&mut self) {
        self.lasts = false;
    }

    pub(super) fn lasts(&self) -> bool {
        self.lasts
    }

    pub(super) fn times(&self) -> Stalls {
        self.times
    }

    /// Returns why it is in vain to wait, for somebody who has done so since there had been so many stalls.
    pub(super) fn since(&self, before: Stalls) -> Option<E> {
        self.why.clone().filter(|_| self.lasts || self.times > before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_when_it_is_in_vain_gives_up_and_who_comes_later_waits() {
        let mut stall = Stall::default();
        let before = stall.times();
        assert_eq!(stall.since(before), None);
        stall.begin("late", false);
        assert_eq!(stall.since(before), Some("late"));
        assert_eq!(stall.since(stall.times()), None, "the next may be luckier");
    }

    #[test]
    fn while_it_lasts_nobody_need_begin_to_wait() {
        let mut stall = Stall::default();
        stall.begin("out of reach", true);
        let during = stall.times();
        assert!(stall.lasts() && stall.since(during) == Some("out of reach"));
        stall.end();
        assert!(!stall.lasts() && stall.since(during).is_none());
        assert_eq!(stall.since(Stalls::default()), Some("out of reach"), "it was in vain since then");
    }
}
