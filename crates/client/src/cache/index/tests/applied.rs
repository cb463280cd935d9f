//! Tests of changes that are known to be applied before their answers have come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use mafs_proto::call::ApplyReply;
use mafs_proto::{ChangeNumber, CmlOp, CmlRecord, Fid, Name, Object, StatusVersion, StoreId};

use super::{Attached, attached, creating, creation, root};
use crate::core::queue::Queued;

/// A file of which the index knows one name, the server has given it another, and this client takes the first.
struct Losing {
    attached: Attached,
    fid: Fid,
    linked: Queued,
    removed: Queued,
}

impl Losing {
    fn new() -> Self {
        let attached = attached();
        let (reply, edit) = creation();
        let fid = reply.objects[1].fid;
        attached.index.applied(&reply, attached.session, std::slice::from_ref(&edit)).unwrap();
        let queued = |seq, op| {
            let id = StoreId { seq, ..creating().record.id };
            Queued { record: CmlRecord { id, op, ..creating().record }, ..creating() }
        };
        let linked = queued(2, CmlOp::Link { parent: root(), name: Name::new(&b"g"[..]).unwrap(), fid });
        let removed = queued(3, CmlOp::Remove { parent: root(), name: edit.name, fid });
        attached.index.push_pending(&linked);
        attached.index.push_pending(&removed);
        Self { attached, fid, linked, removed }
    }

    /// Returns the file as the server has it then.
    fn object(&self, version: u64, nlink: u32) -> Object {
        let mut object = creation().0.objects[1].clone();
        object.status.status_version = StatusVersion(version);
        object.status.nlink = nlink;
        object
    }

    fn answer(&self, change: u64, object: Object) -> ApplyReply {
        let (change, objects) = (ChangeNumber(change), vec![object]);
        ApplyReply { change, objects, directories: Vec::new(), ..creation().0 }
    }

    fn applied(&self, queued: &Queued, change: u64) {
        let grant = self.attached.grant(change);
        self.attached.index.applied_unanswered(std::slice::from_ref(queued), grant).unwrap();
    }

    fn show(&self, object: Object, change: u64) {
        self.attached.index.install(&[object], self.attached.grant(change)).unwrap();
    }

    fn nlink(&self) -> Option<u32> {
        self.attached.index.object(self.fid.vnode).unwrap().map(|known| known.object.status.nlink)
    }
}

/// A question about something else has been answered: the file itself was not shown since.
#[test]
fn a_name_that_the_server_is_known_to_have_given_is_counted_before_the_file_is_shown() {
    let losing = Losing::new();
    losing.applied(&losing.linked, 5);
    assert_eq!(losing.nlink(), Some(1));
    losing.applied(&losing.removed, 6);
    assert_eq!(losing.nlink(), Some(1));
}

#[test]
fn an_answer_from_before_a_name_was_given_takes_that_not_away() {
    for is_shown in [true, false] {
        let losing = Losing::new();
        losing.applied(&losing.linked, 5);
        if is_shown {
            losing.show(losing.object(3, 2), 5);
            losing.attached.index.distrust(std::iter::once(losing.fid)).unwrap();
        }
        losing.show(losing.object(2, 1), 4 + u64::from(is_shown));
        assert_eq!(losing.nlink(), Some(1), "a status");
        let store = losing.answer(4, losing.object(2, 1));
        losing.attached.index.stored(&store, losing.attached.session, losing.fid).unwrap();
        assert_eq!(losing.nlink(), Some(1), "the answer to a store");
        losing.attached.index.applied_pending(&store, losing.attached.session, &losing.linked).unwrap();
        assert_eq!(losing.nlink(), Some(1), "its own answer");
        let removed = losing.answer(6, losing.object(4, 1));
        losing.attached.index.applied_pending(&removed, losing.attached.session, &losing.removed).unwrap();
        assert_eq!(losing.nlink(), Some(1));
    }
}

/// A removal does not wait for what is stored, and may be done first; its answer may come last.
#[test]
fn an_answer_with_a_removal_in_it_that_is_not_answered_counts_it_once() {
    for is_store_newer in [true, false] {
        let losing = Losing::new();
        let linked = losing.answer(2, losing.object(2, 2));
        losing.attached.index.applied_pending(&linked, losing.attached.session, &losing.linked).unwrap();
        assert_eq!(losing.nlink(), Some(1));
        let (stored, removed) = if is_store_newer { (4, 3) } else { (3, 4) };
        let store = losing.answer(stored, losing.object(stored, 1 + u32::from(!is_store_newer)));
        losing.attached.index.stored(&store, losing.attached.session, losing.fid).unwrap();
        assert_eq!(losing.nlink(), Some(1), "the answer to a store");
        let removal = losing.answer(removed, losing.object(removed, 1));
        losing.attached.index.applied_pending(&removal, losing.attached.session, &losing.removed).unwrap();
        assert_eq!(losing.nlink(), Some(1), "the answer to the removal");
    }
}

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
