//! A file's way in blocks: what is sent, lost, answered and sent again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use mafs_arpc::link::{Link, PACKET_BYTES, Profile};
use mafs_proto::Instant;

use super::timer::Timer;
use super::{Client, Operation};

/// The headers of IP and UDP (RFC 791, RFC 768).
const IP_BYTES: u64 = 20;
const UDP_BYTES: u64 = 8;
/// The bytes of a call and a reply besides the block: RPC's header, the file's handle or attributes (RFC 1094).
const CALL_BYTES: u64 = 144;
const REPLY_BYTES: u64 = 112;
/// How often timeouts are looked for.
const TICK: Duration = Duration::from_millis(100);

/// How a transfer went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transferred {
    /// From the first call to the last reply.
    pub took: Duration,
    /// Calls that were sent again.
    pub repeated: u64,
}

/// Transfers a file of `file_bytes` over a link. `None` if that takes longer than `limit`.
#[must_use]
pub fn transfer(
    client: &Client,
    operation: Operation,
    file_bytes: u64,
    profile: &Profile,
    limit: Duration,
) -> Option<Transferred> {
    let [up, down] = profile.links(START);
    let mut transfer = Transfer {
        client: *client,
        operation,
        blocks: file_bytes.div_ceil(client.block_bytes),
        up,
        down,
        timer: Timer::new(client.backoff),
        host_free: START,
        begun: 0,
        waiting: BTreeMap::new(),
        events: Events::default(),
        repeated: 0,
    };
    transfer.run(START + limit)
}

const START: Instant = Instant(0);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// The server has done what a call asks for.
    Done { block: u64 },
    /// A whole reply has come.
    Answered { block: u64 },
    /// The client's host can begin another block.
    Ready,
    /// Timeouts are looked for.
    Tick,
}

/// Events to come, in the order of time and, at one time, of entry.
#[derive(Debug, Default)]
struct Events {
    heap: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    entered: u64,
}

impl Events {
    fn add(&mut self, at: Instant, event: Event) {
        self.entered += 1;
        self.heap.push(Reverse((at, self.entered, event)));
    }

    fn next(&mut self) -> Option<(Instant, Event)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

struct Transfer {
    client: Client,
    operation: Operation,
    blocks: u64,
    up: Link,
    down: Link,
    timer: Timer,
    host_free: Instant,
    /// Blocks that have been called for.
    begun: u64,
    /// Blocks without a reply, and when each was called for last.
    waiting: BTreeMap<u64, Instant>,
    events: Events,
    repeated: u64,
}

impl Transfer {
    fn run(&mut self, end: Instant) -> Option<Transferred> {
        self.begin_calls(START);
        self.events.add(START + TICK, Event::Tick);
        while let Some((now, event)) = self.events.next().filter(|(now, _)| *now <= end) {
            match event {
                Event::Done { block } => self.reply(block, now),
                Event::Answered { block } => self.take(block, now),
                Event::Ready => self.begin_calls(now),
                Event::Tick => {
                    self.repeat_late_calls(now);
                    self.events.add(now + TICK, Event::Tick);
                }
            }
            if self.waiting.is_empty() && self.begun == self.blocks {
                let took = now.since(START);
                return Some(Transferred { took, repeated: self.repeated });
            }
        }
        None
    }

    fn begin_calls(&mut self, now: Instant) {
        while self.begun < self.blocks && self.waiting.len() < self.client.calls {
            let block = self.begun;
            self.begun += 1;
            self.call(block, now);
        }
    }

    fn call(&mut self, block: u64, now: Instant) {
        self.waiting.insert(block, now);
        let bytes = CALL_BYTES + if self.operation == Operation::Write { self.client.block_bytes } else { 0 };
        if let Some(arrived) = send(&mut self.up, bytes, now) {
            self.events.add(arrived + self.client.server, Event::Done { block });
        }
    }

    fn reply(&mut self, block: u64, now: Instant) {
        let bytes = REPLY_BYTES + if self.operation == Operation::Read { self.client.block_bytes } else { 0 };
        if let Some(arrived) = send(&mut self.down, bytes, now) {
            self.events.add(arrived, Event::Answered { block });
        }
    }

    fn take(&mut self, block: u64, now: Instant) {
        if self.waiting.remove(&block).is_some() {
            self.timer.answered();
            self.host_free = self.host_free.max(now) + self.client.host;
            self.events.add(self.host_free, Event::Ready);
        }
    }

