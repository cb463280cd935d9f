//! Marks: what the entries of the hoard mean for objects, as far as their paths are known.
//!
//! Only the object that an entry names is marked. An object below finds its rank by asking upward, so that a file has
//! it from the moment on at which it is made or moved there.

use std::collections::{HashMap, HashSet};

use mafs_proto::VnodeId;

use crate::hoard::{HoardSpec, Rank, Scope};

/// Deeper than any path a program can name.
const DEPTH_MAX: usize = 2048;

/// Ranks that entries give one object and those below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Mark {
    own: Rank,
    children: Rank,
    descendants: Rank,
}

/// The marks of all objects that have any, and the directories on the way to what is named.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Marks {
    marks: HashMap<VnodeId, Mark>,
    on_the_way: HashSet<VnodeId>,
}

impl Marks {
    /// Marks an object that an entry names.
    pub(crate) fn mark(&mut self, vnode: VnodeId, spec: HoardSpec) {
        let mark = self.marks.entry(vnode).or_default();
        mark.own = mark.own.max(spec.rank);
        match spec.scope {
            Scope::Object => {}
            Scope::Children { .. } => mark.children = mark.children.max(spec.rank),
            Scope::Descendants { .. } => mark.descendants = mark.descendants.max(spec.rank),
        }
    }

    /// Notes that the path of an entry leads through this directory, be there what it names or not.
    pub(crate) fn lead_through(&mut self, vnode: VnodeId) {
        self.on_the_way.insert(vnode);
    }

    /// Whether a change of this object can change what the hoard means or holds.
    pub(crate) fn concerns(&self, vnode: VnodeId, parent_of: impl Fn(VnodeId) -> Option<VnodeId>) -> bool {
        self.on_the_way.contains(&vnode) || self.rank_of(vnode, parent_of).is_wanted()
    }

    /// Whether nothing is named.
    pub(crate) fn are_none(&self) -> bool {
        self.marks.is_empty()
    }

    /// Returns the rank of an object; `parent_of` knows in which directory one lies.
    pub(crate) fn rank_of(&self, vnode: VnodeId, parent_of: impl Fn(VnodeId) -> Option<VnodeId>) -> Rank {
        if self.are_none() {
            return Rank::NONE;
        }
        let own = self.marks.get(&vnode).map_or(Rank::NONE, |mark| mark.own);
        let (mut rank, mut at) = (own, vnode);
        for depth in 0..DEPTH_MAX {
            if rank.is_pinned() || at == VnodeId::ROOT {
                break;
            }
            let Some(parent) = parent_of(at) else { break };
            if let Some(mark) = self.marks.get(&parent) {
                rank = rank.max(mark.descendants);
                if depth == 0 {
                    rank = rank.max(mark.children);
                }
            }
            at = parent;
        }
        rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 is the root, and each number lies in its half.
    fn parent_of(vnode: VnodeId) -> Option<VnodeId> {
        (vnode.0 > 1).then_some(VnodeId(vnode.0 / 2))
    }

    fn rank_of(marks: &Marks, vnode: u64) -> u16 {
        marks.rank_of(VnodeId(vnode), parent_of).into()
    }

    #[test]
    fn the_highest_of_all_that_is_said_counts() {
        assert_eq!(VnodeId::ROOT, VnodeId(1));
        let mut marks = Marks::default();
        assert_eq!(rank_of(&marks, 8), 0);
        for (vnode, spec) in [(2, "100:d+"), (4, "200:c"), (8, "300"), (3, "400:c+"), (3, "50:d")] {
            marks.mark(VnodeId(vnode), spec.parse().unwrap());
        }
        marks.mark(VnodeId(16), HoardSpec::PIN);
        let expected = [(1, 0), (2, 100), (4, 200), (5, 100), (8, 300), (9, 200), (18, 100), (16, 1001), (33, 1001)];
        for (vnode, rank) in expected.into_iter().chain([(3, 400), (6, 400), (7, 400), (12, 50)]) {
            assert_eq!(rank_of(&marks, vnode), rank, "{vnode}");
        }
    }

    #[test]
    fn what_lies_on_the_way_or_below_is_of_concern() {
        let mut marks = Marks::default();
        marks.lead_through(VnodeId(2));
        marks.mark(VnodeId(4), "100:d+".parse().unwrap());
        let concerned = [1, 2, 3, 4, 5, 8, 9, 17].map(|vnode| marks.concerns(VnodeId(vnode), parent_of));
        assert_eq!(concerned, [false, true, false, true, false, true, true, true]);
    }

    #[test]
    fn a_circle_of_directories_ends() {
        let mut marks = Marks::default();
        marks.mark(VnodeId(9), "1".parse().unwrap());
        let circle = |vnode: VnodeId| Some(VnodeId(5 - vnode.0));
        assert_eq!(marks.rank_of(VnodeId(2), circle), Rank::NONE);
    }
}
