//! Frames: the messages between two engines.
//!
//! A [`Frame`] can only hold values that the protocol allows by themselves; the engine decides whether it fits the
//! calls under way. Nothing here knows of calls or of time.

use std::time::Duration;

use bytes::Bytes;
use mafs_proto::{BODY_BYTES_MAX, Class, Instant};

use super::{Rate, Violation};
use crate::wire::{self, frame::Kind};

/// Bytes that every Call, Data and Reply counts for besides its body and data, so that empty ones are not free.
pub(crate) const CONTENT_OVERHEAD_BYTES: u64 = 32;
/// The most bytes of body and data in a Control frame, so that it fits a packet. Larger ones travel as Fetch.
pub(crate) const CONTROL_BYTES_MAX: u64 = 1400;
/// The most bytes of body and data in any frame: the largest body beside a chunk that another version may send.
pub(crate) const CONTENT_BYTES_MAX: usize = 512 * 1024;
/// The most bytes of an explanation.
const WHY_BYTES_MAX: usize = 1000;

const NANOS_PER_MICRO: u64 = 1000;

/// The bytes around a frame on its way: HTTP/2's head, gRPC's length (RFC 9113, section 4.1), and its check.
pub(crate) const FRAMING_BYTES: u64 = 9 + 5 + 6;
/// The bytes of a Data frame in one packet besides its data: four tags, two lengths, the class, an early call's id.
pub(crate) const DATA_HEAD_BYTES: u64 = 10;
/// How much an acknowledgement adds to a frame, at most, on a machine that has been up for a hundred days.
const ACKNOWLEDGEMENT_BYTES: u64 = 24;

/// Returns the bytes of a frame's head beyond [`DATA_HEAD_BYTES`].
pub(super) fn more_head_bytes(id: CallId, acknowledges: bool) -> u64 {
    let id_bytes = prost::encoding::encoded_len_varint(id.0) as u64;
    id_bytes - 1 + if acknowledges { ACKNOWLEDGEMENT_BYTES } else { 0 }
}

/// The id of a call under way: odd if the connecting end made it, even if the other did.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct CallId(pub(crate) u64);

/// The side of the connection that an end is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// The end that connected.
    Connector,
    /// The end that was connected to.
    Acceptor,
}

impl Side {
    /// Returns the first id of this side; the others follow in steps of two.
    pub(crate) const fn first_id(self) -> u64 {
        match self {
            Self::Connector => 1,
            Self::Acceptor => 2,
        }
    }

    /// Whether this side gives out `id`.
    pub(crate) const fn owns(self, id: CallId) -> bool {
        id.0 != 0 && id.0 % 2 == self.first_id() % 2
    }
}

/// An acknowledgement, which rides on any frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Acknowledgement {
    /// Content bytes received since the start of the connection.
    pub(crate) bytes: u64,
    /// When the last of them came, by the receiver's clock.
    pub(crate) received_at: Instant,
    /// How long ago the last of them came.
    pub(crate) delay: Duration,
    /// How long this waits now for earlier frames of its sender, as far as the sender can tell.
    pub(crate) queue: Duration,
}

/// A frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    pub(crate) acknowledgement: Option<Acknowledgement>,
    pub(crate) kind: FrameKind,
}

/// The kind of a frame, with its fields. `Call`, `Data` and `Reply` are content: they are counted, acknowledged and
/// kept within the window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FrameKind {
    Call { id: CallId, class: Class, method: u32, body: Bytes, data: Bytes, last: bool },
    Data { id: CallId, class: Class, data: Bytes, last: bool },
    Reply { id: CallId, class: Class, status: u32, body: Bytes, data: Bytes, last: bool },
    Abort { id: CallId, why: String },
    Stop { id: CallId },
    Cancel { id: CallId },
    Reprioritise { id: CallId, class: Class },
    Credit { class: Class, limit: u64 },
    Limit { class: Class, rate: Option<Rate> },
    Acknowledge,
    Probe { token: u64 },
    ProbeReply { token: u64 },
    Close { why: String },
}