    fn repeat_late_calls(&mut self, now: Instant) {
        let blocks: Vec<u64> = self.waiting.keys().copied().collect();
        for block in blocks {
            if now.since(self.waiting[&block]) >= self.timer.wait() {
                self.timer.timed_out();
                self.repeated += 1;
                self.call(block, now);
            }
        }
    }
}

/// Sends a datagram in fragments. Returns when all of it has arrived, if it does.
fn send(link: &mut Link, bytes: u64, now: Instant) -> Option<Instant> {
    let mut left = UDP_BYTES + bytes;
    let mut arrived = Some(now);
    while left > 0 {
        let part = left.min(PACKET_BYTES - IP_BYTES);
        left -= part;
        let at = link.offer(IP_BYTES + part, now).ok();
        arrived = at.filter(|_| arrived.is_some());
    }
    arrived
}

#[cfg(test)]
mod tests {
    use mafs_arpc::link::{Periods, Receiver};

    use super::*;
    use crate::nfs::Backoff;

    const FILE_BYTES: u64 = 64 * 1024;
    const LIMIT: Duration = Duration::from_secs(300);
    const CLIENT: Client = Client {
        block_bytes: 4096,
        calls: 1,
        backoff: Backoff::HybridLinear,
        host: Duration::from_millis(5),
        server: Duration::from_millis(10),
    };

    fn clean() -> Profile {
        Profile::burst_errors(Duration::ZERO, 1)
    }

    /// A link with one bad period.
    fn bad_once(good: Duration, bad: Duration) -> Profile {
        Profile { bursts: Some(Periods::Given(vec![(good, bad)])), ..clean() }
    }

    #[test]
    fn one_call_at_a_time_costs_what_each_part_of_it_costs() {
        let transferred = transfer(&CLIENT, Operation::Write, FILE_BYTES, &clean(), LIMIT).unwrap();
        // Three fragments up, one down, 4 ms both ways, the server and the host, but for the host's last work.
        let bytes = (CALL_BYTES + 4096 + UDP_BYTES + 3 * IP_BYTES) + (REPLY_BYTES + UDP_BYTES + IP_BYTES);
        let block = Duration::from_micros(bytes * 8) + Duration::from_millis(4 + 10 + 5);
        let expected = block * 16 - CLIENT.host;
        assert_eq!(transferred, Transferred { took: expected, repeated: 0 });
    }

    #[test]
    fn one_lost_fragment_costs_its_block_a_timeout() {
        // Only the second of the first block's three fragments is on the air then.
        let profile = bad_once(Duration::from_millis(15), Duration::from_millis(1));
        let without = transfer(&CLIENT, Operation::Write, FILE_BYTES, &clean(), LIMIT).unwrap();
        let with = transfer(&CLIENT, Operation::Write, FILE_BYTES, &profile, LIMIT).unwrap();
        assert_eq!(with.repeated, 1);
        assert_eq!(with.took, without.took + Duration::from_millis(700));
    }

    #[test]
    fn a_longer_outage_makes_exponential_waits_outlast_it() {
        let profile = bad_once(Duration::ZERO, Duration::from_millis(1500));
        let took = |backoff| {
            let client = Client { backoff, ..CLIENT };
            transfer(&client, Operation::Read, FILE_BYTES, &profile, LIMIT).unwrap().took
        };
        let (linear, exponential) = (took(Backoff::HybridLinear), took(Backoff::Exponential));
        assert_eq!(exponential - linear, Duration::from_millis(600), "the second wait is of 1400 ms in place of 800");
    }

    #[test]
    fn what_a_slow_adapter_drops_is_sent_again() {
        let mut profile = clean();
        profile.down.receiver = Some(Receiver { buffer_bytes: 4500, bytes_per_s: 60_000 });
        let one = transfer(&CLIENT, Operation::Read, FILE_BYTES, &profile, LIMIT).unwrap();
        let two = transfer(&Client { calls: 2, ..CLIENT }, Operation::Read, FILE_BYTES, &profile, LIMIT).unwrap();
        assert_eq!(one.repeated, 0);
        assert!(two.repeated > 0, "{two:?}");
    }

    #[test]
    fn what_takes_too_long_is_given_up() {
        let profile = Profile { bursts: Some(Periods::always_bad()), ..clean() };
        assert_eq!(transfer(&CLIENT, Operation::Read, FILE_BYTES, &profile, LIMIT), None);
    }
}
