//! The log's state: what the entries of the client modify log on disk add up to.
//!
//! From it a restarted client knows, whatever the index has lost: which files hold content the server does not have,
//! what that content is based on, which records may have reached the server, and which version its last acknowledged
//! store made.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use mafs_proto::{Base, CmlOp, CmlRecord, DataVersion, Fid, FsError, Incarnation, StoreId};

use super::queue::Queued;

/// Names a container file of one object. Never used twice, so that an index that has lost its last changes names the
/// old file, and never new bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ContainerId(pub(crate) u64);

/// When a container last changed, in nanoseconds since 1970: tells whether its content is still what a record was made
/// of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Stamp(pub(crate) u64);

/// One entry of the log on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LogEntry {
    /// The machine's run, by its boot id: under another one what was not synced may be lost.
    Run(String),
    /// The server granted a life; no record of it is made before this entry is durable.
    Incarnation(Incarnation),
    /// A file whose content is `base` is about to be changed.
    Writing {
        /// The file.
        fid: Fid,
        /// The version its content was made from.
        base: DataVersion,
        /// Where the content is.
        container: ContainerId,
        /// Whether the kernel may have that container, to write to it by itself.
        lent: bool,
    },
    /// The kernel is about to be given the container of a file being changed.
    Lent {
        /// The file.
        fid: Fid,
    },
    /// Nobody can write any more to the container that the kernel had.
    Returned {
        /// The file.
        fid: Fid,
    },
    /// A store is about to be sent; its content is that of the container at `stamp`.
    Logged {
        /// The record.
        record: CmlRecord,
        /// The container's stamp.
        stamp: Stamp,
        /// Whether it waits in the queue: then it is sent again as it is, because others may depend on it.
        queued: bool,
    },
    /// What a file being changed holds now has been made durable here by fsync(2).
    Synced {
        /// The file.
        fid: Fid,
    },
    /// The server has applied a store durably.
    Done {
        /// The record.
        id: StoreId,
        /// The file.
        fid: Fid,
        /// The version it made.
        version: DataVersion,
        /// Whether that is still the container's content.
        clean: bool,
        /// Whether some of what is newer was fsynced.
        synced: bool,
    },
    /// The server does not have the record and will never get it under this id.
    Abandoned {
        /// The record.
        id: StoreId,
    },
    /// The content of a file being changed is in another container from now on.
    Moved {
        /// The file.
        fid: Fid,
        /// Where the content is.
        container: ContainerId,
    },
    /// The server is about to be asked to remove the last name of a file being changed.
    Removing {
        /// The file.
        fid: Fid,
    },
    /// The server has refused to remove it.
    Kept {
        /// The file.
        fid: Fid,
    },
    /// Nothing of the file is left to be sent: it is gone, or as the server has it.
    Dropped {
        /// The file.
        fid: Fid,
    },
    /// The last name of a file is gone. The stores that wait may have been sent, and must be answered; nothing of it is
    /// left after them.
    Unlinked {
        /// The file.
        fid: Fid,
        /// The record that takes the name.
        by: StoreId,
    },
    /// A change of names or attributes waits for the server; said again of one that has changed while it waited.
    Queued(Queued),
    /// The server has done what a queued record says, durably, or will never be asked to.
    Ended {
        /// The record.
        id: StoreId,
    },
    /// A record that was never sent waits for another no more, which will never be sent either.
    Freed {
        /// The record.
        id: StoreId,
        /// The other one.
        of: StoreId,
    },
    /// The server has refused a queued record for good.
    Refused {
        /// The record.
        id: StoreId,
        /// Why.
        reason: FsError,
    },
    /// The content of a logged store is in a container of its own from now on.
    Snapshot {
        /// The record.
        id: StoreId,
        /// Where the content is.
        container: ContainerId,
    },
    /// The content of a logged store is durable here.
    Durable {
        /// The record.
        id: StoreId,
    },
}

/// A store that was sent, or is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LoggedStore {
    pub(crate) record: CmlRecord,
    pub(crate) stamp: Stamp,
    /// Whether it waits in the queue.
    pub(crate) queued: bool,
    /// Where its content is, if no longer where the file is changed.
    pub(crate) snapshot: Option<ContainerId>,
    /// Whether its content survives a loss of power.
    pub(crate) durable: bool,
}

/// A file with content that the server does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Writing {
    /// The version its content was made from.
    pub(crate) base: DataVersion,
    /// Where it is.
    pub(crate) container: ContainerId,
    /// Whether the kernel may have that container: then programs may write to it for as long as this machine runs,
    /// whatever becomes of this daemon.
    pub(crate) lent: bool,
    /// Whether some of that content was fsynced, so that it is worth keeping after a power loss.
    pub(crate) synced: bool,
    /// Whether this client has asked for its removal: that the server does not know the file is no news then.
    pub(crate) removing: bool,
    /// The record that takes its last name, if one does: then nothing is wanted of it but that its stores are answered.
    pub(crate) unlinked: Option<StoreId>,
}

