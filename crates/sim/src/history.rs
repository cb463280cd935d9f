//! The reference for clients whose operations overlap: what each saw must have been true in one order of the updates.
//!
//! A [`Register`] is anything that can change by itself: the content of a file, its mode, the meaning of a name. An
//! update takes effect at one moment between its beginning and its acknowledgement, or the first sight that another
//! client has of it; one that begins later follows it. Once an update is acknowledged nobody may be shown what it
//! followed (close-to-open: consistency.md, "What a user may rely on"), and before that no client that has seen it.
//! Updates that nobody acknowledged, because their client died or gave up, may take effect at any later time or never;
//! their own client shows them until then.
//!
//! Moments are counted, not timed: much happens at one instant of virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use mafs_proto::VnodeId;

/// Part of the state that changes by itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Register {
    /// The meaning of a name in the root: 0, or a vnode.
    Name(String),
    /// Which update wrote a file last: 0 for none yet.
    Content(VnodeId),
    /// The permissions of an object; 0: as it was made.
    Mode(VnodeId),
    /// An extended attribute of an object; 0: it has none.
    Xattr(VnodeId),
    /// The names of a file: a client that removes one must know of the others.
    Links(VnodeId),
}

impl Register {
    /// Returns the registers of an object.
    pub(crate) fn of(vnode: VnodeId) -> [Self; 4] {
        [Self::Content(vnode), Self::Mode(vnode), Self::Xattr(vnode), Self::Links(vnode)]
    }
}

/// The order of what happened.
type Moment = u64;

/// Names one update of a [`History`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct UpdateId(usize);

struct Update {
    register: Register,
    /// `None`: not known, because nobody was told.
    value: Option<u64>,
    client: usize,
    began: Moment,
    acknowledged: Option<Moment>,
}

/// A sight: a client was shown a value, in an answer asked for at `began` and given at `ended`.
struct Sight {
    register: Register,
    value: u64,
    client: usize,
    began: Moment,
    ended: Moment,
}

/// The updates and sights so far.
#[derive(Default)]
pub struct History {
    now: Moment,
    updates: Vec<Update>,
    sights: Vec<Sight>,
}

