//! Promises: which clients are told of a change before it is acknowledged (consistency.md, "Promises and leases").
//!
//! A session is promised that it hears of every change of an object it has been shown, until its lease ends. One lease
//! covers all its promises. A change moves the promises on what it touched from *held* to *owed a break*, and is
//! acknowledged when every session that owes the acknowledgement has given it or has lost its lease.
//!
//! A session outlives its connections. One that cannot be continued lives on as a ghost beside its successor, until
//! its client says that it has dropped the old promises, or until the old lease ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use mafs_proto::call::{ApplyReply, BreakRequest, Broken, BrokenObject, DirectoryChange};
use mafs_proto::{ChangeNumber, ClientId, CmlOp, Fid, Generation, Instant, Name, Object, VnodeId};

/// Durations of leases and of waits for breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timing {
    /// Length of a lease, as the client counts it: from the sending of what renewed it.
    pub(crate) lease: Duration,
    /// Time that the server adds: clocks differ in rate, and requests take time.
    pub(crate) bias: Duration,
    /// Time after which a break that is not acknowledged ends the renewals: a client that can send but not receive
    /// blocks nobody for ever.
    pub(crate) break_timeout: Duration,
}

/// Names that one batch of breaks holds at most; with more it becomes "all", as with too many objects.
const NAME_BYTES_MAX: usize = 64 << 10;

/// A session's place in the tables. Never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct SessionId(u32);

/// Number of a batch of breaks to one session. Acknowledged in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct BatchNumber(u64);

/// An object that a mutation touched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Touched {
    pub(crate) fid: Fid,
    /// Names of a directory that changed their meaning.
    pub(crate) names: Vec<Name>,
    /// Whether it exists no more.
    pub(crate) gone: bool,
}

/// Breaks that the acknowledgement of a mutation waits for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Owed(Vec<(SessionId, BatchNumber)>);

/// Lists what a mutation touched, by its reply.
pub(crate) fn touched(op: &CmlOp, reply: &ApplyReply) -> Vec<Touched> {
    let mut names = changed_names(op);
    names.extend(reply.outcome.placed().iter().map(|place| (place.directory, &place.name)));
    let names_of = |fid| names.iter().filter(|(parent, _)| *parent == fid).map(|(_, name)| (*name).clone()).collect();
    let objects = reply.objects.iter();
    let mut touched: Vec<_> = objects
        .map(|Object { fid, status, .. }| Touched { fid: *fid, names: names_of(*fid), gone: status.nlink == 0 })
        .collect();
    for DirectoryChange { fid, .. } in &reply.directories {
        if !touched.iter().any(|touched| touched.fid == *fid) {
            touched.push(Touched { fid: *fid, names: names_of(*fid), gone: false });
        }
    }
    touched
}

/// Lists the names that an operation gives another meaning, with their directories.
pub(crate) fn changed_names(op: &CmlOp) -> Vec<(Fid, &Name)> {
    match op {
        CmlOp::Create { parent, name, .. }
        | CmlOp::MakeDir { parent, name, .. }
        | CmlOp::SymLink { parent, name, .. }
        | CmlOp::Link { parent, name, .. }
        | CmlOp::Remove { parent, name, .. }
        | CmlOp::RemoveDir { parent, name, .. } => vec![(*parent, name)],
        CmlOp::Rename { from_parent, from_name, to_parent, to_name, .. } => {
            vec![(*from_parent, from_name), (*to_parent, to_name)]
        }
        CmlOp::SetAttr { .. } | CmlOp::SetXattr { .. } | CmlOp::RemoveXattr { .. } | CmlOp::Store { .. } => Vec::new(),
    }
}

