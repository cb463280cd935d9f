//! Tests of a link whose hardware runs the protocol of retransmission, beside one that holds lost packets.

use mafs_proto::Instant;

use super::{START, direction, ms, profile, secs};
use crate::link::{Direction, Dropped, Link, Periods, Profile, Rate, Receiver, Retransmission};

fn with(retransmission: Retransmission, profile: Profile) -> Profile {
    Profile { retransmission: Some(retransmission), ..profile }
}

/// Offers full packets for half a minute as soon as there is room, and returns the share of the papers' 1 Mbit/s that
/// arrives.
fn share(link: &mut Link) -> f64 {
    let (mut now, mut bytes) = (START, 0);
    while now < START + secs(30) {
        match link.offer(1500, now) {
            Ok(_) => bytes += 1500,
            Err(Dropped::QueueFull) => now = now + ms(1),
            Err(lost) => panic!("{lost:?}"),
        }
    }
    f64::from(bytes) / 30.0 / 125_000.0
}

#[test]
fn link_with_the_protocol_loses_nothing_in_bursts_and_keeps_the_order() {
    let [mut link, _] = with(Retransmission::Arq, Profile::burst_errors(ms(160), 5)).links(START);
    let arrivals: Vec<Instant> =
        (0..5000).map(|number| link.offer(1000, START + ms(20 * number)).expect("nothing is lost")).collect();
    assert!(arrivals.is_sorted());
}

#[test]
fn protocol_carries_nearly_what_the_ideal_does() {
    for bad_ms in [0, 40, 80, 160] {
        let of = |retransmission| {
            let shares = (1..=5).map(|seed| {
                let [mut link, _] = with(retransmission, Profile::burst_errors(ms(bad_ms), seed)).links(START);
                share(&mut link)
            });
            shares.sum::<f64>() / 5.0
        };
        let (hold, arq) = (of(Retransmission::Hold), of(Retransmission::Arq));
        assert!(arq < hold && arq > 0.965 * hold, "{bad_ms} ms: {arq} of {hold}");
    }
}

#[test]
fn an_exchange_takes_the_air_for_its_packet_and_its_acknowledgement() {
    let [mut link, _] = with(Retransmission::Arq, profile(&direction(Rate::constant(100_000), ms(7)))).links(START);
    let exchange = std::time::Duration::from_micros(10_000 + 140 + 10);
    for number in 0..10 {
        assert_eq!(link.offer(1000, START), Ok(START + exchange * number + ms(10 + 7)));
    }
    assert_eq!(link.queued_bytes(START + exchange * 4), 6000);
}

#[test]
fn a_link_that_is_down_costs_each_packet_the_time_of_its_retries() {
    let mut down = with(Retransmission::Arq, Profile::burst_errors(ms(0), 1));
    down.outages = Some(Periods::Given(vec![(ms(0), secs(2))]));
    let [mut link, _] = down.links(START);
    assert_eq!(link.offer(1000, START), Err(Dropped::Lost));
    // 30 ms and 28 times 20 ms of waiting, with 33 frames: the first of 1000 bytes, the others probes.
    let given_up = |link: &mut Link, at| link.queued_bytes(START + at) == 0;
    assert!(!given_up(&mut link, ms(590)) && given_up(&mut link, ms(620)));
    let arrivals: Vec<_> = (0..5).map(|_| link.offer(1000, START + secs(1))).collect();
    assert_eq!(arrivals[0], Err(Dropped::Lost), "a silent station is asked every 20 ms, so 33 times until 1.66 s");
    let first = arrivals.iter().flatten().next().expect("what is there when the link is up arrives");
    assert!((ms(2000)..ms(2040)).contains(&first.since(START)), "{:?}", first.since(START));
    assert!(arrivals[1..].iter().all(Result::is_ok), "{arrivals:?}");
}

#[test]
fn what_overflows_the_receive_buffer_is_sent_again() {
    let receiver = Some(Receiver { buffer_bytes: 4500, bytes_per_s: 60_000 });
    let slow = profile(&Direction { receiver, ..direction(Rate::constant(125_000), ms(2)) });
    let arrived = |profile: &Profile| {
        let [mut link, _] = profile.links(START);
        let fates: Vec<_> = (0..20).map(|_| link.offer(1500, START)).collect();
        (fates.iter().flatten().count(), fates.iter().flatten().max().unwrap().since(START))
    };
    let (some, _) = arrived(&with(Retransmission::Hold, slow.clone()));
    assert!(some < 20, "{some}");
    let (all, last) = arrived(&with(Retransmission::Arq, slow));
    assert_eq!(all, 20);
    // The host takes 25 ms for each, and never waits.
    assert!((ms(500)..ms(520)).contains(&last), "{last:?}");
}

#[test]
fn answers_take_nothing_of_a_trace() {
    let trace = crate::link::Trace::new((1..=100).collect()).unwrap();
    let traced = profile(&direction(Rate::Trace(std::sync::Arc::new(trace)), ms(10)));
    let arrivals = |profile: &Profile| {
        let [mut link, _] = profile.links(START);
        (0..20).map(|_| link.offer(1500, START).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(arrivals(&with(Retransmission::Arq, traced.clone())), arrivals(&traced));
}

#[test]
fn stream_over_the_protocol_is_delayed_where_packets_are_sent_again() {
    let goodput = |retransmission| {
        let profile = Profile { retransmission, ..Profile::burst_errors(ms(80), 3) };
        let [mut up, _] = profile.streams(START);
        let mut now = START;
        for _ in 0..256 {
            now = up.writable_at(now);
            now = now.max(up.send(4096, now).map(|_| now).unwrap());
        }
        (1 << 20) as f64 / up.send(1, now).unwrap().since(START).as_secs_f64()
    };
    let (none, hold) = (goodput(None), goodput(Some(Retransmission::Hold)));
    let arq = goodput(Some(Retransmission::Arq));
    assert!(none < arq && arq < hold && arq > 0.96 * hold, "{none}, {arq}, {hold}");
}
