//! A file as segments: the bytes of it that have to be sent, in pieces, holes left out.

use std::io;
use std::ops::Range;

use mafs_proto::Segment;

use crate::{DiskFile, next_extent};

/// Reads a range of a file as the segments that carry it.
#[derive(Debug)]
pub struct FileSegments {
    rest: Range<u64>,
    /// End of the segment that was begun.
    data_end: u64,
}

impl FileSegments {
    /// Begins to read a range that the file has.
    #[must_use]
    pub fn new(range: Range<u64>) -> Self {
        Self { data_end: range.start, rest: range }
    }

    /// Returns the next piece, of about `bytes_max` bytes at most; `None` at the end. All pieces have to be read of
    /// the same bytes, but may be read of different files that hold them.
    ///
    /// # Errors
    /// Errors of the file; `UnexpectedEof` if it is shorter than the range.
    pub fn next_piece(&mut self, file: &dyn DiskFile, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let mut piece = Vec::new();
        if self.rest.start == self.data_end {
            let end = self.rest.end;
            let extent = next_extent(file, self.rest.clone())?.unwrap_or(end..end);
            // Behind its end a file reads as a hole does.
            if extent.is_empty() && file.len()? < end {
                return Err(too_short());
            }
            let segment = Segment { zeros: extent.start - self.rest.start, data: extent.end - extent.start };
            piece.extend(segment.encode());
            (self.rest.start, self.data_end) = (extent.start, extent.end);
        }
        // The header counts, so that every piece fills the same number of frames.
        let room = bytes_max.saturating_sub(piece.len()).max(1);
        let wanted = usize::try_from(self.data_end - self.rest.start).unwrap_or(room).min(room);
        let header_bytes = piece.len();
        piece.resize(header_bytes + wanted, 0);
        if file.read_at(&mut piece[header_bytes..], self.rest.start)? != wanted {
            return Err(too_short());
        }
        self.rest.start += wanted as u64;
        Ok(Some(piece))
    }
}

fn too_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it should be")
}

#[cfg(test)]
mod tests {
    use mafs_proto::{ContentPart, SegmentReader};

    use super::*;
    use crate::{Disk, MemoryDisk, write_sparse};

    fn segments(file: &dyn DiskFile, range: Range<u64>, bytes_max: usize) -> Vec<u8> {
        let mut segments = FileSegments::new(range);
        let mut wire = Vec::new();
        while let Some(piece) = segments.next_piece(file, bytes_max).unwrap() {
            assert!(piece.len() <= bytes_max, "{} bytes", piece.len());
            wire.extend(piece);
        }
        wire
    }

    #[test]
    fn any_part_of_a_file_comes_out_of_its_segments() {
        let mut content = vec![0; 300_000];
        content[100_000..200_000].fill(5);
        content[299_999] = 6;
        let file = MemoryDisk::new().create("f").unwrap();
        file.set_len(300_000).unwrap();
        write_sparse(&*file, &content, 0, |_| Ok(())).unwrap();
        for start in [0, 1, 99_999, 150_000, 250_000, 299_999, 300_000] {
            let wire = segments(&*file, start..300_000, 20_000);
            let mut reader = SegmentReader::new(300_000 - start);
            let (mut rest, mut out) = (wire.into(), Vec::new());
            while let Some(part) = reader.next(&mut rest).unwrap() {
                match part {
                    ContentPart::Segment(segment) => out.resize(out.len() + usize::try_from(segment.zeros).unwrap(), 0),
                    ContentPart::Data(bytes) => out.extend_from_slice(&bytes),
                }
            }
            assert!(reader.is_whole() && out == content[usize::try_from(start).unwrap()..], "from {start}");
        }
        let data_bytes = 200_704 - 98_304 + 300_000 - 299_008;
        assert_eq!(segments(&*file, 0..300_000, 1 << 20).len(), data_bytes + 2 * Segment::BYTES);
    }

    #[test]
    fn a_file_that_is_too_short_is_an_error() {
        let file = MemoryDisk::new().create("f").unwrap();
        file.write_all_at(&[1; 100], 0).unwrap();
        let mut segments = FileSegments::new(0..101);
        assert_eq!(segments.next_piece(&*file, 1_000).unwrap().map(|piece| piece.len()), Some(100 + Segment::BYTES));
        assert_eq!(segments.next_piece(&*file, 1_000).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
