//! Tests of power cuts: what was synced is there, what was not is there or cut off, and the log goes on.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Act {
    Append(u64),
    Sync,
    /// A sync, with so many records appended before the disk has done it and so many after.
    SyncBeside(u64, u64),
    Reopen,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![6 => (1..6_u64).prop_map(Act::Append), 3 => Just(Act::Sync), 1 => Just(Act::Reopen),
        2 => (0..4_u64, 0..4_u64).prop_map(|(before, after)| Act::SyncBeside(before, after))];
    proptest::collection::vec(act, 1..25)
}

/// Runs `acts` until the power is cut. Returns how many records were durable then by the log's word, and how many
/// written.
fn run(disk: &MemoryDisk, acts: &[Act]) -> (u64, u64) {
    let (mut log, _) = open(disk).unwrap();
    let (mut durable, mut written) = (0, 0);
    for act in acts {
        match act {
            Act::Append(count) => {
                append(&mut log, written + 1, written + count);
                written += count;
            }
            Act::Sync => {
                log.sync().unwrap();
                durable = if disk.frozen() { durable } else { written };
            }
            Act::SyncBeside(before, after) => {
                let (sync, covered) = (log.begin_sync().unwrap(), written);
                append(&mut log, written + 1, written + before);
                let done = sync.run();
                append(&mut log, written + before + 1, written + before + after);
                written += before + after;
                log.end_sync(&sync, done).unwrap();
                assert!((covered + 1..=written + 1).contains(&log.durable_lsn().0));
                durable = if disk.frozen() { durable } else { log.durable_lsn().0 - 1 };
            }
            Act::Reopen => {
                log = open(disk).unwrap().0;
                durable = if disk.frozen() { durable } else { written };
            }
        }
    }
    (durable, written)
}

fn check(image: &MemoryDisk, durable: u64, written: u64) {
    let (mut log, found) = open(image).unwrap();
    let last = found.next.0 - 1;
    assert!((durable..=written).contains(&last), "{last} of {durable}..={written}");
    assert_eq!(numbers(&log), upto(last));
    append(&mut log, last + 1, last + 3);
    log.sync().unwrap();
    assert_eq!(numbers(&open(&image.crash()).unwrap().0), upto(last + 3));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn proptest_a_power_cut_loses_nothing_that_was_synced(acts in acts(), cut in 0..40_u64, seed: u64) {
        let disk = MemoryDisk::new();
        open(&disk).unwrap();
        disk.freeze_after_syncs(disk.syncs() + cut);
        let (durable, written) = run(&disk, &acts);
        check(&disk.crash(), durable, written);
        check(&disk.crash_torn(seed), durable, written);
        if !disk.frozen() {
            check(&disk.kill(), written, written);
        }
    }
}

#[test]
fn a_power_cut_at_every_sync_of_a_truncation_leaves_a_log() {
    for syncs in 0..6 {
        for seed in 0..30 {
            let disk = MemoryDisk::new();
            let (mut log, _) = open(&disk).unwrap();
            append(&mut log, 1, 40);
            log.sync().unwrap();
            disk.freeze_after_syncs(disk.syncs() + syncs);
            log.truncate_before(Lsn(35)).unwrap();
            for image in [disk.crash(), disk.crash_torn(seed)] {
                let (log, found) = open(&image).unwrap();
                assert_eq!(found.next, Lsn(41));
                assert!(log.first_lsn() <= Lsn(35));
                assert_eq!(numbers(&log).last(), Some(&40));
            }
        }
    }
}

/// Makes a log with three records of one group, the first of which did not reach the disk.
fn group_without_its_first(synced: bool) -> MemoryDisk {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk).unwrap();
    append(&mut log, 1, 2);
    log.sync().unwrap();
    let offset = usize::try_from(log.end()).unwrap();
    append(&mut log, 3, 5);
    if synced {
        log.sync().unwrap();
        append(&mut log, 6, 6);
    }
    let mut files = files(&disk);
    files[0].1[offset + 5] ^= 0xff;
    with_files(&files)
}