impl History {
    /// Returns the present moment, which never comes again.
    pub fn now(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Notes that an update begins; which value it gives may be known only afterwards.
    pub fn begin(&mut self, client: usize, register: Register, value: Option<u64>) -> UpdateId {
        let began = self.now();
        self.updates.push(Update { register, value, client, began, acknowledged: None });
        UpdateId(self.updates.len() - 1)
    }

    /// Notes that an update was acknowledged, and gave this value.
    pub fn acknowledge(&mut self, id: UpdateId, value: u64) {
        let now = self.now();
        let update = &mut self.updates[id.0];
        (update.acknowledged, update.value) = (Some(now), Some(value));
    }

    /// Notes that a client that asked at `began` is shown a value now.
    pub fn see(&mut self, client: usize, register: Register, value: u64, began: u64) {
        let ended = self.now();
        self.sights.push(Sight { register, value, client, began, ended });
    }

    /// Looks whether all that was seen could be.
    ///
    /// # Errors
    /// The first sight that could not.
    pub fn check(&self) -> Result<(), String> {
        let mut by_register: BTreeMap<&Register, (Vec<&Update>, Vec<&Sight>)> = BTreeMap::new();
        for update in &self.updates {
            by_register.entry(&update.register).or_default().0.push(update);
        }
        for sight in &self.sights {
            by_register.entry(&sight.register).or_default().1.push(sight);
        }
        by_register
            .into_iter()
            .try_for_each(|(register, (updates, sights))| check_register(register, &updates, &sights))
    }
}

fn check_register(register: &Register, updates: &[&Update], sights: &[&Sight]) -> Result<(), String> {
    let initial = Update { register: register.clone(), value: Some(0), client: 0, began: 0, acknowledged: Some(0) };
    let updates: Vec<&Update> = std::iter::once(&initial).chain(updates.iter().copied()).collect();
    let effective_for = |observer: Option<usize>| -> Vec<Moment> {
        let sights: Vec<_> =
            sights.iter().copied().filter(|by| observer.is_none_or(|client| by.client == client)).collect();
        updates.iter().map(|update| effective_by(update, &updates, &sights)).collect()
    };
    let effective = effective_for(None);
    for sight in sights {
        let known = updates.iter().find(|update| update.value == Some(sight.value));
        let due = effective_for(Some(sight.client));
        let shown = |at: usize| {
            let update = updates[at];
            let possible = update.value.map_or_else(|| known.is_none(), |value| value == sight.value);
            possible && update.began < sight.ended && !is_over(at, &updates, (&effective, &due), sight)
        };
        if !(0..updates.len()).any(shown) {
            let newest = (0..updates.len()).filter(|at| due[*at] < sight.began).max_by_key(|at| effective[*at]);
            let newest = newest.map_or_else(String::new, |at| format!("; in effect was {}", updates[at]));
            let known = known.map_or("which nobody made".to_owned(), |update| format!("which is {update}"));
            return Err(format!("{register:?}: {sight}, {known}{newest}"));
        }
    }
    Ok(())
}

/// Returns when an update was in effect for certain.
fn effective_by(update: &Update, updates: &[&Update], sights: &[&Sight]) -> Moment {
    let acknowledged = update.acknowledged.unwrap_or(Moment::MAX);
    let ambiguous = updates.iter().filter(|other| other.value == update.value).count() > 1;
    let by_another = |sight: &&&Sight| Some(sight.value) == update.value && sight.client != update.client;
    let seen = sights.iter().filter(by_another).filter(|_| !ambiguous);
    seen.map(|sight| sight.ended).min().unwrap_or(Moment::MAX).min(acknowledged)
}

/// Whether an update had been followed by another, which the client was due to see before a sight began. Its own client
/// may show it all the same as long as it has no answer.
fn is_over(at: usize, updates: &[&Update], (effective, due): (&[Moment], &[Moment]), sight: &Sight) -> bool {
    let own = updates[at].client == sight.client && updates[at].acknowledged.is_none();
    let followed = || (0..updates.len()).any(|by| updates[by].began > effective[at] && due[by] < sight.began);
    !own && followed()
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, began, .. } = self;
        let value = self.value.map_or_else(|| "something".to_owned(), |value| value.to_string());
        match self.acknowledged {
            Some(at) => write!(f, "{value} by client {client}, from {began}, acknowledged at {at}"),
            None => write!(f, "{value} by client {client}, from {began}, never acknowledged"),
        }
    }
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} was shown {} between {} and {}", self.client, self.value, self.began, self.ended)
    }
}

/// Exclusive makings of names: the clients that tried each, and the outcomes.
#[derive(Default)]
pub struct Contests(BTreeMap<String, Contest>);

#[derive(Default)]
struct Contest {
    winners: BTreeSet<usize>,
    losers: BTreeSet<usize>,
    unknown: BTreeSet<usize>,
}

/// Outcome of an attempt to make a name that must be free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// The name was made.
    Won,
    /// The name was there.
    Lost,
    /// No answer has come.
    Unknown,
}

impl Contests {
    /// Notes that a client has tried to make a name. An attempt that has begun and is never heard of again is
    /// `Unknown`.
    pub fn note(&mut self, name: &str, client: usize, attempt: Attempt) {
        let contest = self.0.entry(name.to_owned()).or_default();
        contest.unknown.remove(&client);
        match attempt {
            Attempt::Won => contest.winners.insert(client),
            Attempt::Lost => contest.losers.insert(client),
            Attempt::Unknown => contest.unknown.insert(client),
        };
    }

