//! Tests of damage: to the index, to checkpoints, to the journal.

use super::*;

/// Makes a machine with two checkpoints, a cut journal and commits behind both. Returns the number after the last,
/// too.
fn aged() -> (Machine, Lsn) {
    let machine = Machine::new();
    let index = machine.open().unwrap();
    for round in 0..3 {
        commit(&index, round * 100 + 1, round * 100 + 100);
        index.checkpoint().unwrap();
    }
    commit(&index, 301, 320);
    assert!(matches!(index.read_journal(Lsn(1)), Err(LoggedIndexError::Gone { .. })));
    (machine, Lsn(321))
}

/// Changes a byte in the middle of a file.
fn flip(disk: &MemoryDisk, path: &str) -> u64 {
    let file = disk.open(path).unwrap();
    let at = file.len().unwrap() / 2;
    let mut byte = [0];
    file.read_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0xff], at).unwrap();
    file.sync_data().unwrap();
    at
}

fn nth(disk: &MemoryDisk, dir: &str, index: usize) -> String {
    format!("{dir}/{}", disk.list(dir).unwrap()[index])
}

#[test]
fn a_damaged_index_is_rebuilt() {
    let (machine, next) = aged();
    machine.kv.damage();
    let index = machine.open().unwrap();
    assert_eq!(contents(index.index()), expected(next));
    index.commit(&[batch(next.0)]).unwrap();
}

#[test]
fn a_missing_index_is_rebuilt() {
    let (machine, next) = aged();
    let machine = Machine::of(machine.disk, MemoryKv::new());
    assert_eq!(contents(machine.open().unwrap().index()), expected(next));
}

#[test]
fn an_index_of_another_volume_is_not_taken() {
    let (machine, next) = aged();
    let strange = |far: Option<u64>| {
        let kv = MemoryKv::new();
        let mut other = Batch::default();
        other.put(b"other".to_vec(), b"volume".to_vec());
        if let Some(far) = far {
            other.put(APPLIED, far.to_le_bytes());
        }
        kv.apply(&other).unwrap();
        kv
    };
    for far in [None, Some(0), Some(2), Some(next.0 + 1)] {
        let machine = Machine::of(machine.disk.kill(), strange(far));
        assert_eq!(contents(machine.open().unwrap().index()), expected(next), "{far:?}");
    }
}

#[test]
fn a_damaged_checkpoint_falls_back_to_the_one_before() {
    let (machine, next) = aged();
    machine.kv.damage();
    flip(&machine.disk, &nth(&machine.disk, "v/checkpoint", 1));
    let index = machine.open().unwrap();
    assert_eq!(contents(index.index()), expected(next));
    assert_eq!(machine.disk.list("v/checkpoint").unwrap().len(), 1, "it does not count as one to keep");
    index.checkpoint().unwrap();
    assert_eq!(machine.disk.list("v/checkpoint").unwrap().len(), 2);
}

#[test]
fn a_flipped_byte_anywhere_in_a_checkpoint_is_noticed() {
    let (machine, next) = aged();
    let newest = nth(&machine.disk, "v/checkpoint", 1);
    let len = machine.disk.open(&newest).unwrap().len().unwrap();
    for at in 0..len {
        let image = Machine::of(machine.disk.kill(), MemoryKv::new());
        let file = image.disk.open(&newest).unwrap();
        let mut byte = [0];
        file.read_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
        let index = image.open().unwrap();
        assert!(contents(index.index()) == expected(next), "byte {at}");
        assert_eq!(image.disk.list("v/checkpoint").unwrap().len(), 1, "byte {at}");
    }
}

#[test]
fn without_a_good_checkpoint_or_the_whole_journal_the_index_is_lost() {
    let (machine, _) = aged();
    machine.kv.damage();
    flip(&machine.disk, &nth(&machine.disk, "v/checkpoint", 0));
    flip(&machine.disk, &nth(&machine.disk, "v/checkpoint", 1));
    assert!(matches!(machine.open(), Err(LoggedIndexError::Unrecoverable { .. })));
}

#[test]
fn a_damaged_journal_is_refused_with_its_place() {
    let (machine, _) = aged();
    let path = nth(&machine.disk, "v/journal", 0);
    let at = flip(&machine.disk, &path);
    match machine.open().err() {
        Some(LoggedIndexError::Damaged { segment, offset, .. }) => {
            assert!(path.ends_with(&segment));
            assert!(offset <= at);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_journal_that_lost_its_end_is_refused() {
    let (machine, _) = aged();
    let names = machine.disk.list("v/journal").unwrap();
    let newest = Lsn::from_file_name(machine.disk.list("v/checkpoint").unwrap().last().unwrap()).unwrap();
    for name in names.iter().filter(|name| Lsn::from_file_name(name) > Some(Lsn(newest.0 - 20))) {
        machine.disk.remove(&format!("v/journal/{name}")).unwrap();
    }
    let checkpoint = newest;
    assert!(matches!(machine.open(), Err(LoggedIndexError::Shortened { checkpoint: told, .. }) if told == checkpoint));
}

/// The checkpoint is written while four threads commit. The index rebuilt from it and the journal is what the index
/// held.
#[test]
fn a_fuzzy_checkpoint_converges() {
    let machine = Machine::new();
    let index = machine.open().unwrap();
    let fill = |from: u64| -> Batch {
        let mut batch = Batch::default();
        (from..from + 50).for_each(|key| batch.put(format!("{key:05}"), key.to_le_bytes()));
        batch
    };
    for page in 0..40 {
        index.commit(&[fill(page * 50)]).unwrap();
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let (index, stop) = (&index, &stop);
                scope.spawn(move || {
                    let mut round = writer;
                    while !stop.load(Ordering::Relaxed) {
                        let mut batch = fill(round * 31 % 2000);
                        batch.remove(format!("{:05}", round * 17 % 2000));
                        batch.put(format!("writer {writer}"), round.to_le_bytes());
                        index.commit(&[batch]).unwrap();
                        round += 4;
                    }
                })
            })
            .collect();
        let positions: Vec<Lsn> = (0..10)
            .map(|_| {
                let before = index.next_lsn();
                while index.next_lsn().0 < before.0 + 5 {
                    std::thread::yield_now();
                }
                index.checkpoint().unwrap()
            })
            .collect();
        // So there is something to replay, whichever thread was faster.
        while index.next_lsn() <= positions[9] {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert!(positions.is_sorted());
    });
    let held = contents(index.index());
    drop(index);
    for damage_newest in [false, true] {
        let image = Machine::of(machine.disk.kill(), MemoryKv::new());
        if damage_newest {
            flip(&image.disk, &nth(&image.disk, "v/checkpoint", 1));
        }
        assert!(contents(image.open().unwrap().index()) == held, "damaged newest: {damage_newest}");
    }
}
