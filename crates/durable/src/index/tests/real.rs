//! The logged index on a real disk with sled.

use std::path::Path;

use super::*;
use crate::DirDisk;

/// Number of places that are tried: each takes some milliseconds.
const FLIPS: usize = 60;

fn open(root: &Path) -> Result<LoggedIndex, LoggedIndexError> {
    let disk = DirDisk::new(root.to_owned())?;
    let opener = sled_opener(disk.path("v/index"));
    LoggedIndex::open(Arc::new(disk), "v", opener, config())
}

/// Makes an index with two checkpoints, a cut journal, and commits behind both.
fn aged(root: &Path) -> Lsn {
    let index = open(root).unwrap();
    for round in 0..3 {
        commit(&index, round * 30 + 1, round * 30 + 30);
        index.checkpoint().unwrap();
    }
    commit(&index, 91, 100);
    index.close().unwrap();
    Lsn(101)
}

#[test]
fn it_goes_on_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let next = aged(dir.path());
    let index = open(dir.path()).unwrap();
    assert_eq!(index.next_lsn(), next);
    assert_eq!(contents(index.index()), expected(next));
    commit(&index, 101, 110);
    assert_eq!(contents(index.index()), expected(Lsn(111)));
}

#[test]
fn damaged_sled_files_are_set_aside_and_the_index_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let next = aged(dir.path());
    for damage in ["garbage", "emptied", "flipped"] {
        let db = dir.path().join("v/index/db");
        let mut bytes = std::fs::read(&db).unwrap();
        match damage {
            "garbage" => bytes.fill(0x5a),
            "emptied" => bytes.clear(),
            _ => bytes.iter_mut().step_by(64).for_each(|byte| *byte ^= 0xff),
        }
        std::fs::write(&db, bytes).unwrap();
        let index = open(dir.path()).unwrap();
        assert_eq!(contents(index.index()), expected(next), "{damage}");
        index.close().unwrap();
        drop(index);
        let asides = std::fs::read_dir(dir.path().join("v"))
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("index.damaged-"));
        assert!(asides.count() <= 1, "at most one is kept");
    }
}

/// Makes an index large enough for sled to have several pages in several segments.
fn large(root: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let index = open(root).unwrap();
    for number in 0..400_u32 {
        let mut batch = Batch::default();
        batch.put(format!("k{:04}", number % 300), vec![0xaa; 2000 + usize::try_from(number).unwrap()]);
        batch.put("last", number.to_le_bytes());
        index.commit(&[batch]).unwrap();
    }
    index.close().unwrap();
    contents(index.index())
}

#[test]
fn a_flipped_bit_anywhere_in_sleds_file_leaves_the_index_right() {
    let dir = tempfile::tempdir().unwrap();
    let expected = large(dir.path());
    let db = dir.path().join("v/index/db");
    let good = std::fs::read(&db).unwrap();
    let used: Vec<usize> = (0..good.len()).filter(|at| good[*at] != 0).collect();
    for at in used.iter().step_by(used.len() / FLIPS) {
        let mut bytes = good.clone();
        bytes[*at] ^= 1 << (at % 8);
        std::fs::write(&db, bytes).unwrap();
        for start in ["first", "second"] {
            assert_eq!(contents(open(dir.path()).unwrap().index()), expected, "byte {at}, {start} start");
        }
    }
}

#[test]
fn a_deleted_index_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let next = aged(dir.path());
    std::fs::remove_dir_all(dir.path().join("v/index")).unwrap();
    assert_eq!(contents(open(dir.path()).unwrap().index()), expected(next));
}

#[test]
fn a_damaged_journal_is_refused_with_its_place() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    aged(dir.path());
    let journal = dir.path().join("v/journal");
    let mut names: Vec<_> = std::fs::read_dir(&journal).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let file = std::fs::OpenOptions::new().write(true).open(journal.join(&names[0])).unwrap();
    file.write_all_at(&[0xee; 3], 300).unwrap();
    match open(dir.path()).err() {
        Some(LoggedIndexError::Damaged { segment, offset, .. }) => {
            assert_eq!(segment, names[0].to_string_lossy());
            assert!(offset <= 300);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_index_in_use_is_told_apart_from_a_damaged_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let _held = crate::SledKv::open(&path).unwrap();
    match crate::SledKv::open(&path).err() {
        Some(KvError::Io(error)) => {
            assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
            assert!(error.to_string().contains("in use by another process"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_indexes_answer_alike() {
    let dir = tempfile::tempdir().unwrap();
    let sled = crate::SledKv::open(&dir.path().join("index")).unwrap();
    for kv in [&sled as &dyn Kv, &MemoryKv::new()] {
        let mut changes = Batch::default();
        for key in ["a1", "a2", "a3", "b1", "b2"] {
            changes.put(key, key);
        }
        changes.remove("a2");
        changes.put("a3", "twice");
        kv.apply(&changes).unwrap();
        kv.sync().unwrap();
        assert_eq!(kv.get(b"a3").unwrap().unwrap(), b"twice");
        assert_eq!(kv.get(b"a2").unwrap(), None);
        let keys = |prefix: &str, after: Option<&str>, limit| -> Vec<String> {
            let pairs = kv.scan(prefix.as_bytes(), after.map(str::as_bytes), limit).unwrap();
            pairs.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect()
        };
        assert_eq!(keys("a", None, 9), ["a1", "a3"]);
        assert_eq!(keys("a", Some("a1"), 9), ["a3"]);
        assert_eq!(keys("b", Some("a1"), 9), ["b1", "b2"]);
        assert_eq!(keys("a", Some("b"), 9), [""; 0]);
        assert_eq!(keys("", None, 3), ["a1", "a3", "b1"]);
    }
}
