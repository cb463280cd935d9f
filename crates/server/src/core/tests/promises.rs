//! Tests of promises: nobody is left with what has changed, and nobody waits longer than a lease.

use std::time::Duration;

use mafs_proto::call::{BreakRequest, Broken};
use mafs_proto::{ChangeNumber, ClientId, Fid, Generation, Instant, Name, Uniquifier, VnodeId, VolumeId};

use super::super::promises::{BatchNumber, Owed, Promises, Timing, Touched};

const TIMING: Timing =
    Timing { lease: Duration::from_secs(60), bias: Duration::from_secs(2), break_timeout: Duration::from_secs(15) };
const ALICE: ClientId = ClientId([1; 16]);
const BOB: ClientId = ClientId([2; 16]);
const CAROL: ClientId = ClientId([3; 16]);
const FILE: VnodeId = VnodeId(7);

fn at(seconds: u64) -> Instant {
    Instant(0) + Duration::from_secs(seconds)
}

fn fid(vnode: VnodeId) -> Fid {
    Fid { volume: VolumeId(1), vnode, unique: Uniquifier(1) }
}

fn touched(vnode: VnodeId) -> Touched {
    Touched { fid: fid(vnode), names: Vec::new(), gone: false }
}

/// Attaches all at the start, each by the generation of its first byte.
fn promises(clients: &[ClientId]) -> Promises {
    let mut promises = Promises::new(TIMING, ChangeNumber(0), [], at(0));
    for client in clients {
        assert!(!promises.attach(*client, first(*client), None, at(0)));
    }
    promises
}

fn first(client: ClientId) -> Generation {
    Generation(u64::from(client.0[0]))
}

fn change_file(promises: &mut Promises, by: ClientId, change: u64, now: Instant) -> Owed {
    promises.changed(by, ChangeNumber(change), &[touched(FILE)], now)
}

fn batch(promises: &mut Promises, client: ClientId, now: Instant) -> (BatchNumber, BreakRequest) {
    promises.next_batch(client, first(client), now).expect("a break is owed")
}

fn objects(request: &BreakRequest) -> Vec<VnodeId> {
    match &request.broken {
        Broken::Objects(objects) => objects.iter().map(|object| object.fid.vnode).collect(),
        Broken::All => panic!("everything is broken"),
    }
}

#[test]
fn a_change_waits_until_every_other_holder_has_acknowledged() {
    let mut promises = promises(&[ALICE, BOB, CAROL]);
    for client in [ALICE, BOB, CAROL] {
        promises.grant(client, [FILE]);
    }
    let mut owed = change_file(&mut promises, ALICE, 1, at(1));
    assert_eq!(promises.remaining(&mut owed, at(1)), Some(at(62)));
    for client in [BOB, CAROL] {
        let (number, request) = batch(&mut promises, client, at(1));
        assert_eq!((request.change, objects(&request)), (ChangeNumber(1), vec![FILE]));
        assert!(promises.remaining(&mut owed, at(1)).is_some());
        promises.acknowledge(client, first(client), number);
    }
    assert_eq!(promises.remaining(&mut owed, at(1)), None);
    assert!(promises.next_batch(ALICE, first(ALICE), at(1)).is_none(), "its own change broke a promise");
}

#[test]
fn who_has_not_been_shown_an_object_is_not_asked() {
    let mut promises = promises(&[ALICE, BOB]);
    promises.grant(BOB, [VnodeId(8)]);
    assert!(change_file(&mut promises, ALICE, 1, at(1)).is_empty());
}

#[test]
fn a_later_change_waits_for_a_break_that_is_owed_already() {
    let mut promises = promises(&[ALICE, BOB]);
    promises.grant(BOB, [FILE]);
    let mut first_owed = change_file(&mut promises, ALICE, 1, at(1));
    let (number, _) = batch(&mut promises, BOB, at(1));
    // Bob holds the promise no more, but does not know it yet.
    let mut second_owed = change_file(&mut promises, ALICE, 2, at(2));
    assert!(!second_owed.is_empty());
    promises.acknowledge(BOB, first(BOB), number);
    assert_eq!(promises.remaining(&mut first_owed, at(2)), None);
    assert_eq!(promises.remaining(&mut second_owed, at(2)), None);
}

#[test]
fn who_was_shown_an_object_between_two_changes_hears_of_the_second() {
    let mut promises = promises(&[ALICE, BOB]);
    promises.grant(BOB, [FILE]);
    change_file(&mut promises, ALICE, 1, at(1));
    let (number, _) = batch(&mut promises, BOB, at(1));
    assert_eq!(promises.grant(BOB, [FILE]), ChangeNumber(1));
    let mut owed = change_file(&mut promises, ALICE, 2, at(1));
    promises.acknowledge(BOB, first(BOB), number);
    assert!(promises.remaining(&mut owed, at(1)).is_some(), "only the first break is acknowledged");
    let (number, request) = batch(&mut promises, BOB, at(1));
    assert_eq!(request.change, ChangeNumber(2));
    promises.acknowledge(BOB, first(BOB), number);
    assert_eq!(promises.remaining(&mut owed, at(1)), None);
}

