//! The bytes of segments and checkpoints: headers, records, seals. docs/formats.md describes them.
//!
//! Every check sum starts from the salt of its file, so that bytes which look like a record in another file, or which
//! somebody stored in the hope to be taken for one, are none here.

use super::Lsn;

/// Kind of a file of records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileKind {
    /// A part of a log.
    Segment,
    /// The whole of an index.
    Checkpoint,
}

impl FileKind {
    const fn magic(self) -> [u8; 8] {
        match self {
            Self::Segment => *b"mafs-log",
            Self::Checkpoint => *b"mafs-ckp",
        }
    }
}

/// The version of both formats.
const FORMAT_VERSION: u32 = 1;

/// The head of a file of records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileHeader {
    pub(crate) kind: FileKind,
    pub(crate) salt: u32,
    /// For a segment, the number of its first record; for a checkpoint, the journal position it is good from.
    pub(crate) first: Lsn,
}

impl FileHeader {
    pub(crate) const BYTES: usize = 28;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.kind.magic());
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.salt.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.0.to_le_bytes());
        let sum = checksum(0, &bytes[..24]);
        bytes[24..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses a header; tells what is wrong with other bytes.
    pub(crate) fn decode(kind: FileKind, bytes: &[u8]) -> Result<Self, String> {
        let Some(bytes) = bytes.get(..Self::BYTES) else { return Err("its header is cut short".to_owned()) };
        if bytes[..8] != kind.magic() {
            return Err("it does not begin as it should".to_owned());
        }
        if checksum(0, &bytes[..24]) != u32_at(bytes, 24) {
            return Err("the check sum of its header is wrong".to_owned());
        }
        match u32_at(bytes, 8) {
            FORMAT_VERSION => Ok(Self { kind, salt: u32_at(bytes, 12), first: Lsn(u64_at(bytes, 16)) }),
            other => Err(format!("it has format {other}, this program knows {FORMAT_VERSION}")),
        }
    }
}

/// The head of a record, or a seal, which is a head alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordHeader {
    pub(crate) number: Lsn,
    /// Number of records before this one that were not yet durable when it was written. Records below
    /// [`Self::durable_below`] were.
    pub(crate) unsynced: u32,
    pub(crate) body: Body,
}

/// Part of a record behind its head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Body {
    /// A payload.
    Payload { bytes: u32, checksum: u32 },
    /// Nothing: the head marks the end of what is durable, and the next record is written over it.
    Seal,
}

impl RecordHeader {
    pub(crate) const BYTES: usize = 24;

    /// The length that tells a seal.
    const SEAL: u32 = u32::MAX;

    /// Returns the number below which all records were durable when this one was written.
    pub(crate) fn durable_below(&self) -> Lsn {
        Lsn(self.number.0 - u64::from(self.unsynced))
    }

    pub(crate) fn encode(&self, salt: u32) -> [u8; Self::BYTES] {
        let (length, sum) = match self.body {
            Body::Payload { bytes, checksum } => (bytes, checksum),
            Body::Seal => (Self::SEAL, 0),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.unsynced.to_le_bytes());
        let own = checksum(salt, &bytes[..20]);
        bytes[20..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// Parses the head that `bytes` begin with, if they do.
    pub(crate) fn decode(salt: u32, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..Self::BYTES)?;
        let (number, unsynced) = (u64_at(bytes, 8), u32_at(bytes, 16));
        if number <= u64::from(unsynced) || checksum(salt, &bytes[..20]) != u32_at(bytes, 20) {
            return None;
        }
        let body = match u32_at(bytes, 0) {
            Self::SEAL => Body::Seal,
            length => Body::Payload { bytes: length, checksum: u32_at(bytes, 4) },
        };
        Some(Self { number: Lsn(number), unsynced, body })
    }
}

/// Appends a record to `out`. The payload is at most [`super::AppendLog::RECORD_BYTES_MAX`] long.
pub(crate) fn encode_record(salt: u32, number: Lsn, unsynced: u32, payload: &[u8], out: &mut Vec<u8>) {
    let bytes = u32::try_from(payload.len()).unwrap_or(RecordHeader::SEAL);
    let body = Body::Payload { bytes, checksum: checksum(salt, payload) };
    out.extend_from_slice(&RecordHeader { number, unsynced, body }.encode(salt));
    out.extend_from_slice(payload);
}

/// Returns the CRC-32 of `bytes`, starting from a salt.
pub(crate) fn checksum(salt: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(bytes);
    hasher.finalize()
}

/// Makes a salt that nobody can foretell: the keys of the standard library's hash maps are random.
pub(crate) fn new_salt() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let random = std::hash::RandomState::new().build_hasher().finish().to_le_bytes();
    u32_at(&random, 0)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let mut bytes = FileHeader { kind: FileKind::Segment, salt: 5, first: Lsn(7) }.encode().to_vec();
        encode_record(5, Lsn(7), 0, b"hello", &mut bytes);
        bytes.extend(RecordHeader { number: Lsn(8), unsynced: 0, body: Body::Seal }.encode(5));
        assert_eq!(crate::formats::example("segment"), bytes, "{}", bytes.escape_ascii());
    }
}
