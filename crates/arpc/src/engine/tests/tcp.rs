//! A TCP on packets that are lost, in virtual time: it decides when bytes arrive that an engine has given away.
//!
//! The model has the parts of Linux's TCP that count where packets are lost in bursts: selective acknowledgements, RACK
//! and the tail loss probe (RFC 8985), the timeout of 200 ms and more that doubles, and a window that shrinks with each
//! loss and grows only while it is used (cubic is Reno's on such short paths). Left out: the undoing of needless
//! repetitions, delayed acknowledgements, the receive window, reordering, which these links do not do.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mafs_proto::Instant;

use crate::link::SEGMENT_BYTES;

const HEADER_BYTES: u64 = 52;

const RTO_MIN: Duration = Duration::from_millis(200);
const RTO_MAX: Duration = Duration::from_secs(120);
/// The margin of the tail loss probe: two ticks of the kernel's clock.
const PROBE_MARGIN: Duration = Duration::from_millis(8);
const FIRST_WINDOW: f64 = 10.0;
/// The part of the window that a loss leaves, in cubic.
const BACK_OFF: f64 = 0.7;

#[derive(Clone, Debug)]
pub(super) struct Packet {
    segment: (u64, u64),
    acknowledged: u64,
    /// Ranges that have come beyond the acknowledged bytes.
    selected: Vec<(u64, u64)>,
}

impl Packet {
    pub(super) fn bytes(&self) -> u64 {
        let (from, to) = self.segment;
        to - from + HEADER_BYTES
    }
}

#[derive(Debug)]
struct Sent {
    segment: (u64, u64),
    at: Instant,
    again: bool,
    arrived: bool,
    lost: bool,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Tcp {
    written: u64,
    sent: VecDeque<Sent>,
    next: u64,
    window: f64,
    threshold: f64,
    /// The recovery from the loss that the window has shrunk for ends when so much has arrived.
    recovered_at: u64,
    rtt: Option<Duration>,
    timeouts: u32,
    probed: bool,
    /// When the timeout comes, and when the probe.
    timeout_at: Option<Instant>,
    probe_at: Option<Instant>,
    received: u64,
    ahead: BTreeMap<u64, u64>,
    owes: bool,
}

impl Tcp {
    pub(super) fn new() -> Self {
        Self {
            written: 0,
            sent: VecDeque::new(),
            next: 0,
            window: FIRST_WINDOW,
            threshold: f64::INFINITY,
            recovered_at: 0,
            rtt: None,
            timeouts: 0,
            probed: false,
            timeout_at: None,
            probe_at: None,
            received: 0,
            ahead: BTreeMap::new(),
            owes: false,
        }
    }

    /// Takes bytes to send. Returns where they end in the stream.
    pub(super) fn write(&mut self, bytes: u64) -> u64 {
        self.written += bytes;
        self.written
    }

    /// Returns how many bytes have come without a gap.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.timeout_at.into_iter().chain(self.probe_at).min()
    }

    /// Returns the next packet that goes out now.
    pub(super) fn poll_packet(&mut self, now: Instant) -> Option<Packet> {
        let flying = self.flying();
        let segment = if (flying as f64) < self.window { self.next_segment(now) } else { None };
        if segment.is_none() && !self.owes {
            return None;
        }
        Some(self.packet(segment.unwrap_or((self.next, self.next))))
    }

    fn packet(&mut self, segment: (u64, u64)) -> Packet {
        self.owes = false;
        Packet {
            segment,
            acknowledged: self.received,
            selected: self.ahead.iter().map(|(from, to)| (*from, *to)).collect(),
        }
    }

    fn flying(&self) -> usize {
        self.sent.iter().filter(|sent| !sent.arrived && !sent.lost).count()
    }

    fn next_segment(&mut self, now: Instant) -> Option<(u64, u64)> {
        if let Some(lost) = self.sent.iter_mut().find(|sent| sent.lost) {
            (lost.at, lost.again, lost.lost) = (now, true, false);
            let segment = lost.segment;
            self.arm(now);
            return Some(segment);
        }
        self.new_segment(now)
    }

    fn new_segment(&mut self, now: Instant) -> Option<(u64, u64)> {
        let segment = (self.next, self.written.min(self.next + SEGMENT_BYTES));
        if segment.0 == segment.1 {
            return None;
        }
        self.next = segment.1;
        self.sent.push_back(Sent { segment, at: now, again: false, arrived: false, lost: false });
        self.arm(now);
        Some(segment)
    }

