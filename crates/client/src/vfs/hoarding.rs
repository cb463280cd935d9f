//! Hoarding: what the user wants to have here, whatever becomes of the connection, is fetched before anybody opens it,
//! and kept.
//!
//! One task walks the hoard: when the volume is attached, when an entry is added, soon after another client has
//! changed something that is meant, and every ten minutes. A walk asks for statuses and names first and then fetches
//! contents, the most wanted first, all of it in class Prefetch. The decision what is worth keeping is made in
//! `core`.

mod commands;
mod fetch;
mod recording;
mod survey;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use mafs_arpc::{blocking, watch};
use mafs_proto::call::Broken;
use mafs_proto::{Name, VnodeId};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::{Error, Inner};
use crate::cache::{Cache, CacheError, Known};
use crate::core::hoard::{Hoard, Marks, Plan, names_of};
use crate::hoard::Rank;
use commands::Warming;
pub use commands::{Evicted, HoardEntry, HoardFailure, Warmed};
use fetch::Fetched;
pub use recording::Recorded;
use recording::Recordings;
use survey::{Found, Survey};

/// Time between two walks of the hoard, as in Coda.
const WALK_EVERY: Duration = Duration::from_secs(600);
/// The shortest and the longest time for which changes by other clients are collected.
const BATCH_DELAY: Duration = Duration::from_secs(2);
const BATCH_DELAY_MAX: Duration = Duration::from_secs(30);
/// Pause before another try for what could not be had, though the server is there.
const RETRY_DELAY: Duration = Duration::from_secs(30);
/// The part of the time that looking at everything may take while others change things all the time.
const LOOK_PART: u32 = 10;

/// Findings of the last walk: what the hoard means, and how much of it is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HoardReport {
    /// Entries.
    pub entries: u64,
    /// Those that are pins.
    pub pins: u64,
    /// Objects that they mean.
    pub objects: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Objects whose content is not here.
    pub missing_objects: u64,
    /// Bytes of these.
    pub missing_bytes: u64,
    /// Those of them for which there is no room in the cache.
    pub left_out_objects: u64,
    /// Whether the hoard is being walked.
    pub walking: bool,
    /// Seconds since the last walk has ended; none if there was none since the mount.
    pub walked_s: Option<u64>,
}

/// The hoard and what is known of it.
pub(super) struct Hoarding {
    hoard: Mutex<Hoard>,
    /// Objects that the paths have meant.
    meant: Mutex<HashMap<Vec<u8>, VnodeId>>,
    marks: Mutex<Arc<Marks>>,
    found: Mutex<FoundLast>,
    /// Notifier of a reason for a walk.
    due: Notify,
    is_due: AtomicBool,
    /// Whether that walk does not wait for more changes.
    at_once: AtomicBool,
    /// Numbers of walks that have begun and ended.
    walks: watch::Sender<Walks>,
    warming: Warming,
    recordings: Recordings,
}

/// Reason why the hoard is walked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    /// The hoard has not been walked for long.
    Time,
    /// Somebody waits for the walk.
    Command,
    /// Another client has changed something, or there is a connection again.
    Change,
}

#[derive(Clone, Copy, Default)]
struct Walks {
    begun: u64,
    ended: u64,
}

/// Findings of the last walk.
#[derive(Default)]
struct FoundLast {
    plan: Plan,
    /// Meaning of each entry.
    entries: HashMap<Vec<u8>, Found>,
    ended: Option<mafs_proto::Instant>,
}

impl Hoarding {
    /// Takes up the hoard as it is written.
    pub(super) fn load(cache: &Cache) -> Result<Arc<Self>, CacheError> {
        let hoarding = Self {
            hoard: Mutex::new(cache.hoard.load()?),
            meant: Mutex::default(),
            marks: Mutex::default(),
            found: Mutex::default(),
            due: Notify::new(),
            is_due: AtomicBool::new(false),
            at_once: AtomicBool::new(false),
            walks: watch::Sender::new(Walks::default()),
            warming: Warming::default(),
            recordings: Recordings::default(),
        };
        hoarding.mark(cache)?;
        Ok(Arc::new(hoarding))
    }

