//! The engine: all decisions of one end of a connection, and none of its actions.
//!
//! Owns the calls under way, their order, the window, the credit and the timers. Knows no sockets, tasks or clocks:
//! `now` is an argument. The engine never holds payload bytes that wait to be sent: the driver says how many of a call
//! it has ready ([`Engine::payload_ready`]) and fills them into the frame that [`Engine::poll_frame`] returns.
//!
//! The verbs: a driver feeds `call`, `reply`, `payload_*`, `handle_frame`, `handle_timeout`, `reprioritise`, `cancel`,
//! `unwanted`, `consumed`, `set_limits`, `look`; after any of them `poll_event`, `poll_frame` and `poll_timeout` are
//! worth asking again.
//!
//! Invariants:
//! - every own call ends with exactly one of [`Event::Reply`] and [`Event::Ended`];
//! - every payload that was announced as incoming ends with exactly one `last` or [`Event::PayloadEnded`], unless
//!   unwanted;
//! - a Control frame waits for the bytes in flight (at most the window) and one chunk, whatever else is queued;
//! - memory is bounded by [`Settings`], whatever the peer sends.

mod call;
mod credit;
mod estimator;
mod frame;
mod gate;
mod limit;
mod notice;
mod nudge;
mod receive;
mod reserve;
mod scheduler;
mod send;
mod table;
#[cfg(test)]
mod tests;
mod timers;
mod violation;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use mafs_proto::{Class, Instant};

use self::call::{End, Entry, Header, Receiving, Sending, Unsent};
pub(crate) use self::credit::Charge;
use self::credit::{Allowance, Grants};
use self::frame::DATA_HEAD_BYTES;
pub(crate) use self::frame::{CONTENT_BYTES_MAX, CallId, FRAMING_BYTES, Frame, FrameKind, Side};
pub(crate) use self::gate::{Demand, Gate, SessionId, Verdict};
use self::limit::Buckets;
pub use self::limit::{InvalidRate, Rate};
use self::notice::Notice;
use self::nudge::{NUDGES_MAX, NUDGES_MAX_IN_DATAGRAMS, Nudges};
use self::reserve::LogShare;
pub use self::reserve::Reserve;
use self::scheduler::Scheduler;
use self::timers::{Liveness, PROBE_IDLE_AFTER, PROBE_IDLE_AFTER_IN_DATAGRAMS, Timer, Timers};
pub(crate) use self::violation::Violation;
pub(crate) use self::window::Limits;
use self::window::{Receipts, Window};
use crate::error::{CallError, PayloadError};
use crate::peer::{Scheduling, Timing, Traffic};

/// The status of a reply when the application let a call go unanswered.
pub(crate) const STATUS_UNANSWERED: u32 = u32::MAX;
/// The status of a reply when too many calls are under way.
pub(crate) const STATUS_BUSY: u32 = u32::MAX - 1;
/// The most calls under way from either end.
pub(crate) const CALLS_MAX: usize = 1024;
/// Bytes that each end may send of each class before the first Credit frame.
pub(crate) const CREDIT_BYTES: u64 = 1024 * 1024;
/// The most that the credit of a class grows to: twice the bytes that a satellite's 600 ms hold at 50 Mbit/s.
const CREDIT_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The least share of a stream of frames that a packet is taken to carry (RFC 9293, section 3.7.1). The most is an
/// Ethernet's: where packets are larger, links are fast.
const SEGMENT_BYTES_MIN: u64 = 536;

/// The numbers of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The bounds within which window and chunk adapt to the link.
    pub(crate) limits: Limits,
    /// Credit of each class at first; the same at both ends.
    pub(crate) credit_bytes: u64,
    /// The most that this credit grows to.
    pub(crate) credit_bytes_max: u64,
    /// The most calls under way from either end.
    pub(crate) calls_max: usize,
    /// Whether classes count; otherwise all calls take turns.
    pub(crate) classes: bool,
    /// The share that the log gets when classes starve it.
    pub(crate) reserve: Reserve,
    /// Whether content other than Control also needs a gate's leave: see [`Engine::demand`].
    pub(crate) gated: bool,
    /// How many small frames (nudges) go into one silence.
    pub(crate) nudges_max: u32,
    /// After so much silence an idle peer is asked for a sign of life.
    pub(crate) probe_idle_after: Duration,
    /// Whether a peer that is silent when this end's network has changed is given up sooner than usual: another
    /// connection would do better.
    pub(crate) hurries: bool,
}

impl Settings {
    pub(crate) fn of(scheduling: Scheduling, reserve: Reserve) -> Self {
        let all = Self { reserve, ..Self::default() };
        // These are so large that the transport always has enough.
        let chunk_bytes = [all.limits.chunk_bytes[1]; 2];
        let limits = Limits { chunk_bytes, window_bytes: [u64::MAX / 2; 2], ..all.limits };
        match scheduling {
            Scheduling::Classes => all,
            Scheduling::OneClass => Self { classes: false, ..all },
            Scheduling::Off => Self { classes: false, limits, ..all },
        }
    }

