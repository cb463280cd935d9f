//! Fids: the only object names on the wire.

use std::fmt;

/// A volume of one server: the unit of administration, logging and change numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeId(pub u32);

/// An object slot in a volume. Never granted twice. The root of a volume is vnode 1, which is FUSE's root inode too, so
/// inode numbers are vnode numbers and stable for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VnodeId(pub u64);

impl VnodeId {
    /// The root directory of every volume.
    pub const ROOT: Self = Self(1);
}

/// Tells two lives of one vnode number apart. Vnodes are never granted twice, so the uniquifier differs from 1 only in
/// a volume whose grants were lost and had to be restarted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Uniquifier(pub u32);

/// Names an object for ever: `{volume, vnode, unique}`, as in AFS.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fid {
    /// The volume the object lives in.
    pub volume: VolumeId,
    /// Its slot.
    pub vnode: VnodeId,
    /// The slot's life.
    pub unique: Uniquifier,
}

impl Fid {
    /// Returns the root directory of `volume`.
    #[must_use]
    pub const fn root(volume: VolumeId) -> Self {
        Self { volume, vnode: VnodeId::ROOT, unique: Uniquifier(1) }
    }

    /// Whether this is the root directory of its volume.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.vnode == VnodeId::ROOT
    }
}

impl fmt::Display for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.volume.0, self.vnode.0, self.unique.0)
    }
}

/// Fids granted to one client, so that it can name new objects without a round trip. Each is used at most once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FidRange {
    first: Fid,
    count: u64,
}

impl FidRange {
    /// Makes a range of `count` fids from `first` on; `None` if the vnode numbers would overflow.
    #[must_use]
    pub fn new(first: Fid, count: u64) -> Option<Self> {
        first.vnode.0.checked_add(count)?;
        Some(Self { first, count })
    }

    /// Returns the first fid that is left.
    #[must_use]
    pub fn first(&self) -> Fid {
        self.first
    }

    /// Returns how many fids are left.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Takes the next fid out of the range; `None` when it is used up.
    pub fn take(&mut self) -> Option<Fid> {
        self.count = self.count.checked_sub(1)?;
        let fid = self.first;
        self.first.vnode.0 += 1;
        Some(fid)
    }

    /// Takes as many as `count` fids out of the range.
    #[must_use]
    pub fn take_first(&mut self, count: u64) -> Self {
        let count = count.min(self.count);
        let taken = Self { first: self.first, count };
        self.first.vnode.0 += count;
        self.count -= count;
        taken
    }

    /// Whether `fid` is one of those left.
    #[must_use]
    pub fn contains(&self, fid: Fid) -> bool {
        fid.volume == self.first.volume
            && fid.unique == self.first.unique
            && fid.vnode >= self.first.vnode
            && fid.vnode.0 - self.first.vnode.0 < self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_hands_out_each_fid_once() {
        let mut range = FidRange::new(Fid { vnode: VnodeId(7), ..Fid::root(VolumeId(1)) }, 2).unwrap();
        assert!(range.contains(range.first()));
        assert_eq!(range.take().unwrap().vnode, VnodeId(7));
        assert!(!range.contains(Fid { vnode: VnodeId(7), ..Fid::root(VolumeId(1)) }));
        assert_eq!(range.take().unwrap().vnode, VnodeId(8));
        assert_eq!(range.take(), None);
        assert_eq!(range.count(), 0);
    }

    #[test]
    fn what_is_taken_out_of_a_range_is_not_in_it_any_more() {
        let fid = |vnode| Fid { vnode: VnodeId(vnode), ..Fid::root(VolumeId(1)) };
        let mut range = FidRange::new(fid(7), 5).unwrap();
        let first = range.take_first(3);
        assert_eq!((first.first(), first.count(), range.first(), range.count()), (fid(7), 3, fid(10), 2));
        assert_eq!(range.take_first(9).count(), 2);
        assert_eq!(range.take_first(9).take(), None);
    }
}
