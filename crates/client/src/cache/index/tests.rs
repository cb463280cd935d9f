//! What an index that could not be written still says.

use std::sync::Arc;

use mafs_durable::MemoryKv;
use mafs_proto::call::{ApplyReply, DirectoryChange};
use mafs_proto::{
    ChangeNumber, DataVersion, Fid, HistoryId, Kind, Mode, Name, Object, ServerId, Status, StatusVersion, Timestamp,
    Uniquifier, VnodeId, VolumeId,
};

use super::{Index, NameEdit};
use crate::cache::CachedEntry;

const SERVER: ServerId = ServerId([1; 16]);
const HISTORY: HistoryId = HistoryId(2);

fn root() -> Fid {
    Fid::root(VolumeId(1))
}

fn object(fid: Fid, kind: Kind, version: u64) -> Object {
    let time = Timestamp::default();
    let status = Status {
        kind,
        mode: Mode::from_bits(0o755),
        nlink: 1,
        uid: 0,
        gid: 0,
        // A directory's is the number of its names.
        size: version - 1,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        data_version: DataVersion(version),
        status_version: StatusVersion(version),
        xattrs: None,
    };
    Object { fid, status, target: None }
}

/// The server has made the file `f` in the root.
fn creation() -> (ApplyReply, NameEdit) {
    let fid = Fid { vnode: VnodeId(2), unique: Uniquifier(1), ..root() };
    let reply = ApplyReply {
        change: ChangeNumber(1),
        directories: vec![DirectoryChange { fid: root(), before: DataVersion(1), after: DataVersion(2) }],
        objects: vec![object(root(), Kind::Directory, 2), object(fid, Kind::File, 1)],
        hash: None,
    };
    let entry = Some(CachedEntry { fid, kind: Kind::File });
    (reply, NameEdit { parent: root(), name: Name::new(&b"f"[..]).unwrap(), entry })
}

fn index() -> (MemoryKv, Index) {
    let kv = MemoryKv::new();
    let index = Index::open(Arc::new(kv.clone())).unwrap();
    index.attached(SERVER, HISTORY, ChangeNumber(0)).unwrap();
    index.install(&[object(root(), Kind::Directory, 1)]).unwrap();
    (kv, index)
}

#[test]
fn after_a_change_that_could_not_be_noted_nothing_is_valid_until_it_was_asked_for_again() {
    let (kv, index) = index();
    assert!(index.valid_object(VnodeId::ROOT).unwrap().is_some());
    let (reply, edit) = creation();
    kv.set_full(true);
    index.check_writable().unwrap_err();
    index.applied(&reply, &[edit]).unwrap_err();
    assert_eq!(index.valid_object(VnodeId::ROOT).unwrap(), None);
    kv.set_full(false);
    assert_eq!(
        index.valid_object(VnodeId::ROOT).unwrap(),
        None,
        "there is room, but what is known is as old as before"
    );
    index.install(&[object(root(), Kind::Directory, 2)]).unwrap();
    let valid = index.valid_object(VnodeId::ROOT).unwrap().unwrap();
    assert_eq!((valid.object.status.data_version, valid.entries), (DataVersion(2), None));
}

#[test]
fn a_restart_after_a_change_that_could_not_be_noted_trusts_nothing_from_before() {
    for settled in [true, false] {
        let (kv, index) = index();
        let (reply, edit) = creation();
        kv.set_full(true);
        index.applied(&reply, &[edit]).unwrap_err();
        kv.set_full(false);
        if settled {
            index.install(&[object(root(), Kind::Directory, 2)]).unwrap();
        }
        let index = Index::open(Arc::new(kv)).unwrap();
        assert!(!index.attached(SERVER, HISTORY, reply.change).unwrap(), "something was missed");
        assert_eq!(index.valid_object(VnodeId::ROOT).unwrap(), None);
    }
}

#[test]
fn what_cannot_be_distrusted_for_want_of_room_is_not_trusted_either() {
    let (kv, index) = index();
    kv.set_full(true);
    index.distrust(std::iter::once(root())).unwrap_err();
    assert_eq!(index.valid_object(VnodeId::ROOT).unwrap(), None);
}
