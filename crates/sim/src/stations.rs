//! Stations around a base station that always have something to get, and share the air.

use std::time::Duration;

use mafs_arpc::link::arq::{Sequence, Settings, Station};
use mafs_arpc::link::{Cell, PACKET_BYTES, Periods, Profile};
use mafs_proto::Instant;

/// A station's window: so many packets are under way at most.
const WINDOW: u64 = 8;
/// A station that gets nothing for so long is sent everything again. All of a window has been given up by then: each
/// packet takes 0.6 s, one behind the other.
const PATIENCE: Duration = Duration::from_secs(8);
const START: Instant = Instant(0);

/// Counts the full packets that each station has got after `time` from a base station at 1 Mbit/s (papers 000 and 001).
/// Windows are kept full. There are as many stations as channels, each with bad periods of its own.
#[must_use]
pub fn saturate(channels: &[Option<Periods>], retransmission: Option<Settings>, time: Duration, seed: u64) -> Vec<u32> {
    let [_, mut cell] = Profile::burst_errors(Duration::ZERO, seed).cells(channels, retransmission, START);
    let mut got = vec![0; channels.len()];
    let mut windows = vec![Window::default(); channels.len()];
    let mut now = START;
    while now < START + time {
        let mut widened = true;
        while widened {
            widened = false;
            for (station, window) in windows.iter_mut().enumerate() {
                widened |= window.widen(&mut cell, Station(station), now);
            }
        }
        let patience = windows.iter().map(|window| window.patient_until).min();
        let Some(next) = [cell.poll_timeout(), patience].into_iter().flatten().min() else { break };
        now = next;
        cell.handle_timeout(now);
        while let Some(arrival) = cell.poll_arrival(now) {
            got[arrival.station.0] += 1;
            windows[arrival.station.0].arrived(arrival.sequence, now);
        }
    }
    got
}

/// The packets of a station that are under way: those offered behind the last that has arrived.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    next: u64,
    settled: u64,
    /// The time from which all of them count as lost.
    patient_until: Instant,
}

impl Window {
    /// Offers one more packet if there is room. Returns true if there may be more.
    fn widen(&mut self, cell: &mut Cell, station: Station, now: Instant) -> bool {
        if self.patient_until <= now {
            *self = Self { settled: self.next, patient_until: now + PATIENCE, ..*self };
        }
        let offered = self.next < self.settled + WINDOW && cell.offer(station, PACKET_BYTES, now).is_ok();
        self.next += u64::from(offered);
        offered
    }

    fn arrived(&mut self, sequence: Sequence, now: Instant) {
        *self = Self { settled: sequence.0 + 1, patient_until: now + PATIENCE, ..*self };
    }
}

#[cfg(test)]
mod tests {
    use mafs_arpc::link::arq::Queues;

    use super::*;

    const TIME: Duration = Duration::from_secs(60);

    fn bursts(bad_ms: u64) -> Option<Periods> {
        Some(Periods::Random { good: Duration::from_secs(1), bad: Duration::from_millis(bad_ms) })
    }

    #[test]
    fn two_and_eight_stations_each_get_their_share() {
        for (stations, bad_ms) in [(2, 0), (2, 80), (2, 160), (8, 80), (8, 160)] {
            for seed in 1..=3 {
                let got = saturate(&vec![bursts(bad_ms); stations], Some(Settings::default()), TIME, seed);
                let all = f64::from(got.iter().sum::<u32>());
                let shares = got.iter().map(|got| f64::from(*got) * stations as f64 / all);
                let furthest = shares.map(|share| (share - 1.0).abs()).fold(0.0, f64::max);
                assert!(furthest <= 0.05, "{stations} stations, {bad_ms} ms: {got:?}");
                // The line carries 83.3 packets in a second.
                let used = all / (TIME.as_secs_f64() * 125_000.0 / 1500.0);
                assert!(used > 0.9, "{stations} stations, {bad_ms} ms: {used}");
            }
        }
    }

    #[test]
    fn one_bad_channel_slows_no_other_but_in_a_shared_queue() {
        for stations in [2, 8] {
            let slowest_other = |channels: &[Option<Periods>], queues| {
                let got = saturate(channels, Some(Settings::default().with_queues(queues)), TIME, 7);
                f64::from(got[1..].iter().copied().min().unwrap())
            };
            let good = vec![None; stations];
            for worst in [bursts(160), bursts(1000), Some(Periods::always_bad())] {
                let one_bad: Vec<_> = std::iter::once(worst.clone()).chain(good[1..].to_vec()).collect();
                let left = |queues| slowest_other(&one_bad, queues) / slowest_other(&good, queues);
                assert!(left(Queues::PerStation) >= 0.95, "{stations} stations, {worst:?}");
                let held_up = left(Queues::Shared);
                assert!(held_up < 0.95, "{stations} stations, {worst:?}: {held_up}");
            }
        }
    }
}
