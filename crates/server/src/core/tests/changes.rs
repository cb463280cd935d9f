//! Tests of the changes since a mark: all of them, and of this history only.

use std::collections::BTreeSet;

use mafs_durable::Kv;
use mafs_proto::call::{ChangedObject, Mark};
use mafs_proto::{Base, ChangeNumber, CmlOp, Fid, VnodeId};
use proptest::prelude::*;

use super::{ROOT, World, name};
use crate::core::changes::{self, Found, KEPT};

impl World {
    fn last(&self) -> ChangeNumber {
        self.overlay().begin().state().unwrap().change
    }

    fn mark(&self, change: ChangeNumber) -> Option<Mark> {
        changes::mark(&self.overlay().begin(), change).unwrap()
    }

    fn since(&self, mark: Mark, objects_max: usize) -> Option<Found> {
        changes::since(&self.kv, &self.overlay().begin(), mark, objects_max).unwrap()
    }

    /// Returns all parts of the answer.
    fn all_since(&self, mut mark: Mark, objects_max: usize) -> Option<BTreeSet<VnodeId>> {
        let mut all = BTreeSet::new();
        loop {
            let found = self.since(mark, objects_max)?;
            assert!(found.through.change > mark.change || !found.more, "a part brings something");
            all.extend(found.objects.iter().map(|object| object.vnode));
            for ChangedObject { vnode, version } in found.objects {
                let node = self.overlay().begin().node(Fid { vnode, ..self.fid_like(vnode) }).ok();
                assert_eq!(version, node.map(|node| node.status.status_version));
            }
            mark = found.through;
            if !found.more {
                assert_eq!(mark.change, self.last());
                return Some(all);
            }
        }
    }

    fn fid_like(&self, vnode: VnodeId) -> Fid {
        if vnode == VnodeId::ROOT { ROOT } else { self.fids.first() }
    }
}

proptest! {
    /// Files are made, written and removed; after each a client may have left.
    #[test]
    fn proptest_whoever_left_after_a_change_hears_of_all_behind_it(
        steps in proptest::collection::vec((0u8..3, 0usize..6), 1..40),
        objects_max in 1usize..10,
    ) {
        let mut world = World::new();
        let mut files: Vec<(Fid, String, u64)> = Vec::new();
        let mut touched: Vec<(ChangeNumber, BTreeSet<VnodeId>)> = Vec::new();
        for (number, (what, which)) in steps.into_iter().enumerate() {
            let reply = if what == 0 || files.is_empty() {
                let (fid, text) = (world.next_fid(), format!("f{number}"));
                files.push((fid, text.clone(), 1));
                world.apply(super::create(ROOT, &text, fid)).unwrap()
            } else if what == 1 {
                let at = which % files.len();
                let (fid, _, version) = &mut files[at];
                *version += 1;
                world.store(*fid, Base::Version(mafs_proto::DataVersion(*version - 1)), b"content").unwrap()
            } else {
                let (fid, text, _) = files.swap_remove(which % files.len());
                world.apply(CmlOp::Remove { parent: ROOT, name: name(&text), fid }).unwrap()
            };
            touched.push((reply.change, reply.objects.iter().map(|object| object.fid.vnode).collect()));
        }
        for (change, _) in &touched {
            let mark = world.mark(*change).unwrap();
            let later = touched.iter().filter(|(later, _)| later > change).flat_map(|(_, all)| all).copied();
            prop_assert_eq!(world.all_since(mark, objects_max), Some(later.collect()));
        }
    }
}

#[test]
fn a_mark_of_another_history_is_not_known() {
    let mut worlds = [World::new(), World::new()];
    for (number, world) in worlds.iter_mut().enumerate() {
        world.create(ROOT, &format!("of-{number}"));
        world.create(ROOT, "of-both");
    }
    let [one, other] = worlds.each_ref().map(|world| world.mark(world.last()).unwrap());
    assert_eq!(one.change, other.change);
    assert_ne!(one.tag, other.tag, "what was before tells them apart");
    assert_eq!(worlds[0].since(other, 10), None);
    let future = Mark { change: one.change.next(), ..one };
    assert_eq!(worlds[0].since(future, 10), None);
    assert_eq!(worlds[0].since(one, 10).map(|found| found.objects), Some(Vec::new()));
}

/// A store of a version that kept no changes knows nothing of those.
#[test]
fn what_is_not_kept_is_not_known() {
    let mut world = World::new();
    world.create(ROOT, "f");
    let first = world.mark(world.last()).unwrap();
    world.create(ROOT, "g");
    let second = world.mark(world.last()).unwrap();
    world.create(ROOT, "h");
    let overlay = world.overlay();
    let mut transaction = overlay.begin();
    changes::note(&mut transaction, ChangeNumber(first.change.0 + KEPT), std::iter::empty(), b"").unwrap();
    let batch = transaction.finish();
    world.kv.apply(&batch).unwrap();
    assert_eq!(world.mark(first.change), None);
    assert_eq!(world.since(first, 10), None);
    assert_eq!(world.since(second, 10), None, "there is a gap behind it");
    assert_eq!(world.mark(ChangeNumber(0)), None);
}
