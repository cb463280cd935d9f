//! The modify log on a memory disk: its bytes, its syncs beside appends, and a long queue.

use std::time::Duration;

use mafs_durable::MemoryDisk;
use mafs_proto::{Base, ClientId, CmlOp, Mode, Name, Timestamp, VnodeId, VolumeId};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn fid(vnode: u64) -> Fid {
    Fid { vnode: VnodeId(vnode), ..Fid::root(VolumeId(1)) }
}

fn entries() -> Vec<LogEntry> {
    let id = StoreId { client: ClientId([3; 16]), incarnation: Incarnation(4), seq: 5 };
    let op = CmlOp::Store { fid: fid(6), base: Base::Version(DataVersion(7)), size: 8, mtime: Timestamp::default() };
    let record = CmlRecord { id, depends_on: vec![id], time: Timestamp::default(), uid: 1, gid: 2, removes: None, op };
    let queued = Queued { record: record.clone(), kind: Kind::Directory, replaced: Some(Kind::File) };
    vec![
        LogEntry::Run("a".to_owned()),
        LogEntry::Incarnation(Incarnation(4)),
        LogEntry::LastLife(Incarnation(9)),
        LogEntry::SpareFids(FidRange::new(fid(7), 100).unwrap()),
        LogEntry::Writing { fid: fid(6), base: DataVersion(7), container: ContainerId(9), lent: true },
        LogEntry::Returned { fid: fid(6) },
        LogEntry::Writing { fid: fid(6), base: DataVersion(7), container: ContainerId(9), lent: false },
        LogEntry::Lent { fid: fid(6) },
        LogEntry::Logged { record: record.clone(), stamp: Stamp(11), immutable: true },
        LogEntry::Logged { record, stamp: Stamp(11), immutable: false },
        LogEntry::Done { id, fid: fid(6), version: DataVersion(8), clean: false, synced: true },
        LogEntry::Abandoned { id },
        LogEntry::Synced { fid: fid(6) },
        LogEntry::Removing { fid: fid(6) },
        LogEntry::Kept { fid: fid(6) },
        LogEntry::Moved { fid: fid(6), container: ContainerId(10) },
        LogEntry::Dropped { fid: fid(6) },
        LogEntry::Unlinked { fid: fid(6), by: id },
        LogEntry::Freed { id, of: id },
        LogEntry::Queued(Queued { replaced: None, ..queued.clone() }),
        LogEntry::Queued(queued),
        LogEntry::Ended { id },
        LogEntry::Refused { id, reason: FsError::NameChanged },
        LogEntry::Snapshot { id, container: ContainerId(10) },
        LogEntry::Durable { id },
    ]
}

#[test]
fn every_entry_round_trips() {
    for entry in entries() {
        assert_eq!(decode(encode(&entry).into()).unwrap(), entry);
    }
}

proptest! {
    #[test]
    fn proptest_invariant_10_arbitrary_entries_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = decode(bytes.into());
    }
}

#[test]
fn the_log_goes_on_when_a_full_disk_has_room_again() {
    let memory = MemoryDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(memory.clone());
    let cml = Cml::open(&disk).unwrap();
    let [first, second, ..] = &entries()[..] else { panic!("two entries") };
    cml.append(first.clone()).unwrap();
    memory.set_full(true);
    assert!(cml.append(second.clone()).is_err());
    memory.set_full(false);
    cml.append(second.clone()).unwrap();
    cml.sync().unwrap();
    assert_eq!(Cml::open(&disk).unwrap().state(), cml.state());
}

#[test]
fn entries_are_appended_while_the_disk_is_waited_for() {
    let cml = Arc::new(Cml::open(&(Arc::new(MemoryDisk::new()) as Arc<dyn Disk>)).unwrap());
    let [first, second, ..] = &entries()[..] else { panic!("two entries") };
    cml.append(first.clone()).unwrap();
    let (sync, opened) = {
        let mut inner = cml.lock();
        inner.syncing = true;
        (inner.log.begin_sync().unwrap(), inner.opened)
    };
    cml.append(second.clone()).unwrap();
    let waiting = std::thread::spawn({
        let cml = Arc::clone(&cml);
        move || cml.sync()
    });
    sync.run().unwrap();
    {
        let mut inner = cml.lock();
        assert_eq!((inner.opened, inner.is_unsynced()), (opened, true));
        inner.log.end_sync(&sync, Ok(())).unwrap();
        assert!(inner.is_unsynced(), "the second was not there when the sync began");
        inner.syncing = false;
    }
    cml.synced.notify_all();
    waiting.join().unwrap().unwrap();
    assert!(!cml.lock().is_unsynced());
}

#[test]
fn a_sync_fails_of_what_a_log_that_was_opened_again_may_have_lost() {
    let memory = MemoryDisk::new();
    let cml = Cml::open(&(Arc::new(memory.clone()) as Arc<dyn Disk>)).unwrap();
    let [first, second, ..] = &entries()[..] else { panic!("two entries") };
    cml.append(first.clone()).unwrap();
    memory.fail_syncs_from(memory.syncs());
    assert!(cml.sync().is_err());
    assert!(cml.sync().is_err(), "nobody knows what is durable");
    memory.fail_syncs_from(u64::MAX);
    cml.append(second.clone()).unwrap();
    cml.sync().unwrap();
}

