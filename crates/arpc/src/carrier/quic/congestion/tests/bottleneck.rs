//! A bottleneck that flows share: whole packets and acknowledgements over two [`crate::link::Link`]s.
//!
//! Beside ours there is TCP's CUBIC (RFC 9438) to compare with. Both have endless data, learn of a loss when three
//! later packets are acknowledged, and send a probe into a silence: ours after 25 ms, TCP after 200 ms.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::time::Duration;

use mafs_proto::Instant;

use super::super::{Acked, Congestion};
use crate::link::{Link, Profile};

pub(super) const MTU: u64 = 1480;
const ACK_BYTES: u64 = 60;
const SECOND: Duration = Duration::from_secs(1);

/// The share of one flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// The share of the bytes that the link could carry in the time.
    pub(super) share: f64,
    pub(super) delivered: u64,
    /// The smoothed queue, in the end.
    pub(super) queue: Duration,
}

/// A flow that sends.
pub(super) struct Sender {
    control: Control,
    in_flight: BTreeMap<u64, Instant>,
    next: u64,
    heard_at: Instant,
    rtt: Option<(Duration, Duration)>,
    delivered: u64,
}

enum Control {
    Ours(Congestion),
    Cubic(Cubic),
}

impl Sender {
    pub(super) fn ours() -> Self {
        Self::new(Control::Ours(Congestion::new(MTU, Instant(0))))
    }

    pub(super) fn cubic() -> Self {
        Self::new(Control::Cubic(Cubic { window: 10.0, threshold: f64::MAX, ..Cubic::default() }))
    }

    fn new(control: Control) -> Self {
        let (in_flight, heard_at) = (BTreeMap::new(), Instant(0));
        Self { control, in_flight, next: 0, heard_at, rtt: None, delivered: 0 }
    }

    fn has_room(&self) -> bool {
        let in_flight = (self.in_flight.len() as u64 + 1) * MTU;
        match &self.control {
            Control::Ours(congestion) => in_flight < congestion.window(),
            #[allow(clippy::cast_precision_loss, reason = "small numbers")]
            Control::Cubic(cubic) => (in_flight as f64) <= cubic.window * MTU as f64,
        }
    }

    fn probe_after(&self) -> Duration {
        let rtt = self.rtt.map_or(100 * Duration::from_millis(1), |(smoothed, _)| smoothed);
        match self.control {
            Control::Ours(_) => (rtt * 3 / 2).max(Duration::from_millis(25)),
            Control::Cubic(_) => rtt * 2 + Duration::from_millis(200),
        }
    }

    fn sent(&mut self, now: Instant) -> u64 {
        let number = self.next;
        self.next += 1;
        self.in_flight.insert(number, now);
        if let Control::Ours(congestion) = &mut self.control {
            congestion.sent(MTU);
        }
        number
    }

    fn acknowledged(&mut self, number: u64, now: Instant) {
        self.heard_at = now;
        let Some(sent_at) = self.in_flight.remove(&number) else { return };
        self.delivered += MTU;
        let rtt = now.since(sent_at);
        let (smoothed, least) = self.rtt.map_or((rtt, rtt), |(old, least)| ((7 * old + rtt) / 8, least.min(rtt)));
        self.rtt = Some((smoothed, least));
        match &mut self.control {
            Control::Ours(congestion) => {
                congestion.acked(Acked { bytes: MTU, sent_at, rtt: smoothed, rtt_min: least }, now);
            }
            Control::Cubic(cubic) => cubic.acked(smoothed, now),
        }
        let kept = self.in_flight.split_off(&number.saturating_sub(3));
        let lost = std::mem::replace(&mut self.in_flight, kept);
        if let Some((_, &last)) = lost.last_key_value() {
            match &mut self.control {
                Control::Ours(congestion) => congestion.lost(lost.len() as u64 * MTU, last, now),
                Control::Cubic(cubic) => cubic.lost(last, now),
            }
        }
        if let Control::Ours(congestion) = &mut self.control {
            congestion.set_in_flight(self.in_flight.len() as u64 * MTU);
        }
    }
}

