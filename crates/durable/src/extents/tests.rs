//! Ranges of files: the twin and a real directory against a vector of bytes.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{DirDisk, Disk, MemoryDisk};

const SIZE_MAX: u64 = 64 * 1024;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u8, u64),
    Resize(u64),
    Fallocate(Fallocate, u64, u64),
    Copy(u64, u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let how = prop_oneof![
        Just(Fallocate::Reserve),
        Just(Fallocate::ReserveKeepingSize),
        Just(Fallocate::Punch),
        Just(Fallocate::Zero),
        Just(Fallocate::ZeroKeepingSize),
    ];
    prop_oneof![
        (0..SIZE_MAX, 1u8.., 1..20_000u64).prop_map(|(offset, byte, bytes)| Step::Write(offset, byte, bytes)),
        (0..SIZE_MAX).prop_map(Step::Resize),
        (how, 0..SIZE_MAX, 1..20_000u64).prop_map(|(how, offset, bytes)| Step::Fallocate(how, offset, bytes)),
        (0..SIZE_MAX, 0..SIZE_MAX, 1..20_000u64).prop_map(|(from, to, bytes)| Step::Copy(from, to, bytes)),
    ]
}

fn apply(step: &Step, model: &mut Vec<u8>, file: &dyn DiskFile) {
    match *step {
        Step::Write(offset, byte, bytes) => {
            let written = vec![byte; at(bytes)];
            file.write_all_at(&written, offset).unwrap();
            put(model, offset, &written);
        }
        Step::Resize(size) => {
            file.set_len(size).unwrap();
            model.resize(at(size), 0);
        }
        Step::Fallocate(how, offset, bytes) => {
            file.fallocate(how, offset, bytes).unwrap();
            let end = at(offset + bytes);
            if how.zeroes() {
                let end = end.min(model.len());
                model[at(offset).min(end)..end].fill(0);
            }
            if how.grows() && end > model.len() {
                model.resize(end, 0);
            }
        }
        Step::Copy(from, to, bytes) => {
            if from.abs_diff(to) < bytes {
                return;
            }
            let source = model.get(at(from)..).unwrap_or_default();
            let source = source[..source.len().min(at(bytes))].to_vec();
            let copied = copy_range((file, from), (file, to), bytes).unwrap();
            assert_eq!(copied, source.len() as u64);
            put(model, to, &source);
        }
    }
}

fn put(model: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        model.resize(model.len().max(at(offset) + bytes.len()), 0);
        model[at(offset)..at(offset) + bytes.len()].copy_from_slice(bytes);
    }
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

fn content(file: &dyn DiskFile) -> Vec<u8> {
    let mut bytes = vec![0xff; at(file.len().unwrap())];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// Every byte that is not reported as data is zero, and holes and data take turns up to the end.
fn check_extents(file: &dyn DiskFile, model: &[u8]) {
    let size = model.len() as u64;
    let mut offset = 0;
    while let Some(extent) = next_extent(file, offset..size).unwrap() {
        assert!(extent.start >= offset && !extent.is_empty() && extent.end <= size);
        assert!(model[at(offset)..at(extent.start)].iter().all(|byte| *byte == 0), "a hole hides data");
        offset = extent.end;
    }
    assert!(model[at(offset)..].iter().all(|byte| *byte == 0), "the last hole hides data");
    assert_eq!((file.seek_data(size).unwrap(), file.seek_hole(size).unwrap()), (None, None));
}

/// Makes an empty file on each kind of disk. The directory goes with the guard.
fn files() -> (tempfile::TempDir, [Arc<dyn DiskFile>; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let real = DirDisk::new(dir.path().to_owned()).unwrap();
    let files = [real.create("f").unwrap(), MemoryDisk::new().create("f").unwrap()];
    (dir, files)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn proptest_ranges_of_files_are_as_a_vector_of_bytes_says(steps in proptest::collection::vec(step(), 1..30)) {
        let (dir, files) = files();
        for file in files {
            let mut model = Vec::new();
            for step in &steps {
                apply(step, &mut model, &*file);
                prop_assert_eq!(file.len().unwrap(), model.len() as u64, "{:?}", step);
            }
            prop_assert!(content(&*file) == model);
            check_extents(&*file, &model);
            let copy = DirDisk::new(dir.path().to_owned()).unwrap().create("copy").unwrap();
            copy_sparse(&*file, &*copy, model.len() as u64).unwrap();
            prop_assert!(content(&*copy) == model);
            check_extents(&*copy, &model);
        }
    }

    #[test]
    fn proptest_what_is_written_without_zeros_reads_the_same(
        blocks in proptest::collection::vec((any::<bool>(), 1..9_000usize), 1..12), offset in 0..10_000u64,
    ) {
        let bytes: Vec<u8> = blocks.iter().flat_map(|(zero, len)| vec![u8::from(!zero); *len]).collect();
        let (_dir, files) = files();
        for file in files {
            file.set_len(offset + bytes.len() as u64).unwrap();
            write_sparse(&*file, &bytes, offset, |_| Ok(())).unwrap();
            prop_assert!(content(&*file)[at(offset)..] == bytes[..]);
        }
    }
}

#[test]
fn holes_take_no_room_and_are_found() {
    const MB: u64 = 1 << 20;
    let (_dir, files) = files();
    for file in files {
        file.set_len(4 * MB).unwrap();
        let mut bytes = vec![0; 1 << 20];
        bytes[300_000] = 1;
        write_sparse(&*file, &bytes, MB, |_| Ok(())).unwrap();
        assert!(file.allocated().unwrap() <= 64 * 1024, "{}", file.allocated().unwrap());
        let block = (MB + 300_000) / 4096 * 4096;
        assert_eq!(next_extent(&*file, 0..4 * MB).unwrap(), Some(block..block + 4096));
        assert_eq!(next_extent(&*file, 2 * MB..4 * MB).unwrap(), None);
        assert_eq!(file.seek_hole(7).unwrap(), Some(7));
        file.fallocate(Fallocate::Punch, MB, MB).unwrap();
        assert_eq!(file.seek_data(0).unwrap(), None);
    }
}

#[test]
fn a_range_that_was_not_synced_is_lost_with_the_power() {
    let disk = MemoryDisk::new();
    let file = disk.create("f").unwrap();
    file.write_all_at(&[1; 10_000], 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir("").unwrap();
    file.fallocate(Fallocate::Punch, 0, 5_000).unwrap();
    file.fallocate(Fallocate::Zero, 9_000, 5_000).unwrap();
    assert_eq!(content(&*disk.crash().open("f").unwrap()), [1; 10_000]);
    file.sync_data().unwrap();
    let after = content(&*disk.crash().open("f").unwrap());
    assert!(after[..5_000] == [0; 5_000] && after[5_000..9_000] == [1; 4_000] && after[9_000..] == [0; 5_000]);
}

#[test]
fn a_full_disk_reserves_nothing() {
    let disk = MemoryDisk::new();
    disk.set_capacity(10_000);
    let file = disk.create("f").unwrap();
    let full = file.fallocate(Fallocate::Reserve, 0, 10_001).unwrap_err();
    assert_eq!((full.kind(), file.len().unwrap()), (io::ErrorKind::StorageFull, 0));
    file.fallocate(Fallocate::Reserve, 0, 10_000).unwrap();
}
