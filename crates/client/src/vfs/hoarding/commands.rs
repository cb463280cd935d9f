//! Requests of commands to the hoard: entries, walks, and fetching once, without an entry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mafs_arpc::blocking;
use mafs_proto::{Fid, VnodeId};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::fetch::Fetched;
use super::survey::{Found, Survey};
use super::{Error, HoardReport, Inner, Meaning, meaning};
use crate::cache::CacheError;
use crate::core::hoard::{Hoard, HoardError, Marks, Plan, names_of};
use crate::hoard::{HoardSpec, Rank, Scope};
use crate::printable::printable;
use crate::vfs::Vfs;
use crate::vfs::naming::Naming;

/// Paths of missing objects in one answer.
const MISSING_NAMED_MAX: usize = 1000;

/// The most looks for a waiting command whether what others are about to send has come, and the rests between.
const LOOKS_MAX: u32 = 5;
const LOOK_REST: Duration = Duration::from_secs(1);

/// Reason why the hoard does not do as it is told.
#[derive(Debug, thiserror::Error)]
pub enum HoardFailure {
    /// There cannot be such an entry.
    #[error(transparent)]
    Entry(#[from] HoardError),
    /// The cache's disk fails.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The server cannot be asked.
    #[error("the server cannot be reached: what is not in the cache cannot be fetched now ({0})")]
    OutOfReach(String),
    /// Something else.
    #[error(transparent)]
    Failed(Error),
}

/// An entry, with what the last walk has found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HoardEntry {
    /// Its path below the mount point, printable.
    pub path: String,
    /// Its priority; none of a pin.
    pub priority: Option<u16>,
    /// Whether it is a pin.
    pub pinned: bool,
    /// Meaning of the entry, as `hoard add` takes it: `500:d+`; `pinned`.
    pub spec: String,
    /// Whether there is such a path; none if that is not known.
    pub exists: Option<bool>,
    /// Objects that it means.
    pub objects: u64,
    /// Those of them that are not here.
    pub missing: u64,
}

/// Part of a file or directory that is here.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Warmed {
    /// Objects at and below the path, as far as they are known.
    pub objects: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Objects that are not here.
    pub missing_objects: u64,
    /// Bytes of these.
    pub missing_bytes: u64,
    /// Those of them for which there is no room.
    pub left_out_objects: u64,
    /// Some of them, by their paths below the mount point; none while it goes on.
    pub missing: Vec<String>,
}

/// Result of an eviction from the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Evicted {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that stay because they are pinned.
    pub pinned_files: u64,
    /// Files that stay because they are open, on their way, or not at the server.
    pub busy_files: u64,
}

/// Fetches that commands wait for, by the numbers of the commands.
#[derive(Default)]
pub(super) struct Warming(Mutex<HashMap<u64, Arc<Mutex<Warmed>>>>);

impl Warming {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<Mutex<Warmed>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, ticket: u64) -> UnderWay<'_> {
        let progress = Arc::default();
        self.all().insert(ticket, Arc::clone(&progress));
        UnderWay { warming: self, ticket, progress }
    }
}

struct UnderWay<'hoarding> {
    warming: &'hoarding Warming,
    ticket: u64,
    progress: Arc<Mutex<Warmed>>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.warming.all().remove(&self.ticket);
    }
}

