//! Tests of extended attributes: what records do to them, and what becomes of them with their object.

use mafs_durable::Kv;
use mafs_proto::{Base, CmlOp, DataVersion, Fid, FsError, StatusVersion, XattrMode, XattrName, XattrValue, Xattrs};

use super::{ROOT, World, name, time};
use crate::core::Node;

fn set(fid: Fid, attribute: &str, value: &[u8], mode: XattrMode) -> CmlOp {
    let value = XattrValue::new(value.to_vec()).unwrap();
    CmlOp::SetXattr { fid, name: xattr_name(attribute), value, mode }
}

fn remove(fid: Fid, attribute: &str) -> CmlOp {
    CmlOp::RemoveXattr { fid, name: xattr_name(attribute) }
}

fn xattr_name(text: &str) -> XattrName {
    XattrName::new(text.as_bytes().to_vec()).unwrap()
}

impl World {
    fn node(&self, fid: Fid) -> Node {
        self.overlay().begin().node(fid).unwrap()
    }

    /// Returns all attributes of an object, as its status names them.
    fn xattrs(&self, fid: Fid) -> Xattrs {
        match self.node(fid).status.xattrs {
            None => Xattrs::default(),
            Some(version) => self.overlay().begin().xattrs(fid, version).unwrap().unwrap(),
        }
    }

    fn value(&self, fid: Fid, attribute: &str) -> Option<Vec<u8>> {
        self.xattrs(fid).get(&xattr_name(attribute)).map(|value| value.as_bytes().to_vec())
    }

    /// Counts the sets of attributes in the index.
    fn kept_xattrs(&self) -> usize {
        self.kv.scan(b"x", None, usize::MAX).unwrap().len()
    }
}

#[test]
fn an_attribute_is_kept_beside_the_others_of_its_object() {
    let mut world = World::new();
    let fid = world.create(ROOT, "f");
    world.apply(set(fid, "user.a", b"one", XattrMode::Either)).unwrap();
    world.apply(set(fid, "user.b", b"\0\xff", XattrMode::Create)).unwrap();
    world.apply(set(fid, "user.a", b"", XattrMode::Replace)).unwrap();
    assert_eq!(world.value(fid, "user.a").as_deref(), Some(&b""[..]));
    assert_eq!(world.value(fid, "user.b").as_deref(), Some(&b"\0\xff"[..]));
    assert_eq!(world.kept_xattrs(), 1);
}

#[test]
fn what_may_not_be_set_or_removed_changes_nothing() {
    let mut world = World::new();
    let fid = world.create(ROOT, "f");
    world.apply(set(fid, "user.a", b"one", XattrMode::Either)).unwrap();
    let before = world.node(fid);
    let refused = [
        (set(fid, "user.a", b"two", XattrMode::Create), FsError::Exists),
        (set(fid, "user.b", b"two", XattrMode::Replace), FsError::NoXattr),
        (set(fid, "user.b", &[0; Xattrs::BYTES_MAX], XattrMode::Either), FsError::NoSpace),
        (remove(fid, "user.b"), FsError::NoXattr),
        (set(Fid { unique: mafs_proto::Uniquifier(9), ..fid }, "user.a", b"", XattrMode::Either), FsError::Stale),
    ];
    for (op, error) in refused {
        assert_eq!(world.apply(op.clone()), Err(error), "{op:?}");
    }
    assert_eq!(world.node(fid), before);
    assert_eq!(world.value(fid, "user.a").as_deref(), Some(&b"one"[..]));
}

#[test]
fn a_change_moves_ctime_and_the_version_and_nothing_else_does() {
    let mut world = World::new();
    let fid = world.create(ROOT, "f");
    let made = world.node(fid).status;
    let reply = world.apply(set(fid, "user.a", b"one", XattrMode::Either)).unwrap();
    let changed = world.node(fid).status;
    assert_eq!((reply.objects.len(), reply.objects[0].status), (1, changed));
    assert_eq!(reply.directories, []);
    assert_eq!(changed.status_version, made.status_version.next());
    assert_eq!(changed.xattrs, Some(changed.status_version));
    assert_eq!((changed.mtime, changed.data_version), (made.mtime, made.data_version));
    assert_eq!(changed.ctime, time(102), "the time of the second record");
    world.store(fid, Base::Version(DataVersion(1)), b"content").unwrap();
    let stored = world.node(fid).status;
    assert_eq!(stored.xattrs, changed.xattrs, "attributes that are known stay known");
    world.apply(remove(fid, "user.a")).unwrap();
    let removed = world.node(fid).status;
    assert_eq!((removed.xattrs, removed.status_version), (None, StatusVersion(4)));
    assert_eq!(world.kept_xattrs(), 0);
}

#[test]
fn attributes_go_with_the_last_name_of_their_object() {
    let mut world = World::new();
    let (fid, other) = (world.create(ROOT, "f"), world.create(ROOT, "other"));
    let dir = world.make_dir(ROOT, "d");
    for fid in [fid, other, dir, ROOT] {
        world.apply(set(fid, "user.a", b"one", XattrMode::Either)).unwrap();
    }
    world.apply(CmlOp::Link { parent: dir, name: name("second"), fid }).unwrap();
    world.apply(CmlOp::Remove { parent: ROOT, name: name("f"), fid }).unwrap();
    assert_eq!(world.value(fid, "user.a").as_deref(), Some(&b"one"[..]));
    assert_eq!(world.kept_xattrs(), 4);
    world.apply(CmlOp::Remove { parent: dir, name: name("second"), fid }).unwrap();
    world.apply(CmlOp::RemoveDir { parent: ROOT, name: name("d"), fid: dir }).unwrap();
    assert_eq!(world.kept_xattrs(), 2);
    let (replaced, mode) = (Some(other), mafs_proto::RenameMode::Replace);
    let moved = world.create(ROOT, "moved");
    world
        .apply(CmlOp::Rename {
            from_parent: ROOT,
            from_name: name("moved"),
            to_parent: ROOT,
            to_name: name("other"),
            fid: moved,
            replaced,
            mode,
        })
        .unwrap();
    assert_eq!(world.kept_xattrs(), 1);
}

#[test]
fn invariant_2_a_set_that_comes_again_has_no_second_effect() {
    let mut world = World::new();
    let fid = world.create(ROOT, "f");
    let record = world.next_record(set(fid, "user.a", b"one", XattrMode::Create));
    let first = world.apply_record(record.clone(), None).unwrap();
    world.apply(remove(fid, "user.a")).unwrap();
    assert_eq!(world.apply_record(record, None), Ok(first));
    assert_eq!(world.xattrs(fid), Xattrs::default());
}
