//! One direction in real time: the packets on their way, and the fates of the others. Pure: `now` is an argument.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use mafs_arpc::link::{Dropped, Link};
use mafs_proto::Instant;

/// Counts of the packets of one direction, by their fates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Packets that have arrived.
    pub packets: u64,
    /// Bytes of these packets, with IP headers.
    pub bytes: u64,
    /// Packets dropped because the queue before the link was full.
    pub queue_full: u64,
    /// Packets lost on the air.
    pub lost: u64,
    /// Packets dropped because the receiver's buffer was full.
    pub receiver_full: u64,
    /// Lateness of the latest packet: the time from its arrival by the model to its delivery.
    pub late_max: Duration,
    /// Lateness of all packets together.
    late_sum: Duration,
}

impl Counts {
    /// Returns the average lateness of a packet: the time from its arrival by the model to its delivery.
    #[must_use]
    pub fn late_mean(&self) -> Duration {
        Duration::from_secs_f64(self.late_sum.as_secs_f64() / self.packets.max(1) as f64)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, bytes, queue_full, lost, receiver_full, late_max, .. } = self;
        write!(f, "{packets} packets, {bytes} bytes; ")?;
        write!(f, "dropped: {queue_full} queue full, {lost} lost, {receiver_full} receiver full; ")?;
        write!(f, "delivered late by {:.2?}, at most {late_max:.2?}", self.late_mean())
    }
}

/// One direction.
#[derive(Debug)]
pub(super) struct Way {
    link: Link,
    /// Packets in the order of arrival, which is that of offers. Bounded by the link's queue and what fits into its
    /// delay.
    on_the_way: VecDeque<(Instant, Box<[u8]>)>,
    /// If set, no packet gets through, and nobody is told.
    unplugged: bool,
    /// If set, packets of UDP do not get through, and nobody is told.
    udp_blocked: bool,
    counts: Counts,
}

impl Way {
    pub(super) fn new(link: Link) -> Self {
        Self { link, on_the_way: VecDeque::new(), unplugged: false, udp_blocked: false, counts: Counts::default() }
    }

    /// Unplugs the link: the packets on their way and all that are offered from now on vanish. Or plugs it in again.
    pub(super) fn set_unplugged(&mut self, unplugged: bool) {
        self.unplugged = unplugged;
        if unplugged {
            self.counts.lost += self.on_the_way.drain(..).count() as u64;
        }
    }

    /// Lets packets of UDP vanish from now on, or no more.
    pub(super) fn set_udp_blocked(&mut self, blocked: bool) {
        self.udp_blocked = blocked;
    }

    /// Hands a packet to the link.
    pub(super) fn offer(&mut self, packet: &[u8], now: Instant) {
        if self.unplugged || (self.udp_blocked && is_udp(packet)) {
            self.counts.lost += 1;
            return;
        }
        match self.link.offer(packet.len() as u64, now) {
            Ok(arrival) => self.on_the_way.push_back((arrival, packet.into())),
            Err(Dropped::QueueFull) => self.counts.queue_full += 1,
            Err(Dropped::Lost) => self.counts.lost += 1,
            Err(Dropped::ReceiverFull) => self.counts.receiver_full += 1,
        }
    }

    /// Takes the next packet that has arrived by `now`.
    pub(super) fn take_arrived(&mut self, now: Instant) -> Option<Box<[u8]>> {
        self.next_arrival().filter(|arrival| *arrival <= now)?;
        let (arrival, packet) = self.on_the_way.pop_front()?;
        let late = now.since(arrival);
        self.counts.packets += 1;
        self.counts.bytes += packet.len() as u64;
        self.counts.late_sum = self.counts.late_sum.saturating_add(late);
        self.counts.late_max = self.counts.late_max.max(late);
        Some(packet)
    }

    /// Returns the time when the first of the packets on their way arrives.
    pub(super) fn next_arrival(&self) -> Option<Instant> {
        self.on_the_way.front().map(|(arrival, _)| *arrival)
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }
}

/// Tells whether a packet of IPv4 carries UDP (RFC 791, section 3.1).
fn is_udp(packet: &[u8]) -> bool {
    const UDP: u8 = 17;
    packet.first().is_some_and(|first| first >> 4 == 4) && packet.get(9) == Some(&UDP)
}

