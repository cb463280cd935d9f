//! Tests of refusals: a postponed record holds back what depends on it, but for removals; one refused for good does
//! not.

use mafs_proto::call::ApplyRequest;
use mafs_proto::{CmlOp, CmlRecord, FsError, StoreId};

use super::{ROOT, World, create, name};
use crate::core::refused::Refused;

/// Makes a record in a log, sent while it may come again, and one that depends on it.
fn queued(world: &mut World) -> (ApplyRequest, ApplyRequest) {
    let fid = world.next_fid();
    let first = world.next_record(create(ROOT, "f", fid));
    let second = CmlRecord { depends_on: vec![first.id], ..world.next_record(create(ROOT, "g", fid)) };
    (comes_again(first), comes_again(second))
}

fn comes_again(record: CmlRecord) -> ApplyRequest {
    ApplyRequest { comes_again: true, ..ApplyRequest::new(record, None) }
}

fn lets_pass(refused: &Refused, request: &ApplyRequest, id: StoreId) -> Result<bool, FsError> {
    refused.lets_pass(request, &id).map_err(|refusal| refusal.error)
}

#[test]
fn what_depends_on_a_postponed_record_is_refused_for_the_same_reason() {
    let (first, second) = queued(&mut World::new());
    for error in FsError::ALL.iter().filter(|error| error.is_transient() && **error != FsError::Busy) {
        let mut refused = Refused::default();
        refused.refuse(&first, *error);
        assert_eq!(lets_pass(&refused, &second, first.record.id), Err(*error));
        refused.refuse(&second, *error);
        let third = comes_again(CmlRecord { depends_on: vec![second.record.id], ..first.record.clone() });
        assert_eq!(lets_pass(&refused, &third, second.record.id), Err(*error), "and so on");
    }
}

/// Otherwise a whole chain would be refused, though the first link of it comes again at once.
#[test]
fn what_depends_on_what_a_busy_server_refused_waits_for_it() {
    let (first, second) = queued(&mut World::new());
    let mut refused = Refused::default();
    assert!(!refused.refuse(&first, FsError::Busy), "not for good");
    assert_eq!(lets_pass(&refused, &second, first.record.id), Ok(false));
    assert!(refused.awaits_postponed(&second).is_none());
}

#[test]
fn only_a_transient_refusal_of_a_record_that_comes_again_postpones() {
    let (first, second) = queued(&mut World::new());
    let mut refused = Refused::default();
    refused.refuse(&first, FsError::Exists);
    assert_eq!(lets_pass(&refused, &second, first.record.id), Ok(true));
    let mut refused = Refused::default();
    refused.refuse(&ApplyRequest::new(first.record.clone(), None), FsError::NoSpace);
    assert_eq!(lets_pass(&refused, &second, first.record.id), Ok(true));
}

#[test]
fn a_removal_goes_ahead_of_a_postponed_record_to_make_room() {
    let mut world = World::new();
    let (first, _) = queued(&mut world);
    let fid = first.record.op.fid();
    let mut refused = Refused::default();
    refused.refuse(&first, FsError::NoSpace);
    let removals =
        [CmlOp::Remove { parent: ROOT, name: name("f"), fid }, CmlOp::RemoveDir { parent: ROOT, name: name("f"), fid }];
    for op in removals {
        let removal = comes_again(world.next_record(op));
        assert_eq!(lets_pass(&refused, &removal, first.record.id), Ok(true));
    }
}

#[test]
fn a_removal_goes_ahead_of_nothing_that_room_does_not_help() {
    let mut world = World::new();
    let (first, _) = queued(&mut world);
    let fid = first.record.op.fid();
    let removal = comes_again(world.next_record(CmlOp::Remove { parent: ROOT, name: name("f"), fid }));
    let others = [FsError::NoSpace, FsError::Quota, FsError::Busy];
    for error in FsError::ALL.iter().filter(|error| error.is_transient() && !others.contains(error)) {
        let mut refused = Refused::default();
        refused.refuse(&first, *error);
        assert_eq!(lets_pass(&refused, &removal, first.record.id), Err(*error));
    }
}

/// git links what it has written to its name, and removes the one it was written under.
#[test]
fn a_removal_does_not_go_ahead_of_what_gives_the_object_another_name() {
    let mut world = World::new();
    let fid = world.create(ROOT, "draft");
    let other = world.create(ROOT, "other");
    let link = comes_again(world.next_record(CmlOp::Link { parent: ROOT, name: name("final"), fid }));
    let mut refused = Refused::default();
    refused.refuse(&link, FsError::NoSpace);
    let mut removal = |fid| comes_again(world.next_record(CmlOp::Remove { parent: ROOT, name: name("draft"), fid }));
    assert_eq!(lets_pass(&refused, &removal(fid), link.record.id), Err(FsError::NoSpace));
    assert_eq!(lets_pass(&refused, &removal(other), link.record.id), Ok(true));
}

#[test]
fn a_postponed_record_is_forgotten_once_it_is_applied_or_refused_for_good() {
    let (first, second) = queued(&mut World::new());
    let mut refused = Refused::default();
    refused.refuse(&first, FsError::NoSpace);
    refused.forget(&first.record.id);
    assert_eq!(lets_pass(&refused, &second, first.record.id), Ok(false), "its reply tells");
    refused.refuse(&first, FsError::NoSpace);
    refused.refuse(&first, FsError::Exists);
    assert_eq!(lets_pass(&refused, &second, first.record.id), Ok(true));
}

#[test]
fn what_is_forgotten_for_want_of_memory_is_waited_for() {
    let (first, second) = queued(&mut World::new());
    let mut refused = Refused::default();
    refused.refuse(&first, FsError::NoSpace);
    for seq in 100..5000 {
        let record = CmlRecord { id: StoreId { seq, ..first.record.id }, ..first.record.clone() };
        refused.refuse(&comes_again(record), FsError::NoSpace);
    }
    assert_eq!(lets_pass(&refused, &second, first.record.id), Ok(false));
}
