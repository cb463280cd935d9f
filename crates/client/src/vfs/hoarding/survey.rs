//! A survey: finds the objects that paths mean, level by level, with their statuses and names.
//!
//! A survey asks the server, for what is not known or not valid, in class Prefetch and for many objects at a time; or
//! it asks nobody, to tell what is here.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::{StreamExt, stream};
use mafs_proto::call::GetStatusRequest;
use mafs_proto::{Fid, FsError, Kind, Name, Purpose, VnodeId};

use super::super::names::WHOLE_LISTING_ENTRIES_MAX;
use super::super::state::{Cached, indexed};
use super::{Error, Inner};
use crate::cache::CachedObject;
use crate::core::hoard::{Plan, Planned, names_of};
use crate::hoard::HoardSpec;

/// Objects of one survey. A hoard that means more is cut short.
const OBJECTS_MAX: usize = 500_000;

/// Questions that are asked at a time.
const ASKED_MAX: usize = 4;

/// Meaning of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// Nothing, now.
    Nothing,
    /// So many objects; `below` are the paths of those below it, if only these are meant.
    Objects { count: u64, missing: u64, below: Vec<Vec<u8>> },
    /// The server could not be asked.
    Unknown,
}

impl Found {
    pub(super) fn without_paths(self) -> Self {
        match self {
            Self::Objects { count, missing, .. } => Self::Objects { count, missing, below: Vec::new() },
            Self::Nothing | Self::Unknown => self,
        }
    }
}

/// An object that is to be looked at.
#[derive(Clone)]
struct Visit {
    fid: Fid,
    spec: HoardSpec,
    /// Path of the object, kept if what is found is named by its path.
    path: Option<Vec<u8>>,
}

pub(super) struct Survey<'vfs> {
    inner: &'vfs Arc<Inner>,
    asks: bool,
    plan: Plan,
    /// Objects that have been looked at, and as what.
    seen: HashSet<(VnodeId, HoardSpec)>,
    doubtful: AtomicBool,
}

impl<'vfs> Survey<'vfs> {
    pub(super) fn new(inner: &'vfs Arc<Inner>, asks: bool) -> Self {
        let (plan, seen) = (Plan::default(), HashSet::new());
        Self { inner, asks, plan, seen, doubtful: AtomicBool::new(false) }
    }

    /// Returns whether another survey soon will find more: something is about to change, or was not answered.
    pub(super) fn is_to_be_repeated(&self) -> bool {
        self.doubtful.load(Ordering::Relaxed)
    }

    pub(super) fn into_plan(self) -> Plan {
        self.plan
    }

    /// Looks at what a path means.
    ///
    /// # Errors
    /// If the server is out of reach, or the cache fails.
    pub(super) async fn look_at(&mut self, path: &[u8], spec: HoardSpec) -> Result<Found, Error> {
        let found = match self.resolve(path).await {
            Ok(Some(fid)) => fid,
            Ok(None) | Err(Error::Refused(FsError::NotFound | FsError::NotDirectory | FsError::Stale)) => {
                return Ok(Found::Nothing);
            }
            Err(error) => {
                self.pass_over(error)?;
                return Ok(Found::Unknown);
            }
        };
        let path = spec.scope.is_of_now().then(|| path.to_vec());
        let first = Visit { fid: found, spec, path };
        self.look_below(first).await
    }

    async fn look_below(&mut self, first: Visit) -> Result<Found, Error> {
        let (mut count, mut missing, mut below) = (0, 0, Vec::new());
        let mut level = vec![first];
        while !level.is_empty() && self.seen.len() < OBJECTS_MAX {
            level.retain(|visit| self.seen.insert((visit.fid.vnode, visit.spec)));
            self.validate(level.iter().map(|visit| visit.fid)).await?;
            self.fetch_xattrs(&level).await?;
            let mut directories = Vec::new();
            for visit in level {
                let Some(cached) = self.inner.cache.index.object(visit.fid.vnode)? else { continue };
                if cached.object.fid == visit.fid {
                    let is_here = self.add(&cached, visit.spec);
                    (count, missing) = (count + 1, missing + u64::from(!is_here));
                    if cached.object.status.kind == Kind::Directory {
                        directories.push((visit, is_here));
                    }
                }
            }
            missing -= self.list(&directories).await?;
            level = self.children(&directories, &mut below)?;
        }
        Ok(Found::Objects { count, missing, below })
    }

    /// Plans an object. Returns whether its content is here.
    fn add(&mut self, cached: &CachedObject, spec: HoardSpec) -> bool {
        let status = cached.object.status;
        let bytes = if status.kind == Kind::File { status.size } else { 0 };
        let is_here = self.inner.is_here(cached);
        self.plan.add(Planned { fid: cached.object.fid, rank: spec.rank, bytes, cached: is_here });
        is_here
    }

    /// Makes sure that all names of these directories are known. Returns how many of those that were missing are here
    /// then.
    async fn list(&mut self, directories: &[(Visit, bool)]) -> Result<u64, Error> {
        if !self.asks {
            return Ok(0);
        }
        let missing: Vec<VnodeId> =
            directories.iter().filter(|(_, is_here)| !is_here).map(|(visit, _)| visit.fid.vnode).collect();
        let inner = self.inner;
        let listing = stream::iter(missing.clone()).map(|vnode| inner.fetch_listing(vnode, Purpose::Prefetch));
        let listed: Vec<_> = listing.buffered(ASKED_MAX).collect().await;
        let mut came = 0;
        for (vnode, listed) in missing.into_iter().zip(listed) {
            match listed {
                Ok(_) => {
                    self.plan.note_cached(vnode, true);
                    came += 1;
                }
                Err(error) => self.pass_over(error)?,
            }
        }
        Ok(came)
    }