impl Owed {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The sessions of a volume and what they have been promised.
pub(crate) struct Promises {
    timing: Timing,
    change: ChangeNumber,
    sessions: BTreeMap<SessionId, Session>,
    current: HashMap<ClientId, SessionId>,
    /// Sessions that hold a promise on each object. By vnode: a break too many, should one ever live twice, does no
    /// harm.
    holders: HashMap<VnodeId, Holders>,
    next: u32,
}

/// Most objects have one holder.
enum Holders {
    One(SessionId),
    #[allow(clippy::box_collection, reason = "a vector would make every promise a third larger")]
    Many(Box<Vec<SessionId>>),
}

struct Session {
    client: ClientId,
    /// The attach that may use the session; `None`: a ghost.
    attach: Option<Generation>,
    /// Time when its promises end.
    until: Instant,
    /// Whether its promises are not known, because it is from before the server's start.
    holds_everything: bool,
    /// Whether it hears of every change from now on, of whatever object: it has not said yet which it relies on.
    hears_all: bool,
    /// The batch that breaks each object, until it is acknowledged.
    breaking: HashMap<VnodeId, BatchNumber>,
    /// The batch that breaks everything, until it is acknowledged.
    breaking_all: Option<BatchNumber>,
    gathering: Gathering,
    /// The batch that is next to be acknowledged, and since when it has been owed.
    in_flight: Option<(BatchNumber, BreakRequest, Instant)>,
    /// Whether a connection is sending that batch.
    sending: bool,
    /// Directories that the client has been told to settle.
    recalled: BTreeSet<VnodeId>,
    acknowledged: BatchNumber,
}

/// The batch that goes out next.
#[derive(Default)]
struct Gathering {
    number: BatchNumber,
    change: ChangeNumber,
    all: bool,
    objects: BTreeMap<VnodeId, (Fid, Vec<Name>)>,
    name_bytes: usize,
    /// Directories that the client is to settle.
    recalled: Vec<Fid>,
    /// Files of which others want what the client has locked.
    wanted: Vec<Fid>,
}

impl Promises {
    /// Makes the promises of a volume whose last change is `change`. Clients in `listed` had sessions when the server
    /// went down, at the latest `now`: whatever they hold, they hold until their leases must have ended.
    pub(crate) fn new(
        timing: Timing,
        change: ChangeNumber,
        listed: impl IntoIterator<Item = ClientId>,
        now: Instant,
    ) -> Self {
        let (sessions, current, holders) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        let mut promises = Self { timing, change, sessions, current, holders, next: 0 };
        for client in listed {
            promises.begin(Session { holds_everything: true, ..Session::new(client, None, promises.lease_end(now)) });
        }
        promises
    }

    /// Attaches a client. Returns whether the session of its attach `continued` goes on, promises and all; otherwise
    /// it has a new one without any.
    pub(crate) fn attach(
        &mut self,
        client: ClientId,
        generation: Generation,
        continued: Option<Generation>,
        now: Instant,
    ) -> bool {
        let (until, break_timeout) = (self.lease_end(now), self.timing.break_timeout);
        if let Some(session) = self.current_mut(client)
            && session.attach == continued
            && session.until > now
        {
            session.attach = Some(generation);
            session.sending = false;
            if !session.is_silent(break_timeout, now) {
                session.until = until;
            }
            return true;
        }
        if let Some(session) = self.current_mut(client) {
            session.attach = None;
        }
        let id = self.begin(Session::new(client, Some(generation), until));
        self.current.insert(client, id);
        false
    }

    /// Tells whether an attach is the client's last one and its lease has not ended.
    pub(crate) fn is_current(&self, client: ClientId, generation: Generation, now: Instant) -> bool {
        self.current(client).is_some_and(|session| session.attach == Some(generation) && session.until > now)
    }

    /// Takes a renewal of the client, which says that it holds nothing from before its last attach. Returns whether
    /// the lease is renewed; `None` if the attach is not current.
    pub(crate) fn renew(&mut self, client: ClientId, generation: Generation, now: Instant) -> Option<bool> {
        if !self.is_current(client, generation, now) {
            return None;
        }
        self.end_where(|session| session.client == client && session.attach.is_none());
        let (until, break_timeout) = (self.lease_end(now), self.timing.break_timeout);
        let session = self.current_mut(client)?;
        let renewed = !session.is_silent(break_timeout, now);
        if renewed {
            session.until = until;
        }
        Some(renewed)
    }

