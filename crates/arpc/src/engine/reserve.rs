//! The reserve: the share that the log gets when strict order would starve it.
//!
//! The log holds the changes that wait to be written back: Metadata and Store. They wait for all that is more urgent,
//! and this may be for ever. Once strict order has let less of the log pass than its share for [`PATIENCE`], the log
//! gets this share of the sent bytes, until strict order lets as much pass again, or all of the log has gone (arpc.md,
//! "What it offers").
//!
//! Each end looks only at its own frames, so the share is one of its own direction.

use std::time::Duration;

use mafs_proto::{Class, Instant};

/// The classes of the log, the more urgent first.
pub(super) const LOG: [Class; 2] = [Class::Metadata, Class::Store];
/// How long the log waits for its share.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// The most that is kept for a log that cannot go in its turn, for want of credit, and that is held against a log that
/// had the link to itself: a large chunk.
const OWED_BYTES_MAX: i64 = 64 * 1024;

/// The share of an end's sent bytes that its log (Metadata and Store) gets once more urgent classes have kept it
/// waiting for 60 s. In percent of bytes; 5 by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserve(u8);

impl Reserve {
    /// Strict order, however long the log waits.
    pub const NONE: Self = Self(0);
    /// The largest reserve: with more the log would be the more urgent one.
    pub const PERCENT_MAX: u8 = 50;

    /// Makes a reserve of so many percent; `None` above [`Self::PERCENT_MAX`].
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

/// The order by which a frame got its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// The strict order of classes.
    Strict,
    /// The reserve.
    Reserved,
}

/// The state that decides when it is the log's turn.
#[derive(Debug)]
pub(super) struct LogShare {
    percent: u64,
    /// Bytes that have passed since the log began to wait, or since this was last looked at; `None`: nothing of the log
    /// waits.
    period: Option<Period>,
    /// The amount that a starved log may send at once, in hundredths of bytes; a negative one: the amount that others
    /// may send before.
    owed: Option<i64>,
}

#[derive(Debug)]
struct Period {
    start: Instant,
    log_bytes: u64,
    all_bytes: u64,
}

impl LogShare {
    pub(super) fn new(Reserve(percent): Reserve) -> Self {
        Self { percent: u64::from(percent), period: None, owed: None }
    }

    /// Returns whether the log goes before all others. `waits`: something of the log waits.
    pub(super) fn is_its_turn(&mut self, waits: bool, now: Instant) -> bool {
        if !waits {
            (self.period, self.owed) = (None, None);
            return false;
        }
        let period = self.period.get_or_insert(Period { start: now, log_bytes: 0, all_bytes: 0 });
        if now.since(period.start) >= PATIENCE {
            // The test is not whether anything passed: a frame in each gap would keep the log from its share for ever.
            let starved = 100 * period.log_bytes < self.percent * period.all_bytes;
            self.owed = starved.then(|| self.owed.unwrap_or(0));
            *period = Period { start: now, log_bytes: 0, all_bytes: 0 };
        }
        self.owed.is_some_and(|owed| owed >= 0)
    }

    /// Notes that a frame went.
    pub(super) fn sent(&mut self, class: Class, bytes: u64, order: Order) {
        let of_log = LOG.contains(&class);
        if let Some(period) = &mut self.period {
            period.all_bytes += bytes;
            period.log_bytes += if of_log && order == Order::Strict { bytes } else { 0 };
        }
        if let Some(owed) = &mut self.owed {
            let share = if of_log { i128::from(self.percent) - 100 } else { i128::from(self.percent) };
            let bounds = (-100 * OWED_BYTES_MAX, 100 * OWED_BYTES_MAX);
            let after = i128::from(*owed) + i128::from(bytes) * share;
            *owed = i64::try_from(after).unwrap_or(bounds.1).clamp(bounds.0, bounds.1);
        }
    }
}
