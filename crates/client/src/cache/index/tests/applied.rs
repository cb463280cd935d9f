//! What is known to be applied before its answer has come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use mafs_proto::{CmlOp, CmlRecord, Name, StoreId};

use super::{attached, creating, creation, root};
use crate::core::queue::Queued;

/// A file that got a second name and lost the first was gone while only the loss was left.
#[test]
fn whoever_looks_sees_all_of_what_is_known_to_be_applied_or_nothing() {
    const ROUNDS: u64 = 2_000;
    let attached = attached();
    let (reply, edit) = creation();
    let fid = reply.objects[1].fid;
    attached.index.applied(&reply, attached.session, std::slice::from_ref(&edit)).unwrap();
    let done = AtomicBool::new(false);
    let is_there = || attached.index.object(fid.vnode).unwrap().is_some();
    thread::scope(|scope| {
        let looks = scope.spawn(|| std::iter::from_fn(|| (!done.load(Ordering::Acquire)).then(is_there)).all(|is| is));
        for round in 0..ROUNDS {
            let queued = |at: u64, op| {
                let id = StoreId { seq: 2 * round + at, ..creating().record.id };
                Queued { record: CmlRecord { id, op, ..creating().record }, ..creating() }
            };
            let linked = queued(1, CmlOp::Link { parent: root(), name: Name::new(&b"g"[..]).unwrap(), fid });
            let removed = queued(2, CmlOp::Remove { parent: root(), name: edit.name.clone(), fid });
            attached.index.push_pending(&linked);
            attached.index.push_pending(&removed);
            attached.index.applied_unanswered(&[linked, removed], attached.grant(5)).unwrap();
        }
        done.store(true, Ordering::Release);
        assert!(looks.join().unwrap(), "it was gone");
    });
}
