//! One direction on the air: a packet crosses, at once or after repetitions, or is lost.

use std::time::Duration;

use mafs_proto::Instant;

use super::air::{Air, Spoiled};
use super::hop::Hop;
use super::rate::Line;
use super::{Profile, Retransmission};

/// A link that holds packets sends one again so often before it gives up, and holds it for so long.
const REPETITIONS_MAX: u32 = 32;
const HOLD_MAX: Duration = Duration::from_secs(10);

/// The air of one direction, and the way in which losses on it are made good.
#[derive(Debug)]
pub(super) struct Channel {
    air: Air,
    resending: Resending,
}

#[derive(Debug)]
enum Resending {
    Never,
    Hold,
    Arq(Box<Hop>),
}

/// A packet that was sent, and its fate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    /// The time at which the sender was done with it.
    pub(super) left: Instant,
    /// The time at which it had crossed, if it has.
    pub(super) fate: Result<Instant, Spoiled>,
}

impl Channel {
    /// Both directions of a link, for one of the connections that have it one after the other.
    pub(super) fn both(profile: &Profile, connection: u64) -> [Self; 2] {
        Air::both(profile, connection).map(|air| Self {
            air,
            resending: match profile.retransmission {
                None => Resending::Never,
                Some(Retransmission::Hold) => Resending::Hold,
                Some(Retransmission::Arq) => Resending::Arq(Box::default()),
            },
        })
    }

    /// Sends a packet that is `ready` over a line, again and again if the link repeats. `room_bytes` says how much the
    /// other end can hold at a time, which only a protocol cares for. Call this in order of time.
    pub(super) fn send(
        &mut self,
        line: &mut Line,
        bytes: u64,
        ready: Instant,
        room_bytes: impl FnMut(Instant) -> u64,
    ) -> Sent {
        match &mut self.resending {
            Resending::Never => hold(&mut self.air, line, bytes, ready, 0),
            Resending::Hold => hold(&mut self.air, line, bytes, ready, REPETITIONS_MAX),
            Resending::Arq(hop) => hop.send(&mut self.air, line, bytes, ready, room_bytes),
        }
    }
}

/// Sends a packet, and sends it again when the channel is good, so often at most.
fn hold(air: &mut Air, line: &mut Line, bytes: u64, ready: Instant, repetitions: u32) -> Sent {
    let mut on_air = line.carry(bytes, ready);
    let until = on_air.from + HOLD_MAX;
    let mut fate = air.cross(on_air);
    for _ in 0..repetitions {
        let Err(spoiled) = fate else { break };
        if spoiled.good_at > until {
            break;
        }
        on_air = line.carry(bytes, spoiled.good_at);
        fate = air.cross(on_air);
    }
    Sent { left: on_air.to, fate: fate.map(|()| on_air.to) }
}
