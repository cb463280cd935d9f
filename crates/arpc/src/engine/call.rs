//! One call under way, as one end sees it: the message it still has to send, and the one it still expects.
//!
//! Each end sends one message per call, the call or its reply: a header, then a payload. A message ends with exactly
//! one of: a content frame marked last, Abort, or (the caller's) Cancel. A call is forgotten when both messages have
//! ended, so that no frame ever meets an unknown call, except those that can cross an end on their way: Cancel, Stop
//! and Reprioritise.

use std::time::Duration;

use bytes::Bytes;
use mafs_proto::{Class, Instant};

use super::Charge;
use super::frame::{CONTENT_OVERHEAD_BYTES, CONTROL_BYTES_MAX, CallId, FrameKind};
use super::reserve::LOG;
use super::scheduler::Turn;
use crate::peer::Timing;

/// Replies up to this size are Control, so that a long download does not starve the answers of stores.
const CONTROL_REPLY_BYTES_MAX: u64 = 1024;

/// A call under way.
#[derive(Debug)]
pub(super) struct Entry {
    /// The class that the caller wants now.
    pub(super) class: Class,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// How long the caller waits, and so when it gives up.
    pub(super) deadline: Option<(Duration, Instant)>,
    /// When the call came to be known here.
    pub(super) since: Instant,
    /// How long this end's message waited until its first frame went.
    pub(super) queued: Option<Duration>,
    /// The class that the call is queued in, while it has something to send.
    pub(super) lane: Option<Class>,
}

/// This end's message.
#[derive(Debug)]
pub(super) enum Sending {
    /// The application has not answered an incoming call.
    Unanswered,
    /// Nothing of the message has gone.
    First(Header, Unsent),
    /// The header has gone.
    Rest(Unsent),
    /// The message has ended.
    Done,
}

/// The other end's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Receiving {
    /// The reply to an own call has not come.
    Reply,
    /// More payload is to come.
    Payload,
    /// Nobody here wants the message: the rest is thrown away until it ends.
    Unwanted,
    /// The message has ended.
    Done,
}

/// The beginning of a message.
#[derive(Debug)]
pub(super) enum Header {
    Call { method: u32, body: Bytes },
    Reply { status: u32, body: Bytes },
}

impl Header {
    fn body_len(&self) -> u64 {
        match self {
            Self::Call { body, .. } | Self::Reply { body, .. } => body.len() as u64,
        }
    }

    fn into_frame(self, id: CallId, class: Class, last: bool) -> FrameKind {
        let data = Bytes::new();
        match self {
            Self::Call { method, body } => FrameKind::Call { id, class, method, body, data, last },
            Self::Reply { status, body } => FrameKind::Reply { id, class, status, body, data, last },
        }
    }
}

/// Payload that has not gone yet.
#[derive(Debug)]
pub(super) struct Unsent {
    /// Bytes the driver holds ready.
    pub(super) ready: u64,
    pub(super) end: End,
}

/// The continuation of a payload behind the bytes that are ready.
#[derive(Debug)]
pub(super) enum End {
    /// More follows later.
    Open,
    /// Nothing follows: they are the last.
    Finished,
    /// Nothing follows: the rest could not be had, and the ready bytes do not go either.
    Aborted(String),
}

/// The contents of a frame that could go, which decide its cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    /// Bytes of payload in it.
    pub(super) payload_bytes: u64,
    /// Bytes of header body in it.
    pub(super) body_bytes: u64,
    /// Whether the body needs credit: a reply's body does not, the caller has asked for it.
    charged_body: bool,
    /// False for Abort, which needs neither credit nor window.
    pub(super) content: bool,
}

impl Next {
    /// Returns how much of the window the frame takes.
    pub(super) fn cost(&self) -> u64 {
        self.body_bytes + self.payload_bytes + CONTENT_OVERHEAD_BYTES
    }

    /// Returns how much of the credit of its class the frame takes.
    pub(super) fn charge(&self, class: Class) -> Charge {
        let body = Charge::of(class, if self.charged_body { self.body_bytes } else { 0 });
        Charge { class, bytes: body.bytes + Charge::of(class, self.payload_bytes).bytes }
    }
}

impl Entry {
    /// Returns how many bytes wait to go.
    pub(super) fn queued_bytes(&self) -> u64 {
        match &self.sending {
            Sending::First(header, unsent) => header.body_len() + unsent.ready,
            Sending::Rest(unsent) => unsent.ready,
            Sending::Unanswered | Sending::Done => 0,
        }
    }

    /// Whether this end's message is of the log and has not gone whole. A message whose payload is not at hand counts
    /// too.
    pub(super) fn is_waiting_log(&self) -> bool {
        match &self.sending {
            Sending::First(..) => self.lane.is_some_and(|lane| LOG.contains(&lane)),
            Sending::Rest(_) => LOG.contains(&self.class),
            Sending::Unanswered | Sending::Done => false,
        }
    }