    /// Gives back the promises of a client. Returns whether it has no session now.
    pub(crate) fn detach(&mut self, client: ClientId, generation: Generation) -> bool {
        if self.current(client).is_some_and(|session| session.attach == Some(generation)) {
            self.end_where(|session| session.client == client);
        }
        !self.has_session(client)
    }

    /// Ends the sessions whose leases have ended. Returns the clients that have none now.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<ClientId> {
        let expired = |session: &Session| session.until <= now;
        let mut clients: Vec<_> =
            self.sessions.values().filter(|session| expired(session)).map(|session| session.client).collect();
        self.end_where(expired);
        clients.sort_unstable();
        clients.dedup();
        clients.retain(|client| !self.has_session(*client));
        clients
    }

    pub(crate) fn has_session(&self, client: ClientId) -> bool {
        self.sessions.values().any(|session| session.client == client)
    }

    /// Tells whether a client has a session whose lease has not ended.
    pub(crate) fn is_live(&self, client: ClientId, now: Instant) -> bool {
        let is_live = |session: &Session| session.client == client && session.until > now;
        self.current(client).is_some_and(is_live) || self.sessions.values().any(is_live)
    }

    /// Promises a client that is about to be shown these objects. Returns the change that it will see at least.
    pub(crate) fn grant(&mut self, client: ClientId, vnodes: impl IntoIterator<Item = VnodeId>) -> ChangeNumber {
        if let Some(id) = self.current.get(&client) {
            for vnode in vnodes {
                self.holders.entry(vnode).and_modify(|holders| holders.add(*id)).or_insert(Holders::One(*id));
            }
        }
        self.change
    }

    /// Has a client hear of every change from now on, until it has said what it holds: it is about to be shown what
    /// has changed since it heard from the volume last.
    pub(crate) fn hear_all(&mut self, client: ClientId) {
        if let Some(session) = self.current_mut(client) {
            session.hears_all = true;
        }
    }

    /// Notes that a client that hears of every change relies on these objects; with the `last` of them it need not
    /// any more.
    pub(crate) fn hold(&mut self, client: ClientId, vnodes: impl IntoIterator<Item = VnodeId>, last: bool) {
        self.grant(client, vnodes);
        if let Some(session) = self.current_mut(client).filter(|_| last) {
            session.hears_all = false;
        }
    }

    /// Returns the last change, if a client has heard of everything up to it that it was promised to.
    pub(crate) fn caught_up(&self, client: ClientId) -> Option<ChangeNumber> {
        let session = self.current(client)?;
        (session.in_flight.is_none() && session.gathering.is_empty()).then_some(self.change)
    }

    /// Breaks promises after a mutation of `client` has become `change`, and is durable. Returns what its
    /// acknowledgement waits for.
    pub(crate) fn changed(
        &mut self,
        client: ClientId,
        change: ChangeNumber,
        touched: &[Touched],
        now: Instant,
    ) -> Owed {
        self.break_others(client, change, touched);
        // The reply shows its own client what has become of the objects.
        for Touched { fid, .. } in touched {
            self.holders.remove(&fid.vnode);
        }
        self.grant(client, touched.iter().filter(|touched| !touched.gone).map(|touched| touched.fid.vnode));
        self.owed(client, touched, now)
    }

    /// Breaks promises after `client` has announced changes of these objects, as `change`, and that is durable. As
    /// [`Self::changed`], but its own promises stay as they are, for it is shown nothing.
    pub(crate) fn announced(
        &mut self,
        client: ClientId,
        change: ChangeNumber,
        touched: &[Touched],
        now: Instant,
    ) -> Owed {
        self.break_others(client, change, touched);
        self.owed(client, touched, now)
    }

    /// Tells whether a client is to be told to settle a directory: it can be, and the session it has does not know.
    pub(crate) fn needs_recall(&self, client: ClientId, directory: VnodeId) -> bool {
        self.current(client).is_some_and(|session| !session.recalled.contains(&directory))
    }

