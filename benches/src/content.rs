//! Content: bytes that a seed and an offset determine, so that files of any size can be checked without keeping them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// Bytes that are written or read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// A source of pseudo-random numbers (splitmix64), the same for the same seed for ever.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns the next number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }
}

/// Fills `piece` with the bytes that stand at `offset`, a multiple of 8, of the content of `seed`.
pub fn fill(seed: u64, offset: u64, piece: &mut [u8]) {
    for (word, number) in piece.chunks_mut(8).zip(offset / 8..) {
        let bytes = mix(number ^ seed.rotate_left(32)).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

/// Returns the first `length` bytes of the content of `seed`.
#[must_use]
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(seed, 0, &mut bytes);
    bytes
}

/// Writes a file with the first `length` bytes of the content of `seed`.
///
/// # Errors
/// The file system's error.
pub fn write_file(path: &Path, seed: u64, length: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    for_each_piece(length, |offset, piece| {
        fill(seed, offset, piece);
        file.write_all(piece)
    })
}

/// Reads a file and compares it with the first `length` bytes of the content of `seed`.
///
/// # Errors
/// The file system's error; or the place where the content differs.
pub fn check_file(path: &Path, seed: u64, length: u64) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut found = vec![0; PIECE_BYTES];
    for_each_piece(length, |offset, piece| {
        fill(seed, offset, piece);
        let found = &mut found[..piece.len()];
        file.read_exact(found)?;
        if found == piece {
            return Ok(());
        }
        let at = found.iter().zip(piece.iter()).take_while(|(found, wanted)| found == wanted).count();
        Err(io::Error::other(format!("{}: wrong byte at {}", path.display(), offset + at as u64)))
    })?;
    match file.read(&mut found[..1])? {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("{}: longer than {length} bytes", path.display()))),
    }
}

fn for_each_piece(length: u64, mut work: impl FnMut(u64, &mut [u8]) -> io::Result<()>) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut offset = 0;
    while offset < length {
        let size = usize::try_from(length - offset).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        work(offset, &mut piece[..size])?;
        offset += size as u64;
    }
    Ok(())
}

fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_and_a_changed_length_are_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let length = PIECE_BYTES as u64 + 13;
        write_file(&path, 7, length).unwrap();
        check_file(&path, 7, length).unwrap();
        assert!(check_file(&path, 8, length).is_err());
        assert!(check_file(&path, 7, length - 1).is_err());
        assert!(check_file(&path, 7, length + 1).is_err());

        let mut changed = std::fs::read(&path).unwrap();
        changed[PIECE_BYTES + 2] ^= 1;
        std::fs::write(&path, changed).unwrap();
        let error = check_file(&path, 7, length).unwrap_err();
        assert!(error.to_string().contains(&(PIECE_BYTES + 2).to_string()), "{error}");
    }

    #[test]
    fn pieces_do_not_depend_on_where_they_start() {
        let whole = bytes(3, 64);
        let mut part = [0; 21];
        fill(3, 16, &mut part);
        assert_eq!(part, whole[16..37]);
    }
}