/// What the log says now.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LogState {
    /// The machine's run that the log was last written in.
    pub(crate) boot: Option<String>,
    /// The newest life.
    pub(crate) incarnation: Option<Incarnation>,
    /// Files with content that the server does not have.
    pub(crate) writing: BTreeMap<Fid, Writing>,
    /// Unanswered stores.
    pub(crate) logged: BTreeMap<StoreId, LoggedStore>,
    /// The same by their files, so that an answer costs no look at all of them.
    stores_of: BTreeMap<Fid, BTreeSet<StoreId>>,
    /// Unanswered changes of names and attributes.
    pub(crate) queued: BTreeMap<StoreId, Queued>,
    /// Those that the server has refused, and why.
    pub(crate) refused: BTreeMap<StoreId, (Queued, FsError)>,
    /// The version each file's last acknowledged store made: the index may lag behind.
    pub(crate) versions: BTreeMap<Fid, DataVersion>,
}

impl LogState {
    /// Takes in the next entry.
    pub(crate) fn apply(&mut self, entry: LogEntry) {
        match entry {
            LogEntry::Run(boot) => self.begin_run(boot),
            LogEntry::Incarnation(incarnation) => self.incarnation = Some(incarnation),
            LogEntry::Writing { fid, base, container, lent } => self.begin_writing(fid, base, container, lent),
            LogEntry::Lent { fid } => self.change_writing(fid, |writing| writing.lent = true),
            LogEntry::Returned { fid } => self.change_writing(fid, |writing| writing.lent = false),
            LogEntry::Synced { fid } => self.change_writing(fid, |writing| writing.synced = true),
            // The kernel does not know that one.
            LogEntry::Moved { fid, container } => {
                self.change_writing(fid, |writing| (writing.container, writing.lent) = (container, false));
            }
            LogEntry::Removing { fid } => self.change_writing(fid, |writing| writing.removing = true),
            LogEntry::Kept { fid } => self.change_writing(fid, |writing| writing.removing = false),
            LogEntry::Logged { record, stamp, queued } => self.log_store(record, stamp, queued),
            LogEntry::Done { id, fid, version, clean, synced } => {
                // Earlier ones as well, whose end may not have been written when the disk was full.
                for earlier in self.stores_of(fid).filter(|other| *other <= id).collect::<Vec<_>>() {
                    self.remove_store(earlier);
                }
                self.versions.insert(fid, version);
                if clean {
                    self.writing.remove(&fid);
                } else {
                    self.change_writing(fid, |writing| (writing.base, writing.synced) = (version, synced));
                }
            }
            LogEntry::Abandoned { id } => {
                self.remove_store(id);
            }
            LogEntry::Dropped { fid } => {
                self.writing.remove(&fid);
                for id in self.stores_of(fid).collect::<Vec<_>>() {
                    self.remove_store(id);
                }
            }
            LogEntry::Unlinked { fid, by } => {
                self.change_writing(fid, |writing| writing.unlinked = Some(by));
                self.forget_unlinked(fid);
            }
            LogEntry::Queued(queued) => {
                let id = queued.record.id;
                if !self.refused.contains_key(&id) {
                    self.queued.insert(id, queued);
                }
            }
            LogEntry::Ended { id } => {
                self.queued.remove(&id);
                self.refused.remove(&id);
            }
            LogEntry::Freed { id, of } => {
                let queued = self.queued.get_mut(&id).map(|queued| &mut queued.record);
                let record = queued.or(self.logged.get_mut(&id).map(|store| &mut store.record));
                if let Some(record) = record {
                    record.depends_on.retain(|before| *before != of);
                }
            }
            LogEntry::Refused { id, reason } => {
                if let Some(queued) = self.queued.remove(&id) {
                    self.refused.insert(id, (queued, reason));
                }
            }
            LogEntry::Snapshot { id, container } => {
                if let Some(store) = self.logged.get_mut(&id) {
                    store.snapshot = Some(container);
                }
            }
            LogEntry::Durable { id } => {
                if let Some(store) = self.logged.get_mut(&id) {
                    store.durable = true;
                }
            }
        }
    }

    /// The records that the server may have, or is to get.
    pub(crate) fn unanswered(&self) -> Vec<CmlRecord> {
        let queued = self.queued.values().map(|queued| queued.record.clone());
        self.logged.values().map(|store| store.record.clone()).chain(queued).collect()
    }