    /// Makes the least chunk fill a packet of the transport, which carries so many bytes of a stream.
    pub(crate) fn in_packets(mut self, segment_bytes: u64) -> Self {
        if self.limits.adapts() {
            let segment_bytes = segment_bytes.clamp(SEGMENT_BYTES_MIN, gate::SEGMENT_BYTES);
            self.limits.segment_bytes = segment_bytes;
            let most = self.limits.chunk_bytes[1];
            self.limits.chunk_bytes[0] = (segment_bytes - FRAMING_BYTES - DATA_HEAD_BYTES).min(most);
        }
        self
    }

    /// Adapts the numbers to a transport that sends a frame into a silence as a packet of its own, at once, and to a
    /// network that forgets idle hosts. The connection moves with this end, and needs no other in its place.
    pub(crate) fn in_datagrams(self, side: Side) -> Self {
        let [connector, acceptor] = PROBE_IDLE_AFTER_IN_DATAGRAMS;
        let probe_idle_after = if side == Side::Connector { connector } else { acceptor };
        Self { nudges_max: NUDGES_MAX_IN_DATAGRAMS, probe_idle_after, hurries: false, ..self }
    }

    /// Adapts the numbers to a gate that wants frames of at most this size.
    pub(crate) fn gated(self, chunk_bytes_max: u64) -> Self {
        let chunk_bytes = self.limits.chunk_bytes.map(|bytes| bytes.min(chunk_bytes_max));
        Self { gated: true, limits: Limits { chunk_bytes, ..self.limits }, ..self }
    }
}

impl Default for Settings {
    /// The least sizes are those of arpc.md ("The window is what makes priority real"). The most: measured over gRPC on
    /// loopback, larger chunks were not reliably faster; no class can have more in flight than its credit.
    fn default() -> Self {
        Self {
            limits: Limits {
                chunk_bytes: [1400, 64 * 1024],
                window_bytes: [4096, CREDIT_BYTES_MAX],
                segment_bytes: gate::SEGMENT_BYTES,
            },
            credit_bytes: CREDIT_BYTES,
            credit_bytes_max: CREDIT_BYTES_MAX,
            calls_max: CALLS_MAX,
            classes: true,
            reserve: Reserve::default(),
            gated: false,
            nudges_max: NUDGES_MAX,
            probe_idle_after: PROBE_IDLE_AFTER,
            hurries: true,
        }
    }
}

/// A call to make.
#[derive(Debug)]
pub(crate) struct NewCall {
    /// An id of this side, of no call under way.
    pub(crate) id: CallId,
    pub(crate) class: Class,
    pub(crate) method: u32,
    pub(crate) body: Bytes,
    pub(crate) timeout: Option<Duration>,
    pub(crate) payload: Ready,
}

/// The part of a payload that the driver has when it announces the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ready {
    /// Bytes at hand.
    pub(crate) bytes: u64,
    /// Whether they are all.
    pub(crate) finished: bool,
}

impl From<Ready> for Unsent {
    fn from(ready: Ready) -> Self {
        Self { ready: ready.bytes, end: if ready.finished { End::Finished } else { End::Open } }
    }
}

/// An event that the driver has to act on.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// The peer calls.
    Call { id: CallId, class: Class, method: u32, body: Bytes, data: Bytes, last: bool },
    /// An own call is answered.
    Reply { id: CallId, class: Class, timing: Timing, status: u32, body: Bytes, data: Bytes, last: bool },
    /// An own call has ended without an answer; its payload is not wanted any more.
    Ended { id: CallId, error: CallError },
    /// More of an incoming payload.
    Data { id: CallId, class: Class, data: Bytes, last: bool },
    /// An incoming payload has ended early.
    PayloadEnded { id: CallId, error: PayloadError },
    /// The peer wants no more of an outgoing payload.
    PayloadUnwanted { id: CallId },
    /// The caller of an incoming call has given it up; nobody waits for a reply.
    Cancelled { id: CallId },
    /// The peer has acknowledged payload of an own call.
    Acknowledged { id: CallId, bytes: u64 },
    /// The connection is over; nothing follows but the end of calls that are made nevertheless.
    Closed { why: String },
}

/// A frame to send, and how many bytes of which call's payload go into it.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) frame: Frame,
    pub(crate) payload: Option<(CallId, usize)>,
}

