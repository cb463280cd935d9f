//! The log's state: what the entries of the client modify log on disk add up to.
//!
//! From it a restarted client knows, whatever the index has lost: which files hold content the server does not have,
//! what that content is based on, which records may have reached the server, and which version its last acknowledged
//! store made.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use mafs_proto::{Base, CmlOp, CmlRecord, DataVersion, Fid, FidRange, FsError, Incarnation, StoreId};

use super::queue::Queued;

/// Number of a container file of one object. Never used twice, so that an index that has lost its last changes names
/// the old file, and never new bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ContainerId(pub(crate) u64);

/// Time when a container last changed, in nanoseconds since 1970: tells whether its content is still what a record was
/// made of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Stamp(pub(crate) u64);

/// One entry of the log on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LogEntry {
    /// The machine's run, by its boot id: under another one what was not synced may be lost.
    Run(String),
    /// The server granted a life; no record of it is made before this entry is durable.
    Incarnation(Incarnation),
    /// The last life that may be begun without the server.
    LastLife(Incarnation),
    /// Fids that later lives may use, and this one has not used.
    SpareFids(FidRange),
    /// A file whose content is `base` is about to be changed.
    Writing {
        /// The file.
        fid: Fid,
        /// The version its content was made from.
        base: DataVersion,
        /// Container that holds the content.
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
        /// Whether its content stays as it is until the log says otherwise. Earlier versions of this program did not
        /// see to that with `writeback=sync`.
        immutable: bool,
    },
    /// The present content of a file being changed has been made durable here by fsync(2).
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
        /// Container that holds the content.
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
        /// Container that holds the content.
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
    /// Whether its content is what it was when it was logged.
    pub(crate) immutable: bool,
    /// Container that holds its content, if no longer the one where the file is changed.
    pub(crate) snapshot: Option<ContainerId>,
    /// Whether its content survives a loss of power.
    pub(crate) durable: bool,
}

/// A file with content that the server does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Writing {
    /// The version its content was made from.
    pub(crate) base: DataVersion,
    /// Container that holds it.
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

/// A life that the server has granted in advance, and fids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spare {
    pub(crate) incarnation: Incarnation,
    pub(crate) fids: FidRange,
}

