//! Limits: how much of a class may go in a second because the user at either end says so.
//!
//! Only content counts: the bytes of bodies and payloads. Acknowledgements and signs of life are no content and never
//! wait.

use std::str::FromStr;
use std::time::Duration;

use mafs_proto::{Class, Instant, parse_size};

use super::estimator::bytes_in;

/// A frame takes at most so much of a limit's time, and a delay up to [`LATE_MAX`] is made up for: timers are not
/// exact, and the window has pauses. So in 10 s at most 1.5 % more payload goes than the limit says; a body is not cut.
const CHUNK_TIME: Duration = Duration::from_millis(50);
const LATE_MAX: Duration = Duration::from_millis(100);

/// Bytes per second: as a limit, of bodies and payloads. Read from texts such as `64k` or `2M`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rate(u64);

impl Rate {
    /// The least rate, in bytes per second: with less a frame would be little more than its header.
    pub const BYTES_PER_S_MIN: u64 = 1024;

    /// Makes a rate of so many bytes per second; `None` below [`Self::BYTES_PER_S_MIN`].
    #[must_use]
    pub const fn bytes_per_s(bytes: u64) -> Option<Self> {
        if bytes < Self::BYTES_PER_S_MIN { None } else { Some(Self(bytes)) }
    }

    /// Returns the rate in bytes per second.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns how long so many bytes take.
    pub(super) fn time_of(self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The error for a text that is no [`Rate`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no rate: bytes per second are wanted, from 1k on, such as 64k or 2M")]
pub struct InvalidRate(String);

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, InvalidRate> {
        let rate = parse_size(text).ok().and_then(Self::bytes_per_s);
        rate.ok_or_else(|| InvalidRate(text.to_owned()))
    }
}

/// The limits of a connection, by [`Class::index`]: those that this end wants, and those that the other wants.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    own: [Option<Rate>; 5],
    peers: [Option<Rate>; 5],
    buckets: [Option<Bucket>; 5],
}

/// A token bucket, told as time: the bytes that have gone take until `free_at`.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: Rate,
    free_at: Instant,
}

impl Buckets {
    /// Adopts the limits that this end wants. Returns those that the other end has not been told yet.
    pub(super) fn limit(&mut self, mut rates: [Option<Rate>; 5], now: Instant) -> Vec<(Class, Option<Rate>)> {
        rates[Class::Control.index()] = None;
        let before = std::mem::replace(&mut self.own, rates);
        let wanted = Class::ALL.into_iter().zip(rates);
        let changed: Vec<_> = wanted.filter(|(class, rate)| before[class.index()] != *rate).collect();
        changed.iter().for_each(|(class, _)| self.adopt(*class, now));
        changed
    }

    /// Adopts a limit that the other end wants.
    pub(super) fn limit_for_peer(&mut self, class: Class, rate: Option<Rate>, now: Instant) {
        self.peers[class.index()] = rate;
        self.adopt(class, now);
    }

    /// Applies the smaller limit of a class. A new one counts from now on.
    fn adopt(&mut self, class: Class, now: Instant) {
        let index = class.index();
        let rate = [self.own[index], self.peers[index]].into_iter().flatten().min();
        let bucket = &mut self.buckets[index];
        if bucket.map(|bucket| bucket.rate) != rate {
            *bucket = rate.map(|rate| Bucket { rate, free_at: now });
        }
    }

    /// Returns the most body and payload in one frame of a class.
    pub(super) fn chunk_bytes(&self, class: Class) -> u64 {
        self.buckets[class.index()].map_or(u64::MAX, |bucket| bytes_in(bucket.rate.get(), CHUNK_TIME))
    }

    /// Returns until when content of a class has to wait; `None` if it need not.
    pub(super) fn waits_until(&self, class: Class, now: Instant) -> Option<Instant> {
        self.buckets[class.index()].map(|bucket| bucket.free_at).filter(|at| *at > now)
    }

    /// Notes that content went.
    pub(super) fn sent(&mut self, class: Class, bytes: u64, now: Instant) {
        if let Some(bucket) = &mut self.buckets[class.index()] {
            let late = now.since(bucket.free_at).saturating_sub(LATE_MAX);
            bucket.free_at = bucket.free_at + late + bucket.rate.time_of(bytes);
        }
    }
}
