//! Stations that share a base station: when packets arrive, and which do not.

use std::time::Duration;

use mafs_proto::Instant;

use super::{START, ms, secs};
use crate::link::arq::{Refused, Settings, Station};
use crate::link::{Cell, PACKET_BYTES, Periods, Profile, Receiver};

fn bursts(bad: Duration) -> Option<Periods> {
    Some(Periods::Random { good: secs(1), bad })
}

/// Makes the papers' link, as seen from the base station.
fn cell(stations: &[Option<Periods>], retransmission: Option<Settings>, seed: u64) -> Cell {
    let [_, down] = Profile::burst_errors(Duration::ZERO, seed).cells(stations, retransmission, START);
    down
}

#[test]
fn cell_without_retransmission_loses_what_its_channels_spoil() {
    let lost = |retransmission| {
        let mut cell = cell(&[bursts(ms(80)), None], retransmission, 1);
        for (number, station) in (0..1000).flat_map(|number| [(number, Station(0)), (number, Station(1))]) {
            assert!(cell.offer(station, 1000, START + ms(20 * number)).is_ok());
        }
        cell.handle_timeout(START + secs(30));
        let mut arrived = [0, 0];
        while let Some(arrival) = cell.poll_arrival(START + secs(30)) {
            arrived[arrival.station.0] += 1;
        }
        arrived.map(|arrived| 1000 - arrived)
    };
    let [bad, good] = lost(None);
    assert!(bad > 30 && good == 0, "{bad} and {good}");
    assert_eq!(lost(Some(Settings::default())), [0, 0]);
}

#[test]
fn stations_have_channels_of_their_own_which_both_directions_share() {
    let cells = Profile::burst_errors(Duration::ZERO, 3).cells(&vec![bursts(ms(80)); 2], None, START);
    let arrived = cells.map(|mut cell| {
        let mut arrived = [Vec::new(), Vec::new()];
        for (number, station) in (0..2000).flat_map(|number| [(number, Station(0)), (number, Station(1))]) {
            assert!(cell.offer(station, 1, START + ms(10 * number)).is_ok());
        }
        cell.handle_timeout(START + secs(60));
        while let Some(arrival) = cell.poll_arrival(START + secs(60)) {
            arrived[arrival.station.0].push(arrival.sequence);
        }
        arrived
    });
    assert_eq!(arrived[0], arrived[1]);
    assert_ne!(arrived[0][0], arrived[0][1]);
    assert!(arrived[0].iter().all(|station| station.len() < 2000));
}

#[test]
fn packets_arrive_in_turns_each_when_it_has_crossed_and_travelled() {
    let mut cell = cell(&[None, None], Some(Settings::default()), 1);
    for station in [0, 0, 1] {
        cell.offer(Station(station), PACKET_BYTES, START).unwrap();
    }
    // A packet takes 12 ms of the air, turning round 10 µs and an acknowledgement of 14 bytes 112, and the way 2 ms.
    let first = START + ms(12 + 2);
    let exchange = Duration::from_micros(12_000 + 10 + 112);
    assert_eq!(cell.poll_timeout(), Some(START + exchange));
    cell.handle_timeout(first);
    assert_eq!(cell.poll_arrival(Instant(first.0 - 1)), None);
    cell.handle_timeout(START + secs(1));
    let arrived: Vec<_> = std::iter::from_fn(|| cell.poll_arrival(START + secs(1)))
        .map(|arrival| (arrival.station.0, arrival.sequence.0, arrival.at))
        .collect();
    assert_eq!(arrived, [(0, 0, first), (1, 0, first + exchange), (0, 1, first + exchange * 2)]);
    assert_eq!(cell.poll_timeout(), None);
}

#[test]
fn hosts_that_are_too_slow_get_all_of_it_by_retransmission() {
    let mut profile = Profile::burst_errors(Duration::ZERO, 1);
    profile.down.receiver = Some(Receiver { buffer_bytes: 4500, bytes_per_s: 30_000 });
    let arrived = |retransmission| {
        let [_, mut cell] = profile.cells(&[None, None], retransmission, START);
        for number in 0..40 {
            cell.offer(Station(number % 2), PACKET_BYTES, START).unwrap();
        }
        cell.handle_timeout(START + secs(5));
        std::iter::from_fn(|| cell.poll_arrival(START + secs(5))).count()
    };
    assert_eq!(arrived(Some(Settings::default())), 40);
    assert!(arrived(None) < 30);
}

#[test]
fn queues_of_a_cell_are_bounded_and_have_the_links_size() {
    let mut cell = cell(&[None, None], Some(Settings::default()), 1);
    let taken = (0..100).filter(|_| cell.offer(Station(0), 1500, START).is_ok()).count();
    assert_eq!(taken, 64 * 1024 / 1500);
    assert_eq!(cell.offer(Station(0), 1500, START), Err(Refused::QueueFull));
    assert!(cell.offer(Station(1), 1500, START).is_ok());
    assert_eq!(cell.offer(Station(2), 1500, START), Err(Refused::UnknownStation));
}

#[test]
fn without_retransmission_stations_have_queues_of_their_own_and_the_base_station_has_one() {
    let [mut up, mut down] = Profile::burst_errors(Duration::ZERO, 1).cells(&[None, None], None, START);
    let taken =
        |cell: &mut Cell, station| (0..100).filter(|_| cell.offer(Station(station), 1500, START).is_ok()).count();
    let one = 64 * 1024 / 1500;
    assert_eq!((taken(&mut up, 0), taken(&mut up, 1)), (one, one));
    assert_eq!((taken(&mut down, 0), taken(&mut down, 1)), (2 * 64 * 1024 / 1500, 0));
}
