//! Tests of exclusive directories: which client decides names where.

use std::time::Duration;

use mafs_proto::{ClientId, Fid, Instant, VnodeId, VolumeId};

use crate::core::exclusive::Exclusive;

const ALICE: ClientId = ClientId([1; 16]);
const BOB: ClientId = ClientId([2; 16]);
const DIR: VnodeId = VnodeId(7);
const START: Instant = Instant(0);

fn later() -> Instant {
    START + Duration::from_secs(10)
}

fn exclusive() -> Exclusive {
    let mut exclusive = Exclusive::default();
    exclusive.attach(ALICE, true, true);
    exclusive.attach(BOB, true, true);
    exclusive
}

fn deciders(exclusive: &Exclusive, client: ClientId) -> Vec<ClientId> {
    exclusive.deciders(DIR, client, |_| true)
}

#[test]
fn others_wait_for_who_is_let_decide_while_it_is_there() {
    let mut exclusive = exclusive();
    assert!(exclusive.grant(DIR, ALICE, START));
    assert_eq!(deciders(&exclusive, BOB), [ALICE]);
    assert_eq!(deciders(&exclusive, ALICE), []);
    assert_eq!(exclusive.deciders(DIR, BOB, |client| client != ALICE), []);
    exclusive.end(ALICE);
    assert!(exclusive.is_empty());
}

#[test]
fn who_does_not_decide_is_not_let() {
    let mut exclusive = exclusive();
    exclusive.attach(ALICE, false, false);
    assert!(!exclusive.grant(DIR, ALICE, START));
    exclusive.note_made(DIR, ALICE);
    assert_eq!(deciders(&exclusive, BOB), []);
}

#[test]
fn nobody_is_let_decide_where_another_changes_names() {
    let mut exclusive = exclusive();
    let dirs = [Fid { vnode: DIR, ..Fid::root(VolumeId(1)) }];
    exclusive.begin_change(&dirs, ALICE);
    exclusive.begin_change(&dirs, BOB);
    exclusive.end_change(&dirs, ALICE);
    assert!(!exclusive.grant(DIR, ALICE, START), "what Bob does there is not committed");
    exclusive.end_change(&dirs, BOB);
    assert!(exclusive.grant(DIR, ALICE, START));
}

#[test]
fn what_is_recalled_is_not_granted_again_before_it_has_been_settled_for_a_while() {
    let mut exclusive = exclusive();
    assert!(exclusive.grant(DIR, ALICE, START));
    exclusive.recall(DIR, ALICE);
    assert!(!exclusive.grant(DIR, ALICE, later()));
    assert_eq!(deciders(&exclusive, BOB), [ALICE]);
    exclusive.settle(DIR, ALICE, START);
    assert_eq!(deciders(&exclusive, BOB), []);
    assert!(!exclusive.grant(DIR, ALICE, START));
    assert!(exclusive.grant(DIR, ALICE, later()));
    exclusive.settle(DIR, ALICE, later());
    assert_eq!(deciders(&exclusive, BOB), [ALICE], "what was said twice ended what came after it");
}

#[test]
fn who_may_have_decided_anywhere_is_asked_once_for_each_directory() {
    let mut exclusive = exclusive();
    exclusive.note_undecided(ALICE, true);
    assert_eq!(deciders(&exclusive, BOB), [ALICE]);
    exclusive.recall(DIR, ALICE);
    exclusive.settle(DIR, ALICE, START);
    assert_eq!(deciders(&exclusive, BOB), []);
    assert_eq!(exclusive.deciders(VnodeId(8), BOB, |_| true), [ALICE]);
    exclusive.note_undecided(ALICE, true);
    assert_eq!(deciders(&exclusive, BOB), [], "it says so with every renewal");
    exclusive.note_undecided(ALICE, false);
    assert!(exclusive.is_empty());
}

#[test]
fn what_a_client_decided_before_it_was_gone_holds_nobody_up() {
    let mut exclusive = exclusive();
    exclusive.note_made(DIR, ALICE);
    exclusive.attach(ALICE, true, false);
    assert_eq!(deciders(&exclusive, BOB), [ALICE], "another session, and the same log");
    exclusive.attach(ALICE, true, true);
    assert_eq!(deciders(&exclusive, BOB), []);
}
