//! Link-level retransmission between two ends: the protocol of [`super::arq`] with one station.
//!
//! No other station has a turn, so later offers change nothing, and the fate of a packet is known at once, as on any
//! other link.

use mafs_proto::Instant;

use super::air::{Air, Spoiled};
use super::arq::{Receiver, Sender, Settings, Station};
use super::channel::Sent;
use super::rate::Line;

const STATION: Station = Station(0);

/// Both ends of one direction.
#[derive(Debug)]
pub(super) struct Hop {
    sender: Sender,
    receiver: Receiver,
    /// The time at which the last packet was done.
    free_at: Instant,
}

impl Default for Hop {
    /// Makes a hop without a bound of its own: the queue before the link bounds the waiting bytes.
    fn default() -> Self {
        let settings = Settings::default().with_queue_bytes(u64::MAX);
        Self { sender: Sender::new(1, settings), receiver: Receiver::new(STATION), free_at: Instant(0) }
    }
}

impl Hop {
    /// Sends a packet until it is acknowledged or given up.
    pub(super) fn send(
        &mut self,
        air: &mut Air,
        line: &mut Line,
        bytes: u64,
        ready: Instant,
        mut room_bytes: impl FnMut(Instant) -> u64,
    ) -> Sent {
        // The queue is empty and has no limit.
        let _ = self.sender.offer(STATION, bytes);
        let mut now = ready.max(self.free_at);
        let mut crossed = None;
        let mut spoiled = Spoiled { good_at: now };
        loop {
            let Some(frame) = self.sender.poll_transmit(now) else {
                let Some(probe_at) = self.sender.poll_timeout() else { break };
                now = now.max(probe_at);
                continue;
            };
            let exchange = air.exchange(frame, line, &mut self.receiver, &mut room_bytes, now);
            now = exchange.over_at;
            crossed = crossed.or(exchange.brought_at);
            spoiled = exchange.spoiled.unwrap_or(Spoiled { good_at: now });
            let _ = match exchange.answer {
                Some(answer) => self.sender.handle_answer(answer),
                None => self.sender.handle_silence(now),
            };
        }
        self.free_at = now;
        Sent { left: now, fate: crossed.ok_or(spoiled) }
    }
}
