//! The reference for clients that send in the background: an abstract file system with versions.
//!
//! A [`Register`] changes by itself; its versions are a chain, each based on the one before. For each register every
//! client has a *floor*, the oldest version that it may still be shown. A floor rises
//!
//! - to the client's own update, when the call has returned (what one machine shows is always its own changes on top);
//! - for all clients, when an update is known to be announced or applied (consistency.md, "What a user may rely on");
//! - to what the client has been shown, and to what that depends on: changes made before it to the same object or
//!   name. Changes that were fsynced before it are not among those yet.
//!
//! A floor falls only where docs/semantics.md says so: if a loss of power at the writer takes what was not durable, if
//! a writer is gone that had announced and not sent, if it has removed the object since, and so retracts, and of an
//! object that is losing its last name. So a client may be shown its floor or any later version, nothing else. No
//! client changes a register whose newest version is another's that is not known to be announced, so chains do not
//! fork: forks are tried by themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use mafs_proto::VnodeId;
use tokio::time::Instant;

use crate::history::Register;

/// A logged record is durable on the client's disk after this time: consistency.md says 1 s.
pub(crate) const DURABLE_AFTER: Duration = Duration::from_millis(1500);

/// A client that is out of touch for less than this has a lease for certain: a lease is renewed three times in its
/// time.
const LEASE_LEFT: Duration = Duration::from_secs(20);

/// Names a record of a client's log: incarnation and number.
pub(crate) type RecordId = (u64, u64);

/// Progress of an update.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum State {
    /// Its call has not returned, or its machine has lost its power since: it may be there or not.
    Unanswered,
    /// Its call has returned.
    Logged,
    /// Nobody is shown any more what was before it.
    Announced,
    /// The server has it.
    Applied,
    /// The update will never be there.
    Lost,
}

struct Version {
    /// `None`: not known, because nobody was told.
    value: Option<u64>,
    client: usize,
    issued: Instant,
    /// Versions that a client is shown as well if it is shown this one.
    after: Vec<Place>,
    /// The newest record of the client's log when the call had returned. `None`: it may be told by any.
    newest_record: Option<RecordId>,
    state: State,
    was_answered: bool,
    was_fsynced: bool,
    may_be_lost: bool,
    /// The server has been full since: removals may have gone ahead of it.
    may_wait_for_room: bool,
    /// Its object has been removed by the same client since.
    is_moot: bool,
}

/// Names one version.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    register: Register,
    at: usize,
}

/// The versions that one client may be shown, and the state of its updates.
#[derive(Default)]
struct Client {
    floors: BTreeMap<Register, usize>,
    /// The newest version that it has been shown, or has made.
    seen: BTreeMap<Register, usize>,
    /// Updates that the server is not known to have.
    pending: BTreeSet<Place>,
    /// Since when it is out of touch, or may be.
    out_since: Option<Instant>,
}

impl Client {
    /// Whether the server may have given the client up.
    fn is_gone(&self) -> bool {
        self.out_since.is_some_and(|since| since.elapsed() > LEASE_LEFT)
    }
}

/// All versions, and what each client may be shown of them.
#[derive(Default)]
pub(crate) struct Versions {
    chains: BTreeMap<Register, Vec<Version>>,
    /// Which content a program has written over another that it had closed by one of its descriptors.
    written_over: BTreeMap<u64, u64>,
    clients: Vec<Client>,
    /// Whether what is announced does not come, because the server is full.
    is_full: bool,
}

impl Versions {
    /// Registers start with value 0, which everybody knows.
    pub(crate) fn new(clients: usize) -> Self {
        let clients = (0..clients).map(|_| Client::default()).collect();
        Self { chains: BTreeMap::new(), written_over: BTreeMap::new(), clients, is_full: false }
    }

    /// Begins an update of a client, which depends on what it did before to these registers.
    pub(crate) fn begin(
        &mut self,
        client: usize,
        register: &Register,
        value: Option<u64>,
        about: &[Register],
    ) -> Place {
        let mut after = Vec::new();
        for register in about {
            let pending = self.newest(register).filter(|at| self.chain(register)[*at].is_pending_of(client));
            after.extend(pending.map(|at| Place { register: register.clone(), at }));
        }
        let version = Version {
            value,
            client,
            issued: Instant::now(),
            after,
            newest_record: None,
            state: State::Unanswered,
            was_answered: false,
            was_fsynced: false,
            may_be_lost: true,
            may_wait_for_room: self.is_full,
            is_moot: false,
        };
        let chain = self.chain_mut(register);
        chain.push(version);
        let place = Place { register: register.clone(), at: chain.len() - 1 };
        self.clients[client].pending.insert(place.clone());
        place
    }

