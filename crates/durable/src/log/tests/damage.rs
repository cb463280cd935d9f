//! Tests of wrong bytes: reported with their place, never taken for records, never repaired behind anybody's back.

use proptest::prelude::*;

use super::*;

/// Makes a log of some segments, closed cleanly.
fn sealed() -> Vec<(String, Vec<u8>)> {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk).unwrap();
    for last in [4, 5, 9, 14, 20] {
        let next = log.next_lsn().0;
        append(&mut log, next, last);
        log.sync().unwrap();
    }
    files(&disk)
}

#[test]
fn a_flipped_byte_anywhere_is_damage_or_changes_nothing() {
    let good = sealed();
    assert!(good.len() >= 3);
    for file in 0..good.len() {
        for byte in 0..good[file].1.len() {
            let mut files_then = good.clone();
            files_then[file].1[byte] ^= 0x10;
            let disk = with_files(&files_then);
            match open(&disk) {
                Ok((log, _)) => assert_eq!(numbers(&log), upto(20), "byte {byte} of {}", good[file].0),
                Err(LogError::Damaged { segment, .. }) => {
                    assert_eq!(segment, good[file].0);
                    assert_eq!(files(&disk), files_then, "nothing is modified");
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

/// After a power cut the last group has no seal, so damage to it looks like a torn write; all else shows.
#[test]
fn a_flipped_byte_after_a_power_cut_costs_at_most_the_last_group() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk).unwrap();
    append(&mut log, 1, 12);
    log.sync().unwrap();
    append(&mut log, 13, 14);
    log.sync().unwrap();
    let good = files(&disk.crash());
    for file in 0..good.len() {
        for byte in 0..good[file].1.len() {
            let mut files = good.clone();
            files[file].1[byte] ^= 0x01;
            match open(&with_files(&files)) {
                Ok((log, _)) => assert!(numbers(&log).len() >= 12, "byte {byte} of {}", good[file].0),
                Err(LogError::Damaged { segment, .. }) => assert_eq!(segment, good[file].0),
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_missing_segment_is_damage() {
    let mut files = sealed();
    files.remove(1);
    assert!(matches!(open(&with_files(&files)), Err(LogError::Damaged { offset: 0, .. })));
}

#[test]
fn damage_that_comes_later_is_told_by_the_reader() {
    let disk = with_files(&sealed());
    let (log, _) = open(&disk).unwrap();
    let (name, bytes) = &files(&disk)[1];
    let at = bytes.len() as u64 / 2;
    disk.open(&format!("log/{name}")).unwrap().write_all_at(&[0xaa; 4], at).unwrap();
    let mut records = log.read(Lsn(1)).skip_while(Result::is_ok);
    assert!(matches!(records.next(), Some(Err(LogError::Damaged { segment, .. })) if segment == *name));
    assert!(records.next().is_none());
}

#[test]
fn another_format_is_refused_by_name() {
    let mut files = sealed();
    let header = &mut files[0].1;
    header[8] = 9;
    let sum = format::checksum(0, &header[..24]);
    header[24..28].copy_from_slice(&sum.to_le_bytes());
    let error = open(&with_files(&files)).err().unwrap().to_string();
    assert!(error.contains("format 9"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn proptest_arbitrary_bytes_never_panic(
        with_header: bool,
        records in proptest::collection::vec((any::<u64>(), any::<u32>(), any::<u32>()), 0..8),
        noise in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let mut bytes = Vec::new();
        if with_header {
            let header = FileHeader { kind: format::FileKind::Segment, salt: 5, first: Lsn(1) };
            bytes.extend(header.encode());
            // Heads whose check sum is right and whose fields are anything.
            for (number, unsynced, length) in records {
                let body = Body::Payload { bytes: length, checksum: 0 };
                bytes.extend(RecordHeader { number: Lsn(number), unsynced, body }.encode(5));
            }
        }
        bytes.extend(noise);
        if let Ok((log, _)) = open(&with_files(&[(Lsn(1).file_name(), bytes)])) {
            log.read(Lsn(1)).for_each(|record| drop(record.unwrap()));
        }
    }
}
