//! Tests of what the log says after which entries.

use mafs_proto::{ClientId, Kind, Name, Timestamp, VnodeId, VolumeId};

use super::*;

fn fid(vnode: u64) -> Fid {
    Fid { vnode: VnodeId(vnode), ..Fid::root(VolumeId(1)) }
}

fn store(seq: u64, vnode: u64) -> CmlRecord {
    store_on(1, seq, vnode)
}

fn store_on(version: u64, seq: u64, vnode: u64) -> CmlRecord {
    let id = StoreId { client: ClientId([1; 16]), incarnation: Incarnation(1), seq };
    let base = Base::Version(DataVersion(version));
    let op = CmlOp::Store { fid: fid(vnode), base, size: 0, mtime: Timestamp::default() };
    CmlRecord { id, depends_on: Vec::new(), time: Timestamp::default(), uid: 0, gid: 0, removes: None, op }
}

fn remove(seq: u64, vnode: u64, depends_on: Vec<StoreId>) -> Queued {
    let op = CmlOp::Remove { parent: fid(1), name: Name::new(&b"a"[..]).unwrap(), fid: fid(vnode) };
    let record = CmlRecord { op, depends_on, ..store(seq, vnode) };
    Queued { record, kind: Kind::File, replaced: None }
}

#[test]
fn a_loss_of_power_takes_what_depends_on_what_it_took() {
    let (lost, durable) = (store(1, 5), store(2, 6));
    let mut state = state([
        LogEntry::Logged { record: lost.clone(), stamp: Stamp(9), immutable: true },
        LogEntry::Logged { record: durable.clone(), stamp: Stamp(9), immutable: true },
        LogEntry::Durable { id: durable.id },
        LogEntry::Queued(remove(3, 7, vec![lost.id])),
        LogEntry::Queued(remove(4, 8, vec![durable.id])),
        LogEntry::Queued(remove(5, 9, vec![store(3, 7).id])),
    ]);
    let (stores, others) = state.take_lost();
    assert_eq!(stores.iter().map(|store| store.record.id.seq).collect::<Vec<_>>(), [1]);
    assert_eq!(others.iter().map(|queued| queued.record.id.seq).collect::<Vec<_>>(), [3, 5]);
    assert_eq!(state.logged.len(), 1);
    assert_eq!(state.queued.keys().map(|id| id.seq).collect::<Vec<_>>(), [4]);
}

fn state(entries: impl IntoIterator<Item = LogEntry>) -> LogState {
    let mut state = LogState::default();
    entries.into_iter().for_each(|entry| state.apply(entry));
    state
}

#[test]
fn a_file_changed_while_it_was_sent_stays_dirty_on_the_new_base() {
    let record = store(1, 5);
    let id = record.id;
    let done = |clean, synced| LogEntry::Done { id, fid: fid(5), version: DataVersion(2), clean, synced };
    let start = [
        LogEntry::Writing { fid: fid(5), base: DataVersion(1), container: ContainerId(7), lent: false },
        LogEntry::Synced { fid: fid(5) },
        LogEntry::Logged { record: record.clone(), stamp: Stamp(9), immutable: false },
    ];
    let clean = state(start.clone().into_iter().chain([done(true, false)]));
    assert!(clean.writing.is_empty() && clean.logged.is_empty());
    // Content that was fsynced before is on the server; newer content was fsynced, or was not.
    for synced in [true, false] {
        let dirty = state(start.clone().into_iter().chain([done(false, synced)]));
        assert_eq!(
            dirty.writing.get(&fid(5)),
            Some(&Writing {
                base: DataVersion(2),
                container: ContainerId(7),
                lent: false,
                synced,
                removing: false,
                unlinked: None
            })
        );
        assert!(dirty.logged.is_empty());
    }
}

#[test]
fn a_container_is_lent_until_it_is_returned_or_left_or_the_machine_starts_again() {
    let writing = |lent| LogEntry::Writing { fid: fid(5), base: DataVersion(1), container: ContainerId(7), lent };
    let is_lent = |entries: &[LogEntry]| {
        let run = LogEntry::Run("first".to_owned());
        let state = state([run].into_iter().chain(entries.iter().cloned()));
        state.writing.get(&fid(5)).unwrap().lent
    };
    let (lent, returned) = (LogEntry::Lent { fid: fid(5) }, LogEntry::Returned { fid: fid(5) });
    assert!(is_lent(&[writing(true)]) && is_lent(&[writing(false), lent.clone()]));
    assert!(!is_lent(&[writing(false)]) && !is_lent(&[writing(true), returned]));
    assert!(!is_lent(&[writing(true), LogEntry::Moved { fid: fid(5), container: ContainerId(8) }]));
    for (run, expected) in [("first", true), ("second", false)] {
        assert_eq!(is_lent(&[writing(true), LogEntry::Run(run.to_owned())]), expected);
    }
}

