//! Time: the clock that timers use, and the wall-clock times of files.

/// A point on a clock that only moves forward and runs through suspend, in nanoseconds since an arbitrary start.
///
/// Shells read it from `CLOCK_BOOTTIME`; the simulator from its virtual clock. Pure code gets it as an argument.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// Returns the time since `earlier`, zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<std::time::Duration> for Instant {
    type Output = Self;

    fn add(self, duration: std::time::Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The source of time for shells: the one seam between real and virtual time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the present time, on the clock of timers.
    fn now(&self) -> Instant;
    /// Returns the present wall-clock time, for the times of files.
    fn wall(&self) -> Timestamp;
}

/// Wall-clock time of a file: seconds since 1970 (negative before) and nanoseconds below 1,000,000,000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    seconds: i64,
    nanos: u32,
}

impl Timestamp {
    /// Makes a time; `None` if `nanos` is not below 1,000,000,000.
    #[must_use]
    pub const fn new(seconds: i64, nanos: u32) -> Option<Self> {
        if nanos < 1_000_000_000 { Some(Self { seconds, nanos }) } else { None }
    }

    /// Returns whole seconds since 1970, rounded down.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.seconds
    }

    /// Returns nanoseconds after [`Self::seconds`].
    #[must_use]
    pub const fn nanos(self) -> u32 {
        self.nanos
    }
}

impl From<std::time::SystemTime> for Timestamp {
    fn from(time: std::time::SystemTime) -> Self {
        let saturating = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
        match time.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => Self { seconds: saturating(after.as_secs()), nanos: after.subsec_nanos() },
            Err(error) => {
                let before = error.duration();
                match before.subsec_nanos() {
                    0 => Self { seconds: -saturating(before.as_secs()), nanos: 0 },
                    nanos => Self { seconds: -saturating(before.as_secs()) - 1, nanos: 1_000_000_000 - nanos },
                }
            }
        }
    }
}

impl From<Timestamp> for std::time::SystemTime {
    /// Converts a time; times beyond the platform's range become 1970.
    fn from(time: Timestamp) -> Self {
        use std::time::{Duration, UNIX_EPOCH};
        let nanos = Duration::from_nanos(u64::from(time.nanos));
        let whole = Duration::from_secs(time.seconds.unsigned_abs());
        let base = if time.seconds >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
        base.and_then(|base| base.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let time = UNIX_EPOCH - Duration::new(3, 250_000_000);
        let stamp = Timestamp::from(time);
        assert_eq!((stamp.seconds(), stamp.nanos()), (-4, 750_000_000));
        assert_eq!(SystemTime::from(stamp), time);
    }
}
