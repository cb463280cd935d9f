//! The reserve: what the log gets when strict order would starve it.
//!
//! The log is what waits to be written back: Metadata and Store. It waits for whatever is more urgent, and that may be
//! for ever. Once strict order has let less of it pass than its share for [`PATIENCE`] it gets that share of what is
//! sent, until strict order lets as much pass again, or all of it has gone (arpc.md, "What it offers").
//!
//! Each end looks at what it sends itself, so the share is that of its direction.

use std::time::Duration;

use mafs_proto::{Class, Instant};

/// The classes of the log, the more urgent first.
pub(super) const LOG: [Class; 2] = [Class::Metadata, Class::Store];
/// How long the log waits for its share.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// The most that is kept for a log which cannot go when it is its turn, for want of credit, and that is held against
/// one which had the link to itself: a large chunk.
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
    percent: u64,
    /// What strict order has let pass since the log began to wait, or since that was last looked at; `None`: nothing of
    /// the log waits.
    period: Option<Period>,
    /// What a starved log may send at once, in hundredths of bytes; less than nothing: what others may before.
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

    /// Whether the log goes before all others. `waits`: there is something of it.
    pub(super) fn is_its_turn(&mut self, waits: bool, now: Instant) -> bool {
        if !waits {
            (self.period, self.owed) = (None, None);
            return false;
        }
        let period = self.period.get_or_insert(Period { start: now, log_bytes: 0, all_bytes: 0 });
        if now.since(period.start) >= PATIENCE {
            // Not by whether anything passed: a frame in each gap would keep the log from its share for ever.
            let starved = 100 * period.log_bytes < self.percent * period.all_bytes;
            self.owed = starved.then(|| self.owed.unwrap_or(0));
            *period = Period { start: now, log_bytes: 0, all_bytes: 0 };
        }
        self.owed.is_some_and(|owed| owed >= 0)
    }

    /// Notes what went.
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