    fn begin_writing(&mut self, fid: Fid, base: DataVersion, container: ContainerId, lent: bool) {
        // A compaction that was interrupted says it again, and not what else is known.
        match self.writing.get_mut(&fid) {
            Some(writing) if (writing.base, writing.container) == (base, container) => writing.lent = lent,
            _ => {
                let writing = Writing { base, container, lent, synced: false, removing: false, unlinked: None };
                self.writing.insert(fid, writing);
            }
        }
    }

    fn change_writing(&mut self, fid: Fid, change: impl FnOnce(&mut Writing)) {
        if let Some(writing) = self.writing.get_mut(&fid) {
            change(writing);
        }
    }

    fn log_store(&mut self, record: CmlRecord, stamp: Stamp, queued: bool) {
        if let CmlOp::Store { fid, base: Base::Version(base), .. } = &record.op
            && let Some(writing) = self.writing.get_mut(fid)
            && *base > writing.base
        {
            // The `Done` that told of it was lost to a full disk, and that what was fsynced before is stored.
            (writing.base, writing.synced) = (*base, false);
        }
        let again = |store: &LoggedStore| store.record == record && store.stamp == stamp;
        if !self.logged.get(&record.id).is_some_and(again) {
            let store = LoggedStore { record, stamp, queued, snapshot: None, durable: false };
            self.stores_of.entry(store.record.op.fid()).or_default().insert(store.record.id);
            self.logged.insert(store.record.id, store);
        }
    }

    fn stores_of(&self, fid: Fid) -> impl Iterator<Item = StoreId> {
        self.stores_of.get(&fid).into_iter().flatten().copied()
    }

    fn remove_store(&mut self, id: StoreId) -> Option<LoggedStore> {
        let store = self.logged.remove(&id)?;
        let fid = store.record.op.fid();
        if let Entry::Occupied(mut others) = self.stores_of.entry(fid) {
            others.get_mut().remove(&id);
            if others.get().is_empty() {
                others.remove();
            }
        }
        self.forget_unlinked(fid);
        Some(store)
    }

    /// Of a file without a name nothing is left with the last of its stores.
    fn forget_unlinked(&mut self, fid: Fid) {
        if self.stores_of(fid).next().is_none() && self.writing.get(&fid).is_some_and(|file| file.unlinked.is_some()) {
            self.writing.remove(&fid);
        }
    }

    /// Another run of the machine has none of the programs that the kernel had lent a container to.
    fn begin_run(&mut self, boot: String) {
        if self.boot.as_ref().is_some_and(|last| *last != boot) {
            self.writing.values_mut().for_each(|writing| writing.lent = false);
        }
        self.boot = Some(boot);
    }

    /// The power was lost: what was not durable may be torn or zero, so these stores are not sent, nor is anything that
    /// depends on them. Takes them out and returns them, the stores first.
    pub(crate) fn take_lost(&mut self) -> (Vec<LoggedStore>, Vec<Queued>) {
        // Of what was fsynced, and written to in its place since, there is as much as of any file of this disk.
        let is_fsynced = |store: &LoggedStore| {
            let writing = self.writing.get(&store.record.op.fid());
            store.snapshot.is_none() && writing.is_some_and(|writing| writing.synced)
        };
        let is_lost = |store: &&LoggedStore| store.queued && !store.durable && !is_fsynced(store);
        let mut lost: BTreeSet<StoreId> = self.logged.values().filter(is_lost).map(|store| store.record.id).collect();
        let (mut stores, mut others) = (Vec::new(), Vec::new());
        let ids: BTreeSet<StoreId> = self.logged.keys().chain(self.queued.keys()).copied().collect();
        // A record depends on older ones only, so one pass finds all.
        for id in ids {
            let record = self.logged.get(&id).map(|store| &store.record);
            let Some(record) = record.or(self.queued.get(&id).map(|queued| &queued.record)) else { continue };
            if lost.contains(&id) || record.depends_on.iter().any(|before| lost.contains(before)) {
                lost.insert(id);
                others.extend(self.queued.remove(&id));
            }
        }
        for writing in self.writing.values_mut().filter(|file| file.unlinked.is_some_and(|by| lost.contains(&by))) {
            // It keeps its name.
            writing.unlinked = None;
        }
        stores.extend(lost.into_iter().filter_map(|id| self.remove_store(id)));
        (stores, others)
    }

