//! Tests of the append log on the memory twin: crashes, torn writes, damage.

mod damage;
mod room;
mod torn;

use super::*;
use crate::MemoryDisk;

/// A small size, so that every test crosses segments.
const SEGMENT_BYTES: u64 = 400;

fn open(disk: &MemoryDisk) -> Result<(AppendLog, LogRecovery), LogError> {
    AppendLog::open(Arc::new(disk.clone()), "log", LogConfig { segment_bytes: SEGMENT_BYTES })
}

fn payload(number: u64) -> Vec<u8> {
    let length = usize::try_from(number * 37 % 90).unwrap();
    vec![u8::try_from(number % 251).unwrap(); length]
}

/// Appends the records `from..=to`, their payloads as [`payload`] says.
fn append(log: &mut AppendLog, from: u64, to: u64) {
    for number in from..=to {
        assert_eq!(log.append(&payload(number)).unwrap(), Lsn(number));
    }
}

/// Returns the numbers in the log; their payloads must be right.
fn numbers(log: &AppendLog) -> Vec<u64> {
    let records = log.read(log.first_lsn()).map(|record| {
        let (lsn, bytes) = record.unwrap();
        assert_eq!(bytes, payload(lsn.0));
        lsn.0
    });
    records.collect()
}

fn upto(last: u64) -> Vec<u64> {
    (1..=last).collect()
}

/// Returns all files of the log, by name.
fn files(disk: &MemoryDisk) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| {
        let file = disk.open(&format!("log/{name}")).unwrap();
        let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
        file.read_at(&mut bytes, 0).unwrap();
        (name, bytes)
    };
    disk.list("log").unwrap().into_iter().map(read).collect()
}

/// Makes a disk with these files, all durable.
fn with_files(files: &[(String, Vec<u8>)]) -> MemoryDisk {
    let disk = MemoryDisk::new();
    disk.create_dir_all(&["log"]).unwrap();
    for (name, bytes) in files {
        let file = disk.create(&format!("log/{name}")).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file.sync_data().unwrap();
    }
    disk.sync_dir("log").unwrap();
    disk
}

#[test]
fn records_come_back_in_order() {
    let disk = MemoryDisk::new();
    let (mut log, found) = open(&disk).unwrap();
    assert_eq!(found, LogRecovery { first: Lsn(1), next: Lsn(1), torn: None });
    append(&mut log, 1, 30);
    assert_eq!(numbers(&log), upto(30), "also before a sync");
    log.sync().unwrap();
    append(&mut log, 31, 40);
    assert!(disk.list("log").unwrap().len() > 3);
    let (log, found) = open(&disk.kill()).unwrap();
    assert_eq!(found, LogRecovery { first: Lsn(1), next: Lsn(41), torn: None });
    assert_eq!(numbers(&log), upto(40));
    assert_eq!(log.read(Lsn(25)).next().unwrap().unwrap().0, Lsn(25));
    assert!(log.read(Lsn(41)).next().is_none());
    assert!(log.read(Lsn(99)).next().is_none());
}

#[test]
fn bytes_are_those_of_the_files() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk).unwrap();
    append(&mut log, 1, 20);
    // No record written here ends with a zero, and no seal does.
    let used = |bytes: &Vec<u8>| bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    let in_files = |disk: &MemoryDisk| files(disk).iter().map(|(_, bytes)| used(bytes)).sum::<u64>();
    assert_eq!(log.bytes(), in_files(&disk));
    log.sync().unwrap();
    assert_eq!(log.bytes() + RecordHeader::BYTES as u64, in_files(&disk), "a seal is no part of the log");
    assert_eq!(log.bytes_from(Lsn(1)), log.bytes());
    assert_eq!(open(&disk.kill()).unwrap().0.bytes(), log.bytes());
}

#[test]
fn a_record_of_one_megabyte_fits_and_a_longer_one_changes_nothing() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk).unwrap();
    log.append(&vec![7; AppendLog::RECORD_BYTES_MAX]).unwrap();
    let too_long = log.append(&vec![7; AppendLog::RECORD_BYTES_MAX + 1]);
    assert!(matches!(too_long, Err(LogError::TooLong { bytes }) if bytes == AppendLog::RECORD_BYTES_MAX + 1));
    assert_eq!(log.append(b"").unwrap(), Lsn(2));
    log.sync().unwrap();
    let (log, _) = open(&disk.crash()).unwrap();
    let lengths: Vec<usize> = log.read(Lsn(1)).map(|record| record.unwrap().1.len()).collect();
    assert_eq!(lengths, [AppendLog::RECORD_BYTES_MAX, 0]);
}

#[test]
fn truncation_deletes_whole_segments_and_never_the_last() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk).unwrap();
    append(&mut log, 1, 40);
    log.sync().unwrap();
    let early = log.read(Lsn(1));
    log.truncate_before(Lsn(20)).unwrap();
    let first = log.first_lsn();
    assert!(first > Lsn(1) && first <= Lsn(20));
    assert!(matches!(log.read(Lsn(1)).next(), Some(Err(LogError::Gone { first: told })) if told == first));
    assert!(matches!(early.last(), Some(Err(LogError::Gone { .. }))), "also for one who was reading");
    log.truncate_before(Lsn(1000)).unwrap();
    assert_eq!(disk.list("log").unwrap().len(), 1);
    let (mut log, found) = open(&disk.crash()).unwrap();
    assert_eq!((found.first, found.next), (log.first_lsn(), Lsn(41)));
    append(&mut log, 41, 60);
    assert_eq!(log.first_within(0), log.segments.last().unwrap().first);
    assert_eq!(log.first_within(u64::MAX), log.first_lsn());
}

#[test]
fn the_first_failed_sync_poisons_the_log() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk).unwrap();
    append(&mut log, 1, 2);
    disk.fail_syncs_from(disk.syncs());
    assert!(matches!(log.sync(), Err(LogError::Io(_))));
    assert!(matches!(log.sync(), Err(LogError::Poisoned)));
    assert!(matches!(log.append(b"x"), Err(LogError::Poisoned)));
    assert!(matches!(log.truncate_before(Lsn(1)), Err(LogError::Poisoned)));
    assert_eq!(numbers(&log), upto(2), "reading goes on");
}

#[test]
fn a_full_disk_poisons_the_log_and_loses_nothing_that_was_durable() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk).unwrap();
    append(&mut log, 1, 9);
    log.sync().unwrap();
    disk.set_capacity(log.bytes() + 30);
    assert!(matches!(log.append(&[1; 80]), Err(LogError::Io(error)) if error.kind() == io::ErrorKind::StorageFull));
    assert!(matches!(log.append(b""), Err(LogError::Poisoned)));
    assert_eq!(numbers(&open(&disk.kill()).unwrap().0), upto(9));
}
