//! The hash of a content.
//!
//! The hash is taken over the data and their places, not over the zeros between: a sparse file is hashed as fast as
//! its written parts. So the hash of a content is the same however it was stored, sent or cut into pieces.

use std::fmt;

/// The size of a block. A block, counted from the start of the file, that has no byte but zero is left out.
const BLOCK_BYTES: usize = 4096;
const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// The hash of the whole content of a file. The client that has the content computes it as it sends it, and the server
/// compares it with what has arrived; a holder of the content can tell later by the hash whether it still is that
/// content.
///
/// blake3 of: for each longest run of blocks of 4,096 bytes that are not all zeros (the last block of a file may be
/// shorter), its bytes, its offset and its length; then the size of the file. Numbers are u64, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentHash(pub [u8; 32]);

impl ContentHash {
    /// Hashes a content that is at hand.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        let mut hasher = ContentHasher::default();
        hasher.update(content);
        hasher.finish()
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Hashes a content from its start to its end, in pieces of any size.
#[derive(Clone, Debug, Default)]
pub struct ContentHasher {
    hasher: blake3::Hasher,
    position: u64,
    /// The start of the run of blocks that is being hashed.
    run: Option<u64>,
    /// The zeros of a block that has begun, if it had nothing else so far.
    zeros: usize,
    /// Whether a block that has begun has something else, so that all of it is hashed.
    in_data: bool,
}

impl ContentHasher {
    /// Takes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let whole = if self.block_left() == BLOCK_BYTES { whole_data_blocks(bytes) } else { 0 };
            let count = if whole > 0 { whole } else { self.block_left().min(bytes.len()) };
            let (part, rest) = bytes.split_at(count);
            if whole > 0 || self.in_data || *part != ZEROS[..count] {
                self.begin_data();
                self.hasher.update(part);
            } else {
                self.zeros += count;
            }
            self.position += count as u64;
            if self.block_left() == BLOCK_BYTES {
                self.end_block();
            }
            bytes = rest;
        }
    }

    /// Takes a number of zeros.
    pub fn skip(&mut self, zeros: u64) {
        let short = |count: u64| &ZEROS[..usize::try_from(count).unwrap_or(0)];
        let block_bytes = BLOCK_BYTES as u64;
        let first = zeros.min(self.block_left() as u64 % block_bytes);
        self.update(short(first));
        let whole = (zeros - first) / block_bytes * block_bytes;
        if whole > 0 {
            self.end_run(self.position);
            self.position += whole;
        }
        self.update(short(zeros - first - whole));
    }

    /// Returns the hash of the bytes taken so far.
    #[must_use]
    pub fn finish(mut self) -> ContentHash {
        self.end_run(self.position - self.zeros as u64);
        self.hasher.update(&self.position.to_le_bytes());
        ContentHash(self.hasher.finalize().into())
    }

    /// Returns how much of the present block is to come; all of it at its start.
    fn block_left(&self) -> usize {
        BLOCK_BYTES - usize::try_from(self.position % BLOCK_BYTES as u64).unwrap_or(0)
    }

    fn begin_data(&mut self) {
        if !self.in_data {
            self.run.get_or_insert(self.position - self.zeros as u64);
            self.hasher.update(&ZEROS[..self.zeros]);
            (self.zeros, self.in_data) = (0, true);
        }
    }

    fn end_block(&mut self) {
        if !self.in_data {
            self.end_run(self.position - BLOCK_BYTES as u64);
        }
        (self.zeros, self.in_data) = (0, false);
    }

    fn end_run(&mut self, end: u64) {
        if let Some(start) = self.run.take() {
            self.hasher.update(&start.to_le_bytes());
            self.hasher.update(&(end - start).to_le_bytes());
        }
    }
}

/// Counts the bytes of whole blocks at the start of `bytes` that are not all zeros.
fn whole_data_blocks(bytes: &[u8]) -> usize {
    bytes.chunks_exact(BLOCK_BYTES).take_while(|block| **block != ZEROS).count() * BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates contents with runs of zeros that begin and end anywhere.
    fn content() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec((0..3u8, 0..9_000usize), 0..8)
            .prop_map(|runs| runs.into_iter().flat_map(|(byte, count)| vec![byte.saturating_sub(1); count]).collect())
    }

    /// Hashes a content as the documentation says, word for word.
    fn by_definition(content: &[u8]) -> ContentHash {
        let mut hashed = Vec::new();
        let blocks: Vec<&[u8]> = content.chunks(BLOCK_BYTES).collect();
        let is_data = |block: &&[u8]| block.iter().any(|byte| *byte != 0);
        let mut at = 0;
        for run in blocks.chunk_by(|one, other| is_data(one) == is_data(other)) {
            let bytes = run.concat();
            if is_data(&run[0]) {
                hashed.extend_from_slice(&bytes);
                hashed.extend(u64::try_from(at).unwrap().to_le_bytes());
                hashed.extend(u64::try_from(bytes.len()).unwrap().to_le_bytes());
            }
            at += bytes.len();
        }
        hashed.extend(u64::try_from(content.len()).unwrap().to_le_bytes());
        ContentHash(blake3::hash(&hashed).into())
    }

    proptest! {
        #[test]
        fn proptest_the_hash_is_that_of_the_documentation_however_it_is_fed(
            content in content(), cuts in proptest::collection::vec(0..9_000usize, 0..30),
        ) {
            let wanted = by_definition(&content);
            prop_assert_eq!(ContentHash::of(&content), wanted);
            let mut hasher = ContentHasher::default();
            let mut rest = &content[..];
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                rest = after;
                if piece.iter().all(|byte| *byte == 0) {
                    hasher.skip(piece.len() as u64);
                } else {
                    hasher.update(piece);
                }
            }
            prop_assert_eq!(hasher.finish(), wanted);
        }
    }

    #[test]
    fn a_moved_run_or_another_size_is_another_content() {
        let mut contents = vec![Vec::new(), vec![0], vec![0; 4_096], vec![0; 8_192], vec![1; 8_192]];
        contents.push([vec![0; 4_096], vec![1; 4_096]].concat());
        contents.push([vec![1; 4_096], vec![0; 4_096]].concat());
        let hashes: Vec<_> = contents.iter().map(|content| ContentHash::of(content)).collect();
        for (index, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(hash), "{index}");
        }
    }

    #[test]
    fn a_hole_of_a_terabyte_costs_nothing() {
        let mut hasher = ContentHasher::default();
        hasher.update(b"start");
        hasher.skip(1 << 40);
        assert_ne!(hasher.finish(), ContentHash::of(b"start"));
    }
}