#[test]
fn an_unreachable_holder_delays_a_change_until_its_lease_has_ended_and_only_once() {
    let mut promises = promises(&[ALICE, BOB]);
    promises.grant(BOB, [FILE]);
    let mut owed = change_file(&mut promises, ALICE, 1, at(10));
    assert_eq!(promises.remaining(&mut owed, at(61)), Some(at(62)));
    assert_eq!(promises.remaining(&mut owed, at(62)), None);
    assert_eq!(promises.renew(ALICE, first(ALICE), at(61)), Some(true));
    assert!(change_file(&mut promises, ALICE, 2, at(62)).is_empty());
    assert_eq!(promises.renew(BOB, first(BOB), at(62)), None, "it must attach again");
    assert_eq!(promises.expire(at(62)), [BOB]);
}

#[test]
fn who_does_not_acknowledge_is_not_renewed() {
    let mut promises = promises(&[ALICE, BOB]);
    promises.grant(BOB, [FILE]);
    change_file(&mut promises, ALICE, 1, at(1));
    batch(&mut promises, BOB, at(1));
    assert_eq!(promises.renew(BOB, first(BOB), at(15)), Some(true));
    assert_eq!(promises.renew(BOB, first(BOB), at(20)), Some(false));
    assert_eq!(promises.renew(BOB, first(BOB), at(76)), Some(false));
    assert_eq!(promises.renew(BOB, first(BOB), at(77)), None, "15 s + lease and bias have passed");
}

#[test]
fn a_session_that_goes_on_gets_the_breaks_it_missed() {
    let mut promises = promises(&[ALICE, BOB]);
    promises.grant(BOB, [FILE]);
    let mut owed = change_file(&mut promises, ALICE, 1, at(1));
    let (number, request) = batch(&mut promises, BOB, at(1));
    assert!(promises.attach(BOB, Generation(9), Some(first(BOB)), at(2)));
    assert!(!promises.is_current(BOB, first(BOB), at(2)), "the older connection is fenced");
    promises.acknowledge(BOB, first(BOB), number);
    assert!(promises.remaining(&mut owed, at(2)).is_some(), "a fenced connection acknowledges nothing");
    assert_eq!(promises.next_batch(BOB, Generation(9), at(2)), Some((number, request)));
    promises.acknowledge(BOB, Generation(9), number);
    assert_eq!(promises.remaining(&mut owed, at(2)), None);
}

#[test]
fn what_a_client_held_before_a_new_session_counts_until_it_says_that_it_has_dropped_it() {
    let mut promises = promises(&[ALICE, BOB]);
    promises.grant(BOB, [FILE]);
    assert!(!promises.attach(BOB, Generation(9), None, at(1)));
    let mut owed = change_file(&mut promises, ALICE, 1, at(1));
    assert!(promises.remaining(&mut owed, at(1)).is_some());
    assert_eq!(promises.renew(BOB, Generation(9), at(1)), Some(true));
    assert_eq!(promises.remaining(&mut owed, at(1)), None);
}

#[test]
fn after_a_restart_everybody_who_was_listed_is_waited_for() {
    let mut promises = Promises::new(TIMING, ChangeNumber(5), [ALICE, BOB], at(100));
    assert!(!promises.attach(ALICE, first(ALICE), Some(Generation(77)), at(101)), "the epoch is another");
    assert_eq!(promises.renew(ALICE, first(ALICE), at(101)), Some(true));
    let mut owed = change_file(&mut promises, ALICE, 6, at(101));
    assert_eq!(promises.remaining(&mut owed, at(101)), Some(at(162)));
    promises.attach(BOB, first(BOB), None, at(102));
    assert!(promises.remaining(&mut owed, at(102)).is_some(), "Bob may not have seen the answer");
    promises.renew(BOB, first(BOB), at(103));
    assert_eq!(promises.remaining(&mut owed, at(103)), None);
}

#[test]
fn beyond_a_thousand_owed_breaks_a_session_is_told_to_drop_everything() {
    let mut promises = promises(&[ALICE, BOB]);
    let vnodes = || (0..=1000).map(|number| VnodeId(100 + number));
    promises.grant(BOB, vnodes());
    let mut owed = Owed::default();
    for (change, vnode) in (1..).zip(vnodes()) {
        owed = promises.changed(ALICE, ChangeNumber(change), &[touched(vnode)], at(1));
    }
    let shown_since = VnodeId(5000);
    promises.grant(BOB, [shown_since]);
    let (number, request) = batch(&mut promises, BOB, at(1));
    assert_eq!(
        request,
        BreakRequest { change: ChangeNumber(1001), broken: Broken::All, recalled: Vec::new(), wanted: Vec::new() }
    );
    assert!(promises.remaining(&mut owed, at(1)).is_some());
    promises.acknowledge(BOB, first(BOB), number);
    assert_eq!(promises.remaining(&mut owed, at(1)), None);
    assert!(promises.changed(ALICE, ChangeNumber(1002), &[touched(VnodeId(100))], at(1)).is_empty());
    assert!(!promises.changed(ALICE, ChangeNumber(1003), &[touched(shown_since)], at(1)).is_empty());
}