/// RFC 9438, in packets, with its slow start as in RFC 5681.
#[derive(Clone, Copy, Debug, Default)]
struct Cubic {
    window: f64,
    threshold: f64,
    most: f64,
    friendly: f64,
    since: Instant,
    reacted_at: Instant,
}

impl Cubic {
    fn acked(&mut self, rtt: Duration, now: Instant) {
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let back = (self.most * 0.3 / 0.4).cbrt();
        let time = (now.since(self.since) + rtt).as_secs_f64() - back;
        let target = (0.4 * time.powi(3) + self.most).clamp(self.window, 1.5 * self.window);
        self.friendly += 0.53 / self.window;
        self.window = (self.window + (target - self.window) / self.window).max(self.friendly);
    }

    fn lost(&mut self, sent_at: Instant, now: Instant) {
        if sent_at < self.reacted_at {
            return;
        }
        (self.reacted_at, self.since) = (now, now);
        self.most = if self.window < self.most { self.window * 0.85 } else { self.window };
        self.window = (self.window * 0.7).max(2.0);
        (self.threshold, self.friendly) = (self.window, self.window);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Received { flow: usize, number: u64 },
    Acknowledged { flow: usize, number: u64 },
    Silence { flow: usize },
}

struct World<'a> {
    now: Instant,
    links: [Link; 2],
    events: BinaryHeap<Reverse<(Instant, Event)>>,
    senders: &'a mut [Sender],
}

impl World<'_> {
    fn send(&mut self, flow: usize) {
        let number = self.senders[flow].sent(self.now);
        if let Ok(at) = self.links[0].offer(MTU, self.now) {
            self.events.push(Reverse((at, Event::Received { flow, number })));
        }
    }

    fn fill(&mut self, flow: usize) {
        while self.senders[flow].has_room() {
            self.send(flow);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Received { flow, number } => {
                if let Ok(at) = self.links[1].offer(ACK_BYTES, self.now) {
                    self.events.push(Reverse((at, Event::Acknowledged { flow, number })));
                }
            }
            Event::Acknowledged { flow, number } => {
                self.senders[flow].acknowledged(number, self.now);
                self.fill(flow);
            }
            Event::Silence { flow } => {
                let due = self.senders[flow].heard_at + self.senders[flow].probe_after();
                if due <= self.now {
                    self.senders[flow].heard_at = self.now;
                    self.send(flow);
                }
                let next = due.max(self.now + Duration::from_millis(1));
                self.events.push(Reverse((next, Event::Silence { flow })));
            }
        }
    }
}

/// Lets flows share a link, the first from the beginning, each other a second later. Their shares between two times, in
/// seconds, count.
pub(super) fn run<const N: usize>(profile: &Profile, mut senders: [Sender; N], seconds: Range<u32>) -> [Flow; N] {
    let links = profile.links(Instant(0));
    let mut world = World { now: Instant(0), links, events: BinaryHeap::new(), senders: &mut senders };
    for flow in 0..N {
        let begin = Instant(0) + SECOND * u32::try_from(flow).unwrap();
        world.events.push(Reverse((begin, Event::Silence { flow })));
    }
    let (from, to) = (Instant(0) + SECOND * seconds.start, Instant(0) + SECOND * seconds.end);
    let mut before = None;
    while let Some(Reverse((at, event))) = world.events.pop().filter(|Reverse((at, _))| *at < to) {
        if at >= from && before.is_none() {
            before = Some(std::array::from_fn(|flow| world.senders[flow].delivered));
        }
        world.now = at;
        world.handle(event);
    }
    let before: [u64; N] = before.unwrap();
    let crate::link::Rate::Steps { first, .. } = profile.up.rate else { unreachable!() };
    std::array::from_fn(|flow| {
        let (smoothed, least) = senders[flow].rtt.unwrap();
        let delivered = senders[flow].delivered - before[flow];
        #[allow(clippy::cast_precision_loss, reason = "a share")]
        let share = delivered as f64 / (first as f64 * f64::from(seconds.end - seconds.start));
        Flow { share, delivered, queue: smoothed - least }
    })
}
