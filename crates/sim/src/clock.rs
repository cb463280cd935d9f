//! Virtual time: tokio's paused clock as mafs sees it.

use std::time::Duration;

use mafs_proto::{Clock, Instant, Timestamp};
use tokio::time;

/// A clock that stands still while anything can run, and jumps to the next timer when nothing can.
#[derive(Clone, Copy, Debug)]
pub struct VirtualClock {
    start: time::Instant,
    rate_ppm: u32,
}

/// The rate of the world's clock.
pub(crate) const RIGHT_PPM: u32 = 1_000_000;

/// Virtual time begins on 2020-09-13.
const WALL_START_SECONDS: u64 = 1_600_000_000;

impl VirtualClock {
    /// A clock that begins now. Must be called in a paused tokio runtime.
    #[must_use]
    pub fn start() -> Self {
        Self { start: time::Instant::now(), rate_ppm: RIGHT_PPM }
    }

    /// One that began with this one and goes on by so many millionths of the world's time. Timers are the world's.
    #[must_use]
    pub(crate) fn at_rate(self, rate_ppm: u32) -> Self {
        Self { rate_ppm, ..self }
    }

    fn elapsed(&self) -> Duration {
        (time::Instant::now() - self.start) * self.rate_ppm / RIGHT_PPM
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        // Not 0, which looks like "never" in a dump.
        Instant(1) + self.elapsed()
    }

    fn wall(&self) -> Timestamp {
        (std::time::UNIX_EPOCH + Duration::from_secs(WALL_START_SECONDS) + self.elapsed()).into()
    }
}
