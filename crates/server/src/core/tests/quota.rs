//! Tests of the quota: a change that makes the files larger is refused beyond it, everything else is not.

use mafs_proto::call::ApplyRequest;
use mafs_proto::{Base, CmlOp, DataVersion, Fid, FsError};

use super::{ROOT, World, content, name, store};
use crate::core::replies::{self, Decision, Limits};

const QUOTA: u64 = 10;

/// Applies an operation within the quota.
fn apply(world: &mut World, op: CmlOp, bytes: Option<&[u8]>) -> Result<(), FsError> {
    let record = world.next_record(op);
    let request = ApplyRequest::new(record, None);
    let limits = Limits { quota_bytes: Some(QUOTA), ..Limits::default() };
    let content = bytes.map(|bytes| content(request.record.op.fid(), bytes));
    let decision = replies::decide(&world.overlay(), world.client, &request, content, limits);
    if let Decision::Apply(applied) = decision.map_err(|refusal| refusal.error)? {
        mafs_durable::Kv::apply(&world.kv, &applied.batch).unwrap();
    }
    Ok(())
}

fn store_within(world: &mut World, fid: Fid, version: u64, size: usize) -> Result<(), FsError> {
    let bytes = vec![7; size];
    apply(world, store(fid, Base::Version(DataVersion(version)), &bytes), Some(&bytes))
}

#[test]
fn bytes_beyond_the_quota_are_refused_and_a_volume_beyond_it_can_be_emptied() {
    let mut world = World::new();
    let [one, two] = [world.create(ROOT, "one"), world.create(ROOT, "two")];
    assert_eq!(store_within(&mut world, one, 1, 10), Ok(()));
    assert_eq!(store_within(&mut world, two, 1, 1), Err(FsError::Quota));
    assert_eq!(store_within(&mut world, two, 1, 0), Ok(()));
    // This is as if the quota had been lowered.
    let large = vec![7; 30];
    world.store(one, Base::Version(DataVersion(2)), &large).unwrap();
    assert_eq!(store_within(&mut world, one, 3, 31), Err(FsError::Quota));
    assert_eq!(store_within(&mut world, one, 3, 20), Ok(()), "fewer bytes than before");
    assert_eq!(apply(&mut world, CmlOp::Remove { parent: ROOT, name: name("one"), fid: one }, None), Ok(()));
    assert_eq!(store_within(&mut world, two, 2, 10), Ok(()));
}
