//! Tests of traces: their text, and links that use them.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{START, direction, flood, link, ms};
use crate::link::{Link, Rate, Trace, TraceError};

fn times() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(0..30_u32, 1..60).prop_map(|gaps| {
        let times = gaps.iter().scan(0, |at, gap| {
            *at += gap;
            Some(*at)
        });
        let mut times: Vec<u32> = times.collect();
        if times.last() == Some(&0) {
            times.push(1);
        }
        times
    })
}

fn link_of(at_ms: &[u32]) -> Link {
    link(&direction(Rate::Trace(Arc::new(Trace::new(at_ms.to_vec()).unwrap())), ms(0)))
}

/// Returns when the opportunities of three laps come, but for those too early for a packet to wait.
fn three_laps(at_ms: &[u32]) -> Vec<Duration> {
    let length = at_ms[at_ms.len() - 1];
    let laps = (0..3).flat_map(|lap| at_ms.iter().map(move |at| lap * length + at));
    laps.filter(|at| *at > 0).map(|at| ms(u64::from(at))).collect()
}

proptest! {
    #[test]
    fn every_opportunity_is_used_and_no_other_time(at_ms in times()) {
        let length = u64::from(at_ms[at_ms.len() - 1]);
        let arrivals = flood(&mut link_of(&at_ms), 1500, ms(1), ms(3 * length));
        let wanted = three_laps(&at_ms);
        prop_assert!(arrivals.len() >= wanted.len());
        prop_assert_eq!(&arrivals[..wanted.len()], &wanted[..]);
    }

    /// Compares the arrivals of packets that come now and then: each takes the first opportunity behind it that is
    /// left.
    #[test]
    fn idle_opportunities_are_gone(at_ms in times(), gaps_us in proptest::collection::vec(0..200_000_u64, 1..50)) {
        let mut link = link_of(&at_ms);
        let length = u64::from(at_ms[at_ms.len() - 1]);
        let mut left = (0..).flat_map(|lap| at_ms.iter().map(move |at| ms(lap * length + u64::from(*at))));
        let mut now = Duration::ZERO;
        for gap in gaps_us {
            now += Duration::from_micros(gap);
            let Ok(arrival) = link.offer(1500, START + now) else { continue };
            prop_assert_eq!(Some(arrival.since(START)), left.find(|at| *at > now));
        }
    }

    #[test]
    fn text_of_a_trace_is_that_trace(at_ms in times()) {
        let trace = Trace::new(at_ms).unwrap();
        prop_assert_eq!(Trace::parse(trace.to_string().as_bytes()), Ok(trace));
    }

    #[test]
    fn arbitrary_bytes_are_a_good_trace_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        assert_good_or_short_error(&bytes);
    }

    #[test]
    fn almost_traces_are_a_good_trace_or_an_error(text in "([0-9]{1,11}\n|[0-9]{1,2}\n| |-|\r\n){0,40}") {
        assert_good_or_short_error(text.as_bytes());
    }
}

fn assert_good_or_short_error(bytes: &[u8]) {
    match Trace::parse(bytes) {
        Ok(trace) => {
            assert!(trace.at_ms().is_sorted() && trace.length_ms() > 0);
            assert!(trace.at_ms().len() <= bytes.len());
        }
        Err(error) => assert!(error.to_string().len() < 400, "{error}"),
    }
}

#[test]
fn small_packets_share_an_opportunity_and_large_ones_take_several() {
    let mut link = link_of(&[10, 20, 30, 40]);
    let arrivals = [500, 500, 500, 200, 3000].map(|bytes| link.offer(bytes, START).unwrap().since(START));
    assert_eq!(arrivals, [10, 10, 10, 20, 40].map(ms));
}

#[test]
fn rest_of_an_opportunity_is_not_for_what_comes_later() {
    let mut link = link_of(&[10, 20]);
    assert_eq!(link.offer(100, START), Ok(START + ms(10)));
    assert_eq!(link.offer(100, START + ms(9)), Ok(START + ms(10)));
    assert_eq!(link.offer(100, START + ms(10)), Ok(START + ms(20)));
}

#[test]
fn wrong_texts_are_refused_with_their_line() {
    let refused = |text: &str| Trace::parse(text.as_bytes()).unwrap_err().to_string();
    for text in ["", "\n", "0", "0\n0\n"] {
        assert!(refused(text).contains("no length") || refused(text).contains("line 1"), "{text:?}");
    }
    for (text, found) in [
        ("1\n\n3\n", "line 2 of the trace is ``"),
        ("1\n2\n\n", "line 3 of the trace is ``"),
        ("1\nx\n", "line 2 of the trace is `x`"),
        ("+1\n", "line 1 of the trace is `+1`"),
        ("1\r\n2\r\n", "line 1 of the trace is `1\\r`"),
        ("1.5\n", "line 1 of the trace is `1.5`"),
        ("1\n4294967296\n", "line 2 of the trace is `4294967296`"),
        ("7\n5\n", "line 2 of the trace is 5 ms, before the 7 ms"),
    ] {
        assert!(refused(text).contains(found), "{}", refused(text));
    }
}

#[test]
fn length_of_a_trace_is_bounded() {
    let mut text = b"1\n".repeat((1 << 21) + 1);
    assert!(Trace::parse(&text[2..]).is_ok());
    // Lines beyond the bound are not read.
    text.extend(b"x\n");
    assert_eq!(Trace::parse(&text), Err(TraceError::TooLong));
}

#[test]
fn one_line_with_1_is_12_mbit_per_s() {
    // This is the example of mahimahi's README.
    assert_eq!(Trace::parse(b"1\n").unwrap().bytes_per_s(), 12_000_000 / 8);
}
