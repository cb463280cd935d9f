//! Announced: records that clients have announced, as the sessions of a volume know them: entered and ended by the
//! committer, waited for by readers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mafs_proto::call::InvalidateRequest;
use mafs_proto::{Base, ChangeNumber, ClientId, CmlOp, CmlRecord, DataVersion, Fid, Instant, Name, StoreId, VnodeId};

use super::Ticket;
use super::sessions::{Sessions, Tables};
use crate::core::pending::{About, Announced, Entered, Pending, Viewer, ids_of};
use crate::core::promises::{Owed, Touched};

/// Fate of an announcement's records.
#[derive(Debug, Default)]
pub(super) struct Announcement {
    /// Records to be made durable.
    pub(super) changed: Vec<Announced>,
    /// Records in conflict with what others have announced, or too many.
    pub(super) refused: Vec<StoreId>,
}

/// The callers that wait for an announced record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Number of callers that wait.
    waiting: usize,
    /// Time since when somebody waits.
    since: Instant,
}

/// Records that a client was asked for: each as it was announced, for those that have been waiting since then.
pub(super) type Pulled = BTreeMap<StoreId, (ChangeNumber, Instant)>;

/// The wish that announced records come. While it lasts their clients are asked for them.
pub(super) struct Want {
    sessions: Arc<Sessions>,
    ids: Vec<StoreId>,
}

impl Want {
    /// Returns the ids of the wanted records.
    pub(super) fn ids(&self) -> &[StoreId] {
        &self.ids
    }

    pub(super) fn new(sessions: Arc<Sessions>, ids: Vec<StoreId>) -> Self {
        let (since, mut tables) = (sessions.clock.now(), sessions.tables());
        for id in &ids {
            tables.wanted.entry(*id).or_insert(Wanted { waiting: 0, since }).waiting += 1;
        }
        drop(tables);
        sessions.wanted.send_replace(());
        Self { sessions, ids }
    }
}

impl Drop for Want {
    fn drop(&mut self) {
        let mut tables = self.sessions.tables();
        for id in &self.ids {
            if let Some(wanted) = tables.wanted.get_mut(id) {
                wanted.waiting -= 1;
                if wanted.waiting == 0 {
                    tables.wanted.remove(id);
                }
            }
        }
    }
}

impl Sessions {
    /// Tells whether a client has announced that it makes an object.
    pub(super) fn is_made(&self, client: ClientId, fid: Fid) -> bool {
        self.tables().pending.makes(client, fid)
    }

