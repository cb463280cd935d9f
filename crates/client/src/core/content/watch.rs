//! Watch: tells whether a container was written that the kernel can write to without a word.
//!
//! A container's time of change is moved by every write, and nobody can set it. On file systems with multigrain times a
//! look makes the next change get a later time. So two looks that see the same time and size have no change between
//! them, and a look needs no mark in the container: whatever comes behind it shows at the next one.
//!
//! A write moves the time when it begins, and the bytes follow. So a change that was seen may go on. The watch is
//! *settled* when every write that had begun at the last look that found a change has ended, and a store through a
//! mapping is a fault again. Only then the bytes in the container are all that the looks have told of.

use std::time::SystemTime;

use mafs_durable::FileStat;

/// Sight of a container, from one look at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sight {
    /// Time when anything of the container last changed.
    pub(crate) changed: SystemTime,
    /// Its size.
    pub(crate) bytes: u64,
}

impl Sight {
    /// Makes the sight of a look that gave this.
    pub(crate) fn of(stat: &FileStat) -> Self {
        Self { changed: stat.changed, bytes: stat.bytes }
    }
}

/// Names the looks that had found a change at some moment, for [`Watch::end_settling`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found(u64);

/// Knowledge of the changes of a container.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watch {
    seen: Option<Sight>,
    found: u64,
    settled: u64,
}

impl Watch {
    /// Begins to watch a container that nobody can be writing to.
    pub(crate) fn begin(&mut self, sight: Sight) {
        self.seen = Some(sight);
        self.settled = self.found;
    }

    /// Takes in a look. Returns whether the container has changed since the last one.
    pub(crate) fn look(&mut self, sight: Sight) -> bool {
        let has_changed = !self.has_seen(sight);
        if has_changed {
            self.note_change(sight);
        }
        has_changed
    }

    /// Takes in a look behind a change of this program's own. A write of the kernel beside it belongs to that change,
    /// and may go on.
    pub(crate) fn note_change(&mut self, sight: Sight) {
        self.seen = Some(sight);
        self.found += 1;
    }

    /// Whether a look sees what the last one has seen.
    pub(crate) fn has_seen(&self, sight: Sight) -> bool {
        self.seen == Some(sight)
    }

    /// Whether the bytes in the container are all that the looks have told of.
    pub(crate) fn is_settled(&self) -> bool {
        self.found == self.settled
    }

    /// Says what is settled when every write that has begun by now has ended.
    pub(crate) fn begin_settling(&self) -> Found {
        Found(self.found)
    }

    /// Notes that every write that had begun at [`Self::begin_settling`] has ended.
    pub(crate) fn end_settling(&mut self, Found(found): Found) {
        self.settled = self.settled.max(found);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;

    fn sight(changed: u64, bytes: u64) -> Sight {
        Sight { changed: UNIX_EPOCH + Duration::from_nanos(changed), bytes }
    }

    #[test]
    fn a_look_finds_what_has_changed_since_the_last_one() {
        let mut watch = Watch::default();
        watch.begin(sight(1, 0));
        assert!(!watch.look(sight(1, 0)));
        assert!(watch.look(sight(2, 0)), "a write that has just begun");
        assert!(watch.look(sight(2, 10)), "the same write, which has moved the end");
        assert!(!watch.look(sight(2, 10)));
    }

    #[test]
    fn a_change_may_go_on_until_the_watch_is_settled_behind_it() {
        let mut watch = Watch::default();
        watch.begin(sight(1, 10));
        assert!(watch.is_settled());
        watch.look(sight(2, 10));
        assert!(!watch.is_settled());
        let found = watch.begin_settling();
        watch.end_settling(found);
        assert!(watch.is_settled());
        watch.note_change(sight(3, 10));
        assert!(!watch.is_settled(), "the kernel may have begun to write behind the own change");
    }

    #[test]
    fn what_is_found_while_it_settles_is_not_settled() {
        let mut watch = Watch::default();
        watch.begin(sight(1, 10));
        watch.look(sight(2, 10));
        let found = watch.begin_settling();
        watch.look(sight(3, 10));
        watch.end_settling(found);
        assert!(!watch.is_settled());
        let later = watch.begin_settling();
        watch.end_settling(later);
        watch.end_settling(found);
        assert!(watch.is_settled(), "an earlier one that ends late takes nothing back");
    }

    /// A step of the kernel, or of this program, on one container.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// The kernel begins to write: the time moves now, bytes and size when it ends.
        Begin,
        /// The write that goes on ends.
        End,
        Look,
        /// Waits for the write that goes on, and settles.
        Settle,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![Just(Step::Begin), Just(Step::End), Just(Step::Look), Just(Step::Settle)];
        proptest::collection::vec(step, 0..40)
    }

    proptest! {
        /// The container holds what the last settled look told of, or the next look finds a change.
        #[test]
        fn proptest_no_write_is_missed_wherever_the_looks_fall(steps in steps()) {
            let (mut watch, mut time, mut content) = (Watch::default(), 1, 0_u64);
            let (mut writing, mut queried) = (false, true);
            watch.begin(sight(time, 10));
            // The content that was there at the last look that left the watch settled.
            let mut known = content;
            for step in steps {
                match step {
                    Step::Begin if !writing => {
                        // Multigrain: the time moves if somebody has looked since it moved last.
                        time += u64::from(queried);
                        (writing, queried) = (true, false);
                    }
                    Step::Begin => {}
                    Step::End if writing => (content, writing) = (content + 1, false),
                    Step::End => {}
                    Step::Look => {
                        queried = true;
                        watch.look(sight(time, 10));
                    }
                    Step::Settle => {
                        queried = true;
                        watch.look(sight(time, 10));
                        let found = watch.begin_settling();
                        if std::mem::take(&mut writing) {
                            content += 1;
                        }
                        watch.end_settling(found);
                        known = content;
                    }
                }
                if !writing && watch.is_settled() && watch.has_seen(sight(time, 10)) {
                    prop_assert_eq!(known, content);
                }
            }
        }
    }
}
