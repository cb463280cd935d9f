//! Reading records back while the log goes on.

use std::io;
use std::sync::Arc;

use super::format::FileKind;
use super::recover::segment_path;
use super::scan::{Scan, Step};
use super::{LogError, Lsn, Segment};
use crate::Disk;

/// The records of a log from one number up to the last one at the time when the reader was made. After an error it
/// ends.
pub struct LogReader {
    disk: Arc<dyn Disk>,
    dir: String,
    segments: std::vec::IntoIter<Segment>,
    at: Option<(Lsn, Scan)>,
    next: Lsn,
    end: Lsn,
}

impl LogReader {
    pub(super) fn new(disk: Arc<dyn Disk>, dir: String, segments: Vec<Segment>, from: Lsn, end: Lsn) -> Self {
        Self { disk, dir, segments: segments.into_iter(), at: None, next: from, end }
    }

    /// Leaves out the records from `end` on.
    #[must_use]
    pub(crate) fn up_to(self, end: Lsn) -> Self {
        Self { end: end.min(self.end), ..self }
    }

    fn read(&mut self) -> Result<(Lsn, Vec<u8>), LogError> {
        loop {
            let (segment, scan) = match &mut self.at {
                Some(at) => at,
                None => self.at.insert(Self::open_next(&*self.disk, &self.dir, &mut self.segments, self.next)?),
            };
            let offset = scan.offset();
            let damaged = |why: &str| LogError::Damaged { segment: segment.file_name(), offset, why: why.to_owned() };
            match scan.step()? {
                Step::Record(number, _) if number < self.next => {}
                Step::Record(number, payload) => {
                    self.next = Lsn(number.0 + 1);
                    return Ok((number, payload.to_vec()));
                }
                Step::End => {
                    if scan.next() < self.next {
                        return Err(damaged("records are missing"));
                    }
                    self.at = None;
                }
                Step::Bad(why) => return Err(damaged(why)),
            }
        }
    }

    fn open_next(
        disk: &dyn Disk,
        dir: &str,
        segments: &mut std::vec::IntoIter<Segment>,
        next: Lsn,
    ) -> Result<(Lsn, Scan), LogError> {
        let Some(Segment { first, bytes }) = segments.next() else {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the log ends before it should").into());
        };
        if first > next {
            return Err(LogError::Gone { first });
        }
        let file = match disk.open(&segment_path(dir, first)) {
            // The segment was deleted since this reader was made.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let first = segments.next().map_or(next, |segment| segment.first);
                return Err(LogError::Gone { first });
            }
            other => other?,
        };
        match Scan::open(file, bytes, FileKind::Segment)? {
            Ok((_, scan)) => Ok((first, scan)),
            Err(why) => Err(LogError::Damaged { segment: first.file_name(), offset: 0, why }),
        }
    }
}

impl Iterator for LogReader {
    type Item = Result<(Lsn, Vec<u8>), LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        let item = self.read();
        if item.is_err() {
            self.end = self.next;
        }
        Some(item)
    }
}