    /// Notes that a client is told, as `change`, which is durable, to settle a directory. Returns whether it can be.
    pub(crate) fn recall(&mut self, client: ClientId, directory: Fid, change: ChangeNumber) -> bool {
        self.change = self.change.max(change);
        let Some(id) = self.current.get(&client).copied() else { return false };
        if let Some(holders) = self.holders.get_mut(&directory.vnode) {
            holders.retain(|holder| holder != id);
            if holders.ids().is_empty() {
                self.holders.remove(&directory.vnode);
            }
        }
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        session.owe(directory, &[], change);
        if session.recalled.insert(directory.vnode) {
            session.gathering.recalled.push(directory);
        }
        self.end_overflowed();
        true
    }

    /// Notes that a client is to be told that others want what it has locked of a file.
    pub(crate) fn want_locks(&mut self, client: ClientId, fid: Fid) {
        let session = self.current_mut(client);
        if let Some(session) = session.filter(|session| !session.gathering.wanted.contains(&fid)) {
            session.gathering.wanted.push(fid);
        }
    }

    /// Notes that a client has settled a directory.
    pub(crate) fn settled(&mut self, client: ClientId, directory: VnodeId) {
        if let Some(session) = self.current_mut(client) {
            session.recalled.remove(&directory);
        }
    }

    /// Tells whether a client has heard that it is to settle a directory.
    pub(crate) fn has_heard_of_recall(&self, client: ClientId, directory: VnodeId) -> bool {
        let is_owed = |session: &Session| {
            session.breaking_all.is_some() || session.breaking.contains_key(&directory) || session.attach.is_none()
        };
        self.current(client).is_some_and(|session| session.recalled.contains(&directory) && !is_owed(session))
    }

    /// Tells whether nobody but a client has been promised anything about an object.
    pub(crate) fn holds_alone(&self, client: ClientId, vnode: VnodeId) -> bool {
        if self.sessions.values().any(|session| session.hears_all && session.client != client) {
            return false;
        }
        let is_own = |id: &SessionId| self.sessions.get(id).is_none_or(|session| session.client == client);
        self.holders.get(&vnode).is_none_or(|holders| holders.ids().iter().all(is_own))
    }

    /// Tells whether another client's promises are not known, because they are from before the server's start.
    pub(crate) fn is_anything_held(&self, client: ClientId, now: Instant) -> bool {
        let counts = |session: &Session| session.holds_everything && session.client != client && session.until > now;
        self.sessions.values().any(counts)
    }

    /// Tells whether a client had a session when the server was started, and has not said since that it relies on it
    /// no more.
    pub(crate) fn is_listed(&self, client: ClientId, now: Instant) -> bool {
        let counts = |session: &Session| session.holds_everything && session.client == client && session.until > now;
        self.sessions.values().any(counts)
    }

    /// Returns the breaks that an answer to `client` about these objects waits for: those that are owed from before.
    pub(crate) fn owed(&self, client: ClientId, touched: &[Touched], now: Instant) -> Owed {
        let others = self.sessions.iter().filter(|(_, session)| session.client != client && session.until > now);
        let owed = others.filter_map(|(id, session)| {
            let breaking = touched.iter().filter_map(|touched| session.breaking.get(&touched.fid.vnode)).max().copied();
            let everything = session.holds_everything.then_some(BatchNumber(u64::MAX));
            Some((*id, breaking.max(session.breaking_all).max(everything)?))
        });
        Owed(owed.collect())
    }

    /// Forgets what has happened of `owed`. Returns when to look again at the latest; `None`: all has.
    pub(crate) fn remaining(&self, owed: &mut Owed, now: Instant) -> Option<Instant> {
        owed.0.retain(|(id, number)| {
            self.sessions.get(id).is_some_and(|session| session.until > now && session.acknowledged < *number)
        });
        owed.0.iter().filter_map(|(id, _)| Some(self.sessions.get(id)?.until)).min()
    }