    /// Notes that the call has returned; the newest record of the client's log is this one, if there is any.
    pub(crate) fn answer(&mut self, place: &Place, value: u64, newest_record: Option<RecordId>) {
        let version = &mut self.chain_mut(&place.register)[place.at];
        version.value = Some(value);
        version.newest_record = Some(newest_record.unwrap_or_default());
        (version.state, version.was_answered, version.may_be_lost) = (State::Logged, true, false);
        let client = version.client;
        self.raise(client, place.clone());
    }

    /// Notes that the call has failed half-way: what has become of the register is to be seen.
    pub(crate) fn fail(&mut self, place: &Place) {
        self.chain_mut(&place.register)[place.at].value = None;
    }

    /// Notes that a program writes a content over another one that it still has open.
    pub(crate) fn note_written_over(&mut self, before: u64, now: u64) {
        self.written_over.insert(before, now);
    }

    /// The content that is written over this one.
    pub(crate) fn written_over(&self, before: u64) -> Option<u64> {
        self.written_over.get(&before).copied()
    }

    /// Notes that a client has written over its update before it closed the file: nobody is shown that any more.
    pub(crate) fn supersede(&mut self, place: &Place) {
        let version = &mut self.chain_mut(&place.register)[place.at];
        version.state = State::Lost;
        let client = version.client;
        self.forget(client, place);
    }

    /// Notes that a close has returned that waits for the announcement.
    pub(crate) fn announce(&mut self, place: &Place) {
        self.advance(place, State::Announced);
    }

    /// An fsync had returned before the call.
    pub(crate) fn fsync(&mut self, place: &Place) {
        self.chain_mut(&place.register)[place.at].was_fsynced = true;
    }

    /// Takes in what a client's log holds now: records, and whether each is announced.
    pub(crate) fn note_log(&mut self, client: usize, records: &[(RecordId, bool)]) {
        let places: Vec<Place> = self.clients[client].pending.iter().cloned().collect();
        for place in places {
            let version = &self.chain(&place.register)[place.at];
            let tells = |id: RecordId| version.newest_record.is_none_or(|newest| id <= newest);
            let mut telling = records.iter().filter(|(id, _)| tells(*id)).peekable();
            if version.state == State::Unanswered {
                continue;
            }
            if telling.peek().is_none() && version.is_moot {
                // Applied or retracted: nobody can tell, and nobody must be shown it.
                self.clients[client].pending.remove(&place);
            } else if telling.peek().is_none() {
                self.advance(&place, State::Applied);
            } else if telling.all(|(_, is_announced)| *is_announced) {
                self.advance(&place, State::Announced);
            }
        }
    }

    fn advance(&mut self, place: &Place, state: State) {
        let version = &mut self.chain_mut(&place.register)[place.at];
        if version.state >= state {
            return;
        }
        version.state = state;
        let client = version.client;
        for other in 0..self.clients.len() {
            let floor = self.clients[other].floors.entry(place.register.clone()).or_default();
            *floor = (*floor).max(place.at);
        }
        if state == State::Applied {
            self.clients[client].pending.remove(place);
        }
    }

    /// Notes that a client removes the last name of an object: it retracts what it has not sent of that.
    pub(crate) fn remove(&mut self, client: usize, vnode: VnodeId) {
        for register in Register::of(vnode) {
            let pending = self.chains.get_mut(&register).into_iter().flatten();
            pending.filter(|version| version.is_pending_of(client)).for_each(|version| version.is_moot = true);
        }
    }