/// One end of one connection.
#[derive(Debug)]
pub(crate) struct Engine {
    side: Side,
    settings: Settings,
    calls: BTreeMap<CallId, Entry>,
    /// How many of `calls` this end made.
    own: usize,
    deadlines: BTreeSet<(Instant, CallId)>,
    scheduler: Scheduler,
    queued_bytes: [u64; 5],
    /// Messages of the log that have not gone whole.
    log_messages: usize,
    log_share: LogShare,
    buckets: Buckets,
    traffic: [Traffic; 5],
    window: Window,
    demand: Option<Demand>,
    /// Whether the gate has let one frame pass that has not gone.
    admitted: bool,
    receipts: Receipts,
    allowance: Allowance,
    grants: Grants,
    liveness: Liveness,
    notice: Notice,
    nudges: Nudges,
    timers: Timers,
    /// Frames without content. Bounded: at most three per call under way, a limit per class, two probes, one Close.
    signals: VecDeque<FrameKind>,
    events: VecDeque<Event>,
    /// The reason why the connection is over.
    closed: Option<String>,
    /// Whether the connection is over because the peer has given no sign of life.
    silent: bool,
}

impl Engine {
    pub(crate) fn new(side: Side, settings: Settings, now: Instant) -> Self {
        let mut engine = Self {
            side,
            settings,
            calls: BTreeMap::new(),
            own: 0,
            deadlines: BTreeSet::new(),
            scheduler: Scheduler::default(),
            queued_bytes: [0; 5],
            log_messages: 0,
            log_share: LogShare::new(settings.reserve),
            buckets: Buckets::default(),
            traffic: Default::default(),
            window: Window::new(settings.limits),
            demand: None,
            admitted: false,
            receipts: Receipts::default(),
            allowance: Allowance::new(settings.credit_bytes),
            grants: Grants::new(settings.credit_bytes, settings.credit_bytes_max, now),
            liveness: Liveness::new(settings.probe_idle_after, now),
            notice: Notice::default(),
            nudges: Nudges::new(settings.nudges_max),
            timers: Timers::default(),
            signals: VecDeque::new(),
            events: VecDeque::new(),
            closed: None,
            silent: false,
        };
        engine.set_timers(now);
        engine
    }

    /// Makes a call, which ends with one [`Event::Reply`] or [`Event::Ended`].
    pub(crate) fn call(&mut self, call: NewCall, now: Instant) {
        let NewCall { id, class, method, body, timeout, payload } = call;
        let refused = match &self.closed {
            Some(why) => Some(CallError::Disconnected(why.clone())),
            None => (self.own >= self.settings.calls_max).then_some(CallError::Busy),
        };
        if let Some(error) = refused {
            self.events.push_back(Event::Ended { id, error });
            return;
        }
        let deadline = timeout.map(|timeout| now + timeout);
        self.deadlines.extend(deadline.map(|at| (at, id)));
        let sending = Sending::First(Header::Call { method, body }, payload.into());
        let receiving = Receiving::Reply;
        let entry =
            Entry { class, sending, receiving, deadline: timeout.zip(deadline), since: now, queued: None, lane: None };
        self.own += 1;
        self.insert(id, entry);
        self.set_timers(now);
    }

    /// Answers an incoming call. Ignored if nobody waits for the answer any more.
    pub(crate) fn reply(&mut self, id: CallId, status: u32, body: Bytes, payload: Ready) {
        self.update(id, |entry| {
            if matches!(entry.sending, Sending::Unanswered) {
                entry.sending = Sending::First(Header::Reply { status, body }, payload.into());
            }
        });
    }

    /// Says that `bytes` more of an outgoing payload are at hand.
    pub(crate) fn payload_ready(&mut self, id: CallId, bytes: u64) {
        self.update(id, |entry| entry.add_ready(bytes));
    }

    /// Says that an outgoing payload has no more bytes.
    pub(crate) fn payload_finished(&mut self, id: CallId) {
        self.update(id, |entry| entry.end_payload(End::Finished));
    }

    /// Says that the rest of an outgoing payload cannot be had. Bytes that are ready but not sent do not go either.
    pub(crate) fn payload_aborted(&mut self, id: CallId, why: String) {
        self.update(id, |entry| entry.end_payload(End::Aborted(why)));
    }

    /// Says that nobody reads an incoming payload any more.
    pub(crate) fn unwanted(&mut self, id: CallId) {
        let Some(entry) = self.calls.get_mut(&id) else { return };
        if entry.receiving == Receiving::Payload {
            entry.receiving = Receiving::Unwanted;
            self.signals.push_back(FrameKind::Stop { id });
        }
    }

    /// Says that the application has taken bytes of a class, so that the peer may send as many again.
    pub(crate) fn consumed(&mut self, charge: Charge) {
        self.grants.consume(charge);
    }

    /// Gives an own call up. Does nothing once it is answered.
    pub(crate) fn cancel(&mut self, id: CallId) {
        self.give_up(id, CallError::Cancelled);
    }

