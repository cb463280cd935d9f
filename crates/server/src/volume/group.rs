//! Group: mutations that are decided one on top of the other and made durable by one fdatasync.
//!
//! All answers wait for the commit, refusals too: they may rest on a transaction of the same group. If a group's
//! commit fails nothing of it is answered, and the volume ends: what sessions and waiting records have noted
//! meanwhile may not be on the disk.

mod announcements;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use mafs_durable::Batch;
use mafs_proto::{ChangeNumber, ClientId, CmlOp, Fid, FidRange, FsError, Instant, StoreId};
use tokio::sync::{mpsc, oneshot};

use super::committer::{Answer, Job};
use super::exclusive::with_exclusive;
use super::janitor::Chore;
use super::sessions::{Attached, Sessions};
use super::waiting::{Apply, Parked, Waiting};
use super::{Begun, Continued, Shared, Ticket};
use crate::core::clients;
use crate::core::promises::{Owed, Touched};
use crate::core::replies::{self, Decision, Limits};
use crate::core::{ContentId, Overlay, Refusal, directory, tables};

/// An act that is done once a group is durable.
type OnCommit<'s> = Box<dyn FnOnce() + 's>;

/// The jobs that are committed together.
pub(super) struct Group<'s> {
    shared: &'s Shared,
    waiting: &'s mut Waiting,
    now: Instant,
    /// Records applied or refused, as long as those that wait for them have not been tried again.
    decided: BTreeSet<StoreId>,
    /// Announcements that end with the commit.
    ended: BTreeSet<StoreId>,
    overlay: Overlay<'s>,
    batches: Vec<Batch>,
    /// Called when all is durable.
    answers: Vec<OnCommit<'s>>,
    /// Contents that nothing names after the commit.
    unwanted: Vec<ContentId>,
    full: Full,
    stop: Option<oneshot::Sender<()>>,
}

/// Refusals for want of room.
struct Full {
    /// Refusal of what makes the volume larger.
    growth: Option<Refusal>,
    /// Refusal of everything else.
    other: Option<Refusal>,
}

impl Full {
    fn now(shared: &Shared) -> Self {
        let refusal = |grows| shared.spools.with_room(|| shared.reserve.check(&*shared.disk, grows, 0)).err();
        let full = Self { growth: refusal(true), other: refusal(false) };
        full.tell_changed(shared);
        full
    }

    /// Logs a change of the want of room: an administrator does not see what clients are told.
    fn tell_changed(&self, shared: &Shared) {
        let volume = &shared.name;
        match (&self.growth, shared.is_full.swap(self.growth.is_some(), Ordering::Relaxed)) {
            (Some(refusal), false) => tracing::warn!(%volume, %refusal, "what makes the volume larger is refused"),
            (None, true) => tracing::info!(%volume, "there is room again"),
            (Some(_), true) | (None, false) => {}
        }
    }

    fn refusal(&self, grows: bool) -> Option<Refusal> {
        if grows { self.growth.clone() } else { self.other.clone() }
    }
}

impl<'s> Group<'s> {
    pub(super) fn new(shared: &'s Shared, waiting: &'s mut Waiting, now: Instant) -> Self {
        Self {
            shared,
            waiting,
            now,
            decided: BTreeSet::new(),
            ended: BTreeSet::new(),
            overlay: Overlay::new(shared.file.id(), shared.index.index()),
            batches: Vec::new(),
            answers: Vec::new(),
            unwanted: Vec::new(),
            full: Full::now(shared),
            stop: None,
        }
    }

    /// Decides a job; a record that depends on one that is not here yet waits instead.
    pub(super) fn decide(&mut self, job: Job) {
        match job {
            Job::Attach { ticket, client_name, confirmed_below, session, answer } => {
                let granted = self.attach(ticket, &client_name, confirmed_below, session);
                self.answer(answer, granted);
            }
            Job::EndSessions(clients) => self.end_sessions(clients),
            Job::GrantFids { ticket, answer } => {
                let fids = self.grant_fids(ticket);
                self.answer(answer, fids);
            }
            Job::Apply(apply) => self.take(apply, None),
            Job::Announce(announce) => self.announce(announce),
            Job::Recall { client, directory } => {
                let recalled = self.recall(client, directory);
                recalled.unwrap_or_else(|refusal| tracing::warn!(%refusal, "a directory is not recalled"));
            }
            Job::EndAnnounced { ticket, ids } => self.end_announced(ticket, ids),
            Job::Stop { answer } => self.stop = Some(answer),
        }
    }