#[test]
fn entries_have_the_bytes_that_formats_md_shows() {
    for (lent, kind) in [(true, 2), (false, 18)] {
        let entry = LogEntry::Writing { fid: fid(6), base: DataVersion(7), container: ContainerId(9), lent };
        let numbers = [kind, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(encode(&entry), [&numbers[..], &[8, 1, 16, 6, 24, 1][..]].concat());
    }
    assert_eq!(encode(&LogEntry::Lent { fid: fid(6) }), [19, 8, 1, 16, 6, 24, 1]);
    assert_eq!(encode(&LogEntry::Run("x".to_owned())), [8, b'x']);
    assert_eq!(encode(&LogEntry::Incarnation(Incarnation(3))), [1, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encode(&LogEntry::LastLife(Incarnation(3))), [23, 3, 0, 0, 0, 0, 0, 0, 0]);
    let id = StoreId { client: ClientId([3; 16]), incarnation: Incarnation(4), seq: 5 };
    let refused = encode(&LogEntry::Refused { id, reason: FsError::NameChanged });
    assert_eq!(refused, [&[14, 7, 0, 0, 0][..], &id.encode()[..]].concat());
}

/// Returns the entries of so many files that are made, stored and closed; each fourth of them is removed. The kind of
/// object that is made does not matter here.
fn queue_of(files: u64) -> impl Iterator<Item = LogEntry> {
    let id = |seq| StoreId { client: ClientId([3; 16]), incarnation: Incarnation(4), seq };
    let record = move |seq, depends_on: &[u64], op| {
        let depends_on = depends_on.iter().map(|seq| id(*seq)).collect();
        CmlRecord { id: id(seq), depends_on, time: Timestamp::default(), uid: 1, gid: 2, removes: None, op }
    };
    let queued = |record| LogEntry::Queued(Queued { record, kind: Kind::File, replaced: None });
    (0..files).flat_map(move |file| {
        let (fid, seq) = (fid(file + 2), 3 * file);
        let (parent, name) = (Fid::root(VolumeId(1)), Name::new(format!("f{file}").into_bytes()).unwrap());
        let mode = Mode::from_bits(0o644);
        let create = record(seq, &[], CmlOp::MakeDir { parent, name: name.clone(), fid, mode });
        let (base, mtime) = (Base::Version(DataVersion(0)), Timestamp::default());
        let store = record(seq + 1, &[seq], CmlOp::Store { fid, base, size: 4, mtime });
        let remove = record(seq + 2, &[seq], CmlOp::Remove { parent, name, fid });
        let entries = [
            queued(create),
            LogEntry::Writing { fid, base: DataVersion(0), container: ContainerId(file), lent: true },
            LogEntry::Logged { record: store, stamp: Stamp(11), immutable: true },
            LogEntry::Returned { fid },
            LogEntry::Durable { id: id(seq + 1) },
        ];
        let removed = [LogEntry::Abandoned { id: id(seq + 1) }, queued(remove)];
        entries.into_iter().chain(removed.into_iter().filter(move |_| file % 4 == 3))
    })
}

#[test]
fn a_long_queue_is_read_at_once_and_forgotten_at_once() {
    // 100,000 records in a second is what a release build must do; a debug build shows whether that is linear.
    let (files, limit_s) = if cfg!(debug_assertions) { (16_000, 8) } else { (50_000, 1) };
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let cml = Cml::open(&disk).unwrap();
    queue_of(files).for_each(|entry| cml.append(entry).unwrap());
    let begun = std::time::Instant::now();
    let state = Cml::open(&disk).unwrap().state();
    let opened = begun.elapsed();
    assert_eq!(state, cml.state());
    assert_eq!((state.queued.len() + state.logged.len()) as u64, 2 * files);
    assert!(!state.writing.values().any(|writing| writing.lent));
    let begun = std::time::Instant::now();
    for (id, store) in state.logged {
        let (fid, version) = (store.record.op.fid(), DataVersion(9));
        cml.append(LogEntry::Done { id, fid, version, clean: true, synced: false }).unwrap();
    }
    let answered = begun.elapsed();
    println!("{} records read in {opened:?}, all stores answered in {answered:?}", 2 * files);
    let limit = Duration::from_secs(limit_s);
    assert!(opened < limit && answered < limit, "{opened:?} and {answered:?}");
}

#[test]
fn a_long_log_is_not_shortened_again_and_again() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let cml = Cml::open(&disk).unwrap();
    let mut compactions = 0;
    for entry in queue_of(30_000) {
        cml.append(entry).unwrap();
        if cml.compaction_due() {
            cml.compact().unwrap();
            compactions += 1;
        }
    }
    assert!((1..4).contains(&compactions), "{compactions}");
}

#[test]
fn the_state_is_the_same_after_reopening_and_compacting() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let cml = Cml::open(&disk).unwrap();
    for entry in entries() {
        cml.append(entry).unwrap();
    }
    let mut state = cml.state();
    cml.sync().unwrap();
    assert_eq!(Cml::open(&disk).unwrap().state(), state);
    cml.compact().unwrap();
    let mut compacted = Cml::open(&disk).unwrap().state();
    // The index has these.
    (state.versions, compacted.versions) = Default::default();
    assert_eq!(compacted, state);
}
