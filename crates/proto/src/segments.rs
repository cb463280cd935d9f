//! Segments: the form in which a content travels as payload, so that zeros which nobody wrote cost nothing.
//!
//! A content (or the part of it that is sent) is a row of segments: so many zeros, then so many bytes that follow at
//! once. A receiver knows the length of the content before the first segment comes, and refuses a longer one.

//! An upload ends with the sender's hash of the whole content: a receiver that has hashed the received content can
//! tell whether it is the sent one.

use bytes::{Buf, Bytes};

use crate::{ContentHash, ContentHasher};

/// The header of a segment: 16 bytes, two u64, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// Zeros, which are not sent.
    pub zeros: u64,
    /// Bytes behind them, which follow.
    pub data: u64,
}

impl Segment {
    /// The size of a header on the wire.
    pub const BYTES: usize = 16;

    /// Encodes the header as it travels.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        (u128::from(self.data) << 64 | u128::from(self.zeros)).to_le_bytes()
    }

    /// Makes one segment of a content at hand; none if it is empty.
    #[must_use]
    pub fn of(content: &[u8]) -> Bytes {
        match content.len() as u64 {
            0 => Bytes::new(),
            data => [&Self { zeros: 0, data }.encode(), content].concat().into(),
        }
    }

    /// Makes the upload of a content at hand: one segment, and the content's hash.
    #[must_use]
    pub fn upload(content: &[u8]) -> Bytes {
        [&Self::of(content)[..], &ContentHash::of(content).0].concat().into()
    }

    fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let [mut zeros, mut data] = [[0; 8]; 2];
        zeros.copy_from_slice(&bytes[..8]);
        data.copy_from_slice(&bytes[8..]);
        Self { zeros: u64::from_le_bytes(zeros), data: u64::from_le_bytes(data) }
    }
}

/// Part of a content, as it arrives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ContentPart {
    /// A segment begins: its zeros are the next bytes of the content, its data will come.
    Segment(Segment),
    /// The next bytes of the content.
    Data(Bytes),
}

/// Segments that do not make up the content they should.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the segments of a content are not those of its size")]
pub struct BadSegments;

/// Reads segments of a content whose size is known. Holds at most one header, or hash.
#[derive(Debug)]
pub struct SegmentReader {
    header: [u8; HASH_BYTES],
    header_bytes: usize,
    /// Bytes of the present segment to come.
    data_left: u64,
    /// Bytes of the content behind the present segment.
    left: u64,
    trailer: Trailer,
}

/// The part that follows the last segment.
#[derive(Debug)]
enum Trailer {
    Nothing,
    /// A hash that has not come yet.
    Hash,
    Came(ContentHash),
}

const HASH_BYTES: usize = 32;

impl SegmentReader {
    /// Makes a reader for a content, or a part of one, of this size.
    #[must_use]
    pub fn new(content_bytes: u64) -> Self {
        Self { header: [0; HASH_BYTES], header_bytes: 0, data_left: 0, left: content_bytes, trailer: Trailer::Nothing }
    }

    /// Makes a reader for an upload of a content, or of a part of one, of this size: the hash comes behind the last
    /// segment.
    #[must_use]
    pub fn of_upload(content_bytes: u64) -> Self {
        Self { trailer: Trailer::Hash, ..Self::new(content_bytes) }
    }

    /// Takes the next part out of `bytes`; `None` when all of them are taken.
    ///
    /// # Errors
    /// If the segments are longer than the content, or one of them is empty, or something follows the last.
    pub fn next(&mut self, bytes: &mut Bytes) -> Result<Option<ContentPart>, BadSegments> {
        if bytes.is_empty() {
            return Ok(None);
        }
        if self.data_left > 0 {
            let count = usize::try_from(self.data_left).unwrap_or(usize::MAX).min(bytes.len());
            self.data_left -= count as u64;
            return Ok(Some(ContentPart::Data(bytes.split_to(count))));
        }
        if self.left == 0 && matches!(self.trailer, Trailer::Hash) {
            if self.take_header(bytes, HASH_BYTES) {
                self.trailer = Trailer::Came(ContentHash(self.header));
            }
            return if bytes.is_empty() { Ok(None) } else { Err(BadSegments) };
        }
        if !self.take_header(bytes, Segment::BYTES) {
            return Ok(None);
        }
        let mut header = [0; Segment::BYTES];
        header.copy_from_slice(&self.header[..Segment::BYTES]);
        self.begin(Segment::decode(header)).map(Some)
    }

    /// Takes up to `wanted` bytes of a header or hash. Returns whether they are all here.
    fn take_header(&mut self, bytes: &mut Bytes, wanted: usize) -> bool {
        let count = (wanted - self.header_bytes).min(bytes.len());
        bytes.copy_to_slice(&mut self.header[self.header_bytes..self.header_bytes + count]);
        self.header_bytes = (self.header_bytes + count) % wanted;
        self.header_bytes == 0
    }

    /// Whether all of the content has come, and its hash if it is an upload.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let awaits_hash = matches!(self.trailer, Trailer::Hash);
        self.left == 0 && self.data_left == 0 && self.header_bytes == 0 && !awaits_hash
    }

    /// Returns the hash that has come behind the content.
    #[must_use]
    pub fn hash(&self) -> Option<ContentHash> {
        match self.trailer {
            Trailer::Came(hash) => Some(hash),
            Trailer::Nothing | Trailer::Hash => None,
        }
    }

    fn begin(&mut self, segment: Segment) -> Result<ContentPart, BadSegments> {
        let bytes = segment.zeros.checked_add(segment.data).filter(|bytes| *bytes > 0).ok_or(BadSegments)?;
        self.left = self.left.checked_sub(bytes).ok_or(BadSegments)?;
        self.data_left = segment.data;
        Ok(ContentPart::Segment(segment))
    }
}

