//! The reserve: what the log gets when strict order would starve it.
//!
//! The log is what waits to be written back: Metadata and Store. It waits for whatever is more urgent, and that may be
//! for ever. Once strict order has let nothing of it pass for [`PATIENCE`] it gets a share of what is sent, until
//! strict order lets it pass again, or all of it has gone (arpc.md, "What it offers").
//!
//! Each end looks at what it sends itself, so the share is that of its direction.

use std::time::Duration;

use mafs_proto::{Class, Instant};

/// The classes of the log, the more urgent first.
pub(super) const LOG: [Class; 2] = [Class::Metadata, Class::Store];
/// How long the log waits for its share.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// The most that is kept for a log which cannot go when it is its turn, for want of credit: a large chunk.
const OWED_BYTES_MAX: i64 = 64 * 1024;

/// Which share of what an end sends its log (Metadata and Store) gets once more urgent classes have kept it waiting for
/// 60 s. In percent of bytes; 5 by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserve(u8);

impl Reserve {
    /// Strict order, however long the log waits.
    pub const NONE: Self = Self(0);
    /// The largest: with more the log would be the more urgent one.
    pub const PERCENT_MAX: u8 = 50;

    /// So many percent; `None` above [`Self::PERCENT_MAX`].
    #[must_use]
    pub fn percent(percent: u8) -> Option<Self> {
        (percent <= Self::PERCENT_MAX).then_some(Self(percent))
    }
}

impl Default for Reserve {
    fn default() -> Self {
        Self(5)
    }
}

/// Whose turn a frame took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// That of its class.
    Strict,
    /// That of the reserve.
    Reserved,
}

/// When it is the log's turn.
#[derive(Debug)]
pub(super) struct LogShare {
    percent: i64,
    /// Since when strict order has let nothing of the log pass; `None`: nothing of it waits.
    starved_since: Option<Instant>,
    /// What it may send at once, in hundredths of bytes; less than nothing: what others may before.
    owed: i64,
}

impl LogShare {
    pub(super) fn new(Reserve(percent): Reserve) -> Self {
        Self { percent: i64::from(percent), starved_since: None, owed: 0 }
    }

    /// Whether the log goes before all others. `waits`: there is something of it.
    pub(super) fn is_its_turn(&mut self, waits: bool, now: Instant) -> bool {
        if !waits {
            (self.starved_since, self.owed) = (None, 0);
        } else if self.starved_since.is_none() {
            self.starved_since = Some(now);
        }
        self.is_starved(now) && self.owed >= 0
    }

    /// Notes what went.
    pub(super) fn sent(&mut self, class: Class, bytes: u64, order: Order, now: Instant) {
        let of_log = LOG.contains(&class);
        if of_log && order == Order::Strict {
            (self.starved_since, self.owed) = (Some(now), 0);
        } else if self.is_starved(now) {
            let bytes = i64::try_from(bytes).unwrap_or(OWED_BYTES_MAX);
            let change = bytes * self.percent - if of_log { 100 * bytes } else { 0 };
            self.owed = (self.owed + change).min(100 * OWED_BYTES_MAX);
        }
    }

    fn is_starved(&self, now: Instant) -> bool {
        self.percent > 0 && self.starved_since.is_some_and(|since| now.since(since) >= PATIENCE)
    }
}
