//! Credit: how many bytes of each class a sender may send beyond what the receiving application has taken.
//!
//! Bounds the bytes that can pile up before an application that does not read its payloads. Each class has its own
//! credit, so half-sent stores never hold credit that a demanded one needs. Control needs none: its frames are small
//! and whole, and the number of calls is bounded. Data and bodies of calls are charged; bodies of replies are not: they
//! answer calls that this end has chosen to make.
//!
//! A fixed credit would bound the rate of a long link: one credit per round trip. So it grows with the bytes that the
//! application takes in a round trip, as TCP's receive buffer does (Fisk and Feng, "Dynamic Right-Sizing", 2001).

use std::time::Duration;

use mafs_proto::{Class, Instant};

use super::Violation;
use super::frame::CONTENT_OVERHEAD_BYTES;

/// The credit of a class that bytes hold from when they are sent until the application takes them. A constant is added
/// so that many tiny ones cannot cost much memory either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Charge {
    /// The class of the frame they came in.
    pub(crate) class: Class,
    /// Bytes of the credit.
    pub(crate) bytes: u64,
}

impl Charge {
    /// Returns the charge for `len` bytes of body or of data; no bytes cost nothing.
    pub(crate) fn of(class: Class, len: u64) -> Self {
        let free = len == 0 || class == Class::Control;
        Self { class, bytes: if free { 0 } else { len + CONTENT_OVERHEAD_BYTES } }
    }
}

/// The credit that one end has left to send.
#[derive(Debug)]
pub(crate) struct Allowance {
    left: [u64; 5],
    limit: [u64; 5],
}

impl Allowance {
    pub(crate) fn new(initial_bytes: u64) -> Self {
        Self { left: [initial_bytes; 5], limit: [initial_bytes; 5] }
    }

    /// Whether these bytes may go now. Worth asking again after [`Self::raise`].
    pub(crate) fn allows(&self, charge: Charge) -> bool {
        charge.bytes <= self.left[charge.class.index()]
    }

    /// Notes that bytes went.
    pub(crate) fn spend(&mut self, charge: Charge) {
        let left = &mut self.left[charge.class.index()];
        *left = left.saturating_sub(charge.bytes);
    }

    /// Adopts a limit from the peer; one below the last is stale.
    pub(crate) fn raise(&mut self, class: Class, limit: u64) {
        let index = class.index();
        let more = limit.saturating_sub(self.limit[index]);
        self.limit[index] += more;
        self.left[index] += more;
    }
}

/// The credit that one end grants to the other.
#[derive(Debug)]
pub(crate) struct Grants {
    credit_bytes_max: u64,
    classes: [Grant; 5],
}

/// The credit that one end grants to the other in one class.
#[derive(Clone, Copy, Debug)]
struct Grant {
    credit_bytes: u64,
    received: u64,
    taken: u64,
    granted: u64,
    /// When the credit was looked at last, and how much had been taken then.
    looked: (Instant, u64),
}

impl Grants {
    /// Grants a credit of `credit_bytes` at first, which grows to `credit_bytes_max`.
    pub(crate) fn new(credit_bytes: u64, credit_bytes_max: u64, now: Instant) -> Self {
        let grant = Grant { credit_bytes, received: 0, taken: 0, granted: credit_bytes, looked: (now, 0) };
        Self { credit_bytes_max, classes: [grant; 5] }
    }

    /// Counts bytes that came.
    pub(crate) fn receive(&mut self, charge: Charge) -> Result<(), Violation> {
        let grant = &mut self.classes[charge.class.index()];
        grant.received += charge.bytes;
        if grant.received > grant.granted {
            return Err(Violation::CreditOverrun(charge.class));
        }
        Ok(())
    }

    /// Notes that the application has taken bytes, or that they were thrown away.
    pub(crate) fn consume(&mut self, charge: Charge) {
        let grant = &mut self.classes[charge.class.index()];
        grant.taken = (grant.taken + charge.bytes).min(grant.received);
    }

    /// Returns the next limit to tell the peer: when a quarter of the credit has come back, so that most frames need
    /// none. `rtt` is the link's, if known.
    pub(crate) fn poll(&mut self, rtt: Option<Duration>, now: Instant) -> Option<(Class, u64)> {
        let class = Class::ALL.into_iter().find(|class| self.classes[class.index()].is_due())?;
        let grant = &mut self.classes[class.index()];
        if let Some(rtt) = rtt {
            grant.grow(rtt, self.credit_bytes_max, now);
        }
        grant.granted = grant.taken + grant.credit_bytes;
        Some((class, grant.granted))
    }
}

impl Grant {
    fn is_due(&self) -> bool {
        self.taken + self.credit_bytes - self.granted >= self.credit_bytes / 4
    }

    /// Doubles the credit if half of it is taken in a round trip.
    fn grow(&mut self, rtt: Duration, max: u64, now: Instant) {
        let (since, before) = self.looked;
        let elapsed = now.since(since);
        if elapsed < rtt {
            return;
        }
        let taken = u128::from(self.taken - before) * rtt.as_nanos() / elapsed.as_nanos().max(1);
        if taken >= u128::from(self.credit_bytes / 2) {
            self.credit_bytes = (2 * self.credit_bytes).min(max);
        }
        self.looked = (now, self.taken);
    }
}
