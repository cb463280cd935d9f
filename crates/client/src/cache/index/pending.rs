//! The index with pending changes on top: those that the server does not have yet.
//!
//! When the server's answer to such a change is taken in, the change moves from one side to the other: a reader sees it
//! once, never twice and never not at all.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use mafs_durable::Batch;
use mafs_proto::call::ApplyReply;
use mafs_proto::{Fid, Kind, Name, Object, StoreId, VnodeId};

use super::{Index, NO_TRUST, NameEdit, SCAN_MAX, counted, object_key};
use crate::cache::CacheError;
use crate::cache::record::{CachedEntries, CachedEntry, CachedObject};
use crate::core::overlay::{Meaning, Overlay, edits_of, touched_by};
use crate::core::promises::{Grant, SessionNumber};
use crate::core::queue::Queued;
use crate::core::touched::directories_of;

/// Changes that the server does not have yet.
#[derive(Default)]
pub(super) struct Pending {
    overlay: RwLock<Overlay>,
    /// Whether there are any, so that a mount without changes takes no lock.
    any: AtomicBool,
    /// Directories whose names the changes change. Kept beside them, because code that takes an answer in has them
    /// locked and asks.
    naming: Mutex<HashSet<VnodeId>>,
}

impl Pending {
    pub(super) fn read(&self) -> Option<RwLockReadGuard<'_, Overlay>> {
        let any = self.any.load(Ordering::Acquire);
        any.then(|| self.overlay.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the overlay with the effects of records.
    fn change<T>(&self, records: &[&Queued], change: impl FnOnce(&mut Overlay) -> T) -> T {
        let mut overlay: RwLockWriteGuard<'_, Overlay> = self.overlay.write().unwrap_or_else(PoisonError::into_inner);
        // Before the change: a reader that comes now waits for it.
        self.any.store(true, Ordering::Release);
        let changed = change(&mut overlay);
        self.any.store(!overlay.is_empty(), Ordering::Release);
        let mut naming = self.naming();
        let directories = records.iter().flat_map(|queued| directories_of(&queued.record.op));
        for directory in directories.map(|directory| directory.vnode) {
            match overlay.name_edit(directory) {
                Some(_) => naming.insert(directory),
                None => naming.remove(&directory),
            };
        }
        changed
    }

    /// Whether there are changes of a directory's names.
    pub(super) fn changes_names(&self, directory: VnodeId) -> bool {
        self.naming().contains(&directory)
    }

    /// Returns the directories whose names the changes change.
    pub(super) fn naming_directories(&self) -> Vec<VnodeId> {
        self.naming().iter().copied().collect()
    }

    fn naming(&self) -> MutexGuard<'_, HashSet<VnodeId>> {
        self.naming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Knowledge of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// The name means this, or nothing.
    Means(Option<CachedEntry>),
    /// Nothing is known of the name.
    Unknown,
}

impl From<(Fid, Kind)> for CachedEntry {
    fn from((fid, kind): (Fid, Kind)) -> Self {
        Self { fid, kind }
    }
}

fn entry_of(meaning: Meaning) -> Option<CachedEntry> {
    meaning.map(CachedEntry::from)
}

impl Index {
    /// Returns what is known of an object; `None` too if it is about to be removed.
    pub(crate) fn object(&self, vnode: VnodeId) -> Result<Option<CachedObject>, CacheError> {
        let Some(overlay) = self.pending.read() else { return self.shown(vnode) };
        let shown = self.shown(vnode)?;
        Ok(self.laid_over(&overlay, vnode, shown))
    }

    /// Returns what is known of an object, if its status is valid: that of one that was made here always is.
    pub(crate) fn valid_object(&self, vnode: VnodeId) -> Result<Option<CachedObject>, CacheError> {
        self.valid_below(self.pending.read().as_deref(), vnode)
    }

    /// Returns what is known of an object, if the server has promised to tell of a change.
    pub(crate) fn promised_object(&self, vnode: VnodeId) -> Result<Option<CachedObject>, CacheError> {
        let overlay = self.pending.read();
        self.below(overlay.as_deref(), vnode, |vnode| self.promised_shown(vnode))
    }

    fn valid_below(&self, overlay: Option<&Overlay>, vnode: VnodeId) -> Result<Option<CachedObject>, CacheError> {
        self.below(overlay, vnode, |vnode| self.valid_shown(vnode))
    }

