//! The air spoils a packet, or a frame or its answer, or lets it through.

use std::time::Duration;

use mafs_proto::{Instant, Random};

use super::arq::{ANSWER_BYTES, Answer, Frame, Receiver};
use super::periods::BadPeriods;
use super::rate::{Line, OnAir};
use super::{Periods, Profile};

const MILLION: u64 = 1_000_000;
/// A station answers so long after the end of a frame: 802.11's short space between frames.
const TURNAROUND: Duration = Duration::from_micros(10);

/// The air of one direction. The other direction has the same bursts and outages: both follow from one seed.
#[derive(Debug)]
pub(super) struct Air {
    loss_ppm: u32,
    random: Random,
    bad: Vec<BadPeriods>,
}

/// A loss: the air is good again at `good_at`, which may be while the packet is still on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spoiled {
    pub(super) good_at: Instant,
}

/// A frame and its answer on the air. The outcome is known when the frame is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    /// The time at which the answer has come or is known not to come, and the air is free.
    pub(super) over_at: Instant,
    /// The time at which the station had a packet by it that it had not had before.
    pub(super) brought_at: Option<Instant>,
    /// The answer that the sender hears.
    pub(super) answer: Option<Answer>,
    /// The loss of the frame or of the answer. A frame that nothing spoiled and that is not answered found no room.
    pub(super) spoiled: Option<Spoiled>,
}

impl Air {
    /// Makes the air of both directions of a link, for one of the connections that have it one after the other: they
    /// see the same bursts and outages, and lose other packets by chance.
    pub(super) fn both(profile: &Profile, connection: u64) -> [Self; 2] {
        let mut seeds = Random::new(profile.seed);
        let (bursts, outages) = (seeds.number(), seeds.number());
        let bad = |periods: &Option<Periods>, seed| periods.as_ref().map(|periods| BadPeriods::new(periods, seed));
        [&profile.up, &profile.down].map(|direction| Self {
            loss_ppm: direction.loss_ppm,
            random: Random::new(seeds.number().wrapping_add(connection)),
            bad: [bad(&profile.bursts, bursts), bad(&profile.outages, outages)].into_iter().flatten().collect(),
        })
    }

    /// Says whether a packet on the air at that time gets through. Call this in order of time.
    pub(super) fn cross(&mut self, on_air: OnAir) -> Result<(), Spoiled> {
        let unlucky = self.random.below(MILLION) < u64::from(self.loss_ppm);
        let bad = self.bad.iter_mut().filter_map(|bad| bad.end_of_one_between(on_air.from, on_air.to)).max();
        match bad.or(unlucky.then_some(on_air.to)) {
            None => Ok(()),
            Some(good_at) => Err(Spoiled { good_at }),
        }
    }

    /// Sends a frame over a line at `ready`, and its answer back. `room_bytes` says how much the station can hold at a
    /// time.
    pub(super) fn exchange(
        &mut self,
        frame: Frame,
        line: &mut Line,
        receiver: &mut Receiver,
        room_bytes: impl FnOnce(Instant) -> u64,
        ready: Instant,
    ) -> Exchange {
        let out = line.carry(frame.air_bytes(), ready);
        let crossed = self.cross(out);
        let heard = crossed.ok().and_then(|()| receiver.handle_frame(frame, room_bytes(out.to)));
        // The sender listens for as long as an answer takes, whether there is one or not.
        let back = line.carry_answer(ANSWER_BYTES, out.to + TURNAROUND);
        let answer = heard.map(|heard| self.cross(back).map(|()| heard.answer));
        Exchange {
            over_at: back.to,
            brought_at: heard.filter(|heard| heard.is_new).map(|_| out.to),
            answer: answer.and_then(Result::ok),
            spoiled: crossed.err().or(answer.and_then(Result::err)),
        }
    }
}