    /// Returns the objects in directories, as far as they are meant.
    fn children(&mut self, directories: &[(Visit, bool)], below: &mut Vec<Vec<u8>>) -> Result<Vec<Visit>, Error> {
        let mut level = Vec::new();
        for (directory, _) in directories {
            let Some(scope) = directory.spec.scope.below() else { continue };
            let spec = HoardSpec { scope, ..directory.spec };
            let mut after: Option<Name> = None;
            loop {
                let page = self.inner.cache.index.entries(directory.fid.vnode, after.as_ref())?;
                let Some((last, _)) = page.last() else { break };
                after = Some(last.clone());
                for (name, entry) in page {
                    let path = directory.path.as_ref().map(|path| joined(path, &name));
                    below.extend(path.clone());
                    level.push(Visit { fid: entry.fid, spec, path });
                }
            }
        }
        Ok(level)
    }

    /// Asks for the statuses of the objects that are not valid.
    async fn validate(&self, fids: impl Iterator<Item = Fid>) -> Result<(), Error> {
        if !self.asks {
            return Ok(());
        }
        let mut invalid = Vec::new();
        for fid in fids {
            if self.inner.cache.index.valid_object(fid.vnode)?.is_none() {
                invalid.push(fid);
            }
        }
        let inner = self.inner;
        let parts: Vec<_> = invalid.chunks(GetStatusRequest::FIDS_MAX).map(<[Fid]>::to_vec).collect();
        let asking = stream::iter(parts).map(|part| inner.validate(part, Purpose::Prefetch));
        let answers: Vec<_> = asking.buffered(ASKED_MAX).collect().await;
        for answer in answers {
            match answer {
                Ok(reply) if reply.pending.is_empty() => {}
                Ok(_) => self.doubtful.store(true, Ordering::Relaxed),
                Err(error) => self.pass_over(error)?,
            }
        }
        Ok(())
    }

    /// Asks for the extended attributes that are not known: without a connection they could not be had.
    async fn fetch_xattrs(&self, level: &[Visit]) -> Result<(), Error> {
        if !self.asks {
            return Ok(());
        }
        let index = &self.inner.cache.index;
        let mut unknown = Vec::new();
        for visit in level {
            if let Some(cached) = index.valid_object(visit.fid.vnode)?
                && index.xattrs(&cached.object)?.is_none()
            {
                unknown.push(cached.object);
            }
        }
        let inner = self.inner;
        let asking = stream::iter(unknown)
            .map(|object| async move { inner.xattrs_of(&object, Purpose::Prefetch).await.map(|_| ()) });
        let answers: Vec<Result<(), Error>> = asking.buffered(ASKED_MAX).collect().await;
        answers.into_iter().filter_map(Result::err).try_for_each(|error| self.pass_over(error))
    }

    /// Finds the object that a path means.
    async fn resolve(&self, path: &[u8]) -> Result<Option<Fid>, Error> {
        let root = self.inner.cache.index.object(VnodeId::ROOT)?.ok_or(Error::Refused(FsError::Stale))?;
        let mut at = root.object.fid;
        for name in names_of(path) {
            let Ok(name) = Name::new(name.to_vec()) else { return Ok(None) };
            match self.entry(at, &name).await? {
                Some(fid) => at = fid,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// Finds the object that a name means. Directories on the way are listed whole if they are not large: without a
    /// connection a program that looks for what is not there must be told so.
    async fn entry(&self, directory: Fid, name: &Name) -> Result<Option<Fid>, Error> {
        let index = &self.inner.cache.index;
        if self.asks {
            self.validate(std::iter::once(directory)).await?;
            let cached = index.object(directory.vnode)?.ok_or(Error::Refused(FsError::Stale))?;
            let status = cached.object.status;
            if status.kind != Kind::Directory {
                return Err(Error::Refused(FsError::NotDirectory));
            }
            let is_whole = cached.entries.is_some_and(|entries| entries.complete);
            if !is_whole && status.size <= WHOLE_LISTING_ENTRIES_MAX {
                self.inner.fetch_listing(directory.vnode, Purpose::Prefetch).await?;
            } else if !is_whole && index.entry(directory.vnode, name)?.is_none() {
                return Ok(Some(self.inner.ask_name(directory, name, Purpose::Prefetch).await?.object.fid));
            }
        }
        Ok(index.entry(directory.vnode, name)?.map(|entry| entry.fid))
    }

    /// Goes on after an error about one object, unless nothing else will come either.
    fn pass_over(&self, error: Error) -> Result<(), Error> {
        match error {
            Error::Refused(FsError::Stale | FsError::NotFound | FsError::NotDirectory) => Ok(()),
            _ if !self.inner.remote.is_up() => Err(error),
            error => {
                tracing::debug!(%error, "something hoarded cannot be looked at yet");
                self.doubtful.store(true, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

impl Inner {
    /// Returns whether an object can be used without the server.
    pub(in crate::vfs) fn is_here(&self, cached: &CachedObject) -> bool {
        let in_use = self.files().get(cached.object.fid.vnode);
        match in_use {
            Some(file) => {
                let state = file.state();
                state.is_complete() && state.is_current(cached.object.status.data_version)
            }
            None => indexed(cached).0 == Cached::Whole,
        }
    }
}

fn joined(path: &[u8], name: &Name) -> Vec<u8> {
    match path {
        [] => name.as_bytes().to_vec(),
        path => [path, b"/", name.as_bytes()].concat(),
    }
}