    /// Returns an object with the changes on top, if it is `shown` or was made here.
    fn below(
        &self,
        overlay: Option<&Overlay>,
        vnode: VnodeId,
        shown: impl Fn(VnodeId) -> Result<Option<CachedObject>, CacheError>,
    ) -> Result<Option<CachedObject>, CacheError> {
        let Some(overlay) = overlay else { return shown(vnode) };
        let shown = if overlay.made(vnode).is_some() { self.shown(vnode)? } else { shown(vnode)? };
        Ok(self.laid_over(overlay, vnode, shown))
    }

    /// Whether this client has removed an object, and the server does not know.
    pub(crate) fn is_removed(&self, vnode: VnodeId) -> Result<bool, CacheError> {
        let Some(overlay) = self.pending.read() else { return Ok(false) };
        if !overlay.changes_object(vnode) {
            return Ok(false);
        }
        let shown = self.shown(vnode)?;
        Ok((shown.is_some() || overlay.made(vnode).is_some()) && self.laid_over(&overlay, vnode, shown).is_none())
    }

    /// Whether this client has removed an object, as [`Self::is_removed`] says, and no name that it loses may have been
    /// counted before.
    pub(crate) fn is_certainly_removed(&self, vnode: VnodeId) -> Result<bool, CacheError> {
        let may_count_twice = self.pending.read().is_some_and(|overlay| overlay.may_count_twice(vnode));
        Ok(!may_count_twice && self.is_removed(vnode)?)
    }

    /// Whether an object exists on this machine only, as far as it is known.
    pub(crate) fn is_made_here(&self, vnode: VnodeId) -> bool {
        self.pending.read().is_some_and(|overlay| overlay.made(vnode).is_some())
    }

    /// Returns the record that makes an object, if the server has not answered to it.
    pub(crate) fn made_by(&self, vnode: VnodeId) -> Option<StoreId> {
        self.pending.read()?.made_by(vnode)
    }

    /// Returns the meaning of a name, as far as it is known.
    pub(crate) fn entry(&self, parent: VnodeId, name: &Name) -> Result<Option<CachedEntry>, CacheError> {
        let overlay = self.pending.read();
        match overlay.and_then(|overlay| overlay.name(parent, name)) {
            Some(meaning) => Ok(entry_of(meaning)),
            None => self.shown_entry(parent, name),
        }
    }

    /// Returns the meaning that a pending change gives a name; `None`: there is no such change.
    pub(crate) fn pending_entry(&self, parent: VnodeId, name: &Name) -> Option<Option<CachedEntry>> {
        self.pending.read()?.name(parent, name).map(entry_of)
    }

    /// Returns what is known of a name; knowing that it means nothing counts too.
    pub(crate) fn known_entry(&self, parent: VnodeId, name: &Name) -> Result<Known, CacheError> {
        self.entry_below((parent, name), |vnode| self.valid_shown(vnode))
    }

    /// Returns what was last known of a name, be it valid or not: this counts if the server is out of reach.
    pub(crate) fn last_known_entry(&self, parent: VnodeId, name: &Name) -> Result<Known, CacheError> {
        self.entry_below((parent, name), |vnode| self.shown(vnode))
    }

    fn entry_below(
        &self,
        (parent, name): (VnodeId, &Name),
        shown: impl Fn(VnodeId) -> Result<Option<CachedObject>, CacheError>,
    ) -> Result<Known, CacheError> {
        let overlay = self.pending.read();
        if let Some(meaning) = overlay.as_ref().and_then(|overlay| overlay.name(parent, name)) {
            return Ok(Known::Means(entry_of(meaning)));
        }
        // A name that is missing says nothing while the names are being replaced.
        let _turn = self.lock();
        let directory = self.below(overlay.as_deref(), parent, shown)?.and_then(|directory| directory.entries);
        let Some(CachedEntries { complete, .. }) = directory else { return Ok(Known::Unknown) };
        match self.shown_entry(parent, name)? {
            None if !complete => Ok(Known::Unknown),
            entry => Ok(Known::Means(entry)),
        }
    }

    /// Returns a number for the state of a directory's names with pending changes; `None`: they are as the server has
    /// shown.
    pub(crate) fn name_edit(&self, parent: VnodeId) -> Option<u64> {
        self.pending.read()?.name_edit(parent)
    }

    /// Returns the entries of a directory behind `after`, in order, at most 1,024.
    pub(crate) fn entries(
        &self,
        parent: VnodeId,
        after: Option<&Name>,
    ) -> Result<Vec<(Name, CachedEntry)>, CacheError> {
        self.entries_up_to(SCAN_MAX, parent, after)
    }

