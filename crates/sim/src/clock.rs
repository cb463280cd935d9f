//! Virtual time: tokio's paused clock as mafs sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use mafs_proto::{Clock, Instant, Timestamp};
use tokio::time;

/// A clock that stands still while anything can run, and jumps to the next timer when nothing can.
#[derive(Clone, Copy, Debug)]
pub struct VirtualClock {
    start: time::Instant,
}

/// The clock of one machine, beside the world's: it may go on at another rate, and show another time of day. Timers are
/// the world's.
#[derive(Clone, Debug)]
pub(crate) struct MachineClock {
    world: VirtualClock,
    rate_ppm: u32,
    wall_ahead_s: Arc<AtomicI64>,
}

/// The rate of the world's clock.
pub(crate) const RIGHT_PPM: u32 = 1_000_000;

/// Virtual time begins on 2020-09-13.
const WALL_START_SECONDS: i64 = 1_600_000_000;

impl VirtualClock {
    /// A clock that begins now. Must be called in a paused tokio runtime.
    #[must_use]
    pub fn start() -> Self {
        Self { start: time::Instant::now() }
    }

    /// Makes a clock that goes on by so many millionths of the world's time, and is ahead by the seconds of
    /// `wall_ahead_s`.
    pub(crate) fn of_machine(self, rate_ppm: u32, wall_ahead_s: Arc<AtomicI64>) -> MachineClock {
        MachineClock { world: self, rate_ppm, wall_ahead_s }
    }

    fn elapsed(self) -> Duration {
        time::Instant::now() - self.start
    }
}

impl MachineClock {
    fn elapsed(&self) -> Duration {
        self.world.elapsed() * self.rate_ppm / RIGHT_PPM
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        // Not 0, which looks like "never" in a dump.
        Instant(1) + self.elapsed()
    }

    fn wall(&self) -> Timestamp {
        time_of_day(self.elapsed(), 0)
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Instant {
        Instant(1) + self.elapsed()
    }

    fn wall(&self) -> Timestamp {
        time_of_day(self.elapsed(), self.wall_ahead_s.load(Ordering::Relaxed))
    }
}

fn time_of_day(elapsed: Duration, ahead_s: i64) -> Timestamp {
    let start = Duration::from_secs(WALL_START_SECONDS.saturating_add(ahead_s).unsigned_abs());
    (std::time::UNIX_EPOCH + start + elapsed).into()
}
