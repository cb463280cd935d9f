//! Syncing: waiting until the server has everything, or everything of one file or directory.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use mafs_arpc::blocking;
use mafs_proto::{CmlOp, Fid, FsError, StoreId, VnodeId};

use super::file::File;
use super::pausing::AskedFor;
use super::progress::SyncJob;
use super::{Error, Inner, SyncProgress, Vfs};
use crate::core::queue::Queue;

/// Depth limit: deeper than any path a program can name.
const DEPTH_MAX: usize = 2048;

impl Vfs {
    /// Finds the object at a path below the mount point, as far as this client knows the names on the way, or the
    /// server tells them soon.
    pub async fn find(&self, below: &[u8]) -> Option<VnodeId> {
        self.inner.find(below).await
    }

    /// Waits until the server has all changes of this object and of the objects below it that were made before the
    /// call. Meanwhile [`Self::sync_progress`] tells how much is left, by the same number.
    pub async fn sync_below(&self, vnode: VnodeId, ticket: u64) -> Result<(), Error> {
        let under_way = self.inner.sync_jobs.begin(ticket);
        tokio::select! {
            biased;
            synced = self.inner.sync_below(vnode, &under_way.job) => synced,
            // Even if calls may wait longer otherwise.
            () = self.inner.remote.until_apart_by_hand() => Err(Error::ByHand),
        }
    }

    /// Returns how much is left of the changes that a command waits for. `None`: no command does.
    #[must_use]
    pub fn sync_progress(&self, ticket: u64) -> Option<SyncProgress> {
        self.inner.sync_progress(ticket)
    }
}

impl Inner {
    /// Sends everything that was dirty at the call.
    pub(super) async fn sync(self: &Arc<Self>) -> Result<(), Error> {
        self.sync_below(VnodeId::ROOT, &SyncJob::default()).await
    }

    /// Sends all changes of an object and the objects below it that were dirty at the call.
    async fn sync_below(self: &Arc<Self>, root: VnodeId, job: &SyncJob) -> Result<(), Error> {
        let mut result = Ok(());
        self.look_at_all();
        let refused_before = self.replay.refused().len();
        let dirty = self.dirty_below(root);
        job.set_files(dirty.clone());
        for file in &dirty {
            if let Err(error) = self.sync_file(file).await {
                result = Err(error);
            }
        }
        blocking(|| self.cache.cml.sync())?;
        let records = blocking(|| self.queued_below(root));
        let ids: Vec<StoreId> = records.iter().map(|(id, _)| *id).collect();
        job.set_records(records);
        let asked = AskedFor::none(self);
        self.until_gone(|queue| job.is_done(queue), Queue::is_stuck, || asked.ask(&ids)).await?;
        drop(asked);
        let refused = |file: &Arc<File>| file.state().fate().refusal();
        let content = dirty.iter().find_map(refused);
        match content.or_else(|| self.refused_below(root, refused_before)) {
            Some(reason) => Err(Error::Refused(reason)),
            None => result,
        }
    }

    fn dirty_below(&self, root: VnodeId) -> Vec<Arc<File>> {
        let mut dirty = self.files().dirty();
        let mut subtree = Subtree::new(self, root);
        dirty.retain(|file| subtree.holds(file.fid.vnode));
        dirty
    }

    fn queued_below(&self, root: VnodeId) -> Vec<(StoreId, Option<u64>)> {
        if root == VnodeId::ROOT {
            return self.replay.queue().newest_first(|_| true);
        }
        // Two looks, because names are not to be looked up while the queue is locked.
        let all = self.replay.queue().list(None, usize::MAX);
        let mut subtree = Subtree::new(self, root);
        let wanted: BTreeSet<_> =
            all.into_iter().filter(|listed| subtree.is_touched_by(&listed.op)).map(|listed| listed.id).collect();
        let mut records = self.replay.queue().newest_first(|_| true);
        records.retain(|(id, _)| wanted.contains(id));
        records
    }

    /// Returns why the server refused a change of names here, if it has refused one since there were `before`
    /// refusals.
    fn refused_below(&self, root: VnodeId, before: usize) -> Option<FsError> {
        let refused = self.replay.refused().get(before..)?.to_vec();
        let mut subtree = Subtree::new(self, root);
        let of_these = refused.iter().find(|(queued, _)| subtree.is_touched_by(&queued.record.op));
        of_these.map(|(_, reason)| *reason)
    }
}

/// An object and the objects below it. A file with several names counts where it was seen last.
struct Subtree<'vfs> {
    inner: &'vfs Inner,
    root: VnodeId,
    known: HashMap<VnodeId, bool>,
}

impl<'vfs> Subtree<'vfs> {
    fn new(inner: &'vfs Inner, root: VnodeId) -> Self {
        Self { inner, root, known: HashMap::from([(VnodeId::ROOT, false), (root, true)]) }
    }

    fn holds(&mut self, vnode: VnodeId) -> bool {
        if self.root == VnodeId::ROOT {
            return true;
        }
        let (mut at, mut way) = (vnode, Vec::new());
        let held = loop {
            if let Some(held) = self.known.get(&at) {
                break *held;
            }
            way.push(at);
            let parent = self.inner.cache.index.object(at).ok().flatten().and_then(|cached| cached.parent);
            match parent.filter(|_| way.len() < DEPTH_MAX) {
                Some(parent) => at = parent,
                None => break false,
            }
        };
        self.known.extend(way.into_iter().map(|vnode| (vnode, held)));
        held
    }

    /// Whether a change is of an object here, or of a name in a directory here.
    fn is_touched_by(&mut self, op: &CmlOp) -> bool {
        let directories: [Option<Fid>; 2] = match op {
            CmlOp::Create { parent, .. }
            | CmlOp::MakeDir { parent, .. }
            | CmlOp::SymLink { parent, .. }
            | CmlOp::Link { parent, .. }
            | CmlOp::Remove { parent, .. }
            | CmlOp::RemoveDir { parent, .. } => [Some(*parent), None],
            CmlOp::Rename { from_parent, to_parent, .. } => [Some(*from_parent), Some(*to_parent)],
            CmlOp::SetAttr { .. } | CmlOp::SetXattr { .. } | CmlOp::RemoveXattr { .. } | CmlOp::Store { .. } => {
                [None, None]
            }
        };
        let touched = directories.into_iter().flatten().chain([op.fid()]);
        touched.map(|fid| fid.vnode).any(|vnode| self.holds(vnode))
    }
}