    /// The entries that say the same in the fewest words. The versions are left out: the index must be durable first.
    pub(crate) fn compacted(&self) -> Vec<LogEntry> {
        let run = self.boot.clone().map(LogEntry::Run).into_iter();
        let life = run.chain(self.incarnation.map(LogEntry::Incarnation));
        let writing = self.writing.iter().flat_map(|(&fid, writing)| {
            let synced = writing.synced.then_some(LogEntry::Synced { fid });
            let removing = writing.removing.then_some(LogEntry::Removing { fid });
            let Writing { base, container, lent, .. } = *writing;
            std::iter::once(LogEntry::Writing { fid, base, container, lent }).chain(synced).chain(removing)
        });
        let logged = self.logged.values().cloned().flat_map(|store| {
            let LoggedStore { record, stamp, queued, snapshot, durable } = store;
            let id = record.id;
            let snapshot = snapshot.map(|container| LogEntry::Snapshot { id, container });
            let durable = durable.then_some(LogEntry::Durable { id });
            std::iter::once(LogEntry::Logged { record, stamp, queued }).chain(snapshot).chain(durable)
        });
        // After its stores, or it would be taken for one that has none.
        let unlinked = |(&fid, writing): (&Fid, &Writing)| writing.unlinked.map(|by| LogEntry::Unlinked { fid, by });
        let unlinked = self.writing.iter().filter_map(unlinked);
        let queued = self.queued.values().cloned().map(LogEntry::Queued);
        let refused = self.refused.iter().flat_map(|(&id, (queued, reason))| {
            [LogEntry::Queued(queued.clone()), LogEntry::Refused { id, reason: *reason }]
        });
        life.chain(writing).chain(logged).chain(unlinked).chain(queued).chain(refused).collect()
    }
}

#[cfg(test)]
mod tests {
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
        CmlRecord { id, depends_on: Vec::new(), time: Timestamp::default(), uid: 0, gid: 0, op }
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
            LogEntry::Logged { record: lost.clone(), stamp: Stamp(9), queued: true },
            LogEntry::Logged { record: durable.clone(), stamp: Stamp(9), queued: true },
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
            LogEntry::Logged { record: record.clone(), stamp: Stamp(9), queued: false },
        ];
        let clean = state(start.clone().into_iter().chain([done(true, false)]));
        assert!(clean.writing.is_empty() && clean.logged.is_empty());
        // What was fsynced before is on the server; what is newer was, or was not.
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
        let logged = |seq, vnode| LogEntry::Logged { record: store(seq, vnode), stamp: Stamp(9), queued: false };
        let done =
            LogEntry::Done { id: store(3, 5).id, fid: fid(5), version: DataVersion(2), clean: true, synced: false };
        let left = state([logged(1, 5), logged(2, 6), logged(3, 5), done, logged(4, 5)]).logged;
        let left: Vec<u64> = left.keys().map(|id| id.seq).collect();
        assert_eq!(left, [2, 4]);
    }

    #[test]
    fn a_logged_store_tells_what_its_content_is_based_on() {
        let logged =
            |version| LogEntry::Logged { record: store_on(version, version, 5), stamp: Stamp(9), queued: false };
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
            LogEntry::Logged { record: stored.clone(), stamp: Stamp(9), queued: true },
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
        let logged = |record: &CmlRecord| LogEntry::Logged { record: record.clone(), stamp: Stamp(9), queued: true };
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
            LogEntry::Logged { record: kept.clone(), stamp: Stamp(9), queued: true },
            LogEntry::Durable { id: kept.id },
            // What takes its place is not durable.
            LogEntry::Logged { record: store(2, 6), stamp: Stamp(9), queued: true },
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
    fn compacting_keeps_everything_but_the_versions() {
        let full = state([
            LogEntry::Run("first".to_owned()),
            LogEntry::Incarnation(Incarnation(4)),
            LogEntry::Writing { fid: fid(5), base: DataVersion(1), container: ContainerId(7), lent: false },
            LogEntry::Synced { fid: fid(5) },
            LogEntry::Lent { fid: fid(5) },
            LogEntry::Removing { fid: fid(5) },
            LogEntry::Writing { fid: fid(6), base: DataVersion(3), container: ContainerId(8), lent: true },
            LogEntry::Logged { record: store(1, 5), stamp: Stamp(9), queued: false },
            LogEntry::Snapshot { id: store(1, 5).id, container: ContainerId(12) },
            LogEntry::Durable { id: store(1, 5).id },
            LogEntry::Queued(remove(2, 5, Vec::new())),
            LogEntry::Unlinked { fid: fid(5), by: store(2, 5).id },
            LogEntry::Queued(remove(3, 8, Vec::new())),
            LogEntry::Refused { id: store(3, 8).id, reason: FsError::NameChanged },
            LogEntry::Dropped { fid: fid(6) },
        ]);
        assert_eq!(state(full.compacted()), LogState { versions: BTreeMap::new(), ..full.clone() });
        // One that was interrupted leaves what was there, and its beginning.
        for count in 0..full.compacted().len() {
            let mut interrupted = full.clone();
            full.compacted().into_iter().take(count).for_each(|entry| interrupted.apply(entry));
            assert_eq!(interrupted, full, "after {count} entries");
        }
    }
}
