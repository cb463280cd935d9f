//! Fetching what is hoarded: contents that nobody waits for, as many as there is room for.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{StreamExt, future, stream};
use mafs_arpc::blocking;
use mafs_proto::VnodeId;

use super::Inner;
use crate::core::hoard::{Plan, Planned};
use crate::hoard::Rank;

/// Contents that are fetched at a time: as many as find a place among the rests.
const FETCHED_MAX: usize = 4;

/// Outcome for a content that was to be fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fetched {
    /// The content is here.
    Here,
    /// There is no room for it.
    LeftOut,
    /// The content did not come: it has changed, is in use, or the server does not answer.
    Not,
}

/// The contents that are being fetched, with their sizes.
#[derive(Default)]
struct UnderWay(Mutex<BTreeMap<VnodeId, u64>>);

impl UnderWay {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<VnodeId, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes of them that are not in the cache yet.
    fn missing_bytes(&self, inner: &Inner) -> u64 {
        let replacement = inner.replacement();
        let here = |vnode| replacement.bytes_of(vnode).unwrap_or(0);
        self.lock().iter().map(|(vnode, bytes)| bytes.saturating_sub(here(*vnode))).sum()
    }
}

impl Fetched {
    pub(super) fn note_in(self, plan: &mut Plan, vnode: VnodeId) {
        match self {
            Self::Here => plan.note_cached(vnode, true),
            Self::LeftOut => plan.note_left_out(vnode),
            Self::Not => {}
        }
    }
}

impl Inner {
    /// Returns how much of the cache the plan may take: what is in use besides stays where it is.
    pub(super) fn room_for_hoard(&self, plan: &Plan) -> u64 {
        let in_use = self.files().all();
        let replacement = self.replacement();
        let others = in_use.iter().map(|file| file.fid.vnode).filter(|vnode| !plan.holds(*vnode));
        let busy_bytes: u64 = others.filter_map(|vnode| replacement.bytes_of(vnode)).sum();
        replacement.hoard_limit_bytes().saturating_sub(busy_bytes)
    }

    /// Fetches contents in this order, and tells what becomes of each, until `is_to_end`. Returns whether some of them
    /// did not come though there is room.
    pub(super) async fn fetch_planned(
        self: &Arc<Self>,
        fetches: Vec<Planned>,
        is_to_end: impl Fn() -> bool + Sync,
        note: impl Fn(VnodeId, Fetched) + Sync,
    ) -> bool {
        let under_way = UnderWay::default();
        let lacks = AtomicBool::new(false);
        let (under_way, lacks, note, is_to_end) = (&under_way, &lacks, &note, &is_to_end);
        let left = stream::iter(fetches).take_while(|_| future::ready(!is_to_end()));
        left.for_each_concurrent(FETCHED_MAX, |planned| async move {
            let fetched = self.fetch_one(planned, under_way).await;
            lacks.fetch_or(fetched == Fetched::Not, Ordering::Relaxed);
            note(planned.fid.vnode, fetched);
        })
        .await;
        lacks.load(Ordering::Relaxed)
    }

    async fn fetch_one(self: &Arc<Self>, planned: Planned, under_way: &UnderWay) -> Fetched {
        let vnode = planned.fid.vnode;
        let cached = match self.cache.index.valid_object(vnode) {
            Ok(Some(cached)) if cached.object.fid == planned.fid && self.remote.is_up() => cached,
            Ok(_) | Err(_) => return Fetched::Not,
        };
        if self.is_here(&cached) {
            return Fetched::Here;
        }
        let in_use = self.files().get(vnode);
        if in_use.is_some_and(|file| file.state().handles() > 0) {
            // A program that has it open has another version, or waits for this one itself.
            return Fetched::Not;
        }
        under_way.lock().insert(vnode, cached.object.status.size);
        let missing_bytes = under_way.missing_bytes(self);
        let fetched = match blocking(|| self.make_room_in_hoard(planned.rank, missing_bytes)) {
            false => Fetched::LeftOut,
            true => match self.prefetch(&cached).await {
                Ok(()) => Fetched::Here,
                Err(error) => {
                    tracing::debug!(fid = %planned.fid, %error, "a hoarded file does not come");
                    Fetched::Not
                }
            },
        };
        under_way.lock().remove(&vnode);
        fetched
    }

    /// Returns the bytes in the cache of what is worth this much, as far as it is `counted`.
    pub(super) fn bytes_worth(&self, rank: Rank, counted: impl Fn(VnodeId) -> bool) -> u64 {
        self.replacement().bytes_from(rank, counted)
    }
}
