//! Changes of names and attributes: done by the server while the program waits, or logged here and sent in the
//! background.
//!
//! A logged change is decided by what is known here: what the server has shown, with this client's own changes on
//! top. A change that must have one winner among all clients (mkdir, link, O_EXCL and the like) is logged too, but
//! the program waits for the server's word, unless this client decides ([`exclusive`](super::exclusive)).

use std::collections::BTreeSet;

use mafs_arpc::blocking;
use mafs_proto::{
    CmlOp, CmlRecord, Fid, FsError, Kind, Name, Object, Removed, RenameMode, Status, StoreId, VnodeId, XattrMode,
    Xattrs,
};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::exclusive::Decider;
use super::kernel::Nameless;
use super::names::objects_of;
use super::{Caller, Error, Inner};
use crate::cache::{CachedEntry, Known, NameEdit};
use crate::core::log::LogEntry;
use crate::core::queue::{Policy, Queue, Queued};
use crate::remote::HOLDER_WAIT;

/// The most records that wait for the server; more are refused as by a full disk. Each takes about 1 KB of memory.
const QUEUE_MAX: usize = 200_000;

/// The most directories that one can be below another.
const DEPTH_MAX: usize = 4096;

/// Time at which the server gets changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Writeback {
    /// Before the call returns that makes them; contents before close(2) does.
    Sync,
    /// In the background, in order.
    Async,
    /// In the background, in order, with an announcement of what waits, so that nobody opens what was before it: the
    /// paper's selective invalidation.
    #[default]
    Sirp,
    /// Like [`Self::Sirp`], with an announcement of every content, for comparison: the paper's compulsory
    /// invalidation.
    SirpC,
}

impl Writeback {
    /// Returns whether a program that makes a change waits for the server's word about it.
    pub(crate) const fn waits(self) -> bool {
        matches!(self, Self::Sync)
    }

    /// Returns which changes are announced.
    pub(crate) const fn policy(self) -> Policy {
        match self {
            Self::Sync | Self::Async => Policy::Nothing,
            Self::Sirp => Policy::Waiting,
            Self::SirpC => Policy::All,
        }
    }
}

/// Time at which close(2) returns, and every change of names and attributes, of a mount that sends in the background.
///
/// A logged change is safe in any case. The question is whether another client that opens the file just behind the
/// close is sure to get the new content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Close {
    /// A close of what others may be looking at: when the server has heard of it and has told them, if that is expected
    /// in a few milliseconds. All else: when what was changed is in the log.
    #[default]
    Auto,
    /// When what was changed is in the log.
    Logged,
    /// When the server has heard of it, and nobody is shown any more what was before.
    Announced,
}

/// A change, with the kinds of the objects that its names mean.
pub(super) struct Change {
    op: CmlOp,
    /// As in [`CmlRecord`].
    removes: Option<Removed>,
    kind: Kind,
    replaced: Option<Kind>,
    exclusive: bool,
}

impl Change {
    /// Builds a change about an object of this kind.
    pub(super) fn new(op: CmlOp, kind: Kind) -> Self {
        Self { op, removes: None, kind, replaced: None, exclusive: false }
    }

    /// Sets the kind of the object that the change finds at its target.
    pub(super) fn replacing(self, replaced: Option<Kind>) -> Self {
        Self { replaced, ..self }
    }

    /// Sets whether the change must fail for all clients but one.
    pub(super) fn exclusive(self, exclusive: bool) -> Self {
        Self { exclusive, ..self }
    }
}

/// Receiver of the server's verdict on a record.
type Verdict = oneshot::Receiver<Result<(), FsError>>;

/// A change that is in the log.
struct LoggedChange {
    /// `None`: the server will never hear of it.
    id: Option<StoreId>,
    verdict: Option<Verdict>,
    decider: Decider,
    /// Object whose last name the change took.
    gone: Option<Object>,
}