impl FrameKind {
    /// Returns the class and the bytes of body and data, if the frame is content.
    pub(crate) fn content(&self) -> Option<(Class, u64)> {
        match self {
            Self::Call { class, body, data, .. } | Self::Reply { class, body, data, .. } => {
                Some((*class, (body.len() + data.len()) as u64))
            }
            Self::Data { class, data, .. } => Some((*class, data.len() as u64)),
            Self::Abort { .. }
            | Self::Stop { .. }
            | Self::Cancel { .. }
            | Self::Reprioritise { .. }
            | Self::Credit { .. }
            | Self::Limit { .. }
            | Self::Acknowledge
            | Self::Probe { .. }
            | Self::ProbeReply { .. }
            | Self::Close { .. } => None,
        }
    }

    /// Puts the payload bytes into a frame that the engine made without them.
    pub(crate) fn set_data(&mut self, bytes: Bytes) {
        if let Self::Call { data, .. } | Self::Data { data, .. } | Self::Reply { data, .. } = self {
            *data = bytes;
        }
    }

    /// Refuses frames that no engine sends: content above the limits, and Control frames that are not small and whole.
    fn check(self) -> Result<Self, Violation> {
        let (class, body, data, last) = match &self {
            Self::Call { class, body, data, last, .. } | Self::Reply { class, body, data, last, .. } => {
                (*class, body.len(), data.len(), *last)
            }
            // Data is never whole: the call came before it.
            Self::Data { class, data, .. } => (*class, 0, data.len(), false),
            _ => return Ok(self),
        };
        if body > BODY_BYTES_MAX || body + data > CONTENT_BYTES_MAX {
            return Err(Violation::TooLarge(body + data));
        }
        if class == Class::Control && !(last && (body + data) as u64 <= CONTROL_BYTES_MAX) {
            return Err(Violation::LargeControl(body + data));
        }
        Ok(self)
    }
}

impl Frame {
    /// Parses a frame; takes hostile ones.
    pub(crate) fn parse(frame: wire::Frame) -> Result<Self, Violation> {
        let acknowledgement = (frame.acknowledged != 0).then(|| Acknowledgement {
            bytes: frame.acknowledged,
            received_at: Instant(frame.received_at_us.min(u64::MAX / NANOS_PER_MICRO) * NANOS_PER_MICRO),
            delay: Duration::from_micros(u64::from(frame.acknowledge_delay_us)),
            queue: Duration::from_micros(u64::from(frame.acknowledge_queue_us)),
        });
        let kind = match frame.kind.ok_or(Violation::UnknownKind)? {
            Kind::Call(wire::Call { id, class, method, body, data, last }) => {
                FrameKind::Call { id: CallId(id), class: parse_class(class)?, method, body, data, last }
            }
            Kind::Data(wire::Data { id, class, data, last }) => {
                FrameKind::Data { id: CallId(id), class: parse_class(class)?, data, last }
            }
            Kind::Reply(wire::Reply { id, class, status, body, data, last }) => {
                FrameKind::Reply { id: CallId(id), class: parse_class(class)?, status, body, data, last }
            }
            Kind::Abort(abort) => FrameKind::Abort { id: CallId(abort.id), why: shorten(abort.why) },
            Kind::Stop(stop) => FrameKind::Stop { id: CallId(stop.id) },
            Kind::Cancel(cancel) => FrameKind::Cancel { id: CallId(cancel.id) },
            Kind::Reprioritise(wire::Reprioritise { id, class }) => {
                FrameKind::Reprioritise { id: CallId(id), class: parse_class(class)? }
            }
            Kind::Credit(credit) => FrameKind::Credit { class: parse_class(credit.class)?, limit: credit.limit },
            Kind::Limit(wire::Limit { class, bytes_per_s }) => {
                FrameKind::Limit { class: parse_limited(class)?, rate: parse_rate(bytes_per_s)? }
            }
            Kind::Acknowledge(wire::Acknowledge {}) => FrameKind::Acknowledge,
            Kind::Probe(probe) => FrameKind::Probe { token: probe.token },
            Kind::ProbeReply(probe) => FrameKind::ProbeReply { token: probe.token },
            Kind::Close(close) => FrameKind::Close { why: shorten(close.why) },
        };
        Ok(Self { acknowledgement, kind: kind.check()? })
    }

