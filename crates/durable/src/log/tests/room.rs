//! Tests of room ahead of the records: taken before it is needed, never mistaken for damage, done without when there
//! is none.

use super::*;

const LARGE: LogConfig = LogConfig { segment_bytes: 4 << 20 };

fn open_large(disk: &MemoryDisk) -> (AppendLog, LogRecovery) {
    AppendLog::open(Arc::new(disk.clone()), "log", LARGE).unwrap()
}

fn size(disk: &MemoryDisk) -> u64 {
    files(disk).iter().map(|(_, bytes)| bytes.len() as u64).sum()
}

#[test]
fn what_is_appended_and_synced_changes_no_size_until_the_room_is_used_up() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open_large(&disk);
    append(&mut log, 1, 1);
    let ahead = size(&disk);
    assert!(ahead > ROOM_BYTES && ahead < 2 * ROOM_BYTES);
    while log.end() + 200 < ahead {
        let next = log.next_lsn().0;
        append(&mut log, next, next);
        log.sync().unwrap();
        assert_eq!(size(&disk), ahead);
    }
    let next = log.next_lsn().0;
    append(&mut log, next, next + 9);
    assert!(size(&disk) > ahead + ROOM_BYTES / 2);
}

#[test]
fn room_is_neither_torn_nor_damage_and_is_used_by_the_next_owner() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open_large(&disk);
    append(&mut log, 1, 20);
    log.sync().unwrap();
    let sealed = disk.kill();
    append(&mut log, 21, 22);
    for (image, last) in [(sealed, 20), (disk.kill(), 22)] {
        let ahead = size(&image);
        let (mut log, found) = open_large(&image);
        assert_eq!(found, LogRecovery { first: Lsn(1), next: Lsn(last + 1), torn: None });
        append(&mut log, last + 1, last + 9);
        assert_eq!(numbers(&log), upto(last + 9));
        assert_eq!(size(&image), ahead);
    }
}

#[test]
fn a_log_that_is_closed_ends_with_its_records() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open_large(&disk);
    append(&mut log, 1, 20);
    log.close().unwrap();
    assert_eq!(size(&disk), log.bytes() + RecordHeader::BYTES as u64);
    append(&mut log, 21, 22);
    log.close().unwrap();
    let (log, found) = open_large(&disk.crash());
    assert_eq!((found.next, found.torn), (Lsn(23), None));
    assert_eq!(numbers(&log), upto(22));
}

#[test]
fn zeros_in_place_of_a_durable_record_are_damage() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open_large(&disk);
    append(&mut log, 1, 5);
    let start = usize::try_from(log.end()).unwrap();
    append(&mut log, 6, 6);
    let end = usize::try_from(log.end()).unwrap();
    log.sync().unwrap();
    let mut files = files(&disk);
    files[0].1[start..end].fill(0);
    assert!(matches!(open(&with_files(&files)), Err(LogError::Damaged { offset, .. }) if offset == start as u64));
}

#[test]
fn a_disk_with_room_for_a_record_but_none_ahead_takes_it() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open_large(&disk);
    disk.set_capacity(size(&disk) + 300);
    append(&mut log, 1, 4);
    log.sync().unwrap();
    assert_eq!(numbers(&open_large(&disk.crash()).0), upto(4));
    let full = loop {
        match log.append(&[1; 50]) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(full, LogError::Io(error) if error.kind() == io::ErrorKind::StorageFull));
}
