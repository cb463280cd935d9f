//! Reports of conflicts for people: `conflicts list`, and the part of `status` about conflicts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mafs_proto::call::ConflictsRequest;
use mafs_proto::{Conflict, ConflictKind, FsError, Kind, Name, Object, Purpose, StoreId};
use serde::{Deserialize, Serialize};

use super::{Error, Inner, Vfs};
use crate::core::log::LogEntry;
use crate::core::queue::Queued;
use crate::printable::printable;

/// The most entries of one report: a line of the control socket holds it with the longest paths.
const ENTRIES_MAX: usize = 1_000;

/// Number of conflicts.
#[derive(Default)]
pub(super) struct ConflictCount {
    /// Number that the server has named last; from a page of them on there may be more.
    known: AtomicU64,
    asking: AtomicBool,
    /// Whether removals of this client go to the trash.
    trashing: AtomicBool,
    /// Whether there may be more than is known.
    is_due: AtomicBool,
}

impl ConflictCount {
    /// Counts one more conflict.
    pub(super) fn kept(&self) {
        self.known.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that something has gone to the trash. Returns whether it is the first of the removals that go there
    /// together.
    pub(super) fn trashed(&self) -> bool {
        let is_first = !self.trashing.swap(true, Ordering::Relaxed);
        self.is_due.fetch_or(is_first, Ordering::Relaxed);
        is_first
    }

    /// Ends a group of removals: the next that go to the trash are others.
    pub(super) fn all_taken_in(&self) {
        self.trashing.store(false, Ordering::Relaxed);
    }

    /// Returns whether the conflicts are to be counted again; says so once.
    pub(super) fn take_due(&self) -> bool {
        self.is_due.swap(false, Ordering::Relaxed)
    }
}

/// Conflicts in a volume, and changes that this client could not make.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConflictsReport {
    /// The first 1,000 entries.
    pub entries: Vec<ConflictEntry>,
    /// Whether there are more.
    pub more: bool,
}

/// A conflict, with its paths as programs need them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConflictEntry {
    /// Path of what was kept; equal to `wanted` if nothing was.
    pub path: Vec<u8>,
    /// Path where it was to be.
    pub wanted: Vec<u8>,
    /// The rest.
    pub report: ConflictReport,
}

/// A conflict. Paths are below the mount point.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConflictReport {
    /// Path of what was kept; none if nothing was, because there was nothing to keep.
    pub kept: Option<String>,
    /// The name that others have.
    pub path: String,
    /// Reason, for people.
    pub why: String,
    /// The host name of the client that made the change.
    pub client: String,
    /// User who made it.
    pub uid: u32,
    /// Time when it was made, in seconds since 1970 by the clock of that client.
    pub time_s: i64,
    /// Whether the entry was removed with most of what there was: a directory, to which `kept` and `path` lead.
    #[serde(default)]
    pub trash: bool,
    /// The version that a content was made from, if the server had it. The content of that version is not kept.
    pub base: Option<u64>,
    /// Side that was kept.
    pub mine: Option<Side>,
    /// Side that others have.
    pub theirs: Option<Side>,
}

/// One side of a conflict.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Side {
    /// `file`, `directory` or `other`.
    pub kind: String,
    /// Bytes, or names in a directory.
    pub size: u64,
    /// Time when it was changed, in seconds since 1970.
    pub mtime_s: i64,
    /// Its version.
    pub version: u64,
}

impl Vfs {
    /// Lists conflicts, and the changes that the server has refused to this client.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn conflicts_report(&self) -> Result<ConflictsReport, Error> {
        let conflicts = self.conflicts().await?;
        self.inner.conflicts.known.store(conflicts.len() as u64, Ordering::Relaxed);
        let refused = self.inner.replay.refused().clone();
        let kept = conflicts.iter().map(|conflict| self.inner.kept_entry(conflict));
        let refused = refused.iter().map(|(queued, reason)| self.inner.refused_entry(queued, &reason.to_string()));
        let mut entries: Vec<_> = kept.chain(refused).take(ENTRIES_MAX + 1).collect();
        let more = entries.len() > ENTRIES_MAX;
        entries.truncate(ENTRIES_MAX);
        Ok(ConflictsReport { entries, more })
    }

    /// Drops from the list what the server has refused to this client about a path. Returns how many changes that
    /// were.
    #[must_use]
    pub fn dismiss_refused(&self, path: &[u8]) -> u64 {
        let refused = self.inner.replay.refused().clone();
        let is_about_it = |(queued, _): &&(Queued, FsError)| self.inner.path_wanted(queued) == path;
        let dismissed: BTreeSet<StoreId> =
            refused.iter().filter(is_about_it).map(|(queued, _)| queued.record.id).collect();
        self.inner.replay.refused().retain(|(queued, _)| !dismissed.contains(&queued.record.id));
        self.inner.log_all(dismissed.iter().map(|id| LogEntry::Ended { id: *id }));
        dismissed.len() as u64
    }
}