/// State that the log's entries add up to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LogState {
    /// The machine's run that the log was last written in.
    pub(crate) boot: Option<String>,
    /// The newest life.
    pub(crate) incarnation: Option<Incarnation>,
    /// The last one that may be begun without the server.
    last_life: Option<Incarnation>,
    /// Fids for that.
    spare_fids: Option<FidRange>,
    /// Files with content that the server does not have.
    pub(crate) writing: BTreeMap<Fid, Writing>,
    /// Unanswered stores.
    pub(crate) logged: BTreeMap<StoreId, LoggedStore>,
    /// Unanswered stores by their files, so that an answer costs no look at all of them.
    stores_of: BTreeMap<Fid, BTreeSet<StoreId>>,
    /// Unanswered changes of names and attributes.
    pub(crate) queued: BTreeMap<StoreId, Queued>,
    /// Queued records that the server has refused, and why.
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
            LogEntry::LastLife(last) => self.last_life = Some(last),
            LogEntry::SpareFids(fids) => self.spare_fids = Some(fids),
            LogEntry::Writing { fid, base, container, lent } => self.begin_writing(fid, base, container, lent),
            LogEntry::Lent { fid } => self.change_writing(fid, |writing| writing.lent = true),
            LogEntry::Returned { fid } => self.change_writing(fid, |writing| writing.lent = false),
            LogEntry::Synced { fid } => self.change_writing(fid, |writing| writing.synced = true),
            // The kernel does not know the new container.
            LogEntry::Moved { fid, container } => {
                self.change_writing(fid, |writing| (writing.container, writing.lent) = (container, false));
            }
            LogEntry::Removing { fid } => self.change_writing(fid, |writing| writing.removing = true),
            LogEntry::Kept { fid } => self.change_writing(fid, |writing| writing.removing = false),
            LogEntry::Logged { record, stamp, immutable } => self.log_store(record, stamp, immutable),
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
            LogEntry::Freed { id, of } => self.free(id, of),
            LogEntry::Refused { id, reason } => {
                if let Some(queued) = self.queued.remove(&id) {
                    self.refused.insert(id, (queued, reason));
                }
            }
            LogEntry::Snapshot { id, container } => self.move_out(id, container),
            LogEntry::Durable { id } => self.change_store(id, |store| store.durable = true),
        }
    }

    /// Returns what a life can be begun with while the server is out of reach; `None`: nothing is left.
    pub(crate) fn spare(&self) -> Option<Spare> {
        let (newest, last) = self.incarnation.zip(self.last_life)?;
        let incarnation = Incarnation(newest.0.checked_add(1)?);
        let fids = self.spare_fids.filter(|fids| fids.count() > 0)?;
        (incarnation <= last).then_some(Spare { incarnation, fids })
    }

    /// Whether an entry takes a name from a file of which durable contents wait.
    pub(crate) fn drops_durable(&self, entry: &LogEntry) -> bool {
        let LogEntry::Queued(queued) = entry else { return false };
        let is_durable = |id| self.logged.get(&id).is_some_and(|store| store.durable);
        queued.record.op.unnamed_fid().is_some_and(|fid| self.stores_of(fid).any(is_durable))
    }

    /// Returns the changed files from which a record takes a name, and that may have been the last: a crash came before
    /// the log was told.
    pub(crate) fn perhaps_unlinked(&self) -> Vec<Fid> {
        let is_left = |fid: &Fid| self.writing.get(fid).is_some_and(|writing| writing.unlinked.is_none());
        self.queued.values().filter_map(|queued| queued.record.op.unnamed_fid()).filter(is_left).collect()
    }

    /// Returns the records that the server may have, or is to get.
    pub(crate) fn unanswered(&self) -> Vec<CmlRecord> {
        let queued = self.queued.values().map(|queued| queued.record.clone());
        self.logged.values().map(|store| store.record.clone()).chain(queued).collect()
    }

    fn begin_writing(&mut self, fid: Fid, base: DataVersion, container: ContainerId, lent: bool) {
        // A compaction that was interrupted says this again, and not what else is known.
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

    fn change_store(&mut self, id: StoreId, change: impl FnOnce(&mut LoggedStore)) {
        if let Some(store) = self.logged.get_mut(&id) {
            change(store);
        }
    }

    /// Notes that the newest content of a file has gone out of the way of what is written next. If it was durable,
    /// nothing of the latter was fsynced yet. A compaction says this before it says that the content is durable, or
    /// says it again.
    fn move_out(&mut self, id: StoreId, container: ContainerId) {
        let Some(store) = self.logged.get_mut(&id) else { return };
        let (fid, is_first) = (store.record.op.fid(), store.snapshot.replace(container).is_none());
        if store.durable && is_first {
            self.change_writing(fid, |writing| writing.synced = false);
        }
    }

    fn free(&mut self, id: StoreId, of: StoreId) {
        let queued = self.queued.get_mut(&id).map(|queued| &mut queued.record);
        let record = queued.or(self.logged.get_mut(&id).map(|store| &mut store.record));
        if let Some(record) = record {
            record.depends_on.retain(|before| *before != of);
        }
    }

    fn log_store(&mut self, record: CmlRecord, stamp: Stamp, immutable: bool) {
        if let CmlOp::Store { fid, base: Base::Version(base), .. } = &record.op
            && let Some(writing) = self.writing.get_mut(fid)
            && *base > writing.base
        {
            // The `Done` that told of this version, and that what was fsynced before is stored, was lost to a full
            // disk.
            (writing.base, writing.synced) = (*base, false);
        }
        let again = |store: &LoggedStore| store.record == record && store.stamp == stamp;
        if !self.logged.get(&record.id).is_some_and(again) {
            let store = LoggedStore { record, stamp, immutable, snapshot: None, durable: false };
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

    /// Forgets a file without a name when the last of its stores is gone.
    fn forget_unlinked(&mut self, fid: Fid) {
        if self.stores_of(fid).next().is_none() && self.writing.get(&fid).is_some_and(|file| file.unlinked.is_some()) {
            self.writing.remove(&fid);
        }
    }

    /// Notes the machine's run. Another run has none of the programs that the kernel had lent a container to.
    fn begin_run(&mut self, boot: String) {
        if self.boot.as_ref().is_some_and(|last| *last != boot) {
            self.writing.values_mut().for_each(|writing| writing.lent = false);
        }
        self.boot = Some(boot);
    }

    /// Takes out the stores whose content was not kept and that another of the same file came after, and returns their
    /// ids: they had been answered, and the log could not be told.
    pub(crate) fn take_superseded(&mut self) -> Vec<StoreId> {
        let is_last = |id: &StoreId, fid| self.stores_of(fid).last() == Some(*id);
        let superseded =
            |(id, store): &(&StoreId, &LoggedStore)| !store.immutable && !is_last(id, store.record.op.fid());
        let ids: Vec<StoreId> = self.logged.iter().filter(superseded).map(|(id, _)| *id).collect();
        ids.iter().for_each(|id| drop(self.remove_store(*id)));
        ids
    }

    /// Takes out what a loss of power has cost, and returns it, the stores first: bytes that were not durable may be
    /// torn or zero, so these stores are not sent, nor is anything that depends on them.
    pub(crate) fn take_lost(&mut self) -> (Vec<LoggedStore>, Vec<Queued>) {
        // There is as much of a content that was fsynced, and written to in its place since, as of any file of this
        // disk.
        let is_fsynced = |store: &LoggedStore| {
            let writing = self.writing.get(&store.record.op.fid());
            store.snapshot.is_none() && writing.is_some_and(|writing| writing.synced)
        };
        let is_lost = |store: &&LoggedStore| !store.durable && !is_fsynced(store);
        let mut lost: BTreeSet<StoreId> = self.logged.values().filter(is_lost).map(|store| store.record.id).collect();
        let mut others = Vec::new();
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
            // The file keeps its name.
            writing.unlinked = None;
        }
        let stores = lost.into_iter().filter_map(|id| self.remove_store(id)).collect();
        (stores, others)
    }

    /// Returns the fewest entries that add up to this state. The versions are left out: the index must be durable
    /// first.
    pub(crate) fn compacted(&self) -> Vec<LogEntry> {
        let run = self.boot.clone().map(LogEntry::Run).into_iter();
        let life = run.chain(self.incarnation.map(LogEntry::Incarnation));
        let spare = self.last_life.map(LogEntry::LastLife).into_iter();
        let life = life.chain(spare).chain(self.spare_fids.map(LogEntry::SpareFids));
        let writing = self.writing.iter().flat_map(|(&fid, writing)| {
            let synced = writing.synced.then_some(LogEntry::Synced { fid });
            let removing = writing.removing.then_some(LogEntry::Removing { fid });
            let Writing { base, container, lent, .. } = *writing;
            std::iter::once(LogEntry::Writing { fid, base, container, lent }).chain(synced).chain(removing)
        });
        let logged = self.logged.values().cloned().flat_map(|store| {
            let LoggedStore { record, stamp, immutable, snapshot, durable } = store;
            let id = record.id;
            let snapshot = snapshot.map(|container| LogEntry::Snapshot { id, container });
            let durable = durable.then_some(LogEntry::Durable { id });
            std::iter::once(LogEntry::Logged { record, stamp, immutable }).chain(snapshot).chain(durable)
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
mod tests;
