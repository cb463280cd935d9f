//! The station's end answers frames, and tells new packets from earlier ones.

use super::{Answer, Frame, Sequence, Station};

/// One station. A single number is remembered, because packets come in order.
#[derive(Debug)]
pub struct Receiver {
    station: Station,
    latest: Option<Sequence>,
}

/// A frame that a station has heard and answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heard {
    /// The answer, to be sent at once.
    pub answer: Answer,
    /// True if the frame brought a packet that has not been there.
    pub is_new: bool,
}

impl Receiver {
    /// Makes a station that has had nothing.
    #[must_use]
    pub fn new(station: Station) -> Self {
        Self { station, latest: None }
    }

    /// Handles a frame that was heard, when there was room for `room_bytes`. Frames for others are not answered, nor
    /// are those that find no room: they come again. So a buffer that overflows costs time in place of packets.
    pub fn handle_frame(&mut self, frame: Frame, room_bytes: u64) -> Option<Heard> {
        let from = self.station;
        match frame {
            _ if frame.to() != from => None,
            Frame::Probe { bytes, .. } => {
                (bytes <= room_bytes).then_some(Heard { answer: Answer::Ready { from }, is_new: false })
            }
            Frame::Data { sequence, bytes, .. } => {
                let is_new = self.latest.is_none_or(|latest| latest < sequence);
                if is_new && bytes > room_bytes {
                    return None;
                }
                self.latest = self.latest.max(Some(sequence));
                Some(Heard { answer: Answer::Acknowledged { from, sequence }, is_new })
            }
        }
    }
}