    /// Returns the entries of a directory behind `after`, in order, at most `count_max`.
    pub(crate) fn entries_up_to(
        &self,
        count_max: usize,
        parent: VnodeId,
        after: Option<&Name>,
    ) -> Result<Vec<(Name, CachedEntry)>, CacheError> {
        let mut after = after.cloned();
        loop {
            let overlay = self.pending.read();
            let mut page = self.shown_entries(count_max, parent, after.as_ref())?;
            let Some(overlay) = overlay else { return Ok(page) };
            let last = if page.len() < count_max { None } else { page.last().map(|(name, _)| name.clone()) };
            let edits = overlay.names_between(parent, after.as_ref(), last.as_ref(), count_max);
            let cut = if edits.len() < count_max { None } else { edits.last().map(|(name, _)| name.clone()) };
            if let Some(cut) = &cut {
                page.retain(|(name, _)| name <= cut);
            }
            let merged = merge(page, edits, count_max);
            // All names of the page are about to be removed; there may be more behind.
            match cut.or(last) {
                Some(behind) if merged.is_empty() => after = Some(behind),
                _ => return Ok(merged),
            }
        }
    }

    /// Adds a change that is in the log and that the server does not have.
    pub(crate) fn push_pending(&self, queued: &Queued) {
        self.pending.change(&[queued], |overlay| overlay.push(queued));
    }

    /// Adds a change of a life before that is in the log. The server may have shown its effects already.
    pub(crate) fn restore_pending(&self, queued: &Queued) {
        self.pending.change(&[queued], |overlay| overlay.restore(queued));
    }

    /// Drops a change that the server will not have.
    pub(crate) fn drop_pending(&self, queued: &Queued) {
        self.pending.change(&[queued], |overlay| overlay.remove(queued));
    }

    /// Replaces a change that has not been sent yet by others.
    pub(crate) fn replace_pending(&self, before: &Queued, now: &[&Queued]) {
        self.pending.change(&[&[before], now].concat(), |overlay| {
            overlay.remove(before);
            now.iter().for_each(|queued| overlay.push(queued));
        });
    }

    /// Takes in that the server has done what a record of the queue says.
    pub(crate) fn applied_pending(
        &self,
        reply: &ApplyReply,
        session: SessionNumber,
        queued: &Queued,
    ) -> Result<(), CacheError> {
        let edits: Vec<NameEdit> = edits_of(queued)
            .into_iter()
            .map(|(parent, name, meaning)| NameEdit { parent, name, entry: entry_of(meaning) })
            .collect();
        let xattrs = self.xattrs_behind(&queued.record)?;
        let about = reply.objects.iter().find(|object| object.fid == queued.record.op.fid());
        self.pending.change(&[queued], |overlay| {
            let links = overlay.links_by(queued);
            // For records of a life before it is not known what has been counted.
            let is_known = !touched_by(queued).into_iter().any(|fid| overlay.may_count_twice(fid.vnode));
            let noted = self.applied_with_links(reply, session, &edits, is_known.then_some(&links));
            overlay.applied(queued);
            noted.and_then(|()| about.map_or(Ok(()), |object| self.adopt_xattrs(object, xattrs)))
        })
    }

    /// Takes in that the server has a content of a file. Its answer may count a change of the file's names that was
    /// made later.
    pub(crate) fn stored(&self, reply: &ApplyReply, session: SessionNumber, fid: Fid) -> Result<(), CacheError> {
        let is_changed = self.pending.read().is_some_and(|overlay| overlay.changes_object(fid.vnode));
        self.applied_with_links(reply, session, &[], is_changed.then_some(&[]))
    }

    /// Takes in that the server has done something else than what a record of the queue says, and shows these objects
    /// now.
    pub(crate) fn applied_otherwise(
        &self,
        reply: &ApplyReply,
        session: SessionNumber,
        queued: &Queued,
    ) -> Result<(), CacheError> {
        self.pending.change(&[queued], |overlay| {
            let noted = self.applied_elsewhere(reply, session);
            overlay.remove(queued);
            noted
        })
    }

    /// Whether there are changes that the server has not answered to.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.read().is_some()
    }

    /// Whether a change is laid over what the server shows.
    pub(crate) fn is_laid_over(&self, queued: &Queued) -> bool {
        self.pending.read().is_some_and(|overlay| overlay.has(queued))
    }

