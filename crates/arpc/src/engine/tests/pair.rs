//! Two engines, a link between them, and applications that answer: all in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use mafs_proto::{Class, Instant};

use crate::Timing;
use crate::engine::frame::CONTENT_OVERHEAD_BYTES;
use crate::engine::{
    CONTENT_BYTES_MAX, CallId, Charge, Engine, Event, Frame, FrameKind, Limits, NewCall, Outgoing, Ready, Reserve,
    Settings, Side,
};

/// Small numbers, so that every limit is met often.
pub(super) const SETTINGS: Settings = Settings {
    limits: Limits { chunk_bytes: [CHUNK; 2], window_bytes: [WINDOW; 2], segment_bytes: CHUNK },
    credit_bytes: 20_000,
    credit_bytes_max: 20_000,
    calls_max: 8,
    classes: true,
    reserve: Reserve::NONE,
    gated: false,
    nudges_max: 8,
    probe_idle_after: Duration::from_secs(20),
    hurries: true,
};

/// The sizes of chunk and window in [`SETTINGS`], which do not adapt.
pub(super) const CHUNK: u64 = 2000;
pub(super) const WINDOW: u64 = 8000;

/// A link: each direction carries one frame after another at `bytes_per_s`, then takes `delay`.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkModel {
    pub(super) delay: Duration,
    pub(super) bytes_per_s: u64,
}

impl LinkModel {
    fn takes(self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes * 1_000_000_000 / self.bytes_per_s)
    }
}

/// The foreign packets in the queue of one direction: as soon as one has left, the next one enters. So does a greedy
/// flow whose window is the queue.
#[derive(Debug, Default)]
struct Foreign {
    leaving: VecDeque<Instant>,
}

const FOREIGN_BYTES: u64 = 1500;

impl Foreign {
    /// Returns when the line is free of the packets that have entered until `now`, if it was free of all others at
    /// `free_at`.
    fn pass(&mut self, mut free_at: Instant, link: LinkModel, now: Instant) -> Instant {
        while self.leaving.front().is_some_and(|at| *at <= now) {
            self.leaving.pop_front();
            free_at = free_at.max(now) + link.takes(FOREIGN_BYTES);
            self.leaving.push_back(free_at);
        }
        free_at.max(now)
    }
}

/// The way in which one application handles incoming calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Application {
    pub(super) reply_bytes: u64,
    /// Whether it takes the payloads that arrive, so that credit returns.
    pub(super) reads: bool,
    pub(super) answers: bool,
}

/// The end of an own call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Status(u32),
    Error(crate::CallError),
}

/// One engine and what its application knows.
pub(super) struct End {
    pub(super) engine: Engine,
    pub(super) application: Application,
    pub(super) outcomes: BTreeMap<CallId, Vec<Outcome>>,
    pub(super) timings: BTreeMap<CallId, Timing>,
    /// Bytes received of each incoming payload, and how often it ended.
    pub(super) received: BTreeMap<CallId, (u64, u32)>,
    /// The content frames sent, for tests of order: when, of which call, in which class, and their cost.
    pub(super) sent: Vec<(Instant, CallId, Class, u64)>,
    pub(super) closed: Option<String>,
    /// Bytes sent of each outgoing payload.
    offsets: BTreeMap<CallId, u64>,
    next_id: u64,
    wire: VecDeque<(Instant, Frame)>,
    free_at: Instant,
    foreign: Foreign,
    /// How many acknowledgements were sent by themselves.
    acknowledgements: u64,
}

/// Returns how much a frame counts for in the window: 0 unless it is content.
pub(super) fn cost(frame: &Frame) -> u64 {
    frame.kind.content().map_or(0, |(_, bytes)| bytes + CONTENT_OVERHEAD_BYTES)
}

/// Returns the bytes at a place of a payload, so that loss, repetition and disorder show.
fn pattern(id: CallId, offset: u64, count: usize) -> Bytes {
    static PERIODS: LazyLock<Bytes> = LazyLock::new(|| (0..251).cycle().take(CONTENT_BYTES_MAX).collect());
    let start = usize::try_from((id.0 * 31 + offset) % 251).unwrap();
    PERIODS.slice(start..start + count)
}

impl End {
    pub(super) fn new(side: Side, settings: Settings, application: Application) -> Self {
        Self {
            engine: Engine::new(side, settings, Instant(0)),
            application,
            outcomes: BTreeMap::new(),
            timings: BTreeMap::new(),
            received: BTreeMap::new(),
            sent: Vec::new(),
            closed: None,
            offsets: BTreeMap::new(),
            next_id: side.first_id(),
            wire: VecDeque::new(),
            free_at: Instant(0),
            foreign: Foreign::default(),
            acknowledgements: 0,
        }
    }

    /// Makes a call with a payload that is all at hand.
    pub(super) fn call(&mut self, class: Class, payload: u64, timeout: Option<Duration>, now: Instant) -> CallId {
        let ready = Ready { bytes: payload, finished: true };
        self.call_ready(class, ready, timeout, now)
    }

    pub(super) fn call_ready(
        &mut self,
        class: Class,
        payload: Ready,
        timeout: Option<Duration>,
        now: Instant,
    ) -> CallId {
        let id = CallId(self.next_id);
        self.next_id += 2;
        self.outcomes.insert(id, Vec::new());
        let body = Bytes::from_static(b"request");
        self.engine.call(NewCall { id, class, method: 7, body, timeout, payload }, now);
        id
    }

