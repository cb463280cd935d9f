//! Tests of arbitrary parameters and offers: no panic, nothing overtakes, no queue beyond its limit.

use std::sync::Arc;
use std::time::Duration;

use mafs_proto::Instant;
use proptest::prelude::*;

use crate::link::{Direction, Periods, Profile, Rate, Receiver, Retransmission, Trace};

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0..5_000_000_000_u64).prop_map(Duration::from_nanos),
        any::<u64>().prop_map(Duration::from_nanos),
        Just(Duration::MAX),
    ]
}

fn any_periods() -> impl Strategy<Value = Option<Periods>> {
    prop_oneof![
        Just(None),
        (any_duration(), any_duration()).prop_map(|(good, bad)| Some(Periods::Random { good, bad })),
        proptest::collection::vec((any_duration(), any_duration()), 0..9).prop_map(|pairs| Some(Periods::Given(pairs))),
    ]
}

fn any_rate() -> impl Strategy<Value = Rate> {
    let bytes_per_s = || prop_oneof![0..1_000_000_u64, any::<u64>()];
    prop_oneof![
        (bytes_per_s(), proptest::collection::vec((any_duration(), bytes_per_s()), 0..5))
            .prop_map(|(first, then)| Rate::Steps { first, then }),
        proptest::collection::vec(0..5000_u32, 1..9).prop_map(|mut at_ms| {
            at_ms.sort_unstable();
            at_ms.push(5000);
            Rate::Trace(Arc::new(Trace::new(at_ms).unwrap()))
        }),
    ]
}

fn any_direction() -> impl Strategy<Value = Direction> {
    let receiver = proptest::option::of((0..100_000_u64, any::<u64>()));
    (any_rate(), 0..10_000_000_u64, 0..100_000_u64, any::<u32>(), receiver).prop_map(
        |(rate, delay_ms, queue_bytes, loss_ppm, receiver)| Direction {
            rate,
            delay: Duration::from_millis(delay_ms),
            queue_bytes,
            loss_ppm: loss_ppm % 1_500_000,
            receiver: receiver.map(|(buffer_bytes, bytes_per_s)| Receiver { buffer_bytes, bytes_per_s }),
        },
    )
}

fn any_offers() -> impl Strategy<Value = Vec<(u64, u64)>> {
    // Two hours; every bad period until then is walked through.
    let time = prop_oneof![0..20_000_000_000_u64, 0..7_200_000_000_000_u64];
    proptest::collection::vec((time, 0..20_000_u64), 1..60)
}

proptest! {
    #[test]
    fn arbitrary_links_keep_order_and_bounds(
        up in any_direction(),
        bursts in any_periods(),
        outages in any_periods(),
        retransmission in prop_oneof![
            Just(None),
            Just(Some(Retransmission::Hold)),
            Just(Some(Retransmission::Arq)),
        ],
        seed in any::<u64>(),
        start in prop_oneof![0..1_000_000_000_u64, any::<u64>()],
        offers in any_offers(),
        sorted in any::<bool>(),
    ) {
        let queue_bytes = up.queue_bytes;
        let profile = Profile { down: up.clone(), up, bursts, outages, retransmission, seed };
        let [mut link, _] = profile.links(Instant(start));
        let [mut stream, _] = profile.streams(Instant(start));
        let (mut packets, mut bytes) = (Instant(0), Instant(0));
        let mut offers = offers;
        if sorted {
            offers.sort_unstable();
        }
        for (time, size) in offers {
            let now = Instant(start) + Duration::from_nanos(time);
            if let Ok(arrival) = link.offer(size, now) {
                prop_assert!(arrival >= packets);
                packets = arrival;
            }
            prop_assert!(link.queued_bytes(now) <= queue_bytes);
            if let Ok(delivered) = stream.send(size, now) {
                prop_assert!(delivered >= bytes);
                bytes = delivered;
            }
            prop_assert!(stream.writable_at(now) >= now);
        }
    }
}