    /// Converts the frame to its form on the wire.
    pub(crate) fn into_wire(self) -> wire::Frame {
        let Acknowledgement { bytes, received_at, delay, queue } = self.acknowledgement.unwrap_or_default();
        let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        wire::Frame {
            acknowledged: bytes,
            received_at_us: received_at.0 / NANOS_PER_MICRO,
            acknowledge_delay_us: micros(delay),
            acknowledge_queue_us: micros(queue),
            kind: Some(kind_to_wire(self.kind)),
        }
    }
}

fn kind_to_wire(kind: FrameKind) -> Kind {
    match kind {
        FrameKind::Call { id, class, method, body, data, last } => {
            Kind::Call(wire::Call { id: id.0, class: number(class), method, body, data, last })
        }
        FrameKind::Data { id, class, data, last } => {
            Kind::Data(wire::Data { id: id.0, class: number(class), data, last })
        }
        FrameKind::Reply { id, class, status, body, data, last } => {
            Kind::Reply(wire::Reply { id: id.0, class: number(class), status, body, data, last })
        }
        FrameKind::Abort { id, why } => Kind::Abort(wire::Abort { id: id.0, why: shorten(why) }),
        FrameKind::Stop { id } => Kind::Stop(wire::Stop { id: id.0 }),
        FrameKind::Cancel { id } => Kind::Cancel(wire::Cancel { id: id.0 }),
        FrameKind::Reprioritise { id, class } => {
            Kind::Reprioritise(wire::Reprioritise { id: id.0, class: number(class) })
        }
        FrameKind::Credit { class, limit } => Kind::Credit(wire::Credit { class: number(class), limit }),
        FrameKind::Limit { class, rate } => {
            Kind::Limit(wire::Limit { class: number(class), bytes_per_s: rate.map_or(0, Rate::get) })
        }
        FrameKind::Acknowledge => Kind::Acknowledge(wire::Acknowledge {}),
        FrameKind::Probe { token } => Kind::Probe(wire::Probe { token }),
        FrameKind::ProbeReply { token } => Kind::ProbeReply(wire::ProbeReply { token }),
        FrameKind::Close { why } => Kind::Close(wire::Close { why: shorten(why) }),
    }
}

fn parse_class(number: u32) -> Result<Class, Violation> {
    Class::from_index(number).ok_or(Violation::UnknownClass(number))
}

/// Parses the class of a limit. Control has none, for it keeps the link alive.
fn parse_limited(number: u32) -> Result<Class, Violation> {
    parse_class(number)
        .and_then(|class| if class == Class::Control { Err(Violation::LimitedControl) } else { Ok(class) })
}

fn parse_rate(bytes_per_s: u64) -> Result<Option<Rate>, Violation> {
    let rate = Rate::bytes_per_s(bytes_per_s);
    if rate.is_none() && bytes_per_s > 0 { Err(Violation::SmallLimit(bytes_per_s)) } else { Ok(rate) }
}

#[allow(clippy::cast_possible_truncation, reason = "five classes")]
fn number(class: Class) -> u32 {
    class.index() as u32
}

fn shorten(mut why: String) -> String {
    if why.len() > WHY_BYTES_MAX {
        let end = (0..=WHY_BYTES_MAX).rev().find(|end| why.is_char_boundary(*end)).unwrap_or(0);
        why.truncate(end);
    }
    why
}
