//! Exclusive: waits until nobody else decides names in a directory, and tells those that do to settle it.
//!
//! A reader is shown a directory, and a change of its names is decided, when the client that decided names there has
//! announced them. A change that makes a name or removes a directory then waits for announced records that make the
//! same name, or one below, so that of two clients that made it one has it and the other hears so. A change of a name
//! that was shown as others have announced it waits for that. A change that is announced itself waits for those
//! announced before it only, or two would wait for each other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_proto::call::{ApplyReply, ApplyRequest};
use mafs_proto::{ChangeNumber, ClientId, CmlOp, CmlRecord, Fid, FsError, Instant, Name, StoreId, VnodeId, Wire};

use super::announced::Want;
use super::committer::Job;
use super::sessions::{SLEEP_MAX, Sessions, Tables};
use super::{Ticket, Volume};
use crate::core::Refusal;
use crate::core::exclusive::{directories_of, emptied};
use crate::core::pending::About;

/// Time for which one call of a reader waits: as for announced records.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Time for which a change waits for others that deliver nothing. The time is longer than any lease, so it is for
/// those that wait for each other: one of them goes on, and what comes too late is refused.
const STANDSTILL_MAX: Duration = Duration::from_secs(90);

/// Obstacles that a change of names waits for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Obstacles {
    /// Clients that may have decided names, and the directories where.
    deciders: Vec<(ClientId, Fid)>,
    /// Whether it is not known what others have decided before the server's start.
    unknown: bool,
    /// Announced records that come first.
    announced: Vec<StoreId>,
}

/// Notes that a record waits, as long as it lives.
struct Admitting {
    sessions: Arc<Sessions>,
    id: StoreId,
}

impl Admitting {
    fn new(sessions: Arc<Sessions>, id: StoreId) -> Self {
        *sessions.tables().admitting.entry(id).or_default() += 1;
        Self { sessions, id }
    }
}

impl Drop for Admitting {
    fn drop(&mut self) {
        let mut tables = self.sessions.tables();
        if let Some(count) = tables.admitting.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                tables.admitting.remove(&self.id);
            }
        }
    }
}

impl Obstacles {
    fn is_empty(&self) -> bool {
        self.deciders.is_empty() && !self.unknown && self.announced.is_empty()
    }
}

impl Tables {
    fn deciders(&self, client: ClientId, directory: VnodeId, now: Instant) -> Vec<ClientId> {
        self.exclusive.deciders(directory, client, |decider| self.promises.is_live(decider, now))
    }

    /// Tells whether a directory may not be promised to a client, because another decides names in it.
    pub(super) fn is_decided_elsewhere(&self, client: ClientId, directory: VnodeId, now: Instant) -> bool {
        !self.exclusive.is_empty() && !self.deciders(client, directory, now).is_empty()
    }

    fn obstacles(&self, record: &CmlRecord, now: Instant) -> Obstacles {
        let (client, op) = (record.id.client, &record.op);
        let directories = directories_of(op);
        let mut obstacles = Obstacles::default();
        for fid in &directories {
            let deciders = self.deciders(client, fid.vnode, now);
            obstacles.deciders.extend(deciders.into_iter().map(|decider| (decider, *fid)));
        }
        obstacles.unknown = !directories.is_empty() && self.promises.is_anything_held(client, now);
        let name = op.made_name().map(|(parent, name)| About::Name(parent.vnode, name.clone()));
        let abouts = name.into_iter().chain(emptied(op).map(|fid| About::Names(fid.vnode)));
        let announced: BTreeSet<_> = self.view(client, now, |pending, viewer| {
            let makes = |id: &StoreId| {
                let op = pending.get(id).map(|announced| &announced.record.op);
                op.is_some_and(|op| op.made_name().is_some())
            };
            let comes = |(directory, name, fid): &(Fid, &Name, Fid)| {
                pending.meaning(directory.vnode, name, viewer) == Some(*fid)
            };
            let found = op.found_names().filter(comes);
            let found = found.map(|(directory, name, _)| About::Name(directory.vnode, name.clone()));
            let first = found.flat_map(|about| pending.touching(&about, viewer));
            let all = abouts.flat_map(|about| pending.touching(&about, viewer)).filter(makes).chain(first);
            all.filter(|id| pending.is_before(id, record)).collect()
        });
        obstacles.announced = announced.into_iter().collect();
        obstacles
    }
}

