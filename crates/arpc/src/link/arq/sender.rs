//! The sender's end gives turns to stations, sends frames, and reports the fates of packets.

use std::collections::VecDeque;
use std::time::Duration;

use mafs_proto::Instant;

use super::{ANSWER_BYTES, Answer, Event, Frame, Queues, Sequence, Settings, Station};
use crate::link::PACKET_BYTES;

/// A turn is worth so many bytes on the air: a full packet and its answer.
const TURN_BYTES: u64 = PACKET_BYTES + ANSWER_BYTES;
/// The most that is owed to a queue: the turns that it misses in the longest burst of the wireless papers (320 ms) when
/// two share a link of 1 Mbit/s, and some more.
const OWED_BYTES_MAX: u64 = 16 * TURN_BYTES;
/// The most that one turn takes while something is owed, so that the others go on at half their pace at least.
const TURN_BYTES_MAX: u64 = 2 * TURN_BYTES;
/// Each wait for a silent station is so much longer than the one before. The first is none: a loss by chance is worth
/// a probe at once.
const WAIT_STEP: Duration = Duration::from_millis(5);
/// The longest wait has so many steps: 20 ms, the granularity of the papers' bursts.
const WAIT_STEPS_MAX: u32 = 4;

/// The reasons for which a packet is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The station's queue has no room.
    QueueFull,
    /// There is no such station.
    UnknownStation,
}

/// A radio that sends to some stations.
#[derive(Debug)]
pub struct Sender {
    settings: Settings,
    queues: Vec<Queue>,
    destinations: Vec<Destination>,
    turn: Turn,
    unanswered: Option<Frame>,
}

/// Packets that wait, in the order offered.
#[derive(Debug, Default)]
struct Queue {
    packets: VecDeque<Packet>,
    held_bytes: u64,
    /// The bytes that may be sent in this turn; below 0 those that were sent too much.
    credit_bytes: i64,
}

#[derive(Debug)]
struct Packet {
    to: Station,
    sequence: Sequence,
    bytes: u64,
    /// How many frames for the packet were left without an answer.
    silences: u32,
}

#[derive(Debug)]
struct Destination {
    next: Sequence,
    state: State,
}

/// A channel, as far as answers tell of it.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The last frame was answered, or there was none.
    Good,
    /// So many frames in a row were not answered, and the station may be asked again at a time.
    Silent { times: u32, probe_at: Instant },
}

/// The queue that may send now, and the bytes that it has sent since its turn came.
#[derive(Debug, Default)]
struct Turn {
    queue: usize,
    sent_bytes: u64,
}

impl Sender {
    /// Makes a sender to stations 0, 1, ..., `stations` of them.
    #[must_use]
    pub fn new(stations: usize, settings: Settings) -> Self {
        let queues = match settings.queues() {
            Queues::PerStation => stations,
            Queues::Shared => stations.min(1),
        };
        let destination = || Destination { next: Sequence(0), state: State::Good };
        Self {
            settings,
            queues: std::iter::repeat_with(Queue::default).take(queues).collect(),
            destinations: std::iter::repeat_with(destination).take(stations).collect(),
            turn: Turn::default(),
            unanswered: None,
        }
    }

    /// Takes a packet of `bytes` (0 counts as 1) and says its number. [`Self::poll_transmit`] may have something then.
    ///
    /// # Errors
    /// The queue has no room for it, or there is no such station.
    pub fn offer(&mut self, to: Station, bytes: u64) -> Result<Sequence, Refused> {
        let bytes = bytes.max(1);
        let queue = self.queue_of(to);
        let destination = self.destinations.get_mut(to.0).ok_or(Refused::UnknownStation)?;
        let queue = self.queues.get_mut(queue).ok_or(Refused::UnknownStation)?;
        if queue.held_bytes.saturating_add(bytes) > self.settings.queue_bytes() {
            return Err(Refused::QueueFull);
        }
        let sequence = destination.next;
        destination.next = Sequence(sequence.0 + 1);
        queue.held_bytes += bytes;
        queue.packets.push_back(Packet { to, sequence, bytes, silences: 0 });
        Ok(sequence)
    }