    pub(super) fn settle(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::Call { id, class, body, data, last, .. } => {
                    self.engine.consumed(Charge::of(class, body.len() as u64));
                    self.receive(id, class, &data, last);
                    if self.application.answers {
                        let payload = Ready { bytes: self.application.reply_bytes, finished: true };
                        self.engine.reply(id, 0, Bytes::new(), payload);
                    }
                }
                Event::Reply { id, class, timing, status, data, last, .. } => {
                    self.timings.insert(id, timing);
                    self.outcomes.entry(id).or_default().push(Outcome::Status(status));
                    self.receive(id, class, &data, last);
                }
                Event::Ended { id, error } => self.outcomes.entry(id).or_default().push(Outcome::Error(error)),
                Event::Data { id, class, data, last } => self.receive(id, class, &data, last),
                Event::PayloadEnded { id, .. } => self.received.entry(id).or_default().1 += 1,
                Event::Closed { why } => {
                    assert_eq!(self.closed.replace(why), None, "closed twice");
                }
                Event::PayloadUnwanted { .. } | Event::Cancelled { .. } | Event::Acknowledged { .. } => {}
            }
        }
    }

    fn receive(&mut self, id: CallId, class: Class, data: &[u8], last: bool) {
        let (offset, ends) = self.received.entry(id).or_default();
        assert_eq!(*ends, 0, "payload of {id:?} goes on after its end");
        assert!(pattern(id, *offset, data.len()) == data, "payload of {id:?} from {offset} on");
        *offset += data.len() as u64;
        *ends += u32::from(last);
        if self.application.reads {
            self.engine.consumed(Charge::of(class, data.len() as u64));
        }
    }

    /// Returns the next frame with its payload filled in.
    pub(super) fn next_frame(&mut self, now: Instant) -> Option<Frame> {
        let Outgoing { mut frame, payload } = self.engine.poll_frame(now)?;
        if let Some((id, count)) = payload {
            let offset = self.offsets.entry(id).or_default();
            frame.kind.set_data(pattern(id, *offset, count));
            *offset += count as u64;
        }
        if let FrameKind::Call { id, class, .. }
        | FrameKind::Data { id, class, .. }
        | FrameKind::Reply { id, class, .. } = &frame.kind
        {
            self.sent.push((now, *id, *class, cost(&frame)));
        }
        Some(frame)
    }
}

/// Both ends and the time.
pub(super) struct Pair {
    pub(super) ends: [End; 2],
    pub(super) now: Instant,
    pub(super) link: LinkModel,
    /// Frames carried so far.
    pub(super) carried: usize,
    /// Whether every second frame that is only an acknowledgement vanishes.
    pub(super) loses_acknowledgements: bool,
}

impl Pair {
    pub(super) fn new(settings: Settings, link: LinkModel, applications: [Application; 2]) -> Self {
        let [left, right] = applications;
        let ends = [End::new(Side::Connector, settings, left), End::new(Side::Acceptor, settings, right)];
        Self { ends, now: Instant(0), link, carried: 0, loses_acknowledgements: false }
    }

    /// Lets the engines put on the link all they want: the worst case for priority.
    fn transmit(&mut self) {
        for end in &mut self.ends {
            end.settle();
            while let Some(frame) = end.next_frame(self.now) {
                let free_at = end.foreign.pass(end.free_at, self.link, self.now);
                end.free_at = free_at + self.link.takes(cost(&frame).max(16));
                if self.loses_acknowledgements && frame.kind == FrameKind::Acknowledge {
                    end.acknowledgements += 1;
                    if end.acknowledgements % 2 == 0 {
                        continue;
                    }
                }
                end.wire.push_back((end.free_at + self.link.delay, frame));
            }
            end.settle();
        }
    }

    /// Moves to the next thing that happens, at most to `until`; false if `until` is reached.
    pub(super) fn step(&mut self, until: Instant) -> bool {
        self.transmit();
        let arrivals = self.ends.iter().filter_map(|end| end.wire.front().map(|(at, _)| *at));
        let timers = self.ends.iter().filter_map(|end| end.engine.poll_timeout());
        let next = arrivals.chain(timers).min().map_or(until, |at| at.max(self.now));
        if next >= until {
            self.now = until;
            return false;
        }
        self.now = next;
        for index in 0..2 {
            while self.ends[index].wire.front().is_some_and(|(at, _)| *at <= next) {
                let Some((_, frame)) = self.ends[index].wire.pop_front() else { break };
                self.carried += 1;
                let wire = frame.into_wire();
                self.ends[1 - index].engine.handle_frame(Frame::parse(wire), next);
            }
        }
        for end in &mut self.ends {
            if end.engine.poll_timeout().is_some_and(|at| at <= next) {
                end.engine.handle_timeout(next);
            }
            end.settle();
        }
        true
    }

    pub(super) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.transmit();
    }

    /// Lets a greedy foreign flow fill the queues of both directions with so many bytes; 0 ends it.
    pub(super) fn set_foreign(&mut self, queue_bytes: u64) {
        for end in &mut self.ends {
            end.foreign.leaving = (0..queue_bytes / FOREIGN_BYTES).map(|_| self.now).collect();
        }
    }

    /// Breaks the carrier: frames on their way are lost.
    pub(super) fn disconnect(&mut self) {
        for end in &mut self.ends {
            end.wire.clear();
            end.engine.disconnected("the link broke");
            end.settle();
        }
    }
}

pub(super) const FAST: LinkModel = LinkModel { delay: Duration::from_millis(1), bytes_per_s: 100_000_000 };
pub(super) const ANSWERS: Application = Application { reply_bytes: 0, reads: true, answers: true };
