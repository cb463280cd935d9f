//! Listings that the kernel has been shown and keeps: until when it may.
//!
//! Unlike attributes and names, a listing that the kernel keeps (FOPEN_CACHE_DIR) does not expire there. So this end
//! counts the time, and tells the kernel to forget.

use std::collections::HashMap;

use mafs_proto::{Instant, VnodeId};

/// Most directories that are noted: some 1 MB. Of any more the kernel keeps no listing.
const DIRECTORIES_MAX: usize = 16 << 10;

/// The part of a listing that the kernel was shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// The part from the start on: the kernel has no listing yet, or none that is current.
    First,
    Middle,
    /// The answer that there is no more.
    End,
}

/// Listings that the kernel keeps.
#[derive(Debug, Default)]
pub(super) struct ShownListings {
    shown: HashMap<VnodeId, Shown>,
    /// Whether a task waits for [`Self::next_due`].
    watched: bool,
}

#[derive(Debug)]
struct Shown {
    /// The kernel's listing may be as old as its first part.
    until: Instant,
    whole: bool,
}

/// Action to take about a listing that was shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Noted {
    /// No action is needed.
    Watched,
    /// A task must begin to wait for [`ShownListings::next_due`].
    Unwatched,
    /// The kernel must not keep the listing: there is no place to note it.
    NoPlace,
}

impl ShownListings {
    /// Notes that the kernel is about to be shown a part of a listing, and may keep it until then.
    pub(super) fn note(&mut self, vnode: VnodeId, part: Part, until: Instant) -> Noted {
        if self.shown.len() >= DIRECTORIES_MAX && !self.shown.contains_key(&vnode) {
            return Noted::NoPlace;
        }
        let shown = self.shown.entry(vnode).or_insert(Shown { until, whole: false });
        match part {
            Part::First => shown.whole = false,
            Part::Middle => {}
            Part::End => shown.whole = true,
        }
        shown.until = shown.until.min(until);
        if std::mem::replace(&mut self.watched, true) { Noted::Watched } else { Noted::Unwatched }
    }

    /// Whether the kernel may keep anything of a listing.
    pub(super) fn is_kept(&self, vnode: VnodeId) -> bool {
        self.shown.contains_key(&vnode)
    }

    /// Whether the kernel may have only a part of a listing.
    pub(super) fn is_part(&self, vnode: VnodeId) -> bool {
        self.shown.get(&vnode).is_some_and(|shown| !shown.whole)
    }

    /// Takes the directories whose listings the kernel must forget now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<VnodeId> {
        let mut due: Vec<_> =
            self.shown.iter().filter(|(_, shown)| shown.until <= now).map(|(vnode, _)| *vnode).collect();
        due.sort_unstable();
        self.shown.retain(|_, shown| shown.until > now);
        due
    }

    /// Returns when the next listing is due. `None`: there is none, and no task needs to wait any more.
    pub(super) fn next_due(&mut self) -> Option<Instant> {
        let next = self.shown.values().map(|shown| shown.until).min();
        self.watched = next.is_some();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: VnodeId = VnodeId(7);

    #[test]
    fn the_kernel_forgets_when_what_it_was_shown_first_is_due() {
        let mut shown = ShownListings::default();
        assert_eq!(shown.note(DIRECTORY, Part::First, Instant(10)), Noted::Unwatched);
        assert_eq!(shown.note(DIRECTORY, Part::Middle, Instant(20)), Noted::Watched);
        assert_eq!(shown.note(VnodeId(8), Part::First, Instant(30)), Noted::Watched);
        assert_eq!(shown.take_due(Instant(9)), []);
        assert_eq!(shown.next_due(), Some(Instant(10)));
        assert_eq!(shown.take_due(Instant(10)), [DIRECTORY]);
        assert!(!shown.is_kept(DIRECTORY) && shown.is_kept(VnodeId(8)));
        assert_eq!((shown.next_due(), shown.take_due(Instant(30))), (Some(Instant(30)), vec![VnodeId(8)]));
        assert_eq!(shown.next_due(), None);
        assert_eq!(shown.note(DIRECTORY, Part::First, Instant(40)), Noted::Unwatched);
    }

    #[test]
    fn a_listing_is_a_part_until_its_end_has_been_shown() {
        let mut shown = ShownListings::default();
        assert!(!shown.is_part(DIRECTORY), "the kernel has none");
        for part in [Part::First, Part::Middle] {
            shown.note(DIRECTORY, part, Instant(1));
            assert!(shown.is_part(DIRECTORY), "{part:?}");
        }
        shown.note(DIRECTORY, Part::End, Instant(1));
        assert!(!shown.is_part(DIRECTORY));
        shown.note(DIRECTORY, Part::First, Instant(1));
        assert!(shown.is_part(DIRECTORY), "the kernel reads it anew");
    }

    #[test]
    fn no_more_are_kept_than_can_be_noted() {
        let mut shown = ShownListings::default();
        for vnode in 0..DIRECTORIES_MAX as u64 {
            assert_ne!(shown.note(VnodeId(vnode), Part::First, Instant(1)), Noted::NoPlace);
        }
        assert_eq!(shown.note(VnodeId(u64::MAX), Part::First, Instant(1)), Noted::NoPlace);
        assert_ne!(shown.note(VnodeId(0), Part::End, Instant(1)), Noted::NoPlace);
        assert_eq!(shown.take_due(Instant(1)).len(), DIRECTORIES_MAX);
    }
}
