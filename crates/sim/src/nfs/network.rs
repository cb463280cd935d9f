//! The way of datagrams in fragments: over a link of one's own, or over a cell that others share.

use std::collections::BTreeMap;
use std::time::Duration;

use mafs_arpc::link::arq::{Sequence, Station};
use mafs_arpc::link::{Cell, Link, PACKET_BYTES};
use mafs_proto::Instant;

use super::transfer::{Event, Events};

/// The headers of IP and UDP (RFC 791, RFC 768).
pub(super) const IP_BYTES: u64 = 20;
pub(super) const UDP_BYTES: u64 = 8;

/// A direction, and its place among two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Up = 0,
    Down = 1,
}

/// A datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    /// The station that sends or gets it.
    pub(super) station: usize,
    pub(super) way: Way,
    /// The size without headers.
    pub(super) bytes: u64,
    /// The event that follows, so long after all of it has arrived.
    pub(super) after: Duration,
    pub(super) then: Event,
}

impl Message {
    /// The sizes of the packets that it is cut into.
    fn fragments(&self) -> impl Iterator<Item = u64> + use<> {
        let mut left = UDP_BYTES + self.bytes;
        std::iter::from_fn(move || {
            let part = left.min(PACKET_BYTES - IP_BYTES);
            left -= part;
            (part > 0).then_some(IP_BYTES + part)
        })
    }
}

/// A network that carries datagrams and enters the events of those that arrive.
pub(super) trait Network {
    /// Sends a datagram in fragments.
    fn send(&mut self, message: Message, now: Instant, events: &mut Events);

    /// The time at which something happens in it, unless events tell already.
    fn next_at(&self) -> Option<Instant>;

    /// Time has come so far.
    fn advance(&mut self, now: Instant, events: &mut Events);
}

/// Both directions of a link, which knows the fate of what it is offered.
#[derive(Debug)]
pub(super) struct Links {
    ways: [Link; 2],
}

impl Links {
    pub(super) fn new(ways: [Link; 2]) -> Self {
        Self { ways }
    }
}

impl Network for Links {
    fn send(&mut self, message: Message, now: Instant, events: &mut Events) {
        let link = &mut self.ways[message.way as usize];
        // All of them are sent, also those behind one that is lost.
        let arrivals: Vec<Option<Instant>> = message.fragments().map(|bytes| link.offer(bytes, now).ok()).collect();
        let arrived = arrivals.into_iter().collect::<Option<Vec<_>>>();
        if let Some(at) = arrived.and_then(|arrivals| arrivals.into_iter().max()) {
            events.add(at + message.after, message.then);
        }
    }

    fn next_at(&self) -> Option<Instant> {
        None
    }

    fn advance(&mut self, _now: Instant, _events: &mut Events) {}
}

/// Both directions of a cell.
#[derive(Debug)]
pub(super) struct Cells {
    ways: [Cell; 2],
    /// The datagram of each packet.
    fragments: [BTreeMap<(Station, Sequence), u64>; 2],
    /// Datagrams, with how many packets of each have not arrived. Those that lose one stay: a transfer has thousands.
    datagrams: BTreeMap<u64, (usize, Message)>,
    sent: u64,
}

impl Cells {
    pub(super) fn new(ways: [Cell; 2]) -> Self {
        Self { ways, fragments: Default::default(), datagrams: BTreeMap::new(), sent: 0 }
    }
}

impl Network for Cells {
    fn send(&mut self, message: Message, now: Instant, _events: &mut Events) {
        let (way, station) = (message.way as usize, Station(message.station));
        self.sent += 1;
        let mut fragments = 0;
        for bytes in message.fragments() {
            fragments += 1;
            if let Ok(sequence) = self.ways[way].offer(station, bytes, now) {
                self.fragments[way].insert((station, sequence), self.sent);
            }
        }
        self.datagrams.insert(self.sent, (fragments, message));
    }

    fn next_at(&self) -> Option<Instant> {
        self.ways.iter().filter_map(Cell::poll_timeout).min()
    }

    fn advance(&mut self, now: Instant, events: &mut Events) {
        for (cell, fragments) in self.ways.iter_mut().zip(&mut self.fragments) {
            cell.handle_timeout(now);
            while let Some(arrival) = cell.poll_arrival(now) {
                let datagram = fragments.remove(&(arrival.station, arrival.sequence));
                let Some((left, message)) = datagram.and_then(|datagram| self.datagrams.get_mut(&datagram)) else {
                    continue;
                };
                *left -= 1;
                if *left == 0 {
                    events.add(arrival.at + message.after, message.then);
                }
            }
        }
    }
}