    /// Enters records of `client` that it announces as `change`; those in `ended` are in nobody's way any more. A
    /// client that is shown what they touch from now on is promised nothing; telling the others is up to
    /// [`Self::announced`].
    pub(super) fn announce(
        &self,
        client: ClientId,
        change: ChangeNumber,
        records: &[CmlRecord],
        ended: &BTreeSet<StoreId>,
        names_of: impl Fn(Fid) -> u32,
    ) -> Announcement {
        let now = self.clock.now();
        let mut tables = self.tables();
        let mut announcement = Announcement::default();
        for record in records {
            let is_in_conflict = |pending: &Pending, viewer: Viewer<'_>| match record.op {
                CmlOp::Store { fid, base, .. } => pending.is_in_conflict(fid, base, ended, viewer, &names_of),
                _ => false,
            };
            // A record that was announced before came first then; of two that count, the first that is applied wins.
            let is_known = tables.pending.get(&record.id).is_some();
            if tables.locks.is_fenced(record, false) || !is_known && tables.view(client, now, is_in_conflict) {
                announcement.refused.push(record.id);
                continue;
            }
            match tables.pending.announce(record, change) {
                Entered::Changed => {
                    announcement.changed.extend(tables.pending.get(&record.id).cloned());
                    *tables.entered.entry(client).or_default() += 1;
                }
                Entered::Repeated => {}
                Entered::Full => announcement.refused.push(record.id),
            }
        }
        let is_wanted = announcement.changed.iter().any(|changed| tables.wanted.contains_key(&changed.record.id));
        drop(tables);
        if is_wanted {
            self.wanted.send_replace(());
        }
        announcement
    }

    /// Tells whether a Store of `client`'s that is not announced is in conflict with what others have announced.
    pub(super) fn is_in_conflict(
        &self,
        client: ClientId,
        fid: Fid,
        base: Base,
        ended: &BTreeSet<StoreId>,
        names_of: impl Fn(Fid) -> u32,
    ) -> bool {
        let tables = self.tables();
        let now = self.clock.now();
        tables.view(client, now, |pending, viewer| pending.is_in_conflict(fid, base, ended, viewer, names_of))
    }

    pub(super) fn is_announced(&self, id: &StoreId) -> bool {
        self.tables().pending.get(id).is_some()
    }

    /// Returns the announced records of the client of `below` that come before that one.
    pub(super) fn announced_below(&self, below: StoreId) -> Vec<StoreId> {
        self.tables().pending.below(below)
    }

    /// Ends announced records otherwise than by applying them.
    pub(super) fn end(&self, ids: &[StoreId]) {
        let mut tables = self.tables();
        let ended: Vec<_> = ids.iter().filter(|id| tables.pending.remove(id)).collect();
        drop(tables);
        for id in &ended {
            tracing::debug!(client = %id.client, %id, "an announced record will not come");
        }
        if !ended.is_empty() {
            self.ended.send_replace(());
        }
    }

    /// Notes that a record has been applied, and is durable: breaks the promises of others, and ends its announcement
    /// if it was announced, in one step. Returns what its acknowledgement waits for.
    pub(super) fn applied(&self, id: StoreId, change: ChangeNumber, touched: &[Touched]) -> Owed {
        let now = self.clock.now();
        let mut tables = self.tables();
        let owed = tables.promises.changed(id.client, change, touched, now);
        let was_announced = tables.pending.remove(&id);
        if was_announced {
            *tables.delivered.entry(id.client).or_default() += 1;
        }
        drop(tables);
        if was_announced {
            tracing::debug!(client = %id.client, %id, change = change.0, "an announced record is applied");
            self.ended.send_replace(());
        }
        self.tell(owed)
    }

    /// Notes that some bytes of a client's content have arrived.
    pub(super) fn note_delivered(&self, client: ClientId, bytes: u64) {
        let mut tables = self.tables();
        if tables.pending.of_client(client).next().is_some() {
            *tables.delivered.entry(client).or_default() += bytes;
        }
    }

    /// Returns the records of others that count and touch something.
    pub(super) fn touching(&self, ticket: Ticket, about: &About) -> Vec<StoreId> {
        let (tables, now) = (self.tables(), self.clock.now());
        tables.view(ticket.client, now, |pending, viewer| pending.touching(about, viewer))
    }

    /// Returns the object that others have announced a name to mean; see [`Pending::meaning`].
    pub(super) fn meaning(&self, ticket: Ticket, directory: VnodeId, name: &Name) -> Option<Fid> {
        let (tables, now) = (self.tables(), self.clock.now());
        tables.view(ticket.client, now, |pending, viewer| pending.meaning(directory, name, viewer))
    }

    /// Tells whether a record of another client touches an object and does not count, because that client is gone;
    /// `present` is the version that the object has.
    pub(super) fn leaves_out(&self, ticket: Ticket, vnode: VnodeId, present: DataVersion) -> bool {
        let (tables, now) = (self.tables(), self.clock.now());
        tables.view(ticket.client, now, |pending, viewer| pending.leaves_out(vnode, present, viewer))
    }

    /// Forgets those of `ids` that have ended, or whose clients are gone. Returns how much the clients of the others
    /// have delivered.
    pub(super) fn awaited(&self, ids: &mut Vec<StoreId>) -> u64 {
        let now = self.clock.now();
        let tables = self.tables();
        let Tables { promises, pending, delivered, .. } = &*tables;
        ids.retain(|id| pending.get(id).is_some() && promises.is_live(id.client, now));
        let clients: BTreeSet<_> = ids.iter().map(|id| id.client).collect();
        clients.iter().filter_map(|client| delivered.get(client)).sum()
    }

    /// Returns the next records to ask a client for, beside those in `pulled`, where they are added. A record that is
    /// announced again is asked for again, and one that somebody waits for again: if it did not come it may come now.
    pub(super) fn next_pull(&self, client: ClientId, pulled: &mut Pulled) -> Vec<(StoreId, Fid)> {
        let tables = self.tables();
        pulled.retain(|id, _| tables.pending.get(id).is_some());
        let wanted = tables.wanted.range(ids_of(client));
        let wanted = wanted.filter_map(|(id, wanted)| Some((tables.pending.get(id)?, wanted.since)));
        let is_new =
            |(next, since): &(&Announced, Instant)| pulled.get(&next.record.id) != Some(&(next.changed, *since));
        let next: Vec<_> = wanted.filter(is_new).take(InvalidateRequest::RECORDS_MAX).collect();
        pulled.extend(next.iter().map(|(announced, since)| (announced.record.id, (announced.changed, *since))));
        next.iter().map(|(announced, _)| (announced.record.id, announced.record.op.fid())).collect()
    }
}
