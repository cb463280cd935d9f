//! Promises: until when they hold, which answers bring them, and what the kernel must be told again (consistency.md,
//! "Promises and leases").

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mafs_proto::call::BrokenObject;
use mafs_proto::{ChangeNumber, Instant, VnodeId};

/// The most objects whose last break is remembered. An answer is under way for a few seconds at most; when more are
/// broken in that time, answers that began before count as overtaken, which costs one more question each.
const OBJECTS_MAX: usize = 4096;

/// The most broken objects that operations which began before can be told of again. After more, everything the kernel
/// has counts as out of date.
const LOG_MAX: usize = 1024;

/// Lease: until when the promises of a session hold. Those of a session that has none have ended.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    until: AtomicU64,
}

impl Lease {
    /// Renews the lease: a request that was sent at `sent` has been answered with one. The server counts from a later
    /// moment, when the request came, so promises end here first.
    pub(crate) fn renew(&self, sent: Instant, lease: Duration) {
        self.until.store((sent + lease).0, Ordering::Release);
    }

    /// Returns how long the promises hold yet.
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        Instant(self.until.load(Ordering::Acquire)).since(now)
    }

    /// Whether the promises hold.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        now.0 < self.until.load(Ordering::Acquire)
    }
}

/// Number that tells the sessions of this client apart, in the order of their beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SessionNumber(u64);

impl SessionNumber {
    /// Never the number of a session: stands with answers that bring no promise.
    pub(crate) const NONE: Self = Self(0);

    /// Returns the session that begins when this one has ended.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Promises that come with an answer of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    /// The session to which the promises were made.
    pub(crate) session: SessionNumber,
    /// The change before which nothing is missing in the answer.
    pub(crate) change: ChangeNumber,
}

impl Grant {
    /// Returns the grant without its promise, for what must be asked for again.
    pub(crate) fn without_promise(self) -> Self {
        Self { session: SessionNumber::NONE, ..self }
    }
}

/// The session, and what has been broken in it: an answer that was overtaken by a break brings no promise.
#[derive(Debug, Default)]
pub(crate) struct Breaks {
    session: SessionNumber,
    objects: HashMap<VnodeId, ChangeNumber>,
    /// The last break of every object that is not listed, at the latest.
    floor: ChangeNumber,
    newest: ChangeNumber,
}

impl Breaks {
    /// Begins a session: what was promised in earlier ones holds no more. Change numbers may begin anew with it.
    pub(crate) fn begin(&mut self) -> SessionNumber {
        *self = Self { session: self.session.next(), ..Self::default() };
        self.session
    }

    /// Returns the present session.
    pub(crate) fn session(&self) -> SessionNumber {
        self.session
    }

    /// Returns the last break.
    pub(crate) fn newest(&self) -> ChangeNumber {
        self.newest
    }

    /// Notes that promises on an object are broken.
    pub(crate) fn note(&mut self, vnode: VnodeId, change: ChangeNumber) {
        self.newest = self.newest.max(change);
        if self.objects.len() >= OBJECTS_MAX && !self.objects.contains_key(&vnode) {
            return self.note_all(change);
        }
        let last = self.objects.entry(vnode).or_default();
        *last = change.max(*last);
    }

    /// Notes that promises on everything are broken.
    pub(crate) fn note_all(&mut self, change: ChangeNumber) {
        self.newest = self.newest.max(change);
        self.floor = self.newest;
        self.objects.clear();
    }

    /// Whether what an answer says of an object may be trusted.
    pub(crate) fn promises(&self, grant: Grant, vnode: VnodeId) -> bool {
        grant.session != SessionNumber::NONE && !self.overtakes(grant, vnode)
    }

    /// Whether an answer may be from before what has been heard of an object since.
    pub(crate) fn overtakes(&self, grant: Grant, vnode: VnodeId) -> bool {
        let last = self.objects.get(&vnode).copied().unwrap_or_default().max(self.floor);
        let is_earlier = grant.session != self.session && grant.session != SessionNumber::NONE;
        is_earlier || grant.change < last
    }
}

/// Breaks that the kernel was told of lately, for operations that began before and answer after: these may show the
/// state before a break.
#[derive(Debug, Default)]
pub(crate) struct BreakLog {
    told: VecDeque<BrokenObject>,
    /// How many breaks came before the first of `told`.
    before: u64,
}

/// Breaks that an operation has missed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Missed {
    /// These objects, perhaps none.
    Objects(Vec<BrokenObject>),
    /// Anything.
    Anything,
}

impl BreakLog {
    /// Returns how many breaks there have been.
    pub(crate) fn count(&self) -> u64 {
        self.before + self.told.len() as u64
    }

    /// Notes that objects are broken.
    pub(crate) fn note(&mut self, objects: &[BrokenObject]) {
        self.told.extend(objects.iter().cloned());
        let excess = self.told.len().saturating_sub(LOG_MAX);
        self.told.drain(..excess);
        self.before += excess as u64;
    }

