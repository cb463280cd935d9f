//! Changes that wait for the server, as people see them: `queue list`, and the part of `status` about the log.

use mafs_proto::{CmlOp, Incarnation, Kind, StoreId, Timestamp};
use serde::{Deserialize, Serialize};

use super::naming::Naming;
use super::{Error, Inner, Vfs};
use crate::core::queue::{Listed, Totals};
use crate::remote::Link;

/// The most changes in one answer.
const PAGE_MAX: usize = 1_000;

/// Most bytes of paths in one answer, which then ends early, so that a line of the control socket always holds it: a
/// byte of a name takes up to five there.
const PAGE_PATH_BYTES_MAX: usize = 2 << 20;

/// The modify log in numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LogReport {
    /// Records that the server has not answered.
    pub records: u64,
    /// Those that change names and attributes; the others are contents.
    pub changes: u64,
    /// Bytes of the contents, without what has arrived of those that are on their way.
    pub bytes: u64,
    /// How old the oldest record is, in seconds.
    pub oldest_s: Option<u64>,
    /// Records that have been sent, in part or whole.
    pub sending: u64,
    /// Records that have been announced to the server.
    pub announced: u64,
    /// Bytes per second at which contents have arrived of late, or will presumably.
    pub rate_bytes_per_s: Option<u64>,
    /// Time in seconds until the bytes have arrived at that rate.
    pub eta_s: Option<u64>,
    /// Reason why the server has refused a change that is tried again, if it has.
    pub trouble: Option<String>,
    /// Whether the user has paused the sending of contents.
    #[serde(default)]
    pub paused: bool,
}

/// Which part of the queue is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueuePage {
    /// Place behind which the page begins: the `next` of the last answer.
    pub after: Option<(u64, u64)>,
    /// Most changes wanted; an answer may have fewer.
    pub count_max: u32,
}

/// Changes that the server does not have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueReport {
    /// Changes in the order in which they were made; then those that are not in the log, and those that the server
    /// refused.
    pub changes: Vec<QueuedChange>,
    /// Place to go on from, if there are more.
    pub next: Option<(u64, u64)>,
    /// The whole log in numbers.
    pub log: LogReport,
}

/// A change that the server does not have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueuedChange {
    /// Name of the change in the log, which never changes. None if the change is not in the log.
    pub id: Option<String>,
    /// Kind of change, such as `store` or `rename`.
    pub what: String,
    /// Object or name that is changed, below the mount point.
    pub path: String,
    /// New name, for a rename.
    pub to: Option<String>,
    /// Bytes of a content.
    pub size: Option<u64>,
    /// Progress of the change.
    #[serde(flatten)]
    pub state: RecordState,
    /// Age of the change, in seconds.
    pub age_s: Option<u64>,
}

/// Progress of a change on its way to the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RecordState {
    /// The file is open: its content gets into the log when it is closed.
    Open,
    /// The record is in the log.
    Waiting,
    /// The server knows of the record.
    Announced,
    /// The record is being sent.
    Sending {
        /// Bytes that the server has acknowledged.
        acknowledged_bytes: u64,
    },
    /// The server does not take the change.
    Refused {
        /// Reason of the refusal.
        why: String,
    },
}

impl Vfs {
    /// Returns a part of the changes that the server does not have.
    #[must_use]
    pub fn queue(&self, page: &QueuePage) -> QueueReport {
        self.inner.queue_report(page)
    }
}

impl Inner {
    /// Measures how fast contents arrive.
    pub(super) fn note_drain(&self) {
        if self.replay.queue().totals().stores == 0 {
            self.drain().rest();
            return;
        }
        let now = self.clock.now();
        if self.drain().is_due(now) {
            let arriving = self.arriving_bytes();
            self.drain().note(now, arriving);
        }
    }

    /// Returns how many bytes have arrived of the contents that are on their way.
    fn arriving_bytes(&self) -> u64 {
        let under_way = self.replay.queue().stores_under_way();
        under_way.iter().map(|(id, op)| self.arrived_bytes(*id, op)).sum()
    }

    pub(super) fn log_report(&self) -> LogReport {
        self.note_drain();
        let Totals { records, stores, bytes, under_way, announced, oldest } = self.replay.queue().totals();
        let arriving = self.arriving_bytes();
        let bytes = bytes.saturating_sub(arriving);
        let (records, stores) = (records as u64, stores as u64);
        let paused = self.is_paused();
        let rate = if stores > 0 && !paused { self.drain_rate(arriving) } else { None };
        LogReport {
            records,
            changes: records - stores,
            bytes,
            oldest_s: oldest.map(|time| self.age_s(time)),
            sending: under_way as u64,
            announced: announced as u64,
            rate_bytes_per_s: rate,
            eta_s: rate.map(|rate| bytes.div_ceil(rate)),
            trouble: self.replay.trouble().as_ref().filter(|_| records > 0).map(Error::to_string),
            paused,
        }
    }

    /// Returns the rate at which contents arrive: as measured, or as fast as the link has been seen to carry and the
    /// user allows. `None` without a connection.
    fn drain_rate(&self, arriving_bytes: u64) -> Option<u64> {
        let Link::Up(connection) = self.remote.link().0 else { return None };
        let measured = self.drain().bytes_per_s(self.clock.now(), arriving_bytes);
        let limit = self.remote.limits()[mafs_proto::Class::Store as usize].map(mafs_arpc::Rate::get);
        measured.or_else(|| connection.peer.estimate().rate.into_iter().chain(limit).min()).filter(|rate| *rate > 0)
    }

