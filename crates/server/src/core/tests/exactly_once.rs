//! Tests of exactly once: kept replies, digests, confirmations, dependencies.

use mafs_durable::Kv;
use mafs_proto::call::ApplyRequest;
use mafs_proto::{ClientId, CmlRecord, FsError, Incarnation, StoreId};

use super::{CLIENT, ROOT, World, attach, create, make_dir};
use crate::core::records::ClientState;
use crate::core::refused::Refused;
use crate::core::replies::{Decision, Limits, REPLIES_MAX, awaited};
use crate::core::{Refusal, clients, tables};

#[test]
fn invariant_2_a_record_that_comes_again_gets_the_same_reply_and_has_no_second_effect() {
    let mut world = World::new();
    let fid = world.next_fid();
    let record = world.next_record(create(ROOT, "f", fid));
    let first = world.apply_record(record.clone(), None).unwrap();
    world.create(ROOT, "g");
    let size = world.kv.scan(b"", None, usize::MAX).unwrap().len();
    assert_eq!(world.apply_record(record, None).unwrap(), first);
    assert_eq!(world.kv.scan(b"", None, usize::MAX).unwrap().len(), size);
}

#[test]
fn another_record_under_a_used_id_is_refused() {
    let mut world = World::new();
    let fid = world.next_fid();
    let record = world.next_record(create(ROOT, "f", fid));
    world.apply_record(record.clone(), None).unwrap();
    let other = CmlRecord { op: create(ROOT, "other", fid), ..record };
    assert_eq!(world.apply_record(other, None), Err(FsError::StoreIdReused));
}

#[test]
fn a_refused_record_may_be_tried_again() {
    let mut world = World::new();
    let fid = world.create(ROOT, "f");
    let second = world.next_fid();
    let record = world.next_record(create(ROOT, "f", second));
    assert_eq!(world.apply_record(record.clone(), None), Err(FsError::Exists));
    world.apply(mafs_proto::CmlOp::Remove { parent: ROOT, name: super::name("f"), fid }).unwrap();
    assert!(world.apply_record(record, None).is_ok());
}

#[test]
fn records_of_a_life_that_was_never_granted_are_refused() {
    let mut world = World::new();
    let fid = world.next_fid();
    let record = world.next_record(create(ROOT, "f", fid));
    for incarnation in [0, world.incarnation.0 + world.spare_lives + 1] {
        let id = StoreId { incarnation: Incarnation(incarnation), ..record.id };
        assert_eq!(world.apply_record(CmlRecord { id, ..record.clone() }, None), Err(FsError::Malformed));
    }
    let id = StoreId { client: ClientId([9; 16]), ..record.id };
    assert_eq!(world.apply_record(CmlRecord { id, ..record.clone() }, None), Err(FsError::Malformed));
    let id = StoreId { seq: 0, ..record.id };
    assert_eq!(world.apply_record(CmlRecord { id, ..record.clone() }, None), Err(FsError::Malformed));
    let spare = Incarnation(world.incarnation.0 + world.spare_lives);
    let id = StoreId { incarnation: spare, ..record.id };
    assert!(world.apply_record(CmlRecord { id, ..record }, None).is_ok(), "it was begun without the server");
}

#[test]
fn records_of_an_earlier_life_are_applied() {
    let mut world = World::new();
    attach(&world.kv, CLIENT);
    world.create(ROOT, "f");
}

#[test]
fn confirmed_replies_are_forgotten_and_their_records_not_applied_again() {
    let mut world = World::new();
    let fid = world.next_fid();
    let first = world.next_record(make_dir(ROOT, "first", fid));
    world.apply_record(first.clone(), None).unwrap();
    for number in 0..200 {
        world.create(ROOT, &format!("f{number}"));
    }
    let fid = world.next_fid();
    let last = world.next_record(create(ROOT, "last", fid));
    let confirmed = StoreId { seq: 150, ..last.id };
    confirm(&world, last, confirmed).unwrap();
    let kept = world.kv.scan(&tables::replies(CLIENT), None, usize::MAX).unwrap().len();
    assert_eq!(kept, 202 - 128, "one batch is forgotten at a time");
    assert_eq!(state(&world).replies, kept as u64);
    assert_eq!(world.apply_record(first, None), Err(FsError::StoreIdReused));
}

/// Clients confirm much at once: whenever their logs have become durable.
#[test]
fn what_was_confirmed_at_once_is_forgotten_with_the_records_after_it() {
    let mut world = World::new();
    for number in 0..300 {
        world.create(ROOT, &format!("f{number}"));
    }
    let kept = |world: &World| world.kv.scan(&tables::replies(CLIENT), None, usize::MAX).unwrap().len();
    let mut left = Vec::new();
    for number in 0..4 {
        let fid = world.next_fid();
        let record = world.next_record(create(ROOT, &format!("g{number}"), fid));
        let confirmed = StoreId { seq: 301, ..record.id };
        confirm(&world, record, confirmed).unwrap();
        left.push(kept(&world));
    }
    assert_eq!(left, [301 - 128, 302 - 256, 303 - 256, 304 - 256], "until they are few");
    assert_eq!(state(&world).replies, kept(&world) as u64);
}