impl Inner {
    /// Makes a change. Returns the object that it is about as it is then, unless that is gone.
    pub(super) async fn change(
        &self,
        change: Change,
        caller: Caller,
        edits: &[NameEdit],
    ) -> Result<Option<Object>, Error> {
        let fid = change.op.fid();
        match self.settings.writeback {
            Writeback::Sync => {
                let reply = self.mutate(change.op, caller, edits).await?;
                Ok(reply.objects.into_iter().find(|object| object.fid == fid))
            }
            Writeback::Async | Writeback::Sirp | Writeback::SirpC => {
                self.log_change(change, caller, edits).await?;
                Ok(self.cache.index.object(fid.vnode)?.map(|cached| cached.object))
            }
        }
    }

    async fn log_change(&self, change: Change, caller: Caller, edits: &[NameEdit]) -> Result<(), Error> {
        let objects = objects_of(&change.op);
        let LoggedChange { id, verdict, decider, gone } = blocking(|| self.log_now(change, caller))?;
        if let Some(object) = &gone {
            blocking(|| self.object_gone(object));
        }
        edits.iter().for_each(|edit| drop(self.kernel.names_changed(edit.parent.vnode)));
        let waited = match (id, verdict, self.settings.close) {
            (Some(id), Some(verdict), _) if decider != Decider::Client => {
                self.wait_for_verdict(id, verdict, decider).await
            }
            (Some(id), verdict, Close::Announced) => self.until_heard(id, verdict).await,
            (Some(_), _, Close::Auto | Close::Logged) | (None, ..) => Ok(()),
        };
        // The kernel takes the change for not made, and it may be made.
        waited.inspect_err(|_| self.kernel_asks_again(&objects, edits))
    }

    /// Waits until a record is announced; one that is refused before has not been made.
    async fn until_heard(&self, id: StoreId, verdict: Option<Verdict>) -> Result<(), Error> {
        let heard = self.until_record_announced(id).await;
        let refused = verdict.and_then(|mut verdict| {
            // A verdict that comes later finds that nobody waits.
            verdict.close();
            verdict.try_recv().ok()?.err()
        });
        refused.map_or(heard, |reason| Err(Error::Refused(reason)))
    }

    /// Waits for the server's word; a record that was not even sent in time is taken back. While nobody can be asked,
    /// a name that is free as far as is known counts as free, and a clash is found later.
    async fn wait_for_verdict(&self, id: StoreId, mut verdict: Verdict, decider: Decider) -> Result<(), Error> {
        // The record may wait for another client's answer, and that one for this client's answer to a break.
        let _waiting = self.remote.waiting();
        if self.is_paused() {
            self.replay.queue().ask(&[id]);
            self.note_queue_changed();
        }
        let patience = [self.settings.deadline, HOLDER_WAIT];
        for patience in patience {
            let ended = tokio::select! {
                biased;
                ended = timeout(patience, &mut verdict) => ended,
                () = self.remote.until_out_of_reach(), if decider == Decider::ServerInReach => return Ok(()),
                () = self.remote.until_in_vain() => break,
            };
            match ended {
                Ok(Ok(Ok(()))) => return Ok(()),
                Ok(Ok(Err(reason))) => return Err(Error::Refused(reason)),
                Ok(Err(_)) => return Err(Error::Unreachable("the mount is ending".to_owned())),
                Err(_) if self.remote.is_up() => {}
                Err(_) => break,
            }
        }
        blocking(|| self.take_back(id));
        Err(self.remote.unanswered().into())
    }

