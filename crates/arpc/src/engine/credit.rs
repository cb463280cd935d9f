//! Credit: how many bytes of each class a sender may send beyond what the receiving application has taken.
//!
//! Bounds what an application that does not read its payloads can make arrive. Each class has its own, so half-sent
//! stores never hold what a demanded one needs. Control needs none: its frames are small and whole, and the number of
//! calls is bounded. Charged are data, and bodies of calls; bodies of replies answer calls that this end has chosen to
//! make.

use mafs_proto::Class;

use super::Violation;
use super::frame::CONTENT_OVERHEAD_BYTES;

/// What bytes hold of the credit of their class from when they are sent until the application takes them. A constant is
/// added so that many tiny ones cannot cost much memory either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Charge {
    /// The class of the frame they came in.
    pub(crate) class: Class,
    /// Of the credit.
    pub(crate) bytes: u64,
}

impl Charge {
    /// For `len` bytes of body or of data; none costs nothing.
    pub(crate) fn of(class: Class, len: u64) -> Self {
        let free = len == 0 || class == Class::Control;
        Self { class, bytes: if free { 0 } else { len + CONTENT_OVERHEAD_BYTES } }
    }
}

/// What one end may send.
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

/// What one end lets the other send.
#[derive(Debug)]
pub(crate) struct Grants {
    credit_bytes: u64,
    received: [u64; 5],
    taken: [u64; 5],
    granted: [u64; 5],
}

impl Grants {
    pub(crate) fn new(credit_bytes: u64) -> Self {
        Self { credit_bytes, received: [0; 5], taken: [0; 5], granted: [credit_bytes; 5] }
    }

    /// Counts what came.
    pub(crate) fn receive(&mut self, charge: Charge) -> Result<(), Violation> {
        let index = charge.class.index();
        self.received[index] += charge.bytes;
        if self.received[index] > self.granted[index] {
            return Err(Violation::CreditOverrun(charge.class));
        }
        Ok(())
    }

    /// Notes that the application has taken bytes, or that they were thrown away.
    pub(crate) fn consume(&mut self, charge: Charge) {
        let index = charge.class.index();
        self.taken[index] = (self.taken[index] + charge.bytes).min(self.received[index]);
    }

    /// The next limit to tell the peer: when a quarter of the credit has come back, so that most frames need none.
    pub(crate) fn poll(&mut self) -> Option<(Class, u64)> {
        let class = Class::ALL.into_iter().find(|class| {
            let index = class.index();
            self.taken[index] + self.credit_bytes - self.granted[index] >= self.credit_bytes / 4
        })?;
        let limit = self.taken[class.index()] + self.credit_bytes;
        self.granted[class.index()] = limit;
        Some((class, limit))
    }
}