#[test]
fn unconfirmed_replies_are_never_forgotten() {
    let mut world = World::new();
    let mut records = Vec::new();
    for number in 0..100 {
        let fid = world.next_fid();
        let record = world.next_record(create(ROOT, &format!("f{number}"), fid));
        confirm(&world, record.clone(), StoreId { seq: 1, ..record.id }).unwrap();
        records.push(record);
    }
    for record in records {
        let again = world.decide(&ApplyRequest::new(record, None), None).unwrap();
        assert!(matches!(again, Decision::Known(_)));
    }
}

#[test]
fn a_client_that_confirms_nothing_is_refused_at_the_bound() {
    let mut world = World::new();
    let mut transaction = mafs_durable::Batch::default();
    let full = ClientState { replies: REPLIES_MAX, ..state(&world) };
    transaction.put(tables::client(CLIENT), full.encode());
    world.kv.apply(&transaction).unwrap();
    let fid = world.next_fid();
    assert_eq!(world.apply(create(ROOT, "f", fid)), Err(FsError::Busy));
    // All others have waited for this one.
    let oldest = world.next_record(create(ROOT, "f", fid));
    let request = ApplyRequest::new(oldest.clone(), Some(oldest.id));
    assert!(matches!(world.decide(&request, None), Ok(Decision::Apply(_))));
}

#[test]
fn a_record_awaits_those_it_depends_on() {
    let mut world = World::new();
    let (dir, fid) = (world.next_fid(), world.next_fid());
    let first = world.next_record(make_dir(ROOT, "d", dir));
    let mut second = world.next_record(create(dir, "f", fid));
    second.depends_on = vec![first.id];
    let awaits = |world: &World, record: &CmlRecord, below| {
        let request = ApplyRequest::new(record.clone(), below);
        awaited(&world.overlay(), &request, &Refused::default())
    };
    assert_eq!(awaits(&world, &second, None), Ok(Some(first.id)));
    assert_eq!(awaits(&world, &second, Some(second.id)), Ok(None), "the client has the reply");
    let request = ApplyRequest::new(second.clone(), None);
    let mut refused = Refused::default();
    refused.refuse(&ApplyRequest::new(first.clone(), None), FsError::Exists);
    assert_eq!(awaited(&world.overlay(), &request, &refused), Ok(None), "it was refused");
    world.apply_record(first, None).unwrap();
    assert_eq!(awaits(&world, &second, None), Ok(None));
    second.depends_on = vec![second.id];
    assert_eq!(awaits(&world, &second, None).unwrap_err().error, FsError::Malformed);
}

#[test]
fn invariant_2_a_life_that_the_volume_has_lost_is_not_granted_again() {
    let world = World::new();
    let lost =
        StoreId { client: CLIENT, incarnation: Incarnation(world.incarnation.0 + world.spare_lives + 3), seq: 1 };
    let (_, granted) = clients::attach(&world.overlay(), CLIENT, "laptop", Some(lost)).unwrap();
    assert!(granted.was_forgotten);
    assert_eq!(granted.incarnation.0, lost.incarnation.0 + 1);
}

#[test]
fn a_confirmation_that_makes_no_sense_is_refused() {
    let world = World::new();
    let others = StoreId { client: ClientId([9; 16]), incarnation: world.incarnation, seq: 1 };
    let beyond = StoreId { client: CLIENT, incarnation: Incarnation(u64::MAX), seq: 1 };
    for claim in [others, beyond] {
        let refused = clients::attach(&world.overlay(), CLIENT, "laptop", Some(claim));
        assert_eq!(refused.unwrap_err().error, FsError::Malformed);
    }
}

#[test]
fn a_group_decides_each_record_on_top_of_those_before_it() {
    let mut world = World::new();
    let mut overlay = world.overlay();
    let mut fids = world.fids;
    let (dir, fid) = (fids.take().unwrap(), fids.take().unwrap());
    let id = |seq| StoreId { client: CLIENT, incarnation: world.incarnation, seq };
    let record = |seq, op| CmlRecord {
        id: id(seq),
        depends_on: vec![],
        time: super::time(1),
        uid: 0,
        gid: 0,
        removes: None,
        op,
    };
    let mut batches = Vec::new();
    for record in [record(1, make_dir(ROOT, "d", dir)), record(2, create(dir, "f", fid))] {
        let request = ApplyRequest::new(record, None);
        let decided = crate::core::replies::decide(&overlay, CLIENT, &request, None, Limits::default()).unwrap();
        let Decision::Apply(applied) = decided else { panic!("{decided:?}") };
        overlay.absorb(&applied.batch);
        batches.push(applied.batch);
    }
    let repeated = ApplyRequest::new(record(1, make_dir(ROOT, "d", dir)), None);
    let again = crate::core::replies::decide(&overlay, CLIENT, &repeated, None, Limits::default()).unwrap();
    assert!(matches!(again, Decision::Known(_)), "known before it is committed");
    batches.iter().for_each(|batch| world.kv.apply(batch).unwrap());
    assert_eq!(state(&world).replies, 2);
    world.seq = 2;
    world.fids = fids;
    world.create(dir, "g");
}

fn confirm(world: &World, record: CmlRecord, below: StoreId) -> Result<(), Refusal> {
    let decision = world.decide(&ApplyRequest::new(record, Some(below)), None)?;
    let Decision::Apply(applied) = decision else { panic!("{decision:?}") };
    world.kv.apply(&applied.batch).unwrap();
    Ok(())
}

fn state(world: &World) -> ClientState {
    world.overlay().begin().client(CLIENT).unwrap().unwrap()
}
