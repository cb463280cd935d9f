//! Upload: how long sending a content will take, from how long others took.

use std::time::Duration;

/// Rate before anything was sent: the slow end of what people call broadband.
const FIRST_BYTES_PER_S: f64 = 1e6;
/// Smallest content that counts: smaller ones say more of the round trip than of the rate.
const SAMPLE_BYTES_MIN: u64 = 16 * 1024;
/// Weight of a new sample; four or five of them outweigh the past.
const WEIGHT: f64 = 0.2;

/// The rate at which contents have reached the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UploadRate {
    bytes_per_s: f64,
}

impl Default for UploadRate {
    fn default() -> Self {
        Self { bytes_per_s: FIRST_BYTES_PER_S }
    }
}

impl UploadRate {
    /// Notes that a content of this size took so long.
    pub(crate) fn observe(&mut self, bytes: u64, took: Duration) {
        let seconds = took.as_secs_f64();
        if bytes >= SAMPLE_BYTES_MIN && seconds > 0.0 {
            self.bytes_per_s += WEIGHT * (to_float(bytes) / seconds - self.bytes_per_s);
        }
    }

    /// Returns how long a content of this size will take, without the round trip.
    pub(crate) fn expected(&self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(to_float(bytes) / self.bytes_per_s).unwrap_or(Duration::MAX)
    }
}

#[allow(clippy::cast_precision_loss, reason = "an estimate")]
fn to_float(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_a_change_of_the_rate() {
        let mut rate = UploadRate::default();
        for _ in 0..20 {
            rate.observe(1_000_000, Duration::from_secs(10));
        }
        let slow = rate.expected(100_000).as_secs_f64();
        assert!((0.8..1.2).contains(&slow), "{slow}");
        for _ in 0..20 {
            rate.observe(1_000_000, Duration::from_millis(10));
        }
        assert!(rate.expected(100_000) < Duration::from_millis(2));
    }

    #[test]
    fn small_contents_and_no_time_at_all_teach_nothing() {
        let mut rate = UploadRate::default();
        rate.observe(10, Duration::from_secs(100));
        rate.observe(1 << 20, Duration::ZERO);
        assert_eq!(rate.expected(1_000_000), Duration::from_secs(1));
    }
}