    /// Tries the records again that wait for those decided, and a last time those that have waited too long.
    pub(super) fn retry(&mut self) {
        loop {
            while !self.decided.is_empty() {
                let decided = std::mem::take(&mut self.decided);
                for Parked { apply, until, .. } in self.waiting.take_awaiting(&decided) {
                    self.take(apply, Some(until));
                }
            }
            let expired = self.waiting.take_expired(self.now);
            if expired.is_empty() {
                return;
            }
            for Parked { apply, until, .. } in expired {
                self.take(apply, Some(until));
            }
        }
    }

    /// Makes the decided transactions durable, answers, and hands over what is left to do.
    pub(super) fn commit(self, chores: &mpsc::Sender<Chore>) -> Option<oneshot::Sender<()>> {
        if !self.batches.is_empty()
            && let Err(error) = self.shared.index.commit(&self.batches)
        {
            self.shared.disk.give_up(&format!("a commit failed: {error}"));
            return None;
        }
        let any_removed = !self.unwanted.is_empty();
        // This comes before the answers: a client that hears that a file is gone may need its room.
        self.shared.contents.discard(self.unwanted);
        for answer in self.answers {
            answer();
        }
        if any_removed && chores.try_send(Chore::Remove).is_err() {
            self.shared.contents.remove_unwanted();
        }
        if self.shared.index.checkpoint_due() {
            // If the queue is full, the next group asks again.
            let _ = chores.try_send(Chore::Checkpoint);
        }
        self.stop
    }

    fn attach(
        &mut self,
        ticket: Ticket,
        client_name: &str,
        confirmed_below: Option<StoreId>,
        session: Continued,
    ) -> Result<Begun, Refusal> {
        self.full.refusal(false).map_or(Ok(()), Err)?;
        let (batch, granted) = clients::attach(&self.overlay, ticket.client, client_name, confirmed_below)?;
        self.add(batch);
        // Otherwise others would be shown them again from here on, and wait for them.
        let fenced = self.shared.sessions.fenced(ticket.client);
        self.end(fenced.clone());
        self.shared.sessions.end(&fenced);
        // From here on the records of an older attach are refused, also those in this group.
        let Attached { resumed, returns, lost_locks } = self.shared.sessions.attach(ticket, &session);
        self.announce_again(ticket, returns)?;
        self.end_confirmed(confirmed_below);
        for Parked { apply, .. } in self.waiting.take_fenced(ticket) {
            self.take(apply, None);
        }
        Ok(Begun { granted, resumed, lost_locks })
    }

    /// Ends the announcements of records whose replies the client has, or that it has given up.
    fn end_confirmed(&mut self, below: Option<StoreId>) {
        if let Some(below) = below {
            self.end(self.shared.sessions.announced_below(below));
        }
    }

    /// Notes ended sessions. A client that could not be noted is waited for at the next start.
    fn end_sessions(&mut self, mut clients: Vec<ClientId>) {
        clients.retain(|client| !self.shared.sessions.has_session(*client));
        // A journal that cannot be written takes no more until the server is started again.
        if clients.is_empty() || self.full.refusal(false).is_some() {
            return;
        }
        match clients::end_sessions(&self.overlay, &clients) {
            Ok(batch) => self.add(batch),
            Err(refusal) => tracing::warn!(volume = %self.shared.name, %refusal, "ended sessions are still listed"),
        }
    }

    fn grant_fids(&mut self, ticket: Ticket) -> Result<FidRange, Refusal> {
        self.shared.sessions.check(ticket)?;
        self.full.refusal(true).map_or(Ok(()), Err)?;
        let (batch, fids) = clients::grant_fids(&self.overlay, ticket.client)?;
        self.add(batch);
        Ok(fids)
    }