    /// Checks a change against what is known, and logs it.
    fn log_now(&self, mut change: Change, caller: Caller) -> Result<LoggedChange, Error> {
        change.removes = self.removed(&change.op)?;
        self.note_place(&change.op);
        let mut queue = self.replay.queue();
        self.check_change(&change.op, change.kind)?;
        if let CmlOp::SetXattr { mode, .. } = &mut change.op {
            // The mode is decided now; of the changes that others make meanwhile the last counts.
            *mode = XattrMode::Either;
        }
        let mut decider = if change.exclusive { self.decider(&queue, &change.op)? } else { Decider::Client };
        let decided = change.exclusive && decider == Decider::Client;
        if let CmlOp::Rename { fid, to_parent, .. } = &change.op
            && change.kind == Kind::Directory
            && !self.is_placed(*fid, to_parent.vnode)?
        {
            // Where it cannot be told whether a directory comes to lie below itself, the server can.
            decider = Decider::Server;
        }
        change.exclusive = decider != Decider::Client;
        if queue.len() >= QUEUE_MAX {
            return Err(Error::CacheFull);
        }
        if let Some(id) = self.fold(&mut queue, &change)? {
            return Ok(LoggedChange { id: Some(id), verdict: None, decider: Decider::Client, gone: None });
        }
        let losing = match change.op.unnamed_fid() {
            Some(fid) => self.cache.index.object(fid.vnode)?.map(|cached| cached.object),
            None => None,
        };
        if let Some(object) = self.cancel(&mut queue, &change.op)? {
            self.kernel.note_removed(Nameless::of(&object));
            return Ok(LoggedChange { id: None, verdict: None, decider: Decider::Client, gone: Some(object) });
        }
        let (id, verdict) = match self.undo_rename(&mut queue, &change, caller)? {
            Some(id) => (id, None),
            None => self.log_record(&mut queue, change, caller)?,
        };
        if decided {
            queue.note_decided(id);
        }
        let removed = |object: &Object| self.cache.index.is_removed(object.fid.vnode).unwrap_or(false);
        let gone = losing.filter(removed).map(|mut object| {
            object.status.nlink = 0;
            object.status.ctime = self.clock.wall();
            object
        });
        if let Some(object) = &gone {
            self.kernel.note_removed(Nameless::of(object));
            self.note_moot(&mut queue, object.fid, id);
        }
        Ok(LoggedChange { id: Some(id), verdict, decider, gone })
    }

    fn log_record(
        &self,
        queue: &mut Queue,
        change: Change,
        caller: Caller,
    ) -> Result<(StoreId, Option<Verdict>), Error> {
        let waits = change.exclusive || self.settings.close == Close::Announced;
        let (queued, unlisted) = self.write_record(change, caller)?;
        let id = queued.record.id;
        self.cache.index.push_pending(&queued);
        let verdict = waits.then(|| self.replay.watch_verdict(id));
        queue.push(queued, &unlisted);
        self.note_queue_changed();
        Ok((id, verdict))
    }

    /// Writes a change to the log. Returns its record, and the records that it waits for besides those it names.
    fn write_record(&self, change: Change, caller: Caller) -> Result<(Queued, Vec<StoreId>), Error> {
        let Change { op, removes, kind, replaced, exclusive: _ } = change;
        let owner = (caller.uid, caller.gid);
        let (record, unlisted) = self.remote.queued_record((op, removes), owner, self.clock.wall());
        let queued = Queued { record, kind, replaced };
        if let Err(error) = self.cache.cml.append(LogEntry::Queued(queued.clone())) {
            self.end_record(queued.record.id);
            return Err(error.into());
        }
        Ok((queued, unlisted))
    }