#[test]
fn the_end_of_a_store_is_that_of_the_earlier_ones_of_its_file() {
    let logged = |seq, vnode| LogEntry::Logged { record: store(seq, vnode), stamp: Stamp(9), immutable: false };
    let done = LogEntry::Done { id: store(3, 5).id, fid: fid(5), version: DataVersion(2), clean: true, synced: false };
    let left = state([logged(1, 5), logged(2, 6), logged(3, 5), done, logged(4, 5)]).logged;
    let left: Vec<u64> = left.keys().map(|id| id.seq).collect();
    assert_eq!(left, [2, 4]);
}

#[test]
fn of_contents_that_were_not_kept_the_newest_of_a_file_counts() {
    let logged = |seq, vnode, immutable| LogEntry::Logged { record: store(seq, vnode), stamp: Stamp(9), immutable };
    let of_two = [logged(1, 5, false), logged(2, 5, false)];
    let others = [logged(3, 6, false), logged(4, 7, true), logged(5, 7, true)];
    let mut state = state(of_two.into_iter().chain(others));
    assert_eq!(state.take_superseded(), [store(1, 5).id]);
    assert_eq!(state.logged.keys().map(|id| id.seq).collect::<Vec<_>>(), [2, 3, 4, 5]);
    // Nothing says that they are durable.
    assert_eq!(state.take_lost().0.len(), 4);
}

#[test]
fn a_logged_store_tells_what_its_content_is_based_on() {
    let logged =
        |version| LogEntry::Logged { record: store_on(version, version, 5), stamp: Stamp(9), immutable: false };
    let writing = LogEntry::Writing { fid: fid(5), base: DataVersion(2), container: ContainerId(7), lent: false };
    for (versions, base, synced) in [([1, 2], 2, true), ([2, 3], 3, false), ([3, 1], 3, false)] {
        let before = [writing.clone(), LogEntry::Synced { fid: fid(5) }];
        let state = state(before.into_iter().chain(versions.map(logged)));
        let writing = state.writing.get(&fid(5)).unwrap();
        assert_eq!((writing.base, writing.synced), (DataVersion(base), synced));
    }
}

#[test]
fn a_record_is_freed_of_one_that_will_never_be_sent() {
    let before = store(1, 5);
    let stored = CmlRecord { depends_on: vec![before.id], ..store(2, 6) };
    let mut log = state([
        LogEntry::Logged { record: stored.clone(), stamp: Stamp(9), immutable: true },
        LogEntry::Snapshot { id: stored.id, container: ContainerId(12) },
        LogEntry::Queued(remove(3, 7, vec![before.id, stored.id])),
    ]);
    for id in [stored.id, store(3, 7).id] {
        log.apply(LogEntry::Freed { id, of: before.id });
    }
    assert_eq!(log.logged[&stored.id].record, CmlRecord { depends_on: Vec::new(), ..stored.clone() });
    assert_eq!(log.logged[&stored.id].snapshot, Some(ContainerId(12)));
    assert_eq!(log.queued[&store(3, 7).id].record.depends_on, [stored.id]);
}

#[test]
fn of_a_file_without_a_name_nothing_is_left_with_its_last_store() {
    let (one, two) = (store(1, 5), store(2, 5));
    let logged = |record: &CmlRecord| LogEntry::Logged { record: record.clone(), stamp: Stamp(9), immutable: true };
    let writing = LogEntry::Writing { fid: fid(5), base: DataVersion(1), container: ContainerId(7), lent: false };
    let unlinked = LogEntry::Unlinked { fid: fid(5), by: store(3, 5).id };
    let mut log = state([writing.clone(), logged(&one), logged(&two), unlinked.clone()]);
    log.apply(LogEntry::Abandoned { id: two.id });
    assert!(log.writing.contains_key(&fid(5)), "the other one may have been sent");
    log.apply(LogEntry::Done { id: one.id, fid: fid(5), version: DataVersion(2), clean: false, synced: false });
    assert!(log.writing.is_empty());
    assert!(state([writing, unlinked]).writing.is_empty());
}

