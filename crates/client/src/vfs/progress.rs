//! Progress: the rest of the work that a command waits for, for the bar of `sync`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mafs_proto::{CmlOp, StoreId};
use serde::{Deserialize, Serialize};

use super::Inner;
use super::file::File;
use crate::core::queue::Queue;

/// Contents and changes that a command waits for and that have not arrived at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SyncProgress {
    /// Contents of files.
    pub contents: u64,
    /// Bytes of the contents, without those that have arrived of contents on their way.
    pub bytes: u64,
    /// Changes of names and attributes.
    pub changes: u64,
}

impl SyncProgress {
    /// Whether everything has arrived.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.contents == 0 && self.changes == 0
    }
}

/// Files and records that one `sync` waits for.
#[derive(Default)]
pub(super) struct SyncJob(Mutex<Left>);

#[derive(Default)]
struct Left {
    /// Files that are being sent, or put in the queue.
    files: Vec<Arc<File>>,
    /// Records in the queue, newest first.
    records: Vec<(StoreId, Option<u64>)>,
}

impl SyncJob {
    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_files(&self, files: Vec<Arc<File>>) {
        self.left().files = files;
    }

    /// Makes the job wait only for records in the queue from now on.
    pub(super) fn set_records(&self, records: Vec<(StoreId, Option<u64>)>) {
        *self.left() = Left { files: Vec::new(), records };
    }

    /// Whether none of the records is in the queue. Cheap: mostly the oldest of them is still there.
    pub(super) fn is_done(&self, queue: &Queue) -> bool {
        let records = &mut self.left().records;
        while records.pop_if(|(id, _)| !queue.contains(*id)).is_some() {}
        records.is_empty()
    }
}

/// Jobs that commands may ask about, by number.
#[derive(Default)]
pub(super) struct SyncJobs(Mutex<HashMap<u64, Arc<SyncJob>>>);

impl SyncJobs {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<SyncJob>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a job. Commands can ask about it as long as the returned value lives.
    pub(super) fn begin(&self, ticket: u64) -> Underway<'_> {
        let job = Arc::new(SyncJob::default());
        self.all().insert(ticket, Arc::clone(&job));
        Underway { jobs: self, ticket, job }
    }
}

/// A job that a command waits for.
pub(super) struct Underway<'jobs> {
    jobs: &'jobs SyncJobs,
    ticket: u64,
    pub(super) job: Arc<SyncJob>,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.jobs.all().remove(&self.ticket);
    }
}

impl Inner {
    pub(super) fn sync_progress(&self, ticket: u64) -> Option<SyncProgress> {
        let job = self.sync_jobs.all().get(&ticket).cloned()?;
        let (files, records, under_way) = {
            let queue = self.replay.queue();
            let mut left = job.left();
            queue.retain_queued(&mut left.records);
            (left.files.clone(), left.records.clone(), queue.stores_under_way())
        };
        let mut progress = SyncProgress::default();
        for file in files {
            let state = file.state();
            if state.is_dirty() {
                let arrived = state.versions().sending().map_or(0, |content| content.arrived_bytes());
                progress.contents += 1;
                progress.bytes += state.stat().size().saturating_sub(arrived);
            }
        }
        progress.contents += records.iter().filter(|(_, bytes)| bytes.is_some()).count() as u64;
        progress.changes += records.iter().filter(|(_, bytes)| bytes.is_none()).count() as u64;
        progress.bytes += records.iter().filter_map(|(_, bytes)| *bytes).sum::<u64>();
        let is_wanted = |id: StoreId| records.binary_search_by(|(at, _)| id.cmp(at)).is_ok();
        let wanted = under_way.iter().filter(|(id, _)| is_wanted(*id));
        let arrived: u64 = wanted.map(|(id, op)| self.arrived_bytes(*id, op)).sum();
        progress.bytes = progress.bytes.saturating_sub(arrived);
        Some(progress)
    }

    /// Returns how many bytes have arrived at the server of a content that is being sent.
    pub(super) fn arrived_bytes(&self, id: StoreId, op: &CmlOp) -> u64 {
        let file = self.files().get(op.fid().vnode);
        let content =
            file.and_then(|file| file.state().versions().get(id).map(|version| Arc::clone(version.content())));
        content.map_or(0, |content| content.arrived_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use mafs_proto::{Base, ClientId, CmlRecord, DataVersion, Fid, Incarnation, Kind, Timestamp, VnodeId, VolumeId};

    use super::*;
    use crate::core::queue::Queued;

    fn queued(seq: u64) -> Queued {
        let fid = Fid { vnode: VnodeId(seq), ..Fid::root(VolumeId(1)) };
        let (base, mtime) = (Base::Version(DataVersion(1)), Timestamp::default());
        let id = StoreId { client: ClientId([1; 16]), incarnation: Incarnation(2), seq };
        let op = CmlOp::Store { fid, base, size: 10, mtime };
        let record = CmlRecord { id, depends_on: Vec::new(), time: mtime, uid: 0, gid: 0, removes: None, op };
        Queued { record, kind: Kind::File, replaced: None }
    }

    #[test]
    fn a_job_is_done_when_all_it_waits_for_has_gone() {
        let mut queue = Queue::default();
        (1..=3).for_each(|seq| queue.push(queued(seq), &[]));
        let job = SyncJob::default();
        job.set_records(queue.newest_first(|op| op.fid().vnode.0 < 3));
        for seq in [2, 1] {
            assert!(!job.is_done(&queue));
            queue.remove(queued(seq).record.id);
        }
        assert!(job.is_done(&queue));
    }

    #[test]
    fn looks_at_a_long_queue_take_no_time() {
        let mut queue = Queue::default();
        (1..=100_000).for_each(|seq| queue.push(queued(seq), &[]));
        let job = SyncJob::default();
        job.set_records(queue.newest_first(|_| true));
        let begun = Instant::now();
        for _ in 0..1_000 {
            assert_eq!((queue.totals().records, queue.list(None, 100).len()), (100_000, 100));
            assert!(!job.is_done(&queue));
        }
        queue.retain_queued(&mut job.left().records);
        assert_eq!(job.left().records.len(), 100_000);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}
