//! The log's state: what the entries of the client modify log on disk add up to.
//!
//! From it a restarted client knows, whatever the index has lost: which files hold content the server does not have,
//! what that content is based on, which records may have reached the server, and which version its last acknowledged
//! store made.

use std::collections::BTreeMap;

use mafs_proto::{Base, CmlOp, CmlRecord, DataVersion, Fid, Incarnation, StoreId};

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
    },
    /// A store is about to be sent; its content is that of the container at `stamp`.
    Logged {
        /// The record.
        record: CmlRecord,
        /// The container's stamp.
        stamp: Stamp,
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
}

/// A store that was sent, or was about to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LoggedStore {
    pub(crate) record: CmlRecord,
    pub(crate) stamp: Stamp,
}

/// A file with content that the server does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Writing {
    /// The version its content was made from.
    pub(crate) base: DataVersion,
    /// Where it is.
    pub(crate) container: ContainerId,
    /// Whether some of that content was fsynced, so that it is worth keeping after a power loss.
    pub(crate) synced: bool,
    /// Whether this client has asked for its removal: that the server does not know the file is no news then.
    pub(crate) removing: bool,
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
    /// The version each file's last acknowledged store made: the index may lag behind.
    pub(crate) versions: BTreeMap<Fid, DataVersion>,
}

impl LogState {
    /// Takes in the next entry.
    pub(crate) fn apply(&mut self, entry: LogEntry) {
        match entry {
            LogEntry::Run(boot) => self.boot = Some(boot),
            LogEntry::Incarnation(incarnation) => self.incarnation = Some(incarnation),
            LogEntry::Writing { fid, base, container } => {
                // A compaction that was interrupted says it again, and not what else is known.
                let again = |writing: &Writing| (writing.base, writing.container) == (base, container);
                if !self.writing.get(&fid).is_some_and(again) {
                    self.writing.insert(fid, Writing { base, container, synced: false, removing: false });
                }
            }
            LogEntry::Synced { fid } => {
                if let Some(writing) = self.writing.get_mut(&fid) {
                    writing.synced = true;
                }
            }
            LogEntry::Moved { fid, container } => {
                if let Some(writing) = self.writing.get_mut(&fid) {
                    writing.container = container;
                }
            }
            LogEntry::Removing { fid } => {
                if let Some(writing) = self.writing.get_mut(&fid) {
                    writing.removing = true;
                }
            }
            LogEntry::Kept { fid } => {
                if let Some(writing) = self.writing.get_mut(&fid) {
                    writing.removing = false;
                }
            }
            LogEntry::Logged { record, stamp } => {
                if let CmlOp::Store { fid, base: Base::Version(base), .. } = &record.op
                    && let Some(writing) = self.writing.get_mut(fid)
                    && *base > writing.base
                {
                    // The `Done` that told of it was lost to a full disk, and that what was fsynced before is stored.
                    (writing.base, writing.synced) = (*base, false);
                }
                self.logged.insert(record.id, LoggedStore { record, stamp });
            }
            LogEntry::Done { id, fid, version, clean, synced } => {
                // Earlier ones as well, whose end may not have been written when the disk was full.
                self.logged.retain(|other, store| *other > id || store.record.op.fid() != fid);
                self.versions.insert(fid, version);
                if clean {
                    self.writing.remove(&fid);
                } else if let Some(writing) = self.writing.get_mut(&fid) {
                    (writing.base, writing.synced) = (version, synced);
                }
            }
            LogEntry::Abandoned { id } => {
                self.logged.remove(&id);
            }
            LogEntry::Dropped { fid } => {
                self.writing.remove(&fid);
                self.logged.retain(|_, store| store.record.op.fid() != fid);
            }
        }
    }

    /// The entries that say the same in the fewest words. The versions are left out: the index must be durable first.
    pub(crate) fn compacted(&self) -> Vec<LogEntry> {
        let run = self.boot.clone().map(LogEntry::Run).into_iter();
        let life = run.chain(self.incarnation.map(LogEntry::Incarnation));
        let writing = self.writing.iter().flat_map(|(&fid, writing)| {
            let synced = writing.synced.then_some(LogEntry::Synced { fid });
            let removing = writing.removing.then_some(LogEntry::Removing { fid });
            let Writing { base, container, .. } = *writing;
            std::iter::once(LogEntry::Writing { fid, base, container }).chain(synced).chain(removing)
        });
        let logged =
            self.logged.values().cloned().map(|LoggedStore { record, stamp }| LogEntry::Logged { record, stamp });
        life.chain(writing).chain(logged).collect()
    }
}

#[cfg(test)]
mod tests {
    use mafs_proto::{ClientId, Timestamp, VnodeId, VolumeId};

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
            LogEntry::Writing { fid: fid(5), base: DataVersion(1), container: ContainerId(7) },
            LogEntry::Synced { fid: fid(5) },
            LogEntry::Logged { record: record.clone(), stamp: Stamp(9) },
        ];
        let clean = state(start.clone().into_iter().chain([done(true, false)]));
        assert!(clean.writing.is_empty() && clean.logged.is_empty());
        // What was fsynced before is on the server; what is newer was, or was not.
        for synced in [true, false] {
            let dirty = state(start.clone().into_iter().chain([done(false, synced)]));
            assert_eq!(
                dirty.writing.get(&fid(5)),
                Some(&Writing { base: DataVersion(2), container: ContainerId(7), synced, removing: false })
            );
            assert!(dirty.logged.is_empty());
        }
    }

    #[test]
    fn the_end_of_a_store_is_that_of_the_earlier_ones_of_its_file() {
        let logged = |seq, vnode| LogEntry::Logged { record: store(seq, vnode), stamp: Stamp(9) };
        let done =
            LogEntry::Done { id: store(3, 5).id, fid: fid(5), version: DataVersion(2), clean: true, synced: false };
        let left = state([logged(1, 5), logged(2, 6), logged(3, 5), done, logged(4, 5)]).logged;
        let left: Vec<u64> = left.keys().map(|id| id.seq).collect();
        assert_eq!(left, [2, 4]);
    }

    #[test]
    fn a_logged_store_tells_what_its_content_is_based_on() {
        let logged = |version| LogEntry::Logged { record: store_on(version, version, 5), stamp: Stamp(9) };
        let writing = LogEntry::Writing { fid: fid(5), base: DataVersion(2), container: ContainerId(7) };
        for (versions, base, synced) in [([1, 2], 2, true), ([2, 3], 3, false), ([3, 1], 3, false)] {
            let before = [writing.clone(), LogEntry::Synced { fid: fid(5) }];
            let state = state(before.into_iter().chain(versions.map(logged)));
            let writing = state.writing.get(&fid(5)).unwrap();
            assert_eq!((writing.base, writing.synced), (DataVersion(base), synced));
        }
    }

    #[test]
    fn compacting_keeps_everything_but_the_versions() {
        let full = state([
            LogEntry::Run("first".to_owned()),
            LogEntry::Incarnation(Incarnation(4)),
            LogEntry::Writing { fid: fid(5), base: DataVersion(1), container: ContainerId(7) },
            LogEntry::Synced { fid: fid(5) },
            LogEntry::Removing { fid: fid(5) },
            LogEntry::Writing { fid: fid(6), base: DataVersion(3), container: ContainerId(8) },
            LogEntry::Logged { record: store(1, 5), stamp: Stamp(9) },
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
