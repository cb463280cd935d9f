//! Announcements, as a group decides them: in order with the records themselves.

use std::sync::Arc;

use mafs_durable::Batch;
use mafs_proto::call::{InvalidateReply, InvalidateRequest};
use mafs_proto::{ChangeNumber, ClientId, Fid, StoreId};

use super::{Group, answer_settled};
use crate::core::pending::{Announced, touched};
use crate::core::promises::{Owed, Touched};
use crate::core::{Refusal, announce, changes, tables};
use crate::volume::Ticket;
use crate::volume::committer::Announce;

/// An announcement that has been decided.
struct Decided {
    reply: InvalidateReply,
    /// The change that it was; `None`: the announcement says nothing new.
    change: Option<ChangeNumber>,
    touched: Vec<Touched>,
    /// Objects of its records, also of those that were announced before, or are applied by now.
    known: Vec<Touched>,
    /// Directories that the client has settled with it.
    settled: Vec<Fid>,
}

impl Group<'_> {
    /// Decides an announcement, and answers when nobody relies on what was before.
    pub(super) fn announce(&mut self, announce: Announce) {
        let Announce { ticket, request, answer } = announce;
        let decided = self.enter(ticket, &request);
        let sessions = Arc::clone(&self.shared.sessions);
        self.answers.push(Box::new(move || {
            let Decided { reply, change, touched, known, settled } = match decided {
                Ok(decided) => decided,
                Err(refusal) => {
                    tracing::debug!(client = %ticket.client, %refusal, "an announcement was refused");
                    let _ = answer.map(|answer| answer.send(Err(refusal)));
                    return;
                }
            };
            sessions.settle(ticket.client, &settled);
            if let Some(change) = change {
                sessions.announced(ticket.client, change, &touched);
            }
            // The breaks of an earlier announcement, or of a record that was quicker than this, may still be on their
            // way.
            let owed = if known.is_empty() { Owed::default() } else { sessions.owed(ticket.client, &known) };
            if let Some(answer) = answer {
                answer_settled(sessions, owed, answer, Ok(reply));
            }
        }));
    }

    /// Ends the announcements of records that the client does not have and never will.
    pub(super) fn end_announced(&mut self, ticket: Ticket, ids: Vec<StoreId>) {
        if self.shared.sessions.check(ticket).is_ok() {
            self.end(ids.into_iter().filter(|id| id.client == ticket.client).collect());
        }
    }

    /// Ends announcements otherwise than by applying the records. Records that have not been announced, or have
    /// ended, may be among them.
    pub(super) fn end(&mut self, mut ids: Vec<StoreId>) {
        ids.retain(|id| self.shared.sessions.is_announced(id) && !self.ended.contains(id));
        if ids.is_empty() {
            return;
        }
        // A journal that cannot be written takes no more. After the next start the client is asked for them, and says
        // that it has none.
        if self.full.refusal(false).is_none() {
            let mut batch = Batch::default();
            ids.iter().for_each(|id| batch.remove(tables::announced(id)));
            self.add(batch);
        }
        self.ended.extend(&ids);
        let sessions = Arc::clone(&self.shared.sessions);
        self.answers.push(Box::new(move || sessions.end(&ids)));
    }

    /// Breaks promises for a client that is back and whose announcements did not count meanwhile: others may have
    /// been promised what they touch.
    pub(super) fn announce_again(&mut self, ticket: Ticket, touched: Vec<Touched>) -> Result<(), Refusal> {
        if touched.is_empty() {
            return Ok(());
        }
        let change = self.next_change()?;
        let sessions = Arc::clone(&self.shared.sessions);
        self.answers.push(Box::new(move || {
            sessions.announced(ticket.client, change, &touched);
        }));
        Ok(())
    }

    /// Recalls a directory: others want to know what a client has decided in it.
    pub(super) fn recall(&mut self, client: ClientId, directory: Fid) -> Result<(), Refusal> {
        let change = self.next_change()?;
        let sessions = Arc::clone(&self.shared.sessions);
        self.answers.push(Box::new(move || sessions.recall(client, directory, change)));
        Ok(())
    }

    /// Makes a change of its own: a promise from before it holds no more.
    fn next_change(&mut self) -> Result<ChangeNumber, Refusal> {
        let mut transaction = self.overlay.begin();
        let mut volume = transaction.state()?;
        volume.change = volume.change.next();
        transaction.put_state(&volume);
        changes::note(&mut transaction, volume.change, std::iter::empty(), &[])?;
        let batch = transaction.finish();
        self.add(batch);
        Ok(volume.change)
    }

    fn enter(&mut self, ticket: Ticket, request: &InvalidateRequest) -> Result<Decided, Refusal> {
        self.shared.sessions.check(ticket)?;
        let settled = request.settled.clone();
        if request.records.is_empty() && request.retracted.is_empty() && !settled.is_empty() {
            // Nothing is written, so it needs no room.
            let (touched, known) = (Vec::new(), Vec::new());
            return Ok(Decided { reply: InvalidateReply::default(), change: None, touched, known, settled });
        }
        self.full.refusal(false).map_or(Ok(()), Err)?;
        let mut transaction = self.overlay.begin();
        let is_made = |fid| self.shared.sessions.is_made(ticket.client, fid);
        let mut checked = announce::check(&mut transaction, ticket.client, request, is_made)?;
        if self.shared.file.read_only {
            checked.refused.extend(checked.records.drain(..).map(|record| record.id));
        }
        let mut volume = transaction.state()?;
        let change = volume.change.next();
        let entered = self
            .shared
            .sessions
            .announce(ticket.client, change, &checked.records, &self.ended, |fid| self.names_of(fid));
        for announced in &entered.changed {
            let (id, fid) = (announced.record.id, announced.record.op.fid());
            tracing::debug!(client = %ticket.client, %id, %fid, change = change.0, "announced");
            transaction.put(tables::announced(&id), announced.encode());
        }
        let change = (!entered.changed.is_empty()).then_some(change);
        if let Some(change) = change {
            volume.change = change;
            transaction.put_state(&volume);
            let what: Vec<u8> = entered.changed.iter().flat_map(Announced::encode).collect();
            changes::note(&mut transaction, change, std::iter::empty(), &what)?;
        }
        let batch = transaction.finish();
        if !batch.is_empty() {
            self.add(batch);
        }
        checked.records.retain(|record| !entered.refused.contains(&record.id));
        checked.refused.extend(entered.refused);
        let confirmed = request.confirmed_below.map(|below| self.shared.sessions.announced_below(below));
        let ending = request.retracted.iter().chain(&checked.refused).copied().chain(confirmed.into_iter().flatten());
        self.end(ending.collect());
        let known = request.records.iter().filter(|record| !checked.refused.contains(&record.id));
        let known = known.flat_map(|record| touched(&record.op)).collect();
        let touched = checked.records.iter().flat_map(|record| touched(&record.op)).collect();
        let reply = InvalidateReply { refused: checked.refused, contested: checked.contested };
        Ok(Decided { reply, change, touched, known, settled })
    }
}
