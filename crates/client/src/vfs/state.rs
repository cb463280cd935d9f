//! State of one object: how much of it is here, and which changes the server lacks. The server is not asked.

use mafs_proto::{Kind, Object, StoreId, VnodeId};
use serde::{Deserialize, Serialize};

use super::file::{File, Version};
use super::naming::Naming;
use super::{Inner, RecordState, Vfs};
use crate::cache::CachedObject;
use crate::core::content::arrival::Presence;

/// Share of an object that is in the cache: of a file's content, or of a directory's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cached {
    /// All.
    Whole,
    /// Some.
    Partly,
    /// None.
    No,
}

/// Report that `mafs-client state` shows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectReport {
    /// Path of the object below the mount point.
    pub path: String,
    /// `file`, `directory`, `symlink` or `other`.
    pub kind: String,
    /// Bytes of a file, entries of a directory.
    pub size: u64,
    /// Server's version that the object has, or was made from; 0 if it was made here and the server does not have it.
    pub version: u64,
    /// Share of the object that is here.
    pub cached: Cached,
    /// Bytes of the content that are here.
    pub cached_bytes: u64,
    /// Whether there are changes that the server lacks.
    pub dirty: bool,
    /// Progress of these changes; none if the server has everything.
    pub unsent: Option<RecordState>,
    /// Records in the log about the object, contents included.
    pub records: u64,
    /// Priority that the object is hoarded with; none if it is not hoarded, or pinned.
    pub hoarded: Option<u16>,
    /// Whether the object is pinned.
    pub pinned: bool,
}

impl Vfs {
    /// Reports how much of an object is here, and which changes the server lacks. `None`: this client does not know
    /// it.
    #[must_use]
    pub fn object_report(&self, vnode: VnodeId) -> Option<ObjectReport> {
        self.inner.object_report(vnode)
    }
}

impl Inner {
    pub(super) fn object_report(&self, vnode: VnodeId) -> Option<ObjectReport> {
        let cached = self.cache.index.object(vnode).ok()??;
        let file = self.files().get(vnode);
        if let Some(file) = &file
            && let Err(error) = self.look_now(file)
        {
            tracing::warn!(fid = %file.fid, %error, "a file that is being written cannot be looked at");
        }
        let object = &cached.object;
        let (records, queued) = self.records_about(object);
        let content = file.as_ref().and_then(|file| self.unsent_content(file));
        let unsent = match (content, queued) {
            // A change of the file's name or attributes may still have to be announced.
            (Some(RecordState::Announced), Some(queued)) => Some(queued),
            (content, queued) => content.or(queued),
        };
        let (how, cached_bytes) = file.as_ref().and_then(|file| present(file)).unwrap_or_else(|| self.indexed(&cached));
        let size = match &file {
            Some(file) if object.status.kind == Kind::File => file.state().stat().size(),
            _ => object.status.size,
        };
        let rank = self.rank_of(vnode);
        Some(ObjectReport {
            path: Naming::new(self).object(object.fid),
            kind: kind(object.status.kind).to_owned(),
            size,
            version: if self.cache.index.is_made_here(vnode) { 0 } else { object.status.data_version.0 },
            cached: how,
            cached_bytes,
            dirty: unsent.is_some(),
            unsent,
            records,
            hoarded: rank.priority(),
            pinned: rank.is_pinned(),
        })
    }

    /// Returns how much is here of an object that is not in use.
    fn indexed(&self, cached: &CachedObject) -> (Cached, u64) {
        let whole = indexed(cached);
        let part = match whole {
            (Cached::No, _) => self.cache.index.part(cached.object.fid).ok().flatten(),
            _ => None,
        };
        let current = part.filter(|part| part.version == cached.object.status.data_version);
        current.map_or(whole, |part| (Cached::Partly, part.present.bytes()))
    }

    /// Returns how many records of the log are about an object, and the state of the newest that is not announced; if
    /// all are announced, that state.
    fn records_about(&self, object: &Object) -> (u64, Option<RecordState>) {
        let about = self.remote.outstanding(|log| log.about(object.fid));
        let records = about.iter().filter(|id| self.replay.queue().contains(**id)).count();
        let states: Vec<RecordState> = about.iter().map(|id| self.state_of_record(*id)).collect();
        let newest = states.iter().rfind(|state| **state != RecordState::Announced).or(states.last());
        (records as u64, newest.cloned())
    }

    /// Returns the state of a record that the server has not answered.
    fn state_of_record(&self, id: StoreId) -> RecordState {
        let queue = self.replay.queue();
        match queue.is_announced(id) {
            Some(true) if !queue.is_under_way(id) => RecordState::Announced,
            Some(false) if !queue.is_under_way(id) => RecordState::Waiting,
            // A record that is not in the queue is sent without waiting in it.
            Some(_) | None => RecordState::Sending { acknowledged_bytes: 0 },
        }
    }

    /// Returns the state of a file's content that the server lacks.
    fn unsent_content(&self, file: &File) -> Option<RecordState> {
        let newest = {
            let state = file.state();
            if !state.is_dirty() {
                return None;
            }
            if let Some(reason) = state.fate().refusal() {
                return Some(RecordState::Refused { why: reason.to_string() });
            }
            if let Some(content) = state.versions().sending() {
                return Some(RecordState::Sending { acknowledged_bytes: content.arrived_bytes() });
            }
            if state.handles() > 0 && state.is_unlogged() {
                return Some(RecordState::Open);
            }
            state.versions().newest().map(Version::id)
        };
        Some(newest.map_or(RecordState::Waiting, |id| self.state_of_record(id)))
    }
}

/// Returns how much of the content of a file in use is here. `None`: nothing in this state, but the index may know
/// more.
fn present(file: &File) -> Option<(Cached, u64)> {
    let state = file.state();
    match state.presence() {
        Presence::Whole => Some((Cached::Whole, state.stat().size())),
        Presence::Partly(bytes) => Some((Cached::Partly, bytes.min(state.stat().size()))),
        Presence::Absent => None,
    }
}

pub(super) fn indexed(cached: &CachedObject) -> (Cached, u64) {
    let status = &cached.object.status;
    match status.kind {
        Kind::File if status.size == 0 => (Cached::Whole, 0),
        Kind::File => match cached.content.filter(|content| content.version == status.data_version) {
            Some(_) => (Cached::Whole, status.size),
            None => (Cached::No, 0),
        },
        Kind::Directory => match cached.entries {
            Some(entries) if entries.complete => (Cached::Whole, 0),
            Some(_) => (Cached::Partly, 0),
            None => (Cached::No, 0),
        },
        _ => (Cached::Whole, 0),
    }
}

const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symlink",
        _ => "other",
    }
}