    /// Returns the next frame to send. Ask after each other call, and at [`Self::poll_timeout`]. There is none while
    /// one is without an answer.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Frame> {
        if self.unanswered.is_some() || !(0..self.queues.len()).any(|queue| self.is_ready(queue, now)) {
            return None;
        }
        // A queue that is ready is owed more with each turn of the others, so one of them ends this soon.
        while !(self.is_ready(self.turn.queue, now) && self.has_credit()) {
            self.pass_turn();
        }
        let frame = self.first_frame(self.turn.queue)?;
        let spent = frame.air_bytes().saturating_add(ANSWER_BYTES).min(OWED_BYTES_MAX);
        self.turn.sent_bytes += spent;
        self.queues[self.turn.queue].credit_bytes -= spent.cast_signed();
        self.unanswered = Some(frame);
        Some(frame)
    }

    /// Returns when to ask [`Self::poll_transmit`] again although nothing has happened: a silent station is to be
    /// probed then.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let probe_at = |queue: &Queue| match self.state_of(queue.packets.front()?.to) {
            State::Good => None,
            State::Silent { probe_at, .. } => Some(probe_at),
        };
        self.queues.iter().filter_map(probe_at).min().filter(|_| self.unanswered.is_none())
    }

    /// Handles an answer that was heard. Returns the packet that is done by it. An answer to anything but the last
    /// frame is ignored.
    pub fn handle_answer(&mut self, answer: Answer) -> Option<Event> {
        match (self.unanswered?, answer) {
            (Frame::Probe { to, .. }, Answer::Ready { from }) if to == from => {
                self.unanswered = None;
                self.destinations[to.0].state = State::Good;
                None
            }
            (Frame::Data { to, sequence, .. }, Answer::Acknowledged { from, sequence: which })
                if (to, sequence) == (from, which) =>
            {
                self.unanswered = None;
                self.destinations[to.0].state = State::Good;
                self.remove_first(to);
                Some(Event::Delivered { to, sequence })
            }
            (Frame::Probe { .. } | Frame::Data { .. }, _) => None,
        }
    }

    /// Notes that the last frame was left without an answer, which is known at `now`. Returns the packet that is given
    /// up by it.
    pub fn handle_silence(&mut self, now: Instant) -> Option<Event> {
        let to = self.unanswered.take()?.to();
        let state = &mut self.destinations[to.0].state;
        let before = match *state {
            State::Good => 0,
            State::Silent { times, .. } => times,
        };
        *state =
            State::Silent { times: before.saturating_add(1), probe_at: now + WAIT_STEP * before.min(WAIT_STEPS_MAX) };
        let queue = self.queue_of(to);
        let packet = self.queues[queue].packets.front_mut()?;
        packet.silences += 1;
        let (sequence, silences) = (packet.sequence, packet.silences);
        (silences > self.settings.retries()).then(|| {
            self.remove_first(to);
            Event::GivenUp { to, sequence }
        })
    }

    fn queue_of(&self, to: Station) -> usize {
        match self.settings.queues() {
            Queues::PerStation => to.0,
            Queues::Shared => 0,
        }
    }

    fn state_of(&self, to: Station) -> State {
        self.destinations[to.0].state
    }

    /// True if a queue has a packet whose station is worth a frame at `now`.
    fn is_ready(&self, queue: usize, now: Instant) -> bool {
        self.queues[queue].packets.front().is_some_and(|packet| match self.state_of(packet.to) {
            State::Good => true,
            State::Silent { probe_at, .. } => probe_at <= now,
        })
    }

    /// True if the queue whose turn it is may send more in it.
    fn has_credit(&self) -> bool {
        self.queues[self.turn.queue].credit_bytes > 0 && self.turn.sent_bytes < TURN_BYTES_MAX
    }

    /// Passes the turn to the next queue. A queue that has nothing to send is owed nothing.
    fn pass_turn(&mut self) {
        self.turn = Turn { queue: (self.turn.queue + 1) % self.queues.len(), sent_bytes: 0 };
        let queue = &mut self.queues[self.turn.queue];
        let owed = queue.credit_bytes.saturating_add_unsigned(TURN_BYTES).min(OWED_BYTES_MAX.cast_signed());
        queue.credit_bytes = if queue.packets.is_empty() { 0 } else { owed };
    }

    fn first_frame(&self, queue: usize) -> Option<Frame> {
        let &Packet { to, sequence, bytes, .. } = self.queues[queue].packets.front()?;
        Some(match self.state_of(to) {
            State::Good => Frame::Data { to, sequence, bytes },
            State::Silent { .. } => Frame::Probe { to, bytes },
        })
    }

    fn remove_first(&mut self, to: Station) {
        let queue = self.queue_of(to);
        let queue = &mut self.queues[queue];
        queue.held_bytes -= queue.packets.pop_front().map_or(0, |packet| packet.bytes);
    }
}