    /// Returns the breaks that the connection of an attach is to send now, if any.
    pub(crate) fn next_batch(
        &mut self,
        client: ClientId,
        generation: Generation,
        now: Instant,
    ) -> Option<(BatchNumber, BreakRequest)> {
        let session = self.current_mut(client).filter(|session| session.attach == Some(generation))?;
        if session.sending {
            return None;
        }
        if session.in_flight.is_none() && !session.gathering.is_empty() {
            let next = Gathering { number: BatchNumber(session.gathering.number.0 + 1), ..Gathering::default() };
            let mut batch = std::mem::replace(&mut session.gathering, next);
            let behind = |fids: &mut Vec<_>| fids.split_off(fids.len().min(BreakRequest::OBJECTS_MAX));
            session.gathering.recalled = behind(&mut batch.recalled);
            session.gathering.wanted = behind(&mut batch.wanted);
            session.gathering.change = batch.change;
            session.in_flight = Some((batch.number, batch.into_request(), now));
        }
        let (number, request, _) = session.in_flight.as_ref()?;
        session.sending = true;
        Some((*number, request.clone()))
    }

    /// Notes that a client has acknowledged a batch.
    pub(crate) fn acknowledge(&mut self, client: ClientId, generation: Generation, number: BatchNumber) {
        let Some(session) = self.current_mut(client).filter(|session| session.attach == Some(generation)) else {
            return;
        };
        if session.in_flight.as_ref().is_some_and(|(sent, ..)| *sent == number) {
            (session.in_flight, session.sending) = (None, false);
            session.acknowledged = number;
            session.breaking.retain(|_, breaking| *breaking > number);
            session.breaking_all = session.breaking_all.filter(|breaking| *breaking > number);
        }
    }

    fn break_others(&mut self, client: ClientId, change: ChangeNumber, touched: &[Touched]) {
        self.change = self.change.max(change);
        for session in self.sessions.values_mut().filter(|session| session.hears_all && session.client != client) {
            touched.iter().for_each(|touched| session.owe(touched.fid, &touched.names, change));
        }
        for Touched { fid, names, .. } in touched {
            let Some(mut holders) = self.holders.remove(&fid.vnode) else { continue };
            for id in holders.ids() {
                if let Some(session) = self.sessions.get_mut(id).filter(|session| session.client != client) {
                    session.owe(*fid, names, change);
                }
            }
            holders.retain(|id| self.sessions.get(&id).is_some_and(|session| session.client == client));
            if !holders.ids().is_empty() {
                self.holders.insert(fid.vnode, holders);
            }
        }
        self.end_overflowed();
    }

    fn lease_end(&self, now: Instant) -> Instant {
        now + self.timing.lease + self.timing.bias
    }

    fn begin(&mut self, session: Session) -> SessionId {
        let id = SessionId(self.next);
        self.next += 1;
        self.sessions.insert(id, session);
        id
    }

    fn current(&self, client: ClientId) -> Option<&Session> {
        self.sessions.get(self.current.get(&client)?)
    }

    fn current_mut(&mut self, client: ClientId) -> Option<&mut Session> {
        self.sessions.get_mut(self.current.get(&client)?)
    }

    /// Ends sessions; what they held stays behind for [`Self::changed`] to find without a session.
    fn end_where(&mut self, ends: impl Fn(&Session) -> bool) {
        let before = self.sessions.len();
        self.sessions.retain(|_, session| !ends(session));
        if self.sessions.len() < before {
            self.current.retain(|_, id| self.sessions.contains_key(id));
            self.forget_holders(|id, sessions| !sessions.contains_key(&id));
        }
    }

    /// Ends the promises of sessions that are owed a break of everything: they hold nothing any more.
    fn end_overflowed(&mut self) {
        let newly = |session: &Session| session.gathering.all && session.breaking_all != Some(session.gathering.number);
        if self.sessions.values().any(newly) {
            self.forget_holders(|id, sessions| sessions.get(&id).is_some_and(newly));
            for session in self.sessions.values_mut().filter(|session| newly(session)) {
                session.breaking_all = Some(session.gathering.number);
                session.breaking.clear();
                session.hears_all = false;
            }
        }
    }

