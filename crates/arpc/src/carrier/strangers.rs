//! Strangers: peers that connect and do not speak the protocol.
//!
//! Each is worth a line, because mostly a user has mistaken the port; but a scanner must not fill the log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// At most one line in this time; those that came meanwhile are counted in the next.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// The strangers of one listener, told of in the log.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    last: Option<Instant>,
    untold: u64,
}

impl Strangers {
    pub(super) fn tell(&self, peer: &str, why: &str) {
        if let Some(untold) = self.told.lock().unwrap_or_else(PoisonError::into_inner).count(Instant::now()) {
            let others = if untold > 0 { format!(", as were {untold} before it") } else { String::new() };
            tracing::warn!("a connection from {peer} was ended{others}: it does not speak mafs ({why})");
        }
    }
}

impl Told {
    /// Counts a stranger. Returns how many were not told of before, if it is time for a line.
    fn count(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < TELL_EVERY) {
            self.untold += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_strangers_is_one_line_and_then_a_number() {
        let (mut told, start) = (Told::default(), Instant::now());
        assert_eq!(told.count(start), Some(0));
        for _ in 0..1000 {
            assert_eq!(told.count(start + TELL_EVERY / 2), None);
        }
        assert_eq!(told.count(start + TELL_EVERY), Some(1000));
    }
}