    /// Notes whether the server is full. Returns whether it was.
    pub(crate) fn set_full(&mut self, is_full: bool) -> bool {
        for place in self.clients.iter().flat_map(|client| client.pending.clone()).collect::<Vec<_>>() {
            self.chain_mut(&place.register)[place.at].may_wait_for_room |= is_full;
        }
        std::mem::replace(&mut self.is_full, is_full)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Notes that a client is out of touch. In the end the server takes it for gone.
    pub(crate) fn lose_touch(&mut self, client: usize) {
        self.clients[client].out_since.get_or_insert_with(Instant::now);
    }

    /// Notes that a client is back.
    pub(crate) fn come_back(&mut self, client: usize) {
        let was_gone = self.clients[client].is_gone();
        self.clients[client].out_since = None;
        if !was_gone {
            return;
        }
        // A version that it has announced counts when that is known again.
        for place in self.clients[client].pending.clone() {
            for other in (0..self.clients.len()).filter(|other| *other != client) {
                let floor = self.clients[other].floors.entry(place.register.clone()).or_default();
                *floor = (*floor).min(place.at - 1);
            }
            let version = &mut self.chain_mut(&place.register)[place.at];
            version.state = version.state.min(State::Logged);
        }
    }

    /// Notes that a client has been started again: its records may have other names.
    pub(crate) fn restart(&mut self, client: usize) {
        for place in self.clients[client].pending.clone() {
            self.chain_mut(&place.register)[place.at].newest_record = None;
        }
    }

    /// Notes that a client's power has gone: changes made just now and not fsynced may be lost, with what depends on
    /// them.
    pub(crate) fn lose_power(&mut self, client: usize) {
        self.doubt_retracted(client);
        let pending = self.clients[client].pending.clone();
        let mut lost: BTreeSet<Place> = BTreeSet::new();
        loop {
            let before = lost.len();
            for place in &pending {
                let chain = self.chain(&place.register);
                let version = &chain[place.at];
                let is_young = version.is_moot || !version.was_fsynced && version.issued.elapsed() < DURABLE_AFTER;
                // A content is lost with a younger one that had taken its place in the cache.
                let of_chain = |lost: &Place| lost.register == place.register;
                if is_young || version.after.iter().any(|before| lost.contains(before)) || lost.iter().any(of_chain) {
                    lost.insert(place.clone());
                }
            }
            if lost.len() == before {
                break;
            }
        }
        for place in pending {
            let version = &mut self.chain_mut(&place.register)[place.at];
            version.state = State::Unanswered;
            version.may_be_lost = lost.contains(&place);
        }
    }

    /// Doubts what was retracted for a removal: the removal may be lost, and then the retracted may be there or not.
    fn doubt_retracted(&mut self, client: usize) {
        let is_retracted =
            |version: &Version| version.client == client && version.is_moot && version.state < State::Applied;
        for (register, chain) in &self.chains {
            let retracted = (0..chain.len()).filter(|at| is_retracted(&chain[*at]));
            self.clients[client].pending.extend(retracted.map(|at| Place { register: register.clone(), at }));
        }
    }

    /// Notes that a client's log is as it was before what is in it now: all of that may be lost that was not sent.
    pub(crate) fn lose_log(&mut self, client: usize) {
        self.doubt_retracted(client);
        for place in self.clients[client].pending.clone() {
            let version = &mut self.chain_mut(&place.register)[place.at];
            (version.state, version.may_be_lost) = (State::Unanswered, true);
        }
    }

    /// Returns the registers of a client's updates that may be there or not.
    pub(crate) fn unanswered(&self, client: usize) -> Vec<Register> {
        let unanswered = |place: &&Place| self.chain(&place.register)[place.at].state == State::Unanswered;
        let mut registers: Vec<_> = self.clients[client].pending.iter().filter(unanswered).collect();
        registers.dedup_by_key(|place| &place.register);
        registers.into_iter().map(|place| place.register.clone()).collect()
    }

    /// Takes in what a client shows of a register when the server has all that it has. `None`: the object is not
    /// there.
    ///
    /// # Errors
    /// If something is lost that must not be.
    pub(crate) fn settle(&mut self, client: usize, register: &Register, value: Option<u64>) -> Result<(), String> {
        let pending: Vec<_> = self.clients[client].pending.iter().filter(|place| place.register == *register).collect();
        let pending: Vec<usize> = pending.into_iter().map(|place| place.at).collect();
        let chain = self.chain_mut(register);
        let before = |at: usize| (0..at).rev().find(|at| !chain[*at].is_lost()).map(|at| chain[at].value);
        let is_it = |at: &&usize| match chain[**at].value {
            Some(of) => value == Some(of),
            // An update that nobody was told of may have come to nothing: then the register is what it was before.
            None => value.is_some() && before(**at) != Some(value),
        };
        let there = pending.iter().rev().find(is_it).copied();
        // Another client may have built on the newest since: each version is based on the one before. The other
        // client may not have been told yet what it has made.
        let newest = pending.last().copied().unwrap_or_default();
        let is_new = chain[..=newest].iter().all(|version| version.value != value);
        let is_made = |later: &Version| later.value == value || later.value.is_none() && is_new;
        let built_on = |later: &Version| later.client != client && !later.is_lost() && is_made(later);
        let there = there.or_else(|| chain.iter().skip(newest + 1).any(built_on).then_some(newest));
        for at in &pending {
            let version = &mut chain[*at];
            if Some(*at) == there && version.value.is_none() {
                version.value = value;
            }
            if there.is_some_and(|there| *at <= there) {
                version.state = version.state.max(State::Logged);
                continue;
            }
            if version.was_answered && !version.may_be_lost && value.is_some() {
                return Err(format!("invariant 1: {register:?} is {value:?}, which has lost {version}"));
            }
            version.state = State::Lost;
        }
        for at in pending {
            let place = Place { register: register.clone(), at };
            if self.chain(register)[at].is_lost() {
                self.forget(client, &place);
            } else {
                self.raise(client, place);
            }
        }
        value.map_or(Ok(()), |value| self.see(client, register, value))
    }

    /// Forgets a version that is lost: nobody needs to be shown it.
    fn forget(&mut self, client: usize, place: &Place) {
        self.clients[client].pending.remove(place);
        let valid = (0..place.at).rev().find(|at| !self.chain(&place.register)[*at].is_lost()).unwrap_or(0);
        for client in &mut self.clients {
            for versions in [&mut client.floors, &mut client.seen] {
                let newest = versions.entry(place.register.clone()).or_default();
                if *newest == place.at {
                    *newest = valid;
                }
            }
        }
    }

    /// Whether a client may change a register: the newest version is its own, or known to all.
    pub(crate) fn may_change(&self, client: usize, register: &Register) -> bool {
        let Some(at) = self.newest(register) else { return true };
        let version = &self.chain(register)[at];
        match version.state {
            State::Applied => true,
            State::Announced => version.client == client || !self.is_full && !self.clients[version.client].is_gone(),
            State::Logged => version.client == client,
            State::Unanswered | State::Lost => false,
        }
    }

    /// Whether nothing of another client is on its way to a register.
    pub(crate) fn is_own_or_applied(&self, client: usize, register: &Register) -> bool {
        let newest = self.newest(register).map(|at| &self.chain(register)[at]);
        newest.is_none_or(|version| version.state == State::Applied || version.client == client)
    }

    /// Returns the value of a register when all is done, if that is known.
    pub(crate) fn last(&self, register: &Register) -> Option<u64> {
        self.newest(register).map_or(Some(0), |at| self.chain(register)[at].value)
    }

    /// Whether a register is of an object that is losing its last name, or has lost it: a client that still finds it
    /// by that name finds it as it knew it last.
    fn is_nameless(&self, register: &Register) -> bool {
        match register {
            Register::Content(vnode) | Register::Mode(vnode) | Register::Xattr(vnode) => self.name_of(*vnode).is_none(),
            Register::Name(_) | Register::Links(_) => false,
        }
    }

    /// Returns a name of an object.
    pub(crate) fn name_of(&self, vnode: VnodeId) -> Option<String> {
        self.chains.keys().find_map(|register| match register {
            Register::Name(path) if self.last(register) == Some(vnode.0) => Some(path.clone()),
            _ => None,
        })
    }

    /// Returns some update that the server is not known to have, if there is one.
    pub(crate) fn unknown(&self) -> Option<String> {
        let mut pending = self.clients.iter().flat_map(|client| &client.pending);
        pending.next().map(|place| format!("{:?}: {}", place.register, self.chain(&place.register)[place.at]))
    }

    /// Checks a value that a client is shown.
    ///
    /// # Errors
    /// If it may not be.
    pub(crate) fn see(&mut self, client: usize, register: &Register, value: u64) -> Result<(), String> {
        let floor = self.floor(client, register);
        let chain = self.chain_mut(register);
        let possible = |version: &Version| !version.is_lost() && version.value.is_none_or(|of| of == value);
        let Some(at) = (floor..chain.len()).find(|at| possible(&chain[*at])) else {
            let known = chain.iter().find(|version| version.value == Some(value));
            let known = known.map_or("which nobody made (invariant 4)".to_owned(), |of| format!("which is {of}"));
            let must = &chain[floor];
            return Err(format!("client {client} is shown {value} of {register:?}, {known}; it has had {must}"));
        };
        self.raise(client, Place { register: register.clone(), at });
        Ok(())
    }

    /// Returns the oldest version that a client may be shown.
    fn floor(&self, client: usize, register: &Register) -> usize {
        let Some(chain) = self.chains.get(register) else { return 0 };
        let Client { floors, seen, .. } = &self.clients[client];
        let floors = if self.is_nameless(register) { seen } else { floors };
        let floor = floors.get(register).copied().unwrap_or(0);
        let counts = |version: &Version| {
            let counts = !self.clients[version.client].is_gone() && !version.is_moot;
            !version.is_lost() && (counts || version.state == State::Applied || version.client == client)
        };
        (0..=floor).rev().find(|at| counts(&chain[*at])).unwrap_or(0)
    }

    fn raise(&mut self, client: usize, place: Place) {
        let mut shown = vec![place];
        while let Some(Place { register, at }) = shown.pop() {
            let Client { floors, seen, .. } = &mut self.clients[client];
            for newest in [floors, seen].map(|versions| versions.entry(register.clone()).or_default()) {
                *newest = (*newest).max(at);
            }
            let after = self.chain(&register)[at].after.iter();
            let seen = Place { register: register.clone(), at };
            let after = after.filter(|place| !self.may_come_later(&seen, place));
            let higher = after.filter(|place| self.floor(client, &place.register) < place.at);
            shown.extend(higher.filter(|place| !self.chain(&place.register)[place.at].is_lost()).cloned());
        }
    }

    /// Whether a client may be shown a version without one before it, of which nobody has been told yet and which was
    /// not fsynced: an object under a name that it had before it was given another, or one half of a rename to another
    /// directory, because it hears of each directory by itself. So it may be of what waited for room at the server when
    /// a name was removed, which needs none.
    fn may_come_later(&self, seen: &Place, before: &Place) -> bool {
        let version = |place: &Place| &self.chain(&place.register)[place.at];
        let is_removal = matches!(seen.register, Register::Name(_)) && version(seen).value == Some(0);
        let Register::Name(path) = &before.register else {
            return is_removal && version(before).may_wait_for_room && version(before).state < State::Announced;
        };
        let is_apart = match &seen.register {
            Register::Name(other) => {
                other.contains('/') != path.contains('/') && version(seen).issued == version(before).issued
            }
            Register::Content(_) | Register::Mode(_) | Register::Xattr(_) | Register::Links(_) => true,
        };
        is_apart && version(before).state < State::Announced && !version(before).was_fsynced
    }

    /// Returns the newest version of a register that is not lost.
    fn newest(&self, register: &Register) -> Option<usize> {
        let chain = self.chains.get(register)?;
        (0..chain.len()).rev().find(|at| !chain[*at].is_lost())
    }

    fn chain(&self, register: &Register) -> &[Version] {
        self.chains.get(register).map_or(&[], Vec::as_slice)
    }

    fn chain_mut(&mut self, register: &Register) -> &mut Vec<Version> {
        self.chains.entry(register.clone()).or_insert_with(|| vec![Version::first()])
    }
}

impl Version {
    fn first() -> Self {
        Self {
            value: Some(0),
            client: 0,
            issued: Instant::now(),
            after: Vec::new(),
            newest_record: None,
            state: State::Applied,
            was_answered: true,
            was_fsynced: true,
            may_be_lost: false,
            may_wait_for_room: false,
            is_moot: false,
        }
    }

    fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    fn is_pending_of(&self, client: usize) -> bool {
        self.client == client && self.state < State::Applied
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value.map_or_else(|| "something".to_owned(), |value| value.to_string());
        let (client, state, age) = (self.client, self.state, self.issued.elapsed());
        write!(f, "{value} by client {client}, {age:?} ago, {state:?}")
    }
}
