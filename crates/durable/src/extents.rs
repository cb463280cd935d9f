//! Extents: which parts of a file take room, and how they are reserved, given back, copied and written without.
//!
//! Knows no file system: a file may report more data than it has (lseek(2) permits that), never less.

use std::io;
use std::ops::Range;

use crate::DiskFile;

/// The unit of holes: smaller ones are of no use to file systems. Only runs of zeros that fill it are left out.
const HOLE_BYTES: usize = 4096;

/// Bytes copied at a time where the kernel does not copy by itself.
const COPY_BYTES: usize = 256 * 1024;

/// Effect of [`DiskFile::fallocate`] on a range: the modes of fallocate(2) that every common file system has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallocate {
    /// Room is reserved. No byte changes; the file grows to the end of the range.
    Reserve,
    /// Room is reserved. The size stays, also if the range lies behind it.
    ReserveKeepingSize,
    /// The bytes become zeros and their room is given back; the size stays.
    Punch,
    /// The bytes become zeros and have room; the file grows to the end of the range.
    Zero,
    /// The bytes become zeros and have room; the size stays.
    ZeroKeepingSize,
}

impl Fallocate {
    /// Whether the file grows to the end of the range.
    #[must_use]
    pub fn grows(self) -> bool {
        match self {
            Self::Reserve | Self::Zero => true,
            Self::ReserveKeepingSize | Self::Punch | Self::ZeroKeepingSize => false,
        }
    }

    /// Whether the bytes become zeros.
    #[must_use]
    pub fn zeroes(self) -> bool {
        match self {
            Self::Punch | Self::Zero | Self::ZeroKeepingSize => true,
            Self::Reserve | Self::ReserveKeepingSize => false,
        }
    }
}

/// Finds the first run of bytes in `range` that may be other than zero; `None` if there is none.
///
/// # Errors
/// Errors of the file.
pub fn next_extent(file: &dyn DiskFile, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
    let Some(start) = file.seek_data(range.start)?.filter(|start| *start < range.end) else { return Ok(None) };
    let end = file.seek_hole(start)?.map_or(range.end, |end| end.min(range.end));
    Ok(Some(start..end))
}

/// Writes `bytes` at `offset` into a part of a file that reads as zeros. Leaves out blocks of zeros, and tells
/// `left_out` of them. The bytes do not set the size of the file: it has to reach behind them already.
///
/// # Errors
/// Errors of the file, or of `left_out`.
pub fn write_sparse(
    file: &dyn DiskFile,
    bytes: &[u8],
    offset: u64,
    mut left_out: impl FnMut(Range<u64>) -> io::Result<()>,
) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let run = data_run(bytes, offset, done).unwrap_or(bytes.len()..bytes.len());
        if done < run.start {
            left_out(offset + done as u64..offset + run.start as u64)?;
        }
        if !run.is_empty() {
            file.write_all_at(&bytes[run.clone()], offset + run.start as u64)?;
        }
        done = run.end;
    }
    Ok(())
}

/// Copies up to `bytes` bytes and returns how many: fewer at the end of `from`. Within one file the ranges must not
/// overlap. The kernel does it, sharing blocks where the file system can, if both are its files.
///
/// # Errors
/// Errors of the files, if nothing was copied.
pub fn copy_range(
    (from, from_offset): (&dyn DiskFile, u64),
    (to, to_offset): (&dyn DiskFile, u64),
    bytes: u64,
) -> io::Result<u64> {
    // The length is asked once: within one file the copy may move the end.
    let bytes = bytes.min(from.len()?.saturating_sub(from_offset));
    let mut copied = 0;
    while copied < bytes {
        match copy_some((from, from_offset + copied), (to, to_offset + copied), bytes - copied) {
            Ok(0) => break,
            Ok(more) => copied += more,
            Err(error) if copied == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(copied)
}

/// Copies the first `bytes` bytes of a file into an empty one, holes as holes.
///
/// # Errors
/// Errors of the files; `UnexpectedEof` if `from` is shorter.
pub fn copy_sparse(from: &dyn DiskFile, to: &dyn DiskFile, bytes: u64) -> io::Result<()> {
    if from.len()? < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    to.set_len(bytes)?;
    let mut offset = 0;
    while let Some(extent) = next_extent(from, offset..bytes)? {
        while offset < extent.end {
            offset = offset.max(extent.start);
            match copy_some((from, offset), (to, offset), extent.end - offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                copied => offset += copied,
            }
        }
    }
    Ok(())
}

fn copy_some(from: (&dyn DiskFile, u64), to: (&dyn DiskFile, u64), bytes: u64) -> io::Result<u64> {
    use rustix::io::Errno;
    if let (Some(from_file), Some(to_file)) = (from.0.descriptor(), to.0.writable().transpose()?) {
        let (mut from_offset, mut to_offset) = (from.1, to.1);
        let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
        let copied = rustix::io::retry_on_intr(|| {
            rustix::fs::copy_file_range(from_file, Some(&mut from_offset), &*to_file, Some(&mut to_offset), wanted)
        });
        match copied {
            // Some kernels and file systems cannot copy, which they say in many ways.
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => {}
            other => return Ok(other? as u64),
        }
    }
    let mut buffer = vec![0; usize::try_from(bytes).unwrap_or(COPY_BYTES).min(COPY_BYTES)];
    let read = from.0.read_at(&mut buffer, from.1)?;
    to.0.write_all_at(&buffer[..read], to.1)?;
    Ok(read as u64)
}

/// Finds the first run at or behind `from` of blocks that are not all zeros; blocks count from the start of the file.
fn data_run(bytes: &[u8], offset: u64, from: usize) -> Option<Range<usize>> {
    let block_end = |at: usize| {
        let into = usize::try_from((offset + at as u64) % HOLE_BYTES as u64).unwrap_or(0);
        (at + HOLE_BYTES - into).min(bytes.len())
    };
    let is_hole = |at: usize| is_zero(&bytes[at..block_end(at)]);
    let mut start = from;
    while start < bytes.len() && is_hole(start) {
        start = block_end(start);
    }
    let mut end = start;
    while end < bytes.len() && !is_hole(end) {
        end = block_end(end);
    }
    (start < end).then_some(start..end)
}

fn is_zero(block: &[u8]) -> bool {
    const ZEROS: [u8; HOLE_BYTES] = [0; HOLE_BYTES];
    *block == ZEROS[..block.len()]
}

#[cfg(test)]
mod tests;
