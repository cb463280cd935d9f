//! Tests of crashes: the same rules for the twin and, as far as one can look, for a real directory.

use std::time::Duration;

use super::*;
use crate::DirDisk;

/// Time from one change to the next.
const TICK: Duration = Duration::from_millis(1);

fn read(disk: &dyn Disk, path: &str) -> Option<Vec<u8>> {
    let file = disk.open(path).ok()?;
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    Some(bytes)
}

fn write(disk: &dyn Disk, path: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = disk.create(path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

/// Makes a disk with a file `a` and its name, both durable.
fn with_durable_file() -> MemoryDisk {
    let disk = MemoryDisk::new();
    write(&disk, "a", b"one").sync_data().unwrap();
    disk.sync_dir("").unwrap();
    disk
}

#[test]
fn both_disks_answer_alike() {
    let dir = tempfile::tempdir().unwrap();
    let real = DirDisk::new(dir.path().to_owned()).unwrap();
    for disk in [&real as &dyn Disk, &MemoryDisk::new()] {
        disk.create_dir_all(&["d/e"]).unwrap();
        disk.create_dir_all(&["d/e"]).unwrap();
        let file = write(disk, "d/e/f", b"hello");
        file.write_all_at(b"!", 7).unwrap();
        assert_eq!(read(disk, "d/e/f").unwrap(), b"hello\0\0!");
        let mut tail = [0; 8];
        assert_eq!(file.read_at(&mut tail, 5).unwrap(), 3);
        assert_eq!(file.read_at(&mut tail, 99).unwrap(), 0);
        file.set_len(2).unwrap();
        file.fallocate(Fallocate::Reserve, 0, 4).unwrap();
        assert_eq!(file.len().unwrap(), 4);
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        file.set_modified(time).unwrap();
        assert_eq!(file.modified().unwrap(), time);
        write(disk, "d/g", b"other");
        disk.rename("d/e/f", "d/g").unwrap();
        assert_eq!(disk.list("d").unwrap(), ["e", "g"]);
        assert_eq!(disk.open("d/e/f").err().unwrap().kind(), io::ErrorKind::NotFound);
        assert_eq!(disk.list("nowhere").unwrap_err().kind(), io::ErrorKind::NotFound);
        disk.sync_dir("d").unwrap();
        disk.sync_all().unwrap();
        disk.remove("d/g").unwrap();
        assert_eq!(file.len().unwrap(), 4, "an open handle keeps its bytes");
        disk.remove_dir_all("d").unwrap();
        disk.remove_dir_all("d").unwrap();
        assert_eq!(disk.list("").unwrap(), [""; 0]);
    }
}

#[test]
fn every_change_moves_a_time_that_nobody_can_set() {
    let dir = tempfile::tempdir().unwrap();
    let real = DirDisk::new(dir.path().to_owned()).unwrap();
    for disk in [&real as &dyn Disk, &MemoryDisk::new()] {
        let file = write(disk, "f", b"hello");
        let (long_ago, mut seen) = (SystemTime::UNIX_EPOCH, Vec::new());
        for round in 0..4 {
            seen.push(file.stat().unwrap().changed);
            // The clock of an older kernel ticks every 10 ms.
            std::thread::sleep(Duration::from_millis(12));
            match round {
                0 => file.write_all_at(b"hello", 0).unwrap(),
                1 => file.set_len(3).unwrap(),
                2 => file.set_modified(long_ago).unwrap(),
                _ => assert_eq!(file.modified().unwrap(), long_ago),
            }
        }
        assert!(seen.is_sorted_by(|one, next| one < next), "{seen:?}");
        assert_eq!(file.stat().unwrap().changed, seen[3], "a look moves nothing");
    }
}

#[test]
fn changes_that_nobody_looks_at_in_between_have_one_time() {
    let file = write(&MemoryDisk::new(), "f", b"hello");
    file.write_all_at(b"HELLO", 0).unwrap();
    let first = file.stat().unwrap();
    assert_eq!((first.modified, first.changed), (first.changed, SystemTime::UNIX_EPOCH + TICK));
    file.write_all_at(b"hello", 0).unwrap();
    assert!(file.stat().unwrap().changed > first.changed);
}

#[test]
fn a_store_through_a_mapping_moves_the_times_if_its_page_is_clean() {
    let disk = MemoryDisk::new();
    write(&disk, "f", &[1; 5000]);
    let file = disk.open_file("f").unwrap();
    let moves = |store: &dyn Fn()| {
        let before = file.stat().unwrap().changed;
        store();
        file.stat().unwrap().changed > before
    };
    assert!(moves(&|| file.store(1, b"a", 0).unwrap()));
    assert!(!moves(&|| file.store(1, b"b", 10).unwrap()), "the page is writable");
    assert!(moves(&|| file.store(2, b"c", 20).unwrap()), "not through another mapping");
    assert!(moves(&|| file.store(1, b"d", 4096).unwrap()), "nor another page");
    file.sync_data().unwrap();
    assert!(moves(&|| file.store(1, b"e", 30).unwrap()), "clean pages are protected");
    file.store(1, b"beyond", 4999).unwrap();
    assert_eq!((file.len().unwrap(), read(&disk, "f").unwrap()[4999]), (5000, b'b'));
}

#[test]
fn the_bytes_of_a_write_come_after_its_times() {
    let disk = MemoryDisk::new();
    let file = disk.create_file("f").unwrap();
    let before = file.stat().unwrap().changed;
    file.begin_write().unwrap();
    let begun = file.stat().unwrap();
    assert_eq!((begun.bytes, begun.changed > before), (0, true));
    file.go_on_writing(b"late", 0).unwrap();
    assert_eq!((read(&disk, "f").unwrap(), file.stat().unwrap().changed), (b"late".to_vec(), begun.changed));
}

#[test]
fn a_crash_keeps_what_was_synced_and_a_kill_keeps_all() {
    let disk = with_durable_file();
    disk.open("a").unwrap().write_all_at(b"two and more", 0).unwrap();
    write(&disk, "b", b"new").sync_data().unwrap();
    let after = disk.crash();
    assert_eq!(read(&after, "a").unwrap(), b"one");
    assert_eq!(read(&after, "b"), None, "its name was not synced");
    assert_eq!(read(&disk.kill(), "a").unwrap(), b"two and more");
    assert_eq!(read(&disk.kill(), "b").unwrap(), b"new");
}

#[test]
fn a_sync_of_all_keeps_every_file_and_name() {
    let disk = with_durable_file();
    disk.create_dir_all(&["d"]).unwrap();
    write(&disk, "d/b", b"new");
    disk.rename("a", "d/c").unwrap();
    disk.open("d/c").unwrap().write_all_at(b"two", 0).unwrap();
    disk.sync_all().unwrap();
    let after = disk.crash();
    assert_eq!(after.list("").unwrap(), ["d"]);
    assert_eq!([read(&after, "d/b"), read(&after, "d/c")], [Some(b"new".to_vec()), Some(b"two".to_vec())]);
}

#[test]
fn a_rename_is_durable_after_its_directory_is_synced() {
    let disk = with_durable_file();
    disk.rename("a", "b").unwrap();
    assert_eq!(disk.crash().list("").unwrap(), ["a"]);
    disk.sync_dir("").unwrap();
    assert_eq!(disk.crash().list("").unwrap(), ["b"]);
}

#[test]
fn a_torn_crash_keeps_parts_but_never_loses_a_renamed_file() {
    let mut lengths = std::collections::BTreeSet::new();
    let mut names = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let disk = with_durable_file();
        disk.open("a").unwrap().write_all_at(b"+tail", 3).unwrap();
        disk.rename("a", "b").unwrap();
        let after = disk.crash_torn(seed);
        let left = after.list("").unwrap();
        let bytes = read(&after, &left[0]).expect("the file is there under some name");
        assert!(b"one+tail".starts_with(&bytes) && bytes.len() >= 3, "{bytes:?}");
        lengths.insert(bytes.len());
        names.insert(left);
    }
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8]);
    assert_eq!(names.len(), 3, "old name, new name, both");
}