#[test]
fn a_file_whose_removal_a_loss_of_power_takes_keeps_its_name() {
    let kept = CmlRecord { depends_on: Vec::new(), ..store(1, 5) };
    let log = [
        LogEntry::Writing { fid: fid(5), base: DataVersion(1), container: ContainerId(7), lent: false },
        LogEntry::Logged { record: kept.clone(), stamp: Stamp(9), immutable: true },
        LogEntry::Durable { id: kept.id },
        // The content that takes its place is not durable.
        LogEntry::Logged { record: store(2, 6), stamp: Stamp(9), immutable: true },
        LogEntry::Queued(remove(3, 5, vec![store(2, 6).id])),
        LogEntry::Unlinked { fid: fid(5), by: store(3, 5).id },
    ];
    let mut log = state(log);
    let (stores, others) = log.take_lost();
    assert_eq!((stores.len(), others.len()), (1, 1));
    assert!(log.logged.contains_key(&kept.id));
    assert_eq!(log.writing[&fid(5)].unlinked, None);
}

#[test]
fn nothing_was_fsynced_of_what_is_written_once_a_durable_content_is_out_of_the_way() {
    let id = store(1, 5).id;
    let moved = LogEntry::Snapshot { id, container: ContainerId(12) };
    let start = [
        LogEntry::Writing { fid: fid(5), base: DataVersion(1), container: ContainerId(7), lent: false },
        LogEntry::Synced { fid: fid(5) },
        LogEntry::Logged { record: store(1, 5), stamp: Stamp(9), immutable: true },
    ];
    let durable = [LogEntry::Durable { id }, moved.clone()];
    let mut of_durable = state(start.iter().cloned().chain(durable));
    assert!(!of_durable.writing[&fid(5)].synced);
    // Something has been fsynced since.
    of_durable.apply(LogEntry::Synced { fid: fid(5) });
    of_durable.apply(moved.clone());
    assert!(of_durable.writing[&fid(5)].synced);
    // The content out of the way was written behind an fsync, so it may be torn; what was fsynced is in the container.
    assert!(state(start.into_iter().chain([moved])).writing[&fid(5)].synced);
}

#[test]
fn compacting_keeps_everything_but_the_versions() {
    let full = state([
        LogEntry::Run("first".to_owned()),
        LogEntry::Incarnation(Incarnation(4)),
        LogEntry::Writing { fid: fid(5), base: DataVersion(1), container: ContainerId(7), lent: false },
        LogEntry::Synced { fid: fid(5) },
        LogEntry::Lent { fid: fid(5) },
        LogEntry::Removing { fid: fid(5) },
        LogEntry::Writing { fid: fid(6), base: DataVersion(3), container: ContainerId(8), lent: true },
        LogEntry::Logged { record: store(1, 5), stamp: Stamp(9), immutable: false },
        LogEntry::Snapshot { id: store(1, 5).id, container: ContainerId(12) },
        LogEntry::Durable { id: store(1, 5).id },
        LogEntry::Queued(remove(2, 5, Vec::new())),
        LogEntry::Unlinked { fid: fid(5), by: store(2, 5).id },
        LogEntry::Queued(remove(3, 8, Vec::new())),
        LogEntry::Refused { id: store(3, 8).id, reason: FsError::NameChanged },
        LogEntry::Dropped { fid: fid(6) },
    ]);
    assert_eq!(state(full.compacted()), LogState { versions: BTreeMap::new(), ..full.clone() });
    // A compaction that was interrupted leaves what was there, and its beginning.
    for count in 0..full.compacted().len() {
        let mut interrupted = full.clone();
        full.compacted().into_iter().take(count).for_each(|entry| interrupted.apply(entry));
        assert_eq!(interrupted, full, "after {count} entries");
    }
}

#[test]
fn invariant_10_no_life_follows_the_last_that_there_can_be() {
    let fids = FidRange::new(fid(7), 10).unwrap();
    let spare = |newest, last| {
        let mut log = LogState::default();
        log.apply(LogEntry::Incarnation(Incarnation(newest)));
        log.apply(LogEntry::LastLife(Incarnation(last)));
        log.apply(LogEntry::SpareFids(fids));
        log.spare()
    };
    assert_eq!(spare(3, 4), Some(Spare { incarnation: Incarnation(4), fids }));
    assert_eq!(spare(4, 4), None);
    assert_eq!(spare(u64::MAX, u64::MAX), None);
}
