//! Arrival: which bytes of a file's content are in its container, and which are on their way.
//!
//! A fetch brings one version, range by range. A fetch is *void* from the moment on at which the container is to hold
//! something else: another fetch, what programs have cut the file to, another version that is turned in. Each step of a
//! fetch names it, and a void one is told nothing and changes nothing; code that asks and writes under one lock writes
//! into the container of its own version only.
//!
//! The bytes that an ended fetch has brought are *left* for the next one of the same version, until the container is to
//! hold something else. A fetch *in place*, over a version that the kernel reads, leaves nothing: nobody knows which
//! bytes are whose.

mod stall;

use std::mem;
use std::ops::Range;

use mafs_durable::RangeSet;
use mafs_proto::DataVersion;

use self::stall::Stall;
pub(crate) use self::stall::Stalls;

/// A reader further than this ahead of what arrives gets a fetch of its own place; nearer, waiting is quicker than
/// asking.
const JUMP_BYTES: u64 = 1 << 20;
/// Less than this is sooner fetched again than noted.
const NOTED_BYTES_MIN: u64 = 64 << 10;

/// One fetch of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fetch {
    turn: Turn,
    version: DataVersion,
    size: u64,
    in_place: bool,
}

impl Fetch {
    /// Returns the version that it brings.
    pub(crate) fn version(self) -> DataVersion {
        self.version
    }

    /// Returns how many bytes that version has.
    pub(crate) fn size(self) -> u64 {
        self.size
    }

    /// Whether the container holds another version, which the kernel is reading.
    pub(crate) fn is_in_place(self) -> bool {
        self.in_place
    }
}

/// Number that tells one thing that the container holds from the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Turn(u64);

/// The bytes that are here of a version that does not come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) version: DataVersion,
    pub(crate) present: RangeSet,
}

/// Reason why a content is not here and does not come either.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NotHere<E> {
    /// Nobody has asked for it.
    NotAsked,
    /// Somebody has asked in vain.
    Failed(E),
}

/// Extent to which a content is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Presence {
    Whole,
    /// So many bytes are here.
    Partly(u64),
    /// Nothing is here that is known of.
    Absent,
}

enum State<E, H> {
    /// Nobody has asked for it.
    Missing {
        part: Option<Part>,
    },
    /// A fetch brings it, for as long as that takes.
    Coming(Coming<H>),
    Whole,
    /// The fetch failed; the next open tries again.
    Failed {
        why: E,
        part: Option<Part>,
    },
}

struct Coming<H> {
    fetch: Fetch,
    present: RangeSet,
    /// Whether the server has begun to send.
    answered: bool,
    /// Byte that somebody waits for, far from where the fetch is.
    wanted: Option<u64>,
    /// Handle that urges on what brings the content.
    handle: Option<H>,
}

/// The bytes that have arrived of one file. `E` says why something does not come, `H` urges a fetch on.
pub(crate) struct Arrival<E, H> {
    state: State<E, H>,
    turn: Turn,
    /// Whether the index names what is here in part.
    noted: bool,
    stall: Stall<E>,
}

impl<E: Clone, H> Arrival<E, H> {
    fn new(state: State<E, H>, noted: bool) -> Self {
        Self { state, turn: Turn(0), noted, stall: Stall::default() }
    }

    /// Makes the arrival of a file whose content is here.
    pub(crate) fn whole() -> Self {
        Self::new(State::Whole, false)
    }

    /// Makes the arrival of a file of which nothing is here.
    pub(crate) fn missing() -> Self {
        Self::new(State::Missing { part: None }, false)
    }

    /// Makes the arrival of a file of which this is here, as the index says.
    pub(crate) fn left_before(part: Part) -> Self {
        Self::new(State::Missing { part: Some(part) }, true)
    }

    /// Begins a fetch, which goes on from a part of the same version if the container holds that still. Those before
    /// are void.
    pub(crate) fn begin(&mut self, (version, size): (DataVersion, u64), in_place: bool, part: Option<Part>) -> Fetch {
        self.next_turn();
        let fetch = Fetch { turn: self.turn, version, size, in_place };
        let present = part.map_or_else(RangeSet::default, |part| to_go_on(part.present, size));
        self.stall.end();
        self.state = State::Coming(Coming { fetch, present, answered: false, wanted: None, handle: None });
        fetch
    }

    /// Notes that the server is asked, with a handle on the question: it is worth waiting again.
    pub(crate) fn asked(&mut self, fetch: Fetch, handle: H) {
        if let Some(coming) = self.coming_mut(fetch) {
            coming.handle = Some(handle);
            self.stall.end();
        }
    }

    /// Notes that the server has begun to send. `false`: the fetch is void.
    pub(crate) fn answered(&mut self, fetch: Fetch) -> bool {
        let coming = self.coming_mut(fetch);
        coming.map(|coming| coming.answered = true).is_some()
    }

    /// Notes that these bytes are in the container.
    pub(crate) fn came(&mut self, fetch: Fetch, range: Range<u64>) {
        if let Some(coming) = self.coming_mut(fetch) {
            coming.present.insert(range);
        }
    }

