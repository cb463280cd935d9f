//! Tests of a cache as a whole: its identity.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use mafs_arpc::BootClock;
use mafs_proto::{Base, CmlOp, CmlRecord, DataVersion, Fid, Incarnation, StoreId, Timestamp, VolumeId};

use super::{Cache, CacheStorage, ClientId, LogEntry};
use crate::core::log::Stamp;

fn open(path: &Path) -> Cache {
    Cache::open(&CacheStorage::directory(path).unwrap(), Arc::new(BootClock)).unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

fn unanswered(client: ClientId) -> LogEntry {
    let id = StoreId { client, incarnation: Incarnation(3), seq: 1 };
    let base = Base::Version(DataVersion(1));
    let op = CmlOp::Store { fid: Fid::root(VolumeId(1)), base, size: 1, mtime: Timestamp::default() };
    let record =
        CmlRecord { id, depends_on: Vec::new(), time: Timestamp::default(), uid: 0, gid: 0, removes: None, op };
    LogEntry::Logged { record, stamp: Stamp(1), immutable: false }
}

#[test]
fn invariant_2_a_copy_of_a_cache_is_another_client() {
    let dir = tempfile::tempdir().unwrap();
    let [original, copied, moved] = ["original", "copy", "moved"].map(|name| dir.path().join(name));
    let cache = open(&original);
    let client = cache.client;
    cache.cml.append(LogEntry::Incarnation(Incarnation(3))).unwrap();
    cache.cml.append(unanswered(client)).unwrap();
    drop(cache);
    copy(&original, &copied);

    let cache = open(&copied);
    assert_ne!(cache.client, client);
    let log = cache.cml.state();
    assert!(log.logged.is_empty(), "what the original has sent is not the copy's to send");
    assert_eq!(log.incarnation, Some(Incarnation(0)), "it has had no life yet");
    let as_copy = cache.client;
    drop(cache);
    assert_eq!(open(&copied).client, as_copy, "and stays who it has become");

    fs::rename(&original, &moved).unwrap();
    let cache = open(&moved);
    assert_eq!((cache.client, cache.cml.state().logged.len()), (client, 1), "the directory is the same");
}
