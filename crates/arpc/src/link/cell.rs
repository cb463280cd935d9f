//! A base station and the stations around it: they share one line, and each has a channel of its own.
//!
//! A cell is one direction, as a [`super::Link`] is for two hosts. The next packet depends on later offers, so fates
//! are not known at once: the caller asks for arrivals, and tells that time passes. Towards the stations a cell is the
//! base station's sender; from them it is the turns that stations take on the air, where each has one queue.

use std::collections::BTreeSet;
use std::time::Duration;

use mafs_proto::{Instant, Random};

use super::air::{Air, Exchange};
use super::arq::{Frame, Queues, Receiver, Refused, Sender, Sequence, Settings, Station};
use super::queue::Queue;
use super::rate::{Line, OnAir, Rate};
use super::{Direction, Origin, Periods, Profile};

/// One direction of a cell.
#[derive(Debug)]
pub struct Cell {
    origin: Origin,
    /// The time until which everything is decided.
    latest: Instant,
    line: Line,
    delay: Duration,
    sender: Sender,
    /// True if frames are acknowledged.
    answers: bool,
    hosts: Vec<Host>,
    under_way: Option<Exchange>,
    arrivals: BTreeSet<Arrival>,
}

/// A packet that arrives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Arrival {
    /// When the receiving host has it.
    pub at: Instant,
    /// The station whose channel it has crossed.
    pub station: Station,
    /// The packet's number, which [`Cell::offer`] has returned.
    pub sequence: Sequence,
}

/// One station's end: the air, the receiver, and the buffer before its host if the host may be too slow.
#[derive(Debug)]
struct Host {
    air: Air,
    receiver: Receiver,
    adapter: Option<(Queue, Line)>,
}

impl Profile {
    /// Makes both directions of a cell, `up` first: the lines, delays, queues, losses by chance and receivers are those
    /// of this link, and each station has bad periods of its own, which both directions see. With `retransmission` the
    /// link level sends again what is lost; without, nothing is sent twice, and the base station has one queue.
    /// Stations have a queue each. All queues are as long as this link's, and a queue that stations share has this
    /// length for each of them. Time begins at `start`.
    #[must_use]
    pub fn cells(&self, stations: &[Option<Periods>], retransmission: Option<Settings>, start: Instant) -> [Cell; 2] {
        let mut seeds = Random::new(self.seed);
        let links = stations.iter().map(|bursts| Self { bursts: bursts.clone(), seed: seeds.number(), ..self.clone() });
        let (up, down) = links.map(|link| Air::both(&link, 0)).map(|[up, down]| (up, down)).unzip();
        let settings = retransmission.unwrap_or(Settings::default().with_queues(Queues::Shared));
        let answers = retransmission.is_some();
        [
            Cell::new(&self.up, up, settings.with_queues(Queues::PerStation), answers, start),
            Cell::new(&self.down, down, settings, answers, start),
        ]
    }
}

impl Cell {
    fn new(direction: &Direction, airs: Vec<Air>, settings: Settings, answers: bool, start: Instant) -> Self {
        let shared_by = if settings.queues() == Queues::Shared { airs.len() as u64 } else { 1 };
        let settings = settings.with_queue_bytes(direction.queue_bytes.saturating_mul(shared_by));
        let adapter = || {
            let receiver = direction.receiver?;
            Some((Queue::new(receiver.buffer_bytes), Line::new(&Rate::constant(receiver.bytes_per_s))))
        };
        let host = |(number, air)| Host { air, receiver: Receiver::new(Station(number)), adapter: adapter() };
        Self {
            origin: Origin(start),
            latest: Instant(0),
            line: Line::new(&direction.rate),
            delay: direction.delay,
            sender: Sender::new(airs.len(), settings),
            answers,
            hosts: airs.into_iter().enumerate().map(host).collect(),
            under_way: None,
            arrivals: BTreeSet::new(),
        }
    }

    /// Offers a packet of `bytes` (0 counts as 1) to or from a station at `now`, and returns its number. A time before
    /// the last one told counts as the last one.
    ///
    /// # Errors
    /// There is no room for it, or there is no such station.
    pub fn offer(&mut self, station: Station, bytes: u64, now: Instant) -> Result<Sequence, Refused> {
        self.handle_timeout(now);
        let sequence = self.sender.offer(station, bytes)?;
        self.run(self.latest);
        Ok(sequence)
    }

    /// Notes that time has passed. Call this at [`Self::poll_timeout`]; more often does no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.run(self.latest.max(self.origin.local(now)));
    }

    /// Returns the next packet that has arrived by `now`, in the order of arrival. Ask after each other call.
    #[must_use]
    pub fn poll_arrival(&mut self, now: Instant) -> Option<Arrival> {
        let at = self.origin.global(self.arrivals.first()?.at);
        let arrival = (at <= now).then(|| self.arrivals.pop_first())??;
        Some(Arrival { at, ..arrival })
    }

    /// Returns the time at which the next thing happens, if anything is to come.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let arrives = self.arrivals.first().map(|arrival| arrival.at);
        let over = self.under_way.map(|exchange| exchange.over_at);
        [arrives, over, self.sender.poll_timeout()].into_iter().flatten().min().map(|at| self.origin.global(at))
    }

    /// Does everything that happens until `now`.
    fn run(&mut self, now: Instant) {
        loop {
            if let Some(exchange) = self.under_way {
                if exchange.over_at > now {
                    break;
                }
                self.under_way = None;
                self.latest = self.latest.max(exchange.over_at);
                self.end(&exchange);
            } else if let Some(frame) = self.sender.poll_transmit(self.latest) {
                self.under_way = Some(self.begin(frame));
            } else {
                let Some(probe_at) = self.sender.poll_timeout().filter(|at| *at <= now) else { break };
                self.latest = self.latest.max(probe_at);
            }
        }
        self.latest = now;
    }

    /// Puts a frame on the air.
    fn begin(&mut self, frame: Frame) -> Exchange {
        let Host { air, receiver, adapter } = &mut self.hosts[frame.to().0];
        let exchange = if self.answers {
            let room_bytes = |at| adapter.as_mut().map_or(u64::MAX, |(buffer, _)| buffer.room_bytes(at));
            air.exchange(frame, &mut self.line, receiver, room_bytes, self.latest)
        } else {
            unanswered(frame, air, receiver, self.line.carry(frame.air_bytes(), self.latest))
        };
        if let (Some(at), Frame::Data { to: station, sequence, bytes }) = (exchange.brought_at, frame) {
            let taken = match adapter {
                None => Some(at),
                Some((buffer, host)) => buffer.has_room(bytes, at).then(|| {
                    let taken = host.carry(bytes, at).to;
                    buffer.push(bytes, taken);
                    taken
                }),
            };
            self.arrivals.extend(taken.map(|taken| Arrival { at: taken + self.delay, station, sequence }));
        }
        exchange
    }

    fn end(&mut self, exchange: &Exchange) {
        let _ = match exchange.answer {
            Some(answer) => self.sender.handle_answer(answer),
            None => self.sender.handle_silence(exchange.over_at),
        };
    }
}

/// Sends a packet once, whether it arrives or not: the sender is told that its station has it.
fn unanswered(frame: Frame, air: &mut Air, receiver: &mut Receiver, on_air: OnAir) -> Exchange {
    let crossed = air.cross(on_air);
    Exchange {
        over_at: on_air.to,
        brought_at: crossed.ok().map(|()| on_air.to),
        answer: receiver.handle_frame(frame, u64::MAX).map(|heard| heard.answer),
        spoiled: crossed.err(),
    }
}