    /// Notes that all is here, as it was sent.
    pub(crate) fn complete(&mut self, fetch: Fetch) {
        if self.goes_on(fetch) {
            (self.state, self.noted) = (State::Whole, false);
        }
    }

    /// Ends a fetch before all has come. Its bytes are left for the next one if that `is_useful`. Returns whether that
    /// was the fetch under way and nothing is left of it.
    pub(crate) fn fail(&mut self, fetch: Fetch, why: E, is_useful: bool) -> bool {
        let ends = self.goes_on(fetch);
        if ends {
            self.give_up(why, is_useful);
        }
        ends && self.part().is_none()
    }

    /// Ends the fetch that is under way, whichever that is. Its bytes are left.
    pub(crate) fn end(&mut self, why: E) {
        self.give_up(why, true);
    }

    fn give_up(&mut self, why: E, is_useful: bool) {
        if let State::Coming(Coming { fetch, present, .. }) = &mut self.state {
            let part = Part { version: fetch.version, present: mem::take(present) };
            let part = (is_useful && !fetch.in_place).then_some(part);
            self.state = State::Failed { why, part };
        }
    }

    /// Lets callers that wait do so in vain. `lasts`: so do later ones, until the server is asked again.
    pub(crate) fn stall(&mut self, why: E, lasts: bool) {
        self.stall.begin(why, lasts);
    }

    /// Notes that programs have set the size: what is in the container is the content, and nothing else is to come.
    pub(crate) fn cut(&mut self) {
        self.next_turn();
        self.state = State::Whole;
    }

    /// Notes that the container was turned over to another version, or may hold something of both.
    pub(crate) fn turned_over(&mut self, failed: Option<E>) {
        self.next_turn();
        self.state = failed.map_or(State::Whole, |why| State::Failed { why, part: None });
    }

    /// Notes that what is in the container is no content of the file any more.
    pub(crate) fn lose(&mut self) {
        self.state = State::Missing { part: None };
    }

    fn next_turn(&mut self) {
        self.turn = Turn(self.turn.0 + 1);
    }

    /// Takes the part of this version, for a fetch to go on from. A part of another is of no use.
    pub(crate) fn take_part(&mut self, version: DataVersion) -> Option<Part> {
        let part = match &mut self.state {
            State::Missing { part } | State::Failed { part, .. } => part.take(),
            State::Coming(_) | State::Whole => None,
        };
        part.filter(|part| part.version == version)
    }

    /// Forgets what is left: the container is about to hold something else. Returns whether the index names it.
    pub(crate) fn forget_part(&mut self) -> bool {
        if let State::Missing { part } | State::Failed { part, .. } = &mut self.state {
            *part = None;
        }
        mem::take(&mut self.noted)
    }

    /// Says what the index is told of a fetch that goes on, so that it outlasts this life of the client.
    pub(crate) fn note(&mut self, fetch: Fetch) -> Option<Part> {
        let coming = self.coming(fetch).filter(|_| !fetch.in_place)?;
        let part = is_worth_noting(&coming.present).then(|| coming.part())?;
        self.noted = true;
        Some(part)
    }

    /// Names the part of this version that a later life should find.
    pub(crate) fn worth_keeping(&self, version: DataVersion) -> Option<Part> {
        let part = self.part().filter(|part| part.version == version);
        part.filter(|part| is_worth_noting(&part.present)).cloned()
    }

    /// Whether the index names what is here in part.
    pub(crate) fn is_noted(&self) -> bool {
        self.noted
    }

    /// Whether this fetch goes on.
    pub(crate) fn goes_on(&self, fetch: Fetch) -> bool {
        self.coming(fetch).is_some()
    }

    /// Whether this fetch goes on and something is missing.
    pub(crate) fn is_incomplete(&self, fetch: Fetch) -> bool {
        self.coming(fetch).is_some_and(|coming| coming.present.first_gap(0, fetch.size).is_some())
    }

    /// Returns the next bytes to ask for: where a reader waits, else the first that are missing. `None`: all is here,
    /// or the fetch is void.
    pub(crate) fn next_gap(&mut self, fetch: Fetch) -> Option<Range<u64>> {
        let coming = self.coming_mut(fetch)?;
        let wanted = coming.wanted.take().unwrap_or(0);
        coming.present.first_gap(wanted, fetch.size).or_else(|| coming.present.first_gap(0, fetch.size))
    }

    /// Whether a fetch that has come to `offset` had better go on elsewhere: a reader waits at a place that it does not
    /// reach soon, or it is void.
    pub(crate) fn leads_elsewhere(&mut self, fetch: Fetch, offset: u64) -> bool {
        let Some(coming) = self.coming_mut(fetch) else { return true };
        // The byte may have come since: the reader has not looked yet.
        let is_far = |wanted: &u64| {
            let missing = !coming.present.contains(*wanted..*wanted + 1);
            missing && (*wanted < offset || *wanted > offset + JUMP_BYTES)
        };
        coming.wanted = coming.wanted.filter(is_far);
        coming.wanted.is_some()
    }