    /// Moves the unsent part of an own call, and its reply, to another class.
    pub(crate) fn reprioritise(&mut self, id: CallId, class: Class) {
        let Some(entry) = self.calls.get(&id) else { return };
        if !self.side.owns(id) || entry.class == class || entry.receiving == Receiving::Unwanted {
            return;
        }
        if !matches!(entry.sending, Sending::First(..)) {
            let earlier = |kind: &FrameKind| matches!(kind, FrameKind::Reprioritise { id: other, .. } if *other == id);
            self.signals.retain(|kind| !earlier(kind));
            self.signals.push_back(FrameKind::Reprioritise { id, class });
        }
        self.update(id, |entry| entry.class = class);
    }

    /// Limits how much both ends send of classes, by [`Class::index`]: this end from now on.
    pub(crate) fn set_limits(&mut self, rates: [Option<Rate>; 5], now: Instant) {
        for (class, rate) in self.buckets.limit(rates, now) {
            self.signals.retain(|kind| !matches!(kind, FrameKind::Limit { class: earlier, .. } if *earlier == class));
            self.signals.push_back(FrameKind::Limit { class, rate });
        }
        self.set_timers(now);
    }

    /// Says how much of a stream of frames one packet carries from now on.
    pub(crate) fn set_segment_bytes(&mut self, segment_bytes: u64) {
        self.settings = self.settings.in_packets(segment_bytes);
        self.window.set_limits(self.settings.limits);
    }

    /// Ends the connection and tells the peer why.
    pub(crate) fn close(&mut self, why: &str) {
        if self.closed.is_none() {
            self.end_all(why);
            self.signals.push_back(FrameKind::Close { why: why.to_owned() });
        }
    }

    /// Notes that the carrier is gone.
    pub(crate) fn disconnected(&mut self, why: &str) {
        self.end_all(why);
    }

    /// Takes the next event to act on.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns when [`Self::handle_timeout`] is due. Changes with every other verb.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Acts on the timers that are due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.timers.expired(now) {
            match timer {
                // Their frames are made by `poll_frame`, and `take_notice` is asked at every turn.
                Timer::Acknowledge | Timer::Pace | Timer::Limit | Timer::Notice => {}
                Timer::Deadline => self.expire_calls(now),
                Timer::Probe => self.probe(now),
                Timer::Nudge => self.nudge(now),
                // The peer had no chance to answer if this end itself slept.
                Timer::Dead if self.liveness.slept(now) => {
                    self.liveness.wake_up();
                    self.probe(now);
                }
                Timer::Dead => {
                    self.silent = true;
                    let silence = self.liveness.silence(now).as_secs();
                    self.close(&format!("no answer for {silence} s"));
                }
            }
        }
        self.set_timers(now);
    }

    /// Whether this end waits for the peer, so that the peer's silence is to be noticed soon.
    pub(crate) fn is_owed(&self) -> bool {
        self.own > 0 || self.window.unacknowledged_bytes() > 0
    }

    /// Whether the peer was given up because it gave no sign of life.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent
    }

    /// Returns the smallest round-trip time of late.
    pub(crate) fn rtt_min(&self) -> Option<Duration> {
        self.window.estimator().rtt_min()
    }

    /// Returns the smoothed round-trip time, queues included.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        self.liveness.rtt()
    }

    /// Returns how many bytes wait to be sent, by class.
    pub(crate) fn queued_bytes(&self) -> [u64; 5] {
        self.queued_bytes
    }

    /// Returns how many bytes were sent and received, by class.
    pub(crate) fn traffic(&self) -> [Traffic; 5] {
        self.traffic
    }

    /// Returns how many bytes are sent and not acknowledged.
    pub(crate) fn unacknowledged_bytes(&self) -> u64 {
        self.window.unacknowledged_bytes()
    }

    /// Returns the chunk size in use: the driver holds about two of each payload ready.
    pub(crate) fn chunk_bytes(&self, now: Instant) -> u64 {
        self.window.chunk_bytes(now)
    }

    /// Returns the most bytes that may be in flight.
    pub(crate) fn window_bytes(&self, now: Instant) -> u64 {
        self.window.size_bytes(now)
    }

    /// Returns the bytes per second that this end can send; `None` before there was enough to send to fill the link
    /// once.
    pub(crate) fn rate(&self) -> Option<u64> {
        let estimator = self.window.estimator();
        estimator.rate().filter(|_| estimator.was_full())
    }

    /// Returns whether the link has become so different since the last notice that its watchers should know.
    pub(crate) fn take_notice(&mut self, now: Instant) -> bool {
        let due = self.notice.is_due(self.rate(), self.rtt_min(), now);
        self.set_timers(now);
        due
    }
}
