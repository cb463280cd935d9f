//! Frames in one QUIC stream, each behind its length, each with its check.
//!
//! The connecting end opens the stream with one byte, for a stream does not exist before its first byte.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::stream;
use prost::Message;
use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::sync::mpsc;

use crate::carrier::check::{CHECK_BYTES, FrameOpener, seal};
use crate::carrier::{Broken, FRAME_BYTES_MAX, FrameStream, SINK_FRAMES};
use crate::wire::Frame;

/// The byte that a stream begins with.
pub(super) const GREETING: u8 = 0;
/// The code of a connection that ends as it should.
pub(super) const DONE: VarInt = VarInt::from_u32(0);
/// The most bytes of a length, of seven bits a byte: for 2 MB.
const LENGTH_BYTES_MAX: usize = 3;
const _: () = assert!(FRAME_BYTES_MAX < 1 << (7 * LENGTH_BYTES_MAX));
/// How long the peer may take to acknowledge the last frames before the connection ends without the acknowledgement.
const LINGER: Duration = Duration::from_secs(1);
/// The most bytes that are taken from the transport at a time.
const PIECE_BYTES: usize = 256 * 1024;

/// Starts to send the frames that come through the sink. When the sink is dropped the rest goes, and the connection
/// ends.
pub(super) fn sink(mut stream: SendStream, connection: Connection) -> mpsc::Sender<Frame> {
    let (sink, mut sent) = mpsc::channel(SINK_FRAMES);
    tokio::spawn(async move {
        let mut number = 0;
        while let Some(frame) = sent.recv().await {
            let written = stream.write_chunk(packed(&frame, number)).await;
            number += 1;
            if written.is_err() {
                break;
            }
        }
        if stream.finish().is_ok() {
            let _ = tokio::time::timeout(LINGER, stream.stopped()).await;
        }
        connection.close(DONE, b"");
    });
    sink
}

/// Packs a frame with its check, behind its length.
fn packed(frame: &Frame, number: u64) -> Bytes {
    let length = frame.encoded_len() + CHECK_BYTES;
    let mut packed = BytesMut::with_capacity(LENGTH_BYTES_MAX + length);
    // A growing buffer has room for everything.
    let _ = prost::encode_length_delimiter(length, &mut packed);
    let mut sealed = packed.split_off(packed.len());
    seal(frame, number, &mut sealed);
    packed.unsplit(sealed);
    packed.freeze()
}

/// Returns the frames that come.
pub(super) fn frames(stream: RecvStream, connection: Connection) -> FrameStream {
    let receiver = Receiver { stream, connection, unpacker: Unpacker::default() };
    Box::pin(stream::unfold(receiver, |mut receiver| async move {
        let next = receiver.next().await?;
        Some((next, receiver))
    }))
}

struct Receiver {
    stream: RecvStream,
    /// The connection, which is not read; but the stream's end is the connection's.
    connection: Connection,
    unpacker: Unpacker,
}

impl Receiver {
    async fn next(&mut self) -> Option<Result<Frame, Broken>> {
        loop {
            if let Some(frame) = self.unpacker.next() {
                return Some(frame);
            }
            match self.stream.read_chunk(PIECE_BYTES, true).await {
                Ok(Some(chunk)) => self.unpacker.push(&chunk.bytes),
                Ok(None) => return None,
                Err(_) => return self.connection.close_reason().and_then(lost),
            }
        }
    }
}

/// Returns the reason why a connection was lost; `None` if either end has ended it.
fn lost(reason: quinn::ConnectionError) -> Option<Result<Frame, Broken>> {
    match reason {
        quinn::ConnectionError::LocallyClosed | quinn::ConnectionError::ApplicationClosed(_) => None,
        reason => Some(Err(Broken::Lost(format!("the connection failed: {reason}")))),
    }
}

/// An unpacker that takes frames out of pieces of a stream.
#[derive(Debug, Default)]
struct Unpacker {
    bytes: BytesMut,
    opener: Option<FrameOpener>,
}

impl Unpacker {
    fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    fn next(&mut self) -> Option<Result<Frame, Broken>> {
        let (length, head) = match length(&self.bytes)? {
            Ok(found) => found,
            Err(broken) => return Some(Err(broken)),
        };
        if self.bytes.len() < head + length {
            self.bytes.reserve(head + length - self.bytes.len());
            return None;
        }
        self.bytes.advance(head);
        let sealed = self.bytes.split_to(length).freeze();
        Some(self.opener.get_or_insert_with(FrameOpener::strict).open(sealed))
    }
}

/// Returns the length of the next frame, and how many bytes say it; `None` if they have not all come.
fn length(bytes: &[u8]) -> Option<Result<(usize, usize), Broken>> {
    let end = bytes.iter().take(LENGTH_BYTES_MAX).position(|byte| byte & 0x80 == 0);
    let Some(end) = end else {
        return (bytes.len() >= LENGTH_BYTES_MAX).then_some(Err(Broken::Damaged));
    };
    let length = bytes[..=end].iter().rev().fold(0, |length, byte| length << 7 | usize::from(byte & 0x7f));
    Some(if length <= FRAME_BYTES_MAX { Ok((length, end + 1)) } else { Err(Broken::Damaged) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Data, Probe, frame::Kind};

    fn frame(bytes: usize) -> Frame {
        let kind = match bytes {
            0 => Kind::Probe(Probe { token: 9 }),
            _ => Kind::Data(Data { id: 1, class: 4, data: vec![7; bytes].into(), last: false }),
        };
        Frame { acknowledged: 5, kind: Some(kind), ..Frame::default() }
    }

    fn unpacked(bytes: &[u8], piece: usize) -> Vec<Result<Frame, Broken>> {
        let mut unpacker = Unpacker::default();
        let mut frames = Vec::new();
        for piece in bytes.chunks(piece) {
            unpacker.push(piece);
            while let Some(frame) = unpacker.next() {
                let ended = frame.is_err();
                frames.push(frame);
                if ended {
                    return frames;
                }
            }
        }
        frames
    }

    #[test]
    fn frames_come_as_they_were_however_the_stream_is_cut() {
        let sent = [frame(0), frame(1), frame(100), frame(20_000), frame(500_000)];
        let stream: Vec<u8> = sent.iter().zip(0..).flat_map(|(frame, number)| packed(frame, number)).collect();
        for piece in [1, 2, 7, 1200, 1 << 20] {
            assert_eq!(unpacked(&stream, piece), sent.clone().map(Ok), "pieces of {piece}");
        }
    }

    #[test]
    fn a_damaged_byte_a_missing_frame_and_a_length_without_end_are_noticed() {
        let stream = [packed(&frame(100), 0), packed(&frame(3), 1)].concat();
        for at in 0..stream.len() {
            let mut damaged = stream.clone();
            damaged[at] ^= 0x11;
            let taken = unpacked(&damaged, 64);
            assert!(taken.iter().filter(|frame| frame.is_ok()).count() < 2, "byte {at}");
        }
        assert_eq!(unpacked(&packed(&frame(3), 1), 64), [Err(Broken::Damaged)]);
        assert_eq!(unpacked(&[0xff; 3], 64), [Err(Broken::Damaged)]);
        assert_eq!(unpacked(&[0xff, 0xff, 0x7f], 64), [Err(Broken::Damaged)], "2 MB are too many");
    }
}
