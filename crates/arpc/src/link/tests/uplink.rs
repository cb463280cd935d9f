//! Tests of one line before the way to each of several clients.

use super::{START, direction, ms, profile};
use crate::link::{Rate, Stream, Uplink};

/// Makes the streams to two clients, 10 times as fast as the uplink of 150 KB/s, with a queue of 15 KB, that they
/// share.
fn streams() -> (Uplink, [Stream; 2]) {
    let own = profile(&direction(Rate::constant(1_500_000), ms(20)));
    let uplink = Uplink::new(&Rate::constant(150_000), 15_000, START);
    let behind = |_| {
        let [_, down] = own.streams(START);
        down.behind(uplink.clone())
    };
    (uplink.clone(), [0, 1].map(behind))
}

#[test]
fn what_one_sends_waits_for_what_another_has_sent() {
    let (uplink, mut streams) = streams();
    // A segment with its headers is 1500 bytes: 10 ms on the uplink, 1 ms on the way behind it, 20 ms of delay.
    assert_eq!(streams[0].send(1448, START), Ok(START + ms(31)));
    assert_eq!(streams[1].send(1448, START), Ok(START + ms(41)));
    assert_eq!(streams[0].send(1448, START), Ok(START + ms(51)));
    assert_eq!(uplink.queued_bytes(START + ms(10)), 3000);
    assert_eq!(uplink.queued_bytes(START + ms(30)), 0);
}

#[test]
fn a_full_queue_makes_everybody_wait() {
    let (uplink, mut streams) = streams();
    streams[0].send(20 * 1448, START).unwrap();
    assert_eq!(uplink.queued_bytes(START), 30_000);
    assert_eq!(streams.each_mut().map(|stream| stream.writable_at(START)), [START + ms(100); 2]);
}

#[test]
fn a_client_on_a_slow_way_keeps_the_uplink_for_no_longer_than_its_bytes_take() {
    let (uplink, mut streams) = streams();
    let [_, slow] = profile(&direction(Rate::constant(1500), ms(20))).streams(START);
    // Ten segments, of which each takes 1 s behind the uplink.
    slow.behind(uplink).send(10 * 1448, START).unwrap();
    assert_eq!(streams[0].send(1448, START), Ok(START + ms(110 + 21)));
}
