//! Tests of announcements: which of their records are entered, by what the volume holds, and what a start finds of
//! them.

use mafs_durable::{Batch, Kv};
use mafs_proto::call::InvalidateRequest;
use mafs_proto::{
    Base, ChangeNumber, ClientId, CmlOp, CmlRecord, DataVersion, Fid, FsError, StoreId, VnodeId, VolumeId,
};

use super::{ROOT, World, create, name, store};
use crate::core::announce::{Checked, check, load};
use crate::core::pending::{Entered, Pending};
use crate::core::{Refusal, tables};

fn checked(world: &World, request: &InvalidateRequest) -> Result<Checked, FsError> {
    checked_after(world, &Pending::default(), request)
}

fn checked_after(world: &World, pending: &Pending, request: &InvalidateRequest) -> Result<Checked, FsError> {
    let overlay = world.overlay();
    let mut transaction = overlay.begin();
    check(&mut transaction, world.client, request, |fid| pending.makes(world.client, fid))
        .map_err(|refusal| refusal.error)
}

fn of(records: Vec<CmlRecord>) -> InvalidateRequest {
    InvalidateRequest { records, retracted: Vec::new(), confirmed_below: None, settled: Vec::new() }
}

fn on(version: u64) -> Base {
    Base::Version(DataVersion(version))
}

#[test]
fn a_record_that_is_applied_or_confirmed_is_not_entered() {
    let mut world = World::new();
    let fid = world.next_fid();
    let applied = world.next_record(create(ROOT, "f", fid));
    world.apply_record(applied.clone(), None).unwrap();
    let confirmed = world.next_record(store(fid, on(1), b"a"));
    let waits = world.next_record(store(fid, on(1), b"b"));
    let request = InvalidateRequest { confirmed_below: Some(waits.id), ..of(vec![applied, confirmed, waits.clone()]) };
    let checked = checked(&world, &request).unwrap();
    assert_eq!((checked.records, checked.refused), (vec![waits], Vec::new()));
}

#[test]
fn a_store_is_entered_if_it_was_made_from_the_present_version() {
    let mut world = World::new();
    let file = world.create(ROOT, "f");
    let gone = Fid { vnode: VnodeId(1 << 40), ..file };
    let foreign = StoreId { client: ClientId([9; 16]), ..world.next_record(create(ROOT, "g", gone)).id };
    let cases = [
        (file, on(1), true),
        (file, on(2), false),
        (gone, on(1), false),
        (gone, Base::Record(StoreId { client: world.client, ..foreign }), true),
        (file, Base::Record(foreign), false),
    ];
    for (fid, base, is_entered) in cases {
        let record = world.next_record(store(fid, base, b"new"));
        let checked = checked(&world, &of(vec![record.clone()])).unwrap();
        let expected = if is_entered { (vec![record], Vec::new()) } else { (Vec::new(), vec![record.id]) };
        assert_eq!((checked.records, checked.refused), expected, "{fid} {base:?}");
        assert!(checked.contested.is_empty(), "it keeps nobody from its names");
    }
}

/// Otherwise the name that such a file is given would be announced without its content, and shown to be empty.
#[test]
fn a_store_is_entered_if_what_makes_its_file_is() {
    let mut world = World::new();
    let file = world.next_fid();
    let made = world.next_record(create(ROOT, "f", file));
    let stored = world.next_record(store(file, on(1), b"new"));
    let together = checked(&world, &of(vec![made.clone(), stored.clone()])).unwrap();
    assert_eq!((together.records, together.refused), (vec![made.clone(), stored.clone()], Vec::new()));

    let mut pending = Pending::default();
    pending.announce(&made, ChangeNumber(1));
    let after = checked_after(&world, &pending, &of(vec![stored.clone()])).unwrap();
    assert_eq!((after.records, after.refused), (vec![stored.clone()], Vec::new()));
    let of_another = CmlRecord { id: StoreId { client: ClientId([9; 16]), ..made.id }, ..made };
    let mut pending = Pending::default();
    pending.announce(&of_another, ChangeNumber(1));
    let after = checked_after(&world, &pending, &of(vec![stored.clone()])).unwrap();
    assert_eq!((after.records, after.refused), (Vec::new(), vec![stored.id]));
}

/// An object that is not known to be made has no content yet.
#[test]
fn a_name_is_entered_if_what_it_is_given_to_exists_or_is_made() {
    let mut world = World::new();
    let (file, new) = (world.create(ROOT, "f"), world.next_fid());
    let made = world.next_record(create(ROOT, "new", new));
    let mut named = |fid| world.next_record(CmlOp::Link { parent: ROOT, name: name("g"), fid });
    let (of_file, of_new) = (named(file), named(new));
    let alone = checked(&world, &of(vec![of_file.clone(), of_new.clone()])).unwrap();
    assert_eq!((alone.records, alone.refused, alone.contested), (vec![of_file], vec![of_new.id], vec![of_new.id]));
    let together = checked(&world, &of(vec![made.clone(), of_new.clone()])).unwrap();
    assert_eq!((together.records, together.refused), (vec![made, of_new], Vec::new()));
}

#[test]
fn invariant_10_a_record_about_another_volume_is_refused() {
    let mut world = World::new();
    let elsewhere = Fid { volume: VolumeId(77), ..world.create(ROOT, "f") };
    for op in [store(elsewhere, on(1), b"new"), create(elsewhere, "g", elsewhere)] {
        let record = world.next_record(op);
        assert_eq!(checked(&world, &of(vec![record])).unwrap_err(), FsError::CrossVolume);
    }
}

#[test]
fn a_start_finds_what_was_announced_and_notices_damage() {
    let mut world = World::new();
    let file = world.create(ROOT, "f");
    let (mut pending, mut batch) = (Pending::default(), Batch::default());
    // These are more than a start looks at at a time.
    let records: Vec<_> = (0..300).map(|_| world.next_record(store(file, on(1), b"new"))).collect();
    for (change, record) in (1..).zip(&records) {
        assert_eq!(pending.announce(record, ChangeNumber(change)), Entered::Changed);
        batch.put(tables::announced(&record.id), pending.get(&record.id).unwrap().encode());
    }
    world.kv.apply(&batch).unwrap();
    let found = load(&world.kv).unwrap();
    assert!(found.of_client(world.client).eq(pending.of_client(world.client)));
    let mut damage = Batch::default();
    let other = StoreId { seq: 9999, ..records[0].id };
    damage.put(tables::announced(&other), pending.get(&records[0].id).unwrap().encode());
    world.kv.apply(&damage).unwrap();
    assert!(matches!(load(&world.kv), Err(Refusal { error: FsError::VolumeDamaged, .. })), "under another key");
}