impl Sessions {
    /// Tells whether a change of names may be decided now; if it is `forced`, whatever has been announced.
    pub(super) fn may_decide(&self, record: &CmlRecord, forced: bool) -> bool {
        let obstacles = self.tables().obstacles(record, self.clock.now());
        obstacles.deciders.is_empty() && !obstacles.unknown && (forced || obstacles.announced.is_empty())
    }

    /// Tells whether a record waits until it may be decided.
    pub(super) fn is_admitting(&self, id: &StoreId) -> bool {
        self.tables().admitting.contains_key(id)
    }

    /// Notes that a change of names is decided. Until [`Self::end_change`] nobody else is let decide there; a
    /// directory that it makes is its client's from the start.
    pub(super) fn begin_change(&self, client: ClientId, op: &CmlOp) {
        let mut tables = self.tables();
        tables.exclusive.begin_change(&directories_of(op), client);
        if let CmlOp::MakeDir { fid, .. } = op {
            tables.exclusive.note_made(fid.vnode, client);
        }
    }

    /// Notes that the change is committed. Returns the directories in which its client decides from now on.
    pub(super) fn end_change(&self, client: ClientId, op: &CmlOp) -> Vec<Fid> {
        let (now, directories) = (self.clock.now(), directories_of(op));
        let mut tables = self.tables();
        tables.exclusive.end_change(&directories, client);
        let made = if let CmlOp::MakeDir { fid, .. } = op { Some(*fid) } else { None };
        let gone = emptied(op);
        let directories = directories.into_iter().chain(made).filter(|fid| Some(*fid) != gone);
        directories.filter(|fid| tables.let_decide(client, fid.vnode, now)).collect()
    }

    /// Notes that a client has been told, as `change`, to settle a directory.
    pub(super) fn recall(&self, client: ClientId, directory: Fid, change: ChangeNumber) {
        let mut tables = self.tables();
        let told = tables.promises.recall(client, directory, change);
        if told {
            tables.exclusive.recall(directory.vnode, client);
        }
        drop(tables);
        if told {
            tracing::debug!(%client, %directory, "a directory is recalled");
            self.owed.send_replace(());
        }
    }

    /// Notes that a client has announced what it has decided in directories.
    pub(super) fn settle(&self, client: ClientId, directories: &[Fid]) {
        let now = self.clock.now();
        let mut tables = self.tables();
        for directory in directories {
            tracing::debug!(%client, %directory, "a directory is settled");
            tables.exclusive.settle(directory.vnode, client, now);
            tables.promises.settled(client, directory.vnode);
        }
        drop(tables);
        if !directories.is_empty() {
            self.ended.send_replace(());
        }
    }

    /// Returns how much of what is waited for has been delivered. If a client has not heard yet that it is waited
    /// for, the lease says how long that lasts, so the time counts as progress.
    fn progress(&self, deciders: &[(ClientId, Fid)], announced: &[StoreId]) -> u64 {
        let (tables, now) = (self.tables(), self.clock.now());
        let has_heard = |(client, fid): &(ClientId, Fid)| tables.promises.has_heard_of_recall(*client, fid.vnode);
        let clients = deciders.iter().map(|(client, _)| *client).chain(announced.iter().map(|id| id.client));
        let clients: BTreeSet<_> = clients.collect();
        let counts = |client| [tables.delivered.get(client), tables.entered.get(client)];
        let delivered: u64 = clients.iter().flat_map(counts).flatten().sum();
        if deciders.iter().all(has_heard) { delivered } else { delivered + now.0 }
    }
}