#[test]
fn a_later_record_of_the_same_group_does_not_make_a_torn_write_damage() {
    let disk = group_without_its_first(false);
    let (log, found) = open(&disk).unwrap();
    assert_eq!(numbers(&log), upto(2));
    assert!(found.torn.is_some());
    assert_eq!(open(&disk).unwrap().1.torn, None, "it is cut once");
}

#[test]
fn a_record_of_a_later_group_makes_it_damage() {
    assert!(matches!(open(&group_without_its_first(true)), Err(LogError::Damaged { .. })));
}

#[test]
fn a_copy_of_the_log_inside_a_torn_record_proves_nothing() {
    let disk = MemoryDisk::new();
    let config = LogConfig::default();
    let (mut log, _) = AppendLog::open(Arc::new(disk.clone()), "log", config).unwrap();
    append(&mut log, 1, 9);
    log.sync().unwrap();
    // Records of this log, whose numbers are all below; and of another log, which has another salt.
    let mut copy = files(&disk).remove(0).1;
    let other = MemoryDisk::new();
    let (mut other_log, _) = AppendLog::open(Arc::new(other.clone()), "log", config).unwrap();
    append(&mut other_log, 1, 50);
    other_log.sync().unwrap();
    copy.extend(files(&other).remove(0).1);
    let offset = usize::try_from(log.end()).unwrap();
    log.append(&copy).unwrap();
    let mut files = files(&disk);
    files[0].1[offset + 1] ^= 1;
    let disk = with_files(&files);
    let (log, found) = AppendLog::open(Arc::new(disk), "log", config).unwrap();
    assert_eq!(numbers(&log), upto(9));
    assert!(found.torn.is_some());
}

#[test]
fn a_segment_that_was_never_finished_is_begun_again() {
    for bytes in 0..=FileHeader::BYTES {
        let disk = MemoryDisk::new();
        let (mut log, _) = open(&disk).unwrap();
        append(&mut log, 1, 12);
        log.sync().unwrap();
        let file = disk.create(&recover::segment_path("log", Lsn(13))).unwrap();
        file.write_all_at(&vec![0; bytes], 0).unwrap();
        let (mut log, found) = open(&disk.kill()).unwrap();
        assert_eq!(found.next, Lsn(13));
        append(&mut log, 13, 30);
        assert_eq!(numbers(&log), upto(30));
    }
}

/// Runs until the sync or write that fails, if it matters. Returns how many records are durable by the log's word,
/// and how many there may be.
fn run_until_failure(disk: &MemoryDisk) -> (u64, u64) {
    let Ok((mut log, _)) = open(disk) else { return (0, 0) };
    let (mut durable, mut written) = (0, 0);
    for _ in 0..30 {
        for _ in 0..3 {
            if log.append(&payload(written + 1)).is_err() {
                return (durable, written + 1);
            }
            written += 1;
        }
        if log.sync().is_err() {
            return (durable, written);
        }
        durable = written;
    }
    (durable, written)
}

/// Records found at an open stay: what could be read counts as acknowledged from then on.
#[test]
fn what_is_found_after_a_failure_at_any_point_is_durable_and_nothing_is_lost() {
    for number in 0..60 {
        for dies in [false, true] {
            for write in [false, true] {
                let disk = MemoryDisk::new();
                match (dies, write) {
                    (true, true) => continue,
                    (true, false) => disk.die_at_sync(number),
                    (false, true) => disk.fail_write(number),
                    (false, false) => disk.fail_sync(number),
                }
                let (durable, written) = run_until_failure(&disk);
                check(&disk.crash(), durable, written);
                check(&disk.kill(), durable, written);
                let kept = disk.kill();
                let (log, found) = open(&kept).unwrap();
                drop(log);
                check(&kept.crash(), found.next.0 - 1, written);
            }
        }
    }
}
