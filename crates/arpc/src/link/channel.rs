//! What can happen to a packet on the air.

use std::time::Duration;

use mafs_proto::{Instant, Random};

use super::periods::BadPeriods;
use super::rate::{Line, OnAir};
use super::{Profile, Retransmission};

const MILLION: u64 = 1_000_000;
/// How often a link sends a packet again before it gives up, and how long it holds one.
const REPETITIONS_MAX: u32 = 32;
const HOLD_MAX: Duration = Duration::from_secs(10);

/// The air of one direction. Its bursts and outages are those of the other direction too: both follow from one seed.
#[derive(Debug)]
pub(super) struct Channel {
    loss_ppm: u32,
    random: Random,
    bad: Vec<BadPeriods>,
    retransmission: Option<Retransmission>,
}

/// A packet is lost. What spoiled it is over at `good_at`, which may be while it is still on the air.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spoiled {
    pub(super) good_at: Instant,
}

impl Channel {
    /// The air of both directions of a link, for one of the connections that have it one after the other: they see the
    /// same bursts and outages, and lose other packets by chance.
    pub(super) fn both(profile: &Profile, connection: u64) -> [Self; 2] {
        let mut seeds = Random::new(profile.seed);
        let (bursts, outages) = (seeds.number(), seeds.number());
        [&profile.up, &profile.down].map(|direction| Self {
            loss_ppm: direction.loss_ppm,
            random: Random::new(seeds.number().wrapping_add(connection)),
            bad: [(&profile.bursts, bursts), (&profile.outages, outages)]
                .into_iter()
                .filter_map(|(periods, seed)| periods.as_ref().map(|periods| BadPeriods::new(periods, seed)))
                .collect(),
            retransmission: profile.retransmission,
        })
    }

    /// Sends over a line what is `ready`, again and again if the link does that. Returns when it was on the air last,
    /// and whether it has crossed then. Asked in order of time.
    pub(super) fn send(&mut self, line: &mut Line, bytes: u64, ready: Instant) -> (OnAir, Result<(), Spoiled>) {
        let repetitions = match self.retransmission {
            None => 0,
            Some(Retransmission::Hold) => REPETITIONS_MAX,
        };
        let mut air = line.carry(bytes, ready);
        let until = air.from + HOLD_MAX;
        let mut fate = self.cross(air);
        for _ in 0..repetitions {
            let Err(spoiled) = fate else { break };
            if spoiled.good_at > until {
                break;
            }
            air = line.carry(bytes, spoiled.good_at);
            fate = self.cross(air);
        }
        (air, fate)
    }

    fn cross(&mut self, air: OnAir) -> Result<(), Spoiled> {
        let unlucky = self.random.below(MILLION) < u64::from(self.loss_ppm);
        let bad = self.bad.iter_mut().filter_map(|bad| bad.end_of_one_between(air.from, air.to)).max();
        match bad.or(unlucky.then_some(air.to)) {
            None => Ok(()),
            Some(good_at) => Err(Spoiled { good_at }),
        }
    }
}
