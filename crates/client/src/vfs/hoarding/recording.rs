//! Recording: what a command opens here is noted, and becomes entries of the hoard when it has ended.
//!
//! Which programs belong to the command is found out where requests come in. Objects in directories that they have
//! made are their results, and no part of what they need.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mafs_proto::{Name, VnodeId};
use serde::{Deserialize, Serialize};

use super::{HoardFailure, Inner};
use crate::cache::CacheError;
use crate::hoard::{HoardSpec, Rank, Scope};
use crate::vfs::Vfs;

/// The most recordings at a time, and the most objects of one.
const RECORDINGS_MAX: usize = 16;
const OBJECTS_MAX: usize = 200_000;

/// A depth beyond any path that a program can name.
const DEPTH_MAX: usize = 2048;

/// Result of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Recorded {
    /// Files and directories that were opened and are hoarded now.
    pub objects: u64,
    /// Those that have no name any more.
    pub gone: u64,
}

/// Recordings under way, by the numbers of the commands.
#[derive(Default)]
pub(super) struct Recordings {
    /// Number of recordings, looked at at every open.
    count: AtomicUsize,
    all: Mutex<HashMap<u64, Recording>>,
}

#[derive(Default)]
struct Recording {
    opened: BTreeSet<VnodeId>,
    /// Directories that were made meanwhile.
    made: HashSet<VnodeId>,
}

impl Recordings {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Recording>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, ticket: u64) -> Option<UnderWay<'_>> {
        let mut all = self.all();
        if all.len() >= RECORDINGS_MAX || all.contains_key(&ticket) {
            return None;
        }
        all.insert(ticket, Recording::default());
        self.count.store(all.len(), Ordering::Release);
        Some(UnderWay { recordings: self, ticket })
    }

    fn end(&self, ticket: u64) -> Option<Recording> {
        let mut all = self.all();
        let recording = all.remove(&ticket);
        self.count.store(all.len(), Ordering::Release);
        recording
    }

    fn are_none(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

/// A recording whose command is there.
struct UnderWay<'recordings> {
    recordings: &'recordings Recordings,
    ticket: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.recordings.end(self.ticket);
    }
}

impl Vfs {
    /// Records what is said to be opened with this number until this is dropped. Returns only if it cannot.
    pub async fn record(&self, ticket: u64) {
        if let Some(_under_way) = self.inner.hoarding.recordings.begin(ticket) {
            std::future::pending::<()>().await;
        }
    }

    /// Returns whether the recording with this number has begun.
    #[must_use]
    pub fn records(&self, ticket: u64) -> bool {
        self.inner.hoarding.recordings.all().contains_key(&ticket)
    }

    /// Returns whether anything is being recorded: then it is of interest which program opens things.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        !self.inner.hoarding.recordings.are_none()
    }

    /// Notes that a program that belongs to a recording opens an object.
    pub fn note_opened(&self, ticket: u64, vnode: VnodeId) {
        if let Some(recording) = self.inner.hoarding.recordings.all().get_mut(&ticket)
            && recording.opened.len() < OBJECTS_MAX
        {
            recording.opened.insert(vnode);
        }
    }

    /// Ends a recording: what was opened is hoarded with this rank. `None`: there is no such recording.
    ///
    /// # Errors
    /// [`HoardFailure`] if it is too much, or cannot be written.
    pub fn end_recording(&self, ticket: u64, rank: Rank) -> Result<Option<Recorded>, HoardFailure> {
        match self.inner.hoarding.recordings.end(ticket) {
            Some(recording) => self.inner.hoard_recorded(&recording, rank).map(Some),
            None => Ok(None),
        }
    }
}

impl Inner {
    /// Notes that a directory has been made here: a recorded command did not need it before.
    pub(in crate::vfs) fn note_directory_made(&self, vnode: VnodeId) {
        let recordings = &self.hoarding.recordings;
        if recordings.are_none() {
            return;
        }
        for recording in recordings.all().values_mut().filter(|recording| recording.made.len() < OBJECTS_MAX) {
            recording.made.insert(vnode);
        }
    }

    fn hoard_recorded(&self, recording: &Recording, rank: Rank) -> Result<Recorded, HoardFailure> {
        let mut paths = Paths { inner: self, names: HashMap::new() };
        let mut recorded = Recorded::default();
        let mut found = Vec::with_capacity(recording.opened.len());
        for vnode in &recording.opened {
            match paths.path(*vnode, &recording.made)? {
                Place::At(path) => found.push(path),
                Place::BelowMade => {}
                Place::Nowhere => recorded.gone += 1,
            }
        }
        recorded.objects = found.len() as u64;
        if !found.is_empty() {
            let spec = HoardSpec { rank, scope: Scope::Object };
            self.change_hoard(|hoard| Ok(found.iter().try_for_each(|path| hoard.raise(path, spec))?))?;
        }
        Ok(recorded)
    }
}

/// Finds paths, reading each directory once.
struct Paths<'vfs> {
    inner: &'vfs Inner,
    names: HashMap<VnodeId, HashMap<VnodeId, Name>>,
}

/// Place of an object.
enum Place {
    /// Below the mount point.
    At(Vec<u8>),
    /// In one of the directories made meanwhile, or the object is one.
    BelowMade,
    /// The object has no name that is known.
    Nowhere,
}

impl Paths<'_> {
    fn path(&mut self, vnode: VnodeId, made: &HashSet<VnodeId>) -> Result<Place, CacheError> {
        let (mut names, mut at) = (Vec::new(), vnode);
        while at != VnodeId::ROOT {
            if made.contains(&at) {
                return Ok(Place::BelowMade);
            }
            let parent = self.inner.cache.index.object(at)?.and_then(|cached| cached.parent);
            let Some(parent) = parent.filter(|_| names.len() < DEPTH_MAX) else { return Ok(Place::Nowhere) };
            let Some(name) = self.names_in(parent)?.get(&at).cloned() else { return Ok(Place::Nowhere) };
            names.push(name);
            at = parent;
        }
        let names: Vec<&[u8]> = names.iter().rev().map(Name::as_bytes).collect();
        Ok(Place::At(names.join(&b'/')))
    }

    fn names_in(&mut self, directory: VnodeId) -> Result<&HashMap<VnodeId, Name>, CacheError> {
        if !self.names.contains_key(&directory) {
            let (mut names, mut after) = (HashMap::new(), None);
            loop {
                let page = self.inner.cache.index.entries(directory, after.as_ref())?;
                let Some((last, _)) = page.last() else { break };
                after = Some(last.clone());
                names.extend(page.into_iter().map(|(name, entry)| (entry.fid.vnode, name)));
            }
            self.names.insert(directory, names);
        }
        Ok(self.names.entry(directory).or_default())
    }
}
