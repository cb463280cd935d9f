//! Tests of the logged index on the memory twins, and where it makes sense on a real disk with sled.

mod crashes;
mod real;
mod recovery;

use std::collections::BTreeMap;

use super::*;
use crate::{KvError, MemoryDisk, MemoryKv};

/// Returns small limits, so that every test crosses segments and deletes some.
fn config() -> LoggedIndexConfig {
    LoggedIndexConfig { segment_bytes: 2000, checkpoint_bytes: 5000, horizon_records: 10, horizon_bytes: 4000 }
}

/// A disk and the index beside it, on one power supply.
struct Machine {
    disk: MemoryDisk,
    kv: MemoryKv,
}

impl Machine {
    fn new() -> Self {
        Self::of(MemoryDisk::new(), MemoryKv::new())
    }

    fn of(disk: MemoryDisk, kv: MemoryKv) -> Self {
        Self { kv: kv.on(&disk), disk }
    }

    fn open(&self) -> Result<LoggedIndex, LoggedIndexError> {
        LoggedIndex::open(Arc::new(self.disk.clone()), "v", self.kv.opener(), config())
    }

    /// Returns the machine after a power cut at the present.
    fn crashed(&self, seed: u64) -> Self {
        Self::of(self.disk.crash(), self.kv.crash(seed))
    }

    fn crashed_torn(&self, seed: u64) -> Self {
        Self::of(self.disk.crash_torn(seed), self.kv.crash(seed))
    }
}

/// Returns the pairs of an index, without the reserved keys.
fn contents(kv: &dyn Kv) -> BTreeMap<Vec<u8>, Vec<u8>> {
    kv.scan(b"", None, usize::MAX).unwrap().into_iter().filter(|(key, _)| key[0] != RESERVED).collect()
}

/// Returns the batch that becomes record `number`: three keys that belong together, one of them removed now and then.
fn batch(number: u64) -> Batch {
    let mut batch = Batch::default();
    let key = |part: &str| format!("{part}{}", number * 7 % 13).into_bytes();
    batch.put(key("a"), number.to_le_bytes());
    batch.put(key("b"), vec![0xbb; usize::try_from(number % 50).unwrap()]);
    match number % 3 {
        0 => batch.remove(key("a")),
        _ => batch.put(b"last".to_vec(), number.to_le_bytes()),
    }
    batch
}

/// Returns the pairs of an index once the records below `next` are in it.
fn expected(next: Lsn) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let kv = MemoryKv::new();
    (1..next.0).for_each(|number| kv.apply(&batch(number)).unwrap());
    contents(&kv)
}

/// Returns how many batches join `number` in its group.
fn group(number: u64) -> u64 {
    match number % 5 {
        0 => 3,
        1 => 1,
        _ => 0,
    }
}

/// Commits the batches `from..=to` in groups of one to four.
fn commit(index: &LoggedIndex, from: u64, to: u64) {
    let mut number = from;
    while number <= to {
        let end = (number + group(number)).min(to);
        let group: Vec<Batch> = (number..=end).map(batch).collect();
        assert_eq!(index.commit(&group).unwrap(), Lsn(number));
        number = end + 1;
    }
}

