//! Tests of a link with bursts of errors below a TCP (workloads.md, W1): how much of it is used, and how long Control
//! waits.

use std::collections::VecDeque;
use std::time::Duration;

use mafs_proto::{Class, Instant};
use prost::Message;

use super::pair::{ANSWERS, Application, End};
use super::tcp::{Packet, Tcp};
use crate::engine::{CallId, FRAMING_BYTES, Frame, Settings, Side};
use crate::link::{Link, Profile, SEGMENT_BYTES};

const MEGABYTE: u64 = 1 << 20;
const RATE: f64 = 125_000.0;

/// Two engines, a TCP below each, and the packets between them.
struct Connection {
    ends: [End; 2],
    tcp: [Tcp; 2],
    links: [Link; 2],
    /// Frames that each end has written and the other does not have whole.
    frames: [VecDeque<(u64, Frame)>; 2],
    air: [VecDeque<(Instant, Packet)>; 2],
    now: Instant,
}

impl Connection {
    fn new(profile: &Profile) -> Self {
        let application = Application { reply_bytes: 0, ..ANSWERS };
        let end = |side| End::new(side, Settings::default().in_packets(SEGMENT_BYTES), application);
        Self {
            ends: [end(Side::Connector), end(Side::Acceptor)],
            tcp: [Tcp::new(), Tcp::new()],
            links: profile.links(Instant(0)),
            frames: Default::default(),
            air: Default::default(),
            now: Instant(0),
        }
    }

    fn put(&mut self, end: usize, packet: Packet) {
        if let Ok(at) = self.links[end].offer(packet.bytes(), self.now) {
            self.air[end].push_back((at, packet));
        }
    }

    fn transmit(&mut self) {
        for end in 0..2 {
            self.ends[end].settle();
            while let Some(frame) = self.ends[end].next_frame(self.now) {
                let bytes = frame.clone().into_wire().encoded_len() as u64 + FRAMING_BYTES;
                let written = self.tcp[end].write(bytes);
                self.frames[end].push_back((written, frame));
            }
            while let Some(packet) = self.tcp[end].poll_packet(self.now) {
                self.put(end, packet);
            }
        }
    }

    fn step(&mut self) {
        self.transmit();
        let arrivals = self.air.iter().filter_map(|air| air.front().map(|(at, _)| *at));
        let timers = self.ends.iter().filter_map(|end| end.engine.poll_timeout());
        let next = arrivals.chain(timers).chain(self.tcp.iter().filter_map(Tcp::poll_timeout)).min().unwrap();
        self.now = self.now.max(next);
        for end in 0..2 {
            if let Some(packet) = self.tcp[end].handle_timeout(self.now) {
                self.put(end, packet);
            }
            while self.air[end].front().is_some_and(|(at, _)| *at <= self.now) {
                let (_, packet) = self.air[end].pop_front().unwrap();
                self.tcp[1 - end].handle_packet(&packet, self.now);
            }
            let received = self.tcp[1 - end].received();
            while self.frames[end].front().is_some_and(|(whole_at, _)| *whole_at <= received) {
                let (_, frame) = self.frames[end].pop_front().unwrap();
                self.ends[1 - end].engine.handle_frame(Frame::parse(frame.into_wire()), self.now);
            }
        }
        for end in &mut self.ends {
            if end.engine.poll_timeout().is_some_and(|at| at <= self.now) {
                end.engine.handle_timeout(self.now);
            }
            end.settle();
            assert_eq!(end.closed, None);
        }
    }

    /// Makes a connection that is not new: a small call has been answered. Returns when.
    fn greeted(profile: &Profile) -> (Self, Instant) {
        let mut connection = Self::new(profile);
        let id = connection.ends[0].call(Class::Control, 100, None, connection.now);
        while connection.ends[0].outcomes[&id].is_empty() {
            connection.step();
        }
        let now = connection.now;
        (connection, now)
    }

    fn begin_read(&mut self) -> CallId {
        self.ends[1].application.reply_bytes = MEGABYTE;
        self.ends[0].call(Class::Fetch, 0, None, self.now)
    }

    fn begin_write(&mut self) -> CallId {
        self.ends[0].call(Class::Store, MEGABYTE, None, self.now)
    }

    fn until_all_has_come(&mut self, end: usize, id: CallId) {
        while self.ends[end].received.get(&id).is_none_or(|(bytes, _)| *bytes < MEGABYTE) {
            self.step();
        }
    }
}

fn profile(bad_ms: u64, seed: u64) -> Profile {
    Profile::burst_errors(Duration::from_millis(bad_ms), seed)
}

/// Returns the seconds for a megabyte down, as a file is read.
fn read(bad_ms: u64, seed: u64) -> f64 {
    let (mut connection, start) = Connection::greeted(&profile(bad_ms, seed));
    let read = connection.begin_read();
    connection.until_all_has_come(0, read);
    connection.now.since(start).as_secs_f64()
}

/// Returns the seconds for a megabyte up, as a file is written.
fn write(bad_ms: u64, seed: u64) -> f64 {
    write_over(&profile(bad_ms, seed))
}

fn write_over(profile: &Profile) -> f64 {
    let (mut connection, start) = Connection::greeted(profile);
    let write = connection.begin_write();
    connection.until_all_has_come(1, write);
    connection.now.since(start).as_secs_f64()
}

/// Returns the seconds for a megabyte up and one down at once.
fn both(bad_ms: u64, seed: u64) -> f64 {
    let (mut connection, start) = Connection::greeted(&profile(bad_ms, seed));
    let read = connection.begin_read();
    while !connection.ends[0].received.contains_key(&read) {
        connection.step();
    }
    let write = connection.begin_write();
    connection.until_all_has_come(0, read);
    connection.until_all_has_come(1, write);
    connection.now.since(start).as_secs_f64()
}

/// Returns the share of the link that a megabyte gets, on average.
fn share(takes: fn(u64, u64) -> f64, bad_ms: u64) -> f64 {
    const SEEDS: u64 = 40;
    MEGABYTE as f64 / RATE / ((0..SEEDS).map(|seed| takes(bad_ms, seed)).sum::<f64>() / SEEDS as f64)
}

#[test]
fn a_link_without_errors_is_full_and_bursts_cost_little_more_than_they_last() {
    // Full packets would get 0.965, 0.928 and 0.894. Without nudges it is 0.84 and 0.80 behind bursts.
    for (bad_ms, least) in [(0, 0.94), (40, 0.87), (80, 0.815)] {
        for (what, takes) in [("read", read as fn(u64, u64) -> f64), ("write", write)] {
            let share = share(takes, bad_ms);
            println!("{bad_ms} ms, {what}: {share:.3}");
            assert!(share >= least, "{bad_ms} ms, {what}: {share:.3}");
        }
    }
}

#[test]
fn both_directions_at_once_have_most_of_the_link_each() {
    let share = share(both, 0);
    println!("both: {share:.3}");
    assert!(share >= 0.75, "{share:.3}");
}

#[test]
fn frames_fill_packets_at_every_rate() {
    for kb_per_s in [64, 100, 150, 200, 300, 450, 1000] {
        let takes = write_over(&Profile::steady(kb_per_s * 1000, Duration::from_millis(4)));
        let share = MEGABYTE as f64 / (kb_per_s * 1000) as f64 / takes;
        // Full packets get 0.965; at 150 KB/s a frame of 10 ms is a packet and a little: 0.917.
        println!("{kb_per_s} KB/s: {share:.3}");
        assert!(share >= 0.93, "{kb_per_s} KB/s: {share:.3}");
    }
}
