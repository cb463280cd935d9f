//! Fids for new objects: those that this life of the client may use, and those that are spared for what comes after.
//!
//! A life takes them in parts. The rest that it leaves of a part nobody uses any more: after a loss of power it is not
//! known which of them have been used. So the log says what is spared, durably, before a part is used.

use mafs_proto::{Fid, FidRange};

/// Fids of one part: a life wastes as many at most.
const PART: u64 = 1024;

/// Fids left of a part when the next one is made ready: no program that makes an object waits until what is spared is
/// durable.
const AHEAD: u64 = PART / 4;

/// When fewer fids are left, more are asked for: so many objects can always be made while the server is out of reach.
const LOW: u64 = 16_384;

/// Fids at hand.
#[derive(Debug, Default)]
pub(crate) struct Fids {
    own: Option<FidRange>,
    /// This life's next part: what is spared besides is durable.
    ahead: Option<FidRange>,
    spare: Option<FidRange>,
}

/// A part, and what is spared besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    own: FidRange,
    pub(crate) spare: FidRange,
}

impl Part {
    /// Takes the first part of a range.
    pub(crate) fn of(mut range: FidRange) -> Self {
        let own = range.take_first(PART);
        Self { own, spare: range }
    }
}

impl Fids {
    /// Takes the next fid of this life's part.
    pub(crate) fn take(&mut self) -> Option<Fid> {
        let fid = self.own.as_mut().and_then(FidRange::take);
        fid.or_else(|| {
            self.own = self.ahead.take();
            self.own.as_mut().and_then(FidRange::take)
        })
    }

    /// Returns the next part, once it is time to make it ready: what is spared then must be logged before anything else
    /// is decided here, and durable before [`Self::add`].
    pub(crate) fn part_ahead(&self) -> Option<Part> {
        let is_time = self.ahead.is_none() && self.own.is_some_and(|own| own.count() == AHEAD);
        is_time.then(|| self.next_part()).flatten()
    }

    /// Has this life use a part after the present one, unless something else has been done with it meanwhile.
    pub(crate) fn add(&mut self, part: Part) {
        if self.ahead.is_none() && self.next_part() == Some(part) {
            (self.ahead, self.spare) = (Some(part.own), Some(part.spare));
        }
    }

    /// Returns the next part, if there is one: what is spared then must be durable before [`Self::begin`].
    pub(crate) fn next_part(&self) -> Option<Part> {
        self.spare.filter(|spare| spare.count() > 0).map(Part::of)
    }

    /// Has this life use a part from now on, and no other.
    pub(crate) fn begin(&mut self, part: Part) {
        (self.own, self.ahead, self.spare) = (Some(part.own), None, Some(part.spare));
    }

    /// Whether more are to be asked for.
    pub(crate) fn are_low(&self) -> bool {
        let left = |range: &Option<FidRange>| range.map_or(0, |range| range.count());
        left(&self.own) + left(&self.ahead) + left(&self.spare) < LOW
    }
}

#[cfg(test)]
mod tests {
    use mafs_proto::{VnodeId, VolumeId};

    use super::*;

    fn range(first: u64, count: u64) -> FidRange {
        FidRange::new(Fid { vnode: VnodeId(first), ..Fid::root(VolumeId(1)) }, count).unwrap()
    }

    #[test]
    fn invariant_2_what_is_spared_is_never_what_a_life_has_taken() {
        let mut fids = Fids::default();
        assert!(fids.take().is_none() && fids.next_part().is_none() && fids.are_low());
        fids.begin(Part::of(range(100, 20 * PART)));
        assert!(!fids.are_low());
        let mut taken = Vec::new();
        loop {
            match fids.take() {
                Some(fid) => taken.push(fid.vnode.0),
                None => match fids.next_part() {
                    Some(part) => {
                        assert!(taken.iter().all(|vnode| *vnode < part.spare.first().vnode.0));
                        fids.begin(part);
                    }
                    None => break,
                },
            }
        }
        assert_eq!(taken, (100..100 + 20 * PART).collect::<Vec<_>>());
        assert!(fids.are_low());
    }

    #[test]
    fn invariant_2_a_part_that_was_made_ready_is_used_once() {
        let mut fids = Fids::default();
        fids.begin(Part::of(range(0, 4 * PART)));
        let mut ready = None;
        let mut next = 0;
        while ready.is_none() {
            assert_eq!(fids.take().unwrap().vnode.0, next);
            next += 1;
            ready = fids.part_ahead();
        }
        assert_eq!(next, PART - AHEAD);
        fids.add(ready.unwrap());
        fids.add(ready.unwrap());
        assert_eq!(fids.next_part().unwrap().own.first().vnode.0, 2 * PART);
        assert!((next..2 * PART).all(|vnode| fids.take().is_some_and(|fid| fid.vnode.0 == vnode)));
        assert_eq!(fids.take(), None, "what is spared is not taken by itself");

        let late = fids.next_part().unwrap();
        fids.begin(late);
        fids.add(late);
        assert_eq!(fids.next_part().unwrap().own.first().vnode.0, 3 * PART, "it was begun meanwhile");
    }

    /// The log is told when a part is decided on; that it is durable comes so late that others have begun by then.
    #[test]
    fn invariant_2_the_newest_entry_spares_nothing_that_a_life_takes_however_late_a_part_is_ready() {
        for late in [0, AHEAD / 2, AHEAD, 2 * PART] {
            let mut fids = Fids::default();
            let first = Part::of(range(0, 8 * PART));
            fids.begin(first);
            let (mut newest, mut under_way) = (first.spare, None);
            for vnode in 0..6 * PART {
                let taken = fids.take().or_else(|| {
                    let part = fids.next_part().unwrap();
                    newest = part.spare;
                    fids.begin(part);
                    fids.take()
                });
                assert_eq!(taken.unwrap().vnode.0, vnode, "each once");
                assert!(vnode < newest.first().vnode.0, "{vnode} is spared, {late} late");
                if let Some(part) = fids.part_ahead() {
                    newest = part.spare;
                    under_way.get_or_insert((vnode + late, part));
                }
                if let Some((_, part)) = under_way.take_if(|(at, _)| *at <= vnode) {
                    fids.add(part);
                }
            }
        }
    }

    #[test]
    fn a_short_range_is_one_part() {
        let mut fids = Fids::default();
        fids.begin(Part::of(range(1, 2)));
        assert!(fids.take().is_some() && fids.take().is_some() && fids.take().is_none());
        assert_eq!(fids.next_part(), None);
    }
}