    fn hoard(&self) -> MutexGuard<'_, Hoard> {
        self.hoard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn found(&self) -> MutexGuard<'_, FoundLast> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn marks(&self) -> Arc<Marks> {
        Arc::clone(&self.marks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that there is reason for a walk; `at_once`: somebody waits for it.
    pub(super) fn note_due(&self, at_once: bool) {
        self.at_once.fetch_or(at_once, Ordering::AcqRel);
        self.is_due.store(true, Ordering::Release);
        self.due.notify_one();
    }

    /// Waits until there is reason for a walk, at most for so long. Changes by others wait for more of them, the longer
    /// the longer it takes to look at everything.
    async fn until_due(&self, rest: Duration, looked: Duration) -> Reason {
        if timeout(rest, self.due.notified()).await.is_err() {
            return Reason::Time;
        }
        let delay = sleep((looked * LOOK_PART).clamp(BATCH_DELAY, BATCH_DELAY_MAX));
        tokio::pin!(delay);
        loop {
            if self.at_once.swap(false, Ordering::AcqRel) {
                return Reason::Command;
            }
            tokio::select! {
                () = &mut delay => return Reason::Change,
                () = self.due.notified() => {}
            }
        }
    }

    /// Notes that another client has changed objects.
    pub(super) fn note_broken(&self, cache: &Cache, broken: &Broken) {
        let marks = self.marks();
        let concerns = match broken {
            Broken::Objects(objects) => {
                let mut vnodes = objects.iter().map(|object| object.fid.vnode);
                vnodes.any(|vnode| marks.concerns(vnode, |vnode| parent_of(cache, vnode)))
            }
            Broken::All => true,
        };
        if concerns {
            self.note_due(false);
        }
    }

    /// Returns what an object is worth.
    fn rank_of(&self, cache: &Cache, vnode: VnodeId) -> Rank {
        self.marks().rank_of(vnode, |vnode| parent_of(cache, vnode))
    }

    /// Marks what the entries name, as far as that is known without asking.
    fn mark(&self, cache: &Cache) -> Result<(), CacheError> {
        let mut marks = Marks::default();
        let entries: Vec<_> = self.hoard().iter().map(|(path, spec)| (path.to_vec(), spec)).collect();
        let mut meant = self.meant.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = HashMap::with_capacity(entries.len());
        for (path, spec) in entries {
            let vnode = match meaning(cache, &path, &mut marks)? {
                Meaning::Object(vnode) => Some(vnode),
                Meaning::Nothing => None,
                Meaning::Unknown => meant.get(&path).copied(),
            };
            if let Some(vnode) = vnode {
                marks.mark(vnode, spec);
                now.insert(path, vnode);
            }
        }
        *meant = now;
        *self.marks.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(marks);
        Ok(())
    }
}

/// Meaning of a path, as far as is known here.
enum Meaning {
    Object(VnodeId),
    Nothing,
    Unknown,
}

fn meaning(cache: &Cache, path: &[u8], marks: &mut Marks) -> Result<Meaning, CacheError> {
    let mut at = VnodeId::ROOT;
    for name in names_of(path) {
        let Ok(name) = Name::new(name.to_vec()) else { return Ok(Meaning::Nothing) };
        marks.lead_through(at);
        match cache.index.entry(at, &name)? {
            Some(entry) => at = entry.fid.vnode,
            None if matches!(cache.index.known_entry(at, &name)?, Known::Means(None)) => return Ok(Meaning::Nothing),
            None => return Ok(Meaning::Unknown),
        }
    }
    Ok(Meaning::Object(at))
}

fn parent_of(cache: &Cache, vnode: VnodeId) -> Option<VnodeId> {
    cache.index.object(vnode).ok()??.parent
}

impl Inner {
    /// Returns what an object is worth to the user besides having been used.
    pub(super) fn rank_of(&self, vnode: VnodeId) -> Rank {
        self.hoarding.rank_of(&self.cache, vnode)
    }

    /// Ranks what is cached anew: the entries mean something else than before, or others are there.
    fn rank_anew(&self) -> Result<(), CacheError> {
        let before = self.hoarding.marks();
        self.hoarding.mark(&self.cache)?;
        if !before.are_none() || !self.hoarding.marks().are_none() {
            self.rank_all();
        }
        Ok(())
    }

    /// Ranks what was found by a walk that changes by others were the reason for. Such walks may be often, and asking
    /// upward from each file of a large cache takes long, so what was not found is left to the other walks.
    fn rank_found(&self, plan: &Plan) -> Result<(), CacheError> {
        let before = self.hoarding.marks();
        self.hoarding.mark(&self.cache)?;
        if before != self.hoarding.marks() {
            self.rank_all();
            return Ok(());
        }
        let mut replacement = self.replacement();
        plan.iter().for_each(|planned| replacement.set_rank(planned.fid.vnode, planned.rank));
        Ok(())
    }

