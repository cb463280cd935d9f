//! The gate: decides whose frame goes next onto an uplink that many sessions share and whose rate is known.
//!
//! The gate stands above the windows of the sessions (arpc.md, "Flow control towards the receiver"). No more passes
//! than the uplink carries, so that frames wait here, where they can be overtaken, and not in the network. Classes are
//! strictly ordered across sessions; within a class sessions share by start-time fair queueing (Goyal, Vin and Cheng,
//! SIGCOMM 1996): a frame is tagged with where the session's last one ended, and the least tag goes first.
//!
//! Knows sessions by number and frames by size. Control and frames without content never wait, but their time counts.
//!
//! Invariants:
//! - waiting frames pass at the rate: in a time t at most as much as takes t + [`SLACK`], and one frame;
//! - the first of the waiting sessions knows that it is first: it was told when it asked, or comes out of
//!   [`Gate::poll_next`];
//! - a session that asks all the time gets no less than others of its class but for one frame.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mafs_proto::{Class, Instant};

use super::Rate;
use super::estimator::bytes_in;
use super::frame::{CONTROL_BYTES_MAX, DATA_HEAD_BYTES, FRAMING_BYTES};

/// A frame takes so much of the uplink's time: others wait for the rest of one, and each of N waits for N. A delay up
/// to this is made up for: timers are exact to 1 ms, and tasks wait for a processor. A session that could not send for
/// so long, because its window was full or its disk slow, has lost nothing.
pub(super) const SLACK: Duration = Duration::from_millis(10);
/// Traffic that went without waiting keeps others waiting for so long at most once it has ended: if it is more, either
/// the uplink carries more than was said, or windows hold it back. While it goes on at the uplink's rate, they wait.
pub(super) const DEBT_MAX: Duration = Duration::from_secs(1);
/// A frame counts a 32nd more than it has, so that 3 % of the rate are left to bytes that nobody here sees: Ethernet's
/// 38 bytes a packet (2.5 %), acknowledgements of TCP, repetitions.
const HEADROOM: u64 = 32;
/// IP and TCP headers with time stamps (RFC 9293, RFC 7323), and the rest of a packet of 1,500 bytes.
const HEADER_BYTES: u64 = 52;
pub(super) const SEGMENT_BYTES: u64 = 1500 - HEADER_BYTES;
/// The least chunk, which fits a packet: a smaller frame would only fill it less.
const CHUNK_BYTES_MIN: u64 = CONTROL_BYTES_MAX;

/// The name of a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SessionId(u64);

/// Content that a session could send now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Demand {
    pub(crate) class: Class,
    /// Bytes of body and payload.
    pub(crate) bytes: u64,
}

/// The gate's answer to a demand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The content goes.
    Admit,
    /// The session is the next: ask again at this time.
    WaitUntil(Instant),
    /// Others are first: ask again when [`Gate::poll_next`] says so.
    Wait,
}

/// The place of a waiting session: places are in the order in which sessions go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    class: Class,
    start: u64,
    id: SessionId,
}

#[derive(Debug)]
struct Session {
    /// The tags at which its last frame of each class ended.
    ends: [u64; 5],
    place: Option<Place>,
}

/// The sessions of one uplink. Tags are in bytes on the wire.
#[derive(Debug)]
pub(crate) struct Gate {
    rate: Rate,
    /// When all bytes that have passed will have left.
    free_at: Instant,
    /// The largest tag that has gone, by class: fair queueing's virtual time.
    going: [u64; 5],
    joined: u64,
    sessions: BTreeMap<SessionId, Session>,
    waiting: BTreeSet<Place>,
    /// The session that knows that it is first.
    told: Option<SessionId>,
}

impl Gate {
    /// Makes the gate of an uplink that carries `rate`, in bytes of IP packets.
    pub(crate) fn new(rate: Rate) -> Self {
        Self {
            rate,
            free_at: Instant(0),
            going: [0; 5],
            joined: 0,
            sessions: BTreeMap::new(),
            waiting: BTreeSet::new(),
            told: None,
        }
    }

    /// Returns the most body and payload that a session should put into a frame; the estimate of its own way may be far
    /// above its share here.
    pub(crate) fn chunk_bytes_max(&self) -> u64 {
        bytes_in(self.rate.get(), SLACK).max(CHUNK_BYTES_MIN)
    }

    /// Adds a session, which is owed nothing from before.
    pub(crate) fn join(&mut self) -> SessionId {
        self.joined += 1;
        let id = SessionId(self.joined);
        self.sessions.insert(id, Session { ends: self.going, place: None });
        id
    }

    /// Removes a session that has ended.
    pub(crate) fn leave(&mut self, id: SessionId) {
        self.withdraw(id);
        self.sessions.remove(&id);
    }

    /// Asks for a frame. A session that has to wait keeps its place until it asks for another class, or withdraws.
    pub(crate) fn admit(&mut self, id: SessionId, demand: Demand, now: Instant) -> Verdict {
        let Some(place) = self.enter(id, demand.class) else { return Verdict::Wait };
        if self.waiting.first() != Some(&place) {
            return Verdict::Wait;
        }
        if self.free_at > now {
            self.told = Some(id);
            return Verdict::WaitUntil(self.free_at);
        }
        self.withdraw(id);
        let (class, bytes) = (demand.class.index(), wire_bytes(demand.bytes));
        self.going[class] = self.going[class].max(place.start);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.ends[class] = place.start + bytes;
        }
        self.free_at = self.free_after(bytes, now);
        Verdict::Admit
    }

    /// Takes back the demand of a session that has nothing to send now, or cannot send.
    pub(crate) fn withdraw(&mut self, id: SessionId) {
        let place = self.sessions.get_mut(&id).and_then(|session| session.place.take());
        place.map(|place| self.waiting.remove(&place));
    }

    /// Counts a frame that did not wait: Control, or one without content.
    pub(crate) fn pass(&mut self, bytes: u64, now: Instant) {
        self.free_at = self.free_after(wire_bytes(bytes), now).min(self.free_at.max(now + DEBT_MAX));
    }

    /// Returns the session that has become the first and does not know it. Worth asking after every other verb.
    #[must_use]
    pub(crate) fn poll_next(&mut self) -> Option<SessionId> {
        let first = self.waiting.first()?.id;
        (self.told.replace(first) != Some(first)).then_some(first)
    }

    fn enter(&mut self, id: SessionId, class: Class) -> Option<Place> {
        let owed_bytes = bytes_in(self.rate.get(), SLACK);
        let session = self.sessions.get_mut(&id)?;
        if let Some(place) = session.place.filter(|place| place.class == class) {
            return Some(place);
        }
        let index = class.index();
        let start = session.ends[index].max(self.going[index].saturating_sub(owed_bytes));
        let place = Place { class, start, id };
        if let Some(before) = session.place.replace(place) {
            self.waiting.remove(&before);
        }
        self.waiting.insert(place);
        Some(place)
    }

    /// Returns when the uplink is free if so much goes now.
    fn free_after(&self, bytes: u64, now: Instant) -> Instant {
        let idle = now.since(self.free_at).saturating_sub(SLACK);
        self.free_at + idle + self.rate.time_of(bytes + bytes / HEADROOM)
    }
}

/// Returns the bytes on the wire of a frame with so much content, in packets of its own. A longer head is taken from a
/// chunk that fills packets.
pub(super) fn wire_bytes(content_bytes: u64) -> u64 {
    let bytes = content_bytes + DATA_HEAD_BYTES + FRAMING_BYTES;
    bytes + bytes.div_ceil(SEGMENT_BYTES) * HEADER_BYTES
}
