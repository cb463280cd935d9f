//! Random numbers that follow from a seed alone, for everything that has to be repeatable: simulated runs, the state
//! after a simulated crash, the link model. Not for secrets.

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, and the same on every platform.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins the sequence of a seed; each seed has its own.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// Returns one of `0..=max`.
    pub fn up_to(&mut self, max: usize) -> usize {
        usize::try_from(self.number() % (max as u64).saturating_add(1)).unwrap_or(max)
    }

    /// Returns one of the given values.
    ///
    /// # Panics
    /// If there is none.
    pub fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap_or(0)]
    }

    /// Returns true once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns true or false, with equal chances.
    pub fn coin(&mut self) -> bool {
        self.number() & 1 == 1
    }

    /// Returns `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let word = self.number().to_le_bytes();
        (0..count).map(|at| word[at % 8].wrapping_add(u8::try_from(at / 8 % 251).unwrap_or(0))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_algorithm() {
        // The first outputs of the authors' reference code for the seed 1234567.
        let mut random = Random::new(1_234_567);
        let numbers: Vec<u64> = (0..3).map(|_| random.number()).collect();
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