    /// Takes records off that the server has done, though nobody has heard yet how that came out: they are not laid
    /// over what the server shows from now on, and all that was shown before of the objects they touch is out of date.
    /// So are the answers to earlier questions: own changes break no promises, so it is noted here. A grant of an
    /// earlier session is not believed. All records go in one step: a name would mean nothing while only its removal is
    /// left. Their changes to the numbers of names are counted in what is known of the objects, for other changes may
    /// be left.
    pub(crate) fn applied_unanswered(&self, records: &[Queued], grant: Grant) -> Result<(), CacheError> {
        self.pending.change(&records.iter().collect::<Vec<_>>(), |overlay| {
            if grant.session != self.session() {
                return Ok(());
            }
            let mut links = Vec::new();
            for queued in records {
                if !overlay.has(queued) {
                    continue;
                }
                self.changed_up_to(grant.change, touched_by(queued).into_iter());
                if let Some(made) = overlay.made_as(queued) {
                    self.install_made(made, overlay.place(made.fid.vnode))?;
                }
                links.extend(overlay.links_by(queued));
                overlay.applied(queued);
            }
            self.count_links(&links)
        })
    }

    /// Returns an object that is about to become this, with the changes on top; `None` if they remove it. Says nothing
    /// of the names in it.
    pub(crate) fn with_own_changes(&self, object: Object) -> Result<Option<CachedObject>, CacheError> {
        let vnode = object.fid.vnode;
        let overlay = self.pending.read();
        let place = self.shown(vnode)?.map(|known| (known.parent, known.name));
        let (parent, name) = place.unwrap_or_default();
        let coming = CachedObject { parent, name, ..CachedObject::shown(object) };
        match overlay {
            Some(overlay) => Ok(self.laid_over(&overlay, vnode, Some(coming))),
            None => Ok(Some(coming)),
        }
    }

    /// Counts the names that objects have won and lost at the server. The server must be asked about a file that has
    /// lost its last one.
    fn count_links(&self, links: &[(VnodeId, i64)]) -> Result<(), CacheError> {
        let _turn = self.lock();
        let mut batch = Batch::default();
        for (vnode, _) in links {
            if let Some(mut known) = self.shown(*vnode)?
                && let Some(nlink) = counted(&known.object, links)
            {
                known.object.status.nlink = nlink;
                batch.put(object_key(*vnode), known.encode());
            }
        }
        self.apply(&batch)
    }

    /// Notes that an object that was made here exists at the server too: the server must be asked for its present
    /// state.
    fn install_made(&self, made: &Object, place: Option<&(VnodeId, Name)>) -> Result<(), CacheError> {
        let _turn = self.lock();
        if self.shown(made.fid.vnode)?.is_some() {
            return Ok(());
        }
        let (parent, name) = place.cloned().unzip();
        let known = CachedObject { trust: NO_TRUST, parent, name, ..CachedObject::shown(made.clone()) };
        let mut batch = Batch::default();
        batch.put(object_key(made.fid.vnode), known.encode());
        self.apply(&batch)
    }

    /// Lays the changes over what was shown of an object, or made of it here; `None` if they remove it.
    fn laid_over(&self, overlay: &Overlay, vnode: VnodeId, shown: Option<CachedObject>) -> Option<CachedObject> {
        if !overlay.changes_object(vnode) {
            return shown;
        }
        let made = || overlay.made(vnode).map(|object| self.as_made(object));
        let mut cached = shown.or_else(made)?;
        overlay.lay_over(&mut cached.object);
        if let Some((parent, name)) = overlay.place(vnode) {
            (cached.parent, cached.name) = (Some(*parent), Some(name.clone()));
        }
        (cached.object.status.nlink > 0).then_some(cached)
    }

    /// Returns an object as it was made here: of a directory all names are known.
    fn as_made(&self, object: &Object) -> CachedObject {
        let status = object.status;
        let all = CachedEntries { version: status.data_version, complete: true };
        let entries = (status.kind == Kind::Directory).then_some(all);
        CachedObject { trust: self.trust(), entries, ..CachedObject::shown(object.clone()) }
    }
}

/// Merges two lists that are in order.
fn merge(shown: Vec<(Name, CachedEntry)>, edits: Vec<(Name, Meaning)>, count_max: usize) -> Vec<(Name, CachedEntry)> {
    let mut merged = Vec::with_capacity(shown.len() + edits.len());
    let mut edits = edits.into_iter().peekable();
    for (name, entry) in shown {
        while let Some((edited, meaning)) = edits.next_if(|(edited, _)| *edited < name) {
            merged.extend(entry_of(meaning).map(|entry| (edited, entry)));
        }
        match edits.next_if(|(edited, _)| *edited == name) {
            Some((_, meaning)) => merged.extend(entry_of(meaning).map(|entry| (name, entry))),
            None => merged.push((name, entry)),
        }
    }
    merged.extend(edits.filter_map(|(edited, meaning)| Some((edited, entry_of(meaning)?))));
    merged.truncate(count_max);
    merged
}
