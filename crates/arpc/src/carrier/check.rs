//! The check of a frame on its way: a CRC-32 behind it. A frame with a wrong one is not taken.
//!
//! The check covers the frame's number too. If a byte changes in the bytes that HTTP/2 puts around frames, HTTP/2 may
//! skip a frame as one of its own of an unknown kind: then a piece of a content is missing, and the next piece would
//! come to lie in its place. The next frame's check shows this.
//!
//! TCP's check sum is 16 bits of a sum, and bytes that change in a router's memory get a right one. A changed byte in a
//! frame would be another name, or another content in the pages of a reader that does not wait for the whole. So the
//! connection ends, and calls under way are sent again on the next one.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::Broken;
use crate::engine::FRAMING_BYTES;
use crate::wire::Frame;

/// Field 18 of a frame, of 4 bytes (wire type 5): an end that knows of no checks skips it.
const TAG: [u8; 2] = [0x95, 0x01];
/// Bytes that the check adds to a frame.
pub(super) const CHECK_BYTES: usize = TAG.len() + size_of::<u32>();
const _: () = assert!(FRAMING_BYTES == 9 + 5 + CHECK_BYTES as u64, "the engine counts the check of each frame");

/// Computes the check of the frame of this number, from 0 on.
fn check_of(frame: &[u8], number: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(frame);
    hasher.finalize()
}

/// Puts a frame with its check into an empty buffer.
pub(super) fn seal(frame: &Frame, number: u64, buffer: &mut BytesMut) {
    buffer.reserve(frame.encoded_len() + CHECK_BYTES);
    // A growing buffer has room for everything.
    let _ = frame.encode(buffer);
    let check = check_of(buffer, number);
    buffer.put_slice(&TAG);
    buffer.put_u32_le(check);
}

/// An opener of sealed frames, one after the other.
#[derive(Debug, Default)]
pub(crate) struct FrameOpener {
    /// Whether a frame has had a check. Before, frames may have none: an older peer is to hear which versions are
    /// spoken.
    checked: bool,
    /// The number of the next frame.
    next: u64,
}

impl FrameOpener {
    /// Makes an opener of frames that have checks from the first on.
    pub(super) fn strict() -> Self {
        Self { checked: true, next: 0 }
    }

    /// Returns the frame that was sealed, if it has come undamaged.
    pub(super) fn open(&mut self, mut sealed: Bytes) -> Result<Frame, Broken> {
        let frame = sealed.split_to(sealed.len().saturating_sub(CHECK_BYTES));
        let number = self.next;
        self.next += 1;
        match sealed.strip_prefix(&TAG).map(<[u8; 4]>::try_from) {
            Some(Ok(check)) if u32::from_le_bytes(check) == check_of(&frame, number) => {
                self.checked = true;
                Frame::decode(frame).map_err(|_| Broken::Damaged)
            }
            Some(_) => Err(Broken::Damaged),
            None if self.checked => Err(Broken::Damaged),
            None => Frame::decode(frame.chain(sealed)).map_err(|_| Broken::Damaged),
        }
    }
}

/// The codec of frames with checks in a gRPC stream.
#[derive(Debug, Default)]
pub(crate) struct CheckedCodec;

impl Codec for CheckedCodec {
    type Encode = Frame;
    type Decode = Frame;
    type Encoder = FrameSealer;
    type Decoder = FrameOpener;

    fn encoder(&mut self) -> Self::Encoder {
        FrameSealer::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        FrameOpener::default()
    }
}

/// A sealer of frames, one after the other.
#[derive(Debug, Default)]
pub(crate) struct FrameSealer {
    /// The buffer in which a message is made: one that is being sent cannot be read back.
    buffer: BytesMut,
    /// The number of the next frame.
    next: u64,
}

impl Encoder for FrameSealer {
    type Item = Frame;
    type Error = Status;

    fn encode(&mut self, frame: Frame, sent: &mut EncodeBuf<'_>) -> Result<(), Status> {
        self.buffer.clear();
        seal(&frame, self.next, &mut self.buffer);
        self.next += 1;
        sent.put_slice(&self.buffer);
        Ok(())
    }
}

impl Decoder for FrameOpener {
    type Item = Frame;
    type Error = Status;

    fn decode(&mut self, come: &mut DecodeBuf<'_>) -> Result<Option<Frame>, Status> {
        let sealed = come.copy_to_bytes(come.remaining());
        self.open(sealed).map(Some).map_err(|_| Status::data_loss("a frame was damaged on its way"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::wire::{Call, Probe, frame::Kind};

    fn frame() -> Frame {
        let (body, data) = (Bytes::from_static(b"a body"), Bytes::from_static(b"some data"));
        let call = Call { id: 7, class: 4, method: 8, body, data, last: true };
        Frame { acknowledged: 5, received_at_us: 9, kind: Some(Kind::Call(call)), ..Frame::default() }
    }

    fn sealed(frame: &Frame) -> Vec<u8> {
        numbered(frame, 0).to_vec()
    }

    fn numbered(frame: &Frame, number: u64) -> Bytes {
        let mut buffer = BytesMut::new();
        seal(frame, number, &mut buffer);
        buffer.freeze()
    }

    #[test]
    fn a_frame_that_is_missing_or_comes_twice_is_noticed() {
        let frames = [0, 1, 2].map(|number| numbered(&frame(), number));
        for (order, taken) in [(&[0, 1, 2][..], 3), (&[0, 2], 1), (&[0, 0], 1), (&[1], 0)] {
            let mut opener = FrameOpener::strict();
            let opened = order.iter().take_while(|number| opener.open(frames[**number].clone()).is_ok());
            assert_eq!(opened.count(), taken, "{order:?}");
        }
    }

    #[test]
    fn a_frame_comes_as_it_was_and_who_knows_no_checks_reads_it_too() {
        for frame in [frame(), Frame { kind: Some(Kind::Probe(Probe { token: 1 })), ..Frame::default() }] {
            let sealed = sealed(&frame);
            assert_eq!(FrameOpener::strict().open(sealed.clone().into()), Ok(frame.clone()));
            assert_eq!(Frame::decode(&sealed[..]).unwrap(), frame);
        }
    }

    #[test]
    fn a_byte_that_changes_anywhere_is_noticed() {
        let sealed = sealed(&frame());
        for at in 0..sealed.len() {
            for flip in 1..=u8::MAX {
                let mut damaged = sealed.clone();
                damaged[at] ^= flip;
                assert_eq!(FrameOpener::strict().open(damaged.into()), Err(Broken::Damaged), "{flip} at {at}");
            }
        }
        for length in 0..sealed.len() {
            assert_eq!(
                FrameOpener::strict().open(sealed[..length].to_vec().into()),
                Err(Broken::Damaged),
                "{length} bytes"
            );
        }
    }

    #[test]
    fn frames_have_checks_from_the_first_check_on() {
        let (mut opener, old) = (FrameOpener::default(), Bytes::from(frame().encode_to_vec()));
        assert_eq!(opener.open(old.clone()), Ok(frame()), "an older peer is told so");
        assert_eq!(opener.open(numbered(&frame(), 1)), Ok(frame()));
        assert_eq!(opener.open(old), Err(Broken::Damaged));
    }
}
