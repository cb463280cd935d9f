//! Seeded choices of the memory twins: what survives a crash is drawn from a seed, so that a run can be repeated.

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough to choose among outcomes of a crash.
pub(crate) struct Seeded(u64);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Heads or tails.
    pub(crate) fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// One of `0..=max`.
    pub(crate) fn up_to(&mut self, max: usize) -> usize {
        usize::try_from(self.next() % (max as u64 + 1)).unwrap_or(max)
    }
}