impl Vfs {
    /// Returns whether the server can be asked now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.inner.remote.is_up()
    }

    /// Returns whether there is something at a path below the mount point, as far as is known without asking.
    #[must_use]
    pub fn is_known(&self, below: &[u8]) -> bool {
        let found = meaning(&self.inner.cache, &normal(below), &mut Marks::default());
        matches!(found, Ok(Meaning::Object(_)))
    }

    /// Hoards what is or will be at a path below the mount point, instead of what was said of it before.
    ///
    /// # Errors
    /// [`HoardFailure`] if there are too many entries, or it cannot be written.
    pub fn hoard(&self, below: &[u8], spec: HoardSpec) -> Result<(), HoardFailure> {
        self.inner.change_hoard(|hoard| Ok(hoard.add(&normal(below), spec)?))
    }

    /// Ends the hoarding of a path, if its entry `is_meant`. Returns whether there was such an entry.
    ///
    /// # Errors
    /// [`HoardFailure`] if it cannot be written.
    pub fn unhoard(&self, below: &[u8], is_meant: impl Fn(HoardSpec) -> bool) -> Result<bool, HoardFailure> {
        let path = normal(below);
        if !self.inner.hoarding.hoard().get(&path).is_some_and(is_meant) {
            return Ok(false);
        }
        self.inner.change_hoard(|hoard| Ok(hoard.remove(&path).is_some()))
    }

    /// Lists all entries, by their paths.
    #[must_use]
    pub fn hoard_entries(&self) -> Vec<HoardEntry> {
        self.inner.hoard_entries()
    }

    /// Walks the hoard and waits for the end of that.
    ///
    /// # Errors
    /// [`HoardFailure::OutOfReach`].
    pub async fn walk_hoard(&self) -> Result<HoardReport, HoardFailure> {
        self.inner.walk_hoard().await
    }

    /// Fetches everything below a path once. `None`: there is no such path. Meanwhile [`Self::warming`] tells how far
    /// it is, by the same number.
    ///
    /// # Errors
    /// [`HoardFailure::OutOfReach`].
    pub async fn warm_up(&self, below: &[u8], ticket: u64) -> Result<Option<Warmed>, HoardFailure> {
        self.inner.warm_up(&normal(below), ticket).await
    }

    /// Returns how far a fetch is; none if nobody waits with this number.
    #[must_use]
    pub fn warming(&self, ticket: u64) -> Option<Warmed> {
        let progress = self.inner.hoarding.warming.all().get(&ticket).cloned()?;
        let progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        Some(progress.clone())
    }

    /// Reports how much of everything below a path is here, as far as this client knows it, without asking anybody.
    ///
    /// # Errors
    /// [`HoardFailure`] if the cache cannot be read.
    pub async fn look_at_cached(&self, below: &[u8]) -> Result<Option<Warmed>, HoardFailure> {
        let plan = self.inner.survey(&normal(below), false).await?;
        Ok(plan.map(|(plan, _)| self.inner.warmed(&plan)))
    }

    /// Drops the contents of everything below a path that the server has and nobody uses or has pinned.
    ///
    /// # Errors
    /// [`HoardFailure`] if the cache cannot be read.
    pub async fn evict(&self, below: &[u8]) -> Result<Option<Evicted>, HoardFailure> {
        let plan = self.inner.survey(&normal(below), false).await?;
        Ok(plan.map(|(plan, _)| blocking(|| self.inner.evict_planned(&plan))))
    }
}

impl Inner {
    /// Changes the hoard, durably, and has it walked.
    pub(super) fn change_hoard<T>(
        &self,
        change: impl FnOnce(&mut Hoard) -> Result<T, HoardFailure>,
    ) -> Result<T, HoardFailure> {
        let outcome = {
            let mut hoard = self.hoarding.hoard();
            let mut changed = hoard.clone();
            let outcome = change(&mut changed)?;
            blocking(|| self.cache.hoard.store(&changed))?;
            *hoard = changed;
            outcome
        };
        blocking(|| self.rank_anew())?;
        self.hoarding.note_due(true);
        Ok(outcome)
    }

    fn hoard_entries(&self) -> Vec<HoardEntry> {
        let entries: Vec<_> = self.hoarding.hoard().iter().map(|(path, spec)| (path.to_vec(), spec)).collect();
        let found = self.hoarding.found();
        let described = entries.into_iter().map(|(path, spec)| {
            let (exists, objects, missing) = match found.entries.get(&path) {
                Some(Found::Objects { count, missing, .. }) => (Some(true), *count, *missing),
                Some(Found::Nothing) => (Some(false), 0, 0),
                Some(Found::Unknown) | None => (None, 0, 0),
            };
            HoardEntry {
                path: printable(&path),
                priority: spec.rank.priority(),
                pinned: spec.rank.is_pinned(),
                spec: spec.to_string(),
                exists,
                objects,
                missing,
            }
        });
        described.collect()
    }

    fn check_reach(&self) -> Result<(), HoardFailure> {
        match self.remote.link().0 {
            crate::remote::Link::Up(_) => Ok(()),
            crate::remote::Link::Down(outage) => Err(HoardFailure::OutOfReach(outage.why)),
            crate::remote::Link::Closed => Err(HoardFailure::OutOfReach("the mount is ending".to_owned())),
        }
    }