/// Hashes a content as it is sent, or comes.
#[derive(Debug)]
pub struct SegmentHasher {
    hasher: ContentHasher,
    segments: SegmentReader,
}

impl SegmentHasher {
    /// Makes a hasher for a content of which `hasher` has taken the beginning, and `bytes_left` bytes are to come.
    #[must_use]
    pub fn new(hasher: ContentHasher, bytes_left: u64) -> Self {
        Self { hasher, segments: SegmentReader::new(bytes_left) }
    }

    /// Takes the next piece of the segments.
    ///
    /// # Errors
    /// If they are not those of the content.
    pub fn take(&mut self, mut piece: Bytes) -> Result<(), BadSegments> {
        while let Some(part) = self.segments.next(&mut piece)? {
            match part {
                ContentPart::Segment(Segment { zeros, .. }) => self.hasher.skip(zeros),
                ContentPart::Data(bytes) => self.hasher.update(&bytes),
            }
        }
        Ok(())
    }

    /// Returns the hash of the content, if it has been taken whole.
    #[must_use]
    pub fn hash(&self) -> Option<ContentHash> {
        self.segments.is_whole().then(|| self.hasher.clone().finish())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(reader: &mut SegmentReader, mut bytes: Bytes) -> Result<Vec<ContentPart>, BadSegments> {
        let mut parts = Vec::new();
        while let Some(part) = reader.next(&mut bytes)? {
            parts.push(part);
        }
        Ok(parts)
    }

    proptest! {
        #[test]
        fn proptest_segments_are_read_back_however_they_are_cut(
            segments in proptest::collection::vec((0..5_000u64, 0..5_000u64), 1..8),
            cuts in proptest::collection::vec(1..3_000usize, 0..40),
        ) {
            let segments: Vec<_> = segments.into_iter().filter(|segment| *segment != (0, 0)).collect();
            let (mut wire, mut wanted) = (Vec::new(), Vec::new());
            for (zeros, data) in segments {
                let bytes = vec![7; usize::try_from(data).unwrap()];
                wire.extend(Segment { zeros, data }.encode());
                wire.extend_from_slice(&bytes);
                wanted.resize(wanted.len() + usize::try_from(zeros).unwrap(), 0);
                wanted.extend(bytes);
            }
            let mut reader = SegmentReader::new(wanted.len() as u64);
            let (mut rest, mut content) = (Bytes::from(wire), Vec::new());
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let piece = rest.split_to(cut.min(rest.len()));
                for part in read(&mut reader, piece).unwrap() {
                    match part {
                        ContentPart::Segment(segment) => {
                            content.resize(content.len() + usize::try_from(segment.zeros).unwrap(), 0);
                        }
                        ContentPart::Data(bytes) => content.extend_from_slice(&bytes),
                    }
                }
            }
            prop_assert!(content == wanted && reader.is_whole());
        }
    }

    #[test]
    fn invariant_10_segments_longer_than_the_content_are_refused_before_anything_is_made_of_them() {
        for (zeros, data) in [(0, 0), (101, 0), (0, 101), (50, 51), (u64::MAX, 1), (1, u64::MAX)] {
            let header = Bytes::copy_from_slice(&Segment { zeros, data }.encode());
            assert_eq!(read(&mut SegmentReader::new(100), header), Err(BadSegments), "{zeros} {data}");
        }
    }

    #[test]
    fn an_upload_is_whole_with_the_hash_behind_it_and_nothing_behind_that() {
        for content in [&b""[..], b"content"] {
            let wire = Segment::upload(content);
            for length in 0..=wire.len() {
                let mut reader = SegmentReader::of_upload(content.len() as u64);
                let (mut first, mut rest) = (wire.slice(..length), wire.slice(length..));
                while reader.next(&mut first).unwrap().is_some() {}
                assert_eq!(reader.is_whole(), length == wire.len(), "{length}");
                while reader.next(&mut rest).unwrap().is_some() {}
                assert_eq!(reader.hash(), Some(ContentHash::of(content)));
                assert_eq!(reader.next(&mut Bytes::from_static(b"x")), Ok(None));
                assert!(!reader.is_whole());
            }
            let longer = [&wire[..], b"x"].concat();
            assert_eq!(read(&mut SegmentReader::of_upload(content.len() as u64), longer.into()), Err(BadSegments));
        }
    }

    #[test]
    fn a_content_is_hashed_on_its_way_from_wherever_it_goes_on() {
        let content = [vec![7; 5_000], vec![0; 10_000], vec![9; 3]].concat();
        for start in [0, 4_096, 5_001, content.len()] {
            let mut begun = ContentHasher::default();
            begun.update(&content[..start]);
            let mut hasher = SegmentHasher::new(begun, (content.len() - start) as u64);
            for piece in Segment::of(&content[start..]).chunks(1_000) {
                assert_eq!(hasher.hash(), None);
                hasher.take(Bytes::copy_from_slice(piece)).unwrap();
            }
            assert_eq!(hasher.hash(), Some(ContentHash::of(&content)), "{start}");
        }
    }

    #[test]
    fn a_content_cut_short_is_not_whole() {
        let wire = [&Segment { zeros: 90, data: 10 }.encode()[..], &[1; 10]].concat();
        for length in 0..wire.len() {
            let mut reader = SegmentReader::new(100);
            read(&mut reader, Bytes::copy_from_slice(&wire[..length])).unwrap();
            assert!(!reader.is_whole(), "{length}");
        }
    }
}
