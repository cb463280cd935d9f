//! Reading a file of records from front to back, whatever its bytes are.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::format::{Body, FileHeader, FileKind, RecordHeader, checksum};
use super::{AppendLog, Lsn};
use crate::DiskFile;

/// A place in a file of records.
pub(crate) struct Scan {
    window: Window,
    salt: u32,
    /// The number that the next record must have.
    next: Lsn,
    offset: u64,
    /// Records that nothing has shown to be durable yet, and the places where they begin.
    unproven: VecDeque<(Lsn, u64)>,
}

/// Outcome of one step of a scan.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Step<'a> {
    /// A good record.
    Record(Lsn, &'a [u8]),
    /// The end of the records, after the last good one or the seal behind it: nothing follows, or zeros.
    End,
    /// Bytes that are no record. The scan cannot go on.
    Bad(&'static str),
}

impl Scan {
    /// Starts at the first record of a file of `len` bytes; `Err` in `Ok` says what is wrong with its header.
    pub(crate) fn open(
        file: Arc<dyn DiskFile>,
        len: u64,
        kind: FileKind,
    ) -> io::Result<Result<(FileHeader, Self), String>> {
        let mut window = Window { file, len, start: 0, bytes: Vec::new() };
        let head = window.get(0, FileHeader::BYTES)?.unwrap_or_default();
        Ok(FileHeader::decode(kind, head).map(|header| {
            let next = match kind {
                FileKind::Segment => header.first,
                FileKind::Checkpoint => Lsn::FIRST,
            };
            (
                header,
                Self { window, salt: header.salt, next, offset: FileHeader::BYTES as u64, unproven: VecDeque::new() },
            )
        }))
    }

    /// Returns the number of the record after the last good one.
    pub(crate) fn next(&self) -> Lsn {
        self.next
    }

    /// Returns the place where the last good record ends.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the place from where on nothing shows that the passed records were durable.
    pub(crate) fn unproven(&self) -> u64 {
        self.unproven.front().map_or(self.offset, |(_, offset)| *offset)
    }

    /// Checks and passes one record.
    pub(crate) fn step(&mut self) -> io::Result<Step<'_>> {
        let Some(head) = self.window.get(self.offset, RecordHeader::BYTES)? else {
            return self.end_or("the head of a record is cut short", self.offset);
        };
        let Some(head) = RecordHeader::decode(self.salt, head) else {
            return self.end_or("the check sum of a record's head is wrong", self.offset);
        };
        let body_at = self.offset + RecordHeader::BYTES as u64;
        let (bytes, sum) = match head.body {
            _ if head.number != self.next => return Ok(Step::Bad("a record has the wrong number")),
            Body::Seal => {
                prove_below(&mut self.unproven, head.durable_below());
                return self.end_or("bytes follow a seal", body_at);
            }
            Body::Payload { bytes, checksum } => (bytes as usize, checksum),
        };
        if bytes > AppendLog::RECORD_BYTES_MAX {
            return Ok(Step::Bad("a record is too long"));
        }
        let salt = self.salt;
        match self.window.get(body_at, bytes)? {
            None => Ok(Step::Bad("a record is cut short")),
            Some(payload) if checksum(salt, payload) != sum => Ok(Step::Bad("the check sum of a record is wrong")),
            Some(payload) => {
                let number = self.next;
                self.next = Lsn(number.0 + 1);
                self.unproven.push_back((number, self.offset));
                self.offset = body_at + bytes as u64;
                prove_below(&mut self.unproven, head.durable_below());
                Ok(Step::Record(number, payload))
            }
        }
    }

    /// Returns the end, if from `offset` on there is only room.
    fn end_or(&mut self, bad: &'static str, mut offset: u64) -> io::Result<Step<'static>> {
        while offset < self.window.len {
            let bytes = self.window.rest(offset, 1)?.unwrap_or_default();
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(Step::Bad(bad));
            }
            offset += bytes.len() as u64;
        }
        Ok(Step::End)
    }

    /// Looks beyond bad bytes for proof that the record missing here was durable: a head whose record was written
    /// after that.
    pub(crate) fn proof_of_damage(&mut self) -> io::Result<bool> {
        let mut offset = self.offset;
        while let Some(bytes) = self.window.rest(offset, RecordHeader::BYTES)? {
            let heads = bytes.windows(RecordHeader::BYTES);
            let tried = heads.len() as u64;
            let proof = |head: RecordHeader| head.durable_below() > self.next;
            if heads.filter_map(|head| RecordHeader::decode(self.salt, head)).any(proof) {
                return Ok(true);
            }
            offset += tried;
        }
        Ok(false)
    }
}

/// Notes that the records below a number were durable.
fn prove_below(unproven: &mut VecDeque<(Lsn, u64)>, durable: Lsn) {
    while unproven.front().is_some_and(|(number, _)| *number < durable) {
        unproven.pop_front();
    }
}

/// A part of a file in memory.
struct Window {
    file: Arc<dyn DiskFile>,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// Bytes read at once.
    const READ_BYTES: usize = 256 * 1024;

    /// Returns `count` bytes at `offset`; `None` if the file ends before.
    fn get(&mut self, offset: u64, count: usize) -> io::Result<Option<&[u8]>> {
        Ok(self.rest(offset, count)?.map(|bytes| &bytes[..count]))
    }

    /// Returns at least `count` bytes at `offset`; `None` if the file ends before.
    fn rest(&mut self, offset: u64, count: usize) -> io::Result<Option<&[u8]>> {
        let left = self.len.saturating_sub(offset);
        if left < count as u64 {
            return Ok(None);
        }
        let end = self.start + self.bytes.len() as u64;
        if offset < self.start || offset + count as u64 > end {
            let wanted = count.max(Self::READ_BYTES);
            self.bytes.resize(usize::try_from(left).unwrap_or(wanted).min(wanted), 0);
            self.start = offset;
            let read = self.file.read_at(&mut self.bytes, offset)?;
            self.bytes.truncate(read);
            if read < count {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read"));
            }
        }
        let at = usize::try_from(offset - self.start).map_err(io::Error::other)?;
        Ok(Some(&self.bytes[at..]))
    }
}