    /// Returns the handle that urges on what brings the content, if something does.
    pub(crate) fn handle(&mut self) -> Option<&mut H> {
        match &mut self.state {
            State::Coming(coming) => coming.handle.as_mut(),
            State::Missing { .. } | State::Whole | State::Failed { .. } => None,
        }
    }

    /// Tells which thing the container holds.
    pub(crate) fn turn(&self) -> Turn {
        self.turn
    }

    /// Whether all of the content is here.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.state, State::Whole)
    }

    /// Whether it is being fetched.
    pub(crate) fn is_coming(&self) -> bool {
        matches!(self.state, State::Coming(_))
    }

    /// Whether it is neither here nor on its way.
    pub(crate) fn is_absent(&self) -> bool {
        !self.is_whole() && !self.is_coming()
    }

    /// Returns how much of this version is here.
    pub(crate) fn presence(&self, version: DataVersion) -> Presence {
        match &self.state {
            State::Whole => Presence::Whole,
            State::Coming(coming) => Presence::Partly(coming.present.bytes()),
            State::Missing { part } | State::Failed { part, .. } => {
                let part = part.as_ref().filter(|part| part.version == version);
                part.map_or(Presence::Absent, |part| Presence::Partly(part.present.bytes()))
            }
        }
    }

    /// Says to somebody who waits for all of it whether it is here; `None`: it is on its way.
    pub(crate) fn wholly(&self) -> Option<Result<(), NotHere<E>>> {
        match &self.state {
            State::Coming(_) => None,
            _ => Some(self.settled()),
        }
    }

    /// Says to somebody who waits for these bytes whether they are here; `None`: they are on their way, and wanted.
    pub(crate) fn want(&mut self, range: Range<u64>) -> Option<Result<(), NotHere<E>>> {
        match &mut self.state {
            State::Coming(coming) => match coming.present.first_gap(range.start, range.end) {
                Some(gap) => {
                    coming.wanted = Some(gap.start);
                    None
                }
                None => Some(Ok(())),
            },
            _ => Some(self.settled()),
        }
    }

    /// Says to somebody who waits for the server to begin whether it has; `None`: not yet.
    pub(crate) fn begun(&self) -> Option<Result<(), E>> {
        match &self.state {
            State::Coming(coming) => (coming.answered && !self.stall.lasts()).then_some(Ok(())),
            State::Failed { why, .. } => Some(Err(why.clone())),
            State::Missing { .. } | State::Whole => Some(Ok(())),
        }
    }

    /// Says what is known of a content that is not on its way.
    fn settled(&self) -> Result<(), NotHere<E>> {
        match &self.state {
            State::Whole => Ok(()),
            State::Failed { why, .. } => Err(NotHere::Failed(why.clone())),
            State::Missing { .. } | State::Coming(_) => Err(NotHere::NotAsked),
        }
    }

    /// Returns how often waiting was in vain so far, for [`Self::stalled_since`].
    pub(crate) fn stalls(&self) -> Stalls {
        self.stall.times()
    }

    /// Returns why it is in vain to wait, for somebody who has done so since then.
    pub(crate) fn stalled_since(&self, before: Stalls) -> Option<E> {
        self.stall.since(before)
    }

    /// Whether nobody need begin to wait for what is on its way.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stall.lasts() && self.is_coming()
    }

    /// Whether nothing has come, and will not before those who wanted it have gone.
    pub(crate) fn is_in_vain(&self) -> bool {
        let nothing = matches!(&self.state, State::Coming(coming) if coming.present.bytes() == 0);
        nothing && self.stall.lasts()
    }

    fn coming(&self, fetch: Fetch) -> Option<&Coming<H>> {
        match &self.state {
            State::Coming(coming) if coming.fetch == fetch => Some(coming),
            _ => None,
        }
    }

    fn coming_mut(&mut self, fetch: Fetch) -> Option<&mut Coming<H>> {
        match &mut self.state {
            State::Coming(coming) if coming.fetch == fetch => Some(coming),
            _ => None,
        }
    }

    fn part(&self) -> Option<&Part> {
        match &self.state {
            State::Missing { part } | State::Failed { part, .. } => part.as_ref(),
            State::Coming(_) | State::Whole => None,
        }
    }
}

impl<H> Coming<H> {
    fn part(&self) -> Part {
        Part { version: self.fetch.version, present: self.present.clone() }
    }
}

fn is_worth_noting(present: &RangeSet) -> bool {
    present.bytes() >= NOTED_BYTES_MIN
}

/// Returns the bytes of an earlier fetch that count. If they are all, all but the last byte: what the content is
/// compared with comes with an answer, so something has to be asked for.
fn to_go_on(mut present: RangeSet, size: u64) -> RangeSet {
    if present.first_gap(0, size).is_none() {
        present.remove(size.saturating_sub(1)..size);
    }
    present
}

#[cfg(test)]
mod tests;