#[test]
fn breaks_of_a_directory_name_what_changed() {
    let mut promises = promises(&[ALICE, BOB]);
    let name = |number: usize| Name::new(format!("name {number}").into_bytes()).unwrap();
    let directory = |names| Touched { fid: fid(VnodeId::ROOT), names, gone: false };
    for number in [0, 1, 0] {
        promises.grant(BOB, [VnodeId::ROOT]);
        promises.changed(ALICE, ChangeNumber(1), &[directory(vec![name(number)])], at(1));
    }
    let (number, request) = batch(&mut promises, BOB, at(1));
    let Broken::Objects(objects) = request.broken else { panic!("not everything") };
    assert_eq!(objects[0].names, [name(0), name(1)]);
    promises.acknowledge(BOB, first(BOB), number);
    promises.grant(BOB, [VnodeId::ROOT]);
    promises.changed(ALICE, ChangeNumber(2), &[directory((0..65).map(name).collect())], at(1));
    assert_eq!(batch(&mut promises, BOB, at(1)).1.broken, Broken::All, "more names than a break holds");
}

#[test]
fn a_detached_client_holds_nothing() {
    let mut promises = promises(&[ALICE, BOB]);
    promises.grant(BOB, [FILE]);
    assert!(!promises.detach(BOB, Generation(50)), "another attach has it");
    assert!(promises.detach(BOB, first(BOB)));
    assert!(change_file(&mut promises, ALICE, 1, at(1)).is_empty());
}

#[test]
fn an_announcement_breaks_the_promises_of_others_and_leaves_its_clients_own_as_they_are() {
    let mut promises = promises(&[ALICE, BOB, CAROL]);
    promises.grant(ALICE, [FILE]);
    promises.grant(BOB, [FILE]);
    let mut owed = promises.announced(ALICE, ChangeNumber(1), &[touched(FILE)], at(1));
    let (number, request) = batch(&mut promises, BOB, at(1));
    assert_eq!((request.change, objects(&request)), (ChangeNumber(1), vec![FILE]));
    promises.acknowledge(BOB, first(BOB), number);
    assert_eq!(promises.remaining(&mut owed, at(1)), None);
    assert!(promises.announced(CAROL, ChangeNumber(2), &[touched(VnodeId(8))], at(1)).is_empty());
    assert!(promises.announced(BOB, ChangeNumber(3), &[touched(VnodeId(8))], at(1)).is_empty(), "nothing was shown");
    promises.announced(CAROL, ChangeNumber(4), &[touched(FILE)], at(1));
    assert_eq!(objects(&batch(&mut promises, ALICE, at(1)).1), [FILE], "she held it still");
    assert!(promises.next_batch(BOB, first(BOB), at(1)).is_none());
}

/// consistency.md, "Revalidation": until it has said what it holds.
#[test]
fn who_hears_of_every_change_is_told_of_what_it_was_never_shown() {
    let mut promises = promises(&[ALICE, BOB]);
    promises.hear_all(BOB);
    assert!(!promises.holds_alone(ALICE, FILE), "nobody decides names that may be relied on");
    let mut owed = change_file(&mut promises, ALICE, 1, at(1));
    assert_eq!(promises.caught_up(BOB), None, "a break is owed");
    let (number, request) = batch(&mut promises, BOB, at(1));
    assert_eq!(objects(&request), [FILE]);
    assert!(promises.remaining(&mut owed, at(1)).is_some());
    promises.acknowledge(BOB, first(BOB), number);
    assert_eq!(promises.remaining(&mut owed, at(1)), None);
    assert_eq!(promises.caught_up(BOB), Some(ChangeNumber(1)));
    change_file(&mut promises, BOB, 2, at(2));
    assert_eq!(promises.next_batch(BOB, first(BOB), at(2)), None, "its own are answered");
    let other = VnodeId(8);
    promises.hold(BOB, [other], false);
    assert!(!change_file(&mut promises, ALICE, 3, at(3)).is_empty(), "there is more to come");
    promises.hold(BOB, [], true);
    let (number, _) = batch(&mut promises, BOB, at(3));
    promises.acknowledge(BOB, first(BOB), number);
    assert!(change_file(&mut promises, ALICE, 4, at(4)).is_empty());
    assert!(!promises.changed(ALICE, ChangeNumber(5), &[touched(other)], at(5)).is_empty());
}

#[test]
fn who_is_owed_too_much_hears_of_every_change_no_more() {
    let mut promises = promises(&[ALICE, BOB]);
    promises.hear_all(BOB);
    let many: Vec<_> = (0..=BreakRequest::OBJECTS_MAX as u64).map(|vnode| touched(VnodeId(100 + vnode))).collect();
    promises.changed(ALICE, ChangeNumber(1), &many, at(1));
    let (number, request) = batch(&mut promises, BOB, at(1));
    assert_eq!(request.broken, Broken::All);
    promises.acknowledge(BOB, first(BOB), number);
    assert!(change_file(&mut promises, ALICE, 2, at(2)).is_empty());
}