#[cfg(test)]
mod tests {
    use mafs_arpc::link::{Direction, Profile};

    use super::*;

    const START: Instant = Instant(1_000_000_000);

    /// 100 KB/s and 10 ms each way: a packet of 1000 bytes takes 10 ms on the line and 10 on its way.
    fn way(change: impl FnOnce(&mut Direction)) -> Way {
        let mut profile = Profile::steady(100_000, Duration::from_millis(20));
        change(&mut profile.up);
        let [up, _] = profile.links(START);
        Way::new(up)
    }

    fn at_ms(ms: u64) -> Instant {
        START + Duration::from_millis(ms)
    }

    #[test]
    fn packets_arrive_when_the_link_says_and_in_order() {
        let mut way = way(|_| {});
        assert_eq!(way.next_arrival(), None);
        way.offer(&[1; 1000], START);
        way.offer(&[2; 500], START);
        assert_eq!(way.next_arrival(), Some(at_ms(20)));
        assert_eq!(way.take_arrived(Instant(at_ms(20).0 - 1)), None);
        assert_eq!(way.take_arrived(at_ms(20)).as_deref(), Some(&[1; 1000][..]));
        assert_eq!(way.take_arrived(at_ms(20)), None);
        assert_eq!(way.next_arrival(), Some(at_ms(25)));
        assert_eq!(way.take_arrived(at_ms(27)).as_deref(), Some(&[2; 500][..]));
        let counts = way.counts();
        assert_eq!((counts.packets, counts.bytes), (2, 1500));
        assert_eq!((counts.late_max, counts.late_mean()), (Duration::from_millis(2), Duration::from_millis(1)));
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let mut way = way(|direction| direction.queue_bytes = 2500);
        for _ in 0..5 {
            way.offer(&[0; 1000], START);
        }
        assert_eq!(way.counts().queue_full, 3);
        // The first packet has left the queue, and there is room for one more.
        way.offer(&[0; 1000], at_ms(10));
        way.offer(&[0; 1000], at_ms(10));
        assert_eq!(way.counts().queue_full, 4);
        let arrived = std::iter::from_fn(|| way.take_arrived(at_ms(1000))).count();
        assert_eq!((arrived, way.counts().packets), (3, 3));
    }

    #[test]
    fn what_is_lost_never_arrives() {
        let mut way = way(|direction| direction.loss_ppm = 1_000_000);
        way.offer(&[0; 100], START);
        assert_eq!((way.next_arrival(), way.counts().lost), (None, 1));
    }

    #[test]
    fn what_is_sent_over_an_unplugged_link_vanishes() {
        let mut way = way(|_| {});
        way.offer(&[1; 1000], START);
        way.set_unplugged(true);
        way.offer(&[2; 1000], START);
        assert_eq!((way.next_arrival(), way.counts().lost), (None, 2));
        way.set_unplugged(false);
        way.offer(&[3; 1000], at_ms(100));
        assert_eq!(way.take_arrived(at_ms(200)).as_deref(), Some(&[3; 1000][..]));
    }

    #[test]
    fn counts_are_told_in_one_line() {
        let counts = Counts { packets: 2, bytes: 1500, queue_full: 3, lost: 4, receiver_full: 5, ..Counts::default() };
        let expected = "2 packets, 1500 bytes; dropped: 3 queue full, 4 lost, 5 receiver full; \
                        delivered late by 0.00ns, at most 0.00ns";
        assert_eq!(counts.to_string(), expected);
    }

    #[test]
    fn blocked_udp_vanishes_and_nothing_else() {
        let mut way = way(|_| ());
        let packet = |protocol| {
            let mut packet = [0; 100];
            (packet[0], packet[9]) = (0x45, protocol);
            packet
        };
        way.set_udp_blocked(true);
        way.offer(&packet(17), START);
        assert_eq!((way.next_arrival(), way.counts().lost), (None, 1));
        way.offer(&packet(6), START);
        assert!(way.next_arrival().is_some());
        way.set_udp_blocked(false);
        way.offer(&packet(17), START);
        assert_eq!((way.on_the_way.len(), way.counts().lost), (2, 1));
    }
}