    /// Takes back a rename that was not sent, when a file is removed by the name that the rename has given it. In
    /// place of the rename the file is removed by its name before, and so is what the rename has replaced. So nothing
    /// waits for the file's content, which need not be sent. Returns the record that removes the file; `None`:
    /// nothing of the kind.
    ///
    /// A client that is killed in between has the file under its name before: the removal was not acknowledged.
    fn undo_rename(&self, queue: &mut Queue, removal: &Change, caller: Caller) -> Result<Option<StoreId>, Error> {
        let CmlOp::Remove { parent, name, fid } = &removal.op else { return Ok(None) };
        let Some(renamed) = self.last_rename(queue, *fid) else { return Ok(None) };
        let CmlOp::Rename { from_parent, from_name, to_parent, to_name, replaced, .. } = &renamed.record.op else {
            return Ok(None);
        };
        if (to_parent, to_name) != (parent, name) {
            return Ok(None);
        }
        let remove = |parent: Fid, name: &Name, fid, kind, removes| {
            let op = CmlOp::Remove { parent, name: name.clone(), fid };
            Change { removes, ..Change::new(op, kind) }
        };
        let file = remove(*from_parent, from_name, *fid, renamed.kind, removal.removes);
        let replaced = replaced.zip(renamed.replaced);
        let replaced = replaced.map(|(fid, kind)| remove(*parent, name, fid, kind, renamed.record.removes));

        let id = renamed.record.id;
        self.cache.cml.append(LogEntry::Ended { id })?;
        self.end_record(id);
        queue.withdraw(id);
        let (mut written, mut failed) = (Vec::new(), None);
        for change in [Some(file), replaced].into_iter().flatten() {
            match self.write_record(change, caller) {
                Ok(record) => written.push(record),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        // A reader sees the names as they are before or behind all of it.
        let removals: Vec<&Queued> = written.iter().map(|(queued, _)| queued).collect();
        self.cache.index.replace_pending(&renamed, &removals);
        let first = removals.first().map(|queued| queued.record.id);
        written.into_iter().for_each(|(queued, unlisted)| queue.push(queued, &unlisted));
        self.note_queue_changed();
        failed.map_or(Ok(first), Err)
    }

    /// Returns the newest record about a file, if that is a rename that may still be taken back: nothing is behind
    /// it, nobody waits for it, and nothing was made durable on top of it.
    fn last_rename(&self, queue: &Queue, fid: Fid) -> Option<Queued> {
        let newest = self.remote.outstanding(|log| log.newest(fid).filter(|id| log.may_take_in(*id)))?;
        let renamed = queue.rewritable(newest).filter(|_| !self.replay.is_awaited(newest))?;
        match renamed.record.op {
            CmlOp::Rename { fid: of, mode: RenameMode::Replace | RenameMode::NoReplace, .. } if of == fid => {
                Some(renamed.clone())
            }
            _ => None,
        }
    }

    /// Takes back a record that is not wanted any more, if it has not been sent.
    fn take_back(&self, id: StoreId) {
        let Some(queued) = self.replay.queue().get(id).cloned() else { return };
        if self.detach(id, LogEntry::Ended { id }) {
            self.cache.index.drop_pending(&queued);
            // The record may have been announced.
            self.note_queue_changed();
        }
    }

    /// Takes a record out of the queue, and out of those that name it, if it may go; `end` tells the log.
    pub(super) fn detach(&self, id: StoreId, end: LogEntry) -> bool {
        let mut queue = self.replay.queue();
        let Some(changed) = queue.detach(id) else { return false };
        self.note_freed(changed, id);
        self.log_all([end]);
        self.end_record(id);
        true
    }

    /// Frees records that name one which the server does not have and will not get: those not sent yet must not wait
    /// for it.
    pub(super) fn free_dependents(&self, id: StoreId) {
        let mut queue = self.replay.queue();
        let changed = queue.free_dependents(id);
        self.note_freed(changed, id);
    }

    /// Logs that records name another one no more; a record without content may name others instead. The queue is
    /// held: what is sent before the log says so would be another record to the next life.
    fn note_freed(&self, changed: Vec<Queued>, of: StoreId) {
        self.log_all(changed.iter().map(|queued| match queued.record.op {
            CmlOp::Store { .. } => LogEntry::Freed { id: queued.record.id, of },
            _ => LogEntry::Queued(queued.clone()),
        }));
        self.remote.outstanding(|log| changed.into_iter().for_each(|queued| log.resume(queued.record)));
    }

    /// Writes entries to the log that spare it from repeating something in vain.
    pub(super) fn log_all(&self, entries: impl IntoIterator<Item = LogEntry>) {
        for entry in entries {
            if let Err(error) = self.cache.cml.append(entry) {
                tracing::error!(%error, "the modify log cannot be written");
            }
        }
        self.log_changed.notify_one();
    }

    /// Folds a change of attributes into the one before it: two in a row are one. Returns the record of both.
    fn fold(&self, queue: &mut Queue, change: &Change) -> Result<Option<StoreId>, Error> {
        let CmlOp::SetAttr { fid, set: later } = &change.op else { return Ok(None) };
        let newest = self.remote.outstanding(|log| log.newest(*fid).filter(|id| log.may_take_in(*id)));
        let Some(before) = newest.and_then(|id| queue.rewritable(id)).cloned() else { return Ok(None) };
        let CmlOp::SetAttr { set, .. } = &before.record.op else { return Ok(None) };
        let op = CmlOp::SetAttr { fid: *fid, set: set.then(later, change.kind) };
        let record = CmlRecord { time: self.clock.wall(), op, ..before.record.clone() };
        let now = Queued { record: record.clone(), ..before.clone() };
        self.cache.cml.append(LogEntry::Queued(now.clone()))?;
        self.cache.index.replace_pending(&before, &[&now]);
        self.remote.outstanding(|log| log.resume(record.clone()));
        let id = record.id;
        queue.rewrite(record);
        Ok(Some(id))
    }

    /// Cancels an object that is removed before the server has heard of it: the server is never told. Returns the
    /// object if that is so.
    fn cancel(&self, queue: &mut Queue, op: &CmlOp) -> Result<Option<Object>, Error> {
        let (CmlOp::Remove { parent, name, fid } | CmlOp::RemoveDir { parent, name, fid }) = op else {
            return Ok(None);
        };
        let set: BTreeSet<StoreId> = self.remote.outstanding(|log| log.about(*fid)).into_iter().collect();
        let all: Vec<Queued> = set.iter().filter_map(|id| queue.get(*id).cloned()).collect();
        let makes = |queued: &Queued| makes_name(&queued.record.op) == Some((*parent, name, *fid));
        let plain = |queued: &Queued| {
            use CmlOp::{RemoveXattr, SetAttr, SetXattr, Store};
            matches!(queued.record.op, Store { .. } | SetAttr { .. } | SetXattr { .. } | RemoveXattr { .. })
        };
        let Some((first, others)) = all.split_first() else { return Ok(None) };
        let alone = |id: &StoreId| queue.is_unsent(*id) && queue.is_wanted_by_none_but(*id, &set);
        if all.len() != set.len() || !makes(first) || !others.iter().all(plain) || !set.iter().all(alone) {
            return Ok(None);
        }
        let Some(mut object) = self.cache.index.object(fid.vnode)?.map(|cached| cached.object) else {
            return Ok(None);
        };
        object.status.nlink = 0;
        object.status.ctime = self.clock.wall();
        for queued in all.iter().rev() {
            let id = queued.record.id;
            self.cache.cml.append(match queued.record.op {
                CmlOp::Store { .. } => LogEntry::Abandoned { id },
                _ => LogEntry::Ended { id },
            })?;
            self.cache.index.drop_pending(queued);
            self.end_record(id);
            queue.withdraw(id);
        }
        self.note_queue_changed();
        Ok(Some(object))
    }

    /// Checks what the server would refuse, as far as that is known here.
    fn check_change(&self, op: &CmlOp, kind: Kind) -> Result<(), Error> {
        match op {
            CmlOp::Create { parent, name, .. } | CmlOp::SymLink { parent, name, .. } => {
                self.check_name(*parent, name, None)
            }
            CmlOp::MakeDir { parent, name, .. } => {
                self.check_name(*parent, name, None)?;
                self.check_links(*parent)
            }
            CmlOp::Link { parent, name, fid } => {
                self.check_name(*parent, name, None)?;
                match kind {
                    Kind::Directory => Err(Error::Refused(FsError::Denied)),
                    _ => self.check_links(*fid),
                }
            }
            CmlOp::Remove { parent, name, fid } => self.check_name(*parent, name, Some(*fid)),
            CmlOp::RemoveDir { parent, name, fid } => {
                self.check_name(*parent, name, Some(*fid))?;
                self.check_empty(*fid)
            }
            CmlOp::Rename { from_parent, from_name, to_parent, to_name, fid, replaced, mode } => {
                self.check_name(*from_parent, from_name, Some(*fid))?;
                self.check_name(*to_parent, to_name, *replaced)?;
                match (mode, replaced) {
                    (RenameMode::Replace, Some(replaced)) => self.check_replaceable(kind, *replaced),
                    (RenameMode::Replace | RenameMode::NoReplace | RenameMode::Exchange, _) => Ok(()),
                }
            }
            CmlOp::SetXattr { fid, name, value, mode } => {
                self.check_xattrs(*fid, |xattrs| xattrs.set(name.clone(), value.clone(), *mode))
            }
            CmlOp::RemoveXattr { fid, name } => self.check_xattrs(*fid, |xattrs| xattrs.remove(name)),
            CmlOp::SetAttr { fid, .. } | CmlOp::Store { fid, .. } => self.check_there(*fid),
        }
    }

    /// Checks that a name means what is expected, unless nobody here knows.
    fn check_name(&self, parent: Fid, name: &Name, expected: Option<Fid>) -> Result<(), Error> {
        self.check_there(parent)?;
        let Known::Means(entry) = self.cache.index.known_entry(parent.vnode, name)? else { return Ok(()) };
        match (entry, expected) {
            (None, None) => Ok(()),
            (Some(CachedEntry { fid, .. }), Some(expected)) if fid == expected => Ok(()),
            (Some(_), None) => Err(Error::Refused(FsError::Exists)),
            (None, Some(_)) => Err(Error::Refused(FsError::NotFound)),
            (Some(_), Some(_)) => Err(Error::Refused(FsError::NameChanged)),
        }
    }

    fn check_there(&self, fid: Fid) -> Result<(), Error> {
        match self.cache.index.is_removed(fid.vnode)? {
            true => Err(Error::Refused(FsError::Stale)),
            false => Ok(()),
        }
    }

    /// Checks whether attributes can be changed so, as far as they are known.
    fn check_xattrs(&self, fid: Fid, change: impl Fn(&mut Xattrs) -> Result<(), FsError>) -> Result<(), Error> {
        self.check_there(fid)?;
        let known = self.cache.index.object(fid.vnode)?;
        let xattrs = known.map(|known| self.cache.index.xattrs(&known.object)).transpose()?.flatten();
        Ok(xattrs.map_or(Ok(()), |mut xattrs| change(&mut xattrs))?)
    }

    fn check_links(&self, fid: Fid) -> Result<(), Error> {
        let known = self.cache.index.object(fid.vnode)?;
        match known.is_some_and(|known| known.object.status.nlink >= Status::LINKS_MAX) {
            true => Err(Error::Refused(FsError::TooManyLinks)),
            false => Ok(()),
        }
    }

    fn check_empty(&self, fid: Fid) -> Result<(), Error> {
        match self.cache.index.object(fid.vnode)? {
            Some(directory) if directory.object.status.size > 0 => Err(Error::Refused(FsError::NotEmpty)),
            Some(_) | None => Ok(()),
        }
    }

    fn check_replaceable(&self, kind: Kind, replaced: Fid) -> Result<(), Error> {
        let Some(target) = self.cache.index.object(replaced.vnode)? else { return Ok(()) };
        match (kind == Kind::Directory, target.object.status.kind == Kind::Directory) {
            (true, false) => Err(Error::Refused(FsError::NotDirectory)),
            (false, true) => Err(Error::Refused(FsError::IsDirectory)),
            (true, true) => self.check_empty(replaced),
            (false, false) => Ok(()),
        }
    }

    /// Returns whether `at` is known to be neither the directory `fid` nor below it.
    fn is_placed(&self, fid: Fid, mut at: VnodeId) -> Result<bool, Error> {
        for _ in 0..DEPTH_MAX {
            if at == fid.vnode {
                return Err(Error::Refused(FsError::BelowItself));
            }
            match self.cache.index.object(at)?.and_then(|cached| cached.parent) {
                Some(above) => at = above,
                None => return Ok(at == VnodeId::ROOT),
            }
        }
        Ok(false)
    }
}

/// Returns the name that a record makes, and for which object.
fn makes_name(op: &CmlOp) -> Option<(Fid, &Name, Fid)> {
    match op {
        CmlOp::Create { parent, name, fid, .. }
        | CmlOp::MakeDir { parent, name, fid, .. }
        | CmlOp::SymLink { parent, name, fid, .. } => Some((*parent, name, *fid)),
        _ => None,
    }
}