    fn forget_holders(&mut self, is_gone: impl Fn(SessionId, &BTreeMap<SessionId, Session>) -> bool) {
        let sessions = &self.sessions;
        self.holders.retain(|_, holders| {
            holders.retain(|id| !is_gone(id, sessions));
            !holders.ids().is_empty()
        });
    }
}

/// A promise of a session that is alone with its object takes at most 64 bytes: its place in a table that may have just
/// grown, when 7 of 16 places are in use, with the byte that each of them has besides.
const _: () = assert!((size_of::<(VnodeId, Holders)>() + 1) * 16 / 7 <= 64);

impl Holders {
    fn ids(&self) -> &[SessionId] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(ids) => ids,
        }
    }

    fn add(&mut self, id: SessionId) {
        match self {
            Self::One(one) if *one == id => {}
            Self::One(one) => *self = Self::Many(Box::new(vec![*one, id])),
            // The ids are in the order of their beginning; the newest asks most often.
            Self::Many(ids) => {
                if let Err(place) = ids.binary_search(&id) {
                    ids.insert(place, id);
                }
            }
        }
    }

    fn retain(&mut self, mut stays: impl FnMut(SessionId) -> bool) {
        match self {
            Self::One(id) if stays(*id) => {}
            Self::One(_) => *self = Self::Many(Box::default()),
            Self::Many(ids) => ids.retain(|id| stays(*id)),
        }
    }
}

impl Session {
    fn new(client: ClientId, attach: Option<Generation>, until: Instant) -> Self {
        Self {
            client,
            attach,
            until,
            holds_everything: false,
            hears_all: false,
            breaking: HashMap::new(),
            breaking_all: None,
            gathering: Gathering { number: BatchNumber(1), ..Gathering::default() },
            in_flight: None,
            sending: false,
            recalled: BTreeSet::new(),
            acknowledged: BatchNumber(0),
        }
    }

    /// Tells whether a break has gone unacknowledged for too long.
    fn is_silent(&self, break_timeout: Duration, now: Instant) -> bool {
        self.in_flight.as_ref().is_some_and(|(_, _, since)| now >= *since + break_timeout)
    }

    fn owe(&mut self, fid: Fid, names: &[Name], change: ChangeNumber) {
        self.gathering.add(fid, names, change);
        self.breaking.insert(fid.vnode, self.gathering.number);
    }
}

impl Gathering {
    fn is_empty(&self) -> bool {
        !self.all && self.objects.is_empty() && self.recalled.is_empty() && self.wanted.is_empty()
    }

    fn add(&mut self, fid: Fid, names: &[Name], change: ChangeNumber) {
        self.change = self.change.max(change);
        if self.all {
            return;
        }
        let (_, known) = self.objects.entry(fid.vnode).or_insert_with(|| (fid, Vec::new()));
        for name in names {
            if !known.contains(name) {
                self.name_bytes += name.as_bytes().len();
                known.push(name.clone());
            }
        }
        let too_many_names = known.len() > BreakRequest::NAMES_MAX;
        if too_many_names || self.objects.len() > BreakRequest::OBJECTS_MAX || self.name_bytes > NAME_BYTES_MAX {
            let (recalled, wanted) = (std::mem::take(&mut self.recalled), std::mem::take(&mut self.wanted));
            *self = Self { number: self.number, change: self.change, all: true, recalled, wanted, ..Self::default() };
        }
    }

    fn into_request(self) -> BreakRequest {
        let objects = self.objects.into_values().map(|(fid, names)| BrokenObject { fid, names });
        let broken = if self.all { Broken::All } else { Broken::Objects(objects.collect()) };
        BreakRequest { change: self.change, broken, recalled: self.recalled, wanted: self.wanted }
    }
}