    fn rto(&self) -> Duration {
        let base = self.rtt.map_or(Duration::from_secs(1), |rtt| rtt + RTO_MIN);
        (base * 2u32.pow(self.timeouts.min(16))).min(RTO_MAX)
    }

    /// Sets the timers when a packet was sent: the timeout counts from the last arrival, the probe from this packet.
    fn arm(&mut self, now: Instant) {
        let at = *self.timeout_at.get_or_insert(now + self.rto());
        let in_recovery = self.sent.front().is_some_and(|first| first.segment.0 < self.recovered_at);
        self.probe_at = self.rtt.filter(|_| !self.probed && !in_recovery && self.timeouts == 0).map(|rtt| {
            let margin = if self.sent.len() == 1 { RTO_MIN } else { PROBE_MARGIN };
            at.min(now + 2 * rtt + margin)
        });
    }

    /// Acts on the timers that are due. Returns a packet that goes whatever the window says.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<Packet> {
        if self.probe_at.take_if(|at| *at <= now).is_some() {
            self.probed = true;
            let segment = self.new_segment(now).or_else(|| {
                let last = self.sent.iter_mut().rev().find(|sent| !sent.arrived)?;
                (last.at, last.again) = (now, true);
                Some(last.segment)
            });
            return segment.map(|segment| self.packet(segment));
        }
        self.timeout_at.take_if(|at| *at <= now)?;
        self.threshold = (self.window * BACK_OFF).max(2.0);
        self.window = 1.0;
        self.timeouts += 1;
        self.recovered_at = self.next;
        self.sent.iter_mut().filter(|sent| !sent.arrived).for_each(|sent| sent.lost = true);
        let segment = self.next_segment(now);
        segment.map(|segment| self.packet(segment))
    }

    pub(super) fn handle_packet(&mut self, packet: &Packet, now: Instant) {
        let (from, to) = packet.segment;
        if to > from {
            self.owes = true;
            if to > self.received {
                self.ahead.insert(from, to);
            }
            while let Some((&from, &to)) = self.ahead.first_key_value()
                && from <= self.received
            {
                self.received = self.received.max(to);
                self.ahead.pop_first();
            }
        }
        self.acknowledge(packet, now);
    }

    fn acknowledge(&mut self, packet: &Packet, now: Instant) {
        let full = self.flying() as f64 * if self.window < self.threshold { 2.0 } else { 1.0 } >= self.window;
        let arrived = |sent: &Sent| {
            sent.segment.1 <= packet.acknowledged
                || packet.selected.iter().any(|(from, to)| *from <= sent.segment.0 && sent.segment.1 <= *to)
        };
        let (mut newest, mut count) = (None, 0u32);
        for sent in self.sent.iter_mut().filter(|sent| !sent.arrived) {
            if arrived(sent) {
                (sent.arrived, sent.lost) = (true, false);
                count += 1;
                newest = newest.max(Some(sent.at));
                if !sent.again {
                    let took = now.since(sent.at);
                    self.rtt = Some(self.rtt.map_or(took, |rtt| (7 * rtt + took) / 8));
                }
            }
        }
        let before = self.sent.len();
        while self.sent.front().is_some_and(|sent| sent.segment.1 <= packet.acknowledged) {
            self.sent.pop_front();
        }
        let Some(newest) = newest else { return };
        if self.sent.len() < before {
            (self.timeouts, self.probed) = (0, false);
        }
        self.lose_before(newest, packet.acknowledged);
        if full && (packet.acknowledged >= self.recovered_at || self.window < self.threshold) {
            let growth = if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
            self.window += growth * f64::from(count);
        }
        self.timeout_at = None;
        if self.sent.is_empty() {
            self.probe_at = None;
        } else {
            self.arm(now);
        }
    }

    /// Counts packets as lost that were sent before one that has arrived, and have not arrived.
    fn lose_before(&mut self, newest: Instant, acknowledged: u64) {
        let mut lost = false;
        for sent in self.sent.iter_mut().filter(|sent| !sent.arrived && !sent.lost && sent.at < newest) {
            sent.lost = true;
            lost = true;
        }
        if lost && acknowledged >= self.recovered_at {
            self.recovered_at = self.next;
            self.threshold = (self.window * BACK_OFF).max(2.0);
            self.window = self.threshold;
        }
    }
}