#[test]
fn a_frozen_disk_keeps_nothing_of_what_comes_after() {
    let disk = with_durable_file();
    disk.freeze_after_syncs(disk.syncs());
    let file = disk.open("a").unwrap();
    file.write_all_at(b"ONE", 0).unwrap();
    assert!(!disk.frozen());
    file.sync_data().unwrap();
    assert!(disk.frozen());
    write(&disk, "late", b"x").sync_data().unwrap();
    disk.sync_dir("").unwrap();
    assert_eq!(read(&disk.crash(), "a").unwrap(), b"one");
    for seed in 0..20 {
        assert_eq!(disk.crash_torn(seed).list("").unwrap(), ["a"]);
    }
}

#[test]
fn errors_can_be_injected() {
    let disk = MemoryDisk::new();
    disk.set_capacity(4);
    let file = write(&disk, "a", b"four");
    assert_eq!(file.write_all_at(b"x", 4).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(disk.space().unwrap().bytes_free, 0);
    file.write_all_at(b"FOUR", 0).unwrap();
    disk.sync_dir("").unwrap();
    disk.remove("a").unwrap();
    assert_eq!(disk.space().unwrap().bytes_free, 0, "it is open");
    drop(file);
    assert_eq!(disk.space().unwrap().bytes_free, 4, "a removed file gives its room back");
    disk.fail_syncs_from(0);
    assert!(disk.sync_dir("").is_err());
}

#[test]
fn what_a_failed_sync_has_lost_can_be_read_and_is_durable_only_when_it_is_written_again() {
    let disk = with_durable_file();
    let file = disk.open("a").unwrap();
    file.write_all_at(b"two", 0).unwrap();
    disk.fail_sync(disk.syncs());
    assert!(file.sync_data().is_err() && disk.has_failed());
    file.sync_data().unwrap();
    assert_eq!(read(&disk.kill(), "a").unwrap(), b"two");
    assert_eq!(read(&disk.crash(), "a").unwrap(), b"one");
    file.write_all_at(b"two", 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(read(&disk.crash(), "a").unwrap(), b"two");
}

#[test]
fn a_name_that_a_failed_sync_has_lost_is_durable_only_when_it_is_given_again() {
    let disk = with_durable_file();
    write(&disk, "b", b"two").sync_data().unwrap();
    disk.fail_sync(disk.syncs());
    assert!(disk.sync_dir("").is_err());
    disk.sync_dir("").unwrap();
    assert_eq!((read(&disk, "b").unwrap(), read(&disk.crash(), "b")), (b"two".to_vec(), None));
    write(&disk, "c", b"two").sync_data().unwrap();
    disk.rename("c", "b").unwrap();
    disk.sync_dir("").unwrap();
    assert_eq!(read(&disk.crash(), "b").unwrap(), b"two");
}

#[test]
fn a_disk_that_dies_in_a_sync_says_so_only_afterwards() {
    let disk = with_durable_file();
    let file = disk.open("a").unwrap();
    file.write_all_at(b"two", 0).unwrap();
    disk.die_at_sync(disk.syncs());
    file.sync_data().unwrap();
    assert!(file.write_all_at(b"3", 0).is_err() && file.sync_data().is_err() && disk.remove("a").is_err());
    assert_eq!(read(&disk.crash(), "a").unwrap(), b"one");
}