    /// Decides a record, or lets it wait: until a given time, or for as long as records may.
    fn take(&mut self, apply: Apply, until: Option<Instant>) {
        if let Err(refusal) = self.shared.sessions.check(apply.ticket) {
            // The record is not refused for good: the client sends it again when it has attached again.
            self.drop_content(&apply);
            return self.answer(apply.answer, Err(refusal));
        }
        let awaited = match apply.content {
            Ok(_) => replies::awaited(&self.overlay, &apply.request, &self.waiting.refused),
            Err(_) => Ok(None),
        };
        match awaited {
            Ok(None) if self.may_decide(&apply) => self.apply(apply),
            Ok(None) => self.answer(apply.answer, Err(FsError::Pulling.into())),
            Ok(Some(awaited)) => self.wait(apply, awaited, until),
            Err(refusal) => self.refuse(apply, refusal),
        }
    }

    /// Tells whether nobody else may have decided what a record is about: otherwise it waits outside, not to hold up
    /// others. A record whose content was not taken is refused in any case.
    fn may_decide(&self, apply: &Apply) -> bool {
        let record = &apply.request.record;
        apply.content.is_err() || self.shared.sessions.may_decide(record, apply.forced)
    }

    fn wait(&mut self, apply: Apply, awaited: StoreId, until: Option<Instant>) {
        let is_here = || self.shared.sessions.is_admitting(&awaited) || self.waiting.contains(&awaited);
        match until {
            Some(until) if until <= self.now && is_here() => self.waiting.prolong(apply, awaited, self.now),
            Some(until) if until <= self.now => {
                self.refuse(apply, Refusal::new(FsError::Busy, "what the record depends on did not arrive in time"));
            }
            Some(until) => self.waiting.put_back(apply, awaited, until),
            None => {
                if let Err(apply) = self.waiting.park(apply, awaited, self.now) {
                    self.refuse(*apply, Refusal::new(FsError::Busy, "too many records wait for others"));
                }
            }
        }
    }

    fn apply(&mut self, apply: Apply) {
        let (content, not_taken) = match apply.content.clone() {
            Ok(content) => (content, None),
            Err(refusal) => (None, Some(refusal)),
        };
        let read_only = || self.shared.file.read_only.then(|| Refusal::from(FsError::ReadOnly));
        let full = || self.full.refusal(directory::grows(&apply.request.record.op));
        let closed = not_taken.or_else(read_only).or_else(full);
        let contested = self.conflict(&apply);
        let limits = Limits { closed, contested, quota_bytes: self.shared.file.quota_bytes };
        match replies::decide(&self.overlay, apply.ticket.client, &apply.request, content, limits) {
            Ok(Decision::Known(reply)) => {
                self.drop_content(&apply);
                match replies::touched(&apply.request.record, &reply) {
                    Ok(touched) => self.answer_known(apply, reply, touched),
                    Err(refusal) => self.answer(apply.answer, Err(refusal)),
                }
            }
            Ok(Decision::Apply(applied)) => {
                self.waiting.refused.forget(&apply.request.record.id);
                self.decided.insert(apply.request.record.id);
                let id = apply.request.record.id;
                if applied.trashes {
                    let removals = apply.request.removals.as_ref().map_or(0, |removals| removals.count);
                    tracing::warn!(
                        volume = %self.shared.name, client = %id.client, removals,
                        "a client has removed most of what others have made while it was out of touch: that goes to \
                         /.mafs-trash"
                    );
                }
                let op = &apply.request.record.op;
                self.shared.sessions.begin_change(id.client, op);
                if let (CmlOp::Store { fid, .. }, true) = (op, applied.as_said) {
                    self.shared.sessions.note_stored(id.client, *fid);
                }
                let mut batch = applied.batch;
                if self.shared.sessions.is_announced(&id) {
                    batch.remove(tables::announced(&id));
                    self.ended.insert(id);
                }
                self.add(batch);
                self.unwanted.extend(applied.freed);
                self.end_confirmed(apply.request.confirmed_below);
                self.answer_applied(apply, applied.reply, applied.change, applied.touched);
            }
            Err(refusal) => self.refuse(apply, refusal),
        }
    }

