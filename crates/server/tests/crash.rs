//! Tests of power cuts at every sync point: a workload over memory storage, the power cut at each sync in turn, the
//! server opened again on what survived.
//!
//! An undisturbed run tells what must be found after a cut: of each lane the state after some number of its records,
//! and at least after those that were acknowledged.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use mafs_proto::call::ApplyReply;
use mafs_proto::{CmlOp, DataVersion, Incarnation};
use mafs_server::{MemoryStorage, Server};
use support::lanes::{Expected, Step, futures_join, on_runtime, see, send, undisturbed};
use support::{ALICE, Client, open};

/// Records that are sent again after a crash.
enum Replay {
    /// All of them.
    All,
    /// A few before and a few after the last acknowledged one.
    Around,
}

#[test]
fn invariant_1_what_was_acknowledged_survives_a_power_cut_at_every_sync() {
    let expected = undisturbed(&[100, 100]);
    at_every_sync(&expected, |cut, storage, acknowledged| {
        check(&expected, &storage.crash(cut), acknowledged, &Replay::Around, cut);
    });
}

#[test]
fn invariant_2_what_was_not_acknowledged_is_applied_exactly_once_by_replay() {
    let expected = undisturbed(&[25, 25, 25, 25]);
    at_every_sync(&expected, |cut, storage, acknowledged| {
        check(&expected, &storage.crash_torn(cut), acknowledged, &Replay::All, cut);
    });
}

#[test]
fn invariant_4_no_file_is_torn_whatever_survives_of_unsynced_writes() {
    let expected = undisturbed(&[25, 25]);
    at_every_sync(&expected, |cut, storage, acknowledged| {
        for seed in 0..4 {
            check(&expected, &storage.crash_torn(seed * 1000 + cut), acknowledged, &Replay::Around, cut);
        }
    });
}

#[test]
fn invariant_1_what_was_acknowledged_survives_kill_at_any_moment() {
    let expected = undisturbed(&[60]);
    for stop in 0..=60 {
        let (storage, acknowledged) = on_runtime(async {
            let storage = MemoryStorage::new(1);
            let server = open(&storage);
            let client = Client::attached(&server, ALICE).await;
            let mut acknowledged = Vec::new();
            for step in &expected.lanes[0][..stop] {
                acknowledged.push(send(&client, step).await);
            }
            (storage, vec![acknowledged])
        });
        check(&expected, &storage.kill(stop as u64), &acknowledged, &Replay::Around, stop as u64);
    }
}

/// Cuts the power at each sync of the workload in turn, until it ends before the cut.
fn at_every_sync(expected: &Expected, check: impl Fn(u64, &MemoryStorage, &[Vec<ApplyReply>])) {
    for cut in 0.. {
        let (storage, acknowledged) = run_until_cut(expected, cut);
        check(cut, &storage, &acknowledged);
        if !storage.memory_disk().frozen() {
            assert!(cut > 50, "the workload syncs");
            return;
        }
    }
}

/// Runs all lanes at once until the power is cut at sync number `cut`; returns the replies that had arrived by then.
fn run_until_cut(expected: &Expected, cut: u64) -> (MemoryStorage, Vec<Vec<ApplyReply>>) {
    on_runtime(async {
        let storage = MemoryStorage::new(1);
        storage.memory_disk().freeze_after_syncs(cut);
        let server = open(&storage);
        let client = Client::attached(&server, ALICE).await;
        let lanes = expected.lanes.iter().map(|steps| run_lane(&storage, &client, steps));
        let acknowledged = futures_join(lanes).await;
        (storage.clone(), acknowledged)
    })
}

async fn run_lane(storage: &MemoryStorage, client: &Client, steps: &[Step]) -> Vec<ApplyReply> {
    let mut acknowledged = Vec::new();
    for step in steps {
        let reply = send(client, step).await;
        if storage.memory_disk().frozen() {
            break;
        }
        acknowledged.push(reply);
    }
    acknowledged
}

/// Opens the storage that survived, compares it with what must be there, then replays.
fn check(expected: &Expected, storage: &MemoryStorage, acknowledged: &[Vec<ApplyReply>], replay: &Replay, cut: u64) {
    on_runtime(async {
        let server: Arc<Server> = open(storage);
        let client = Client::attached(&server, ALICE).await;
        for (lane, states) in expected.states.iter().enumerate() {
            let found = see(&client, lane).await;
            let known = acknowledged[lane].len();
            let matching = states.iter().skip(known).position(|state| *state == found);
            assert!(matching.is_some(), "cut {cut}, lane {lane}, {known} acknowledged: found {found:?}");
        }
        if client.incarnation() == Incarnation(1) {
            // The attach itself did not survive, so it was not acknowledged, and no record was made under it.
            assert!(acknowledged.iter().all(Vec::is_empty));
            return;
        }
        for (lane, steps) in expected.lanes.iter().enumerate() {
            let known = acknowledged[lane].len();
            let range = match replay {
                Replay::All => 0..steps.len(),
                Replay::Around => known.saturating_sub(5)..steps.len().min(known + 5),
            };
            for index in range.clone() {
                let reply = send(&client, &steps[index]).await;
                if let Some(before) = acknowledged[lane].get(index) {
                    assert_eq!(reply, *before, "cut {cut}: an acknowledged record is answered as before");
                }
            }
            assert_eq!(see(&client, lane).await, expected.states[lane][range.end], "cut {cut}, lane {lane}");
        }
    });
}

#[test]
fn the_workload_is_worth_its_name() {
    let expected = undisturbed(&[200]);
    let count = |is: fn(&CmlOp) -> bool| expected.lanes[0].iter().filter(|(record, _)| is(&record.op)).count();
    assert!(count(|op| matches!(op, CmlOp::Rename { replaced: Some(_), .. })) > 3);
    assert!(count(|op| matches!(op, CmlOp::Store { size: 16_385.., .. })) > 10);
    assert!(count(|op| matches!(op, CmlOp::Remove { .. })) > 5);
    assert!(count(|op| matches!(op, CmlOp::SetXattr { .. })) > 10);
    assert!(count(|op| matches!(op, CmlOp::RemoveXattr { .. })) > 2);
    let last = expected.states[0].last().unwrap();
    assert!(last.values().any(|(object, ..)| object.status.data_version > DataVersion(2)));
}