#[test]
fn commits_are_seen_and_numbered() {
    let machine = Machine::new();
    let index = machine.open().unwrap();
    assert_eq!(index.next_lsn(), Lsn(1));
    assert_eq!(index.commit(&[]).unwrap(), Lsn(1));
    commit(&index, 1, 20);
    assert_eq!(index.next_lsn(), Lsn(21));
    assert_eq!(contents(index.index()), expected(Lsn(21)));
    let journal: Vec<_> = index.read_journal(Lsn(5)).unwrap().map(Result::unwrap).collect();
    assert_eq!(journal, (5..=20).map(|number| (Lsn(number), batch(number))).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_logged_is_refused_and_changes_nothing() {
    let machine = Machine::new();
    let index = machine.open().unwrap();
    let with = |key: &[u8], value: usize| {
        let mut batch = Batch::default();
        batch.put(key, vec![1; value]);
        batch
    };
    let mut large = Batch::default();
    (0..17_u8).for_each(|number| large.put([b'k', number], vec![1; 64 * 1024]));
    let refused = [with(b"", 1), with(b"\0x", 1), with(&[1; 4097], 1), with(b"k", 64 * 1024 + 1), large];
    for bad in refused {
        let result = index.commit(&[batch(1), bad]);
        assert!(matches!(result, Err(LoggedIndexError::Refused(_))), "{result:?}");
    }
    assert_eq!(index.next_lsn(), Lsn(1));
    index.commit(&[with(&[1; 4096], 64 * 1024)]).unwrap();
}

#[test]
fn a_commit_costs_one_sync() {
    let machine = Machine::new();
    let index =
        LoggedIndex::open(Arc::new(machine.disk.clone()), "v", machine.kv.opener(), LoggedIndexConfig::default())
            .unwrap();
    let before = machine.disk.syncs();
    index.commit(&(1..=8).map(batch).collect::<Vec<_>>()).unwrap();
    assert_eq!(machine.disk.syncs(), before + 1);
}

#[test]
fn after_a_close_nothing_is_replayed() {
    let machine = Machine::new();
    let index = machine.open().unwrap();
    commit(&index, 1, 30);
    index.close().unwrap();
    for seed in 0..5 {
        let kv = machine.kv.crash(seed);
        assert_eq!(kv.get(APPLIED).unwrap().unwrap(), 31_u64.to_le_bytes());
        assert_eq!(contents(&kv), expected(Lsn(31)));
    }
}

#[test]
fn a_failed_sync_applies_nothing_and_poisons() {
    let machine = Machine::new();
    let index = machine.open().unwrap();
    commit(&index, 1, 10);
    machine.disk.fail_syncs_from(machine.disk.syncs());
    assert!(matches!(index.commit(&[batch(11)]), Err(LoggedIndexError::Io(_))));
    assert!(matches!(index.commit(&[batch(11)]), Err(LoggedIndexError::Poisoned)));
    assert!(matches!(index.checkpoint(), Err(LoggedIndexError::Poisoned)));
    assert_eq!(contents(index.index()), expected(Lsn(11)), "readers go on");
    assert_eq!(index.read_journal(Lsn(1)).unwrap().count(), 10);
    let after = machine.crashed(0).open().unwrap();
    assert_eq!(contents(after.index()), expected(Lsn(11)));
}

#[test]
fn a_failed_index_poisons_and_the_journal_has_the_commit() {
    let machine = Machine::new();
    let index = machine.open().unwrap();
    commit(&index, 1, 10);
    machine.kv.damage();
    assert!(matches!(index.commit(&[batch(11)]), Err(LoggedIndexError::Index(KvError::Damaged(_)))));
    assert!(matches!(index.commit(&[batch(12)]), Err(LoggedIndexError::Poisoned)));
    assert_eq!(index.next_lsn(), Lsn(11));
    let index = machine.open().unwrap();
    assert_eq!(contents(index.index()), expected(Lsn(12)));
}

#[test]
fn a_full_disk_fails_a_checkpoint_and_not_the_commits_after_it() {
    let machine = Machine::new();
    let index = machine.open().unwrap();
    commit(&index, 1, 10);
    machine.disk.set_capacity(index.journal_bytes() + 100);
    assert!(matches!(index.checkpoint(), Err(LoggedIndexError::Io(_))));
    assert_eq!(machine.disk.list("v/checkpoint").unwrap(), [""; 0]);
    machine.disk.set_capacity(u64::MAX / 2);
    commit(&index, 11, 20);
    index.checkpoint().unwrap();
}

#[test]
fn checkpoints_are_due_by_bytes_and_let_the_journal_be_cut() {
    let machine = Machine::new();
    let index = machine.open().unwrap();
    let mut number = 1;
    for round in 1..=4 {
        assert!(!index.checkpoint_due());
        while !index.checkpoint_due() {
            commit(&index, number, number);
            number += 1;
        }
        assert_eq!(index.checkpoint().unwrap(), Lsn(number));
        assert_eq!(index.checkpoint().unwrap(), Lsn(number), "nothing new: the same");
        assert_eq!(machine.disk.list("v/checkpoint").unwrap().len(), round.min(2));
        assert_eq!(index.read_journal(Lsn(1)).is_ok(), round < 2, "two checkpoints are needed to cut the journal");
    }
    let first = match index.read_journal(Lsn(1)).err() {
        Some(LoggedIndexError::Gone { first }) => first,
        other => panic!("{other:?}"),
    };
    let older = Lsn::from_file_name(&machine.disk.list("v/checkpoint").unwrap()[0]).unwrap();
    assert!(first <= older, "the older checkpoint can be continued");
    assert_eq!(index.read_journal(first).unwrap().count() as u64, number - first.0);
}