    /// Returns why a Store is in conflict. The first announcement comes first: a Store that is not announced does not
    /// pass one of another client that is, nor a record that takes its file away. Nor does a content pass that was
    /// written under a lock that others have had since.
    fn conflict(&self, apply: &Apply) -> Option<Refusal> {
        let record = &apply.request.record;
        let CmlOp::Store { fid, base, .. } = record.op else { return None };
        if self.shared.sessions.is_fenced(&apply.request) {
            let detail = format!("another client has had the lock of {fid} since this one has lost it");
            return Some(Refusal::new(FsError::BaseChanged, detail));
        }
        let (sessions, names_of) = (&self.shared.sessions, |fid| self.names_of(fid));
        let passes = !sessions.is_announced(&record.id)
            && sessions.is_in_conflict(record.id.client, fid, base, &self.ended, names_of);
        passes.then(|| {
            Refusal::new(FsError::BaseChanged, format!("another client has announced a content of {fid}, or its end"))
        })
    }

    /// Returns how many names a file has. A file that is still to be made will have one. So has one that cannot be
    /// read: at worst a content is kept beside that need not be.
    fn names_of(&self, file: Fid) -> u32 {
        self.overlay.begin().node(file).map_or(1, |node| node.status.nlink)
    }

    fn refuse(&mut self, apply: Apply, refusal: Refusal) {
        if refusal.error == FsError::StoreIdReused {
            tracing::error!(volume = %self.shared.name, %refusal, "a client used a record's id twice");
        }
        let refusal = self.waiting.refused.awaits_postponed(&apply.request).unwrap_or(refusal);
        self.decided.insert(apply.request.record.id);
        if self.waiting.refused.refuse(&apply.request, refusal.error) {
            self.end(vec![apply.request.record.id]);
        }
        self.drop_content(&apply);
        self.answer(apply.answer, Err(refusal));
    }

    fn drop_content(&mut self, apply: &Apply) {
        self.unwanted.extend(content_file(apply));
    }

    /// Answers an applied record when nobody relies on what was before.
    fn answer_applied(&mut self, apply: Apply, reply: Bytes, change: ChangeNumber, touched: Vec<Touched>) {
        let sessions = Arc::clone(&self.shared.sessions);
        self.answers.push(Box::new(move || {
            let record = &apply.request.record;
            let owed = sessions.applied(record.id, change, &touched);
            let exclusive = sessions.end_change(record.id.client, &record.op);
            answer_settled(sessions, owed, apply.answer, Ok(with_exclusive(reply, exclusive)));
        }));
    }

    /// Answers a record that comes again. The breaks of the first time may still be on their way.
    fn answer_known(&mut self, apply: Apply, reply: Bytes, touched: Vec<Touched>) {
        let sessions = Arc::clone(&self.shared.sessions);
        self.answers.push(Box::new(move || {
            let owed = sessions.owed(apply.ticket.client, &touched);
            answer_settled(sessions, owed, apply.answer, Ok(reply));
        }));
    }

    fn add(&mut self, batch: Batch) {
        self.overlay.absorb(&batch);
        self.batches.push(batch);
    }

    fn answer<T: 's>(&mut self, answer: Answer<T>, reply: Result<T, Refusal>) {
        self.answers.push(Box::new(move || {
            let _ = answer.send(reply);
        }));
    }
}

/// Answers once `owed` is settled; the committer goes on meanwhile.
fn answer_settled<T: Send + 'static>(
    sessions: Arc<Sessions>,
    owed: Owed,
    answer: Answer<T>,
    reply: Result<T, Refusal>,
) {
    if owed.is_empty() {
        let _ = answer.send(reply);
    } else {
        tokio::spawn(async move {
            sessions.settled(owed).await;
            let _ = answer.send(reply);
        });
    }
}

/// Returns the content file that a store brought, if it brought one.
fn content_file(apply: &Apply) -> Option<ContentId> {
    apply.content.as_ref().ok()?.as_ref()?.file()
}