    fn rank_all(&self) {
        let cached = self.replacement().by_use();
        for vnode in cached {
            let rank = self.rank_of(vnode);
            self.replacement().set_rank(vnode, rank);
        }
    }

    pub(super) fn hoard_report(&self) -> HoardReport {
        let (entries, pins) = {
            let hoard = self.hoarding.hoard();
            (hoard.len() as u64, hoard.iter().filter(|(_, spec)| spec.rank.is_pinned()).count() as u64)
        };
        let walks = *self.hoarding.walks.borrow();
        let found = self.hoarding.found();
        let (all, missing) = (found.plan.totals(), found.plan.missing());
        HoardReport {
            entries,
            pins,
            objects: all.objects,
            bytes: all.bytes,
            missing_objects: missing.objects,
            missing_bytes: missing.bytes,
            left_out_objects: found.plan.left_out().objects,
            walking: walks.begun > walks.ended,
            walked_s: found.ended.map(|ended| self.clock.now().since(ended).as_secs()),
        }
    }

    /// Notes that files have been evicted: as far as they are hoarded, they are missing now.
    pub(super) fn note_evicted(&self, evicted: &[VnodeId]) {
        evicted.iter().for_each(|vnode| self.prediction().evicted(*vnode));
        let mut found = self.hoarding.found();
        evicted.iter().for_each(|vnode| found.plan.note_cached(*vnode, false));
    }

    /// Looks at all that the hoard means and fetches what is missing. Returns whether some of it is to be tried again
    /// soon.
    async fn walk(self: &Arc<Self>, why: Reason, looked: &mut Duration) -> Result<bool, Error> {
        let begun = Instant::now();
        let survey = self.look_at_hoard().await?;
        let again = survey.is_to_be_repeated();
        let mut plan = survey.into_plan();
        *looked = begun.elapsed();
        blocking(|| match why {
            Reason::Change => self.rank_found(&plan),
            Reason::Time | Reason::Command => self.rank_anew(),
        })?;
        let room_bytes = self.room_for_hoard(&plan);
        let fetches = plan.fetches(room_bytes);
        self.hoarding.found().plan = plan;
        let is_due = || self.hoarding.is_due.load(Ordering::Acquire);
        let note = |vnode, fetched: Fetched| {
            fetched.note_in(&mut self.hoarding.found().plan, vnode);
        };
        let lacks = self.fetch_planned(fetches, is_due, note).await;
        self.hoarding.found().ended = Some(self.clock.now());
        Ok(lacks || again)
    }

    /// Asks what all entries mean.
    async fn look_at_hoard(self: &Arc<Self>) -> Result<Survey<'_>, Error> {
        let entries = self.hoarding.hoard().by_rank();
        let mut survey = Survey::new(self, true);
        let mut meant = HashMap::with_capacity(entries.len());
        let mut expanded = false;
        for (path, spec) in entries {
            let found = survey.look_at(&path, spec).await?;
            // As long as not all is there yet, it is not known what there is now.
            if let Found::Objects { below, .. } = &found
                && spec.scope.is_of_now()
                && !survey.is_to_be_repeated()
            {
                match self.hoarding.hoard().expand(&path, below) {
                    Ok(()) => expanded = true,
                    Err(error) => tracing::warn!(%error, "what is in a hoarded directory now cannot be noted"),
                }
            }
            meant.insert(path, found.without_paths());
        }
        if expanded {
            blocking(|| self.cache.hoard.store(&self.hoarding.hoard()))?;
        }
        self.hoarding.found().entries = meant;
        Ok(survey)
    }
}

/// Walks the hoard whenever there is reason to, as long as the mount lasts.
pub(super) async fn keep_hoarding(inner: Weak<Inner>, hoarding: Arc<Hoarding>) {
    let mut rest = WALK_EVERY;
    let mut looked = Duration::ZERO;
    loop {
        let why = hoarding.until_due(rest, looked).await;
        let Some(inner) = inner.upgrade() else { return };
        hoarding.is_due.store(false, Ordering::Release);
        rest = WALK_EVERY;
        hoarding.walks.send_modify(|walks| walks.begun += 1);
        let walked = inner.walk(why, &mut looked).await;
        match walked {
            Ok(false) => {}
            Ok(true) => rest = RETRY_DELAY,
            // The next connection is a reason.
            Err(error) if !inner.remote.is_up() => tracing::debug!(%error, "the hoard waits for the server"),
            Err(error) => {
                tracing::warn!(%error, "the hoard cannot be walked; it is tried again");
                rest = RETRY_DELAY;
            }
        }
        hoarding.walks.send_modify(|walks| walks.ended = walks.begun);
    }
}