    fn age_s(&self, time: Timestamp) -> u64 {
        u64::try_from(self.clock.wall().seconds().saturating_sub(time.seconds())).unwrap_or(0)
    }

    fn queue_report(&self, page: &QueuePage) -> QueueReport {
        let count_max = PAGE_MAX.min(page.count_max.max(1) as usize);
        let after = page.after.map(|(incarnation, seq)| StoreId {
            client: self.cache.client,
            incarnation: Incarnation(incarnation),
            seq,
        });
        let listed = self.replay.queue().list(after, count_max);
        let is_last = listed.len() < count_max;
        let mut naming = Naming::new(self);
        let (mut changes, mut path_bytes, mut next) = (Vec::new(), 0, None);
        for record in &listed {
            let change = self.queued_change(record, &mut naming);
            path_bytes += change.path.len() + change.to.as_ref().map_or(0, String::len);
            changes.push(change);
            next = Some((record.id.incarnation.0, record.id.seq));
            if path_bytes > PAGE_PATH_BYTES_MAX {
                break;
            }
        }
        if is_last && changes.len() == listed.len() {
            next = None;
            self.add_others(count_max - changes.len(), &mut naming, &mut changes);
        }
        QueueReport { changes, next, log: self.log_report() }
    }

    fn queued_change(&self, listed: &Listed, naming: &mut Naming<'_>) -> QueuedChange {
        let (what, path, to) = told(&listed.op, listed.kind, naming);
        let size = match listed.op {
            CmlOp::Store { size, .. } => Some(size),
            _ => None,
        };
        let state = if listed.under_way {
            let acknowledged_bytes = size.map_or(0, |_| self.arrived_bytes(listed.id, &listed.op));
            RecordState::Sending { acknowledged_bytes }
        } else if listed.announced {
            RecordState::Announced
        } else {
            RecordState::Waiting
        };
        let id = Some(format!("{}-{}", listed.id.incarnation.0, listed.id.seq));
        QueuedChange { id, what: what.to_owned(), path, to, size, state, age_s: Some(self.age_s(listed.time)) }
    }

    /// Adds contents that are not in the log, and refused changes.
    fn add_others(&self, count_max: usize, naming: &mut Naming<'_>, changes: &mut Vec<QueuedChange>) {
        self.look_at_all();
        let dirty = self.files().dirty();
        let all = dirty.iter().filter_map(|file| {
            let state = file.state();
            let how = if let Some(reason) = state.fate().refusal() {
                RecordState::Refused { why: reason.to_string() }
            } else if !state.is_unlogged() {
                return None;
            } else if let Some(content) = state.versions().sending().filter(|_| state.versions().is_empty()) {
                RecordState::Sending { acknowledged_bytes: content.arrived_bytes() }
            } else if state.handles() > 0 {
                RecordState::Open
            } else {
                RecordState::Waiting
            };
            Some((file.fid, state.stat().size(), how))
        });
        let contents: Vec<_> = all.take(count_max).collect();
        for (fid, size, state) in contents {
            let (what, path) = ("store".to_owned(), naming.object(fid));
            changes.push(QueuedChange { id: None, what, path, to: None, size: Some(size), state, age_s: None });
        }
        let refused = self.replay.refused().clone();
        for (queued, reason) in refused.iter().take(count_max) {
            let (what, path, to) = told(&queued.record.op, queued.kind, naming);
            let state = RecordState::Refused { why: reason.to_string() };
            let age_s = Some(self.age_s(queued.record.time));
            changes.push(QueuedChange { id: None, what: what.to_owned(), path, to, size: None, state, age_s });
        }
    }
}

/// Returns the kind of a record's change, its object or name, and for a rename the new name.
fn told(op: &CmlOp, kind: Kind, naming: &mut Naming<'_>) -> (&'static str, String, Option<String>) {
    match op {
        CmlOp::Create { parent, name, .. } => {
            let what = if kind == Kind::File { "make" } else { "make node" };
            (what, naming.name_in(*parent, name), None)
        }
        CmlOp::MakeDir { parent, name, .. } => ("make directory", naming.name_in(*parent, name), None),
        CmlOp::SymLink { parent, name, .. } => ("make symlink", naming.name_in(*parent, name), None),
        CmlOp::Link { parent, name, .. } => ("link", naming.name_in(*parent, name), None),
        CmlOp::Remove { parent, name, .. } => ("remove", naming.name_in(*parent, name), None),
        CmlOp::RemoveDir { parent, name, .. } => ("remove directory", naming.name_in(*parent, name), None),
        CmlOp::Rename { from_parent, from_name, to_parent, to_name, .. } => {
            ("rename", naming.name_in(*from_parent, from_name), Some(naming.name_in(*to_parent, to_name)))
        }
        CmlOp::SetAttr { fid, .. } => ("set attributes", naming.object(*fid), None),
        CmlOp::SetXattr { fid, .. } => ("set xattr", naming.object(*fid), None),
        CmlOp::RemoveXattr { fid, .. } => ("remove xattr", naming.object(*fid), None),
        CmlOp::Store { fid, .. } => ("store", naming.object(*fid), None),
    }
}
