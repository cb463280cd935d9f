//! Tests that hold the link model to its parameters.
//!
//! Seeds are fixed, so statistical bounds (five standard deviations, unless said otherwise) cannot fail by chance.

mod arq;
mod bursts;
mod cell;
mod cellular;
mod loss;
mod profile;
mod queue;
mod rate;
mod robustness;
mod stream;
mod trace;
mod uplink;

use std::time::Duration;

use mafs_proto::Instant;

use super::{Direction, Dropped, Link, Profile, Rate};

/// The time at which the links under test begin: not at 0, so that a wrong origin shows.
const START: Instant = Instant(5_000_000_123);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Makes a lossless direction with a queue of 64 KB.
fn direction(rate: Rate, delay: Duration) -> Direction {
    Direction { rate, delay, queue_bytes: 65_536, loss_ppm: 0, receiver: None }
}

/// Makes a link that is the same both ways.
fn profile(direction: &Direction) -> Profile {
    Profile {
        up: direction.clone(),
        down: direction.clone(),
        bursts: None,
        outages: None,
        retransmission: None,
        seed: 1,
    }
}

fn link(direction: &Direction) -> Link {
    let [up, _] = profile(direction).links(START);
    up
}

/// Offers packets whenever there is room, tried every `step` for `time`. Returns when they arrive, since the start.
fn flood(link: &mut Link, packet_bytes: u64, step: Duration, time: Duration) -> Vec<Duration> {
    let mut arrivals = Vec::new();
    let mut now = START;
    while now < START + time {
        loop {
            match link.offer(packet_bytes, now) {
                Ok(arrival) => arrivals.push(arrival.since(START)),
                Err(Dropped::QueueFull) => break,
                Err(Dropped::Lost | Dropped::ReceiverFull) => {}
            }
        }
        now = now + step;
    }
    arrivals
}
