//! Tests of packets dropped for want of room, before the link and behind it.

use std::collections::VecDeque;
use std::time::Duration;

use mafs_proto::Instant;
use proptest::prelude::*;

use super::{START, direction, link, ms, secs};
use crate::link::{Direction, Dropped, Rate, Receiver};

const BYTES_PER_S: u64 = 100_000;
const QUEUE_BYTES: u64 = 10_000;

fn with_queue() -> Direction {
    Direction { queue_bytes: QUEUE_BYTES, ..direction(Rate::constant(BYTES_PER_S), ms(7)) }
}

proptest! {
    /// Compares with a model of whole packets: the queue is a list, its head is being sent.
    #[test]
    fn tail_is_dropped_when_full_and_nothing_overtakes(
        offers in proptest::collection::vec((0..40_000_000_u64, 1..4000_u64), 1..200),
    ) {
        let mut link = link(&with_queue());
        let mut queue: VecDeque<(Instant, u64)> = VecDeque::new();
        let (mut now, mut free_at, mut latest) = (START, START, START);
        for (gap, bytes) in offers {
            now = Instant(now.0 + gap);
            queue.retain(|(leaves, _)| *leaves > now);
            let held: u64 = queue.iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(link.queued_bytes(now), held);
            let fate = link.offer(bytes, now);
            if held + bytes > QUEUE_BYTES {
                prop_assert_eq!(fate, Err(Dropped::QueueFull));
                continue;
            }
            free_at = free_at.max(now) + Duration::from_nanos(bytes * 1_000_000_000 / BYTES_PER_S);
            queue.push_back((free_at, bytes));
            let arrival = fate.unwrap();
            prop_assert_eq!(arrival, free_at + ms(7));
            prop_assert!(arrival > latest);
            latest = arrival;
            prop_assert!(link.queued_bytes(now) <= QUEUE_BYTES);
        }
    }
}

#[test]
fn first_come_stay_and_there_is_room_again_when_one_has_left() {
    let mut link = link(&with_queue());
    let fates: Vec<bool> = (0..10).map(|_| link.offer(1500, START).is_ok()).collect();
    assert_eq!(fates, [true, true, true, true, true, true, false, false, false, false]);
    let first_leaves = START + ms(15);
    assert_eq!(link.offer(1500, Instant(first_leaves.0 - 1)), Err(Dropped::QueueFull));
    assert_eq!(link.offer(1500, first_leaves), Ok(START + ms(7 * 15 + 7)));
}

#[test]
fn packets_larger_than_the_queue_never_go() {
    assert_eq!(link(&with_queue()).offer(QUEUE_BYTES + 1, START), Err(Dropped::QueueFull));
}

#[test]
fn time_that_goes_back_counts_as_the_latest() {
    let mut link = link(&with_queue());
    assert_eq!(link.offer(100, START + secs(1)), Ok(START + secs(1) + ms(8)));
    assert_eq!(link.offer(100, START), Ok(START + secs(1) + ms(9)));
    assert_eq!(link.queued_bytes(Instant(0)), 200);
}

/// Sends a block of 8 KB as six packets back to back over Ethernet, which the host takes out slowly.
fn packets_of_a_block_that_arrive(buffer_bytes: u64) -> usize {
    let receiver = Some(Receiver { buffer_bytes, bytes_per_s: 100_000 });
    let mut link = link(&Direction { receiver, ..direction(Rate::constant(1_250_000), ms(1)) });
    let fates: Vec<_> = [1500, 1500, 1500, 1500, 1500, 692].map(|bytes| link.offer(bytes, START)).into();
    assert!(fates.iter().all(|fate| fate.is_ok() || *fate == Err(Dropped::ReceiverFull)), "{fates:?}");
    fates.iter().flatten().count()
}

#[test]
fn small_receive_buffer_loses_what_a_large_one_holds() {
    // The adapters of the tuning paper (004): 2, 8 and 64 KB.
    assert_eq!(packets_of_a_block_that_arrive(2 * 1024), 1);
    assert_eq!(packets_of_a_block_that_arrive(8 * 1024), 6);
    assert_eq!(packets_of_a_block_that_arrive(64 * 1024), 6);
}

#[test]
fn receiving_host_has_packets_at_its_own_pace() {
    let receiver = Some(Receiver { buffer_bytes: 8192, bytes_per_s: 100_000 });
    let mut link = link(&Direction { receiver, ..direction(Rate::constant(1_000_000), ms(1)) });
    assert_eq!(link.offer(1000, START), Ok(START + ms(1 + 1 + 10)));
    assert_eq!(link.offer(1000, START), Ok(START + ms(1 + 1 + 20)));
}
