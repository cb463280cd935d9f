//! Janitor: does what must be done for a volume some time, and nobody waits for.
//!
//! One task per volume: collects at start what a crash left, then removes contents that have been replaced and writes
//! checkpoints.

use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::blocking;
use mafs_proto::{Clock, Instant};
use tokio::sync::mpsc;

use super::Shared;
use crate::core::{ContentId, tables};

/// Pause before the next checkpoint after one has failed; the journal grows meanwhile, nothing else suffers.
const CHECKPOINT_RETRY: Duration = Duration::from_secs(60);

/// A chore of the janitor.
pub(super) enum Chore {
    /// Remove the contents that nothing names any more.
    Remove,
    /// Write a checkpoint: the journal has grown long.
    Checkpoint,
}

/// Runs until the committer has ended.
pub(super) async fn run(shared: Arc<Shared>, mut chores: mpsc::Receiver<Chore>, clock: Arc<dyn Clock>) {
    collect_orphans(&shared).await;
    let mut retry_at = Instant(0);
    while let Some(chore) = chores.recv().await {
        match chore {
            Chore::Remove => drop(blocking(|| shared.contents.remove_unwanted())),
            Chore::Checkpoint if clock.now() < retry_at || !shared.index.checkpoint_due() => {}
            Chore::Checkpoint => {
                if let Err(error) = blocking(|| shared.index.checkpoint()) {
                    tracing::warn!(volume = %shared.name, %error, "no checkpoint; again in {CHECKPOINT_RETRY:?}");
                    retry_at = clock.now() + CHECKPOINT_RETRY;
                }
            }
        }
    }
}

/// Removes the content files that no object names, one directory of them at a time.
async fn collect_orphans(shared: &Shared) {
    let mut orphans = 0;
    for shard in 0..=u8::MAX {
        match blocking(|| shared.contents.collect_orphans(shard, |id| is_named(shared, id))) {
            Ok(count) => orphans += count,
            Err(error) => {
                tracing::warn!(volume = %shared.name, shard, %error, "content files could not be listed");
            }
        }
        tokio::task::yield_now().await;
    }
    if orphans > 0 {
        tracing::info!(volume = %shared.name, orphans, "removed contents of stores that were not committed");
    }
}

/// Tells whether an object has this content; also if that cannot be found out.
fn is_named(shared: &Shared, id: ContentId) -> bool {
    match shared.read(|transaction| transaction.node(id.fid)) {
        Ok(node) if node.content_file(id.fid) == Some(id) => true,
        Err(refusal) if refusal.error != mafs_proto::FsError::Stale => true,
        Ok(_) | Err(_) => {
            shared.read(|transaction| transaction.get(&tables::borrowed(id))).map_or(true, |found| found.is_some())
        }
    }
}
