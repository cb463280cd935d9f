//! Files on their way in blocks: what is sent, lost, answered and sent again, by all clients at once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use mafs_arpc::link::{Cell, Profile};
use mafs_proto::Instant;

use super::caller::Caller;
use super::network::{Cells, Links, Message, Network, Way};
use super::{Client, Operation};

/// How often timeouts are looked for.
const TICK: Duration = Duration::from_millis(100);

/// Result of a transfer.
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
    let caller = Caller::new(*client, operation, file_bytes);
    let mut transfer = Transfer::new(vec![caller], Links::new(profile.links(START)));
    transfer.run(START + limit);
    transfer.done[0]
}

/// Transfers a file of `file_bytes` for each of the stations around a base station, all at once: `cells` are the two
/// directions, `up` first, whose time begins at 0. `None` for a station that takes longer than `limit`.
#[must_use]
pub fn transfer_all(
    client: &Client,
    operation: Operation,
    file_bytes: u64,
    (stations, cells): (usize, [Cell; 2]),
    limit: Duration,
) -> Vec<Option<Transferred>> {
    let callers = (0..stations).map(|_| Caller::new(*client, operation, file_bytes)).collect();
    let mut transfer = Transfer::new(callers, Cells::new(cells));
    transfer.run(START + limit);
    transfer.done
}

const START: Instant = Instant(0);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// The server has done what a call asks for.
    Done { caller: usize, block: u64 },
    /// A whole reply has come.
    Answered { caller: usize, block: u64 },
    /// A client's host can begin another block.
    Ready { caller: usize },
    /// Timeouts are looked for.
    Tick,
}

/// Events to come, in the order of time and, at one time, of entry.
#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    entered: u64,
}

impl Events {
    pub(super) fn add(&mut self, at: Instant, event: Event) {
        self.entered += 1;
        self.heap.push(Reverse((at, self.entered, event)));
    }

    fn next(&mut self) -> Option<(Instant, Event)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }

    fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }
}

struct Transfer<N> {
    callers: Vec<Caller>,
    network: N,
    events: Events,
    done: Vec<Option<Transferred>>,
}

impl<N: Network> Transfer<N> {
    fn new(callers: Vec<Caller>, network: N) -> Self {
        let done = vec![None; callers.len()];
        Self { callers, network, events: Events::default(), done }
    }

    fn run(&mut self, end: Instant) {
        (0..self.callers.len()).for_each(|caller| self.begin_calls(caller, START));
        self.events.add(START + TICK, Event::Tick);
        while self.done.contains(&None) {
            while let Some(at) = self.network.next_at().filter(|at| Some(*at) <= self.events.next_at()) {
                self.network.advance(at, &mut self.events);
            }
            let Some((now, event)) = self.events.next().filter(|(now, _)| *now <= end) else { return };
            match event {
                Event::Done { caller, block } => self.reply(caller, block, now),
                Event::Answered { caller, block } => self.take(caller, block, now),
                Event::Ready { caller } => self.begin_calls(caller, now),
                Event::Tick => {
                    (0..self.callers.len()).for_each(|caller| self.repeat_late_calls(caller, now));
                    self.events.add(now + TICK, Event::Tick);
                }
            }
        }
    }

    fn begin_calls(&mut self, caller: usize, now: Instant) {
        while let Some(block) = self.callers[caller].begin(now) {
            self.call(caller, block, now);
        }
    }

    fn call(&mut self, caller: usize, block: u64, now: Instant) {
        let bytes = self.callers[caller].call_bytes();
        let after = self.callers[caller].client().server;
        let message = Message { station: caller, way: Way::Up, bytes, after, then: Event::Done { caller, block } };
        self.network.send(message, now, &mut self.events);
    }

    fn reply(&mut self, caller: usize, block: u64, now: Instant) {
        let bytes = self.callers[caller].reply_bytes();
        let then = Event::Answered { caller, block };
        let message = Message { station: caller, way: Way::Down, bytes, after: Duration::ZERO, then };
        self.network.send(message, now, &mut self.events);
    }

    fn take(&mut self, caller: usize, block: u64, now: Instant) {
        let Some(ready) = self.callers[caller].take(block, now) else { return };
        self.events.add(ready, Event::Ready { caller });
        if self.callers[caller].is_done() {
            let repeated = self.callers[caller].repeated();
            self.done[caller] = Some(Transferred { took: now.since(START), repeated });
        }
    }

    fn repeat_late_calls(&mut self, caller: usize, now: Instant) {
        for block in self.callers[caller].waiting() {
            if self.callers[caller].repeat_if_late(block, now) {
                self.call(caller, block, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mafs_arpc::link::arq::Settings;
    use mafs_arpc::link::{Periods, Receiver};

    use super::*;
    use crate::nfs::Backoff;
    use crate::nfs::caller::{CALL_BYTES, REPLY_BYTES};
    use crate::nfs::network::{IP_BYTES, UDP_BYTES};

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

    /// The times of transfers of 1 MB for each station at a base station, in seconds.
    fn at_a_base_station(
        client: &Client,
        operation: Operation,
        link: &Profile,
        channels: &[Option<Periods>],
        arq: bool,
    ) -> Vec<f64> {
        let cells = link.cells(channels, arq.then(Settings::default), START);
        let done = transfer_all(client, operation, 16 * FILE_BYTES, (channels.len(), cells), LIMIT);
        done.into_iter().map(|done| done.unwrap().took.as_secs_f64()).collect()
    }

    #[test]
    fn stations_at_a_base_station_share_the_line_alike() {
        let client = Client { calls: 2, host: Duration::ZERO, ..CLIENT };
        for stations in [1, 2, 8] {
            let took = at_a_base_station(&client, Operation::Write, &clean(), &vec![None; stations], true);
            let bytes = CALL_BYTES + 4096 + UDP_BYTES + 3 * IP_BYTES;
            let line = bytes as f64 * 256.0 * stations as f64 / 125_000.0;
            assert!(
                took.iter().all(|took| (0.95 * line..1.02 * line + 0.1).contains(took)),
                "{took:?}, the line {line}"
            );
        }
    }

    /// The papers have two stations (000, Tables 8 and 9): 43 % less for reads and writes at 80 ms.
    #[test]
    fn both_changes_take_a_third_of_the_time_and_more_off_two_stations() {
        let changed = Client { calls: 8, host: Duration::from_millis(30), server: Duration::from_millis(30), ..CLIENT };
        let unchanged = Client { backoff: Backoff::Exponential, ..changed };
        let channels = vec![Some(Periods::Random { good: Duration::from_secs(1), bad: Duration::from_millis(80) }); 2];
        for operation in [Operation::Read, Operation::Write] {
            let all = |client: &Client, arq| {
                let took = |seed| {
                    let mut link = Profile::burst_errors(Duration::ZERO, seed);
                    // Drivers' queues hold one block of 8 KB, and mobile hosts are slow.
                    link.up.queue_bytes = 8500;
                    link.down.queue_bytes = 8500;
                    link.down.receiver = Some(Receiver { buffer_bytes: 6000, bytes_per_s: 60_000 });
                    at_a_base_station(client, operation, &link, &channels, arq)
                };
                (1..=10).flat_map(took).sum::<f64>()
            };
            let (with, without) = (all(&changed, true), all(&unchanged, false));
            assert!(with < 0.66 * without, "{operation:?}: {with} s in place of {without}");
        }
    }
}
