//! Tests of two engines over a link that stalls and breaks: every call ends exactly once.

use std::time::Duration;

use mafs_proto::Class;
use proptest::prelude::*;

use super::pair::{ANSWERS, Application, LinkModel, Pair, SETTINGS};

const LINK: LinkModel = LinkModel { delay: Duration::from_millis(10), bytes_per_s: 100_000 };

fn assert_every_call_ended_once(pair: &Pair) {
    for end in &pair.ends {
        for (id, outcomes) in &end.outcomes {
            assert_eq!(outcomes.len(), 1, "{id:?}: {outcomes:?}");
        }
        for (id, (_, ends)) in &end.received {
            assert_eq!(*ends, 1, "payload of {id:?}");
        }
    }
}

#[test]
fn disconnect_at_every_frame_ends_every_call_exactly_once() {
    for cut in 0.. {
        let replies = Application { reply_bytes: 7000, ..ANSWERS };
        let mut pair = Pair::new(SETTINGS, LINK, [replies; 2]);
        for end in &mut pair.ends {
            for class in Class::ALL {
                end.call(class, 5000 * class.index() as u64, Some(Duration::from_secs(30)), pair.now);
            }
        }
        let until = pair.now + Duration::from_secs(20);
        while pair.carried < cut && pair.step(until) {}
        let all_carried = pair.carried < cut;
        pair.disconnect();
        assert_every_call_ended_once(&pair);
        if all_carried {
            assert!(cut > 50, "the scenario is too small: {cut}");
            return;
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Call {
        end: usize,
        class: Class,
        bytes: u64,
        timeout_ms: u64,
    },
    Cancel {
        end: usize,
        call: usize,
    },
    Reprioritise {
        end: usize,
        call: usize,
        class: Class,
    },
    Unwanted {
        end: usize,
        call: usize,
    },
    Wait {
        ms: u64,
    },
    /// Time in which neither end is scheduled.
    Stall {
        ms: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let class = || (0..5u32).prop_map(|index| Class::from_index(index).unwrap());
    let end = || 0..2usize;
    prop_oneof![
        (end(), class(), 0..20_000u64, 1..3000u64).prop_map(|(end, class, bytes, timeout_ms)| Op::Call {
            end,
            class,
            bytes,
            timeout_ms
        }),
        (end(), 0..20usize).prop_map(|(end, call)| Op::Cancel { end, call }),
        (end(), 0..20usize, class()).prop_map(|(end, call, class)| Op::Reprioritise { end, call, class }),
        (end(), 0..20usize).prop_map(|(end, call)| Op::Unwanted { end, call }),
        (0..300u64).prop_map(|ms| Op::Wait { ms }),
        (0..5000u64).prop_map(|ms| Op::Stall { ms }),
    ]
}

proptest! {
    #[test]
    fn every_call_ends_once_whatever_the_applications_do(
        ops in proptest::collection::vec(op(), 1..40),
        replies in [0..10_000u64, 0..10_000u64],
        answers in any::<bool>(),
        breaks in any::<bool>(),
    ) {
        let applications = replies.map(|reply_bytes| Application { reply_bytes, reads: true, answers });
        let mut pair = Pair::new(SETTINGS, LINK, applications);
        for op in ops {
            match op {
                Op::Call { end, class, bytes, timeout_ms } => {
                    pair.ends[end].call(class, bytes, Some(Duration::from_millis(timeout_ms)), pair.now);
                }
                Op::Cancel { end, call } => {
                    if let Some(id) = pair.ends[end].outcomes.keys().nth(call).copied() {
                        pair.ends[end].engine.cancel(id);
                    }
                }
                Op::Reprioritise { end, call, class } => {
                    if let Some(id) = pair.ends[end].outcomes.keys().nth(call).copied() {
                        pair.ends[end].engine.reprioritise(id, class);
                    }
                }
                Op::Unwanted { end, call } => {
                    if let Some(id) = pair.ends[end].received.keys().nth(call).copied() {
                        pair.ends[end].engine.unwanted(id);
                    }
                }
                Op::Wait { ms } => pair.run(Duration::from_millis(ms)),
                Op::Stall { ms } => {
                    pair.now = pair.now + Duration::from_millis(ms);
                    // Several stalls without a pause would be a dead peer.
                    pair.run(Duration::from_millis(100));
                }
            }
        }
        if !breaks {
            // This is longer than every deadline and the time that all the bytes take.
            pair.run(Duration::from_secs(30));
            prop_assert_eq!((&pair.ends[0].closed, &pair.ends[1].closed), (&None, &None));
            if answers {
                prop_assert_eq!((pair.ends[0].engine.calls.len(), pair.ends[1].engine.calls.len()), (0, 0));
            }
        }
        pair.disconnect();
        for end in &pair.ends {
            for (id, outcomes) in &end.outcomes {
                prop_assert_eq!(outcomes.len(), 1, "{:?}", id);
            }
        }
    }
}