    /// Returns the class in which the next frame has to travel, if there is one to send: the lowest where classes do
    /// not count.
    pub(super) fn wanted_lane(&self, classes: bool) -> Option<(Class, Turn)> {
        let bulk = match self.class {
            _ if !classes => Class::Store,
            Class::Control => Class::Fetch,
            other => other,
        };
        match &self.sending {
            Sending::First(header, unsent) => {
                let whole = matches!(unsent.end, End::Finished);
                let bytes = header.body_len() + unsent.ready;
                let control = match header {
                    Header::Call { .. } => self.class == Class::Control && bytes <= CONTROL_BYTES_MAX,
                    Header::Reply { .. } if self.class == Class::Control => bytes <= CONTROL_BYTES_MAX,
                    Header::Reply { .. } => bytes <= CONTROL_REPLY_BYTES_MAX,
                };
                Some((if whole && control && classes { Class::Control } else { bulk }, Turn::First))
            }
            Sending::Rest(unsent) if unsent.ready > 0 || !matches!(unsent.end, End::Open) => Some((bulk, Turn::Next)),
            Sending::Rest(_) | Sending::Unanswered | Sending::Done => None,
        }
    }

    /// Returns the next frame's size, if there is one to send.
    pub(super) fn next(&self, chunk_bytes: u64) -> Option<Next> {
        match &self.sending {
            Sending::First(header, unsent) => {
                let body_bytes = header.body_len();
                let room = chunk_bytes.saturating_sub(body_bytes);
                let payload_bytes = if matches!(unsent.end, End::Aborted(_)) { 0 } else { unsent.ready.min(room) };
                let charged_body = matches!(header, Header::Call { .. });
                Some(Next { payload_bytes, body_bytes, charged_body, content: true })
            }
            Sending::Rest(Unsent { end: End::Aborted(_), .. }) => {
                Some(Next { payload_bytes: 0, body_bytes: 0, charged_body: false, content: false })
            }
            Sending::Rest(unsent) => {
                let payload_bytes = unsent.ready.min(chunk_bytes);
                Some(Next { payload_bytes, body_bytes: 0, charged_body: false, content: true })
            }
            Sending::Unanswered | Sending::Done => None,
        }
    }

    /// Makes the frame that [`Self::next`] described, without its data.
    pub(super) fn take_frame(&mut self, id: CallId, class: Class, next: Next) -> Option<FrameKind> {
        let (header, mut unsent) = match std::mem::replace(&mut self.sending, Sending::Done) {
            Sending::First(header, unsent) => (Some(header), unsent),
            Sending::Rest(unsent) => (None, unsent),
            idle @ (Sending::Unanswered | Sending::Done) => {
                self.sending = idle;
                return None;
            }
        };
        if let (None, End::Aborted(why)) = (&header, &mut unsent.end) {
            return Some(FrameKind::Abort { id, why: std::mem::take(why) });
        }
        unsent.ready -= next.payload_bytes;
        let last = unsent.ready == 0 && matches!(unsent.end, End::Finished);
        if !last {
            self.sending = Sending::Rest(unsent);
        }
        Some(match header {
            Some(header) => header.into_frame(id, class, last),
            None => FrameKind::Data { id, class, data: Bytes::new(), last },
        })
    }

    /// Notes that more of the payload is ready.
    pub(super) fn add_ready(&mut self, bytes: u64) {
        if let Sending::First(_, unsent) | Sending::Rest(unsent) = &mut self.sending
            && matches!(unsent.end, End::Open)
        {
            unsent.ready += bytes;
        }
    }

    /// Notes that no more of the payload will be ready. An ended payload stays ended, but an abort overtakes a finish.
    pub(super) fn end_payload(&mut self, end: End) {
        if let Sending::First(_, unsent) | Sending::Rest(unsent) = &mut self.sending {
            match (&unsent.end, &end) {
                (End::Open, End::Finished) => unsent.end = end,
                (End::Open | End::Finished, End::Aborted(_)) => {
                    unsent.ready = 0;
                    unsent.end = end;
                }
                (_, End::Open) | (End::Finished | End::Aborted(_), End::Finished) | (End::Aborted(_), _) => {}
            }
        }
    }

    /// Ends this end's message as soon as possible, because the other end wants no more of it.
    pub(super) fn cut_sending(&mut self, why: &str) {
        match self.sending {
            Sending::Unanswered | Sending::First(..) => {
                self.sending = Sending::Rest(Unsent { ready: 0, end: End::Aborted(why.to_owned()) });
            }
            Sending::Rest(_) => self.end_payload(End::Aborted(why.to_owned())),
            Sending::Done => {}
        }
    }

    /// Returns how long an own call that is answered now has taken.
    pub(super) fn timing(&self, now: Instant) -> Timing {
        let queued = self.queued.unwrap_or_default();
        Timing { queued, served: now.since(self.since).saturating_sub(queued) }
    }

    /// Whether both messages have ended.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.sending, Sending::Done) && self.receiving == Receiving::Done
    }
}