    async fn walk_hoard(&self) -> Result<HoardReport, HoardFailure> {
        self.check_reach()?;
        for _ in 0..LOOKS_MAX {
            let mut walks = self.hoarding.walks.subscribe();
            let wanted = self.hoarding.walks.borrow().begun + 1;
            self.hoarding.note_due(true);
            tokio::select! {
                // The sender lives in `self`.
                _ = walks.wait_for(|walks| walks.ended >= wanted) => {}
                () = self.remote.until_out_of_reach() => {}
            }
            self.check_reach()?;
            let report = self.hoard_report();
            if report.missing_objects <= report.left_out_objects {
                break;
            }
            // The walk has ended early for a change by another client, or something is about to come.
            sleep(LOOK_REST).await;
        }
        Ok(self.hoard_report())
    }

    /// Finds what there is at and below a path, and whether more is about to be known. `None`: nothing.
    async fn survey(self: &Arc<Self>, path: &[u8], asks: bool) -> Result<Option<(Plan, bool)>, HoardFailure> {
        const SCOPE: Scope = Scope::Descendants { later: true };
        let mut survey = Survey::new(self, asks);
        let spec = HoardSpec { rank: Rank::USED, scope: SCOPE };
        let found = match survey.look_at(path, spec).await {
            Err(error) if asks => {
                self.check_reach()?;
                return Err(HoardFailure::Failed(error));
            }
            other => other.map_err(HoardFailure::Failed)?,
        };
        let doubtful = survey.is_to_be_repeated();
        Ok((found != Found::Nothing).then(|| (survey.into_plan(), doubtful)))
    }

    async fn warm_up(self: &Arc<Self>, path: &[u8], ticket: u64) -> Result<Option<Warmed>, HoardFailure> {
        self.check_reach()?;
        let under_way = self.hoarding.warming.begin(ticket);
        let mut looks = 0;
        loop {
            looks += 1;
            let Some((mut plan, doubtful)) = self.survey(path, true).await? else { return Ok(None) };
            let others = blocking(|| self.bytes_worth(Rank::USED, |vnode| !plan.holds(vnode)));
            let room_bytes = self.room_for_hoard(&plan).saturating_sub(others);
            let fetches = plan.fetches(room_bytes);
            let plan = Mutex::new(plan);
            let tell = || {
                let now = totals(&plan.lock().unwrap_or_else(PoisonError::into_inner));
                *under_way.progress.lock().unwrap_or_else(PoisonError::into_inner) = now;
            };
            tell();
            let note = |vnode, fetched: Fetched| {
                fetched.note_in(&mut plan.lock().unwrap_or_else(PoisonError::into_inner), vnode);
                tell();
            };
            let lacks = self.fetch_planned(fetches, || false, note).await || doubtful;
            self.check_reach()?;
            if !lacks || looks == LOOKS_MAX {
                return Ok(Some(self.warmed(&plan.into_inner().unwrap_or_else(PoisonError::into_inner))));
            }
            sleep(LOOK_REST).await;
        }
    }

    /// Reports how much of the planned is here, with the paths of what is not.
    fn warmed(&self, plan: &Plan) -> Warmed {
        let mut naming = Naming::new(self);
        let fids: Vec<Fid> = plan.missing_objects().map(|planned| planned.fid).take(MISSING_NAMED_MAX).collect();
        let missing = fids.into_iter().map(|fid| naming.object(fid)).collect();
        Warmed { missing, ..totals(plan) }
    }

    fn evict_planned(&self, plan: &Plan) -> Evicted {
        let mut evicted = Evicted::default();
        let found = plan.iter().map(|planned| planned.fid.vnode);
        let here: Vec<VnodeId> = found.filter(|vnode| self.replacement().bytes_of(*vnode).is_some()).collect();
        for vnode in here {
            match self.evict_unused(vnode) {
                Some(bytes) => {
                    evicted.files += 1;
                    evicted.bytes += bytes;
                }
                None if self.rank_of(vnode).is_pinned() => evicted.pinned_files += 1,
                None => evicted.busy_files += 1,
            }
        }
        evicted
    }
}

fn totals(plan: &Plan) -> Warmed {
    let (all, missing) = (plan.totals(), plan.missing());
    Warmed {
        objects: all.objects,
        bytes: all.bytes,
        missing_objects: missing.objects,
        missing_bytes: missing.bytes,
        left_out_objects: plan.left_out().objects,
        missing: Vec::new(),
    }
}

/// Returns a path with one slash between names and none around.
fn normal(path: &[u8]) -> Vec<u8> {
    names_of(path).collect::<Vec<_>>().join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_mean_the_same_are_the_same() {
        for (path, expected) in [("/a//b/", "a/b"), ("a", "a"), ("", ""), ("/", "")] {
            assert_eq!(normal(path.as_bytes()), expected.as_bytes());
        }
    }
}