    /// Looks whether each name has been made exactly once.
    ///
    /// # Errors
    /// The first that was not.
    pub fn check(&self) -> Result<(), String> {
        for (name, Contest { winners, losers, unknown }) in &self.0 {
            if winners.len() > 1 {
                return Err(format!("{name} was made by each of the clients {winners:?}"));
            }
            if winners.is_empty() && unknown.is_empty() {
                return Err(format!("{name} was there for the clients {losers:?}, and none has made it"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Register = Register::Content(VnodeId(7));

    /// Client 0 writes 1 and then 2.
    fn two_updates() -> History {
        let mut history = History::default();
        for value in [1, 2] {
            let update = history.begin(0, FILE, Some(value));
            history.acknowledge(update, value);
        }
        history
    }

    #[test]
    fn a_sight_of_the_last_acknowledged_update_is_right() {
        let mut history = two_updates();
        let began = history.now();
        history.see(1, FILE, 2, began);
        history.check().unwrap();
    }

    #[test]
    fn a_sight_that_began_after_a_newer_update_was_acknowledged_is_stale() {
        for value in [0, 1] {
            let mut history = two_updates();
            let began = history.now();
            history.see(1, FILE, value, began);
            assert!(history.check().unwrap_err().contains("in effect was 2"));
        }
    }

    #[test]
    fn a_sight_that_overlaps_an_update_may_be_of_either_side() {
        for value in [1, 2] {
            let mut history = two_updates();
            let began = history.now();
            let third = history.begin(0, FILE, Some(3));
            history.see(1, FILE, 2, began);
            history.see(2, FILE, 3, began);
            history.acknowledge(third, 3);
            let stale = history.now();
            history.see(1, FILE, value, began);
            assert_eq!(history.check().is_ok(), value == 2);
            history.see(1, FILE, value, stale);
            history.check().unwrap_err();
        }
    }

    #[test]
    fn what_a_client_has_seen_it_does_not_miss_later() {
        let mut history = two_updates();
        history.begin(0, FILE, Some(3));
        let began = history.now();
        history.see(1, FILE, 3, began);
        history.check().unwrap();
        let later = history.now();
        // Nobody has been acknowledged that this one knows.
        history.see(2, FILE, 2, later);
        history.check().unwrap();
        history.see(1, FILE, 2, later);
        history.check().unwrap_err();
    }

    #[test]
    fn an_update_without_an_answer_may_come_late_and_is_shown_by_its_own_client() {
        let mut history = two_updates();
        history.begin(1, FILE, Some(3));
        let fourth = history.begin(0, FILE, Some(4));
        history.acknowledge(fourth, 4);
        let began = history.now();
        history.see(1, FILE, 3, began);
        history.see(0, FILE, 4, began);
        history.check().unwrap();
        let began = history.now();
        history.see(2, FILE, 3, began);
        history.check().unwrap();
    }

    #[test]
    fn what_nobody_wrote_is_no_version() {
        let mut history = two_updates();
        let began = history.now();
        history.see(1, FILE, 9, began);
        assert!(history.check().unwrap_err().contains("which nobody made"));
    }

    #[test]
    fn an_update_of_which_no_more_is_known_explains_what_is_not_known_otherwise() {
        let mut history = two_updates();
        history.begin(0, FILE, None);
        let began = history.now();
        history.see(1, FILE, 9, began);
        history.check().unwrap();
        history.see(1, FILE, 1, began);
        history.check().unwrap_err();
    }

    #[test]
    fn a_name_is_made_by_exactly_one() {
        let outcome = |attempts: [Attempt; 3]| {
            let mut contests = Contests::default();
            attempts.into_iter().enumerate().for_each(|(client, attempt)| contests.note("x", client, attempt));
            contests.check()
        };
        outcome([Attempt::Won, Attempt::Lost, Attempt::Lost]).unwrap();
        outcome([Attempt::Unknown, Attempt::Lost, Attempt::Lost]).unwrap();
        outcome([Attempt::Won, Attempt::Lost, Attempt::Won]).unwrap_err();
        outcome([Attempt::Lost, Attempt::Lost, Attempt::Lost]).unwrap_err();
    }
}
