//! Prediction at work: files that a program will probably open next are fetched before it does, in class Prefetch.
//! Which files, and how many, is decided in `core`.

use std::sync::{Arc, MutexGuard, PoisonError};

use mafs_arpc::blocking;
use mafs_proto::{Kind, VnodeId};

use super::{Caller, Error, Inner, OpenMode, Opened, Vfs};
use crate::cache::{CacheError, CachedEntry, CachedObject};
use crate::core::prediction::{Neighbours, Open, Prediction, PrefetchReport, Program, STEPS_MAX};
use crate::hoard::Rank;

/// Most names of a directory whose listing is searched for the next files: in a larger one the search would take
/// longer than asking a near server.
const NAMES_MAX: usize = 1024;

impl Vfs {
    /// Opens a file for a program. `program` is called only if the program's next opens are of interest.
    ///
    /// # Errors
    /// As [`Vfs::open`].
    pub async fn open_by(
        &self,
        vnode: VnodeId,
        mode: OpenMode,
        caller: Caller,
        program: impl FnOnce() -> Program + Send,
    ) -> Result<Opened, Error> {
        self.inner.open(vnode, mode, caller, program).await
    }
}

impl Inner {
    /// Notes that a program is about to open a file, and fetches files ahead.
    pub(super) fn note_open(self: &Arc<Self>, vnode: VnodeId, program: impl FnOnce() -> Program) {
        if !self.settings.prefetch || !self.remote.is_up() {
            return;
        }
        if let Err(error) = self.fetch_ahead_of(vnode, program) {
            tracing::debug!(vnode = vnode.0, %error, "what is opened next cannot be told");
        }
    }

    fn fetch_ahead_of(self: &Arc<Self>, vnode: VnodeId, program: impl FnOnce() -> Program) -> Result<(), CacheError> {
        let Some(cached) = self.cache.index.object(vnode)? else { return Ok(()) };
        let (Some(directory), Kind::File) = (cached.parent, cached.object.status.kind) else { return Ok(()) };
        let (bytes, here) = (cached.object.status.size, self.is_here(&cached));
        let open = Open { program: program(), directory, vnode, bytes, here };
        if !self.prediction().opened(open, self.clock.now()) {
            return Ok(());
        }
        let neighbours = blocking(|| self.neighbours(&cached, directory))?;
        let next = self.prediction().next(open, neighbours);
        for vnode in next {
            if let Some(cached) = self.cache.index.valid_object(vnode)?
                && !self.begin_ahead(cached)
            {
                break;
            }
        }
        Ok(())
    }

    /// Begins to fetch a file that no program has asked for. Returns whether there may be more.
    fn begin_ahead(self: &Arc<Self>, cached: CachedObject) -> bool {
        let (vnode, status) = (cached.object.fid.vnode, cached.object.status);
        if status.kind != Kind::File || self.files().contains(vnode) || self.is_here(&cached) {
            return true;
        }
        if !self.prediction().begin(vnode, status.size, self.clock.now()) {
            return false;
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let has_room = blocking(|| inner.make_room_in_hoard(Rank::NONE, status.size));
            let came = has_room && inner.prefetch(&cached).await.is_ok();
            if !came {
                inner.prediction().failed(vnode);
            }
        });
        true
    }

    /// Returns the files that follow a file in its directory, as far as the names are known.
    fn neighbours(&self, cached: &CachedObject, directory: VnodeId) -> Result<Neighbours, CacheError> {
        let index = &self.cache.index;
        let is_file = |entry: &CachedEntry| entry.kind == Kind::File;
        let behind = index.entries_up_to(STEPS_MAX, directory, cached.name.as_ref())?;
        let names = behind.iter().filter(|(_, entry)| is_file(entry)).map(|(_, entry)| entry.fid.vnode).collect();
        let all = index.entries_up_to(NAMES_MAX, directory, None)?;
        if all.len() == NAMES_MAX {
            return Ok(Neighbours { names, listing: Vec::new() });
        }
        // `listing/place.rs` defines the order.
        let this = cached.object.fid.vnode;
        let files = all.iter().filter(|(_, entry)| is_file(entry)).map(|(_, entry)| entry.fid.vnode);
        let mut listing: Vec<VnodeId> = files.filter(|file| *file > this).collect();
        listing.sort_unstable();
        listing.truncate(STEPS_MAX);
        Ok(Neighbours { names, listing })
    }

    pub(super) fn prediction(&self) -> MutexGuard<'_, Prediction> {
        self.prediction.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn prefetch_report(&self) -> PrefetchReport {
        self.prediction().report(self.clock.now())
    }
}
