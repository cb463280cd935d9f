//! The hash of a file's content.

use std::io;

use mafs_proto::{ContentHash, ContentHasher};

use crate::{DiskFile, next_extent};

/// Bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Hashes the first `bytes` bytes of a file; holes cost nothing.
///
/// # Errors
/// Errors of the file; `UnexpectedEof` if it is shorter.
pub fn hash_content(file: &dyn DiskFile, bytes: u64) -> io::Result<ContentHash> {
    Ok(begin_hash(file, bytes)?.finish())
}

/// Hashes the first `bytes` bytes of a file, of which more will come.
///
/// # Errors
/// As for [`hash_content`].
pub fn begin_hash(file: &dyn DiskFile, bytes: u64) -> io::Result<ContentHasher> {
    let mut hasher = ContentHasher::default();
    let mut buffer = vec![0; usize::try_from(bytes).unwrap_or(PIECE_BYTES).min(PIECE_BYTES)];
    let mut offset = 0;
    while let Some(extent) = next_extent(file, offset..bytes)? {
        hasher.skip(extent.start - offset);
        offset = extent.start;
        while offset < extent.end {
            let wanted = usize::try_from(extent.end - offset).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let read = file.read_at(&mut buffer[..wanted], offset)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            hasher.update(&buffer[..read]);
            offset += read as u64;
        }
    }
    hasher.skip(bytes - offset);
    Ok(hasher)
}