impl Tables {
    /// Lets a client decide names in a directory if nobody else can know anything about them.
    fn let_decide(&mut self, client: ClientId, directory: VnodeId, now: Instant) -> bool {
        let is_announced =
            self.view(client, now, |pending, viewer| !pending.touching(&About::Names(directory), viewer).is_empty());
        let alone = self.promises.holds_alone(client, directory)
            && !self.promises.is_anything_held(client, now)
            && self.deciders(client, directory, now).is_empty();
        alone && !is_announced && self.exclusive.grant(directory, client, now)
    }
}

impl Volume {
    /// Waits until no other client decides names in a directory.
    ///
    /// # Errors
    /// `Pulling` if it takes long. `NotAttached` if the session has ended.
    pub(crate) async fn recall(&self, ticket: Ticket, directory: Fid) -> Result<(), Refusal> {
        let sessions = &self.shared.sessions;
        let mut ended = sessions.ended.subscribe();
        let until = sessions.clock.now() + WAIT_MAX;
        loop {
            ended.mark_unchanged();
            let now = sessions.clock.now();
            let deciders = sessions.tables().deciders(ticket.client, directory.vnode, now);
            if deciders.is_empty() {
                return Ok(());
            }
            self.check(ticket)?;
            let deciders: Vec<_> = deciders.into_iter().map(|decider| (decider, directory)).collect();
            self.tell_deciders(&deciders).await;
            let left = until.since(now);
            if left.is_zero() {
                let progress = sessions.progress(&deciders, &[]);
                return Err(Refusal { progress, ..FsError::Pulling.into() });
            }
            // The sender lives as long as this does.
            let _ = tokio::time::timeout(left.min(SLEEP_MAX), ended.changed()).await;
        }
    }

    /// Waits until a change of names may be decided. Returns whether it has waited for so long in vain that announced
    /// records are to be left out.
    ///
    /// # Errors
    /// `NotAttached` if the session has ended, `Busy` if somebody is connected and does not settle a directory.
    pub(super) async fn admit(&self, ticket: Ticket, request: &ApplyRequest) -> Result<bool, Refusal> {
        let sessions = &self.shared.sessions;
        if sessions.tables().obstacles(&request.record, sessions.clock.now()).is_empty() {
            return Ok(false);
        }
        let _waiting = Admitting::new(Arc::clone(sessions), request.record.id);
        let mut ended = sessions.ended.subscribe();
        let mut want: Option<Want> = None;
        let (mut reached, mut since) = (None, sessions.clock.now());
        loop {
            ended.mark_unchanged();
            let now = sessions.clock.now();
            let obstacles = sessions.tables().obstacles(&request.record, now);
            if obstacles.is_empty() {
                return Ok(false);
            }
            self.check(ticket)?;
            self.tell_deciders(&obstacles.deciders).await;
            if want.as_ref().is_none_or(|want| want.ids() != obstacles.announced) {
                want = Some(Want::new(Arc::clone(sessions), obstacles.announced.clone()));
            }
            let progress = sessions.progress(&obstacles.deciders, &obstacles.announced);
            if obstacles.unknown || reached.replace(progress) != Some(progress) {
                since = now;
            } else if now >= since + STANDSTILL_MAX {
                let undecided = !obstacles.deciders.is_empty();
                return if undecided { Err(FsError::Busy.into()) } else { Ok(true) };
            }
            // The sender lives as long as this does.
            let _ = tokio::time::timeout(SLEEP_MAX, ended.changed()).await;
        }
    }

    async fn tell_deciders(&self, deciders: &[(ClientId, Fid)]) {
        for (client, directory) in deciders {
            let untold = self.shared.sessions.tables().promises.needs_recall(*client, directory.vnode);
            if untold {
                // If the volume stops nobody waits any more.
                let _ = self.jobs.send(Job::Recall { client: *client, directory: *directory }).await;
            }
        }
    }
}

/// Adds to a reply in which directories its client decides from now on.
pub(super) fn with_exclusive(reply: Bytes, exclusive: Vec<Fid>) -> Bytes {
    if exclusive.is_empty() {
        return reply;
    }
    match ApplyReply::decode(reply.clone()) {
        Ok(decoded) => ApplyReply { exclusive, ..decoded }.encode(),
        Err(_) => reply,
    }
}