    /// Notes that everything is broken.
    pub(crate) fn note_all(&mut self) {
        self.before = self.count() + 1;
        self.told.clear();
    }

    /// Returns what has been broken since there were `count`.
    pub(crate) fn since(&self, count: u64) -> Missed {
        let Some(skip) = count.checked_sub(self.before) else { return Missed::Anything };
        Missed::Objects(self.told.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX)).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use mafs_proto::{Fid, Uniquifier, VolumeId};

    use super::*;

    const LEASE: Duration = Duration::from_secs(60);
    const FILE: VnodeId = VnodeId(5);
    const OTHER: VnodeId = VnodeId(6);

    fn grant(session: SessionNumber, change: u64) -> Grant {
        Grant { session, change: ChangeNumber(change) }
    }

    fn broken(vnode: u64) -> BrokenObject {
        BrokenObject {
            fid: Fid { volume: VolumeId(1), vnode: VnodeId(vnode), unique: Uniquifier(1) },
            names: Vec::new(),
        }
    }

    #[test]
    fn a_lease_runs_from_the_sending_of_what_renewed_it() {
        let (lease, sent) = (Lease::default(), Instant(7));
        assert!(!lease.holds(Instant(0)), "there is none yet");
        lease.renew(sent, LEASE);
        let end = sent + LEASE;
        assert_eq!(lease.remaining(sent), LEASE);
        assert!(lease.holds(Instant(end.0 - 1)) && !lease.holds(end));
        assert_eq!(lease.remaining(end), Duration::ZERO);
    }

    #[test]
    fn an_answer_older_than_the_last_break_of_its_object_brings_no_promise() {
        let mut breaks = Breaks::default();
        let session = breaks.begin();
        assert!(breaks.promises(grant(session, 0), FILE));
        breaks.note(FILE, ChangeNumber(5));
        breaks.note(FILE, ChangeNumber(4));
        assert!(!breaks.promises(grant(session, 4), FILE));
        assert!(breaks.promises(grant(session, 5), FILE));
        assert!(breaks.promises(grant(session, 0), OTHER));
    }

    #[test]
    fn after_a_break_of_everything_only_newer_answers_count() {
        let mut breaks = Breaks::default();
        let session = breaks.begin();
        breaks.note(FILE, ChangeNumber(9));
        breaks.note_all(ChangeNumber(8));
        assert!(!breaks.promises(grant(session, 8), FILE), "its own break was later");
        assert!(!breaks.promises(grant(session, 8), OTHER));
        assert!(breaks.promises(grant(session, 9), OTHER));
    }

    #[test]
    fn an_answer_of_an_earlier_session_brings_no_promise() {
        let mut breaks = Breaks::default();
        let first = breaks.begin();
        breaks.note(FILE, ChangeNumber(9));
        let second = breaks.begin();
        assert!(!breaks.promises(grant(first, 10), FILE));
        assert!(breaks.promises(grant(second, 0), FILE), "its changes may be counted anew");
        assert!(!breaks.promises(grant(SessionNumber::NONE, 10), FILE));
        assert!(!Breaks::default().promises(grant(SessionNumber::NONE, 10), FILE));
    }

    #[test]
    fn breaks_are_bounded_and_none_is_forgotten() {
        let mut breaks = Breaks::default();
        let session = breaks.begin();
        for vnode in 0..3 * OBJECTS_MAX as u64 {
            breaks.note(VnodeId(vnode), ChangeNumber(vnode + 1));
            assert!(breaks.objects.len() <= OBJECTS_MAX);
        }
        for vnode in 0..3 * OBJECTS_MAX as u64 {
            assert!(!breaks.promises(grant(session, vnode), VnodeId(vnode)));
        }
    }

    #[test]
    fn an_operation_is_told_what_was_broken_since_it_began() {
        let mut log = BreakLog::default();
        log.note(&[broken(1)]);
        let began = log.count();
        assert_eq!(log.since(began), Missed::Objects(Vec::new()));
        log.note(&[broken(2), broken(3)]);
        assert_eq!(log.since(began), Missed::Objects(vec![broken(2), broken(3)]));
        assert_eq!(log.since(log.count()), Missed::Objects(Vec::new()));
        log.note_all();
        assert_eq!(log.since(began), Missed::Anything);
        assert_eq!(log.since(log.count()), Missed::Objects(Vec::new()));
    }

    #[test]
    fn what_is_told_again_is_bounded() {
        let mut log = BreakLog::default();
        let began = log.count();
        (0..LOG_MAX as u64).for_each(|vnode| log.note(&[broken(vnode)]));
        assert!(matches!(log.since(began), Missed::Objects(objects) if objects.len() == LOG_MAX));
        log.note(&[broken(0)]);
        assert_eq!(log.since(began), Missed::Anything);
        assert!(log.told.len() <= LOG_MAX);
    }
}
