//! Link-level retransmission: a radio sends again the packets that were lost on the air, before any layer above misses
//! them.
//!
//! The protocol that the wireless papers plan (000 section 5; 001 section 6), for a base station and for a mobile host,
//! which is a sender with one destination:
//! - **A queue for each destination, served in turn.** A turn is worth one full packet, in bytes on the air, answers
//!   and repetitions included. So destinations get equal shares whatever the size of their packets, and each pays for
//!   its own losses.
//! - **Data and acknowledgement.** A packet is done when its own acknowledgement has come. After a silence it is sent
//!   again, up to a limit; then it is given up, and the layer above repeats it or does not.
//! - **State of the channel.** A destination that was silent is asked first by a probe of 20 bytes, which it answers if
//!   it hears and has room, and is asked again after 5, 10, 15 and then always 20 ms. All others have the air
//!   meanwhile. The turns it has missed are owed to it, up to sixteen.
//!
//! Owns queues of sizes and numbers, not contents. Knows no clock and no rate: `now` is an argument, and the owner of
//! the radio says that a frame was left without an answer, because only the owner knows how long answers take. Nothing
//! is random, and nothing here sends or waits.
//!
//! Invariants:
//! - one frame at a time is without an answer;
//! - each destination is given its packets in the order offered, none of them twice;
//! - a packet is lost only by being refused, or by so many silences as the limit says;
//! - no queue holds more than its bytes;
//! - a destination that is silent takes no more of the air than its share.

mod receiver;
mod sender;
mod settings;
#[cfg(test)]
mod tests;

pub use self::receiver::{Heard, Receiver};
pub use self::sender::{Refused, Sender};
pub use self::settings::{Queues, Settings};

/// The bytes of a probe on the air: a request to send of 802.11.
pub const PROBE_BYTES: u64 = 20;
/// The bytes of an answer on the air: a clear to send, or an acknowledgement, of 802.11.
pub const ANSWER_BYTES: u64 = 14;

/// A destination of a sender, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Station(pub usize);

/// The number of a packet among those to its station. Later ones have higher numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Sequence(pub u64);

/// A frame of a sender. The air is taken until it is answered or known to be left without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame {
    /// Asks whether a station hears, and has room for a packet.
    Probe {
        /// The station that is asked.
        to: Station,
        /// The size of the packet that would follow.
        bytes: u64,
    },
    /// A packet.
    Data {
        /// The station that is to have it.
        to: Station,
        /// The packet's number.
        sequence: Sequence,
        /// The packet's size.
        bytes: u64,
    },
}

impl Frame {
    /// Returns the station that the frame is for.
    #[must_use]
    pub fn to(&self) -> Station {
        match *self {
            Self::Probe { to, .. } | Self::Data { to, .. } => to,
        }
    }

    /// Returns the bytes that the frame has on the air.
    #[must_use]
    pub fn air_bytes(&self) -> u64 {
        match *self {
            Self::Probe { .. } => PROBE_BYTES,
            Self::Data { bytes, .. } => bytes,
        }
    }
}

/// An answer, which a station sends at once when it has heard a frame: [`ANSWER_BYTES`] on the air.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The probe was heard, and there is room.
    Ready {
        /// The station that says so.
        from: Station,
    },
    /// The packet is there, now or since an earlier time.
    Acknowledged {
        /// The station that has it.
        from: Station,
        /// The packet's number.
        sequence: Sequence,
    },
}

/// The end of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The station has the packet.
    Delivered {
        /// The station that it was for.
        to: Station,
        /// The packet's number.
        sequence: Sequence,
    },
    /// The packet was left without an answer too often. The station may have it all the same, if answers were lost.
    GivenUp {
        /// The station that it was for.
        to: Station,
        /// The packet's number.
        sequence: Sequence,
    },
}