impl Inner {
    /// Returns how many conflicts the server has told of.
    pub(super) fn known_conflicts(&self) -> u64 {
        self.conflicts.known.load(Ordering::Relaxed)
    }

    /// Asks how many conflicts there are, in the background, but not for more than a page: there may be very many,
    /// and the link slow.
    pub(super) fn count_conflicts(self: &Arc<Self>) {
        if self.conflicts.asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            match inner.remote.call(&ConflictsRequest::default(), Purpose::Ask).await {
                Ok(answer) => inner.conflicts.known.store(answer.reply.conflicts.len() as u64, Ordering::Relaxed),
                Err(error) => tracing::debug!(%error, "the server does not say what is in conflict"),
            }
            inner.conflicts.asking.store(false, Ordering::Release);
        });
    }

    fn kept_entry(&self, conflict: &Conflict) -> ConflictEntry {
        let directory = self.names_to(conflict.place.directory).unwrap_or_else(|| conflict.path.clone());
        let path = joined(&directory, &conflict.place.name);
        let wanted = match self.names_to(conflict.wanted.directory) {
            Some(directory) => joined(&directory, &conflict.wanted.name),
            None if conflict.wanted.directory == conflict.place.directory => joined(&directory, &conflict.wanted.name),
            None => path.clone(),
        };
        let report = ConflictReport {
            kept: Some(printable_bytes(&path)),
            path: printable_bytes(&wanted),
            why: conflict.kind.to_string(),
            client: conflict.client_name.clone(),
            uid: conflict.uid,
            time_s: conflict.time.seconds(),
            trash: conflict.kind == ConflictKind::Trash,
            base: conflict.base.map(|version| version.0),
            mine: conflict.mine_now.as_ref().map(side),
            theirs: conflict.theirs_now.as_ref().filter(|theirs| theirs.fid != conflict.mine).map(side),
        };
        ConflictEntry { path, wanted, report }
    }

    fn refused_entry(&self, queued: &Queued, why: &str) -> ConflictEntry {
        let path = self.path_wanted(queued);
        let report = ConflictReport {
            kept: None,
            path: printable_bytes(&path),
            why: format!("could not be done: {}: {why}", self.describe(queued)),
            client: String::new(),
            uid: queued.record.uid,
            time_s: queued.record.time.seconds(),
            trash: false,
            base: queued.record.removes.map(|removed| removed.version.0),
            mine: None,
            theirs: None,
        };
        ConflictEntry { path: path.clone(), wanted: path, report }
    }

    fn path_wanted(&self, queued: &Queued) -> Vec<u8> {
        let op = &queued.record.op;
        let names = match self.place_of(op) {
            Some((directory, name)) => self.names_to(directory).unwrap_or_default().into_iter().chain([name]).collect(),
            None => self.names_to(op.fid()).unwrap_or_default(),
        };
        path_of(&names)
    }
}

fn joined(directory: &[Name], name: &Name) -> Vec<u8> {
    path_of(&[directory, std::slice::from_ref(name)].concat())
}

fn path_of(names: &[Name]) -> Vec<u8> {
    names.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/')
}

fn printable_bytes(path: &[u8]) -> String {
    path.split(|byte| *byte == b'/').map(printable).collect::<Vec<_>>().join("/")
}

fn side(object: &Object) -> Side {
    let status = &object.status;
    let kind = match status.kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => "other",
    };
    Side { kind: kind.to_owned(), size: status.size, mtime_s: status.mtime.seconds(), version: status.data_version.0 }
}
